//! Waits for listeners on loopback, with names in a hosts file that changes.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;

use super::*;

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime")
        .block_on(future)
}

fn host(folder: &Path) -> Host {
    std::fs::create_dir_all(folder.join("etc")).expect("etc");
    // Nothing answers on port 53 of this address: names come from the hosts file.
    std::fs::write(folder.join("etc/resolv.conf"), "nameserver 127.255.255.254\n").expect("file");
    std::fs::write(folder.join("etc/hosts"), "").expect("file");
    Host::replayed(folder, BTreeMap::new())
}

/// Prints a line after each attempt.
const QUICK: Pace = Pace { first: &[], then: Duration::from_millis(1) };

fn to(address: &str, port: u16, timeout: u64) -> Wait<'static> {
    Wait::new(address, port, Duration::from_millis(timeout))
}

#[test]
fn ready_master_costs_half_a_second() {
    let folder = tempfile::tempdir().expect("folder");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let port = listener.local_addr().expect("address").port();
    let reached =
        run(wait_for_master(&host(folder.path()), &to("127.0.0.1", port, 10_000), |_| {}))
            .expect("answers");
    assert_eq!(reached.peer, SocketAddr::from(([127, 0, 0, 1], port)));
    assert!(reached.waited >= HOLD && reached.waited < HOLD * 3, "{:?}", reached.waited);
}

#[test]
fn late_name_and_port_are_awaited() {
    let folder = tempfile::tempdir().expect("folder");
    let host = host(folder.path());
    let port = free_port(Ipv4Addr::LOCALHOST.into()).expect("port");
    let mut lines = Vec::new();
    let wait = Wait { pace: QUICK, ..to("master", port, 20_000) };
    // Each progress line triggers the next step: first the name appears, then the listener.
    let mut listener = None;
    let reached = run(wait_for_master(&host, &wait, |line| {
        if line.en.contains("no address for \"master\"") {
            std::fs::write(folder.path().join("etc/hosts"), "127.0.0.1 master\n").expect("hosts");
        } else if line.en.contains("refuses connections") && listener.is_none() {
            listener = Some(TcpListener::bind(("127.0.0.1", port)).expect("bind"));
        }
        lines.push(line);
    }));
    assert_eq!(reached.expect("answers").peer.port(), port);
    assert!(listener.is_some() && lines.len() >= 2, "{lines:?}");
    assert!(lines.iter().all(|line| line.zh.contains("正在等待 Master")), "{lines:?}");
}

#[test]
fn closed_port_is_refused_at_the_deadline() {
    let folder = tempfile::tempdir().expect("folder");
    let port = free_port(Ipv4Addr::LOCALHOST.into()).expect("port");
    let started = Instant::now();
    let refusal = run(wait_for_master(&host(folder.path()), &to("localhost", port, 700), |_| {}))
        .expect_err("nobody listens");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    assert_eq!(refusal.verdict.code(), 86);
    assert!(refusal.text.en.contains("refuses connections"), "{}", refusal.text.en);
    assert!(refusal.hint.en.contains("this node itself"), "{}", refusal.hint.en);
}

#[test]
fn own_address_gets_a_different_hint() {
    let folder = tempfile::tempdir().expect("folder");
    let host = host(folder.path());
    let mut wait = to("10.0.0.1", 29500, 1);
    let target = Target {
        host: &host,
        address: "10.0.0.1",
        port: 29500,
        last_resort: None,
        deadline: Instant::now(),
    };
    let mut dialer = Dialer::new(target);
    dialer.addresses = vec![[10, 0, 0, 1].into()];
    let seen = Seen::nothing();
    seen.note(DialError::Unreachable(([10, 0, 0, 1], 29500).into(), Text::same("timed out")));
    assert!(refuse(&wait, &dialer, &seen).hint.en.contains("firewall"));
    wait.own_addresses = vec![[10, 0, 0, 1].into()];
    assert!(refuse(&wait, &dialer, &seen).hint.en.contains("--node-rank 0"));
}

#[test]
fn sidecar_closing_connections_is_not_the_master() {
    let folder = tempfile::tempdir().expect("folder");
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let port = listener.local_addr().expect("address").port();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let refusal = run(wait_for_master(&host(folder.path()), &to("127.0.0.1", port, 400), |_| {}))
        .expect_err("a sidecar");
    assert_eq!(refusal.verdict.code(), 86);
    assert!(refusal.text.en.contains("accepted"), "{}", refusal.text.en);
}

#[test]
fn unresolved_name_is_refused_at_the_deadline() {
    let folder = tempfile::tempdir().expect("folder");
    let started = Instant::now();
    let refusal = run(wait_for_master(&host(folder.path()), &to("master.ns", 29500, 900), |_| {}))
        .expect_err("no such name");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    assert_eq!(refusal.verdict.code(), 85);
    for part in ["master.ns", "/etc/hosts", "127.255.255.254"] {
        assert!(refusal.text.en.contains(part), "{}", refusal.text.en);
    }
}

#[test]
fn port_bound_on_one_address_names_its_owner() {
    for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv4Addr::UNSPECIFIED.into()] {
        let listener = TcpListener::bind(SocketAddr::new(address, 0)).expect("bind");
        let port = listener.local_addr().expect("address").port();
        let refusal = check_port(&Host::live(), port).expect_err("in use");
        assert_eq!(refusal.verdict.code(), 87);
        let owner = format!("pid {} (", std::process::id());
        assert!(refusal.text.en.contains(&owner), "{}", refusal.text.en);
        assert!(refusal.hint.en.contains("--master-port"));
    }
}

#[test]
fn port_with_old_connections_is_free() {
    let port = free_port(Ipv4Addr::LOCALHOST.into()).expect("port");
    assert_eq!(check_port(&Host::live(), port), Ok(()));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("bind");
    let client = std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connect");
    let (served, _) = listener.accept().expect("accept");
    drop(listener);
    // torchrun can bind while connections are still open.
    assert_eq!(check_port(&Host::live(), port), Ok(()));
    // The side that closes first stays in TIME_WAIT.
    drop(served);
    drop(client);
    assert_eq!(check_port(&Host::live(), port), Ok(()));
}
