//! Who takes part and where they meet: settings and contract → [`Membership`].
//!
//! Takes what the user decided and what the platform claims; gives one
//! membership with a reason for every value, or a refusal that names the
//! variable. A setting beats a variable of one platform, that beats a name that
//! many tools use, that beats WORLD_SIZE and RANK. Weaker evidence never
//! overrules, and claims of equal strength must agree. No I/O.

mod claims;
mod master;
mod nproc;
#[cfg(test)]
mod tests;

use crate::lang::Text;
use crate::observe::{Claim, Contract, Evidence, Field, GpuFacts, Strength};
use crate::plan::{Decision, Membership};
use crate::settings::{Rendezvous, Settings, Source, WorldSizeCounts};
use crate::text;
use crate::verdict::{Refusal, Warning};

use claims::{Count, MOST_NODES, refuse};
pub use nproc::{AskedNproc, asked_nproc, offered_nproc};

/// A number and who says so.
#[derive(Debug, Clone)]
struct Known {
    value: u32,
    /// `--nnodes` or `PET_NNODES=2`; `default`.
    source: String,
    by: By,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Setting,
    /// A variable that counts nodes and nothing else.
    Platform,
    WorldSize,
    Nobody,
}

/// Node count, node rank and master of this job, as this node is told.
pub fn membership(
    settings: &Settings,
    contract: &Contract,
    gpus: &GpuFacts,
    decisions: &mut Vec<Decision>,
    warnings: &mut Vec<Warning>,
) -> Result<Membership, Refusal> {
    refuse_nesting(settings, contract, warnings)?;
    refuse_tasks(settings, contract)?;
    if let Some(elastic) = elastic(settings, contract, decisions, warnings)? {
        return Ok(elastic);
    }
    let nnodes = nnodes(settings, contract, gpus, decisions, warnings)?;
    let node_rank = node_rank(settings, contract, &nnodes, decisions, warnings)?;
    let master = master::master(settings, contract, &nnodes, node_rank.value, decisions, warnings)?;
    let by_setting = nnodes.by == By::Setting && node_rank.by == By::Setting;
    Ok(Membership {
        platform: if by_setting { "flags".to_owned() } else { platform(contract) },
        nnodes: nnodes.value,
        node_rank: node_rank.value,
        master_addr: master.addr,
        master_port: master.port,
        master_port_free: nnodes.value == 1,
        elastic: None,
    })
}

fn platform(contract: &Contract) -> String {
    if contract.platform.is_empty() { "none".to_owned() } else { contract.platform.clone() }
}

fn refuse_nesting(
    settings: &Settings,
    contract: &Contract,
    warnings: &mut Vec<Warning>,
) -> Result<(), Refusal> {
    if let Some((pid, line)) = &contract.inside_torchrun
        && !settings.nested
    {
        let line: String = line.chars().take(200).collect();
        return Err(refuse(
            "nested",
            text!(
                "this runs inside torchrun already: process {pid} above us is `{line}`",
                "当前已在 torchrun 之内：上级进程 {pid} 是 `{line}`"
            ),
            text!(
                "give ranklaunch the script itself, since it starts torchrun; --nested if one inside the other is meant",
                "请直接把脚本交给 ranklaunch，它会自己启动 torchrun；确需嵌套时加 --nested"
            ),
        ));
    }
    if !contract.stale_rank_variables.is_empty() {
        let names = contract.stale_rank_variables.join(", ");
        warnings.push(Warning::new(
            "env.stale-rank",
            text!(
                "{names} are set although no torchrun is above us; they are left over and do not reach the ranks",
                "上级没有 torchrun，却设置了 {names}；这是残留变量，不会传给各 rank"
            ),
            text!(
                "unset them where the container or the shell is started",
                "请在启动容器或 shell 的地方取消这些变量"
            ),
        ));
    }
    Ok(())
}

/// A platform that starts its command once per GPU would start us as often.
fn refuse_tasks(settings: &Settings, contract: &Contract) -> Result<(), Refusal> {
    if settings.nnodes.is_some() && settings.node_rank.is_some() {
        return Ok(());
    }
    for found in claims::spoken(contract, Field::TasksPerNode) {
        let tasks = claims::tasks(&found);
        if tasks > 1 {
            let claim = &found.claim;
            return Err(refuse(
                "membership.tasks",
                text!(
                    "{claim}: the platform starts this command {tasks} times on the node, and ranklaunch must be started once",
                    "{claim}：平台会在本节点启动该命令 {tasks} 次，而 ranklaunch 只应启动一次"
                ),
                text!(
                    "ask for one task per node (--ntasks-per-node=1, -npernode 1), or state --nnodes and --node-rank",
                    "请设为每节点一个任务（--ntasks-per-node=1 或 -npernode 1），或给出 --nnodes 和 --node-rank"
                ),
            ));
        }
    }
    Ok(())
}

