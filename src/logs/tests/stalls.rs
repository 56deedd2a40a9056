//! Sinks that block, hang, fill up or disappear: none of them blocks a rank, and each loss is reported.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use harness::skipped;

const FLOOD: usize = 50_000_000;

/// Writes 50 MB of numbered lines and signals when done.
fn flood(mut to: PipeWriter) -> (mpsc::Receiver<usize>, thread::JoinHandle<()>) {
    let (done, finished) = mpsc::channel();
    let writer = thread::spawn(move || {
        let mut lines = 0;
        let mut bytes = 0;
        while bytes < FLOOD {
            let batch: String = (lines..lines + 1000).map(|n| format!("line {n} end\n")).collect();
            if to.write_all(batch.as_bytes()).is_err() {
                return;
            }
            lines += 1000;
            bytes += batch.len();
        }
        let _ = done.send(lines);
    });
    (finished, writer)
}

#[test]
fn stopped_console_blocks_no_rank_and_reports_drops() {
    let (console, out, err) = console();
    let folder = tempfile::tempdir().expect("a folder");
    let logs = Logs::start(config(Some(folder.path())), console.clone());
    let (finished, writer) = flood(attached(&logs, Owner::Rank(GlobalRank(1)), Stream::Out));
    let lines = finished.recv_timeout(SOON).expect("the rank was held by the console");
    writer.join().expect("written");

    // Standard error does not wait for standard output.
    console.say("still here");
    let mut said = String::new();
    BufReader::new(err).read_line(&mut said).expect("read");
    assert_eq!(said, "still here\n");
    assert!(!console.flush(Duration::from_millis(50)), "standard output is stuck");

    logs.read_out(SOON);
    logs.write_out(SOON);
    let rank = Owner::Rank(GlobalRank(1));
    let unshown = logs.summary().owners[&rank].dropped_console_lines;
    let text = collected(out);
    assert!(console.flush(SOON));
    let summary = logs.summary();
    drop((logs, console));
    let text = text.join().expect("read");
    let notice = text.lines().find(|line| line.ends_with("dropped")).expect("the drop is said");
    assert!(notice.starts_with("[r01] ") && notice.contains(" MiB) dropped"), "{notice}");
    let (seen, dropped) = by_rank(&text);
    assert_eq!(seen["[r01"].len() + dropped, lines);
    assert!(dropped > lines / 2);
    let account = summary.owners[&rank];
    assert_eq!(account.dropped_console_lines, dropped as u64);
    assert!(unshown > account.dropped_console_lines, "lines waited: {unshown}");
    let file = std::fs::metadata(folder.path().join("rank-00001.out")).expect("there").len();
    let notices = u64::from(account.dropped_file_bytes > 0) * 200;
    assert!(file + account.dropped_file_bytes <= account.bytes + notices);
}

/// The console reads some bytes and stops. When its time is over, each line is either shown or counted, and none is
/// both.
#[test]
fn console_that_stops_at_any_moment_loses_no_line_uncounted() {
    const RANKS: u32 = 2;
    let mut seed = 7_u64;
    for round in 0..24 {
        // Knuth's MMIX generator.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (some, lines) =
            ((seed >> 40) as usize % 400_000, 2_000 + (seed >> 20) as usize % 40_000);
        let (console, mut out, _err) = console();
        let logs = Logs::start(config(None), console.clone());
        let ranks = (0..RANKS).map(|rank| {
            let mut to = attached(&logs, Owner::Rank(GlobalRank(rank)), Stream::Out);
            thread::spawn(move || {
                let all: String = (0..lines).map(|n| format!("line {n} end\n")).collect();
                to.write_all(all.as_bytes()).expect("written");
            })
        });
        let ranks: Vec<_> = ranks.collect();
        let mut text = vec![0; some.min(lines * 15)];
        out.read_exact(&mut text).expect("read");
        ranks.into_iter().for_each(|rank| rank.join().expect("written"));
        logs.read_out(SOON);
        console.say("the end");
        console.show_out(Duration::from_millis(20));
        let summary = logs.summary();
        let counted: u64 = summary.owners.values().map(|one| one.dropped_console_lines).sum();
        drop((logs, console));
        out.read_to_end(&mut text).expect("read");
        let text = String::from_utf8(text).expect("text");
        let shown = text.lines().filter(|line| line.contains("] line ") && line.ends_with(" end"));
        let told = text.lines().filter_map(|line| {
            let (count, _) = line.split_once("] ")?.1.split_once(" lines (")?;
            count.parse::<u64>().ok()
        });
        let (shown, told) = (shown.count() as u64, told.sum::<u64>());
        assert_eq!(shown + counted, lines as u64 * u64::from(RANKS), "round {round}");
        assert_eq!(told, counted, "round {round}: the console hears of it when it reads again");
    }
}

