//! Tests of the connections that node 0 accepts as nodes of its job.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::foreign::GREETING;
use super::*;

#[tokio::test]
async fn node_of_another_job_is_refused_harmlessly() {
    let of =
        |job: Option<&str>, nnodes| Config { job: job.map(str::to_owned), ..config(1, nnodes, 0) };
    for (ours, theirs, id) in [
        (of(None, 2), of(None, 3), Id::MusterNnodes),
        (of(Some("a"), 2), of(Some("b"), 2), Id::MusterJob),
    ] {
        let port = port();
        let stray = Config { port, ..theirs };
        let lines = std::sync::Mutex::new(Vec::new());
        let mut say =
            |line: text::lang::Text| lines.lock().expect("a lock").push(line.en.into_owned());
        let zero = Config { node: 0, port, ..ours.clone() };
        let both = async {
            let began = std::time::Instant::now();
            let own = NodeSummary { hostname: "stray".to_owned(), ..summary(1, stray.nnodes) };
            let refusal = other(stray, own).await.expect_err("told");
            assert_eq!(refusal.id, id, "{refusal:?}");
            let code = if id == Id::MusterJob { 87 } else { 88 };
            assert_eq!(refusal.verdict.code(), code, "{refusal:?}");
            assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
            other(Config { port, ..ours.clone() }, summary(1, 2)).await
        };
        let (zero, one) = tokio::join!(
            async {
                let own = summary(0, 2);
                let Assembly::All(gathered) = gather(&zero, own, &mut say).await? else {
                    panic!("alone")
                };
                let agreed = agreement(&gathered, zero.port);
                gathered
                    .agree(agreed, (Box::new(|_, _, _| None), Tally::default()), &mut |_| {})
                    .await
            },
            both
        );
        assert!(matches!(zero, Ok(Settled::Session(_))), "{zero:?}");
        assert!(one.expect("agreed").is_some());
        let lines = lines.into_inner().expect("a lock");
        assert!(lines[0].starts_with("stray (127.0.0.1:") && lines[0].contains("belongs to"));
    }
}

#[tokio::test]
async fn duplicate_of_a_live_node_names_both() {
    let port = port();
    let (zero, first, second) = tokio::join!(
        node_0(config(0, 3, port), summary(0, 3)),
        other(config(1, 3, port), summary(1, 3)),
        other(config(1, 3, port), NodeSummary { hostname: "twin".to_owned(), ..summary(1, 3) }),
    );
    for refusal in [zero.err(), first.err(), second.err()] {
        let refusal = refusal.expect("refused");
        assert_eq!(refusal.id, Id::MusterDuplicate);
        assert!(refusal.text.en.contains("host-1") && refusal.text.en.contains("twin"));
    }
}

#[tokio::test]
async fn silent_node_is_replaced_by_the_newcomer() {
    let port = port();
    let mut patient = config(0, 3, port);
    patient.peer_timeout = Duration::from_secs(15);
    let zero = tokio::spawn(node_0(patient, summary(0, 3)));
    // The node sends a hello and then nothing.
    let host = Host::replayed("/", BTreeMap::new());
    let mute = config(1, 3, port);
    let own = summary(1, 3);
    let mut silent = Box::pin(async { join(&host, &mute, &own, None, &mut |_| {}).await });
    let _ = timeout(Duration::from_millis(400), &mut silent).await;
    let (one, two) = tokio::join!(
        other(config(1, 3, port), summary(1, 3)),
        other(config(2, 3, port), summary(2, 3))
    );
    assert!(one.expect("agreed").is_some() && two.expect("agreed").is_some());
    assert!(zero.await.expect("it ran").expect("agreed").is_some());
}

#[tokio::test]
async fn a_missing_node_is_named_at_the_deadline() {
    let port = port();
    let short = |node| Config { wait_timeout: Duration::from_secs(2), ..config(node, 3, port) };
    let lines = std::sync::Mutex::new(Vec::new());
    let mut say = |line: text::lang::Text| lines.lock().expect("a lock").push(line.en.into_owned());
    const PACE: linux::pace::Pace =
        linux::pace::Pace { first: &[], then: Duration::from_millis(900) };
    let zero = Config { pace: PACE, ..short(0) };
    let (zero, one) =
        tokio::join!(gather(&zero, summary(0, 3), &mut say), other(short(1), summary(1, 3)));
    let refusal = zero.expect_err("one is missing");
    assert_eq!(refusal.text.en, "2 of 3 nodes arrived in 2s; missing node 2 (never connected)");
    assert!(refusal.hint.en.contains("WORLD_SIZE"));
    assert_eq!(one.expect_err("told"), refusal);
    let lines = lines.into_inner().expect("a lock");
    let words =
        format!("2 of 3 nodes have arrived; waiting on port {port} for node 2 (0:00 of 0:02)");
    assert_eq!(lines.first(), Some(&words));
}

