//! Parses claims into numbers and hosts.
//!
//! Takes a claim and its reading; gives a checked value, or a refusal that
//! quotes the variable. Does not know which claim wins.

use std::net::{IpAddr, Ipv6Addr};

use settings::contract::{Claim, Contract, Evidence, Field, Reading, Strength};
use settings::split_endpoint;
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal, Verdict};

/// More nodes than any job has; keeps every product of sizes inside u32.
pub(super) const MOST_NODES: u32 = 100_000;

pub(super) fn refuse(id: Id, text: Text, hint: Text) -> Refusal {
    Refusal::with(Verdict::Membership, id, text, hint)
}

/// The refusal if a part of the evidence is missing; the platform's own advice comes before
/// `hint`.
pub(super) fn half_given(contract: &Contract, text: Text, hint: Text) -> Refusal {
    refuse(Id::MembershipHalfGiven, text, contract.advice.clone().unwrap_or(hint))
}

/// The node count of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Count {
    Exact(u32),
    /// min < max.
    Between(u32, u32),
}

/// The claims of one field, strongest first.
pub(super) fn of(contract: &Contract, field: Field) -> Vec<Evidence> {
    contract.evidence.iter().filter(|found| found.field == field).cloned().collect()
}

/// The claims of one field that are not blank.
pub(super) fn spoken(contract: &Contract, field: Field) -> Vec<Evidence> {
    of(contract, field).into_iter().filter(|found| !found.claim.is_blank()).collect()
}

/// The strongest claim of one field that is not blank.
pub(super) fn first(contract: &Contract, field: Field) -> Option<Evidence> {
    spoken(contract, field).into_iter().next()
}

/// The strongest claims of a field that counts only nodes.
pub(super) fn strongest(contract: &Contract, field: Field) -> Vec<Evidence> {
    let mut found: Vec<Evidence> = spoken(contract, field)
        .into_iter()
        .filter(|found| found.strength > Strength::Generic)
        .collect();
    let most = found.iter().map(|found| found.strength).max();
    found.retain(|found| Some(found.strength) == most);
    found
}

/// torchrun's `--standalone`: this node is the whole job. PyTorchJob sets the variable to an
/// empty string, with which torchrun itself fails.
pub(super) fn standalone(contract: &Contract) -> Option<Evidence> {
    of(contract, Field::Standalone).into_iter().find(|found| found.claim.value.trim() != "0")
}

pub(super) fn contradiction(one: &Claim, other: &Claim, flag: &str) -> Refusal {
    refuse(
        Id::MembershipContradiction,
        text!(
            "{one} and {other} contradict each other, and neither is stronger",
            "{one} 与 {other} 相互矛盾，且无法判断以谁为准"
        ),
        text!(
            "set the right value with {flag}, or remove the wrong variable",
            "请用 {flag} 指明正确的值，或去掉错误的变量"
        ),
    )
}

/// A whole number within `least..=most`.
pub(super) fn number(
    claim: &Claim,
    text: &str,
    least: u32,
    most: u32,
    flag: &str,
) -> Result<u32, Refusal> {
    match text.trim().parse::<u32>() {
        Ok(value) if (least..=most).contains(&value) => Ok(value),
        _ => Err(refuse(
            Id::MembershipNumber,
            text!(
                "{claim} is not a whole number from {least} to {most}",
                "{claim} 不是 {least} 到 {most} 之间的整数"
            ),
            text!(
                "correct {claim} where the job is defined, or override it with {flag}",
                "请在任务定义处改正 {claim}，或用 {flag} 覆盖"
            ),
        )),
    }
}

