//! Rules of a profile about a running job: each is tried with ranks that break it, and with ranks that
//! do not.

use harness::cluster::one_cause;
use harness::fake_nvml::FakeNvml;
use harness::{Ended, Launcher, free_port, run_args};
use serde_json::{Value, json};

use super::xids::journal;

/// Two ranks of this shell program, under the rules.
fn job(rules: &str, program: &str) -> Launcher {
    job_with(rules, &[], program)
}

fn job_with(rules: &str, options: &[&str], program: &str) -> Launcher {
    let launcher = Launcher::new(run_args("direct", 2));
    let profile = launcher.folder().join("mine.toml");
    std::fs::write(&profile, rules).expect("written");
    let launcher = launcher.args(["--profile".as_ref(), profile.as_os_str()]).args(options);
    launcher.args(["--", "sh", "-c", program])
}

/// The rule events of the journal.
fn breaches(ended: &Ended) -> Vec<Value> {
    let lines = journal(ended);
    let fields = lines.iter().map(|line| &line["fields"]);
    fields
        .filter(|fields| fields["message"] == "rule")
        .map(|fields| fields["rule"].clone())
        .collect()
}

/// Waits until the journal of node 0 has `$1` breaches; the console has told them by then.
const UNTIL_TOLD: &str = r#"
told() {
    until [ "$(grep -c '"message":"rule"' ranklaunch-logs/latest/node-0/agent.jsonl)" -ge "$1" ]; do sleep 0.1; done
}
"#;

#[track_caller]
fn expect_one(ended: &Ended, rule: &str, rank: Value, words: &str) {
    let found = breaches(ended);
    let [breach] = &found[..] else { panic!("{found:#?}\n{}", ended.err) };
    assert_eq!((&breach["id"], &breach["rank"]), (&json!(rule), &rank), "{breach:#}");
    assert!(breach["text"].as_str().is_some_and(|text| text.contains(words)), "{breach:#}");
    assert_eq!(ended.err.matches(words).count(), 1, "{}", ended.err);
}

const LOADED: &str = "
[[watch]]
id = 'loaded'
line = '^model loaded'
ranks = 'all'
within = '2s'
hint = 'look at the file server'
";

#[test]
fn rule_finds_a_missing_line() {
    let late = format!(
        "{UNTIL_TOLD} [ $RANK = 0 ] && echo model loaded; echo reading; told 1; echo model loaded"
    );
    let ended = job(LOADED, &late).run().expect_code(0).expect_nothing_left();
    expect_one(
        &ended,
        "loaded",
        json!(1),
        "rank 1 has printed no line with ^model loaded within 2s",
    );
    assert!(ended.err.contains("ago: reading\n  hint: look at the file server"), "{}", ended.err);

    let ended = job(LOADED, "echo model loaded; sleep 4").run().expect_code(0);
    assert_eq!(breaches(&ended), [] as [Value; 0], "{}", ended.err);
}

const STEPS: &str = "
[[watch]]
id = 'steps'
line = 'step \\d+'
every = '2s'
text = { en = 'The training stands still', zh = '训练停住' }
";

#[test]
fn rule_finds_a_line_that_stops() {
    let stops = format!("{UNTIL_TOLD} printf 'step 1\\rstep 2\\n'; [ $RANK = 1 ] || told 1");
    let ended = job(STEPS, &stops).run().expect_code(0).expect_nothing_left();
    let words = "The training stands still: rank 0 has printed no line with step \\d+ for 2s";
    expect_one(&ended, "steps", json!(0), words);

    let recurs = "for n in 1 2 3 4 5 6 7 8; do printf \"step $n\\r\"; sleep 0.5; done";
    let ended = job(STEPS, recurs).run().expect_code(0);
    assert_eq!(breaches(&ended), [] as [Value; 0], "{}", ended.err);
}

const LOSS: &str = "
[[watch]]
id = 'loss'
line = 'loss=(?P<value>\\S+)'
max = 100
";

#[test]
fn rule_finds_a_value_out_of_range() {
    let program = |second: &str| {
        format!(
            "{UNTIL_TOLD} echo loss=2.5; [ $RANK = 1 ] && {{ echo loss={second}; echo loss={second}; }}; "
        )
    };
    for (value, shown) in [("nan", "NaN"), ("1e3", "1000")] {
        let ended = job(LOSS, &format!("{} told 1", program(value))).run().expect_code(0);
        expect_one(
            &ended,
            "loss",
            json!(1),
            &format!("the value of rank 1 is {shown}, but it must be at most 100"),
        );
    }
    let ended = job(LOSS, &format!("{} sleep 2", program("99.5"))).run().expect_code(0);
    assert_eq!(breaches(&ended), [] as [Value; 0], "{}", ended.err);
}

const IDLE: &str = "
[[watch]]
id = 'idle'
gpus_idle = '2s'
";

#[test]
fn rule_finds_idle_gpus() {
    for (utilisation, idle) in [("0", true), ("37", false)] {
        let fake = FakeNvml::new(&[("GPUS", "2"), ("UTILIZATION", utilisation)]);
        let launcher =
            Launcher::new(["run", "--engine", "direct", "--stale", "off", "--nproc-per-node", "2"]);
        let profile = launcher.folder().join("mine.toml");
        std::fs::write(&profile, IDLE).expect("written");
        let program = if idle { format!("{UNTIL_TOLD} told 1") } else { "sleep 6".to_owned() };
        let ended = launcher
            .args(["--profile".as_ref(), profile.as_os_str()])
            .args(["--", "sh", "-c", &program])
            .env("RANKLAUNCH_NVML_LIBRARY", fake.library())
            .run()
            .expect_code(0);
        match idle {
            true => expect_one(
                &ended,
                "idle",
                Value::Null,
                "all GPUs of the job on this node have been idle for 2s",
            ),
            false => assert_eq!(breaches(&ended), [] as [Value; 0], "{}", ended.err),
        }
    }
}

