//! Hung jobs, and jobs that only look hung, with real torch.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use harness::{Ended, Launcher, Place, Running, executable, free_port, program, python, run_args};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use serde_json::{Value, json};

/// A job of four ranks, in which rank 2 never reaches the fourth step.
fn job(kind: &str, options: &[&str]) -> Launcher {
    let program = program("hang.py").into_os_string();
    job_of([program, kind.into(), "2".into(), "3".into()], options)
}

fn job_of(program: impl IntoIterator<Item = OsString>, options: &[&str]) -> Launcher {
    Launcher::new(words(program, options)).with_torch()
}

fn words(program: impl IntoIterator<Item = OsString>, options: &[&str]) -> Vec<OsString> {
    let mut args = run_args("direct", 4);
    args.extend(["--hang-after", "4s"].map(Into::into));
    args.extend(options.iter().map(Into::into));
    args.push("--".into());
    args.extend(program);
    args
}

/// The line of `hang.py` on which a kind hangs.
fn line(kind: &str) -> u64 {
    line_of("hang.py", kind)
}

fn line_of(name: &str, kind: &str) -> u64 {
    let text = std::fs::read_to_string(program(name)).expect("the program");
    let mark = format!("# the line: {kind}");
    let at = text.lines().position(|line| line.ends_with(&mark)).expect("marked");
    u64::try_from(at).expect("few") + 1
}

fn hangs(ended: &Ended) -> Vec<Value> {
    hangs_of(ended, 0)
}

fn hangs_of(ended: &Ended, node: u32) -> Vec<Value> {
    ended.run_json(node)["hang"].as_array().cloned().expect("a list")
}

/// The events of agent.jsonl with this message.
fn events(ended: &Ended, message: &str) -> Vec<Value> {
    let journal = std::fs::read_to_string(ended.node_folder(0).join("agent.jsonl"));
    let journal = journal.expect("a journal");
    let lines = journal.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.map(|line| line["fields"].clone()).filter(|of| of["message"] == message).collect()
}

#[test]
fn rank_that_blocks_all_is_named_with_line() {
    for (name, kind) in [("pipe", "never_entered"), ("lock", "deadlock"), ("stop", "stopped")] {
        let ended = job(name, &["--on-hang", "end"]).run().expect_code(91).expect_nothing_left();
        let found = hangs(&ended);
        let [hang] = found.as_slice() else { panic!("{name}: {found:?}\n{}", ended.err) };
        let culprit = &hang["culprits"][0];
        assert_eq!((&culprit["rank"], &culprit["node"]), (&json!(2), &json!(0)), "{hang}");
        assert_eq!(culprit["kind"], kind, "{hang}");
        assert_eq!(hang["waiting"], json!([{ "node": 0, "ranks": [0, 1, 3] }]), "{hang}");
        if ["pipe", "lock"].contains(&name) {
            let frame = culprit["frame"].as_str().unwrap_or_default();
            assert!(frame.ends_with(&format!("hang.py:{}", line(name))), "{hang}");
        }
        let text = culprit["text"].as_str().expect("a text");
        // The report has both languages.
        let page = super::reports::document(&ended.node_folder(0).join("report.html"));
        let findings = page["findings"].as_array().expect("findings");
        let stood = findings.iter().find(|one| one["kind"] == "hang").expect("the hang");
        for (lang, who) in [("en", "rank 2 (node 0)"), ("zh", "rank 2（节点 0）")] {
            let said = stood["text"][lang].as_str().unwrap_or_default();
            assert!(said.contains(who), "{stood:#}");
        }
        assert!(ended.err.contains(&format!("── ranklaunch: {text}")), "{text}\n{}", ended.err);
        let verdict = &ended.run_json(0)["verdict"];
        assert_eq!((&verdict["id"], &verdict["rank"]), (&json!("hang"), &json!(2)), "{verdict}");
        let mut explain = Command::new(executable());
        explain.args(["explain", "--lang", "en"]).arg(ended.node_folder(0));
        let said = explain.output().expect("it runs").stdout;
        let said = String::from_utf8_lossy(&said);
        // The output is no terminal, so lines are not folded.
        let note = said.lines().find(|line| line.contains("the job had stood still for"));
        assert!(note.is_some_and(|note| note.ends_with(text)), "{text}\n{said}");
    }
}

