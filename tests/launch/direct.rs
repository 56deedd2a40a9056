//! Real launches with the engine `direct`: every kind of end gives the right code and leaves
//! nothing behind.

use harness::{Launcher, free_port, program, run_args};
use nix::sys::signal::Signal;

fn direct(nproc: u32, what: &str) -> Launcher {
    Launcher::ranks("direct", nproc, &[what])
}

#[test]
fn one_node_runs_and_says_who_it_is() {
    let ended = direct(2, "succeed").run().expect_code(0).expect_nothing_left();
    assert!(ended.out.contains("[r0] rank 0 of 2, local 0, 127.0.0.1:"), "{}", ended.out);
    assert!(ended.out.contains("[r1] rank 1 of 2, local 1, 127.0.0.1:"), "{}", ended.out);
    let run =
        std::fs::read_to_string(ended.node_folder(0).join("run.json")).expect("run.json is there");
    let run: serde_json::Value = serde_json::from_str(&run).expect("run.json is JSON");
    assert_eq!((&run["exit_code"], &run["plan"]["world_size"]), (&0.into(), &2.into()), "{run:#}");
    let log = ended.node_folder(0).join("attempt-0/rank-00001.out");
    assert!(std::fs::read_to_string(log).expect("the log is there").starts_with("rank 1 of 2"));
}

#[test]
fn shell_line_secret_is_written_to_no_file() {
    let mut args = run_args("direct", 1);
    args.extend(["--".into(), "bash".into(), "-c".into()]);
    args.push("HF_TOKEN=hunter2 sh -c 'echo ${#HF_TOKEN} letters'".into());
    let ended = Launcher::new(args).run().expect_code(0);
    assert!(ended.out.contains("7 letters"), "{}", ended.out);
    assert!(!ended.err.contains("hunter2"), "{}", ended.err);
    let mut grep = std::process::Command::new("grep");
    let found = grep.args(["-rl", "hunter2"]).arg(ended.folder()).output().expect("grep runs");
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
    let run = std::fs::read_to_string(ended.node_folder(0).join("run.json")).expect("run.json");
    assert!(run.contains("HF_TOKEN=*** sh -c"), "{run}");
}

#[test]
fn a_running_job_is_sampled_in_the_journal() {
    // The rank stays until there is a sample with it, for at most 40 s.
    let rank = "grep VmRSS /proc/$$/status; echo rank is $$; i=0; \
                until grep -qs 'sampled.*\"pid\":'$$ ranklaunch-logs/latest/node-0/agent.jsonl; do \
                i=$((i + 1)); [ $i -lt 400 ] || exit 3; sleep 0.1; done";
    let launcher = Launcher::new(run_args("direct", 1)).args(["--", "sh", "-c", rank]);
    let ended = launcher.run().expect_code(0).expect_nothing_left();
    let after = |text: &str| {
        let line = ended.out.lines().find_map(|line| line.split_once(text)).expect(text).1;
        line.split_whitespace().next().expect("a number").parse::<f64>().expect("a number")
    };
    let journal = std::fs::read_to_string(ended.node_folder(0).join("agent.jsonl"));
    let events: Vec<serde_json::Value> = (journal.expect("agent.jsonl").lines())
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).expect("JSON")["fields"].clone()
        })
        .collect();
    let phases: Vec<_> = (events.iter().filter(|event| event["message"] == "phase"))
        .filter_map(|event| event["phase"].as_str())
        .collect();
    let before = ["observing", "planning", "agreeing", "clearing", "launching"];
    let after_start = ["running", "judging", "finishing", "ended"];
    assert_eq!(phases, [before.as_slice(), after_start.as_slice()].concat());
    let sampled = events.iter().filter(|event| event["message"] == "sampled");
    let samples: Vec<serde_json::Value> = sampled.cloned().collect();
    let [first, .., last] = samples.as_slice() else { panic!("{samples:?}") };
    let rank = &first["ranks"][0];
    assert_eq!((&rank["rank"], rank["pid"].as_f64()), (&0.into(), Some(after("rank is "))));
    let (memory, resident) = (rank["memory"].as_f64().expect("bytes"), after("VmRSS:") * 1024.0);
    assert!((0.5..2.0).contains(&(memory / resident)), "{rank} beside {resident}");
    for field in [&first["memory"]["available"], &first["log_folder_free"]] {
        assert!(field.as_f64().is_some_and(|bytes| bytes > 0.0), "{first}");
    }
    assert_eq!(last["ranks"], serde_json::json!([]), "the one at the end");
}

