//! Records of ranklaunch itself about an attempt, beside its logs: run.json, or agent.jsonl if the
//! run has no run.json (yet).
//!
//! Takes the folders of launchers; gives the known facts about the end. Every file may be missing,
//! cut, of another attempt, or not a file at all.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::streams::LogFile;
use crate::diagnosis_view::{Said, Unread};
use diagnose::{Known, Node, Origin, Recorded, Survived};
use linux::regular_file;
use logs::{JOURNAL, RUN_JSON, holds_mark};
use text::lang::{Text, cause};
use text::order::Ordered;
use text::rank::GlobalRank;
use text::text;
use verdict::Id;
use verdict::outcome::End;

/// Maximum bytes of a run.json, which has a line for every rank of its node.
const LARGEST: u64 = 32 * 1024 * 1024;
/// Signals that supervision sends to ranks that have to end.
const STOPS: [i32; 2] = [15, 9];

/// A launcher's folder, and the attempt whose logs are read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnFolder {
    pub path: PathBuf,
    pub node: u32,
    /// None means the last attempt.
    pub attempt: Option<u32>,
}

/// The logs that add nothing to the known facts about the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Unheard {
    #[default]
    None,
    /// The engine knows no more about a signal than its rank's shim.
    Engine,
    /// The kernel killed a rank for memory.
    All,
}

/// Statements of the records of all launchers.
#[derive(Debug, Default)]
pub struct OwnRecords {
    /// The known facts, without the numbers of logs.
    pub known: Known,
    unheard: Unheard,
    /// The end of the rank that failed first.
    pub end: Option<Stated>,
    /// The line of the cause that was found while the ranks ran.
    pub cause: Option<Stated>,
    /// The numbers in the names of logs are those of nodes.
    pub runs_a_command: bool,
    pub unread: Vec<Unread>,
    pub notes: Vec<Text>,
    /// The verdicts, each once; that of the launcher with the cause comes first.
    pub verdicts: Vec<Said>,
    /// Why launchers have no verdict.
    pub unended: Vec<Text>,
    /// The reports of a job that stood still, each once.
    pub standstills: Vec<Text>,
}

/// Reads the records of these launchers.
pub fn read(folders: &BTreeSet<OwnFolder>) -> OwnRecords {
    let mut records = OwnRecords::default();
    records.known.is_whole = !folders.is_empty();
    let told: Vec<(&OwnFolder, Told)> = folders
        .iter()
        .filter_map(|folder| Some((folder, read_one(folder, &mut records)?)))
        .collect();
    records.join(&told, folders.len());
    records
}

fn read_one(folder: &OwnFolder, records: &mut OwnRecords) -> Option<Told> {
    let path = folder.path.join(RUN_JSON);
    let name = path.display().to_string();
    match regular_file::read(&path, LARGEST) {
        Ok(bytes) => match serde_json::from_slice::<Value>(&bytes) {
            Ok(run) if folder.attempt.is_none_or(|number| run["attempt"] == number) => {
                return Some(of_run(folder, &path, &bytes, &run));
            }
            // The record of another attempt says nothing about this one.
            Ok(_) => {}
            Err(_) => {
                let error = text!("it is cut off or no JSON", "内容不完整，或不是 JSON");
                records.unread.push(Unread { name, error });
            }
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            records.unended.push(unended(&name, holds_mark(&folder.path)));
        }
        Err(error) => records.unread.push(Unread { name, error: cause(&error) }),
    }
    let path = folder.path.join(JOURNAL);
    match read_journal(folder, &path) {
        Ok(told) => Some(told),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            let name = path.display().to_string();
            records.unread.push(Unread { name, error: cause(&error) });
            None
        }
    }
}

