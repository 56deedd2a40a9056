//! A job in one of several places, the processes that it consists of, and what
//! is left of it at the end.
//!
//! Its processes are known by the token in their environment and by their
//! executable, a link of this job alone: an escapee may clear its environment,
//! write over its title and change its folder, but not its executable.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::{PLATFORM, Process, TOKEN, alive, executable, skipped};

/// Where the launcher runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A child of the test.
    Plain,
    /// Below another subreaper, which tells what came to it.
    Subreaper,
    /// PID 1 of a PID namespace of its own.
    Namespace,
    /// PID 1 of a container whose root holds nothing.
    Docker,
}

pub const PLACES: [Place; 4] = [Place::Plain, Place::Subreaper, Place::Namespace, Place::Docker];

impl Place {
    /// Says why it skips a place that this machine does not have.
    pub fn exists(self) -> bool {
        static NAMESPACE: OnceLock<bool> = OnceLock::new();
        let missing = match self {
            Place::Plain | Place::Subreaper => return true,
            Place::Namespace => {
                let found = *NAMESPACE.get_or_init(|| {
                    quiet(Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "true"]))
                });
                (!found).then_some("unshare may not make a PID namespace here")
            }
            Place::Docker => image().is_none().then_some("docker does not answer here"),
        };
        if let Some(missing) = missing {
            skipped(format_args!("{self:?}: {missing}"));
        }
        missing.is_none()
    }

    pub fn is_init(self) -> bool {
        matches!(self, Place::Namespace | Place::Docker)
    }
}

fn quiet(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// tests/programs/misbehave.c
pub fn misbehave() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compiled("misbehave"))
}

/// tests/programs/NAME.c, compiled once per state of its source.
pub fn compiled(name: &str) -> PathBuf {
    let source = super::program(&format!("{name}.c"));
    let changed = source.metadata().unwrap().modified().unwrap();
    let stamp = changed.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    let built = super::built().join(format!("{name}-{stamp}"));
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _compiling = ONE_AT_A_TIME.lock();
    if built.exists() {
        return built;
    }
    let fresh = super::built().join(format!("{name}-{stamp}.{}", std::process::id()));
    let status = Command::new("cc")
        .args(["-static", "-O1", "-Wall", "-Wextra", "-pthread", "-o"])
        .args([&fresh, &source])
        .status()
        .expect("cc");
    assert!(status.success(), "{name}.c does not compile");
    std::fs::rename(&fresh, &built).unwrap();
    built
}

/// Where python finds what stands in for an engine that is not installed: `PYTHONPATH`.
pub fn modules() -> PathBuf {
    super::program("modules")
}

/// An image without a single program; None where docker does not work.
pub fn image() -> Option<&'static str> {
    static IMAGE: OnceLock<bool> = OnceLock::new();
    const NAME: &str = "ranklaunch-test-empty";
    IMAGE
        .get_or_init(|| {
            // Made once, since importing it again would leave the older one without a name.
            if quiet(Command::new("docker").args(["image", "inspect", NAME])) {
                return true;
            }
            let folder = tempfile::tempdir().unwrap();
            // docker makes the mount points, all but /tmp, which the launcher may want.
            std::fs::create_dir(folder.path().join("tmp")).unwrap();
            let tar = folder.path().join("root.tar");
            quiet(Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(folder.path()).arg("tmp"))
                && quiet(Command::new("docker").arg("import").arg(&tar).arg(NAME))
        })
        .then_some(NAME)
}

/// What is to be started.
#[derive(Debug)]
pub struct Setup {
    place: Place,
    folder: tempfile::TempDir,
    token: String,
    env: BTreeMap<OsString, OsString>,
    user: Option<u32>,
    mute_console: bool,
    /// A file of seconds by which the launcher's time of day is off.
    clock: Option<PathBuf>,
}

