//! The number of nodes.
//!
//! Takes settings, contract and, if WORLD_SIZE counts processes, the processes per node; gives
//! the count and its source.

use super::claims::{
    self, Count, MOST_NODES, contradiction, half_given, refuse, standalone, strongest,
};
use super::known::{By, Known, Processes};
use super::listed;
use crate::Notes;
use settings::contract::{Claim, Contract, Evidence, Field, Reading, Strength};
use settings::{Settings, WorldSizeCounts};
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal};

pub(super) fn nnodes(
    settings: &Settings,
    contract: &Contract,
    each: Option<&Processes>,
    notes: &mut Notes,
) -> Result<Known, Refusal> {
    let known = if let Some(setting) = &settings.nnodes {
        let (value, source) = (setting.value, &setting.source);
        let all = value.saturating_add(settings.spares.value);
        if !(1..=MOST_NODES).contains(&value) || all > MOST_NODES {
            let (value, source) = match value {
                0 => (value, source.to_string()),
                _ if settings.spares.value == 0 => (value, source.to_string()),
                _ => (all, format!("{source} and {} together", settings.spares.source)),
            };
            return Err(refuse(
                Id::MembershipNumber,
                text!(
                    "{source} is {value}, but a job has 1 to {MOST_NODES} nodes",
                    "{source} 为 {value}，而节点数应在 1 到 {MOST_NODES} 之间"
                ),
                text!("set the number of nodes: --nnodes N", "请给出节点数：--nnodes N"),
            ));
        }
        refuse_other_count(settings, contract, each, all)?;
        warn_of_apart(settings, contract, each, notes);
        let because = text!("given", "已指定");
        notes.decide("nnodes", value, because, source);
        let spares = &settings.spares;
        let source = match spares.value {
            0 => source.to_string(),
            _ => format!("{source} and {}", spares.source),
        };
        Known { value: all, source, by: By::Setting }
    } else if let Some(known) = counted(contract, notes)? {
        known
    } else if let Some(known) = world_size(settings, contract, each, notes)? {
        known
    } else {
        refuse_lone_master(settings, contract)?;
        refuse_several(contract)?;
        let (because, source) = match &contract.inside_torchrun {
            Some((pid, _)) => (
                text!(
                    "this is inside a rank that process {pid} started, whose variables describe another job; for more nodes set --nnodes N, --node-rank K and --master-addr",
                    "当前位于进程 {pid} 启动的一个 rank 之内，其变量描述的是另一个任务；需要更多节点时请设置 --nnodes N、--node-rank K 和 --master-addr"
                ),
                "--nested",
            ),
            None => {
                (text!("nothing says that there are more", "没有任何信息表明有更多节点"), "default")
            }
        };
        notes.decide("nnodes", 1, because, source);
        Known { value: 1, source: source.to_owned(), by: By::Default }
    };
    // With `--nnodes 1` this node is separate from the job that WORLD_SIZE describes.
    if matches!(known.by, By::Setting | By::Platform) && !known.is_apart() {
        note_world_size(contract, &known, notes);
    }
    Ok(known)
}

/// A profile serves many jobs, so its number of nodes must not silently separate this node from
/// its job: each node would run alone, as rank 0.
fn refuse_other_count(
    settings: &Settings,
    contract: &Contract,
    each: Option<&Processes>,
    stated: u32,
) -> Result<(), Refusal> {
    let Some(source) = settings.nnodes.as_ref().map(|setting| &setting.source) else {
        return Ok(());
    };
    if !source.is_file() {
        return Ok(());
    }
    let platform = by_platform(settings, contract, each)?;
    if platform.is_none() && stated == 1 {
        return refuse_several(contract);
    }
    let Some(Known { value, source: said, by }) = platform.filter(|known| known.value != stated)
    else {
        return Ok(());
    };
    // `--nnodes` counts the seats, and all other numbers the spares as well.
    let spares = &settings.spares;
    let (seats, joined, together) = match spares.value {
        0 => (value, stated, source.to_string()),
        count => (
            value.saturating_sub(count),
            stated.saturating_sub(count),
            format!("{source} with {}", spares.source),
        ),
    };
    let processes = match by {
        By::WorldSize => text!(
            "; --world-size-counts processes if WORLD_SIZE counts processes",
            "；若 WORLD_SIZE 表示进程数，请加 --world-size-counts processes"
        ),
        _ => text!("", ""),
    };
    let (also_en, also_zh) = (processes.en, processes.zh);
    let alone = text!(
        "--nnodes {joined} if each node is to work alone",
        "若各节点应独立工作，请用 --nnodes {joined}"
    );
    let fewer = text!("--nnodes {joined} if that is meant", "若确实如此，请用 --nnodes {joined}");
    let way = if stated == 1 { alone } else { fewer };
    let (way_en, way_zh) = (way.en, way.zh);
    Err(refuse(
        Id::MembershipContradiction,
        text!(
            "{together} says that the job has {stated} nodes, but the platform says {value} ({said})",
            "{together} 指定任务有 {stated} 个节点，而平台给出 {value} 个（{said}）"
        ),
        text!(
            "--nnodes {seats} to work together, with --nproc-per-node auto where the profile's number does not fit, or a profile without nnodes; {way_en}{also_en}",
            "若要共同工作，请用 --nnodes {seats}（配置中的进程数不合适时加 --nproc-per-node auto），或去掉配置中的 nnodes；{way_zh}{also_zh}"
        ),
    ))
}