/// Why a run has no run.json. `mark`: whether its launcher holds its mark of life.
fn unended(name: &str, mark: Option<bool>) -> Text {
    match mark {
        Some(true) => text!(
            "none yet, since the run still goes on ({name} is missing)",
            "还没有结论：运行尚未结束（缺少 {name}）"
        ),
        Some(false) => text!(
            "none: ranklaunch itself was killed and could write no verdict ({name} is missing), unless it runs on another host; the last lines of its console name the signal, as does the pod's last state (kubectl describe pod: OOMKilled, exit code 137)",
            "没有结论：若它不在其他主机上运行，则 ranklaunch 自身被杀死，未能写下结论（缺少 {name}）；其控制台的最后几行会指出信号，Pod 的上次状态也会（kubectl describe pod：OOMKilled、退出码 137）"
        ),
        None => text!(
            "none: the run still goes on, or ranklaunch itself was killed ({name} is missing)",
            "没有结论：运行尚未结束，或 ranklaunch 自身被杀死（缺少 {name}）"
        ),
    }
}

fn of_run(folder: &OwnFolder, path: &Path, bytes: &[u8], run: &Value) -> Told {
    let verdict = &run["verdict"];
    let outcome = &run["outcome"];
    let first = rank(&verdict["rank"]).or_else(|| rank(&outcome["first_failure"]));
    let seen = |of: &Value| {
        let end = end(&of["end"]);
        let rank = rank(&of["rank"])?;
        let by_us = matches!(end, Some(End::Signal(signal)) if STOPS.contains(&signal));
        let stopped = by_us && Some(rank) != first;
        Some(Seen { rank, end, at: words(&of["at"]), stopped })
    };
    let ends = outcome["ranks"].as_array().into_iter().flatten().filter_map(seen).collect();
    let survived = serde_json::from_value(run["survived"].clone()).unwrap_or_default();
    Told {
        class: verdict["class"].as_str().map(str::to_owned),
        oom: verdict["id"] == Id::MemoryOom.as_str(),
        rank: first,
        ends,
        command: run["plan"]["engine"] == "command",
        file: path.to_owned(),
        line: line_of(bytes, b"\n  \"outcome\":"),
        cause: recorded(folder, path, bytes, &run["cause"]),
        survived,
        verdict: said(folder, path, run),
        blames: node(&run["cause"]["node"]).or_else(|| node(&verdict["node"])),
        standstills: run["hang"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|hang| standstill(path, hang))
            .collect(),
    }
}

/// The verdict in the words of the run: run.json, or an event of the journal with the same keys.
fn said(folder: &OwnFolder, path: &Path, run: &Value) -> Option<Said> {
    let verdict = &run["verdict"];
    let (Text { en, zh }, id) = (in_both(&verdict["text"]), words(&verdict["id"]));
    if en.is_empty() {
        return None;
    }
    let exit_code = run["exit_code"].as_i64().or(verdict["code"].as_i64()).unwrap_or_default();
    let cause = &run["cause"];
    let key = format!("{id} {en} {}", cause["id"]);
    let told = in_both(&run["closing"]);
    // A run.json of version 0.2.0 has no closing words.
    let told = if told.en.is_empty() {
        let hint = match in_both(&verdict["hint"]) {
            hint if hint.en.is_empty() => hint,
            Text { en, zh } => text!("   hint: {en}\n", "   提示：{zh}\n"),
        };
        let Text { en: hint, zh: hint_zh } = hint;
        text!(
            "── ranklaunch: {en}\n{hint}   exit code {exit_code} ({id})",
            "── ranklaunch: {zh}\n{hint_zh}   退出码 {exit_code}（{id}）"
        )
    } else {
        told
    };
    Some(Said {
        words: told,
        cause: cause["id"].as_str().map(str::to_owned),
        failed: !["done", "stopped"].contains(&verdict["class"].as_str().unwrap_or_default()),
        file: path.display().to_string(),
        launcher: folder
            .path
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into()),
        exit_code,
        key,
        also: Vec::new(),
    })
}

/// The report of a job that stood still.
fn standstill(path: &Path, hang: &Value) -> Option<Text> {
    let culprits = hang["culprits"].as_array()?.iter().map(|one| in_both(&one["text"]));
    let culprits: Vec<Text> = culprits.filter(|text| !text.en.is_empty()).collect();
    let join =
        |of: fn(&Text) -> &str, by: &str| culprits.iter().map(of).collect::<Vec<_>>().join(by);
    let (en, zh) = (join(|text| &text.en, "; "), join(|text| &text.zh, "；"));
    let (file, at) = (path.display(), words(&hang["at"]));
    let seconds = hang["after_s"].as_u64().unwrap_or_default();
    (!culprits.is_empty()).then(|| {
        text!(
            "{file}: at {at} the job had stood still for {seconds} s: {en}",
            "{file}：到 {at} 时任务已卡死 {seconds} 秒：{zh}"
        )
    })
}