/// A job whose node count is a range, or whose nodes get no rank because c10d gives it.
fn elastic(
    settings: &Settings,
    contract: &Contract,
    decisions: &mut Vec<Decision>,
    warnings: &mut Vec<Warning>,
) -> Result<Option<Membership>, Refusal> {
    if settings.nnodes.is_some() {
        return Ok(None);
    }
    let counts = strongest(contract, Field::Nnodes);
    let Some(found) =
        counts.iter().find(|found| found.claim.variable == "PET_NNODES").or(counts.first())
    else {
        return Ok(None);
    };
    let (least, most) = match claims::count(found)? {
        Count::Between(least, most) => (least, most),
        Count::Exact(n) if n > 1 && ranks_by_rendezvous(settings, contract) => (n, n),
        Count::Exact(_) => return Ok(None),
    };
    let claim = &found.claim;
    for other in counts.iter().filter(|other| *other != found) {
        if let Count::Exact(n) = claims::count(other)?
            && !(least..=most).contains(&n)
        {
            return Err(contradiction(claim, &other.claim, "--nnodes N"));
        }
    }
    if least == 1 && !claims::of(contract, Field::Standalone).is_empty() {
        return Ok(None);
    }
    if settings.rdzv.value == Rendezvous::Static && settings.rdzv.source != Source::Default {
        let source = &settings.rdzv.source;
        return Err(refuse(
            "membership.elastic",
            text!(
                "{claim} is an elastic job, which static rendezvous ({source}) cannot run",
                "{claim} 是弹性任务，静态 rendezvous（{source}）无法运行"
            ),
            text!(
                "use --rdzv c10d, or fix the size with --nnodes N and --node-rank K",
                "请使用 --rdzv c10d，或用 --nnodes N 和 --node-rank K 固定规模"
            ),
        ));
    }
    let master = master::rendezvous(settings, contract, decisions, warnings)?;
    let range = if least == most { least.to_string() } else { format!("{least}:{most}") };
    decisions.push(Decision::new(
        "nnodes",
        range,
        text!(
            "an elastic job: its nodes meet through c10d, which also gives them their ranks",
            "弹性任务：各节点通过 c10d 会合，并由它分配编号"
        ),
        claim,
    ));
    Ok(Some(Membership {
        platform: platform(contract),
        nnodes: most,
        node_rank: 0,
        master_addr: master.addr,
        master_port: master.port,
        master_port_free: false,
        elastic: Some((least, most)),
    }))
}

/// PyTorchJob without a Master replica: a fixed count, an endpoint, and no rank anywhere.
fn ranks_by_rendezvous(settings: &Settings, contract: &Contract) -> bool {
    let backend = claims::spoken(contract, Field::RdzvBackend);
    settings.node_rank.is_none()
        && claims::spoken(contract, Field::NodeRank)
            .iter()
            .all(|found| found.strength == Strength::Hint)
        && claims::spoken(contract, Field::Rank).is_empty()
        && !claims::spoken(contract, Field::RdzvEndpoint).is_empty()
        && backend.iter().any(|found| found.claim.value.trim() != "static")
}

/// The claims of the strongest kind that count nodes and nothing else.
fn strongest(contract: &Contract, field: Field) -> Vec<Evidence> {
    let mut found: Vec<Evidence> = claims::spoken(contract, field)
        .into_iter()
        .filter(|found| found.strength > Strength::Generic)
        .collect();
    let most = found.iter().map(|found| found.strength).max();
    found.retain(|found| Some(found.strength) == most);
    found
}

fn contradiction(one: &Claim, other: &Claim, flag: &str) -> Refusal {
    refuse(
        "membership.contradiction",
        text!(
            "{one} and {other} contradict each other, and neither is stronger",
            "{one} 与 {other} 相互矛盾，且无法判断以谁为准"
        ),
        text!(
            "say which is right with {flag}, or remove the wrong variable",
            "请用 {flag} 指明正确的值，或去掉错误的变量"
        ),
    )
}

