//! Reads the files that the launchers of a run left in their folders: agent.jsonl, run.json, and the lines around
//! the cause.
//!
//! Takes a folder, or words of the command line: folders of a run, of its launchers, the log folder above them, or a
//! run's id. Gives a [`NodeHistory`] of each launcher, a [`JobHistory`] of the run. Every file may be missing, cut or
//! of any size, and may lie on a mount that hangs, so a caller that must go on uses a deadline.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

use linux::host::Host;
use linux::regular_file::{self, WithoutHoles};
use logs::{AttemptFolder, JOURNAL, LATEST, LauncherFolder, RUN_JSON, default_candidates};
use monitor::history::{Attempt, Excerpt, JobHistory, JournalReader, NodeHistory};
use text::escape::printable;
use text::lang::{Text, cause, failure};
use text::mask::mask_file;
use text::order::InOrder;
use text::text;
use verdict::{Id, Refusal};

/// Maximum bytes of a line of the journal; this program writes no longer ones.
const LONGEST: u64 = 4 << 20;
/// Maximum bytes of a journal; a year of journal has some hundred MiB.
const LARGEST_JOURNAL: u64 = 2 << 30;
/// Maximum bytes of a run.json, which has a line for every rank of its node.
const LARGEST_RECORD: u64 = 32 << 20;
/// Maximum bytes of a log that are searched for the line of the cause.
const SEARCHED: u64 = 256 << 20;
/// Maximum bytes of a line of a log.
const LONGEST_SHOWN: u64 = 64 << 10;
/// Lines before the one that shows the cause, and after it.
const BEFORE: usize = 12;
const AFTER: usize = 6;

/// History from the files of a launcher, with at most `points` values of each quantity over time.
///
/// # Errors
/// When it has neither a journal nor a run.json.
pub fn read_launcher(folder: &Path, points: usize) -> io::Result<NodeHistory> {
    let mut journal = JournalReader::default();
    let lines = read_lines(folder, &mut journal);
    let (record, note) = match regular_file::read(&folder.join(RUN_JSON), LARGEST_RECORD) {
        Ok(bytes) => match serde_json::from_slice::<Value>(&bytes) {
            Ok(record) => (Some(record), None),
            Err(_) => (
                None,
                Some(text!("run.json is cut off or no JSON", "run.json 内容不完整，或不是 JSON")),
            ),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => (
            None,
            Some(text!(
                "run.json is missing: the run still goes on, or ranklaunch itself was killed",
                "缺少 run.json：运行尚未结束，或 ranklaunch 自身被杀死"
            )),
        ),
        Err(error) => (None, Some(cause(&error).about(RUN_JSON))),
    };
    if journal.is_empty() && record.is_none() {
        return Err(lines.err().unwrap_or_else(|| io::ErrorKind::NotFound.into()));
    }
    let mut history = journal.finish(record.as_ref(), points);
    history.notes.extend(note);
    if let Err(error) = lines {
        history.notes.push(cause(&error).about(JOURNAL));
    }
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    // The name of the folder gives both values if the event that names them is missing.
    if let Some(of) = name(folder).as_deref().and_then(LauncherFolder::parse) {
        history.node = of.node_rank;
        history.task = of.task.map(|task| task.0);
    }
    if history.run_id.is_empty() {
        history.run_id = folder.parent().and_then(name).unwrap_or_default();
    }
    if let Some(attempt) = history.last_attempt_mut() {
        attempt.excerpt = excerpt(folder, attempt);
    }
    Ok(history)
}

fn read_lines(folder: &Path, journal: &mut JournalReader) -> io::Result<()> {
    let (file, _) = regular_file::open_below(folder, &[JOURNAL])?;
    let mut file = BufReader::with_capacity(64 * 1024, WithoutHoles::of(file));
    let mut line = Vec::new();
    let mut done = 0;
    loop {
        line.clear();
        if done > LARGEST_JOURNAL {
            let size = LARGEST_JOURNAL >> 30;
            let why = text!(
                "what follows its first {size} GiB is not read",
                "前 {size} GiB 之后的内容未读取"
            );
            return Err(failure(io::ErrorKind::FileTooLarge, why));
        }
        match file.by_ref().take(LONGEST).read_until(b'\n', &mut line)? {
            0 => return Ok(()),
            read => done += read as u64,
        }
        journal.line(line.strip_suffix(b"\n").unwrap_or(&line));
    }
}

/// The lines around the cause, if its log is here.
fn excerpt(folder: &Path, attempt: &Attempt) -> Option<Excerpt> {
    let cause = attempt.cause.as_ref().filter(|cause| !cause.log.is_empty())?;
    // Only the file name counts, whatever path the record gives.
    let log = Path::new(&cause.log).file_name()?;
    let of_attempt = AttemptFolder(attempt.number).to_string();
    let names = [of_attempt.as_str(), log.to_str()?];
    let evidence = cause.evidence.trim();
    let shows = |line: &str| !evidence.is_empty() && line.contains(evidence);
    // A log that outgrew its limit lacks its middle, so its lines have other numbers.
    let (first, shown, lines) =
        around(folder, &names, |number, line| number == cause.line && shows(line))
            .or_else(|| around(folder, &names, |_, line| shows(line)))?;
    Some(Excerpt { log: cause.log.clone(), first, shown, lines })
}

/// The lines around the first line that `is_it` accepts, the number of the first of them, and the
/// number of the accepted line.
fn around(
    folder: &Path,
    names: &[&str],
    is_it: impl Fn(u64, &str) -> bool,
) -> Option<(u64, u64, Vec<String>)> {
    let (file, _) = regular_file::open_below(folder, names).ok()?;
    let mut file = BufReader::with_capacity(64 * 1024, file.take(SEARCHED));
    let mut kept = std::collections::VecDeque::new();
    let (mut number, mut shown) = (0, None);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        if read_line(&mut file, &mut bytes).ok()? == 0 {
            break;
        }
        number += 1;
        let line = String::from_utf8_lossy(&bytes);
        let line = line.trim_end_matches(['\n', '\r']);
        if shown.is_none() {
            if kept.len() > BEFORE {
                kept.pop_front();
            }
            shown = is_it(number, line).then_some(number);
        }
        kept.push_back(mask_file(&printable(line)));
        if shown.is_some_and(|shown| number >= shown + AFTER as u64) {
            break;
        }
    }
    let shown = shown?;
    let first = number + 1 - kept.len() as u64;
    Some((first, shown, kept.into()))
}

