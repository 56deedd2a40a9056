//! Reads hosts, ports and positions from the text of a claim.
//!
//! Takes [`Evidence`] and its [`Reading`]; gives text that nobody has checked. `plan` reads the numbers, and refuses.

use super::{Evidence, Reading, cluster};
use crate::{endpoint, hostlist};

impl Evidence {
    /// The master's host as the claim gives it, unchecked.
    pub fn host(&self) -> String {
        let value = self.claim.value.trim();
        match self.reading {
            Reading::HostPart => endpoint::split(value).0.to_owned(),
            Reading::FirstOfList => list(value).into_iter().next().unwrap_or_default(),
            Reading::HostlistFirst => {
                hostlist::expand(value).into_iter().next().unwrap_or_default()
            }
            Reading::DaemonHost => daemon_host(value).unwrap_or_default().to_owned(),
            Reading::PrterunHost => hostlist::of_prterun(value).unwrap_or_default().to_owned(),
            Reading::SecondDaemon => {
                hostlist::of_daemons(value).into_iter().nth(1).unwrap_or_default()
            }
            Reading::Cluster => endpoint::split(&cluster::first(value)).0.to_owned(),
            Reading::FirstReplica => match &self.beside {
                Some(domain) => format!("{value}-0.{}", domain.value.trim()),
                None => format!("{value}-0.{value}-job-svc"),
            },
            Reading::Loopback => "127.0.0.1".to_owned(),
            _ => value.to_owned(),
        }
    }

    /// The master's port as the claim gives it, unchecked; empty if an endpoint has none.
    pub fn port(&self) -> String {
        let value = self.claim.value.trim();
        match self.reading {
            Reading::PortPart => endpoint::split(value).1.unwrap_or_default().to_owned(),
            Reading::Cluster => {
                endpoint::split(&cluster::first(value)).1.unwrap_or_default().to_owned()
            }
            _ => value.to_owned(),
        }
    }

    /// The hosts or other members that a list names; empty for every other reading.
    pub fn hosts(&self) -> Vec<String> {
        match (self.reading, &self.beside) {
            (Reading::ListLength, _) => list(&self.claim.value),
            (Reading::Cluster, _) => cluster::hosts(&self.claim.value),
            (Reading::Hosts | Reading::OwnHosts, _) => hostlist::whole(&self.claim.value),
            (Reading::HostFile, Some(hosts)) => hostlist::whole(&hosts.value),
            _ => Vec::new(),
        }
    }

    /// The position of this node in a list; None also for every other reading.
    pub fn position(&self) -> Option<usize> {
        let beside = self.beside.as_ref().map_or("", |beside| beside.value.as_str());
        match self.reading {
            Reading::PositionInList => {
                list(beside).iter().position(|name| name == self.claim.value.trim())
            }
            Reading::PositionInHostlist => hostlist::position(beside, &self.claim.value),
            Reading::Cluster => cluster::position(&self.claim.value),
            _ => None,
        }
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

/// `4206.0;tcp://10.0.0.1,172.17.0.1:41897` → 10.0.0.1, the first of the host's addresses. Addresses of
/// IPv6 alone are in brackets, `tcp6://[fd00::1]:41897`.
fn daemon_host(uri: &str) -> Option<&str> {
    let (_, address) = uri.split_once("://")?;
    match address.strip_prefix('[') {
        Some(addresses) => addresses.split([',', ']']).next(),
        None => address.split([',', ':', ';']).next(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_host_is_its_first_address() {
        for (uri, host) in [
            ("4206.0;tcp://10.0.0.1,172.17.0.1:41897", Some("10.0.0.1")),
            ("4206.0;tcp://10.0.0.1:41897;tcp6://[fd00::1]:41898", Some("10.0.0.1")),
            ("4206.0;tcp6://[fd00::1,fd00::2]:41898", Some("fd00::1")),
            ("4206.0", None),
        ] {
            assert_eq!(daemon_host(uri), host, "{uri}");
        }
    }
}
