//! Watches whether the job makes progress, and reports who holds it up if it does not.
//!
//! A thread of its own looks at the ranks, and judges the job if nothing moves; it never blocks a rank or the
//! supervision. Once the ranks of node 0 stand still, node 0 asks the others whether theirs do, and gathers evidence
//! from all nodes if none moves. If the nodes cannot ask each other, each judges its own evidence.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::Notify;

use super::NodeEvidence;
use super::gather::gives_up_ns;
use super::judge::{Culprit, FirstCulprit, Hang, Judgement, judge};
use super::shared::{HangQuestion, JudgedHang, SharedJob, Standstill, Watched};
use super::words::Kind;
use crate::watch::Standing;
use diagnose::Frame;
use linux::deadline::millis;
use settings::Reaction;
use text::rank::{GlobalRank, RankId};
use verdict::outcome::End;

/// The handle of the thread. It ends when this is dropped.
#[derive(Debug)]
pub struct HangWatch {
    /// Tells the thread to inform the other nodes that the job goes on.
    tell_others: Option<Sender<()>>,
    shared: Option<Arc<SharedJob>>,
    end: Arc<Notify>,
}

impl HangWatch {
    /// None if nothing is watched. If no thread can be started, the job is not judged.
    pub fn start(watched: Option<Watched>) -> HangWatch {
        let nothing = || HangWatch { tell_others: None, shared: None, end: Arc::default() };
        let Some(watched) = watched else { return nothing() };
        let shared = Arc::new(SharedJob::new(watched));
        let (tell_others, told) = channel();
        let end = Arc::<Notify>::default();
        let mut watching = Watching::new(Arc::clone(&shared), Arc::clone(&end));
        let thread = std::thread::Builder::new().name("hang".into()).stack_size(1 << 20);
        match thread.spawn(move || watching.run(&told)) {
            Ok(_) => HangWatch { tell_others: Some(tell_others), shared: Some(shared), end },
            Err(_) => nothing(),
        }
    }

    pub fn began(&self, rank: RankId, pid: i32) {
        if let Some(shared) = &self.shared {
            shared.began(rank, pid);
        }
    }

    pub fn ended(&self, rank: RankId, end: Option<End>) {
        let Some(shared) = &self.shared else { return };
        if shared.ended(rank, end.is_some_and(End::success))
            && let Some(tell_others) = &self.tell_others
        {
            let _ = tell_others.send(());
        }
    }

    /// The ranks end because they are told to: their behaviour from now on proves nothing about a hang.
    pub fn stopping(&self) {
        if let Some(shared) = &self.shared {
            shared.state().is_over = true;
        }
    }

    /// Function that answers the questions of node 0.
    pub fn answerer(&self) -> impl Fn(HangQuestion) -> Option<Vec<u8>> + Send + Sync + use<> {
        let shared = self.shared.clone();
        move |question| shared.as_ref()?.answer(question)
    }

    /// Completes when the job stands still and is to end; once.
    pub fn take_end(&self) -> impl Future<Output = ()> + Send + use<> {
        let end = Arc::clone(&self.end);
        async move { end.notified().await }
    }

    /// All hangs of the attempt, in the form of run.json.
    pub fn found(&self) -> Vec<Value> {
        self.shared.as_ref().map(|shared| shared.state().found.clone()).unwrap_or_default()
    }

    /// The rank that the others waited for when the attempt ended.
    pub fn culprit(&self) -> Option<FirstCulprit> {
        let state = self.shared.as_ref()?.state();
        state.first.clone().filter(|_| state.stands)
    }
}

impl Drop for HangWatch {
    /// The thread may still judge, and node 0 may still report; neither belongs to the next attempt.
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            let mut state = shared.state();
            (state.is_over, state.is_closed) = (true, true);
        }
    }
}

/// Number of looks within the time after which a job counts as standing still.
const LOOKS: u32 = 10;
const MOST_OFTEN: Duration = Duration::from_secs(1);
const LEAST_OFTEN: Duration = Duration::from_secs(15);
/// Torch may give up a wait before that time. Its limits are read after this time.
const EARLY: Duration = Duration::from_secs(10);
/// The part of torch's limit that is left when a job is judged.
const BEFORE_LIMIT: f64 = 0.2;
/// A job goes on if it moves for longer than this, and than this part of the time after which it stands still.
/// Ranks that give up their wait move as well, since they report that and end.
const GIVING_UP: Duration = Duration::from_secs(10);
const GIVING_UP_PART: f64 = 0.75;
/// Time limits for the nodes to report their standing, and to gather evidence.
const STANDING: Duration = Duration::from_secs(3);
const EVIDENCE: Duration = Duration::from_secs(7);

