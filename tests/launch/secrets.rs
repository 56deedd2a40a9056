//! Secrets of a command line or an environment appear in no output or file: plans in every form,
//! reports, captures, run folders, verdicts.

use std::path::Path;
use std::process::Command;

use harness::{Ended, Launcher, run_args};

const SECRET: &str = "hunter2hunter2hunter2";

/// Arguments that hold the secret, one in each form.
fn arguments() -> Vec<String> {
    [
        "--hf_token",
        "%",
        "--hftoken=%",
        "--private_key",
        "-----BEGIN KEY-----\n%\n-----END KEY-----",
        "--config",
        "{\"wandb\": {\"api_key\": \"%\"}}",
        "--data=https://bucket/file?X-Amz-Security-Token=%&X-Amz-Signature=%",
        "https://user:%@host/x",
        "--export=ALL,HF_TOKEN=%",
        "--extra_args",
        "--hf_token % --lr 1",
        "-H",
        "Authorization: Bearer %",
        "OPENAI_API_KEYS=%",
        "PGPASSWORD=%",
        "A=1;HF_TOKEN=% python x.py",
    ]
    .iter()
    .map(|arg| arg.replace('%', SECRET))
    .chain(spelled(&[&["hf", "token"], &["db", "password"], &["api", "key"], &["pass"]], SECRET))
    .chain(spelled(&[&["max", "tokens"], &["pad", "token", "id"], &["key", "frames"]], OPEN))
    .collect()
}

/// A value that is not secret.
const OPEN: &str = "shown1shown";

/// Options with these names in each spelling, each with its value as a separate word and after `=`.
fn spelled(names: &[&[&str]], value: &str) -> Vec<String> {
    let mut words = Vec::new();
    for parts in names {
        let capitals = |part: &&str| part.to_uppercase();
        let pascal = |part: &&str| part[..1].to_uppercase() + &part[1..];
        let capitals: Vec<String> = parts.iter().map(capitals).collect();
        for name in [
            parts.join("_"),
            parts.join("-"),
            parts.join("."),
            capitals.join("_"),
            capitals.join("-"),
            parts.iter().map(pascal).collect(),
        ] {
            words.extend([format!("--{name}"), value.to_owned(), format!("--{name}={value}")]);
        }
    }
    words
}

/// Number of values in the arguments that are not secret.
fn open_values() -> usize {
    arguments().iter().filter(|word| word.contains(OPEN)).count()
}

/// Variables that hold the secret.
fn variables() -> Vec<(&'static str, String)> {
    [
        ("HF_TOKEN", "%"),
        ("PGPASSWORD", "%"),
        ("SM_HPS", "{\"hf_token\": \"%\"}"),
        ("DATA_URL", "https://bucket/x?X-Amz-Security-Token=%"),
        ("JOB_COMMAND", "cd /x&&HF_TOKEN=% python x.py"),
        ("NCCL_API_KEYS", "%"),
        ("BEARER", "%"),
        ("NETRC", "%"),
    ]
    .map(|(name, value)| (name, value.replace('%', SECRET)))
    .into()
}

fn with_variables(mut launcher: Launcher) -> Launcher {
    for (name, value) in variables() {
        launcher = launcher.env(name, value);
    }
    launcher
}

/// Expects no secret in anything that the launcher printed or kept.
#[track_caller]
fn expect_no_secret(ended: &Ended) {
    assert!(!ended.out.contains(SECRET), "{}", ended.out);
    assert!(!ended.err.contains(SECRET), "{}", ended.err);
    let files = files_with(SECRET, ended.folder());
    assert_eq!(files, "", "files with the secret");
}

fn files_with(text: &str, folder: &Path) -> String {
    let found = Command::new("grep").args(["-rlae", text]).arg(folder).output().expect("grep runs");
    String::from_utf8_lossy(&found.stdout).into_owned()
}

#[test]
fn no_plan_shows_a_secret() {
    for form in ["text", "json", "shell"] {
        let options = ["plan", "--format", form, "--engine", "direct", "--device", "cpu"];
        let mut args: Vec<String> = options.map(str::to_owned).into();
        for (name, value) in variables() {
            args.extend(["--env".to_owned(), format!("{name}={value}")]);
        }
        args.extend(["--nproc-per-node", "1", "--", "bash", "-c", "true", "x"].map(str::to_owned));
        args.extend(arguments());
        let ended = with_variables(Launcher::new(args)).run().expect_code(0);
        assert!(ended.out.contains("--lr 1") && ended.out.contains("***"), "{}", ended.out);
        assert!(ended.out.matches(OPEN).count() >= open_values(), "{}", ended.out);
        expect_no_secret(&ended);
    }
}

#[test]
fn no_run_keeps_a_secret() {
    // The rank itself fails, so that there is a closing block and a verdict.
    let script = ["--termination-log", "verdict.json", "--", "bash", "-cex", "exit 3", "x"];
    let ended = with_variables(Launcher::new(run_args("direct", 1)))
        .args(script)
        .args(arguments())
        .run()
        .expect_code(3);
    expect_no_secret(&ended);
    assert!(ended.folder().join("verdict.json").exists());
    assert!(!files_with("--extra_args", ended.folder()).is_empty(), "the command is kept");

    // A command that cannot be started is named in the refusal.
    let ended = with_variables(Launcher::new(run_args("direct", 1)))
        .args(["--", "/missing/program"])
        .args(arguments())
        .run();
    assert_ne!(ended.code, 0);
    expect_no_secret(&ended);
}

#[test]
fn no_capture_keeps_a_secret() {
    let mut command = Command::new("bash");
    // The shell's own command line holds the secret as well.
    command.args(["-ce", "\"$@\"; exit $?", "bash"]).arg(harness::executable());
    let check = ["check", "--format", "json", "--capture", "copy", "--report", "report.json"];
    let job = ["--engine", "direct", "--device", "cpu", "--", "sh", "x.sh"];
    let launcher = Launcher::of(command, check).args(job).args(arguments());
    let ended = with_variables(launcher).run();
    assert!(ended.folder().join("copy/proc").is_dir(), "{}", ended.err);
    expect_no_secret(&ended);
    assert!(!files_with("JOB_COMMAND", ended.folder()).is_empty(), "environments are kept");
}

/// Attachments to a ticket: of a running job, and of an ended one.
#[test]
fn no_dump_and_no_report_keep_a_secret() {
    let script = "echo READY; exec sleep 600";
    let launcher = with_variables(Launcher::new(run_args("direct", 1)));
    let job = launcher.args(["--", "bash", "-c", script, "x"]).args(arguments());
    let mut job = job.start();
    job.says("READY", 1);
    let run = job.run_id();
    let ask = |words: &[&str]| Launcher::new(words).run().expect_code(0);
    let dump = ask(&["dump", &run, "--output", "dump"]);
    expect_no_secret(&dump);
    let plan =
        std::fs::read_to_string(dump.folder().join("dump/node-0/plan.json")).expect("a plan");
    assert!(plan.matches(OPEN).count() >= open_values(), "{plan}");
    for words in [&["stacks", &run, "--format", "json"][..], &["ps", "--format", "json"]] {
        expect_no_secret(&ask(words));
    }
    job.signal(nix::sys::signal::Signal::SIGTERM);
    let ended = job.wait();
    let logs = ended.folder().join("logs");
    let logs = if logs.is_dir() { logs } else { ended.folder().to_owned() };
    expect_no_secret(&ended);
    assert!(files_with(OPEN, &logs).contains("agent.jsonl"), "the journal has the plan");
    assert!(files_with(OPEN, &logs).contains("report.html"), "and so has the report");
}
