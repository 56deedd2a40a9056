//! Collects the events of this node, and gives them as a [`NodeStatus`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::phase::{Ledger, Phase, Phases};
use super::{
    EndStatus, GpuStatus, InterfaceStatus, LogStatus, NodeStatus, NoticeStatus, ProgressStatus,
    RankState, RankStatus, RunStatus, SlowStatus, StandstillStatus,
};
use crate::held;
use crate::steps::{Life, Report, Steps, goodput, steps_after};
use crate::watch::{Reported, Sample, SlowNews, StepReports};
use linux::deadline::millis;
use text::lang::Text;
use text::rank::{GlobalRank, RankId};
use verdict::outcome::{End, Notice, Owner};

/// A viewer that looked within this time counts as looking.
const LOOKS_FOR: Duration = Duration::from_secs(10);

/// Maximum number of interfaces that are shown.
const INTERFACES: usize = 32;

/// The current knowledge about the job. Clones are the same board.
#[derive(Clone)]
pub struct StatusBoard(Arc<SharedBoard>);

struct SharedBoard {
    state: Mutex<BoardState>,
    /// Reads the logs. Not held together with the state, since it takes the locks of the logs.
    logs: Mutex<Option<Arc<LogSource>>>,
    /// Wakes the thread that takes samples.
    wake: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

impl std::fmt::Debug for StatusBoard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StatusBoard").finish_non_exhaustive()
    }
}

struct BoardState {
    /// All that is known apart from the other fields.
    known: NodeStatus,
    /// The same moment on both clocks.
    zero: (Instant, SystemTime),
    phases: Phases,
    ranks: BTreeMap<GlobalRank, RankStatus>,
    gpus: BTreeMap<u32, GpuStatus>,
    slow: BTreeMap<GlobalRank, SlowStatus>,
    /// Interfaces that had traffic.
    interfaces: BTreeMap<String, InterfaceStatus>,
    rates: Rates,
    /// The steps of each attempt, and the source of those of the current one.
    steps: Vec<Steps>,
    reports: StepReports,
    looked: Option<Instant>,
    always_watched: bool,
}