/// The node count that a claim gives.
pub(super) fn count(found: &Evidence) -> Result<Count, Refusal> {
    let claim = &found.claim;
    let flag = "--nnodes N";
    match found.reading {
        Reading::Range => {
            let Some((least, most)) = claim.value.split_once(':') else {
                return number(claim, &claim.value, 1, MOST_NODES, flag).map(Count::Exact);
            };
            let least = number(claim, least, 1, MOST_NODES, flag)?;
            let most = number(claim, most, 1, MOST_NODES, flag)?;
            match least.cmp(&most) {
                std::cmp::Ordering::Less => Ok(Count::Between(least, most)),
                std::cmp::Ordering::Equal => Ok(Count::Exact(least)),
                std::cmp::Ordering::Greater => Err(refuse(
                    Id::MembershipNumber,
                    text!(
                        "{claim} is a range whose minimum {least} is above its maximum {most}",
                        "{claim} 这一范围的最小值 {least} 大于最大值 {most}"
                    ),
                    text!(
                        "write min:max, or override it with --nnodes N",
                        "请写成 min:max，或用 --nnodes N 覆盖"
                    ),
                )),
            }
        }
        Reading::PerNode => {
            let processes = number(claim, &claim.value, 1, u32::MAX, flag)?;
            let beside = found.beside.as_ref().filter(|beside| !beside.is_blank());
            let each = beside.map_or(Ok(1), |each| number(each, &each.value, 1, 4096, flag))?;
            let nodes =
                processes.checked_div(each).filter(|nodes| (1..=MOST_NODES).contains(nodes));
            match nodes.filter(|nodes| nodes.checked_mul(each) == Some(processes)) {
                Some(nodes) => Ok(Count::Exact(nodes)),
                None => Err(refuse(
                    Id::MembershipProcesses,
                    text!(
                        "{claim} counts processes, but it is not a multiple of the {each} that a node has",
                        "{claim} 表示进程数，但不是每节点 {each} 个进程的整数倍"
                    ),
                    text!(
                        "correct one of them, or set --nnodes N",
                        "请改正其中之一，或给出 --nnodes N"
                    ),
                )),
            }
        }
        Reading::Sum => {
            let own = number(claim, &claim.value, 0, MOST_NODES, flag)?;
            let beside = found.beside.as_ref().filter(|beside| !beside.is_blank());
            let more =
                beside.map_or(Ok(0), |more| number(more, &more.value, 0, MOST_NODES, flag))?;
            let sum = own.saturating_add(more).to_string();
            number(claim, &sum, 1, MOST_NODES, flag).map(Count::Exact)
        }
        Reading::Cluster | Reading::ListLength => {
            let length = found.hosts().len().to_string();
            number(claim, &length, 1, MOST_NODES, flag).map(Count::Exact)
        }
        _ => number(claim, &claim.value, 1, MOST_NODES, flag).map(Count::Exact),
    }
}

/// The node rank of a claim, not yet checked against the node count.
pub(super) fn rank(found: &Evidence) -> Result<u32, Refusal> {
    let claim = &found.claim;
    let flag = "--node-rank K";
    let most = MOST_NODES - 1;
    match found.reading {
        Reading::PositionInList | Reading::PositionInHostlist | Reading::Cluster => place(found),
        Reading::MainFirst => {
            let index = number(claim, &claim.value, 0, most, flag)?;
            let main = match &found.beside {
                Some(beside) if !beside.is_blank() => number(beside, &beside.value, 0, most, flag)?,
                _ => 0,
            };
            Ok(match index.cmp(&main) {
                std::cmp::Ordering::Equal => 0,
                std::cmp::Ordering::Less => index.saturating_add(1),
                std::cmp::Ordering::Greater => index,
            })
        }
        _ => number(claim, &claim.value, 0, most, flag),
    }
}

/// The position in a list, as a rank.
fn place(found: &Evidence) -> Result<u32, Refusal> {
    found.position().and_then(|position| u32::try_from(position).ok()).ok_or_else(|| {
        let claim = &found.claim;
        let text = match &found.beside {
            Some(beside) => {
                text!("{claim} is not in {beside}", "{claim} 不在 {beside} 之中")
            }
            None => text!(
                "this task is none of the nodes of {claim}",
                "本任务不在 {claim} 所列的节点之中"
            ),
        };
        refuse(
            Id::MembershipRank,
            text,
            text!("set the rank of this node: --node-rank K", "请给出本节点的编号：--node-rank K"),
        )
    })
}

/// The least number of tasks on one node of the job; 1 if it cannot be parsed.
pub(super) fn tasks(found: &Evidence) -> u32 {
    let number = || found.claim.value.trim().parse::<u32>().ok();
    match found.reading {
        Reading::LocalIndex => number().map_or(1, |index| index.saturating_add(1)),
        Reading::TaskList => task_list(&found.claim.value).into_iter().max().unwrap_or(1),
        _ => number().unwrap_or(1),
    }
}

/// The number of tasks on this node, which is at `position` of the list of hosts, if that is known.
pub(super) fn tasks_here(found: &Evidence, position: Option<usize>) -> Option<u32> {
    let count = match found.reading {
        Reading::LocalIndex => None,
        Reading::TaskList => {
            let index = || found.beside.as_ref()?.value.trim().parse::<usize>().ok();
            task_list(&found.claim.value).get(position.or_else(index)?).copied()
        }
        _ => found.claim.value.trim().parse().ok(),
    };
    count.filter(|count| *count > 0)
}

/// The rank of a task if tasks are numbered host by host in the order of the list: the number of tasks
/// on the hosts before `position`, plus the task's place on its host. None if a number is missing.
pub(super) fn rank_in_list(found: &Evidence, position: Option<usize>) -> Option<u32> {
    let place = found.beside.as_ref()?.value.trim().parse::<u32>().ok()?;
    let tasks = task_list(&found.claim.value);
    let mut before = tasks.get(..position?)?.iter();
    before.try_fold(place, |sum, tasks| sum.checked_add(*tasks))
}

