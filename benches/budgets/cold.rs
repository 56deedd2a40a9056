//! A start from a file server of which nothing is in the page cache: time to the first line of ranks that import torch,
//! against torchrun; and what reading ahead costs where all is in the page cache.
//!
//! The server is a FUSE file system that takes 2 ms for each read of at most 128 KiB, any number of them at once, and
//! answers names at once. It mirrors the environment of torch.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use harness::slow_mount::{SlowMount, alone};
use harness::{executable, program, python, run_args};

use crate::measure::{Budget, Table, command, median, now};

const RANKS: u32 = 4;
const TAKES: Duration = Duration::from_millis(2);
const COLD_RUNS: usize = 3;
const WARM_RUNS: usize = 9;

pub(crate) fn measure(table: &mut Table) {
    if !alone(|| all(table)) {
        println!("first line from a file server: not measured, see above");
    }
}

fn all(table: &mut Table) {
    let prefix = prefix();
    let cold = |start: &dyn Fn(&Path, &Path) -> Command| {
        let once = |_| {
            let at = tempfile::tempdir().expect("a folder");
            let mount = SlowMount::new(&prefix, at.path(), TAKES).expect("a mount");
            let took = first_line(|folder| start(&at.path().join("bin/python"), folder));
            (took, mount.reads().len())
        };
        let runs: Vec<(f64, usize)> = (0..COLD_RUNS).map(once).collect();
        (median(runs.iter().map(|run| run.0).collect()), runs.last().map_or(0, |run| run.1))
    };
    let (rival, reads) = cold(&torchrun);
    for engine in ["torchrun", "direct"] {
        let (ours, own_reads) = cold(&|python, folder| warm(engine, "auto", python, folder));
        let ratio = ours / rival;
        let what = format!("first line, {RANKS} ranks, cold, {engine}");
        let (own, other) = (format!("{ours:.2} s"), format!("{rival:.2} s"));
        println!("reads: {own_reads} of ours, {reads} of torchrun");
        table.row(&what, &own, &other, ratio, Budget::Within("a fifth of torchrun", ratio <= 0.2));
    }
    let (off, _) = cold(&|python, folder| warm("direct", "off", python, folder));
    let what = format!("first line, {RANKS} ranks, cold, --warm off");
    table.row(&what, &format!("{off:.2} s"), &format!("{rival:.2} s"), off / rival, Budget::None);

    // In turns, since the machine changes.
    let at = tempfile::tempdir().expect("a folder");
    let _mount = SlowMount::new(&prefix, at.path(), TAKES).expect("a mount");
    let python = at.path().join("bin/python");
    let once = || first_line(|folder| warm("direct", "auto", &python, folder));
    once();
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..WARM_RUNS {
        with.push(once());
        let _other = AnotherJob::new();
        without.push(once());
    }
    let (with, without) = (median(with), median(without));
    let ratio = with / without;
    let what = format!("first line, {RANKS} ranks, all in the page cache");
    let (own, other) = (format!("{with:.3} s"), format!("nothing read ahead {without:.3} s"));
    table.row(&what, &own, &other, ratio, Budget::Within("1.02 × without", ratio <= 1.02));
}

/// Keeps a launch from reading ahead: the socket of an agent that has ranks.
struct AnotherJob {
    _socket: UnixListener,
}

impl AnotherJob {
    fn new() -> AnotherJob {
        let name = SocketAddr::from_abstract_name("ranklaunch-0123456789abcdef01234567");
        let socket = UnixListener::bind_addr(&name.expect("a name")).expect("a socket");
        AnotherJob { _socket: socket }
    }
}

/// The folder of the environment that has torch.
fn prefix() -> PathBuf {
    let said = Command::new(python()).args(["-c", "import sys; print(sys.prefix)"]).output();
    PathBuf::from(String::from_utf8_lossy(&said.expect("it starts").stdout).trim())
}

fn torchrun(python: &Path, folder: &Path) -> Command {
    let mut command = command(python, folder);
    command.args(["-m", "torch.distributed.run", "--standalone"]);
    command.args(["--nproc-per-node", &RANKS.to_string()]);
    command
}

fn warm(engine: &str, warm: &str, python: &Path, folder: &Path) -> Command {
    let mut command = command(executable(), folder);
    command.args(run_args(engine, RANKS)).arg("--python").arg(python).args(["--warm", warm, "--"]);
    command
}

/// Seconds until the last rank has its first line.
fn first_line(start: impl Fn(&Path) -> Command) -> f64 {
    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path().join("first");
    std::fs::create_dir(&to).expect("a folder");
    let mut command = start(folder.path());
    command.arg(program("first_line.py")).arg(&to);
    let began = now() as f64 / 1e9;
    assert!(command.status().expect("it starts").success(), "{command:?}");
    let of = |rank: u32| {
        let text = std::fs::read_to_string(to.join(rank.to_string())).expect("it was written");
        text.split(' ').next().and_then(|at| at.parse::<f64>().ok()).expect("a time")
    };
    (0..RANKS).map(of).fold(0.0, f64::max) - began
}
