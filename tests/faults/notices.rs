//! Notices before a stop: a file that a platform touches, a signal to the launcher, on one of several nodes.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use harness::{Ended, Launcher, Running, free_port, run_args};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// Saves at the signals that it handles, and ends; reports each signal. HANDLES lists their names; ENDS is the number
/// of the rank's seconds if nothing comes.
const RANK: &str = "\
import os, signal, sys, time
rank, came = os.environ['RANK'], []
def save(number, frame):
    print('GOT', signal.Signals(number).name, rank, flush=True)
    came.append(number)
for name in os.environ.get('HANDLES', '').split():
    signal.signal(getattr(signal, name), save)
print('READY', rank, flush=True)
end = time.monotonic() + float(os.environ.get('ENDS', '300'))
while not came and time.monotonic() < end:
    time.sleep(0.01)
if came:
    print('NOTICE', open(os.environ['RANKLAUNCH_NOTICE_FILE']).read(), flush=True)
    time.sleep(float(os.environ.get('SAVES', '0.2')))
    print('SAVED', rank, flush=True)
sys.exit(int(os.environ.get('CODE', '0')))
";

/// The launcher of two ranks, with the file of its notice beside it.
fn launcher(options: &[&str]) -> Launcher {
    let launcher = Launcher::new(run_args("direct", 2));
    let file = format!("file:{}", notice_file(launcher.folder()));
    launcher.args(["--notice", &file]).args(options)
}

fn notice_file(folder: &Path) -> String {
    folder.join("notice").display().to_string()
}

fn begun(launcher: Launcher) -> Running {
    let mut running = launcher.args(["--", "python3", "-c", RANK]).start();
    running.says("READY", 2);
    running
}

/// Gives the notice, whose deadline comes after this time.
fn notice(running: &Running, after: Duration) {
    let deadline = time::OffsetDateTime::from(SystemTime::now() + after);
    let deadline = deadline.format(&time::format_description::well_known::Rfc3339);
    let deadline = deadline.expect("a time");
    let text = json!({ "deadline": deadline, "reason": "maintenance" }).to_string();
    let (new, path) = (running.folder().join("new"), notice_file(running.folder()));
    std::fs::write(&new, text).expect("it is written");
    std::fs::rename(new, path).expect("it is renamed");
}

const SOON: Duration = Duration::from_secs(60);

/// Every rank has saved after `signal` came once, and the launcher told of the stop.
fn saved(ended: Ended, node: u32, signal: &str) -> Ended {
    let ended = ended.expect_code(143).expect_nothing_left();
    for rank in [2 * node, 2 * node + 1] {
        assert_eq!(ended.out.matches(&format!("GOT {signal} {rank}")).count(), 1, "{}", ended.out);
        assert!(ended.out.contains(&format!("SAVED {rank}")), "{}", ended.out);
    }
    let run = ended.run_json(node);
    assert_eq!(run["verdict"]["id"], "stopped.notice", "{run:#}");
    assert!(run["verdict"]["text"].to_string().contains("maintenance"), "{run:#}");
    assert!(run["notice"]["reason"].to_string().contains("maintenance"), "{run:#}");
    ended
}

#[test]
fn ranks_that_handle_the_signal_save_before_the_deadline() {
    for (handles, options, signal) in [
        ("SIGTERM", &[][..], "SIGTERM"),
        ("SIGTERM SIGUSR1", &["--notice-signal", "USR1"][..], "SIGUSR1"),
        // A program that does not handle the signal gets TERM.
        ("SIGTERM", &["--notice-signal", "USR1"], "SIGTERM"),
    ] {
        let running = begun(launcher(options).env("HANDLES", handles));
        let sent = Instant::now();
        notice(&running, SOON);
        let ended = saved(running.wait(), 0, signal);
        assert!(sent.elapsed() < SOON / 2, "it waited for the deadline");
        let told = ended.out.lines().find_map(|line| line.split_once("NOTICE "));
        let told: Value = serde_json::from_str(told.expect("a notice").1).expect("JSON");
        assert_eq!(told["source"], format!("file:{}", notice_file(ended.folder())));
        assert!(told["deadline"].is_string() && told["reason"].is_string(), "{told}");
    }
}