#[test]
fn culprit_below_a_shell_is_named() {
    let (python, program) = (python(), program("hang.py"));
    let line = format!("{} {} pipe 2 3; exit $?", python.display(), program.display());
    let job = job_of(["sh".into(), "-c".into(), line.into()], &["--on-hang", "end"]);
    let ended = job.run().expect_code(91).expect_nothing_left();
    let found = hangs(&ended);
    let [hang] = found.as_slice() else { panic!("{found:?}\n{}", ended.err) };
    let culprit = &hang["culprits"][0];
    assert_eq!(
        (&culprit["rank"], &culprit["kind"]),
        (&json!(2), &json!("never_entered")),
        "{hang}"
    );
    let frame = culprit["frame"].as_str().unwrap_or_default();
    assert!(frame.ends_with(&format!("hang.py:{}", self::line("pipe"))), "{hang}");
}

#[test]
fn gloo_without_records_is_judged_by_its_calls() {
    let older = program("older_torch");
    let judged = |options: &[&str]| {
        let options = [&["--on-hang", "end"], options].concat();
        let ended = job("barrier", &options).env("PYTHONPATH", &older).run();
        let ended = ended.expect_code(91).expect_nothing_left();
        let found = hangs(&ended);
        let [hang] = found.as_slice() else { panic!("{found:?}\n{}", ended.err) };
        hang.clone()
    };
    let hang = judged(&[]);
    let culprit = &hang["culprits"][0];
    let found = (&culprit["rank"], &culprit["kind"]);
    assert_eq!(found, (&json!(2), &json!("other_collective")), "{hang}");
    let frame = culprit["frame"].as_str().unwrap_or_default();
    assert!(frame.ends_with(&format!("hang.py:{}", line("barrier"))), "{hang}");
    let text = culprit["text"].as_str().expect("a text");
    assert!(
        text.contains("entered barrier where the others entered all_reduce [4] Float"),
        "{text}"
    );
    // Control: without the answers of the ranks, their calls are unknown.
    let hang = judged(&["--inject", "off"]);
    assert_ne!(hang["culprits"][0]["kind"], "other_collective", "{hang}");
}

/// A job of ranks that do not wait for each other.
fn locked(seconds: u32) -> Launcher {
    let program = program("locked.py").into_os_string();
    job_of([program, seconds.to_string().into()], &["--on-hang", "end"])
}

#[test]
fn uncontended_lock_released_in_time_is_no_hang() {
    // The lock is held for longer than a job may stand still.
    let ended = locked(6).run().expect_code(0).expect_nothing_left();
    assert_eq!(hangs(&ended), Vec::<Value>::new(), "{}", ended.err);
    // Control: the lock is never released.
    let ended = locked(0).run().expect_code(91).expect_nothing_left();
    let found = hangs(&ended);
    let [hang] = found.as_slice() else { panic!("{found:?}\n{}", ended.err) };
    assert_eq!(hang["culprits"][0]["kind"], "deadlock", "{hang}");
}

#[test]
fn reported_hang_does_not_end_the_job() {
    let mut running = job("stop", &[]).start();
    running.waits("the report", |running| running.err().contains("the job stands still"));
    let stopped = running.processes().into_iter().find(|one| {
        std::fs::read_to_string(format!("/proc/{}/stat", one.pid))
            .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")))
    });
    let pid = Pid::from_raw(stopped.expect("a stopped rank").pid);
    nix::sys::signal::kill(pid, Signal::SIGCONT).expect("continued");
    let ended = running.wait().expect_code(0).expect_nothing_left();
    assert_eq!(hangs(&ended).len(), 1, "{}", ended.err);
    assert!(ended.err.contains("goes on by itself"), "{}", ended.err);
}

/// Like `job`, with an argument that the culprit needs.
fn job_with(kind: &str, needs: impl Into<OsString>) -> Launcher {
    let words = ["2", "3", "1800"].map(OsString::from);
    let program = [program("hang.py").into_os_string(), kind.into()].into_iter().chain(words);
    job_of(program.chain([needs.into()]), &["--on-hang", "end"])
}

