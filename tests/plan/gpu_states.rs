//! Every state of a driver and its GPUs in `check` and `plan`: the id, the value and the GPU,
//! and the effect on a launch.

use std::process::Command;

use harness::fake_nvml::FakeNvml;
use harness::node::Node;
use harness::{Ended, run_args};
use serde_json::{Value, json};

/// The faulty GPU, with all its numbers.
const THIRD: &str = "GPU 3 (nvidia-smi index; 0000:48:00.0, GPU-fa4e0003-0000-4000-8000-000000000003, /dev/nvidia3)";

/// A node that was given GPUs, with a driver that plays these settings.
fn playing(settings: &[(&str, &str)]) -> Node {
    Node::of(Some(FakeNvml::new(settings))).file("/dev/nvidiactl", "")
}

fn check(node: &Node, more: &[&str]) -> (Ended, Value) {
    let args =
        [&["--format", "json", "--lang", "en", "--python", harness::node::PYTHON], more].concat();
    let ended = node.launcher("check", &args).run();
    let report = serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{ended:?}"));
    (ended, report)
}

/// The report's entries of an id, in its order, worst first: (severity, text, hint).
fn of(report: &Value, id: &str) -> Vec<[String; 3]> {
    let checks = report["checks"].as_array().expect("checks");
    let text = |check: &Value, key: &str| check[key].as_str().unwrap_or_default().to_owned();
    checks
        .iter()
        .filter(|check| check["id"] == id)
        .map(|check| ["severity", "text", "hint"].map(|key| text(check, key)))
        .collect()
}

#[rustfmt::skip]
const STATES: &[(&str, i32, &str, &str, &[&str])] = &[
    // mode of GPU 3, exit code, id, severity, words of the text
    ("ok",              0,  "gpu.count",  "ok",   &["8 GPUs (NVIDIA H100 80GB HBM3)"]),
    ("lost",            81, "gpu.fault",  "fail", &["GPU 3 (nvidia-smi index) has fallen off the bus", "code 15"]),
    ("sick",            81, "gpu.fault",  "fail", &["GPU 3 (nvidia-smi index) has fallen off the bus"]),
    ("health-lost",     81, "gpu.fault",  "fail", &[THIRD, "has fallen off the bus"]),
    ("reset-required",  81, "gpu.fault",  "fail", &["GPU 3 (nvidia-smi index)", "code 16"]),
    ("recovery",        81, "gpu.fault",  "fail", &[THIRD, "asks for a reboot"]),
    ("remap-failed",    81, "gpu.fault",  "fail", &[THIRD, "could not be remapped", "allowed: no"]),
    ("prohibited",      81, "gpu.fault",  "fail", &[THIRD, "PROHIBITED (2)", "DEFAULT (0)"]),
    ("mismatch",        81, "gpu.fault",  "fail", &["570.86.15", "the kernel driver is"]),
    ("not-loaded",      81, "gpu.fault",  "fail", &["not loaded", "code 9"]),
    ("access",          81, "gpu.fault",  "fail", &["daemon-reload", "code 17"]),
    ("unknown",         81, "gpu.fault",  "fail", &["code 999"]),
    ("crash",           81, "gpu.fault",  "fail", &["crashed with signal 11"]),
    ("exit",            80, "gpu.count",  "fail", &["NVML: ended with code 3", "fake nvml: giving up"]),
    ("fabric",          82, "gpu.fabric", "fail", &[THIRD, "still in progress", "802"]),
    ("fabric-failed",   82, "gpu.fabric", "fail", &[THIRD, "failed with code 999"]),
    ("ecc",             0,  "gpu.health", "warn", &[THIRD, "2 uncorrected memory errors", "0 are allowed", "9 in total"]),
    ("remap",           0,  "gpu.health", "warn", &[THIRD, "rows are pending remapping"]),
    ("retired",         0,  "gpu.health", "warn", &[THIRD, "pages are pending retirement"]),
    ("throttle",        0,  "gpu.health", "warn", &[THIRD, "hardware slowdown, too hot", "0x48 at 34 °C"]),
    ("drain",           0,  "gpu.health", "warn", &[THIRD, "recovery action 3"]),
    ("pcie-narrow",     0,  "gpu.link",   "warn", &[THIRD, "width is x4, the maximum is x16"]),
    ("nvlink-down",     0,  "gpu.link",   "warn", &[THIRD, "17 NVLinks are up, other GPUs of this model have 18 (down: 7)"]),
    ("fabric-degraded", 0,  "gpu.link",   "warn", &[THIRD, "degraded bandwidth (health mask 0xa9)"]),
    ("exclusive",       0,  "gpu.mode",   "info", &[THIRD, "EXCLUSIVE_PROCESS"]),
    ("persistence-off", 0,  "gpu.mode",   "info", &["nvidia-smi index) 0, 1, 2, 3, 4, 5, 6, 7"]),
    ("mig",             0,  "gpu.mode",   "info", &["16 MIG instances (MIG-fa4e0000-0000-4000-8000-000000000000 9.6 GiB", "…"]),
    ("mig-empty",       0,  "gpu.mode",   "warn", &["no MIG instance of GPU (nvidia-smi index) 0, 1, 2"]),
    ("not-supported",   0,  "gpu.health", "info", &["only part of its state", "nvmlDeviceGetEccMode"]),
    ("no-permission",   0,  "gpu.health", "info", &["only part of its state", "permission"]),
    ("sandbox",         0,  "gpu.health", "info", &["only part of its state", "nvmlDeviceGetEccMode"]),
    ("handle-unknown",  81, "gpu.fault",  "fail", &["GPU 3 (nvidia-smi index)", "code 999"]),
    ("many-processes",  0,  "gpu.busy",   "ok",   &["idle"]),
    ("noise",           0,  "gpu.count",  "ok",   &["8 GPUs"]),
    ("slow",            0,  "gpu.fault",  "ok",   &["no fault, driver 570.86.15"]),
];

