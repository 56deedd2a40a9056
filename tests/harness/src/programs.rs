//! Programs that tests start: the executable, python, and the programs of tests/programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

/// The executable under test: that of RANKLAUNCH_TEST_EXECUTABLE, else the one that was built with this test program.
pub fn executable() -> PathBuf {
    let given = std::env::var_os("RANKLAUNCH_TEST_EXECUTABLE").filter(|path| !path.is_empty());
    given.map_or_else(|| profile().join("ranklaunch"), PathBuf::from)
}

/// The folder of cargo's profile, which puts this test program into `deps`.
fn profile() -> PathBuf {
    let ourselves = std::env::current_exe().unwrap();
    ourselves.ancestors().nth(2).unwrap().to_owned()
}

/// A folder for files that tests build, on cargo's file system, so that they can be linked.
pub fn built() -> PathBuf {
    let folder = profile().join("test-files");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// A Python that has torch. `make test` names it; without one no job can be launched.
pub fn python() -> PathBuf {
    let named = std::env::var_os("RANKLAUNCH_TEST_PYTHON").map(PathBuf::from);
    let cached = std::env::var_os("HOME")
        .map(|home| PathBuf::from(home).join(".cache/ranklaunch/venv/bin/python"));
    named
        .or(cached)
        .filter(|python| python.exists())
        .expect("no python with torch: run `make test`, or set RANKLAUNCH_TEST_PYTHON")
}

/// The interpreter of an environment that tests/python/older_torch.sh or tests/python/beside_torch.sh has made in the
/// user's cache folder.
pub fn cached_python(name: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    let python = cache.join(format!("ranklaunch/engines-{name}/bin/python"));
    python.exists().then_some(python)
}

/// A test program of tests/programs.
pub fn program(name: &str) -> PathBuf {
    root().join("tests/programs").join(name)
}

/// Runs a tool of the machine; fails with its output unless it succeeds.
pub fn run_tool(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// Writes an executable file. Another process writes it, since a file that a fork of any thread still holds open for
/// writing cannot be executed.
pub fn write_program(file: &Path, text: &str) {
    let write = "printf '%s' \"$1\" > \"$2\" && chmod 755 \"$2\"";
    run_tool(Command::new("sh").args(["-c", write, "sh", text]).arg(file));
}

/// Copies an executable file, by another process as in [`write_program`].
pub fn copy_program(from: &Path, to: &Path) {
    run_tool(Command::new("cp").args([from, to]));
}

/// tests/programs/misbehave.c
pub fn misbehave() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compiled("misbehave"))
}

/// tests/programs/NAME.c, compiled once per state of its source.
pub fn compiled(name: &str) -> PathBuf {
    let source = program(&format!("{name}.c"));
    let changed = source.metadata().unwrap().modified().unwrap();
    let stamp = changed.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    let done = built().join(format!("{name}-{stamp}"));
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _compiling = ONE_AT_A_TIME.lock();
    if done.exists() {
        return done;
    }
    let fresh = built().join(format!("{name}-{stamp}.{}", std::process::id()));
    let status = Command::new("cc")
        .args(["-static", "-O1", "-Wall", "-Wextra", "-pthread", "-o"])
        .args([&fresh, &source])
        .status()
        .expect("cc");
    assert!(status.success(), "{name}.c does not compile");
    std::fs::rename(&fresh, &done).unwrap();
    done
}

/// The `PYTHONPATH` of fakes for engines that are not installed.
pub fn modules() -> PathBuf {
    program("modules")
}
