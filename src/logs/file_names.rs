//! Names of a run's folders and files, and the last line of a head: how much of a log it holds, and where the log goes
//! on.
//!
//! Owns the layout `<log-dir>/<run-id>/node-<k>/attempt-<n>/rank-<rrrrr>.out`: both writing the names and parsing them.
//! Owns the text of the line for the writer of a log ([`super::capped`]) and its reader ([`super::pages`]), which must
//! not take the line for output. Never touches a file system.

use std::fmt;
use std::path::Path;

use text::lang::Text;
use text::rank::{GlobalRank, LocalRank};
use text::text;
use verdict::outcome::{Owner, Stream};

/// The output of the engine, in the folder of an attempt.
pub(super) const ENGINE_LOG: &str = "engine.log";
/// The program's own journal, in the folder of a launcher.
pub const JOURNAL: &str = "agent.jsonl";
/// The result of a launch, in the folder of a launcher.
pub const RUN_JSON: &str = "run.json";
/// The page of a launch, in the folder of a launcher and in that of the run.
pub const REPORT: &str = "report.html";
/// The link to the newest run, in the log folder.
pub const LATEST: &str = "latest";

/// The folder of one launcher in a run: `node-<k>`, or `node-<k>-task-<local>` if the platform starts a launcher per
/// task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LauncherFolder {
    pub node_rank: u32,
    pub task: Option<LocalRank>,
}

impl LauncherFolder {
    pub fn parse(name: &str) -> Option<LauncherFolder> {
        let (node, task) = match name.split_once("-task-") {
            Some((node, task)) => (node, Some(LocalRank(whole(task)?))),
            None => (name, None),
        };
        Some(LauncherFolder { node_rank: numbered(node, "node-")?, task })
    }
}

impl fmt::Display for LauncherFolder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "node-{}", self.node_rank)?;
        self.task.map_or(Ok(()), |task| write!(out, "-task-{task}"))
    }
}

/// The folder of one attempt below that of its launcher: `attempt-<n>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttemptFolder(pub u32);

impl AttemptFolder {
    pub fn parse(name: &str) -> Option<AttemptFolder> {
        numbered(name, "attempt-").map(AttemptFolder)
    }
}

impl fmt::Display for AttemptFolder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "attempt-{}", self.0)
    }
}

/// A stream of one rank: `rank-<rrrrr>.out` or `rank-<rrrrr>.err`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankLog {
    /// The global rank; the node rank with engine `command`.
    pub number: u32,
    pub stream: Stream,
}

impl RankLog {
    /// The number has five digits or more, so that `rank-8.err` of another program does not match.
    pub fn parse(name: &str) -> Option<RankLog> {
        let (rank, ending) = name.rsplit_once('.')?;
        let stream = match ending {
            "out" => Stream::Out,
            "err" => Stream::Err,
            _ => return None,
        };
        let number = numbered(rank, "rank-").filter(|_| rank.len() >= "rank-00000".len())?;
        Some(RankLog { number, stream })
    }
}

impl fmt::Display for RankLog {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ending = match self.stream {
            Stream::Out => "out",
            Stream::Err => "err",
        };
        write!(out, "rank-{:05}.{ending}", self.number)
    }
}

/// The record that torch's `@record` wrote for the exception of one rank: `rank-<rrrrr>.error.json`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorFile {
    /// As in [`RankLog`].
    pub number: u32,
}

impl ErrorFile {
    /// The file of a rank, or of the command of a node.
    pub fn of(owner: Owner) -> Option<ErrorFile> {
        match owner {
            Owner::Engine => None,
            Owner::Rank(GlobalRank(number)) | Owner::Command(number) => Some(ErrorFile { number }),
        }
    }

    pub fn parse(name: &str) -> Option<ErrorFile> {
        let rank = name.strip_suffix(".error.json")?;
        let number = numbered(rank, "rank-").filter(|_| rank.len() >= "rank-00000".len())?;
        Some(ErrorFile { number })
    }
}

impl fmt::Display for ErrorFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "rank-{:05}.error.json", self.number)
    }
}

/// The file of a stream, in the folder of an attempt. Both streams of the engine share one.
pub fn log_name(owner: Owner, stream: Stream) -> String {
    match owner {
        Owner::Engine => ENGINE_LOG.to_owned(),
        Owner::Rank(GlobalRank(number)) | Owner::Command(number) => {
            RankLog { number, stream }.to_string()
        }
    }
}

/// The folders of an attempt below the log folder, outermost first.
pub(super) fn attempt_folders(run: &str, launcher: LauncherFolder, attempt: u32) -> [String; 3] {
    [run.to_owned(), launcher.to_string(), AttemptFolder(attempt).to_string()]
}

/// The folder of the run, and the launcher, for a file in the folder of an attempt.
pub fn run_of(file: &Path) -> Option<(&Path, LauncherFolder)> {
    let attempt = file.parent()?;
    AttemptFolder::parse(last(attempt)?)?;
    let launcher = attempt.parent()?;
    Some((launcher.parent()?, LauncherFolder::parse(last(launcher)?)?))
}

/// The name of the segment with this number of a log that outgrew its limit: `rank-00003.err.00001`.
pub(super) fn segment(name: &str, number: u32) -> String {
    format!("{name}.{number:05}")
}