/// The cause that a run.json names, and the line that it quotes.
fn recorded(
    folder: &OwnFolder,
    path: &Path,
    bytes: &[u8],
    cause: &Value,
) -> Option<(Recorded, Stated)> {
    let id = cause["id"].as_str()?.to_owned();
    let rank = rank(&cause["rank"]);
    let node = node(&cause["node"]);
    let origin = Origin {
        name: path.display().to_string(),
        rank,
        node: Some(Node::Rank(node.unwrap_or(folder.node))),
    };
    let evidence = words(&cause["evidence"]);
    let frame = cause["frame"].as_str().and_then(|frame| frame.split_once(':'));
    // The text has the form in which Python prints an exception, since an exception without a row is
    // recognised only by that form.
    let text = frame.map_or(evidence.clone(), |(file, place)| {
        let (number, function) = place.split_once(' ').unwrap_or((place, "<module>"));
        format!(
            "Traceback (most recent call last):\n  File \"{file}\", line {number}, in {function}\n{evidence}"
        )
    });
    let line = line_of(bytes, b"\n  \"cause\":");
    let recorded = Recorded { id, rank, line: cause["line"].as_u64().unwrap_or_default() };
    Some((recorded, Stated { origin, line, text }))
}

impl OwnRecords {
    /// Whether a log adds nothing to the known facts about the end.
    pub fn adds_nothing(&self, log: &LogFile) -> bool {
        log.own
            && match self.unheard {
                _ if self.known.blameless => true,
                Unheard::None => false,
                Unheard::Engine => log.origin.rank.is_none(),
                Unheard::All => true,
            }
    }

    /// `launchers`: number of launchers whose records were looked for.
    fn join(&mut self, told: &[(&OwnFolder, Told)], launchers: usize) {
        self.runs_a_command = told.iter().any(|(_, one)| one.command);
        let classes: Vec<&str> = told.iter().filter_map(|(_, one)| one.class.as_deref()).collect();
        // A stop from outside is the cause, whatever the ranks said about it. A node that was stopped
        // because of another node names the cause on that node.
        self.known.blameless = !classes.is_empty()
            && classes.iter().all(|class| ["done", "stopped"].contains(class))
            && told.iter().all(|(_, one)| one.cause.is_none());
        let mut said: Vec<(&OwnFolder, &Said)> =
            told.iter().filter_map(|(of, one)| Some((*of, one.verdict.as_ref()?))).collect();
        let is_of_the_cause = |of: &OwnFolder| {
            let one = told.iter().find(|(folder, _)| *folder == of).map(|(_, one)| one);
            one.is_some_and(|one| one.blames == Some(of.node))
        };
        said.order_by_key(|(of, _)| !is_of_the_cause(of));
        for (_, one) in said {
            match self.verdicts.iter_mut().find(|known| known.key == one.key) {
                Some(known) => known.also.push((one.launcher.clone(), one.exit_code)),
                None => self.verdicts.push(one.clone()),
            }
        }
        for standstill in told.iter().flat_map(|(_, one)| &one.standstills) {
            if !self.standstills.contains(standstill) {
                self.standstills.push(standstill.clone());
            }
        }
        let own = |(folder, one): &&(&OwnFolder, Told)| {
            let node = one.cause.as_ref().and_then(|(_, stated)| stated.origin.node.as_ref());
            Reverse(node == Some(&Node::Rank(folder.node)))
        };
        let causes = told.iter().filter(|(_, one)| one.cause.is_some()).min_by_key(own);
        if let Some((recorded, stated)) = causes.and_then(|(_, one)| one.cause.clone()) {
            self.known.recorded = Some(recorded);
            self.cause = Some(stated);
        }
        self.known.survived = told.iter().flat_map(|(_, one)| one.survived.clone()).collect();
        let is_failed = |one: &Told| {
            let class = one.class.as_deref();
            one.rank.is_some() || class.is_some_and(|class| !["done", "stopped"].contains(&class))
        };
        self.known.has_failed = !self.known.blameless
            && told.iter().any(|(_, one)| is_failed(one) || one.cause.is_some());
        // A launcher whose files are all gone may have seen anything.
        self.known.unended = !self.known.blameless
            && !self.known.has_failed
            && self.known.is_whole
            && told.iter().all(|(_, one)| !one.ends.iter().any(Seen::is_failed))
            && told.len() == launchers;
        if self.runs_a_command {
            return;
        }
        let first = told.iter().find_map(|(_, one)| one.rank);
        let mut ends: Vec<&Seen> = told.iter().flat_map(|(_, one)| &one.ends).collect();
        ends.order_by(|one, other| {
            let place = |seen: &Seen| (Some(seen.rank) != first, seen.stopped);
            place(one).cmp(&place(other)).then_with(|| one.at.cmp(&other.at))
        });
        let failed = |seen: &&&Seen| seen.is_failed();
        self.known.failed = ends.iter().filter(failed).map(|seen| seen.rank).collect();
        let well = ends.iter().filter(|seen| seen.end.is_some_and(End::success));
        self.known.ended_well = well.map(|seen| seen.rank).collect();
        let end_of = |(folder, one): &(&OwnFolder, Told)| {
            let end = one.ends.iter().find(|seen| Some(seen.rank) == first)?.end?;
            let origin = Origin {
                name: one.file.display().to_string(),
                rank: first,
                node: Some(Node::Rank(folder.node)),
            };
            Some((
                one.oom,
                Stated { origin, line: one.line, text: statement(first?, end, one.oom)? },
            ))
        };
        let Some((oom, stated)) = told.iter().find_map(end_of) else { return };
        self.unheard = if oom { Unheard::All } else { Unheard::Engine };
        self.end = Some(stated);
    }
}