/// Reads one line; for a long line only the start.
fn read_line(file: &mut BufReader<io::Take<File>>, line: &mut Vec<u8>) -> io::Result<usize> {
    let mut count = file.by_ref().take(LONGEST_SHOWN).read_until(b'\n', line)?;
    if count as u64 == LONGEST_SHOWN && !line.ends_with(b"\n") {
        loop {
            let buffer = file.fill_buf()?;
            let end = memchr::memchr(b'\n', buffer).map(|at| at + 1);
            let used = end.unwrap_or(buffer.len());
            file.consume(used);
            count += used;
            if end.is_some() || used == 0 {
                break;
            }
        }
    }
    Ok(count)
}

/// The folders of launchers in that of a run.
pub fn launchers(run: &Path) -> Vec<PathBuf> {
    /// Launchers of a run; a folder may hold anything.
    const MOST: usize = 20_000;
    let entries = run.read_dir().into_iter().flatten().flatten().take(MOST);
    let mut found: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| is_launcher(path)).collect();
    found.sort();
    found
}

/// Whether a folder belongs to a launcher, with something to read in it.
pub(crate) fn is_launcher(folder: &Path) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str());
    name.and_then(LauncherFolder::parse).is_some() && has_records(folder)
}

/// Whether a folder holds a journal or a run.json.
pub(crate) fn has_records(folder: &Path) -> bool {
    [RUN_JSON, JOURNAL].iter().any(|name| folder.join(name).is_file())
}

/// A run and the folders that it was read from.
#[derive(Debug)]
pub struct Found {
    pub job: JobHistory,
    /// The folders of its launchers.
    pub folders: Vec<PathBuf>,
    /// Folders of launchers that could not be read.
    pub unread: Vec<Text>,
}

/// The run that all of these words name.
pub fn read_job(words: &[OsString], points: usize) -> Result<Found, Refusal> {
    let mut folders = BTreeSet::new();
    for word in words {
        folders.extend(named(word)?);
    }
    let (mut nodes, mut unread): (Vec<NodeHistory>, Vec<Text>) = Default::default();
    let mut read = Vec::new();
    for folder in folders {
        match read_launcher(&folder, points) {
            Ok(history) => {
                nodes.push(history);
                read.push(folder);
            }
            Err(error) => {
                unread.push(cause(&error).about(folder.display()));
            }
        }
    }
    let ids: BTreeSet<&str> = nodes.iter().map(|node| node.run_id.as_str()).in_set();
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
