//! Features of torchrun that every engine gives a rank: the number of the attempt, standard input,
//! and settings by torchrun's own variables.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

use harness::{Ended, Launcher, free_port, python, run_args};
use settings::torchrun_options::torchrun_options;

/// `sh -c SCRIPT` as the program.
fn shell(engine: &str, nproc: u32, options: &[&str], script: &str) -> Launcher {
    let mut args = run_args(engine, nproc);
    if engine == "command" {
        args.retain(|word| word != "--nproc-per-node" && word != &*nproc.to_string());
    }
    Launcher::new(args).args(options).args(["--", "sh", "-c", script])
}

const NUMBERS: &str = "echo \"saw $RANKLAUNCH_ATTEMPT $TORCHELASTIC_RESTART_COUNT \
                       $TORCHELASTIC_MAX_RESTARTS\"; exit 75";
/// Waits until all $RANKS ranks of the attempt have come here: the first that fails ends the others.
const TOGETHER: &str = ": >\"$FOLDER/$RANKLAUNCH_ATTEMPT-$RANK\"; until [ \
                        $(ls \"$FOLDER\" | grep -c \"^$RANKLAUNCH_ATTEMPT-\") -ge $RANKS ]; \
                        do sleep 0.05; done; exit";

fn count(ended: &Ended, words: &str) -> usize {
    ended.out.lines().filter(|line| line.ends_with(words)).count()
}

#[test]
fn each_rank_sees_its_attempt_with_every_engine() {
    for (engine, ranks) in [("direct", 2), ("torchrun", 2), ("accelerate", 2), ("command", 1)] {
        let options = ["--max-restarts", "1", "--retry-on", "rank.exit"];
        let folder = tempfile::tempdir().expect("a folder");
        let job = shell(engine, ranks, &options, &NUMBERS.replace("exit", TOGETHER));
        let job = job.env("RANKS", ranks.to_string()).env("FOLDER", folder.path());
        let ended = job.run().expect_code(75);
        // With engine `command`, the launcher in the command counts the attempts of its own ranks.
        let seen =
            if engine == "command" { ["saw 0  ", "saw 1  "] } else { ["saw 0 0 1", "saw 1 1 1"] };
        for words in seen {
            assert_eq!(count(&ended, words) as u32, ranks, "{engine} {words}: {}", ended.out);
        }
    }
}

#[test]
fn only_the_first_rank_reads_standard_input() {
    const READS: &str = "read -r x; echo \"got <$x>\"";
    for engine in ["direct", "torchrun", "accelerate"] {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("words");
        std::fs::write(&file, "bob\n").expect("written");
        let (pipe, mut writer) = std::io::pipe().expect("a pipe");
        writer.write_all(b"bob\n").expect("room");
        let (socket, mut other) = UnixStream::pair().expect("a pair");
        other.write_all(b"bob\n").expect("room");
        let all: [(&str, OwnedFd); 3] = [
            ("a pipe", pipe.into()),
            ("a file", File::open(&file).expect("it is there").into()),
            ("a socket", socket.into()),
        ];
        let few = if engine == "direct" { 3 } else { 1 };
        for (what, input) in all.into_iter().take(few) {
            let ended = shell(engine, 2, &[], READS).stdin(input).run().expect_code(0);
            assert_eq!(count(&ended, "got <bob>"), 1, "{engine} {what}: {}", ended.out);
            assert!(ended.out.contains("[r0] got <bob>"), "{engine} {what}: {}", ended.out);
            assert!(ended.out.contains("[r1] got <>"), "{engine} {what}: {}", ended.out);
            let said = format!("standard input ({what}) goes to the first rank here");
            assert!(ended.err.contains(&said), "{engine}: {}", ended.err);
        }
        drop((writer, other));
    }
}

/// The write ends stay open during the test, and no rank reads.
#[test]
fn endless_standard_input_delays_no_rank() {
    for (engine, code) in [("direct", 0), ("torchrun", 0), ("direct", 3)] {
        let (pipe, writer) = std::io::pipe().expect("a pipe");
        let script = format!("exit {code}");
        shell(engine, 2, &[], &script).stdin(pipe).run().expect_code(code).expect_nothing_left();
        drop(writer);
    }
    let (socket, other) = UnixStream::pair().expect("a pair");
    let input = OwnedFd::from(socket);
    shell("direct", 1, &[], "exit 0").stdin(input).run().expect_code(0).expect_nothing_left();
    drop(other);
}

