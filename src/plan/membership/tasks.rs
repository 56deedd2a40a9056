//! The place of this process in its job: the node rank, and the task where a platform starts its
//! command once per rank (Slurm, MPI).
//!
//! Takes settings, contract and, for the node rank, the node count; gives a rank below the count, or a
//! refusal that names both; and the [`Task`] of this process, a refusal if the engine starts ranks
//! itself, or None if the command is started once per node. All numbers of a task
//! come from one platform, since a launcher inside another one counts differently.

use super::claims::{self, Count, MOST_NODES, contradiction, half_given, refuse, strongest};
use super::known::{By, Known, Processes};
use super::nodes;
use super::nodes::how_many;
use crate::{Decision, Notes, Task};
use settings::contract::{Claim, Contract, Evidence, Field, Reading, Strength};
use settings::engine::Starts;
use settings::{Settings, WorldSizeCounts};
use text::lang::Text;
use text::rank::{GlobalRank, LocalRank};
use text::text;
use verdict::{Id, Refusal};

/// Most tasks of a node.
const MOST: u32 = 4096;
/// Advice for a hint: the options that override a task's numbers.
const ONCE: &str = "--nnodes N and --node-rank K where it is started once per node";

/// A task, and the variables that describe it.
pub(super) struct FoundTask {
    pub(super) task: Task,
    rank: Claim,
    world: Claim,
    local: Claim,
    platform: String,
    strength: Strength,
}

/// The task of this process, if the platform starts its command several times on a node.
pub(super) fn task(settings: &Settings, contract: &Contract) -> Result<Option<FoundTask>, Refusal> {
    if settings.nnodes.is_some() && settings.node_rank.is_some() {
        return Ok(None);
    }
    let mut most: Option<(u32, Evidence)> = None;
    for found in claims::spoken(contract, Field::TasksPerNode) {
        let tasks = claims::tasks(&found).max(implied(settings, contract, &found)?);
        // Of equal numbers the strongest claim stays.
        if tasks > most.as_ref().map_or(1, |(most, _)| *most) {
            most = Some((tasks, found));
        }
    }
    let Some((tasks, found)) = most else { return Ok(None) };
    match settings.engine.value.row().starts {
        Starts::Ranks => read(contract, settings, &found).map(Some),
        Starts::Launcher | Starts::Command if first(&found) => Err(unnumbered(contract, &found)),
        Starts::Launcher | Starts::Command => Err(refused(tasks, &found)),
    }
}

/// Whether the claim is that of the first process of a node, whose index proves nothing.
fn first(found: &Evidence) -> bool {
    found.reading == Reading::LocalIndex && found.claim.value.trim() == "0"
}

/// The number of tasks on a node that LOCAL_RANK implies if nothing counts them: 1, or 2 for several.
/// The first process of a node has the same variables whether its job has sixteen nodes with one process
/// or two nodes with eight, and all ranks have to get one answer. So WORLD_SIZE alone gives no number of
/// nodes here.
fn implied(settings: &Settings, contract: &Contract, found: &Evidence) -> Result<u32, Refusal> {
    let tasks = claims::spoken(contract, Field::TasksPerNode);
    let is_counted = tasks.iter().any(|other| other.reading != Reading::LocalIndex);
    let world = world_beside(contract, found);
    let world = world.and_then(|found| found.claim.value.trim().parse::<u32>().ok());
    let counts_nodes = settings.world_size_counts.value == WorldSizeCounts::Nodes;
    let Some(world) = world.filter(|world| *world > 1) else { return Ok(1) };
    if found.reading != Reading::LocalIndex || is_counted || counts_nodes {
        return Ok(1);
    }
    let nodes = match (&settings.nnodes, strongest(contract, Field::Nnodes).first()) {
        (Some(nodes), _) => Some(nodes.value),
        (None, Some(nodes)) => match claims::count(nodes)? {
            Count::Exact(nodes) => Some(nodes),
            Count::Between(..) => return Ok(1),
        },
        (None, None) => None,
    };
    Ok(if nodes.is_some_and(|nodes| world <= nodes) { 1 } else { 2 })
}

