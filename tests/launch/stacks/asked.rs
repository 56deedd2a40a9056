//! Jobs and users that `ranklaunch stacks` answers or refuses.

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use harness::{Ended, Launcher, Running, executable, skipped};
use nix::sys::signal::Signal;

use super::{document, of_script, stacks};

/// A request for an unknown run would meet a stopped agent, so these tests exclude each other.
static STOPPED: Mutex<()> = Mutex::new(());

const SLEEPS: &str = "import time\nprint('READY', flush=True)\ntime.sleep(600)\n";

fn job() -> Running {
    let mut job = of_script(2, SLEEPS);
    job.says("READY", 2);
    job
}

fn ended(job: Running) {
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(143).expect_nothing_left();
}

#[track_caller]
fn refused(ended: &Ended, id: &str, words: &[&str]) {
    assert_eq!(ended.code, 64, "{}\n{}", ended.out, ended.err);
    let tagged = format!("({id})");
    for word in words.iter().copied().chain([tagged.as_str(), "hint: "]) {
        assert!(ended.err.contains(word), "{word}: {}", ended.err);
    }
    assert_eq!(ended.out, "");
}

#[test]
fn unknown_job_is_refused_with_the_running_ones() {
    let _none = STOPPED.lock().unwrap_or_else(PoisonError::into_inner);
    let (one, two) = (job(), job());
    let ids = [one.run_id(), two.run_id()];
    let both = Launcher::new(["stacks", "--lang", "en"]).run();
    refused(&both, "stacks.job", &["jobs run here", &ids[0], &ids[1], "as RUN"]);
    let other = Launcher::new(["stacks", "no-such-run", "--lang", "en"]).run();
    refused(&other, "stacks.job", &["`no-such-run`", &ids[0], &ids[1]]);
    refused(&stacks(&one, &["--rank", "7"]), "stacks.place", &["rank 7", "ranks 0-1 run"]);
    refused(&stacks(&one, &["--node", "1"]), "stacks.place", &["node 1", "nodes 0 to 0"]);
    refused(&stacks(&one, &["--rank", "x"]), "stacks.place", &["--rank `x`"]);
    // The control: the right numbers.
    let shown = stacks(&two, &["--rank", "1", "--node", "0"]).expect_code(0).out;
    assert!(shown.contains("── rank 1\n"), "{shown}");
    ended(one);
    // A job that has ended is no job any more.
    let gone = Launcher::new(["stacks", &ids[0], "--lang", "en"]).run();
    refused(&gone, "stacks.job", &[&ids[1]]);
    ended(two);
}

#[test]
fn refusal_without_jobs_says_where_to_ask() {
    let unshare = ["--user", "--map-root-user", "--net"];
    let tried = Command::new("unshare").args(unshare).arg("true").output();
    if !tried.is_ok_and(|output| output.status.success()) {
        skipped("no network namespace can be made");
        return;
    }
    let mut args: Vec<std::ffi::OsString> = unshare.into_iter().map(Into::into).collect();
    args.extend([executable().into(), "stacks".into(), "--lang".into(), "en".into()]);
    let none = Launcher::of(Command::new("unshare"), args).run();
    refused(
        &none,
        "stacks.job",
        &["no job of ranklaunch runs here", "/proc/net/unix", "kubectl exec"],
    );
}

#[test]
fn another_user_is_refused_and_root_is_answered() {
    if !nix::unistd::geteuid().is_root() {
        skipped("only root can start a job of another user");
        return;
    }
    let job = job();
    let id = job.run_id();
    let exe = executable();
    let nobody = |args: &[&str]| {
        let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
        let mut words: Vec<std::ffi::OsString> = user.into_iter().map(Into::into).collect();
        words.push(exe.clone().into());
        words.extend(args.iter().map(Into::into));
        Launcher::of(Command::new("setpriv"), words).run()
    };
    let other = nobody(&["stacks", &id, "--lang", "en"]);
    // Jobs of others may be on the machine, so only the reason is certain.
    refused(&other, "stacks.agent", &["user 65534", "only the job's user and root are answered"]);
    assert_eq!(document(&job)["nodes"], 1);
    ended(job);
}

#[test]
fn stopped_agent_is_named_within_the_time_limit() {
    let _one = STOPPED.lock().unwrap_or_else(PoisonError::into_inner);
    let job = job();
    let agent = job.agent();
    harness::send(agent, Signal::SIGSTOP);
    let began = std::time::Instant::now();
    let silent = stacks(&job, &[]);
    let took = began.elapsed();
    harness::send(agent, Signal::SIGCONT);
    let continues = format!("kill -CONT {agent}");
    refused(&silent, "stacks.agent", &["did not answer within 7 s", &continues]);
    assert!(took.as_secs() < 40, "{took:?}");
    // The control: the agent answers again.
    assert!(stacks(&job, &[]).expect_code(0).out.contains("2 ranks"));
    ended(job);
}
