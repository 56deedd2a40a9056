//! Logs of real launches under faults: the output of a rank reaches its file, and no sink blocks a
//! rank.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use harness::{Ended, Launcher, executable, run_args, skipped, wait_until};

fn shell(nproc: u32, options: &[&str], script: &str) -> Launcher {
    let mut args = run_args("direct", nproc);
    args.extend(options.iter().map(Into::into));
    args.extend(["--".into(), "sh".into(), "-c".into(), script.into()]);
    Launcher::new(args)
}

fn log(ended: &Ended, name: &str) -> Vec<u8> {
    let path = ended.node_folder(0).join("attempt-0").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn sixty_four_ranks_lose_and_tear_nothing() {
    let script = "i=0; while [ $i -lt 100 ]; do echo \"rank $RANK line $i end\"; i=$((i+1)); done";
    let ended = shell(64, &[], script).run().expect_code(0).expect_nothing_left();
    let wanted = |rank: usize| {
        (0..100).map(|line| format!("rank {rank} line {line} end\n")).collect::<String>()
    };
    for rank in 0..64 {
        let written = log(&ended, &format!("rank-{rank:05}.out"));
        assert_eq!(String::from_utf8_lossy(&written), wanted(rank));
    }
    let mut next = [0; 64];
    for line in ended.out.lines() {
        let (prefix, rest) = line.split_once("] ").expect("every line has its prefix");
        let rank: usize = prefix.trim_start_matches("[r").parse().expect("a rank of two digits");
        assert_eq!(rest, format!("rank {rank} line {} end", next[rank]));
        next[rank] += 1;
    }
    assert_eq!(next, [100; 64]);
}

#[test]
fn line_of_100_mb_is_cut_on_console() {
    let script = "head -c 100000000 /dev/zero | tr '\\0' x; echo; echo after";
    let options = ["--log-cap-rank", "2GiB", "--console", "all"];
    let ended = shell(2, &options, script).run().expect_code(0).expect_nothing_left();
    for rank in 0..2 {
        let written = log(&ended, &format!("rank-{rank:05}.out"));
        assert_eq!(written.len(), 100_000_000 + "\nafter\n".len());
        assert!(written.ends_with(b"x\nafter\n"));
    }
    let longest = ended.out.lines().map(str::len).max().unwrap_or_default();
    assert!(longest <= 16 * 1024 + "[r0] ".len(), "{longest}");
}

#[test]
fn a_burst_at_exit_reaches_the_file() {
    // The rank is gone before a reader can have taken more than its pipe holds.
    let script = "head -c 30000000 /dev/zero | tr '\\0' '\\n' & wait; exit 3";
    let ended = shell(2, &["--console", "none"], script).run().expect_code(3).expect_nothing_left();
    let lengths: Vec<usize> =
        (0..2).map(|rank| log(&ended, &format!("rank-{rank:05}.out")).len()).collect();
    // The first rank to fail wrote everything; the other rank may have been stopped before.
    assert!(lengths.contains(&30_000_000), "{lengths:?}");
}

#[test]
fn binary_output_is_escaped_only_on_the_console() {
    let script =
        "printf 'a\\000b\\377c\\033[31mred\\n'; printf '10%%\\r20%%\\r30%%\\n'; printf tail";
    let ended = shell(2, &[], script).run().expect_code(0);
    let written = log(&ended, "rank-00000.out");
    assert_eq!(written, b"a\0b\xffc\x1b[31mred\n10%\r20%\r30%\ntail");
    assert!(!ended.out.contains('\0') && !ended.out.contains('\u{fffd}'), "{:?}", ended.out);
    assert!(ended.out.contains("[r0] tail\n"), "{:?}", ended.out);
    assert!(ended.out.contains("30%"), "{:?}", ended.out);
}

fn is_full(pipe: &impl AsFd) -> bool {
    let mut takes_more = [PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)];
    poll(&mut takes_more, PollTimeout::ZERO).expect("a pipe") == 0
}

