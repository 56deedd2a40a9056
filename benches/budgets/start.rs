//! How long until torchrun is spawned, and until the user's script runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{executable, python};

use crate::measure::{Budget, Table, before, command, direct, median, millis, now, torchrun};
use crate::roles::STAMP;

const ROUNDS: usize = 15;
/// For what takes seconds.
const FEW_ROUNDS: usize = 3;

pub(crate) fn measure(table: &mut Table) {
    until_torchrun(table);
    until_first_line(table);
}

/// An environment that holds the real torch and a python and torchrun that only
/// say when they were started.
struct Stubs {
    folder: tempfile::TempDir,
}

impl Stubs {
    fn new() -> Stubs {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let real = python();
        let environment = real.parent().and_then(Path::parent).expect("a virtual environment");
        let bin = root.join("env/bin");
        std::fs::create_dir_all(&bin).expect("a folder");
        std::os::unix::fs::symlink(environment.join("lib"), root.join("env/lib")).expect("a link");
        std::fs::copy(environment.join("pyvenv.cfg"), root.join("env/pyvenv.cfg"))
            .expect("a virtual environment has a pyvenv.cfg");
        let ourselves = std::env::current_exe().expect("our own path");
        for stub in ["python3", "torchrun"] {
            std::fs::copy(&ourselves, bin.join(stub)).expect("a copy");
        }
        std::os::unix::fs::symlink(&real, bin.join("python")).expect("a link");
        // An activation without conda's own python: faster than any real one.
        let conda = root.join("conda/etc/profile.d");
        std::fs::create_dir_all(&conda).expect("a folder");
        let activate = format!("conda() {{ export PATH='{}':\"$PATH\"; }}\n", bin.display());
        std::fs::write(conda.join("conda.sh"), activate).expect("a file");
        std::fs::write(root.join("train.py"), "").expect("a file");
        Stubs { folder }
    }

    fn stamp(&self) -> PathBuf {
        self.folder.path().join("stamp")
    }

    /// Milliseconds from before the start of `command` until the stub runs.
    fn run(&self, mut command: Command) -> f64 {
        let stamp = self.stamp();
        let _ = std::fs::remove_file(&stamp);
        let start = now();
        let mut child = command.env(STAMP, &stamp).spawn().expect("it starts");
        child.wait().expect("it ends");
        let text = std::fs::read_to_string(&stamp).expect("the stub was started");
        let spawned = text.lines().next().and_then(|line| line.parse().ok());
        millis(start, spawned.expect("a time"))
    }

    fn ours(&self, executable: &Path) -> f64 {
        let root = self.folder.path();
        let mut ours = command(executable, root);
        ours.arg("--python").arg(root.join("env/bin/python3")).args(["--", "train.py"]);
        self.run(ours)
    }

    /// The real interpreter, to the first line of a program.
    fn plain(&self) -> f64 {
        let mut plain = command(python(), self.folder.path());
        plain.args(["-u", "-c", "import time; print(time.time_ns(), flush=True)"]);
        first_line(plain)
    }

    fn script(&self, checks: bool) -> f64 {
        let root = self.folder.path();
        let mut script = command("bash", root);
        script.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/start_multinode.sh"));
        script.arg("train.py").env("CONDA_ROOT", root.join("conda"));
        script.env("CHECKS", if checks { "1" } else { "0" });
        self.run(script)
    }
}

fn until_torchrun(table: &mut Table) {
    let stubs = Stubs::new();
    let (mut ours, mut bare, mut earlier) = (Vec::new(), Vec::new(), Vec::new());
    let mut plain = Vec::new();
    let before = before();
    for _ in 0..ROUNDS {
        ours.push(stubs.ours(&executable()));
        plain.push(stubs.plain());
        bare.push(stubs.script(false));
        earlier.extend(before.as_deref().map(|before| stubs.ours(before)));
    }
    let whole = median((0..FEW_ROUNDS).map(|_| stubs.script(true)).collect());
    let (ours, bare, plain) = (median(ours), median(bare), median(plain));
    let shown = format!("{ours:.1} ms");
    table.row(
        "exec to torchrun spawned",
        &shown,
        &format!("start of plain python {plain:.1} ms"),
        ours / plain,
        Budget::Within("1.1 x", ours <= 1.1 * plain),
    );
    table.row(
        "the same",
        &shown,
        &format!("start-up script {whole:.0} ms"),
        ours / whole,
        Budget::Within("1/10", ours <= whole / 10.0),
    );
    table.row(
        "the same",
        &shown,
        &format!("script, torch unchecked {bare:.1} ms"),
        ours / bare,
        Budget::None,
    );
    if before.is_some() {
        let earlier = median(earlier);
        let rival = format!("before {earlier:.1} ms");
        table.row("the same", &shown, &rival, ours / earlier, Budget::None);
    }
}

/// Milliseconds from before the start of `command` until the script runs, which
/// prints its time.
pub(crate) fn first_line(mut command: Command) -> f64 {
    let start = now();
    let output = command.stdout(std::process::Stdio::piped()).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = text.split_ascii_whitespace().find_map(|word| word.parse().ok());
    millis(start, said.expect("the script says its time"))
}

fn until_first_line(table: &mut Table) {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    std::fs::write(root.join("hello.py"), "import time\nprint(time.time_ns(), flush=True)\n")
        .expect("a file");
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let mut command = direct(1, root);
        command.args(["--", "hello.py"]);
        ours.push(first_line(command));
        let mut command = crate::measure::command(python(), root);
        command.args(["-u", "hello.py"]);
        plain.push(first_line(command));
    }
    let real = (0..FEW_ROUNDS).map(|_| {
        let mut command = torchrun(1, root);
        command.arg("hello.py");
        first_line(command)
    });
    let (ours, plain, real) = (median(ours), median(plain), median(real.collect()));
    let shown = format!("{ours:.1} ms");
    table.row(
        "exec to the script's first line, direct",
        &shown,
        &format!("plain python {plain:.1} ms"),
        ours / plain,
        Budget::Within("3 x", ours <= 3.0 * plain),
    );
    table.row("the same", &shown, &format!("torchrun {real:.0} ms"), ours / real, Budget::None);
}
