//! The whole path with real pipes: what was written against what arrived.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write, pipe};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::lang::Lang;

const SOON: Duration = Duration::from_secs(30);

fn config(folder: Option<&Path>) -> LogsConfig {
    LogsConfig {
        folder: folder.map(Path::to_path_buf),
        world_size: 16,
        local_ranks: 8,
        console: ConsoleMode::All,
        prefix: ConsolePrefix::Rank,
        cap_rank: 256 << 20,
        cap_node: 4 << 30,
    }
}

/// A console whose two ends the test holds.
fn console() -> (Console, PipeReader, PipeReader) {
    let (out, to_out) = pipe().expect("a pipe");
    let (err, to_err) = pipe().expect("a pipe");
    (Console::new(to_out.into(), to_err.into(), Lang::En), out, err)
}

/// A console that swallows everything.
fn silent() -> Console {
    let null = || File::options().write(true).open("/dev/null").expect("/dev/null").into();
    Console::new(null(), null(), Lang::En)
}

fn attached(logs: &Logs, owner: Owner, kind: Kind) -> PipeWriter {
    let (from, to) = pipe().expect("a pipe");
    logs.attach(owner, kind, from.into()).expect("attached");
    to
}

/// Reads a console to its end in the background.
fn collected(mut from: PipeReader) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut text = String::new();
        from.read_to_string(&mut text).expect("valid UTF-8");
        text
    })
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < SOON, "not within {SOON:?}: {what}");
        thread::yield_now();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_bytes_in_the_files_are_the_bytes_written(
        out in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40_000), 0..20),
        err in prop::collection::vec(prop::collection::vec(prop::sample::select(&b"ab\n\r\0\xff\xe8"[..]), 0..50), 0..50),
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let logs = Logs::start(config(Some(folder.path())), silent());
        let rank = Owner::Rank(3);
        let writers: Vec<_> = [(Kind::Out, out.clone()), (Kind::Err, err.clone())]
            .into_iter()
            .map(|(kind, chunks)| {
                let mut to = attached(&logs, rank, kind);
                thread::spawn(move || chunks.iter().for_each(|chunk| to.write_all(chunk).expect("written")))
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().expect("written"));
        let summary = logs.finish(SOON);
        let (out, err) = (out.concat(), err.concat());
        prop_assert!(std::fs::read(folder.path().join("rank-00003.out")).expect("there") == out);
        prop_assert!(std::fs::read(folder.path().join("rank-00003.err")).expect("there") == err);
        let account = summary.owners[&rank];
        prop_assert_eq!(account.bytes, (out.len() + err.len()) as u64);
        prop_assert_eq!(account.lines, out.iter().chain(&err).filter(|byte| **byte == b'\n').count() as u64);
        prop_assert_eq!((account.dropped_file_bytes, account.truncated_bytes), (0, 0));
        prop_assert!(summary.problems.is_empty());
    }
}

/// Lines per rank in order, with the dropped ones counted from the notices.
fn by_rank(text: &str) -> (BTreeMap<String, Vec<usize>>, usize) {
    let mut seen: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut dropped = 0;
    for line in text.lines() {
        let (rank, rest) = line.split_once("] ").expect("every line has a prefix");
        if rest.ends_with("dropped") {
            dropped += rest.split(' ').next().and_then(|n| n.parse::<usize>().ok()).expect("count");
            continue;
        }
        let body = rest.strip_suffix(" end").expect("no line is torn");
        let body = body.strip_prefix("line ").expect("no line is torn");
        seen.entry(rank.to_owned()).or_default().push(body.parse().expect("no line is torn"));
    }
    (seen, dropped)
}

