//! What the integration tests share: starting the real executable, waiting for
//! conditions, and looking for processes that were left behind.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test that called it")]

pub mod alive;
pub mod chance;
pub mod cluster;
pub mod docker;
pub mod fake_nvml;
pub mod faults;
pub mod hung_mount;
pub mod inside;
pub mod node;
pub mod pty;
pub mod reference;
mod skipped;
pub mod snapshot;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub use alive::{Process, alive};
pub use skipped::skipped;

/// How long anything here may take before the test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The variable by which a test recognises its own processes.
const TOKEN: &str = "JOB_TEST_TOKEN";

/// Variables of the container that would change what a launch does.
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
];

/// The executable that was built with this test program, which cargo puts into `deps` beside it.
pub fn executable() -> PathBuf {
    let ourselves = std::env::current_exe().unwrap();
    ourselves.ancestors().nth(2).unwrap().join("ranklaunch")
}

/// A folder for what tests build, on the executable's file system, so that it can be linked.
pub fn built() -> PathBuf {
    let folder = executable().with_file_name("test-files");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// A python that has torch. `make test` names it; without it there is nothing to launch.
pub fn python() -> PathBuf {
    let named = std::env::var_os("RANKLAUNCH_TEST_PYTHON").map(PathBuf::from);
    let cached = std::env::var_os("HOME")
        .map(|home| PathBuf::from(home).join(".cache/ranklaunch/venv/bin/python"));
    named
        .or(cached)
        .filter(|python| python.exists())
        .expect("no python with torch: run `make test`, or set RANKLAUNCH_TEST_PYTHON")
}

/// A test program of tests/programs.
pub fn program(name: &str) -> PathBuf {
    root().join("tests/programs").join(name)
}

/// Runs a tool of the machine; fails with what it said unless it succeeds.
pub fn run_tool(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// An executable file. Written by another process, since a file that the fork of
/// any thread still holds open for writing cannot be executed.
pub fn write_program(file: &Path, text: &str) {
    let write = "printf '%s' \"$1\" > \"$2\" && chmod 755 \"$2\"";
    run_tool(Command::new("sh").args(["-c", write, "sh", text]).arg(file));
}

/// A port that nobody listens on, and that no other test is given while this process
/// lives. Outside of the range from which the kernel takes ports for connections
/// (ip_local_port_range, from 32768), so that none of them gets in between.
pub fn free_port() -> u16 {
    static TAKEN: Mutex<Vec<File>> = Mutex::new(Vec::new());
    const PORTS: std::ops::Range<u16> = 11_000..29_000;
    let folder = std::env::temp_dir().join("ranklaunch-test-ports");
    std::fs::create_dir_all(&folder).unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let width = u32::from(PORTS.end - PORTS.start);
    let first = std::process::id().wrapping_mul(7_919).wrapping_add(now.subsec_nanos());
    for at in 0..width {
        let port = PORTS.start + u16::try_from(first.wrapping_add(at) % width).unwrap();
        let name = folder.join(port.to_string());
        let Ok(lock) = File::options().create(true).append(true).open(name) else { continue };
        if lock.try_lock().is_ok() && TcpListener::bind(("0.0.0.0", port)).is_ok() {
            // The lock goes with the process, however it ends.
            TAKEN.lock().unwrap().push(lock);
            return port;
        }
    }
    panic!("no port is left between {} and {}", PORTS.start, PORTS.end);
}

/// Waits until `ready` gives something; panics with `what` when PATIENCE is over.
pub fn wait_until<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < deadline, "gave up waiting: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// One launcher that a test starts.
#[derive(Debug)]
pub struct Launcher {
    command: Command,
    folder: tempfile::TempDir,
    token: String,
}

impl Launcher {
    /// `ranklaunch ARGS…` in a folder of its own, without the platform's variables.
    pub fn new<I: AsRef<OsStr>>(args: impl IntoIterator<Item = I>) -> Launcher {
        Launcher::of(Command::new(executable()), args)
    }

    /// Another command line that starts ranklaunch (`nohup ranklaunch …`).
    pub fn of<I: AsRef<OsStr>>(
        mut command: Command,
        args: impl IntoIterator<Item = I>,
    ) -> Launcher {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let token = format!("t{}x{}e", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = tempfile::tempdir().unwrap();
        for name in PLATFORM {
            command.env_remove(name);
        }
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("RANKLAUNCH_") {
                command.env_remove(name);
            }
        }
        command.args(args).env(TOKEN, &token).current_dir(folder.path()).stdin(Stdio::null());
        Launcher { command, folder, token }
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

    /// With the environment of the python that has torch active, as for a job that could
    /// start here; the machine's own may have none.
    pub fn with_torch(self) -> Launcher {
        let python = python();
        let prefix = python.parent().and_then(Path::parent).unwrap();
        self.env("VIRTUAL_ENV", prefix)
    }

    pub fn args<I: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = I>) -> Launcher {
        self.command.args(args);
        self
    }

    /// The place of this launcher in a job of several nodes, as a platform says it.
    pub fn node(self, rank: u32, nodes: u32, port: u16) -> Launcher {
        self.env("WORLD_SIZE", nodes.to_string())
            .env("RANK", rank.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn stdin(mut self, from: impl Into<Stdio>) -> Launcher {
        self.command.stdin(from);
        self
    }

    pub fn start(mut self) -> Running {
        let out = self.folder.path().join("console.out");
        let err = self.folder.path().join("console.err");
        self.command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        let child = self.command.spawn().unwrap();
        Running { child, out, err, token: self.token, folder: self.folder }
    }

    pub fn run(self) -> Ended {
        self.start().wait()
    }
}

/// A launcher that runs. Dropped before its end, it is killed.
#[derive(Debug)]
pub struct Running {
    child: Child,
    out: PathBuf,
    err: PathBuf,
    token: String,
    folder: tempfile::TempDir,
}

/// How it ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code, or 128 + signal as a shell shows it.
    pub code: i32,
    pub out: String,
    pub err: String,
    pub elapsed: Duration,
    token: String,
    pub folder: tempfile::TempDir,
}

impl Running {
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn out(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.out).unwrap()).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.err).unwrap()).into_owned()
    }

    /// Waits until standard output holds `text` `times` times.
    pub fn says(&mut self, text: &str, times: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.out().matches(text).count() < times {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "waited for {times} x {text:?}, ended {ended:?}\n{}\n{}",
                self.out(),
                self.err()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid()), signal).unwrap();
    }

    /// Living processes of this launch, with their command lines.
    pub fn processes(&self) -> Vec<Process> {
        alive(&self.token, Some(self.folder.path()))
    }

    /// The agent: the guard's only child.
    pub fn agent(&self) -> i32 {
        let guard = self.pid();
        wait_until("the agent", || {
            self.processes()
                .into_iter()
                .find(|process| process.parent == guard)
                .map(|found| found.pid)
        })
    }

    pub fn wait(mut self) -> Ended {
        let started = Instant::now();
        let status = wait_until("the launcher's end", || {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_some() || started.elapsed() < PATIENCE,
                "still running\n{}\n{}\n{:#?}",
                self.out(),
                self.err(),
                self.processes()
            );
            ended
        });
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap());
        Ended {
            code,
            out: self.out(),
            err: self.err(),
            elapsed: started.elapsed(),
            token: self.token.clone(),
            folder: std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
            return;
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// Fails with the whole console unless the code is `code`.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Ended {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Fails if any process of the launch is alive. Asked right after the
    /// launcher's end: there is no time in which something may still go away.
    #[track_caller]
    pub fn expect_nothing_left(self) -> Ended {
        let left = self.left();
        assert!(left.is_empty(), "left behind: {left:#?}\n{}", self.err);
        self
    }

    /// The processes of the launch that are alive.
    pub fn left(&self) -> Vec<Process> {
        alive(&self.token, Some(self.folder.path()))
    }

    /// What marks the processes of the launch.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// The newest run's folder of this node, from `ranklaunch-logs/latest`.
    pub fn node_folder(&self, node: u32) -> PathBuf {
        self.folder.path().join("ranklaunch-logs/latest").join(format!("node-{node}"))
    }
}

/// Living processes whose environment or command line holds `token`.
pub fn processes_of(token: &str) -> Vec<Process> {
    alive(token, None)
}

pub fn kill(pid: i32) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)
        .unwrap();
}

/// `run --engine ENGINE --device cpu --nproc-per-node N` and what most tests want.
pub fn run_args(engine: &str, nproc: u32) -> Vec<OsString> {
    let mut args: Vec<OsString> = ["run", "--engine", engine, "--device", "cpu", "--stale", "off"]
        .into_iter()
        .map(OsString::from)
        .collect();
    args.extend(["--nproc-per-node".into(), nproc.to_string().into()]);
    args.extend(["--python".into(), python().into_os_string()]);
    args
}
