//! Evidence of other nodes or processes that does not tell the place of this one.
//!
//! Takes the contract of a job whose number of nodes no setting and no variable gives; gives
//! a refusal that says what was read and how to start the job.

use settings::contract::{Contract, Evidence, Field, Reading};
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal};

use super::claims::{self, half_given};
use super::listed;

/// Refuses if a scheduler shows that there are other nodes or processes, but not the place of this one:
/// each would work alone, as rank 0, and write the same checkpoint. The scheduler's list of hosts may also
/// be out of reach, as in a container.
pub(super) fn refuse(contract: &Contract) -> Result<(), Refusal> {
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
    Err(claims::refuse(
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
