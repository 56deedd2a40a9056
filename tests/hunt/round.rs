//! One job with one fault, and the state after all its launchers have ended.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::invariants;
use crate::proxy::Proxy;
use crate::spec::{Fault, Kind, MESSAGE, Spec};
use harness::cluster::Cluster;
use harness::{Ended, Launcher, Place, Role, Running, free_port, modules};

/// A limit that only an endless run exceeds, since a busy machine may be slow. Ranks that are not
/// ended live longer than this.
const TIMEOUT: Duration = Duration::from_secs(150);

/// A small disk below a job's folder, removed with the round.
struct Disk(PathBuf);

impl Disk {
    fn new(at: PathBuf, kib: u32) -> Option<Disk> {
        std::fs::create_dir_all(&at).expect("a folder");
        let size = format!("size={kib}k");
        let flags = nix::mount::MsFlags::empty();
        let made = nix::mount::mount(Some("hunt"), &at, Some("tmpfs"), flags, Some(size.as_str()));
        made.is_ok().then_some(Disk(at))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

/// The end of one node.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) code: i32,
    pub(crate) folder: PathBuf,
    /// The node's standard output, if it was read, and its standard error.
    pub(crate) out: Option<String>,
    pub(crate) console: String,
    pub(crate) run: Option<Value>,
    pub(crate) message: Option<Value>,
    pub(crate) left: Vec<String>,
}

/// A job that is over.
pub(crate) struct Round {
    pub(crate) spec: Spec,
    pub(crate) nodes: Vec<Node>,
    /// The rank that was hit, if any.
    pub(crate) victim: Option<u32>,
    /// The process that was to be stopped had ended already.
    pub(crate) missed: bool,
    /// The fault could not be made here.
    skipped: bool,
    overs: Vec<Ended>,
    _disk: Option<Disk>,
    _ended: Vec<Ended>,
}

impl Round {
    pub(crate) fn run(spec: &Spec) -> Round {
        match spec.fault {
            Fault::Cut { node } => Round::cut(spec, node),
            _ => Round::here(spec),
        }
    }

    /// Runs all nodes on this machine's loopback.
    fn here(spec: &Spec) -> Round {
        let port = free_port();
        let proxy = Proxy::before(port);
        let mut disk = None;
        let mut skipped = false;
        let mut jobs: Vec<Running> = (0..spec.nodes)
            .map(|node| {
                let mut setup = Launcher::at(Place::Subreaper);
                if spec.nodes > 1 {
                    for (name, value) in [
                        ("WORLD_SIZE", spec.nodes.to_string()),
                        ("RANK", node.to_string()),
                        ("MASTER_ADDR", "127.0.0.1".to_owned()),
                        ("MASTER_PORT", port.to_string()),
                    ] {
                        setup = setup.env(name, value);
                    }
                }
                if matches!(spec.fault, Fault::Reset { .. }) {
                    // Nodes that reach node 0 by different ports know their job by its id.
                    setup = setup.env("RAY_CLUSTER_NAME", "hunt").env("RAY_NODE_TYPE_NAME", "any");
                }
                if node == 0 && spec.fault == Fault::MuteConsole {
                    setup = setup.full_console();
                }
                if matches!(spec.fault, Fault::ClockStep { node: hit, .. } if hit == node) {
                    setup = setup.own_clock();
                }
                setup = setup.env("PYTHONPATH", modules());
                if node == 0
                    && let Fault::DiskFull { kib } = spec.fault
                {
                    disk = Disk::new(setup.folder().join("ranklaunch-logs"), kib);
                    skipped = disk.is_none();
                }
                let mut args = spec.arguments(setup.misbehave());
                if matches!(spec.fault, Fault::Reset { node: hit } if hit == node) {
                    let option = ["--muster-port".to_owned(), proxy.port.to_string()];
                    args.splice(1..1, option.map(Into::into));
                }
                setup.program(&harness::executable(), &args)
            })
            .collect();
        let (mut victim, mut missed) = (None, false);
        if spec.fault.is_fatal()
            || matches!(
                spec.fault.kind(),
                Kind::Stop | Kind::FolderDeleted | Kind::ClockStep | Kind::Freeze | Kind::Reset
            )
        {
            wait_for_ranks(spec, &mut jobs);
            std::thread::sleep(Duration::from_millis(spec.after));
            (victim, missed) = strike(spec, &mut jobs, &proxy);
        }
        let overs: Vec<Ended> =
            jobs.into_iter().map(|job| job.ends_by(TIMEOUT, &format!("{spec:?}"))).collect();
        let mut round = Round {
            spec: spec.clone(),
            nodes: Vec::new(),
            victim,
            missed,
            skipped,
            overs,
            _disk: disk,
            _ended: Vec::new(),
        };
        round.look_again();
        round
    }

