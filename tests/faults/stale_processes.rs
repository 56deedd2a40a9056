//! What an earlier run left behind is ended, and nothing else is: real processes
//! in a PID namespace of their own, where no process of the machine is in reach.
//!
//! Each test builds the namespace around this same program, which then runs its
//! `inside_…` half as the namespace's init. Where the machine does not allow
//! such a namespace, the test says that it is skipped.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use harness::inside::{self, READY};
use harness::{Ended, Launcher, PATIENCE, Running, program, python, skipped, wait_until};

fn in_a_namespace(inside: impl Fn()) {
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

    /// What was said of a planted process.
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

    /// A process whose shell is gone: adopted by the namespace's first.
    fn plant_orphan(&mut self, name: &str, environ: &str, more: &str) {
        let line = format!("{environ} \"$0\" {more} {name} & exit 0");
        let mut shell = self.command("sh");
        shell.args(["-c", &line]).arg(python());
        self.plant(shell, &[name]);
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
    in_a_namespace(inside_leftovers);
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_leftovers() {
    let mut scene = Scene::new();
    let live = plant_neighbours(&mut scene);
    plant_innocents(&mut scene);
    let neighbours = scene.planted.len();
    plant_leftovers(&mut scene);
    let nobody: Vec<&str> = Vec::new();

    // The negative controls: what was planted stays when nothing is to be ended.
    let ended = scene.run("off");
    assert!(!ended.err.contains("pid "), "{}", ended.err);
    assert_eq!(scene.gone(), nobody, "--stale off");
    let ended = scene.run("report");
    let line = scene.line(&ended.err, "a-rank-with-children0");
    assert!(line.contains("left alone: ") && line.contains("kill would end it"), "{line}");
    assert_eq!(scene.gone(), nobody, "--stale report");
    what_each_mode_would_end(&scene);
    assert_eq!(scene.gone(), nobody, "clean --dry-run");

    let ended = scene.run("kill");
    for (name, rule) in [
        ("a-rank-with-children0", "a rank (LOCAL_RANK) whose launcher is dead: pid 1 "),
        ("a-rank-with-children0-child", "belongs to the process tree of"),
        ("a-rank-with-children0-escaped", "belongs to the process tree of"),
        ("torchrun0", "a rank (TORCHELASTIC_RUN_ID) whose launcher is dead"),
        ("torchrun1", "a rank (TORCHELASTIC_RUN_ID) whose launcher is dead"),
        ("marked", "carries RANKLAUNCH_JOB of job gone"),
    ] {
        let line = scene.line(&ended.err, name);
        assert!(line.contains("ended: pid") && line.contains(rule), "{name}: {rule}\n{line}");
    }
    for (name, why) in [
        ("nohup", "it may run by itself"),
        ("nohup-rank0", "ignores SIGHUP as after nohup"),
        ("sweep", "parent"),
        ("mpirun", "it is a launcher that runs"),
        ("a-nobody", "it belongs to user 65534"),
    ] {
        let line = scene.line(&ended.err, name);
        let of_force = line.contains("--stale force would end it") == (name != "a-nobody");
        assert!(line.contains("left alone: ") && line.contains(why) && of_force, "{line}");
        assert!(line.contains(" old, parent "), "age and parent: {line}");
    }
    // Of a tree that is left alone the topmost process is named, here the guard.
    let left = |line: &&str| line.contains("left alone: pid") && line.contains("another-live");
    let line: Vec<&str> = ended.err.lines().filter(left).collect();
    assert!(line.len() == 1 && line[0].contains("its job is running"), "{}", ended.err);
    let gone = scene.gone();
    assert_eq!(gone.len(), scene.planted.len() - neighbours, "{gone:?}\n{}", ended.err);
    let leftover = |name: &&str| {
        name.starts_with("a-rank") || name.starts_with("torchrun") || *name == "marked"
    };
    assert!(gone.iter().all(leftover), "{gone:?}");

    // The other control: the innocents could have been ended, and are when told to.
    let before: Vec<String> = gone.into_iter().map(str::to_owned).collect();
    let ended = scene.run("force");
    let by_force: Vec<&str> =
        scene.gone().into_iter().filter(|name| !before.iter().any(|gone| gone == name)).collect();
    let expected = ["another-live-until", "mpirun", "mpi0", "nohup", "nohup-rank0", "sweep"];
    let mut by_force = by_force;
    by_force.sort_unstable();
    let mut expected = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(by_force, expected, "{}", ended.err);
    for name in expected {
        let line = scene.line(&ended.err, name);
        assert!(line.contains("ended: pid"), "{line}");
    }
    live.wait().expect_code(143).expect_nothing_left();
}

/// The table has a column for each mode, and JSON says the same.
fn what_each_mode_would_end(scene: &Scene) {
    let table = scene.launcher(&["clean", "--dry-run"], &[]).run().expect_code(0);
    let head = table.out.lines().next().unwrap_or_default();
    assert!(head.trim_start().starts_with("PID") && head.contains("kill  force"), "{}", table.out);
    let json = scene.launcher(&["clean", "--dry-run", "--format", "json"], &[]).run();
    let json: serde_json::Value = serde_json::from_str(&json.expect_code(0).out).expect("JSON");
    assert_eq!(json["schema"], 1);
    for (name, kill, force) in [
        ("a-rank-with-children0", true, true),
        ("torchrun1", true, true),
        ("marked", true, true),
        ("nohup", false, true),
        ("sweep", false, true),
        ("mpi0", false, true),
        ("another-live-until", false, true),
        ("a-nobody", false, false),
    ] {
        let pid = scene.pid(name);
        let mut all = json["processes"].as_array().expect("a list").iter();
        let one = all.find(|one| one["pid"] == pid).unwrap_or_else(|| panic!("{name}"));
        assert_eq!((one["kill"] == true, one["force"] == true), (kill, force), "{name}: {one}");
        assert!(one["age_s"].is_u64() && one["parent"]["pid"].is_i64(), "{one}");
        let of_it = |line: &&str| line.trim_start().starts_with(&format!("{pid} "));
        let row = table.out.lines().find(of_it).expect(name);
        let cells: Vec<&str> = row.split_ascii_whitespace().skip(1).take(2).collect();
        let cell = |ends| if ends { "end" } else { "-" };
        assert_eq!(cells, [cell(kill), cell(force)], "{row}");
    }
}

/// Processes that name the script, or even run it, and are none of ours to end.
fn plant_neighbours(scene: &mut Scene) -> Running {
    // tail(1) by another name: it keeps running with any file.
    let tail = which("tail");
    let vim = scene.path("vim");
    std::fs::copy(tail, &vim).expect("a copy");
    let mut editor = scene.command(vim);
    editor.args(["-f", "train.py"]).env("LOCAL_RANK", "0");
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
    // A rank of another script, whose launcher is dead: not this job's to judge.
    scene.plant_orphan("other-orphan", "TORCHELASTIC_RUN_ID=x", "other.py");
    let mut nobody = scene.python(&["train.py", "a-nobody"]);
    nobody.env("TORCHELASTIC_RUN_ID", "x");
    scene.plant(nobody, &["a-nobody"]);
    let live = scene.launcher(&["run", "--stale", "off"], &["another-live-until"]).start();
    scene.arrived(&["another-live-until0"]);
    let pid = scene.planted.remove("another-live-until0").expect("it was inserted");
    scene.planted.insert("another-live-until".to_owned(), pid);
    live
}

/// Healthy work of the same script that no torchrun looks after.
fn plant_innocents(scene: &mut Scene) {
    scene.plant_orphan("nohup", "nohup", "train.py");
    // As somebody tries a script on one GPU; its name in the folder has the local rank.
    let line = "LOCAL_RANK=0 RANK=0 WORLD_SIZE=1 nohup \"$0\" train.py nohup-rank & exit 0";
    let mut by_hand = scene.command("sh");
    by_hand.args(["-c", line]).arg(python());
    scene.plant(by_hand, &["nohup-rank0"]);
    let mut sweep = scene.command("sh");
    sweep.args(["-c", "TORCHELASTIC_RUN_ID=x \"$0\" train.py sweep; sleep 600; :"]).arg(python());
    scene.plant(sweep, &["sweep"]);
    let shell = scene.children.last().expect("it was started").id().cast_signed();
    scene.planted.insert("the shell of the sweep".to_owned(), shell);
    // A launcher is known by its name; this one is a shell by another name.
    let mpirun = scene.path("mpirun");
    std::fs::write(&mpirun, "OMPI_COMM_WORLD_RANK=0 \"$3\" train.py mpi & wait\n").expect("a file");
    let mut launcher = scene.command("sh");
    std::os::unix::process::CommandExt::arg0(&mut launcher, "mpirun");
    launcher.arg(&mpirun).args(["-np", "1"]).arg(python()).args(["train.py", "mpi"]);
    scene.plant(launcher, &["mpi"]);
    let pid = scene.planted.remove("mpi").expect("it was inserted");
    scene.planted.insert("mpi0".to_owned(), pid);
    let launcher = scene.children.last().expect("it was started").id().cast_signed();
    scene.planted.insert("mpirun".to_owned(), launcher);
}

/// An orphan rank with what it started, the ranks of a torchrun that was killed, and what
/// carries the mark of an agent that is dead.
fn plant_leftovers(scene: &mut Scene) {
    let mut rank = scene.command("sh");
    let line = "LOCAL_RANK=0 RANK=0 WORLD_SIZE=2 \"$0\" train.py a-rank-with-children & exit 0";
    rank.args(["-c", line]).arg(python());
    let names =
        ["a-rank-with-children0", "a-rank-with-children0-child", "a-rank-with-children0-escaped"];
    scene.plant(rank, &names);
    let mut marked = scene.python(&["other.py", "marked"]);
    // Pid 1 is another process than the agent was: it began at another time.
    marked.env("RANKLAUNCH_JOB", "gone:1:1");
    scene.plant(marked, &["marked"]);
    let torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"];
    let mut torchrun = scene.python(&torchrun);
    torchrun.args([&harness::free_port().to_string(), "train.py", "torchrun"]);
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

/// Node `rank` of two on this machine, which meet on `port`.
fn node(scene: &Scene, port: u16, rank: &str, more: &[&str], args: &[&str]) -> Launcher {
    let port = port.to_string();
    let job = ["run", "--nnodes", "2", "--node-rank", rank, "--master-addr", "127.0.0.1"];
    let rest = ["--master-port", &port, "--nproc-per-node", "1", "--wait-timeout"];
    scene.launcher(&[&job[..], &rest[..], more].concat(), args)
}

#[test]
fn nothing_ends_before_the_nodes_have_agreed() {
    in_a_namespace(inside_agreement);
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_agreement() {
    let mut scene = Scene::new();
    scene.plant_orphan("leftover", "TORCHELASTIC_RUN_ID=x", "train.py");
    scene.plant_orphan("alone", "nohup", "train.py");
    std::fs::write(scene.path("go-a-until"), "").expect("a file");
    let nobody: Vec<&str> = Vec::new();

    for stale in ["kill", "force"] {
        let more = ["2s", "--stale", stale];
        let ended = node(&scene, harness::free_port(), "0", &more, &["a-until"]).run();
        ended.expect_code(88);
        assert_eq!(scene.gone(), nobody, "node 1 never came, --stale {stale}");
    }
    let both = |scene: &Scene, stale: &str| {
        let port = harness::free_port();
        let more = ["20s", "--stale", stale];
        let first = node(scene, port, "0", &more, &["a-until"]).start();
        let second = node(scene, port, "1", &more, &["a-until"]).start();
        second.wait().expect_code(0);
        first.wait().expect_code(0)
    };
    let ended = both(&scene, "kill");
    assert_eq!(scene.gone(), ["leftover"], "{}", ended.err);
    let at = |what: &str| ended.err.find(what).unwrap_or_else(|| panic!("{what}: {}", ended.err));
    assert!(at("nodes agree") < ended.err.find("ended: pid").unwrap_or(usize::MAX));
    let ended = both(&scene, "force");
    assert_eq!(scene.gone(), ["alone", "leftover"], "{}", ended.err);
}

#[test]
fn a_port_is_refused_and_its_owner_lives() {
    in_a_namespace(inside_port);
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_port() {
    let mut scene = Scene::new();
    let nobody: Vec<&str> = Vec::new();
    // A living launcher of another script, as somebody's healthy job.
    let port = harness::free_port();
    let line = format!("LISTEN={port} \"$1\" other.py theirs & wait\n");
    std::fs::write(scene.path("torchrun"), line).expect("a file");
    let mut torchrun = scene.command("sh");
    std::os::unix::process::CommandExt::arg0(&mut torchrun, "torchrun");
    torchrun.arg(scene.path("torchrun")).arg(python());
    scene.plant(torchrun, &["theirs"]);
    for stale in ["kill", "force"] {
        let ended = node(&scene, port, "0", &["2s", "--stale", stale], &["a"]).run();
        let ended = ended.expect_code(87);
        let line = scene.line(&ended.err, "theirs");
        assert!(
            line.contains("is in use on this node") && line.contains(" old, parent "),
            "{line}"
        );
        assert!(ended.err.contains(&format!("kill {}", scene.pid("theirs"))), "{}", ended.err);
        assert_eq!(scene.gone(), nobody, "--stale {stale}");
    }
    // plan and check announce what run does.
    let asked = |command: &str| {
        let port = port.to_string();
        let job = [command, "--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1"];
        let ended = scene.launcher(&[&job[..], &["--master-port", &port]].concat(), &["a"]).run();
        let said = [ended.out.as_str(), ended.err.as_str()].concat();
        (ended.code, said)
    };
    for command in ["plan", "check"] {
        let (code, said) = asked(command);
        assert_eq!(code, 87, "{command}: {said}");
        scene.line(&said, "theirs");
    }

    // This job's script by itself: force would end it, but the nodes meet on its port.
    let port = harness::free_port();
    scene.plant_orphan("own", &format!("LISTEN={port} nohup"), "train.py");
    let ended = node(&scene, port, "0", &["2s", "--stale", "force"], &["a"]).run().expect_code(87);
    assert!(ended.err.contains("ranklaunch clean --stale force"), "{}", ended.err);
    assert_eq!(scene.gone(), nobody);

    // A leftover goes first, as the nodes could not meet otherwise; other leftovers wait.
    let port = harness::free_port();
    let environ = format!("LISTEN={port} TORCHELASTIC_RUN_ID=x");
    scene.plant_orphan("left-on-port", &environ, "train.py");
    scene.plant_orphan("left-elsewhere", "TORCHELASTIC_RUN_ID=x", "train.py");
    let port_text = port.to_string();
    let job = ["check", "--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1"];
    let more = ["--master-port", &port_text, "--muster", "off", "--format", "json"];
    let check = scene.launcher(&[&job[..], &more[..]].concat(), &["a"]).run();
    let check: serde_json::Value = serde_json::from_str(&check.out).expect("JSON");
    let mut rows = check["checks"].as_array().expect("a list").iter();
    let row = rows.find(|row| row["id"] == "port.free").expect("port.free");
    assert_eq!(row["severity"], "info", "{row}");
    assert_eq!(scene.gone(), nobody);
    let ended = node(&scene, port, "0", &["2s"], &["a"]).run().expect_code(88);
    assert_eq!(scene.gone(), ["left-on-port"], "{}", ended.err);
    assert!(ended.err.contains("left behind and this launch ends"), "{}", ended.err);
    assert!(ended.err.contains("ended: pid"), "{}", ended.err);
}

#[test]
fn clean_ends_what_is_older_and_leaves_what_is_younger() {
    in_a_namespace(inside_younger);
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_younger() {
    let mut scene = Scene::new();
    let mut rank = scene.python(&["train.py", "older"]);
    rank.env("TORCHELASTIC_RUN_ID", "x");
    scene.plant(rank, &["older"]);
    // The shell becomes ranklaunch once an orphan that is younger than it is there.
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(
        "(cd \"$1\"; TORCHELASTIC_RUN_ID=x \"$2\" train.py younger &)\n\
         while [ ! -e \"$1/ready/younger\" ]; do sleep 0.01; done\n\
         exec \"$3\" clean --device cpu --python \"$2\" -- \"$1/train.py\"",
    );
    shell.arg("sh").arg(scene.folder.path()).arg(python()).arg(harness::executable());
    let none: [&str; 0] = [];
    let ended = Launcher::of(shell, none).run().expect_code(0);
    scene.arrived(&["younger"]);
    assert_eq!(scene.gone(), ["older"], "{}{}", ended.out, ended.err);
    let line = scene.line(&ended.out, "older");
    assert!(line.contains("ended: pid") && line.contains("runs this job's script"), "{line}");
    // Asked again by a newer one, the younger is older, and in Chinese the same holds.
    let ended = scene.launcher(&["clean", "--lang", "zh"], &[]).run().expect_code(0);
    assert_eq!(scene.gone(), ["older", "younger"], "{}{}", ended.out, ended.err);
    assert!(ended.out.contains("已终止"), "{}", ended.out);
    let ended = scene.launcher(&["clean"], &[]).run().expect_code(0);
    assert_eq!(ended.out, "nothing found\n");
}

#[test]
fn who_ignores_term_is_killed_after_the_wait() {
    in_a_namespace(inside_deaf);
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_deaf() {
    let mut scene = Scene::new();
    for name in ["a-deaf", "polite"] {
        let mut rank = scene.python(&["train.py", name]);
        rank.env("TORCHELASTIC_RUN_ID", "x");
        scene.plant(rank, &[name]);
    }
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