/// A rank without a handler would only lose its time: it is left alone, and ends as it would have.
#[test]
fn rank_without_a_handler_is_left_alone() {
    let mut running = begun(launcher(&[]).env("ENDS", "15"));
    notice(&running, SOON);
    running
        .waits("the launcher tells of it", |seen| seen.err().contains("no rank handles SIGTERM"));
    let ended = running.wait().expect_code(0).expect_nothing_left();
    assert!(!ended.out.contains("GOT"), "{}", ended.out);
}

/// Control: the platform's own signal ends such a rank at once, and the hint names the notice.
#[test]
fn control_stop_signal_after_a_notice_names_it() {
    let mut running = begun(launcher(&[]));
    notice(&running, SOON);
    running.waits("the notice is told", |seen| seen.err().contains("no rank handles SIGTERM"));
    running.signal(Signal::SIGTERM);
    let ended = running.wait().expect_code(143).expect_nothing_left();
    assert!(!ended.out.contains("SAVED"), "{}", ended.out);
    let run = ended.run_json(0);
    assert_eq!(run["verdict"]["id"], "stopped.signal");
    assert!(run["verdict"]["hint"].to_string().contains("maintenance"), "{run:#}");
}

/// The lead before a deadline that is far away; then the platform comes earlier than it said.
#[test]
fn platform_that_does_not_wait_shortens_the_stop() {
    let options = ["--grace", "4s", "--notice-lead", "1h"];
    let launcher = launcher(&options).env("HANDLES", "SIGTERM").env("SAVES", "300");
    let script = launcher.folder().join("slow.py");
    std::fs::write(&script, RANK).expect("it is written");
    let mut running = launcher.args(["--", "python3"]).args([&script]).start();
    running.says("READY", 2);
    notice(&running, Duration::from_secs(600));
    running.says("GOT", 2);
    let sent = Instant::now();
    running.signal(Signal::SIGTERM);
    let ended = running.wait().expect_code(143).expect_nothing_left();
    assert!(sent.elapsed() < Duration::from_secs(30), "{:?}\n{}", sent.elapsed(), ended.err);
    assert!(ended.err.contains("SIGTERM received: the ranks have 4 s"), "{}", ended.err);
    // A rank that does not save in time is told where it was.
    assert!(ended.err.contains("slow.py:"), "{}", ended.err);
}

/// A rank that saves by itself and ends with a code of its own leaves the others the time to do so.
#[test]
fn rank_that_ends_after_a_notice_does_not_end_the_save_of_another() {
    let script = "import os, sys, time\nrank, path = os.environ['RANK'], os.environ['RANKLAUNCH_NOTICE_FILE']\n\
        print('READY', rank, flush=True)\n\
        while not os.path.exists(path): time.sleep(0.01)\n\
        time.sleep(2 * int(rank))\nprint('SAVED', rank, flush=True)\nsys.exit(3)";
    let mut running = launcher(&["--grace", "20s"]).args(["--", "python3", "-c", script]).start();
    running.says("READY", 2);
    notice(&running, SOON);
    let ended = running.wait().expect_code(3).expect_nothing_left();
    assert_eq!(ended.out.matches("SAVED").count(), 2, "{}", ended.out);
    // Control: without a notice the failure of one rank stops the others at once.
    let script = "import os, sys, time\ntime.sleep(0 if os.environ['RANK'] == '0' else 2)\n\
        print('SAVED', flush=True)\nsys.exit(3)";
    let ended = launcher(&[]).args(["--", "python3", "-c", script]).run().expect_code(3);
    assert_eq!(ended.out.matches("SAVED").count(), 1, "{}", ended.out);
}