/// The number of nodes by the platform's variables alone.
fn by_platform(
    settings: &Settings,
    contract: &Contract,
    each: Option<&Processes>,
) -> Result<Option<Known>, Refusal> {
    let mut unsaid = Notes::default();
    match counted(contract, &mut unsaid)? {
        Some(known) => Ok(Some(known)),
        None => world_size(settings, contract, each, &mut unsaid),
    }
}

/// `torchrun --nnodes=1` in each pod of a job is a common mistake: it starts as many jobs as pods, and
/// each job computes the same.
fn warn_of_apart(
    settings: &Settings,
    contract: &Contract,
    each: Option<&Processes>,
    notes: &mut Notes,
) {
    let Some(stated) = settings.nnodes.as_ref().filter(|stated| stated.value == 1) else { return };
    let Ok(Some(platform)) = by_platform(settings, contract, each) else { return };
    // Without a rank above 0, WORLD_SIZE alone may count the processes of one node.
    let rank = claims::first(contract, Field::Rank);
    let is_first = rank.is_none_or(|rank| rank.claim.value.trim() == "0");
    if platform.value == 1 || (platform.by == By::WorldSize && is_first) {
        return;
    }
    let (stated, nodes, said) = (&stated.source, platform.value, &platform.source);
    notes.warn(
        Id::MembershipAlone,
        text!(
            "{stated} is 1, but the platform says {nodes} nodes ({said}): this node is a job of its own, with rank 0",
            "{stated} 为 1，而平台给出 {nodes} 个节点（{said}）：本节点成为单独的任务，含 rank 0"
        ),
        text!(
            "leave it out if the {nodes} nodes are one job",
            "若这 {nodes} 个节点属于同一任务，请去掉该设置"
        ),
    );
}

/// A master on another host proves that there are other nodes.
fn refuse_lone_master(settings: &Settings, contract: &Contract) -> Result<(), Refusal> {
    let stated = settings.master_addr.as_ref().map(|setting| Claim {
        variable: setting.source.to_string(),
        value: setting.value.clone(),
    });
    let other = match stated {
        Some(claim) => claims::is_other_host(contract, claim.value.trim()).then_some(claim),
        None => claims::spoken(contract, Field::MasterAddr)
            .into_iter()
            .find(|found| found.strength > Strength::Hint)
            .filter(|found| {
                let host = found.host();
                claims::host_problem(&host).is_none() && claims::is_other_host(contract, &host)
            })
            .map(|found| found.claim),
    };
    let Some(claim) = other else { return Ok(()) };
    let rank = claims::spoken(contract, Field::Rank).into_iter();
    let rank = rank.chain(claims::spoken(contract, Field::NodeRank)).next();
    Err(half_given(
        contract,
        match rank.map(|found| found.claim) {
            Some(rank) => text!(
                "{rank} and {claim} are set, but nothing says how many nodes there are",
                "设置了 {rank} 和 {claim}，但没有信息说明共有多少节点"
            ),
            None => text!(
                "{claim} is another host, but nothing says how many nodes there are",
                "{claim} 是另一台主机，但没有信息说明共有多少节点"
            ),
        },
        how_many(),
    ))
}

/// The hint if the number of nodes is missing.
pub(super) fn how_many() -> Text {
    text!(
        "set the number of nodes and the rank of this one: --nnodes N --node-rank K, or WORLD_SIZE and RANK; --nnodes 1 for only this node",
        "请给出节点数和本节点编号：--nnodes N --node-rank K，或 WORLD_SIZE 和 RANK；只用本节点时用 --nnodes 1"
    )
}

