//! How long a muster of many nodes takes, and what it costs node 0.
//!
//! Node 0 is the real one, in a process of its own; the others are simulated here,
//! one task each, over loopback by two addresses. `make bench-muster` prints one
//! line per number of nodes, open and sealed, and fails when the largest misses
//! its budget.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ranklaunch::host::Host;
use ranklaunch::lang::Text;
use ranklaunch::muster::{
    self, Accepted, Agreement, Assembly, Card, Cause, Config, Event, Joined, Memory, Restarts,
    Secret, Session, Settled,
};
use ranklaunch::settings::{Engine, LayoutRule};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::LocalSet;

const SIZES: [u32; 4] = [10, 100, 1_000, 10_000];
/// Budget of the largest: agreement and node 0's peak memory.
const SECONDS: f64 = 5.0;
const MEGABYTES: u64 = 100;
const SECRET: &str = "a secret of the bench";

fn main() -> ExitCode {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("descriptors");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let words: Vec<String> = std::env::args().collect();
    if let [_, role, nodes, port, sealed] = words.as_slice()
        && role == "node-0"
    {
        let config = config(0, number(nodes), number(port), sealed == "sealed");
        runtime.block_on(node_0(config));
        return ExitCode::SUCCESS;
    }
    println!(
        "{:>6} {:>7} {:>11} {:>11} {:>9}",
        "nodes", "channel", "agreement", "verdict", "node 0"
    );
    let mut within = true;
    for nodes in SIZES {
        for sealed in [false, true] {
            let (seconds, verdict, megabytes) =
                LocalSet::new().block_on(&runtime, muster_of(nodes, sealed));
            let channel = if sealed { "sealed" } else { "open" };
            println!("{nodes:>6} {channel:>7} {seconds:>9.3} s {verdict:>9.3} s {megabytes:>6} MB");
            within &= seconds <= SECONDS && megabytes <= MEGABYTES;
        }
    }
    if within { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word} is no number"))
}

fn config(node: u32, nnodes: u32, port: u16, sealed: bool) -> Config {
    let environment = BTreeMap::from([("RANKLAUNCH_SECRET".into(), SECRET.into())]);
    let secret = Secret::read(&Host::replayed("/", environment)).expect("a secret");
    Config {
        node,
        nnodes,
        job: Some("bench".to_owned()),
        master_addr: if node.is_multiple_of(2) { "127.0.0.1" } else { "127.0.0.2" }.to_owned(),
        port,
        patience: Duration::from_secs(120),
        progress_every: Duration::from_secs(30),
        peer_timeout: muster::PEER_TIMEOUT,
        secret: secret.filter(|_| sealed),
        may_fall_back: true,
        memory: Arc::new(|| Some(Memory { used: 1, limit: 2 })),
    }
}

fn card(node: u32, nnodes: u32) -> Card {
    Card {
        node,
        nnodes,
        hostname: format!("training-job-worker-{node}"),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        engine: Engine::Torchrun,
        rule: LayoutRule::None,
        heads: None,
        most: 8,
        exact: None,
        gpus: 8,
        torch: Some("2.8.0+cu128".to_owned()),
        driver: Some("570.124.06".to_owned()),
        script: Some("0123456789abcdef".to_owned()),
        nccl: Some("0123456789abcdef".to_owned()),
        rails: 8,
        link_layer: Some("InfiniBand".to_owned()),
        clock_offset: 0,
    }
}

/// Gathers, agrees, then says `agreed SECONDS`, and at the verdict `verdict MEGABYTES`.
async fn node_0(config: Config) {
    let nnodes = config.nnodes;
    let mut say = |line: Text| eprintln!("{}", line.en);
    println!("listening");
    let began = Instant::now();
    let assembly = muster::gather(&config, card(0, nnodes), &mut say).await.expect("gathered");
    let Assembly::All(gathered) = assembly else { panic!("a muster") };
    let agreement = Agreement {
        nnodes,
        nproc: 8,
        world: nnodes * 8,
        ulysses: 1,
        ring: 1,
        heads: None,
        master_port: config.port,
        run_id: "bench-20250102-030405-abcd".to_owned(),
        timestamp: "20250102-030405".to_owned(),
        attempt: 0,
    };
    let settled = gathered.agree(agreement, Restarts::new(0), &mut say).await.expect("agreed");
    let Settled::Session(mut session) = settled else { panic!("a session") };
    println!("agreed {}", began.elapsed().as_secs_f64());
    verdict(&mut session).await;
    println!("peak {}", peak());
    session.close().await;
}

async fn verdict(session: &mut Session) {
    while session.next_event().await == Event::Stop {}
}

/// Peak resident memory of this process in MB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    number::<u64>(line.trim().trim_end_matches(" kB")) / 1024
}

/// Seconds until all agree, seconds until all have the verdict, node 0's peak.
async fn muster_of(nodes: u32, sealed: bool) -> (f64, f64, u64) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|one| one.local_addr());
    let port = port.expect("a port").port();
    let mode = if sealed { "sealed" } else { "open" };
    let mut child = Command::new(std::env::current_exe().expect("ourselves"))
        .args(["node-0", &nodes.to_string(), &port.to_string(), mode])
        .stdout(Stdio::piped())
        .spawn()
        .expect("node 0");
    let mut lines = BufReader::new(child.stdout.take().expect("its words")).lines();
    let mut next = move || lines.next().expect("a line").expect("readable");
    assert_eq!(next(), "listening");

    let members: Vec<_> = (1..nodes)
        .map(|node| {
            tokio::task::spawn_local(member(config(node, nodes, port, sealed), card(node, nodes)))
        })
        .collect();
    let mut sessions = Vec::new();
    for member in members {
        sessions.push(member.await.expect("it ran"));
    }
    let said = tokio::task::spawn_blocking(move || (next(), next)).await.expect("said");
    let (agreed, next) = said;
    let seconds = number(agreed.strip_prefix("agreed ").expect("agreed"));

    let failed = Instant::now();
    let first = sessions.first().expect("a member");
    first.failed(Cause {
        node: 1,
        hostname: "training-job-worker-1".to_owned(),
        rank: Some(8),
        id: "rank.exit".to_owned(),
        class: "script".to_owned(),
        code: 1,
        text: Text::same("rank 8 exited with code 1"),
        hint: Text::same(""),
        at: muster::millis(std::time::SystemTime::now()),
        lines: vec!["RuntimeError: something went wrong in the middle of it".to_owned(); 20],
        whole: true,
        loss: None,
    });
    let waits: Vec<_> = sessions
        .into_iter()
        .map(|mut session| {
            tokio::spawn(async move {
                verdict(&mut session).await;
                session
            })
        })
        .collect();
    let mut sessions = Vec::new();
    for wait in waits {
        sessions.push(wait.await.expect("a verdict"));
    }
    let verdict = failed.elapsed().as_secs_f64();
    drop(sessions);
    let peak = tokio::task::spawn_blocking(next).await.expect("said");
    child.wait().expect("node 0 ends");
    (seconds, verdict, number(peak.strip_prefix("peak ").expect("a peak")))
}

async fn member(config: Config, own: Card) -> Session {
    let host = Host::replayed("/", BTreeMap::new());
    let joined = muster::join(&host, &config, &own, None, &mut |_| {}).await.expect("joined");
    let Joined::Offer(offer) = joined else { panic!("an offer") };
    let Accepted::Session(session) = offer.accept().await.expect("accepted") else {
        panic!("a session")
    };
    session
}
