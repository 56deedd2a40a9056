//! The checkpoint from which a job goes on: the newest whole one that every node can read; and jobs that save nothing.

use std::path::{Path, PathBuf};

use harness::{Ended, Launcher, Running, free_port, run_args};

/// A rank that tells what it was given, saves SAVES steps after the one it goes on from (as torch.save does: a zip that
/// is renamed when it is whole), and ends with CODE, or with 0 once it has reached the step UNTIL.
const RANK: &str = "\
import os, sys, zipfile
rank, folder, args = int(os.environ['RANK']), os.environ['SAVED'], sys.argv[1:]
step = int(args[args.index('--step') + 1]) if '--step' in args else 0
print('BEGAN', rank, os.environ['RANKLAUNCH_ATTEMPT'], *args, os.environ.get('RANKLAUNCH_RESUME_FROM'), flush=True)
for step in range(step + 1, step + 1 + int(os.environ.get('SAVES', '0'))):
    if rank == 0:
        with zipfile.ZipFile(folder + '/new', 'w') as file:
            file.writestr('archive/data.pkl', b'x')
        os.rename(folder + '/new', '%s/step-%d.pt' % (folder, step))
sys.exit(0 if step >= int(os.environ.get('UNTIL', '1000')) else int(os.environ.get('CODE', '1')))
";

/// A whole file of torch.save, or the first bytes of one.
fn save(folder: &Path, step: u32, is_whole: bool) {
    let script = "import sys, zipfile; zipfile.ZipFile(sys.argv[1], 'w').writestr('archive/data.pkl', b'x' * 999)";
    let path = folder.join(format!("step-{step}.pt"));
    let made = std::process::Command::new("python3").args(["-c", script]).arg(&path).status();
    assert!(made.expect("python runs").success());
    if !is_whole {
        let file = std::fs::File::options().write(true).open(&path).expect("it is there");
        file.set_len(500).expect("it is cut");
    }
}

fn launcher(options: &[&str]) -> (Launcher, PathBuf) {
    let launcher = Launcher::new(run_args("direct", 1));
    let folder = launcher.folder().join("saved");
    std::fs::create_dir(&folder).expect("a folder");
    let shown = folder.display().to_string();
    let launcher = launcher.args(["--checkpoint-dir", &shown]).args(options);
    (launcher.env("SAVED", &folder), folder)
}

/// With the arguments by which a program goes on.
fn with_program(launcher: Launcher) -> Launcher {
    let line =
        ["python3", "-c", RANK, "--from", "{checkpoint}", "--step", "{checkpoint_step}", "--lr=1"];
    launcher.args(["--"]).args(line)
}

/// The words behind BEGAN of each attempt.
fn began(ended: &Ended) -> Vec<String> {
    let words = |line: &str| Some(line.split_once("BEGAN ")?.1.to_owned());
    ended.out.lines().filter_map(words).collect()
}

#[test]
fn attempts_go_on_from_the_newest_whole_checkpoint() {
    let (launcher, folder) = launcher(&["--max-restarts", "5"]);
    let launcher = launcher.env("SAVES", "2").env("UNTIL", "6");
    let ended = with_program(launcher).run().expect_code(0).expect_nothing_left();
    let at = |step: u32| {
        let path = folder.join(format!("step-{step}.pt"));
        format!("--from {0} --step {step} --lr=1 {0}", path.display())
    };
    let expected =
        ["0 0 --lr=1 None".to_owned(), format!("0 1 {}", at(2)), format!("0 2 {}", at(4))];
    assert_eq!(began(&ended), expected, "{}", ended.err);
}

/// An argument could not name it.
#[test]
fn path_that_is_not_utf8_is_said_and_not_taken() {
    use std::os::unix::ffi::OsStrExt;

    let (launcher, folder) = launcher(&["--max-restarts", "0"]);
    save(&folder, 1, true);
    let odd = folder.join(std::ffi::OsStr::from_bytes(b"\xff"));
    std::fs::create_dir(&odd).expect("a folder");
    save(&odd, 2, true);
    let ended = with_program(launcher.env("UNTIL", "0")).run().expect_code(0);
    assert!(began(&ended)[0].contains("--step 1 "), "{}", ended.out);
    assert!(ended.err.contains("its path is not UTF-8"), "{}", ended.err);
}

