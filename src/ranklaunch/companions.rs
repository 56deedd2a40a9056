//! Companions of the ranks of an attempt, with the sources that they look at. Each companion hears when a rank
//! begins and ends. A new one is a row of [`Companion`] and a name in `attempt.rs`.

use std::sync::Arc;

use super::context::Context;
use super::live_diagnosis::LiveDiagnosis;
use super::node_questions::Nodes;
use super::ready::Ready;
use super::rule_watch::WatchedRanks;
use super::scratch::Scratch;
use super::status_feed;
use logs::LogFolder;
use monitor::socket::RunningRanks;
use monitor::standstill::HangWatch;
use monitor::watch::{self, NodeSources, RasSource, Sampler, SamplingPace, SlowWatch};
use monitor::witnesses::{LiveGpus, WatchedGpu, Witnesses};
use muster::{MemberKind, Questions};
use node::observe::Counters;
use node::observe::{GpuSource, Limits};
use node::probe::NvmlGpu;
use plan::Plan;
use supervise::inject::Injection;
use text::rank::{LocalRank, RankId};
use verdict::outcome::{End, Notice, Planned, RankUnit};

/// A listener that wants to know which ranks run. An implementation leaves out the methods that it does not need.
pub(super) trait Companion: Sync {
    fn began(&self, _rank: RankId, _pid: i32) {}
    /// None if the rank's shim was lost without a report.
    fn ended(&self, _rank: RankId, _end: Option<End>) {}
    /// From now on ranks end because they were told to.
    fn stopping(&self) {}

    fn hear(&self, notice: &Notice) {
        match notice {
            Notice::RankStarted { rank, pid } => self.began(*rank, *pid),
            Notice::RankEnded { rank, end } => self.ended(*rank, *end),
            Notice::Stopping { .. } => self.stopping(),
            _ => {}
        }
    }
}

impl Companion for WatchedRanks {
    fn began(&self, rank: RankId, _pid: i32) {
        self.began(rank.global);
    }

    fn ended(&self, rank: RankId, _end: Option<End>) {
        self.ended(rank.global);
    }

    fn stopping(&self) {
        self.stopping();
    }
}

impl Companion for Sampler {
    fn began(&self, rank: RankId, pid: i32) {
        self.began(rank.global, pid);
    }

    fn ended(&self, rank: RankId, _end: Option<End>) {
        self.ended(rank.global);
    }
}

impl Companion for SlowWatch {
    fn began(&self, rank: RankId, pid: i32) {
        self.began(rank.global, pid);
    }

    fn ended(&self, rank: RankId, _end: Option<End>) {
        self.ended(rank.global);
    }
}

impl Companion for RunningRanks {
    fn began(&self, rank: RankId, pid: i32) {
        self.began(rank, pid);
    }

    fn ended(&self, rank: RankId, _end: Option<End>) {
        self.ended(rank);
    }
}

impl Companion for HangWatch {
    fn began(&self, rank: RankId, pid: i32) {
        self.began(rank, pid);
    }

    fn ended(&self, rank: RankId, end: Option<End>) {
        self.ended(rank, end);
    }

    fn stopping(&self) {
        self.stopping();
    }
}

impl Companion for Witnesses {
    fn began(&self, rank: RankId, pid: i32) {
        self.began(rank.global, pid);
    }
}

impl Companion for LiveDiagnosis {
    fn stopping(&self) {
        self.stopping();
    }
}

/// The channel by which this node asks the others.
pub(super) fn nodes(ready: &Ready, plan: &Plan) -> Nodes {
    let member = &plan.membership;
    let unit = if member.task.is_some() { MemberKind::Task } else { MemberKind::Node };
    let questions = match &ready.session {
        Some(session) => session.questions(),
        None => Questions::alone(member.member()),
    };
    let reaches_all = ready.session.is_some() || member.members() == 1;
    Nodes { questions, member: member.member(), unit, reaches_all }
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
        control: scratch.injection().map(Injection::control),
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
