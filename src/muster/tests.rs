//! Whole musters over loopback: several members against one node 0.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::measure::Task;
use super::store::GREETING;
use super::types::card;
use super::*;
use crate::host::Host;
use crate::verdict::Refusal;
use crate::verdict::{Class, Id};

fn port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|one| one.local_addr())
        .expect("a port")
        .port()
}

pub(super) fn config(node: u32, nnodes: u32, port: u16) -> Config {
    Config {
        purpose: Purpose::Run,
        unit: Unit::Node,
        node,
        nnodes,
        job: None,
        master_addr: "127.0.0.1".to_owned(),
        port,
        patience: Duration::from_secs(20),
        pace: crate::pace::Pace::STANDARD,
        peer_timeout: Duration::from_secs(2),
        secret: None,
        without: Without::Follow,
        grace: Duration::from_secs(1),
        is_world_size: true,
        memory: Arc::new(|| Some(Memory { used: 99, limit: 100 })),
    }
}

pub(super) fn secret(words: &str) -> Option<Secret> {
    let environment = BTreeMap::from([("RANKLAUNCH_SECRET".into(), words.into())]);
    Secret::read(&Host::replayed("/", environment)).expect("long enough")
}

fn agreement(gathered: &Gathered, port: u16) -> Agreement {
    let nproc = gathered.fewest();
    let nnodes = u32::try_from(gathered.cards().len()).expect("few");
    Agreement {
        nnodes,
        nproc,
        world: nnodes * nproc,
        ulysses: 1,
        ring: 1,
        heads: None,
        master_port: port,
        run_id: "run-1".to_owned(),
        timestamp: "20250102-030405".to_owned(),
        attempt: 0,
    }
}

async fn node_0(config: Config, own: Card) -> Result<Option<Session>, Refusal> {
    loop {
        let Assembly::All(gathered) = gather(&config, own.clone(), &mut |_| {}).await? else {
            return Ok(None);
        };
        let agreed = agreement(&gathered, config.port);
        if let Settled::Session(session) =
            gathered.agree(agreed, Box::new(|_, _| None), &mut |_| {}).await?
        {
            return Ok(Some(session));
        }
    }
}

async fn other(config: Config, own: Card) -> Result<Option<(Session, Agreement)>, Refusal> {
    let host = Host::replayed("/", BTreeMap::new());
    loop {
        let Joined::Offer(offer) = join(&host, &config, &own, None, &mut |_| {}).await? else {
            return Ok(None);
        };
        let agreed = offer.agreement.clone();
        match offer.accept().await? {
            Accepted::Session(session) => return Ok(Some((session, agreed))),
            Accepted::Alone(_) => return Ok(None),
            Accepted::Lost => {}
        }
    }
}

/// Three sessions of one job; cards as given for nodes 1 and 2.
async fn three(change: impl Fn(&mut Config)) -> (Session, Session, Session) {
    let port = port();
    let of = |node| {
        let mut config = config(node, 3, port);
        change(&mut config);
        config
    };
    let (zero, one, two) =
        tokio::join!(node_0(of(0), card(0, 3)), other(of(1), card(1, 3)), other(of(2), card(2, 3)));
    (
        zero.expect("agreed").expect("a muster"),
        one.expect("agreed").expect("a muster").0,
        two.expect("agreed").expect("a muster").0,
    )
}

async fn verdict(session: &mut Session) -> Event {
    loop {
        match timeout(Duration::from_secs(10), session.next_event()).await.expect("a verdict") {
            Event::Stop => {}
            event => return event,
        }
    }
}

fn failure(node: u32, at: i64, whole: bool) -> Cause {
    Cause {
        node,
        on: None,
        hostname: format!("host-{node}"),
        rank: Some(node),
        id: Id::RankExit,
        class: Class::Script,
        code: 7,
        text: crate::text!("rank {node} failed", "rank {node} 失败"),
        hint: crate::lang::Text::same(""),
        at,
        lines: if whole { vec!["the last line".to_owned()] } else { Vec::new() },
        whole,
        loss: None,
    }
}