/// Stops every process of a job, including its launcher, as schedulers and paused containers do, and continues
/// them.
fn suspend(running: &Running, pause: Duration) {
    let all: Vec<i32> = running.processes().iter().map(|one| one.pid).collect();
    assert!(all.contains(&running.pid()), "the launcher");
    for signal in [Signal::SIGSTOP, Signal::SIGCONT] {
        for pid in &all {
            harness::send(*pid, signal);
        }
        if signal == Signal::SIGSTOP {
            std::thread::sleep(pause);
        }
    }
}

#[test]
fn unobserved_time_does_not_count_as_standstill() {
    const PAUSE: Duration = Duration::from_secs(30);
    let folder = tempfile::tempdir().expect("a folder");
    let go = folder.path().join("go");
    let mut running = job_with("worker", &go).start();
    running.waits("a worker", |running| {
        running
            .processes()
            .iter()
            .any(|one| one.argv.iter().any(|word| go == Path::new(word)) && one.argv.len() == 4)
    });
    suspend(&running, PAUSE);
    // The worker computes for longer than a job may stand still.
    let until = Instant::now() + Duration::from_secs(8);
    running.waits("more work", |_| Instant::now() > until);
    std::fs::write(&go, "").expect("written");
    let ended = running.wait().expect_code(0).expect_nothing_left();
    assert_eq!(hangs(&ended), Vec::<Value>::new(), "{}", ended.err);
    // Control: a standstill after the pause is found, and its reported time does not include the pause.
    let mut running = job("pipe", &["--on-hang", "end"]).start();
    running.waits("a rank that waits for the pipe", waits_for_pipe);
    suspend(&running, PAUSE);
    let ended = running.wait().expect_code(91).expect_nothing_left();
    let hang = &hangs(&ended)[0];
    assert_eq!(hang["culprits"][0]["rank"], 2, "{hang}");
    assert!(
        hang["after_s"].as_u64().is_some_and(|after| (4..PAUSE.as_secs()).contains(&after)),
        "{hang}"
    );
}

fn waits_for_pipe(running: &Running) -> bool {
    running.processes().iter().any(|one| {
        let wchan = std::fs::read_to_string(format!("/proc/{}/wchan", one.pid));
        wchan.is_ok_and(|name| name.contains("pipe"))
    })
}

#[test]
fn progress_between_two_looks_prevents_the_end() {
    // The job stands still for longer than 4 s, but no longer at the look 5 s later.
    let ended = job("nap", &["--on-hang", "end"]).run().expect_code(0).expect_nothing_left();
    assert_eq!(hangs(&ended), Vec::<Value>::new(), "{}", ended.err);
    // Control: a standstill that lasts ends the job at the second look.
    let ended = job("pipe", &["--on-hang", "end"]).run().expect_code(91).expect_nothing_left();
    let hang = &hangs(&ended)[0];
    assert!(hang["after_s"].as_u64().is_some_and(|after| after >= 9), "{hang}");
}

/// A server that sends this many bytes four times a second, for three times as long as a job may stand still.
fn server(bytes: usize) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("accepted");
        if bytes == 0 {
            // The client waits until the job ends.
            let _ = client.read(&mut [0]);
        }
        for _ in 0..48 {
            let _ = client.write_all(&vec![0; bytes]);
            std::thread::sleep(Duration::from_millis(250));
        }
    });
    port
}

#[test]
fn a_download_anywhere_in_a_rank_is_progress() {
    // The rates are 8 KiB and 4 MiB per second.
    for (kind, bytes) in [("thread", 2 << 10), ("child", 2 << 10), ("thread", 1 << 20)] {
        let ended = job_with(kind, server(bytes).to_string()).run().expect_code(0);
        assert_eq!(hangs(&ended), Vec::<Value>::new(), "{kind}: {}", ended.err);
    }
    // Control: the server sends nothing.
    for kind in ["thread", "child"] {
        let ended = job_with(kind, server(0).to_string()).run().expect_code(91);
        let hang = &hangs(&ended.expect_nothing_left())[0];
        assert_eq!(hang["culprits"][0]["rank"], 2, "{kind}: {hang}");
    }
}

