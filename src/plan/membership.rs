//! Who takes part and where they meet: settings and contract → [`Membership`].
//!
//! Takes what the user decided and what the platform claims; gives one
//! membership with a reason for every value, or a refusal that names the
//! variable. A setting beats a variable of one platform, that beats a name that
//! many tools use, that beats WORLD_SIZE and RANK. Weaker evidence never
//! overrules, and claims of equal strength must agree. No I/O.

mod claims;
mod cluster;
mod elastic;
#[cfg(test)]
mod environments;
#[cfg(test)]
mod half_given;
mod master;
mod nodes;
mod nproc;
mod rank;
#[cfg(test)]
mod tests;

use crate::observe::{Contract, Field, GpuFacts, Reading, Strength};
use crate::plan::{Decision, Membership};
use crate::settings::Settings;
use crate::text;
use crate::verdict::{Refusal, Warning};

use claims::refuse;
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
    /// `--standalone` of torchrun.
    Standalone,
    WorldSize,
    Nobody,
}

impl Known {
    /// This node was taken out of the platform's job: its rank and master there mean nothing.
    fn is_apart(&self) -> bool {
        self.value == 1 && matches!(self.by, By::Setting | By::Standalone)
    }
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
    if let Some(elastic) = elastic::elastic(settings, contract, decisions, warnings)? {
        return Ok(elastic);
    }
    let nnodes = nodes::nnodes(settings, contract, gpus, decisions, warnings)?;
    let node_rank = rank::node_rank(settings, contract, &nnodes, decisions, warnings)?;
    let master = master::master(settings, contract, &nnodes, node_rank.value, decisions, warnings)?;
    refuse_unknown_tasks(contract, &nnodes, &node_rank)?;
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
                "this runs below a launcher of ranks already: process {pid} above us is `{line}`",
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
    let found = claims::spoken(contract, Field::TasksPerNode).into_iter();
    let most = found.map(|found| (claims::tasks(&found), found)).max_by_key(|(tasks, _)| *tasks);
    let Some((tasks, found)) = most.filter(|(tasks, _)| *tasks > 1) else { return Ok(()) };
    let claim = &found.claim;
    let least_en = if found.reading == Reading::LocalIndex { "at least " } else { "" };
    let least_zh = if found.reading == Reading::LocalIndex { "至少 " } else { " " };
    let hint = if found.strength == Strength::Hint {
        text!(
            "ask for one process per node (processCount = number of nodes, --ntasks-per-node=1); if it is one already and LOCAL_RANK and LOCAL_WORLD_SIZE are left over, unset them or state --nnodes and --node-rank",
            "请设为每节点一个进程（进程数等于节点数，或 --ntasks-per-node=1）；若已是如此，而 LOCAL_RANK 和 LOCAL_WORLD_SIZE 只是残留变量，请取消设置，或给出 --nnodes 和 --node-rank"
        )
    } else {
        text!(
            "ask for one task per node (--ntasks-per-node=1, -npernode 1, -ppn 1); if it is started once per node all the same, state --nnodes and --node-rank",
            "请设为每节点一个任务（--ntasks-per-node=1、-npernode 1 或 -ppn 1）；若该命令在每节点上确实只启动一次，请给出 --nnodes 和 --node-rank"
        )
    };
    Err(refuse(
        "membership.tasks",
        text!(
            "{claim}: the platform starts this command {least_en}{tasks} times on the node, and ranklaunch must be started once",
            "{claim}：平台会在本节点启动该命令{least_zh}{tasks} 次，而 ranklaunch 只应启动一次"
        ),
        hint,
    ))
}

/// A launcher that counts processes and does not say how many of them this node has.
fn refuse_unknown_tasks(
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
        "membership.tasks",
        text!(
            "{claim} is about processes ({platform}), and no variable says how many of them this node has, so it is not known to be one per node",
            "{claim} 表示的是进程（{platform}），但没有变量说明本节点有多少进程，无法确认每节点只有一个"
        ),
        text!(
            "start one process per node and state --nnodes N and --node-rank K",
            "请每节点只启动一个进程，并给出 --nnodes N 和 --node-rank K"
        ),
    ))
}
