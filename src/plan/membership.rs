//! Decides the membership: node count, node rank and master, from settings and platform
//! contract.
//!
//! Takes the settings and the claims of the platform; gives one [`Membership`] with a reason for
//! every value, or a refusal that names the variable. A setting beats a variable of one
//! platform, which beats a name that many tools use, which beats WORLD_SIZE and RANK. Weaker
//! evidence never wins, and claims of equal strength must agree. No I/O.

mod claims;
mod known;
mod listed;
mod master;
mod nodes;
mod spares;
mod tasks;
#[cfg(test)]
mod tests;
mod weighed;

use crate::{Membership, Notes};
use claims::{Count, contradiction, refuse, standalone, strongest};
use known::{By, Processes, is_nested, platform, processes, stated_processes};
use node::observe::GpuFacts;
use settings::contract::{Contract, Field, Reading, Strength};
use settings::{Rendezvous, Settings, Source};
use text::text;
use verdict::{Id, Refusal};

pub use known::{AskedNproc, asked_nproc, offered_nproc};
pub use listed::{listed, master as stated_master, needs_addresses};
pub use weighed::weighed;

/// Node count, node rank and master of this job, as far as no GPU has to be counted for them.
///
/// # Errors
/// Also if WORLD_SIZE counts processes and only the number of GPUs tells how many a node has.
pub fn identity(
    settings: &Settings,
    contract: &Contract,
    notes: &mut Notes,
) -> Result<Membership, Refusal> {
    read(settings, contract, stated_processes(settings, contract), notes)
}

/// Like [`identity`], on a node whose GPUs have been counted.
pub fn membership(
    settings: &Settings,
    contract: &Contract,
    gpus: &GpuFacts,
    notes: &mut Notes,
) -> Result<Membership, Refusal> {
    read(settings, contract, processes(settings, contract, gpus), notes)
}

/// `each`: the number of processes on a node, for a WORLD_SIZE that counts processes.
fn read(
    settings: &Settings,
    contract: &Contract,
    each: Option<Processes>,
    notes: &mut Notes,
) -> Result<Membership, Refusal> {
    let each = each.as_ref();
    let settings = &*listed::applied(settings, contract, notes)?;
    refuse_nesting(settings, contract, notes)?;
    let own;
    let contract = if is_nested(settings, contract) {
        own = of_its_own(contract);
        &own
    } else {
        contract
    };
    let task = tasks::task(settings, contract)?;
    if task.is_none()
        && let Some(elastic) = elastic(settings, contract, notes)?
    {
        return Ok(elastic);
    }
    let (all, nnodes, node_rank) = match &task {
        Some(task) => {
            let (all, rank) = task.node(settings, contract, each, notes)?;
            let nnodes = spares::seats(settings, contract, &all, true, notes)?;
            (all, nnodes, rank)
        }
        None => {
            let all = nodes::nnodes(settings, contract, each, notes)?;
            let nnodes = spares::seats(settings, contract, &all, false, notes)?;
            let rank = tasks::node_rank(settings, contract, &all, notes)?;
            (all, nnodes, rank)
        }
    };
    let members = task.as_ref().map_or(all.value, |task| task.task.world);
    let at = (node_rank.value, members);
    let master = master::master(settings, contract, &all, at, notes)?;
    if task.is_none() {
        tasks::refuse_unknown(contract, &all, &node_rank)?;
    }
    let by_setting = all.by == By::Setting && node_rank.by == By::Setting;
    Ok(Membership {
        platform: if by_setting { "flags".to_owned() } else { platform(contract) },
        nnodes,
        nnodes_by_world_size: all.by == By::WorldSize,
        spares: settings.spares.value,
        node_rank: node_rank.value,
        seat: None,
        master_addr: master.addr,
        master_port: master.port,
        master_port_free: members == 1,
        elastic: None,
        task: task.map(|found| found.task),
    })
}

/// The contract of a nested job. The environment of a rank describes that rank, the other nodes
/// and the port of the outer job, but nothing of the job that it starts.
fn of_its_own(contract: &Contract) -> Contract {
    Contract {
        platform: "nested".to_owned(),
        evidence: Vec::new(),
        default_port: None,
        advice: None,
        ..contract.clone()
    }
}

fn refuse_nesting(
    settings: &Settings,
    contract: &Contract,
    notes: &mut Notes,
) -> Result<(), Refusal> {
    if let Some((pid, line)) = &contract.inside_torchrun
        && !settings.nested
    {
        let line: String = line.chars().take(200).collect();
        return Err(refuse(
            Id::Nested,
            text!(
                "this already runs below a launcher of ranks: process {pid} above us is `{line}`",
                "当前已在 rank 启动器之内：上级进程 {pid} 是 `{line}`"
            ),
            text!(
                "give ranklaunch the script itself, since it starts torchrun; --nested if one inside the other is meant",
                "请直接把脚本交给 ranklaunch，它会自己启动 torchrun；确需嵌套时加 --nested"
            ),
        ));
    }
    if !contract.stale_rank_variables.is_empty() {
        let names = contract.stale_rank_variables.join(", ");
        notes.warn(
            Id::EnvStaleRank,
            text!(
                "{names} are set although no torchrun is above us; they are left over and do not reach the ranks",
                "上级没有 torchrun，却设置了 {names}；这是残留变量，不会传给各 rank"
            ),
            text!(
                "unset them where the container or the shell is started",
                "请在启动容器或 shell 的地方取消这些变量"
            ),
        );
    }
    Ok(())
}

/// The membership of a job whose node count is a range, or whose nodes get their ranks from
/// c10d.
fn elastic(
    settings: &Settings,
    contract: &Contract,
    notes: &mut Notes,
) -> Result<Option<Membership>, Refusal> {
    if settings.nnodes.is_some() {
        return Ok(None);
    }
    let counts = strongest(contract, Field::Nnodes);
    let Some(found) =
        counts.iter().find(|found| found.reading == Reading::Range).or(counts.first())
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
    if least == 1 && standalone(contract).is_some() {
        return Ok(None);
    }
    if settings.spares.value > 0 {
        let source = &settings.spares.source;
        return Err(refuse(
            Id::MembershipSpares,
            text!(
                "{source} is for jobs whose number of nodes is fixed, but {claim} is an elastic job",
                "{source} 用于节点数固定的任务，而 {claim} 是弹性任务"
            ),
            text!(
                "fix the size with --nnodes N and --node-rank K, or leave {source} out",
                "请用 --nnodes N 和 --node-rank K 固定规模，或去掉 {source}"
            ),
        ));
    }
    if settings.rdzv.value == Rendezvous::Static && settings.rdzv.source != Source::Default {
        let source = &settings.rdzv.source;
        return Err(refuse(
            Id::MembershipElastic,
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
    let master = master::rendezvous(settings, contract, (most, claim), notes)?;
    let range = if least == most { least.to_string() } else { format!("{least}:{most}") };
    notes.decide(
        "nnodes",
        range,
        text!(
            "an elastic job: its nodes meet through c10d, which also gives them their ranks",
            "弹性任务：各节点通过 c10d 会合，并由它分配编号"
        ),
        claim,
    );
    Ok(Some(Membership {
        platform: platform(contract),
        nnodes: most,
        nnodes_by_world_size: false,
        spares: 0,
        node_rank: 0,
        seat: None,
        master_addr: master.addr,
        master_port: master.port,
        master_port_free: false,
        elastic: Some((least, most)),
        task: None,
    }))
}

/// PyTorchJob without a Master replica: a fixed count, an endpoint, and no rank.
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