#[test]
fn computing_or_unwatched_rank_is_not_called_hung() {
    let ended = job("none", &["--on-hang", "end"]).run().expect_code(0);
    assert_eq!(hangs(&ended), Vec::<Value>::new(), "{}", ended.err);
    // The computing rank is named, and named again when the wait has doubled. On a busy machine, a rank that still
    // imports torch is named too.
    let at = line("none");
    let named = |ended: &Ended| -> Vec<Value> {
        let computes = |event: &Value| {
            let frame = event["held_up"]["culprits"][0]["frame"].as_str().unwrap_or_default();
            frame.ends_with(&format!("hang.py:{at}"))
        };
        events(ended, "held_up").into_iter().filter(computes).collect()
    };
    let events = named(&ended);
    let after: Vec<u64> =
        events.iter().filter_map(|event| event["held_up"]["after_s"].as_u64()).collect();
    assert!(!after.is_empty() && after.windows(2).all(|two| two[1] >= 2 * two[0]), "{after:?}");
    let event = &events[0];
    let (culprit, waiting) = (&event["held_up"]["culprits"][0], &event["held_up"]["waiting"]);
    assert_eq!((&culprit["rank"], &culprit["kind"]), (&json!(2), &json!("slow")), "{event:#}");
    assert_eq!(*waiting, json!([{ "node": 0, "ranks": [0, 1, 3] }]), "{event:#}");
    let said =
        format!("rank 2 (node 0) computes: compute at hang.py:{at}; ranks 0-1, 3 wait for it");
    assert_eq!(ended.err.matches(&said).count(), after.len(), "{said}\n{}", ended.err);
    let over = self::events(&ended, "held_up_over");
    assert!(over.iter().any(|over| over["rank"] == 2), "{over:?}");
    // Control: all ranks compute, so no rank waits.
    let ended = job("all", &["--on-hang", "end"]).run().expect_code(0);
    assert_eq!(named(&ended), Vec::<Value>::new(), "{}", ended.err);
    // Control: the ranks hang as before, but detection is off.
    let mut running = job("pipe", &["--hang-after", "off"]).start();
    running.waits("a rank that waits for the pipe for long", waits_for_pipe);
    running.signal(Signal::SIGTERM);
    let ended = running.wait().expect_code(143);
    assert_eq!(hangs(&ended), Vec::<Value>::new());
}

/// Expects the culprit in `verdict` and `cause` of run.json, in the closing block and in the termination message.
#[track_caller]
fn expect_named(ended: &Ended, node: u32, message: &Path, (culprit, on): (u32, u32)) {
    let run = ended.run_json(node);
    let (verdict, cause) = (&run["verdict"], &run["cause"]);
    for said in [verdict, cause] {
        let named = (&said["id"], &said["rank"], &said["node"]);
        assert_eq!(named, (&json!("hang"), &json!(culprit), &json!(on)), "{run:#}\n{}", ended.err);
    }
    let found = &hangs_of(ended, node)[0]["culprits"][0];
    assert_eq!((&found["kind"], &found["text"]), (&json!("never_entered"), &cause["text"]));
    let frame = cause["frame"].as_str().unwrap_or_default();
    assert!(frame.contains(&format!("hang.py:{} wait_for_a_pipe", line("pipe"))), "{cause:#}");
    let victims: Vec<u32> = (0..4).filter(|rank| *rank != culprit).collect();
    assert_eq!(cause["victims"][0]["ranks"], json!(victims), "{cause:#}");
    let text = cause["text"].as_str().expect("a text");
    assert!(ended.err.contains(&format!("── ranklaunch: {text}")), "{}", ended.err);
    let message = std::fs::read_to_string(message).expect("a message");
    let message: Value = serde_json::from_str(&message).expect("JSON");
    assert_eq!((&message["cause"], &message["rank"]), (&json!("hang"), &json!(culprit)));
    assert!(!ended.err.contains("goes on by itself"), "{}", ended.err);
}

/// A file for the termination message.
fn message() -> tempfile::NamedTempFile {
    tempfile::NamedTempFile::new().expect("a file")
}

#[test]
fn rank_that_gave_up_waiting_is_no_cause() {
    let job = |after: &str, message: &Path| {
        let mut args = run_args("direct", 4);
        args.extend(["--hang-after", after, "--termination-log"].map(Into::into));
        args.extend([message.into(), "--".into(), program("hang.py").into_os_string()]);
        args.extend(["pipe", "2", "3", "30"].map(Into::into));
        Launcher::new(args).with_torch()
    };
    let file = message();
    let ended = job("8s", file.path()).run().expect_code(1).expect_nothing_left();
    expect_named(&ended, 0, file.path(), (2, 0));
    // Control: with detection off, only the ranks that gave up waiting are known.
    let ended = job("off", file.path()).run().expect_code(1);
    let run = ended.run_json(0);
    assert_eq!((&run["verdict"]["id"], &run["hang"]), (&json!("rank.exit"), &json!([])));
    assert_ne!(run["cause"]["id"], "hang", "{run:#}");
}

