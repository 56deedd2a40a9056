//! A stop lets a job save: random stops of ranks that need their helper processes until they have saved.
//!
//! `make judge-saves` draws STOPS=100 of them, on one and two nodes, with real engines and torch's data loader: signals,
//! and notices of a file, of the end of a Slurm job, and of clouds. SEED repeats a run.
//! Its short form is an ordinary test.

use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use harness::chance::Chance;
use harness::report::checkpoints;
use harness::{
    Ended, Launcher, Running, free_port, modules, program, python, run_args, wait_until,
};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::clouds::CLOUDS;

/// Seconds of grace; no stop waits until its end.
const GRACE: u64 = 60;
/// Milliseconds of saving.
const SAVING: u64 = 300;
/// A saving that takes longer than a helper without its rank may live, in milliseconds.
const LONG_SAVING: u64 = 1500;
/// The workers of torch's loader, which set a handler of their own in C.
const LOADERS: [&str; 3] = ["loader-fork", "loader-spawn", "loader-forkserver"];
/// Seconds before the end of a Slurm job at which its notice comes.
const LEAD: u64 = 60;
/// Seconds in which the ranks of a Slurm job must be ready.
const READY: u64 = 30;
/// Wrappers that start the rank's program and forward no signal.
const SHELL: &[&str] = &["sh", "-c", "\"$@\"; exit $?", "sh"];
const DIES: &[&str] =
    &["python3", "-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"];
const GOES_ON: &[&str] = &[
    "python3",
    "-c",
    "import signal, subprocess, sys\n\
     signal.signal(signal.SIGTERM, lambda *_: None)\n\
     sys.exit(subprocess.call(sys.argv[1:]))",
];

#[derive(Debug, Clone)]
struct Stop {
    engine: &'static str,
    nodes: u32,
    nproc: u32,
    /// Helpers as in tests/programs/saves.py.
    helpers: u32,
    kind: &'static str,
    end: &'static str,
    handlers: &'static str,
    signal: Signal,
    /// True: the signal goes to every process, as from Slurm. Otherwise it goes only to the launcher of this
    /// node.
    to_all: bool,
    /// A notice takes the place of the signal: `file`, which appears on this node, `slurm`, or a cloud, which takes
    /// the machine back.
    notice: Option<&'static str>,
    node: u32,
    /// Milliseconds of saving.
    saving: u64,
    /// Command in front of the program of each rank.
    below: &'static [&'static str],
    /// Seconds.
    grace: u64,
    inject: &'static str,
    /// Milliseconds from the first word of all ranks to the stop.
    after: u64,
}

const PLAIN: Stop = Stop {
    engine: "direct",
    nodes: 1,
    nproc: 2,
    helpers: 2,
    kind: "fork",
    end: "exit",
    handlers: "late",
    signal: Signal::SIGTERM,
    to_all: false,
    notice: None,
    node: 0,
    saving: SAVING,
    below: &[],
    grace: GRACE,
    inject: "auto",
    after: 0,
};

impl Stop {
    fn draw(chance: &mut Chance, all: bool) -> Stop {
        let engines: &[&str] = match all {
            true => &["direct", "direct", "command", "deepspeed", "torchrun", "accelerate"],
            false => &["direct", "command", "deepspeed"],
        };
        let kinds: &[&str] = match all {
            true => {
                &["fork", "spawn", "forkserver", "pool", "none", LOADERS[0], LOADERS[1], LOADERS[2]]
            }
            false => &["fork", "spawn", "pool"],
        };
        let (engine, kind) = (chance.of(engines), chance.of(kinds));
        let nodes = chance.of(&[1, 1, 2]);
        let to_all = chance.below(2) == 0;
        let signals: &[Signal] = match (to_all || nodes > 1, kind) {
            // TERM stops the other nodes, and helpers survive only TERM.
            (true, _) => &[Signal::SIGTERM],
            // KeyboardInterrupt may lose a batch of torch's loader, which then waits for it.
            (false, kind) if LOADERS.contains(&kind) => {
                &[Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT]
            }
            _ => &[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT],
        };
        let handlers = chance.of(&["late", "top"]);
        let signal = chance.of(signals);
        // A command's own processes are signalled only for a signal that a person named.
        let can_be_noticed = signal == Signal::SIGTERM && !to_all && engine != "command";
        let notices: &[&str] = match all {
            true => &["file", "file", "slurm", "aws", "gcp", "azure", "alibaba"],
            false => &["file"],
        };
        let notice = chance.of(notices);
        let notice = (can_be_noticed && chance.below(6) > 0).then_some(notice);
        // A helper with its rank's TERM handler survives the signal that its own parent sends at the exit.
        let is_own = handlers == "top" && ["fork", "spawn", "forkserver"].contains(&kind);
        let ends: &[&str] = if is_own { &["at-once"] } else { &["exit", "at-once"] };
        Stop {
            engine,
            nodes,
            nproc: 1 + chance.below(2u32),
            helpers: 1 + chance.below(3u32),
            kind,
            end: chance.of(ends),
            handlers,
            signal,
            to_all,
            notice,
            node: chance.below(nodes),
            saving: chance.of(&[SAVING, LONG_SAVING]),
            below: if chance.below(4) == 0 { SHELL } else { &[] },
            after: chance.below(300),
            ..PLAIN
        }
    }