#[test]
fn eight_writers_at_once_tear_no_line() {
    let (console, out, err) = console();
    let (out, err) = (collected(out), collected(err));
    let logs = Logs::start(config(None), console.clone());
    let writers: Vec<_> = (0..8)
        .flat_map(|rank| [(rank, Kind::Out), (rank, Kind::Err)])
        .map(|(rank, kind)| {
            let mut to = attached(&logs, Owner::Rank(rank), kind);
            thread::spawn(move || {
                let all: String = (0..2000).map(|n| format!("line {n} end\n")).collect();
                for chunk in all.as_bytes().chunks(37 + 11 * rank as usize) {
                    to.write_all(chunk).expect("written");
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().expect("written"));
    let summary = logs.finish(SOON);
    assert!(console.flush(SOON));
    drop(console);
    let mut dropped = 0;
    let mut shown = 0;
    for text in [out, err] {
        let (seen, lost) = by_rank(&text.join().expect("read"));
        assert_eq!(seen.len(), 8);
        assert!(seen.values().all(|lines| lines.is_sorted()), "order within a rank");
        shown += seen.values().map(Vec::len).sum::<usize>();
        dropped += lost;
    }
    assert_eq!(shown + dropped, 16 * 2000);
    let counted: u64 = summary.owners.values().map(|owner| owner.dropped_console_lines).sum();
    assert_eq!(counted, dropped as u64);
}

#[test]
fn both_streams_into_one_pipe_tear_no_line() {
    let (from, to) = pipe().expect("a pipe");
    let again = to.try_clone().expect("a copy");
    let console = Console::new(to.into(), again.into(), Lang::En);
    let text = collected(from);
    let logs = Logs::start(config(None), console.clone());
    let writers: Vec<_> = [Kind::Out, Kind::Err]
        .into_iter()
        .map(|kind| {
            let mut to = attached(&logs, Owner::Rank(0), kind);
            thread::spawn(move || {
                let all: String = (0..50_000).map(|n| format!("line {n} end\n")).collect();
                to.write_all(all.as_bytes()).expect("written");
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().expect("written"));
    logs.finish(SOON);
    assert!(console.flush(SOON));
    drop(console);
    let (seen, dropped) = by_rank(&text.join().expect("read"));
    assert_eq!(seen.values().map(Vec::len).sum::<usize>() + dropped, 100_000);
}

const FLOOD: usize = 50_000_000;

/// Writes 50 MB of numbered lines; says when it has.
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
fn a_stopped_console_holds_no_rank_and_the_drop_is_said() {
    let (console, out, err) = console();
    let folder = tempfile::tempdir().expect("a folder");
    let logs = Logs::start(config(Some(folder.path())), console.clone());
    let (finished, writer) = flood(attached(&logs, Owner::Rank(1), Kind::Out));
    let lines = finished.recv_timeout(SOON).expect("the rank was held by the console");
    writer.join().expect("written");

    // Standard error does not wait for standard output.
    console.say("still here");
    let mut said = String::new();
    BufReader::new(err).read_line(&mut said).expect("read");
    assert_eq!(said, "still here\n");
    assert!(!console.flush(Duration::from_millis(50)), "standard output is stuck");

    let summary = logs.finish(SOON);
    let text = collected(out);
    assert!(console.flush(SOON));
    drop(console);
    let text = text.join().expect("read");
    let notice = text.lines().find(|line| line.ends_with("dropped")).expect("the drop is said");
    assert!(notice.starts_with("[r01] ") && notice.contains(" MiB) dropped"), "{notice}");
    let (seen, dropped) = by_rank(&text);
    assert_eq!(seen["[r01"].len() + dropped, lines);
    assert!(dropped > lines / 2);
    let account = summary.owners[&Owner::Rank(1)];
    assert_eq!(account.dropped_console_lines, dropped as u64);
    let file = std::fs::metadata(folder.path().join("rank-00001.out")).expect("there").len();
    let notices = u64::from(account.dropped_file_bytes > 0) * 200;
    assert!(file + account.dropped_file_bytes <= account.bytes + notices);
}

/// The negative control of the test above: without us the same console holds the rank.
#[test]
fn a_plain_copy_to_a_stopped_console_holds_the_rank() {
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
fn a_hung_file_system_holds_no_rank_and_later_says_the_gap() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rank-00000.out");
    // To open a FIFO for writing hangs until somebody reads: a mount without its server.
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .expect("a fifo");
    let logs = Logs::start(config(Some(folder.path())), silent());
    let to = attached(&logs, Owner::Rank(0), Kind::Out);
    let mut later = to.try_clone().expect("a copy");
    let (finished, writer) = flood(to);
    finished.recv_timeout(SOON).expect("the rank was held by the file system");
    writer.join().expect("written");
    // What was written last is in memory, though no file has it.
    later.write_all(b"line 999999999 end\n").expect("written");
    wait_until("the tail", || {
        logs.tail(Owner::Rank(0), 1).first().is_some_and(|line| line.text() == "line 999999999 end")
    });

    let mut file = File::open(&path).expect("the server is back");
    let text = thread::spawn(move || {
        let mut text = String::new();
        file.read_to_string(&mut text).expect("read");
        text
    });
    let began = Instant::now();
    drop(later);
    let summary = logs.finish(SOON);
    assert!(began.elapsed() < SOON);
    let text = text.join().expect("read");
    let lost = summary.owners[&Owner::Rank(0)].dropped_file_bytes;
    assert!(lost > 10_000_000, "{lost}");
    assert!(text.contains(&format!("[ranklaunch] {lost} bytes (")), "the gap is said");
    assert!(text.lines().all(|line| line.starts_with("line ") || line.starts_with("[ranklaunch]")));
}

#[test]
fn a_file_system_that_never_answers_does_not_hold_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rank-00000.err");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a fifo");
    let logs = Logs::start(config(Some(folder.path())), silent());
    attached(&logs, Owner::Rank(0), Kind::Err).write_all(b"last words\n").expect("written");
    let began = Instant::now();
    let summary = logs.finish(Duration::from_millis(500));
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(summary.problems.len(), 1);
    // Releases the writer, which is still in open.
    drop(File::options().read(true).write(true).open(&path).expect("opened"));
}

#[test]
fn a_full_disk_is_written_again_once_there_is_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "none"])
        .arg(folder.path())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        eprintln!("skipped: a small tmpfs cannot be mounted here");
        return;
    }
    let ballast = folder.path().join("ballast");
    std::fs::write(&ballast, vec![0; 200 << 10]).expect("written");
    let (console, _out, err) = console();
    let mut said = BufReader::new(err).lines();
    let logs = Logs::start(config(Some(folder.path())), console.clone());
    let mut to = attached(&logs, Owner::Rank(0), Kind::Out);
    let all: String = (0..10_000).map(|n| format!("line {n:06} end\n")).collect();
    to.write_all(all.as_bytes()).expect("written");
    let line = said.next().expect("a line").expect("read");
    assert!(line.contains("rank-00000.out cannot be written"), "{line}");
    std::fs::remove_file(ballast).expect("removed");
    let line = said.next().expect("a line").expect("read");
    assert!(line.contains("is written again, 0 bytes of it are missing"), "{line}");
    to.write_all(b"after\n").expect("written");
    drop(to);
    let summary = logs.finish(SOON);
    let held = std::fs::read_to_string(folder.path().join("rank-00000.out")).expect("read");
    let unmounted = Command::new("umount").arg(folder.path()).status();
    assert!(held == format!("{all}after\n"), "every byte, once");
    assert_eq!(summary.problems.len(), 2);
    assert!(unmounted.is_ok_and(|status| status.success()));
}

#[test]
fn a_grandchild_that_holds_the_pipe_does_not_hold_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let logs = Logs::start(config(Some(folder.path())), silent());
    let (from, to) = pipe().expect("a pipe");
    logs.attach(Owner::Rank(5), Kind::Out, from.into()).expect("attached");
    // The subshell lives, and holds the pipe, until its input ends.
    let mut child = Command::new("sh")
        .args(["-c", "exec 3<&0; (read line <&3; echo too late) & printf 'done, no newline'"])
        .stdin(Stdio::piped())
        .stdout(to)
        .spawn()
        .expect("sh");
    let hold = child.stdin.take();
    child.wait().expect("ended");
    let began = Instant::now();
    logs.rank_done(Owner::Rank(5), Duration::from_millis(300));
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(300), "it gave the grandchild its time: {took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    drop(hold);
    let summary = logs.finish(SOON);
    let held = std::fs::read(folder.path().join("rank-00005.out")).expect("there");
    assert_eq!(held, b"done, no newline");
    assert!(summary.problems.is_empty());
}