/// The clocks of a platform and of the node differ: a time that is over is none, and the save has the grace period.
#[test]
fn deadline_that_is_over_does_not_end_the_save() {
    let launcher = launcher(&["--grace", "20s"]).env("HANDLES", "SIGTERM").env("SAVES", "5");
    let running = begun(launcher);
    let past = time::OffsetDateTime::from(SystemTime::now() - Duration::from_secs(1));
    let past = past.format(&time::format_description::well_known::Rfc3339).expect("a time");
    let text = json!({ "deadline": past, "reason": "maintenance" }).to_string();
    std::fs::write(notice_file(running.folder()), text).expect("it is written");
    saved(running.wait(), 0, "SIGTERM");
}

/// Whatever is in the file, it is a notice.
#[test]
fn any_content_of_the_file_is_a_notice() {
    let deep = format!("{}1{}", "[".repeat(126), "]".repeat(126));
    for content in [deep.as_bytes(), "[".repeat(200_000).as_bytes(), b"\xff\0{", b""] {
        let running = begun(launcher(&[]).env("HANDLES", "SIGTERM"));
        std::fs::write(notice_file(running.folder()), content).expect("it is written");
        let ended = running.wait().expect_code(143).expect_nothing_left();
        assert_eq!(ended.out.matches("SAVED").count(), 2, "{}", ended.out);
    }
}

/// The signals of a person count during the save, too.
#[test]
fn second_interrupt_ends_the_save_at_once() {
    let launcher = launcher(&["--grace", "60s", "--notice-lead", "1h"]);
    let mut running = begun(launcher.env("HANDLES", "SIGTERM SIGINT").env("SAVES", "300"));
    notice(&running, Duration::from_secs(600));
    running.says("GOT", 2);
    let sent = Instant::now();
    running.signal(Signal::SIGINT);
    running
        .waits("the first one", |seen| seen.err().contains("the ranks have 60 s to end; a second"));
    // Two within a second are one key press.
    std::thread::sleep(Duration::from_millis(1100));
    running.signal(Signal::SIGINT);
    let ended = running.wait().expect_code(143).expect_nothing_left();
    assert!(sent.elapsed() < Duration::from_secs(30), "{:?}\n{}", sent.elapsed(), ended.err);
    assert!(ended.err.contains("second SIGINT received"), "{}", ended.err);
    assert!(!ended.out.contains("SAVED"), "{}", ended.out);
}

/// As [`RANK`], with a save that needs all ranks: those that handle nothing take part when they are asked by another one.
const TOGETHER: &str = "\
import os, signal, time
rank, shared, came = os.environ['RANK'], os.environ['SHARED'], []
if rank in os.environ['HANDLES'].split():
    signal.signal(signal.SIGTERM, lambda *_: came.append(1))
print('READY', rank, flush=True)
there = lambda name: os.path.exists(shared + '/' + name)
put = lambda name: open(shared + '/' + name, 'w').close()
while not (came or there('asked')):
    time.sleep(0.01)
put('asked')
time.sleep(0.5)
put(rank)
while not all(there(str(other)) for other in range(int(os.environ['WORLD_SIZE']))):
    time.sleep(0.01)
# The one that was asked ends first.
time.sleep(0.2 if came else 2)
print('SAVED', rank, flush=True)
";

/// A save is a collective: a rank that handles nothing is needed for it, on this node and on another.
#[test]
fn rank_that_handles_nothing_can_help_the_others_to_save() {
    for (nodes, handles) in [(1, "0"), (1, "1"), (2, "0"), (2, "3"), (2, "0 1")] {
        let (port, shared) = (free_port(), tempfile::tempdir().expect("a folder"));
        let begin = |node| {
            let launcher = launcher(&[]).env("HANDLES", handles).env("SHARED", shared.path());
            let launcher = if nodes == 1 { launcher } else { launcher.node(node, nodes, port) };
            launcher.args(["--", "python3", "-c", TOGETHER]).start()
        };
        let mut all: Vec<Running> = (0..nodes).map(begin).collect();
        for node in &mut all {
            node.says("READY", 2);
        }
        notice(&all[0], SOON);
        for (node, ended) in (0..).zip(all.into_iter().map(Running::wait)) {
            let ended = ended.expect_code(143).expect_id("stopped.notice").expect_nothing_left();
            for rank in [2 * node, 2 * node + 1] {
                assert!(ended.out.contains(&format!("SAVED {rank}")), "{handles}: {}", ended.err);
            }
        }
    }
}

