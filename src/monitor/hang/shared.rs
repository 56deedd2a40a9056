//! The state of the job as this node sees it, and its answers to node 0.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::gather::{Surroundings, evidence};
use super::judge::{FirstCulprit, Hang};
use super::{NodeEvidence, RankEvidence};
use crate::held;
use crate::status::StatusBoard;
use crate::watch::{Awake, Progress, Standing, pulse};
use diagnose::stacks::RunningRank;
use linux::deadline::millis;
use logs::Logs;
use settings::Reaction;
use text::mask;
use text::order::InOrder;
use text::rank::{GlobalRank, RankId};
use verdict::outcome::Planned;

/// A rank that computed within this time is at work.
const AT_WORK: Duration = Duration::from_secs(60);

/// Asks all nodes, and gives what each answers within the time.
pub type Ask = Box<dyn Fn(&HangQuestion, Duration) -> Vec<(u32, Option<Vec<u8>>)> + Send + Sync>;

/// A hang that was reported, or a wait that is remarked on.
#[derive(Debug, Clone, PartialEq)]
pub struct Standstill {
    pub at: SystemTime,
    /// Time without any movement at that moment.
    pub after: Duration,
    pub hang: Hang,
}

/// Carries findings to people and files.
pub trait Reporter: Send + Sync {
    /// The element of `hang` in agent.jsonl, for people of both languages.
    fn document(&self, found: &Standstill) -> Value;
    /// Keeps an event in agent.jsonl.
    fn keep(&self, event: Value);
    /// Tells people that the job stands still. `then`: None if the report ends nothing, since torch itself ends the
    /// wait.
    fn stands_still(&self, found: &Standstill, then: Option<Reaction>);
    /// Tells people of ranks that are at work while others wait for them.
    fn remark(&self, found: &Standstill);
    /// Tells people that the job goes on after a hang.
    fn goes_on(&self);
}

/// The watched job, and the receivers of the findings.
pub struct Watched {
    pub after: Duration,
    pub on_hang: Reaction,
    /// Rank of this node.
    pub node: u32,
    pub planned: Planned,
    /// The folder of the ranks' worker servers, if they have any.
    pub control: Option<PathBuf>,
    pub surroundings: Surroundings,
    pub logs: Arc<Logs>,
    pub reporter: Box<dyn Reporter>,
    pub board: StatusBoard,
    /// Sends a question to the nodes that are judged together, this one included.
    pub ask: Ask,
    /// This node only answers, since another node judges.
    pub only_answers: bool,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Watched").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Questions and messages of node 0 to the other nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HangQuestion {
    /// Answered with a [`Standing`].
    Standing,
    /// Answered with a [`NodeEvidence`].
    Evidence,
    /// The job stands still.
    Stands(Box<JudgedHang>),
    /// The job goes on.
    Moves,
}

/// A hang that was judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JudgedHang {
    /// The hang in the form of agent.jsonl.
    pub document: Value,
    pub first: Option<FirstCulprit>,
}

/// State of the job that the thread shares with the answers to other nodes.
#[derive(Debug)]
pub(super) struct SharedJob {
    pub(super) watched: Watched,
    pub(super) awake: Awake,
    pub(super) state: Mutex<JobState>,
}

/// Output of a rank, and the time of the look that first saw it.
#[derive(Debug, Clone, Copy)]
struct Written {
    bytes: u64,
    at: Instant,
}

#[derive(Debug, Default)]
pub(super) struct JobState {
    pub(super) ranks: BTreeMap<GlobalRank, RunningRank>,
    /// Ranks that ended with code 0.
    pub(super) ended: BTreeMap<GlobalRank, Instant>,
    pub(super) progress: Progress,
    /// Number of pauses of this process that the progress has taken into account.
    pauses: u32,
    output: BTreeMap<GlobalRank, Written>,
    /// All hangs, in the form of agent.jsonl.
    pub(super) found: Vec<Value>,
    pub(super) first: Option<FirstCulprit>,
    /// The last hang is not over.
    pub(super) stands: bool,
    /// The job ends.
    pub(super) is_over: bool,
    /// The attempt is over: board and console are those of the next one.
    pub(super) is_closed: bool,
}

