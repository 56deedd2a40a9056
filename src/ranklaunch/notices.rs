//! Notices of a stop to come: one that this node hears reaches all nodes at once, the ranks find it in a file, and those
//! that handle the signal of `[notice]` get it in time to save.
//!
//! Takes the notices of `monitor::notice` and those of other nodes; gives the stop of the ranks when it is due, and
//! what viewers, records and the verdict say about it. A rank that handles no such signal is left alone: it would only
//! lose the time that it has. While a notice is pending, nothing starts and nothing is started again.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;

use linux::deadline::{millis, spawn_detached};
use linux::sys::signal_name;
use monitor::notice::{OVERDUE, StopNotice};
use monitor::socket::RunningRanks;
use monitor::status::{NoticeStatus, StatusBoard};
use muster::Seating;
use report::ending::Announced;
use settings::NoticeSource;
use text::lang::Text;
use text::letters::plain;
use text::text;
use verdict::outcome::{NoticedStop, RankUnit};

/// Time limit for the other nodes to hear of a notice before this node stops its ranks.
const TOLD: Duration = Duration::from_secs(2);
/// Interval at which the ranks are asked whether they handle the signal by now.
const LOOK: Duration = Duration::from_millis(250);
/// Ranks that handle no signal for so long are said to: Python sets its handlers some seconds after its start.
const REMARKED: Duration = Duration::from_secs(5);
/// The farthest deadline, in milliseconds: a year. No notice comes earlier, and no clock overflows.
const FARTHEST: u64 = 365 * 86_400_000;
/// Maximum length of a text of another node, in bytes.
const LONGEST: usize = 1024;

/// A notice as one node tells it to the others, whose clocks may differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ToldNotice {
    source: String,
    reason: Text,
    /// The node that heard it.
    node: u32,
    /// Time to the deadline; None: not known.
    left_ms: Option<u64>,
    /// The ranks are signalled at once, however far the deadline is.
    #[serde(default)]
    at_once: bool,
    /// The whole job is to end, not only this node.
    #[serde(default)]
    is_of_job: bool,
}

/// The pending notice.
#[derive(Debug, Clone)]
struct Heard {
    told: ToldNotice,
    at: (Instant, SystemTime),
    /// The deadline, or the time that is assumed in its place.
    deadline: Instant,
}

impl Heard {
    fn is_pending(&self) -> bool {
        Instant::now() < self.deadline + OVERDUE
    }

    /// The deadline by the clock of this node; None: not known.
    fn deadline_at(&self) -> Option<SystemTime> {
        self.at.1.checked_add(Duration::from_millis(self.told.left_ms?))
    }

    fn status(&self) -> NoticeStatus {
        let ms =
            |at: SystemTime| millis(at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
        NoticeStatus {
            source: self.told.source.clone(),
            reason: self.told.reason.clone(),
            node: self.told.node,
            heard_ms: ms(self.at.1),
            deadline_ms: self.deadline_at().map(ms),
        }
    }

    /// The document in the file of the ranks.
    fn document(&self) -> Value {
        json!({
            "reason": self.told.reason.en,
            "deadline": self.deadline_at().map(report::files::stamp),
            "source": self.told.source,
        })
    }
}

/// The notices of this launch. Clones share the same state.
#[derive(Clone)]
pub(super) struct Notices(Arc<Shared>);

struct Shared {
    heard: watch::Sender<Option<Heard>>,
    /// The present attempt.
    attempt: Mutex<Attempt>,
    /// The number of this node, as far as it is known.
    node: AtomicU32,
    /// A source of this node itself has given a notice.
    is_own: AtomicBool,
    /// As a leader: those that can elect another one.
    voters: Mutex<Vec<u32>>,
    /// Nodes that were told to end in this attempt.
    noticed: Mutex<BTreeSet<u32>>,
    /// Held while a notice is compared with the pending one and takes its place: they come from several threads.
    hearing: Mutex<()>,
    lead: Duration,
    grace: Duration,
    board: StatusBoard,
    say: Box<dyn Fn(&Text) + Send + Sync>,
    keep: Box<dyn Fn(Value) + Send + Sync>,
}

/// Tells all nodes of a notice, this one included, within a time.
type TellAll = Arc<dyn Fn(&ToldNotice, Duration) + Send + Sync>;

#[derive(Default)]
struct Attempt {
    /// The way to all nodes.
    tell_all: Option<TellAll>,
    file: Option<PathBuf>,
}

impl Notices {
    /// `lead`: how long before a deadline the ranks are to be signalled, which is also the time that a notice without
    /// one is taken to leave. `grace`: the grace period of a stop.
    pub(super) fn new(
        (lead, grace): (Duration, Duration),
        board: StatusBoard,
        say: impl Fn(&Text) + Send + Sync + 'static,
        keep: impl Fn(Value) + Send + Sync + 'static,
    ) -> Notices {
        let (heard, attempt, hearing) =
            (watch::Sender::new(None), Mutex::default(), Mutex::new(()));
        let (say, keep) = (Box::new(say), Box::new(keep));
        Notices(Arc::new(Shared {
            heard,
            attempt,
            node: AtomicU32::new(0),
            is_own: AtomicBool::new(false),
            voters: Mutex::default(),
            noticed: Mutex::default(),
            hearing,
            lead,
            grace,
            board,
            say,
            keep,
        }))
    }

