//! `ranklaunch logs`: the output of all ranks, in the order in which they wrote.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use harness::{Ended, Running, executable, run_args, skipped, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{asked, shell, two_nodes};

/// The ranks write a line in turn, twenty times. A line carries the time at which it was read, so the next line is
/// written when this one is in its file.
const IN_TURN: &str = "
i=0; while [ $i -lt 20 ]; do
  while [ \"$(cat turn 2>/dev/null || echo 0)\" != $((i * 2 + RANK)) ]; do sleep 0.002; done
  line=\"line $((i * 2 + RANK))\"
  echo \"$line\"
  until grep -qsx \"$line\" ranklaunch-logs/latest/node-0/attempt-0/rank-0000$RANK.out; do sleep 0.002; done
  echo $((i * 2 + RANK + 1)) > turn.new && mv turn.new turn
  i=$((i + 1))
done";

fn run_folder(ended: &Ended) -> String {
    ended.node_folder(0).parent().expect("a run").display().to_string()
}

/// The texts behind the prefixes.
fn lines(out: &str) -> Vec<&str> {
    out.lines().map(|line| line.split_once("] ").map_or(line, |(_, text)| text)).collect()
}

#[test]
fn folder_shows_its_newest_run_despite_running_jobs() {
    let ended = shell(1, &[], "echo earlier").run().expect_code(0).expect_nothing_left();
    let logs = ended.folder().join("ranklaunch-logs").display().to_string();
    let jobs = [(); 2].map(|()| shell(1, &[], "echo READY; exec sleep 600").start());
    let jobs = jobs.map(|mut job| {
        job.says("READY", 1);
        job
    });
    assert_eq!(asked(&["logs", "--log-dir", &logs]).expect_code(0).out, "earlier\n");
    // The control: without a folder, one of the jobs has to be named.
    let several = asked(&["logs"]).expect_code(64).expect_id("stacks.job");
    assert!(several.err.contains("jobs run here"), "{}", several.err);
    for job in jobs {
        job.signal(Signal::SIGTERM);
        job.wait().expect_code(143).expect_nothing_left();
    }
}

#[test]
fn folder_without_utf8_name_keeps_its_logs() {
    let root = tempfile::tempdir().expect("a folder");
    let folder = root.path().join(OsStr::from_bytes(b"b\xffd"));
    std::fs::create_dir(&folder).expect("made");
    let mut command = Command::new(executable());
    harness::without_platform(&mut command);
    command.args(run_args("direct", 1)).args(["--", "sh", "-c", "echo hello"]);
    let ran = command.current_dir(&folder).env_remove("RANKLAUNCH_LOG_DIR").output().expect("runs");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && !said.contains("internal error"), "{said}");
    assert!(folder.join("ranklaunch-logs/latest/node-0/run.json").is_file(), "{said}");
    assert_eq!(asked_in(&folder, &["logs", "--log-dir", "ranklaunch-logs"]), "hello\n");
    let listed: Value =
        serde_json::from_str(&asked_in(&folder, &["ps", "--all", "--format", "json"]))
            .expect("JSON");
    assert_eq!(listed["ended"][0]["exit_code"], 0, "{listed}");
}