    /// Runs every node in a network namespace, and cuts one off.
    fn cut(spec: &Spec, node: u32) -> Round {
        let mut round = Round {
            spec: spec.clone(),
            nodes: Vec::new(),
            victim: None,
            missed: false,
            skipped: true,
            overs: Vec::new(),
            _disk: None,
            _ended: Vec::new(),
        };
        let Some(cluster) = Cluster::new(spec.nodes) else { return round };
        round.skipped = false;
        let args = spec.arguments(harness::misbehave().to_owned());
        let start = |rank| {
            let launcher = cluster.launcher(rank, rank, spec.nodes, &args);
            launcher.env("PYTHONPATH", modules()).start()
        };
        let running: Vec<Running> = (0..spec.nodes).map(start).collect();
        for (rank, running) in (0..).zip(&running) {
            for file in spec.byte_counts(rank, running.folder()) {
                harness::wait_until("the ranks", || file.exists().then_some(()));
            }
        }
        cluster.cut(node);
        for (rank, running) in (0..).zip(running) {
            let ended = running.wait();
            let folder = ended.folder().to_owned();
            let left = ended.left_now();
            round.nodes.push(Node {
                code: ended.code,
                run: run_json(&folder, rank),
                message: json(&folder.join(MESSAGE)),
                folder,
                out: Some(ended.out.clone()),
                console: ended.err.clone(),
                left: left.iter().map(|process| format!("{process:?}")).collect(),
            });
            round._ended.push(ended);
        }
        round
    }

    /// Reads the current state of each node again.
    pub(crate) fn look_again(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        let killed_guard = match self.spec.fault {
            Fault::Kill { node, role: Role::Guard } => Some(node),
            _ => None,
        };
        self.nodes = (0..)
            .zip(&self.overs)
            .map(|(node, over)| {
                let seen = || -> Vec<String> {
                    let left = over.left_now();
                    left.iter().map(|process| format!("{process:?}")).collect()
                };
                let mut left = seen();
                // The guard's parent sees its end before the agent has swept.
                while killed_guard == Some(node) && !left.is_empty() && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(2));
                    left = seen();
                }
                let folder = over.folder().to_owned();
                let read = !(node == 0 && self.spec.fault == Fault::MuteConsole);
                Node {
                    code: over.code,
                    run: run_json(&folder, node),
                    message: json(&folder.join(MESSAGE)),
                    folder,
                    out: read.then(|| over.out.clone()),
                    console: over.err.clone(),
                    left,
                }
            })
            .collect();
    }

    /// The reason why the fault hit nothing, so that the job does not look like one that survived
    /// it.
    pub(crate) fn what(&self) -> &'static str {
        match (self.missed, self.skipped) {
            (true, _) => " (missed: it had ended)",
            (_, true) => " (not possible here)",
            _ => "",
        }
    }

    pub(crate) fn complaints(&self) -> Vec<String> {
        if self.skipped { Vec::new() } else { invariants::complaints(self) }
    }

    /// A process that carries the job's token and outlives it.
    pub(crate) fn plant_a_leftover(&self) -> Child {
        let job = &self.overs[0];
        Command::new(job.folder().join("misbehave"))
            .arg("sleep")
            .current_dir(job.folder())
            .spawn()
            .expect("it starts")
    }

    /// Removes the second line of rank 0 from its file.
    pub(crate) fn cut_a_line_out(&self) {
        let file = invariants::log_of(&self.nodes[0].folder, 0, 0);
        let text = std::fs::read_to_string(&file).expect("the log");
        let kept: Vec<&str> = text
            .split_inclusive('\n')
            .enumerate()
            .filter(|(at, _)| *at != 1)
            .map(|(_, line)| line)
            .collect();
        std::fs::write(file, kept.concat()).expect("written");
    }
}