#[test]
fn faulty_rule_is_refused_before_the_start() {
    let ended = job("[[watch]]\nid = 'x'\nline = '(x'\nevery = '5m'\n", "echo started").run();
    assert_ne!(ended.code, 0);
    assert!(ended.err.contains("mine.toml:3: `line` is (x"), "{}", ended.err);
    assert!(!ended.out.contains("started"), "{}", ended.out);
}

/// The rule `steps` of [`STEPS`], with this action on a breach.
fn steps_that(on: &str) -> String {
    format!("{STEPS}on = '{on}'\n")
}

/// Prints a step, and then waits to be ended.
const STOPS: &str = "echo step 1; exec sleep 300";

#[test]
fn breach_of_an_end_rule_ends_the_job() {
    let ended = job_with(&steps_that("end"), &["--max-restarts", "1"], STOPS);
    let ended = ended.run().expect_code(91).expect_nothing_left();
    let words = "rule steps: The training stands still: rank 0 has printed no line";
    let run = ended.run_json(0);
    let (verdict, cause) = (&run["verdict"], &run["cause"]);
    assert_eq!(
        (&verdict["id"], &verdict["rank"], &verdict["code"]),
        (&json!("watch.rule"), &json!(0), &json!(91))
    );
    assert!(verdict["text"].as_str().is_some_and(|text| text.starts_with(words)), "{verdict}");
    assert!(verdict["text"].as_str().is_some_and(|text| text.contains(": step 1")), "{verdict}");
    assert_eq!((&cause["id"], &cause["evidence"]), (&json!("steps"), &json!("step 1")), "{cause}");
    assert!(ended.err.contains(&format!("── ranklaunch: {words}")), "{}", ended.err);
    assert!(ended.err.contains("now: the job is ended"), "{}", ended.err);
    assert!(ended.err.contains("a breach of the rule steps ends the job"), "{}", ended.err);
    assert_eq!((run["attempt"].as_u64(), breaches(&ended).len()), (Some(0), 1));

    // Control: a rule without an action only reports, as a hang does; with `--on-hang end` it ends the
    // job.
    let goes_on = format!("{UNTIL_TOLD} echo step 1; [ $RANK = 1 ] || told 1");
    let ended = job(STEPS, &goes_on).run().expect_code(0);
    assert_eq!(breaches(&ended)[0]["on"], "report", "{}", ended.err);
    let ended = job_with(STEPS, &["--on-hang", "end"], STOPS).run().expect_code(91);
    assert_eq!(breaches(&ended)[0]["on"], "end", "{}", ended.err);
}

#[test]
fn breach_of_a_restart_rule_restarts_the_job() {
    let second = "echo step 1; [ -e begun.$RANK ] && exit 0; touch begun.$RANK; exec sleep 300";
    let ended = job_with(&steps_that("restart"), &["--max-restarts", "1"], second);
    let ended = ended.run().expect_code(0).expect_nothing_left();
    assert_eq!(ended.run_json(0)["attempt"], 1, "{}", ended.err);
    assert_eq!(ended.err.matches("now: the attempt is ended").count(), 1, "{}", ended.err);
    // Control: no further attempt is allowed.
    let ended = job(&steps_that("restart"), STOPS).run().expect_code(91);
    assert_eq!(ended.run_json(0)["attempt"], 0, "{}", ended.err);
}

/// Two nodes of one rank each, where only rank 1 has to print steps.
fn two_nodes(on: &str, program: &str, options: &[&str]) -> [Ended; 2] {
    let folder = tempfile::tempdir().expect("a folder");
    let profile = folder.path().join("mine.toml");
    let rule = format!("{}ranks = '1'\n", steps_that(on));
    std::fs::write(&profile, rule).expect("written");
    let port = free_port();
    let start = |rank| {
        Launcher::new(run_args("direct", 1))
            .node(rank, 2, port)
            .args(["--profile".as_ref(), profile.as_os_str()])
            .args(options)
            .env("BEGUN", folder.path().join("begun"))
            .args(["--", "sh", "-c", program])
            .start()
    };
    [0, 1].map(start).map(|node| node.wait().expect_nothing_left())
}

#[test]
fn breach_on_one_node_ends_or_restarts_all() {
    let [zero, one] = two_nodes("end", STOPS, &["--max-restarts", "1"]);
    let cause = one_cause(&[(0, &zero, 92), (1, &one, 91)]);
    assert_eq!(
        (cause.id, cause.node, cause.rank, cause.attempt),
        (json!("watch.rule"), json!(1), json!(1), json!(0))
    );
    assert!(cause.block.contains("rule steps"), "{}", cause.block);

    let second = "echo step 1; [ -e $BEGUN.$RANK ] && exit 0; touch $BEGUN.$RANK; exec sleep 300";
    let [zero, one] = two_nodes("restart", second, &["--max-restarts", "1"]);
    let attempt = |ended: &Ended, node| ended.run_json(node)["attempt"].clone();
    assert_eq!((zero.code, one.code), (0, 0), "{}\n{}", zero.err, one.err);
    assert_eq!((attempt(&zero, 0), attempt(&one, 1)), (json!(1), json!(1)));
}
