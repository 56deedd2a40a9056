//! Expands Slurm's compressed host lists: `rack[1-2]node[03-04,07],login1`; splits `host:port`.
//!
//! Takes such a list; gives its hosts in order. Invalid text is expanded as far as possible.
//! Does not call scontrol, which most containers do not have.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

/// More hosts than any job has; longer ranges are cut.
pub(crate) const MOST: usize = 100_000;
/// Most bytes of a host's name; no resolver takes more (RFC 1035, 2.3.4).
pub(crate) const LONGEST_NAME: usize = 255;
/// Brackets of one item. Slurm has five dimensions at most (slurm.h, HIGHEST_DIMENSIONS).
const MOST_GROUPS: usize = 16;

/// The hosts of a list, in its order. No name is longer than a host's can be.
///
/// The list is a variable, so it may be as long as the kernel allows. The work is bounded as well.
pub(crate) fn expand(list: &str) -> Vec<String> {
    let mut hosts = Vec::new();
    for item in items(list) {
        let mut names = vec![String::new()];
        let (mut rest, mut groups) = (item, 0);
        while !rest.is_empty() && !names.is_empty() {
            let (plain, group) = rest.split_once('[').unwrap_or((rest, ""));
            let (group, after) = group.split_once(']').unwrap_or((group, ""));
            rest = after;
            groups += usize::from(!group.is_empty());
            if groups > MOST_GROUPS {
                names.clear();
            } else if !plain.is_empty() || !group.is_empty() {
                let ends = if group.is_empty() { vec![String::new()] } else { numbers(group) };
                let fits = |(name, end): &(&String, &String)| {
                    name.len() + plain.len() + end.len() <= LONGEST_NAME
                };
                let grown = names
                    .iter()
                    .flat_map(|name| ends.iter().map(move |end| (name, end)))
                    .filter(fits)
                    .map(|(name, end)| format!("{name}{plain}{end}"));
                names = grown.take(MOST).collect();
            }
        }
        hosts.extend(names.into_iter().filter(|name| !name.is_empty()));
        if hosts.len() >= MOST {
            hosts.truncate(MOST);
            break;
        }
    }
    hosts
}

/// The hosts of a list in any of the forms that schedulers use, each once. Entries are separated by
/// commas, semicolons, colons, `&`, `+` or white space, or the list is JSON or has brackets. A host may
/// have a number of slots behind it, and its domain. Empty if any entry is not a host, since the text
/// is then not a list of hosts. Names by which a host calls itself (`localhost`, 127.…) are left out.
fn distinct(list: &str) -> Vec<String> {
    let mut hosts: Vec<String> = Vec::new();
    let (mut known, mut short_names) = (BTreeSet::new(), BTreeSet::new());
    let entries = match serde_json::from_str::<Vec<String>>(list) {
        Ok(entries) => entries,
        Err(_) if list.contains('[') => list.split_ascii_whitespace().flat_map(expand).collect(),
        Err(_) => {
            let is_between = |letter: char| ",;&+".contains(letter) || letter.is_ascii_whitespace();
            list.split(is_between).map(str::to_owned).collect()
        }
    };
    // An address of IPv6 may have a zone, `fe80::1%eth0`.
    let is_address =
        |entry: &str| entry.split('%').next().is_some_and(|ip| ip.parse::<Ipv6Addr>().is_ok());
    let names = entries.iter().flat_map(|entry| {
        let is_one = is_address(entry);
        entry.split(move |letter: char| !is_one && matches!(letter, ':' | '*'))
    });
    for host in names.filter(|host| !host.is_empty()).take(MOST) {
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let is_named = |letter: char| letter.is_ascii_alphanumeric() || "-._:%".contains(letter);
        if !host.chars().all(is_named) || host.starts_with(['-', '.']) || host.len() > LONGEST_NAME
        {
            return Vec::new();
        }
        let is_own = host.eq_ignore_ascii_case("localhost") || host.starts_with("127.");
        if is_number(host) || is_own {
            continue;
        }
        // `n1` and `n1.example.org` are names of one host.
        let name = host.to_ascii_lowercase();
        let short = name.split('.').next().unwrap_or_default().to_owned();
        let is_known =
            if short == name { short_names.contains(&short) } else { known.contains(&short) };
        short_names.insert(short);
        if known.insert(name) && !is_known {
            hosts.push(host.to_owned());
        }
    }
    hosts
}