#[tokio::test]
async fn the_worst_node_decides_and_the_port_is_free_afterwards() {
    let port = port();
    let seven = Card { most: 7, gpus: 7, ..card(2, 3) };
    let (zero, one, two) = tokio::join!(
        node_0(config(0, 3, port), card(0, 3)),
        other(config(1, 3, port), card(1, 3)),
        other(config(2, 3, port), seven)
    );
    let (session, agreed) = one.expect("agreed").expect("a muster");
    assert_eq!((agreed.nproc, agreed.world), (7, 21));
    assert_eq!(two.expect("agreed").expect("a muster").1, agreed);
    // torchrun binds the port beside the living connections.
    let listener = std::net::TcpListener::bind(("0.0.0.0", port));
    assert!(listener.is_ok(), "{listener:?}");
    drop((zero, session));
}

#[tokio::test]
async fn the_first_failure_reaches_all_with_its_last_lines() {
    let (mut zero, mut one, mut two) = three(|_| {}).await;
    let at = now();
    // The consequence is reported first, and happened later.
    one.failed(failure(1, at, true));
    two.failed(failure(2, at - 60, false));
    two.failed(failure(2, at + 500, true));
    let expected = failure(2, at - 60, true);
    for session in [&mut zero, &mut one, &mut two] {
        let Event::Verdict { cause, again } = verdict(session).await else { panic!("no verdict") };
        assert_eq!(again, None);
        assert!((cause.at - expected.at).abs() < 20, "{cause:?}");
        assert_eq!(Cause { at: expected.at, ..*cause }, expected);
    }
}

#[tokio::test]
async fn a_success_stops_nobody_and_all_leave_together() {
    let (mut zero, mut one, mut two) = three(|_| {}).await;
    one.done();
    zero.done();
    let early = timeout(Duration::from_millis(300), one.next_event()).await;
    assert!(early.is_err(), "{early:?}");
    two.done();
    for session in [&mut zero, &mut one, &mut two] {
        assert_eq!(verdict(session).await, Event::AllDone);
    }
}

#[tokio::test]
async fn a_node_that_dies_is_named_at_once_with_its_memory() {
    // Sealed, since a reset must be noticed there as well.
    let (mut zero, mut one, two) = three(|config| config.secret = secret("0123456789abcdef")).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(two);
    for session in [&mut zero, &mut one] {
        let Event::Verdict { cause, .. } = verdict(session).await else { panic!("no verdict") };
        assert_eq!((cause.node, cause.loss), (2, Some(Loss::Died)));
        assert!(cause.text.en.contains("99 % of its memory limit"), "{}", cause.text.en);
    }
}

#[tokio::test]
async fn node_0_vanishing_ends_the_job_for_all() {
    let (zero, mut one, mut two) = three(|_| {}).await;
    drop(zero);
    for session in [&mut one, &mut two] {
        let Event::Verdict { cause, .. } = verdict(session).await else { panic!("no verdict") };
        assert_eq!((cause.node, cause.id), (0, Id::NodeDied));
    }
}

#[tokio::test]
async fn nodes_that_do_not_fit_are_refused_everywhere() {
    let port = port();
    let other_rule = Card { rule: crate::settings::LayoutRule::UlyssesWorld, ..card(1, 2) };
    let (zero, one) =
        tokio::join!(node_0(config(0, 2, port), card(0, 2)), other(config(1, 2, port), other_rule));
    let (zero, one) = (zero.expect_err("refused"), one.expect_err("refused"));
    assert_eq!(zero, one);
    assert_eq!(zero.id, Id::MusterRule);

    // One job by its name, whose nodes count differently.
    let named = |node, nnodes| Config { job: Some("a".to_owned()), ..config(node, nnodes, port) };
    let (zero, one) = tokio::join!(node_0(named(0, 2), card(0, 2)), other(named(1, 3), card(1, 3)));
    assert_eq!(zero.expect_err("refused").id, Id::MusterNnodes);
    assert_eq!(one.expect_err("refused").id, Id::MusterNnodes);
}

