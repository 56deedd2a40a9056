//! Expands Slurm's compressed host lists: `rack[1-2]node[03-04,07],login1`.
//!
//! Takes such a list; gives its hosts in order. Invalid text is expanded as far as possible.
//! Does not call scontrol, which most containers do not have.

/// More hosts than any job has; longer ranges are cut.
const MOST: usize = 100_000;

/// The hosts of a list, in its order.
pub(crate) fn expand(list: &str) -> Vec<String> {
    let mut hosts = Vec::new();
    for item in items(list) {
        let mut names = vec![String::new()];
        let mut rest = item;
        while !rest.is_empty() {
            let (plain, group) = rest.split_once('[').unwrap_or((rest, ""));
            let (group, after) = group.split_once(']').unwrap_or((group, ""));
            let ends = if group.is_empty() { vec![String::new()] } else { numbers(group) };
            let grown = names
                .iter()
                .flat_map(|name| ends.iter().map(move |end| format!("{name}{plain}{end}")));
            names = grown.take(MOST).collect();
            rest = after;
        }
        hosts.extend(names.into_iter().filter(|name| !name.is_empty()));
        hosts.truncate(MOST);
    }
    hosts
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
fn items(list: &str) -> impl Iterator<Item = &str> {
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
            Some((width, first, last)) if first <= last => {
                let numbers = (first..=last).take(MOST);
                all.extend(numbers.map(|number| format!("{number:0width$}")));
            }
            _ => all.push(part.split('-').next().unwrap_or(part).to_owned()),
        }
        all.truncate(MOST);
    }
    all
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
    fn a_list_without_end_is_cut() {
        assert_eq!(expand("n[0-99999999999]").len(), MOST);
        assert_eq!(expand("a[1-1000]b[1-1000]c[1-1000]").len(), MOST);
    }
}
