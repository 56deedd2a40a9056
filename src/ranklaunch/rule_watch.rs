//! Judges the rules of the profile (`[[watch]]`) while ranks run.
//!
//! Takes the starts and ends of ranks, and their output as the search for causes reads it; reports each breach once,
//! and asks for the end of the job if the rule requires it. Its thread has the lowest priority and runs only if
//! there are rules, so no rank is ever blocked.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::context::Context;
use super::live_diagnosis::{LOWEST, LiveDiagnosis, ToRules};
use monitor::watch::{Awake, Breach, NodeSources, Rules};
use plan::Plan;
use report::closing;
use settings::{Reaction, Rule};
use text::rank::GlobalRank;
use tokio::sync::Notify;

/// Maximum delay of the report of a breach, besides the delay from the priority.
const TICK: Duration = Duration::from_millis(500);

/// Time limit of one look at the GPUs.
const GPUS: Duration = Duration::from_secs(5);

/// Judges the rules of the profile until the result is dropped. Does nothing without rules.
pub(super) fn begin(
    context: &Context,
    plan: &Plan,
    sources: NodeSources,
    diagnosis: &LiveDiagnosis,
) -> WatchedRanks {
    let of_hang = Some(context.settings.on_hang.value);
    let resolved = |rule: &Rule| Rule { on: rule.on.or(of_hang), ..rule.clone() };
    let rules: Vec<_> = context.settings.watch.iter().map(|rule| resolved(&rule.value)).collect();
    if rules.is_empty() {
        return WatchedRanks::default();
    }
    let own = plan.gpus.iter().filter(|gpu| gpu.selected);
    let own: BTreeSet<_> = own.map(|gpu| gpu.index).collect();
    let gpus = move || {
        let gpus = (sources.gpus)(&sources.host, GPUS);
        let of_job = gpus.into_iter().filter(|gpu| own.contains(&gpu.index));
        of_job.filter_map(|gpu| gpu.health.load.utilization).collect()
    };
    let (console, lang, keep) = (context.console.clone(), context.lang(), context.journal.keeper());
    let board = context.board.clone();
    let tell = move |breach: &Breach| {
        board.finding(&format!("rule {}", breach.rule));
        let now = Instant::now();
        keep(breach.event(now, lang));
        console.say(&closing::line(&breach.words(now), lang));
    };
    let rules = Rules::new(rules);
    let watch = RuleWatch {
        pace: rules.gpu_pace(),
        gpus: Box::new(gpus),
        tell: Box::new(tell),
        end: Arc::default(),
        fatal: Arc::default(),
    };
    watch.start(diagnosis.read_along(rules))
}

/// Data that the watch reads besides the output, and the receivers of a breach.
struct RuleWatch {
    /// Interval of the looks at the GPUs; None means never.
    pace: Option<Duration>,
    /// The utilisation of the job's GPUs in percent; empty if the driver does not answer.
    gpus: Box<dyn Fn() -> Vec<u32> + Send>,
    tell: Box<dyn Fn(&Breach) + Send>,
    end: Arc<Notify>,
    fatal: Arc<OnceLock<(Breach, Instant)>>,
}

enum Event {
    Began(GlobalRank, Instant),
    Ended(GlobalRank),
    Stopping,
}

/// Informs the thread about the ranks. The thread ends when this is dropped.
#[derive(Debug, Default)]
pub(super) struct WatchedRanks {
    to: Option<Sender<Event>>,
    end: Arc<Notify>,
    fatal: Arc<OnceLock<(Breach, Instant)>>,
}

impl WatchedRanks {
    pub(super) fn began(&self, rank: GlobalRank) {
        self.say(Event::Began(rank, Instant::now()));
    }

    pub(super) fn ended(&self, rank: GlobalRank) {
        self.say(Event::Ended(rank));
    }

    pub(super) fn stopping(&self) {
        self.say(Event::Stopping);
    }

    fn say(&self, event: Event) {
        if let Some(to) = &self.to {
            let _ = to.send(event);
        }
    }

    /// Completes when the job is to end for a rule; once.
    pub(super) fn take_end(&self) -> impl Future<Output = ()> + Send + use<> {
        let end = Arc::clone(&self.end);
        async move { end.notified().await }
    }

    /// The breach for which the job is to end, and its time.
    pub(super) fn fatal(&self) -> Option<&(Breach, Instant)> {
        self.fatal.get()
    }
}

impl RuleWatch {
    fn start(
        mut self,
        read_up: impl Fn(&mut ToRules<'_>) -> Vec<Breach> + Send + 'static,
    ) -> WatchedRanks {
        let (say, hear) = channel();
        let (end, fatal) = (Arc::clone(&self.end), Arc::clone(&self.fatal));
        let thread = std::thread::Builder::new().name("rules".to_owned());
        match thread.spawn(move || self.run(&hear, &read_up)) {
            Ok(_) => WatchedRanks { to: Some(say), end, fatal },
            Err(error) => {
                tracing::warn!(%error, "no thread for the rules of the profile");
                WatchedRanks::default()
            }
        }
    }

    fn run(&mut self, hear: &Receiver<Event>, read_up: &impl Fn(&mut ToRules<'_>) -> Vec<Breach>) {
        // Nothing is read before the job starts.
        let Ok(first) = hear.recv() else { return };
        // The first call reads the catalogue. Without it, a question for the cause of a failure would wait for that.
        read_up(&mut |_| Vec::new());
        // Linux sets the nice value of the calling thread alone. If this fails, the rules only cost more.
        let _ = rustix::process::setpriority_process(None, LOWEST);
        let mut news = vec![first];
        let mut looked: Option<Instant> = None;
        let (awake, mut pauses) = (Awake::start(), 0);
        loop {
            match hear.recv_timeout(TICK) {
                Ok(event) => {
                    news.push(event);
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let due = |pace| looked.is_none_or(|looked| looked.elapsed() >= pace);
            let gpus = self.pace.is_some_and(due).then(|| (self.gpus)());
            let before = std::mem::replace(&mut pauses, awake.pauses());
            let now = Instant::now();
            looked = if gpus.is_some() { Some(now) } else { looked };
            let found = read_up(&mut |rules| {
                news.drain(..).for_each(|event| apply(rules, event));
                if pauses != before {
                    rules.begin_afresh(now);
                }
                if let Some(gpus) = &gpus {
                    rules.gpus(now, gpus);
                }
                rules.judge(now)
            });
            for breach in found {
                (self.tell)(&breach);
                if breach.on != Reaction::Report {
                    self.fatal.get_or_init(|| (breach, now));
                    self.end.notify_one();
                }
            }
        }
    }
}

fn apply(rules: &mut Rules, event: Event) {
    match event {
        Event::Began(rank, at) => rules.began(rank, at),
        Event::Ended(rank) => rules.ended(rank),
        Event::Stopping => rules.stopping(),
    }
}