#[test]
fn two_nodes_run_one_job() {
    let port = free_port();
    // Node 1 waits for the master port, which the job's own rank 0 opens.
    let node = |rank| {
        let args = run_args("direct", 2);
        let meet = ["--".into(), program("meet.py").into_os_string()];
        Launcher::new(args).args(meet).node(rank, 2, port).start()
    };
    let (zero, one) = (node(0), node(1));
    let zero = zero.wait().expect_code(0).expect_nothing_left();
    let one = one.wait().expect_code(0).expect_nothing_left();
    assert!(zero.out.contains("[r1] rank 1 of 4 met"), "{}", zero.out);
    assert!(one.out.contains("[r3] rank 3 of 4 met"), "{}", one.out);
}

#[test]
fn failing_rank_sets_the_code_and_ends_others() {
    let ended = direct(3, "exit-7-on-rank-1").run().expect_code(7).expect_nothing_left();
    let verdict = &ended.run_json(0)["verdict"];
    assert_eq!((&verdict["id"], &verdict["rank"]), (&"rank.exit".into(), &1.into()));
    assert!(ended.err.contains("about to fail"), "the last lines are repeated: {}", ended.err);
}

#[test]
fn a_signal_becomes_128_plus_its_number() {
    let ended = direct(2, "segv-on-rank-0").run().expect_code(139).expect_nothing_left();
    let verdict = &ended.run_json(0)["verdict"];
    assert_eq!((&verdict["id"], &verdict["rank"]), (&"rank.signal".into(), &0.into()));
}

#[test]
fn missing_program_is_named() {
    // A word that is no executable file counts as a script, and the script is looked for before the
    // start.
    let mut args = run_args("direct", 1);
    args.extend(["--".into(), "/no/such/program".into(), "x".into()]);
    let ended = Launcher::new(args).run().expect_code(64).expect_id("script.file");
    assert!(ended.err.contains(" /no/such/program "), "{}", ended.err);

    // The interpreter that a script names is looked for too. An error that only the kernel finds
    // gives a shell's code.
    for (severity, code, id) in [("fail", 64, "script.file"), ("warn", 127, "rank.exec")] {
        let severity = format!("script.file={severity}");
        let launcher =
            Launcher::new(run_args("direct", 1)).args(["--severity", &severity, "--", "./broken"]);
        harness::write_program(&launcher.folder().join("broken"), "#!/no/such/interpreter\n");
        let ended = launcher.run().expect_code(code).expect_nothing_left().expect_id(id);
        assert!(ended.err.contains(" ./broken "), "{}", ended.err);
    }
}

#[test]
fn missing_script_is_refused_before_the_start() {
    let run = |script: &str, more: &[&str]| {
        Launcher::new(run_args("direct", 1)).args(more).args(["--", script]).run()
    };
    let ended = run("no-such.py", &[]).expect_code(64).expect_nothing_left();
    let ended = ended.expect_id("script.file");
    assert!(ended.err.contains(" no-such.py ") && !ended.err.contains("[r0"), "{}", ended.err);
    // An absolute path does not depend on the folder, and the user can override the check.
    let ended = run("/no/such.py", &["--lang", "zh"]).expect_code(64).expect_id("script.file");
    assert!(ended.err.contains("脚本 /no/such.py 不存在：所有"), "{}", ended.err);
    let ended = run("no-such.py", &["--severity", "script.file=warn"]).expect_code(2);
    ended.expect_id("rank.exit").expect_words(&[", cause not_found"]);

    let plan = Launcher::new(["plan", "--device", "cpu", "--python"])
        .args([harness::python().into_os_string()])
        .args(["--format", "json", "--", "no-such.py"]);
    let plan: serde_json::Value =
        serde_json::from_str(&plan.run().expect_code(64).out).expect("a plan");
    assert_eq!(plan["refused"]["id"], "script.file", "{plan:#}");
    assert!(plan["argv"].is_array(), "what it would be stands beside: {plan:#}");
}

#[test]
fn term_ends_everything_with_143() {
    let mut running = direct(2, "escape").start();
    running.says("READY", 2);
    running.signal(Signal::SIGTERM);
    running.wait().expect_code(143).expect_nothing_left();
}

