//! Restarts of a whole job: with a replaced node, and the end of restarts.

use std::ffi::OsString;

use harness::cluster::{Cluster, one_cause};
use harness::{Ended, Launcher, free_port, run_args};

fn args(restarts: &str, script: &str) -> Vec<OsString> {
    let mut args = run_args("direct", 1);
    args.extend(["--max-restarts", restarts, "--", "sh", "-c", script].map(Into::into));
    args
}

#[test]
fn a_replaced_node_joins_the_next_attempt() {
    let Some(mut cluster) = Cluster::new(3) else { return };
    let go = cluster.folder().join("go");
    let script = "test -e \"$GO\" && echo again $RANK || { echo READY; exec sleep 300; }";
    let args = args("2", script);
    let start = |cluster: &Cluster, host, rank| {
        cluster.launcher(host, rank, 3, &args).env("GO", &go).start()
    };
    let mut nodes: Vec<_> = (0..3).map(|rank| start(&cluster, rank, rank)).collect();
    nodes.iter_mut().for_each(|node| {
        node.says("READY", 1);
    });

    std::fs::write(&go, "").expect("a file");
    cluster.kill_all(2);
    drop(nodes.pop());
    cluster.remove(2);
    // Another host with another address takes the rank.
    cluster.add(3);
    nodes.push(start(&cluster, 3, 2));

    let mut runs = Vec::new();
    for (rank, node) in (0..3).zip(nodes) {
        let ended = node.wait().expect_code(0).expect_nothing_left();
        assert!(ended.out.contains(&format!("again {rank}")), "{}", ended.out);
        assert!(ended.node_folder(rank).join("attempt-1").is_dir());
        let replaced = rank == 2;
        assert_eq!(ended.node_folder(rank).join("attempt-0").is_dir(), !replaced);
        let words = "all nodes start again: attempt 1";
        assert_eq!(ended.err.contains(words), !replaced, "{}", ended.err);
        let died = "the agent of node 2 (node-2) died";
        assert_eq!(ended.err.contains(died), !replaced, "{}", ended.err);
        let run = ended.run_json(rank);
        assert_eq!((&run["attempt"], &run["verdict"]["class"]), (&1.into(), &"done".into()));
        runs.push(run["run_id"].clone());
    }
    assert!(runs.iter().all(|run| *run == runs[0]), "{runs:?}");
    cluster.expect_nothing_left();
}

/// Two nodes, of which rank 1 ends with `code`, at once and every time.
fn always(code: i32) -> [Ended; 2] {
    let port = free_port();
    let script = format!("test $RANK = 1 && exit {code}; exec sleep 300");
    let args = args("50", &script);
    let nodes = [0, 1].map(|rank| Launcher::new(&args).node(rank, 2, port).start());
    nodes.map(|node| node.wait().expect_nothing_left())
}

#[test]
fn restarts_end_without_progress_or_prospect() {
    // A failure that a restart may help is retried after a pause that doubles, and not for ever.
    let [zero, one] = always(1);
    let cause = one_cause(&[(0, &zero, 143), (1, &one, 1)]);
    assert_eq!((cause.id, cause.rank, cause.attempt), ("rank.exit".into(), 1.into(), 2.into()));
    for ended in [&zero, &one] {
        let pauses: Vec<&str> =
            ended.err.lines().filter(|line| line.contains("start again in")).collect();
        assert_eq!(pauses.len(), 2, "{}", ended.err);
        assert!(pauses[0].ends_with("in 1 s: attempt 1"), "{pauses:?}");
        assert!(pauses[1].ends_with("in 2 s: attempt 2"), "{pauses:?}");
    }
    let words = "not started again: the last 3 attempts ended the same way";
    assert!(zero.err.contains(words), "{}", zero.err);

    // Programs return 2 for wrong arguments.
    let [zero, one] = always(2);
    let cause = one_cause(&[(0, &zero, 92), (1, &one, 2)]);
    assert_eq!(cause.attempt, 0);
    assert!(zero.err.contains("not started again: it would end the same way"), "{}", zero.err);
    assert!(!one.err.contains("start again"), "{}", one.err);
}

/// Rank 1 of two nodes raises, at once and every time. Gives the exit codes, the cause and the last
/// attempt.
fn raises(error: &str, options: &[&str]) -> ([i32; 2], String, u64) {
    const SCRIPT: &str = "test $RANK = 0 && exec sleep 300
        printf 'Traceback (most recent call last):\n  File \"train.py\", line 9, in <module>\n' >&2
        printf '    main()\n%s\n' \"$0\" >&2
        exit 1";
    let port = free_port();
    let mut args: Vec<OsString> = run_args("direct", 1);
    args.extend(["--max-restarts", "1"].iter().chain(options).map(OsString::from));
    args.extend(["--", "sh", "-c", SCRIPT, error].map(OsString::from));
    let nodes = [0, 1].map(|rank| Launcher::new(&args).node(rank, 2, port).start());
    let ended = nodes.map(|node| node.wait().expect_nothing_left());
    let [zero, one] = [0, 1].map(|node: u32| ended[node as usize].run_json(node));
    assert_eq!(zero["cause"]["id"], one["cause"]["id"], "{zero:#}\n{one:#}");
    let id = zero["cause"]["id"].as_str().unwrap_or_default().to_owned();
    (ended.map(|ended| ended.code), id, zero["attempt"].as_u64().expect("a number"))
}

#[test]
fn cause_decides_the_restart_for_all_nodes() {
    let missing = "ModuleNotFoundError: No module named 'flash_attn'";
    let memory = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered";
    let raised = "ValueError: the batch is odd";
    for (error, options, codes, id, attempt) in [
        (missing, &[][..], [92, 1], "module_missing", 0),
        (missing, &["--retry-on", "module_missing"], [92, 1], "module_missing", 1),
        // The platform is told to take another node, so there is no further attempt on these.
        (memory, &[], [143, 90], "cuda_ecc", 0),
        // A cause that is only likely does not prevent an attempt, unless the user says so.
        (raised, &[], [143, 1], "user_exception", 1),
        (raised, &["--no-retry-on", "user_exception"], [143, 1], "user_exception", 0),
    ] {
        let expected = (codes, id.to_owned(), attempt);
        assert_eq!(raises(error, options), expected, "{error} {options:?}");
    }
}
