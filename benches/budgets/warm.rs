//! A warm start against torchrun: time to the first all-reduce of real torch, memory of the ranks, and the time of a
//! restart.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use harness::{cached_python, executable, program, python, run_args};
use serde_json::Value;

use crate::measure::{Budget, Table, command, median, now};

const RUNS: usize = 3;
/// Of one start, from a cold cache too.
const LONGEST: Duration = Duration::from_secs(180);

/// Until the last rank has its first sum, and the memory of all ranks then.
struct First {
    seconds: f64,
    mebibytes: f64,
}

/// Imports below one interpreter.
struct Case {
    what: String,
    python: PathBuf,
    program: &'static str,
}

/// torch alone, the older versions of tests/python/older_torch.sh, and torch with transformers of
/// tests/python/beside_torch.sh.
fn cases(table: &Table) -> Vec<Case> {
    let torch = Case { what: "torch".to_owned(), python: python(), program: "first_reduce.py" };
    let mut cases = vec![torch];
    for (name, program, installs) in [
        ("torch-2.6.0", "first_reduce.py", "older_torch.sh"),
        ("torch-2.3.1", "first_reduce.py", "older_torch.sh"),
        ("transformers", "first_reduce_of_model.py", "beside_torch.sh"),
    ] {
        match cached_python(name) {
            Some(python) => cases.push(Case { what: name.replace('-', " "), python, program }),
            None => table.left_out(name, &format!("tests/python/{installs} installs it")),
        }
    }
    cases
}

pub(crate) fn measure(table: &mut Table) {
    for case in cases(table) {
        for ranks in [1, 4, 8] {
            compare(table, &case, ranks);
        }
    }
    let (forked, alone) = (restart("required"), restart("off"));
    // A rank that is forked imports nothing: a fifth of a second of the seconds that torch takes.
    let kept = Budget::Within("1/10", forked <= alone / 10.0);
    let (own, other) = (format!("{forked:.0} ms"), format!("without it {alone:.0} ms"));
    table.row("restart, end to first line", &own, &other, forked / alone, kept);
}

fn compare(table: &mut Table, case: &Case, ranks: u32) {
    let what = |what: &str, engine: &str| format!("{what}, {} × {}, {engine}", ranks, case.what);
    // In turn, so that what else the machine does falls on all of them.
    let mut runs: [Vec<First>; 3] = Default::default();
    for _ in 0..RUNS {
        let starts: [&dyn Fn(&Path) -> Command; 3] = [
            &|folder| torchrun(&case.python, ranks, folder),
            &|folder| warm("torchrun", &case.python, ranks, folder),
            &|folder| warm("direct", &case.python, ranks, folder),
        ];
        for (runs, start) in runs.iter_mut().zip(starts) {
            runs.push(once(case, ranks, start));
        }
    }
    let [rival, by_torchrun, direct] = runs.map(|runs| of_runs(&runs));
    for (engine, ours) in [("torchrun", by_torchrun), ("direct", direct)] {
        let ratio = ours.seconds / rival.seconds;
        let (words, most) = match ranks {
            8 => ("a quarter of torchrun", 0.25),
            _ => ("1.02 × torchrun", 1.02),
        };
        let (own, other) = (format!("{:.2} s", ours.seconds), format!("{:.2} s", rival.seconds));
        let kept = Budget::Within(words, ratio <= most);
        table.row(&what("first all-reduce", engine), &own, &other, ratio, kept);
        let ratio = ours.mebibytes / rival.mebibytes;
        let kept = match ranks {
            8 => Budget::Within("a fifth of torchrun", ratio <= 0.2),
            _ => Budget::None,
        };
        let (own, other) = (ours.mebibytes, rival.mebibytes);
        let (own, other) = (format!("{own:.0} MiB"), format!("{other:.0} MiB"));
        table.row(&what("memory (PSS)", engine), &own, &other, ratio, kept);
    }
}

/// Its own rendezvous finds a free port.
fn torchrun(python: &Path, ranks: u32, folder: &Path) -> Command {
    let mut command = command(python, folder);
    command.args(["-m", "torch.distributed.run", "--standalone"]);
    command.args(["--nproc-per-node", &ranks.to_string()]);
    command
}

fn warm(engine: &str, python: &Path, ranks: u32, folder: &Path) -> Command {
    let mut command = command(executable(), folder);
    command.args(run_args(engine, ranks)).arg("--python").arg(python);
    command.args(["--warm", "auto", "--"]);
    command
}

fn of_runs(runs: &[First]) -> First {
    First {
        seconds: median(runs.iter().map(|run| run.seconds).collect()),
        mebibytes: median(runs.iter().map(|run| run.mebibytes).collect()),
    }
}

fn once(case: &Case, ranks: u32, start: impl Fn(&Path) -> Command) -> First {
    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path().join("first");
    std::fs::create_dir(&to).expect("a folder");
    let mut command = start(folder.path());
    command.arg(program(case.program)).arg(&to).stdout(Stdio::null()).stderr(Stdio::null());
    let began = seconds();
    assert!(ended(&mut command).success(), "{command:?}");
    let of = |rank: u32| {
        let text = std::fs::read_to_string(to.join(rank.to_string())).expect("it was written");
        let (at, memory) = text.split_once(' ').expect("two numbers");
        (at.parse::<f64>().expect("a time"), memory.parse::<f64>().expect("a size"))
    };
    let all: Vec<(f64, f64)> = (0..ranks).map(of).collect();
    let last = all.iter().map(|(at, _)| *at).fold(0.0, f64::max);
    let memory: f64 = all.iter().map(|(_, memory)| memory).sum();
    First { seconds: last - began, mebibytes: memory / 1024.0 }
}

/// How it ended. One that hangs is killed, and the measurement fails.
fn ended(command: &mut Command) -> ExitStatus {
    let mut child = command.spawn().expect("it starts");
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("its child") {
            return status;
        }
        if began.elapsed() > LONGEST {
            let _ = child.kill();
            let _ = child.wait();
            panic!("not over after {LONGEST:?}: {command:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn seconds() -> f64 {
    now() as f64 / 1e9
}

/// Milliseconds from the end of the rank that fails to the first line of its next attempt, without the pause
/// before it.
fn restart(warm: &str) -> f64 {
    let once = |_| {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = command(executable(), folder.path());
        command.args(run_args("direct", 1)).args(["--warm", warm, "--max-restarts", "1", "--"]);
        command.arg(program("warmed.py")).arg("fails-once").arg(folder.path());
        command.env("PYTHON", python()).stdout(Stdio::null()).stderr(Stdio::piped());
        let output = command.output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let ended = std::fs::read_to_string(folder.path().join("ends")).expect("it failed");
        let began = std::fs::read(folder.path().join("began-0-1")).expect("it began again");
        let began: Value = serde_json::from_slice(&began).expect("JSON");
        let took = began["at"].as_f64().expect("a time") - ended.parse::<f64>().expect("a time");
        took * 1e3 - pause(&said)
    };
    median((0..RUNS).map(once).collect())
}

/// Milliseconds that are announced before an attempt.
fn pause(said: &str) -> f64 {
    let announced = said.split("starting again in ").nth(1).and_then(|rest| rest.split(' ').next());
    announced.and_then(|seconds| seconds.parse::<f64>().ok()).unwrap_or(0.0) * 1e3
}