/// The number of all tasks by the same platform.
fn world_beside(contract: &Contract, found: &Evidence) -> Option<Evidence> {
    let mut worlds = claims::spoken(contract, Field::Tasks).into_iter();
    worlds.find(|world| world.platform == found.platform)
}

/// The refusal of the first process of a node. The processes beside it are refused by their index.
fn unnumbered(contract: &Contract, found: &Evidence) -> Refusal {
    let claim = &found.claim;
    let world = world_beside(contract, found).map_or_else(String::new, |one| one.claim.to_string());
    refuse(
        Id::MembershipTasks,
        text!(
            "{claim} is set, so {world} may count processes, and nothing says how many of them a node has (LOCAL_WORLD_SIZE)",
            "设置了 {claim}，{world} 可能表示进程数，而没有信息说明每节点有多少进程（LOCAL_WORLD_SIZE）"
        ),
        text!(
            "--world-size-counts nodes if this is started once per node, or --nnodes N and --node-rank K; if once per GPU: --engine direct with LOCAL_WORLD_SIZE makes each start one rank, or ask for one process per node",
            "若每节点只启动一次，请用 --world-size-counts nodes，或给出 --nnodes N 和 --node-rank K；若按 GPU 逐个启动：设置 LOCAL_WORLD_SIZE 并用 --engine direct 可使每次启动对应一个 rank，或请设为每节点一个进程"
        ),
    )
}

/// The numbers of this task, all from the platform of `found`.
fn read(contract: &Contract, settings: &Settings, found: &Evidence) -> Result<FoundTask, Refusal> {
    let platform = &found.platform;
    let spoken = |field: Field| {
        claims::spoken(contract, field).into_iter().filter(|one| one.platform == *platform)
    };
    // A list of tasks is in the order of the list of hosts.
    let position = spoken(Field::NodeRank)
        .find(|one| one.reading == Reading::PositionInHostlist)
        .and_then(|one| usize::try_from(claims::rank(&one).ok()?).ok());
    let said = |field: Field| {
        spoken(field).find(|one| match field {
            Field::TasksPerNode => claims::tasks_here(one, position).is_some(),
            Field::TaskRank if one.reading == Reading::TaskList => {
                claims::rank_in_list(one, position).is_some()
            }
            _ => true,
        })
    };
    let fields = [Field::Tasks, Field::TaskRank, Field::TaskLocal, Field::TasksPerNode];
    let [Some(world), Some(rank), Some(local), Some(of)] = fields.map(said) else {
        let missing: Vec<&str> = fields
            .into_iter()
            .filter(|field| said(*field).is_none())
            .filter_map(|field| match found.beside.as_ref() {
                // The list exists, but not this node's position in it.
                None if found.reading == Reading::TaskList && field == found.field => {
                    Some("SLURM_NODEID")
                }
                _ => field.variables_of(platform, settings.own_platform()).first().copied(),
            })
            .collect();
        return Err(half_given(
            contract,
            {
                let (claim, missing) = (&found.claim, missing.join(", "));
                text!(
                    "{claim}: this command is started once per rank, but a number of this task is not given: {missing}",
                    "{claim}：该命令按 rank 逐个启动，但缺少本 task 的数值：{missing}"
                )
            },
            text!(
                "start it by a launcher that sets all of them (srun, mpirun); or once per node, with --nnodes N and --node-rank K",
                "请使用会给出全部数值的启动器（srun、mpirun）；或每节点只启动一次，并给出 --nnodes N 和 --node-rank K"
            ),
        ));
    };
    let number = |found: &Evidence, least, most| {
        claims::number(&found.claim, &found.claim.value, least, most, ONCE)
    };
    let count = number(&world, 1, MOST_NODES)?;
    let here = claims::tasks_here(&of, position).unwrap_or(1);
    let in_list = claims::rank_in_list(&rank, position);
    let task = Task {
        rank: GlobalRank(match in_list.filter(|_| rank.reading == Reading::TaskList) {
            Some(rank) => rank,
            None => number(&rank, 0, MOST_NODES - 1)?,
        }),
        world: count,
        local: LocalRank(number(&local, 0, MOST - 1)?),
        of: here,
        source: of.claim.to_string(),
    };
    check(task.rank.0, &rank.claim, count, &world.claim)?;
    check(task.local.0, &local.claim, here, &of.claim)?;
    if here > count {
        return Err(contradiction(&of.claim, &world.claim, ONCE));
    }
    Ok(FoundTask {
        task,
        rank: rank.claim,
        world: world.claim,
        local: local.claim,
        platform: platform.clone(),
        strength: found.strength,
    })
}

