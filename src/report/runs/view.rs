//! Questions of a viewer of a running job, and their answers: `ranklaunch ps`, `logs` and `top`.
//!
//! The run's socket and the muster carry these as JSON; here they have types. Answers of other nodes
//! are untrusted: [`NodeStatus::read`] cleans a status, and lines are made printable where they are
//! shown. No question of a viewer changes anything.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use linux::deadline::{io_with_deadline, millis};
use logs::{Cursor, Page, Wanted, page};
use monitor::socket::{Answer, Refused, Unanswered};
use monitor::status::NodeStatus;
use muster::{NoAnswer, Packed};
use text::lang::{Text, cause};
use text::order::Ordered;
use text::{pattern, text};

/// Time limit of one page.
const READING: Duration = Duration::from_secs(5);
/// Maximum bytes of a page that another node gives.
const LARGEST_PAGE: usize = 4 << 20;
/// Maximum bytes of a compiled pattern.
const LARGEST_PATTERN: usize = 1 << 20;
/// Bytes of the index before the end at which a viewer begins.
const NEAR_END: u64 = 32 * 1024;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "view", rename_all = "snake_case")]
pub enum ViewAsk {
    /// Answered with a [`JobStatus`].
    Status,
    /// Answered with the plan of this node, as `plan --format json` shows it.
    Plan,
    /// Answered with [`JobLines`].
    Lines(LinesAsk),
}

/// The next lines of some launchers of the job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinesAsk {
    /// Cursors by the number of the launcher. Any other launcher gives only its position.
    pub cursors: Vec<(u32, Cursor)>,
    #[serde(default)]
    pub ranks: Vec<u32>,
    #[serde(default)]
    pub since_ms: Option<u64>,
    #[serde(default)]
    pub grep: Option<String>,
    /// Approximate number of bytes of each launcher.
    pub most: usize,
}

impl LinesAsk {
    /// Fails if `grep` is not a pattern, or too large.
    pub fn wanted(&self) -> Result<Wanted, regex::Error> {
        let compiled = |words: &String| pattern::compile_within(LARGEST_PATTERN, words);
        let grep = self.grep.as_ref().map(compiled).transpose()?;
        Ok(Wanted { ranks: self.ranks.clone(), since_ms: self.since_ms, grep })
    }
}

/// Answer of one launcher.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeLines {
    pub member: u32,
    /// Time of the answer, by the launcher's own clock, in milliseconds since 1970.
    pub now_ms: u64,
    /// The folder of the launcher, in UTF-8, so that it is another one where its name has other bytes; None if the run
    /// keeps no files.
    pub folder: Option<PathBuf>,
    /// Start position of a viewer that wants only the newest lines.
    pub near_end: Cursor,
    /// The page, if it was requested.
    pub page: Option<Page>,
    pub problem: Option<Text>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct JobLines {
    pub nodes: Vec<NodeLines>,
    pub unanswered: Vec<Unanswered>,
    /// Whether the agent reaches the others.
    pub reaches_all: bool,
}

/// Status of the nodes of a job. The viewer unpacks the statuses; node 0 does not, since it passes on thousands.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct JobStatus {
    pub nodes: Vec<PackedStatus>,
    pub unanswered: Vec<Unanswered>,
    pub reaches_all: bool,
    /// The agent hears all nodes by itself, so it may be asked more often.
    #[serde(default)]
    pub at_node_0: bool,
}

/// The [`NodeStatus`] of one launcher as it came.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PackedStatus {
    pub who: Text,
    pub packed: Packed,
}

impl JobStatus {
    /// The nodes in their order, and the nodes that give no status.
    pub fn read(self) -> (Vec<NodeStatus>, Vec<Unanswered>) {
        let JobStatus { nodes: packed, mut unanswered, .. } = self;
        let mut nodes = Vec::new();
        for PackedStatus { who, packed } in packed {
            let read = packed.open().ok().and_then(|bytes| NodeStatus::read(&bytes));
            match read {
                Some(node) => nodes.push(node),
                None => unanswered.push(Unanswered { who, why: NoAnswer::Unreadable.text() }),
            }
        }
        nodes.order_by_key(|node| node.run.as_ref().map(|run| (run.node, run.task)));
        (nodes, unanswered)
    }
}

/// Answer of an agent to a viewer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "shows", content = "what", rename_all = "snake_case")]
pub enum View {
    Status(JobStatus),
    Plan(Value),
    Lines(JobLines),
}

pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    millis(since)
}

/// The lines of this launcher, whose files are in `folder`.
pub fn lines(member: u32, folder: Option<&Path>, asked: &LinesAsk) -> NodeLines {
    let mut lines = NodeLines {
        member,
        now_ms: now_ms(),
        folder: folder.map(|folder| folder.to_string_lossy().into_owned().into()),
        near_end: Cursor::default(),
        page: None,
        problem: None,
    };
    let Some(folder) = folder.map(Path::to_owned) else {
        lines.problem = Some(text!(
            "this run keeps no log files; its output was only on the console",
            "本次运行没有日志文件；输出只在控制台上显示过"
        ));
        return lines;
    };
    let cursor = asked.cursors.iter().find(|(of, _)| *of == member).map(|(_, cursor)| *cursor);
    let Ok(wanted) = asked.wanted() else {
        lines.problem = Some(text!("the pattern of --grep is none", "--grep 的正则表达式无效"));
        return lines;
    };
    let most = asked.most.min(LARGEST_PAGE);
    let read = io_with_deadline(READING, move || match cursor {
        Some(cursor) => Ok((Cursor::default(), Some(page(&folder, cursor, &wanted, most, false)?))),
        None => Ok((Cursor::near_end(&folder, NEAR_END)?, None)),
    });
    match read {
        Ok((near_end, page)) => (lines.near_end, lines.page) = (near_end, page),
        Err(error) => lines.problem = Some(cause(&error)),
    }
    lines
}

pub fn refusal_of(answer: &Answer) -> Text {
    match answer {
        Answer::Refused(Refused::User { uid, owner }) => text!(
            "it belongs to user {owner} and this is user {uid}; only the job's user and root are answered",
            "它属于用户 {owner}，而当前用户为 {uid}；只应答任务所属的用户和 root"
        ),
        Answer::Refused(Refused::Container) => text!(
            "it is in another container that shares this network",
            "它位于共享此网络的另一个容器中"
        ),
        Answer::Refused(Refused::NotRunning) => text!(
            "no rank of it runs now: it waits for other nodes, or is between two attempts",
            "它此刻没有正在运行的 rank：正在等待其他节点，或处于两次尝试之间"
        ),
        _ => text!("it is of another version of ranklaunch", "它属于另一个版本的 ranklaunch"),
    }
}

/// A node or task without an answer, with the reason.
pub fn silence(one: &Unanswered) -> Text {
    let (Text { en, zh }, Text { en: why_en, zh: why_zh }) = (&one.who, &one.why);
    text!("{en}: {why_en}", "{zh}：{why_zh}")
}