#[test]
fn each_state_is_reported_only_faults_refuse() {
    for (mode, code, id, severity, words) in STATES {
        let node = playing(&[("MODE", mode), ("BAD", "3"), ("SLOW_MS", "700")]);
        let (ended, report) = check(&node, &[]);
        let found = of(&report, id);
        assert!(!found.is_empty(), "{mode}: no {id}");
        let worst = found.first().expect("one");
        assert_eq!(worst[0], *severity, "{mode}: {worst:?}");
        for part in *words {
            assert!(worst[1].contains(part), "{mode}: {part:?} is not in {worst:?}");
        }
        assert!(["ok", "info"].contains(severity) || !worst[2].is_empty(), "{mode}: no hint");
        assert_eq!(ended.code, *code, "{mode}");
        // No other check of the GPUs fails: a state is one finding.
        for other in ["gpu.count", "gpu.fault", "gpu.fabric", "gpu.health", "gpu.link", "gpu.mode"]
        {
            let wrong = of(&report, other).iter().any(|one| one[0] == "fail" || one[0] == "warn");
            let follows = other == "gpu.count" && *code == 81;
            assert!(other == *id || follows || !wrong, "{mode}: {other} {:?}", of(&report, other));
        }
        if *code == 0 {
            continue;
        }
        let plan = node.plan(&["--lang", "zh", "--", "x.py"]);
        assert_eq!(plan.code, *code, "{mode}: plan and check agree");
        let chinese = |letter: char| ('\u{4e00}'..'\u{9fff}').contains(&letter);
        assert!(plan.out.chars().any(chinese), "{mode}: {}", plan.out);
        assert!(plan.out.contains("--severity") || plan.out.contains("--device"), "{}", plan.out);
        // The same with the severity warn does not refuse.
        let allowed = node.json(&["--severity", &format!("{id}=warn"), "--", "x.py"]);
        assert!(allowed.code != *code || *id == "gpu.count", "{mode}: {:#}", allowed.json);
    }
}

#[test]
fn allowed_fault_is_a_warning() {
    let node = playing(&[("MODE", "lost"), ("BAD", "3")]);
    let planned = node.json(&["--severity", "gpu.fault=warn", "--", "x.py"]);
    assert_eq!((planned.code, planned.at("/nproc_per_node")), (0, "7".to_owned()));
    assert!(planned.warning_ids().contains(&"gpu.fault.lost".to_owned()));
    // A warning that was made a fault stops the launch.
    let node = playing(&[("MODE", "ecc"), ("BAD", "3")]);
    assert_eq!(check(&node, &["--severity", "gpu.health=fail"]).0.code, 81);
    assert!(node.json(&["--", "x.py"]).code == 0);
}