/// The console is not read. 6 MB exceed its pipe and its queue (1 MiB each), and fit the queue of
/// the file (8 MiB), which loses nothing on a machine of any speed. The lines are long because each
/// line costs time, and a busy machine would not reach the end.
#[test]
fn unread_console_blocks_no_rank() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = "yes $(printf %0999d 0) | head -c 6000000; : > done";
    let unread = || std::io::pipe().expect("a pipe");

    let (out, out_write) = unread();
    let (err, err_write) = unread();
    let mut command = Command::new(executable());
    command
        .args(run_args("direct", 1))
        .args(["--log-cap-rank", "1GiB", "--", "sh", "-c", script])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(OwnedFd::from(out_write))
        .stderr(OwnedFd::from(err_write));
    let mut launcher = command.spawn().expect("it starts");
    drop(command);
    let status = wait_until("the end", || launcher.try_wait().expect("wait works"));
    assert_eq!(status.code(), Some(0));
    assert!(folder.path().join("done").exists());
    let run = folder.path().join("ranklaunch-logs/latest/node-0/attempt-0/rank-00000.out");
    assert_eq!(std::fs::metadata(run).expect("the log").len(), 6_000_000);
    let record = folder.path().join("ranklaunch-logs/latest/node-0/run.json");
    let record = std::fs::read_to_string(record).expect("run.json");
    let record: serde_json::Value = serde_json::from_str(&record).expect("JSON");
    let dropped = &record["logs"]["owners"]["rank 0"]["dropped_console_lines"];
    let mut pipe = String::new();
    { &out }.read_to_string(&mut pipe).expect("read");
    let line = "0".repeat(999);
    let shown = pipe.lines().filter(|shown| shown.ends_with(&line)).count() as u64;
    assert_eq!(dropped.as_u64().map(|dropped| dropped + shown), Some(6000), "{shown} are shown");
    drop((out, err));

    // The control: the same script blocks in its write to the same kind of pipe.
    std::fs::remove_file(folder.path().join("done")).expect("it was made");
    let (out, out_write) = unread();
    let spare = out_write.try_clone().expect("another end");
    let mut control = Command::new("sh");
    control.args(["-c", script]).current_dir(folder.path()).stdout(OwnedFd::from(out_write));
    let mut blocked = control.spawn().expect("it starts");
    drop(control);
    wait_until("a full pipe", || is_full(&spare).then_some(()));
    assert!(blocked.try_wait().expect("wait works").is_none(), "it was not held up");
    // Without a reader, the writers end by SIGPIPE, and the shell with them.
    drop(out);
    wait_until("the control's end", || blocked.try_wait().expect("wait works"));
}

/// A log folder of 4 MB, in a mount namespace of its own.
#[test]
fn full_disk_is_reported_and_blocks_no_rank() {
    let mounts = "mkdir logs && mount -t tmpfs -o size=4m none logs && exec \"$0\" \"$@\"";
    let allowed =
        Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|it| it.success());
    if !allowed {
        skipped("no mount namespace can be made here");
        return;
    }
    let mut args: Vec<std::ffi::OsString> =
        ["-m", "sh", "-c", mounts].into_iter().map(Into::into).collect();
    args.push(executable().into_os_string());
    args.extend(run_args("direct", 1));
    args.extend(["--log-dir", "logs", "--console", "none", "--", "sh", "-c"].map(Into::into));
    args.push("head -c 20000000 /dev/zero | tr '\\0' '\\n'; : > done".into());
    let ended = Launcher::of(Command::new("unshare"), args).run().expect_code(0);
    assert!(ended.folder().join("done").exists(), "{}", ended.err);
    assert!(ended.err.contains("No space left on device"), "{}", ended.err);
    assert_eq!(ended.err.matches("cannot be written").count(), 1, "said once: {}", ended.err);
}

/// Without the launcher, a rank writes to a pipe, and a limit on file sizes does not apply.
#[test]
fn file_size_limit_counts_as_a_full_disk() {
    let limited = "ulimit -f 100; exec \"$0\" \"$@\"";
    let mut args: Vec<std::ffi::OsString> = ["-c", limited].into_iter().map(Into::into).collect();
    args.push(executable().into_os_string());
    args.extend(run_args("direct", 2));
    let script = "head -c 300000 /dev/zero | tr '\\0' '\\n'; echo FINISHED >&2; \
                  trap - XFSZ; head -c 300000 /dev/zero > file-$RANK; echo code $? >&2";
    args.extend(["--console", "errors", "--", "sh", "-c", script].map(Into::into));
    let ended = Launcher::of(Command::new("sh"), args).run().expect_code(0).expect_nothing_left();
    assert_eq!(ended.err.matches("FINISHED").count(), 2, "{}", ended.err);
    assert!(ended.err.contains("cannot be written: File too large"), "{}", ended.err);
    // The ranks have the original action of the signal: 128 + SIGXFSZ.
    assert_eq!(ended.err.matches("code 153").count(), 2, "{}", ended.err);
    let dropped = &run_json(&ended)["logs"]["owners"]["rank 0"]["dropped_file_bytes"];
    assert!(dropped.as_u64().is_some_and(|bytes| bytes > 150_000), "{dropped}");
}

