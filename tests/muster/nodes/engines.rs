//! One verdict with other engines: accelerate, and a user's own launcher.

use std::ffi::OsString;
use std::thread;

use serde_json::Value;

use harness::cluster::{Shared, kill_rank, one_cause};
use harness::{Ended, Launcher, free_port, program, python, run_args};

/// A user's `train.sh`, with the agreed variables.
const OWN_LAUNCHER: &str = "exec \"$PYTHON\" -m torch.distributed.run --nnodes $NNODES \
    --node-rank $NODE_RANK --nproc-per-node $NPROC_PER_NODE --master-addr $MASTER_ADDR \
    --master-port $MASTER_PORT --no-python \"$RANK_PROGRAM\" wait";

/// Kills the rank of node 1. Gives the ends of both nodes.
fn killed(engine: &str, program: &[OsString]) -> [Ended; 2] {
    let port = free_port();
    let mut nodes = [0, 1].map(|rank| {
        let mut args: Vec<OsString> = run_args(engine, 1);
        args.push("--".into());
        args.extend(program.iter().cloned());
        let launcher = Launcher::new(args).node(rank, 2, port).env("PYTHON", python());
        launcher.env("RANK_PROGRAM", harness::program("rank.sh")).start()
    });
    nodes.iter_mut().for_each(|node| {
        node.says("READY", 1);
    });
    kill_rank(&nodes[1], "sleep 300");
    nodes.map(|node| node.wait().expect_nothing_left())
}

fn accelerate() -> Shared {
    let what = [program("rank.sh").into_os_string(), "wait".into()];
    let [zero, one] = killed("accelerate", &what);
    one_cause(&[(0, &zero, 143), (1, &one, 137)])
}

/// The user's launcher shows us only its own end, not its ranks, and both nodes show its message.
fn own_launcher() -> Shared {
    let [zero, one] = killed("command", &["sh".into(), "-c".into(), OWN_LAUNCHER.into()]);
    for ended in [&zero, &one] {
        assert!(ended.err.contains("Signal 9 (SIGKILL)"), "{}", ended.err);
    }
    let shared = one_cause(&[(0, &zero, 143), (1, &one, 1)]);
    // The launcher's own message is the cause.
    assert!(shared.block.contains("SIGKILL"), "{}\n\nnode 1\n{}", zero.err, one.err);
    shared
}

#[test]
fn both_nodes_name_one_cause_with_any_engine() {
    let [accelerate, own] =
        [accelerate, own_launcher].map(|case: fn() -> Shared| thread::spawn(case));
    let (accelerate, own) = (accelerate.join(), own.join());
    let (accelerate, own) = (accelerate.expect("it ran"), own.expect("it ran"));
    assert_eq!((accelerate.id, accelerate.node), ("rank.signal".into(), 1.into()));
    let words = ["rank 1 on node 1 (", ") was killed by SIGKILL"];
    assert!(words.iter().all(|part| accelerate.block.contains(part)), "{}", accelerate.block);
    // Only the user's launcher knows which rank it was.
    assert_eq!((own.id, own.node, own.rank), ("rank.exit".into(), 1.into(), Value::Null));
    let text = own.text.as_str().expect("words");
    assert!(text.contains("the command on node 1 ("), "{text}");
}