    /// Number of ranks, or commands, of a node.
    fn local(&self) -> u32 {
        if self.engine == "command" { 1 } else { self.nproc }
    }

    /// Node `node`, whose ranks save in `saved` as well, so that all of them make one checkpoint.
    fn start(&self, node: u32, port: u16, saved: &Path) -> Running {
        let mut args = run_args(self.engine, self.nproc);
        let grace = format!("{}s", self.grace);
        args.extend(["--grace", &grace, "--inject", self.inject, "--"].map(OsString::from));
        let launcher = Launcher::new(args).env("PYTHONPATH", modules());
        let savers = (self.nodes * self.local()).to_string();
        let launcher = launcher.env("CHECKPOINTS", saved).env("SAVERS", savers);
        let launcher = launcher.env("RANKLAUNCH_CHECKPOINT_DIR", saved);
        let launcher = match self.notice {
            None => launcher,
            Some("file") => {
                let file = format!("file:{}", launcher.folder().join("notice").display());
                launcher.env("RANKLAUNCH_NOTICE", file)
            }
            Some("slurm") => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("1970");
                let end = (now.as_secs() + READY + LEAD).to_string();
                let launcher = launcher.env("RANKLAUNCH_NOTICE", "slurm");
                let lead = format!("{LEAD}s");
                launcher.env("RANKLAUNCH_NOTICE_LEAD", lead).env("SLURM_JOB_END_TIME", end)
            }
            // Alibaba Cloud tells of the end five minutes before, and all have their signal at once.
            Some(cloud) => {
                launcher.env("RANKLAUNCH_NOTICE", cloud).env("RANKLAUNCH_NOTICE_LEAD", "10m")
            }
        };
        let numbers = [self.helpers.to_string(), self.kind.to_owned()];
        let seconds = (self.saving as f64 / 1000.0).to_string();
        let mut line: Vec<OsString> =
            vec![python().into(), "-u".into(), program("saves.py").into()];
        line.push(launcher.folder().into());
        let words = [seconds, self.end.to_owned(), self.handlers.to_owned()];
        line.extend(numbers.into_iter().chain(words).map(OsString::from));
        let launcher = launcher.args(self.below).args(line);
        if self.nodes > 1 {
            launcher.node(node, self.nodes, port).start()
        } else {
            launcher.start()
        }
    }

    /// The end of each node, and the time that the stop took beyond the saving.
    fn run(&self, saved: &Path) -> (Vec<Ended>, Duration) {
        let cloud = CLOUDS.iter().find(|cloud| Some(cloud.name) == self.notice);
        let ran = cloud.and_then(|cloud| cloud.run(|taken| self.run_here(saved, Some(taken))));
        match (ran, cloud) {
            (Some(ran), _) => ran,
            (None, None) => self.run_here(saved, None),
            // Without namespaces there is no machine of a cloud.
            (None, Some(_)) => Stop { notice: Some("file"), ..self.clone() }.run_here(saved, None),
        }
    }

    fn run_here(&self, saved: &Path, taken: Option<&AtomicBool>) -> (Vec<Ended>, Duration) {
        let port = free_port();
        let start = |node| self.start(node, port, saved);
        let mut nodes: Vec<Running> = (0..self.nodes).map(start).collect();
        for node in &mut nodes {
            node.says("READY", self.local() as usize);
        }
        std::thread::sleep(Duration::from_millis(self.after));
        let mut sent = Instant::now();
        match (self.notice, taken) {
            (None, _) if self.to_all => {
                for process in nodes.iter().flat_map(Running::processes) {
                    // A helper of the launcher may have ended since the list was made.
                    let pid = nix::unistd::Pid::from_raw(process.pid);
                    let sent = nix::sys::signal::kill(pid, self.signal);
                    assert!(matches!(sent, Ok(()) | Err(Errno::ESRCH)), "{sent:?}");
                }
            }
            (None, _) => nodes[self.node as usize].signal(self.signal),
            (Some("file"), _) => {
                let file = nodes[self.node as usize].folder().join("notice");
                std::fs::write(file, "").expect("it is written");
            }
            // The services are asked each 5 s, and Slurm's time comes by itself.
            (Some(_), taken) => {
                taken.iter().for_each(|taken| taken.store(true, Ordering::Relaxed));
                let of_node = |node: &Running| node.folder().join("signal-0").exists();
                wait_until("rank 0 hears of the stop", || nodes.iter().any(of_node).then_some(()));
                sent = Instant::now();
            }
        }
        let what = format!("{self:?}");
        let ended: Vec<Ended> =
            nodes.into_iter().map(|node| node.ends_by(harness::TIMEOUT, &what)).collect();
        (ended, sent.elapsed().saturating_sub(Duration::from_millis(self.saving)))
    }

    /// The faults of a run.
    fn faults(&self) -> (Vec<String>, Duration) {
        let saved = tempfile::tempdir().expect("a folder");
        let (ended, added) = self.run(saved.path());
        let mut found = self.complaints(&ended);
        let newest = newest(saved.path());
        if newest.as_deref() != Some("step-2") {
            found.push(format!("the newest whole checkpoint is {newest:?}"));
        }
        // The launcher whose ranks ended last has seen all of it.
        let told = (0..).zip(&ended).map(|(node, over)| over.run_json(node)["saved"].clone());
        let told: Vec<Value> = told.collect();
        let has_seen = |saved: &Value| {
            saved["name"] == "step-2"
                && saved["is_new"] == true
                && saved["after_notice"] == self.notice.is_some()
        };
        if !told.iter().any(has_seen) {
            found.push(format!("no launcher tells of the checkpoint: {told:?}"));
        }
        (found, added)
    }

    /// The faults of the end.
    fn complaints(&self, ended: &[Ended]) -> Vec<String> {
        let mut found = Vec::new();
        for (node, over) in (0..).zip(ended) {
            let code = 128 + self.signal as i32;
            if over.code != code {
                found.push(format!("node {node}: code {} in place of {code}", over.code));
            }
            for rank in node * self.local()..(node + 1) * self.local() {
                if !over.folder().join(format!("saved-{rank}")).exists() {
                    found.push(format!("rank {rank} has not saved"));
                }
                let got = std::fs::read_to_string(over.folder().join(format!("signal-{rank}")));
                if got.as_ref().ok() != Some(&(self.signal as i32).to_string()) {
                    found.push(format!("rank {rank} got {got:?}"));
                }
            }
            found.extend(over.left.iter().map(|left| format!("left: {left:?}")));
            if !found.is_empty() {
                found.push(format!("{}\n{}", over.out, over.err));
            }
        }
        found
    }
}

