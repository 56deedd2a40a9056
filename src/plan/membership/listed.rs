//! The list of hosts of `--nodes`: the same line on every host, each of which finds its own place.
//!
//! Takes settings and the node's own names; gives settings in which the list has become a node
//! count, a node rank and a master, or a refusal with the list and the names. Never asks a name
//! server: [`needs_addresses`] says whether the caller should.

use std::borrow::Cow;
use std::net::IpAddr;

use crate::Notes;
use settings::contract::Contract;
use settings::{Settings, Sourced};
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal};

use super::claims::{is_loopback, is_name_of, refuse};

/// Hosts and names of a message.
const SHOWN: usize = 8;

/// `settings` with the values of the list. A value that the settings give separately stays if it is not
/// weaker than the list: `--node-rank` on a host whose name in the list is that of another network.
pub(super) fn applied<'a>(
    settings: &'a Settings,
    contract: &Contract,
    notes: &mut Notes,
) -> Result<Cow<'a, Settings>, Refusal> {
    let Some(list) = listed(settings) else { return Ok(Cow::Borrowed(settings)) };
    let Sourced { value: hosts, source } = list;
    let count = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
    // The list has the spares as well.
    let spares = &settings.spares;
    if let Some(nnodes) = &settings.nnodes
        && nnodes.value.saturating_add(spares.value) != count
        && !source.is_stronger_than(&nnodes.source)
    {
        let (said, value, shown) = (&nnodes.source, nnodes.value, shown(hosts));
        let beside = match spares.value {
            0 => text!("", ""),
            value => {
                let said = &spares.source;
                text!(" and {said} is {value}", "，{said} 为 {value}")
            }
        };
        let (beside_en, beside_zh) = (beside.en, beside.zh);
        return Err(refuse(
            Id::MembershipContradiction,
            text!(
                "{said} is {value}{beside_en}, but {source} names {count} hosts: {shown}",
                "{said} 为 {value}{beside_zh}，而 {source} 列出了 {count} 台主机：{shown}"
            ),
            text!(
                "leave {said} out: the list is the number of nodes, spares included; or correct the list",
                "请去掉 {said}（列表已给出节点数，含备用节点），或改正列表"
            ),
        ));
    }
    let mut own = settings.clone();
    let seats = count.saturating_sub(settings.spares.value);
    own.nnodes = Some(Sourced::new(seats, source.clone()));
    let rank = settings.node_rank.as_ref();
    if rank.is_none_or(|rank| source.is_stronger_than(&rank.source)) {
        let place = place(hosts, &contract.own_names).map_err(|found| found.refusal(list))?;
        let host = hosts.get(place).map_or("", String::as_str);
        let ordinal = place.saturating_add(1);
        notes.decide(
            "nodes",
            shown(hosts),
            text!(
                "this host is {host}, number {ordinal} of the list",
                "本机是 {host}，列表中的第 {ordinal} 台"
            ),
            source,
        );
        let rank = u32::try_from(place).unwrap_or(u32::MAX);
        own.node_rank = Some(Sourced::new(rank, source.clone()));
    }
    own.master_addr = master(settings).map(Cow::into_owned);
    Ok(Cow::Owned(own))
}

/// The list of hosts. A stronger `--nnodes 1` means that this host works alone, whatever a profile
/// or a variable lists.
pub fn listed(settings: &Settings) -> Option<&Sourced<Vec<String>>> {
    let list = settings.nodes.as_ref()?;
    let is_alone = settings
        .nnodes
        .as_ref()
        .is_some_and(|nnodes| nnodes.value == 1 && nnodes.source.is_stronger_than(&list.source));
    (!is_alone).then_some(list)
}

/// The master that the settings give: `--master-addr`, or the first host of a list that is stronger or
/// that has no `--master-addr` beside it.
pub fn master(settings: &Settings) -> Option<Cow<'_, Sourced<String>>> {
    let given = settings.master_addr.as_ref();
    let list = listed(settings)
        .filter(|list| given.is_none_or(|given| list.source.is_stronger_than(&given.source)));
    list.and_then(|list| {
        let first = list.value.first()?.clone();
        Some(Cow::Owned(Sourced::new(first, list.source.clone())))
    })
    .or(given.map(Cow::Borrowed))
}

/// The hosts of the list whose addresses have to be known, since the names do not show which of them
/// this node is.
pub fn needs_addresses<'a>(settings: &'a Settings, own_names: &[String]) -> &'a [String] {
    match listed(settings) {
        Some(list) if place(&list.value, own_names).is_err() => &list.value,
        _ => &[],
    }
}

/// The reason why no place was found.
#[derive(Debug, PartialEq, Eq)]
enum NoPlace {
    /// A name by which every host means itself.
    Loopback(String),
    /// Own names, for the message.
    Absent(Vec<String>),
    /// Two entries are this host.
    Twice(String, String),
}

