//! A running launcher, and the processes of its job by their roles.
//!
//! Processes are recognised by the token in their environment and by their executable or folder: a process may clear
//! its environment, overwrite its title and change its folder, but not its executable.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::docker::Owned;
use crate::{Ended, Place, Process, TIMEOUT, alive, executable, send, wait_until};

/// The link to the folder of the newest run.
const LATEST: &str = "ranklaunch-logs/latest";

/// A launcher that runs. If dropped before its end, it is killed.
#[derive(Debug)]
pub struct Running {
    pub(crate) child: Child,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) token: String,
    pub(crate) place: Place,
    pub(crate) program: PathBuf,
    /// True if survivors of the end are killed with this value.
    pub(crate) swept: bool,
    pub(crate) ended: bool,
    /// The container in which the launcher runs.
    pub(crate) container: Option<Owned>,
    /// The read end of a console that is never read.
    pub(crate) _unread: Option<std::io::PipeReader>,
}

/// The role of a process in its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Guard,
    Agent,
    Engine,
    Shim,
    Rank,
    Grandchild,
    /// The process that watches the driver beside the job.
    Probe,
}

impl Running {
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The id of the newest run, which has a log folder.
    #[track_caller]
    pub fn run_id(&self) -> String {
        let latest = std::fs::read_link(self.folder().join(LATEST)).expect("a run");
        latest.file_name().and_then(|name| name.to_str()).expect("an id").to_owned()
    }

    /// This node's folder of the newest run.
    pub fn node_folder(&self, node: u32) -> PathBuf {
        self.folder().join(LATEST).join(format!("node-{node}"))
    }