/// The node count of variables that count nodes; claims of equal strength must agree.
pub(super) fn counted(contract: &Contract, notes: &mut Notes) -> Result<Option<Known>, Refusal> {
    let mut first: Option<(Evidence, u32)> = None;
    for found in strongest(contract, Field::Nnodes) {
        let value = match claims::count(&found)? {
            Count::Exact(value) => value,
            // Only a standalone job has a range here, and it has one node.
            Count::Between(least, _) => least,
        };
        match &first {
            Some((one, counted)) if *counted != value => {
                return Err(contradiction(&one.claim, &found.claim, "--nnodes N"));
            }
            Some(_) => {}
            None => first = Some((found, value)),
        }
    }
    let Some((found, value)) = first else { return Ok(None) };
    if value == 1
        && let Some(standalone) = standalone(contract)
    {
        let claim = standalone.claim;
        let because = text!("each node is a job of its own", "每个节点各自为一个任务");
        notes.decide("nnodes", 1, because, &claim);
        return Ok(Some(Known { value, source: claim.to_string(), by: By::Standalone }));
    }
    if let Some(known) = worker_only_count(contract, &found, value, notes) {
        return Ok(Some(known));
    }
    let platform = &found.platform;
    notes.decide(
        "nnodes",
        value,
        text!("counts nodes (platform {platform})", "表示节点数（平台 {platform}）"),
        &found.claim,
    );
    Ok(Some(Known { value, source: found.claim.to_string(), by: By::Platform }))
}

/// An elastic PyTorchJob without minimum and maximum does not count its master in PET_NNODES but
/// does in WORLD_SIZE (training-operator, `elastic.go` and `envvar.go`).
fn worker_only_count(
    contract: &Contract,
    found: &Evidence,
    value: u32,
    notes: &mut Notes,
) -> Option<Known> {
    let endpoint = claims::spoken(contract, Field::RdzvEndpoint);
    let rank = claims::spoken(contract, Field::Rank);
    let world = claims::first(contract, Field::WorldSize)?.claim;
    if found.reading != Reading::Range || endpoint.is_empty() || rank.is_empty() {
        return None;
    }
    let nproc = claims::first(contract, Field::Nproc);
    let nproc = nproc.and_then(|found| found.claim.value.trim().parse::<u32>().ok()).unwrap_or(1);
    let replicas = value.checked_add(1)?;
    let size = world.value.trim().parse::<u32>().ok()?;
    if size == value.checked_mul(nproc)?
        || ![Some(replicas), replicas.checked_mul(nproc)].contains(&Some(size))
    {
        return None;
    }
    let workers = &found.claim;
    notes.decide(
        "nnodes",
        replicas,
        text!(
            "{workers} leaves out the master of an elastic job, {world} counts it",
            "{workers} 未计入弹性任务的 master，{world} 计入了"
        ),
        &world,
    );
    Some(Known { value: replicas, source: world.to_string(), by: By::Platform })
}

/// The node count from WORLD_SIZE, if nothing else counts nodes.
fn world_size(
    settings: &Settings,
    contract: &Contract,
    each: Option<&Processes>,
    notes: &mut Notes,
) -> Result<Option<Known>, Refusal> {
    let Some(found) = claims::first(contract, Field::WorldSize) else {
        return Ok(None);
    };
    let claim = &found.claim;
    let size = claims::number(claim, &claim.value, 1, MOST_NODES, "--nnodes N")?;
    let known = |value| Known { value, source: claim.to_string(), by: By::WorldSize };
    let because = match settings.world_size_counts.value {
        WorldSizeCounts::Processes => {
            let Processes { count: nproc, source: by } =
                each.filter(|each| each.count > 0).ok_or_else(|| {
                    refuse(
                        Id::MembershipProcesses,
                        text!(
                            "{claim} counts processes, but nothing says how many a node has",
                            "{claim} 被指定为进程数，但没有信息说明每节点有多少进程"
                        ),
                        text!(
                            "set --nproc-per-node N or --nnodes N",
                            "请给出 --nproc-per-node N 或 --nnodes N"
                        ),
                    )
                })?;
            let value = size.checked_div(*nproc).unwrap_or(0);
            if value == 0 || value.checked_mul(*nproc) != Some(size) {
                return Err(refuse(
                    Id::MembershipProcesses,
                    text!(
                        "{claim} counts processes, but {size} is not a multiple of the {nproc} processes of a node ({by})",
                        "{claim} 被指定为进程数，但 {size} 不是每节点 {nproc} 个进程（{by}）的整数倍"
                    ),
                    text!(
                        "set --nproc-per-node N, --nnodes N or --world-size-counts nodes",
                        "请给出 --nproc-per-node N、--nnodes N 或 --world-size-counts nodes"
                    ),
                ));
            }
            let because = text!(
                "it counts processes, as given; a node has {nproc} ({by})",
                "按指定，它表示进程数；每节点 {nproc} 个（{by}）"
            );
            notes.decide("nnodes", value, because, claim);
            return Ok(Some(known(value)));
        }
        WorldSizeCounts::Nodes => text!("it counts nodes, as given", "按指定，它表示节点数"),
        WorldSizeCounts::Auto
            if size > 1
                && let Some((rank, node)) = both_ranks(contract) =>
        {
            return Err(refuse_processes(claim, &rank, &node));
        }
        WorldSizeCounts::Auto if size == 1 => text!("the job has one node", "任务只有一个节点"),
        WorldSizeCounts::Auto => text!(
            "it is read as the number of nodes; if it counts processes, say --world-size-counts processes",
            "按节点数理解；若它表示进程数，请加 --world-size-counts processes"
        ),
    };
    notes.decide("nnodes", size, because, claim);
    Ok(Some(known(size)))
}

