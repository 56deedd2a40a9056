//! GPUs without NVML, source by source, and the rule that a node with requested GPUs never
//! silently computes on CPUs.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::fake_nvml::FakeNvml;
use harness::node::Node;
use harness::{Ended, Launcher, inside, run_tool, write_program};
use serde_json::{Value, json};

const UUID: &str = "GPU-fa4e0000-0000-4000-8000-000000000000";

/// A node without GPUs that a change makes look as if it had some.
type Change = fn(Node) -> Node;

fn pci(node: Node, class: &str, vendor: &str) -> Node {
    node.file("/sys/bus/pci/devices/0000:18:00.0/class", class)
        .file("/sys/bus/pci/devices/0000:18:00.0/vendor", vendor)
}

/// (evidence of requested GPUs, options, words of the refusal)
const ASKED: &[(Change, &[&str], &str)] = &[
    (|node| node, &["--device", "gpu"], "device gpu (--device)"),
    (|node| node.env("RANKLAUNCH_DEVICE", "gpu"), &[], "device gpu (RANKLAUNCH_DEVICE)"),
    (
        |node| node.file("/job.toml", "[job]\ndevice = \"gpu\"\n"),
        &["--profile", "JOB"],
        "device gpu (",
    ),
    (|node| node.env("PET_NPROC_PER_NODE", "gpu"), &[], "PET_NPROC_PER_NODE=gpu"),
    (|node| node.env("GPU_COUNT", "2"), &[], "GPU_COUNT=2"),
    (|node| node.env("NVIDIA_VISIBLE_DEVICES", UUID), &[], "NVIDIA_VISIBLE_DEVICES=GPU-fa4e"),
    (|node| node.env("NVIDIA_VISIBLE_DEVICES", "MIG-1,MIG-2"), &[], "NVIDIA_VISIBLE_DEVICES=MIG-1"),
    (|node| node.env("CUDA_VISIBLE_DEVICES", "0,1"), &[], "CUDA_VISIBLE_DEVICES=0,1"),
    (|node| node.file("/dev/nvidiactl", ""), &[], "/dev/nvidiactl"),
    (|node| pci(node, "0x030200\n", "0x10de\n"), &[], "/sys/bus/pci/devices/0000:18:00.0"),
    (|node| pci(node, "0x030000\n", "0x10de\n"), &[], "/sys/bus/pci/devices/0000:18:00.0"),
];

/// States that are no evidence of a GPU in this container.
const NOT_ASKED: &[Change] = &[
    |node| node,
    |node| node.env("GPU_COUNT", "0"),
    |node| node.env("NVIDIA_VISIBLE_DEVICES", "all"),
    |node| node.env("NVIDIA_VISIBLE_DEVICES", "void"),
    |node| node.env("NVIDIA_VISIBLE_DEVICES", "none"),
    |node| node.env("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"),
    |node| node.env("CUDA_VISIBLE_DEVICES", ""),
    |node| node.env("CUDA_VISIBLE_DEVICES", "-1"),
    |node| node.env("CUDA_VISIBLE_DEVICES", "NoDevFiles"),
    // An NVSwitch, and a card of another vendor.
    |node| pci(node, "0x068000\n", "0x10de\n"),
    |node| pci(node, "0x030000\n", "0x1002\n"),
];

fn arguments(node: &Node, options: &[&str]) -> Vec<String> {
    let profile = node.inside("/job.toml").display().to_string();
    let word = |word: &&str| if *word == "JOB" { profile.clone() } else { (*word).to_owned() };
    options.iter().map(word).chain(["--".to_owned(), "x.py".to_owned()]).collect()
}