/// A program that saves under one name again and again makes progress each time.
#[test]
fn saves_under_one_name_are_progress() {
    let script = "import os, sys, zipfile\n\
        folder, attempt = os.environ['SAVED'], int(os.environ['RANKLAUNCH_ATTEMPT'])\n\
        with zipfile.ZipFile(folder + '/new', 'w') as file: file.writestr('archive/data.pkl', b'x')\n\
        os.rename(folder + '/new', folder + '/ckpt.pt')\n\
        sys.exit(0 if attempt == 4 else 1)";
    let (launcher, _) = launcher(&["--max-restarts", "1", "--max-restarts-without-progress", "2"]);
    let ended = launcher.args(["--", "python3", "-c", script]).run().expect_code(0);
    ended.expect_nothing_left();
}

/// The newest one is lost in each attempt, so that an older one is the newest: that is no progress.
#[test]
fn lost_checkpoints_are_no_progress() {
    let script = "import os, sys\n\
        print('BEGAN', flush=True)\n\
        os.remove(os.environ['RANKLAUNCH_RESUME_FROM'])\n\
        sys.exit(1)";
    let (launcher, folder) =
        launcher(&["--max-restarts", "6", "--max-restarts-without-progress", "3"]);
    (1..9).for_each(|step| save(&folder, step, true));
    let ended = launcher.args(["--", "python3", "-c", script]).run().expect_code(93);
    assert_eq!(ended.out.matches("BEGAN").count(), 3, "{}", ended.out);
    ended.expect_nothing_left();
}

#[test]
fn checkpoint_that_is_cut_off_is_passed_over() {
    let (launcher, folder) = launcher(&[]);
    for (step, is_whole) in [(3, true), (5, true), (9, false)] {
        save(&folder, step, is_whole);
    }
    let ended = with_program(launcher.env("CODE", "0")).run().expect_code(0);
    assert!(began(&ended)[0].contains("--step 5 "), "{}", ended.out);
    let run = ended.run_json(0);
    let decisions = run["plan"]["decisions"].as_array().expect("decisions").clone();
    let decision = decisions.iter().find(|one| one["what"] == "checkpoint").expect("a decision");
    assert!(
        decision["because"].to_string().contains("step-9.pt (step-9.pt is cut off)"),
        "{decision}"
    );
}

/// What the environment has would lead the program to another checkpoint than the job's.
#[test]
fn variable_without_a_checkpoint_is_not_set() {
    for saves in [false, true] {
        let (launcher, folder) = launcher(&["--env", "FROM={checkpoint}"]);
        if saves {
            save(&folder, 3, true);
        }
        let told = "echo BEGAN ${FROM-unset} ${RANKLAUNCH_RESUME_FROM-unset}";
        let launcher = launcher.env("FROM", "/old").env("RANKLAUNCH_RESUME_FROM", "/old");
        let ended = launcher.args(["--", "sh", "-c", told]).run().expect_code(0);
        let path = folder.join("step-3.pt").display().to_string();
        let value = if saves { &*path } else { "unset" };
        assert_eq!(began(&ended), [format!("{value} {value}")], "{}", ended.err);
    }
}

#[test]
fn nodes_agree_on_the_newest_that_all_can_read() {
    let anew: &[&str] = &["--checkpoint-missing", "omit"];
    for (seen, options, agreed) in
        [([&[4, 5][..], &[3, 4, 6]], &[][..], Some(4)), ([&[1], &[2]], anew, None)]
    {
        let port = free_port();
        let nodes: Vec<Running> = (0..2)
            .zip(seen)
            .map(|(node, steps)| {
                let (launcher, folder) = launcher(options);
                steps.iter().for_each(|step| save(&folder, *step, true));
                with_program(launcher.env("CODE", "0").node(node, 2, port)).start()
            })
            .collect();
        for ended in nodes.into_iter().map(Running::wait) {
            let ended = ended.expect_code(0).expect_nothing_left();
            let words = match agreed {
                Some(step) => format!("--step {step} "),
                None => "0 --lr=1 None".to_owned(),
            };
            assert!(began(&ended)[0].contains(&words), "{}\n{}", ended.out, ended.err);
        }
    }
}

#[test]
fn attempts_that_save_nothing_end_with_93() {
    let (launcher, folder) = launcher(&["--max-restarts", "9"]);
    save(&folder, 7, true);
    let ended = with_program(launcher).run().expect_code(93).expect_id("checkpoint.stuck");
    assert_eq!(began(&ended).len(), 3, "{}", ended.err);
    assert_eq!(ended.run_json(0)["saved"]["name"], "step-7.pt");
    assert!(
        ended.err.contains("3 attempts in a row ended before a checkpoint newer than step-7.pt"),
        "{}",
        ended.err
    );
}