/// Checks an index against its count.
fn check(index: u32, said: &Claim, count: u32, by: &Claim) -> Result<(), Refusal> {
    if index < count {
        return Ok(());
    }
    let last = count.saturating_sub(1);
    Err(refuse(
        Id::MembershipRank,
        text!(
            "{said} is beyond the last of {count} tasks ({by}): they are numbered 0 to {last}",
            "{said} 超出了 {count} 个 task（{by}）的范围：编号应为 0 到 {last}"
        ),
        text!(
            "correct one of them, or set {ONCE}",
            "请改正其中之一；若每节点只启动一次，请给出 --nnodes N 和 --node-rank K"
        ),
    ))
}

impl FoundTask {
    /// The number of nodes, and the node of this task.
    pub(super) fn node(
        &self,
        settings: &Settings,
        contract: &Contract,
        each: Option<&Processes>,
        notes: &mut Notes,
    ) -> Result<(Known, Known), Refusal> {
        let contract = &self.about_nodes(contract);
        let said = |field| {
            let mut found = claims::spoken(contract, field).into_iter();
            found.any(|found| found.strength > Strength::Hint)
        };
        let nnodes = if settings.nnodes.is_some() || said(Field::Nnodes) {
            nodes::nnodes(settings, contract, each, notes)?
        } else {
            let (count, because) = self.count()?;
            let source = &self.task.source;
            notes.decide("nnodes", count, because, source);
            Known { value: count, source: source.clone(), by: By::Platform }
        };
        let node = if settings.node_rank.is_some() || nnodes.value == 1 || said(Field::NodeRank) {
            node_rank(settings, contract, &nnodes, notes)?
        } else {
            let Task { rank, of, .. } = &self.task;
            let value = rank.0.checked_div(*of).unwrap_or(0);
            let source = self.rank.to_string();
            let because =
                text!("{of} tasks on every node, in order", "每节点 {of} 个 task，依次排列");
            notes.decide("node_rank", value, because, &source);
            Known { value, source, by: By::Platform }
        };
        if node.value >= nnodes.value {
            return Err(contradiction(&self.rank, &self.world, ONCE));
        }
        self.explain(notes);
        Ok((nnodes, node))
    }

    fn explain(&self, notes: &mut Notes) {
        let FoundTask { task, rank, world, local, platform, .. } = self;
        let Task { of, source, .. } = task;
        let once = text!(
            "{platform} starts this command once per rank",
            "{platform} 按 rank 逐个启动该命令"
        );
        let here = text!("the tasks of this node", "本节点的 task 数");
        let place =
            text!("its place among the {of} of this node", "它在本节点 {of} 个 task 中的位置");
        let count = text!("the number of all tasks", "全部 task 数");
        notes.decisions.extend([
            Decision::new("rank", task.rank, once, rank),
            Decision::new("world_size", task.world, count, world),
            Decision::new("local_rank", task.local, place, local),
            Decision::new("nproc_per_node", of, here, source),
        ]);
    }

