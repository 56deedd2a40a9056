//! How long a muster of many nodes takes, and what each node costs node 0.
//!
//! Node 0 is the real one, in a process of its own; the others are simulated here, one task
//! each, over loopback by two addresses, and all start at the same time. `make bench SUITE=muster`
//! prints one line per number of nodes, plain and encrypted, and fails if the largest misses its
//! budget; words select numbers (`10000`) and channels (`encrypted`). Wall time depends on the
//! load of the machine, which simulator and node 0 share; node 0's CPU time hardly does.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linux::host::Host;
use monitor::status::{
    GpuStatus, InterfaceStatus, NodeStatus, RankState, RankStatus, StatusBoard, look_pace,
};
use muster::{
    Accepted, Agreement, Assembly, Cause, Config, Decide, Joined, Memory, NodeSummary, Purpose,
    Secret, Session, SessionEvent, Settled, Tally,
};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use settings::{Engine, LayoutRule};
use text::lang::Text;
use text::rank::{GlobalRank, LocalRank};
use tokio::task::LocalSet;
use verdict::Class;

const SIZES: [u32; 4] = [10, 100, 1_000, 10_000];
/// Budget of the largest: agreement and node 0's peak memory.
const SECONDS: f64 = 5.0;
const MEGABYTES: f64 = 100.0;
/// Two heartbeats of every node, of which the cost is measured.
const STEADY: Duration = Duration::from_secs(6);
const SECRET: &str = "a secret of the bench";
/// How long somebody looks at all nodes, once a second, and the largest job for which that is
/// measured, with its budget: a share of one CPU, and memory.
const LOOKS: u32 = 16;
const LOOKED_AT: u32 = 1_000;
const SHARE: f64 = 0.01;
const SHARE_MEGABYTES: f64 = 10.0;

/// Node 0's own figures, each after its name.
#[derive(Debug, Default)]
struct Figures(BTreeMap<String, f64>);

impl Figures {
    fn read(line: &str) -> Figures {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let pairs = words.chunks_exact(2).map(|pair| (pair[0].to_owned(), number(pair[1])));
        Figures(pairs.collect())
    }

    fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(f64::NAN)
    }
}