/// Rank 0 reports its steps and saves the third one, whose successors are lost.
#[test]
fn steps_after_the_last_checkpoint_are_told() {
    let (launcher, _) = launcher(&[]);
    let steps = "\
import os, sys, time, zipfile
for step in range(1, 9):
    time.sleep(0.3)
    print('step %d/100' % step, flush=True)
    if step == int(sys.argv[1]):
        with zipfile.ZipFile(os.environ['SAVED'] + '/step-%d.pt' % step, 'w') as file:
            file.writestr('archive/data.pkl', b'x')
sys.exit(1)";
    let ended = launcher.args(["--", "python3", "-c", steps, "3"]).run().expect_code(1);
    let saved = &ended.run_json(0)["saved"];
    assert_eq!(saved["name"], "step-3.pt", "{saved}");
    // The file is younger than the line of its step.
    let lost = saved["lost_steps"].as_u64().expect("a number");
    assert!((4..=5).contains(&lost), "{lost}");
    let told = format!("about {lost} steps after it are lost");
    assert!(ended.err.contains(&told), "{}", ended.err);
    // Control: nothing says how far the job was.
    let silent = with_program(super::resume::launcher(&[]).0).run().expect_code(1);
    assert!(silent.run_json(0)["saved"]["lost_steps"].is_null(), "{}", silent.err);
}

/// Control: an attempt that saves has all restarts again, however many there were.
#[test]
fn attempts_that_save_earn_their_restarts() {
    let options = ["--max-restarts", "1", "--max-restarts-without-progress", "1"];
    let (launcher, _) = launcher(&options);
    let launcher = launcher.env("SAVES", "1").env("UNTIL", "5");
    let ended = with_program(launcher).run().expect_code(0);
    assert_eq!(began(&ended).len(), 5, "{}", ended.err);
}

#[test]
fn all_nodes_end_with_93_without_progress() {
    let port = free_port();
    let nodes: Vec<Running> = (0..2)
        .map(|node| {
            let options = ["--max-restarts", "9", "--max-restarts-without-progress", "2"];
            with_program(launcher(&options).0.node(node, 2, port)).start()
        })
        .collect();
    for ended in nodes.into_iter().map(Running::wait) {
        let ended = ended.expect_code(93).expect_id("checkpoint.stuck").expect_nothing_left();
        assert_eq!(ended.err.matches("all nodes start again").count(), 1, "{}", ended.err);
    }
}

/// A job that its platform starts again goes on counting; another job does not.
#[test]
fn launches_of_one_job_count_together() {
    let place = tempfile::tempdir().expect("a folder");
    let (saved, logs) = (place.path().join("saved"), place.path().join("logs"));
    std::fs::create_dir(&saved).expect("a folder");
    let launch = |job: &str| {
        let launcher = Launcher::new(run_args("direct", 1)).env("SAVED", &saved);
        let [saved, logs] = [&saved, &logs].map(|folder| folder.display().to_string());
        let launcher = launcher.args(["--checkpoint-dir", &saved, "--log-dir", &logs]);
        let launcher = launcher.env("PET_NNODES", "1").env("PET_NODE_RANK", "0");
        with_program(launcher.env("PET_RDZV_ID", job)).run()
    };
    let codes: Vec<i32> = ["a", "a", "b", "a", "b"].iter().map(|job| launch(job).code).collect();
    assert_eq!(codes, [1, 1, 1, 93, 1]);
}

#[test]
fn what_cannot_be_agreed_is_refused_before_the_start() {
    let (missing, _) = launcher(&["--checkpoint-missing", "refuse"]);
    with_program(missing).run().expect_code(64).expect_id("checkpoint.missing");
    let (alone, _) = launcher(&["--muster", "off", "--wait-timeout", "5s"]);
    with_program(alone.node(0, 2, free_port())).run().expect_code(64).expect_id("checkpoint.alone");
    let none = Launcher::new(run_args("direct", 1));
    with_program(none).run().expect_code(64).expect_id("checkpoint.folder");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let unread =
        Launcher::new(run_args("direct", 1)).args(["--checkpoint-dir"]).args([file.path()]);
    with_program(unread).run().expect_code(84).expect_id("checkpoint.unread");
    // A node that looks for none beside one that does.
    let port = free_port();
    let (with, _) = launcher(&[]);
    let without =
        Launcher::new(run_args("direct", 1)).args(["--", "true"]).node(1, 2, port).start();
    with_program(with.node(0, 2, port)).run().expect_code(88).expect_id("checkpoint.differ");
    without.wait().expect_code(88).expect_id("checkpoint.differ");
}