/// Logs that have read 20,000 lines of rank 0.
fn with_20_000_lines(console: &Console) -> Logs {
    let logs = Logs::start(config(None), console.clone());
    let mut to = attached(&logs, Owner::Rank(GlobalRank(0)), Stream::Out);
    let all: String = (0..20_000).map(|n| format!("line {n} end\n")).collect();
    to.write_all(all.as_bytes()).expect("written");
    drop(to);
    logs.read_out(SOON);
    logs
}

/// A console that takes nothing for a while and then goes on is shown everything.
#[test]
fn console_that_goes_on_in_time_loses_nothing() {
    let (console, out, _err) = console();
    let logs = with_20_000_lines(&console);
    let waits = logs.summary().owners[&Owner::Rank(GlobalRank(0))].dropped_console_lines;
    assert!(waits > 0, "nothing reads");
    let text = collected(out);
    console.show_out(SOON);
    let summary = logs.summary();
    drop((logs, console));
    let (seen, dropped) = by_rank(&text.join().expect("read"));
    assert_eq!((seen["[r00"].len(), dropped), (20_000, 0));
    assert_eq!(summary.owners[&Owner::Rank(GlobalRank(0))].dropped_console_lines, 0);
}

/// The lines of a console that is gone are not shown either.
#[test]
fn lines_of_a_closed_console_are_counted() {
    let (console, mut out, _err) = console();
    let logs = with_20_000_lines(&console);
    let mut text = vec![0; 1000];
    out.read_exact(&mut text).expect("read");
    drop(out);
    assert!(console.flush(SOON), "nobody is waited for");
    // The pipe held at most 64 KiB that nobody has read.
    let counted = logs.summary().owners[&Owner::Rank(GlobalRank(0))].dropped_console_lines;
    assert!((15_000..20_000).contains(&counted), "{counted}");
}

/// The negative control of the first test: without us the same console blocks the rank.
#[test]
fn plain_copy_to_a_stopped_console_blocks() {
    let (mut from, to) = pipe().expect("a pipe");
    let (stopped, mut to_console) = pipe().expect("a pipe");
    let (finished, writer) = flood(to);
    let copy = thread::spawn(move || drop(std::io::copy(&mut from, &mut to_console)));
    finished.recv_timeout(Duration::from_secs(2)).expect_err("nothing held the rank");
    drop(stopped);
    copy.join().expect("ended");
    writer.join().expect("ended");
}

#[test]
fn hung_file_system_blocks_no_rank_reports_gap() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rank-00000.out");
    // Opening a FIFO for writing hangs until it has a reader, like a mount without its server.
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .expect("a fifo");
    let logs = Logs::start(config(Some(folder.path())), silent());
    let to = attached(&logs, Owner::Rank(GlobalRank(0)), Stream::Out);
    let mut later = to.try_clone().expect("a copy");
    let (finished, writer) = flood(to);
    finished.recv_timeout(SOON).expect("the rank was held by the file system");
    writer.join().expect("written");
    // The last lines are in memory, although no file has them.
    later.write_all(b"line 999999999 end\n").expect("written");
    wait_until("the tail", || {
        logs.tail(Owner::Rank(GlobalRank(0)), 1)
            .first()
            .is_some_and(|line| line.text() == "line 999999999 end")
    });

    let mut file = File::open(&path).expect("the server is back");
    let text = thread::spawn(move || {
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read");
        text
    });
    let began = Instant::now();
    drop(later);
    let summary = finish(logs, SOON);
    assert!(began.elapsed() < SOON);
    let text = text.join().expect("read");
    let lost = summary.owners[&Owner::Rank(GlobalRank(0))].dropped_file_bytes;
    assert!(lost > 10_000_000, "{lost}");
    assert!(text.contains(&format!("[ranklaunch] {lost} bytes (")), "the gap is said");
    assert!(text.lines().all(|line| line.starts_with("line ") || line.starts_with("[ranklaunch]")));
}