fn nnodes(
    settings: &Settings,
    contract: &Contract,
    gpus: &GpuFacts,
    decisions: &mut Vec<Decision>,
    warnings: &mut Vec<Warning>,
) -> Result<Known, Refusal> {
    let known = if let Some(setting) = &settings.nnodes {
        let (value, source) = (setting.value, &setting.source);
        if !(1..=MOST_NODES).contains(&value) {
            return Err(refuse(
                "membership.number",
                text!(
                    "{source} is {value}, and a job has 1 to {MOST_NODES} nodes",
                    "{source} 为 {value}，而节点数应在 1 到 {MOST_NODES} 之间"
                ),
                text!("state the number of nodes: --nnodes N", "请给出节点数：--nnodes N"),
            ));
        }
        let because = text!("stated", "已指定");
        decisions.push(Decision::new("nnodes", value, because, source));
        Known { value, source: source.to_string(), by: By::Setting }
    } else if let Some(known) = counted(contract, decisions)? {
        known
    } else if let Some(known) = world_size(settings, contract, gpus, decisions)? {
        known
    } else {
        decisions.push(Decision::new(
            "nnodes",
            1,
            text!("nothing says that there are more", "没有任何信息表明有更多节点"),
            "default",
        ));
        Known { value: 1, source: "default".to_owned(), by: By::Nobody }
    };
    // `--nnodes 1` takes this node out of the job that WORLD_SIZE is about.
    let apart = known.by == By::Setting && known.value == 1;
    if matches!(known.by, By::Setting | By::Platform) && !apart {
        note_world_size(contract, &known, decisions, warnings);
    }
    Ok(known)
}