#[tokio::test]
async fn a_stray_of_another_job_is_told_so_and_costs_nothing() {
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
            |line: crate::lang::Text| lines.lock().expect("a lock").push(line.en.into_owned());
        let zero = Config { node: 0, port, ..ours.clone() };
        let both = async {
            let began = std::time::Instant::now();
            let own = Card { hostname: "stray".to_owned(), ..card(1, stray.nnodes) };
            let refusal = other(stray, own).await.expect_err("told");
            assert_eq!(refusal.id, id, "{refusal:?}");
            let code = if id == Id::MusterJob { 87 } else { 88 };
            assert_eq!(refusal.verdict.code(), code, "{refusal:?}");
            assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
            other(Config { port, ..ours.clone() }, card(1, 2)).await
        };
        let (zero, one) = tokio::join!(
            async {
                let own = card(0, 2);
                let Assembly::All(gathered) = gather(&zero, own, &mut say).await? else {
                    panic!("alone")
                };
                let agreed = agreement(&gathered, zero.port);
                gathered.agree(agreed, Box::new(|_, _| None), &mut |_| {}).await
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
async fn a_living_rank_is_not_given_away_and_both_are_named() {
    let port = port();
    let (zero, first, second) = tokio::join!(
        node_0(config(0, 3, port), card(0, 3)),
        other(config(1, 3, port), card(1, 3)),
        other(config(1, 3, port), Card { hostname: "twin".to_owned(), ..card(1, 3) }),
    );
    for refusal in [zero.err(), first.err(), second.err()] {
        let refusal = refusal.expect("refused");
        assert_eq!(refusal.id, Id::MusterDuplicate);
        assert!(refusal.text.en.contains("host-1") && refusal.text.en.contains("twin"));
    }
}

#[tokio::test]
async fn a_dead_rank_is_replaced_by_the_later_one() {
    let port = port();
    let mut patient = config(0, 3, port);
    patient.peer_timeout = Duration::from_secs(15);
    let zero = tokio::spawn(node_0(patient, card(0, 3)));
    // Says hello, then never anything again.
    let host = Host::replayed("/", BTreeMap::new());
    let mute = config(1, 3, port);
    let own = card(1, 3);
    let mut silent = Box::pin(async { join(&host, &mute, &own, None, &mut |_| {}).await });
    let _ = timeout(Duration::from_millis(400), &mut silent).await;
    let (one, two) =
        tokio::join!(other(config(1, 3, port), card(1, 3)), other(config(2, 3, port), card(2, 3)));
    assert!(one.expect("agreed").is_some() && two.expect("agreed").is_some());
    assert!(zero.await.expect("it ran").expect("agreed").is_some());
}

#[tokio::test]
async fn a_missing_node_is_named_at_the_deadline() {
    let port = port();
    let short = |node| Config { patience: Duration::from_secs(2), ..config(node, 3, port) };
    let lines = std::sync::Mutex::new(Vec::new());
    let mut say =
        |line: crate::lang::Text| lines.lock().expect("a lock").push(line.en.into_owned());
    const PACE: crate::pace::Pace =
        crate::pace::Pace { first: &[], then: Duration::from_millis(900) };
    let zero = Config { pace: PACE, ..short(0) };
    let (zero, one) =
        tokio::join!(gather(&zero, card(0, 3), &mut say), other(short(1), card(1, 3)));
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
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await {
            stream.write_all(&GREETING).await.expect("sent");
            let _ = stream.read(&mut [0u8; 16]).await;
        }
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
            zero = node_0(config, card(0, 3)) => {
                assert!(began.elapsed() >= proof, "{:?}", began.elapsed());
                zero
            }
            () = knocks(port) => panic!("endless"),
        }
    };
    // Once is none: it may be a rank of an attempt that is being ended.
    let once = async {
        let port = port();
        let patience = Duration::from_secs(12);
        let zero = Config { patience, ..quick(Without::Follow, port) };
        tokio::join!(node_0(zero, card(0, 3)), async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            knock(port).await;
        })
        .0
    };
    let ignored = async {
        let port = port();
        let patience = Duration::from_secs(12);
        let zero = Config { patience, ..quick(Without::Wait, port) };
        tokio::select! {
            zero = node_0(zero, card(0, 3)) => zero,
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
async fn without_the_secret_nobody_gets_in() {
    for (theirs, ours) in [
        (secret("0123456789abcdef"), None),
        (None, secret("0123456789abcdef")),
        (secret("0123456789abcdef"), secret("fedcba9876543210")),
    ] {
        let port = port();
        let sealed = theirs.is_some();
        let patience = Duration::from_secs(2);
        let zero = Config { secret: ours, patience, ..config(0, 2, port) };
        let one = Config { secret: theirs, patience, ..config(1, 2, port) };
        let began = std::time::Instant::now();
        let one = async { (other(one, card(1, 2)).await, began.elapsed()) };
        let (zero, (one, took)) = tokio::join!(node_0(zero, card(0, 2)), one);
        let zero = zero.expect_err("nobody came");
        assert_eq!(zero.id, Id::MusterMissing);
        assert!(zero.text.en.contains(": rejected"), "{zero:?}");
        assert!(zero.hint.en.contains("RANKLAUNCH_SECRET"), "{zero:?}");
        assert_eq!(one.expect_err("shut out").id, Id::MusterSecret);
        // Nothing that the secret does not prove ends a node that has one.
        assert_eq!(took >= patience, sealed, "{took:?}");
    }
}

#[tokio::test]
async fn strangers_do_not_disturb() {
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
        // Only then the node that all wait for.
        other(config(1, 2, port), card(1, 2)).await
    };
    let (zero, one) = tokio::join!(node_0(config(0, 2, port), card(0, 2)), noise);
    assert!(zero.expect("agreed").is_some() && one.expect("agreed").is_some());
}

/// One node of a check: what it found, or how it ended otherwise.
async fn checked(config: Config) -> Result<Found, String> {
    let words = |refusal: Refusal| refusal.text.en.into_owned();
    let host = Host::replayed("/", BTreeMap::new());
    let target = Target::open([127, 0, 0, 1].into()).await.expect("a port");
    let address = Some(std::net::SocketAddr::from(([127, 0, 0, 1], target.port())));
    let own = Station { address, ..Station::default() };
    let card = Card { station: Some(Box::new(own.clone())), ..card(config.node, config.nnodes) };
    if config.node == 0 {
        return match gather(&config, card, &mut |_| {}).await.map_err(words)? {
            Assembly::All(gathered) => Ok(gathered.survey(own, target).await),
            Assembly::Alone(text) => Err(text.en.into_owned()),
        };
    }
    match join(&host, &config, &card, None, &mut |_| {}).await.map_err(words)? {
        Joined::Visit(visit) => visit.follow(target).await.map_err(|loss| format!("{loss:?}")),
        _ => Err("no survey".to_owned()),
    }
}

fn check_config(node: u32, nnodes: u32, port: u16) -> Config {
    Config { purpose: Purpose::Check, ..config(node, nnodes, port) }
}

#[tokio::test]
async fn all_nodes_of_a_check_learn_every_link() {
    for words in [None, Some("correct horse battery")] {
        let port = port();
        let of = |node| Config { secret: words.and_then(secret), ..check_config(node, 3, port) };
        let (zero, one, two) = tokio::join!(checked(of(0)), checked(of(1)), checked(of(2)));
        let zero = zero.expect("found");
        assert_eq!((&zero, &zero), (&one.expect("found"), &two.expect("found")));
        assert_eq!((zero.links.len(), zero.lost.len(), zero.unmeasured), (6, 0, 0));
        for link in &zero.links {
            let speed = link.speed().unwrap_or_else(|| panic!("{link:?}"));
            assert!(speed.floor <= speed.median && speed.median <= speed.p99, "{speed:?}");
            assert!(speed.bytes > 0 && speed.gigabits() > 0.0, "{speed:?}");
        }
    }
}

#[tokio::test]
async fn many_nodes_measure_to_their_neighbours_and_node_0_keeps_the_numbers() {
    const NODES: u32 = 18;
    let port = port();
    let mut tasks = tokio::task::JoinSet::new();
    for node in 0..NODES {
        let config = check_config(node, NODES, port);
        let config = Config { peer_timeout: Duration::from_secs(15), ..config };
        tasks.spawn(async move { (node, checked(config).await.expect("found")) });
    }
    let found: BTreeMap<u32, Found> = tasks.join_all().await.into_iter().collect();
    let zero = &found[&0];
    let pairs: Vec<_> = zero.links.iter().map(|link| (link.from, link.to)).collect();
    assert_eq!(pairs.len(), 2 * NODES as usize, "{pairs:?}");
    assert!(pairs.contains(&(17, 0)) && pairs.contains(&(8, 9)), "{pairs:?}");
    assert_eq!((zero.nodes.len(), zero.unmeasured), (NODES as usize, 0));
    for (node, found) in found.iter().filter(|(node, _)| **node > 0) {
        assert_eq!((found.nnodes, found.links.len()), (NODES, 0), "{node}");
        let count = |found: &Found| (found.odd_count, found.odd.len().min(16), found.lost.len());
        assert_eq!(count(found), count(zero), "{node}");
    }
}

#[tokio::test]
async fn a_listener_gives_a_stranger_nothing() {
    let mut target = Target::open([127, 0, 0, 1].into()).await.expect("a port");
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], target.port()));
    target.serve(None, "the token".to_owned());
    let task = |token: &str| Task {
        node: 1,
        nnodes: 2,
        hostname: "me".to_owned(),
        to: 0,
        address,
        token: token.to_owned(),
        secret: None,
    };
    let link = task("another token").run().await;
    assert!(link.speed().is_none(), "{link:?}");
    // Noise, and a node of the job that has come to the wrong door.
    let mut stranger = TcpStream::connect(address).await.expect("connected");
    stranger.write_all(&[0u8; 4096]).await.expect("sent");
    let mut answer = Vec::new();
    let read = timeout(Duration::from_secs(10), stranger.read_to_end(&mut answer)).await;
    assert!(read.is_ok() && answer.is_empty(), "{answer:?}");
    let to_it = Config { patience: Duration::from_secs(1), ..check_config(1, 2, address.port()) };
    assert!(checked(to_it).await.is_err());
    // The control: who shows the token is served, whatever came before.
    let link = task("the token").run().await;
    assert!(link.speed().is_some(), "{link:?}");
}