fn fifo(path: &Path) {
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let stream = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, path, stream, mode, 0).expect("a fifo");
}

/// Writes numbered lines until stopped; gives the bytes written so far.
fn endless(
    mut to: PipeWriter,
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut next = 0;
        while !stop.load(Ordering::Relaxed) {
            let batch: String = (next..next + 1000).map(|n| format!("{n:011}\n")).collect();
            to.write_all(batch.as_bytes()).expect("written");
            next += 1000;
            written.fetch_add(batch.len() as u64, Ordering::Relaxed);
        }
    })
}

/// Each write fails after a while, as on a soft NFS mount without its server. Simulated by a full FIFO that loses its
/// reader.
#[test]
fn slowly_failing_disk_marks_every_gap_in_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rank-00000.out");
    fifo(&path);
    let logs = Logs::start(config(Some(folder.path())), silent());
    let (stop, written) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let to = attached(&logs, Owner::Rank(GlobalRank(0)), Stream::Out);
    let writer = endless(to, Arc::clone(&stop), Arc::clone(&written));
    let so_far = || written.load(Ordering::Relaxed);
    for _ in 0..3 {
        use linux::sys::{PollFd, PollFlags, poll};
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
        let reader = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).expect("opened");
        wait_until("a write", || {
            let mut fds = [PollFd::new(&reader, PollFlags::IN)];
            poll(&mut fds, Some(Duration::ZERO)).is_ok_and(|ready| ready > 0)
        });
        let before = so_far();
        wait_until("more than any queue holds", || so_far() > before + 12_000_000);
        // The FIFO accepts a part, then fails again.
        rustix::fs::fcntl_setfl(&reader, rustix::fs::OFlags::empty()).expect("it may block");
        let mut some = vec![0; 6_000_000];
        File::from(reader).read_exact(&mut some).expect("read");
        let before = so_far();
        wait_until("a moment with room", || so_far() > before + 4_000_000);
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().expect("written");
    let mut file = File::open(&path).expect("the server is back");
    let text = thread::spawn(move || {
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read");
        text
    });
    let summary = finish(logs, SOON);
    let text = text.join().expect("read");
    assert!(text.len() < 11 << 20, "what waited: {} bytes", text.len());
    assert!(text.len() > 6 << 20, "what waited: {} bytes", text.len());
    let (mut last, mut gap, mut said) = (None, 0, 0);
    for line in text.lines() {
        if let Some(notice) = line.strip_prefix("[ranklaunch] ") {
            let bytes = notice.split(' ').next().and_then(|count| count.parse::<u64>().ok());
            gap += bytes.unwrap_or_default();
            continue;
        }
        // A line that was cut when the FIFO changed its reader.
        let Ok(number) = line.parse::<u64>() else { continue };
        if line.len() != 11 {
            continue;
        }
        if let Some(last) = last
            && number != last + 1
        {
            // Lines at either end may be partial.
            let missing: u64 = (number - last - 1) * 12;
            assert!(missing.abs_diff(gap) < 24, "{missing} missing, {gap} said behind {last}");
            said += 1;
        }
        (last, gap) = (Some(number), 0);
    }
    assert!(said > 0, "there are gaps");
    assert!(summary.owners[&Owner::Rank(GlobalRank(0))].dropped_file_bytes > 12_000_000);
}

#[test]
fn stalled_disk_is_given_up_and_losses_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rank-00000.out");
    fifo(&path);
    let logs = Logs::start(config(Some(folder.path())), silent());
    let mut to = attached(&logs, Owner::Rank(GlobalRank(0)), Stream::Out);
    to.write_all(&[b'x'; 3_000_000]).expect("written");
    drop(to);
    logs.read_out(SOON);
    let lost_now =
        || -> Vec<u64> { logs.now().iter().map(|one| one.summary.dropped_file_bytes).collect() };
    assert_eq!(lost_now(), [0], "what waits may still be written");
    let began = Instant::now();
    logs.write_out(SOON);
    assert!(began.elapsed() < SOON / 2, "it takes nothing: {:?}", began.elapsed());
    assert_eq!(lost_now(), [3_000_000]);
    let summary = logs.summary();
    assert_eq!(summary.owners[&Owner::Rank(GlobalRank(0))].dropped_file_bytes, 3_000_000);
    assert!(summary.problems[0].en.contains("3000000 bytes"), "{:?}", summary.problems);
    // Releases the writer, which is still in open.
    drop(File::options().read(true).write(true).open(&path).expect("opened"));
}