#[test]
fn all_nodes_name_the_rank_given_up_on() {
    let port = free_port();
    let files = [message(), message()];
    let mut nodes = Vec::new();
    for (node, file) in (0..).zip(&files) {
        let mut args = run_args("direct", 2);
        args.extend(["--hang-after", "8s", "--termination-log"].map(Into::into));
        args.extend([file.path().into(), "--".into(), program("hang.py").into_os_string()]);
        args.extend(["pipe", "3", "3", "30"].map(Into::into));
        nodes.push(Launcher::new(args).with_torch().node(node, 2, port).start());
    }
    let ended: Vec<Ended> = nodes.into_iter().map(|node| node.wait()).collect();
    for ((node, ended), file) in (0..).zip(&ended).zip(&files) {
        expect_named(ended, node, file.path(), (3, 1));
    }
    let mut codes: Vec<i32> = ended.iter().map(|ended| ended.code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [1, 143]);
}

#[test]
fn culprits_own_failure_after_hang_is_the_cause() {
    for (kind, error) in [("raise", "the batch is odd"), ("later", "the last batch is odd")] {
        let folder = tempfile::tempdir().expect("a folder");
        let fifo = folder.path().join("go");
        nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).expect("a fifo");
        let mut args = run_args("direct", 4);
        args.extend(["--hang-after", "4s", "--"].map(Into::into));
        args.extend([program("hang.py").into_os_string()]);
        args.extend([kind, "2", "3", "300"].map(Into::into));
        args.push(fifo.clone().into_os_string());
        let mut running = Launcher::new(args).with_torch().start();
        running.waits("the report", |running| running.err().contains("the job stands still"));
        std::fs::write(&fifo, "go").expect("a reader");
        let ended = running.wait().expect_code(1);
        let run = ended.run_json(0);
        assert_eq!(hangs(&ended).len(), 1, "{}", ended.err);
        assert_eq!(
            (&run["verdict"]["id"], &run["cause"]["rank"]),
            (&json!("rank.exit"), &json!(2))
        );
        let evidence = run["cause"]["evidence"].as_str().unwrap_or_default();
        assert!(evidence.contains(error), "{kind}: {run:#}");
    }
}

#[test]
fn unreadable_rank_reports_its_line_by_handler() {
    // The control has no handler.
    for (inject, expected) in [("auto", Some(line("hidden"))), ("off", None)] {
        // The job runs as an ordinary user, who may not inspect a process that hides itself either.
        let mut args = vec!["--bounding-set=-sys_ptrace".into(), executable().into()];
        let hidden = [program("hang.py").into(), "hidden".into(), "2".into(), "3".into()];
        args.extend(words(hidden, &["--on-hang", "end", "--inject", inject]));
        let running = Launcher::at(Place::Plain).with_torch().program(Path::new("setpriv"), &args);
        let ended = running.wait().expect_code(91).expect_nothing_left();
        let found = hangs(&ended);
        let [hang] = found.as_slice() else { panic!("{inject}: {found:?}\n{}", ended.err) };
        let culprit = &hang["culprits"][0];
        assert_eq!(culprit["rank"], 2, "{inject}: {hang:#}");
        let frame = culprit["frame"].as_str();
        match expected {
            Some(line) => assert!(
                frame.is_some_and(|frame| frame.ends_with(&format!("hang.py:{line}"))),
                "{hang:#}"
            ),
            None => assert_eq!(frame, None, "{hang:#}"),
        }
    }
}

#[test]
fn hang_starts_an_attempt_only_on_request() {
    let options = ["--on-hang", "restart", "--max-restarts", "1"];
    let ended = job("pipe", &options).run().expect_code(91).expect_nothing_left();
    assert_eq!(ended.err.matches("the job stands still").count(), 2, "{}", ended.err);
    let ended = job("pipe", &["--on-hang", "end", "--max-restarts", "1"]).run().expect_code(91);
    assert_eq!(ended.err.matches("the job stands still").count(), 1, "{}", ended.err);
    assert!(ended.err.contains("--on-hang end"), "{}", ended.err);
}