/// The node count of variables that count nodes; equal ones must agree.
fn counted(contract: &Contract, decisions: &mut Vec<Decision>) -> Result<Option<Known>, Refusal> {
    let mut first: Option<(Evidence, u32)> = None;
    for found in strongest(contract, Field::Nnodes) {
        let value = match claims::count(&found)? {
            Count::Exact(value) => value,
            // Only a standalone job comes here with a range: it is alone.
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
    if let Some(known) = worker_only_count(contract, &found, value, decisions) {
        return Ok(Some(known));
    }
    let platform = &found.platform;
    decisions.push(Decision::new(
        "nnodes",
        value,
        text!("{platform} counts nodes in it", "{platform} 用它表示节点数"),
        &found.claim,
    ));
    Ok(Some(Known { value, source: found.claim.to_string(), by: By::Platform }))
}

/// An elastic PyTorchJob without minimum and maximum leaves its master out of PET_NNODES
/// but not out of WORLD_SIZE (training-operator, `elastic.go` beside `envvar.go`).
fn worker_only_count(
    contract: &Contract,
    found: &Evidence,
    value: u32,
    decisions: &mut Vec<Decision>,
) -> Option<Known> {
    let endpoint = claims::spoken(contract, Field::RdzvEndpoint);
    let rank = claims::spoken(contract, Field::Rank);
    let world = claims::spoken(contract, Field::WorldSize).into_iter().next()?.claim;
    if found.claim.variable != "PET_NNODES" || endpoint.is_empty() || rank.is_empty() {
        return None;
    }
    let nproc = claims::spoken(contract, Field::Nproc).into_iter().next();
    let nproc = nproc.and_then(|found| found.claim.value.trim().parse::<u32>().ok()).unwrap_or(1);
    let replicas = value.checked_add(1)?;
    let size = world.value.trim().parse::<u32>().ok()?;
    if size == value.checked_mul(nproc)?
        || ![Some(replicas), replicas.checked_mul(nproc)].contains(&Some(size))
    {
        return None;
    }
    let workers = &found.claim;
    decisions.push(Decision::new(
        "nnodes",
        replicas,
        text!(
            "{workers} leaves out the master of an elastic job, {world} counts it",
            "{workers} 未计入弹性任务的 master，{world} 计入了"
        ),
        &world,
    ));
    Some(Known { value: replicas, source: world.to_string(), by: By::Platform })
}

/// WORLD_SIZE where nothing else counts nodes.
fn world_size(
    settings: &Settings,
    contract: &Contract,
    gpus: &GpuFacts,
    decisions: &mut Vec<Decision>,
) -> Result<Option<Known>, Refusal> {
    let Some(found) = claims::spoken(contract, Field::WorldSize).into_iter().next() else {
        return Ok(None);
    };
    let claim = &found.claim;
    let size = claims::number(claim, &claim.value, 1, MOST_NODES, "--nnodes N")?;
    let known = |value| Known { value, source: claim.to_string(), by: By::WorldSize };
    let because = match settings.world_size_counts.value {
        WorldSizeCounts::Processes => {
            let (nproc, by) = processes_per_node(settings, contract, gpus).ok_or_else(|| {
                refuse(
                    "membership.processes",
                    text!(
                        "{claim} is to count processes, and nothing says how many a node has",
                        "{claim} 被指定为进程数，但没有信息说明每节点有多少进程"
                    ),
                    text!(
                        "state --nproc-per-node N or --nnodes N",
                        "请给出 --nproc-per-node N 或 --nnodes N"
                    ),
                )
            })?;
            let value = size.checked_div(nproc).unwrap_or(0);
            if value == 0 || value.checked_mul(nproc) != Some(size) {
                return Err(refuse(
                    "membership.processes",
                    text!(
                        "{claim} is to count processes, and {size} is no multiple of the {nproc} processes of a node ({by})",
                        "{claim} 被指定为进程数，但 {size} 不是每节点 {nproc} 个进程（{by}）的整数倍"
                    ),
                    text!(
                        "state --nproc-per-node N, --nnodes N or --world-size-counts nodes",
                        "请给出 --nproc-per-node N、--nnodes N 或 --world-size-counts nodes"
                    ),
                ));
            }
            let because = text!(
                "it counts processes, as stated, and a node has {nproc} ({by})",
                "按指定，它表示进程数；每节点 {nproc} 个（{by}）"
            );
            decisions.push(Decision::new("nnodes", value, because, claim));
            return Ok(Some(known(value)));
        }
        WorldSizeCounts::Nodes => text!("it counts nodes, as stated", "按指定，它表示节点数"),
        WorldSizeCounts::Auto if size == 1 => text!("the job has one node", "任务只有一个节点"),
        WorldSizeCounts::Auto => text!(
            "it is read as the number of nodes; if it counts processes, say --world-size-counts processes",
            "按节点数理解；若它表示进程数，请加 --world-size-counts processes"
        ),
    };
    decisions.push(Decision::new("nnodes", size, because, claim));
    Ok(Some(known(size)))
}

fn processes_per_node(
    settings: &Settings,
    contract: &Contract,
    gpus: &GpuFacts,
) -> Option<(u32, String)> {
    if let Ok(AskedNproc::Count { n, source }) = asked_nproc(settings, contract) {
        return (n > 0).then_some((n, source));
    }
    offered_nproc(contract).or_else(|| {
        let visible = u32::try_from(gpus.visible.len()).ok().filter(|count| *count > 0)?;
        Some((visible, "CUDA_VISIBLE_DEVICES".to_owned()))
    })
}

/// What WORLD_SIZE means once the number of nodes is known without it.
fn note_world_size(
    contract: &Contract,
    nnodes: &Known,
    decisions: &mut Vec<Decision>,
    warnings: &mut Vec<Warning>,
) {
    let Some(found) = claims::spoken(contract, Field::WorldSize).into_iter().next() else { return };
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
        Some(per_node) => decisions.push(Decision::new(
            "world_size_counts",
            "processes",
            text!(
                "{claim} is {per_node} times the {nodes} nodes of {source}",
                "{claim} 是 {source} 的 {nodes} 个节点的 {per_node} 倍"
            ),
            claim,
        )),
        None => warnings.push(Warning::new(
            "membership.world-size",
            text!(
                "{claim} is neither the {nodes} nodes of {source} nor a multiple of them; it is not used",
                "{claim} 既不等于 {source} 的 {nodes} 个节点，也不是其整数倍；不采用"
            ),
            text!(
                "correct the one that is wrong; --nnodes overrides both",
                "请改正错误的一方；--nnodes 可覆盖二者"
            ),
        )),
    }
}

fn node_rank(
    settings: &Settings,
    contract: &Contract,
    nnodes: &Known,
    decisions: &mut Vec<Decision>,
    warnings: &mut Vec<Warning>,
) -> Result<Known, Refusal> {
    let nodes = nnodes.value;
    let stated = text!("stated", "已指定");
    let (known, because) = if let Some(setting) = &settings.node_rank {
        let source = setting.source.to_string();
        (Known { value: setting.value, source, by: By::Setting }, stated)
    } else if nodes == 1 && nnodes.by == By::Setting {
        // `--nnodes 1` in a job of many pods: each for itself, whatever its index there.
        let source = &nnodes.source;
        let because = text!("alone, by {source}", "按 {source}，只有本节点");
        (Known { value: 0, source: nnodes.source.clone(), by: By::Setting }, because)
    } else if let Some((known, because)) = ranked(contract, nodes)? {
        (known, because)
    } else if nodes == 1 {
        let because = text!("the only node", "唯一的节点");
        (Known { value: 0, source: "default".to_owned(), by: By::Nobody }, because)
    } else {
        let (source, last) = (&nnodes.source, nodes.saturating_sub(1));
        return Err(refuse(
            "membership.half-given",
            text!(
                "there are {nodes} nodes ({source}), and nothing says which of them this is",
                "共有 {nodes} 个节点（{source}），但没有信息说明本节点是第几个"
            ),
            text!(
                "state --node-rank 0 to {last}, or set RANK; --nnodes 1 if each node works for itself",
                "请给出 --node-rank 0 到 {last}，或设置 RANK；若各节点独立工作，请用 --nnodes 1"
            ),
        ));
    };
    check_rank(contract, nnodes, &known, warnings)?;
    decisions.push(Decision::new("node_rank", known.value, because, &known.source));
    Ok(known)
}

/// The node rank that the contract gives.
fn ranked(contract: &Contract, nodes: u32) -> Result<Option<(Known, Text)>, Refusal> {
    let strong = strongest(contract, Field::NodeRank);
    if let Some(first) = strong.first() {
        let value = claims::rank(first)?;
        for other in strong.iter().skip(1) {
            if claims::rank(other)? != value {
                return Err(contradiction(&first.claim, &other.claim, "--node-rank K"));
            }
        }
        let platform = &first.platform;
        let because = text!("{platform} numbers nodes by it", "{platform} 用它表示节点编号");
        let known = Known { value, source: first.claim.to_string(), by: By::Platform };
        return Ok(Some((known, because)));
    }
    let hint = |found: &Evidence| found.strength == Strength::Hint && nodes > 1;
    let found = claims::spoken(contract, Field::Rank)
        .into_iter()
        .next()
        .or_else(|| claims::spoken(contract, Field::NodeRank).into_iter().find(hint));
    let Some(found) = found else { return Ok(None) };
    let value = claims::rank(&found)?;
    let because = text!("the index of this node", "本节点的编号");
    let known = Known { value, source: found.claim.to_string(), by: By::WorldSize };
    Ok(Some((known, because)))
}

fn check_rank(
    contract: &Contract,
    nnodes: &Known,
    rank: &Known,
    warnings: &mut Vec<Warning>,
) -> Result<(), Refusal> {
    let (nodes, value) = (nnodes.value, rank.value);
    let said = match rank.by {
        By::Setting => format!("{}={value}", rank.source),
        _ => rank.source.clone(),
    };
    let half = |text| {
        refuse(
            "membership.half-given",
            text,
            text!(
                "state how many nodes take part: --nnodes N, or WORLD_SIZE; --nnodes 1 for this node alone",
                "请给出参与的节点数：--nnodes N 或 WORLD_SIZE；只用本节点时用 --nnodes 1"
            ),
        )
    };
    if nnodes.by == By::Nobody && rank.by != By::Nobody {
        let addr = claims::spoken(contract, Field::MasterAddr).into_iter().find(|found| {
            found.strength > Strength::Hint && !claims::is_loopback(&claims::host_text(found))
        });
        if value > 0 {
            return Err(half(text!(
                "{said} says that there are other nodes, and nothing says how many",
                "{said} 说明还有其他节点，但没有信息说明共有多少"
            )));
        }
        if let Some(addr) = addr.filter(|_| rank.by == By::WorldSize) {
            let addr = addr.claim;
            return Err(half(text!(
                "{said} and {addr} are set, and nothing says how many nodes there are",
                "设置了 {said} 和 {addr}，但没有信息说明共有多少节点"
            )));
        }
        warnings.push(Warning::new(
            "membership.half-given",
            text!(
                "{said} is set and nothing says how many nodes there are; this node works alone",
                "设置了 {said}，但没有信息说明节点数；按单节点运行"
            ),
            text!("state it with --nnodes N", "请用 --nnodes N 指明"),
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
        "membership.rank",
        text!(
            "{said} is beyond the last of {nodes} nodes ({source}): node ranks are 0 to {last}",
            "{said} 超出了 {nodes} 个节点（{source}）的范围：节点编号应为 0 到 {last}"
        ),
        text!(
            "correct one of them, or state --nnodes N and --node-rank K",
            "请改正其中之一，或给出 --nnodes N 和 --node-rank K"
        ),
    ))
}