#[test]
fn empty_standard_input_ends_at_once_without_message() {
    let (over, writer) = std::io::pipe().expect("a pipe");
    drop(writer);
    let empty = File::open("/dev/null").expect("a device");
    for input in [OwnedFd::from(over), empty.into()] {
        let ended = shell("direct", 2, &[], "read -r x || echo over").stdin(input).run();
        let ended = ended.expect_code(0);
        assert_eq!(count(&ended, "over"), 2, "{}", ended.out);
        assert!(!ended.err.contains("standard input"), "{}", ended.err);
    }
    // Standard input is closed, as a daemon starts its children.
    let mut closed = Command::new("sh");
    closed.args(["-c", "exec \"$0\" \"$@\" <&-"]).arg(harness::executable());
    let mut args = run_args("direct", 1);
    args.extend(["--", "sh", "-c", "read -r x || echo over"].map(Into::into));
    let ended = Launcher::of(closed, args).run().expect_code(0);
    assert!(ended.out.contains("over"), "{}", ended.out);
}

#[test]
fn second_attempt_gets_the_remaining_input() {
    let (pipe, mut writer) = std::io::pipe().expect("a pipe");
    writer.write_all(b"one\ntwo\n").expect("room");
    drop(writer);
    let script = "read -r x; echo \"got <$x>\"; [ \"$RANKLAUNCH_ATTEMPT\" = 1 ]";
    let options = ["--max-restarts", "1"];
    let ended = shell("direct", 1, &options, script).stdin(pipe).run().expect_code(0);
    assert_eq!((count(&ended, "got <one>"), count(&ended, "got <two>")), (1, 1), "{}", ended.out);
    assert!(ended.err.contains("what earlier attempts have left of it"), "{}", ended.err);
}

#[test]
fn torchrun_max_restarts_becomes_our_restart_budget() {
    let ended = shell("direct", 1, &["--retry-on", "rank.exit"], NUMBERS);
    let ended = ended.env("PET_MAX_RESTARTS", "1").run().expect_code(75);
    assert_eq!((count(&ended, "saw 0 0 1"), count(&ended, "saw 1 1 1")), (1, 1), "{}", ended.out);
    // The option given here wins over the variable.
    let ended = shell("direct", 1, &["--max-restarts", "0"], NUMBERS).env("PET_MAX_RESTARTS", "5");
    assert_eq!(count(&ended.run().expect_code(75), "saw 0 0 0"), 1);
    // torchrun inside a command reads the variable itself.
    let ended = shell("command", 1, &[], "echo \"saw $PET_MAX_RESTARTS\"; exit 75");
    let ended = ended.env("PET_MAX_RESTARTS", "5").run().expect_code(75);
    assert_eq!(count(&ended, "saw 5"), 1, "{}", ended.out);
    let wrong = shell("direct", 1, &[], "exit 0").env("PET_MAX_RESTARTS", "many").run();
    assert!(wrong.expect_code(64).err.contains("PET_MAX_RESTARTS is `many`"));
}

/// Variables that the training operator sets for an `elasticPolicy` of one to two nodes, on one
/// node.
fn elastic(restarts: &str, nproc: u32, script: &str) -> Launcher {
    let endpoint = format!("127.0.0.1:{}", free_port());
    let launcher = shell("torchrun", nproc, &["--grace", "20s"], script);
    [
        ("PET_NNODES", "1:2"),
        ("PET_NPROC_PER_NODE", "1"),
        ("PET_MAX_RESTARTS", restarts),
        ("PET_RDZV_BACKEND", "c10d"),
        ("PET_RDZV_ENDPOINT", &endpoint),
        ("PET_RDZV_ID", "job"),
        ("PET_RDZV_CONF", "last_call_timeout=1"),
    ]
    .into_iter()
    .fold(launcher, |launcher, (name, value)| launcher.env(name, value))
}

#[test]
fn torchrun_restarts_an_elastic_job() {
    let script = "echo \"saw $RANKLAUNCH_ATTEMPT $TORCHELASTIC_RESTART_COUNT \
                  $TORCHELASTIC_MAX_RESTARTS\"; [ \"$TORCHELASTIC_RESTART_COUNT\" = 2 ] && exit 0; \
                  [ \"$RANK\" = 1 ] && exit 7; exec sleep 300";
    let ended = elastic("3", 2, script).run().expect_code(0).expect_nothing_left();
    for words in ["saw 0 0 3", "saw 0 1 3", "saw 0 2 3"] {
        assert_eq!(count(&ended, words), 2, "{words}: {}\n{}", ended.out, ended.err);
    }
}