#[test]
fn a_rank_that_closed_its_pipes_is_done_at_once() {
    let logs = Logs::start(config(None), silent());
    drop(attached(&logs, Owner::Rank(0), Kind::Out));
    let began = Instant::now();
    logs.rank_done(Owner::Rank(0), SOON);
    assert!(began.elapsed() < SOON / 2);
}

#[test]
fn each_mode_shows_what_it_says() {
    use ConsoleMode::{All, Errors, None, Rank0};
    let cases = [
        (All, 16, ConsolePrefix::Rank, "[r00] o0|[r01] o1", "[engine] e|[r00!] e0|[r01!] e1"),
        (Rank0, 1000, ConsolePrefix::Rank, "[r000] o0", "[engine] e|[r000!] e0"),
        (Errors, 2, ConsolePrefix::Rank, "", "[engine] e|[r0!] e0|[r1!] e1"),
        (None, 16, ConsolePrefix::Rank, "", ""),
        (All, 16, ConsolePrefix::None, "o0|o1", "e|e0|e1"),
        (Rank0, 1, ConsolePrefix::Rank, "o0", "e|e0"),
    ];
    for (mode, world_size, prefix, want_out, want_err) in cases {
        let (console, out, err) = console();
        let (out, err) = (collected(out), collected(err));
        let folder = tempfile::tempdir().expect("a folder");
        let config =
            LogsConfig { console: mode, world_size, prefix, ..config(Some(folder.path())) };
        let logs = Logs::start(config, console.clone());
        for (owner, kind, text) in [
            (Owner::Engine, Kind::Out, "e\n"),
            (Owner::Rank(0), Kind::Out, "o0\n"),
            (Owner::Rank(0), Kind::Err, "e0\n"),
            (Owner::Rank(1), Kind::Out, "o1\n"),
            (Owner::Rank(1), Kind::Err, "e1\n"),
        ] {
            attached(&logs, owner, kind).write_all(text.as_bytes()).expect("written");
        }
        logs.finish(SOON);
        assert!(console.flush(SOON));
        drop(console);
        for (shown, want) in [(out, want_out), (err, want_err)] {
            let shown = shown.join().expect("read");
            let mut lines: Vec<&str> = shown.lines().collect();
            lines.sort_unstable();
            assert_eq!(lines.join("|"), want, "{mode:?}");
        }
        let held = std::fs::read(folder.path().join("engine.log")).expect("there");
        assert_eq!(held, b"e\n", "files do not depend on the mode");
    }
}