/// The newest whole checkpoint below the folder, as `ranklaunch checkpoint` tells.
fn newest(folder: &Path) -> Option<String> {
    let seen = checkpoints(folder);
    let newest = Path::new(seen["newest"].as_str()?).file_name()?;
    Some(newest.to_string_lossy().into_owned())
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The time of each stop beyond the saving, for stops whose remaining time was the launcher's: a Python
/// program that has imported torch takes seconds to end.
fn judge(stops: u64, seed: u64, all: bool) -> Vec<Duration> {
    let (mut took, mut wrong) = (Vec::new(), Vec::new());
    for round in 0..stops {
        let stop = Stop::draw(&mut Chance::new(seed, round), all);
        let (complaints, added) = stop.faults();
        let word = if complaints.is_empty() { "" } else { "WRONG" };
        println!("{round}: {added:?} {stop:?} {word}");
        if !complaints.is_empty() {
            wrong.push(format!("SEED={seed} stop {round} {stop:?}\n  {}", complaints.join("\n  ")));
        }
        if stop.end == "at-once" {
            took.push(added);
        }
    }
    assert!(wrong.is_empty(), "{} of {stops} stops:\n{}", wrong.len(), wrong.join("\n\n"));
    took.sort_unstable();
    took
}

#[test]
fn random_stops_let_every_rank_save() {
    let took = judge(8, 20_261_127, false);
    // The time is only a part of the grace, because a busy machine may take seconds.
    assert!(took.iter().all(|added| added.as_secs() < GRACE / 3), "{took:?}");
}

/// A wrapper that dies of the signal leaves its program to the shim. A wrapper that handles the signal and
/// does not forward it leaves its program the last part of the grace.
#[test]
fn wrapper_that_forwards_no_signal_loses_no_save() {
    for (below, grace) in [(SHELL, GRACE), (DIES, GRACE), (GOES_ON, 12)] {
        let stop = Stop { below, grace, saving: LONG_SAVING, ..PLAIN };
        let (complaints, added) = stop.faults();
        assert_eq!(complaints, Vec::<String>::new());
        assert_eq!(added.as_secs() > grace / 2, below == GOES_ON, "{added:?}");
    }
}

/// The program below a shell gets the signal unchanged, and the time that it needs.
#[test]
fn shell_around_the_rank_changes_no_stop() {
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGINT] {
        let stop = Stop { below: SHELL, signal, saving: LONG_SAVING, ..PLAIN };
        assert_eq!(stop.faults().0, Vec::<String>::new(), "{signal}");
    }
}