fn run_json(ended: &Ended) -> serde_json::Value {
    let path = ended.node_folder(0).join("run.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{error}"));
    serde_json::from_str(&text).expect("run.json")
}

/// Replaces rank 0's log file by a FIFO, which stands for a disk as slow as the FIFO's reader. The
/// pattern is expanded each time, since the rank may start before its file exists. The FIFO replaces
/// the file in one step, so that a file always exists.
const SLOW: &str = "log='ranklaunch-logs/run-*/node-0/attempt-0/rank-00000.out'
    echo begin; until [ -s $log ]; do sleep 0.05; done
    mkfifo slow; sleep 1.1; mv slow $log; echo made; : > made; until [ -e go ]; do sleep 0.05; done
    ";

fn slow_file(folder: &Path) -> PathBuf {
    let runs = folder.join("ranklaunch-logs");
    wait_until("the slow file", || folder.join("made").exists().then_some(()));
    let run = std::fs::read_link(runs.join("latest")).expect("the run");
    runs.join(run).join("node-0/attempt-0/rank-00000.out")
}

#[test]
fn slow_disk_is_awaited_while_it_makes_progress() {
    // 6 MB at 1 MB/s: longer than any fixed pause, and never 5 s without a byte.
    let script = format!("{SLOW} head -c 6000000 /dev/zero | tr '\\0' x; echo LAST WORDS; exit 3");
    let job = shell(1, &["--console", "none", "--termination-log", "message"], &script).start();
    let file = slow_file(job.folder());
    let folder = job.folder().to_owned();
    std::fs::write(folder.join("go"), "").expect("written");
    let reader = std::thread::spawn(move || {
        let mut file = File::open(file).expect("opened");
        let mut all = Vec::new();
        let mut piece = vec![0; 50_000];
        let mut said_before_the_end = false;
        loop {
            let read = file.read(&mut piece).expect("read");
            if read == 0 {
                return (all, said_before_the_end);
            }
            all.extend_from_slice(&piece[..read]);
            said_before_the_end |= all.len() < 5_000_000 && folder.join("message").exists();
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let ended = job.wait().expect_code(3).expect_nothing_left();
    let (all, said_before_the_end) = reader.join().expect("read");
    assert!(all.ends_with(b"xLAST WORDS\n"), "{} bytes", all.len());
    assert!(all.len() > 6_000_000, "{} bytes", all.len());
    assert!(said_before_the_end, "the termination message does not wait for the disk");
    let run = run_json(&ended);
    assert_eq!(run["logs"]["owners"]["rank 0"]["dropped_file_bytes"], 0, "{}", run["logs"]);
    assert!(!ended.err.contains("not complete"), "{}", ended.err);
}

/// Neither the ranks nor the disk ever finish: the closing block is printed anyway, and
/// everything ends within the grace period.
#[test]
fn hung_disk_loses_no_last_words() {
    for grace in ["2s", "5s"] {
        let writes = "while :; do head -c 100000 /dev/zero; sleep 0.1; done";
        let script = format!("{SLOW} trap '' TERM; echo READY >&2; {writes}");
        let options = ["--grace", grace, "--console", "errors", "--termination-log", "message"];
        let job = shell(1, &options, &script).start();
        let file = slow_file(job.folder());
        // The FIFO is held open and never read, so it takes 64 KiB and nothing more.
        let disk = File::options().read(true).write(true).open(file).expect("opened");
        std::fs::write(job.folder().join("go"), "").expect("written");
        wait_until("the rank's last words", || job.err().contains("READY").then_some(()));
        wait_until("a disk that hangs", || is_full(&disk).then_some(()));
        job.signal(Signal::SIGTERM);
        let ended = job.wait().expect_code(143).expect_nothing_left_in(grace);
        // After the grace the guard would have taken over, with another verdict.
        let ended = ended.expect_id("stopped.signal");
        let message = std::fs::read_to_string(ended.folder().join("message"));
        assert!(message.is_ok_and(|text| text.contains("stopped.signal")), "{grace}");
        let run = run_json(&ended);
        let dropped = &run["logs"]["owners"]["rank 0"]["dropped_file_bytes"];
        let some = dropped.as_u64().is_some_and(|bytes| bytes > 0);
        assert!(some, "{grace}: {}", run["logs"]);
        drop(disk);
    }
}

#[test]
fn local_engine_files_are_removed_despite_killed_agent() {
    let local = tempfile::tempdir().expect("a folder");
    let left = || {
        let entries = std::fs::read_dir(local.path()).expect("read").flatten();
        entries.filter(|it| it.file_name().to_string_lossy().starts_with("ranklaunch-")).count()
    };
    let mut job =
        shell(1, &[], "echo READY; exec sleep 300").env("TMPDIR", local.path().as_os_str()).start();
    job.says("READY", 1);
    assert!(left() > 0, "the control: it is there while the job runs");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(job.agent()), Signal::SIGKILL)
        .expect("killed");
    let ended = job.wait();
    assert_eq!((ended.code, left()), (137, 0), "{}", ended.err);
}

#[test]
fn closing_block_repeats_no_terminal_controls() {
    let script = "[ $RANK = 0 ] || exec sleep 60
        printf 'a\\033]0;owned\\007b\\033[2Jc\\000d\\033[8m\\n' >&2; exit 3";
    let ended = shell(2, &[], script).run().expect_code(3).expect_nothing_left();
    let (_, block) = ended.err.split_once("── last").expect("the closing block");
    let line = r"a\x1b]0;owned\x07b\x1b[2Jc\x00d";
    assert!(block.contains(line), "{block:?}");
    let raw = ended.err.replace("\x1b[8m\x1b[0m", "");
    assert!(!raw.contains(['\x1b', '\0', '\x07']), "{raw:?}");
    // The control: the rank did write these bytes.
    assert!(log(&ended, "rank-00000.err").starts_with(b"a\x1b]0;owned\x07"));
}

#[test]
fn removed_log_folder_is_recreated_and_reported() {
    let script = "echo before; until [ -e go ]; do sleep 0.05; done; sleep 1.1; echo after";
    let job = shell(2, &["--console", "none"], script).start();
    let runs = job.folder().join("ranklaunch-logs");
    let first = || {
        let run = std::fs::read_link(runs.join("latest")).ok()?;
        let attempt = runs.join(run).join("node-0/attempt-0");
        let is_written =
            |file: &str| std::fs::metadata(attempt.join(file)).is_ok_and(|it| it.len() == 7);
        ["rank-00000.out", "rank-00001.out"].into_iter().all(is_written).then_some(())
    };
    wait_until("the first line of both", first);
    std::fs::remove_dir_all(&runs).expect("removed");
    std::fs::write(job.folder().join("go"), "").expect("written");
    let ended = job.wait().expect_code(0).expect_nothing_left();
    assert_eq!(ended.err.matches("were removed or cut while the job ran").count(), 1);
    let found = std::fs::read_dir(&runs).expect("made again").flatten().next().expect("the run");
    let node = found.path().join("node-0");
    let held = std::fs::read_to_string(node.join("attempt-0/rank-00000.out")).expect("the log");
    assert!(held.starts_with("[ranklaunch] 7 bytes") && held.ends_with("after\n"), "{held}");
    let run = std::fs::read_to_string(node.join("run.json")).expect("run.json");
    let run: serde_json::Value = serde_json::from_str(&run).expect("JSON");
    assert_eq!(run["logs"]["owners"]["rank 0"]["removed_file_bytes"], 7);
}

#[test]
fn unusable_log_folder_is_reported_once() {
    let said = |more: &[&str]| {
        let options = [&["--log-dir", "/dev/null/logs"], more].concat();
        let ended = shell(1, &options, "echo hello").run().expect_code(0);
        assert_eq!(ended.err.matches("log folder /dev/null/logs cannot be used").count(), 1);
        ended.err
    };
    let err = said(&[]);
    assert_eq!(err.matches("/dev/null/logs").count(), 1, "{err}");
    assert!(!err.contains("disk.logs"), "{err}");
    // The control: the check did see the folder.
    let err = said(&["--severity", "disk.logs=warn"]);
    assert!(err.contains("no file can be written in /dev/null/logs"), "{err}");
}
