//! Cost of `--inject` at the start of a rank, against the same rank with `--inject off`, in pairs of one
//! run. It does nothing afterwards: the server waits for who asks it. Budgets are parts of a plain interpreter's start.

use std::path::Path;

use harness::python;

use crate::measure::{Budget, Table, command, direct, median};
use crate::start::first_line;

const PAIRS: usize = 25;
/// Importing torch takes seconds.
const FEW_PAIRS: usize = 5;
/// Of the start of a plain interpreter.
const MOST: f64 = 0.3;

const PLAIN: &str = "import time\nprint(time.time_ns(), flush=True)\n";
const WITH_TORCH: &str = "import time, torch.distributed\nprint(time.time_ns(), flush=True)\n";
/// The microseconds that the start of torch's server takes within the import. The import itself varies
/// by a hundred times as much from one process to the next.
const WITHIN: &str = "
import sys, time
ours = [finder for finder in sys.meta_path if type(finder).__name__ == '_AfterImport']
names, took = ours[0].find_spec.__func__.__globals__, []
load = names['_run']
def timed(call, then):
    before = time.perf_counter_ns()
    done = call()
    took.append(time.perf_counter_ns() - before)
    return then(done)
def loaded(names):
    start = names['start']
    names['start'] = lambda: timed(start, lambda done: done)
    return names
names['_run'] = lambda name: timed(lambda: load(name), loaded)
import torch.distributed
print(sum(took) // 1000, flush=True)
";

pub(crate) fn measure(table: &mut Table) {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    for (name, text) in [("plain.py", PLAIN), ("with_torch.py", WITH_TORCH), ("within.py", WITHIN)]
    {
        std::fs::write(root.join(name), text).expect("a file");
    }
    let (own, off, more) = pairs(root, "plain.py", PAIRS);
    let plain = || {
        let mut plain = command(python(), root);
        plain.args(["-u", "plain.py"]);
        first_line(plain)
    };
    let plain = median((0..PAIRS).map(|_| plain()).collect());
    let kept = Budget::Within("0.3 of a python's start over off", more <= MOST * plain);
    row(table, "start of a rank, without torch", own, off, more, kept);

    let output = |_| {
        let output = direct(1, root)
            .args(["--", "within.py"])
            .stdout(std::process::Stdio::piped())
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let us = said.split_ascii_whitespace().find_map(|word| word.parse::<f64>().ok());
        us.expect("the script says its time") / 1000.0
    };
    let server = median((0..FEW_PAIRS).map(output).collect());
    let kept = Budget::Within("0.3, both", more + server <= MOST * plain);
    let shown = format!("{server:.1} ms");
    let rest = format!("a plain python's start {plain:.1} ms");
    table.row("torch's server, within the import", &shown, &rest, server / plain, kept);

    let (own, off, more) = pairs(root, "with_torch.py", FEW_PAIRS);
    row(table, "start of a rank, with torch", own, off, more, Budget::None);
}

/// Medians of the milliseconds until the first line with and without it, and that of the differences.
fn pairs(root: &Path, script: &str, pairs: usize) -> (f64, f64, f64) {
    let run = |more: &[&str]| {
        let mut command = direct(1, root);
        command.args(more).arg("--").arg(python()).args(["-u", script]);
        first_line(command)
    };
    let measured: Vec<(f64, f64)> =
        (0..pairs).map(|_| (run(&[]), run(&["--inject", "off"]))).collect();
    let of = |figure: fn(&(f64, f64)) -> f64| median(measured.iter().map(figure).collect());
    (of(|pair| pair.0), of(|pair| pair.1), of(|pair| pair.0 - pair.1))
}

fn row(table: &mut Table, what: &str, own: f64, off: f64, more: f64, kept: Budget) {
    let rival = format!("--inject off {off:.1} ms, {more:+.1} ms");
    table.row(what, &format!("{own:.1} ms"), &rival, own / off, kept);
}
