//! Processes of which the kernel gives nothing: FIFOs without a writer stand for their files.

use std::time::{Duration, Instant};

use super::*;

/// A reading that hangs is waited for [`reading::PATIENCE`] in all.
const DELAY: Duration = Duration::from_millis(2500);

/// Puts a FIFO in the place of a file of each process: whoever opens it waits for ever.
fn hang(folder: &Path, pids: impl IntoIterator<Item = i32>, file: &str) {
    for pid in pids {
        let path = folder.join(format!("proc/{pid}/{file}"));
        std::fs::remove_file(&path).expect("removed");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).expect("a fifo");
    }
}

#[test]
fn silent_process_is_spared_and_said_in_time() {
    let marked = "RANKLAUNCH_JOB=job:HERE:77:5";
    let left = |pid| Planted { pid, ..runs(marked) };
    for file in ["cmdline", "environ"] {
        let folder = tempfile::tempdir().expect("folder");
        let processes: Vec<Planted> = (60..64).map(left).collect();
        let host = host(folder.path(), &processes);
        let all_end = find(&host, &request());
        assert!(all_end.iter().all(|one| matches!(one.fate, Fate::Leftover(_))), "the control");
        assert_eq!(all_end.len(), 4);
        hang(folder.path(), [61, 62], file);
        let began = Instant::now();
        let found = find(&host, &request());
        assert!(began.elapsed() < DELAY, "{file}: {:?}", began.elapsed());
        let silent = |one: &&StaleProcess| one.rule == StaleRule::Unreadable;
        let said: Vec<i32> = found.iter().filter(silent).map(|one| one.pid).collect();
        assert_eq!(said, [61, 62], "{file}: {found:?}");
        for one in &found {
            let ends = one.is_ended_by(StaleMode::Force);
            assert_eq!(ends, !said.contains(&one.pid), "{file}: {one:?}");
        }
        let line = found[1].left_alone(StaleMode::Kill);
        assert!(
            line.en.contains("pid 61 ([python];") && line.en.contains("cannot be read"),
            "{line:?}"
        );
        // Whoever is told of them does not wait again.
        let told = Request { unreadable: said.into_iter().collect(), ..request() };
        let began = Instant::now();
        assert_eq!(find(&host, &told), found);
        assert!(began.elapsed() < Duration::from_millis(200), "{:?}", began.elapsed());
    }
}

/// All ranks of a node and their data loaders, on one dead mount. The state tells them apart where they are more than
/// the threads that may wait for them.
#[test]
fn healthy_process_is_read_beside_silent_ones() {
    for (count, state) in [(100, 'S'), (700, 'S'), (1_100, 'D')] {
        let folder = tempfile::tempdir().expect("folder");
        let runs = |pid| Planted { pid, state, ..runs("LOCAL_RANK=0") };
        let healthy = 100 + count..120 + count;
        let mut processes: Vec<Planted> = (100..100 + count).map(runs).collect();
        processes.extend(healthy.clone().map(|pid| Planted { state: 'S', ..runs(pid) }));
        let host = host(folder.path(), &processes);
        hang(folder.path(), 100..100 + count, "cmdline");
        let began = Instant::now();
        let found = find(&host, &request());
        assert!(began.elapsed() < DELAY, "{count}: {:?}", began.elapsed());
        let silent = |one: &&StaleProcess| one.rule == StaleRule::Unreadable;
        let silent: Vec<i32> = found.iter().filter(silent).map(|one| one.pid).collect();
        assert!(silent.iter().copied().eq(100..100 + count), "{count}: {silent:?}");
        assert!(healthy.into_iter().all(|pid| found.iter().any(|one| one.pid == pid)), "{count}");
    }
}

/// Nothing is said of silent processes that another user or another container has.
#[test]
fn silent_process_of_others_is_not_said() {
    let folder = tempfile::tempdir().expect("folder");
    let other = Planted { uid: 7, ..runs("LOCAL_RANK=0") };
    let holds = Planted { pid: 61, open: "/dev/nvidia1", ..other.clone() };
    let host = host(folder.path(), &[other, holds]);
    hang(folder.path(), [60, 61], "cmdline");
    let found = find(&host, &request());
    assert_eq!(found.iter().map(|one| one.pid).collect::<Vec<_>>(), [61]);
    assert!(found[0].holds_gpu(), "{found:?}");
}

/// Files on a dead mount and silent processes have one patience.
#[test]
fn patience_is_for_all_waits_together() {
    let folder = tempfile::tempdir().expect("folder");
    let processes: Vec<Planted> =
        (60..64).map(|pid| Planted { pid, ..runs("LOCAL_RANK=0") }).collect();
    let host = host(folder.path(), &processes);
    hang(folder.path(), 60..62, "environ");
    hang(folder.path(), 62..64, "maps");
    let began = Instant::now();
    find(&host, &request());
    assert!(began.elapsed() < DELAY, "{:?}", began.elapsed());
}