/// Control: a rank that only waits gets TERM when those that were asked have ended, and the job ends before the deadline.
#[test]
fn rank_that_never_ends_is_stopped_after_the_others() {
    let script = "import os, signal, sys, time\n\
        if os.environ['RANK'] == '0': signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n\
        print('READY', flush=True)\n\
        time.sleep(300)";
    let mut running = launcher(&["--grace", "2s"]).args(["--", "python3", "-c", script]).start();
    running.says("READY", 2);
    let sent = Instant::now();
    notice(&running, SOON);
    let ended = running.wait().expect_code(143).expect_nothing_left();
    let took = sent.elapsed();
    assert!(took > Duration::from_secs(2) && took < SOON / 2, "{took:?}: {}", ended.err);
    assert!(ended.err.contains("rank 1 ended with signal SIGTERM"), "{}", ended.err);
}

/// No second signal comes while a rank saves, however long it takes within its time.
#[test]
fn save_is_not_disturbed() {
    let options = ["--notice-signal", "USR1"];
    let launcher = launcher(&options).env("HANDLES", "SIGUSR1 SIGTERM").env("SAVES", "10");
    let running = begun(launcher);
    notice(&running, Duration::from_secs(14));
    saved(running.wait(), 0, "SIGUSR1");
}

/// A wrapper that passes nothing on dies of the signal, and the rank below it gets it.
#[test]
fn rank_below_a_program_that_waits_for_it_is_signalled() {
    let script = "import subprocess, sys\n\
        sys.exit(subprocess.call(['python3', '-c', sys.argv[1]]))";
    let launcher = launcher(&[]).env("HANDLES", "SIGTERM");
    let mut running = launcher.args(["--", "python3", "-c", script, RANK]).start();
    running.says("READY", 2);
    notice(&running, SOON);
    saved(running.wait(), 0, "SIGTERM");
}

/// Control: a rank that handles nothing waits for programs now and then, and one of them may handle the signal.
#[test]
fn program_that_a_rank_runs_for_a_while_is_not_the_rank() {
    let script = "import subprocess, time\n\
        print('READY', flush=True)\n\
        time.sleep(5)\n\
        subprocess.call(['sh', '-c', 'trap : TERM; sleep 2; exit 0'])\n\
        print('OVER', flush=True)";
    let mut running = launcher(&[]).args(["--", "python3", "-c", script]).start();
    running.says("READY", 2);
    notice(&running, SOON);
    let ended = running.wait().expect_code(0).expect_nothing_left();
    assert_eq!(ended.out.matches("OVER").count(), 2, "{}", ended.err);
}

#[test]
fn earlier_deadline_shortens_the_stop() {
    let launcher = launcher(&["--notice-lead", "1h"]).env("HANDLES", "SIGTERM").env("SAVES", "300");
    let mut running = begun(launcher);
    notice(&running, Duration::from_secs(600));
    running.says("GOT", 2);
    let sent = Instant::now();
    notice(&running, Duration::from_secs(5));
    let ended = running.wait().expect_code(143).expect_nothing_left();
    assert!(sent.elapsed() < Duration::from_secs(60), "{:?}", sent.elapsed());
    assert_eq!(ended.out.matches("GOT").count(), 2, "{}", ended.out);
}

#[test]
fn signal_waits_for_the_lead() {
    let options = ["--grace", "1s", "--notice-lead", "2s"];
    let mut running = begun(launcher(&options).env("HANDLES", "SIGTERM"));
    let sent = Instant::now();
    notice(&running, Duration::from_secs(6));
    running.says("GOT", 2);
    let waited = sent.elapsed();
    assert!(waited > Duration::from_secs(3) && waited < Duration::from_secs(6), "{waited:?}");
    saved(running.wait(), 0, "SIGTERM");
}

