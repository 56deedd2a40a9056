//! A training whose processes and nodes are lost at random ends with the same bits as one that was left alone.
//!
//! Six nodes, each in a network namespace of its own, four seats, two ranks each. The test is the platform: it starts
//! again what ended. MINUTES sets how long faults come, SEED repeats their choice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use harness::chance::Chance;
use harness::cluster::Cluster;
use harness::{Launcher, Role, Running, program, python, run_args, skipped};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SEATS: u32 = 4;
const NODES: u32 = 6;
/// Steps between two checkpoints, as in tests/programs/immortal.py.
const INTERVAL: u64 = 5;
/// Nodes that may be out at one moment: the others fill all seats, and are a majority of the voters.
const OUT: usize = 2;
/// The platform starts a container again after this time.
const RESTARTED: Duration = Duration::from_secs(2);
/// Longest time without a new checkpoint before the next fault comes, and before the job counts as stuck.
const PATIENCE: Duration = Duration::from_secs(90);
const STUCK: Duration = Duration::from_secs(240);
/// A rank of an earlier attempt may be seen for so long after one of a later attempt has begun: the time of a file, and a
/// host that stood still kills what it finds when it goes on.
const SEEN: Duration = Duration::from_millis(1500);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// SIGKILL of one process: rank, shim, agent, guard.
    Process(Role),
    /// SIGKILL of all processes of a node.
    Node,
    /// The node loses its power, and nothing says so.
    Power,
    /// A cable is cut for a while.
    Cable,
    /// The same one way: this node hears the others and they do not hear it, or the other way round.
    OneWay,
    /// All processes of a node stand still for a while.
    Frozen,
    DiskFull,
    Notice,
    /// One rank stands still until the job is started again.
    Hang,
}

/// Faults that say what happened, so that the job goes on at once.
const LOUD: &[Fault] = &[
    Fault::Process(Role::Rank),
    Fault::Process(Role::Shim),
    Fault::Process(Role::Agent),
    Fault::Process(Role::Guard),
    Fault::Node,
    Fault::DiskFull,
    Fault::Notice,
];
const ALL: &[Fault] = &[
    Fault::Process(Role::Rank),
    Fault::Process(Role::Shim),
    Fault::Process(Role::Agent),
    Fault::Process(Role::Guard),
    Fault::Node,
    Fault::Node,
    Fault::Power,
    Fault::Cable,
    Fault::OneWay,
    Fault::Frozen,
    Fault::DiskFull,
    Fault::Notice,
    Fault::Hang,
];

