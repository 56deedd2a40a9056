//! Chooses the CPUs of each rank.
//!
//! Takes the NUMA nodes, the container's CPUs and the chosen GPUs; gives a CPU
//! list per local rank, or none. Binds nothing itself.
//!
//! A rank gets all CPUs of its GPU's NUMA node, and the ranks of that NUMA node share them.
//! Binding helps because buffers are then allocated near the GPU (first touch needs no memory
//! policy). A split would gain nothing more, and would keep a rank with busy data loaders from
//! the CPUs of an idle neighbour.
//!
//! Off by default. Plain torchrun binds nothing, a kubelet with static CPU management has
//! already bound the container, and if all GPUs are on one NUMA node half of the CPUs would be
//! unused.

use std::collections::BTreeMap;

use crate::Notes;
use crate::PlannedGpu;
use crate::devices::Hardware;
use linux::cpus::CpuList;
use node::observe::Facts;
use settings::{Bind, Settings};
use text::order::InOrder;
use text::text;
use verdict::Id;

/// CPUs per local rank.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bound {
    /// By local rank; None for a rank that is not bound. Empty if no rank is bound.
    pub cpus: Vec<Option<CpuList>>,
    /// CPUs per bound rank, the smallest number of all ranks.
    pub threads: Option<u32>,
}

/// The ranks of a node.
#[derive(Debug, Clone, Copy)]
pub struct Ranks {
    pub nproc: u32,
    /// For a task: the only local rank that is started from here.
    pub own: Option<u32>,
}

/// The binding of the ranks, if it was requested and is possible.
pub fn choose(
    settings: &Settings,
    facts: &Facts,
    hardware: Hardware,
    gpus: &[PlannedGpu],
    Ranks { nproc, own }: Ranks,
    notes: &mut Notes,
) -> Bound {
    let asked = &settings.bind;
    if asked.value == Bind::None {
        return Bound::default();
    }
    if settings.engine.value.runs_a_command() {
        let source = &asked.source;
        notes.warn(
            Id::BindCommand,
            text!(
                "binding ({source}) has no effect: the job's own launcher starts the ranks",
                "绑定（{source}）不起作用：各 rank 由任务自带的启动器启动"
            ),
            text!(
                "use numactl in that launcher, or another --engine",
                "请在该启动器中使用 numactl，或改用其他 --engine"
            ),
        );
        return Bound::default();
    }
    let nodes = &facts.limits.numa;
    if nodes.len() < 2 {
        let count = nodes.len();
        notes.decide(
            "bind",
            "none",
            text!(
                "NUMA nodes seen: {count}, so there is nothing to choose",
                "可见的 NUMA 节点数为 {count}，无可选择"
            ),
            "detected",
        );
        return Bound::default();
    }
    let usable: BTreeMap<u32, CpuList> = nodes
        .iter()
        .map(|(node, cpus)| (*node, cpus.and(&facts.limits.allowed)))
        .filter(|(_, cpus)| !cpus.is_empty())
        .in_map();
    let mut cpus: Vec<Option<CpuList>> = match hardware {
        Hardware::Gpus => {
            (0..nproc).map(|rank| usable.get(&node_of(rank, gpus, facts)?).cloned()).collect()
        }
        Hardware::Cpus => spread(&usable, nproc),
    };
    let threads = threads(&cpus);
    let ours = |rank: usize| own.is_none_or(|own| own as usize == rank);
    let left = (0..).zip(&cpus).filter(|(rank, cpus)| cpus.is_none() && ours(*rank));
    unbound(facts, &left.map(|(rank, _)| rank.to_string()).collect::<Vec<_>>(), notes);
    // The other ranks are bound by the launchers that start them.
    (0..).zip(&mut cpus).filter(|(rank, _)| !ours(*rank)).for_each(|(_, cpus)| *cpus = None);
    if cpus.iter().all(Option::is_none) {
        return Bound::default();
    }
    let because = match hardware {
        Hardware::Gpus => text!(
            "the CPUs of each GPU's NUMA node, shared by its ranks",
            "各 GPU 所在 NUMA 节点的 CPU，由该节点的 rank 共用"
        ),
        Hardware::Cpus => {
            text!("the ranks in order over the NUMA nodes", "各 rank 按顺序分布到 NUMA 节点")
        }
    };
    notes.decide("bind", in_words(&cpus), because, &asked.source);
    Bound { threads, cpus }
}

