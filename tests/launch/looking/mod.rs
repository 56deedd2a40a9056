//! Commands that observe jobs, `ranklaunch ps`, `logs` and `top`, and the runs that are kept for
//! them.

mod kept;
mod logs;
mod ps;
mod top;

use harness::{Ended, Launcher, Running, free_port, run_args};

/// `ranklaunch ARGS…` in English.
fn asked(args: &[&str]) -> Ended {
    Launcher::new(args).env("RANKLAUNCH_LANG", "en").run()
}

/// Ranks of this shell text.
fn shell(ranks: u32, options: &[&str], script: &str) -> Launcher {
    let script = ["--", "sh", "-c", script];
    let words: Vec<&str> = options.iter().chain(&script).copied().collect();
    Launcher::new(run_args("direct", ranks)).args(words)
}

/// Two nodes on this machine, each with its own log folder and one rank of this shell text.
fn two_nodes(script: &str) -> [Running; 2] {
    let port = free_port();
    [0, 1].map(|rank| shell(1, &[], script).node(rank, 2, port).start())
}
