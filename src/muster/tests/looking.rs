//! Tests of a node that finds a program in place of node 0.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::io::AsyncWriteExt;

use super::*;
use linux::host::Host;
use verdict::Refusal;

/// The result of a node that finds `port` in place of node 0.
async fn looking(config: Config) -> (Result<Joined, Refusal>, Duration, Vec<String>) {
    let began = std::time::Instant::now();
    let mut lines = Vec::new();
    let host = Host::replayed("/", BTreeMap::new());
    let own = summary(config.node, config.nnodes);
    let joined =
        join(&host, &config, &own, None, &mut |line| lines.push(line.en.into_owned())).await;
    (joined, began.elapsed(), lines)
}

#[tokio::test]
async fn unmarked_store_counts_after_outliving_every_attempt() {
    let (port, _) = foreign::tests::store().await;
    let quick = |port| Config {
        peer_timeout: Duration::from_millis(200),
        grace: Duration::ZERO,
        wait_timeout: Duration::from_secs(10),
        ..config(1, 2, port)
    };
    let proof = quick(port).proof();
    assert!(proof > Duration::from_secs(5) && proof < Duration::from_secs(9), "{proof:?}");
    let (left, encrypted, waits) = tokio::join!(
        looking(quick(port)),
        looking(Config { secret: secret("0123456789abcdef"), ..quick(port) }),
        looking(Config { without: Without::Wait, ..quick(port) }),
    );
    let (joined, took, lines) = left;
    assert!(matches!(joined, Ok(Joined::Alone(_))), "{joined:?}");
    assert!(took >= proof, "{took:?}");
    assert!(lines[0].contains("is torch's store: node 0 runs torchrun"), "{lines:?}");
    for (joined, took, _) in [encrypted, waits] {
        let refusal = joined.expect_err("waited");
        assert_eq!((refusal.verdict.code(), refusal.id), (88, Id::MusterStore));
        assert!(took >= Duration::from_secs(10), "{took:?}");
    }
}

#[tokio::test]
async fn marked_store_is_waited_for_or_refused() {
    const PLACE: &[u8] = b"ranklaunch/job";
    let timeout = Duration::from_secs(6);
    let encrypted = secret("0123456789abcdef");
    let other = JobKey { job: Some("another".to_owned()), port: 1, nnodes: 4 };
    let own = JobKey { job: None, port: 1, nnodes: 2 };
    let rows = [
        // A replaced node finds an attempt of its own job, and waits.
        (own.encode(), PLACE, None, 88, "this job's running attempt"),
        // A store of another job ends the wait, unless there is a secret, which the store cannot prove.
        (other.encode(), PLACE, None, 87, "job another; this node belongs to job ours"),
        (other.encode(), PLACE, encrypted, 88, "is the store of another job: job another"),
        // A complete plain job of another user is not ours either.
        (Vec::new(), b"/none/torchelastic/role_info/1", None, 87, "has a node 1 already"),
    ];
    let mut tasks = tokio::task::JoinSet::new();
    for (value, place, secret, code, words) in rows {
        tasks.spawn(async move {
            let (port, values) = foreign::tests::store().await;
            let mut value = value;
            let mut job = Some("ours".to_owned());
            if let Some(key) = JobKey::decode(&value).filter(|key| key.job.is_none()) {
                value = JobKey { port, ..key }.encode();
                job = None;
            }
            values.lock().expect("a lock").insert(place.to_vec(), value);
            let (joined, took, lines) =
                looking(Config { secret, wait_timeout: timeout, job, ..config(1, 2, port) }).await;
            let refusal = joined.expect_err("refused");
            assert_eq!(refusal.verdict.code(), code, "{refusal:?}");
            assert!(refusal.text.en.contains(words), "{words}: {refusal:?}");
            assert_eq!(took >= timeout, code == 88, "{took:?}");
            assert!(!lines.is_empty() && !lines[0].contains("nothing was tried"), "{lines:?}");
        });
    }
    tasks.join_all().await;
}

/// Answers each connection with `bytes` and keeps it open.
async fn answering(bytes: &'static [u8]) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(bytes).await;
            held.push(stream);
        }
    });
    port
}

#[tokio::test]
async fn other_holders_of_the_port_are_named() {
    const SECRET: Option<&str> = Some("0123456789abcdef");
    let rows: [(&'static [u8], Option<&str>, &str, Id); 6] = [
        (b"", None, "accepts connections but does not answer", Id::MasterReach),
        (b"rkl/mu\x09\x00\x01", None, "whose version does not fit", Id::MusterVersion),
        (b"rkl/mu\x09\x00\x01", SECRET, "whose version does not fit", Id::MusterVersion),
        (b"rkl/mu\x05\x00\x02", SECRET, "but node 0 (127.0.0.1:", Id::MusterSecret),
        (b"HTTP/1.1 400 No\r\n\r\n", None, "is an HTTP server: another", Id::MasterReach),
        (b"+PONG and more\r\n", None, "does not answer as node 0", Id::MasterReach),
    ];
    let mut tasks = tokio::task::JoinSet::new();
    for (bytes, words, seen, id) in rows {
        tasks.spawn(async move {
            let port = answering(bytes).await;
            let secret = words.and_then(secret);
            let timeout = Duration::from_secs(5);
            let (joined, took, lines) =
                looking(Config { secret, wait_timeout: timeout, ..config(1, 2, port) }).await;
            let refusal = joined.expect_err("waited");
            let code = if id == Id::MasterReach { 86 } else { 88 };
            assert_eq!((refusal.verdict.code(), refusal.id), (code, id), "{refusal:?}");
            assert!(refusal.text.en.contains(seen), "{seen}: {refusal:?}");
            assert!(took >= timeout && took < 2 * timeout, "{took:?}");
            assert!(lines[0].contains("(0:03 of 0:05): ") && lines[0].contains(seen), "{lines:?}");
        });
    }
    tasks.join_all().await;
}

#[tokio::test]
async fn node_0_refuses_on_the_second_port() {
    let port = answering(b"").await;
    let taken = Refusal::new(
        Id::PortFree,
        text::text!("master port {port} is in use", "Master 端口 {port} 已被占用"),
        text::lang::Text::same(""),
    );
    for words in [None, Some("0123456789abcdef")] {
        let of = |node| Config { secret: words.and_then(secret), ..config(node, 3, port) };
        let (zero, one, two) = (of(0), of(1), of(2));
        let (told, one, two) =
            tokio::join!(turn_away(&zero, "host-0", &taken), looking(one), looking(two));
        assert_eq!(told, 2);
        for (joined, took, _) in [one, two] {
            let refusal = joined.expect_err("told");
            assert_eq!((refusal.verdict.code(), refusal.id), (87, Id::PortFree));
            assert!(refusal.text.en.starts_with("node 0 (host-0) cannot take part: master port"));
            assert!(took < Duration::from_secs(8), "{took:?}");
        }
    }
}