/// `ranklaunch ARGS…` in English, called in this folder.
fn asked_in(folder: &Path, args: &[&str]) -> String {
    let mut command = Command::new(executable());
    harness::without_platform(&mut command);
    command.args(args).env("RANKLAUNCH_LANG", "en").current_dir(folder);
    let output = command.output().expect("it runs");
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

#[test]
fn commands_prefer_the_job_of_their_folder() {
    let jobs = ["one", "two"].map(|word| {
        let mut job = shell(1, &[], &format!("echo READY {word}; exec sleep 600")).start();
        job.says("READY", 1);
        (word, job)
    });
    for (word, job) in &jobs {
        let (folder, run) = (job.folder(), job.run_id());
        let elsewhere = folder.join("elsewhere");
        std::fs::create_dir(&elsewhere).expect("a folder");
        assert_eq!(asked_in(folder, &["logs"]), format!("READY {word}\n"));
        assert!(asked_in(folder, &["stacks"]).contains(&format!("run {run}")), "{run}");
        let dumped = asked_in(folder, &["dump"]);
        assert!(dumped.contains(&format!("ranklaunch-dump-{run}")), "{dumped}");
        let shown: Value =
            serde_json::from_str(&asked_in(folder, &["ps", "--format", "json"])).expect("JSON");
        let first = &shown["jobs"][0];
        assert_eq!((&first["run_id"], &first["here"]), (&run.as_str().into(), &true.into()));
        let place = folder.canonicalize().expect("it is there").display().to_string();
        assert_eq!((&first["program"], &first["folder"]), (&"sh".into(), &place.as_str().into()));
        assert!(first["owner"].is_string() && first["elapsed_s"].is_u64(), "{first:#}");
        let text = asked_in(folder, &["ps"]);
        let line = format!(
            "program sh, user {}, folder {place} (this one), for ",
            first["owner"].as_str().expect("a user")
        );
        assert!(text.contains(&line), "{line}\n{text}");
        // The control: in no job's folder, one of them has to be named.
        let several = asked_in(&elsewhere, &["stacks"]);
        for words in ["jobs run here, none of them in this folder", &run, &place, "as RUN"] {
            assert!(several.contains(words), "{words}: {several}");
        }
    }
    for (_, job) in jobs {
        job.signal(Signal::SIGTERM);
        job.wait().expect_code(143).expect_nothing_left();
    }
}

#[test]
fn lines_of_all_ranks_are_ordered_by_time() {
    let ended = shell(2, &[], IN_TURN).run().expect_code(0).expect_nothing_left();
    let folder = run_folder(&ended);
    let expected: Vec<String> = (0..40).map(|number| format!("line {number}")).collect();
    let shown = asked(&["logs", &folder]).expect_code(0);
    assert_eq!(lines(&shown.out), expected, "{}", shown.out);
    assert!(shown.out.starts_with("[r0] line 0\n[r1] line 1\n"), "{}", shown.out);

    let one = asked(&["logs", &folder, "--rank", "1", "--grep", "line [13]$"]).expect_code(0);
    assert_eq!(one.out, "[r1] line 1\n[r1] line 3\n");
    let timed = asked(&["logs", &folder, "--timestamps", "--rank", "0"]).expect_code(0);
    let times: Vec<&str> = timed.out.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(times.len(), 20);
    assert!(times.is_sorted() && times[0].ends_with('Z'), "{times:?}");
    let middle = times[10];
    let later = asked(&["logs", &folder, "--rank", "0", "--since", middle]).expect_code(0);
    // Times have milliseconds, and another line may have the same time.
    assert!((9..=11).contains(&later.out.lines().count()), "{middle}: {}", later.out);
    assert_eq!(asked(&["logs", &folder, "--since", "0s"]).expect_code(0).out, "");

    // The control: without its index, the order is that of the files.
    std::fs::remove_file(Path::new(&folder).join("node-0/attempt-0/output.index")).expect("there");
    let by_file = asked(&["logs", &folder]).expect_code(0);
    let evens = (0..20).map(|number| format!("line {}", number * 2));
    let odds = (0..20).map(|number| format!("line {}", number * 2 + 1));
    assert_eq!(lines(&by_file.out), evens.chain(odds).collect::<Vec<_>>());
}

#[test]
fn invalid_option_value_is_refused_with_an_example() {
    for (args, id, words) in [
        (["--rank", "x"], "logs.value", "--rank 0,4-7"),
        (["--since", "noon"], "logs.value", "--since 10m"),
        (["--grep", "("], "logs.value", "unclosed group"),
    ] {
        let refused = asked(&["logs", "--log-dir", "/nowhere", args[0], args[1]]);
        let refused = refused.expect_code(64).expect_id(id);
        assert!(refused.err.contains(words), "{}", refused.err);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let empty = folder.path().display().to_string();
    asked(&["logs", &empty]).expect_code(64).expect_id("logs.unknown");
    let unknown = asked(&["logs", "no-such-run", "--log-dir", &empty]).expect_code(64);
    assert!(unknown.err.contains("ranklaunch ps --all"), "{}", unknown.err);
}

/// Progress bars, a last line without an end, and output beyond the cap.
#[test]
fn unusual_output_is_shown_in_readable_form() {
    let script = "printf 'a\\r50%%\\r100%%\\nx\\033[2Jy\\n\\377\\n'; printf 'no end'";
    let ended = shell(1, &[], script).run().expect_code(0);
    let shown = asked(&["logs", &run_folder(&ended)]).expect_code(0).out;
    assert_eq!(shown, "100%\nx\\x1b[2Jy\n\\xff\nno end\n");

    let script = "i=0; while [ $i -lt 20000 ]; do echo \"number $i\"; i=$((i+1)); done";
    let ended = shell(1, &["--log-cap-rank", "64KiB"], script).run().expect_code(0);
    let shown = asked(&["logs", &run_folder(&ended)]).expect_code(0).out;
    let numbers: Vec<u32> =
        shown.lines().filter_map(|line| line.strip_prefix("number ")?.parse().ok()).collect();
    assert!(numbers.is_sorted() && numbers.first() == Some(&0), "{:?}", numbers.first());
    assert_eq!(numbers.last(), Some(&19_999));
    let gap = shown.find("[ranklaunch] the first").expect("it is told what is missing");
    let (before, after) = shown.split_at(gap);
    assert!(before.ends_with('\n') && before.lines().count() > 100 && after.lines().count() > 100);
}

/// Both nodes write. The folder of the second node is hidden from the reader, so its output is read over the job's
/// own connections.
#[test]
fn output_of_all_nodes_is_followed_until_end() {
    let script = "echo READY $RANK; n=0
        while [ ! -e stop ]; do n=$((n+1)); echo \"rank $RANK says $n\"; sleep 0.05; done";
    let mut nodes = two_nodes(script);
    for node in &mut nodes {
        node.says("says 3", 1);
    }
    let run = nodes[0].run_id();
    let hidden = nodes[1].folder().display().to_string();
    let Some(mut follower) = hiding(&hidden, &["logs", &run, "-f"]) else {
        return skipped("no mount namespace for a hidden folder");
    };
    let mut out = follower.stdout.take().expect("piped");
    let mut seen = String::new();
    wait_until("lines of both nodes", || {
        let mut buffer = [0; 4096];
        let read = out.read(&mut buffer).expect("read");
        seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
        let both = ["[r0] rank 0 says 20\n", "[r1] rank 1 says 20\n"];
        both.iter().all(|line| seen.contains(line)).then_some(())
    });
    for node in &nodes {
        std::fs::write(node.folder().join("stop"), "").expect("written");
    }
    out.read_to_string(&mut seen).expect("to its end");
    assert!(follower.wait().expect("it ends").success());
    for rank in 0..2 {
        let said = |number: u32| format!("[r{rank}] rank {rank} says {number}\n");
        let mut from = 0;
        for number in 1..=20 {
            let at = seen[from..].find(&said(number)).unwrap_or_else(|| panic!("{number}: {seen}"));
            from += at;
        }
        assert_eq!(seen.matches(&said(7)).count(), 1, "no line comes twice");
    }
    assert!(!seen.contains("\n\n"));
    for node in nodes {
        node.wait().expect_code(0).expect_nothing_left();
    }
}

/// Starts ranklaunch where `folder` is empty, in the same network.
fn hiding(folder: &str, args: &[&str]) -> Option<std::process::Child> {
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh", folder]);
        command
    };
    let mount = "mount -t tmpfs none \"$1\"";
    if !unshare(mount).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return None;
    }
    let mut command = unshare(&format!("{mount} && shift && exec \"$@\""));
    command.arg(executable()).args(args).env("RANKLAUNCH_LANG", "en").stdout(Stdio::piped());
    command.spawn().ok()
}

