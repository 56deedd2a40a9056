//! Finds the logs that the words of the command line name: files, folders, standard input.
//!
//! Takes words of the command line; gives the files behind them, each once, with the rank and the node
//! that its path names, and the files that were left out. Reads no log.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::records::OwnFolder;
use super::streams::{LogFile, words};
use crate::diagnosis_view::Unread;
use diagnose::{Node, Origin};
use logs::{
    AttemptFolder, ErrorFile, JOURNAL, LATEST, LauncherFolder, RUN_JSON, RankLog, continued,
    numbered, run_of,
};
use text::lang::Text;
use text::order::{InOrder, Ordered};
use text::rank::GlobalRank;
use text::text;
use verdict::{Id, Refusal};

/// Maximum number of logs of a folder that are read. A run of ten thousand ranks has two files per rank.
const MOST_FILES: usize = 20_000;
/// Maximum number of logs that are examined before runs and attempts are chosen.
const MOST_LISTED: usize = 10 * MOST_FILES;
/// Maximum depth of logs below a named folder: torchrun's are in `RUN/attempt_0/0/stderr.log`, ours in
/// `RUN/node-0/attempt-1/rank-00000.err`.
const DEEPEST: usize = 5;
/// Endings of the names of logs, without the ending of a compression.
const ENDINGS: &[&str] = &["log", "out", "err", "txt"];
/// torchrun's name for the folder of an attempt, up to the number.
const TORCHRUN_ATTEMPT: &str = "attempt_";

/// The logs behind the words so far, in the order in which they are read.
#[derive(Debug, Default)]
pub struct Named {
    pub logs: Vec<LogFile>,
    /// Files and folders that could not be read.
    pub unread: Vec<Unread>,
    /// Notes about logs that were left out on purpose.
    pub notes: Vec<Text>,
    /// The folders of launchers whose logs are read as a whole.
    pub launchers: BTreeSet<OwnFolder>,
    /// Device and inode of each file.
    seen: HashSet<(u64, u64)>,
}

/// A log found in a folder.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Listed {
    /// A link comes after the file that it points to.
    is_link: bool,
    path: PathBuf,
    id: (u64, u64),
    size: u64,
    modified: Option<SystemTime>,
}

impl Named {
    /// Adds the logs behind a word.
    pub fn add(&mut self, word: &OsStr) -> Result<(), Refusal> {
        if word == "-" {
            if self.logs.iter().all(|log| log.path.is_some()) {
                let origin = Origin { name: "-".to_owned(), ..Origin::default() };
                self.logs.push(LogFile { origin, asked: true, ..LogFile::default() });
            }
            return Ok(());
        }
        let path = Path::new(word);
        let metadata = path.metadata().map_err(|error| unreadable(&shown(path), &error))?;
        if metadata.is_dir() {
            return self.add_folder(path);
        }
        if self.seen.insert(id(&metadata)) {
            let size = Some(metadata.len()).filter(|_| metadata.is_file());
            let origin = origin(path, path.parent().unwrap_or(path));
            let is_record = is_record(path) || folder_name(path) == Some("error.json");
            let path = Some(path.to_owned());
            self.logs.push(LogFile { path, origin, size, asked: true, is_record, own: false });
        }
        Ok(())
    }

    /// # Errors
    /// The logs belong to several of our runs, but there can be only one answer.
    pub fn is_of_one_run(&self) -> Result<(), Refusal> {
        let of_logs = self.logs.iter().filter_map(|log| Some(run_of(log.path.as_deref()?)?.0));
        let of_launchers = self.launchers.iter().filter_map(|launcher| launcher.path.parent());
        // The folders of the nodes of one run may lie in different places.
        let name = |run: &Path| {
            let run = run.canonicalize().unwrap_or_else(|_| run.to_owned());
            folder_name(&run).map(str::to_owned)
        };
        let runs: BTreeSet<String> = of_logs.chain(of_launchers).filter_map(name).in_set();
        let runs: Vec<String> = runs.into_iter().collect();
        let [one, other, ..] = runs.as_slice() else { return Ok(()) };
        let text = text!(
            "these are logs of two runs: {one}, {other}",
            "这些日志属于两次运行：{one}、{other}"
        );
        let hint = text!(
            "ask about one run at a time; ranklaunch compare RUN RUN shows what differs between two",
            "一次只询问一次运行；ranklaunch compare RUN RUN 显示两次运行的差异"
        );
        Err(Refusal::new(Id::ExplainLog, text, hint))
    }