    /// The part of the contract that describes nodes: without counts of processes, and under an
    /// MPI launcher without the outer platform.
    fn about_nodes(&self, contract: &Contract) -> Contract {
        let counts_nodes = |found: &&Evidence| match found.field {
            Field::WorldSize | Field::Rank => false,
            Field::Nnodes | Field::NodeRank => {
                found.reading != Reading::Processes
                    && (self.strength < Strength::Launcher || found.platform == self.platform)
            }
            _ => true,
        };
        let evidence = contract.evidence.iter().filter(counts_nodes).cloned().collect();
        Contract { evidence, ..contract.clone() }
    }

    /// The number of nodes if no variable counts them: assumes that every node has as many tasks
    /// as this one, numbered node by node.
    fn count(&self) -> Result<(u32, Text), Refusal> {
        let Task { rank, world, local, of, source } = &self.task;
        if of == world {
            return Ok((1, text!("all tasks are on this node", "全部 task 都在本节点上")));
        }
        let nodes = world.checked_div(*of).filter(|nodes| nodes.checked_mul(*of) == Some(*world));
        let in_order = rank.0.checked_rem(*of) == Some(local.0);
        match nodes.filter(|_| in_order) {
            Some(nodes) => Ok((
                nodes,
                text!(
                    "{world} tasks, and as many on every node as on this one",
                    "共 {world} 个 task，各节点的 task 数与本节点相同"
                ),
            )),
            None => Err(refuse(
                Id::MembershipTasks,
                text!(
                    "no variable says which node task {rank} of {world} is on: {source}, and the tasks are not numbered node by node with {of} on each",
                    "没有变量说明 task {rank}（共 {world} 个）位于哪个节点：{source}，且 task 不是按节点依次编号、每节点 {of} 个"
                ),
                text!(
                    "start as many tasks on every node, node by node (--map-by ppr:N:node, -ppn N); --nnodes N and --node-rank K where it is started once per node",
                    "请在每个节点上启动相同数量的 task，并按节点依次编号（--map-by ppr:N:node、-ppn N）；若每节点只启动一次，请给出 --nnodes N 和 --node-rank K"
                ),
            )),
        }
    }
}

/// The refusal for other engines: the platform would start an engine once per GPU.
fn refused(tasks: u32, found: &Evidence) -> Refusal {
    let claim = &found.claim;
    let least_en = if found.reading == Reading::LocalIndex { "at least " } else { "" };
    let least_zh = if found.reading == Reading::LocalIndex { "至少 " } else { " " };
    let hint = if found.strength == Strength::Hint {
        text!(
            "--engine direct makes each start one rank; else ask for one process per node (processCount = number of nodes, --ntasks-per-node=1); if it is one already and LOCAL_RANK and LOCAL_WORLD_SIZE are left over, unset them or set --nnodes and --node-rank",
            "用 --engine direct 可使每次启动对应一个 rank；否则请设为每节点一个进程（进程数等于节点数，或 --ntasks-per-node=1）；若已是如此，而 LOCAL_RANK 和 LOCAL_WORLD_SIZE 只是残留变量，请取消设置，或给出 --nnodes 和 --node-rank"
        )
    } else {
        text!(
            "--engine direct makes each start one rank; else ask for one task per node (--ntasks-per-node=1, -npernode 1, -ppn 1); if it is started once per node anyway, set --nnodes and --node-rank",
            "用 --engine direct 可使每次启动对应一个 rank；否则请设为每节点一个 task（--ntasks-per-node=1、-npernode 1 或 -ppn 1）；若该命令在每节点上确实只启动一次，请给出 --nnodes 和 --node-rank"
        )
    };
    refuse(
        Id::MembershipTasks,
        text!(
            "{claim}: the platform starts this command {least_en}{tasks} times on a node, but this engine needs it started once",
            "{claim}：平台会在一个节点上启动该命令{least_zh}{tasks} 次，而当前启动引擎要求只启动一次"
        ),
        hint,
    )
}