impl Setup {
    pub fn new(place: Place) -> Setup {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let token = format!("f{}x{}e", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // Beside the built program, so that it can be linked.
        let folder = tempfile::Builder::new().prefix("job-").tempdir_in(super::built()).unwrap();
        std::fs::hard_link(misbehave(), folder.path().join("misbehave")).unwrap();
        let (env, user) = (BTreeMap::new(), None);
        Setup { place, folder, token, env, user, mute_console: false, clock: None }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The program that misbehaves, as this job alone knows it.
    pub fn misbehave(&self) -> PathBuf {
        self.folder.path().join("misbehave")
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Setup {
        self.env.insert(name.into(), value.as_ref().to_owned());
        self
    }

    /// A console that takes a pipe full and then nothing.
    pub fn mute_console(mut self) -> Setup {
        self.mute_console = true;
        self
    }

    /// With a time of day that [`Job::step_clock`] can step.
    pub fn own_clock(mut self) -> Setup {
        let file = self.folder.path().join("clock");
        std::fs::write(&file, 0i64.to_ne_bytes()).unwrap();
        self.clock = Some(file);
        self
    }

    /// As another user, who may write to the job's folder.
    pub fn user(mut self, user: u32) -> Setup {
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(self.folder.path(), everybody).unwrap();
        self.user = Some(user);
        self
    }

    /// `ranklaunch run --engine direct …` with ranks that misbehave.
    pub fn direct(self, nproc: u32, options: &[&str], program: &[&str]) -> Job {
        let misbehave = self.misbehave();
        self.direct_of(&misbehave, nproc, options, program)
    }

    /// The same with another executable of the job's folder.
    pub fn direct_of(
        self,
        program: &Path,
        nproc: u32,
        options: &[&str],
        arguments: &[&str],
    ) -> Job {
        let mut args: Vec<OsString> = ["run", "--engine", "direct", "--device", "cpu"]
            .into_iter()
            .map(OsString::from)
            .collect();
        args.extend(["--stale", "off", "--nproc-per-node"].map(OsString::from));
        args.push(nproc.to_string().into());
        args.extend(options.iter().map(OsString::from));
        args.push("--".into());
        args.push(program.into());
        args.extend(arguments.iter().map(OsString::from));
        self.start(&executable(), &args)
    }

    /// Any program with any arguments.
    pub fn start(self, program: &Path, args: &[OsString]) -> Job {
        let report = self.folder.path().join("report");
        assert!(self.clock.is_none() || self.place == Place::Subreaper, "a clock needs its place");
        let mut command = match self.place {
            Place::Plain => Command::new(program),
            Place::Subreaper => {
                let mut command = Command::new(misbehave());
                command.arg("subreaper").arg(&report).arg("8");
                if let Some(clock) = &self.clock {
                    command.arg(compiled("clock")).arg(clock);
                }
                command.arg(program);
                command
            }
            Place::Namespace => {
                let mut command = Command::new("unshare");
                command.args(["--pid", "--fork", "--mount-proc"]).arg(program);
                command
            }
            Place::Docker => {
                let mut command = Command::new("docker");
                command.args(["run", "--rm", "--name", &self.token, "--network", "host"]);
                for path in [self.folder.path(), program] {
                    command.arg("-v").arg(format!("{0}:{0}", path.display()));
                }
                command.arg("-w").arg(self.folder.path());
                command.args(["-e", &format!("{TOKEN}={}", self.token)]);
                for (name, value) in &self.env {
                    let pair = [name.as_os_str(), value].join(OsStr::new("="));
                    command.arg("-e").arg(pair);
                }
                command.arg(image().unwrap()).arg(program);
                command
            }
        };
        let inherited: Vec<String> = std::env::vars()
            .map(|(name, _)| name)
            .filter(|name| name.starts_with("RANKLAUNCH_") || PLATFORM.contains(&name.as_str()))
            .collect();
        for name in inherited {
            command.env_remove(name);
        }
        let out = self.folder.path().join("console.out");
        let err = self.folder.path().join("console.err");
        if let Some(user) = self.user {
            std::os::unix::process::CommandExt::uid(&mut command, user);
        }
        let mut unread = None;
        let [out, err] = if self.mute_console {
            let (reader, writer) = std::io::pipe().unwrap();
            unread = Some(reader);
            [Stdio::from(writer.try_clone().unwrap()), writer.into()]
        } else {
            [out, err].map(|path| File::create(path).unwrap().into())
        };
        let child = command
            .args(args)
            .envs(&self.env)
            .env(TOKEN, &self.token)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .unwrap();
        Job {
            _unread: unread,
            place: self.place,
            child,
            folder: self.folder,
            token: self.token,
            program: program.to_owned(),
            ended: false,
        }
    }
}

/// A job that runs.
#[derive(Debug)]
pub struct Job {
    /// The other end of a console that nobody reads.
    _unread: Option<std::io::PipeReader>,
    place: Place,
    child: Child,
    folder: tempfile::TempDir,
    token: String,
    program: PathBuf,
    ended: bool,
}

/// What a process is in its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Guard,
    Agent,
    Engine,
    Shim,
    Rank,
    Grandchild,
}

impl Job {
    pub fn out(&self) -> String {
        read(&self.folder.path().join("console.out"))
    }

    pub fn err(&self) -> String {
        read(&self.folder.path().join("console.err"))
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    /// Waits until `text` was said `times` times on standard output.
    #[track_caller]
    pub fn says(&mut self, text: &str, times: usize) -> &mut Job {
        self.waits(text, |job| job.out().matches(text).count() >= times)
    }

    /// Waits for a condition while the job runs.
    #[track_caller]
    pub fn waits(&mut self, what: &str, ready: impl Fn(&Job) -> bool) -> &mut Job {
        let deadline = Instant::now() + super::PATIENCE;
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

    /// The living processes of the job, wrappers that are not of it left out.
    pub fn processes(&self) -> Vec<Process> {
        let wrapper = |seen: &Process| {
            seen.argv.iter().any(|word| word == "subreaper" || word == "--mount-proc")
                || seen.argv.first().is_some_and(|word| word == "docker")
        };
        alive(&self.token, Some(self.folder.path()))
            .into_iter()
            .filter(|seen| !wrapper(seen))
            .collect()
    }

    /// The processes with their roles.
    pub fn roles(&self) -> Vec<(Role, Process)> {
        let all = self.processes();
        let ours = self.program.to_string_lossy().into_owned();
        let is = |seen: &Process, role: &str| {
            seen.argv.first() == Some(&ours) && seen.argv.get(1).is_some_and(|word| word == role)
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
        // What a shim has adopted came later than its rank.
        let mut first_below: BTreeMap<i32, i32> = BTreeMap::new();
        for seen in all.iter().filter(|seen| shims.contains(&seen.parent)) {
            let first = first_below.entry(seen.parent).or_insert(seen.pid);
            *first = seen.pid.min(*first);
        }
        let first_below: Vec<(i32, i32)> = first_below.into_iter().collect();
        all.into_iter()
            .map(|seen| {
                let role = if agents.contains(&seen.pid) {
                    Role::Agent
                } else if run.contains(&seen.pid) {
                    Role::Guard
                } else if shims.contains(&seen.pid) {
                    Role::Shim
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
        super::wait_until(&format!("a process of role {role:?}"), || {
            self.roles().into_iter().find(|(its, _)| *its == role).map(|(_, seen)| seen.pid)
        })
    }

    pub fn send(&self, role: Role, signal: Signal) {
        send(self.find(role), signal);
    }

    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// The launcher's time of day jumps; see [`Setup::own_clock`].
    pub fn step_clock(&self, seconds: i64) {
        std::fs::write(self.folder.path().join("clock"), seconds.to_ne_bytes()).unwrap();
    }

    /// The guard, where it is there.
    pub fn guard_now(&self) -> Option<i32> {
        self.roles().into_iter().find(|(role, _)| *role == Role::Guard).map(|(_, seen)| seen.pid)
    }

    /// Waits for the end, which must come within `limit`.
    #[track_caller]
    pub fn ends_within(self, limit: Duration) -> Over {
        self.ends_by(limit, "")
    }

    /// The same, with words about the circumstances for a failure.
    #[track_caller]
    pub fn ends_by(mut self, limit: Duration, what: &str) -> Over {
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
        Over {
            code: status.code().unwrap_or_else(|| 128 + status.signal().unwrap()),
            elapsed,
            left: self.processes(),
            job: self,
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Whatever a failing test or a negative control left.
        if !self.ended && self.place == Place::Docker {
            quiet(Command::new("docker").args(["rm", "-f", &self.token]));
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let left = alive(&self.token, Some(self.folder.path()));
            if left.is_empty() || Instant::now() > deadline {
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

/// A job that is over.
#[derive(Debug)]
pub struct Over {
    pub code: i32,
    /// From the call of `ends_within`.
    pub elapsed: Duration,
    /// Alive right after the launcher's end.
    pub left: Vec<Process>,
    pub job: Job,
}

impl Over {
    #[track_caller]
    pub fn code(self, code: i32) -> Over {
        assert_eq!(
            self.code,
            code,
            "{:?}\nstdout:\n{}\nstderr:\n{}",
            self.job.place,
            self.job.out(),
            self.job.err()
        );
        self
    }

    /// Nothing of the job lives, asked right after the launcher's end. Below a
    /// subreaper also nothing unknown to us may have come to it.
    #[track_caller]
    pub fn nothing_left(self) -> Over {
        self.nothing_left_in("")
    }

    #[track_caller]
    pub fn nothing_left_in(self, what: &str) -> Over {
        assert!(self.left.is_empty(), "{what} left: {:#?}\n{}", self.left, self.job.err());
        if self.job.place == Place::Subreaper {
            let report = self.report();
            assert!(report.starts_with("at-once 0 "), "{what} {report}\n{}", self.job.err());
        }
        self
    }

    /// As `nothing_left`, for the loss of the guard: its parent knows of that at
    /// once, and the agent needs a moment to sweep.
    #[track_caller]
    pub fn nothing_left_soon(self) -> Over {
        self.nothing_left_soon_in("")
    }

    #[track_caller]
    pub fn nothing_left_soon_in(self, what: &str) -> Over {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let left = self.job.processes();
            if left.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "{what} left: {left:#?}\n{}", self.job.err());
            std::thread::sleep(Duration::from_millis(2));
        }
        if self.job.place == Place::Subreaper {
            let report = self.report();
            assert!(report.contains("\nafter 0 "), "{what} {report}\n{}", self.job.err());
        }
        self
    }

    /// What the other subreaper says.
    pub fn report(&self) -> String {
        read(&self.job.folder.path().join("report"))
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

pub fn send(pid: i32, signal: Signal) {
    nix::sys::signal::kill(Pid::from_raw(pid), signal).unwrap();
}