    fn add_folder(&mut self, folder: &Path) -> Result<(), Refusal> {
        let name = shown(folder);
        let unread_before = self.unread.len();
        // Folders of launchers may be above the named folder: `.` has no name of its own.
        let whole = folder.canonicalize();
        let folder = match &whole {
            Ok(whole) if is_own(whole) => whole,
            _ => folder,
        };
        let mut listed = Vec::new();
        self.list(folder, DEEPEST, &mut listed).map_err(|error| unreadable(&name, &error))?;
        if listed.len() > MOST_LISTED {
            return Err(too_many(&name));
        }
        if listed.is_empty() {
            let alone = own_folders(folder);
            if !alone.is_empty() {
                self.launchers.extend(alone);
                return Ok(());
            }
            return Err(match self.unread.get(unread_before) {
                Some(unread) => unread.refusal(),
                None => no_log(&name),
            });
        }
        let listed = self.newest_run(&name, listed);
        let mut listed = newest_attempts(listed);
        if listed.len() > MOST_FILES {
            return Err(too_many(&name));
        }
        listed.sort();
        listed.retain(|log| self.seen.insert(log.id));
        listed.order_by(|one, other| one.path.cmp(&other.path));
        self.launchers.extend(listed.iter().filter_map(|log| own_folder(&log.path)));
        self.logs.extend(listed.into_iter().map(|log| LogFile {
            origin: origin(&log.path, folder),
            size: Some(log.size),
            own: run_of(&log.path).is_some(),
            is_record: is_record(&log.path),
            path: Some(log.path),
            asked: false,
        }));
        Ok(())
    }

    /// Lists the logs below a folder. Notes and passes over each entry that cannot be looked at.
    fn list(&mut self, folder: &Path, deeper: usize, logs: &mut Vec<Listed>) -> io::Result<()> {
        for entry in folder.read_dir()? {
            if logs.len() > MOST_LISTED {
                break;
            }
            let (path, kind) = match entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))
            {
                Ok(entry) => entry,
                Err(error) => {
                    self.pass_over(folder, &error);
                    break;
                }
            };
            // Links to folders are not followed: `latest` would give every run twice.
            if kind.is_dir() {
                if deeper > 0
                    && let Err(error) = self.list(&path, deeper - 1, logs)
                {
                    self.pass_over(&path, &error);
                }
                continue;
            }
            if !is_log(&path) && !is_record(&path) && !is_dump(&path) {
                continue;
            }
            // A collection of logs may consist of links; in the folder of a run a link is suspicious.
            if kind.is_symlink() && run_of(&path).is_some() {
                let error =
                    text!("it is a link, which is not followed here", "它是链接，此处不予跟随");
                self.unread.push(Unread { name: shown(&path), error });
                continue;
            }
            match path.metadata() {
                Ok(metadata) if metadata.is_file() => logs.push(Listed {
                    is_link: kind.is_symlink(),
                    id: id(&metadata),
                    size: metadata.len(),
                    modified: metadata.modified().ok(),
                    path,
                }),
                Ok(metadata) if metadata.is_dir() => {}
                Ok(_) => self.unread.push(Unread { name: shown(&path), error: no_regular_file() }),
                Err(error) => self.pass_over(&path, &error),
            }
        }
        Ok(())
    }

    fn pass_over(&mut self, path: &Path, error: &io::Error) {
        self.unread.push(Unread { name: shown(path), error: words(error) });
    }

    /// Leaves out the runs before the newest one, if the folder holds several of ours. `latest` names the newest
    /// run; without that link it is the run that was written to last.
    fn newest_run(&mut self, name: &str, mut listed: Vec<Listed>) -> Vec<Listed> {
        let mut runs: BTreeMap<PathBuf, Option<SystemTime>> = BTreeMap::new();
        for log in &listed {
            if let Some((run, _)) = run_of(&log.path) {
                let written = runs.entry(run.to_owned()).or_default();
                *written = log.modified.max(*written);
            }
        }
        let parents: BTreeSet<&Path> = runs.keys().filter_map(|run| run.parent()).in_set();
        let linked = parents.iter().find_map(|parent| parent.join(LATEST).canonicalize().ok());
        let is_linked = |run: &&PathBuf| {
            parents.len() == 1 && run.canonicalize().is_ok_and(|run| Some(run) == linked)
        };
        let newest = || runs.iter().max_by_key(|(_, written)| **written).map(|(run, _)| run);
        let Some(chosen) = runs.keys().find(is_linked).or_else(newest).cloned() else {
            return listed;
        };
        if runs.len() > 1 {
            listed.retain(|log| run_of(&log.path).is_none_or(|(run, _)| run == chosen));
            let (count, run) = (runs.len(), shown(&chosen));
            self.notes.push(text!(
                "{name} holds {count} runs; this is the newest one, {run}",
                "{name} 中有 {count} 次运行；此处只分析最新的一次：{run}"
            ));
        }
        listed
    }
}

