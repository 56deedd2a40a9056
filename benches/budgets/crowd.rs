//! Looking for stale processes among ten thousand.
//!
//! The crowd lives in a PID namespace of its own, whose end ends all of it.

use std::process::{Command, Stdio};
use std::time::Instant;

use nix::unistd::{ForkResult, fork, pause};

use crate::measure::{Budget, Table, command, median};

const CROWD: usize = 10_000;
const ROUNDS: usize = 7;
const WHAT: &str = "stale scan among 10 000 processes";

pub(crate) fn measure(table: &mut Table) {
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(std::env::current_exe().expect("our own path"))
        .args(["role-crowd", &CROWD.to_string()])
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Ok(output) if output.status.success() => output,
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr);
            return table.left_out(WHAT, why.trim());
        }
        Err(error) => return table.left_out(WHAT, &format!("unshare: {error}")),
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut numbers = text.split_ascii_whitespace().map(|word| word.parse::<f64>());
    let (Some(Ok(ours)), Some(Ok(rival))) = (numbers.next(), numbers.next()) else {
        return table.left_out(WHAT, &text);
    };
    table.row(
        WHAT,
        &format!("{ours:.0} ms"),
        &format!("pgrep -f {rival:.0} ms"),
        ours / rival,
        Budget::Within("pgrep -f", ours <= rival),
    );
}

/// Inside the namespace: makes the crowd, measures, prints both medians.
pub(crate) fn inside(size: usize) -> i32 {
    for _ in 0..size {
        // SAFETY: this process has one thread, and the child only waits.
        match unsafe { fork() } {
            Ok(ForkResult::Parent { .. }) => {}
            Ok(ForkResult::Child) => loop {
                pause();
            },
            Err(error) => {
                eprintln!("fork: {error}");
                return 1;
            }
        }
    }
    let folder = std::env::temp_dir();
    let timed = |mut command: Command| {
        let start = Instant::now();
        command.status().expect("it runs");
        start.elapsed().as_secs_f64() * 1000.0
    };
    let (mut ours, mut rival) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut clean = command(harness::executable(), &folder);
        clean.args(["clean", "--dry-run", "--device", "cpu", "--", "generate.py"]);
        ours.push(timed(clean));
        let mut grep = command("pgrep", &folder);
        grep.args(["-f", "generate.py"]);
        rival.push(timed(grep));
    }
    println!("{} {}", median(ours), median(rival));
    0
}