/// RANK, and the rank of this node beside it. If they differ, RANK numbers processes, so WORLD_SIZE
/// counts processes. If they are equal, WORLD_SIZE may count processes or nodes: the first process of a job
/// has the same variables whether its nodes have one process or eight, and all ranks have to get one answer.
fn both_ranks(contract: &Contract) -> Option<(Evidence, Evidence)> {
    let rank = claims::first(contract, Field::Rank)?;
    let tasks = claims::spoken(contract, Field::TasksPerNode);
    if tasks.iter().any(|of| of.reading != Reading::LocalIndex && claims::tasks(of) == 1) {
        return None;
    }
    // Not every index is that of a node among all nodes: JOB_COMPLETION_INDEX counts within its job.
    let of_nodes = |found: &Evidence| {
        matches!(found.claim.variable.as_str(), "NODE_RANK" | "GROUP_RANK" | "PET_NODE_RANK")
    };
    let node = claims::spoken(contract, Field::NodeRank).into_iter().find(of_nodes)?;
    Some((rank, node))
}

fn refuse_processes(world: &Claim, rank: &Evidence, node: &Evidence) -> Refusal {
    let is_equal = claims::rank(rank).ok() == claims::rank(node).ok();
    let (rank, node) = (&rank.claim, &node.claim);
    let text = if is_equal {
        text!(
            "{rank} beside {node} may be the rank of a process, so {world} may count processes, and nothing says how many nodes there are",
            "{rank} 与 {node} 同时给出，前者可能是进程的编号，{world} 可能表示进程数，而没有信息说明共有多少节点"
        )
    } else {
        text!(
            "{rank} beside {node} is the rank of a process, so {world} counts processes, but nothing says how many a node has",
            "{rank} 与 {node} 不同，是进程的编号，因此 {world} 表示进程数，但没有信息说明每节点有多少进程"
        )
    };
    refuse(
        Id::MembershipProcesses,
        text,
        text!(
            "--nnodes N; --world-size-counts nodes if this is started once per node, or --world-size-counts processes with --nproc-per-node N",
            "请给出 --nnodes N；若每节点只启动一次，请用 --world-size-counts nodes，否则用 --world-size-counts processes 和 --nproc-per-node N"
        ),
    )
}

/// Records the meaning of WORLD_SIZE if the number of nodes is known from another source.
fn note_world_size(contract: &Contract, nnodes: &Known, notes: &mut Notes) {
    let Some(found) = claims::first(contract, Field::WorldSize) else { return };
    let (claim, source, nodes) = (&found.claim, &nnodes.source, nnodes.value);
    let size = claim.value.trim().parse::<u32>().ok();
    if size == Some(nodes) || claim.to_string() == *source {
        return;
    }
    let per_node = size
        .and_then(|size| {
            size.checked_div(nodes).filter(|per_node| per_node.checked_mul(nodes) == Some(size))
        })
        .filter(|per_node| *per_node > 0);
    match per_node {
        Some(per_node) => notes.decide(
            "world_size_counts",
            "processes",
            text!(
                "{claim} is {per_node} times the {nodes} nodes of {source}",
                "{claim} 是 {source} 的 {nodes} 个节点的 {per_node} 倍"
            ),
            claim,
        ),
        None => notes.warn(
            Id::MembershipWorldSize,
            text!(
                "{claim} is neither the {nodes} nodes of {source} nor a multiple of them; it is not used",
                "{claim} 既不等于 {source} 的 {nodes} 个节点，也不是其整数倍；不采用"
            ),
            text!(
                "correct the one that is wrong; --nnodes overrides both",
                "请改正错误的一方；--nnodes 可覆盖二者"
            ),
        ),
    }
}

