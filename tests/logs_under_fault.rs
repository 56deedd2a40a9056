//! Logs of real launches when things go wrong: what a rank wrote is in its file,
//! and no sink holds a rank up.

mod common;

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Ended, Launcher, executable, run_args, skipped, wait_until};

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
fn a_line_of_100_mb_is_whole_in_the_file_and_cut_on_the_console() {
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
    // The first to fail wrote all of it; the other may have been stopped before.
    assert!(lengths.contains(&30_000_000), "{lengths:?}");
}

#[test]
fn bytes_that_are_no_text_are_raw_in_the_file_and_escaped_on_the_console() {
    let script =
        "printf 'a\\000b\\377c\\033[31mred\\n'; printf '10%%\\r20%%\\r30%%\\n'; printf tail";
    let ended = shell(2, &[], script).run().expect_code(0);
    let written = log(&ended, "rank-00000.out");
    assert_eq!(written, b"a\0b\xffc\x1b[31mred\n10%\r20%\r30%\ntail");
    assert!(!ended.out.contains('\0') && !ended.out.contains('\u{fffd}'), "{:?}", ended.out);
    assert!(ended.out.contains("[r0] tail\n"), "{:?}", ended.out);
    assert!(ended.out.contains("30%"), "{:?}", ended.out);
}

/// Nobody reads the console; 40 MB do not fit any pipe.
#[test]
fn a_console_that_is_never_read_holds_no_rank() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = "head -c 40000000 /dev/zero | tr '\\0' '\\n'; : > done";
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
    assert_eq!(std::fs::metadata(run).expect("the log").len(), 40_000_000);
    drop((out, err));

    // The control: the same script on the same kind of pipe stays in its write.
    std::fs::remove_file(folder.path().join("done")).expect("it was made");
    let (out, out_write) = unread();
    let mut control = Command::new("sh");
    control.args(["-c", script]).current_dir(folder.path()).stdout(OwnedFd::from(out_write));
    let mut blocked = control.spawn().expect("it starts");
    drop(control);
    let pid = i32::try_from(blocked.id()).expect("a pid");
    let deadline = std::time::Instant::now() + Duration::from_secs(2);
    while std::time::Instant::now() < deadline {
        assert!(blocked.try_wait().expect("wait works").is_none(), "pid {pid} was not held up");
        std::thread::sleep(Duration::from_millis(50));
    }
    // Without a reader its writers end by SIGPIPE, and the shell with them.
    drop(out);
    wait_until("the control's end", || blocked.try_wait().expect("wait works"));
}

/// A log folder of 4 MB, in a mount namespace of its own.
#[test]
fn a_full_disk_holds_no_rank_and_is_said() {
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
    assert!(ended.folder.path().join("done").exists(), "{}", ended.err);
    assert!(ended.err.contains("No space left on device"), "{}", ended.err);
}
