//! The histories of all launchers of a job as one.

use verdict::Id;

use super::ledger::{Ledger, ledger};
use super::moment::Millis;
use super::types::{Attempt, NodeHistory};

/// A job, from the launchers whose files are known.
#[derive(Debug, Clone, PartialEq)]
pub struct JobHistory {
    /// The launchers in their order; not empty.
    nodes: Vec<NodeHistory>,
    pub ledger: Ledger,
}

impl JobHistory {
    /// None without any launcher. If there are two histories of one launcher, the longer one
    /// counts.
    pub fn of(mut nodes: Vec<NodeHistory>) -> Option<JobHistory> {
        // Another node may send anything; no time of a run goes backwards.
        nodes.iter_mut().for_each(|node| node.ended = node.ended.max(node.began));
        nodes.sort_by_key(|node| (node.node, node.task, std::cmp::Reverse(node.ended)));
        nodes.dedup_by_key(|node| (node.node, node.task));
        // The files of a resumed job may mix several runs; the newest run counts.
        let ledger = ledger(nodes.first()?, &nodes);
        Some(JobHistory { nodes, ledger })
    }

    pub fn nodes(&self) -> &[NodeHistory] {
        &self.nodes
    }

    /// The first launcher: node 0 if it is known.
    pub fn lead(&self) -> &NodeHistory {
        // The list is not empty.
        &self.nodes[0]
    }

    /// The launcher that says most about the end, and its last attempt: the launcher on the node of
    /// the cause.
    pub fn end(&self) -> Option<(&NodeHistory, &Attempt)> {
        let ended = || {
            self.nodes.iter().filter_map(|node| {
                let attempt = node.last_attempt()?;
                attempt.verdict.as_ref().map(|verdict| (node, attempt, verdict))
            })
        };
        let newest = ended().map(|(_, attempt, _)| attempt.number).max()?;
        let (node, attempt, _) = ended().max_by_key(|(node, attempt, verdict)| {
            let cause = attempt.cause.as_ref();
            let at = cause.and_then(|cause| cause.node).or(verdict.node);
            (
                attempt.number == newest,
                cause.is_some(),
                at == Some(node.node),
                // A node that was stopped because of another one knows less.
                verdict.id != Id::NodeOther.as_str(),
                std::cmp::Reverse(node.node),
            )
        })?;
        Some((node, attempt))
    }

    /// Number of launchers without any known file.
    pub fn missing(&self) -> u32 {
        let members = self.nodes.iter().map(|node| node.members).max().unwrap_or(0);
        members.saturating_sub(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX))
    }

    pub fn began(&self) -> Millis {
        self.nodes.iter().map(|node| node.began).min().unwrap_or(0)
    }

    pub fn ended(&self) -> Millis {
        self.nodes.iter().map(|node| node.ended).max().unwrap_or(0)
    }

    /// Ranks of the largest attempt.
    pub fn ranks(&self) -> usize {
        let planned = self.lead().plan.world_size as usize;
        let known: std::collections::BTreeSet<u32> =
            self.nodes.iter().flat_map(|node| node.ranks.iter().map(|rank| rank.rank)).collect();
        planned.max(known.len())
    }

    /// Reduces each quantity over time to at most `points` values.
    pub fn thin(&mut self, points: usize) {
        self.nodes.iter_mut().for_each(|node| node.samples.thin(points));
    }
}