#[test]
fn an_unfinished_line_reaches_the_console_while_the_rank_waits() {
    let (console, out, _err) = console();
    let logs = Logs::start(config(None), console);
    let mut to = attached(&logs, Owner::Rank(2), Kind::Out);
    to.write_all(b"whole\nprompt> \0\xff").expect("written");
    let mut lines = BufReader::new(out).lines().map(|line| line.expect("read"));
    assert_eq!(lines.next().as_deref(), Some("[r02] whole"));
    assert_eq!(lines.next().as_deref(), Some(r"[r02] prompt> \x00\xff"));
    to.write_all(b"\nnext\n").expect("written");
    assert_eq!(lines.next().as_deref(), Some("[r02] next"));
}

#[test]
fn the_engine_log_holds_whole_lines_of_both_streams() {
    let folder = tempfile::tempdir().expect("a folder");
    let logs = Logs::start(config(Some(folder.path())), silent());
    let writers: Vec<_> = [Kind::Out, Kind::Err]
        .into_iter()
        .map(|kind| {
            let mut to = attached(&logs, Owner::Engine, kind);
            thread::spawn(move || {
                for n in 0..3000 {
                    to.write_all(format!("{kind:?} ").as_bytes()).expect("written");
                    to.write_all(format!("{n} end\n").as_bytes()).expect("written");
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().expect("written"));
    logs.finish(SOON);
    let held = std::fs::read_to_string(folder.path().join("engine.log")).expect("there");
    let whole = |line: &str| {
        let mut words = line.split(' ');
        matches!(words.next(), Some("Out" | "Err"))
            && words.next().is_some_and(|n| n.parse::<u32>().is_ok())
            && (words.next(), words.next()) == (Some("end"), None)
    };
    assert_eq!(held.lines().filter(|line| whole(line)).count(), 6000);
}

#[test]
fn our_own_text_goes_before_the_ranks_and_is_bounded() {
    let (console, _out, err) = console();
    let logs = Logs::start(config(None), console.clone());
    let (finished, writer) = flood(attached(&logs, Owner::Rank(1), Kind::Err));
    finished.recv_timeout(SOON).expect("written");
    writer.join().expect("written");
    console.say("root cause");
    (0..100_000).for_each(|n| console.say(&format!("own {n}")));
    let text = collected(err);
    logs.finish(SOON);
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
fn a_console_that_was_closed_is_not_waited_for() {
    let (console, out, err) = console();
    drop((out, err));
    let logs = Logs::start(config(None), console.clone());
    let (finished, writer) = flood(attached(&logs, Owner::Rank(0), Kind::Out));
    finished.recv_timeout(SOON).expect("written");
    writer.join().expect("written");
    console.say("nobody hears");
    logs.finish(SOON);
    assert!(console.flush(SOON));
}

#[test]
fn the_tail_outlives_the_pipes() {
    let logs = Logs::start(config(None), silent());
    let mut to = attached(&logs, Owner::Rank(0), Kind::Err);
    for n in 0..500 {
        to.write_all(format!("line {n}\n").as_bytes()).expect("written");
    }
    drop(to);
    logs.rank_done(Owner::Rank(0), SOON);
    let tail = logs.tail(Owner::Rank(0), 1000);
    assert_eq!(tail.len(), 200);
    assert_eq!(tail.first().map(|line| line.text().into_owned()).as_deref(), Some("line 300"));
    assert!(tail.iter().all(|line| line.kind == Kind::Err));
    assert!(logs.tail(Owner::Rank(9), 10).is_empty());
}

#[test]
fn all_files_of_a_node_stay_below_its_cap() {
    for (cap_rank, cap_node, local_ranks) in [(256 << 20, 4 << 30, 8), (1 << 30, 1 << 30, 8)] {
        let config = LogsConfig { cap_rank, cap_node, local_ranks, ..config(None) };
        assert!(config.cap_owner() <= cap_rank);
        assert!(config.cap_owner() * u64::from(local_ranks + 1) <= cap_node);
    }
}

#[test]
fn sizes_are_said_for_people() {
    for (bytes, said) in
        [(0, "0 bytes"), (1023, "1023 bytes"), (212 << 10, "212 KiB"), (5 << 40, "5120 GiB")]
    {
        assert_eq!(human_bytes(bytes), said);
    }
}

/// Two ranks that write as fast as they can, into files and a prefixed console:
/// `cargo test --release --lib logs::tests::throughput -- --ignored --nocapture`.
/// LOGS_BENCH_DIR names the folder of the files.
#[test]
#[ignore = "a measurement of several seconds; run it in a release build"]
fn throughput_beside_cat() {
    use nix::sys::resource::{UsageWho, getrusage};
    let seconds = Duration::from_secs(3);
    let line = "x".repeat(119);
    let yes =
        |to: Stdio| Command::new("yes").arg(&line).stdout(to).spawn().expect("yes, from coreutils");
    let root = std::env::var_os("LOGS_BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(root).expect("a folder");
    let cpu = || {
        let usage = getrusage(UsageWho::RUSAGE_SELF).expect("usage");
        let seconds =
            |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        seconds(usage.user_time()) + seconds(usage.system_time())
    };

    let config = LogsConfig {
        world_size: 2,
        local_ranks: 2,
        cap_rank: 1 << 40,
        cap_node: 1 << 42,
        ..config(Some(folder.path()))
    };
    let logs = Logs::start(config, silent());
    let (began, before) = (Instant::now(), cpu());
    let mut ranks: Vec<_> = (0..2)
        .map(|rank| {
            let (from, to) = pipe().expect("a pipe");
            logs.attach(Owner::Rank(rank), Kind::Out, from.into()).expect("attached");
            yes(to.into())
        })
        .collect();
    thread::sleep(seconds);
    for rank in &mut ranks {
        rank.kill().expect("killed");
        rank.wait().expect("ended");
    }
    let summary = logs.finish(Duration::from_secs(60));
    let (took, used) = (began.elapsed().as_secs_f64(), cpu() - before);
    let total = summary.owners.values().map(|owner| owner.bytes).sum::<u64>() as f64 / 1e9;
    let lost: u64 = summary.owners.values().map(|owner| owner.dropped_file_bytes).sum();
    let unshown: u64 = summary.owners.values().map(|owner| owner.dropped_console_lines).sum();
    println!(
        "logs: {:.0} MB/s, {:.2} CPU s/GB, {lost} file bytes and {unshown} console lines dropped",
        total * 1e3 / took,
        used / total
    );

    let began = Instant::now();
    let copies: Vec<_> = (0..2)
        .map(|rank| {
            let (from, to) = pipe().expect("a pipe");
            let path = folder.path().join(format!("cat-{rank}"));
            let file = File::create(&path).expect("created");
            let cat = Command::new("cat").stdin(from).stdout(file).spawn().expect("cat");
            (yes(to.into()), cat, path)
        })
        .collect();
    thread::sleep(seconds);
    let ticks = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("there");
        let after = stat.rsplit_once(") ").expect("fields").1;
        let field = |n: usize| after.split(' ').nth(n).and_then(|n| n.parse::<f64>().ok());
        (field(11).expect("utime") + field(12).expect("stime")) / 100.0
    };
    let used: f64 = copies.iter().map(|(_, cat, _)| ticks(cat.id())).sum();
    let took = began.elapsed().as_secs_f64();
    let mut total = 0.0;
    for (mut rank, mut cat, path) in copies {
        total += std::fs::metadata(path).expect("there").len() as f64 / 1e9;
        rank.kill().expect("killed");
        rank.wait().expect("ended");
        cat.wait().expect("ended");
    }
    println!("cat: {:.0} MB/s, {:.2} CPU s/GB", total * 1e3 / took, used / total);
}
