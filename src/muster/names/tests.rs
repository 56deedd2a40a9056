//! Tests of the resolution with files below a folder and a small DNS server on loopback.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex};

use super::*;

fn host(files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
    let folder = tempfile::tempdir().expect("folder");
    std::fs::create_dir(folder.path().join("etc")).expect("etc");
    for (name, text) in files {
        std::fs::write(folder.path().join("etc").join(name), text).expect("file");
    }
    let host = Host::replayed(folder.path(), BTreeMap::new());
    (folder, host)
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("runtime")
        .block_on(future)
}

fn end(after: Duration) -> Instant {
    Instant::now() + after
}

/// Answer to an A question, as `zone` gives it for the n-th question for a name: an address, NXDOMAIN, or silence. The
/// server gives its port and the names that were asked for.
enum Reply {
    Address(Ipv4Addr),
    NoSuchName,
    Silence,
}

fn server(zone: impl Fn(&str, usize) -> Reply + Send + 'static) -> (u16, Arc<Mutex<Vec<String>>>) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let port = socket.local_addr().expect("address").port();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    std::thread::spawn(move || {
        let mut packet = [0; 1500];
        while let Ok((length, peer)) = socket.recv_from(&mut packet) {
            let query = &packet[..length];
            let mut name = String::new();
            let mut at = 12;
            while query[at] != 0 {
                let label = &query[at + 1..=at + usize::from(query[at])];
                name.push_str(&String::from_utf8_lossy(label));
                name.push('.');
                at += 1 + usize::from(query[at]);
            }
            let is_a = query[at + 1..at + 3] == [0, 1];
            let before = {
                let mut log = log.lock().expect("log");
                let before = log.iter().filter(|one| **one == name).count();
                if is_a {
                    log.push(name.clone());
                }
                before
            };
            let question = &query[12..at + 5];
            let reply = zone(&name, before);
            let (code, answers) = match reply {
                Reply::Silence => continue,
                Reply::NoSuchName => (3, 0),
                Reply::Address(_) => (0, u8::from(is_a)),
            };
            let mut answer = query[..2].to_vec();
            answer.extend([0x85, 0x80 | code, 0, 1, 0, answers, 0, 0, 0, 0]);
            answer.extend(question);
            if let (Reply::Address(address), true) = (reply, is_a) {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                answer.extend(address.octets());
            }
            socket.send_to(&answer, peer).expect("send");
        }
    });
    (port, asked)
}

fn on(port: u16, search: &[&str], ndots: usize) -> Configuration {
    let search = search.iter().map(|domain| (*domain).to_owned()).collect();
    Configuration { servers: vec![Ipv4Addr::LOCALHOST.into()], search, ndots, port }
}

#[test]
fn literals_need_no_files() {
    let (_folder, host) = host(&[]);
    for (text, address) in [
        ("10.0.0.1", "10.0.0.1"),
        ("fd00::1", "fd00::1"),
        ("[fd00::1]", "fd00::1"),
        ("fe80::1%eth0", "fe80::1"),
    ] {
        let found = run(resolve(&host, text, Duration::from_secs(1), None));
        assert_eq!(found, Ok(vec![address.parse().expect("address")]));
    }
    for text in ["", "[", "[]", "10.0.0.256", "None", "tcp://10.0.0.1:80"] {
        assert_eq!(literal(text), None, "{text}");
    }
}

#[test]
fn the_hosts_file_of_the_host_counts_first() {
    let (_folder, host) = host(&[(
        "hosts",
        "# 9.9.9.9 master\n10.1.1.1 Master master.ns # x\nfd00::1\tmaster\n10.1.1.1 master\n",
    )]);
    let found = run(resolve(&host, "master", Duration::from_secs(1), None)).expect("listed");
    assert_eq!(found, ["10.1.1.1", "fd00::1"].map(|text| literal(text).expect("address")));
    let found = run(resolve(&host, "localhost", Duration::from_secs(1), None)).expect("always");
    assert!(found.iter().all(IpAddr::is_loopback));
}

