//! Decides which links are outliers.
//!
//! Takes the measurements of all nodes. Gives [`Outlier`]s, each with the place that explains it: one direction, a
//! pair, a node, or all. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::{AffectedLinks, Link, Outlier, Speed, Trouble, in_megabits};
use text::order::InOrder;

/// Microseconds; a longer round trip does not occur between two nodes in one data centre.
const FAR: u64 = 5_000;
/// A link is slow if its round trip is this many times that of the others…
const TIMES_SLOWER: u64 = 4;
/// …and longer by at least this many microseconds, since switches and busy CPUs differ.
const AND_SLOWER_BY: u64 = 1_000;
/// A link is narrow below this fraction of the rate of the others.
const PART_OF_OTHERS: f64 = 0.2;
/// A link is narrow below this fraction of its interface's nominal rate.
const PART_OF_NOMINAL: f64 = 0.05;
/// Mb/s; one TCP stream cannot fill a faster interface, so no more is expected.
const MOST_EXPECTED: u32 = 20_000;

/// Judges all links. `nominal` is the nominal rate of a node's interface in Mb/s.
pub(crate) fn outliers(links: &[Link], nominal: &dyn Fn(u32) -> Option<u32>) -> Vec<Outlier> {
    let mut found = Vec::new();
    let good = Good::of(links);
    for trouble in [Trouble::Unreachable, Trouble::Slow, Trouble::Narrow] {
        let is_odd = |link: &&Link| good.judge(link, nominal) == Some(trouble);
        let set: Vec<&Link> = links.iter().filter(is_odd).collect();
        // Links that failed are not compared.
        let asked: Vec<&Link> = links
            .iter()
            .filter(|link| trouble == Trouble::Unreachable || link.speed().is_some())
            .collect();
        for (place, members) in places(&set, &asked) {
            let worst = members.iter().max_by(|a, b| badness(a, b));
            let Some(worst) = worst.map(|link| (**link).clone()) else { continue };
            let others = good.better_than(trouble, &worst);
            found.push(Outlier { trouble, place, worst, others });
        }
    }
    found
}

fn badness(one: &Link, other: &Link) -> std::cmp::Ordering {
    match (one.speed(), other.speed()) {
        (Some(one), Some(other)) => {
            one.floor.cmp(&other.floor).then(other.gigabits().total_cmp(&one.gigabits()))
        }
        (one, other) => one.is_none().cmp(&other.is_none()),
    }
}

/// The values of good links, taken at the better quartile, since one bad node of three affects four of six links.
struct Good {
    floor: Option<u64>,
    gigabits: Option<f64>,
}

impl Good {
    fn of(links: &[Link]) -> Good {
        let mut floors: Vec<u64> = links.iter().filter_map(Link::speed).map(|s| s.floor).collect();
        floors.sort_unstable();
        let mut rates: Vec<f64> =
            links.iter().filter_map(Link::speed).map(Speed::gigabits).collect();
        rates.sort_unstable_by(|a, b| b.total_cmp(a));
        Good {
            floor: floors.get(floors.len() / 4).copied(),
            gigabits: rates.get(rates.len() / 4).copied(),
        }
    }

    fn judge(&self, link: &Link, nominal: &dyn Fn(u32) -> Option<u32>) -> Option<Trouble> {
        let Some(speed) = link.speed() else { return Some(Trouble::Unreachable) };
        let slower = self.floor.is_some_and(|good| is_slower(speed.floor, good));
        if slower || speed.floor > FAR {
            return Some(Trouble::Slow);
        }
        self.is_narrow(link, speed, nominal).then_some(Trouble::Narrow)
    }

    fn is_narrow(&self, link: &Link, speed: &Speed, nominal: &dyn Fn(u32) -> Option<u32>) -> bool {
        let rate = speed.unhindered();
        let claimed = [link.from, link.to].into_iter().filter_map(nominal).min();
        let expected = claimed
            .map_or(0.0, |claimed| f64::from(claimed.min(MOST_EXPECTED)) / 1e3 * PART_OF_NOMINAL);
        rate < expected || self.gigabits.is_some_and(|good| is_narrower(rate, good))
    }

    /// The value of a good link, if it is much better than `worst`.
    fn better_than(&self, trouble: Trouble, worst: &Link) -> Option<u64> {
        let speed = worst.speed()?;
        match trouble {
            Trouble::Unreachable => None,
            Trouble::Slow => self.floor.filter(|good| is_slower(speed.floor, *good)),
            Trouble::Narrow => {
                let good = self.gigabits.filter(|good| is_narrower(speed.unhindered(), *good))?;
                Some(in_megabits(good))
            }
        }
    }
}

fn is_slower(floor: u64, good: u64) -> bool {
    floor > good.saturating_mul(TIMES_SLOWER) && floor > good.saturating_add(AND_SLOWER_BY)
}

fn is_narrower(gigabits: f64, good: f64) -> bool {
    gigabits < good * PART_OF_OTHERS
}

