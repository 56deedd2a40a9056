//! Nodes start in any order: a launcher waits for a master whose name or port appears late,
//! names the obstacle at the deadline, and ends at once on a stop.
//!
//! Tests with name servers or interfaces of their own run in a network namespace: the test
//! starts this same program in it, which then runs its `inside_…` half. If the machine does not
//! allow one, the test is skipped.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use harness::inside::{self, READY};
use harness::{Launcher, Running, free_port, program, run_args, wait_until};
use nix::sys::signal::Signal;

/// `rank.sh WHAT` as node `rank` of two, whose master is `host`. There is no muster, so any
/// listener can be the master.
fn node(rank: u32, host: &str, port: u16, timeout: &str, what: &str) -> Launcher {
    let mut args = run_args("direct", 1);
    args.extend(["--muster".into(), "off".into()]);
    args.extend(["--wait-timeout".into(), timeout.into(), "--".into()]);
    args.extend([program("rank.sh").into_os_string(), what.into()]);
    Launcher::new(args).node(rank, 2, port).env("MASTER_ADDR", host)
}

fn wait(target: &str, timeout: &str) -> Launcher {
    Launcher::new(["wait", target, "--timeout", timeout])
}

/// A listener that takes connections and keeps them open, as torch's store does.
fn keep_open(listener: TcpListener) {
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            kept.push(stream);
        }
    });
}

#[test]
fn early_worker_waits_for_the_port() {
    // A first connection attempt proves that the launcher waits. Then there is no listener, then
    // the master.
    let late = |launcher: &dyn Fn(u16) -> Launcher| {
        let early = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = early.local_addr().expect("an address").port();
        let running = launcher(port).start();
        drop(early.accept().expect("the launcher knocks"));
        drop(early);
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "the port is closed again");
        keep_open(TcpListener::bind(("127.0.0.1", port)).expect("the port is free"));
        (port, running.wait().expect_code(0).expect_nothing_left())
    };
    let (port, worker) = late(&|port| node(1, "127.0.0.1", port, "30s", "succeed"));
    let met = format!("rank 1 of 2, local 0, 127.0.0.1:{port}");
    assert!(worker.out.contains(&met), "{}", worker.out);
    let (port, waiter) = late(&|port| wait(&format!("127.0.0.1:{port}"), "30s"));
    assert!(waiter.err.contains(&format!("127.0.0.1:{port} answers")), "{}", waiter.err);
}

#[test]
fn the_second_node_may_come_first() {
    let port = free_port();
    let node = |rank| {
        let mut args = run_args("direct", 1);
        args.extend(["--".into(), program("meet.py").into_os_string()]);
        Launcher::new(args).node(rank, 2, port).start()
    };
    let one = node(1);
    wait_until("node 1 has a plan", || one.err().contains("── ranklaunch").then_some(()));
    let zero = node(0).wait().expect_code(0).expect_nothing_left();
    let one = one.wait().expect_code(0).expect_nothing_left();
    assert!(zero.out.contains("rank 0 of 2 met"), "{}", zero.out);
    assert!(one.out.contains("rank 1 of 2 met"), "{}", one.out);
}

#[test]
fn port_that_never_opens_exits_86() {
    let port = free_port();
    let started = Instant::now();
    let worker = node(1, "127.0.0.1", port, "3s", "succeed").start();
    let waiter = wait(&format!("127.0.0.1:{port}"), "3s").start();
    for running in [worker, waiter] {
        let ended = running.wait().expect_code(86).expect_nothing_left().expect_id("master.reach");
        for words in [&format!("127.0.0.1:{port}"), "refuses connections", " 3 s", "hint: "] {
            assert!(ended.err.contains(words), "{words}: {}", ended.err);
        }
        assert_eq!(ended.out, "");
    }
    let took = started.elapsed();
    assert!(took >= Duration::from_secs(3), "{took:?}");
}