impl StatusBoard {
    pub fn new(host: String) -> StatusBoard {
        let now = Instant::now();
        let known = NodeStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host,
            agent_pid: std::process::id(),
            ..NodeStatus::default()
        };
        let state = BoardState {
            known,
            zero: (now, SystemTime::now()),
            phases: Phases::new(now),
            ranks: BTreeMap::new(),
            gpus: BTreeMap::new(),
            slow: BTreeMap::new(),
            interfaces: BTreeMap::new(),
            rates: Rates::default(),
            steps: Vec::new(),
            reports: StepReports::default(),
            looked: None,
            always_watched: false,
        };
        StatusBoard(Arc::new(SharedBoard {
            state: Mutex::new(state),
            logs: Mutex::default(),
            wake: Mutex::default(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, BoardState> {
        held(&self.0.state)
    }

    /// A phase begins. False if it has begun already.
    pub fn enter(&self, phase: Phase) -> bool {
        let mut state = self.state();
        let attempt = state.known.run.as_ref().map_or(0, |run| run.attempt);
        state.phases.enter(phase, attempt, Instant::now())
    }

    /// A further attempt begins by the same plan.
    pub fn set_attempt(&self, attempt: u32) {
        if let Some(run) = &mut self.state().known.run {
            run.attempt = attempt;
        }
    }

    pub fn attempt_number(&self) -> u32 {
        self.state().known.run.as_ref().map_or(0, |run| run.attempt)
    }

    /// Sets the current run, as far as it is known.
    pub fn run(&self, run: RunStatus) {
        self.state().known.run = Some(run);
    }

    /// An attempt begins with these ranks and GPUs.
    pub fn attempt(&self, run: RunStatus, ranks: &[RankId], gpus: Vec<GpuStatus>) {
        let mut state = self.state();
        state.known.run = Some(run);
        state.gpus = gpus.into_iter().map(|gpu| (gpu.gpu, gpu)).collect();
        let gpu_of = |rank: &RankId| {
            state.gpus.values().find(|gpu| gpu.local_rank == Some(rank.local)).map(|gpu| gpu.gpu)
        };
        state.ranks = ranks
            .iter()
            .map(|rank| (rank.global, RankStatus { gpu: gpu_of(rank), ..of_rank(*rank) }))
            .collect();
        (state.known.standstill, state.known.end) = (None, None);
        state.slow.clear();
        state.rates = Rates::default();
        state.known.logs = LogStatus::default();
    }

    /// Sets the source of the steps of the attempt that begins.
    pub fn steps_from(&self, reports: StepReports) {
        let mut state = self.state();
        // The last steps of the attempt before.
        state.read_steps(Instant::now());
        state.reports = reports;
        let attempt = state.known.run.as_ref().map_or(0, |run| run.attempt);
        state.steps.push(Steps::of(attempt));
        let surplus = state.steps.len().saturating_sub(MOST_ATTEMPTS);
        state.steps.drain(..surplus);
    }

    /// The steps of the attempt, for the journal; None as long as no step is known.
    pub fn steps_event(&self) -> Option<Value> {
        let mut state = self.state();
        let now = Instant::now();
        state.read_steps(now);
        let steps = state.steps.last()?;
        let (now, first, last) = (state.ms_of(now), steps.first()?, steps.last()?);
        let told = |one: Report| json!({ "age_ms": now.saturating_sub(one.at), "done": one.done });
        let progress = state.known.progress.as_ref();
        Some(json!({
            "attempt": steps.attempt,
            "since_ms": steps.since().map(|since| now.saturating_sub(since)),
            "first": told(first),
            "last": told(last),
            "step": progress.and_then(|one| one.step),
            "total": steps.total,
            "starts_over": steps.starts_over,
        }))
    }

    /// The steps that were reported since the last checkpoint, which is so old; None: all of them, since there is none.
    /// None if this node knows no steps.
    pub fn steps_since(&self, age: Option<Duration>) -> Option<u64> {
        let mut state = self.state();
        let now = Instant::now();
        state.read_steps(now);
        let now = state.ms_of(now);
        steps_after(&state.steps, age.map(|age| now.saturating_sub(millis(age))))
    }

    /// Sets the source from which the logs of the attempt are read from now on.
    pub fn logs_from(&self, source: LogSource) {
        *held(&self.0.logs) = Some(Arc::new(source));
    }

    /// An event of the supervision. Gives the phase that it begins.
    pub fn notice(&self, notice: &Notice) -> Option<Phase> {
        let now = self.now_ms();
        let mut state = self.state();
        let phase = match notice {
            Notice::RankStarted { rank, pid } => {
                // c10d numbers the ranks in its own way.
                if !state.ranks.contains_key(&rank.global) {
                    state.ranks.retain(|_, planned| {
                        planned.state != RankState::Planned || planned.local_rank != rank.local
                    });
                }
                let known = state.ranks.entry(rank.global).or_insert_with(|| of_rank(*rank));
                known.restarts += u32::from(known.started_ms.is_some());
                known.state = RankState::Running;
                known.pid = Some(*pid);
                known.started_ms = Some(now);
                (known.ended_ms, known.code, known.signal) = (None, None, None);
                let all = state.ranks.values().all(|rank| rank.state != RankState::Planned);
                let launching = state.phases.current().phase == Phase::Launching;
                (all && launching).then_some(Phase::Running)
            }
            Notice::RankEnded { rank, end } => {
                let known = state.ranks.entry(rank.global).or_insert_with(|| of_rank(*rank));
                let well = end.is_some_and(End::success);
                known.state = if well { RankState::Done } else { RankState::Failed };
                known.pid = None;
                known.ended_ms = Some(now);
                (known.code, known.signal) = match end {
                    Some(End::Code(code)) => (Some(*code), None),
                    Some(End::Signal(signal)) => (None, Some(*signal)),
                    None => (None, None),
                };
                None
            }
            Notice::Stopping { .. } => Some(Phase::Stopping),
            _ => None,
        };
        drop(state);
        phase.filter(|phase| self.enter(*phase))
    }

    /// A sample of the node and its ranks.
    pub fn sample(&self, sample: &Sample) {
        let mut state = self.state();
        if let Some(abnormal) = &sample.abnormal {
            state.known.abnormal.clone_from(abnormal);
        }
        if sample.log_folder_free.is_some() {
            state.known.log_folder_free = sample.log_folder_free;
        }
        for one in state.interfaces.values_mut() {
            (one.received, one.sent) = (0.0, 0.0);
        }
        for row in &sample.network {
            // A node may make interfaces again and again.
            if state.interfaces.len() < INTERFACES || state.interfaces.contains_key(&row.interface)
            {
                state.interfaces.insert(row.interface.clone(), row.clone());
            }
        }
        for row in &sample.ranks {
            if let Some(rank) = state.ranks.get_mut(&row.rank) {
                rank.cpu_percent = Some(row.cpu_percent);
                rank.cpu_seconds = Some(row.cpu_seconds);
                rank.memory = Some(row.memory);
            }
        }
        for row in &sample.gpus {
            if let Some(gpu) = state.gpus.get_mut(&row.gpu) {
                let (name, uuid) = (gpu.name.take(), gpu.uuid.take());
                *gpu = GpuStatus { name, uuid, local_rank: gpu.local_rank, ..row.clone() };
            }
        }
        state.known.hcas.clone_from(&sample.hcas);
        state.known.memory = Some(sample.memory);
        state.known.sampled_ms = Some(state.ms_of(Instant::now()));
    }

    /// A finding was made, by its id.
    pub fn finding(&self, id: &str) {
        let mut state = self.state();
        let count = state.known.findings.entry(id.to_owned()).or_default();
        *count = count.saturating_add(1);
    }

    /// The job has stood still for this long. `text`: the rank that the others wait for.
    pub fn stands_still(&self, already: Duration, text: Option<Text>) {
        let now = Instant::now();
        let since = now.checked_sub(already).unwrap_or(now);
        let mut state = self.state();
        let since_ms = state.ms_of(since);
        state.phases.stands_still(since, now);
        state.known.standstill = Some(StandstillStatus { since_ms, text });
        drop(state);
        self.finding("hang");
    }

    /// The job goes on after a hang.
    pub fn goes_on(&self) {
        let mut state = self.state();
        state.phases.goes_on(Instant::now());
        state.known.standstill = None;
    }

    /// A notice came that this node or the job is to end soon. None: the job goes on without the node.
    pub fn announced(&self, notice: Option<NoticeStatus>) {
        self.state().known.notice = notice;
    }

    /// A rank holds the others back, or no longer does. `node`: the node of the rank.
    pub fn slow(&self, node: u32, news: &SlowNews) {
        match news {
            SlowNews::Slow(slow) => self.holds_up(node, slow.rank, slow.lost),
            SlowNews::Over(rank) => self.holds_up_no_more(*rank),
        }
    }

    pub(crate) fn holds_up_no_more(&self, rank: GlobalRank) {
        self.state().slow.remove(&rank);
    }

    /// The others wait for this rank, and lose this share of the time by it.
    pub(crate) fn holds_up(&self, node: u32, rank: GlobalRank, lost: f64) {
        let since_ms = self.now_ms();
        self.state().slow.insert(rank, SlowStatus { rank, node, since_ms, lost });
        self.finding("slow");
    }

    /// The attempt or the launch has its verdict.
    pub fn judged(&self, end: EndStatus) {
        let before = self.state().known.end.replace(end.clone());
        if end.code != 0 && before.as_ref() != Some(&end) {
            self.finding(end.cause.as_ref().unwrap_or(&end.id));
        }
    }

    /// Somebody looks, and wants fresh samples for a while.
    pub fn look(&self) {
        let mut state = self.state();
        let was_watched = state.is_watched();
        state.looked = Some(Instant::now());
        drop(state);
        if !was_watched {
            self.wake();
        }
    }

    /// Somebody looks from now on to the end.
    pub fn keep_watched(&self) {
        self.state().always_watched = true;
        self.wake();
    }

    pub fn is_watched(&self) -> bool {
        self.state().is_watched()
    }

    /// Sets the call that wakes the thread that takes samples when somebody begins to look.
    pub fn wakes(&self, wake: impl Fn() + Send + Sync + 'static) {
        *held(&self.0.wake) = Some(Arc::new(wake));
    }

    fn wake(&self) {
        let wake = held(&self.0.wake).clone();
        if let Some(wake) = wake {
            wake();
        }
    }

    fn now_ms(&self) -> u64 {
        self.state().ms_of(Instant::now())
    }

    /// The current status.
    pub fn snapshot(&self) -> NodeStatus {
        let source = held(&self.0.logs).clone();
        let logs = source.map(|read| read());
        let mut state = self.state();
        let now = Instant::now();
        if let Some(logs) = logs {
            let mut sum = LogStatus::default();
            for one in &logs {
                let rate = state.rates.note(one.owner, one.bytes, now);
                sum.bytes = sum.bytes.saturating_add(one.bytes);
                sum.lines = sum.lines.saturating_add(one.lines);
                sum.dropped_bytes = sum.dropped_bytes.saturating_add(one.dropped_bytes);
                sum.dropped_lines = sum.dropped_lines.saturating_add(one.dropped_lines);
                sum.rate += rate;
                let number = match one.owner {
                    Owner::Engine => continue,
                    Owner::Rank(rank) => rank,
                    Owner::Command(node) => GlobalRank(node),
                };
                let Some(rank) = state.ranks.get_mut(&number) else { continue };
                rank.log_bytes = one.bytes;
                rank.log_lines = one.lines;
                rank.log_rate = rate;
                rank.log_dropped_bytes = one.dropped_bytes;
                rank.log_dropped_lines = one.dropped_lines;
                rank.last_line.clone_from(&one.last_line);
                rank.last_line_age_ms =
                    one.last_at.map(|at| millis(now.saturating_duration_since(at)));
            }
            // The last values stay when the logs are closed.
            if !logs.is_empty() {
                state.known.logs = sum;
            }
        }
        state.read_steps(now);
        state.status(now)
    }
}

/// Maximum number of attempts whose steps are kept.
const MOST_ATTEMPTS: usize = 100;

fn of_rank(rank: RankId) -> RankStatus {
    RankStatus { rank: rank.global, local_rank: rank.local, ..RankStatus::default() }
}

impl BoardState {
    fn is_watched(&self) -> bool {
        self.always_watched || self.looked.is_some_and(|at| at.elapsed() < LOOKS_FOR)
    }

    /// The time of day of a moment.
    fn ms_of(&self, at: Instant) -> u64 {
        let (zero, day) = self.zero;
        let day = day.duration_since(UNIX_EPOCH).unwrap_or_default();
        match at.checked_duration_since(zero) {
            Some(after) => millis(day.saturating_add(after)),
            None => millis(day.saturating_sub(zero.saturating_duration_since(at))),
        }
    }

    fn read_steps(&mut self, now: Instant) {
        let Reported { step, latest, news, recent, starts_over } = self.reports.take();
        let report = |(at, done, total)| (total, Report { at: self.ms_of(at), done: Some(done) });
        let reports: Vec<_> = news.into_iter().map(report).collect();
        let Some(steps) = self.steps.last_mut() else { return };
        reports.into_iter().for_each(|(total, one)| steps.note(total, one));
        steps.starts_over |= starts_over;
        let now = self.ms_of(now);
        self.known.progress = self.steps.last().and_then(Steps::last).map(|last| {
            // `as` saturates, and no count is negative.
            #[expect(clippy::cast_sign_loss, reason = "steps are not negative")]
            let whole = |number: f64| number as u64;
            ProgressStatus {
                done: latest.as_ref().map(|latest| latest.done),
                step: step.map(|(step, _)| whole(step)),
                total: step.map(|(_, total)| whole(total)),
                remaining_ms: latest.and_then(|latest| latest.remaining).map(millis),
                age_ms: Some(now.saturating_sub(last.at)),
                step_ms: recent.iter().map(|seconds| (seconds * 1e6).round() / 1e3).collect(),
            }
        });
    }

    /// The time of the job whose steps count.
    fn goodput_ms(&self, now: Instant) -> Option<u64> {
        let standstills = self.phases.standstills(now);
        let standstills: Vec<_> =
            standstills.map(|(from, to)| (self.ms_of(from), self.ms_of(to))).collect();
        let lives = self.steps.iter().map(|steps| Life { from: 0, to: u64::MAX, steps });
        goodput(&lives.collect::<Vec<_>>(), &standstills)
    }

    fn status(&self, now: Instant) -> NodeStatus {
        let phase = self.phases.current();
        let ledger = Ledger { goodput_ms: self.goodput_ms(now), ..self.phases.ledger(now) };
        NodeStatus {
            at_ms: self.ms_of(now),
            started_ms: self.ms_of(self.zero.0),
            phase: phase.phase,
            phase_since_ms: self.ms_of(phase.began),
            ranks: self.ranks.values().cloned().collect(),
            gpus: self.gpus.values().cloned().collect(),
            interfaces: self.interfaces.values().cloned().collect(),
            slow: self.slow.values().cloned().collect(),
            ledger,
            ..self.known.clone()
        }
    }
}

/// The output that one owner has written so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerLog {
    pub owner: Owner,
    pub bytes: u64,
    pub lines: u64,
    /// Bytes that never reached a file.
    pub dropped_bytes: u64,
    /// Lines that the console did not take in time.
    pub dropped_lines: u64,
    /// The last line, made printable.
    pub last_line: Option<String>,
    /// Time of the last output.
    pub last_at: Option<Instant>,
}

/// Reads the logs of the attempt, from memory.
pub(crate) type LogSource = Box<dyn Fn() -> Vec<OwnerLog> + Send + Sync>;

/// Minimum time over which a rate is measured.
const WINDOW: Duration = Duration::from_secs(2);

/// The rates of all owners, independent of how often they are asked for.
#[derive(Debug, Default)]
pub(super) struct Rates(BTreeMap<Owner, Rate>);

#[derive(Debug)]
struct Rate {
    at: Instant,
    bytes: u64,
    per_second: f64,
}

impl Rates {
    /// Output rate of this owner in bytes per second.
    pub(super) fn note(&mut self, owner: Owner, bytes: u64, now: Instant) -> f64 {
        let rate = self.0.entry(owner).or_insert(Rate { at: now, bytes, per_second: 0.0 });
        let passed = now.saturating_duration_since(rate.at);
        if passed >= WINDOW {
            let per_second = bytes.saturating_sub(rate.bytes) as f64 / passed.as_secs_f64();
            *rate = Rate { at: now, bytes, per_second };
        }
        rate.per_second
    }
}