#[test]
fn ctrl_c_reaches_torchruns_ranks_as_sigint() {
    let stop = Stop { engine: "torchrun", signal: Signal::SIGINT, kind: "none", ..PLAIN };
    assert_eq!(stop.faults().0, Vec::<String>::new());
}

/// `make judge-saves`
#[test]
#[ignore = "minutes: make judge-saves"]
fn every_rank_saves_within_a_second_of_stop() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("1970");
    let seed = number("SEED").unwrap_or(u64::from(now.subsec_nanos()));
    let stops = number("STOPS").unwrap_or(100);
    println!("SEED={seed} STOPS={stops}");
    let took = judge(stops, seed, true);
    let at = |part: usize| took[(took.len() - 1) * part / 100];
    println!(
        "{stops} of {stops} saved; added: median {:?}, p95 {:?}, most {:?}",
        at(50),
        at(95),
        at(100)
    );
    assert!(at(95) <= Duration::from_secs(1), "{took:?}");
}

#[test]
fn torch_loader_workers_outlive_a_signal_to_all() {
    for (kind, handlers) in LOADERS.iter().zip(["late", "top", "top"]) {
        let stop = Stop { kind, handlers, nproc: 1, to_all: true, ..PLAIN };
        assert_eq!(stop.faults().0, Vec::<String>::new(), "{kind}");
    }
}

/// multiprocessing ends daemons by SIGTERM at its exit, and workers must not take that for the stop of a job.
#[test]
fn rank_handling_term_ends_its_persistent_workers() {
    for kind in LOADERS {
        let rank = Stop { kind, handlers: "top", end: "itself", nproc: 1, ..PLAIN };
        let saved = tempfile::tempdir().expect("a folder");
        let ended = rank.start(0, 0, saved.path()).ends_by(harness::TIMEOUT, kind);
        assert_eq!((ended.code, ended.left.len()), (0, 0), "{kind}: {}", ended.err);
    }
}

/// Without the launcher's injection into the ranks, a signal to all ends their helpers.
#[test]
fn control_signal_to_all_without_injection_loses_save() {
    for kind in ["fork", "spawn", "pool"] {
        let stop = Stop { inject: "off", to_all: true, kind, ..PLAIN };
        let complaints = stop.faults().0.concat();
        assert!(complaints.contains("has not saved"), "{kind}: {complaints}");
        assert!(!complaints.contains("left: "), "{kind}: {complaints}");
    }
}