/// Memory use does not depend on the size of the logs.
#[test]
fn memory_use_is_independent_of_log_size() {
    let script =
        "yes \"rank $RANK writes a line of some length, again and again\" | head -c 120000000";
    let options = ["--console", "none", "--log-cap-rank", "1GiB"];
    let ended = shell(2, &options, script).run().expect_code(0);
    let mut logs = Command::new(executable())
        .args(["logs", &run_folder(&ended)])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut out = logs.stdout.take().expect("piped");
    let (mut buffer, mut read) = (vec![0; 1 << 20], 0);
    while read < 200_000_000 {
        let count = out.read(&mut buffer).expect("read");
        assert!(count > 0, "only {read} bytes");
        read += count;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", logs.id())).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(peak < 40_000, "{peak} kB for {read} bytes");
    // A reader that leaves early is no error.
    drop(out);
    let status = logs.wait().expect("it ends");
    assert!(status.success(), "{status}");
}

fn follower(of: &[&str]) -> std::process::Child {
    let mut command = Command::new(executable());
    command.args(["logs", "--follow"]).args(of).stdout(Stdio::piped());
    command.spawn().expect("it runs")
}

/// Another job runs beside it.
#[test]
fn live_job_is_followed_by_its_folders() {
    let script = "echo READY $RANK; sleep 600";
    let mut jobs = [(); 2].map(|()| shell(1, &[], script).start());
    for job in &mut jobs {
        job.says("READY", 1);
    }
    let [job, other] = jobs;
    let logs = job.folder().join("ranklaunch-logs");
    let run = logs.join("latest").canonicalize().expect("the run");
    let launcher = run.join("node-0");
    let [logs, run, launcher] = [logs, run, launcher].map(|it| it.display().to_string());
    let ways: [&[&str]; 4] = [&["--log-dir", &logs], &[&logs], &[&run], &[&launcher]];
    let mut followers = ways.map(follower);
    for follower in &mut followers {
        let mut seen = vec![0; "READY 0\n".len()];
        follower.stdout.as_mut().expect("piped").read_exact(&mut seen).expect("it follows");
        assert_eq!(String::from_utf8_lossy(&seen), "READY 0\n");
        assert!(follower.try_wait().expect("asked").is_none(), "it goes on");
    }
    job.signal(Signal::SIGTERM);
    // Its folder is there until the followers have ended.
    let _ended = job.wait().expect_code(143).expect_nothing_left();
    for mut follower in followers {
        assert!(follower.wait().expect("it ends").success());
    }
    other.signal(Signal::SIGTERM);
    other.wait().expect_code(143).expect_nothing_left();
}

/// The job ends by a signal while it is followed from the beginning.
#[test]
fn following_ends_with_the_job_and_changes_nothing() {
    let mut job: Running = shell(2, &[], "echo READY $RANK; sleep 600").start();
    job.says("READY", 2);
    let run = job.run_id();
    // A follower that is killed stops nothing.
    let mut killed = follower(&[&run]);
    wait_until("it reads", || {
        let mut one = [0];
        killed.stdout.as_mut()?.read(&mut one).ok().filter(|read| *read > 0)
    });
    killed.kill().expect("killed");
    killed.wait().expect("reaped");
    let mut follower = follower(&[&run]);
    let mut out = follower.stdout.take().expect("piped");
    let mut seen = vec![0; "[r0] READY 0\n[r1] READY 1\n".len()];
    out.read_exact(&mut seen).expect("it follows");
    job.signal(Signal::SIGTERM);
    let ended = job.ends_within(Duration::from_secs(60));
    ended.expect_code(143).expect_nothing_left();
    out.read_to_end(&mut seen).expect("read");
    let seen = String::from_utf8_lossy(&seen);
    assert!(follower.wait().expect("it ends").success());
    let mut lines: Vec<&str> = seen.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[r0] READY 0", "[r1] READY 1"]);
}

/// A line whose middle is at the end of a file and whose end is in the next one.
#[test]
fn line_split_over_files_is_shown_as_one() {
    // The last part is longer, and shorter, than what is read at once.
    for length in [340_000, 319_588] {
        let script = format!("head -c {length} /dev/zero | tr '\\0' x; echo; echo behind");
        let ended = shell(1, &["--log-cap-rank", "1MiB"], &script).run().expect_code(0);
        let attempt = ended.node_folder(0).join("attempt-0");
        assert!(attempt.join("rank-00000.out.00002").exists(), "the line has three parts");
        let shown = asked(&["logs", &run_folder(&ended)]).expect_code(0).out;
        let lines: Vec<&str> = shown.lines().collect();
        let [line, last] = lines.as_slice() else { panic!("{} lines", lines.len()) };
        let shown = line.bytes().filter(|byte| *byte == b'x').count();
        let left_out = length - shown;
        assert_eq!((shown, *last), (256 << 10, "behind"), "{length}");
        assert!(line.contains(&left_out.to_string()), "{left_out}");
    }
}
