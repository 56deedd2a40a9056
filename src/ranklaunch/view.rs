//! Questions of a viewer of a running job, and their answers: `ranklaunch ps`, `logs` and `top`; with the run's
//! socket, which also answers `stacks` and `dump`, from the first moment of a launch to its end.
//!
//! The run's socket and the muster carry these as JSON; here they have types. Answers of other nodes
//! are untrusted: [`NodeStatus::read`] cleans a status, and lines are made printable where they are
//! shown. No question of a viewer changes anything. Before ranks run, and between two attempts, the socket gives the
//! status of this node alone. It answers in threads and blocks nothing.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use linux::deadline::{io_with_deadline, millis};
use logs::{Cursor, Page, Wanted, page};
use monitor::socket::{
    About, Answer, Ask, Everywhere, Job, Refused, RunServer, RunningRanks, Unanswered,
};
use monitor::status::{NodeStatus, StatusBoard};
use muster::{MemberKind, NoAnswer, Packed};
use text::lang::{Text, cause};
use text::run_id::RunId;
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
pub(super) enum ViewAsk {
    /// Answered with a [`JobStatus`].
    Status,
    /// Answered with the plan of this node, as `plan --format json` shows it.
    Plan,
    /// Answered with [`JobLines`].
    Lines(LinesAsk),
}

/// The next lines of some launchers of the job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LinesAsk {
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
    pub(super) fn wanted(&self) -> Result<Wanted, regex::Error> {
        let compiled = |words: &String| pattern::compile_within(LARGEST_PATTERN, words);
        let grep = self.grep.as_ref().map(compiled).transpose()?;
        Ok(Wanted { ranks: self.ranks.clone(), since_ms: self.since_ms, grep })
    }
}

/// Answer of one launcher.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct NodeLines {
    pub member: u32,
    /// Time of the answer, by the launcher's own clock, in milliseconds since 1970.
    pub now_ms: u64,
    /// The folder of the launcher; None if the run keeps no files.
    pub folder: Option<PathBuf>,
    /// Start position of a viewer that wants only the newest lines.
    pub near_end: Cursor,
    /// The page, if it was requested.
    pub page: Option<Page>,
    pub problem: Option<Text>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct JobLines {
    pub nodes: Vec<NodeLines>,
    pub unanswered: Vec<Unanswered>,
    /// Whether the agent reaches the others.
    pub reaches_all: bool,
}

/// Status of the nodes of a job. The viewer unpacks the statuses; node 0 does not, since it passes on thousands.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct JobStatus {
    pub nodes: Vec<PackedStatus>,
    pub unanswered: Vec<Unanswered>,
    pub reaches_all: bool,
    /// The agent hears all nodes by itself, so it may be asked more often.
    #[serde(default)]
    pub at_node_0: bool,
}

/// The [`NodeStatus`] of one launcher as it came.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct PackedStatus {
    pub who: Text,
    pub packed: Packed,
}

impl JobStatus {
    /// The nodes in their order, and the nodes that give no status.
    pub(super) fn read(self) -> (Vec<NodeStatus>, Vec<Unanswered>) {
        let JobStatus { nodes: packed, mut unanswered, .. } = self;
        let mut nodes = Vec::new();
        for PackedStatus { who, packed } in packed {
            let read = packed.open().ok().and_then(|bytes| NodeStatus::read(&bytes));
            match read {
                Some(node) => nodes.push(node),
                None => unanswered.push(Unanswered { who, why: NoAnswer::Unreadable.text() }),
            }
        }
        nodes.sort_by_key(|node| node.run.as_ref().map(|run| (run.node, run.task)));
        (nodes, unanswered)
    }
}

/// Answer of an agent to a viewer.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "shows", content = "what", rename_all = "snake_case")]
pub(super) enum View {
    Status(JobStatus),
    Plan(Value),
    Lines(JobLines),
}

pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    millis(since)
}

/// The lines of this launcher, whose files are in `folder`.
pub(super) fn lines(member: u32, folder: Option<&Path>, asked: &LinesAsk) -> NodeLines {
    let mut lines = NodeLines {
        member,
        now_ms: now_ms(),
        folder: folder.map(Path::to_owned),
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

/// The sources of the answers; None while no ranks run.
type Attempt = Arc<Mutex<Option<(RunningRanks, Everywhere)>>>;

/// The socket, which answers until it is dropped.
pub(super) struct RunSocket {
    attempt: Attempt,
    _server: RunServer,
}

/// An attempt that is served until this is dropped.
#[must_use]
pub(super) struct Serving(Attempt);

impl Drop for Serving {
    fn drop(&mut self) {
        *held(&self.0) = None;
    }
}

impl RunSocket {
    pub(super) fn start(board: StatusBoard, about: About) -> RunSocket {
        let attempt = Attempt::default();
        let which = {
            let (attempt, board) = (Arc::clone(&attempt), board.clone());
            move || {
                let running = held(&attempt).as_ref().map(|(ranks, _)| ranks.clone());
                let job = running.map_or_else(|| planned(&board), |ranks| ranks.job());
                Job { about: about.clone(), ..job }
            }
        };
        let everywhere = {
            let attempt = Arc::clone(&attempt);
            move |ask| {
                let running = held(&attempt).as_ref().map(|(_, everywhere)| Arc::clone(everywhere));
                match running {
                    Some(everywhere) => everywhere(ask),
                    None => alone(&board, &ask),
                }
            }
        };
        let server = RunServer::start(Arc::new(which), Arc::new(everywhere));
        RunSocket { attempt, _server: server }
    }

    /// Lets an attempt answer.
    pub(super) fn serve(&self, ranks: RunningRanks, everywhere: Everywhere) -> Serving {
        *held(&self.attempt) = Some((ranks, everywhere));
        Serving(Arc::clone(&self.attempt))
    }
}

fn held<T>(slot: &Mutex<T>) -> MutexGuard<'_, T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The job as far as it is known; its run has no id before the nodes agree on one.
fn planned(board: &StatusBoard) -> Job {
    let run = board.snapshot().run.unwrap_or_default();
    Job {
        run_id: run.run_id.and_then(|id| RunId::try_from(id).ok()).unwrap_or_default(),
        attempt: run.attempt,
        node: run.node,
        nodes: run.nodes,
        ranks: Vec::new(),
        about: About::default(),
    }
}

fn alone(board: &StatusBoard, ask: &Ask) -> Answer {
    let Ask::View { of } = ask else { return Answer::Refused(Refused::NotRunning) };
    let Ok(ViewAsk::Status) = serde_json::from_value(of.clone()) else {
        return Answer::Refused(Refused::NotRunning);
    };
    board.look();
    let own = board.snapshot();
    let reaches_all = own.run.as_ref().is_some_and(|run| run.nodes == 1);
    let node = own.run.as_ref().map_or(0, |run| run.node);
    let packed = Packed::Plain(serde_json::to_vec(&own).unwrap_or_default());
    let own = PackedStatus { who: MemberKind::Node.named(node), packed };
    let status = JobStatus { nodes: vec![own], reaches_all, ..JobStatus::default() };
    match serde_json::to_value(View::Status(status)) {
        Ok(what) => Answer::View { what },
        Err(_) => Answer::Refused(Refused::Question),
    }
}
