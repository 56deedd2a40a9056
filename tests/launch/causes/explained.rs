//! `ranklaunch explain FOLDER` after `run`: the folder explains the end as the run did.

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Ended, Launcher, Role, executable, run_args};
use nix::sys::signal::Signal;
use serde_json::Value;

/// A job of engine `direct` whose ranks run this Python program, which needs no torch.
fn job(nproc: u32, program: &str) -> Ended {
    let launcher = Launcher::new(run_args("direct", nproc));
    let script = launcher.folder().join("train.py");
    let head = "import os, signal, sys, time, traceback\nrank = int(os.environ['RANK'])\n";
    std::fs::write(&script, format!("{head}{program}")).expect("written");
    launcher.args(["--".into(), script]).run()
}

/// The explanation of the folders of one job.
#[track_caller]
pub(super) fn explain_all(folders: &[&Path]) -> Value {
    let mut command = Command::new(executable());
    command.args(["explain", "--lang", "en", "--format", "json"]).args(folders);
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.as_str()), (Some(0), ""), "{folders:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn explain(folder: &Path) -> Value {
    explain_all(&[folder])
}

/// The id of the cause found in a folder, empty without one.
fn id(said: &Value) -> &str {
    said["cause"]["id"].as_str().unwrap_or_default()
}

fn notes(said: &Value) -> String {
    format!("{}{}", said["notes"], said["verdicts"])
}

fn attempt(ended: &Ended) -> PathBuf {
    ended.node_folder(0).join("attempt-0")
}

