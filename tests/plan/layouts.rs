//! No layout is planned on which the script would assert: the sizes of real jobs
//! through the real executable, on nodes of files with a fake NVML.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use harness::Launcher;
use harness::node::{Node, PYTHON, Planned};
use serde_json::json;

/// Node 0 of `nodes`, as flags say it.
fn of(nodes: &str) -> Vec<&str> {
    vec!["--nnodes", nodes, "--node-rank", "0", "--master-addr", "10.0.0.1"]
}

fn ulysses<'a>(nodes: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = of(nodes);
    args.extend(["--layout", "ulysses-world", "--python", PYTHON]);
    args.extend(more);
    args
}

/// Nodes, GPUs of each, flags, program, and the line that is expected.
type Job<'a> = (&'a str, u32, &'a [&'a str], &'a [&'a str], &'a str);

/// `nproc world ulysses ring devices`, or `code id`.
fn line(planned: &Planned) -> String {
    if planned.code != 0 {
        return planned.refusal();
    }
    let devices = planned.at("/env/CUDA_VISIBLE_DEVICES");
    let sizes = ["nproc_per_node", "world_size", "layout/ulysses_size", "layout/ring_size"];
    let sizes: Vec<String> = sizes.map(|name| planned.at(&format!("/{name}"))).into();
    format!("{} {devices}", sizes.join(" "))
}

