//! The embedded profiles on different nodes: refusals, selected files, heads.

use harness::node::{Node, PYTHON};

use super::of;

/// The embedded profiles on nodes that they were not made for.
#[test]
fn profile_refuses_an_unsupported_node() {
    let plan = |gpus, platform: &str, profile: &str| {
        let node = Node::with_gpus(gpus).platform(platform);
        node.json(&["--profile", profile, "--python", PYTHON, "--severity", "shm.size=warn"])
    };
    let pods = "WORLD_SIZE=4 RANK=3 MASTER_ADDR=h MASTER_PORT=2222 PYTHONUNBUFFERED=0";
    let refused = plan(4, pods, "zimdb");
    assert_eq!(refused.refusal(), "65 membership.contradiction", "{:#}", refused.json);
    let text = refused.at("/refused/text");
    assert!(text.contains("1 node") && text.contains("4 (WORLD_SIZE=4)"), "{text}");
    // The settings that the hints name lead to one job of four pods, not to four jobs.
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

/// Heads come from the source that knows them: the task, or the checkpoint, or none.
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