#[test]
fn requested_but_invisible_gpus_are_refused() {
    let both = ASKED.iter().flat_map(|row| [("en", row), ("zh", row)]);
    for (lang, (change, options, named)) in both {
        let node = change(Node::without_gpus()).env("RANKLAUNCH_LANG", lang);
        let args = arguments(&node, options);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let planned = node.json(&args);
        assert_eq!(planned.refusal(), "80 gpu.count", "{named}: {:#}", planned.json);
        let text = planned.at("/refused/text");
        assert!(text.contains(named), "{named}: {text}");
        assert!(planned.at("/refused/hint").contains("--device cpu"), "{named}");
        // The remedy is the option that the hint names.
        if !options.contains(&"--device") {
            let planned = node.json(&[&["--device", "cpu"], args.as_slice()].concat());
            assert_eq!((planned.code, planned.at("/gpus")), (0, "[]".to_owned()), "{named}");
        }
    }
}

#[test]
fn node_without_gpu_signs_runs_one_cpu_process() {
    for change in NOT_ASKED {
        let planned = change(Node::without_gpus()).json(&["--", "x.py"]);
        assert_eq!((planned.code, planned.at("/nproc_per_node")), (0, "1".to_owned()));
        assert!(planned.warning_ids().contains(&"gpu.none".to_owned()), "{:#}", planned.json);
    }
}

/// The names mean the same as for torchrun, except `auto` without GPUs.
#[test]
fn process_count_names_have_torchruns_meaning() {
    let number = |node: &Node, args: &[&str]| {
        let planned = node.json(&[args, &["--", "x.py"]].concat());
        if planned.code == 0 { planned.at("/nproc_per_node") } else { planned.refusal() }
    };
    let of = |word| ["--nproc-per-node", word];
    let with_cpus = |node: Node| node.file("/sys/devices/system/cpu/online", "0-5\n");
    let (none, four) = (with_cpus(Node::without_gpus()), with_cpus(Node::with_gpus(4)));
    let by_platform =
        with_cpus(Node::without_gpus()).platform("PET_NNODES=1 PET_NPROC_PER_NODE=cpu");
    assert_eq!(number(&by_platform, &[]), "6");
    assert_eq!((number(&none, &of("cpu")), number(&four, &of("cpu"))), ("6".into(), "6".into()));
    assert_eq!((number(&none, &of("auto")), number(&four, &of("auto"))), ("1".into(), "4".into()));
    assert_eq!(
        (number(&none, &of("gpu")), number(&four, &of("gpu"))),
        ("80 gpu.count".into(), "4".into())
    );
    for (word, device) in [("gpu", "cpu"), ("cpu", "gpu")] {
        let both = [&of(word)[..], &["--device", device]].concat();
        assert_eq!(number(&four, &both), "64 settings.nproc_per_node", "{word}");
    }
}

/// This machine's own driver, if any, is not part of the test.
fn live(subcommand: &str, args: &[&str]) -> Launcher {
    let mut words = vec![subcommand, "--lang", "en"];
    words.extend(args);
    Launcher::new(words).env("RANKLAUNCH_NVML_LIBRARY", "/nowhere/libnvidia-ml.so.1")
}

fn has_nodes() -> bool {
    Path::new("/dev/nvidia0").exists()
}

#[test]
fn run_refuses_as_plan_does() {
    if has_nodes() {
        harness::skipped("this machine has GPUs");
        return;
    }
    let run = |name: &str, value: &str| {
        live("run", &["--engine", "direct", "--stale", "off", "--", "/bin/true"])
            .env(name, value)
            .run()
    };
    for (name, value) in
        [("GPU_COUNT", "2"), ("PET_NPROC_PER_NODE", "gpu"), ("NVIDIA_VISIBLE_DEVICES", UUID)]
    {
        let ended = run(name, value).expect_code(80);
        assert!(ended.err.contains(&format!("{name}={value}")), "{}", ended.err);
        assert!(ended.err.contains("no such file"), "the sources are said: {}", ended.err);
    }
}