#[test]
fn invisible_gpu_may_be_in_any_mode() {
    for (mode, code) in [("prohibited", 0), ("remap-failed", 0), ("lost", 81)] {
        let node = playing(&[("MODE", mode), ("BAD", "3")]).env("CUDA_VISIBLE_DEVICES", "0,1");
        assert_eq!(check(&node, &[]).0.code, code, "{mode}");
    }
}

#[test]
fn report_holds_all_nvml_facts() {
    let node = playing(&[("GPUS", "2"), ("PIDS", "4711"), ("BAD", "1"), ("USED", "0,2048")]);
    let (_, report) = check(&node, &[]);
    let gpus = &report["facts"]["gpus"];
    assert_eq!(gpus["cuda_driver_version"], json!([12, 8]));
    let mut health = gpus["gpus"][1]["health"].clone();
    let unknown = health.as_object_mut().expect("an object").remove("unknown");
    let energy = health["load"].as_object_mut().expect("an object").remove("energy");
    assert!(energy.is_some_and(|energy| energy.as_u64() > Some(640_000)), "{health}");
    assert_eq!(
        health,
        json!({
            "compute_mode": 0, "persistence": true, "virtualization": 0,
            "ecc": true, "ecc_pending": true, "ecc_volatile": 0, "ecc_aggregate": 0,
            "remapped_rows":
                { "correctable": 1, "uncorrectable": 0, "pending": false, "failed": false },
            "retired_pages_pending": null,
            "throttle_reasons": 1, "temperature": 34,
            "load": {
                "utilization": 97, "power": 640_000, "power_limit": 700_000,
                "sm_clock": 1755, "max_sm_clock": 1980, "pcie_replays": 0,
                "nvlink_replays": 0, "nvlink_recoveries": 0, "nvlink_crc_errors": 0,
            },
            "pcie": { "width": 16, "max_width": 16, "generation": 1, "max_generation": 5 },
            "nvlinks": { "up": 18, "down": [] },
            "processes": [{ "pid": 4711, "kind": "compute", "memory": 1_u64 << 30 }],
            "mig_devices": null, "late": false,
        })
    );
    let unknown = unknown.expect("a list");
    assert_eq!(unknown[0]["call"], "nvmlDeviceGetRetiredPagesPendingStatus");
    assert_eq!((unknown[0]["code"].clone(), unknown[1].clone()), (json!(3), Value::Null));
    let busy = of(&report, "gpu.busy");
    assert!(busy[0][1].contains("1 (2.0 GiB); held by pid 4711 as NVML counts"), "{busy:?}");

    let node = playing(&[("GPUS", "2"), ("USED", "0,2048")]);
    let busy = of(&check(&node, &[]).1, "gpu.busy");
    assert!(busy[0][1].contains("NVML lists no process there"), "{busy:?}");
    let node = node.env("CUDA_MPS_PIPE_DIRECTORY", "/mps");
    let busy = of(&check(&node, &[]).1, "gpu.busy");
    assert!(busy[0][0] == "info" && busy[0][1].contains("with MPS"), "{busy:?}");
}

#[test]
fn exclusive_gpu_with_a_process_is_a_warning() {
    let node = playing(&[("MODE", "exclusive"), ("BAD", "3"), ("PIDS", "77")]);
    let mode = of(&check(&node, &[]).1, "gpu.mode");
    assert_eq!(mode[0][0], "warn");
    assert!(mode[0][1].contains("pid 77 as NVML reports it, possibly of another pid"), "{mode:?}");
}

