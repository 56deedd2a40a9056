//! The plan as JSON, as text in both languages, and as a line of shell.

use std::process::Command;

use harness::Launcher;
use harness::node::Node;
use serde_json::json;

use super::{of, ulysses};

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
        ("/argv", json!([&torchrun[..], &["--"], &script[..]].concat())),
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
fn both_languages_name_rule_and_remedy() {
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
        "local ranks 0–4",
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

/// `sh` runs the shell form with exactly the planned arguments and variables.
#[test]
fn the_shell_form_runs_as_it_stands() {
    let stub = tempfile::tempdir().expect("a folder");
    let file = stub.path().join("python3");
    let body = "#!/bin/sh\nprintf '%s\\0' \"$0\" \"$@\"\n\
        printf '%s|%s|%s' \"$CUDA_VISIBLE_DEVICES\" \"$PYTORCH_CUDA_ALLOC_CONF\" \"${RANK-none}\" >&2\n";
    harness::write_program(&file, body);
    // The plan is for this node itself, so sh must be able to start the interpreter.
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
