//! A launch that ends leftovers and spares other processes.

use std::path::PathBuf;
use std::process::Stdio;

use harness::{Running, copy_program, python};

use super::{Scene, in_a_namespace};

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

    // The negative controls: all planted processes survive if nothing may be ended.
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
        ("a-rank-with-children0", "a rank (TORCHELASTIC_RUN_ID) whose launcher is dead: pid 1 "),
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
        ("nohup-rank0", "LOCAL_RANK proves no launcher"),
        ("ampersand-rank0", "LOCAL_RANK proves no launcher"),
        ("setsid-rank0", "LOCAL_RANK proves no launcher"),
        ("disown-rank0", "LOCAL_RANK proves no launcher"),
        ("first-rank0", "LOCAL_RANK proves no launcher"),
        ("sweep", "parent"),
        ("mpirun", "it is a running launcher"),
        ("a-nobody", "it belongs to user 65534"),
    ] {
        let line = scene.line(&ended.err, name);
        let of_force = line.contains("--stale force would end it") == (name != "a-nobody");
        assert!(line.contains("left alone: ") && line.contains(why) && of_force, "{line}");
        assert!(line.contains(" old, parent "), "age and parent: {line}");
    }
    // In a tree that is left alone, the topmost process is named: here the guard.
    let guard = format!("left alone: pid {} (", live.pid());
    let left = |line: &&str| line.contains(&guard);
    let line: Vec<&str> = ended.err.lines().filter(left).collect();
    assert!(line.len() == 1 && line[0].contains("its job is running"), "{}", ended.err);
    let beside: Vec<&str> =
        ended.err.lines().filter(|line| line.contains("already runs on this node")).collect();
    let starts = beside.first().is_some_and(|line| line.contains("warning: this job's script"));
    assert!(beside.len() == 1 && starts, "{}", ended.err);
    assert!(beside[0].contains("pid ") && beside[0].contains(", for "), "{beside:?}");
    let gone = scene.gone();
    assert_eq!(gone.len(), scene.planted.len() - neighbours, "{gone:?}\n{}", ended.err);
    let leftover = |name: &&str| {
        name.starts_with("a-rank") || name.starts_with("torchrun") || *name == "marked"
    };
    assert!(gone.iter().all(leftover), "{gone:?}");

    // The other control: the innocent processes can be ended, and `force` ends them.
    let before: Vec<String> = gone.into_iter().map(str::to_owned).collect();
    let ended = scene.run("force");
    let by_force: Vec<&str> =
        scene.gone().into_iter().filter(|name| !before.iter().any(|gone| gone == name)).collect();
    let expected = [
        "another-live-until",
        "mpirun",
        "mpi0",
        "nohup",
        "nohup-rank0",
        "ampersand-rank0",
        "setsid-rank0",
        "disown-rank0",
        "first-rank0",
        "sweep",
    ];
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

/// The mark of a dead agent that had pid 1. The present pid 1 is another process, because it began
/// at another time.
fn mark_of_a_dead_agent() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("it is there");
    let namespace = std::fs::read_link("/proc/self/ns/pid").expect("it is there");
    let number = namespace.display().to_string().replace(|c: char| !c.is_ascii_digit(), "");
    format!("gone:{}:{number}:1:1", boot.trim())
}

/// Processes that name the script, or even run it, but must not be ended.
fn plant_neighbours(scene: &mut Scene) -> Running {
    // A copy of tail(1) with another name keeps running with any file.
    let tail = which("tail");
    let vim = scene.path("vim");
    copy_program(&tail, &vim);
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
    // A rank of another script whose launcher is dead is not part of this job.
    scene.plant_orphan("other-orphan", "TORCHELASTIC_RUN_ID=x", "other.py");
    // A job submitted from the environment of a rank has that rank's mark, and a parent that lives.
    let mut shell = scene.command("sh");
    let line =
        format!("RANKLAUNCH_JOB={} \"$0\" other.py inherits; sleep 600; :", mark_of_a_dead_agent());
    shell.args(["-c", &line]).arg(python());
    scene.plant(shell, &["inherits"]);
    // Pids of another host, or of an older release that did not name its own host, prove nothing.
    scene.plant_orphan("elsewhere", "RANKLAUNCH_JOB=gone:0-0:1:1:1", "other.py");
    scene.plant_orphan("of-no-host", "RANKLAUNCH_JOB=gone:1:1", "other.py");
    let mut nobody = scene.python(&["train.py", "a-nobody"]);
    nobody.env("TORCHELASTIC_RUN_ID", "x");
    scene.plant(nobody, &["a-nobody"]);
    let live = scene.launcher(&["run", "--stale", "off"], &["another-live-until"]).start();
    scene.arrived(&["another-live-until0"]);
    let pid = scene.planted.remove("another-live-until0").expect("it was inserted");
    scene.planted.insert("another-live-until".to_owned(), pid);
    live
}

/// Healthy processes of the same script without a torchrun.
fn plant_innocents(scene: &mut Scene) {
    scene.plant_orphan("nohup", "nohup", "train.py");
    // Users leave the script running on one GPU, each in another way. The name of its folder entry
    // has the local rank.
    for (name, before, after) in [
        ("nohup-rank", "nohup", ""),
        ("ampersand-rank", "", ""),
        ("setsid-rank", "setsid", ""),
        ("disown-rank", "", "disown;"),
    ] {
        let line = format!(
            "LOCAL_RANK=0 RANK=0 WORLD_SIZE=1 {before} \"$0\" train.py {name} & {after} exit 0"
        );
        let mut by_hand = scene.command("bash");
        by_hand.args(["-c", &line]).arg(python());
        scene.plant(by_hand, &[&format!("{name}0")]);
    }
    // PID 1, which is no Python, started this process and lives.
    let mut own = scene.python(&["train.py", "first-rank"]);
    own.env("LOCAL_RANK", "0");
    scene.plant(own, &["first-rank0"]);
    let mut sweep = scene.command("sh");
    sweep.args(["-c", "TORCHELASTIC_RUN_ID=x \"$0\" train.py sweep; sleep 600; :"]).arg(python());
    scene.plant(sweep, &["sweep"]);
    let shell = scene.children.last().expect("it was started").id().cast_signed();
    scene.planted.insert("the shell of the sweep".to_owned(), shell);
    // A launcher is recognised by its name; this one is a shell with another name.
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

/// An orphan rank with its children, the ranks of a killed torchrun, and processes with the
/// marker of a dead agent.
fn plant_leftovers(scene: &mut Scene) {
    let mut rank = scene.command("sh");
    let line = "TORCHELASTIC_RUN_ID=x LOCAL_RANK=0 RANK=0 WORLD_SIZE=2 \
                \"$0\" train.py a-rank-with-children & exit 0";
    rank.args(["-c", line]).arg(python());
    let names =
        ["a-rank-with-children0", "a-rank-with-children0-child", "a-rank-with-children0-escaped"];
    scene.plant(rank, &names);
    scene.plant_orphan("marked", &format!("RANKLAUNCH_JOB={}", mark_of_a_dead_agent()), "other.py");
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
