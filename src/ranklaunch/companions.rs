//! Companions of the ranks of an attempt, with the sources that they look at. Each companion hears when a rank
//! begins and ends.
//!
//! One of them judges the rules of the profile (`[[watch]]`): it takes the output of the ranks as the search for
//! causes reads it; reports each breach once, and asks for the end of the job if the rule requires it. Its thread has
//! the lowest priority and runs only if there are rules, so no rank is ever blocked.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::agree::Agreed;
use super::context::Context;
use super::live_diagnosis::{LOWEST, LiveDiagnosis, ToRules};
use super::node_questions::Nodes;
use super::scratch::Scratch;
use super::status_feed;
use logs::LogFolder;
use monitor::hang::HangWatch;
use monitor::socket::RunningRanks;
use monitor::watch::{
    self, Awake, Breach, NodeSources, RasSource, Rules, Sampler, SamplingPace, SlowWatch,
};
use monitor::witnesses::{LiveGpus, WatchedGpu, Witnesses};
use muster::{MemberKind, Questions};
use node::observe::Counters;
use node::observe::{GpuSource, Limits};
use node::probe::NvmlGpu;
use plan::Plan;
use settings::{Reaction, Rule};
use text::order::InOrder;
use text::rank::{GlobalRank, LocalRank};
use tokio::sync::Notify;
use verdict::outcome::{Notice, Planned, RankUnit};

/// The companions of one attempt.
pub(super) struct Companions<'a> {
    pub(super) rules: &'a WatchedRanks,
    pub(super) sampler: &'a Sampler,
    pub(super) slow: &'a SlowWatch,
    pub(super) running: &'a RunningRanks,
    pub(super) hang: &'a HangWatch,
    pub(super) witnesses: &'a Witnesses,
    pub(super) diagnosis: &'a LiveDiagnosis,
}

impl Companions<'_> {
    /// Tells each companion what it needs of a notice. `end` is None if the rank's shim was lost without a report;
    /// after `Stopping`, ranks end because they were told to.
    pub(super) fn hear(&self, notice: &Notice) {
        let Companions { rules, sampler, slow, running, hang, witnesses, diagnosis } = self;
        match notice {
            Notice::RankStarted { rank, pid } => {
                rules.say(Event::Began(rank.global, Instant::now()));
                sampler.began(rank.global, *pid);
                slow.began(rank.global, *pid);
                running.began(*rank, *pid);
                hang.began(*rank, *pid);
                witnesses.began(rank.global, *pid);
            }
            Notice::RankEnded { rank, end } => {
                rules.say(Event::Ended(rank.global));
                sampler.ended(rank.global);
                slow.ended(rank.global);
                running.ended(*rank);
                hang.ended(*rank, *end);
            }
            Notice::Stopping { .. } => {
                rules.say(Event::Stopping);
                hang.stopping();
                diagnosis.stopping();
            }
            _ => {}
        }
    }
}

/// The channel by which this node asks the others.
pub(super) fn nodes(ready: &Agreed, plan: &Plan) -> Nodes {
    let member = &plan.membership;
    let unit = if member.task.is_some() { MemberKind::Task } else { MemberKind::Node };
    let questions = match &ready.session {
        Some(session) => session.questions(),
        None => Questions::alone(member.member()),
    };
    let reaches_all = ready.session.is_some() || member.members() == 1;
    let leads = ready.session.as_ref().map_or(member.member() == 0, |session| session.leads());
    Nodes { questions, member: member.member(), unit, reaches_all, leads }
}

/// The task that samples the node and its ranks into the journal.
pub(super) fn sampler(
    context: &Context,
    folder: Option<&LogFolder>,
    scratch: &Scratch,
    plan: &Plan,
    live_gpus: Option<LiveGpus>,
) -> Sampler {
    let host = Arc::clone(&context.host);
    let (ports_host, ports) = (Arc::clone(&context.host), plan.network.hcas.clone());
    let node = watch::WatchedNode {
        ports: match ports.is_empty() {
            true => None,
            false => Some(Arc::new(move || Counters::traffic(&ports_host, &ports))),
        },
        log_folder: folder.map(LogFolder::path),
        control: scratch.control(),
        sources: node_sources(context, plan),
        live_gpus: Box::new(move || live_gpus.as_ref().map(LiveGpus::now).unwrap_or_default()),
        group_memory: Box::new(move || Limits::memory_in_use(&host)),
    };
    Sampler::start(node, SamplingPace::STANDARD, status_feed::sinks(context))
}