/// A service mesh accepts every connection, and closes it if there is no listener.
#[test]
fn sidecar_that_accepts_and_closes_is_no_master() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let accepted = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&accepted);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            drop(stream);
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let worker = node(1, "127.0.0.1", port, "2s", "succeed").env("LANG", "zh_CN.UTF-8").start();
    let waiter = wait(&format!("127.0.0.1:{port}"), "2s").run().expect_code(86);
    assert!(waiter.err.contains("accepted and closed at once"), "{}", waiter.err);
    let worker = worker.wait().expect_code(86).expect_nothing_left();
    worker.expect_id("master.reach");
    assert!(accepted.load(Ordering::Relaxed) > 2, "it was asked again and again");
}

#[test]
fn busy_master_port_exits_87_naming_its_owner() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let ended = node(0, "127.0.0.1", port, "3s", "succeed").run();
    let ended = ended.expect_code(87).expect_nothing_left().expect_id("port.free");
    let owner = format!("pid {} (", std::process::id());
    for words in [&format!(" {port} "), &owner, "--master-port"] {
        assert!(ended.err.contains(words), "{words}: {}", ended.err);
    }
    assert!(!ended.out.contains("rank 0"), "no rank was started");
    // A single node takes another port.
    let mut args = run_args("direct", 1);
    args.extend(["--".into(), program("rank.sh").into_os_string(), "succeed".into()]);
    let alone = Launcher::new(args).env("MASTER_PORT", port.to_string());
    alone.run().expect_code(0).expect_nothing_left();
}

#[test]
fn term_ends_the_port_wait_at_once() {
    // The listener accepts connections, and none lasts the half second that counts.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let worker = node(1, "127.0.0.1", port, "10m", "succeed").start();
    drop(listener.accept().expect("the launcher knocks"));
    stop(worker, Signal::SIGTERM, 143);
    let waiter = wait(&format!("127.0.0.1:{port}"), "10m").start();
    drop(listener.accept().expect("the launcher knocks"));
    stop(waiter, Signal::SIGTERM, 143);
    let worker = node(1, "127.0.0.1", port, "10m", "succeed").start();
    drop(listener.accept().expect("the launcher knocks"));
    stop(worker, Signal::SIGINT, 130);
}

/// Expects an end with `code` before the launcher's own deadline, which is longer than the test
/// waits; nothing is left.
fn stop(running: Running, signal: Signal, code: i32) {
    running.signal(signal);
    running.wait().expect_code(code).expect_nothing_left();
}

/// Runs `inside` of this program with a network, a hosts file and name servers of its own.
fn in_a_network(inside: impl Fn()) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("hosts"), "127.0.0.1 localhost\n").expect("a file");
    std::fs::write(folder.path().join("resolv.conf"), "nameserver 127.0.0.1\nsearch ns.svc\n")
        .expect("a file");
    let set_up = format!(
        "mount --make-rprivate / && \
         mount --bind \"$1/hosts\" /etc/hosts && mount --bind \"$1/resolv.conf\" /etc/resolv.conf \
         && ip link set lo up && echo '{READY}' && shift && exec \"$@\""
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--mount"]);
    if !nix::unistd::geteuid().is_root() {
        unshare.arg("--map-root-user");
    }
    unshare.args(["sh", "-c", &set_up, "sh"]).arg(folder.path());
    unshare.env("HOSTS", folder.path().join("hosts"));
    inside::run(unshare, inside);
}

/// A name server on loopback that resolves `name` once it is enabled, and reports each question.
struct NameServer {
    knows: Arc<AtomicBool>,
    asked: mpsc::Receiver<()>,
}

impl NameServer {
    fn new(name: &'static str) -> NameServer {
        let socket = UdpSocket::bind("127.0.0.1:53").expect("the port of this namespace");
        let knows = Arc::new(AtomicBool::new(false));
        let (said, asked) = mpsc::channel();
        let known = Arc::clone(&knows);
        std::thread::spawn(move || {
            let mut question = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut question) {
                let answer = answer(&question[..length], name, known.load(Ordering::Relaxed));
                let _ = socket.send_to(&answer, from);
                let _ = said.send(());
            }
        });
        NameServer { knows, asked }
    }

    fn was_asked(&self) {
        self.asked.recv_timeout(harness::TIMEOUT).expect("a question");
    }
}