/// A job of so many ranks of `messages.py`, with the words after its name.
fn messages(ranks: u32, words: &[&str]) -> Launcher {
    let mut args = run_args("direct", ranks);
    args.extend(["--hang-after", "4s", "--on-hang", "end", "--"].map(Into::into));
    args.push(program("messages.py").into_os_string());
    args.extend(words.iter().map(Into::into));
    Launcher::new(args).with_torch()
}

/// The only hang of such a job.
fn hang_of_messages(ranks: u32, words: &[&str]) -> Value {
    let ended = messages(ranks, words).run().expect_code(91).expect_nothing_left();
    let found = hangs(&ended);
    let [hang] = found.as_slice() else { panic!("{words:?}: {found:?}\n{}", ended.err) };
    hang.clone()
}

/// The culprits of such a job, with their kinds and lines.
fn of_messages(ranks: u32, words: &[&str]) -> Vec<(Option<u64>, String, Option<u64>)> {
    let culprit = |one: &Value| {
        let line = one["frame"].as_str().and_then(|frame| frame.rsplit_once("messages.py:"));
        let line = line.and_then(|(_, line)| line.parse().ok());
        (one["rank"].as_u64(), one["kind"].as_str().unwrap_or_default().to_owned(), line)
    };
    let hang = hang_of_messages(ranks, words);
    hang["culprits"].as_array().expect("a list").iter().map(culprit).collect()
}

#[test]
fn messages_that_nobody_sends_are_a_deadlock() {
    let line = |kind| line_of("messages.py", kind);
    let both = |kind| (kind, [line(kind), line(kind)]);
    let sends = line("sends");
    let rows = ["receives", "operations", "batch", "threads"].map(both);
    for (kind, lines) in rows.into_iter().chain([("tags", [sends, sends + 2])]) {
        let deadlock = |rank: u64, line| (Some(rank), "deadlock".to_owned(), Some(line));
        let expected = [deadlock(0, lines[0]), deadlock(1, lines[1])];
        assert_eq!(of_messages(2, &[kind]), expected, "{kind}");
    }
}

#[test]
fn rank_that_sends_no_message_is_the_first_culprit() {
    let nap = line_of("messages.py", "nap");
    for (ranks, words, expected) in
        [(2, &["asleep"][..], 1), (4, &["mixed"], 3), (3, &["balanced", "100", "3"], 1)]
    {
        let culprits = of_messages(ranks, words);
        let first = Some((Some(expected), "never_entered".to_owned(), Some(nap)));
        assert_eq!(culprits.first().cloned(), first, "{words:?}: {culprits:?}");
    }
}

#[test]
fn sleeping_stages_of_a_pipeline_are_no_hang() {
    // 14 s each, in which no rank computes, prints or is in a collective.
    for (kind, steps) in [("pipeline", "6"), ("balanced", "18")] {
        let ended = messages(3, &[kind, steps, "-1"]).run().expect_code(0);
        assert_eq!(hangs(&ended), [Value::Null; 0], "{kind}: {}", ended.err);
    }
}

/// The control: the kernel holds what the link does not carry.
#[test]
fn messages_on_a_dead_link_accuse_no_rank() {
    for kind in ["sent", "answers", "reduce"] {
        assert_eq!(of_messages(2, &[kind]), [(None, "link".to_owned(), None)], "{kind}");
    }
}

/// Three ranks, the first of which answers like NCCL's RAS.
fn with_ras(hangs: &str, says: &str, enabled: &str) -> Running {
    let mut args = run_args("direct", 3);
    args.extend(["--hang-after", "4s", "--"].map(Into::into));
    args.push(program("ras.py").into_os_string());
    args.extend([hangs, says].map(Into::into));
    let address = format!("127.0.0.1:{}", free_port());
    let launcher = Launcher::new(args).with_torch().env("NCCL_RAS_ADDR", &address);
    let mut running = launcher.env("NCCL_RAS_ENABLE", enabled).start();
    running.waits("the report", |running| running.err().contains("the job stands still"));
    running
}