/// A checkpoint as the Trainer leaves it with `save_on_each_node`, or accelerate, on the disk of a node with these ranks.
fn share(folder: &Path, step: u32, ranks: &[u32]) {
    let script = "\
import json, pickle, sys, zipfile
folder, step, ranks = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
def put(name):
    with zipfile.ZipFile(folder + '/' + name, 'w') as file:
        file.writestr('archive/data.pkl', pickle.dumps({}, 2))
header = json.dumps({'weight': {'dtype': 'U8', 'shape': [4], 'data_offsets': [0, 4]}}).encode()
with open(folder + '/model.safetensors', 'wb') as file:
    file.write(len(header).to_bytes(8, 'little') + header + b'data')
for name in ['optimizer.pt', 'scheduler.pt'] + ['rng_state_%s.pth' % rank for rank in ranks]:
    put(name)
with open(folder + '/trainer_state.json', 'w') as file:
    json.dump({'global_step': step}, file)
";
    let path = folder.join(format!("checkpoint-{step}"));
    std::fs::create_dir(&path).expect("a folder");
    let ranks = ranks.iter().map(u32::to_string);
    let mut python = std::process::Command::new("python3");
    let made = python.args(["-c", script]).arg(&path).arg(step.to_string()).args(ranks).status();
    assert!(made.expect("python runs").success());
}

/// Two nodes of two ranks, each with a folder of its own in which it has the files of these ranks, and an older
/// checkpoint that is whole.
fn apart(shares: [&[u32]; 2], older: bool, options: &[&str]) -> Vec<(Ended, PathBuf)> {
    let port = free_port();
    let nodes: Vec<(Running, PathBuf)> = (0..2)
        .zip(shares)
        .map(|(node, ranks)| {
            let launcher = Launcher::new(run_args("direct", 2));
            let folder = launcher.folder().join("saved");
            std::fs::create_dir(&folder).expect("a folder");
            share(&folder, 10, ranks);
            if older {
                save(&folder, 5, true);
            }
            let shown = folder.display().to_string();
            let launcher = launcher.args(["--checkpoint-dir", &shown]).args(options);
            let launcher = launcher.env("SAVED", &folder).env("CODE", "0").node(node, 2, port);
            (with_program(launcher).start(), folder)
        })
        .collect();
    nodes.into_iter().map(|(running, folder)| (running.wait(), folder)).collect()
}

#[test]
fn nodes_with_disks_of_their_own_go_on_from_their_shares() {
    for (shares, agreed) in [
        ([&[0, 1][..], &[2, 3]], Some("checkpoint-10")),
        // The nodes have changed places: each has the states of ranks of the other.
        ([&[2, 3], &[0, 1]], Some("step-5.pt")),
        // A rank of node 1 was killed while it saved.
        ([&[0, 1], &[2]], Some("step-5.pt")),
        ([&[2, 3], &[0, 1]], None),
    ] {
        let older = agreed == Some("step-5.pt");
        // What one node takes for whole is there, so a start from the beginning has to be asked for.
        let options: &[&str] =
            if agreed.is_none() { &["--checkpoint-missing", "omit"] } else { &[] };
        for (ended, folder) in apart(shares, older, options) {
            let ended = ended.expect_code(0).expect_nothing_left();
            let words = match agreed {
                Some(name) => format!("--from {}", folder.join(name).display()),
                None => "0 --lr=1 None".to_owned(),
            };
            let began = began(&ended);
            assert_eq!(began.len(), 2, "{}", ended.err);
            assert!(began.iter().all(|line| line.contains(&words)), "{began:?}\n{}", ended.err);
        }
    }
}

#[test]
fn nodes_refuse_together_what_they_lack_together() {
    for (ended, _) in apart([&[2, 3], &[0, 1]], false, &["--checkpoint-missing", "refuse"]) {
        let ended = ended.expect_code(64).expect_id("checkpoint.missing").expect_nothing_left();
        assert_eq!(began(&ended), [""; 0], "{}", ended.out);
        assert!(ended.err.contains("that all nodes can read"), "{}", ended.err);
    }
    // By default nobody begins anew beside whole ones.
    for options in [&["--checkpoint-missing", "refuse"][..], &[]] {
        let port = free_port();
        let nodes: Vec<Running> = (0..2)
            .zip([3, 4])
            .map(|(node, step)| {
                let (launcher, folder) = launcher(options);
                save(&folder, step, true);
                with_program(launcher.node(node, 2, port)).start()
            })
            .collect();
        for ended in nodes.into_iter().map(Running::wait) {
            ended.expect_code(64).expect_id("checkpoint.missing").expect_nothing_left();
        }
    }
}