/// `nvidia-smi` in its own folder, and the PATH with that folder first.
fn smi(script: &str) -> (tempfile::TempDir, OsString) {
    let folder = tempfile::tempdir().expect("a folder");
    write_program(&folder.path().join("nvidia-smi"), &format!("#!/bin/sh\n{script}\n"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.path().to_owned()).chain(std::env::split_paths(&path));
    let path = std::env::join_paths(folders).expect("a path");
    (folder, path)
}

fn report(ended: &Ended) -> Value {
    serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{ended:?}"))
}

/// Answers only the question that is asked, like the real nvidia-smi.
const TWO: &str = r#"case "$*" in *--query-gpu=index,uuid,name,pci.bus_id,memory.total,*--format=csv,noheader,nounits*) ;; *) exit 2;; esac
echo "0, GPU-aa, NVIDIA H100 80GB HBM3, 00000000:18:00.0, 81559, 4, Disabled, 535.54.03"
echo "1, GPU-bb, NVIDIA H100 80GB HBM3, 00000000:2A:00.0, [N/A], [N/A], Enabled, 535.54.03""#;

#[test]
fn nvidia_smi_comes_last_with_its_faults_named() {
    if has_nodes() {
        harness::skipped("this machine has GPUs");
        return;
    }
    let (_folder, path) = smi(TWO);
    for probe in ["auto", "nvidia-smi"] {
        let ended = live("check", &["--format", "json", "--probe", probe]).env("PATH", &path);
        let report = report(&ended.env("GPU_COUNT", "2").run());
        let gpus = &report["facts"]["gpus"];
        assert_eq!(gpus["source"], "nvidia-smi", "{gpus:#}");
        assert_eq!(gpus["driver_version"], "535.54.03");
        assert_eq!(gpus["gpus"][1]["pci"], "0000:2a:00.0");
        assert_eq!(
            (&gpus["gpus"][0]["mig"], &gpus["gpus"][1]["mig"]),
            (&json!(false), &json!(true))
        );
    }
    // With the probe off, no driver is asked.
    let ended = live("check", &["--format", "json", "--probe", "off"]).env("PATH", &path).run();
    assert_eq!(report(&ended)["facts"]["gpus"]["gpus"], json!([]));

    for (script, code, words) in [
        ("exec sleep 600", 81, "nvidia-smi hangs: no answer within 1s"),
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch' >&2; exit 18",
            81,
            "the driver library libnvidia-ml.so.1 is of another version",
        ),
        (
            "echo 'Unable to determine the device handle: GPU is lost' >&2; exit 15",
            81,
            "GPU is lost",
        ),
        (
            "echo \"NVIDIA-SMI has failed because it couldn't communicate\" >&2; exit 9",
            80,
            "couldn't",
        ),
        ("echo 'No devices were found'", 80, "lists no GPU: No devices were found"),
        ("head -c 100000 /dev/urandom", 80, "lists no GPU"),
        ("kill -SEGV $$", 80, "died of signal 11"),
        ("exit 0", 80, "lists no GPU"),
    ] {
        let (_folder, path) = smi(script);
        let launcher = live("check", &["--format", "json", "--deadline", "1s"]).env("PATH", &path);
        let ended = launcher.env("GPU_COUNT", "2").run();
        let checks = report(&ended)["checks"].to_string();
        assert_eq!(ended.code, code, "{script}: {checks}");
        assert!(checks.contains(words), "{script}: {words:?} is not in {checks}");
        ended.expect_nothing_left();
    }
}

#[test]
fn unloadable_library_is_quoted_before_next_source() {
    for (fake, words) in [
        (FakeNvml::without_entry_point(), "nvmlInit_v2"),
        (FakeNvml::damaged(), "libnvidia-ml.so.1: "),
    ] {
        let node = Node::of(Some(fake)).file("/dev/nvidia0", "").file("/dev/nvidia1", "");
        let planned = node.json(&["--", "x.py"]);
        assert_eq!((planned.code, planned.at("/nproc_per_node")), (0, "2".to_owned()));
        let because = planned.json["decisions"].to_string();
        assert!(because.contains("2 GPUs visible, as /dev/nvidia* says"), "{because}");
        let report = node.launcher("check", &["--format", "json"]).run();
        let attempts = self::report(&report)["facts"]["gpus"]["attempts"].to_string();
        assert!(attempts.contains(words), "{attempts}");
    }
}