/// What is undone, and when.
enum Undo {
    Mend(u32),
    Listen(u32, &'static str),
    Continue(Vec<i32>),
    EmptyDisk,
    /// The platform takes the node back, unless this launcher has left it by then.
    Take(u32, i32),
}

/// The file system of the checkpoints, which fills.
struct Disk(PathBuf);

impl Disk {
    fn new(folder: PathBuf) -> Option<Disk> {
        std::fs::create_dir(&folder).expect("a folder");
        let size = Some("size=4m");
        match mount(Some("tmpfs"), &folder, Some("tmpfs"), MsFlags::empty(), size) {
            Ok(()) => Some(Disk(folder)),
            Err(error) => {
                skipped(format!("a file system that fills cannot be mounted: {error}"));
                None
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

struct Platform {
    cluster: Cluster,
    /// What rank 0 writes, and what the test tells all.
    folder: PathBuf,
    nodes: BTreeMap<u32, Running>,
    /// When a container is started again.
    due: BTreeMap<u32, Instant>,
    undo: Vec<(Instant, Undo)>,
    /// Launchers that ended, by node: exit code and console.
    ends: Vec<(u32, i32, String)>,
    began: Instant,
    log: Vec<String>,
}

impl Platform {
    fn new() -> Option<(Platform, Disk)> {
        let cluster = Cluster::new(NODES)?;
        let folder = cluster.folder().join("job");
        for name in ["", "ran", "notices"] {
            std::fs::create_dir_all(folder.join(name)).expect("a folder");
        }
        let disk = Disk::new(folder.join("checkpoints"))?;
        let (nodes, due) = (BTreeMap::new(), BTreeMap::new());
        let (undo, ends, log) = (Vec::new(), Vec::new(), Vec::new());
        let began = Instant::now();
        let mut platform = Platform { cluster, folder, nodes, due, undo, ends, began, log };
        (0..NODES).for_each(|node| platform.start(node));
        Some((platform, disk))
    }

    fn start(&mut self, node: u32) {
        let _ = std::fs::remove_file(self.notice(node));
        let mut args = run_args("direct", 2);
        let spares = (NODES - SEATS).to_string();
        let notice = format!("file:{}", self.notice(node).display());
        let checkpoints = self.folder.join("checkpoints");
        let checkpoints = checkpoints.to_str().expect("a path");
        for words in [
            ["--spares", &spares],
            ["--warm", "required"],
            ["--grace", "3s"],
            ["--max-restarts", "100000"],
            ["--max-restarts-without-progress", "1000"],
            ["--checkpoint-dir", checkpoints],
            ["--hang-after", "20s"],
            ["--on-hang", "restart"],
            ["--notice", &notice],
            ["--notice-lead", "10s"],
            ["--retry-on", "disk_full"],
        ] {
            args.extend(words.map(Into::into));
        }
        args.extend(["--".into(), program("immortal.py").into(), self.folder.clone().into()]);
        let launcher = self.cluster.launcher(node, node, NODES, &args);
        self.nodes.insert(node, launcher.env("PACE", "0.03").env("OMP_NUM_THREADS", "1").start());
        self.note(format!("node {node} starts"));
    }

    fn notice(&self, node: u32) -> PathBuf {
        self.folder.join("notices").join(node.to_string())
    }

    fn note(&mut self, what: impl Display) {
        let at = self.began.elapsed().as_secs_f32();
        let line = format!("{at:7.1} {what}");
        println!("{line}");
        self.log.push(line);
    }

    /// The attempts and steps of rank 0, in their order.
    fn steps(&self) -> Vec<(u64, u64)> {
        let text = std::fs::read_to_string(self.folder.join("steps")).unwrap_or_default();
        let words = text.lines().filter_map(|line| line.split_once(' '));
        words
            .filter_map(|(attempt, step)| Some((attempt.parse().ok()?, step.parse().ok()?)))
            .collect()
    }

    fn last_step(&self) -> u64 {
        self.steps().last().map_or(0, |(_, step)| *step)
    }

    /// Nodes that are no part of the job at this moment.
    fn out(&self) -> usize {
        let counts = |undo: &Undo| match undo {
            Undo::EmptyDisk => false,
            Undo::Take(node, pid) => self.nodes.get(node).is_some_and(|one| one.pid() == *pid),
            Undo::Mend(_) | Undo::Listen(..) | Undo::Continue(_) => true,
        };
        let cut = self.undo.iter().filter(|(_, undo)| counts(undo)).count();
        // One that has just come is still on its way.
        let new = self
            .nodes
            .values()
            .filter(|node| !node.err().contains("agree") && !node.err().contains("is a spare"));
        cut + self.due.len() + new.count()
    }

    /// Ends what is over, starts what is due again.
    fn goes_on(&mut self, restarts: bool) {
        let over: Vec<u32> = self
            .nodes
            .iter_mut()
            .filter_map(|(node, one)| one.is_over().then_some(*node))
            .collect();
        for node in over {
            let ended = self.nodes.remove(&node).expect("it is there").wait();
            let (code, console) = (ended.code, format!("{}\n{}", ended.out, ended.err));
            let last = ended.err.lines().rev().find(|line| line.contains("──")).unwrap_or_default();
            self.note(format!("node {node} ended with {code}: {last}"));
            self.ends.push((node, code, console));
            if restarts && code != 0 {
                self.due.insert(node, Instant::now() + RESTARTED);
            }
        }
        let now = Instant::now();
        let due: Vec<u32> =
            self.due.iter().filter(|(_, at)| **at <= now).map(|(node, _)| *node).collect();
        for node in due {
            self.due.remove(&node);
            self.start(node);
        }
        let (over, left) =
            std::mem::take(&mut self.undo).into_iter().partition(|(at, _)| *at <= now);
        self.undo = left;
        let over: Vec<(Instant, Undo)> = over;
        over.into_iter().for_each(|(_, undo)| self.undo(undo));
    }

    fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Mend(node) => {
                self.note(format!("the cable of node {node} is back"));
                self.cluster.mend(node);
            }
            Undo::Listen(node, chain) => {
                self.note(format!("node {node} is heard and hears"));
                self.drops(node, "-D", chain);
            }
            Undo::Continue(pids) => {
                self.note("what stood still goes on");
                for pid in pids {
                    let _ = kill(Pid::from_raw(pid), Signal::SIGCONT);
                }
            }
            Undo::Take(node, pid) => {
                if self.nodes.get(&node).is_some_and(|one| one.pid() == pid) {
                    self.note(format!("node {node} is taken back"));
                    self.cluster.kill_all(node);
                }
            }
            Undo::EmptyDisk => {
                self.note("the disk is empty");
                let _ = std::fs::remove_file(self.folder.join("checkpoints/filler"));
            }
        }
    }

    fn drops(&self, node: u32, how: &str, chain: &str) -> bool {
        let mut command = Command::new("ip");
        command.args([
            "netns",
            "exec",
            &self.cluster.namespace(node),
            "iptables",
            "-w",
            how,
            chain,
        ]);
        command.args(["!", "-i", "lo", "-j", "DROP"].map(|word| match (word, chain) {
            ("-i", "OUTPUT") => "-o",
            _ => word,
        }));
        command.output().is_ok_and(|done| done.status.success())
    }

    /// Gives this fault; false if it cannot be given now.
    fn give(&mut self, fault: Fault, chance: &mut Chance, longest: u64) -> bool {
        let there: Vec<u32> = self.nodes.keys().copied().collect();
        if there.is_empty() {
            return false;
        }
        let node = chance.of(&there);
        let lasts = Duration::from_millis(2_000 + chance.below(longest * 1000));
        let until = Instant::now() + lasts;
        let is_apart = self.undo.iter().any(|(_, undo)| match undo {
            Undo::Mend(other) | Undo::Listen(other, _) => *other == node,
            Undo::Continue(_) => false,
            Undo::EmptyDisk => fault == Fault::DiskFull,
            Undo::Take(other, _) => *other == node,
        });
        let takes_a_node = !matches!(
            fault,
            Fault::Process(Role::Rank | Role::Shim) | Fault::DiskFull | Fault::Hang
        );
        if is_apart || (takes_a_node && self.out() >= OUT) {
            return false;
        }
        let Some(running) = self.nodes.get(&node) else { return false };
        match fault {
            Fault::Process(role) => {
                if !signal_one(running, role, Signal::SIGKILL, chance) {
                    return false;
                }
            }
            Fault::Hang => {
                if !signal_one(running, Role::Rank, Signal::SIGSTOP, chance) {
                    return false;
                }
            }
            Fault::Node => self.cluster.kill_all(node),
            Fault::Power => {
                self.cluster.power_off(node);
                self.undo.push((Instant::now() + RESTARTED, Undo::Mend(node)));
            }
            Fault::Cable => {
                self.cluster.cut(node);
                self.undo.push((until, Undo::Mend(node)));
            }
            Fault::OneWay => {
                let chain = chance.of(&["INPUT", "OUTPUT"]);
                if !self.drops(node, "-A", chain) {
                    return false;
                }
                self.undo.push((until, Undo::Listen(node, chain)));
            }
            Fault::Frozen => {
                let pids = self.cluster.processes(node);
                for pid in &pids {
                    let _ = kill(Pid::from_raw(*pid), Signal::SIGSTOP);
                }
                self.undo.push((until, Undo::Continue(pids)));
            }
            Fault::DiskFull => {
                use std::io::Write;
                let filler = self.folder.join("checkpoints/filler");
                let mut filler = std::fs::File::create(filler).expect("a file");
                while filler.write_all(&[0; 4096]).is_ok() {}
                self.undo.push((Instant::now() + Duration::from_secs(3), Undo::EmptyDisk));
            }
            Fault::Notice => {
                let taken = Instant::now() + Duration::from_secs(20);
                self.undo.push((taken, Undo::Take(node, running.pid())));
                let deadline =
                    time::OffsetDateTime::from(SystemTime::now() + Duration::from_secs(20));
                let deadline = deadline.format(&time::format_description::well_known::Rfc3339);
                let text = serde_json::json!({ "deadline": deadline.expect("a time"), "reason": "preemption" });
                let (new, path) = (self.folder.join("notice-new"), self.notice(node));
                std::fs::write(&new, text.to_string())
                    .and_then(|()| std::fs::rename(new, path))
                    .expect("told");
            }
        }
        self.note(format!(
            "{fault:?} on node {node} ({:.1} s), {} out",
            lasts.as_secs_f32(),
            self.out()
        ));
        true
    }
}

/// Signals one process of this role; false if there is none.
fn signal_one(running: &Running, role: Role, signal: Signal, chance: &mut Chance) -> bool {
    let found = running.roles();
    let pids = found.iter().filter(|(its, _)| *its == role).map(|(_, one)| one.pid);
    let pids: Vec<i32> = pids.collect();
    !pids.is_empty() && kill(Pid::from_raw(chance.of(&pids)), signal).is_ok()
}

impl Platform {
    /// Goes on until `done`, as a platform does.
    fn until(&mut self, what: &str, limit: Duration, done: impl Fn(&Platform) -> bool) -> bool {
        let begun = Instant::now();
        while !done(self) {
            if begun.elapsed() > limit {
                self.note(format!("not within {} s: {what}", limit.as_secs()));
                return false;
            }
            self.goes_on(true);
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Everything that is known, for a failure.
    fn said(&self) -> String {
        let consoles = self.nodes.iter().map(|(node, one)| {
            let err = one.err();
            let last: Vec<&str> = err.lines().rev().take(40).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            format!("== node {node} runs\n{}", last.join("\n"))
        });
        let ends = self.ends.iter().rev().take(6).map(|(node, code, console)| {
            let last: Vec<&str> = console.lines().rev().take(40).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            format!("== node {node} ended with {code}\n{}", last.join("\n"))
        });
        let lines = self.log.join("\n");
        format!("{lines}\n{}", consoles.chain(ends).collect::<Vec<_>>().join("\n"))
    }
}

/// The weights of FILE as bytes, and its step.
fn result(file: &Path) -> (String, u64) {
    let script = "import sys, torch\nstate = torch.load(sys.argv[1], weights_only=True)\n\
        print(state['weights'].numpy().tobytes().hex(), state['step'])";
    let done = Command::new(python()).args(["-c", script]).arg(file).output().expect("python runs");
    let text = String::from_utf8(done.stdout).expect("text");
    let (weights, step) = text.trim().split_once(' ').expect("weights and a step");
    (weights.to_owned(), step.parse().expect("a step"))
}

/// The same training on one node, left alone.
fn undisturbed(steps: u64) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["ran", "checkpoints"] {
        std::fs::create_dir(folder.path().join(name)).expect("a folder");
    }
    let mut args = run_args("direct", SEATS * 2);
    args.extend(["--warm", "required", "--"].map(Into::into));
    args.extend([program("immortal.py").into(), folder.path().into(), steps.to_string().into()]);
    let launcher = Launcher::new(&args).env("OMP_NUM_THREADS", "1").start();
    launcher.ends_within(Duration::from_secs(600)).expect_code(0).expect_nothing_left();
    let (weights, step) = result(&folder.path().join("final.pt"));
    assert_eq!(step, steps);
    weights
}

/// When the ranks of each attempt began, and were last seen.
fn lives(folder: &Path) -> BTreeMap<u64, (f64, f64)> {
    let mut lives: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for entry in folder.join("ran").read_dir().expect("a folder").flatten() {
        let name = entry.file_name().into_string().expect("a name");
        let attempt = name.split_once('-').and_then(|(attempt, _)| attempt.parse().ok());
        let began = std::fs::read_to_string(entry.path()).unwrap_or_default().parse();
        let (Some(attempt), Ok(began)) = (attempt, began) else { continue };
        let seen = entry.metadata().and_then(|of| of.modified()).expect("a time");
        let seen = seen.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs_f64();
        let life = lives.entry(attempt).or_insert((began, seen));
        *life = (life.0.min(began), life.1.max(seen));
    }
    lives
}

/// Faults for so long, then the end of the job and what must hold.
fn goes_on_for(duration: Duration, faults: &[Fault], longest: u64) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let seed = super::number("SEED").unwrap_or(u64::from(now.subsec_nanos()));
    println!("SEED={seed}, {} s", duration.as_secs());
    let mut chance = Chance::new(seed, 0);
    let Some((mut platform, _disk)) = Platform::new() else { return };
    platform.until("a first step", STUCK, |one| one.last_step() > 0 || !one.ends.is_empty());
    assert!(platform.last_step() > 0, "{}", platform.said());
    let (end, mut given) = (Instant::now() + duration, BTreeMap::<Fault, u32>::new());
    let mut last = 0;
    while Instant::now() < end {
        // Now and then the next one comes before the job has got over the last.
        let is_burst = chance.below(5_u32) == 0;
        let next = last + 2 * INTERVAL;
        if !is_burst {
            platform.until("a newer checkpoint", PATIENCE, |one| one.last_step() >= next);
        }
        let pause = Duration::from_millis(chance.below(3_000_u64));
        let begun = Instant::now();
        platform.until("a pause", pause * 2, |_| begun.elapsed() >= pause);
        let fault = chance.of(faults);
        let before = platform.last_step();
        if platform.give(fault, &mut chance, longest) {
            *given.entry(fault).or_default() += 1;
            last = before;
        }
    }
    let left: Vec<Undo> =
        std::mem::take(&mut platform.undo).into_iter().map(|(_, undo)| undo).collect();
    left.into_iter().for_each(|undo| platform.undo(undo));
    let next = platform.last_step() + INTERVAL;
    let runs = platform.until("the job goes on", STUCK, |one| one.last_step() >= next);
    assert!(runs, "SEED={seed}\n{}", platform.said());
    std::fs::write(platform.folder.join("stop"), "").expect("told");
    let last = platform.folder.join("final.pt");
    let is_over = platform.until("the end", STUCK, |_| last.exists());
    assert!(is_over, "SEED={seed}\n{}", platform.said());
    let begun = Instant::now();
    while !platform.nodes.is_empty() && begun.elapsed() < PATIENCE {
        platform.goes_on(false);
        platform.due.clear();
        // Who came when the job was over waits for another one.
        if begun.elapsed() > Duration::from_secs(20) {
            for node in platform.nodes.values() {
                node.signal(Signal::SIGTERM);
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(platform.nodes.is_empty(), "SEED={seed}\n{}", platform.said());
    platform.cluster.expect_nothing_left();
    judge(&platform, seed, faults, &given);
}

/// What holds after any faults.
fn judge(platform: &Platform, seed: u64, among: &[Fault], given: &BTreeMap<Fault, u32>) {
    let faults: u32 = given.values().sum();
    let (weights, step) = result(&platform.folder.join("final.pt"));
    let steps = platform.steps();
    let attempts = steps.last().map_or(0, |(attempt, _)| *attempt);
    let lost = u64::try_from(steps.len()).expect("few") - step;
    println!(
        "{faults} faults, {attempts} restarts, {step} steps and {lost} that were lost: {given:?}"
    );
    let said = || format!("SEED={seed}\n{}", platform.said());
    // A fault that cannot be given is passed over, and must not stay away.
    let kinds: BTreeSet<&Fault> = among.iter().collect();
    let has_process = given.keys().any(|fault| matches!(fault, Fault::Process(_)));
    assert!(faults < 10 || has_process, "{given:?}\n{}", said());
    assert!(given.len() >= kinds.len() || faults < 100, "{given:?}\n{}", said());
    assert!(weights == undisturbed(step), "other bits\n{}", said());
    assert!(lost <= u64::from(faults + 1) * (INTERVAL + 1), "{lost} steps were lost\n{}", said());
    assert!(attempts <= u64::from(faults), "{attempts} restarts for {faults} faults\n{}", said());
    let lives = lives(&platform.folder);
    for ((one, (_, seen)), (next, (began, _))) in lives.iter().zip(lives.iter().skip(1)) {
        let together = seen - began;
        assert!(
            together < SEEN.as_secs_f64(),
            "attempts {one} and {next} ran together for {together:.1} s\n{}",
            said()
        );
    }
}

#[test]
fn job_that_loses_processes_and_nodes_ends_with_the_same_bits() {
    let seconds = super::number("IMMORTAL_SECONDS").unwrap_or(60);
    goes_on_for(Duration::from_secs(seconds), LOUD, 5);
}

#[test]
#[ignore = "make immortal"]
fn job_outlives_its_nodes() {
    let minutes = super::number("MINUTES").unwrap_or(30);
    goes_on_for(Duration::from_secs(minutes * 60), ALL, 40);
}