impl SharedJob {
    pub(super) fn new(watched: Watched) -> SharedJob {
        let progress = Progress::new(watched.after);
        let state = JobState { progress, ..JobState::default() };
        SharedJob { watched, awake: Awake::start(), state: Mutex::new(state) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, JobState> {
        held(&self.state)
    }

    /// The state, in which unobserved time does not count as a standstill.
    fn state_now(&self) -> MutexGuard<'_, JobState> {
        let mut state = self.state();
        let pauses = self.awake.pauses();
        if std::mem::replace(&mut state.pauses, pauses) != pauses {
            tracing::info!(
                "this process did not run for a while: what stood still is looked at anew"
            );
            state.progress.begin_afresh(Instant::now());
        }
        state
    }

    pub(super) fn began(&self, rank: RankId, pid: i32) {
        let running = RunningRank { rank: rank.global, local_rank: rank.local, pid };
        let mut state = self.state();
        state.ranks.insert(rank.global, running);
        state.ended.remove(&rank.global);
    }

    /// Whether the other nodes are to hear that the job goes on.
    pub(super) fn ended(&self, rank: RankId, well: bool) -> bool {
        let mut state = self.state();
        state.ranks.remove(&rank.global);
        if well {
            state.ended.insert(rank.global, Instant::now());
        } else {
            // Ranks that fail after a hang fail because of it.
            state.is_over |= state.stands;
        }
        // A rank that ends well does not wait any more. Node 0 knows whether that holds for all nodes.
        let moves = well && !state.is_over && !self.watched.only_answers;
        drop(state);
        moves && self.goes_on()
    }

    /// Takes the pulse of the ranks.
    pub(super) fn look(&self) {
        let state = self.state_now();
        let pids: BTreeMap<GlobalRank, i32> =
            state.ranks.values().map(|running| (running.rank, running.pid)).in_map();
        let is_quiet = state.progress.is_quiet(Instant::now());
        drop(state);
        let (logs, planned) = (&self.watched.logs, self.watched.planned);
        let output = |rank| logs.written(planned.owner(rank));
        let control = self.watched.control.as_deref();
        let pulse = pulse(Path::new("/proc"), &pids, output, control, is_quiet);
        let mut state = self.state_now();
        let now = Instant::now();
        for (rank, pulse) in &pulse.ranks {
            let new = Written { bytes: pulse.output, at: now };
            let known = state.output.entry(*rank).or_insert(new);
            if known.bytes != new.bytes {
                *known = new;
            }
        }
        state.progress.note(now, &pulse);
        let moved = state.progress.moved();
        drop(state);
        let pids: Vec<(GlobalRank, i32)> = pids.into_iter().collect();
        self.watched.surroundings.note(moved, &pids);
    }

    pub(super) fn stands(&self) -> Standing {
        let state = self.state_now();
        // All ranks of this node have ended well: it waits for the other nodes.
        if state.ranks.is_empty() {
            return if state.ended.is_empty() { Standing::Moves } else { Standing::Still };
        }
        state.progress.standing(Instant::now())
    }

    pub(super) fn answer(&self, question: HangQuestion) -> Option<Vec<u8>> {
        match question {
            HangQuestion::Standing => serde_json::to_vec(&self.stands()).ok(),
            HangQuestion::Evidence => serde_json::to_vec(&self.evidence()).ok(),
            HangQuestion::Stands(_) | HangQuestion::Moves if !self.watched.only_answers => {
                Some(Vec::new())
            }
            HangQuestion::Stands(found) => {
                self.note(*found);
                Some(Vec::new())
            }
            HangQuestion::Moves => {
                self.goes_on();
                Some(Vec::new())
            }
        }
    }

    pub(super) fn evidence(&self) -> NodeEvidence {
        let began = Instant::now();
        let running: Vec<RunningRank> = self.state_now().ranks.values().copied().collect();
        let pids: Vec<(GlobalRank, i32)> = running.iter().map(|one| (one.rank, one.pid)).collect();
        let reading = self.watched.surroundings.begin(&pids);
        let within = self.watched.after.min(AT_WORK);
        let is_still = |one: &&RunningRank| !self.state().progress.is_busy(one.rank, began, within);
        let still = running.iter().filter(is_still).map(|one| one.rank).collect();
        let mut ranks = evidence(&running, &still, self.watched.control.as_deref());
        let around = self.watched.surroundings.end(reading);
        let state = self.state_now();
        for rank in &mut ranks {
            rank.busy = state.progress.is_busy(rank.rank, began, within);
            rank.computes = state.progress.computes(rank.rank, began, within);
            rank.drains = state.progress.drains(rank.rank, began, within);
            rank.stuck = state.progress.is_stuck(rank.rank, began);
            rank.may_have_come = state.progress.may_have_come(rank.rank, began, within);
            let owner = self.watched.planned.owner(rank.rank);
            let last = self.watched.logs.tail(owner, 1).pop();
            rank.last_line = last.map(|line| mask::mask_file(&line.text()));
            rank.last_line_ms = state.output.get(&rank.rank).map(|last| millis(last.at.elapsed()));
        }
        let ended =
            state.ended.iter().map(|(rank, at)| RankEvidence::ended(*rank, millis(at.elapsed())));
        ranks.extend(ended);
        NodeEvidence {
            node: self.watched.node,
            world: self.watched.planned.world.unwrap_or_default(),
            ranks,
            traffic: state.progress.carries(began, within),
            is_cut: state.progress.is_cut(),
            ras: around.ras,
            reasons: around.reasons,
            gpus: around.gpus,
            moved_ms: state.progress.moved().map(|at| millis(at.elapsed())),
            took_ms: millis(began.elapsed()),
        }
    }

    /// Records a hang that was judged here or on node 0. False after the attempt.
    pub(super) fn note(&self, found: JudgedHang) -> bool {
        if self.state().is_closed {
            return false;
        }
        let JudgedHang { document, first } = found;
        self.watched.reporter.keep(json!({ "message": "hang", "hang": &document }));
        let text = first.as_ref().map(|first| first.text.clone());
        let already = Duration::from_secs(document["after_s"].as_u64().unwrap_or_default());
        self.watched.board.stands_still(already, text);
        let mut state = self.state();
        state.found.push(document);
        state.first = first;
        state.stands = true;
        true
    }

    /// False if the job did not stand still.
    pub(super) fn goes_on(&self) -> bool {
        if !std::mem::take(&mut self.state().stands) {
            return false;
        }
        let Watched { reporter, only_answers, board, .. } = &self.watched;
        board.goes_on();
        reporter.keep(json!({ "message": "the job goes on after a hang" }));
        if !only_answers {
            reporter.goes_on();
        }
        true
    }
}
