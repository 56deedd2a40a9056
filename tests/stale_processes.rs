//! What an earlier run left behind is ended, and nothing else is: real processes
//! in a PID namespace of their own, where no process of the machine is in reach.
//!
//! Each test builds the namespace around this same program, which then runs its
//! `inside_…` half as the namespace's init. Where the machine does not allow
//! such a namespace, the test says that it is skipped.

mod common;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use common::inside::{self, READY};
use common::{Ended, Launcher, PATIENCE, Running, program, python, skipped, wait_until};

fn in_a_namespace(inside: &str) {
    // Root, since one of the neighbours belongs to another user.
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
    /// Ours to wait for.
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

    /// Starts a process that says when it is there.
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

    /// Starts a process that is known by its pid alone.
    fn plant_plain(&mut self, name: &str, mut command: Command) {
        let child = command.spawn().expect("it starts");
        self.planted.insert(name.to_owned(), child.id().cast_signed());
        self.children.push(child);
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

    /// A whole job that ends by itself, with this way of treating stale processes.
    fn run(&self, stale: &str) -> Ended {
        std::fs::write(self.path("go-a-until"), "").expect("a file");
        let ended = self.launcher(&["run", "--stale", stale], &["a-until"]).run();
        ended.expect_code(0).expect_nothing_left()
    }
}

fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, fields)| fields.starts_with(['Z', 'X']));
    state == Some(false)
}

#[test]
fn leftovers_end_and_neighbours_stay() {
    in_a_namespace("inside_leftovers");
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_leftovers() {
    let mut scene = Scene::new();
    let live = plant_neighbours(&mut scene);
    let neighbours = scene.planted.len();
    plant_leftovers(&mut scene);
    let nobody: Vec<&str> = Vec::new();

    // The negative controls: what was planted stays when nothing is to be ended.
    let ended = scene.run("off");
    assert!(!ended.err.contains("stale"), "{}", ended.err);
    assert_eq!(scene.gone(), nobody, "--stale off");
    let ended = scene.run("report");
    let rank = format!("stale: pid {} (", scene.pid("a-rank-with-children"));
    assert!(ended.err.contains(&rank), "{}", ended.err);
    assert_eq!(scene.gone(), nobody, "--stale report");
    let ended = scene.launcher(&["clean", "--dry-run"], &[]).run().expect_code(0);
    for (name, fate) in [
        ("a-rank-with-children", "would be ended  runs this job's program"),
        ("torchrun1", "would be ended  is a torchrun rank"),
        ("a-nobody", "left alone  runs this job's program"),
    ] {
        let line = format!("{}  {fate}", scene.pid(name));
        assert!(ended.out.lines().any(|one| one.starts_with(&line)), "{line}\n{}", ended.out);
    }
    assert_eq!(scene.gone(), nobody, "clean --dry-run");

    let ended = scene.run("kill");
    for (name, rule) in [
        ("a-rank-with-children", "runs this job's program: no living launcher is above it"),
        ("a-rank-with-children-child", "belongs to the process tree of"),
        ("a-rank-with-children-escaped", "belongs to the process tree of"),
        ("torchrun0", "is a torchrun rank (TORCHELASTIC_RUN_ID="),
        ("torchrun1", "is a torchrun rank (TORCHELASTIC_RUN_ID="),
    ] {
        let start = format!("stale: pid {} (", scene.pid(name));
        let line = ended.err.lines().find(|line| line.contains(&start));
        assert!(line.is_some_and(|line| line.contains(rule)), "{name}: {rule}\n{}", ended.err);
    }
    // Of a tree that is left alone the topmost process is named, here the rank's shim.
    for (start, rule) in [
        ("another-live-until", "its job is running: ranklaunch"),
        ("a-nobody", "it belongs to user 65534"),
    ] {
        let left = |line: &&str| line.contains("left alone: pid") && line.contains(start);
        let line = ended.err.lines().find(left);
        assert!(line.is_some_and(|line| line.contains(rule)), "{start}: {rule}\n{}", ended.err);
    }
    let gone = scene.gone();
    assert_eq!(gone.len(), scene.planted.len() - neighbours, "{gone:?}\n{}", ended.err);
    assert!(gone.iter().all(|name| name.starts_with("a-rank") || name.starts_with("torchrun")));

    // The neighbour's job has not noticed anything.
    std::fs::write(scene.path("go-another-live-until"), "").expect("a file");
    live.wait().expect_code(0).expect_nothing_left();
}

/// Processes that name the script, or even run it, and are none of ours to end.
fn plant_neighbours(scene: &mut Scene) -> Running {
    // tail(1) by another name: it keeps running with any file.
    let tail = which("tail");
    let vim = scene.path("vim");
    std::fs::copy(tail, &vim).expect("a copy");
    let mut editor = scene.command(vim);
    editor.args(["-f", "train.py"]);
    scene.plant_plain("editor", editor);
    let mut tail = scene.command("tail");
    tail.args(["-f", "train.py"]);
    scene.plant_plain("tail", tail);
    let mut grep = scene.command("grep");
    grep.args(["train.py", "-"]).stdin(Stdio::piped());
    scene.plant_plain("grep", grep);
    let mut shell = scene.command("sh");
    shell.args(["-c", "sleep 600; python train.py"]);
    scene.plant_plain("shell", shell);
    let notebook = scene.python(&["-m", "ipykernel_launcher", "notebook", "train.py"]);
    scene.plant(notebook, &["notebook"]);
    let other = scene.python(&["other.py", "other-script", "train.py"]);
    scene.plant(other, &["other-script"]);
    let nobody = scene.python(&["train.py", "a-nobody"]);
    scene.plant(nobody, &["a-nobody"]);
    let live = scene.launcher(&["run", "--stale", "off"], &["another-live-until"]).start();
    scene.arrived(&["another-live-until0"]);
    let pid = scene.planted.remove("another-live-until0").expect("it was inserted");
    scene.planted.insert("another-live-until".to_owned(), pid);
    live
}

/// An orphan rank with what it started, and the ranks of a torchrun that was killed.
fn plant_leftovers(scene: &mut Scene) {
    let mut rank = scene.command("sh");
    rank.args(["-c", "RANK=0 WORLD_SIZE=2 \"$0\" train.py a-rank-with-children & exit 0"]);
    rank.arg(python());
    let names =
        ["a-rank-with-children", "a-rank-with-children-child", "a-rank-with-children-escaped"];
    scene.plant(rank, &names);
    let torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"];
    let mut torchrun = scene.python(&torchrun);
    torchrun.args([&common::free_port().to_string(), "other.py", "torchrun"]);
    let mut torchrun = torchrun.spawn().expect("torchrun starts");
    scene.arrived(&["torchrun0", "torchrun1"]);
    torchrun.kill().and_then(|()| torchrun.wait()).expect("it is killed");
}

fn which(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").expect("PATH");
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| file.exists())
        .expect(name)
}

