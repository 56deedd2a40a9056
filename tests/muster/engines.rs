//! Musters around real torchrun, nodes without ranklaunch, and nodes with
//! different numbers of GPUs.

use std::ffi::OsString;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::fake_nvml::FakeNvml;
use harness::{Launcher, Running, TIMEOUT, free_port, python, run_args};

fn train() -> OsString {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/demo/train.py").into()
}

fn ranklaunch(rank: u32, port: u16, more: &[&str], program: &[OsString]) -> Launcher {
    let mut args = run_args("torchrun", 1);
    // A listener that outlives the grace is no leftover of an earlier attempt.
    args.extend(["--grace", "2s"].map(Into::into));
    args.extend(more.iter().map(Into::into));
    args.push("--".into());
    args.extend(program.iter().cloned());
    Launcher::new(args).node(rank, 2, port)
}

/// A node that is started by hand with plain torchrun.
fn plain_torchrun(rank: u32, port: u16) -> Child {
    let mut command = Command::new(python());
    command
        .args(["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"])
        .args(["--node-rank", &rank.to_string(), "--master-addr", "127.0.0.1"])
        .args(["--master-port", &port.to_string()])
        .arg(train())
        .env("OMP_NUM_THREADS", "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().expect("torchrun starts")
}

/// The proof takes half a minute, longer than a single wait of a test.
fn proven(node: &Running, words: &str) {
    let began = Instant::now();
    while !node.err().contains(words) {
        assert!(began.elapsed() < 2 * TIMEOUT, "{}", node.err());
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn plain_torchrun_worker_is_named_and_job_runs() {
    let port = free_port();
    let zero = ranklaunch(0, port, &[], &[train()]).start();
    let mut one = plain_torchrun(1, port);
    proven(&zero, "runs torchrun without ranklaunch, so all nodes go on without a muster");
    let zero = zero.wait().expect_code(0).expect_nothing_left();
    assert!(zero.err.contains("runs torchrun without ranklaunch"), "{}", zero.err);
    assert!(zero.out.contains("all-reduce gives"), "{}", zero.out);
    assert!(one.wait().expect("it ends").success());
}

#[test]
fn plain_torchrun_master_is_recognised_and_job_runs() {
    let port = free_port();
    let mut zero = plain_torchrun(0, port);
    let one = ranklaunch(1, port, &[], &[train()]).start();
    proven(&one, "so this node goes on without one");
    let one = one.wait().expect_code(0).expect_nothing_left();
    assert!(one.err.contains("goes on without one"), "{}", one.err);
    assert!(zero.wait().expect("it ends").success());
}

#[test]
fn required_muster_refuses_a_plain_torchrun() {
    let port = free_port();
    let zero = ranklaunch(0, port, &["--muster", "required"], &[train()]).start();
    let mut one = plain_torchrun(1, port);
    proven(&zero, "refused: ");
    let zero = zero.wait().expect_code(88).expect_nothing_left();
    assert!(zero.err.contains("runs torchrun without ranklaunch"), "{}", zero.err);
    // The torchrun never gets an answer.
    one.kill().expect("killed");
    one.wait().expect("it ends");
}

/// 7 and 8 GPUs: 7 on each.
#[test]
fn the_layout_fits_the_node_with_fewer_gpus() {
    let port = free_port();
    let [seven, eight] = ["7", "8"].map(|count| FakeNvml::new(&[("GPUS", count)]));
    let node = |rank, fake: &FakeNvml| {
        let args = ["run", "--engine", "direct", "--stale", "off", "--layout", "ulysses-world"];
        let mut args: Vec<OsString> = args.map(Into::into).to_vec();
        args.extend(["--heads", "42", "--python"].map(Into::into));
        args.extend([python().into(), "--".into(), "sh".into(), "-c".into()]);
        args.push("echo ulysses={ulysses_size} of $WORLD_SIZE gpus=$CUDA_VISIBLE_DEVICES".into());
        Launcher::new(args).node(rank, 2, port).env("RANKLAUNCH_NVML_LIBRARY", fake.library())
    };
    // With 42 heads, 8 is not legal on two nodes and 7 is; node 0 alone would choose 7 as well.
    let ended = [node(0, &eight), node(1, &seven)].map(Launcher::start).map(|node| node.wait());
    for (rank, ended) in (0..).zip(ended) {
        let ended = ended.expect_code(0).expect_nothing_left();
        let plan = &ended.run_json(rank)["plan"];
        assert_eq!((&plan["nproc_per_node"], &plan["world_size"]), (&7.into(), &14.into()));
        assert_eq!(ended.out.matches("ulysses=14 of 14").count(), 7, "{}", ended.out);
        let words = "the number of GPUs is not the same on all nodes: node 1: 7; the others: 8";
        assert_eq!(ended.err.contains(words), rank == 0, "{}", ended.err);
    }

    // Without a rule, each node by itself would take all its GPUs.
    let port = free_port();
    let node = |rank, fake: &FakeNvml| {
        let mut args: Vec<OsString> =
            ["run", "--engine", "direct", "--stale", "off", "--python"].map(Into::into).to_vec();
        args.extend([python().into(), "--".into(), "sh".into(), "-c".into()]);
        args.push("echo rank $RANK of $WORLD_SIZE".into());
        Launcher::new(args).node(rank, 2, port).env("RANKLAUNCH_NVML_LIBRARY", fake.library())
    };
    let ended = [node(0, &eight), node(1, &seven)].map(Launcher::start).map(|node| node.wait());
    for ended in ended {
        let ended = ended.expect_code(0).expect_nothing_left();
        assert_eq!(ended.out.matches("of 14").count(), 7, "{}\n{}", ended.out, ended.err);
    }
}

/// Node 1 sees no driver, or a variable hides its GPUs.
#[test]
fn gpu_nodes_and_cpu_nodes_refuse_each_other() {
    let fake = FakeNvml::new(&[("GPUS", "4")]);
    let node = |rank, port, more: &[&str]| {
        let args = ["run", "--engine", "direct", "--stale", "off", "--python"];
        let mut args: Vec<OsString> = args.map(Into::into).to_vec();
        args.push(python().into());
        args.extend(more.iter().map(Into::into));
        args.extend(["--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE"].map(Into::into));
        Launcher::new(args).node(rank, 2, port).env("RANKLAUNCH_NVML_LIBRARY", fake.library())
    };
    let without: [fn(Launcher) -> Launcher; 2] = [
        |node| node.env("RANKLAUNCH_NVML_LIBRARY", "/nowhere/libnvidia-ml.so.1"),
        |node| node.env("CUDA_VISIBLE_DEVICES", ""),
    ];
    for (odd, change) in [0, 1].into_iter().flat_map(|odd| without.map(|change| (odd, change))) {
        let port = free_port();
        let start = |rank| {
            let node = node(rank, port, &[]);
            if rank == odd { change(node) } else { node }.start()
        };
        for ended in [start(0), start(1)].map(|node| node.wait()) {
            let ended = ended.expect_code(88).expect_nothing_left();
            let (ones, zeros) = match odd {
                1 => ("the CPU", "4 GPUs"),
                _ => ("4 GPUs", "the CPU"),
            };
            assert!(ended.err.contains("(muster.device)"), "{}", ended.err);
            assert!(
                ended.err.contains(&format!("would run its ranks on {ones}, but")),
                "{}",
                ended.err
            );
            assert!(ended.err.contains(&format!(") on {zeros}")), "{}", ended.err);
            assert!(!ended.out.contains("rank "), "{}", ended.out);
        }
    }
    // Both nodes run when both are told to use the CPU.
    let port = free_port();
    let start = |rank| node(rank, port, &["--device", "cpu", "--nproc-per-node", "2"]).start();
    for ended in [start(0), start(1)].map(|node| node.wait()) {
        let ended = ended.expect_code(0).expect_nothing_left();
        assert_eq!(ended.out.matches("of 4").count(), 2, "{}", ended.out);
    }
}
