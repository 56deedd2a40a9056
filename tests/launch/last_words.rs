//! The report at the end: survivors are named on every node, even if the agent is lost. If the
//! engine is the cause, its own lines are shown.

use std::ffi::OsString;
use std::path::Path;

use harness::{
    Ended, Launcher, Place, Role, Running, executable, free_port, program, run_args, skipped,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// A job of another user, with the program `rooted`, whose process belongs to root and cannot be
/// ended.
fn beside_root() -> Option<(Launcher, std::path::PathBuf)> {
    if !nix::unistd::geteuid().is_root() {
        skipped("only root can make a process that its launcher may not signal");
        return None;
    }
    let setup = Launcher::at(Place::Plain).user(65534);
    let rooted = setup.folder().join("rooted");
    // Another process makes the copy, since a descriptor open for writing forbids execution.
    let script = "cp \"$1\" \"$2\" && chmod 4755 \"$2\"";
    let mut shell = std::process::Command::new("sh");
    harness::run_tool(shell.args(["-c", script, "sh"]).args([&setup.misbehave(), &rooted]));
    Some((setup, rooted))
}

fn message(over: &Ended) -> Value {
    let text = std::fs::read_to_string(over.folder().join("message")).expect("a message");
    serde_json::from_str(&text).expect("it is JSON")
}

fn is_left(over: &Ended) {
    let left = over.left.iter().any(|seen| seen.argv.iter().any(|word| word == "become-root"));
    assert!(left, "nothing is left, so nothing was shown: {:#?}", over.left);
}

/// The guard ends the leftovers of a killed agent, and only it can name survivors.
#[test]
fn guard_names_the_survivors_of_a_killed_agent() {
    let Some((setup, rooted)) = beside_root() else { return };
    let mut job = setup.direct_of(&rooted, 1, &[], &["become-root"]);
    job.says("READY", 1);
    job.send(Role::Agent, Signal::SIGKILL);
    let over = job.wait().expect_code(137);
    is_left(&over);
    let said = over.err;
    let words = "(rooted) may not be signalled by us and is in state S";
    assert_eq!(said.matches(words).count(), 1, "{said}");
}

/// The same for `init`, whose command ends and leaves the process.
#[test]
fn survivors_of_the_init_command_are_named() {
    let Some((setup, rooted)) = beside_root() else { return };
    let script = "\"$0\" become-root & until [ -e is-root ]; do sleep 0.02; done; exit 7";
    let words = ["init", "--grace", "1s", "--", "sh", "-c", script];
    let mut args: Vec<OsString> = words.into_iter().map(OsString::from).collect();
    args.push(rooted.into());
    let over = setup.program(&executable(), &args).wait().expect_code(7);
    is_left(&over);
    assert!(over.err.contains("(rooted) may not be signalled by us"), "{}", over.err);
}

/// The guard reads no settings, so the agent passes it the place and the language of the
/// message.
#[test]
fn killed_agents_message_follows_the_profile() {
    let setup = Launcher::at(Place::Plain);
    let profile = setup.folder().join("p.toml");
    let text = "[logs]\ntermination_log = \"message\"\n";
    std::fs::write(&profile, text).expect("a profile");
    let profile = profile.to_str().expect("a path");
    let options = ["--profile", profile, "--lang", "zh"];
    let mut job = setup.direct(1, &options, &["wait"]);
    job.says("READY", 1);
    job.send(Role::Agent, Signal::SIGKILL);
    let over = job.wait().expect_code(137).expect_nothing_left();
    let message = message(&over);
    assert_eq!((&message["cause"], &message["code"]), (&json!("agent.killed"), &json!(137)));
    let text = message["text"].as_str().expect("a text");
    assert!(text.contains("被 SIGKILL 杀死") && over.err.contains(text), "{text}");
}

/// A verdict with a code remapped by `[exit]` is announced, and the agent is killed while it
/// waits for a blocked console.
#[test]
fn remapped_code_survives_the_agents_death() {
    for kill in [false, true] {
        let setup = Launcher::at(Place::Plain).full_console().env("BEGIN", "0:0:2");
        let profile = setup.folder().join("p.toml");
        std::fs::write(&profile, "[exit]\n68 = 9\n").expect("a profile");
        let mut args = run_args("torchrun", 2);
        let python = args.iter().position(|word| word == "--python").expect("it is named");
        args[python + 1] = program("engine.sh").into();
        args.extend(["--profile".into(), profile.into()]);
        let script = "head -c 1000000 /dev/zero | tr '\\0' '\\n'";
        args.extend(["--termination-log", "message", "--", "sh", "-c", script].map(Into::into));
        let mut job = setup.program(&executable(), &args);
        let record = job.node_folder(0).join("run.json");
        job.waits("run.json", |_| record.exists());
        if kill {
            job.send(Role::Agent, Signal::SIGKILL);
        }
        let over = job.wait().expect_code(9);
        assert_eq!(message(&over)["code"], 9, "killed: {kill}");
    }
}

fn node(setup: Launcher, rank: u32, port: u16, words: &[&str]) -> Running {
    let setup = setup
        .env("WORLD_SIZE", "2")
        .env("RANK", rank.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string());
    let options = ["--grace", "3s", "--termination-log", "message"];
    setup.direct_of(Path::new(words[0]), 1, &options, &words[1..])
}

/// All ranks of all nodes ended well, but a process of node 0 cannot be ended.
#[test]
fn unkillable_process_is_reported_to_other_nodes() {
    let Some((setup, rooted)) = beside_root() else { return };
    let port = free_port();
    let rooted = rooted.to_str().expect("a path");
    let script = "\"$0\" become-root & until [ -e is-root ]; do sleep 0.02; done";
    let zero = node(setup, 0, port, &["/bin/sh", "-c", script, rooted]);
    let one = node(Launcher::at(Place::Plain), 1, port, &["/bin/true"]);
    let zero = zero.wait().expect_code(83);
    is_left(&zero);
    let one = one.wait().expect_code(92).expect_nothing_left();
    for over in [zero, one] {
        let said = &over.err;
        let words = "processes that ranklaunch may not signal are left";
        assert!(said.contains(words) && said.contains("(rooted, S, "), "{said}");
        let message = message(&over);
        assert_eq!((&message["cause"], &message["node"]), (&json!("forbidden"), &json!(0)));
    }
}

/// The nodes have agreed on the first failure long before SIGKILL proves ineffective.
#[test]
fn unkillable_process_is_named_beside_the_agreed_cause() {
    let Some((setup, rooted)) = beside_root() else { return };
    let port = free_port();
    let mut zero = node(setup, 0, port, &[rooted.to_str().expect("a path"), "become-root"]);
    let other = Launcher::at(Place::Plain);
    let waits = other.misbehave();
    let mut one = node(other, 1, port, &[waits.to_str().expect("a path"), "wait"]);
    zero.says("READY", 1);
    one.says("READY", 1);
    zero.send(Role::Guard, Signal::SIGTERM);
    let zero = zero.wait().expect_code(83);
    is_left(&zero);
    one.wait().expect_nothing_left();
    let message = message(&zero);
    assert_eq!(message["cause"], "forbidden");
    let text = message["text"].as_str().expect("a text");
    assert!(text.contains("(rooted, S, "), "{text}");
    assert!(
        text.contains("the job ended for: stopped from outside by SIGTERM on node 0"),
        "{text}"
    );
    zero.expect_id("forbidden");
}

/// The engine's output before any rank started is the only clue to the cause.
#[test]
fn engine_failure_shows_the_engines_last_lines() {
    for name in ["torchrun", "accelerate", "deepspeed"] {
        let mut args = run_args(name, 2);
        let python = args.iter().position(|word| word == "--python").expect("it is named");
        args[python + 1] = program("engine.sh").into();
        let launcher = Launcher::new(args).args(["--", "true"]);
        let said = "first line of many\nImportError: libfoo.so.1: cannot open";
        let ended = launcher.env("SAY", said).run().expect_code(68).expect_nothing_left();
        let (_, block) = ended.err.split_once("── last 2 lines of the engine:").expect("its lines");
        let lines: Vec<&str> = block.lines().skip(1).take(3).collect();
        assert_eq!(
            lines[..2],
            ["   first line of many", "   ImportError: libfoo.so.1: cannot open"]
        );
        // The engine's message is the cause, and the verdict is that no rank began.
        assert!(lines[2].contains("ImportError: libfoo.so.1: cannot open (likely"), "{lines:?}");
        ended.expect_id("engine.start");
    }
}

/// The block counts the seconds up to the failure, without the time for ending the other ranks.
#[test]
fn failure_time_excludes_ending_the_other_ranks() {
    const ENDING: f64 = 3.0;
    let script = "trap 'sleep 3; exit 1' TERM; [ $RANK = 0 ] && { touch ready; while :; do :; done; }; \
        until [ -e ready ]; do sleep 0.02; done; exit 3";
    let mut args = run_args("direct", 2);
    args.extend(["--", "sh", "-c", script].map(OsString::from));
    let began = std::time::Instant::now();
    let over = Launcher::new(args).run().expect_code(3);
    let all = began.elapsed().as_secs_f64();
    let (_, rest) = over.err.split_once("rank 1 exited with code 3 after ").expect("the verdict");
    let said: f64 = rest.split(' ').next().expect("a number").parse().expect("seconds");
    assert!(said <= all - ENDING, "{said} s of {all} s\n{}", over.err);
}

/// A shell that the launcher ends after a failure reports its command as "Terminated".
#[test]
fn stop_after_a_failure_is_not_its_cause() {
    let script = "trap 'sh -c \"kill -TERM \\$\\$\"; exit 1' TERM; \
        [ $RANK = 0 ] && { touch ready; while :; do sleep 0.02; done; }; \
        until [ -e ready ]; do sleep 0.02; done; exit 3";
    let mut args = run_args("direct", 2);
    args.extend(["--", "sh", "-c", script].map(OsString::from));
    let over = Launcher::new(args).run().expect_code(3);
    assert!(over.err.contains("Terminated"), "{}", over.err);
    assert!(!over.err.contains("stopped from outside"), "{}", over.err);
}
