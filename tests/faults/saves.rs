//! A stop lets a job save: random stops of ranks that need their helper processes until they have saved.
//!
//! `make judge-saves` draws STOPS=100 of them, on one and two nodes, with real engines and the loader of
//! torch; SEED repeats a run. Its short form is an ordinary test.

use std::ffi::OsString;
use std::time::{Duration, Instant, SystemTime};

use harness::chance::Chance;
use harness::{Ended, Launcher, Running, free_port, modules, program, python, run_args, send};
use nix::sys::signal::Signal;

/// No stop waits for its end.
const GRACE: Duration = Duration::from_secs(60);
/// Milliseconds of saving.
const SAVING: u64 = 300;

#[derive(Debug, Clone)]
struct Stop {
    engine: &'static str,
    nodes: u32,
    nproc: u32,
    /// As tests/programs/saves.py has them.
    helpers: u32,
    kind: &'static str,
    signal: Signal,
    /// As Slurm does; otherwise only to the launcher of this node.
    to_all: bool,
    node: u32,
    /// The program of each rank is a shell that starts it.
    in_shell: bool,
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
    signal: Signal::SIGTERM,
    to_all: false,
    node: 0,
    in_shell: false,
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
            true => &["fork", "spawn", "forkserver", "pool", "loader", "none"],
            false => &["fork", "spawn", "pool"],
        };
        let engine = chance.of(engines);
        let nodes = chance.of(&[1, 1, 2]);
        let to_all = chance.below(2) == 0;
        // Other nodes are stopped by TERM, and helpers outlive only that.
        let signals: &[Signal] = match to_all || nodes > 1 {
            true => &[Signal::SIGTERM],
            false => &[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT],
        };
        Stop {
            engine,
            nodes,
            nproc: 1 + chance.below(2u32),
            helpers: 1 + chance.below(3u32),
            kind: chance.of(kinds),
            signal: chance.of(signals),
            to_all,
            node: chance.below(nodes),
            in_shell: chance.below(4) == 0,
            after: chance.below(300),
            ..PLAIN
        }
    }

    /// Ranks, or commands, of a node.
    fn local(&self) -> u32 {
        if self.engine == "command" { 1 } else { self.nproc }
    }

    fn start(&self, node: u32, port: u16) -> Running {
        let mut args = run_args(self.engine, self.nproc);
        let grace = format!("{}s", GRACE.as_secs());
        args.extend(["--grace", &grace, "--inject", self.inject, "--"].map(OsString::from));
        let launcher = Launcher::new(args).env("PYTHONPATH", modules());
        let numbers = [self.helpers.to_string(), self.kind.to_owned()];
        let seconds = (SAVING as f64 / 1000.0).to_string();
        let mut line: Vec<OsString> =
            vec![python().into(), "-u".into(), program("saves.py").into()];
        line.push(launcher.folder().into());
        line.extend(numbers.into_iter().chain([seconds]).map(OsString::from));
        if self.in_shell {
            let script = ["sh".into(), "-c".into(), "\"$@\"; exit $?".into(), "sh".into()];
            line = script.into_iter().chain(line).collect();
        }
        let launcher = launcher.args(line);
        if self.nodes > 1 {
            launcher.node(node, self.nodes, port).start()
        } else {
            launcher.start()
        }
    }

    /// Each node's end, and the time that the stop took longer than the saving.
    fn run(&self) -> (Vec<Ended>, Duration) {
        let port = free_port();
        let mut nodes: Vec<Running> = (0..self.nodes).map(|node| self.start(node, port)).collect();
        nodes.iter_mut().for_each(|node| drop(node.says("READY", self.local() as usize)));
        std::thread::sleep(Duration::from_millis(self.after));
        let sent = Instant::now();
        match self.to_all {
            false => nodes[self.node as usize].signal(self.signal),
            true => {
                for process in nodes.iter().flat_map(Running::processes) {
                    send(process.pid, self.signal);
                }
            }
        }
        let what = format!("{self:?}");
        let ended: Vec<Ended> =
            nodes.into_iter().map(|node| node.ends_by(harness::TIMEOUT, &what)).collect();
        (ended, sent.elapsed().saturating_sub(Duration::from_millis(SAVING)))
    }

    /// What is wrong with the end.
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

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Gives what each stop took longer than the saving.
fn judge(stops: u64, seed: u64, all: bool) -> Vec<Duration> {
    let (mut took, mut wrong) = (Vec::new(), Vec::new());
    for round in 0..stops {
        let stop = Stop::draw(&mut Chance::new(seed, round), all);
        let (ended, added) = stop.run();
        let complaints = stop.complaints(&ended);
        if all {
            println!(
                "{round}: {added:?} {stop:?} {}",
                if complaints.is_empty() { "" } else { "WRONG" }
            );
        }
        if !complaints.is_empty() {
            wrong.push(format!("SEED={seed} stop {round} {stop:?}\n  {}", complaints.join("\n  ")));
        }
        took.push(added);
    }
    assert!(wrong.is_empty(), "{} of {stops} stops:\n{}", wrong.len(), wrong.join("\n\n"));
    took.sort_unstable();
    took
}

#[test]
fn random_stops_let_every_rank_save() {
    let took = judge(8, 20_261_127, false);
    // No more than a part of the grace: a busy machine may take seconds.
    assert!(took.iter().all(|added| *added < GRACE / 3), "{took:?}");
}

/// `make judge-saves`
#[test]
#[ignore = "minutes: make judge-saves"]
fn many_stops_let_every_rank_save_within_a_second() {
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

/// The loader of torch, whose workers set a handler of their own in C.
#[test]
fn workers_of_torchs_loader_outlive_a_signal_to_all() {
    let stop = Stop { kind: "loader", to_all: true, ..PLAIN };
    let (ended, _) = stop.run();
    assert_eq!(stop.complaints(&ended), Vec::<String>::new());
}

/// Without what the launcher puts into the ranks, a signal to all takes their helpers.
#[test]
fn control_without_the_injection_a_signal_to_all_loses_the_save() {
    for kind in ["fork", "spawn", "pool"] {
        let stop = Stop { inject: "off", to_all: true, kind, ..PLAIN };
        let complaints = stop.complaints(&stop.run().0).concat();
        assert!(complaints.contains("has not saved"), "{kind}: {complaints}");
        assert!(!complaints.contains("left: "), "{kind}: {complaints}");
    }
}