/// The NUMA node of the GPU that local rank `rank` uses.
fn node_of(rank: u32, gpus: &[PlannedGpu], facts: &Facts) -> Option<u32> {
    let planned = gpus.iter().find(|gpu| gpu.local_rank == Some(rank))?;
    facts.gpus.gpus.iter().find(|gpu| gpu.index == planned.index)?.numa_node
}

/// Ranks without GPUs: distributes the NUMA nodes evenly, at least one per rank.
fn spread(usable: &BTreeMap<u32, CpuList>, nproc: u32) -> Vec<Option<CpuList>> {
    let nodes: Vec<&CpuList> = usable.values().collect();
    let (count, nproc) = (nodes.len() as u64, u64::from(nproc.max(1)));
    (0..nproc)
        .map(|rank| {
            let first = rank * count / nproc;
            let next = ((rank + 1) * count / nproc).max(first + 1);
            let part = (first..next).filter_map(|node| nodes.get(usize::try_from(node).ok()?));
            part.fold(None, |all: Option<CpuList>, node| Some(all.unwrap_or_default().or(node)))
        })
        .collect()
}

/// Warns of ranks that are not bound.
fn unbound(facts: &Facts, left: &[String], notes: &mut Notes) {
    if left.is_empty() {
        return;
    }
    let left = left.join(", ");
    let allowed = &facts.limits.allowed;
    notes.warn(
        Id::BindUnknown,
        text!(
            "local rank {left} cannot be bound: the NUMA node of its GPU is unknown, or holds none of the container's CPUs ({allowed})",
            "本地 rank {left} 无法绑定：其 GPU 的 NUMA 节点未知，或该节点没有容器可用的 CPU（{allowed}）"
        ),
        text!(
            "give the container CPUs of every NUMA node, or leave --bind none",
            "请为容器分配各 NUMA 节点的 CPU，或使用 --bind none"
        ),
    );
}

fn threads(cpus: &[Option<CpuList>]) -> Option<u32> {
    let sharers = |list: &CpuList| cpus.iter().flatten().filter(|other| *other == list).count();
    let share = |list: &CpuList| list.len().checked_div(sharers(list)).unwrap_or(1).max(1);
    cpus.iter().flatten().map(share).min().and_then(|least| u32::try_from(least).ok())
}