#[test]
fn ranks_ignoring_term_are_killed_within_the_grace() {
    let mut args = run_args("direct", 2);
    args.extend(["--grace".into(), "2s".into(), "--".into()]);
    args.extend([program("rank.sh").into_os_string(), "ignore-term".into()]);
    let mut running = Launcher::new(args).start();
    running.says("READY", 2);
    running.signal(Signal::SIGTERM);
    let ended = running.wait().expect_code(143).expect_nothing_left();
    assert!(ended.err.contains("SIGKILL"), "{}", ended.err);
}

#[test]
fn a_checkpoint_after_term_is_finished() {
    let mut running = Launcher::ranks("direct", 2, &["checkpoint", "."]).start();
    running.says("READY", 2);
    running.signal(Signal::SIGTERM);
    // A repeated signal must not shorten the grace period.
    running.signal(Signal::SIGTERM);
    let ended = running.wait().expect_code(143).expect_nothing_left();
    for rank in 0..2 {
        let checkpoint = ended.folder().join(format!("checkpoint-{rank}"));
        assert_eq!(std::fs::read_to_string(checkpoint).expect("it was written"), "whole\n");
    }
}

#[test]
fn hup_stops_the_job_unless_nohup() {
    let mut running = direct(1, "wait").start();
    running.says("READY", 1);
    running.signal(Signal::SIGHUP);
    running.wait().expect_code(129).expect_nothing_left();

    let release = tempfile::NamedTempFile::new().expect("a temporary file");
    let path = release.path().to_owned();
    release.close().expect("only its name is wanted");
    let mut args = vec![harness::executable().into_os_string()];
    args.extend(run_args("direct", 1));
    args.extend([
        "--".into(),
        program("rank.sh").into_os_string(),
        "hup".into(),
        path.clone().into(),
    ]);
    let mut running = Launcher::of(std::process::Command::new("nohup"), args).start();
    running.says("READY", 1);
    running.signal(Signal::SIGHUP);
    // A second signal, which is passed on, proves that the first was not fatal.
    running.signal(Signal::SIGUSR2);
    std::fs::write(&path, "").expect("the rank is released");
    let ended = running.wait();
    std::fs::remove_file(&path).expect("the release is removed");
    // The default action of USR2 kills the rank. The test only requires that HUP did not stop the
    // job.
    assert!(!ended.err.contains("SIGHUP"), "{}", ended.err);
    assert_ne!(ended.code, 129, "{}", ended.err);
}

#[test]
fn usr1_reaches_the_rank() {
    let mut running = direct(2, "usr1").start();
    running.says("READY", 2);
    running.signal(Signal::SIGUSR1);
    let ended = running.wait().expect_code(0).expect_nothing_left();
    assert_eq!(ended.out.matches("GOT-USR1").count(), 2, "{}", ended.out);
}

#[test]
fn eight_ranks_writing_at_once_tear_no_line() {
    let filler = "x".repeat(300);
    let mut args = run_args("direct", 8);
    args.extend([
        "--".into(),
        program("rank.sh").into_os_string(),
        "lines".into(),
        filler.clone().into(),
    ]);
    let ended = Launcher::new(args).run().expect_code(0).expect_nothing_left();
    let mut next = [0u32; 8];
    for line in ended.out.lines() {
        let (prefix, rest) = line.split_once("] ").expect("every line has its prefix");
        let rank: usize =
            prefix.trim_start_matches("[r").parse().expect("the prefix names the rank");
        assert_eq!(rest, format!("rank {rank} line {} {filler}", next[rank]));
        next[rank] += 1;
    }
    assert_eq!(next, [500; 8]);
}

#[test]
fn a_command_engine_gets_the_agreed_values() {
    let mut args = run_args("command", 3);
    args.extend(["--".into(), "sh".into(), "-c".into()]);
    args.push(
        "echo nodes=$NNODES rank=$NODE_RANK each=$NPROC_PER_NODE at=$MASTER_ADDR; exit 9".into(),
    );
    let ended = Launcher::new(args).run().expect_code(9).expect_nothing_left();
    assert!(ended.out.contains("nodes=1 rank=0 each=3 at=127.0.0.1"), "{}", ended.out);
}