/// The place of this host in the list, from 0. A name that is written as the host's own comes
/// before one that is only its beginning: `node.a` and `node.b` are two hosts that may both call
/// themselves `node`.
fn place(hosts: &[String], own_names: &[String]) -> Result<usize, NoPlace> {
    if hosts.len() > 1
        && let Some(host) = hosts.iter().find(|host| is_loopback(host))
    {
        return Err(NoPlace::Loopback(host.clone()));
    }
    let equal = |host: &str, own: &str| match (host.parse::<IpAddr>(), own.parse::<IpAddr>()) {
        (Ok(host), Ok(own)) => host == own,
        (Err(_), Err(_)) => {
            let bare = |name: &str| name.trim_end_matches('.').to_ascii_lowercase();
            bare(host) == bare(own)
        }
        _ => false,
    };
    let begins = |host: &str, own: &str| {
        let is_name = |name: &str| name.parse::<IpAddr>().is_err();
        is_name(host) && is_name(own) && (is_name_of(own, host) || is_name_of(host, own))
    };
    let places = |fits: &dyn Fn(&str, &str) -> bool| -> Vec<usize> {
        let found = hosts.iter().enumerate();
        let found = found.filter(|(_, host)| own_names.iter().any(|own| fits(host, own)));
        found.map(|(place, _)| place).collect()
    };
    match (places(&equal).as_slice(), places(&begins).as_slice()) {
        (&[one], _) | (&[], &[one]) => Ok(one),
        (&[one, other, ..], _) => {
            let host = |place: usize| hosts.get(place).cloned().unwrap_or_default();
            Err(NoPlace::Twice(host(one), host(other)))
        }
        _ if hosts.len() == 1 && hosts.iter().all(|host| is_loopback(host)) => Ok(0),
        _ => Err(NoPlace::Absent(own_names.to_vec())),
    }
}

impl NoPlace {
    fn refusal(self, Sourced { value: hosts, source }: &Sourced<Vec<String>>) -> Refusal {
        let list = shown(hosts);
        let last = hosts.len().saturating_sub(1);
        let Text { en, zh } = match &self {
            NoPlace::Loopback(host) => text!(
                "{source} is {list}, but {host} is every host itself",
                "{source} 为 {list}，但 {host} 在每台主机上都指自己"
            ),
            NoPlace::Twice(one, other) => text!(
                "{source} is {list}, but both {one} and {other} are this host",
                "{source} 为 {list}，但 {one} 和 {other} 都是本机"
            ),
            NoPlace::Absent(own) => {
                let own = shown(&telling(own));
                text!(
                    "{source} is {list}, but this host is none of them: it is {own}",
                    "{source} 为 {list}，但其中没有本机：本机是 {own}"
                )
            }
        };
        let hint = match self {
            NoPlace::Absent(_) if last == 0 => text!(
                "name this host as the other hosts do, or leave {source} out",
                "请使用其他主机访问本机时的名称，或去掉 {source}"
            ),
            NoPlace::Absent(_) => text!(
                "add this host, or start only on the hosts of the list; --node-rank 0 to {last} says which of them this is if it has another name there",
                "请把本机加入列表，或只在列表中的主机上启动；若它在列表中用的是别的名称，用 --node-rank 0 到 {last} 指明是哪一台"
            ),
            NoPlace::Loopback(_) | NoPlace::Twice(..) => text!(
                "name every host once, by a name or an address that the other hosts use for it; the line is the same on every host",
                "请为每台主机只写一次，并使用其他主机访问它时的名称或地址；每台主机上的命令相同"
            ),
        };
        refuse(Id::MembershipRank, Text::new(en, zh), hint)
    }
}

/// Names and addresses by which another host may know this one.
fn telling(own: &[String]) -> Vec<String> {
    let is_local = |name: &str| {
        is_loopback(name)
            || name.parse::<std::net::Ipv6Addr>().is_ok_and(|one| one.is_unicast_link_local())
    };
    let mut names: Vec<String> = Vec::new();
    for name in own.iter().filter(|name| !name.is_empty() && !is_local(name)) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    names
}

/// `host0, host1`; for a long list its beginning and its length.
pub(super) fn shown(hosts: &[String]) -> String {
    let count = hosts.len();
    match hosts.get(..SHOWN) {
        Some(first) if count > SHOWN => format!("{}, … ({count})", first.join(", ")),
        _ => hosts.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(names: &str) -> Vec<String> {
        names.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn host_finds_its_place_by_its_names() {
        for (hosts, own, expected) in [
            ("host0 host1", "host1 10.0.0.2", Some(1)),
            ("10.0.0.1 10.0.0.2", "host1 10.0.0.2", Some(1)),
            ("fd00::1 fd00::2", "host0 fd00:0::1", Some(0)),
            // Clones that share a name are known by their addresses.
            ("10.0.0.1 10.0.0.2", "localhost 127.0.0.1 10.0.0.1", Some(0)),
            ("host0.site.net HOST1.site.net.", "host1", Some(1)),
            ("host0 host1", "host1.site.net", Some(1)),
            ("host1.a host1.b", "host1.b", Some(1)),
            ("host1.a host1.b", "host1", None),
            ("host1 host10", "host10", Some(1)),
            ("host0 host1", "host2 10.0.0.3", None),
            ("10.0.0.1 10.0.0.10", "x 10.0.0.100", None),
            ("10.0.0.1 10", "10 10.0.0.1", None),
            ("localhost", "n1 127.0.0.1", Some(0)),
            ("localhost host1", "host1", None),
            ("host0", "host0", Some(0)),
        ] {
            let found = place(&texts(hosts), &texts(own));
            assert_eq!(found.as_ref().ok().copied(), expected, "{hosts} on {own}: {found:?}");
        }
        let twice = place(&texts("host1 10.0.0.2"), &texts("host1 10.0.0.2"));
        assert_eq!(twice, Err(NoPlace::Twice("host1".to_owned(), "10.0.0.2".to_owned())));
    }
}