/// The refusal if a launcher counts processes but does not tell how many this node has.
pub(super) fn refuse_unknown(
    contract: &Contract,
    nnodes: &Known,
    node_rank: &Known,
) -> Result<(), Refusal> {
    let counts = [(Field::Nnodes, nnodes), (Field::NodeRank, node_rank)];
    let used = counts.into_iter().find_map(|(field, known)| {
        let claims = claims::spoken(contract, field).into_iter();
        let mut claims = claims.filter(|found| found.reading == Reading::Processes);
        claims.find(|found| {
            found.claim.to_string() == known.source
                && !claims::spoken(contract, Field::TasksPerNode)
                    .iter()
                    .any(|tasks| tasks.strength == found.strength)
        })
    });
    let Some(found) = used.filter(|_| nnodes.value > 1) else { return Ok(()) };
    let (claim, platform) = (&found.claim, &found.platform);
    Err(refuse(
        Id::MembershipTasks,
        text!(
            "{claim} is about processes ({platform}), and no variable says how many of them this node has, so it is not known to be one per node",
            "{claim} 表示的是进程（{platform}），但没有变量说明本节点有多少进程，无法确认每节点只有一个"
        ),
        text!(
            "start one process per node and set --nnodes N and --node-rank K",
            "请每节点只启动一个进程，并给出 --nnodes N 和 --node-rank K"
        ),
    ))
}

pub(super) fn node_rank(
    settings: &Settings,
    contract: &Contract,
    nnodes: &Known,
    notes: &mut Notes,
) -> Result<Known, Refusal> {
    let nodes = nnodes.value;
    let stated = text!("given", "已指定");
    let (known, because) = if let Some(setting) = &settings.node_rank {
        let source = setting.source.to_string();
        (Known { value: setting.value, source, by: By::Setting }, stated)
    } else if nnodes.is_apart() {
        // `--nnodes 1` in a job of several pods: each pod is a job of its own, whatever its
        // index.
        let source = &nnodes.source;
        let because = text!("the only node, by {source}", "按 {source}，只有本节点");
        (Known { value: 0, source: nnodes.source.clone(), by: nnodes.by }, because)
    } else if let Some((known, because)) = ranked(contract, nnodes)? {
        (known, because)
    } else if nodes == 1 {
        let because = text!("the only node", "唯一的节点");
        (Known { value: 0, source: "default".to_owned(), by: By::Default }, because)
    } else {
        let (source, last) = (&nnodes.source, nodes.saturating_sub(1));
        return Err(half_given(
            contract,
            text!(
                "there are {nodes} nodes ({source}), but nothing says which of them this is",
                "共有 {nodes} 个节点（{source}），但没有信息说明本节点是第几个"
            ),
            text!(
                "set --node-rank 0 to {last}, or RANK; --nnodes 1 if each node works for itself",
                "请给出 --node-rank 0 到 {last}，或设置 RANK；若各节点独立工作，请用 --nnodes 1"
            ),
        ));
    };
    check_rank(contract, nnodes, &known)?;
    if known.by == By::Platform {
        warn_of_other_rank(contract, nodes, &known, notes);
    }
    notes.decide("node_rank", known.value, because, &known.source);
    Ok(known)
}

/// The node rank that the contract gives.
fn ranked(contract: &Contract, nnodes: &Known) -> Result<Option<(Known, Text)>, Refusal> {
    let nodes = nnodes.value;
    let strong = strongest(contract, Field::NodeRank);
    if let Some(first) = strong.first() {
        let value = claims::rank(first)?;
        for other in strong.iter().skip(1) {
            if claims::rank(other)? != value {
                return Err(contradiction(&first.claim, &other.claim, "--node-rank K"));
            }
        }
        let platform = &first.platform;
        let because =
            text!("numbers nodes (platform {platform})", "表示节点编号（平台 {platform}）");
        let known = Known { value, source: first.claim.to_string(), by: By::Platform };
        return Ok(Some((known, because)));
    }
    let hint = |found: &Evidence| found.strength == Strength::Hint && nodes > 1;
    let found = claims::first(contract, Field::Rank)
        .or_else(|| claims::spoken(contract, Field::NodeRank).into_iter().find(hint));
    let Some(found) = found else { return Ok(None) };
    refuse_rank_of_process(contract, nnodes, &found)?;
    let value = claims::rank(&found)?;
    let because = text!("the index of this node", "本节点的编号");
    let known = Known { value, source: found.claim.to_string(), by: By::WorldSize };
    Ok(Some((known, because)))
}