    /// The name of the container in which the launcher runs.
    #[track_caller]
    pub fn container(&self) -> &str {
        self.container.as_deref().expect("it was started in a container")
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    pub fn out(&self) -> String {
        read(&self.folder().join("console.out"))
    }

    pub fn err(&self) -> String {
        read(&self.folder().join("console.err"))
    }

    /// The report of the other subreaper.
    pub(crate) fn report(&self) -> String {
        read(&self.folder().join("report"))
    }

    /// Waits until standard output contains `text` `times` times.
    #[track_caller]
    pub fn says(&mut self, text: &str, times: usize) -> &mut Running {
        self.waits(text, |running| running.out().matches(text).count() >= times)
    }

    /// Waits for a condition while the launcher runs.
    #[track_caller]
    pub fn waits(&mut self, what: &str, ready: impl Fn(&Running) -> bool) -> &mut Running {
        let deadline = Instant::now() + TIMEOUT;
        while !ready(self) {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "waited for {what}, ended {ended:?}\n{}\n{}\n{:#?}",
                self.out(),
                self.err(),
                self.processes()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        self
    }

    /// Signals the launcher, or the process in front of it in its place.
    pub fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// The living processes of the job, without the process in front of the launcher in its place.
    pub fn processes(&self) -> Vec<Process> {
        let before = |seen: &Process| {
            self.place != Place::Plain
                && (seen.argv.iter().any(|word| word == "subreaper" || word == "--mount-proc")
                    || seen.argv.first().is_some_and(|word| word == "docker"))
        };
        let mut found = alive(&self.token, Some(self.folder()));
        found.retain(|seen| !before(seen));
        found
    }

    /// SIGKILL of everything on these nodes at one moment, the guards first, or they would sweep and report.
    pub fn lose(nodes: Vec<Running>) {
        let mut processes: Vec<_> = nodes.iter().flat_map(Running::processes).collect();
        processes.sort_by_key(|process| process.pid);
        for process in processes {
            // One that has ended meanwhile.
            let _ = nix::sys::signal::kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
        nodes.into_iter().for_each(|node| drop(node.wait()));
    }

    /// The agent: the guard's only child.
    pub fn agent(&self) -> i32 {
        let guard = self.pid();
        wait_until("the agent", || {
            self.processes().into_iter().find(|seen| seen.parent == guard).map(|seen| seen.pid)
        })
    }

    /// The processes with their roles, without those that a warm start adds: the interpreter, and the shims that the
    /// engine has started, which forward signals to the shims of forked ranks.
    pub fn roles(&self) -> Vec<(Role, Process)> {
        let all = self.processes();
        // On a host of a cluster another program starts it.
        let ours = [self.program.clone(), executable()];
        let is = |seen: &Process, role: &str| {
            let program = seen.argv.first().map(Path::new);
            program.is_some_and(|program| ours.iter().any(|one| one == program))
                && seen.argv.get(1).is_some_and(|word| word == role)
        };
        let run: Vec<i32> =
            all.iter().filter(|seen| is(seen, "run")).map(|seen| seen.pid).collect();
        let shims: Vec<i32> =
            all.iter().filter(|seen| is(seen, "rank")).map(|seen| seen.pid).collect();
        let agents: Vec<i32> = all
            .iter()
            .filter(|seen| run.contains(&seen.pid) && run.contains(&seen.parent))
            .map(|seen| seen.pid)
            .collect();
        // Processes that a shim has adopted are younger than its rank.
        let mut first_below: BTreeMap<i32, i32> = BTreeMap::new();
        for seen in all.iter().filter(|seen| shims.contains(&seen.parent)) {
            let first = first_below.entry(seen.parent).or_insert(seen.pid);
            *first = seen.pid.min(*first);
        }
        let first_below: Vec<(i32, i32)> = first_below.into_iter().collect();
        let has = |seen: &Process, name: &str| {
            let environ = std::fs::read(format!("/proc/{}/environ", seen.pid)).unwrap_or_default();
            String::from_utf8_lossy(&environ).contains(name)
        };
        let is_relay = |seen: &Process| {
            shims.contains(&seen.pid)
                && !first_below.iter().any(|(parent, _)| *parent == seen.pid)
                && has(seen, "RANKLAUNCH_WARM_SOCKET=")
        };
        let is_interpreter =
            |seen: &Process| agents.contains(&seen.parent) && has(seen, "RANKLAUNCH_WARM_LISTEN=");
        all.iter()
            .filter(|seen| !is_relay(seen) && !is_interpreter(seen))
            .cloned()
            .map(|seen| {
                let role = if agents.contains(&seen.pid) {
                    Role::Agent
                } else if run.contains(&seen.pid) {
                    Role::Guard
                } else if shims.contains(&seen.pid) {
                    Role::Shim
                } else if seen.argv.first().is_some_and(|word| word.contains("node-probe")) {
                    Role::Probe
                } else if first_below.contains(&(seen.parent, seen.pid)) {
                    Role::Rank
                } else if agents.contains(&seen.parent)
                    && seen.argv.iter().any(|word| word.contains("launch") || word.contains(".run"))
                {
                    Role::Engine
                } else {
                    Role::Grandchild
                };
                (role, seen)
            })
            .collect()
    }

    /// Waits for a process of this role; the first by pid.
    #[track_caller]
    pub fn find(&self, role: Role) -> i32 {
        wait_until(&format!("a process of role {role:?}"), || {
            self.roles().into_iter().find(|(its, _)| *its == role).map(|(_, seen)| seen.pid)
        })
    }

    pub fn send(&self, role: Role, signal: Signal) {
        send(self.find(role), signal);
    }

    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Makes the launcher's time of day jump; see [`crate::Launcher::own_clock`].
    pub fn step_clock(&self, seconds: i64) {
        std::fs::write(self.folder().join("clock"), seconds.to_ne_bytes()).unwrap();
    }

    /// The guard, if it is running.
    pub fn guard_now(&self) -> Option<i32> {
        self.roles().into_iter().find(|(role, _)| *role == Role::Guard).map(|(_, seen)| seen.pid)
    }

    #[track_caller]
    pub fn wait(self) -> Ended {
        self.ends_within(TIMEOUT)
    }

    /// Waits for the end, which must come within `limit`.
    #[track_caller]
    pub fn ends_within(self, limit: Duration) -> Ended {
        self.ends_by(limit, "")
    }

    /// The same, with a description for a failure.
    #[track_caller]
    pub fn ends_by(mut self, limit: Duration, what: &str) -> Ended {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                started.elapsed() < limit,
                "no end within {limit:?} {what}\n{}\n{}\n{:#?}",
                self.out(),
                self.err(),
                self.roles()
            );
            std::thread::sleep(Duration::from_millis(2));
        };
        let elapsed = started.elapsed();
        self.ended = true;
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap());
        let left = self.processes();
        Ended { code, out: self.out(), err: self.err(), elapsed, left, running: self }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended && !self.swept {
            return;
        }
        // The container is removed before its processes are looked for.
        drop(self.container.take());
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.swept && Instant::now() < deadline {
            let left = alive(&self.token, Some(self.folder.path()));
            if left.is_empty() {
                break;
            }
            for seen in left {
                let _ = nix::sys::signal::kill(Pid::from_raw(seen.pid), Signal::SIGKILL);
            }
            let _ = self.child.try_wait();
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}