/// Refuses if a scheduler shows that there are other nodes or processes, but not the place of this one:
/// each would work alone, as rank 0, and write the same checkpoint. The scheduler's list of hosts may also
/// be out of reach, as in a container.
fn refuse_several(contract: &Contract) -> Result<(), Refusal> {
    let claims = claims::spoken(contract, Field::Several);
    let shown = claims.iter().find_map(|found| Some((shown(contract, found)?, found)));
    let Some((Text { en, zh }, found)) = shown else {
        return refuse_unread(&claims::of(contract, Field::Several));
    };
    let claim = &found.claim;
    Err(half_given(
        contract,
        text!(
            "{claim} {en}, but nothing tells how many nodes there are and which of them this is: each would work alone, as rank 0",
            "{claim} {zh}，但没有信息说明共有多少节点、本节点是第几个：各节点会各自独立运行，都成为 rank 0"
        ),
        text!(
            "start this once per node: --nodes HOST,HOST,… (the same line on every node), or --nnodes N --node-rank K --master-addr HOST; --nnodes 1 for this node alone",
            "请在每个节点上各启动一次：--nodes HOST,HOST,…（各节点命令相同），或 --nnodes N --node-rank K --master-addr HOST；只用本节点时用 --nnodes 1"
        ),
    ))
}

/// Refuses a list of hosts without a host if nothing else of its platform gives the size of the job.
fn refuse_unread(claims: &[Evidence]) -> Result<(), Refusal> {
    let is_one = |of: &Evidence| {
        claims.iter().any(|other| other.platform == of.platform && size(other) == Some(1))
    };
    // A file of an unknown scheduler may be meant for another program: DeepSpeed's host file need not exist.
    let unread = claims
        .iter()
        .find(|found| found.is_of_a_platform() && size(found) == Some(0) && !is_one(found));
    let Some(Evidence { claim, platform, .. }) = unread else { return Ok(()) };
    Err(refuse(
        Id::MembershipHalfGiven,
        text!(
            "{claim} has the hosts of this job ({platform}), but it cannot be read here or names none, and nothing else tells how many there are",
            "{claim} 给出本任务的主机（{platform}），但在此处无法读取或其中没有主机，也没有其他信息说明共有多少台"
        ),
        text!(
            "make it readable here (in a container: mount its folder); --nnodes 1 if this is the only node, --nodes HOST,HOST,… if there are more",
            "请使其在此处可读（在容器中：挂载其所在目录）；若只有本节点，请用 --nnodes 1；若有多个，请用 --nodes HOST,HOST,…"
        ),
    ))
}

/// The number of nodes that a claim tells; None if it tells only a number of processes, or a place.
fn size(found: &Evidence) -> Option<usize> {
    match found.reading {
        Reading::Count => found.claim.value.trim().parse().ok().filter(|count| *count > 0),
        Reading::Hosts | Reading::HostFile => Some(found.hosts().len()),
        _ => None,
    }
}

/// The statement of a claim of [`Field::Several`]; None if this node may well be the only one.
fn shown(contract: &Contract, found: &Evidence) -> Option<Text> {
    let number = || found.claim.value.trim().parse::<u32>().ok();
    let hosts = || {
        let hosts = found.hosts();
        let (count, names) = (hosts.len(), listed::shown(&hosts));
        (count > 1)
            .then(|| text!("names {count} hosts ({names})", "列出了 {count} 台主机（{names}）"))
    };
    match found.reading {
        Reading::Count => {
            // `2x3`, the nodes of a torus.
            let mut sides = found.claim.value.split('x').map(|side| side.trim().parse::<u32>());
            let count =
                sides.try_fold(1, |all: u32, side| side.map(|side| all.saturating_mul(side)));
            count.ok().filter(|count| *count > 1).map(|count| {
                text!("counts {count} nodes or processes", "表示共有 {count} 个节点或进程")
            })
        }
        Reading::Index => number().filter(|index| *index > 0).map(|_| {
            text!(
                "numbers this one of several nodes or processes",
                "是本节点或进程在多个之中的编号"
            )
        }),
        Reading::IndexOfCount => {
            let count = found.beside.as_ref()?;
            Some(text!(
                "beside {count} numbers this one of several nodes or processes",
                "与 {count} 一起表明本节点或进程是多个中的一个"
            ))
        }
        Reading::Hosts | Reading::HostFile => hosts(),
        Reading::OwnHosts => {
            let is_own = found.hosts().iter().any(|name| !claims::is_other_host(contract, name));
            is_own.then(hosts)?
        }
        _ => None,
    }
}