/// The refusal of a log that cannot be opened.
pub fn unreadable(name: &str, error: &io::Error) -> Refusal {
    Unread { name: name.to_owned(), error: words(error) }.refusal()
}

fn no_regular_file() -> Text {
    text!("it is a FIFO, a socket or a device, and no file", "它是 FIFO、套接字或设备，不是文件")
}

fn no_log(name: &str) -> Refusal {
    let text = text!("the folder {name} holds no log", "目录 {name} 中没有日志");
    let hint = text!(
        "name files; a folder is searched for names that end in .log, .out, .err or .txt, and the same with .gz or .zst",
        "请指定文件；目录中只查找以 .log、.out、.err 或 .txt 结尾的文件，以及加上 .gz 或 .zst 的文件"
    );
    Refusal::new(Id::ExplainLog, text, hint)
}

fn too_many(name: &str) -> Refusal {
    let text = text!(
        "the folder {name} holds more than {MOST_FILES} logs",
        "目录 {name} 中的日志超过 {MOST_FILES} 个"
    );
    let hint = text!("name the folder of one run", "请指定某一次运行的目录");
    Refusal::new(Id::ExplainLog, text, hint)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn id(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// `train.log`, `rank-00003.err`, `rank-00003.err.00001`, `job.txt.gz`
fn is_log(path: &Path) -> bool {
    path.file_name()
        .and_then(OsStr::to_str)
        .and_then(|name| plain(name).rsplit_once('.'))
        .is_some_and(|(_, ending)| ENDINGS.contains(&ending))
}

/// `rank-00003.error.json`, and `attempt_0/3/error.json`, which torchrun makes for a rank. Programs write files of
/// that name as well.
fn is_record(path: &Path) -> bool {
    let is_of_torchrun = || {
        let mut above = path.ancestors().skip(1).map_while(folder_name);
        let is_rank = above.next().is_some_and(|name| name.parse::<u32>().is_ok());
        is_rank && above.next().is_some_and(|name| numbered(name, TORCHRUN_ATTEMPT).is_some())
    };
    folder_name(path).is_some_and(|name| {
        ErrorFile::parse(name).is_some() || name == "error.json" && is_of_torchrun()
    })
}

/// `nccl_trace_rank_3`, `comm_lib_trace_rank_3`: names of the files that torch's flight recorder writes by itself.
fn is_dump(path: &Path) -> bool {
    let name = folder_name(path).map(plain);
    let ranked = name.and_then(|name| name.rsplit_once("_trace_rank_").map(|(_, rank)| rank));
    // `rank_3.json` and `rank_3.4711.json` of `ranklaunch dump`.
    let dumped = name.and_then(|name| name.strip_prefix("rank_")?.strip_suffix(".json"));
    let dumped = dumped.and_then(|rank| rank.split('.').next());
    ranked.or(dumped).is_some_and(|rank| rank.parse::<u32>().is_ok())
}

/// A file's name without the ending of a compression and the number of a continued log.
fn plain(name: &str) -> &str {
    continued(name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name))
}

/// Whether a folder belongs to a launcher, or to an attempt of one.
fn is_own(folder: &Path) -> bool {
    run_of(&folder.join("log")).is_some() || run_of(&folder.join("attempt-0/log")).is_some()
}

/// The launcher that wrote a log, and the attempt.
fn own_folder(log: &Path) -> Option<OwnFolder> {
    let (_, launcher) = run_of(log)?;
    let attempt = log.parent()?;
    let number = folder_name(attempt).and_then(AttemptFolder::parse)?;
    Some(OwnFolder {
        path: attempt.parent()?.to_owned(),
        node: launcher.node_rank,
        attempt: Some(number.0),
    })
}

/// The launchers in a run's folder, or the launcher whose folder it is, if no log is left.
fn own_folders(folder: &Path) -> Vec<OwnFolder> {
    let own = |path: PathBuf| {
        let node = folder_name(&path).and_then(LauncherFolder::parse)?.node_rank;
        let is_there = [RUN_JSON, JOURNAL].iter().any(|name| path.join(name).exists());
        is_there.then_some(OwnFolder { path, node, attempt: None })
    };
    let above = folder
        .parent()
        .filter(|_| folder_name(folder).is_some_and(|name| AttemptFolder::parse(name).is_some()));
    let below = folder.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let places = [Some(folder), above].into_iter().flatten().map(Path::to_owned);
    places.chain(below.take(MOST_FILES)).filter_map(own).collect()
}

fn folder_name(path: &Path) -> Option<&str> {
    path.file_name().and_then(OsStr::to_str)
}

/// Leaves out the attempts of a run before its last one, which did not end the job.
fn newest_attempts(mut listed: Vec<Listed>) -> Vec<Listed> {
    fn attempt(log: &Path) -> Option<(&Path, u32)> {
        log.ancestors().skip(1).find_map(|folder| {
            let name = folder_name(folder)?;
            let ours = AttemptFolder::parse(name).map(|AttemptFolder(number)| number);
            let number = ours.or_else(|| numbered(name, TORCHRUN_ATTEMPT))?;
            let parent = folder.parent()?;
            let is_launcher = folder_name(parent).and_then(LauncherFolder::parse).is_some();
            Some((if is_launcher { parent.parent()? } else { parent }, number))
        })
    }
    let mut newest: BTreeMap<PathBuf, u32> = BTreeMap::new();
    for (run, number) in listed.iter().filter_map(|log| attempt(&log.path)) {
        let known = newest.entry(run.to_owned()).or_default();
        *known = number.max(*known);
    }
    listed.retain(|log| {
        attempt(&log.path).is_none_or(|(run, number)| newest.get(run) == Some(&number))
    });
    listed
}

/// Origin of a log according to its path. Only names that this launcher and torchrun give count: `rank-8` may mean
/// anything above the named folder, and in names of other files.
fn origin(path: &Path, named: &Path) -> Origin {
    let file = folder_name(path).unwrap_or_default();
    let parts = |path: &Path| -> Vec<String> {
        let folder = path.parent().unwrap_or(path);
        folder.iter().map(|part| part.to_string_lossy().into_owned()).collect()
    };
    let below = parts(path.strip_prefix(named).unwrap_or(path));
    let launcher = run_of(path)
        .map(|(_, launcher)| launcher)
        .or_else(|| below.iter().rev().find_map(|part| LauncherFolder::parse(part)));
    let of_stream = RankLog::parse(plain(file)).map(|log| log.number);
    let of_ours = of_stream.or_else(|| ErrorFile::parse(file).map(|record| record.number));
    Origin {
        name: shown(path),
        rank: of_ours.or_else(|| of_torchrun(&parts(path), file)).map(GlobalRank),
        node: launcher.map(|launcher| Node::Rank(launcher.node_rank)),
    }
}

/// The local rank of `RUN/attempt_0/3/stderr.log`, which is the global one on the first node.
fn of_torchrun(folders: &[String], file: &str) -> Option<u32> {
    let later_node = |part: &String| {
        let node = ["node-", "node_", "node"].iter().find_map(|prefix| numbered(part, prefix));
        node.is_some_and(|node| node > 0)
    };
    match folders {
        [.., attempt, rank]
            if matches!(plain(file), "stderr.log" | "stdout.log" | "error.json")
                && numbered(attempt, TORCHRUN_ATTEMPT).is_some()
                && !folders.iter().any(later_node) =>
        {
            rank.parse().ok()
        }
        _ => None,
    }
}
