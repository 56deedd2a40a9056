//! Finds the runs that the words of the command line name: folders of a run, of its launchers, the
//! log folder above them, or a run's id.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use crate::run_files::{self, has_records, is_launcher, launchers};
use linux::host::Host;
use logs::{AttemptFolder, LATEST, default_candidates};
use monitor::history::{JobHistory, NodeHistory};
use text::lang::{Text, cause};
use text::text;
use verdict::{Id, Refusal};

/// A run and the folders that it was read from.
pub(super) struct Found {
    pub(super) job: JobHistory,
    /// The folders of its launchers.
    pub(super) folders: Vec<PathBuf>,
    /// Folders of launchers that could not be read.
    pub(super) unread: Vec<Text>,
}

/// The run that all of these words name.
pub(super) fn read(words: &[OsString], points: usize) -> Result<Found, Refusal> {
    let mut folders = BTreeSet::new();
    for word in words {
        folders.extend(named(word)?);
    }
    let (mut nodes, mut unread): (Vec<NodeHistory>, Vec<Text>) = Default::default();
    let mut read = Vec::new();
    for folder in folders {
        match run_files::read(&folder, points) {
            Ok(history) => {
                nodes.push(history);
                read.push(folder);
            }
            Err(error) => {
                unread.push(cause(&error).about(folder.display()));
            }
        }
    }
    let ids: BTreeSet<&str> = nodes.iter().map(|node| node.run_id.as_str()).collect();
    if ids.len() > 1 {
        let list = ids.into_iter().collect::<Vec<_>>().join(", ");
        return Err(Refusal::new(
            Id::ReportRun,
            text!("these folders are of different runs: {list}", "这些目录属于不同的运行：{list}"),
            text!(
                "name the folders of one run; ranklaunch compare shows what differs between two",
                "请指定同一次运行的目录；ranklaunch compare 可比较两次运行"
            ),
        ));
    }
    let job = JobHistory::of(nodes);
    let said = unread.first().cloned();
    let job = job
        .ok_or_else(|| nothing(said.unwrap_or_else(|| text!("no run was named", "未指定运行"))))?;
    Ok(Found { job, folders: read, unread })
}

/// The folders of the launchers behind a word.
fn named(word: &OsStr) -> Result<Vec<PathBuf>, Refusal> {
    let path = Path::new(word);
    let shown = path.display();
    let path = match path.canonicalize() {
        Ok(path) => path,
        Err(error) if error.kind() == io::ErrorKind::NotFound => by_id(word).ok_or_else(|| {
            nothing(text!(
                "{shown} is no folder, and no run of the usual log folders begins so",
                "{shown} 不是目录，常用日志目录中也没有以此开头的运行"
            ))
        })?,
        Err(error) => return Err(nothing(cause(&error).about(&shown))),
    };
    // agent.jsonl, run.json or report.html stand for their folder, an attempt for its launcher.
    let path = if path.is_file() { path.parent().unwrap_or(&path).to_owned() } else { path };
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let path = match AttemptFolder::parse(name) {
        Some(_) => path.parent().unwrap_or(&path).to_owned(),
        None => path,
    };
    if is_launcher(&path) || (launchers(&path).is_empty() && has_records(&path)) {
        return Ok(vec![path]);
    }
    let found = launchers(&path);
    if !found.is_empty() {
        return Ok(found);
    }
    // For a folder of several runs, its newest run counts.
    let latest = path.join(LATEST).canonicalize().map(|run| launchers(&run)).unwrap_or_default();
    if !latest.is_empty() {
        return Ok(latest);
    }
    let runs = path.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let written = |run: &Path| run.metadata().and_then(|run| run.modified()).ok();
    let newest = runs.filter(|run| !launchers(run).is_empty()).max_by_key(|run| written(run));
    newest.map(|run| launchers(&run)).ok_or_else(|| {
        nothing(text!(
            "{shown} holds no run: there is no node-N with an agent.jsonl or run.json",
            "{shown} 中没有运行：没有含 agent.jsonl 或 run.json 的 node-N"
        ))
    })
}

/// The only run of the usual log folders whose id begins with this text.
fn by_id(word: &OsStr) -> Option<PathBuf> {
    let word = word.to_str().filter(|word| !word.is_empty() && !word.contains('/'))?;
    let variable = |name: &str| Host::live().variable(name);
    let folder = variable("RANKLAUNCH_LOG_DIR").map(PathBuf::from);
    let tmpdir = variable("TMPDIR").map(OsString::from);
    let candidates = default_candidates(folder.as_deref(), tmpdir.as_deref());
    let folders = candidates.into_iter().map(|candidate| candidate.path);
    let mut runs = folders.flat_map(|folder| {
        let entries = folder.read_dir().into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    });
    let begins = |run: &PathBuf| {
        let name = run.file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| name.starts_with(word)) && !launchers(run).is_empty()
    };
    let first = runs.find(begins)?;
    runs.all(|run| !begins(&run)).then_some(first)
}

fn nothing(said: Text) -> Refusal {
    let hint = text!(
        "name a run's folder, such as ranklaunch-logs/latest, or those of its nodes",
        "请指定某次运行的目录，例如 ranklaunch-logs/latest，或其各节点的目录"
    );
    Refusal::new(Id::ReportRun, said, hint)
}
