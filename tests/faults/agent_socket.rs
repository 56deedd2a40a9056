//! The agent's socket is abstract, so on the host's network every container of the node sees its
//! name. A connection that is not from our shim has no effect.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use harness::{Launcher, Place, Role, Running};
use nix::sys::signal::Signal;

/// Connects as a shim does, sends a whole Hello and a rank's pid, and stays or leaves.
const STRANGER: &str = "import json, socket, sys, time\n\
    name, token, pid, stay = sys.argv[1:]\n\
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
    s.connect('\\0' + name)\n\
    def say(**words):\n\
    \x20   try: s.send(json.dumps(words).encode())\n\
    \x20   except OSError: pass\n\
    if token: say(say='hello', rank=7, local_rank=7, world_size=1, program='train.py', token=token)\n\
    if pid != '0': say(say='started', pid=int(pid))\n\
    time.sleep(float(stay))\n";

/// The socket's name, from the environment of a shim.
fn socket(job: &Running) -> String {
    socket_and_token(job).0
}

fn socket_and_token(job: &Running) -> (String, String) {
    let environ = std::fs::read(format!("/proc/{}/environ", job.find(Role::Shim)));
    let environ = String::from_utf8_lossy(&environ.expect("a shim")).into_owned();
    let value = environ
        .split('\0')
        .find_map(|entry| entry.strip_prefix("RANKLAUNCH_AGENT_SOCKET="))
        .expect("the variable");
    let mut words = value.split(' ').map(str::to_owned);
    (words.next().expect("a name"), words.next().expect("a token"))
}

fn stranger(namespace: bool, words: [&str; 4]) -> Child {
    let mut command = if namespace {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).arg(harness::python());
        command
    } else {
        Command::new(harness::python())
    };
    command.args(["-c", STRANGER]).args(words).spawn().expect("a stranger")
}

fn places() -> impl Iterator<Item = bool> {
    [false, true].into_iter().filter(|namespace| !namespace || Place::Namespace.exists())
}

#[test]
fn held_connection_does_not_delay_the_end() {
    for namespace in places() {
        let setup = Launcher::at(Place::Plain);
        let release = setup.folder().join("release");
        // The grace period and the intruder last longer than our time limit.
        let mut job = setup.direct(1, &["--grace", "10m"], &["until", "release"]);
        job.says("READY", 1);
        let name = socket(&job);
        let mut holder = stranger(namespace, [&name, "", "0", "600"]);
        harness::wait_until("its connection", || {
            let table = std::fs::read_to_string("/proc/net/unix").expect("a table");
            // The table lists the listener, our shim, and the intruder until it is rejected.
            let ended = namespace && table.matches(&name).count() >= 2;
            (table.matches(&name).count() >= 3 || ended).then_some(())
        });
        std::fs::write(release, "").expect("the rank is released");
        job.wait().expect_code(0).expect_nothing_left();
        holder.kill().expect("it lives");
        holder.wait().expect("it is reaped");
    }
}

#[test]
fn process_named_by_a_stranger_is_not_killed() {
    for namespace in places() {
        for token in ["", "0123456789abcdef01234567"] {
            let mut innocent = Command::new("sleep").arg("600").spawn().expect("a process");
            let mut job = Launcher::at(Place::Plain).direct(1, &["--grace", "4s"], &["wait"]);
            job.says("READY", 1);
            let pid = innocent.id().to_string();
            let mut liar = stranger(namespace, [&socket(&job), token, &pid, "0.2"]);
            assert!(liar.wait().expect("it ends").success(), "it has not said its words");
            let began = Instant::now();
            job.waits("what it may have caused", |_| began.elapsed() > Duration::from_millis(300));
            assert!(innocent.try_wait().expect("a child").is_none(), "it was killed");
            job.send(Role::Guard, Signal::SIGTERM);
            job.wait().expect_code(143).expect_nothing_left();
            assert!(innocent.try_wait().expect("a child").is_none(), "it was killed at the end");
            innocent.kill().expect("it lives");
            innocent.wait().expect("it is reaped");
        }
    }
}

/// Only the token keeps strangers out. With it, the same message is that of a rank, and the end of
/// that rank ends the job.
#[test]
fn control_client_with_the_token_is_a_rank() {
    let mut job = Launcher::at(Place::Plain).direct(1, &["--grace", "4s"], &["wait"]);
    job.says("READY", 1);
    let (name, token) = socket_and_token(&job);
    let mut liar = stranger(false, [&name, &token, "0", "0.2"]);
    assert!(liar.wait().expect("it ends").success(), "it has not said its words");
    let ended = job.wait().expect_nothing_left();
    assert!(ended.code != 0 && ended.err.contains("rank 7"), "{} {}", ended.code, ended.err);
}