/// Without free memory a job would fail; with some memory in use it is only slower.
#[test]
fn used_memory_refuses_if_no_process_fits() {
    let full: &[(&str, &str)] = &[("USED", "81100")];
    let room: &[(&str, &str)] = &[("USED", "80000")];
    let taken: &[(&str, &str)] = &[("MODE", "exclusive"), ("PIDS", "77"), ("USED", "2048")];
    let nobodys: &[(&str, &str)] = &[("MODE", "exclusive"), ("USED", "2048")];
    let shared: &[(&str, &str)] = &[("PIDS", "77"), ("USED", "2048")];
    let allowed = ["--severity", "gpu.busy=warn"];
    for (settings, more, code) in [
        (full, &[][..], 83),
        (full, &allowed[..], 0),
        (room, &[], 0),
        (taken, &[], 83),
        (taken, &allowed, 0),
        (nobodys, &[], 0),
        (shared, &[], 0),
        (shared, &["--severity", "gpu.busy=fail"], 83),
    ] {
        let settings = [&[("GPUS", "1")], settings].concat();
        let ended = run(&FakeNvml::new(&settings), more).expect_code(code);
        let words = "memory is already in use on GPU";
        assert!(ended.err.contains(words), "{settings:?} {more:?}\n{}", ended.err);
        assert_eq!(ended.id(), (code == 83).then_some("gpu.busy"), "{}", ended.err);
        let (checked, report) = check(&playing(&settings), more);
        let severity = if code == 83 { "fail" } else { "warn" };
        assert_eq!((checked.code, of(&report, "gpu.busy")[0][0].as_str()), (code, severity));
    }
    // Another GPU is free, and is taken.
    let two = [("GPUS", "2"), ("USED", "81100,0")];
    let ended = run(&FakeNvml::new(&two), &[]).expect_code(0);
    assert!(!ended.err.contains("memory is already in use"), "{}", ended.err);
}

/// A driver runs programs built for its own major version of CUDA, and for older versions.
#[test]
fn torch_for_newer_cuda_names_the_needed_driver() {
    for (driver, torch, en, hint, zh) in [
        ("12080", "'12.9'", "", "", ""),
        ("12080", "'11.8'", "", "", ""),
        (
            "12080",
            "'13.0'",
            "is built for CUDA 13.0, but the driver supports only 12.8",
            "install a driver for CUDA 13 (580 or newer), or a torch that is built for CUDA 12.8 or older (a cu128 wheel)",
            "请安装支持 CUDA 13 的驱动（580 或更新）",
        ),
        (
            "11040",
            "'12.4'",
            "is built for CUDA 12.4, but the driver supports only 11.4",
            "install a driver for CUDA 12 (525 or newer), or a torch that is built for CUDA 11.4 or older (a cu114 wheel)",
            "（cu114 的 wheel）",
        ),
        // The first driver for this version is not known yet.
        (
            "13000",
            "'14.1'",
            "is built for CUDA 14.1, but the driver supports only 13.0",
            "install a driver for CUDA 14, or a torch",
            "请安装支持 CUDA 14 的驱动，",
        ),
        (
            "12080",
            "None",
            "torch 2.9.0 is a CPU build, but the job uses GPUs",
            "check which environment is meant with --python PATH or --conda-env NAME",
            "请用 --python PATH 或 --conda-env NAME 确认所用环境",
        ),
    ] {
        let version = format!("__version__ = '2.9.0'\ncuda: Optional[str] = {torch}\n");
        let place = "/opt/env/lib/python3.11/site-packages/torch/version.py";
        let node = playing(&[("CUDA", driver)]).file(place, &version);
        let planned = node.json(&["--lang", "en", "--", "x.py"]);
        assert_eq!(planned.code, 0, "a warning only: {torch}");
        let warnings = planned.json["warnings"].as_array().expect("a list");
        let found = warnings.iter().find(|warning| warning["id"] == "python.torch");
        let text = |key: &str| found.map_or("", |found| found[key].as_str().expect("text"));
        assert!(text("text").contains(en) && text("hint").contains(hint), "{driver}: {found:?}");
        assert_eq!(found.is_some(), !en.is_empty(), "{driver} {torch}: {found:?}");
        let chinese = node.plan(&["--lang", "zh", "--", "x.py"]).out.replace("\n", "");
        let chinese: String = chinese.split_whitespace().collect();
        let zh: String = zh.split_whitespace().collect();
        assert!(chinese.contains(&zh), "{zh}: {chinese}");
        // CUDA's forward compatibility brings a libcuda that is newer than the driver.
        let compat = node
            .file("/usr/local/cuda/compat/libcuda.so.1", "")
            .env("LD_LIBRARY_PATH", "/usr/local/cuda/compat")
            .json(&["--lang", "en", "--", "x.py"]);
        let told = compat.warning_ids().iter().any(|id| id == "python.torch");
        assert_eq!(told, torch == "None", "{driver} {torch}");
    }
}

#[test]
fn old_driver_leaves_facts_unknown() {
    let node = Node::of(Some(FakeNvml::of_old_driver(&[("GPUS", "2")])));
    let (ended, report) = check(&node.file("/dev/nvidiactl", ""), &[]);
    assert_eq!(ended.code, 0);
    let health = of(&report, "gpu.health");
    assert!(health[0][1].contains("this driver library has no such call"), "{health:?}");
    assert_eq!(report["facts"]["gpus"]["gpus"][1]["health"]["pcie"]["width"], Value::Null);
}