#[test]
fn clean_ends_what_is_older_and_leaves_what_is_younger() {
    in_a_namespace("inside_younger");
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_younger() {
    let mut scene = Scene::new();
    let rank = scene.python(&["train.py", "older"]);
    scene.plant(rank, &["older"]);
    // The shell becomes ranklaunch once an orphan that is younger than it is there.
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(
        "(cd \"$1\"; \"$2\" train.py younger &)\n\
         while [ ! -e \"$1/ready/younger\" ]; do sleep 0.01; done\n\
         exec \"$3\" clean --device cpu --python \"$2\" -- \"$1/train.py\"",
    );
    shell.arg("sh").arg(scene.folder.path()).arg(python()).arg(common::executable());
    let none: [&str; 0] = [];
    let ended = Launcher::of(shell, none).run().expect_code(0);
    scene.arrived(&["younger"]);
    assert_eq!(scene.gone(), ["older"], "{}{}", ended.out, ended.err);
    let line = format!("{}  ended  runs this job's program", scene.pid("older"));
    assert!(ended.out.contains(&line), "{line}\n{}", ended.out);
    // Asked again by a newer one, the younger is older, and in Chinese the same holds.
    let ended = scene.launcher(&["clean", "--lang", "zh"], &[]).run().expect_code(0);
    assert_eq!(scene.gone(), ["older", "younger"], "{}{}", ended.out, ended.err);
    assert!(ended.out.contains("已终止"), "{}", ended.out);
    let ended = scene.launcher(&["clean"], &[]).run().expect_code(0);
    assert_eq!(ended.out, "nothing found\n");
}

#[test]
fn who_ignores_term_is_killed_after_the_wait() {
    in_a_namespace("inside_deaf");
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_deaf() {
    let mut scene = Scene::new();
    let deaf = scene.python(&["train.py", "a-deaf"]);
    scene.plant(deaf, &["a-deaf"]);
    let polite = scene.python(&["train.py", "polite"]);
    scene.plant(polite, &["polite"]);
    let ended = scene.run("kill");
    assert_eq!(scene.gone(), ["a-deaf", "polite"], "{}", ended.err);
    let waited = ended.elapsed.as_secs();
    assert!((10..PATIENCE.as_secs()).contains(&waited), "TERM is given 10 s: {waited} s");
    let signals: Vec<Option<i32>> = scene
        .children
        .iter_mut()
        .map(|child| {
            let status = child.wait().expect("it ended");
            std::os::unix::process::ExitStatusExt::signal(&status)
        })
        .collect();
    assert_eq!(signals, [Some(9), Some(15)]);
}