    fn attempt(&self) -> MutexGuard<'_, Attempt> {
        self.0.attempt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This node has this number.
    pub(super) fn on_node(&self, node: u32) {
        self.0.node.store(node, Ordering::Relaxed);
    }

    /// A source of this node has given a notice. All nodes hear it, this one included.
    pub(super) fn came(&self, notice: &StopNotice) {
        let left =
            notice.deadline.map(|at| at.duration_since(SystemTime::now()).unwrap_or_default());
        let tell_all = self.attempt().tell_all.clone();
        let told = ToldNotice {
            source: notice.source.to_string(),
            reason: notice.reason.clone(),
            node: self.0.node.load(Ordering::Relaxed),
            left_ms: left.map(millis),
            at_once: notice.at_once,
            is_of_job: notice.source == NoticeSource::Slurm,
        };
        self.0.is_own.store(true, Ordering::Relaxed);
        self.tell(told, tell_all);
    }

    fn tell(&self, told: ToldNotice, tell_all: Option<TellAll>) {
        let Some(tell_all) = tell_all else { return self.hear(told) };
        let (own, since) = (self.clone(), Instant::now());
        spawn_detached(move || {
            tell_all(&told, TOLD);
            let left = |ms: u64| ms.saturating_sub(millis(since.elapsed()));
            // Nothing new if the question came round to this node.
            own.hear(ToldNotice { left_ms: told.left_ms.map(left), ..told });
        });
    }

    /// A notice of any node. A second one counts only if its deadline is earlier.
    pub(super) fn hear(&self, mut told: ToldNotice) {
        let cleaned = |text: &str| plain(text, LONGEST);
        let Text { en, zh } = &told.reason;
        told.reason = Text::new(cleaned(en), cleaned(zh));
        told.source = cleaned(&told.source);
        told.left_ms = told.left_ms.map(|left| left.min(FARTHEST));
        let at = (Instant::now(), SystemTime::now());
        let deadline = at.0 + told.left_ms.map_or(self.0.lead, Duration::from_millis);
        let heard = Heard { told, at, deadline };
        let _hearing = self.0.hearing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut noticed = self.0.noticed.lock().unwrap_or_else(PoisonError::into_inner);
        noticed.insert(heard.told.node);
        drop(noticed);
        // Told twice, the deadline differs by the time that the words took.
        let is_news = self.pending().is_none_or(|before| {
            heard.deadline + Duration::from_secs(1) < before.deadline
                || (heard.told.at_once && !before.told.at_once)
        });
        if !is_news {
            return;
        }
        // A rank that is signalled finds the file.
        self.write(&heard);
        let Heard { told: ToldNotice { reason, node, .. }, .. } = &heard;
        let (en, zh) = (&reason.en, &reason.zh);
        let left = heard.told.left_ms.map(|ms| ms.div_ceil(1000));
        (self.0.say)(&match left {
            Some(seconds) => text!(
                "notice on node {node}: {en}; {seconds} s are left",
                "节点 {node} 收到通知：{zh}；剩余 {seconds} 秒"
            ),
            None => text!("notice on node {node}: {en}", "节点 {node} 收到通知：{zh}"),
        });
        let status = heard.status();
        (self.0.keep)(json!({ "message": "notice", "notice": &status }));
        self.0.board.announced(Some(status));
        // Who waits for it speaks after it.
        self.0.heard.send_replace(Some(heard));
    }

