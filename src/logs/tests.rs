//! Tests of the whole path with real pipes: written bytes are compared with the bytes that arrived.

mod long_lines;
mod stalls;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::output::OPEN;
use super::*;
use settings::{ConsoleMode, ConsolePrefix};
use text::lang::Lang;
use text::rank::GlobalRank;
use text::style::Color;
use verdict::outcome::{Owner, Stream};

const SOON: Duration = Duration::from_secs(30);

fn config(folder: Option<&Path>) -> LogsConfig {
    LogsConfig {
        folder: folder.map(LogFolder::flat),
        world_size: 16,
        local_ranks: 8,
        console: ConsoleMode::All,
        prefix: ConsolePrefix::Rank,
        cap_rank: 256 << 20,
        cap_node: 4 << 30,
        backlog: None,
    }
}

/// A console whose two ends the test holds.
fn console() -> (Console, PipeReader, PipeReader) {
    let (out, to_out) = pipe().expect("a pipe");
    let (err, to_err) = pipe().expect("a pipe");
    (Console::new(to_out.into(), to_err.into(), Lang::En, Color::Never), out, err)
}

/// A console that discards everything.
fn silent() -> Console {
    let null = || File::options().write(true).open("/dev/null").expect("/dev/null").into();
    Console::new(null(), null(), Lang::En, Color::Never)
}