#[tokio::test]
async fn plain_torchrun_is_recognised_by_its_first_bytes() {
    let knock = |port| async move {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await else { return false };
        stream.write_all(&GREETING).await.expect("sent");
        let _ = stream.read(&mut [0u8; 16]).await;
        true
    };
    let knocks = |port| async move {
        loop {
            knock(port).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let quick = |without, port| Config {
        without,
        peer_timeout: Duration::from_millis(200),
        grace: Duration::ZERO,
        ..config(0, 3, port)
    };
    let ends = |without| async move {
        let port = port();
        let config = quick(without, port);
        let (proof, began) = (config.proof(), std::time::Instant::now());
        tokio::select! {
            zero = node_0(config, summary(0, 3)) => {
                assert!(began.elapsed() >= proof, "{:?}", began.elapsed());
                zero
            }
            () = knocks(port) => panic!("endless"),
        }
    };
    // A single attempt does not count: it may come from a rank of an attempt that is being ended.
    let once = async {
        let port = port();
        let timeout = Duration::from_secs(12);
        let zero = Config { wait_timeout: timeout, ..quick(Without::Follow, port) };
        tokio::join!(node_0(zero, summary(0, 3)), async {
            while !knock(port).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .0
    };
    let ignored = async {
        let port = port();
        let timeout = Duration::from_secs(12);
        let zero = Config { wait_timeout: timeout, ..quick(Without::Wait, port) };
        tokio::select! {
            zero = node_0(zero, summary(0, 3)) => zero,
            () = knocks(port) => panic!("endless"),
        }
    };
    let (follows, refuses, once, ignored) =
        tokio::join!(ends(Without::Follow), ends(Without::Refuse), once, ignored);
    assert!(follows.expect("goes on").is_none());
    assert_eq!(refuses.expect_err("required").id, Id::MusterPlainTorchrun);
    for missing in [once, ignored] {
        let refusal = missing.expect_err("nobody came");
        assert_eq!(refusal.id, Id::MusterMissing);
        assert!(refusal.text.en.contains("runs torchrun without ranklaunch"), "{refusal:?}");
    }
}

#[tokio::test]
async fn node_without_the_secret_is_rejected() {
    for (theirs, ours) in [
        (secret("0123456789abcdef"), None),
        (None, secret("0123456789abcdef")),
        (secret("0123456789abcdef"), secret("fedcba9876543210")),
    ] {
        let port = port();
        let encrypted = theirs.is_some();
        let timeout = Duration::from_secs(2);
        let zero = Config { secret: ours, wait_timeout: timeout, ..config(0, 2, port) };
        let one = Config { secret: theirs, wait_timeout: timeout, ..config(1, 2, port) };
        let began = std::time::Instant::now();
        let one = async { (other(one, summary(1, 2)).await, began.elapsed()) };
        let (zero, (one, took)) = tokio::join!(node_0(zero, summary(0, 2)), one);
        let zero = zero.expect_err("nobody came");
        assert_eq!(zero.id, Id::MusterMissing);
        assert!(zero.text.en.contains(": rejected"), "{zero:?}");
        assert!(zero.hint.en.contains("RANKLAUNCH_SECRET"), "{zero:?}");
        assert_eq!(one.expect_err("shut out").id, Id::MusterSecret);
        // A node with a secret never ends because of an unproven answer.
        assert_eq!(took >= timeout, encrypted, "{took:?}");
    }
}

#[tokio::test]
async fn other_connections_do_not_disturb() {
    let port = port();
    let noise = async {
        for bytes in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"\x00\xCE\xF7\x85\x3C\x0Drkl?",
            b"rkl/mu\x01\x01\x00\xff\xff\xff\xff",
            b"rk",
            b"",
        ] {
            for _ in 0..50 {
                if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await {
                    let _ = stream.write_all(bytes).await;
                }
            }
        }
        // The last missing node comes only now.
        other(config(1, 2, port), summary(1, 2)).await
    };
    let (zero, one) = tokio::join!(node_0(config(0, 2, port), summary(0, 2)), noise);
    assert!(zero.expect("agreed").is_some() && one.expect("agreed").is_some());
}
