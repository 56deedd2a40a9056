//! Memory that watching eight ranks takes: proportional set size, so that
//! pages which guard, agent and shims share count once. The ranks have imported torch, whose
//! libraries torchrun shares with them.

use std::path::Path;
use std::process::Command;

use harness::alive::descendants;
use harness::{executable, python, wait_until};

use crate::measure::{Budget, Running, Table, before, direct_of, torchrun};

const RANKS: u32 = 8;
/// The program of a rank; its file says that it has imported torch.
const RANK: &str =
    "import torch, os, time\nopen('rank-' + os.environ['RANK'], 'w').close()\ntime.sleep(600)";
const MIB: f64 = 1024.0 * 1024.0;

pub(crate) fn measure(table: &mut Table) {
    let launcher = |executable: &Path| {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = direct_of(executable, RANKS, folder.path());
        command.args(["--grace", "2s", "--"]).arg(python());
        supervising(command, folder.path())
    };
    let (ours, processes) = launcher(&executable());
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = torchrun(RANKS, folder.path());
    command.arg("--no-python").arg(python());
    let (theirs, _) = supervising(command, folder.path());
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

/// Bytes of everything but the ranks, which run in a folder, and how many processes that is, once
/// all ranks have imported torch.
fn supervising(mut command: Command, folder: &Path) -> (f64, usize) {
    command.args(["-c", RANK]).current_dir(folder);
    let running = Running(command.spawn().expect("it starts"));
    wait_until("all ranks", || {
        (0..RANKS).all(|rank| folder.join(format!("rank-{rank}")).exists()).then_some(())
    });
    let is_rank = |pid: i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(2) == Some(RANK.as_bytes())
    };
    let below = descendants(running.pid()).into_iter().map(|(pid, _)| pid);
    let watchers: Vec<i32> = below.filter(|pid| !is_rank(*pid)).chain([running.pid()]).collect();
    (watchers.iter().map(|pid| pss(*pid)).sum(), watchers.len())
}

fn pss(pid: i32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it lives");
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).expect("a Pss line");
    let kilobytes: f64 = line.trim().trim_end_matches("kB").trim().parse().expect("a number of kB");
    kilobytes * 1024.0
}