/// What `explain` prints about a folder.
fn explained_text(folder: &Path, lang: &str) -> String {
    let mut command = Command::new(executable());
    let output = command.args(["explain", "--lang", lang]).arg(folder).output().expect("it runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The verdict in the last closing block of a console.
fn verdict_of(console: &str) -> String {
    let (_, block) = console.rsplit_once("── ranklaunch: ").expect("a closing block");
    let lines = block.lines().take_while(|line| !line.starts_with("   logs: "));
    format!("── ranklaunch: {}\n", lines.collect::<Vec<_>>().join("\n"))
}

/// A rank that logs an exception, goes on, and ends as `end` says.
fn survivor(end: &str) -> String {
    format!(
        "def step():
    try:
        raise ValueError('a bad sample, skipped')
    except ValueError:
        traceback.print_exc()
step()
time.sleep(0.2)
for step in range(300):
    print(f'step {{step}}: loss 0.5', flush=True)
{end}
"
    )
}

/// Rank 0 ends as a victim of rank 1.
const VICTIM: &str = "
if rank == 1:
    open('raised', 'w').close()
    raise KeyError('the label of rank 1')
while not os.path.exists('raised'):
    time.sleep(0.01)
raise RuntimeError('[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:51514')
";

/// Rank 0 fails by itself when it is told to end because of rank 1.
const BOTH: &str = "
def told(number, frame):
    raise OSError(28, 'No space left on device')
signal.signal(signal.SIGTERM, told)
open(f'ready-{rank}', 'w').close()
while not os.path.exists('ready-0') or not os.path.exists('ready-1'):
    time.sleep(0.01)
if rank == 1:
    import no_such_package_of_anyone
while True:
    time.sleep(0.01)
";

#[test]
fn explain_repeats_the_verdict_of_the_run() {
    let survived = survivor("sys.exit(3)");
    let rows = [
        ("exception", 1, "raise ValueError('sample 17 has no label')", "user_exception"),
        (
            "oom",
            2,
            "raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')",
            "cuda_oom",
        ),
        (
            "sigsegv",
            2,
            "os.kill(os.getpid(), signal.SIGSEGV) if rank else time.sleep(60)",
            "worker_sigsegv",
        ),
        (
            "sigkill",
            2,
            "os.kill(os.getpid(), signal.SIGKILL) if rank else time.sleep(60)",
            "worker_sigkill",
        ),
        ("survived", 1, &survived, ""),
        ("silent", 2, "sys.exit(3) if rank else time.sleep(60)", ""),
        ("victim", 2, VICTIM, "user_exception"),
        ("both", 2, BOTH, "module_missing"),
    ];
    for (name, nproc, program, wanted) in rows {
        let ended = job(nproc, program).expect_nothing_left();
        let run = ended.run_json(0);
        let cause = &run["cause"];
        assert_eq!(cause["id"].as_str().unwrap_or_default(), wanted, "{name}: {}", ended.err);
        let node = ended.node_folder(0);
        let folders = [node.parent().expect("the run").to_owned(), node, attempt(&ended)];
        let verdict = verdict_of(&ended.err);
        for folder in folders {
            let said = explain(&folder);
            assert_eq!(format!("{}\n", said["verdicts"][0].as_str().expect("a text")), verdict);
            let text = explained_text(&folder, "en");
            assert!(text.starts_with(&verdict), "{name}: {verdict}\n{text}");
            let found = &said["cause"];
            assert_eq!(id(&said), wanted, "{name} in {}: {said:#}", folder.display());
            assert_eq!(said["failed"], true, "{name}: {said:#}");
            if wanted.is_empty() {
                let verdict = run["verdict"]["text"].as_str().expect("a text");
                assert!(notes(&said).contains(verdict), "{name}: {said:#}");
                continue;
            }
            assert_eq!(found["rank"], cause["rank"], "{name}: {found:#}\n{cause:#}");
            let log = cause["log"].as_str().expect("a log");
            let named = found["log"].as_str().expect("a log");
            if log.is_empty() {
                assert!(named.ends_with("node-0/run.json"), "{name}: {found:#}");
            } else {
                assert!(named.ends_with(&format!("attempt-0/{log}")), "{name}: {found:#}");
                assert_eq!(found["line"], cause["line"], "{name}: {found:#}");
            }
        }
    }
}

#[test]
fn stopped_run_is_explained_in_its_own_words() {
    for (signal, hint, hint_zh) in [
        (Signal::SIGTERM, "find where the signal came from", "请查明信号来源"),
        (Signal::SIGHUP, "nohup", "终端被关闭"),
    ] {
        let launcher = Launcher::new(run_args("direct", 2));
        let mut running = launcher.args(["--", "sh", "-c", "echo READY; exec sleep 600"]).start();
        running.says("READY", 2);
        running.signal(signal);
        let ended = running.wait().expect_code(128 + signal as i32).expect_nothing_left();
        let verdict = verdict_of(&ended.err);
        assert!(verdict.contains(hint), "{verdict}");
        let node = ended.node_folder(0);
        let text = explained_text(&node, "en");
        assert!(text.starts_with(&verdict) && !text.contains("job failed"), "{text}");
        let text = explained_text(&node, "zh");
        let first = format!("── ranklaunch: 收到外部信号 {}", signal.as_str());
        assert!(text.starts_with(&first) && text.contains(hint_zh), "{text}");
    }
}

/// Each attempt has its own verdict, and the run that of the last.
#[test]
fn attempts_are_explained_by_their_own_verdicts() {
    let script = "[ $RANKLAUNCH_ATTEMPT = 0 ] && exit 3; exit 4";
    let options = ["--max-restarts", "1", "--", "sh", "-c", script];
    let launcher = Launcher::new(run_args("direct", 1)).args(options);
    let ended = launcher.run().expect_code(4).expect_nothing_left();
    let node = ended.node_folder(0);
    for (folder, code) in
        [(node.clone(), 4), (node.join("attempt-0"), 3), (node.join("attempt-1"), 4)]
    {
        let text = explained_text(&folder, "en");
        let first = format!("── ranklaunch: rank 0 exited with code {code} after ");
        assert!(text.starts_with(&first), "{}: {text}", folder.display());
        assert!(ended.err.contains(text.lines().next().unwrap_or("-")), "{text}\n{}", ended.err);
    }
}

/// A killed agent writes no verdict, and a live one not yet.
#[test]
fn run_without_verdict_says_why() {
    let mut running = Launcher::new(run_args("direct", 1))
        .args(["--", "sh", "-c", "echo READY; exec sleep 600"])
        .start();
    running.says("READY", 1);
    let node = running.node_folder(0);
    assert!(
        explained_text(&node, "en").contains("verdict   none yet, since the run still goes on")
    );
    running.send(Role::Agent, Signal::SIGKILL);
    // Its folder is there as long as this.
    let _ended = running.wait().expect_code(137).expect_nothing_left();
    let text = explained_text(&node, "en");
    assert!(text.contains("ranklaunch itself was killed and could write no verdict"), "{text}");
    assert!(explained_text(&node, "zh").contains("ranklaunch 自身被杀死"));
}

/// What is read again never contradicts the verdict silently.
#[test]
fn contradiction_of_the_verdict_is_told() {
    let ended = job(1, "raise ValueError('sample 17')").expect_code(1);
    let node = ended.node_folder(0);
    let same = explained_text(&node, "en");
    assert!(same.contains("The logs, read again, show the same:"), "{same}");
    let mut run = ended.run_json(0);
    run["cause"]["id"] = "nccl_remote".into();
    std::fs::write(node.join("run.json"), run.to_string()).expect("written");
    let said = explain(&node);
    let words = "show user_exception, but the run named nccl_remote";
    assert_eq!(said["notes"].to_string().contains(words), id(&said) != "nccl_remote", "{said:#}");
    let text = explained_text(&node, "en");
    assert_eq!(text.contains(words), id(&said) != "nccl_remote", "{text}");
}

/// Rank 0 loses rank 1, whose shim has reported its end.
const GONE: &str = "
if rank == 1:
    with open('pid.new', 'w') as file:
        file.write(str(os.getppid()))
    os.rename('pid.new', 'pid')
    sys.exit(CODE)
while not os.path.exists('pid'):
    time.sleep(0.01)
while os.path.exists('/proc/' + open('pid').read()):
    time.sleep(0.01)
raise RuntimeError('Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:24211')
";

#[test]
fn rank_that_ended_early_is_named() {
    let ended = job(2, &GONE.replace("CODE", "0")).expect_code(1).expect_nothing_left();
    let run = ended.run_json(0);
    assert_eq!(run["cause"], Value::Null, "{run:#}");
    let hint = "rank 1 had ended with code 0 before";
    assert!(run["verdict"]["hint"].to_string().contains(hint), "{}", ended.err);
    assert!(ended.err.contains(hint), "{}", ended.err);
    let said = explain(&ended.node_folder(0));
    assert!(said["verdicts"].to_string().contains(hint), "{said:#}");
    assert_eq!((id(&said), &said["failed"]), ("", &Value::Bool(true)), "{said:#}");
    // The control: a rank that fails is the cause itself.
    let ended = job(2, &GONE.replace("CODE", "3")).expect_code(3).expect_nothing_left();
    assert!(!ended.err.contains("had ended with code 0"), "{}", ended.err);
}

#[test]
fn successful_or_stopped_run_has_no_cause() {
    let well = job(1, &survivor("sys.exit(0)")).expect_code(0);
    let said = explain(&well.node_folder(0));
    assert_eq!((id(&said), &said["failed"]), ("", &Value::Bool(false)), "{said:#}");
    assert!(notes(&said).contains("all ranks ended with code 0"), "{said:#}");
    // The control: the log itself, without the files beside it.
    assert_eq!(id(&explain(&attempt(&well).join("rank-00000.err"))), "user_exception");

    let stopped = "
def told(number, frame):
    raise KeyError('in the middle of a step')
signal.signal(signal.SIGTERM, told)
os.kill(int(os.environ['LAUNCHER']), signal.SIGTERM)
while True:
    time.sleep(0.01)
";
    let launcher = Launcher::new(run_args("direct", 1));
    let script = launcher.folder().join("train.py");
    std::fs::write(&script, format!("import os, signal, time\n{stopped}")).expect("written");
    let shell = "LAUNCHER=$$ exec \"$@\"";
    let mut way_in = Command::new("sh");
    way_in.args(["-c", shell, "sh"]);
    let words = run_args("direct", 1);
    let ended = Launcher::of(way_in, [executable()]).args(words).args(["--".into(), script]).run();
    assert_eq!(ended.run_json(0)["verdict"]["class"], "stopped", "{}", ended.err);
    let said = explain(&ended.node_folder(0));
    assert_eq!(id(&said), "", "{said:#}");
    assert!(notes(&said).contains("stopped.signal"), "{said:#}");
}

/// run.json matters: without a part of it, the answer changes.
#[test]
fn incomplete_folder_names_its_missing_part() {
    let ended = job(1, &survivor("sys.exit(3)")).expect_code(3);
    let (node, attempt) = (ended.node_folder(0), attempt(&ended));
    let file = node.join("run.json");
    let mut run = ended.run_json(0);
    assert_eq!(run["survived"][0]["id"], "user_exception", "{run:#}");
    assert_eq!(id(&explain(&node)), "");
    run["survived"] = Value::Array(Vec::new());
    std::fs::write(&file, run.to_string()).expect("written");
    assert_eq!(id(&explain(&node)), "user_exception");
    // The file is cut, no regular file, and missing.
    let said = |text: &str| {
        let said = explain(&node);
        assert!(said.to_string().contains(text), "{said:#}");
        said
    };
    std::fs::write(&file, &run.to_string()[..200]).expect("written");
    said("cut off or no JSON");
    for junk in ["[1, 2]", "7", "{\"attempt\": 0, \"outcome\": 3, \"verdict\": []}", "\0\u{1}"] {
        std::fs::write(&file, junk).expect("written");
        explain(&node);
    }
    std::fs::remove_file(&file).expect("removed");
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    said("no regular file");
    std::fs::remove_file(&file).expect("removed");
    said("run.json is missing");

    // The record replaces a log that is gone.
    let ended = job(2, "raise ValueError('sample 17') if rank else time.sleep(60)");
    let (node, attempt) = (ended.node_folder(0), {
        drop(attempt);
        self::attempt(&ended)
    });
    std::fs::remove_file(attempt.join("rank-00001.err")).expect("removed");
    let said = explain(&node);
    assert_eq!((id(&said), &said["cause"]["rank"]), ("user_exception", &1.into()), "{said:#}");
    assert!(said["cause"]["log"].as_str().is_some_and(|log| log.ends_with("run.json")), "{said:#}");
    std::fs::remove_dir_all(&attempt).expect("removed");
    assert_eq!(id(&explain(&node)), "user_exception");
}

/// A run that was killed itself has only a journal.
#[test]
fn journal_replaces_a_missing_run_json() {
    let killed = job(2, "os.kill(os.getpid(), signal.SIGKILL) if rank else time.sleep(60)");
    let well = job(1, &survivor("sys.exit(0)")).expect_code(0);
    for (ended, wanted) in [(&killed, "worker_sigkill"), (&well, "")] {
        let node = ended.node_folder(0);
        std::fs::remove_file(node.join("run.json")).expect("removed");
        let said = explain(&node);
        assert_eq!(id(&said), wanted, "{said:#}");
        assert!(notes(&said).contains("run.json is missing"), "{said:#}");
    }
    let journal = killed.node_folder(0).join("agent.jsonl");
    let bytes = std::fs::read(&journal).expect("a journal");
    assert_eq!(explain(&killed.node_folder(0))["cause"]["rank"], 1);
    // A journal that is cut in the middle of any line is read up to there.
    for keep in (0..bytes.len()).step_by(1 + bytes.len() / 16) {
        std::fs::write(&journal, &bytes[..keep]).expect("written");
        explain(&killed.node_folder(0));
    }
    std::fs::remove_file(&journal).expect("removed");
    assert_eq!(id(&explain(&killed.node_folder(0))), "");
    std::fs::remove_file(well.node_folder(0).join("agent.jsonl")).expect("removed");
    assert_eq!(id(&explain(&well.node_folder(0))), "user_exception");
}

/// A rank that works on has survived exceptions that some code caught. An exception that no code
/// caught may hold up its end.
#[test]
fn live_run_reports_only_uncaught_causes() {
    const WORKS: &str = "import threading
def work():
    open('working', 'w').close()
    while True:
        time.sleep(0.01)
threading.Thread(target=work).start()
";
    let caught = survivor(WORKS);
    let hangs = format!("{WORKS}raise ValueError('nobody catches this')\n");
    for (program, wanted) in [(caught, ""), (hangs, "user_exception")] {
        let launcher = Launcher::new(run_args("direct", 1));
        let script = launcher.folder().join("train.py");
        std::fs::write(&script, format!("import sys, time, traceback\n{program}"))
            .expect("written");
        let mut running = launcher.args(["--".into(), script]).start();
        let node = running.node_folder(0);
        running.waits("the traceback in its file", |running| {
            let log = std::fs::read_to_string(node.join("attempt-0/rank-00000.err"));
            running.folder().join("working").exists()
                && log.is_ok_and(|log| log.contains("ValueError: "))
        });
        let said = explain(&node);
        running.signal(Signal::SIGTERM);
        running.wait().expect_nothing_left();
        assert_eq!(id(&said), wanted, "{said:#}");
        assert!(notes(&said).contains("run.json is missing"), "{said:#}");
    }
}
