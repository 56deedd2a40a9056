//! Real torchrun and gloo: torchrun's own behaviour, and the true exit code where torchrun gives
//! 1.

use harness::{Ended, Launcher, Running, free_port, run_args, wait_until};
use nix::sys::signal::Signal;

fn torchrun(nproc: u32, what: &str) -> Launcher {
    Launcher::ranks("torchrun", nproc, &[what])
}

#[test]
fn two_nodes_reduce_over_gloo() {
    let port = free_port();
    let train = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/demo/train.py");
    let node = |rank| {
        let mut args = run_args("torchrun", 2);
        args.extend(["--".into(), train.clone().into_os_string()]);
        Launcher::new(args).node(rank, 2, port).start()
    };
    let (zero, one): (Running, Running) = (node(0), node(1));
    let zero: Ended = zero.wait().expect_code(0).expect_nothing_left();
    let one = one.wait().expect_code(0).expect_nothing_left();
    assert!(zero.out.contains("[r0] step 2: all-reduce gives 14"), "{}\n{}", zero.out, zero.err);
    assert!(zero.out.contains("[r1] rank 1 of 4 on node 0"), "{}", zero.out);
    assert!(one.out.contains("[r2] rank 2 of 4 on node 1"), "{}", one.out);
}

#[test]
fn failing_rank_sets_the_exit_code() {
    let ended = torchrun(2, "exit-7-on-rank-1").run().expect_code(7).expect_nothing_left();
    let verdict = &ended.run_json(0)["verdict"];
    assert_eq!((&verdict["id"], &verdict["rank"]), (&"rank.exit".into(), &1.into()));
    // torchrun's own report is the same as without us.
    let log = std::fs::read_to_string(ended.node_folder(0).join("attempt-0/engine.log"));
    let log = log.expect("a log");
    let (before, root) = log.split_once("Root Cause (first observed failure)").expect("a report");
    assert!(root.contains("rank      : 1 ") && root.contains("exitcode  : 7 "), "{log}");
    assert!(!before.contains("exitcode: -15"), "{log}");
}

#[test]
fn a_segfault_gives_139() {
    torchrun(2, "segv-on-rank-0").run().expect_code(139).expect_nothing_left();
}

#[test]
fn term_exits_143_after_the_checkpoint() {
    let mut running = Launcher::ranks("torchrun", 2, &["checkpoint", "."]).start();
    running.says("READY", 2);
    running.signal(Signal::SIGTERM);
    let ended = running.wait().expect_code(143).expect_nothing_left();
    for rank in 0..2 {
        let checkpoint = ended.folder().join(format!("checkpoint-{rank}"));
        assert_eq!(std::fs::read_to_string(checkpoint).expect("it was written"), "whole\n");
    }
}

/// Only the guard is signalled, as by `docker stop`.
#[test]
fn term_reaches_a_rank_once() {
    for engine in ["torchrun", "direct"] {
        let mut running =
            Launcher::ranks(engine, 2, &["count-term"]).env("RANKLAUNCH_GRACE", "20s").start();
        running.says("READY", 2);
        running.signal(Signal::SIGTERM);
        let ended = running.wait().expect_code(143).expect_nothing_left();
        for rank in 0..2 {
            let (came, over) = (format!("[r{rank}] GOT-TERM"), format!("[r{rank}] over"));
            assert_eq!(ended.out.matches(&came).count(), 1, "{engine}: {}", ended.out);
            assert!(ended.out.contains(&over), "{engine}: {}", ended.out);
        }
    }
}

/// torchrun during its rendezvous: node 1 never comes.
#[test]
fn term_during_the_rendezvous_ends_at_once() {
    // With a muster node 0 would not start torchrun before node 1 is there.
    let launcher = torchrun(1, "succeed").node(0, 2, free_port()).env("RANKLAUNCH_MUSTER", "off");
    // No process needs the grace period, which is longer than our time limit.
    let running = launcher.env("RANKLAUNCH_GRACE", "10m").start();
    wait_until("torchrun", || {
        running
            .processes()
            .iter()
            .any(|process| process.command().contains("torch.distributed.run"))
            .then_some(())
    });
    running.signal(Signal::SIGTERM);
    running.wait().expect_code(143).expect_nothing_left();
}

#[test]
fn hup_is_a_stop_and_nohup_is_not() {
    let mut running = torchrun(1, "wait").start();
    running.says("READY", 1);
    running.signal(Signal::SIGHUP);
    running.wait().expect_code(129).expect_nothing_left();

    let mut args = vec![harness::executable().into_os_string()];
    args.extend(run_args("torchrun", 1));
    args.extend(["--".into(), harness::program("rank.sh").into_os_string()]);
    args.extend(["hup", "release"].map(Into::into));
    let mut running = Launcher::of(std::process::Command::new("nohup"), args).start();
    running.says("READY", 1);
    running.signal(Signal::SIGHUP);
    std::fs::write(running.folder().join("release"), "").expect("a file");
    let ended = running.wait().expect_code(0).expect_nothing_left();
    assert!(ended.out.contains("over") && !ended.err.contains("SIGHUP"), "{}", ended.err);
}

/// accelerate starts torchrun's machinery itself; the shim and the codes are the same.
#[test]
fn accelerate_runs_two_ranks_and_returns_their_code() {
    let ended = Launcher::ranks("accelerate", 2, &["exit-7-on-rank-1"])
        .run()
        .expect_code(7)
        .expect_nothing_left();
    let verdict = &ended.run_json(0)["verdict"];
    assert_eq!((&verdict["id"], &verdict["rank"]), (&"rank.exit".into(), &1.into()));
}