#[test]
fn nothing_starts_again_after_a_notice() {
    let restarts = ["--max-restarts", "3"];
    let mut running = begun(launcher(&restarts).env("ENDS", "3").env("CODE", "1"));
    notice(&running, SOON);
    running.waits("the notice is told", |seen| seen.err().contains("maintenance"));
    let ended = running.wait().expect_code(1).expect_nothing_left();
    assert!(ended.err.contains("not started again after a notice"), "{}", ended.err);
    assert_eq!(ended.out.matches("READY").count(), 2, "{}", ended.out);
}

#[test]
fn notice_of_one_node_reaches_the_ranks_of_all() {
    for told in [0, 1] {
        let port = free_port();
        let mut nodes: Vec<Running> = (0..2)
            .map(|node| {
                let launcher = launcher(&[]).env("HANDLES", "SIGTERM").node(node, 2, port);
                launcher.args(["--", "python3", "-c", RANK]).start()
            })
            .collect();
        for node in &mut nodes {
            node.says("READY", 2);
        }
        notice(&nodes[told], SOON);
        for (node, ended) in (0..).zip(nodes.into_iter().map(Running::wait)) {
            let ended = saved(ended, node, "SIGTERM");
            let said = format!("notice on node {told}");
            assert!(ended.err.contains(&said), "{}", ended.err);
        }
    }
}

#[test]
fn nothing_begins_after_a_notice() {
    // Its other node never comes.
    let launcher = launcher(&[]).node(0, 2, free_port());
    let mut running = launcher.args(["--", "python3", "-c", RANK]).start();
    running.waits("it waits for the other node", |seen| seen.err().contains("node 1"));
    notice(&running, SOON);
    let ended = running.wait().expect_code(143).expect_id("stopped.notice").expect_nothing_left();
    assert!(!ended.out.contains("READY"), "{}", ended.out);
}

/// The other nodes do not wait for one that is to end.
#[test]
fn notice_while_the_nodes_meet_reaches_those_that_are_there() {
    for told in [0, 1] {
        let port = free_port();
        let mut nodes: Vec<Running> = (0..2)
            .map(|node| {
                launcher(&[]).node(node, 3, port).args(["--", "python3", "-c", RANK]).start()
            })
            .collect();
        nodes[0].waits("it waits for the last node", |seen| seen.err().contains("node 2"));
        notice(&nodes[told], SOON);
        for (node, ended) in nodes.into_iter().map(Running::wait).enumerate() {
            let ended = ended.expect_nothing_left();
            assert!(ended.err.contains("maintenance"), "node {node}: {}", ended.err);
            assert!(!ended.out.contains("READY"), "{}", ended.out);
            ended.expect_code(143).expect_id("stopped.notice");
        }
    }
}

#[test]
fn signal_can_be_a_notice() {
    let launcher = Launcher::new(run_args("direct", 2)).args(["--notice", "signal:USR1"]);
    // The end of the job's time is far beyond the lead, and the signal asks for the save now.
    let end = SystemTime::now() + Duration::from_secs(3000);
    let end = end.duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_secs().to_string();
    let launcher = launcher.env("HANDLES", "SIGTERM SIGUSR1").env("SLURM_JOB_END_TIME", end);
    let running = begun(launcher);
    let sent = Instant::now();
    running.signal(Signal::SIGUSR1);
    let ended = running.wait().expect_code(143).expect_nothing_left();
    assert!(sent.elapsed() < SOON, "{:?}", sent.elapsed());
    // Control: without `--notice signal:USR1` the ranks would get USR1 itself.
    assert_eq!(ended.out.matches("GOT SIGTERM").count(), 2, "{}", ended.out);
    assert!(!ended.out.contains("GOT SIGUSR1"), "{}", ended.out);
    assert_eq!(ended.run_json(0)["verdict"]["id"], "stopped.notice");
}