fn main() -> ExitCode {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("descriptors");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let words: Vec<String> = std::env::args().collect();
    if let [_, role, nodes, port, encrypted] = words.as_slice()
        && role == "node-0"
    {
        let config = config(0, number(nodes), number(port), encrypted == "encrypted");
        runtime.block_on(node_0(config));
        return ExitCode::SUCCESS;
    }
    let words: Vec<&str> =
        words.iter().skip(1).map(String::as_str).filter(|word| !word.starts_with('-')).collect();
    // `make bench ONLY=…` names measurements of both programs.
    if !words.is_empty() && !words.contains(&"muster") {
        return ExitCode::SUCCESS;
    }
    let chosen = |any: &[&str], one: &str| {
        words.contains(&one) || !words.iter().any(|word| any.contains(word))
    };
    let sizes = SIZES.map(|size| size.to_string());
    let sizes: Vec<&str> = sizes.iter().map(String::as_str).collect();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    println!(
        "load {} on {cpus} CPUs, before this bench's own two processes",
        load.split_ascii_whitespace().next().unwrap_or("?")
    );
    println!(
        "{:>6} {:>9} {:>10} {:>9} | {:>9} {:>8} {:>8} {:>7} {:>8} {:>9} {:>8} {:>8} {:>8} | {:>9}",
        "nodes",
        "channel",
        "agreement",
        "verdict",
        "node 0:",
        "per node",
        "peak",
        "node",
        "files",
        "heartbeat",
        "looked",
        "at: peak",
        "a member",
        "overflows"
    );
    let (mut within, mut looked) = (true, true);
    for nodes in SIZES.into_iter().filter(|size| chosen(&sizes, &size.to_string())) {
        for channel in ["plain", "encrypted"] {
            if !chosen(&["plain", "encrypted"], channel) {
                continue;
            }
            let overflows = overflows();
            let (verdict, figures) =
                LocalSet::new().block_on(&runtime, muster_of(nodes, channel == "encrypted"));
            let overflows = self::overflows() - overflows;
            let per_node = |figure: f64| figure / f64::from(nodes);
            let (seconds, cpu) = (figures.get("seconds"), figures.get("cpu"));
            let (megabytes, before) = (figures.get("peak") / 1024.0, figures.get("before"));
            println!(
                "{nodes:>6} {channel:>9} {seconds:>8.3} s {verdict:>7.3} s | {cpu:>7.3} s {:>5.0} µs {megabytes:>5.1} MB {:>4.1} KB {:>8} {:>7.2} % {:>6.2} % {:>5.1} MB {:>6.3} % | {overflows:>9}",
                per_node(cpu) * 1e6,
                per_node(figures.get("peak") - before),
                figures.get("files"),
                figures.get("steady") * 100.0,
                figures.get("looked") * 100.0,
                figures.get("looked_peak") / 1024.0,
                figures.get("member") * 100.0,
            );
            if nodes == LOOKED_AT {
                // Heartbeats are there without anybody who looks.
                looked &= figures.get("looked") - figures.get("steady") <= SHARE
                    && figures.get("looked_peak") / 1024.0 <= SHARE_MEGABYTES;
            }
            within &= seconds <= SECONDS && megabytes <= MEGABYTES;
        }
    }
    println!(
        "node 0: CPU time until the agreement, in all and per node; peak memory, and what a node adds to it;\n\
         open files; share of one CPU that heartbeats take while the job runs. overflows: connections that\n\
         found the kernel's queue of node 0 full. looked at: the same share and what it adds to the peak while\n\
         somebody looks at all nodes with `top`, at the pace for so many nodes, and the share of a simulated member.\n\
         budget at {} nodes: {SECONDS} s and {MEGABYTES} MB: {}; looked at, {LOOKED_AT} nodes: {:.0} % above heartbeats and {SHARE_MEGABYTES} MB: {}",
        SIZES[SIZES.len() - 1],
        if within { "ok" } else { "OVER" },
        SHARE * 100.0,
        if looked { "ok" } else { "OVER" }
    );
    if within && looked { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Connections that a full queue of a listener turned away, of all sockets here.
fn overflows() -> u64 {
    let text = std::fs::read_to_string("/proc/net/netstat").expect("/proc");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let names = lines.next().expect("names").split_ascii_whitespace();
    let values = lines.next().expect("values").split_ascii_whitespace();
    let of = |(name, value): (&str, &str)| (name == "ListenOverflows").then(|| number(value));
    names.zip(values).find_map(of).expect("the counter")
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word} is no number"))
}

fn config(node: u32, nnodes: u32, port: u16, encrypted: bool) -> Config {
    let environment = BTreeMap::from([("RANKLAUNCH_SECRET".into(), SECRET.into())]);
    let secret = Secret::read(&Host::replayed("/", environment)).expect("a secret");
    Config {
        purpose: Purpose::Run,
        unit: muster::MemberKind::Node,
        node,
        leader: 0,
        at: None,
        succession: None,
        nnodes,
        seating: muster::Seating::default(),
        job: Some("bench".to_owned()),
        master_addr: if node.is_multiple_of(2) { "127.0.0.1" } else { "127.0.0.2" }.to_owned(),
        port,
        wait_timeout: Duration::from_secs(120),
        pace: linux::pace::Pace::STANDARD,
        live: None,
        peer_timeout: muster::PEER_TIMEOUT,
        secret: secret.filter(|_| encrypted),
        without: muster::Without::Follow,
        grace: Duration::from_secs(30),
        remembered: BTreeMap::new(),
        hosts: Vec::new(),
        is_world_size: false,
        memory: Arc::new(|| Some(Memory { used: 1, limit: 2 })),
    }
}

/// Nothing starts again.
fn ends() -> (Decide, Tally) {
    (Box::new(|_, _, _| None), Tally::default())
}

fn summary(node: u32, nnodes: u32) -> NodeSummary {
    NodeSummary {
        machine: None,
        remembered: None,
        checkpoints: None,
        shares: Vec::new(),
        tally: Tally::default(),
        spares: 0,
        held: None,
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
        device: None,
        torch: Some("2.8.0+cu128".to_owned()),
        driver: Some("570.124.06".to_owned()),
        script: Some("0123456789abcdef".to_owned()),
        nccl: Some("0123456789abcdef".to_owned()),
        rails: 8,
        link_layer: Some("InfiniBand".to_owned()),
        clock_offset: 0,
        mtu: None,
        rates: None,
        endpoint: None,
        seat: None,
        warnings: Vec::new(),
        alive: None,
        last: None,
        attempt: 0,
        command: Some("train.py --lr 1e-4 0123456789abcdef".to_owned()),
    }
}

/// A node with eight ranks and GPUs.
fn node_status(node: u32) -> NodeStatus {
    let board = StatusBoard::new(format!("training-job-worker-{node}"));
    let ranks = (0..8).map(|local| RankStatus {
        rank: GlobalRank(node * 8 + local),
        local_rank: LocalRank(local),
        state: RankState::Running,
        pid: Some(4_000_000),
        started_ms: Some(1_760_000_000_000),
        cpu_percent: Some(f64::from(97 + local)),
        cpu_seconds: Some(123_456.78 + f64::from(node)),
        memory: Some(12_345_678_901 + u64::from(node * local)),
        gpu: Some(local),
        log_bytes: 123_456_789 + u64::from(node),
        log_lines: 1_234_567,
        log_rate: 1234.5,
        last_line: Some(format!(
            "step {node}{local} loss 2.3456 lr 0.0001 it/s 12.3 tokens/s 123456"
        )),
        last_line_age_ms: Some(432 + u64::from(node)),
        ..RankStatus::default()
    });
    let gpus = (0..8).map(|gpu| GpuStatus {
        gpu,
        name: Some("NVIDIA H100 80GB HBM3".to_owned()),
        uuid: Some(format!("GPU-{node:08x}-1234-5678-9abc-{gpu:012x}")),
        local_rank: Some(LocalRank(gpu)),
        utilization: Some(93 + gpu % 7),
        memory_used: Some(70_123_456_789 + u64::from(node)),
        memory_total: Some(85_520_809_984),
        power: Some(612.3 + f64::from(node % 64)),
        power_limit: Some(700.0),
        clock: Some(1755),
        temperature: Some(61),
        ..GpuStatus::default()
    });
    let interfaces = (0..4).map(|at| InterfaceStatus {
        interface: format!("eth{at}"),
        received: 123_456_789.0 + f64::from(node),
        sent: 123_456_789.0,
        received_total: 123_456_789_012_345,
        sent_total: 123_456_789_012_345,
    });
    let (ranks, gpus, interfaces) = (ranks.collect(), gpus.collect(), interfaces.collect());
    NodeStatus { ranks, gpus, interfaces, ..board.snapshot() }
}

/// Gathers, agrees, then says what it cost; again after some heartbeats.
async fn node_0(config: Config) {
    let nnodes = config.nnodes;
    let mut say = |line: Text| eprintln!("{}", line.en);
    let (before, cpu) = (memory("VmRSS:"), cpu());
    println!("listening");
    let began = Instant::now();
    let assembly = muster::gather(&config, summary(0, nnodes), &mut say).await.expect("gathered");
    let Assembly::All(gathered) = assembly else { panic!("a muster") };
    let agreement = Agreement {
        resume: None,
        seats: Vec::new(),
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
    let settled = gathered.agree(agreement, ends(), &mut say).await.expect("agreed");
    let Settled::Session(mut session) = settled else { panic!("a session") };
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), self::cpu() - cpu);
    // The last words of the agreement leave in the next second.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let files = std::fs::read_dir("/proc/self/fd").expect("/proc").count();
    let (steady, since) = (self::cpu(), Instant::now());
    tokio::time::sleep(STEADY).await;
    let steady = (self::cpu() - steady) / since.elapsed().as_secs_f64();
    println!("seconds {seconds} cpu {cpu} files {files} before {before} steady {steady}");
    if nnodes <= LOOKED_AT {
        answer(&session, node_status(0));
        let (peak, cpu, since) = (memory("VmHWM:"), self::cpu(), Instant::now());
        let mut bytes = 0;
        for look in 1..=LOOKS {
            let asked = tokio::task::spawn_blocking(ask(&session, nnodes as usize, STEADY));
            let (read, size) = asked.await.expect("asked");
            assert_eq!(read, nnodes, "all nodes answer");
            bytes = size;
            let next = look_pace(nnodes as usize, true) * look;
            tokio::time::sleep(next.saturating_sub(since.elapsed())).await;
        }
        let share = (self::cpu() - cpu) / since.elapsed().as_secs_f64();
        let peak = memory("VmHWM:") - peak;
        println!("looked {share} looked_peak {peak} bytes {bytes}");
    }
    verdict(&mut session).await;
    println!("peak {}", memory("VmHWM:"));
    session.close().await;
}