fn run_json(folder: &Path, node: u32) -> Option<Value> {
    let file = folder.join(format!("ranklaunch-logs/latest/node-{node}/run.json"));
    json(&file)
}

fn json(file: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

/// Waits until every rank has written its first line, or a job is over.
fn wait_for_ranks(spec: &Spec, jobs: &mut [Running]) {
    let deadline = Instant::now() + TIMEOUT;
    for (node, job) in (0..).zip(jobs) {
        for file in spec.byte_counts(node, job.folder()) {
            while !file.exists() && !job.is_over() {
                assert!(Instant::now() < deadline, "no first line: {spec:?}\n{}", job.err());
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// The rank that was hit, if any, and whether the process to stop had already ended.
fn strike(spec: &Spec, jobs: &mut [Running], proxy: &Proxy) -> (Option<u32>, bool) {
    let send = |pid: i32, signal| {
        let _ = kill(Pid::from_raw(pid), signal);
    };
    match spec.fault {
        Fault::Kill { node, role } => {
            let pid = jobs[node as usize].find(role);
            let rank = rank_of(pid);
            send(pid, Signal::SIGKILL);
            return (rank, false);
        }
        Fault::Stop { node, role, millis } => {
            let roles = jobs[node as usize].roles();
            let Some((_, seen)) = roles.iter().find(|(its, _)| *its == role) else {
                return (None, true);
            };
            send(seen.pid, Signal::SIGSTOP);
            std::thread::sleep(Duration::from_millis(millis));
            send(seen.pid, Signal::SIGCONT);
        }
        Fault::Freeze { node, millis } => {
            let roles = jobs[node as usize].roles();
            let launcher =
                roles.iter().filter(|(role, _)| matches!(role, Role::Guard | Role::Agent));
            let pids: Vec<i32> = launcher.map(|(_, seen)| seen.pid).collect();
            pids.iter().for_each(|pid| send(*pid, Signal::SIGSTOP));
            std::thread::sleep(Duration::from_millis(millis));
            pids.iter().for_each(|pid| send(*pid, Signal::SIGCONT));
            return (None, pids.is_empty());
        }
        Fault::Reset { node } => {
            proxy.reset();
            return (None, jobs[node as usize].is_over());
        }
        Fault::Term { node } => jobs[node as usize].send(Role::Guard, Signal::SIGTERM),
        Fault::FolderDeleted => {
            let _ = std::fs::remove_dir_all(jobs[0].folder().join("ranklaunch-logs"));
        }
        Fault::ClockStep { node, seconds } => {
            let job = &mut jobs[node as usize];
            job.step_clock(seconds);
            return (None, job.is_over());
        }
        Fault::None | Fault::DiskFull { .. } | Fault::MuteConsole | Fault::Cut { .. } => {}
    }
    (None, false)
}

fn rank_of(pid: i32) -> Option<u32> {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = |name: &[u8]| {
        environ
            .split(|byte| *byte == 0)
            .find_map(|entry| entry.strip_prefix(name))
            .and_then(|value| std::str::from_utf8(value).ok()?.parse().ok())
    };
    value(b"RANK=").or_else(|| value(b"NODE_RANK="))
}