fn only_hang(running: Running) -> (Value, Ended) {
    running.signal(Signal::SIGTERM);
    let ended = running.wait().expect_code(143).expect_nothing_left();
    let found = hangs(&ended);
    let [hang] = found.as_slice() else { panic!("{found:?}\n{}", ended.err) };
    (hang.clone(), ended)
}

#[test]
fn nccl_ras_names_the_rank_that_is_behind() {
    let running = with_ras("alike", "2", "1");
    let output = running.folder().join("evidence");
    let dump = ["dump", &running.run_id(), "--output"];
    let dumped = Launcher::new(dump).args([&output]).run().expect_code(0);
    assert!(dumped.out.contains("node-N/ras.json"), "{}", dumped.out);
    let report = std::fs::read_to_string(output.join("node-0/ras.json")).expect("the report");
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["nccl_version"], "2.29.1", "the whole answer");
    let counters = std::fs::read_to_string(output.join("node-0/node.json")).expect("counters");
    let counters: Value = serde_json::from_str(&counters).expect("JSON");
    assert_eq!(counters["counters"]["ranks"].as_array().map(Vec::len), Some(3), "{counters:#}");
    let (hang, ended) = only_hang(running);
    let culprit = &hang["culprits"][0];
    assert_eq!(
        (&culprit["rank"], &culprit["kind"]),
        (&json!(2), &json!("never_entered")),
        "{hang:#}"
    );
    let frame = culprit["frame"].as_str().unwrap_or_default();
    assert!(frame.ends_with(&format!("ras.py:{}", line_of("ras.py", "alike"))), "{hang:#}");
    let sign = &hang["signs"][0];
    assert_eq!((&sign["kind"], &sign["ranks"]), (&json!("ras_behind"), &json!([2])), "{hang:#}");
    let text = "seen: NCCL counts 40 AllReduce of rank 2, of others 42";
    assert!(ended.err.contains(text), "{}", ended.err);
}

#[test]
fn nobody_is_named_without_a_nccl_ras_difference() {
    // The controls: RAS reports equal counts, or RAS must not be asked.
    for (says, enabled) in [("even", "1"), ("2", "0")] {
        let (hang, ended) = only_hang(with_ras("alike", says, enabled));
        let culprit = &hang["culprits"][0];
        assert_eq!(
            (&culprit["rank"], &culprit["kind"]),
            (&Value::Null, &json!("link")),
            "{hang:#}"
        );
        assert!(!hang.to_string().contains("ras_"), "{hang:#}");
        assert_eq!(ended.out.contains("RAS was asked"), enabled == "1", "{}", ended.out);
    }
    let (hang, _) = only_hang(with_ras("elsewhere", "2", "1"));
    assert_eq!(hang["culprits"][0]["rank"], 1, "{hang:#}");
    assert_eq!(hang["signs"][0]["kind"], "ras_behind", "{hang:#}");
}

/// A rank that waits for a GPU is in no collective, and NCCL keeps records where gloo keeps none.
#[test]
fn nccl_flight_recorder_names_the_absent_rank() {
    let job = |torch: &str, end: &str| {
        let program = program("nccl_recorded.py").into_os_string();
        job_of([program, torch.into(), end.into()], &["--on-hang", "end"])
    };
    for torch in ["2.11", "2.15"] {
        let ended = job(torch, "hangs").run().expect_code(91).expect_nothing_left();
        let found = hangs(&ended);
        let [hang] = found.as_slice() else { panic!("{torch}: {found:?}\n{}", ended.err) };
        let culprit = &hang["culprits"][0];
        assert_eq!(
            (&culprit["rank"], &culprit["kind"]),
            (&json!(2), &json!("never_entered")),
            "{torch}: {hang:#}"
        );
        assert_eq!(hang["waiting"], json!([{ "node": 0, "ranks": [0, 1, 3] }]), "{hang:#}");
        let at = format!("nccl_recorded.py:{}", line_of("nccl_recorded.py", "missing"));
        let named = format!("never entered all_reduce 5 of group default_pg: load_batch at {at}");
        let text = culprit["text"].as_str().unwrap_or_default();
        assert!(text.contains(&named), "{torch}: {hang:#}");
        // The control: a job that takes longer than any of its waits.
        let ended = job(torch, "ends").run().expect_code(0).expect_nothing_left();
        assert_eq!(hangs(&ended), [] as [Value; 0], "{torch}: {}", ended.err);
    }
}