#[test]
fn resolv_conf_is_read_as_libc_reads_it() {
    let text = "domain a.b\nsearch ns.svc.cluster.local svc.cluster.local # c\nnameserver 10.96.0.10\n\
                nameserver nonsense\nnameserver fd00::a\noptions ndots:5 timeout:1\n";
    let read = Configuration::parse(text);
    assert_eq!(read.servers, [literal("10.96.0.10"), literal("fd00::a")].map(Option::unwrap));
    assert_eq!(
        read.candidates("m.ns"),
        ["m.ns.ns.svc.cluster.local.", "m.ns.svc.cluster.local.", "m.ns."]
    );
    assert_eq!(read.candidates("m.ns."), ["m.ns."]);
    let empty = Configuration::parse("");
    assert_eq!(empty.servers, [IpAddr::from(Ipv4Addr::LOCALHOST)]);
    assert_eq!(empty.candidates("m"), ["m."]);
    assert_eq!(on(53, &["x"], 1).candidates("a.b"), ["a.b.", "a.b.x."]);
}

#[test]
fn the_search_list_is_walked_in_order() {
    let (port, asked) = server(|name, _| match name {
        "m.two." => Reply::Address(Ipv4Addr::new(10, 0, 0, 2)),
        _ => Reply::NoSuchName,
    });
    let found = run(ask(&on(port, &["one", "two", "three"], 1), "m", end(Duration::from_secs(5))));
    assert_eq!(found, Ok(vec![Ipv4Addr::new(10, 0, 0, 2).into()]));
    assert_eq!(
        *asked.lock().expect("log"),
        ["m.one.", "m.two."],
        "none after the one that answers"
    );
}

#[test]
fn name_is_found_once_it_appears() {
    let (port, _) = server(|_, before| match before {
        0 => Reply::NoSuchName,
        _ => Reply::Address(Ipv4Addr::new(10, 0, 0, 3)),
    });
    let configuration = on(port, &[], 1);
    let first = run(ask(&configuration, "m", end(Duration::from_secs(5)))).expect_err("not yet");
    assert!(first[0].answer.en.contains("Non-Existent Domain"), "{first:?}");
    assert_eq!(first[0].asked.en, "m. of 127.0.0.1");
    assert!(run(ask(&configuration, "m", end(Duration::from_secs(5)))).is_ok());
}

#[test]
fn silence_is_bounded() {
    let (port, _) = server(|_, _| Reply::Silence);
    let started = std::time::Instant::now();
    let configuration = on(port, &["a", "b", "c", "d", "e"], 5);
    let answers =
        run(ask(&configuration, "m", end(Duration::from_millis(700)))).expect_err("silent");
    assert!(started.elapsed() < Duration::from_millis(1500), "{:?}", started.elapsed());
    assert_eq!(answers.len(), 6);

    let started = std::time::Instant::now();
    let answers = run(ask(&configuration, "m", end(Duration::from_secs(60)))).expect_err("silent");
    assert!(started.elapsed() < Duration::from_secs(6), "all six names: {:?}", started.elapsed());
    assert!(answers.iter().all(|one| one.answer.en.contains("no answer in 2 s")), "{answers:?}");
}

#[test]
fn a_silent_name_does_not_hide_the_next() {
    let (port, _) = server(|name, _| match name {
        "m.x." => Reply::Silence,
        _ => Reply::Address(Ipv4Addr::new(10, 0, 0, 4)),
    });
    let found = run(ask(&on(port, &["y"], 1), "m.x", end(Duration::from_secs(10))));
    assert_eq!(found, Ok(vec![Ipv4Addr::new(10, 0, 0, 4).into()]));
}

#[test]
fn odd_names_and_servers_give_explained_errors() {
    let (_folder, host) = host(&[("resolv.conf", "nameserver 127.0.0.1\n")]);
    let long = "x".repeat(300);
    let known: LastResort = Arc::new(|name: &str, _: Duration| {
        if name == "nss" {
            Ok(vec![IpAddr::from([10, 0, 0, 5])])
        } else {
            Err("unknown".to_owned())
        }
    });
    for name in ["", ".", "..", "a..b", "a b", "tcp://10.0.0.1:80", "\u{0}", "主", &long] {
        let error = run(resolve(&host, name, Duration::from_secs(3), Some(&known)))
            .expect_err("no such name");
        let text = error.to_string();
        assert!(text.contains("/etc/hosts: ") && text.contains("getaddrinfo: unknown"), "{text}");
    }
    let found = run(resolve(&host, "nss", Duration::from_secs(3), Some(&known)));
    assert_eq!(found, Ok(vec![[10, 0, 0, 5].into()]));
}
