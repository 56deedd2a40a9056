//! Claims become numbers and hosts: the one place in which the text of a
//! contract is parsed.
//!
//! Takes a claim and its reading; gives a checked value, or a refusal that
//! quotes the variable. Does not know which claim wins.

use std::net::{IpAddr, Ipv6Addr};

use crate::lang::Text;
use crate::observe::{Claim, Contract, Evidence, Field, Reading, Strength};
use crate::text;
use crate::verdict::{Refusal, Verdict};

/// More nodes than any job has; keeps every product of sizes inside u32.
pub(super) const MOST_NODES: u32 = 100_000;

pub(super) fn refuse(id: &str, text: Text, hint: Text) -> Refusal {
    Refusal::new(Verdict::Membership, id, text, hint)
}

/// How many nodes a claim stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Count {
    Exact(u32),
    /// min < max.
    Between(u32, u32),
}

/// The claims of one field, strongest first. A contract made by hand has no evidence;
/// then its plain fields speak.
pub(super) fn of(contract: &Contract, field: Field) -> Vec<Evidence> {
    if !contract.evidence.is_empty() {
        return contract.evidence.iter().filter(|found| found.field == field).cloned().collect();
    }
    let (claim, reading, strength) = match field {
        Field::Nnodes => (&contract.nnodes, Reading::Range, Strength::Specific),
        Field::NodeRank => (&contract.node_rank, Reading::Plain, Strength::Specific),
        Field::WorldSize => (&contract.world_size, Reading::Plain, Strength::Generic),
        Field::Rank => (&contract.rank, Reading::Plain, Strength::Generic),
        Field::MasterAddr => (&contract.master_addr, Reading::Plain, Strength::Generic),
        Field::MasterPort => (&contract.master_port, Reading::Plain, Strength::Generic),
        Field::Nproc => (&contract.nproc, Reading::Plain, Strength::Specific),
        Field::RdzvEndpoint => (&contract.rdzv_endpoint, Reading::Plain, Strength::Specific),
        _ => return Vec::new(),
    };
    let evidence = |claim: &Claim| Evidence {
        platform: contract.platform.clone(),
        field,
        claim: claim.clone(),
        reading,
        beside: None,
        strength,
    };
    claim.iter().map(evidence).collect()
}

/// The claims of one field that say something.
pub(super) fn spoken(contract: &Contract, field: Field) -> Vec<Evidence> {
    of(contract, field).into_iter().filter(|found| !found.claim.is_blank()).collect()
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
            "membership.number",
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
                    "membership.number",
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
        Reading::ListLength => {
            let length = list(&claim.value).len().to_string();
            number(claim, &length, 1, MOST_NODES, flag).map(Count::Exact)
        }
        _ => number(claim, &claim.value, 1, MOST_NODES, flag).map(Count::Exact),
    }
}

/// The node rank that a claim gives, not yet held against the node count.
pub(super) fn rank(found: &Evidence) -> Result<u32, Refusal> {
    let claim = &found.claim;
    let flag = "--node-rank K";
    let most = MOST_NODES - 1;
    match found.reading {
        Reading::OneBased => {
            number(claim, &claim.value, 1, MOST_NODES, flag).map(|value| value.saturating_sub(1))
        }
        Reading::PositionInList => {
            let names = found.beside.as_ref().map(|beside| list(&beside.value)).unwrap_or_default();
            let position = names.iter().position(|name| name == claim.value.trim());
            position.and_then(|position| u32::try_from(position).ok()).ok_or_else(|| {
                let beside = found.beside.as_ref().map(Claim::to_string).unwrap_or_default();
                refuse(
                    "membership.rank",
                    text!("{claim} does not stand in {beside}", "{claim} 不在 {beside} 之中"),
                    text!("state the rank of this node: {flag}", "请给出本节点的编号：{flag}"),
                )
            })
        }
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

/// Entries of a JSON list of strings, or of text separated by commas or white space.
fn list(value: &str) -> Vec<String> {
    serde_json::from_str::<Vec<String>>(value).unwrap_or_else(|_| {
        value
            .split(|letter: char| letter == ',' || letter.is_whitespace())
            .filter(|entry| !entry.is_empty())
            .map(str::to_owned)
            .collect()
    })
}

/// `host`, `host:port`, `[v6]:port`, bare v6 → host and port as written.
pub(super) fn endpoint(value: &str) -> (&str, Option<&str>) {
    let value = value.trim();
    if let Some(inner) = value.strip_prefix('[')
        && let Some((host, rest)) = inner.split_once(']')
    {
        return (host, rest.strip_prefix(':'));
    }
    match value.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => (host, Some(port)),
        _ => (value, None),
    }
}

/// First host of `rack1node[01-04,07],other`.
fn first_of_hostlist(value: &str) -> String {
    let mut host = String::new();
    let mut letters = value.trim().chars();
    while let Some(letter) = letters.next() {
        match letter {
            ',' => break,
            '[' => {
                let group: Vec<char> = letters.by_ref().take_while(|inner| *inner != ']').collect();
                host.extend(group.into_iter().take_while(|inner| !matches!(inner, '-' | ',')));
            }
            other => host.push(other),
        }
    }
    host
}

/// How often the platform starts its command on this node; what cannot be read counts as once.
pub(super) fn tasks(found: &Evidence) -> u32 {
    let value = found.claim.value.trim();
    let digits = value.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(value.len());
    value.get(..digits).and_then(|digits| digits.parse().ok()).unwrap_or(1)
}

/// The master's host as a claim gives it, unchecked.
pub(super) fn host_text(found: &Evidence) -> String {
    let value = found.claim.value.trim();
    match found.reading {
        Reading::HostPart => endpoint(value).0.to_owned(),
        Reading::FirstOfList => list(value).into_iter().next().unwrap_or_default(),
        Reading::HostlistFirst => first_of_hostlist(value),
        Reading::Loopback => "127.0.0.1".to_owned(),
        _ => value.to_owned(),
    }
}

/// Why `host` cannot be the name or address of a node; None when it can.
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
    let (bare, port) = endpoint(host);
    if port.is_some() {
        return Some(text!(
            "it carries a port, which belongs in MASTER_PORT",
            "其中带有端口，端口应写在 MASTER_PORT 中"
        ));
    }
    let address = bare.split('%').next().unwrap_or_default();
    let named = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '.' | '_');
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

/// `localhost`, 127.0.0.0/8, ::1, and the unspecified addresses, which reach the node itself too.
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
    fn first_host_of_a_slurm_node_list() {
        let table = [
            ("node[01-04,07],other3", "node01"),
            ("node7", "node7"),
            ("rack[1-2]node[3,5]-ib", "rack1node3-ib"),
            ("a,b[1-2]", "a"),
            ("node[", "node"),
            ("", ""),
        ];
        for (list, host) in table {
            assert_eq!(first_of_hostlist(list), host, "{list}");
        }
    }

    #[test]
    fn endpoints_split_at_the_port_and_nowhere_else() {
        let table = [
            ("job-worker-0:23456", ("job-worker-0", Some("23456"))),
            ("10.0.0.1", ("10.0.0.1", None)),
            ("[fd00::1]:29400", ("fd00::1", Some("29400"))),
            ("fd00::1", ("fd00::1", None)),
            ("host:", ("host", Some(""))),
        ];
        for (value, expected) in table {
            assert_eq!(endpoint(value), expected, "{value}");
        }
    }

    #[test]
    fn hosts_that_cannot_be_hosts() {
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