#[test]
fn sysfs_supplies_the_pci_link_without_nvml() {
    let port = "sys/devices/pci0000:17/0000:17:01.0";
    let gpu = format!("{port}/0000:18:00.0");
    // (lanes now, the GPU's most, the port's most, severity)
    for (now, own, above, severity) in
        [("4", "16", "16", "warn"), ("8", "16", "8", "ok"), ("16", "16", "16", "ok")]
    {
        let node = Node::of(None)
            .file("/dev/nvidia0", "")
            .file("/proc/driver/nvidia/gpus/0000:18:00.0/information", "Device Minor: \t 0\n")
            .file(&format!("/{port}/max_link_width"), &format!("{above}\n"))
            .file(&format!("/{gpu}/max_link_width"), &format!("{own}\n"))
            .file(&format!("/{gpu}/current_link_width"), &format!("{now}\n"));
        fs::create_dir_all(node.inside("/sys/bus/pci/devices")).expect("a folder");
        for (address, path) in [("0000:18:00.0", gpu.as_str()), ("0000:17:01.0", port)] {
            let link = node.inside(&format!("/sys/bus/pci/devices/{address}"));
            std::os::unix::fs::symlink(format!("../../../../{path}"), link).expect("a link");
        }
        let ended = node.launcher("check", &["--format", "json", "--lang", "en"]).run();
        let checks = report(&ended)["checks"].clone();
        let all = checks.as_array().expect("checks");
        let link = all.iter().find(|check| check["id"] == "gpu.link").expect("gpu.link");
        assert_eq!(link["severity"], severity, "{now} of {own} below {above}: {link}");
    }
}

#[test]
fn device_nodes_count_only_when_opened() {
    let mut way_in = Command::new("unshare");
    way_in.args([
        "--mount",
        "sh",
        "-c",
        "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec \"$0\" \"$@\"",
    ]);
    inside::run(way_in, inside_device_nodes);
}

#[test]
#[ignore = "runs in a mount namespace with an empty /dev"]
fn inside_device_nodes() {
    let node = |name: &str, minor: &str| {
        run_tool(Command::new("mknod").arg(Path::new("/dev").join(name)).args(["c", "195", minor]));
    };
    run_tool(Command::new("mount").args(["-t", "tmpfs", "none", "/proc/driver"]));
    println!("{}", inside::READY);
    let gpus = |more: &[&str]| {
        let args = [&["--format", "json", "--deadline", "2s"], more].concat();
        report(&live("check", &args).run())["facts"]["gpus"].clone()
    };
    // Device 195 has no driver here: the node exists and does not open, like one that belongs to
    // another container.
    node("nvidia5", "5");
    for (address, minor) in [("0000:2a:00.0", 2), ("0000:18:00.0", 6), ("0000:3a:00.0", 5)] {
        let folder = PathBuf::from("/proc/driver/nvidia/gpus").join(address);
        fs::create_dir_all(&folder).expect("a folder");
        let text =
            format!("Model: \t NVIDIA H100\nGPU UUID: \t GPU-{minor}\nDevice Minor: \t {minor}\n");
        fs::write(folder.join("information"), text).expect("a file");
    }
    let found = gpus(&[]);
    assert_eq!((&found["source"], &found["gpus"]), (&json!("none"), &json!([])), "{found:#}");
    assert!(found["attempts"].to_string().contains("no device node opens (/dev/nvidia5: "));

    for name in ["nvidia2", "nvidia6", "nvidiactl", "nvidia-uvm", "nvidia-caps"] {
        fs::write(Path::new("/dev").join(name), "").expect("a file");
    }
    let found = gpus(&[]);
    assert_eq!(found["source"], "device-nodes", "{found:#}");
    let order: Vec<(&Value, &Value, &Value)> = found["gpus"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|gpu| (&gpu["index"], &gpu["minor"], &gpu["uuid"]))
        .collect();
    assert_eq!(
        order,
        [(&json!(0), &json!(6), &json!("GPU-6")), (&json!(1), &json!(2), &json!("GPU-2"))],
        "numbered by PCI address"
    );

    // The driver hangs, so no device node is opened, and /proc lists the GPUs.
    let fake = FakeNvml::new(&[("MODE", "hang")]);
    let args = ["check", "--format", "json", "--lang", "en", "--deadline", "1s"];
    let ended = Launcher::new(args).env("RANKLAUNCH_NVML_LIBRARY", fake.library()).run();
    let found = report(&ended.expect_code(81))["facts"]["gpus"].clone();
    assert_eq!(found["source"], "proc-driver", "{found:#}");
    assert_eq!(found["gpus"].as_array().map(Vec::len), Some(3));
    assert!(found["attempts"].to_string().contains("not opened, because the driver hangs"));
}

