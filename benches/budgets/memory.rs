//! What watching eight ranks costs in memory: proportional set size, so that
//! pages which guard, agent and shims share count once.

use std::path::Path;
use std::process::Command;

use harness::alive::descendants;
use harness::{executable, wait_until};

use crate::measure::{Budget, Running, Table, before, direct_of, torchrun};

const RANKS: u32 = 8;
const MIB: f64 = 1024.0 * 1024.0;

pub(crate) fn measure(table: &mut Table) {
    let folder = tempfile::tempdir().expect("a folder");
    let launcher = |executable: &Path| {
        let mut command = direct_of(executable, RANKS, folder.path());
        command.args(["--grace", "2s", "--", "sleep", "600"]);
        supervising(command)
    };
    let (ours, processes) = launcher(&executable());
    let mut command = torchrun(RANKS, folder.path());
    command.args(["--no-python", "sleep", "600"]);
    let (theirs, _) = supervising(command);
    table.row(
        &format!("memory of {processes} processes for {RANKS} ranks, PSS"),
        &format!("{:.1} MiB", ours / MIB),
        &format!("torchrun {:.0} MiB", theirs / MIB),
        ours / theirs,
        Budget::Within("15 MB", ours <= 15e6),
    );
    if let Some(before) = before() {
        let (theirs, _) = launcher(&before);
        let shown = format!("{:.1} MiB", ours / MIB);
        let rival = format!("before {:.1} MiB", theirs / MIB);
        table.row("the same", &shown, &rival, ours / theirs, Budget::None);
    }
}

/// Bytes of everything but the ranks, and how many processes that is, once all
/// ranks run.
fn supervising(mut command: Command) -> (f64, usize) {
    let running = Running(command.spawn().expect("it starts"));
    let root = running.pid();
    let below = wait_until("all ranks", || {
        let below = descendants(root);
        let ranks = below.iter().filter(|(_, name)| name == "sleep").count();
        (ranks == RANKS as usize).then_some(below)
    });
    let watchers = below.iter().filter(|(_, name)| name != "sleep").map(|(pid, _)| *pid);
    let watchers: Vec<i32> = watchers.chain([root]).collect();
    (watchers.iter().map(|pid| pss(*pid)).sum(), watchers.len())
}

fn pss(pid: i32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it lives");
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).expect("a Pss line");
    let kilobytes: f64 = line.trim().trim_end_matches("kB").trim().parse().expect("a number of kB");
    kilobytes * 1024.0
}
