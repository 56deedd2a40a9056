//! `check` beside a shell script that gathers the same by `ip`, `df`, `ulimit`, `cat`
//! and `python3 -c pass`.

use std::path::Path;

use harness::{executable, python};

use crate::measure::{Budget, Table, command, median, millis, now};

const ROUNDS: usize = 15;

pub(crate) fn measure(table: &mut Table) {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    let python = python();
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", python.parent().expect("a folder").display());
    let gather = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/gather.sh");
    let ranklaunch = executable();
    let (mut ours, mut script) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        for (program, argument, times) in [
            (ranklaunch.as_path(), Path::new("check"), &mut ours),
            (Path::new("sh"), gather.as_path(), &mut script),
        ] {
            let start = now();
            let status = command(program, root).arg(argument).env("PATH", &path).status();
            times.push(millis(start, now()));
            assert!(status.expect("it runs").success(), "{}", program.display());
        }
    }
    let (ours, script) = (median(ours), median(script));
    table.row(
        "check of a CPU node",
        &format!("{ours:.1} ms"),
        &format!("shell script {script:.0} ms"),
        ours / script,
        Budget::Within("less than the script", ours < script),
    );
}
