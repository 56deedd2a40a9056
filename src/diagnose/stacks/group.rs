//! Groups ranks with equal stacks. The smallest group comes first, since an outlier is the suspect.

use std::collections::BTreeMap;

use super::collect::RankStacks;
use super::process::ProcessStacks;
use super::python::Frame;
use super::unread::Unread;
use text::rank::GlobalRank;

/// Ranks whose threads are all at the same lines.
#[derive(Debug, PartialEq, Eq)]
pub struct Group<'a> {
    pub ranks: Vec<GlobalRank>,
    /// The stacks of the first rank.
    pub shown: &'a RankStacks,
}

/// Parts that have to be equal. The kernel's state is not among them: of two ranks at one line, one
/// may just run.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key<'a> {
    process: ProcessKey<'a>,
    /// Children without repetitions: the number of workers at a line does not matter.
    children: Vec<ProcessKey<'a>>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ProcessKey<'a> {
    /// Name of a process that is not Python. Python processes may be named after their rank.
    name: Option<&'a str>,
    unread: Option<&'a Unread>,
    first: Option<ThreadKey<'a>>,
    /// The other threads, without regard to their order.
    others: Vec<ThreadKey<'a>>,
}

type ThreadKey<'a> = (&'a [Frame], Option<&'a Unread>);

/// The groups, the smallest first. Among equally large groups, the group with the lower rank comes
/// first.
pub fn grouped(ranks: &[RankStacks]) -> Vec<Group<'_>> {
    let mut groups: BTreeMap<Key<'_>, Vec<&RankStacks>> = BTreeMap::new();
    for rank in ranks {
        groups.entry(key(rank)).or_default().push(rank);
    }
    let mut groups: Vec<Group<'_>> = groups
        .into_values()
        .filter_map(|ranks| {
            let shown = *ranks.first()?;
            Some(Group { ranks: ranks.iter().map(|rank| rank.rank).collect(), shown })
        })
        .collect();
    groups.sort_by_key(|group| (group.ranks.len(), group.shown.rank));
    groups
}

/// Whether two processes are at the same lines.
pub fn alike(one: &ProcessStacks, other: &ProcessStacks) -> bool {
    process_key(one) == process_key(other)
}

fn key(rank: &RankStacks) -> Key<'_> {
    let mut children: Vec<_> = rank.children.iter().map(process_key).collect();
    children.sort();
    children.dedup();
    Key { process: process_key(&rank.process), children }
}

fn process_key(process: &ProcessStacks) -> ProcessKey<'_> {
    let stack = |at: usize| {
        let python = process.threads.get(at)?.python.as_ref()?;
        Some((python.frames.as_slice(), python.unread.as_ref()))
    };
    let mut others: Vec<_> = (1..process.threads.len()).filter_map(stack).collect();
    others.sort();
    ProcessKey {
        name: process.python.is_none().then_some(process.name.as_str()),
        unread: process.unread.as_ref(),
        first: stack(0),
        others,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::process::{PythonStack, ThreadStack};
    use text::rank::LocalRank;

    fn rank(number: u32, lines: &[u32]) -> RankStacks {
        let thread = |line: &u32| ThreadStack {
            tid: None,
            kernel: None,
            python: Some(PythonStack {
                interpreter: 0,
                holds_gil: None,
                frames: vec![Frame {
                    function: "f".to_owned(),
                    file: "t.py".to_owned(),
                    line: Some(*line),
                    first_line: 1,
                }],
                cut: false,
                moving: false,
                unread: None,
            }),
        };
        let threads = lines.iter().map(thread).collect();
        let process = ProcessStacks {
            python: Some("3.11.7".to_owned()),
            name: format!("rank {number}"),
            unread: None,
            threads,
            ..ProcessStacks::unread(1, Unread::Gone)
        };
        let (rank, local_rank) = (GlobalRank(number), LocalRank(number));
        RankStacks { rank, local_rank, process, children: Vec::new(), children_left_out: 0 }
    }

    #[test]
    fn smallest_group_comes_first() {
        let mut ranks: Vec<RankStacks> = (0..8).map(|number| rank(number, &[7, 8, 9])).collect();
        ranks[5] = rank(5, &[41, 8, 9]);
        // The order of threads after the first has no meaning.
        ranks[6] = rank(6, &[7, 9, 8]);
        let groups = grouped(&ranks);
        let numbers: Vec<Vec<u32>> =
            groups.iter().map(|group| group.ranks.iter().map(|rank| rank.0).collect()).collect();
        assert_eq!(numbers, [vec![5], vec![0, 1, 2, 3, 4, 6, 7]]);
        assert_eq!(groups[1].shown.rank, GlobalRank(0));
        assert!(alike(&ranks[0].process, &ranks[6].process));
        assert!(!alike(&ranks[0].process, &ranks[5].process));
        assert_eq!(grouped(&[]), []);
    }

    #[test]
    fn equal_children_count_once() {
        let (mut one, mut two) = (rank(0, &[7]), rank(1, &[7]));
        let worker = rank(9, &[3]).process;
        one.children = vec![worker.clone(); 2];
        two.children = vec![worker; 3];
        let ranks = [one, two];
        assert_eq!(grouped(&ranks).len(), 1);
        let unread =
            RankStacks { process: ProcessStacks::unread(4, Unread::Late), ..ranks[0].clone() };
        assert_eq!(grouped(&[ranks[0].clone(), unread]).len(), 2);
    }
}