/// Like [`distinct`]. A list that names its only host as `localhost` or 127.… gives that name: it has one host.
pub(crate) fn whole(list: &str) -> Vec<String> {
    let hosts = distinct(list);
    let is_own = |entry: &str| entry.eq_ignore_ascii_case("localhost") || entry.starts_with("127.");
    let mut words = list.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '.');
    match words.find(|word| is_own(word)) {
        Some(own) if hosts.is_empty() => vec![own.to_owned()],
        _ => hosts,
    }
}

/// Whether every bracket of an item is closed, and holds only numbers and ascending ranges.
pub(crate) fn is_whole(item: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_range = |part: &str| match part.split_once('-') {
        Some((first, last)) => {
            let ends = first.parse::<usize>().ok().zip(last.parse::<usize>().ok());
            is_number(first)
                && is_number(last)
                && ends.is_some_and(|(first, last)| first <= last && last - first < MOST)
        }
        None => is_number(part),
    };
    let mut parts = item.split('[');
    let plain = parts.next().unwrap_or_default();
    !plain.contains(']')
        && parts.all(|part| {
            part.split_once(']').is_some_and(|(group, after)| {
                group.split(',').all(is_range) && !after.contains(']')
            })
        })
}

/// The position of a host in a list, from 0.
pub(crate) fn position(list: &str, host: &str) -> Option<usize> {
    expand(list).iter().position(|name| name == host.trim())
}

/// The hosts of Open MPI's list of daemons in their order: `login,n[2:1-16,20]@0(18)`, whose
/// brackets begin with the number of digits.
pub(crate) fn of_daemons(list: &str) -> Vec<String> {
    let list = list.rsplit_once('@').map_or(list, |(hosts, _numbers)| hosts);
    let mut slurm = String::new();
    for (place, part) in list.split('[').enumerate() {
        let group = part.split_once(':').zip(part.split_once(']'));
        let Some(((digits, rest), _)) = group.filter(|_| place > 0) else {
            slurm.push_str(part);
            continue;
        };
        let width = digits.parse().unwrap_or(0).min(9);
        let (numbers, after) = rest.split_once(']').unwrap_or((rest, ""));
        let padded = numbers.split(',').map(|range| {
            let ends: Vec<String> = range.split('-').map(|end| format!("{end:0>width$}")).collect();
            ends.join("-")
        });
        slurm.extend(["[", &padded.collect::<Vec<_>>().join(","), "]", after]);
    }
    expand(&slurm)
}

/// The parts between commas outside of brackets.
pub(crate) fn items(list: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    list.trim().split(move |letter| {
        match letter {
            '[' => inside = true,
            ']' => inside = false,
            _ => {}
        }
        letter == ',' && !inside
    })
}

/// `03-04,07` → 03, 04, 07; leading zeros are kept.
fn numbers(group: &str) -> Vec<String> {
    let mut all = Vec::new();
    for part in group.split(',').filter(|part| !part.is_empty()) {
        let range = part.split_once('-').and_then(|(first, last)| {
            Some((first.len(), first.parse::<usize>().ok()?, last.parse::<usize>().ok()?))
        });
        match range {
            // Longer numbers fit no name, and format! takes a width of 16 bits at most.
            Some((width, first, last)) if first <= last && width <= LONGEST_NAME => {
                let numbers = (first..=last).take(MOST);
                all.extend(numbers.map(|number| format!("{number:0width$}")));
            }
            _ => all.push(part.split('-').next().unwrap_or(part).to_owned()),
        }
        if all.len() >= MOST {
            all.truncate(MOST);
            break;
        }
    }
    all
}

/// The host of mpirun in `prterun-n1-4206@1`, the id of a job of Open MPI 5: program, host name, pid.
pub(crate) fn of_prterun(id: &str) -> Option<&str> {
    let (launcher, _job) = id.trim().rsplit_once('@')?;
    let (host, pid) = launcher.strip_prefix("prterun-")?.rsplit_once('-')?;
    let is_pid = !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit());
    (is_pid && !host.is_empty()).then_some(host)
}