/// Maximum number of repeated looks while the machine is too busy to show the activity of a culprit.
const MOST_LATE: u32 = 3;

/// A hang that is to end the job must be seen twice, with at least this time between.
const APART: Duration = Duration::from_secs(5);

/// The time at which torch gives up a wait.
#[derive(Debug, Clone, Copy)]
struct Limit {
    /// Time of the last movement of this node's ranks.
    of: Instant,
    /// None if no rank has reported a limit, or the last chance is over.
    at: Option<Instant>,
    /// Time at which the ranks were last asked; None if they need not be asked again.
    asked: Option<Instant>,
}

/// Ranks that wait for a lock, with their lines.
type Locked = Vec<(Option<u32>, Option<Frame>)>;

/// The first sight of a hang that is to end the job.
struct Once {
    at: Instant,
    /// Time of the last movement of this node's ranks.
    moved: Option<Instant>,
    culprits: Vec<(Option<u32>, Kind)>,
}

/// The thread that judges.
struct Watching {
    shared: Arc<SharedJob>,
    end: Arc<Notify>,
    /// Whether the job was judged as still or as held up, and the time before which it is not judged again.
    judged: Option<(bool, Instant)>,
    limit: Option<Limit>,
    /// Number of times that the machine was too busy since the job last moved.
    late: u32,
    /// Ranks that were at a lock when locks were last judged, with their positions.
    locked: Option<Locked>,
    /// A hang that was seen once. It ends the job if it is seen again.
    once: Option<Once>,
    /// A hang was reported before torch gives up. It ends the job if torch does not.
    is_left_to_torch: bool,
    remarks: Remarks,
    /// Time since which the ranks have been moving.
    moves: Option<Instant>,
}

impl Watching {
    fn new(shared: Arc<SharedJob>, end: Arc<Notify>) -> Watching {
        Watching {
            shared,
            end,
            judged: None,
            limit: None,
            late: 0,
            locked: None,
            once: None,
            is_left_to_torch: false,
            remarks: Remarks::default(),
            moves: None,
        }
    }