/// A node that has waited since before others saved and removed what it saw looks again: to begin anew would lose all.
#[test]
fn what_a_node_saw_long_ago_does_not_count() {
    for (waits, comes) in [(1, 0), (0, 1)] {
        let port = free_port();
        let (early, folder) = launcher(&[]);
        save(&folder, 3, true);
        let mut early = with_program(early.env("CODE", "0").node(waits, 2, port)).start();
        early
            .waits("a wait", |node| node.err().contains("node 0") || node.err().contains("node 1"));
        save(&folder, 4, true);
        std::fs::remove_file(folder.join("step-3.pt")).expect("it was there");
        let shown = folder.display().to_string();
        let late = Launcher::new(run_args("direct", 1)).args(["--checkpoint-dir", &shown]);
        let late = late.env("SAVED", &folder).env("CODE", "0").node(comes, 2, port);
        let late = with_program(late).start();
        for ended in [early, late].map(Running::wait) {
            let ended = ended.expect_code(0).expect_nothing_left();
            assert!(began(&ended)[0].contains("--step 4 "), "{}\n{}", ended.out, ended.err);
        }
    }
}

/// A rank that saves one step more as DeepSpeed does with `use_node_local_storage`: its own partition of the optimizer,
/// and the model on each node. It ends when the other node has saved too, with 0 at the third step.
const LOCAL_RANK: &str = "\
import os, pickle, sys, time, zipfile
rank, folder, args = os.environ['RANK'], os.environ['SAVED'], sys.argv[1:]
step = int(args[args.index('--step') + 1]) + 1 if '--step' in args else 1
print('BEGAN', rank, step, flush=True)
tag = '%s/global_step%d/' % (folder, step)
os.makedirs(tag)
def put(name, tree):
    with zipfile.ZipFile(tag + name, 'w') as file:
        file.writestr('archive/data.pkl', pickle.dumps(tree, 2))
config = {'zero_optimization': {'stage': 2}}
put('mp_rank_00_model_states.pt', {'dp_world_size': 2, 'mp_world_size': 1, 'ds_config': config})
put('zero_pp_rank_%s_mp_rank_00_optim_states.pt' % rank, {})
open('%s/%d-%s' % (os.environ['MEET'], step, rank), 'w').close()
until = time.monotonic() + 60
while not all(os.path.exists('%s/%d-%d' % (os.environ['MEET'], step, other)) for other in range(2)):
    assert time.monotonic() < until
    time.sleep(0.01)
sys.exit(0 if step >= 3 else 1)
";

/// No node ever sees a whole checkpoint, and each attempt goes on where the last one has saved.
#[test]
fn shares_that_nodes_save_are_progress() {
    let (port, meet) = (free_port(), tempfile::tempdir().expect("a folder"));
    let options = ["--max-restarts", "1", "--max-restarts-without-progress", "1"];
    let nodes: Vec<Running> = (0..2)
        .map(|node| {
            let (launcher, _) = launcher(&options);
            let launcher = launcher.env("MEET", meet.path()).node(node, 2, port);
            let line = ["python3", "-c", LOCAL_RANK, "--step", "{checkpoint_step}"];
            launcher.args(["--"]).args(line).start()
        })
        .collect();
    for (rank, ended) in nodes.into_iter().map(Running::wait).enumerate() {
        let ended = ended.expect_code(0).expect_nothing_left();
        let expected: Vec<String> = (1..=3).map(|step| format!("{rank} {step}")).collect();
        assert_eq!(began(&ended), expected, "{}", ended.err);
    }
}

/// A start from the beginning could overwrite what a folder holds that cannot be read at the moment.
#[test]
fn restart_waits_for_no_folder_that_it_cannot_read() {
    let (launcher, _) = launcher(&["--max-restarts", "3"]);
    let breaks = "echo BEGAN; rm -r \"$SAVED\" && touch \"$SAVED\"; exit 1";
    let ended = launcher.args(["--", "sh", "-c", breaks]).run().expect_code(84);
    let ended = ended.expect_id("checkpoint.unread").expect_nothing_left();
    assert_eq!(ended.out.matches("BEGAN").count(), 1, "{}", ended.err);
}