    /// An attempt begins. `node`: the number of this node; `tell_all` tells all nodes, and may block for the time that it is
    /// given; `file`: where the ranks find a notice.
    pub(super) fn begin(
        &self,
        node: u32,
        tell_all: impl Fn(&ToldNotice, Duration) + Send + Sync + 'static,
        file: Option<PathBuf>,
    ) {
        self.on_node(node);
        let tell_all: TellAll = Arc::new(tell_all);
        *self.attempt() = Attempt { tell_all: Some(Arc::clone(&tell_all)), file };
        let hearing = self.0.hearing.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.noticed.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let pending = self.pending();
        if let Some(heard) = &pending {
            self.write(heard);
        }
        drop(hearing);
        if let Some(heard) = pending {
            let left = heard.deadline.saturating_duration_since(Instant::now());
            let left_ms = heard.told.left_ms.map(|_| millis(left));
            self.tell(ToldNotice { left_ms, ..heard.told }, Some(tell_all));
        }
    }

    /// The attempt is over.
    pub(super) fn end(&self) {
        *self.attempt() = Attempt::default();
    }

    /// Writes the file of the ranks, which is whole once it has its name.
    fn write(&self, heard: &Heard) {
        let Some(path) = self.attempt().file.clone() else { return };
        let new = path.with_extension("new");
        let document = heard.document().to_string();
        let written = std::fs::write(&new, document).and_then(|()| std::fs::rename(&new, &path));
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "the notice cannot be written");
        }
    }

    fn pending(&self) -> Option<Heard> {
        self.0.heard.borrow().clone().filter(Heard::is_pending)
    }

    /// The reason of the pending notice.
    pub(super) fn reason(&self) -> Option<Text> {
        Some(self.pending()?.told.reason)
    }

    /// This node leads the job, and these nodes can elect another one.
    pub(super) fn leads(&self, voters: Vec<u32>) {
        *self.0.voters.lock().unwrap_or_else(PoisonError::into_inner) = voters;
    }

    /// Whether the voters that stay are enough to elect another leader than this node.
    fn may_leave(&self) -> bool {
        let voters = self.0.voters.lock().unwrap_or_else(PoisonError::into_inner);
        let noticed = self.0.noticed.lock().unwrap_or_else(PoisonError::into_inner);
        voters.iter().filter(|node| !noticed.contains(node)).count() * 2 > voters.len()
    }

    /// Whether the job can go on after the pending notice, if another node waits for the seat of the one that ends soon.
    /// Asked on the node that leads.
    pub(super) fn lets_others_go_on(&self) -> bool {
        let is_own = self.0.is_own.load(Ordering::Relaxed);
        let may_leave = !is_own || self.may_leave();
        self.pending().is_some_and(|heard| may_leave && !heard.told.is_of_job)
    }

    /// The nodes start again. Whether this one ends in place of that, since the notice was its own; on the others it is
    /// over, and the node that gave it takes no part in the next attempt.
    pub(super) fn go_on(&self, seating: &mut Seating) -> bool {
        // An earlier notice whose time is over was called off.
        let Some(heard) = self.pending() else { return false };
        if self.0.is_own.load(Ordering::Relaxed) {
            return true;
        }
        let node = heard.told.node;
        seating.lost.insert(node);
        seating.returning.remove(&node);
        self.0.heard.send_replace(None);
        self.0.board.announced(None);
        false
    }

    /// The time at which the pending notice came.
    pub(super) fn since(&self) -> Option<SystemTime> {
        Some(self.pending()?.at.1)
    }

    /// The pending notice for records.
    pub(super) fn status(&self) -> Option<NoticeStatus> {
        Some(self.pending()?.status())
    }

    /// The pending notice as the verdict tells it.
    pub(super) fn announced(&self) -> Option<Announced> {
        let heard = self.pending()?;
        let left = heard.told.left_ms.map(Duration::from_millis);
        Some(Announced { reason: heard.told.reason, node: heard.told.node, left })
    }

    /// Completes when a notice is pending. Cancel-safe.
    pub(super) async fn came_at_all(&self) {
        let mut heard = self.0.heard.subscribe();
        // The sender lives as long as this value.
        let _ = heard.wait_for(|heard| heard.as_ref().is_some_and(Heard::is_pending)).await;
    }

    /// How long the ranks of this node may go on when those of another one have ended: they may save, or end by
    /// themselves.
    pub(super) fn patience(&self) -> Duration {
        let grace = self.0.grace;
        self.pending().map_or(Duration::ZERO, |heard| grace.min(left_until(heard.deadline, grace)))
    }

    /// Gives the stops of the ranks: one the lead before the deadline, or as soon after that as one of them handles the
    /// signal, and one for each earlier deadline from then on. `number`: the signal; `is_stated`: a person chose it, so
    /// that it also counts for what a command has started.
    pub(super) async fn watch(
        &self,
        ranks: &RunningRanks,
        unit: RankUnit,
        signal: (i32, bool),
        stop: impl Fn(NoticedStop),
    ) -> Infallible {
        let mut heard = self.0.heard.subscribe();
        let first = self.due(ranks, unit, signal).await;
        heard.mark_unchanged();
        stop(first);
        loop {
            // The sender lives as long as this value.
            let _ = heard.changed().await;
            if let Some(Heard { deadline, .. }) = self.pending() {
                stop(self.stop_by(signal.0, deadline));
            }
        }
    }

    /// Completes when the ranks are to be signalled for the first time. Cancel-safe.
    async fn due(
        &self,
        ranks: &RunningRanks,
        unit: RankUnit,
        (number, is_stated): (i32, bool),
    ) -> NoticedStop {
        let (mut remarked, mut heard) = (false, self.0.heard.subscribe());
        let mut unhandled_since = None;
        loop {
            self.came_at_all().await;
            let Some(Heard { deadline, told, .. }) = self.pending() else { continue };
            let due = match told.at_once {
                true => Instant::now(),
                false => deadline.checked_sub(self.0.lead).unwrap_or(deadline),
            };
            tokio::select! {
                () = tokio::time::sleep_until(due.into()) => {}
                // An earlier deadline.
                _ = heard.changed() => continue,
            }
            let pids = ranks.pids();
            let saves = |pid: i32| {
                (unit != RankUnit::Command || is_stated) && supervise::handles(pid, number)
            };
            if pids.iter().any(|(_, pid)| saves(*pid)) {
                return self.stop_by(number, deadline);
            }
            let since = unhandled_since.filter(|_| !pids.is_empty()).unwrap_or_else(Instant::now);
            unhandled_since = Some(since);
            if !remarked && since.elapsed() >= REMARKED {
                remarked = true;
                (self.0.say)(&unsignalled(number, unit == RankUnit::Command && !is_stated));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn stop_by(&self, signal: i32, deadline: Instant) -> NoticedStop {
        NoticedStop { signal, within: left_until(deadline, self.0.grace) }
    }
}

/// A deadline that is nearer than this, or over, is none to keep: the clocks of who announced it and of this node differ,
/// or it comes too late. Ending a save by ourselves would only lose it.
const LEAST: Duration = Duration::from_secs(2);

/// The time that a stop may take: up to the deadline, and the grace period where nothing is left.
fn left_until(deadline: Instant, grace: Duration) -> Duration {
    let left = deadline.saturating_duration_since(Instant::now());
    if left < LEAST { grace.max(LEAST) } else { left }
}

/// Why no process gets the signal. `is_command`: a command of the user's own starts the ranks.
fn unsignalled(number: i32, is_command: bool) -> Text {
    let name = signal_name(number);
    if is_command {
        return text!(
            "the processes of a command get no signal for a notice unless [notice] signal (--notice-signal) names one: its launcher may end them by it",
            "除非用 [notice] signal（--notice-signal）指定信号，否则收到通知时不向命令的进程发送信号：其启动器可能会因此终止各进程"
        );
    }
    text!(
        "no rank handles {name}, so none is signalled: a rank that saves sets a handler, or reads RANKLAUNCH_NOTICE_FILE",
        "没有 rank 处理 {name}，因此不发送信号：要保存的程序应设置信号处理函数，或读取 RANKLAUNCH_NOTICE_FILE"
    )
}