/// The name of the log that a segment continues; any other name is returned unchanged. `train.log.1` also counts as a
/// segment, since logrotate numbers the parts in the same way.
pub fn continued(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((log, number)) if is_number(number) => log,
        _ => name,
    }
}

/// The number in a name: 3 in `node-3` with the prefix `node-`.
pub fn numbered(name: &str, prefix: &str) -> Option<u32> {
    whole(name.strip_prefix(prefix)?)
}

/// Only digits are accepted; `parse` would accept a sign too.
fn whole(digits: &str) -> Option<u32> {
    digits.parse().ok().filter(|_| is_number(digits))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn last(path: &Path) -> Option<&str> {
    path.file_name().and_then(|name| name.to_str())
}

/// Maximum bytes of the line at the end of a head.
pub(super) const LONGEST_MARK: u64 = 512;

/// The end of a head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeadMark {
    /// Bytes of output in the head.
    pub(super) bytes: u64,
    /// Bytes that were removed after the head.
    pub(super) missing: u64,
    /// The file in which the log goes on.
    pub(super) tail: String,
}

impl HeadMark {
    /// The line without its line feed.
    pub(super) fn line(&self) -> Text {
        let HeadMark { bytes, missing, tail } = self;
        text!(
            "[ranklaunch] the first {bytes} bytes end here, {missing} bytes are missing, the log goes on in {tail}",
            "[ranklaunch] 前 {bytes} 字节到此为止，中间缺失 {missing} 字节，后续日志见 {tail}"
        )
    }

    /// The mark that a line is, in either language.
    pub(super) fn parse(line: &str) -> Option<HeadMark> {
        let mut numbers =
            line.split(|one: char| !one.is_ascii_digit()).filter(|one| !one.is_empty());
        let mut number = || numbers.next()?.parse().ok();
        let tail = line.rsplit(' ').next()?.to_owned();
        let mark = HeadMark { bytes: number()?, missing: number()?, tail };
        let Text { en, zh } = mark.line();
        (line == en || line == zh).then_some(mark)
    }

    /// The mark at the end of a head of `length` bytes, whose last bytes are `end`. None while the writer has not set
    /// it: another line may have its words, but not its place.
    pub(super) fn at_end(end: &[u8], length: u64) -> Option<HeadMark> {
        let end = end.strip_suffix(b"\n")?;
        let line = end.rsplit(|byte| *byte == b'\n').next()?;
        let mark = HeadMark::parse(std::str::from_utf8(line).ok()?)?;
        // A head that ends within a line is followed by a line feed that is no output.
        let rest = length.checked_sub(mark.bytes)?.checked_sub(line.len() as u64)?;
        (1..=2).contains(&rest).then_some(mark)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;

    fn numbers() -> impl Strategy<Value = u32> {
        prop_oneof![0..20_u32, 99_990..100_010_u32, any::<u32>(), Just(u32::MAX)]
    }

    proptest! {
        #[test]
        fn names_survive_writing_and_parsing(
            (run, node_rank, task) in ("[a-z0-9-]{1,20}", numbers(), prop::option::of(numbers())),
            (attempt, number, part) in (numbers(), numbers(), numbers()),
            stream in prop_oneof![Just(Stream::Out), Just(Stream::Err)],
        ) {
            let launcher = LauncherFolder { node_rank, task: task.map(LocalRank) };
            prop_assert_eq!(LauncherFolder::parse(&launcher.to_string()), Some(launcher));
            let folder = AttemptFolder(attempt);
            prop_assert_eq!(AttemptFolder::parse(&folder.to_string()), Some(folder));
            let log = RankLog { number, stream };
            let name = log.to_string();
            prop_assert_eq!(RankLog::parse(&name), Some(log));
            prop_assert_eq!(continued(&name), name.as_str());
            let record = ErrorFile { number };
            prop_assert_eq!(ErrorFile::parse(&record.to_string()), Some(record));
            prop_assert_eq!(RankLog::parse(&record.to_string()), None);

            let segment = segment(&name, part);
            prop_assert_eq!(RankLog::parse(&segment), None);
            prop_assert_eq!(continued(&segment), name.as_str());

            let folders = attempt_folders(&run, launcher, attempt);
            let mut file = PathBuf::from("/logs");
            file.extend(&folders);
            file.push(segment);
            let run = Path::new("/logs").join(run);
            prop_assert_eq!(run_of(&file), Some((run.as_path(), launcher)));
        }
    }

    #[test]
    fn names_of_other_programs_are_not_ours() {
        for name in
            ["node-", "node-x", "node--1", "node-+1", "node_1", "node-1-task-", "node-4294967296"]
        {
            assert_eq!(LauncherFolder::parse(name), None, "{name}");
        }
        for name in ["attempt_0", "attempt-", "attempt-1a", "attempt-+1"] {
            assert_eq!(AttemptFolder::parse(name), None, "{name}");
        }
        for name in
            ["rank-8.err", "rank-0000.out", "rank-00008.log", "rank-00008", "rank_00008.err"]
        {
            assert_eq!(RankLog::parse(name), None, "{name}");
        }
        for path in ["rank-00000.err", "/r/node-0/rank-00000.err", "/r/node-0/attempt_0/0/stderr"] {
            assert_eq!(run_of(Path::new(path)), None, "{path}");
        }
    }
}