fn node(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

fn rank(value: &Value) -> Option<GlobalRank> {
    u32::try_from(value.as_u64()?).ok().map(GlobalRank)
}

/// A text of run.json, in the language of the run, or of agent.jsonl, in both.
fn in_both(value: &Value) -> Text {
    match value {
        Value::Object(both) => Text::new(
            both.get("en").map(words).unwrap_or_default(),
            both.get("zh").map(words).unwrap_or_default(),
        ),
        one => Text::same(words(one)),
    }
}

fn words(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The line that begins with these words, after a line feed.
fn line_of(bytes: &[u8], words: &[u8]) -> u64 {
    let before = memchr::memmem::find(bytes, words).and_then(|at| bytes.get(..=at));
    1 + before.map_or(0, |before| memchr::memchr_iter(b'\n', before).count() as u64)
}

/// A statement that counts as a log of one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stated {
    pub origin: Origin,
    /// The line in the file that `origin` names.
    pub line: u64,
    pub text: String,
}

/// The end of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub rank: GlobalRank,
    /// None if its shim was lost.
    pub end: Option<End>,
    /// Orders the ends of all launchers.
    pub at: String,
    /// The rank ended after ranklaunch had begun to stop the ranks.
    pub stopped: bool,
}

/// Statements of one launcher about the end.
#[derive(Debug, Default)]
pub struct Told {
    pub class: Option<String>,
    pub oom: bool,
    /// The rank that failed first.
    pub rank: Option<GlobalRank>,
    pub ends: Vec<Seen>,
    pub command: bool,
    /// The file that holds the ends.
    pub file: PathBuf,
    pub line: u64,
    pub cause: Option<(Recorded, Stated)>,
    pub survived: Vec<Survived>,
    pub verdict: Option<Said>,
    /// The node that the verdict blames.
    pub blames: Option<u32>,
    /// The standstills of the job, with the ranks that the others waited for.
    pub standstills: Vec<Text>,
}

impl Seen {
    pub fn is_failed(&self) -> bool {
        !self.end.is_some_and(End::success)
    }
}

impl Told {
    pub fn of_file(path: &Path) -> Told {
        Told { file: path.to_owned(), ..Told::default() }
    }
}

/// `{"code": 3}`, `{"signal": 11}`
pub fn end(value: &Value) -> Option<End> {
    let number = |name: &str| value[name].as_i64().and_then(|number| i32::try_from(number).ok());
    number("signal").map(End::Signal).or_else(|| number("code").map(End::Code))
}

