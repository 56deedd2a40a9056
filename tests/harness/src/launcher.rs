//! A launcher that a test will start: its place, arguments, environment and folder.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::docker::{self, Owned};
use crate::{Ended, Place, Running, TOKEN, built, compiled, executable, misbehave, program};
use crate::{python, run_args};

/// Variables of the container that would change a launch.
const PLATFORM: &[&str] = &[
    "WORLD_SIZE",
    "RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "LOCAL_RANK",
    "NODE_RANK",
    "NNODES",
    "CUDA_VISIBLE_DEVICES",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "OMP_NUM_THREADS",
    "LANG",
    "LC_ALL",
    "LC_MESSAGES",
    "NO_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
];

/// One launcher that a test starts.
#[derive(Debug)]
pub struct Launcher {
    command: Command,
    folder: tempfile::TempDir,
    token: String,
    place: Place,
    /// True if survivors are killed at its end, so that none disturbs a later launcher.
    swept: bool,
    user: Option<u32>,
    full_console: bool,
    /// A file of seconds by which the launcher's time of day is off.
    clock: Option<PathBuf>,
    /// Removes the container that the command starts.
    container: Option<Owned>,
}

impl Launcher {
    /// `ranklaunch ARGS…` in a folder of its own, without the platform's variables.
    pub fn new<I: AsRef<OsStr>>(args: impl IntoIterator<Item = I>) -> Launcher {
        Launcher::of(Command::new(executable()), args)
    }

    /// Another command line that starts ranklaunch (`nohup ranklaunch …`).
    pub fn of<I: AsRef<OsStr>>(command: Command, args: impl IntoIterator<Item = I>) -> Launcher {
        Launcher::within(tempfile::tempdir().unwrap(), command).args(args)
    }

    /// `ranklaunch` in a place, with `misbehave` in its folder. Survivors of a failing test or a
    /// negative control are killed at the end of the test.
    pub fn at(place: Place) -> Launcher {
        // Beside the built program, so that it can be linked.
        let folder = tempfile::Builder::new().prefix("job-").tempdir_in(built()).unwrap();
        std::fs::hard_link(misbehave(), folder.path().join("misbehave")).unwrap();
        let launcher = Launcher::within(folder, Command::new(executable()));
        Launcher { place, swept: true, ..launcher }
    }