#[test]
fn the_sizes_of_real_jobs_are_solved_or_refused() {
    let script = ["--", "generate.py", "--ulysses_size", "{ulysses_size}"];
    let literal = |size| ["--", "generate.py", "--ulysses_size", size];
    let table: &[Job<'_>] = &[
        ("2", 8, &["--heads", "40"], &script, "5 10 10 1 0,1,2,3,4"),
        ("2", 7, &["--heads", "40"], &script, "5 10 10 1 0,1,2,3,4"),
        ("2", 4, &["--heads", "40"], &script, "4 8 8 1 absent"),
        ("1", 8, &["--heads", "40"], &script, "8 8 8 1 absent"),
        ("4", 8, &["--heads", "40"], &script, "5 20 20 1 0,1,2,3,4"),
        ("5", 8, &["--heads", "40"], &script, "8 40 40 1 absent"),
        ("2", 8, &["--heads", "24"], &script, "6 12 12 1 0,1,2,3,4,5"),
        ("3", 8, &["--heads", "24"], &script, "8 24 24 1 absent"),
        ("3", 8, &["--heads", "40"], &script, "66 layout.unsolvable"),
        ("2", 8, &["--heads", "40", "--min-nproc", "8"], &script, "66 layout.min-nproc"),
        ("2", 8, &["--heads", "40", "--min-nproc", "5"], &script, "5 10 10 1 0,1,2,3,4"),
        ("2", 7, &["--heads", "40", "--nproc-per-node", "7"], &script, "66 layout.nproc"),
        ("2", 4, &["--heads", "40", "--nproc-per-node", "5"], &script, "80 gpu.count"),
        // A size that is written out is checked, and decides where it can.
        ("2", 8, &["--profile", "wan22"], &literal("10"), "5 10 10 1 0,1,2,3,4"),
        ("2", 8, &["--profile", "wan22"], &literal("8"), "4 8 8 1 0,1,2,3"),
        ("2", 7, &["--profile", "wan22"], &literal("14"), "66 layout.literal"),
        ("2", 8, &["--profile", "wan22"], &literal("5"), "66 layout.literal"),
    ];
    let mut wrong = Vec::new();
    for (nodes, gpus, more, program, expected) in table {
        let args = [&ulysses(nodes, more), *program].concat();
        let planned = Node::with_gpus(*gpus).json(&args);
        let have = line(&planned);
        if have != *expected {
            wrong.push(format!("{nodes} x {gpus} {more:?}\n want {expected}\n have {have}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// generate.py asserts at world size 1 that its FSDP flags are absent.
#[test]
fn what_the_script_refuses_on_one_gpu_is_not_given_to_it() {
    let wan = |gpus, more: &[&str]| {
        let args = [&["--profile", "wan22", "--severity", "shm.size=warn"][..], more].concat();
        Node::with_gpus(gpus).json(&args)
    };
    for (gpus, more, fate) in [
        (1, &[][..], "left out"),
        (1, &["--", "--prompt", "a cat"], "left out"),
        (2, &[], "given"),
        (8, &["--", "--prompt", "a cat"], "given"),
    ] {
        let planned = wan(gpus, more);
        assert_eq!(planned.code, 0, "{:#}", planned.json);
        let argv = planned.words("/argv");
        let flags: Vec<&String> = argv.iter().filter(|word| word.ends_with("_fsdp")).collect();
        let expected: &[&str] = if fate == "given" { &["--dit_fsdp", "--t5_fsdp"] } else { &[] };
        assert_eq!(flags, expected, "{gpus}");
        let decisions = planned.json["decisions"].as_array().expect("a list");
        let said = decisions.iter().find(|one| one["what"] == "--dit_fsdp --t5_fsdp");
        let said = said.expect("the decision is shown");
        assert_eq!(said["value"], fate);
        let because = said["because"].as_str().expect("text");
        assert!(because.contains("world_size is") && because.contains("world_size > 1"));
        assert!(said["source"].as_str().expect("text").starts_with("wan22.toml:"), "{said}");
    }
    // Its own flags are the user's: they are refused, not taken away.
    let own = ["--", "generate.py", "--dit_fsdp", "--ulysses_size", "{ulysses_size}"];
    assert_eq!(wan(1, &own).refusal(), "66 layout.alone");
    assert_eq!(wan(2, &own).code, 0);
    assert_eq!(wan(1, &[&["--layout", "none"][..], &own].concat()).code, 0);
    let bare = ["--layout", "ulysses-world", "--heads", "40", "--", "bash", "-c"];
    let script = "python generate.py --t5_f --ulysses_size 1";
    let refused = Node::with_gpus(1).json(&[&bare[..], &[script]].concat());
    assert_eq!(refused.refusal(), "66 layout.alone", "{:#}", refused.json);
    assert!(refused.at("/refused/text").contains("--t5_f"), "{:#}", refused.json);
}

/// A size that is written out is read in every spelling, without a profile too.
#[test]
fn sizes_are_read_however_they_are_written() {
    let two = |more: &[&str]| {
        let args = [&ulysses("2", &["--heads", "40"])[..], &["--"], more].concat();
        line(&Node::with_gpus(8).json(&args))
    };
    let script = |argument: &str| format!("cd /x && exec python generate.py {argument}");
    for name in
        ["--ulysses_size", "--ulysses_degree", "--ulysses-degree", "--sequence_parallel_size"]
    {
        let attached = format!("{name}=16");
        for words in [&["generate.py", name, "16"][..], &["generate.py", &attached]] {
            assert_eq!(two(words), "66 layout.literal", "{words:?}");
        }
        assert_eq!(two(&["generate.py", name, "10"]), "5 10 10 1 0,1,2,3,4", "{name}");
        for argument in [&format!("{name} 16"), &attached] {
            let words = ["bash", "-c", &script(argument)];
            assert_eq!(two(&words), "66 layout.literal", "{words:?}");
        }
    }
    for (words, expected) in [
        (&["generate.py", "--ulysses_s", "16"][..], "66 layout.literal"),
        (&["generate.py", "--ulysses", "8"], "4 8 8 1 0,1,2,3"),
        (&["generate.py", "--uly=10"], "5 10 10 1 0,1,2,3,4"),
        // No option any more, or a word of another one.
        (&["generate.py", "--", "--ulysses_size", "16"], "5 10 10 1 0,1,2,3,4"),
        (&["generate.py", "--prompt", "--ulysses_size", "--ulysses_size", "8"], "4 8 8 1 0,1,2,3"),
        (&["bash", "-c", "a=1 python g.py --ulysses_size {ulysses_size}"], "5 10 10 1 0,1,2,3,4"),
        (&["bash", "g.sh", "-c", "x --ulysses_size 16"], "5 10 10 1 0,1,2,3,4"),
    ] {
        assert_eq!(two(words), expected, "{words:?}");
    }
    // The abbreviated task decides the heads.
    let wan = [&of("2")[..], &["--profile", "wan22", "--python", PYTHON, "--"]].concat();
    let task = ["generate.py", "--tas", "ti2v-5B", "--ulysses_size", "{ulysses_size}"];
    let planned = Node::with_gpus(8).json(&[&wan[..], &task].concat());
    assert_eq!(
        (planned.at("/layout/heads"), planned.at("/nproc_per_node")),
        ("24".into(), "6".into())
    );
    // A ring has sizes of its own names, and a sequence size that is no ulysses size.
    let ring = |more: &[&str]| {
        let args =
            [&of("2")[..], &["--layout", "ulysses-ring", "--heads", "12", "--"], more].concat();
        line(&Node::with_gpus(8).json(&args))
    };
    assert_eq!(ring(&["g.py", "--ulysses_degree", "8", "--ring_degree", "2"]), "66 layout.literal");
    assert_eq!(ring(&["g.py", "--ulysses-degree", "4", "--ring-degree", "4"]), "8 16 4 4 absent");
    assert_eq!(ring(&["g.py", "--sequence_parallel_size", "16"]), "8 16 4 4 absent");
}

/// The embedded profiles on nodes that they were not made for.
#[test]
fn a_profile_says_what_it_cannot_run_on() {
    let plan = |gpus, platform: &str, profile: &str| {
        let node = Node::with_gpus(gpus).platform(platform);
        node.json(&["--profile", profile, "--python", PYTHON, "--severity", "shm.size=warn"])
    };
    let pods = "WORLD_SIZE=4 RANK=3 MASTER_ADDR=h MASTER_PORT=2222 PYTHONUNBUFFERED=0";
    let refused = plan(4, pods, "zimdb");
    assert_eq!(refused.refusal(), "65 membership.contradiction", "{:#}", refused.json);
    let text = refused.at("/refused/text");
    assert!(text.contains("1 node") && text.contains("4 (WORLD_SIZE=4)"), "{text}");
    // What the hints name leads to one job of four pods, not to four jobs.
    let hint = refused.at("/refused/hint");
    assert!(hint.contains("--nnodes 4") && hint.contains("--nproc-per-node auto"), "{hint}");
    let way = ["--profile", "zimdb", "--nnodes", "4", "--nproc-per-node", "auto"];
    let planned = Node::with_gpus(1).platform(pods).json(&way);
    assert_eq!(
        (planned.at("/world_size"), planned.at("/membership/node_rank")),
        ("4".into(), "3".into())
    );
    assert_eq!(plan(1, "WORLD_SIZE=1 RANK=0", "zimdb").refusal(), "80 gpu.count");
    assert_eq!(plan(4, "WORLD_SIZE=1 RANK=0", "taehv").refusal(), "66 select.no-match");
    assert_eq!(plan(1, "WORLD_SIZE=1 RANK=0", "wan22").at("/layout/ulysses_size"), "1");
}

/// A machine without python, and one whose python has no torch, would not start the job; what
/// runs there may be in its way. That says nothing about a node that is assumed.
#[test]
fn an_assumed_node_has_neither_the_software_nor_the_processes_of_this_machine() {
    let folder = tempfile::tempdir().expect("a folder");
    let python = folder.path().join("python3");
    let answer =
        "#!/bin/sh\necho ranklaunch-module torch no\necho ranklaunch-module accelerate no\n";
    std::fs::write(&python, answer).expect("an interpreter");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&python, mode).expect("a mode");
    let without_torch = folder.path().to_str().expect("text");
    let script = folder.path().join("train.py");
    std::fs::write(&script, "read line\n").expect("a script");
    // It looks like a python that runs the script, and ends with its input.
    let mut beside = Command::new("/bin/sh")
        .arg0("python3")
        .arg(&script)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a process");
    for (path, engine, refused) in [
        ("/nowhere", "torchrun", "python.interpreter"),
        (without_torch, "torchrun", "python.torch"),
        (without_torch, "accelerate", "python.torch"),
    ] {
        let plan = |assume: &[&str]| {
            let launcher = Launcher::new(["plan", "--lang", "en", "--engine", engine]).args(assume);
            let launcher =
                launcher.args([Path::new("--"), &script]).env("PATH", path).env("CONDA_PREFIX", "");
            launcher.env("VIRTUAL_ENV", "").run()
        };
        let assumed = plan(&["--assume", "gpus=8"]).expect_code(0);
        assert!(assumed.out.contains("1 node × 8 GPUs = 8 ranks"), "{}", assumed.out);
        assert!(assumed.out.contains("that node's python, torch and limits"), "{}", assumed.out);
        assert!(!assumed.out.contains("stale.beside"), "{}", assumed.out);
        let here = plan(&["--device", "cpu"]).expect_code(67);
        assert!(here.out.contains(refused), "{}", here.out);
        assert!(here.out.contains("stale.beside"), "{}", here.out);
    }
    drop(beside.stdin.take());
    assert!(beside.wait().expect("its end").code().is_some());
}

/// Copied facts may lack the interpreter of the node that they came from, which is a warning;
/// a program they cannot lack.
#[test]
fn a_replayed_node_without_python_is_planned() {
    let node = || Node::with_gpus(8).env("PATH", "/nowhere");
    let planned = node().json(&["--", "a.py"]);
    assert_eq!((planned.code, planned.at("/world_size").as_str()), (0, "8"));
    assert!(planned.warning_ids().contains(&"python.interpreter".to_owned()));
    assert_eq!(node().json(&[]).refusal(), "64 program.missing");
}

/// README's first example on a machine that has no GPU, no torch and no script.
#[test]
fn a_node_that_is_not_at_hand_is_assumed_and_marked() {
    let platform = "WORLD_SIZE=2 RANK=0 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500";
    let laptop = || Node::without_gpus().platform(platform).env("PATH", "/nowhere");
    let script = ["--", "generate.py", "--ulysses_size", "{ulysses_size}"];
    let words = |facts| {
        let args = ["--assume", facts, "--layout", "ulysses-world", "--heads", "40"];
        [&args[..], &script].concat()
    };
    let planned = laptop().json(&words("gpus=8,name=NVIDIA H100,memory=80GiB"));
    assert_eq!(planned.code, 0, "{:#}", planned.json);
    assert_eq!(line(&planned), "5 10 10 1 0,1,2,3,4");
    assert_eq!(planned.at("/assumed"), "gpus=8,name=NVIDIA H100,memory=80GiB");
    assert_eq!(planned.at("/gpus/7/name"), "NVIDIA H100");
    let decisions = planned.json["decisions"].as_array().expect("a list");
    let source = |what: &str| {
        let found = decisions.iter().find(|one| one["what"] == what);
        found.map(|one| one["source"].as_str().expect("text").to_owned())
    };
    assert_eq!(source("assumed").as_deref(), Some("--assume"));
    assert_eq!(source("device").as_deref(), Some("--assume"));
    assert_eq!(source("OMP_NUM_THREADS"), None, "this machine's CPUs are not the node's");
    let ids = planned.warning_ids();
    assert_eq!(ids, ["gpu.unused"], "what this machine lacks is not held against that node");
    // What cannot be run there is refused as ever.
    assert_eq!(laptop().json(&words("gpus=1")).at("/world_size"), "2");
    let three = [
        &of("3")[..],
        &["--assume", "gpus=8", "--layout", "ulysses-world"],
        &["--heads", "40"],
        &script,
    ];
    assert_eq!(Node::without_gpus().json(&three.concat()).refusal(), "66 layout.unsolvable");
    let taehv = ["--profile", "taehv", "--assume", "gpus=4", "--python", PYTHON];
    assert_eq!(Node::without_gpus().json(&taehv).refusal(), "66 select.no-match");
    for (lang, mark) in [("en", "GPU, assumed"), ("zh", "GPU（假设）")] {
        let text = laptop().env("RANKLAUNCH_LANG", lang).plan(&words("gpus=8")).expect_code(0).out;
        assert!(text.contains(mark) && text.contains("gpus=8"), "{text}");
    }
    // Nobody mistakes it for a node that was seen, and nothing is started on it.
    assert_eq!(Node::with_gpus(8).json(&["--", "a.py"]).at("/assumed"), "null");
    assert_eq!(laptop().json(&words("gpus=many")).refusal(), "64 settings.assume");
    let run = Node::with_gpus(1).launcher("run", &["--assume", "gpus=8", "--", "a.py"]).run();
    let run = run.expect_code(64);
    assert!(run.err.contains("only ranklaunch plan has this option"), "{}", run.err);
}

/// The JSON contract, field by field.
#[test]
fn json_holds_every_promised_field() {
    let node = Node::with_gpus(8).file("/sys/class/net/eth0/operstate", "up\n");
    let args = ["--heads", "40", "--env", "NCCL_SOCKET_IFNAME==eth0"];
    let args = [&ulysses("2", &args)[..], &["--", "generate.py", "--ulysses_size={ulysses_size}"]];
    let planned = node.json(&args.concat());
    assert_eq!(planned.code, 0, "{:#}", planned.json);
    let gpu = |index: u32, rank: Option<u32>| {
        let bus = 0x18 + index * 0x10;
        json!({
            "index": index,
            "uuid": format!("GPU-fa4e{index:04x}-0000-4000-8000-00000000{index:04x}"),
            "name": "NVIDIA H100 80GB HBM3",
            "pci": format!("0000:{bus:02x}:00.0"),
            "selected": rank.is_some(),
            "local_rank": rank,
        })
    };
    let torchrun = [
        "/opt/env/bin/python",
        "-m",
        "torch.distributed.run",
        "--nnodes",
        "2",
        "--nproc-per-node",
        "5",
        "--node-rank",
        "0",
        "--rdzv-backend",
        "static",
        "--master-addr",
        "10.0.0.1",
        "--master-port",
        "29500",
        "--max-restarts",
        "0",
    ];
    let shim = harness::executable();
    let shim =
        ["--no-python", shim.to_str().expect("a path"), "rank", "--", "/opt/env/bin/python", "-u"];
    let script = ["generate.py", "--ulysses_size=10"];
    for (pointer, expected) in [
        ("/schema", json!(1)),
        ("/scope", json!("local")),
        ("/membership/platform", json!("flags")),
        ("/membership/nnodes", json!(2)),
        ("/membership/node_rank", json!(0)),
        ("/membership/master_addr", json!("10.0.0.1")),
        ("/membership/master_port", json!(29500)),
        ("/nproc_per_node", json!(5)),
        ("/world_size", json!(10)),
        ("/gpus/0", gpu(0, Some(0))),
        ("/gpus/4", gpu(4, Some(4))),
        ("/gpus/7", gpu(7, None)),
        ("/gpus/8", json!(null)),
        (
            "/layout",
            json!({"rule": "ulysses-world", "heads": 40, "ulysses_size": 10, "ring_size": 1}),
        ),
        ("/network/hcas", json!([])),
        ("/env/NCCL_SOCKET_IFNAME", json!("=eth0")),
        ("/env/CUDA_VISIBLE_DEVICES", json!("0,1,2,3,4")),
        ("/env/CUDA_DEVICE_ORDER", json!("PCI_BUS_ID")),
        ("/argv", json!([&torchrun[..], &script[..]].concat())),
        ("/exec_argv", json!([&torchrun[..], &shim[..], &script[..]].concat())),
        ("/warnings/0/id", json!("gpu.unused")),
        ("/warnings/0/text", json!("5 of 8 GPUs are used on every node, 3 stay idle")),
    ] {
        let have = planned.json.pointer(pointer).cloned().unwrap_or_default();
        assert_eq!(have, expected, "{pointer}");
    }
    let decisions = planned.json["decisions"].as_array().expect("a list");
    let nproc = decisions.iter().find(|one| one["what"] == "nproc_per_node").expect("decided");
    let because = "the most of 8 that is legal for 40 heads on 2 nodes";
    assert_eq!(
        nproc,
        &json!({"what": "nproc_per_node", "value": "5", "because": because, "source": "solved"})
    );
    for one in decisions {
        for field in ["what", "value", "because", "source"] {
            assert!(one[field].as_str().is_some_and(|text| !text.is_empty()), "{field} of {one}");
        }
    }
}

#[test]
fn both_languages_name_rule_and_way_out() {
    let refused = |more: &[&str], locale: &str| {
        let args = [&ulysses("3", &["--heads", "40"])[..], more, &["--", "generate.py"]].concat();
        let ended = Node::with_gpus(8).env("LANG", locale).plan(&args).expect_code(66);
        assert_eq!(ended.err, "");
        ended.out
    };
    let en = refused(&[], "C.UTF-8");
    let zh = refused(&[], "zh_CN.UTF-8");
    assert_eq!(refused(&["--lang", "zh"], "C.UTF-8"), zh);
    assert_eq!(refused(&["--lang", "en"], "zh_CN.UTF-8"), en);
    for words in [
        "3 nodes",
        "40 attention heads",
        "ulysses_size = world size",
        "hint: use 1, 2, 4 or 5 nodes, or ulysses_size 1",
        "--layout none",
        "exit code 66 (layout.unsolvable)",
    ] {
        assert!(en.contains(words), "{words}: {en}");
    }
    for words in ["3 个节点", "40 个注意力头", "提示", "1、2、4 或 5 个节点", "--layout none", "66"]
    {
        assert!(zh.contains(words), "{words}: {zh}");
    }
}

#[test]
fn people_read_the_whole_plan_in_their_language() {
    let plan = |lang: &str| {
        let args = [&of("2")[..], &["--profile", "wan22", "--lang", lang]].concat();
        Node::with_gpus(8).plan(&args).expect_code(0).out
    };
    let (en, zh) = (plan("en"), plan("zh"));
    for words in [
        "2 × 5 = 10",
        "the most of 8 that is legal for 40 heads on 2 nodes",
        "the profile's heads for --task t2v-A14B",
        "[wan22.toml:",
        "[--nnodes]",
        "local rank 4",
        "not used",
        "--ulysses_size 10",
        "gpu.unused: 5 of 8 GPUs are used on every node, 3 stay idle",
        "→ --min-nproc 8",
    ] {
        assert!(en.contains(words), "{words}:\n{en}");
    }
    for words in ["决策", "环境变量", "警告", "2 × 5 = 10", "--ulysses_size 10", "3 个闲置"]
    {
        assert!(zh.contains(words), "{words}:\n{zh}");
    }
}

/// What `sh` makes of the shell form is the very argv, with the variables set.
#[test]
fn the_shell_form_runs_as_it_stands() {
    let stub = tempfile::tempdir().expect("a folder");
    let file = stub.path().join("python3");
    let body = "#!/bin/sh\nprintf '%s\\0' \"$0\" \"$@\"\n\
        printf '%s|%s|%s' \"$CUDA_VISIBLE_DEVICES\" \"$PYTORCH_CUDA_ALLOC_CONF\" \"${RANK-none}\" >&2\n";
    harness::write_program(&file, body);
    // On this node itself: the interpreter must be one that sh can start.
    let nvml = harness::fake_nvml::FakeNvml::new(&[("GPUS", "8")]);
    let plan = |format: &str| {
        let args = [&of("2")[..], &["--profile", "wan22", "--severity", "shm.size=warn"]].concat();
        let args = [&args[..], &["--severity", "script.file=warn"]].concat();
        let mut command = Command::new(harness::executable());
        command.env_clear();
        Launcher::of(command, [&["plan", "--format", format][..], &args].concat())
            .env("PATH", stub.path())
            .env("RANKLAUNCH_NVML_LIBRARY", nvml.library())
            .run()
            .expect_code(0)
            .out
    };
    let json: serde_json::Value = serde_json::from_str(&plan("json")).expect("JSON");
    let output = Command::new("/bin/sh")
        .args(["-c", &plan("shell")])
        .env("RANK", "7")
        .output()
        .expect("sh runs");
    assert!(output.status.success(), "{output:?}");
    let words = String::from_utf8(output.stdout).expect("text");
    let words: Vec<&str> = words.trim_end_matches('\0').split('\0').collect();
    assert_eq!(json["argv"], json!(words));
    assert!(words.iter().any(|word| word.contains("the word \"tenxcloud\" clearly")), "{words:?}");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(said, "0,1,2,3,4|expandable_segments:True|none");
}

/// The select rows of the taehv profile: the pair of files by the number of GPUs.
#[test]
fn the_number_of_gpus_selects_the_configuration() {
    let taehv = |nodes, gpus| {
        let args = [&of(nodes)[..], &["--profile", "taehv", "--python", PYTHON]].concat();
        Node::with_gpus(gpus).json(&args)
    };
    for (nodes, gpus, config, deepspeed) in [
        ("2", 8, "taehv_config_16gpu_h100.py", "deepspeed_16gpu.yaml"),
        ("1", 8, "taehv_config_h100.py", "deepspeed_8gpu.yaml"),
        ("2", 4, "taehv_config_h100.py", "deepspeed_8gpu.yaml"),
    ] {
        let planned = taehv(nodes, gpus);
        assert_eq!(planned.code, 0, "{:#}", planned.json);
        let argv = planned.words("/argv").join(" ");
        assert!(argv.contains(&format!("--config_file {deepspeed}")), "{argv}");
        assert!(argv.ends_with(&format!("train_taehv.py --config {config}")), "{argv}");
    }
    let refused = taehv("1", 4);
    assert_eq!(refused.refusal(), "66 select.no-match");
    let text = refused.at("/refused/text");
    for words in [
        "4 GPUs",
        "16 (",
        "8 (",
        "taehv_config_h100.py",
        "deepspeed_16gpu.yaml",
        "taehv.toml:",
        "{train_config}",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(refused.at("/refused/hint").contains("[[select]]"));
}

/// Heads come from where they are known: the task, the checkpoint, nowhere.
#[test]
fn heads_are_read_or_their_absence_is_said() {
    let wan = |more: &[&str]| {
        let args = [&of("2")[..], &["--profile", "wan22", "--python", PYTHON, "--"], more].concat();
        Node::with_gpus(8).file("/ckpt/config.json", "{\"num_heads\": 24}").json(&args)
    };
    for (more, heads, nproc, warning) in [
        (&["--task", "ti2v-5B"][..], "24", "6", "gpu.unused"),
        (&["--task", "t2v-A14B", "--ckpt_dir", "/ckpt"], "40", "5", "layout.heads-conflict"),
        (&["--task", "new-task", "--ckpt_dir", "/ckpt"], "24", "6", "gpu.unused"),
        (&["--task", "new-task"], "null", "8", "layout.heads-unknown"),
    ] {
        let planned = wan(more);
        let have = (planned.at("/layout/heads"), planned.at("/nproc_per_node"));
        assert_eq!(have, (heads.to_owned(), nproc.to_owned()), "{more:?} {:#}", planned.json);
        assert!(planned.warning_ids().contains(&warning.to_owned()), "{:?}", planned.warning_ids());
    }
}