/// On a busy machine the writer may not have had time to report that it has nothing to write.
#[test]
fn late_writer_with_empty_queue_loses_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let logs = Logs::start(config(Some(folder.path())), silent());
    logs.read_out(SOON);
    logs.write_out(Duration::ZERO);
    let problems = logs.summary().problems;
    assert!(problems.is_empty(), "{problems:?}");
}

#[test]
fn removed_folder_is_recreated_and_losses_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("logs");
    let (console, _out, err) = console();
    let said = collected(err);
    let candidate = Candidate { path: place.clone(), ..default_candidates(None, None)[0].clone() };
    let (chosen, _) =
        choose_folder(&[candidate], "job-1", LauncherFolder { node_rank: 0, task: None }, 0);
    let config = LogsConfig { folder: chosen, console: ConsoleMode::None, ..config(None) };
    let logs = Logs::start(config, console.clone());
    let mut quiet = attached(&logs, Owner::Rank(GlobalRank(1)), Stream::Out);
    quiet.write_all(b"gone\n").expect("written");
    let mut to = attached(&logs, Owner::Rank(GlobalRank(0)), Stream::Out);
    to.write_all(b"before\n").expect("written");
    let file = |rank: u32| place.join(format!("job-1/node-0/attempt-0/rank-0000{rank}.out"));
    let length = |rank| std::fs::metadata(file(rank)).map_or(0, |it| it.len());
    wait_until("the first lines", || length(0) == 7 && length(1) == 5);
    std::fs::remove_dir_all(&place).expect("removed");
    wait_until("the file again", || {
        to.write_all(b"after\n").expect("written");
        file(0).exists()
    });
    to.write_all(b"the end\n").expect("written");
    drop((to, quiet));
    let summary = finish(logs, SOON);
    assert!(console.flush(SOON));
    drop(console);
    let held = std::fs::read_to_string(file(0)).expect("made again");
    assert!(held.starts_with("[ranklaunch] ") && held.ends_with("the end\n"), "{held}");
    let gone = summary.owners[&Owner::Rank(GlobalRank(0))];
    let kept = held.lines().skip(1).map(|line| line.len() as u64 + 1).sum::<u64>();
    assert_eq!(gone.removed_file_bytes + kept, gone.bytes);
    assert_eq!(summary.owners[&Owner::Rank(GlobalRank(1))].removed_file_bytes, 5);
    let said = said.join().expect("read");
    assert_eq!(said.matches("were removed or cut while the job ran").count(), 1, "{said}");
}

#[test]
fn failed_write_to_console_file_is_retried() {
    use crate::write::{Lost, WriteFailure};
    let failure = |errno: i32| WriteFailure {
        error: Some(std::io::Error::from_raw_os_error(errno)),
        batch: Lost::default(),
        urgent_rest: Vec::new(),
    };
    let file = tempfile::tempfile().expect("a file");
    let (from, to) = pipe().expect("a pipe");
    let pipe = File::from(OwnedFd::from(to));
    for errno in [rustix::io::Errno::IO.raw_os_error(), rustix::io::Errno::INVAL.raw_os_error()] {
        assert!(!failure(errno).is_final(&file) && failure(errno).is_final(&pipe));
    }
    assert!(failure(rustix::io::Errno::PIPE.raw_os_error()).is_final(&pipe));
    assert!(!failure(rustix::io::Errno::FBIG.raw_os_error()).is_final(&file));
    drop(from);
}