/// `0-3: 0-31; 4-7: 32-63`: local ranks and their CPUs.
fn in_words(cpus: &[Option<CpuList>]) -> String {
    let mut groups: Vec<(usize, usize, &Option<CpuList>)> = Vec::new();
    for (rank, list) in cpus.iter().enumerate() {
        match groups.last_mut() {
            Some((_, last, of)) if *of == list => *last = rank,
            _ => groups.push((rank, rank, list)),
        }
    }
    let words: Vec<String> = groups
        .into_iter()
        .map(|(first, last, list)| {
            let list = list.as_ref().map_or_else(|| "-".to_owned(), CpuList::to_string);
            let ranks = if first == last { first.to_string() } else { format!("{first}-{last}") };
            format!("{ranks}: {list}")
        })
        .collect();
    words.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{count, facts, flag, planned, settings, warned};
    use crate::{AskedNproc, Plan};
    use settings::{Device, Engine};

    /// Two NUMA nodes of 16 CPUs, four GPUs on each.
    fn two_nodes(gpus: u32) -> Facts {
        let mut facts = facts(gpus);
        facts.limits.allowed = CpuList::read("0-31");
        facts.limits.numa =
            [(0, CpuList::read("0-15")), (1, CpuList::read("16-31"))].into_iter().collect();
        facts
    }

    fn numa() -> Settings {
        let mut settings = settings(&[]);
        settings.bind = flag(Bind::Numa, "--bind");
        settings
    }

    fn bound(plan: &Plan) -> String {
        in_words(&plan.bindings)
    }

    fn threads_of(plan: &Plan) -> Option<&str> {
        plan.env.get("OMP_NUM_THREADS").and_then(|value| value.to_str())
    }

    #[test]
    fn rank_gets_the_cpus_near_its_gpu() {
        for (nodes, asked, expected, threads) in [
            ([0, 0, 0, 0, 1, 1, 1, 1], AskedNproc::Auto, "0-3: 0-15; 4-7: 16-31", "4"),
            // A subset of GPUs on one NUMA node, whose CPUs only these ranks use.
            ([1, 1, 1, 1, 0, 0, 0, 0], count(2), "0-1: 0-15", "8"),
            // Unbalanced: the six ranks on the first NUMA node decide the number of threads.
            ([0, 0, 0, 0, 0, 0, 1, 1], AskedNproc::Auto, "0-5: 0-15; 6-7: 16-31", "2"),
            (
                [0, 0, 1, 1, 0, 0, 1, 1],
                count(8),
                "0-1: 0-15; 2-3: 16-31; 4-5: 0-15; 6-7: 16-31",
                "4",
            ),
        ] {
            let mut facts = two_nodes(8);
            for (gpu, node) in facts.gpus.gpus.iter_mut().zip(nodes) {
                gpu.numa_node = Some(node);
            }
            let plan = planned(&numa(), &facts, 1, &asked).expect("a plan");
            assert_eq!((bound(&plan).as_str(), threads_of(&plan)), (expected, Some(threads)));
            let decision = plan.decision("bind").expect("a decision");
            assert_eq!((decision.value.as_str(), decision.source.as_str()), (expected, "--bind"));
        }
    }

    #[test]
    fn nothing_is_bound_unless_asked_for() {
        let plan = planned(&settings(&[]), &two_nodes(8), 1, &AskedNproc::Auto).expect("a plan");
        assert!(plan.bindings.is_empty() && plan.decision("bind").is_none());
        assert_eq!(threads_of(&plan), Some("4"));
    }

    #[test]
    fn the_containers_cpus_limit_the_lists() {
        let mut facts = two_nodes(8);
        facts.limits.allowed = CpuList::read("4-7,20-21");
        let plan = planned(&numa(), &facts, 1, &AskedNproc::Auto).expect("a plan");
        assert_eq!(bound(&plan), "0-3: 4-7; 4-7: 20-21");
        assert_eq!(threads_of(&plan), Some("1"));

        facts.limits.allowed = CpuList::read("0-15");
        let plan = planned(&numa(), &facts, 1, &AskedNproc::Auto).expect("a plan");
        assert_eq!(bound(&plan), "0-3: 0-15; 4-7: -");
        assert!(warned(&plan, Id::BindUnknown));
    }

    #[test]
    fn quota_below_the_cpus_limits_the_threads() {
        let mut facts = two_nodes(8);
        facts.limits.cpus = 16;
        let plan = planned(&numa(), &facts, 1, &AskedNproc::Auto).expect("a plan");
        assert_eq!(threads_of(&plan), Some("2"));
    }

    #[test]
    fn ranks_without_known_numa_node_stay_unbound() {
        let mut facts = two_nodes(2);
        facts.gpus.gpus.iter_mut().for_each(|gpu| gpu.numa_node = None);
        let plan = planned(&numa(), &facts, 1, &AskedNproc::Auto).expect("a plan");
        assert!(plan.bindings.is_empty() && warned(&plan, Id::BindUnknown));

        // With one NUMA node there is nothing to choose.
        for nodes in [vec![], vec![(0, CpuList::read("0-31"))]] {
            facts.limits.numa = nodes.into_iter().collect();
            let plan = planned(&numa(), &facts, 1, &AskedNproc::Auto).expect("a plan");
            assert!(plan.bindings.is_empty() && !warned(&plan, Id::BindUnknown));
            assert_eq!(plan.decision("bind").map(|decision| decision.value.as_str()), Some("none"));
        }
    }

    #[test]
    fn cpu_ranks_are_spread_over_the_nodes() {
        let mut settings = numa();
        settings.device = flag(Device::Cpu, "--device");
        for (nproc, expected, threads) in [
            (1, "0: 0-31", "32"),
            (2, "0: 0-15; 1: 16-31", "16"),
            (3, "0-1: 0-15; 2: 16-31", "8"),
            (4, "0-1: 0-15; 2-3: 16-31", "8"),
        ] {
            let plan = planned(&settings, &two_nodes(0), 1, &count(nproc)).expect("a plan");
            assert_eq!((bound(&plan).as_str(), threads_of(&plan)), (expected, Some(threads)));
        }
    }

    #[test]
    fn the_jobs_own_launcher_binds_its_ranks_itself() {
        let mut settings = numa();
        settings.engine = flag(Engine::Command, "--engine");
        let plan = planned(&settings, &two_nodes(8), 1, &AskedNproc::Auto).expect("a plan");
        assert!(plan.bindings.is_empty() && warned(&plan, Id::BindCommand));
    }
}