/// If WORLD_SIZE is larger than the number of nodes, RANK may be the rank of a process. The ranks of the
/// first processes are possible ranks of nodes as well.
fn refuse_rank_of_process(
    contract: &Contract,
    nnodes: &Known,
    rank: &Evidence,
) -> Result<(), Refusal> {
    let nodes = nnodes.value;
    // A job of one node has one place.
    if nodes == 1 || nnodes.by == By::WorldSize || rank.field != Field::Rank {
        return Ok(());
    }
    // The number of nodes of an elastic PyTorchJob may come from WORLD_SIZE.
    let is_more = |world: &Evidence| {
        world.claim.to_string() != nnodes.source
            && claims::count(world).is_ok_and(|all| matches!(all, Count::Exact(all) if all > nodes))
    };
    let Some(world) = claims::spoken(contract, Field::WorldSize).into_iter().find(is_more) else {
        return Ok(());
    };
    let (rank, world, by) = (&rank.claim, &world.claim, &nnodes.source);
    Err(refuse(
        Id::MembershipProcesses,
        text!(
            "{world} is more than the {nodes} nodes ({by}), so {rank} may be the rank of a process, and nothing else says which node this is",
            "{world} 大于节点数 {nodes}（{by}），因此 {rank} 可能是进程的编号，而没有其他信息说明本节点是第几个"
        ),
        text!(
            "set --node-rank K, with --nnodes N: the same way on every node",
            "请给出 --node-rank K 和 --nnodes N，各节点方式相同"
        ),
    ))
}

/// Warns if RANK differs from a stronger variable although WORLD_SIZE counts the same nodes.
fn warn_of_other_rank(contract: &Contract, nodes: u32, known: &Known, notes: &mut Notes) {
    let first = |field| claims::first(contract, field).map(|found| found.claim);
    let number = |claim: &Claim| claim.value.trim().parse::<u32>().ok();
    let (Some(size), Some(rank)) = (first(Field::WorldSize), first(Field::Rank)) else { return };
    if number(&size) != Some(nodes) || number(&rank) == Some(known.value) {
        return;
    }
    let source = &known.source;
    notes.warn(
        Id::MembershipRank,
        text!(
            "{rank} is not the node rank of {source}, which is used",
            "{rank} 与 {source} 的节点编号不同；采用后者"
        ),
        text!("--node-rank overrides both", "--node-rank 可覆盖二者"),
    );
}

fn check_rank(contract: &Contract, nnodes: &Known, rank: &Known) -> Result<(), Refusal> {
    let (nodes, value) = (nnodes.value, rank.value);
    let said = match rank.by {
        By::Setting => format!("{}={value}", rank.source),
        _ => rank.source.clone(),
    };
    if nnodes.by == By::Default && rank.by != By::Default {
        return Err(half_given(
            contract,
            text!(
                "{said} is the index of a node, but nothing says how many nodes there are",
                "{said} 是节点编号，但没有信息说明共有多少节点"
            ),
            how_many(),
        ));
    }
    if value < nodes {
        return Ok(());
    }
    let source = match nnodes.by {
        By::Setting => format!("{}={nodes}", nnodes.source),
        _ => nnodes.source.clone(),
    };
    let last = nodes.saturating_sub(1);
    Err(refuse(
        Id::MembershipRank,
        text!(
            "{said} is beyond the last of {nodes} nodes ({source}): node ranks are 0 to {last}",
            "{said} 超出了 {nodes} 个节点（{source}）的范围：节点编号应为 0 到 {last}"
        ),
        text!(
            "correct one of them, or set --nnodes N and --node-rank K",
            "请改正其中之一，或给出 --nnodes N 和 --node-rank K"
        ),
    ))
}