/// A failure of our own text after the last piece is counted like any other.
#[test]
fn failed_urgent_text_between_pieces_is_counted() {
    let (from, to) = pipe().expect("a pipe");
    let mut from = Some(from);
    let to = File::from(OwnedFd::from(to));
    let stop = AtomicBool::new(false);
    let mut writer = write::LineWriter { file: &to, stop: &stop, is_torn: false };
    let failure = writer.lines(b"one\n", || {
        drop(from.take());
        b"own text\nof two lines\n".to_vec()
    });
    let failure = failure.expect_err("nobody reads");
    assert_eq!(failure.urgent_rest, b"own text\nof two lines\n");
    assert_eq!((failure.batch.lines, failure.batch.bytes), (0, 0), "the batch was written");
}

#[test]
fn silent_file_system_does_not_delay_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rank-00000.err");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a fifo");
    let logs = Logs::start(config(Some(folder.path())), silent());
    attached(&logs, Owner::Rank(GlobalRank(0)), Stream::Err)
        .write_all(b"last words\n")
        .expect("written");
    let began = Instant::now();
    let summary = finish(logs, Duration::from_millis(500));
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(summary.problems.len(), 1);
    // Releases the writer, which is still in open.
    drop(File::options().read(true).write(true).open(&path).expect("opened"));
}

#[test]
fn full_disk_is_written_again_after_freeing() {
    let folder = tempfile::tempdir().expect("a folder");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "none"])
        .arg(folder.path())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        skipped("a small tmpfs cannot be mounted here");
        return;
    }
    let ballast = folder.path().join("ballast");
    std::fs::write(&ballast, vec![0; 200 << 10]).expect("written");
    let (console, _out, err) = console();
    let mut said = BufReader::new(err).lines();
    let logs = Logs::start(config(Some(folder.path())), console.clone());
    let mut to = attached(&logs, Owner::Rank(GlobalRank(0)), Stream::Out);
    let all: String = (0..10_000).map(|n| format!("line {n:06} end\n")).collect();
    to.write_all(all.as_bytes()).expect("written");
    let line = said.next().expect("a line").expect("read");
    assert!(line.contains("rank-00000.out cannot be written"), "{line}");
    std::fs::remove_file(ballast).expect("removed");
    let line = said.next().expect("a line").expect("read");
    assert!(line.contains("is written again, 0 B of it are missing"), "{line}");
    to.write_all(b"after\n").expect("written");
    drop(to);
    let summary = finish(logs, SOON);
    let held = std::fs::read_to_string(folder.path().join("rank-00000.out")).expect("read");
    // Lazily, since a child that another test is forking may still hold our files.
    let unmounted = Command::new("umount").arg("--lazy").arg(folder.path()).status();
    assert!(held == format!("{all}after\n"), "every byte, once");
    assert_eq!(summary.problems.len(), 2);
    assert!(unmounted.is_ok_and(|status| status.success()));
}

#[test]
fn own_text_precedes_ranks_and_is_bounded() {
    let (console, _out, err) = console();
    let logs = Logs::start(config(None), console.clone());
    let (finished, writer) = flood(attached(&logs, Owner::Rank(GlobalRank(1)), Stream::Err));
    finished.recv_timeout(SOON).expect("written");
    writer.join().expect("written");
    console.say("root cause");
    (0..100_000).for_each(|n| console.say(&format!("own {n}")));
    let text = collected(err);
    finish(logs, SOON);
    assert!(console.flush(SOON));
    drop(console);
    let text = text.join().expect("read");
    let place = |needle: &str| text.find(needle).unwrap_or_else(|| panic!("{needle} is not there"));
    let backlog = text.len() - place("root cause");
    assert!(backlog > 500_000, "at most one piece stood before our own text: {backlog} behind");
    assert!(text.contains("ranklaunch: ") && place("dropped") > 0);
    assert!(text.lines().all(|line| {
        line.starts_with("[r01!] ")
            || line.starts_with("own ")
            || line.starts_with("ranklaunch: ")
            || line == "root cause"
    }));
}

#[test]
fn closed_console_is_not_waited_for() {
    let (console, out, err) = console();
    drop((out, err));
    let logs = Logs::start(config(None), console.clone());
    let (finished, writer) = flood(attached(&logs, Owner::Rank(GlobalRank(0)), Stream::Out));
    finished.recv_timeout(SOON).expect("written");
    writer.join().expect("written");
    console.say("nobody hears");
    finish(logs, SOON);
    assert!(console.flush(SOON));
}