/// All other facts of the GPU are known.
#[test]
fn uncounted_energy_is_unknown_with_the_reason() {
    let with = |mode| FakeNvml::new(&[("GPUS", "1"), ("MODE", mode)]);
    for (fake, code) in [
        (with("before-volta"), json!(3)),
        (with("no-permission"), json!(4)),
        (FakeNvml::of_old_driver(&[("GPUS", "1")]), Value::Null),
    ] {
        let (_, report) = check(&Node::of(Some(fake)), &[]);
        let gpu = &report["facts"]["gpus"]["gpus"][0];
        assert!(gpu["uuid"].is_string() && gpu["health"]["load"]["energy"].is_null(), "{gpu:#}");
        let unknown = gpu["health"]["unknown"].as_array().expect("a list");
        let call = "nvmlDeviceGetTotalEnergyConsumption";
        let failed = unknown.iter().find(|failed| failed["call"] == call);
        assert_eq!(failed.map(|failed| &failed["code"]), Some(&code), "{unknown:?}");
    }
}

#[test]
fn hung_health_calls_cost_half_the_deadline() {
    let node = playing(&[("MODE", "health-hang"), ("BAD", "3")]);
    let (ended, report) = check(&node, &["--deadline", "2s"]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert_eq!(report["facts"]["gpus"]["gpus"].as_array().map(Vec::len), Some(8));
    let health = of(&report, "gpu.health");
    assert_eq!((health.len(), health[0][0].as_str()), (1, "warn"));
    assert!(health[0][1].contains(THIRD) && health[0][1].contains("no answer within 1s"));
    assert_eq!(report["facts"]["gpus"]["gpus"][2]["health"]["temperature"], 34, "asked before it");
    let after = &report["facts"]["gpus"]["gpus"][4]["health"]["unknown"][0]["text"];
    assert!(after.as_str().is_some_and(|text| text.starts_with("not asked: GPU 3")), "{after}");
    ended.expect_nothing_left();
}

#[test]
fn hung_and_slow_drivers_are_distinguished() {
    // The pause is the same, with two deadlines.
    for (deadline, code, words) in [("1s", 81, "NVML hangs: no answer within 1s"), ("30s", 0, "")] {
        let node = playing(&[("MODE", "slow"), ("SLOW_MS", "3000")]);
        let (ended, report) = check(&node, &["--deadline", deadline]);
        assert_eq!(ended.code, code, "{deadline}");
        assert!(of(&report, "gpu.fault")[0][1].contains(words), "{deadline}: {report:#}");
        ended.expect_nothing_left();
    }
}

/// `run` of one rank that does nothing, on this machine.
fn run(fake: &FakeNvml, more: &[&str]) -> Ended {
    let mut args = run_args("direct", 1);
    let device = args.iter().position(|word| word == "cpu").expect("--device cpu");
    args[device] = "gpu".into();
    args.extend(["--lang", "en"].map(Into::into));
    args.extend(more.iter().map(Into::into));
    args.extend(["--", "/bin/true"].map(Into::into));
    harness::Launcher::new(args).env("RANKLAUNCH_NVML_LIBRARY", fake.library()).run()
}

#[test]
fn fabric_is_awaited_while_being_set_up() {
    let comes = FakeNvml::new(&[("MODE", "fabric"), ("GPUS", "1"), ("POLLS", "2")]);
    let ended = run(&comes, &[]).expect_code(0);
    assert!(ended.err.contains("waiting for it, at most 30 s"), "{}", ended.err);

    let never = FakeNvml::new(&[("MODE", "fabric"), ("GPUS", "1")]);
    let ended = run(&never, &["--wait-timeout", "2s"]).expect_code(82);
    assert!(ended.err.contains("at most 2 s") && ended.err.contains("802"), "{}", ended.err);

    // No wait if the state is allowed, or if it has failed for good.
    let ended = run(&never, &["--severity", "gpu.fabric=warn"]).expect_code(0);
    assert!(!ended.err.contains("waiting for it"), "{}", ended.err);
    let failed = FakeNvml::new(&[("MODE", "fabric-failed"), ("GPUS", "1")]);
    let ended = run(&failed, &[]).expect_code(82);
    assert!(!ended.err.contains("waiting for it"), "{}", ended.err);
}

#[test]
fn gpus_of_several_models_have_several_numbers() {
    let names = ("NAMES", "NVIDIA T4;NVIDIA H100;NVIDIA T4;NVIDIA H100");
    let mixed = || playing(&[("GPUS", "4"), names]);
    let mode = |node: Node| of(&check(&node, &[]).1, "gpu.mode")[0].clone();
    let found = mode(mixed());
    assert_eq!(found[0], "warn");
    assert!(found[1].contains("CUDA_DEVICE_ORDER=FASTEST_FIRST: CUDA numbers"), "{found:?}");
    assert_eq!(mode(mixed().env("CUDA_DEVICE_ORDER", "PCI_BUS_ID"))[0], "ok");
    let setting = ["--env", "CUDA_DEVICE_ORDER=PCI_BUS_ID"];
    assert_eq!(of(&check(&mixed(), &setting).1, "gpu.mode")[0][0], "ok");
    let uuid = "GPU-fa4e0002-0000-4000-8000-000000000002";
    assert_eq!(mode(mixed().env("CUDA_VISIBLE_DEVICES", uuid))[0], "ok");
    assert_eq!(mode(playing(&[("GPUS", "4")]))[0], "ok", "on one model all orders are one");

    // A subset is named so that CUDA uses the chosen GPUs in any device order.
    let subset = |node: Node| {
        let planned = node.json(&["--nproc-per-node", "2", "--", "x.py"]);
        ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"]
            .map(|name| planned.at(&format!("/env/{name}")))
    };
    assert_eq!(subset(mixed()), ["0,1", "PCI_BUS_ID"]);
    assert_eq!(subset(mixed().env("CUDA_DEVICE_ORDER", "PCI_BUS_ID")), ["0,1", "absent"]);
    let [devices, order] = subset(mixed().env("CUDA_DEVICE_ORDER", "FASTEST_FIRST"));
    let [first, second] = [0, 1].map(|n| format!("GPU-fa4e000{n}-0000-4000-8000-00000000000{n}"));
    assert_eq!((devices, order.as_str()), (format!("{first},{second}"), "absent"));
    let node = mixed().env("CUDA_VISIBLE_DEVICES", "3,1,2").env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    assert_eq!(subset(node), ["3,1", "absent"], "the user's own tokens in their order");
}

#[test]
fn env_setting_limits_visible_gpus_like_a_variable() {
    let setting = ["--env", "CUDA_VISIBLE_DEVICES=1,3", "--", "x.py"];
    let of_container = playing(&[("GPUS", "4")]).env("CUDA_VISIBLE_DEVICES", "0,1,2");
    for node in [playing(&[("GPUS", "4")]), of_container] {
        let planned = node.json(&setting);
        let found = ["/nproc_per_node", "/gpus/0/index", "/gpus/1/index", "/gpus/2"];
        assert_eq!(found.map(|at| planned.at(at)), ["2", "1", "3", "absent"]);
    }
}

#[test]
fn a_mig_instance_is_found_on_its_parent() {
    let uuid = "MIG-fa4e0002-0000-4000-8000-000000000002";
    let node = playing(&[("MODE", "mig"), ("GPUS", "4")]).env("CUDA_VISIBLE_DEVICES", uuid);
    let planned = node.json(&["--", "x.py"]);
    assert_eq!((planned.code, planned.at("/nproc_per_node")), (0, "1".to_owned()));
    assert_eq!((planned.at("/gpus/0/index"), planned.at("/gpus/1")), ("2".into(), "absent".into()));
}

#[test]
fn device_node_numbers_are_the_hosts() {
    // This container has the host's GPUs 6 and 2; nvidia-smi renumbers them.
    let node = playing(&[("GPUS", "2"), ("MINORS", "6,2"), ("MODE", "ecc"), ("BAD", "0")]);
    let (_, report) = check(&node, &[]);
    let text = &of(&report, "gpu.health")[0][1];
    assert!(text.starts_with("GPU 0 (nvidia-smi index; 0000:18:00.0, GPU-fa4e0000-"), "{text}");
    assert!(text.contains("/dev/nvidia6)"), "{text}");

    // Another node that opens and that NVML does not count is a GPU that failed at the start.
    let node = node.file("/dev/nvidia6", "").file("/dev/nvidia2", "");
    assert_eq!(of(&check(&node, &[]).1, "gpu.count").len(), 1);
    let counted = of(&check(&node.file("/dev/nvidia5", ""), &[]).1, "gpu.count");
    assert_eq!(counted[1][0], "warn", "{counted:?}");
    assert!(counted[1][1].contains("NVML lists 2 GPUs, but /dev/nvidia5"), "{counted:?}");
}

#[test]
fn element_naming_no_device_fails() {
    let node = playing(&[]).env("CUDA_VISIBLE_DEVICES", "0,1,+,3");
    let counted = of(&check(&node, &[]).1, "gpu.count");
    assert!(counted[0][0] == "fail" && counted[0][1].contains("\"+\" is no number"), "{counted:?}");
    assert!(counted[0][1].contains("only 2 of 8 GPUs"), "{counted:?}");
    let warned = of(&check(&node, &["--severity", "gpu.count=warn"]).1, "gpu.count");
    assert_eq!((warned.len(), warned[0][0].as_str()), (1, "warn"), "{warned:?}");
}

#[test]
fn output_of_preloaded_libraries_reaches_nobody() {
    let noise = harness::fake_nvml::preload();
    let fake = FakeNvml::new(&[("GPUS", "2")]);
    let check = |command: Command| {
        harness::Launcher::of(command, ["check", "--format", "json", "--lang", "en"])
            .env("RANKLAUNCH_NVML_LIBRARY", fake.library())
            .run()
    };
    // LD_PRELOAD is not passed on to the probe. The control: the library does print.
    let mut preloaded = Command::new(harness::executable());
    preloaded.env("LD_PRELOAD", &noise);
    let ended = check(preloaded);
    let report: Value = serde_json::from_str(&ended.out).expect("nothing but the report");
    assert_eq!(report["facts"]["gpus"]["gpus"].as_array().map(Vec::len), Some(2));
    let loud = Command::new("true").env("LD_PRELOAD", &noise).output().expect("true runs");
    assert!(!loud.stdout.is_empty() && !loud.stderr.is_empty());

    // The loader reads /etc/ld.so.preload itself, which cannot be avoided; the test needs a
    // separate mount namespace for it.
    let script = "mkdir etc && cp -a /etc/. etc 2>/dev/null; echo \"$NOISE\" > etc/ld.so.preload && \
                  mount --bind etc /etc && /bin/true && exec \"$0\" \"$@\"";
    let mut shell = Command::new("unshare");
    shell.args(["-m", "sh", "-c", script]).arg(harness::executable()).env("NOISE", &noise);
    let allowed = Command::new("unshare").args(["-m", "true"]).status();
    if !allowed.is_ok_and(|status| status.success()) {
        harness::skipped("no mount namespace for an /etc/ld.so.preload of our own");
        return;
    }
    let ended = check(shell);
    let at = ended.out.find("{\n").unwrap_or_else(|| panic!("{ended:?}"));
    assert!(ended.out[..at].contains("noise"), "control: the shell before us was not hooked");
    let report: Value = serde_json::from_str(&ended.out[at..]).expect("a report");
    assert_eq!(report["facts"]["gpus"]["gpus"].as_array().map(Vec::len), Some(2));
    assert_eq!(of(&report, "gpu.count")[0][0], "ok");
}

#[test]
fn hami_is_recognised_and_tiny_limits_are_findings() {
    let node = || {
        playing(&[("MEMORY", "20000")]).file("/etc/ld.so.preload", "/usr/local/vgpu/libvgpu.so\n")
    };
    let hami = |node: Node| of(&check(&node, &[]).1, "hami.limit")[0].clone();
    let found = hami(node().env("CUDA_DEVICE_MEMORY_LIMIT_0", "64k"));
    assert_eq!(found[0], "warn");
    assert!(found[1].contains("64 KiB (CUDA_DEVICE_MEMORY_LIMIT_0=64k)"), "{found:?}");
    let found =
        hami(node().env("CUDA_DEVICE_MEMORY_LIMIT", "20000m").env("CUDA_DEVICE_SM_LIMIT", "50"));
    assert_eq!(found[0], "info");
    assert!(
        found[1].contains("/etc/ld.so.preload") && found[1].contains("CUDA_DEVICE_SM_LIMIT=50")
    );
    assert_eq!(hami(playing(&[]))[0], "ok");
}
