//! One job whose ranks and nodes are killed again and again: how long until all ranks of the next attempt run, and what is
//! left behind.
//!
//! Four seats and two spares, each in a network namespace of its own, one rank each, `--warm`. DEATHS sets how many, ENGINE
//! which engine. The times are printed, not judged: they are those of this machine and this build.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use harness::chance::Chance;
use harness::cluster::Cluster;
use harness::{Role, Running, program, run_args};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::number;

const SEATS: u32 = 4;
const SPARES: u32 = 2;
/// Longest time without the next attempt.
const STUCK: Duration = Duration::from_secs(120);
/// What is said about a death after which the next attempt took longer than this.
const SLOW: Duration = Duration::from_secs(5);
/// Each so many deaths a whole node dies.
const NODES_DIE: u64 = 5;

struct Job {
    cluster: Cluster,
    engine: String,
    nodes: Vec<Running>,
}

impl Job {
    fn new(engine: &str) -> Option<Job> {
        let cluster = Cluster::new(SEATS + SPARES)?;
        let mut job = Job { cluster, engine: engine.to_owned(), nodes: Vec::new() };
        for name in ["checkpoints", "scratch"] {
            std::fs::create_dir_all(job.path(name)).expect("a folder");
        }
        job.nodes = (0..SEATS + SPARES).map(|node| job.node(node)).collect();
        Some(job)
    }

    fn folder(&self) -> PathBuf {
        self.cluster.folder().join("job")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    fn node(&self, node: u32) -> Running {
        let mut args = run_args(&self.engine, 1);
        let spares = SPARES.to_string();
        args.extend(["--warm", "auto", "--spares", &spares].map(Into::into));
        args.extend(["--grace", "5s", "--max-restarts", "1000000"].map(Into::into));
        args.extend(["--checkpoint-dir".into(), self.path("checkpoints").into_os_string()]);
        args.push("--".into());
        args.extend([program("again.py").into(), self.folder().into()]);
        let launcher = self.cluster.launcher(node, node, SEATS + SPARES, &args);
        launcher.env("TMPDIR", self.path("scratch")).start()
    }

    /// When the last rank of the attempt began.
    fn began(&self, attempt: u64) -> SystemTime {
        let until = Instant::now() + STUCK;
        let of = |rank: u32| {
            let path = self.path(&format!("{attempt}-{rank}"));
            loop {
                if let Ok(at) = std::fs::read_to_string(&path) {
                    std::fs::remove_file(&path).expect("it is removed");
                    return at.parse::<f64>().expect("seconds");
                }
                assert!(Instant::now() < until, "attempt {attempt}: {}", self.consoles());
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let last = (0..SEATS).map(of).fold(0.0, f64::max);
        SystemTime::UNIX_EPOCH + Duration::from_secs_f64(last)
    }

    fn consoles(&self) -> String {
        self.nodes.iter().map(|node| format!("{}\n", node.err())).collect()
    }

    /// Nodes with a rank.
    fn seated(&self) -> Vec<(usize, i32)> {
        let rank = |node: &Running| {
            let roles = node.roles().into_iter();
            roles.filter(|(role, _)| *role == Role::Rank).map(|(_, process)| process.pid).next()
        };
        (0..).zip(&self.nodes).filter_map(|(place, node)| Some((place, rank(node)?))).collect()
    }

    /// What the launchers hold: open files of agents and guards, entries of the scratch folder.
    fn held(&self) -> (usize, usize) {
        let of = |pid: i32| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        let files = self.nodes.iter().map(|node| of(node.pid()) + of(node.agent())).max();
        (files.unwrap_or(0), entries(&self.path("scratch")))
    }
}

fn entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

fn line(what: &str, times: &mut [Duration]) {
    times.sort();
    let at = |percent: usize| times[(times.len() * percent).div_ceil(100).saturating_sub(1)];
    if !times.is_empty() {
        println!(
            "{what}: {} deaths, until the next attempt p50 {:.2?}, p95 {:.2?}, longest {:.2?}",
            times.len(),
            at(50),
            at(95),
            at(100)
        );
    }
}

fn deaths(engine: &str, count: u64, seed: u64) {
    println!("deaths: SEED={seed}, engine {engine}");
    let Some(mut job) = Job::new(engine) else { return };
    job.began(0);
    let (mut ranks, mut nodes, mut before) = (Vec::new(), Vec::new(), None);
    for attempt in 1..=count {
        let mut chance = Chance::new(seed, attempt);
        // The interpreters of spares are started with the first plan.
        std::thread::sleep(Duration::from_millis(chance.below(200)));
        let seated = job.seated();
        assert_eq!(seated.len(), SEATS as usize, "{}", job.consoles());
        let (place, rank) = chance.of(&seated);
        let at = SystemTime::now();
        let took = if attempt % NODES_DIE == 0 {
            Running::lose(vec![job.nodes.remove(place)]);
            let took = job.began(attempt).duration_since(at);
            nodes.extend(took.clone());
            let gone = u32::try_from(place).expect("few nodes");
            job.nodes.insert(place, job.node(gone));
            job.nodes[place].waits("a spare", |node| node.err().contains("is a spare"));
            took
        } else {
            kill(Pid::from_raw(rank), Signal::SIGKILL).expect("it runs");
            let took = job.began(attempt).duration_since(at);
            ranks.extend(took.clone());
            took
        };
        let took = took.expect("the attempt began after the death");
        if took > SLOW {
            println!("attempt {attempt} began after {took:.2?}: {}", job.consoles());
        }
        // All kinds of deaths have happened by then.
        if attempt == 2 * NODES_DIE {
            before = Some(job.held());
        }
    }
    // Each end is proven by a closed connection, so nothing waits for ranks that may still run.
    let cut: Vec<_> = job.nodes.iter().filter(|node| node.err().contains("node.cut")).collect();
    assert!(cut.is_empty(), "{}", job.consoles());
    let (after, mut all) = (job.held(), [ranks.clone(), nodes.clone()].concat());
    line("ranks", &mut ranks);
    line("nodes", &mut nodes);
    line("all", &mut all);
    println!("open files and scratch entries: {before:?} and then {after:?}");
    if let Some((files, scratch)) = before {
        // Connections that are just being closed.
        assert!(after.0 <= files + 8 && after.1 <= scratch + 2, "{before:?}, then {after:?}");
    }
    std::fs::write(job.path("end"), "").expect("it is written");
    let scratch = job.path("scratch");
    for node in std::mem::take(&mut job.nodes) {
        node.wait().expect_code(0).expect_nothing_left();
    }
    assert_eq!(entries(&scratch), 0, "{scratch:?}");
}

#[test]
fn job_dies_and_leaves_nothing() {
    deaths("direct", 2 * NODES_DIE + 2, 7);
}

/// `make deaths`
#[test]
#[ignore = "make deaths"]
fn job_dies_many_times() {
    let engine = std::env::var("ENGINE").unwrap_or("direct".to_owned());
    deaths(&engine, number("DEATHS").unwrap_or(100), number("SEED").unwrap_or(7));
}