/// Groups outliers by the place that explains them, the widest place first.
fn places<'a>(odd: &[&'a Link], asked: &[&Link]) -> Vec<(AffectedLinks, Vec<&'a Link>)> {
    if odd.is_empty() {
        return Vec::new();
    }
    let mut left: BTreeMap<(u32, u32), &Link> =
        odd.iter().map(|link| ((link.from, link.to), *link)).in_map();
    let nodes: BTreeSet<u32> = asked.iter().flat_map(|link| [link.from, link.to]).in_set();
    let mut found = Vec::new();
    if nodes.len() > 2 && left.len() == asked.len() {
        return vec![(AffectedLinks::All, odd.to_vec())];
    }
    let is_odd = |link: &&&Link| odd.iter().any(|one| (one.from, one.to) == (link.from, link.to));
    for node in &nodes {
        let all = |side: fn(&Link) -> u32| {
            let mine: Vec<&&Link> = asked.iter().filter(|link| side(link) == *node).collect();
            mine.len() > 1 && mine.iter().all(&is_odd)
        };
        // A node with only one neighbour may be the healthy end.
        if all(|link| link.from) || all(|link| link.to) {
            let touches = |(from, to): &(u32, u32)| from == node || to == node;
            let mine: Vec<&Link> =
                left.iter().filter(|(key, _)| touches(key)).map(|(_, link)| *link).collect();
            left.retain(|key, _| !touches(key));
            if !mine.is_empty() {
                found.push((AffectedLinks::Node(*node), mine));
            }
        }
    }
    while let Some(((from, to), link)) = left.pop_first() {
        match left.remove(&(to, from)) {
            Some(back) => found.push((AffectedLinks::Pair(from, to), vec![link, back])),
            None => found.push((AffectedLinks::OneWay(from, to), vec![link])),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::Measured;
    use super::super::tests::link;
    use super::*;

    /// All directions of `nnodes`; `change` gives (floor, Gb/s) or None for no connection.
    fn links(nnodes: u32, change: impl Fn(u32, u32) -> Option<(u64, u64)>) -> Vec<Link> {
        let pairs = (0..nnodes).flat_map(|from| (0..nnodes).map(move |to| (from, to)));
        pairs
            .filter(|(from, to)| from != to)
            .map(|(from, to)| match change(from, to) {
                Some((floor, gigabits)) => link(from, to, floor, gigabits),
                None => Link { from, to, measured: Measured::Failed("refused".to_owned()) },
            })
            .collect()
    }

    fn found(links: &[Link], nominal: Option<u32>) -> Vec<(Trouble, AffectedLinks)> {
        outliers(links, &|_| nominal).into_iter().map(|one| (one.trouble, one.place)).collect()
    }

    #[test]
    fn outlier_names_the_smallest_explaining_place() {
        let good = Some((80, 9));
        let touches = |node: u32, from: u32, to: u32| from == node || to == node;
        let pair = |from: u32, to: u32| from.min(to) == 1 && from.max(to) == 2;
        for (name, links, expected) in [
            ("all alike", links(4, |_, _| good), vec![]),
            ("noise", links(3, |from, to| Some((80 + 300 * u64::from(from + to), 9))), vec![]),
            (
                "a far node of three",
                links(3, |from, to| if touches(2, from, to) { Some((20_000, 9)) } else { good }),
                vec![(Trouble::Slow, AffectedLinks::Node(2))],
            ),
            (
                "a node that sends through a thin pipe",
                links(3, |from, _| if from == 1 { Some((80, 0)) } else { good }),
                vec![(Trouble::Narrow, AffectedLinks::Node(1))],
            ),
            (
                "a pair behind a firewall",
                links(3, |from, to| if pair(from, to) { None } else { good }),
                vec![(Trouble::Unreachable, AffectedLinks::Pair(1, 2))],
            ),
            (
                "one way",
                links(4, |from, to| if (from, to) == (3, 1) { None } else { good }),
                vec![(Trouble::Unreachable, AffectedLinks::OneWay(3, 1))],
            ),
            ("nobody", links(3, |_, _| None), vec![(Trouble::Unreachable, AffectedLinks::All)]),
            (
                "two far nodes",
                links(2, |_, _| Some((20_000, 9))),
                vec![(Trouble::Slow, AffectedLinks::Pair(0, 1))],
            ),
        ] {
            assert_eq!(found(&links, None), expected, "{name}");
        }
    }

    #[test]
    fn nominal_rate_counts_if_all_links_agree() {
        let links = links(2, |_, _| Some((80, 1)));
        assert_eq!(found(&links, Some(10_000)), []);
        assert_eq!(found(&links, Some(100_000)), [], "one stream fills no such interface");
        let narrow: Vec<Link> = links
            .into_iter()
            .map(|link| {
                let speed = Speed { bytes: 1, ..*link.speed().expect("a speed") };
                Link { measured: Measured::Speed(speed), ..link }
            })
            .collect();
        assert_eq!(found(&narrow, None), []);
        assert_eq!(found(&narrow, Some(10_000)), [(Trouble::Narrow, AffectedLinks::Pair(0, 1))]);
    }

    #[test]
    fn busy_node_is_not_a_narrow_link() {
        let hindered = |waited: u64| {
            let mut links = links(3, |_, _| Some((80, 9)));
            let speed = Speed { bytes: 12_500_000, micros: 1_000_000, waited, ..Speed::default() };
            links[0].measured = Measured::Speed(speed);
            found(&links, Some(10_000))
        };
        assert_eq!(hindered(0), [(Trouble::Narrow, AffectedLinks::OneWay(0, 1))]);
        assert_eq!(hindered(500_000), [(Trouble::Narrow, AffectedLinks::OneWay(0, 1))]);
        assert_eq!(hindered(960_000), [], "it had a CPU for 40 ms in all");
    }
}
