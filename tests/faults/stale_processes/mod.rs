//! Leftovers of an earlier run are ended, and nothing else: real processes in their own PID
//! namespace, out of reach of the machine's processes.
//!
//! Each test starts this same program in the namespace, which then runs its `inside_…` half as the
//! namespace's init. If the machine does not allow such a namespace, the test is skipped.

mod clean;
mod first_process;
mod leftovers;
mod nodes;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use harness::alive::is_alive;
use harness::inside::{self, READY};
use harness::{Ended, Launcher, program, python, skipped, wait_until};

fn in_a_namespace(inside: impl Fn()) {
    // The test needs root, since one of the neighbours belongs to another user.
    if !nix::unistd::geteuid().is_root() {
        skipped("only root may plant another user's process");
        return;
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    inside::run(unshare, inside);
}

/// The job's folder and the processes that were planted, by name.
struct Scene {
    folder: tempfile::TempDir,
    planted: BTreeMap<String, i32>,
    /// Children for which this process has to wait.
    children: Vec<Child>,
}

impl Scene {
    fn new() -> Scene {
        assert_eq!(std::process::id(), 1, "this half runs in a namespace of its own");
        println!("{READY}");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("ready")).expect("a folder");
        for name in ["train.py", "other.py", "ipykernel_launcher.py"] {
            std::fs::copy(program("lingering.py"), folder.path().join(name)).expect("a copy");
        }
        Scene { folder, planted: BTreeMap::new(), children: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn python(&self, args: &[&str]) -> Command {
        let mut command = self.command(python());
        command.args(args);
        command
    }

    /// Starts a process that prints when it is ready.
    fn plant(&mut self, mut command: Command, names: &[&str]) {
        self.children.push(command.spawn().expect("it starts"));
        self.arrived(names);
    }

    fn arrived(&mut self, names: &[&str]) {
        for name in names {
            let file = self.path("ready").join(name);
            let pid = wait_until(name, || std::fs::read_to_string(&file).ok()?.parse().ok());
            self.planted.insert((*name).to_owned(), pid);
        }
    }

    /// Starts a process that is known only by its pid.
    fn plant_plain(&mut self, name: &str, mut command: Command) {
        let child = command.spawn().expect("it starts");
        self.planted.insert(name.to_owned(), child.id().cast_signed());
        self.children.push(child);
    }

    /// The line about a planted process.
    fn line<'a>(&self, text: &'a str, name: &str) -> &'a str {
        let who = format!("pid {} (", self.pid(name));
        text.lines().find(|line| line.contains(&who)).unwrap_or_else(|| panic!("{name}: {text}"))
    }

    /// The planted processes that are gone.
    fn gone(&self) -> Vec<&str> {
        let planted = self.planted.iter().filter(|(_, pid)| !is_alive(**pid));
        planted.map(|(name, _)| name.as_str()).collect()
    }

    fn pid(&self, name: &str) -> i32 {
        self.planted[name]
    }

    /// `ranklaunch SUBCOMMAND … -- train.py MORE`, on the CPU, with the direct engine.
    fn launcher(&self, args: &[&str], more: &[&str]) -> Launcher {
        let mut words: Vec<OsString> = args.iter().map(OsString::from).collect();
        words.extend(["--engine", "direct", "--device", "cpu", "--python"].map(OsString::from));
        words.extend([python().into(), "--".into(), self.path("train.py").into()]);
        words.extend(more.iter().map(OsString::from));
        Launcher::new(words)
    }

    /// A process whose shell has ended, so that the namespace's init adopts it.
    fn plant_orphan(&mut self, name: &str, environ: &str, more: &str) {
        let line = format!("{environ} \"$0\" {more} {name} & exit 0");
        let mut shell = self.command("sh");
        shell.args(["-c", &line]).arg(python());
        self.plant(shell, &[name]);
    }

    /// Runs a whole job that ends by itself, with this mode for stale processes.
    fn run(&self, stale: &str) -> Ended {
        std::fs::write(self.path("go-a-until"), "").expect("a file");
        let ended = self.launcher(&["run", "--stale", stale], &["a-until"]).run();
        ended.expect_code(0).expect_nothing_left()
    }
}

/// Node `rank` of two on this machine; the nodes meet on `port`.
fn node(scene: &Scene, port: u16, rank: &str, more: &[&str], args: &[&str]) -> Launcher {
    let port = port.to_string();
    let job = ["run", "--nnodes", "2", "--node-rank", rank, "--master-addr", "127.0.0.1"];
    let rest = ["--master-port", &port, "--nproc-per-node", "1", "--wait-timeout"];
    scene.launcher(&[&job[..], &rest[..], more].concat(), args)
}