/// `8(x2),4` → 8, 8, 4; stops at the first part that cannot be parsed.
fn task_list(value: &str) -> Vec<u32> {
    let mut all = Vec::new();
    for part in value.trim().split(',') {
        let (number, times) = match part.split_once("(x") {
            Some((number, times)) => (number, times.trim_end_matches(')').parse::<usize>()),
            None => (part, Ok(1)),
        };
        let (Ok(number), Ok(times)) = (number.trim().parse::<u32>(), times) else { break };
        all.extend(std::iter::repeat_n(number, times.min(MOST_NODES as usize - all.len())));
    }
    all
}

/// Whether `host` is another host than this one, judged by its text.
pub(super) fn is_other_host(contract: &Contract, host: &str) -> bool {
    let host = split_endpoint(host).0.trim_end_matches('.');
    let address = host.parse::<IpAddr>().ok();
    let is_own = contract.own_names.iter().any(|own| match (address, own.parse::<IpAddr>()) {
        (Some(address), Ok(own)) => address == own,
        (None, Err(_)) => is_name_of(own, host) || is_name_of(host, own),
        _ => false,
    });
    !is_loopback(host) && !is_own
}

/// `job-0` and `job-0.ns.svc` are names of one host.
pub(super) fn is_name_of(short: &str, long: &str) -> bool {
    let (short, long) = (short.to_ascii_lowercase(), long.to_ascii_lowercase());
    !short.is_empty()
        && long.strip_prefix(&short).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The reason why `host` cannot be the name or address of a node; None if it can.
pub(super) fn host_problem(host: &str) -> Option<Text> {
    if host.contains("://") {
        return Some(text!(
            "it is the value of a Kubernetes Service link or a URL, not a host",
            "这是 Kubernetes Service 链接或 URL，不是主机"
        ));
    }
    if host.contains("$(") || host.contains("${") {
        return Some(text!("a variable in it was never replaced", "其中的变量没有被替换"));
    }
    let (bare, port) = split_endpoint(host);
    if port.is_some() {
        return Some(text!(
            "it carries a port, which belongs in MASTER_PORT",
            "其中带有端口，端口应写在 MASTER_PORT 中"
        ));
    }
    let address = bare.split('%').next().unwrap_or_default();
    let named = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | '_');
    let legal = address.parse::<Ipv6Addr>().is_ok()
        || (bare.len() <= 253 && !bare.starts_with('-') && bare.chars().all(named));
    if bare.is_empty() || !legal {
        return Some(text!(
            "it is neither a host name nor an IP address",
            "它既不是主机名也不是 IP 地址"
        ));
    }
    None
}

/// `localhost`, 127.0.0.0/8, ::1, and the unspecified addresses, which also reach the node
/// itself.
pub(super) fn is_loopback(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback() || address.is_unspecified(),
        Err(_) => host.eq_ignore_ascii_case("localhost") || host.starts_with("localhost."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_is_read_in_every_reading() {
        let claim = |value: &str| Claim { variable: "V".to_owned(), value: value.to_owned() };
        let table = [
            (Reading::Plain, "3", None, Some(3)),
            (Reading::PositionInList, "b", Some("a, b"), Some(1)),
            (Reading::PositionInList, "c", Some("a, b"), None),
            (Reading::PositionInList, "b", None, None),
            (Reading::MainFirst, "2", Some("2"), Some(0)),
            (Reading::MainFirst, "0", Some("2"), Some(1)),
            (Reading::MainFirst, "1", Some("2"), Some(2)),
            (Reading::MainFirst, "3", Some("2"), Some(3)),
            (Reading::MainFirst, "0", None, Some(0)),
        ];
        for (reading, value, beside, expected) in table {
            let found = Evidence {
                platform: "p".to_owned(),
                field: Field::NodeRank,
                claim: claim(value),
                reading,
                beside: beside.map(claim),
                strength: Strength::Specific,
            };
            assert_eq!(rank(&found).ok(), expected, "{reading:?} {value} {beside:?}");
        }
    }

    #[test]
    fn impossible_host_names_are_problems() {
        for bad in
            ["tcp://10.0.0.1:29500", "$(MASTER)", "${A}", "10.0.0.1:1", "a b", "", "-x", "a/b"]
        {
            assert!(host_problem(bad).is_some(), "{bad}");
        }
        for good in ["10.0.0.1", "fd00::1", "fe80::1%eth0", "job-master-0.ns.svc", "node_1"] {
            assert_eq!(host_problem(good), None, "{good}");
        }
    }
}