/// Seconds of CPU that this process has used.
fn cpu() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("own usage");
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    micros as f64 / 1e6
}

async fn verdict(session: &mut Session) {
    while session.next_event().await == SessionEvent::Stop {}
}

/// A line of our own status, in KB.
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the line");
    number(line.trim().trim_end_matches(" kB"))
}

/// Seconds until all have the verdict, and what node 0 says.
async fn muster_of(nodes: u32, encrypted: bool) -> (f64, Figures) {
    let port = harness::free_port();
    let mode = if encrypted { "encrypted" } else { "plain" };
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
            tokio::task::spawn_local(member(
                config(node, nodes, port, encrypted),
                summary(node, nodes),
            ))
        })
        .collect();
    let mut sessions = Vec::new();
    for member in members {
        sessions.push(member.await.expect("it ran"));
    }
    let said = tokio::task::spawn_blocking(move || (next(), next)).await.expect("said");
    let (agreed, next) = said;
    let mut figures = Figures::read(&agreed);
    let mut next = next;
    if nodes <= LOOKED_AT {
        let (own, since) = (cpu(), Instant::now());
        let said = tokio::task::spawn_blocking(move || (next(), next)).await.expect("said");
        let member = (cpu() - own) / since.elapsed().as_secs_f64() / f64::from(nodes);
        next = said.1;
        figures.0.extend(Figures::read(&said.0).0);
        figures.0.insert("member".to_owned(), member);
    }

    let failed = Instant::now();
    let first = sessions.first().expect("a member");
    first.failed(Cause {
        node: 1,
        on: None,
        hostname: "training-job-worker-1".to_owned(),
        rank: Some(8),
        id: report::findings::Id::RankExit,
        class: Class::Script,
        code: 1,
        text: Text::same("rank 8 exited with code 1"),
        hint: Text::same(""),
        at: muster::now(),
        lines: vec!["RuntimeError: something went wrong in the middle of it".to_owned(); 20],
        whole: true,
        loss: None,
        why: None,
        consequence: false,
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
    figures.0.extend(Figures::read(&peak).0);
    (verdict, figures)
}

async fn member(config: Config, own: NodeSummary) -> Session {
    let host = Host::replayed("/", BTreeMap::new());
    let joined = muster::join(&host, &config, &own, None, &mut |_| {}).await.expect("joined");
    let Joined::Offer(offer) = joined else { panic!("an offer") };
    let Accepted::Session(session) = offer.accept(None).await.expect("accepted") else {
        panic!("a session")
    };
    answer(&session, node_status(config.node));
    session
}

/// Answers each question of a session with this status.
fn answer(session: &Session, status: NodeStatus) {
    session.questions().answer_with(move |_| serde_json::to_vec(&status).unwrap_or_default());
}

/// Asks all nodes of a session as a viewer on node 0 does; gives a function that blocks, packs what the viewer is sent, and then says
/// how many answered, and the bytes of all.
fn ask(
    session: &Session,
    nodes: usize,
    within: Duration,
) -> impl FnOnce() -> (u32, usize) + Send + use<> {
    let questions = session.questions();
    move || {
        let (mut read, mut bytes) = (0, 0);
        let asked = br#"{"question":"status"}"#.to_vec();
        questions.watch(asked, look_pace(nodes, true), within, |_, answer| {
            let packed = answer.ok().and_then(|packed| serde_json::to_string(&packed).ok());
            let Some(packed) = packed else { return };
            bytes += packed.len();
            read += 1;
        });
        (read, bytes)
    }
}