/// The answer of RFC 1035: the question repeated, with 127.0.0.1 for `name`, else NXDOMAIN.
fn answer(question: &[u8], name: &str, knows: bool) -> Vec<u8> {
    let mut wanted = Vec::new();
    for label in name.split('.') {
        wanted.push(u8::try_from(label.len()).expect("a label"));
        wanted.extend(label.as_bytes());
    }
    wanted.push(0);
    let end = 12 + question[12..].iter().position(|byte| *byte == 0).expect("a name") + 1;
    let matches = knows && question[12..end].eq_ignore_ascii_case(&wanted);
    let is_address = question[end..end + 2] == [0, 1];
    let found = matches && is_address;
    let mut answer = question[..2].to_vec();
    // A response, recursion desired and available; code 3 is NXDOMAIN.
    answer.extend([0x81, if matches { 0x80 } else { 0x83 }]);
    answer.extend([0, 1, 0, u8::from(found), 0, 0, 0, 0]);
    answer.extend(&question[12..end + 4]);
    if found {
        // The name by a pointer, type A, class IN, 1 s, 127.0.0.1.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1]);
    }
    answer
}

#[test]
fn late_host_name_is_awaited() {
    in_a_network(inside_late_names);
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_late_names() {
    let server = NameServer::new("job-worker-0.ns.svc");
    let port = free_port();
    keep_open(TcpListener::bind(("127.0.0.1", port)).expect("a port"));
    // The name appears in DNS, through the search list, like that of a headless service.
    let worker = node(1, "job-worker-0", port, "30s", "succeed").start();
    let waiter = wait(&format!("job-worker-0:{port}"), "30s").start();
    for _ in 0..6 {
        server.was_asked();
    }
    server.knows.store(true, Ordering::Relaxed);
    let ended = worker.wait().expect_code(0).expect_nothing_left();
    assert!(ended.out.contains(&format!("job-worker-0:{port}")), "{}", ended.out);
    waiter.wait().expect_code(0);
    // The name appears in the hosts file, which some platforms write when all nodes are placed.
    let worker = node(1, "job-master-0", port, "30s", "succeed").start();
    while server.asked.try_recv().is_ok() {}
    server.was_asked();
    let hosts = std::env::var_os("HOSTS").expect("it was set");
    std::fs::write(hosts, "127.0.0.1 localhost\n127.0.0.1 job-master-0\n").expect("a file");
    worker.wait().expect_code(0).expect_nothing_left();
}

#[test]
fn host_name_that_never_resolves_exits_85() {
    in_a_network(inside_unknown_names);
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_unknown_names() {
    let server = NameServer::new("nobody");
    let worker = node(1, "job-master-0", 29500, "3s", "succeed").start();
    let waiter = wait("job-master-0:29500", "3s").start();
    for running in [worker, waiter] {
        let ended = running.wait().expect_code(85).expect_nothing_left();
        let ended = ended.expect_id("master.resolve");
        for words in ["\"job-master-0\"", " 3 s", "/etc/hosts", "hint: "] {
            assert!(ended.err.contains(words), "{words}: {}", ended.err);
        }
    }
    // The stop comes in the middle of the wait for the name.
    let worker = node(1, "job-master-0", 29500, "10m", "succeed").start();
    while server.asked.try_recv().is_ok() {}
    server.was_asked();
    stop(worker, Signal::SIGTERM, 143);
    let waiter = wait("job-master-0:29500", "10m").start();
    while server.asked.try_recv().is_ok() {}
    server.was_asked();
    stop(waiter, Signal::SIGTERM, 143);
}

#[test]
fn term_ends_a_dead_name_servers_wait() {
    in_a_network(inside_a_silent_network);
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_a_silent_network() {
    // The server takes questions and never answers.
    let server = UdpSocket::bind("127.0.0.1:53").expect("the port of this namespace");
    for (launcher, code) in [
        (node(1, "job-master-0", 29500, "10m", "succeed"), 143),
        (wait("job-master-0:29500", "10m"), 143),
    ] {
        let running = launcher.start();
        server.recv_from(&mut [0; 1500]).expect("a question");
        stop(running, Signal::SIGTERM, code);
    }
    assert!(TcpStream::connect("127.0.0.1:53").is_err(), "nobody answers by TCP either");
}