/// The output of nvidia-smi for the two GPUs of the fake library, with this much memory.
fn smi_of_the_fake(mib: u32) -> String {
    let line = |n: u32| {
        let bus = 18 + 10 * n;
        format!(
            "echo '{n}, GPU-fa4e000{n}-0000-4000-8000-00000000000{n}, 00000000:{bus}:00.0, {mib}, \
             NVIDIA H100 80GB HBM3, 570.86.15, Default, Enabled, 16, 16, 34'"
        )
    };
    let two = [line(0), line(1)].join("; ");
    format!("case \"$*\" in -L) echo 'GPU 0: NVIDIA H100';; *index,uuid*) {two};; *) echo -;; esac")
}

#[test]
fn gpu_machine_script_compares_and_skips() {
    if has_nodes() {
        harness::skipped("this machine has GPUs: make gpu");
        return;
    }
    // The script examines GPUs, so the launcher has a Python with torch.
    let torch = harness::python();
    let torch = torch.parent().and_then(Path::parent).expect("its folder");
    let run = |path: &OsString, fake: Option<&FakeNvml>| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu/real.sh");
        let mut shell = Command::new("sh");
        shell.arg(script);
        let mut launcher = Launcher::of(shell, [harness::executable()]).env("PATH", path);
        // The script itself has no torch, because only a real GPU can show its launch.
        launcher = launcher.env("RANKLAUNCH_TEST_PYTHON", "/nowhere/python");
        launcher = launcher.env("VIRTUAL_ENV", torch);
        if let Some(fake) = fake {
            launcher = launcher.env("RANKLAUNCH_NVML_LIBRARY", fake.library());
        }
        launcher.run()
    };
    let none = std::env::var_os("PATH").unwrap_or_default();
    let ended = run(&none, None).expect_code(0);
    assert!(ended.out.contains("skipped: no NVIDIA GPU (/dev/nvidia[0-9]+: none"), "{}", ended.out);

    let fake = FakeNvml::new(&[("GPUS", "2")]);
    let (_folder, path) = smi(&smi_of_the_fake(81559));
    let ended = run(&path, Some(&fake)).expect_code(0);
    for same in ["ok: count: 2", "ok: uuid: GPU-", "ok: pci: 0000:18:00.0 0000:28:00.0"] {
        assert!(ended.out.contains(same), "{same}: {}", ended.out);
    }
    assert!(ended.out.contains("left out: /nowhere/python has no torch"), "{}", ended.out);

    let (_folder, path) = smi(&smi_of_the_fake(81560));
    let ended = run(&path, Some(&fake)).expect_code(1);
    assert!(ended.out.contains("FAILED: memory, MiB"), "{}", ended.out);
    assert!(ended.out.contains("== 1 failed"), "{}", ended.out);
}