/// `host`, `host:port`, `[v6]:port`, bare v6 → host and port as written, both unchecked.
pub fn split_endpoint(value: &str) -> (&str, Option<&str>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_give_their_hosts_in_order() {
        let table: [(&str, &[&str]); 9] = [
            ("node[01-03,07],other3", &["node01", "node02", "node03", "node07", "other3"]),
            ("node7", &["node7"]),
            ("n[1,3]", &["n1", "n3"]),
            (
                "rack[1-2]node[3,5]-ib",
                &["rack1node3-ib", "rack1node5-ib", "rack2node3-ib", "rack2node5-ib"],
            ),
            ("a,b[9-11]", &["a", "b9", "b10", "b11"]),
            ("node[", &["node"]),
            ("n[x-y]", &["nx"]),
            ("n[3-1]", &["n3"]),
            ("", &[]),
        ];
        for (list, hosts) in table {
            assert_eq!(expand(list), hosts, "{list}");
        }
        assert_eq!(position("n[1,3],a", "n3"), Some(1));
        assert_eq!(position("n[1,3]", "n2"), None);
    }

    #[test]
    fn lists_of_daemons_give_their_hosts_in_order() {
        let table: [(&str, &[&str]); 7] = [
            ("n[1:1-2]@0(2)", &["n1", "n2"]),
            ("n[1:1,3,2]@0(3)", &["n1", "n3", "n2"]),
            ("login,gpu[3:9-11].x,z@0(5)", &["login", "gpu009.x", "gpu010.x", "gpu011.x", "z"]),
            ("a,b", &["a", "b"]),
            ("n[99999999999:1]@", &["n000000001"]),
            ("n[:", &["n:"]),
            ("", &[]),
        ];
        for (list, hosts) in table {
            assert_eq!(of_daemons(list), hosts, "{list}");
        }
    }

    #[test]
    fn lists_of_every_scheduler_name_each_host_once() {
        for (list, hosts) in [
            ("n1,n2;n3 n4\nn5&n6+n7", "n1 n2 n3 n4 n5 n6 n7"),
            ("n1:n2:n3", "n1 n2 n3"),
            ("n1:8,n2:8", "n1 n2"),
            ("n1*4&n2*4", "n1 n2"),
            ("10.0.0.1:10.0.0.2", "10.0.0.1 10.0.0.2"),
            ("fd00::1,fe80::2%eth0", "fd00::1 fe80::2%eth0"),
            ("[\"a\",\"b:2\"]", "a b"),
            ("n[1-2] n3", "n1 n2 n3"),
            ("2 n1 4 n2 4", "n1 n2"),
            ("n1 n1.example.org n2.example.org n2 n3.a n3.b", "n1 n2.example.org n3.a n3.b"),
            ("localhost 127.0.0.1 8", ""),
            ("http://a:9200,http://b:9200", ""),
            ("/etc/hosts", ""),
        ] {
            assert_eq!(distinct(list).join(" "), hosts, "{list}");
        }
    }

    #[test]
    fn overlong_list_is_cut_at_the_limit() {
        assert_eq!(expand("n[0-99999999999]").len(), MOST);
        assert_eq!(expand("a[1-1000]b[1-1000]c[1-1000]").len(), MOST);
    }

    /// A variable has up to 128 KiB. Lists like these, at that length, took hours or gigabytes of memory.
    #[test]
    fn hostile_lists_are_cut_at_once() {
        let name = "n".repeat(LONGEST_NAME);
        assert_eq!(expand(&format!("{name},{name}n")), [name]);
        assert_eq!(expand(&format!("n[1-9]{}", "x".repeat(LONGEST_NAME))), [""; 0]);
        assert_eq!(expand(&format!("n{},m", "[7]".repeat(MOST_GROUPS + 1))), ["m"]);
        assert_eq!(expand(&format!("n[{}1-9],m", "0".repeat(70_000))), ["m"]);
        assert_eq!(expand(&format!("n{}x[7-8]", "[]".repeat(60_000))), ["nx7", "nx8"]);
        assert_eq!(expand(&"n[1-99999],".repeat(10_000)).len(), MOST);
        assert_eq!(expand(&format!("n[{}]", "1-99999,".repeat(15_000))).len(), MOST);
    }

    #[test]
    fn open_mpi_5_job_id_names_a_host() {
        for (id, host) in [
            ("prterun-n1-4206@1", Some("n1")),
            ("prterun-gpu-a-7.lan-4206@12", Some("gpu-a-7.lan")),
            ("prterun-4206@1", None),
            ("prterun-n1-x@1", None),
            ("4206", None),
            ("slurm.pmix.77.0", None),
        ] {
            assert_eq!(of_prterun(id), host, "{id}");
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
            assert_eq!(split_endpoint(value), expected, "{value}");
        }
    }
}