fn attached(logs: &Logs, owner: Owner, stream: Stream) -> PipeWriter {
    let (from, to) = pipe().expect("a pipe");
    logs.attach(owner, stream, from.into()).expect("attached");
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

/// Ends the logs in the same way as an attempt.
fn finish(logs: Logs, deadline: Duration) -> LogsSummary {
    logs.read_out(SOON);
    logs.write_out(deadline);
    logs.summary()
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
    fn files_hold_exactly_the_written_bytes(
        out in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40_000), 0..20),
        err in prop::collection::vec(prop::collection::vec(prop::sample::select(&b"ab\n\r\0\xff\xe8"[..]), 0..50), 0..50),
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let logs = Logs::start(config(Some(folder.path())), silent());
        let rank = Owner::Rank(GlobalRank(3));
        let writers: Vec<_> = [(Stream::Out, out.clone()), (Stream::Err, err.clone())]
            .into_iter()
            .map(|(stream, chunks)| {
                let mut to = attached(&logs, rank, stream);
                thread::spawn(move || chunks.iter().for_each(|chunk| to.write_all(chunk).expect("written")))
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().expect("written"));
        let summary = finish(logs, SOON);
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
        .flat_map(|rank| [(rank, Stream::Out), (rank, Stream::Err)])
        .map(|(rank, stream)| {
            let mut to = attached(&logs, Owner::Rank(GlobalRank(rank)), stream);
            thread::spawn(move || {
                let all: String = (0..2000).map(|n| format!("line {n} end\n")).collect();
                for chunk in all.as_bytes().chunks(37 + 11 * rank as usize) {
                    to.write_all(chunk).expect("written");
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().expect("written"));
    logs.read_out(SOON);
    assert!(console.flush(SOON));
    let summary = logs.summary();
    drop((logs, console));
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
    let console = Console::new(to.into(), again.into(), Lang::En, Color::Never);
    let text = collected(from);
    let logs = Logs::start(config(None), console.clone());
    let writers: Vec<_> = [Stream::Out, Stream::Err]
        .into_iter()
        .map(|stream| {
            let mut to = attached(&logs, Owner::Rank(GlobalRank(0)), stream);
            thread::spawn(move || {
                let all: String = (0..50_000).map(|n| format!("line {n} end\n")).collect();
                to.write_all(all.as_bytes()).expect("written");
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().expect("written"));
    finish(logs, SOON);
    assert!(console.flush(SOON));
    drop(console);
    let (seen, dropped) = by_rank(&text.join().expect("read"));
    assert_eq!(seen.values().map(Vec::len).sum::<usize>() + dropped, 100_000);
}

#[test]
fn grandchild_with_the_pipe_delays_no_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let logs = Logs::start(config(Some(folder.path())), silent());
    let (from, to) = pipe().expect("a pipe");
    logs.attach(Owner::Rank(GlobalRank(5)), Stream::Out, from.into()).expect("attached");
    // The subshell runs and holds the pipe until its input ends.
    let mut child = Command::new("sh")
        .args(["-c", "exec 3<&0; (read line <&3; echo too late) & printf 'done, no newline'"])
        .stdin(Stdio::piped())
        .stdout(to)
        .spawn()
        .expect("sh");
    let hold = child.stdin.take();
    child.wait().expect("ended");
    let began = Instant::now();
    logs.read_out(SOON);
    let took = began.elapsed();
    assert!(took >= OPEN, "it gave the grandchild its time: {took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    drop(hold);
    let summary = finish(logs, SOON);
    let held = std::fs::read(folder.path().join("rank-00005.out")).expect("there");
    assert_eq!(held, b"done, no newline");
    assert!(summary.problems.is_empty());
}

#[test]
fn rank_with_closed_pipes_ends_at_once() {
    let logs = Logs::start(config(None), silent());
    drop(attached(&logs, Owner::Rank(GlobalRank(0)), Stream::Out));
    let began = Instant::now();
    logs.read_out(SOON);
    assert!(began.elapsed() < OPEN / 2);
}

#[test]
fn console_mode_selects_the_shown_streams() {
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
        let mut engine = attached(&logs, Owner::Engine, Stream::Out);
        engine.write_all(b"e\n").expect("written");
        wait_until("the engine's line", || !logs.tail(Owner::Engine, 1).is_empty());
        for (owner, stream, text) in [
            (Owner::Rank(GlobalRank(0)), Stream::Out, "o0\n"),
            (Owner::Rank(GlobalRank(0)), Stream::Err, "e0\n"),
            (Owner::Rank(GlobalRank(1)), Stream::Out, "o1\n"),
            (Owner::Rank(GlobalRank(1)), Stream::Err, "e1\n"),
        ] {
            attached(&logs, owner, stream).write_all(text.as_bytes()).expect("written");
        }
        // The ranks have begun, so the engine's output now goes only to its file.
        engine.write_all(b"and more\nof that\n").expect("written");
        drop(engine);
        logs.read_out(SOON);
        assert_eq!(logs.engine_lines(), if mode == None { 0 } else { 2 });
        finish(logs, SOON);
        assert!(console.flush(SOON));
        drop(console);
        for (shown, want) in [(out, want_out), (err, want_err)] {
            let shown = shown.join().expect("read");
            let mut lines: Vec<&str> = shown.lines().collect();
            lines.sort_unstable();
            assert_eq!(lines.join("|"), want, "{mode:?}");
        }
        let held = std::fs::read(folder.path().join("engine.log")).expect("there");
        assert_eq!(held, b"e\nand more\nof that\n", "files do not depend on the mode");
    }
}

#[test]
fn engine_without_a_file_stays_on_the_console() {
    let (console, _out, err) = console();
    let err = collected(err);
    let logs = Logs::start(config(None), console.clone());
    drop(attached(&logs, Owner::Rank(GlobalRank(0)), Stream::Out));
    attached(&logs, Owner::Engine, Stream::Err).write_all(b"late\n").expect("written");
    finish(logs, SOON);
    assert!(console.flush(SOON));
    drop(console);
    assert_eq!(err.join().expect("read"), "[engine] late\n");
}

#[test]
fn unfinished_line_of_a_waiting_rank_is_shown() {
    let (console, out, _err) = console();
    let logs = Logs::start(config(None), console);
    let mut to = attached(&logs, Owner::Rank(GlobalRank(2)), Stream::Out);
    to.write_all(b"whole\nprompt> \0\xff").expect("written");
    let mut lines = BufReader::new(out).lines().map(|line| line.expect("read"));
    assert_eq!(lines.next().as_deref(), Some("[r02] whole"));
    assert_eq!(lines.next().as_deref(), Some(r"[r02] prompt> \x00\xff"));
    to.write_all(b"\nnext\n").expect("written");
    assert_eq!(lines.next().as_deref(), Some("[r02] next"));
}

#[test]
fn engine_log_holds_whole_lines_of_both_streams() {
    let folder = tempfile::tempdir().expect("a folder");
    let logs = Logs::start(config(Some(folder.path())), silent());
    let writers: Vec<_> = [Stream::Out, Stream::Err]
        .into_iter()
        .map(|stream| {
            let mut to = attached(&logs, Owner::Engine, stream);
            thread::spawn(move || {
                for n in 0..3000 {
                    to.write_all(format!("{stream:?} ").as_bytes()).expect("written");
                    to.write_all(format!("{n} end\n").as_bytes()).expect("written");
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().expect("written"));
    finish(logs, SOON);
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
fn the_tail_outlives_the_pipes() {
    let logs = Logs::start(config(None), silent());
    let mut to = attached(&logs, Owner::Rank(GlobalRank(0)), Stream::Err);
    for n in 0..500 {
        to.write_all(format!("line {n}\n").as_bytes()).expect("written");
    }
    drop(to);
    logs.read_out(SOON);
    let tail = logs.tail(Owner::Rank(GlobalRank(0)), 1000);
    assert_eq!(tail.len(), 200);
    assert_eq!(tail.first().map(|line| line.text().into_owned()).as_deref(), Some("line 300"));
    assert!(tail.iter().all(|line| line.stream == Stream::Err));
    assert!(logs.tail(Owner::Rank(GlobalRank(9)), 10).is_empty());
}

#[test]
fn files_of_a_node_stay_below_its_cap() {
    for (cap_rank, cap_node, local_ranks) in [(256 << 20, 4 << 30, 8), (1 << 30, 1 << 30, 8)] {
        let config = LogsConfig { cap_rank, cap_node, local_ranks, ..config(None) };
        assert!(config.cap_owner() <= cap_rank);
        assert!(config.cap_owner() * u64::from(local_ranks + 1) <= cap_node);
    }
}

/// `ranklaunch logs` shows the existing lines.
#[test]
fn index_with_impossible_offsets_hides_no_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let attempt = folder.path().join("attempt-0");
    std::fs::create_dir(&attempt).expect("a folder");
    let (most, last) = (u64::MAX, i64::MAX);
    let index = format!(
        "ranklaunch-index 1 5\nfile 0 rank rank-00000.out\n1 0 0 6\n2 0 {most} {most}\n3 0 {last} 7\n4 0 6 7\n"
    );
    std::fs::write(attempt.join("output.index"), index).expect("a file");
    std::fs::write(attempt.join("rank-00000.out"), "first\nsecond\n").expect("a file");
    let read = page(folder.path(), Cursor::default(), &Wanted::default(), 1 << 20, true);
    let texts: Vec<String> = read.expect("a page").lines.into_iter().map(|one| one.text).collect();
    assert_eq!(texts, ["first", "second"]);
}

/// A fuzzer found that each reader chose one of the two entries at random.
#[test]
fn first_of_two_writers_of_a_file_counts() {
    let folder = tempfile::tempdir().expect("a folder");
    let attempt = folder.path().join("attempt-0");
    std::fs::create_dir(&attempt).expect("a folder");
    let index = "ranklaunch-index 1 5\nfile 0 command rank-00000.out\nfile 1 rank rank-00000.out\n";
    std::fs::write(attempt.join("output.index"), index).expect("a file");
    std::fs::write(attempt.join("rank-00000.out"), "first\n").expect("a file");
    for _ in 0..32 {
        let read = page(folder.path(), Cursor::default(), &Wanted::default(), 1 << 20, true);
        let lines = read.expect("a page").lines;
        assert!(matches!(lines.as_slice(), [one] if one.writer == Writer::Command), "{lines:?}");
    }
}

/// Two ranks that write as fast as they can, into files and a prefixed console:
/// `cargo test --release --lib logs::tests::throughput_beside_cat -- --ignored --nocapture`.
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
            logs.attach(Owner::Rank(GlobalRank(rank)), Stream::Out, from.into()).expect("attached");
            yes(to.into())
        })
        .collect();
    thread::sleep(seconds);
    for rank in &mut ranks {
        rank.kill().expect("killed");
        rank.wait().expect("ended");
    }
    let summary = finish(logs, Duration::from_secs(60));
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
