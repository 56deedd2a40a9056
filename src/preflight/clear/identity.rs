//! Recognises launchers, pythons and ranklaunch by the structure of their arguments.
//!
//! Text is no proof: `vim train.py`, `grep train.py` and `sh -c 'python train.py'` contain the same
//! words. A process counts only if it is an interpreter whose script is the job's file, or a
//! launcher whose program is.

use std::path::{Path, PathBuf};

use super::reading::Reads;
use linux::host::{Host, normal};
use linux::own_executable;
use linux::procfs::{as_path, basename};
use settings::launchers::{Launcher, PythonProgram, PythonRun};

/// The program of the job, as [`crate::clear::Request`] names it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) script: Option<&'a Path>,
    pub(super) module: Option<&'a str>,
    pub(super) reads: &'a Reads,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgramKind {
    /// torchrun, accelerate, deepspeed; `wanted` when its program is the job's.
    Launcher {
        wanted: bool,
    },
    /// A python; `wanted` when its script or module is the job's.
    Python {
        wanted: bool,
    },
    Ranklaunch,
    Other,
}

pub(super) fn kind(host: &Host, pid: i32, argv: &[Vec<u8>], wanted: Wanted<'_>) -> ProgramKind {
    let Some(first) = argv.first() else { return ProgramKind::Other };
    if own_executable::is_named(first) {
        return ProgramKind::Ranklaunch;
    }
    if let Some((launcher, at)) = Launcher::of_argv(argv) {
        let own = argv.get(at..).unwrap_or_default();
        return ProgramKind::Launcher { wanted: launches(host, pid, launcher, own, wanted) };
    }
    if !PythonRun::is_by(first) {
        return ProgramKind::Other;
    }
    let run = PythonRun::of(argv.get(1..).unwrap_or_default());
    ProgramKind::Python { wanted: runs(host, pid, run, wanted) }
}

fn runs(host: &Host, pid: i32, run: Option<PythonRun<'_>>, wanted: Wanted<'_>) -> bool {
    match run.map(|run| run.program) {
        Some(PythonProgram::Module(name)) => is_module(name, wanted),
        Some(PythonProgram::Script(script)) => is_script(host, pid, script, wanted),
        None => false,
    }
}

/// Whether a launcher's program is the job's. If the flags of a launcher are in no table, any
/// argument that names the program counts. A launcher that starts ranklaunch does not count: it may
/// be our own, whose only process above us is a daemon.
fn launches(
    host: &Host,
    pid: i32,
    launcher: &Launcher,
    own: &[Vec<u8>],
    wanted: Wanted<'_>,
) -> bool {
    if !launcher.is_read() {
        if own.iter().any(|word| own_executable::is_named(word)) {
            return false;
        }
        return own.iter().enumerate().any(|(at, word)| {
            is_script(host, pid, word, wanted)
                || (word == b"-m" && own.get(at + 1).is_some_and(|name| is_module(name, wanted)))
        });
    }
    runs(host, pid, launcher.target(own), wanted)
}

fn is_module(name: &[u8], wanted: Wanted<'_>) -> bool {
    wanted.module.is_some_and(|module| module.as_bytes() == name)
}

/// Whether an argument of `pid` names the job's script: the same file, or the same path if one
/// of the two was deleted since.
fn is_script(host: &Host, pid: i32, argument: &[u8], wanted: Wanted<'_>) -> bool {
    let Some(script) = wanted.script else { return false };
    // Links keep the name of the program, so another file name is another script.
    let named = script
        .file_name()
        .is_some_and(|name| std::os::unix::ffi::OsStrExt::as_bytes(name) == basename(argument));
    let path = as_path(argument);
    let path: PathBuf = if path.is_absolute() {
        path
    } else {
        match host.process(pid).cwd() {
            Some(cwd) => cwd.join(path),
            None => return false,
        }
    };
    let identity = |path: &Path| wanted.reads.identity(host.path(path));
    match (identity(&path), identity(script)) {
        (Some(one), Some(other)) => one == other,
        // The path decides only if one of the two files has been deleted, or cannot be read.
        _ => named && normal(&path) == normal(script),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn argv(line: &str) -> Vec<Vec<u8>> {
        line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn only_the_program_argument_is_matched() {
        let folder = tempfile::tempdir().expect("folder");
        let root = folder.path();
        for file in ["work/train.py", "work/other.py", "work/train.yaml", "proc/7/x"] {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("folders");
            std::fs::write(path, file).expect("file");
        }
        std::os::unix::fs::symlink("/work", root.join("proc/7/cwd")).expect("cwd");
        let host = Host::replayed(root, BTreeMap::new());
        let wanted = Wanted {
            script: Some(Path::new("/work/train.py")),
            module: Some("wan.train"),
            reads: &Reads::default(),
        };
        let python = |wanted| ProgramKind::Python { wanted };
        let launcher = |wanted| ProgramKind::Launcher { wanted };
        for (line, expected) in [
            ("python train.py --task t2v", python(true)),
            ("/opt/conda/bin/python3.11 -u -X dev ../work/./train.py", python(true)),
            ("python3 -um wan.train", python(true)),
            ("python3 -m wan.other train.py", python(false)),
            ("python other.py --lint train.py", python(false)),
            ("python -c import(train.py) train.py", python(false)),
            ("python -W ignore /work/train.py", python(true)),
            ("python -m pdb train.py", python(false)),
            ("python", python(false)),
            ("torchrun --nproc-per-node 8 train.py", launcher(true)),
            ("python /usr/bin/torchrun --nproc_per_node=8 other.py train.py", launcher(false)),
            ("python -m torch.distributed.run --nnodes 2 /work/train.py", launcher(true)),
            ("accelerate launch --config_file train.yaml train.py", launcher(true)),
            ("deepspeed --module wan.train", launcher(true)),
            ("torchrun --nproc-per-node 8 -m wan.other", launcher(false)),
            ("srun --ntasks-per-node=1 python train.py", launcher(true)),
            ("srun --ntasks-per-node=1 /bin/ranklaunch run -- train.py", launcher(false)),
            ("timeout -k 30 1h torchrun --nproc-per-node 8 train.py", launcher(true)),
            ("uv run --with x -m torch.distributed.run train.py", launcher(true)),
            ("sudo -u me accelerate launch other.py train.py", launcher(false)),
            // The process only waits for its python, which has its own match.
            ("timeout 1h python train.py", ProgramKind::Other),
            ("uv run train.py", ProgramKind::Other),
            ("vim train.py", ProgramKind::Other),
            ("grep train.py train.py", ProgramKind::Other),
            ("sh -c python train.py", ProgramKind::Other),
            ("tail -f train.py", ProgramKind::Other),
            ("/usr/local/bin/ranklaunch run -- train.py", ProgramKind::Ranklaunch),
        ] {
            assert_eq!(kind(&host, 7, &argv(line), wanted), expected, "{line}");
        }
        assert_eq!(kind(&host, 7, &[], wanted), ProgramKind::Other);
    }
}