/// Maximum bytes at the end of a journal that are read. The ends of ranks are its last lines.
const LAST: u64 = 16 * 1024 * 1024;

/// Statements of the journal about an attempt; none named means the last one.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn read_journal(folder: &OwnFolder, path: &Path) -> io::Result<Told> {
    let attempt = folder.attempt;
    let (bytes, _) = end_of(path, LAST)?;
    let mut told = Told::of_file(path);
    let (mut stopping, mut latest) = (false, 0);
    let (mut verdict, mut of_verdict, mut standstills) = (None, None, Vec::new());
    for (line, number) in bytes.split(|byte| *byte == b'\n').zip(1..) {
        // Most lines do not describe an end.
        let of_interest =
            [&b"\"ended\""[..], b"\"stopping\"", b"\"refused\"", b" hang\"", b"\"hang\""]
                .iter()
                .any(|words| memchr::memmem::find(line, words).is_some());
        if !of_interest {
            continue;
        }
        // The first and the last line may be cut.
        let Ok(line) = serde_json::from_slice::<Value>(line) else { continue };
        let fields = &line["fields"];
        match fields["message"].as_str() {
            Some("planned") => standstills.clear(),
            Some("hang") => standstills.extend(standstill(path, &fields["hang"])),
            Some("the job goes on after a hang") => standstills.clear(),
            Some("ended") if fields["record"].is_object() => {
                let record = &fields["record"];
                of_verdict = record["attempt"].as_u64();
                if attempt.is_none_or(|wanted| of_verdict == Some(wanted.into())) {
                    verdict = said(folder, path, record);
                    told.class = record["verdict"]["class"].as_str().map(str::to_owned);
                    told.blames = node(&record["cause"]["node"]);
                }
                continue;
            }
            // The launch ended after the attempt.
            Some("refused")
                if attempt
                    .is_none_or(|wanted| of_verdict.is_none_or(|of| of == u64::from(wanted))) =>
            {
                verdict = said(folder, path, fields);
                told.class = fields["verdict"]["class"].as_str().map(str::to_owned);
                continue;
            }
            _ => {}
        }
        let of = line["spans"]
            .as_array()
            .into_iter()
            .flatten()
            .find_map(|span| span["attempt"].as_u64());
        if attempt.zip(of).is_some_and(|(wanted, of)| u64::from(wanted) != of) {
            continue;
        }
        // If there are several attempts, the last one counts.
        if let Some(of) = of.filter(|of| *of > latest) {
            (told, stopping, latest) = (Told::of_file(path), false, of);
        }
        stopping |= fields["stopping"] == true;
        let Some(rank) = fields["ended"].as_u64().and_then(|rank| u32::try_from(rank).ok()) else {
            continue;
        };
        let seen = Seen {
            rank: GlobalRank(rank),
            end: end(fields),
            at: line["timestamp"].as_str().unwrap_or_default().to_owned(),
            stopped: stopping,
        };
        if seen.is_failed() && !stopping && told.rank.is_none() {
            (told.rank, told.line) = (Some(seen.rank), number);
        }
        told.ends.push(seen);
    }
    (told.verdict, told.standstills) = (verdict, standstills);
    Ok(told)
}

/// The last `most` bytes of a file, and whether bytes come before them.
pub fn end_of(path: &Path, most: u64) -> io::Result<(Vec<u8>, bool)> {
    let (mut file, size): (File, u64) = regular_file::open(path)?;
    file.seek(SeekFrom::Start(size.saturating_sub(most)))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok((bytes, size > most))
}

/// The end of a rank in the words of the launchers whose statements the catalogue knows; None for an exit code, which
/// says nothing. `oom`: the kernel killed it for memory.
pub fn statement(rank: GlobalRank, end: End, oom: bool) -> Option<String> {
    match end {
        End::Signal(signal) if !oom => Some(format!("rank {rank}: exitcode: -{signal}\n")),
        End::Code(_) => None,
        End::Signal(_) => Some(format!("error: Detected 1 oom_kill event in rank {rank}\n")),
    }
}