#[tokio::test]
async fn who_comes_to_run_and_who_comes_to_check_do_not_meet() {
    let port = port();
    let zero = Config { patience: Duration::from_secs(3), ..check_config(0, 2, port) };
    let one = Config { patience: Duration::from_secs(1), ..config(1, 2, port) };
    let (zero, one) = tokio::join!(checked(zero), other(one, card(1, 2)));
    assert!(zero.expect_err("alone").contains("missing node 1"));
    let refusal = one.expect_err("another purpose");
    assert!(refusal.text.en.contains("`ranklaunch check`"), "{}", refusal.text.en);
}

#[tokio::test]
async fn a_node_that_is_lost_while_links_are_measured_is_named_and_the_rest_goes_on() {
    // The silent one is given up when a step of node 0 is over.
    tokio::join!(lost_meanwhile(Loss::Died), lost_meanwhile(Loss::Silent));
}

async fn lost_meanwhile(loss: Loss) {
    let port = port();
    let dies = async {
        let host = Host::replayed("/", BTreeMap::new());
        let (config, node) = (check_config(1, 3, port), card(1, 3));
        let address = Some(std::net::SocketAddr::from(([127, 0, 0, 1], 1)));
        let station = Some(Box::new(Station { address, ..Station::default() }));
        let card = Card { station, ..node };
        let joined = join(&host, &config, &card, None, &mut |_| {}).await.expect("joined");
        assert!(matches!(joined, Joined::Visit(_)), "the links are measured");
        // Its connection is open as long as it is held.
        (loss == Loss::Silent).then_some(joined)
    };
    let of = |node| check_config(node, 3, port);
    let (zero, _held, two) = tokio::join!(checked(of(0)), dies, checked(of(2)));
    let zero = zero.expect("found");
    assert_eq!(zero, two.expect("found"));
    assert_eq!(zero.lost, [(1, loss)]);
    let pairs: Vec<_> = zero.links.iter().map(|link| (link.from, link.to)).collect();
    assert_eq!(pairs, [(0, 2), (2, 0)], "nothing is said of the way to a dead node");
    assert_eq!(zero.odd, []);
}