#[test]
fn exhausted_elastic_job_returns_the_ranks_code() {
    let script = "echo \"saw $TORCHELASTIC_RESTART_COUNT\"; [ \"$RANK\" = 1 ] && exit 7; \
                  exec sleep 300";
    let ended = elastic("1", 2, script).run().expect_code(7).expect_nothing_left();
    assert_eq!((count(&ended, "saw 0"), count(&ended, "saw 1")), (2, 2), "{}", ended.out);
    let verdict = &ended.run_json(0)["verdict"];
    assert_eq!((&verdict["id"], &verdict["rank"]), (&"rank.exit".into(), &1.into()));
}

/// torchrun would start ranks again that the stop has ended.
#[test]
fn stopped_elastic_job_restarts_no_rank() {
    for (how, saved) in
        [("exec sleep 300", 0), ("trap 'sleep 1; echo saved; exit 0' TERM; wait", 2)]
    {
        let script = format!("sleep 300 & echo READY; {how}");
        let mut running = elastic("9", 2, &script).start();
        running.says("READY", 2);
        let asked = std::time::Instant::now();
        running.signal(nix::sys::signal::Signal::SIGTERM);
        let ended = running.wait().expect_code(143).expect_nothing_left();
        assert_eq!((count(&ended, "READY"), count(&ended, "saved")), (2, saved), "{}", ended.out);
        assert!(asked.elapsed().as_secs() < 15, "{:?}", asked.elapsed());
    }
}

#[test]
fn script_and_module_get_the_words_that_torchrun_gives_them() {
    for line in [
        &["--nproc_per_node", "1", "args.py", "--lr", "1", "--", "--help", "-m", "plan"][..],
        &["--nnodes=1", "args.py", "--version", "--nproc_per_node", "7", "args.py"],
        &["-m", "--nproc_per_node=1", "args", "--log-dir", "--", "x"],
        &["--module", "args", "-h"],
    ] {
        let launcher = Launcher::new(run_args("direct", 1)).args(line);
        let folder = launcher.folder().to_owned();
        let script = "import sys\nprint('got', sys.argv[1:])\n";
        std::fs::write(folder.join("args.py"), script).expect("written");
        let torchrun = Command::new(python())
            .args(["-m", "torch.distributed.run"])
            .args(line)
            .current_dir(&folder)
            .output()
            .expect("it runs");
        let torchrun = String::from_utf8_lossy(&torchrun.stdout).into_owned();
        assert!(torchrun.starts_with("got ["), "{line:?}: {torchrun}");
        let ended = launcher.run().expect_code(0);
        assert_eq!(ended.out, torchrun, "{line:?}");
    }
}

#[test]
fn torchrun_variables_set_how_the_program_starts() {
    let of = |set: &[(&str, &str)], program: &[&str]| {
        let launcher = Launcher::new(run_args("direct", 1)).args(["--"]).args(program);
        set.iter().fold(launcher, |launcher, (name, value)| launcher.env(name, value)).run()
    };
    let module = of(&[("PET_MODULE", "1")], &["json.tool", "--help"]).expect_code(0);
    assert!(module.out.contains("usage"), "{}", module.out);
    // Without the variable, torchrun would run this file as a Python script.
    let program = harness::program("rank.sh");
    let program = program.to_str().expect("UTF-8");
    of(&[("PET_NO_PYTHON", "1")], &[program, "succeed"]).expect_code(0);
    let both = of(&[("PET_NO_PYTHON", "1"), ("PET_MODULE", "1")], &["json.tool"]).expect_code(64);
    assert!(both.err.contains("PET_MODULE and PET_NO_PYTHON are both set"), "{}", both.err);
    of(&[("PET_NO_PYTHON", "1"), ("PET_MODULE", "0")], &[program, "succeed"]).expect_code(0);
    of(&[("PET_MODULE", "yes")], &["json.tool"]).expect_code(64);
}

/// A new option of torch needs a meaning here, or a reason for having none.
#[test]
fn every_option_of_the_installed_torch_is_listed() {
    let script = "import torch.distributed.run as run, torch.distributed.argparse_util as util\n\
                  for action in run.get_args_parser()._actions:\n    \
                  if isinstance(action, (util.env, util.check_env)):\n        \
                  print(action.dest.replace('_', '-'), isinstance(action, util.check_env))\n";
    let told = Command::new(python()).args(["-c", script]).output().expect("it runs");
    let told = String::from_utf8(told.stdout).expect("UTF-8");
    let mut torch: Vec<&str> = told.lines().collect();
    let own: Vec<String> = torchrun_options()
        .iter()
        .map(|(name, is_switch)| format!("{name} {}", if *is_switch { "True" } else { "False" }))
        .collect();
    let mut own: Vec<&str> = own.iter().map(String::as_str).collect();
    torch.sort_unstable();
    own.sort_unstable();
    assert_eq!(own, torch);
}
