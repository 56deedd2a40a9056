//! Evidence of other nodes or processes that does not tell the place of this one.
//!
//! Takes the contract of a job of which no setting and no variable says how many nodes it has; gives
//! a refusal that says what was read and how to start it.

use crate::hostlist;
use crate::lang::Text;
use crate::observe::{Contract, Evidence, Field, Reading};
use crate::text;
use crate::verdict::Refusal;

use super::claims::{self, half_given};
use super::listed;

/// A scheduler shows that there are other nodes or processes, but not the place of this one: each
/// would work alone, as rank 0, and write the same checkpoint.
pub(super) fn refuse(contract: &Contract) -> Result<(), Refusal> {
    let shown = claims::spoken(contract, Field::Several)
        .into_iter()
        .find_map(|found| Some((shown(contract, &found)?, found)));
    let Some((Text { en, zh }, found)) = shown else { return Ok(()) };
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

/// What a claim of [`Field::Several`] shows; None if this node may well be the only one.
fn shown(contract: &Contract, found: &Evidence) -> Option<Text> {
    let number = || found.claim.value.trim().parse::<u32>().ok();
    let hosts = |list: &str| {
        let hosts = hostlist::distinct(list);
        let (count, names) = (hosts.len(), listed::shown(&hosts));
        (count > 1)
            .then(|| text!("names {count} hosts ({names})", "列出了 {count} 台主机（{names}）"))
    };
    match found.reading {
        Reading::Count => number().filter(|count| *count > 1).map(|count| {
            text!("counts {count} nodes or processes", "表示共有 {count} 个节点或进程")
        }),
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
        Reading::Hosts => hosts(&found.claim.value),
        Reading::OwnHosts => {
            let names = hostlist::distinct(&found.claim.value);
            let is_own = names.iter().any(|name| !claims::is_other_host(contract, name));
            is_own.then(|| hosts(&found.claim.value))?
        }
        Reading::HostFile => hosts(&found.beside.as_ref()?.value),
        _ => None,
    }
}
