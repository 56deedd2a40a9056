//! Finds the run that `ranklaunch logs` means: a job that runs here, or a folder of an earlier run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::running_job::{self, NotOne, RunningJob};
use crate::collect::log_candidates;
use crate::open::open;
use linux::host::Host;
use logs::{RunFolder, default_candidates};
use settings::cli::Options;
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal};

/// A run with output.
pub(super) enum Run {
    Lives(RunningJob),
    Folder(RunFolder),
    /// One launcher of a run: the only one in the list.
    Launcher(RunFolder),
}

/// Folders that may hold runs, in the order in which a launch chooses.
pub(super) fn log_folders(log_dir: Option<&OsStr>) -> Vec<PathBuf> {
    let options = Options { log_dir: log_dir.map(OsStr::to_owned), ..Options::default() };
    let candidates = match open(&options) {
        Ok(opened) => log_candidates(&opened.host, &opened.settings),
        // Settings that `run` refuses must not hide what an earlier run wrote.
        Err(_) => {
            let tmpdir = Host::live().variable("TMPDIR");
            let tmpdir = tmpdir.as_deref().map(AsRef::as_ref);
            default_candidates(log_dir.map(Path::new), tmpdir)
        }
    };
    let mut folders: Vec<PathBuf> = candidates.into_iter().map(|one| one.path).collect();
    if log_dir.is_some() {
        // A user who names a folder means only that folder.
        folders.truncate(1);
    }
    folders.retain(|folder| folder.is_dir());
    folders
}

/// The run that the user means.
pub(super) fn chosen(run: Option<&OsStr>, log_dir: Option<&OsStr>) -> Result<Run, Refusal> {
    if let Some(folder) = run.map(Path::new).filter(|run| is_path(run)) {
        return of_folder(folder).ok_or_else(|| no_run_in(folder));
    }
    let mut of_a_stranger = None;
    // A user who names only a folder means none of the jobs that run here.
    if run.is_some() || log_dir.is_none() {
        match running_job::chosen(run) {
            // Any user may have a job here; one's own last run comes before it.
            Ok(job) if run.is_none() && job.stranger.is_some() => of_a_stranger = Some(job),
            Ok(job) => return Ok(Run::Lives(job)),
            Err(NotOne { are_several: true, refusal }) if run.is_none() => return Err(refusal),
            Err(_) => {}
        }
    }
    let folders = log_folders(log_dir);
    let Some(run) = run.map(|run| run.to_string_lossy().into_owned()) else {
        let latest = folders.iter().find_map(|folder| newest(folder));
        let found = latest.map(Run::Folder).or(of_a_stranger.map(Run::Lives));
        return found.ok_or_else(|| none(&folders));
    };
    let mut found: Vec<RunFolder> = Vec::new();
    for folder in &folders {
        let runs = logs::runs(folder).unwrap_or_default();
        if let Some(exact) = runs.iter().find(|one| one.id == run) {
            return Ok(Run::Folder(exact.clone()));
        }
        found.extend(runs.into_iter().filter(|one| one.id.starts_with(&run)));
    }
    match (found.len(), found.pop()) {
        (1, Some(one)) => Ok(Run::Folder(one)),
        (_, Some(last)) => {
            let ids: Vec<&str> =
                found.iter().chain([&last]).take(8).map(|one| one.id.as_str()).collect();
            let ids = ids.join(", ");
            Err(Refusal::new(
                Id::LogsUnknown,
                text!("`{run}` begins several runs: {ids}", "有多次运行以 `{run}` 开头：{ids}"),
                text!("write more of the run's id", "请写出运行 ID 的更多部分"),
            ))
        }
        (_, None) => Err(unknown(&run, &folders)),
    }
}

/// The running job that the user means: by its folder, or by the log folder whose newest run it is.
pub(super) fn running(run: Option<&OsStr>, log_dir: Option<&OsStr>) -> Result<RunningJob, Refusal> {
    let folder = match run {
        Some(run) => Some(Path::new(run)).filter(|run| is_path(run)),
        None => log_dir.map(Path::new),
    };
    let Some(folder) = folder else { return Ok(running_job::chosen(run)?) };
    match of_folder(folder) {
        Some(Run::Folder(found) | Run::Launcher(found)) => Ok(running_job::of_run(&found.id)?),
        Some(Run::Lives(job)) => Ok(job),
        None => Err(no_run_in(folder)),
    }
}

/// `latest` of this folder names a run, as a path does.
fn is_path(run: &Path) -> bool {
    run.components().count() > 1 || run.is_absolute() || run.is_dir()
}

/// The run in or above a folder: a run, a launcher of one, or a log folder with its newest run.
fn of_folder(folder: &Path) -> Option<Run> {
    let folder = folder.canonicalize().ok()?;
    if let Some(run) = RunFolder::read(&folder) {
        return Some(Run::Folder(run));
    }
    if !logs::attempts(&folder).ok()?.is_empty() {
        let run = RunFolder::read(folder.parent()?)?;
        let launchers = vec![folder];
        return Some(Run::Launcher(RunFolder { launchers, ..run }));
    }
    newest(&folder).map(Run::Folder)
}

fn newest(folder: &Path) -> Option<RunFolder> {
    logs::latest(folder).or_else(|| logs::runs(folder).ok()?.into_iter().next())
}

fn no_run_in(folder: &Path) -> Refusal {
    let folder = folder.display();
    Refusal::new(
        Id::LogsUnknown,
        text!("{folder} holds no run of ranklaunch", "{folder} 中没有 ranklaunch 的运行"),
        text!(
            "name the folder of a run, or a log folder: it holds RUN/node-0/attempt-0",
            "请指定一次运行的目录或日志目录：其中有 RUN/node-0/attempt-0"
        ),
    )
}

fn listed(folders: &[PathBuf]) -> Text {
    let names: Vec<String> = folders.iter().map(|it| it.display().to_string()).collect();
    match names.is_empty() {
        true => text!("no log folder is here", "此处没有日志目录"),
        false => {
            let names = names.join(", ");
            text!("looked in {names}", "已查找 {names}")
        }
    }
}

fn none(folders: &[PathBuf]) -> Refusal {
    let Text { en, zh } = listed(folders);
    Refusal::new(
        Id::LogsUnknown,
        text!(
            "no job runs here, and no earlier run was found ({en})",
            "此处没有正在运行的任务，也没有以前的运行（{zh}）"
        ),
        text!(
            "name the log folder: ranklaunch logs --log-dir DIR",
            "请指定日志目录：ranklaunch logs --log-dir DIR"
        ),
    )
}

fn unknown(run: &str, folders: &[PathBuf]) -> Refusal {
    let Text { en, zh } = listed(folders);
    let shown = run.escape_debug();
    Refusal::new(
        Id::LogsUnknown,
        text!(
            "no run `{shown}` runs here, and no earlier one was found ({en})",
            "此处没有正在运行的 `{shown}`，也没有以前的同名运行（{zh}）"
        ),
        text!(
            "ranklaunch ps --all lists the runs; --log-dir DIR names another log folder",
            "ranklaunch ps --all 列出各次运行；--log-dir DIR 指定其他日志目录"
        ),
    )
}