    fn within(folder: tempfile::TempDir, mut command: Command) -> Launcher {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let token = format!("t{}x{}e", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        without_platform(&mut command);
        command.env(TOKEN, &token).current_dir(folder.path()).stdin(Stdio::null());
        Launcher {
            command,
            folder,
            token,
            place: Place::Plain,
            swept: false,
            user: None,
            full_console: false,
            clock: None,
            container: None,
        }
    }

    /// The command line starts this container, which is removed with the launcher.
    pub(crate) fn contained(mut self, container: Owned) -> Launcher {
        self.container = Some(container);
        self
    }

    /// One node of an `engine` job on CPUs whose ranks are `tests/programs/rank.sh ARGS…`.
    pub fn ranks(engine: &str, nproc: u32, args: &[&str]) -> Launcher {
        let script = ["--".into(), program("rank.sh").into_os_string()];
        Launcher::new(run_args(engine, nproc)).args(script).args(args)
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Launcher {
        self.command.env(name, value);
        self
    }

    /// Activates the environment of a Python that has torch, since the machine's own Python may
    /// have none.
    pub fn with_torch(self) -> Launcher {
        let python = python();
        let prefix = python.parent().and_then(Path::parent).unwrap();
        self.env("VIRTUAL_ENV", prefix)
    }

    pub fn args<I: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = I>) -> Launcher {
        self.command.args(args);
        self
    }

    /// Sets the place of this launcher in a job of several nodes, by the variables of a platform.
    pub fn node(self, rank: u32, nodes: u32, port: u16) -> Launcher {
        self.env("WORLD_SIZE", nodes.to_string())
            .env("RANK", rank.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The path of `misbehave` in this job's folder.
    pub fn misbehave(&self) -> PathBuf {
        self.folder().join("misbehave")
    }

    pub fn stdin(mut self, from: impl Into<Stdio>) -> Launcher {
        self.command.stdin(from);
        self
    }

    /// A console that blocks after one full pipe.
    pub fn full_console(mut self) -> Launcher {
        self.full_console = true;
        self
    }

    /// Gives the launcher a clock that [`Running::step_clock`] can step.
    pub fn own_clock(mut self) -> Launcher {
        assert_eq!(self.place, Place::Subreaper, "a clock needs its place");
        let file = self.folder().join("clock");
        std::fs::write(&file, 0i64.to_ne_bytes()).unwrap();
        self.clock = Some(file);
        self
    }

    /// Runs as another user, who may write to the job's folder.
    pub fn user(mut self, user: u32) -> Launcher {
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(self.folder(), everybody).unwrap();
        self.user = Some(user);
        self
    }

    /// `ranklaunch run --engine direct …` with ranks that misbehave.
    pub fn direct(self, nproc: u32, options: &[&str], arguments: &[&str]) -> Running {
        let misbehave = self.misbehave();
        // An empty root has no Python, and another user may not see this one.
        let has_python = self.place != Place::Docker && self.user.is_none();
        let Some(_) = warm_mode().filter(|_| has_python) else {
            return self.direct_of(&misbehave, nproc, options, arguments);
        };
        // The warm start is required, since a run without it would show nothing.
        let launcher = self.env("RANKLAUNCH_WARM", "required").with_torch();
        let arguments: Vec<&str> =
            misbehave.to_str().into_iter().chain(arguments.iter().copied()).collect();
        launcher.direct_of(&program("misbehave.py"), nproc, options, &arguments)
    }

    /// The same with another executable of the job's folder.
    pub fn direct_of(
        self,
        program: &Path,
        nproc: u32,
        options: &[&str],
        arguments: &[&str],
    ) -> Running {
        self.args(["run", "--engine", "direct", "--device", "cpu", "--stale", "off"])
            .args(["--nproc-per-node", &nproc.to_string()])
            .args(options)
            .args([OsStr::new("--"), program.as_os_str()])
            .args(arguments)
            .start()
    }

    /// Another program in place of ranklaunch.
    pub fn program(mut self, program: &Path, args: &[OsString]) -> Running {
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null());
        inherit(&mut command, &self.command);
        self.command = command;
        self.start()
    }

    pub fn start(mut self) -> Running {
        if self.place == Place::Docker {
            self.container = Some(docker::container_named(self.token.clone()));
        }
        let program = PathBuf::from(self.command.get_program());
        let mut command = match self.way_in() {
            None => self.command,
            Some(way_in) => behind(way_in, &self.command),
        };
        if let Some(user) = self.user {
            command.uid(user);
        }
        let out = self.folder.path().join("console.out");
        let err = self.folder.path().join("console.err");
        let mut unread = None;
        if self.full_console {
            let (reader, writer) = std::io::pipe().unwrap();
            unread = Some(reader);
            command.stdout(writer.try_clone().unwrap()).stderr(writer);
        } else {
            command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        }
        let child = command.spawn().unwrap();
        Running {
            child,
            folder: self.folder,
            token: self.token,
            place: self.place,
            program,
            swept: self.swept,
            ended: false,
            container: self.container,
            _unread: unread,
        }
    }

    pub fn run(self) -> Ended {
        self.start().wait()
    }

    /// The command in front of the command line, in its place.
    fn way_in(&self) -> Option<Command> {
        let mut way_in;
        match self.place {
            Place::Plain => return None,
            Place::Subreaper => {
                way_in = Command::new(misbehave());
                way_in.arg("subreaper").arg(self.folder().join("report")).arg("8");
                if let Some(clock) = &self.clock {
                    way_in.arg(compiled("clock")).arg(clock);
                }
            }
            Place::Namespace => {
                way_in = Command::new("unshare");
                way_in.args(["--pid", "--fork", "--mount-proc"]);
            }
            Place::Docker => {
                way_in = Command::new("docker");
                way_in.args(["run", "--name", &self.token, "--network", "host"]);
                for path in [self.folder(), Path::new(self.command.get_program())] {
                    way_in.arg("-v").arg(format!("{0}:{0}", path.display()));
                }
                way_in.arg("-w").arg(self.folder());
                for (name, value) in self.command.get_envs() {
                    if let Some(value) = value {
                        way_in.arg("-e").arg([name, value].join(OsStr::new("=")));
                    }
                }
                way_in.arg(docker::bare());
            }
        }
        way_in.stdin(Stdio::null());
        Some(way_in)
    }
}

/// Removes variables of a platform and our own from a command, since they would change a launch.
pub fn without_platform(command: &mut Command) {
    let ours = |name: &OsString| name.to_string_lossy().starts_with("RANKLAUNCH_");
    let inherited = std::env::vars_os().map(|(name, _)| name).filter(ours);
    for name in inherited.chain(PLATFORM.iter().map(OsString::from)) {
        command.env_remove(name);
    }
    if let Some(mode) = warm_mode() {
        command.env("RANKLAUNCH_WARM", mode);
    }
}

/// The warm mode, with which any suite also runs with ranks forked from a warmed interpreter.
fn warm_mode() -> Option<OsString> {
    std::env::var_os("RANKLAUNCH_TEST_WARM")
}

/// `way_in PROGRAM ARGS…` of `command`, with its environment and folder.
pub(crate) fn behind(mut way_in: Command, command: &Command) -> Command {
    way_in.arg(command.get_program()).args(command.get_args());
    inherit(&mut way_in, command);
    way_in
}

fn inherit(command: &mut Command, from: &Command) {
    for (name, value) in from.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(folder) = from.get_current_dir() {
        command.current_dir(folder);
    }
}