    fn run(&mut self, told: &Receiver<()>) {
        let tick = (self.shared.watched.after / LOOKS).clamp(MOST_OFTEN, LEAST_OFTEN);
        let mut next = Instant::now() + tick;
        loop {
            match told.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(()) => self.tell_others(),
                Err(RecvTimeoutError::Timeout) => {
                    self.look();
                    next = Instant::now() + tick;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn look(&mut self) {
        let shared = Arc::clone(&self.shared);
        {
            let state = shared.state();
            if state.is_over || (state.ranks.is_empty() && state.ended.is_empty()) {
                return;
            }
        }
        shared.look();
        if shared.watched.only_answers {
            return;
        }
        let now = Instant::now();
        let stands = shared.stands();
        let limit = self.limit_of_torch(now);
        let is_last_chance = limit.is_some_and(|limit| now >= limit);
        if stands == Standing::Moves && !is_last_chance {
            (self.judged, self.late, self.locked, self.once) = (None, 0, None, None);
            self.is_left_to_torch = false;
            if !shared.state().progress.has_moved() {
                return;
            }
            self.remarks.over(&shared);
            let since = *self.moves.get_or_insert(now);
            let longest = GIVING_UP.min(shared.watched.after.mul_f64(GIVING_UP_PART));
            if now.duration_since(since) >= longest {
                self.goes_on();
            }
            return;
        }
        self.moves = None;
        let is_still = stands == Standing::Still;
        let was_judged = self.judged.is_some_and(|(still, next)| still == is_still && now < next);
        let is_reported = shared.state().stands && !self.is_left_to_torch;
        if is_reported || (was_judged && !is_last_chance) {
            return;
        }
        if self.once.as_ref().is_some_and(|once| now.duration_since(once.at) < APART) {
            return;
        }
        // The patience of another node does not matter when torch is about to end the wait.
        if !is_last_chance && !self.do_others_stand() {
            return;
        }
        let (collectives, since, pauses) = {
            let state = shared.state();
            (state.progress.collectives(), state.progress.moved(), shared.awake.pauses())
        };
        let (nodes, silent) = self.evidence();
        let moved = |node: &NodeEvidence| {
            node.moved_ms.is_some_and(|moved| moved < millis(EARLY.min(shared.watched.after)))
        };
        if is_last_chance && nodes.iter().any(moved) {
            return;
        }
        match judge(&nodes, &silent, !is_last_chance) {
            // Nothing is known about unobserved time.
            _ if shared.awake.pauses() != pauses => {}
            Judgement::Hangs(hang)
                if (hang.late || !silent.is_empty())
                    && !is_last_chance
                    && self.late < MOST_LATE =>
            {
                self.late += 1;
            }
            Judgement::Hangs(hang) if !is_last_chance && self.may_be_released(&hang) => {
                tracing::info!(locked = ?self.locked, "nothing moves, and a lock may be released");
                self.judged = Some((is_still, now + shared.watched.after));
            }
            Judgement::Hangs(_) if !is_last_chance && self.moved_since(&collectives) => {
                tracing::info!("nothing moved, but did while it was judged");
            }
            Judgement::Hangs(hang) => {
                // At its last chance, torch itself ends a wait, so a rank at work may still come.
                let may_end = shared.watched.on_hang != Reaction::Report;
                let ends = may_end && !is_last_chance;
                if !ends || self.is_seen_again(&hang, since) {
                    self.report(&found(since, hang), ends);
                    self.is_left_to_torch = may_end && is_last_chance;
                }
                if is_last_chance {
                    self.limit = self.limit.map(|limit| Limit { at: None, asked: None, ..limit });
                }
            }
            no_hang => {
                tracing::info!(?no_hang, "nothing moves, and nothing hangs");
                self.once = None;
                if let Judgement::HeldUp { seen: Some(hang), .. } = &no_hang {
                    self.remarks.make(&shared, &found(since, hang.clone()));
                }
                self.judged = Some((is_still, now + shared.watched.after));
                if is_last_chance {
                    self.limit = self.limit.map(|limit| Limit { at: None, asked: None, ..limit });
                } else if let Judgement::HeldUp { gives_up_ns: Some(ns), .. } = no_hang {
                    // The limit of all nodes.
                    self.limit = self.limit_at(self.instant(time(ns)), now);
                }
            }
        }
    }

    /// Whether the same hang was seen before, and nothing has moved since.
    fn is_seen_again(&mut self, hang: &Hang, moved: Option<Instant>) -> bool {
        let culprits: Vec<_> = hang.culprits.iter().map(|one| (one.rank, one.kind)).collect();
        let is_same = |once: &Once| once.moved == moved && once.culprits == culprits;
        if self.once.as_ref().is_some_and(is_same) {
            return true;
        }
        self.once = Some(Once { at: Instant::now(), moved, culprits });
        false
    }

    /// A lock that no other rank waits for is usually released, though perhaps only after long work in another
    /// thread or on a busy machine. It is a hang if the same ranks are still there when judged again.
    fn may_be_released(&mut self, hang: &Hang) -> bool {
        let is_lock = |one: &Culprit| one.kind == Kind::Deadlock;
        if hang.is_awaited || !hang.culprits.iter().all(is_lock) {
            return false;
        }
        let locked = hang.culprits.iter().map(|one| (one.rank, one.frame.clone())).collect();
        let before = self.locked.replace(locked);
        before != self.locked
    }

    /// Whether a rank of this node entered or left a collective, perhaps its first, while the evidence was gathered,
    /// which takes seconds on a busy machine. If the last rank of a job has just come, the records show all ranks
    /// waiting.
    /// Output of a rank proves nothing: it may be the rank's answer to the gathering.
    fn moved_since(&self, collectives: &BTreeMap<GlobalRank, u64>) -> bool {
        self.shared.look();
        let now = self.shared.state().progress.collectives();
        now.iter().any(|(rank, count)| collectives.get(rank) != Some(count))
    }

    /// False if ranks of another node move. A node that does not answer is ignored.
    fn do_others_stand(&self) -> bool {
        let read = |bytes: Vec<u8>| serde_json::from_slice::<Standing>(&bytes).ok();
        let answers = (self.shared.watched.ask)(&HangQuestion::Standing, STANDING);
        answers.into_iter().all(|(_, answer)| answer.and_then(read) != Some(Standing::Moves))
    }

    /// The evidence of all nodes, and the nodes that gave none.
    fn evidence(&self) -> (Vec<NodeEvidence>, Vec<u32>) {
        let read = |bytes: Vec<u8>| serde_json::from_slice::<NodeEvidence>(&bytes).ok();
        let (mut nodes, mut silent) = (Vec::new(), Vec::new());
        for (node, answer) in (self.shared.watched.ask)(&HangQuestion::Evidence, EVIDENCE) {
            match answer.and_then(read) {
                Some(evidence) => nodes.push(evidence),
                None => silent.push(node),
            }
        }
        (nodes, silent)
    }

    /// A little before torch itself ends the wait. Asked once for each wait, but again if no rank could tell.
    fn limit_of_torch(&mut self, now: Instant) -> Option<Instant> {
        let shared = Arc::clone(&self.shared);
        let (since, waits) = {
            let state = shared.state();
            (state.progress.moved()?, state.progress.waits())
        };
        self.limit = self.limit.filter(|limit| limit.of == since);
        let long = waits && now.duration_since(since) >= EARLY.min(shared.watched.after);
        let unknown = self.limit.is_none_or(|limit| {
            let again = limit.asked.is_some_and(|asked| now.duration_since(asked) >= EARLY);
            limit.at.is_none() && again
        });
        if long && unknown {
            let at = self
                .instant(shared.watched.control.as_deref().and_then(gives_up_ns).and_then(time));
            self.limit = Some(Limit { of: since, at, asked: Some(now) });
        }
        let left = self.limit?.at?.saturating_duration_since(now);
        let whole = left + now.duration_since(since);
        Some(now + left.saturating_sub(whole.mul_f64(BEFORE_LIMIT)))
    }

    /// A limit with this time, unless the last chance of the wait is over.
    fn limit_at(&self, at: Option<Instant>, now: Instant) -> Option<Limit> {
        let since = self.shared.state().progress.moved()?;
        let known = self.limit.filter(|limit| limit.of == since);
        match known {
            Some(limit) if limit.asked.is_none() || at.is_none() => Some(limit),
            _ => Some(Limit { of: since, at, asked: Some(now) }),
        }
    }

    /// None for a time that is over, since torch has not given up then.
    fn instant(&self, at: Option<SystemTime>) -> Option<Instant> {
        let began = self.shared.state().progress.last_moved()?;
        self.shared.awake.instant(at?, began)
    }

    /// `ends`: the action of `--on-hang` is taken.
    fn report(&mut self, found: &Standstill, ends: bool) {
        let shared = Arc::clone(&self.shared);
        let (on_hang, reporter) = (shared.watched.on_hang, &shared.watched.reporter);
        let news = JudgedHang { document: reporter.document(found), first: found.hang.first() };
        // The hang is recorded before anybody can answer the report.
        if !shared.note(news.clone()) {
            return;
        }
        let then = Some(on_hang).filter(|on_hang| ends || *on_hang == Reaction::Report);
        reporter.stands_still(found, then);
        (shared.watched.ask)(&HangQuestion::Stands(Box::new(news)), STANDING);
        if ends {
            shared.state().is_over = true;
            self.end.notify_one();
        }
    }

    fn goes_on(&self) {
        if self.shared.goes_on() {
            self.tell_others();
        }
    }

    fn tell_others(&self) {
        (self.shared.watched.ask)(&HangQuestion::Moves, STANDING);
    }
}

/// The standstill for a hang, or a remark, of ranks that last moved at `moved`.
fn found(moved: Option<Instant>, hang: Hang) -> Standstill {
    let after = moved.map(|moved| moved.elapsed()).unwrap_or_default();
    Standstill { at: SystemTime::now(), after, hang }
}

/// Converts ns since 1970.
fn time(ns: i64) -> Option<SystemTime> {
    Some(UNIX_EPOCH + Duration::from_nanos(u64::try_from(ns).ok()?))
}

/// A remark is repeated after a wait that is longer by this factor.
const AGAIN: u32 = 2;

/// The remarks on the current wait.
#[derive(Debug, Default)]
struct Remarks {
    /// Ranks that the others wait for, with their nodes, and the length of the wait at the last remark.
    said: Option<(Vec<(u32, u32)>, Duration)>,
}

impl Remarks {
    fn make(&mut self, shared: &SharedJob, found: &Standstill) {
        let awaited: Vec<(u32, u32)> =
            found.hang.culprits.iter().filter_map(|one| one.node.zip(one.rank)).collect();
        let is_news = self.said.as_ref().is_none_or(|(before, after)| {
            *before != awaited || found.after >= after.saturating_mul(AGAIN)
        });
        if awaited.is_empty() || !is_news || shared.state().is_closed {
            return;
        }
        if self.said.as_ref().is_some_and(|(before, _)| *before != awaited) {
            self.over(shared);
        }
        let watched = &shared.watched;
        let document = watched.reporter.document(found);
        watched.reporter.keep(json!({ "message": "held_up", "held_up": document }));
        for (node, rank) in &awaited {
            watched.board.holds_up(*node, GlobalRank(*rank), 1.0);
        }
        watched.reporter.remark(found);
        self.said = Some((awaited, found.after));
    }

    /// The ranks move.
    fn over(&mut self, shared: &SharedJob) {
        let Some((awaited, _)) = self.said.take() else { return };
        if shared.state().is_closed {
            return;
        }
        for (node, rank) in awaited {
            shared.watched.board.holds_up_no_more(GlobalRank(rank));
            let event = json!({ "message": "held_up_over", "node": node, "rank": rank });
            shared.watched.reporter.keep(event);
        }
    }
}

#[cfg(test)]
mod tests;