/// The counters of the node, without GPUs if the ranks have none.
pub(super) fn node_sources(context: &Context, plan: &Plan) -> NodeSources {
    let (ports, mode) = (plan.network.hcas.clone(), context.settings.probe.value);
    let uses_gpus = plan.gpu_source == GpuSource::Nvml && !plan.gpus.is_empty();
    NodeSources {
        host: Arc::clone(&context.host),
        hcas: Arc::new(move |host| Counters::read(host, &ports)),
        gpus: Arc::new(
            move |host, timeout| {
                if uses_gpus { NvmlGpu::now(host, mode, timeout) } else { Vec::new() }
            },
        ),
    }
}

/// The GPUs of the plan that the ranks of this launcher use.
pub(super) fn watched_gpus(plan: &Plan, planned: Planned) -> Vec<WatchedGpu> {
    let mut gpus: Vec<WatchedGpu> = Vec::new();
    let own = plan.membership.task.as_ref().map(|task| task.local.0);
    let selected = plan.gpus.iter().filter(|gpu| gpu.selected);
    for gpu in selected.filter(|gpu| own.is_none() || gpu.local_rank == own) {
        let Some(pci) = gpu.pci.clone() else { continue };
        let is_rank = planned.what == RankUnit::Rank;
        let rank = match own {
            Some(_) => Some(planned.first),
            None => gpu.local_rank.map(|local| planned.rank(LocalRank(local)).global),
        };
        let rank = rank.filter(|_| is_rank);
        match gpus.iter_mut().find(|known| known.pci == pci) {
            // Instances of one GPU.
            Some(known) => known.rank = known.rank.filter(|known| Some(*known) == rank),
            None => gpus.push(WatchedGpu { pci, index: gpu.index, rank }),
        }
    }
    gpus
}

/// NCCL is used where there are GPUs.
pub(super) fn ras_source(plan: &Plan) -> RasSource {
    if plan.gpus.iter().any(|gpu| gpu.selected) { RasSource::Gpus } else { RasSource::IfNamed }
}

/// Maximum delay of the report of a breach, besides the delay from the priority.
const TICK: Duration = Duration::from_millis(500);

/// Time limit of one look at the GPUs.
const GPUS: Duration = Duration::from_secs(5);

/// Judges the rules of the profile until the result is dropped. Does nothing without rules.
pub(super) fn watch_rules(
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
    let own: BTreeSet<_> = own.map(|gpu| gpu.index).in_set();
    let gpus = move || {
        let gpus = (sources.gpus)(&sources.host, GPUS);
        let of_job = gpus.into_iter().filter(|gpu| own.contains(&gpu.index));
        of_job.filter_map(|gpu| gpu.health.load.utilization).collect()
    };
    let (say, lang, keep) = (context.speaker(), context.lang(), context.journal.keeper());
    let board = context.board.clone();
    let tell = move |breach: &Breach| {
        board.finding(&format!("rule {}", breach.rule));
        let now = Instant::now();
        keep(breach.event(now, lang));
        say(&breach.words(now));
    };
    let rules = Rules::new(rules);
    let (end, fatal) = (Arc::<Notify>::default(), Arc::default());
    let mut watch = RuleWatch {
        pace: rules.gpu_pace(),
        gpus: Box::new(gpus),
        tell: Box::new(tell),
        end: Arc::clone(&end),
        fatal: Arc::clone(&fatal),
    };
    let ((to, hear), read_up) = (channel(), diagnosis.read_along(rules));
    let thread = std::thread::Builder::new().name("rules".to_owned());
    match thread.spawn(move || watch.run(&hear, &read_up)) {
        Ok(_) => WatchedRanks { to: Some(to), end, fatal },
        Err(error) => {
            tracing::warn!(%error, "no thread for the rules of the profile");
            WatchedRanks::default()
        }
    }
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
                news.drain(..).for_each(|event| match event {
                    Event::Began(rank, at) => rules.began(rank, at),
                    Event::Ended(rank) => rules.ended(rank),
                    Event::Stopping => rules.stopping(),
                });
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
