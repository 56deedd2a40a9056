//! The report of a link measurement that all nodes get.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::cause::Loss;
use super::difference::Difference;
use super::sanitize::sanitize;
use super::summary::MeasureEndpoint;
use crate::links::{ALL_PAIRS, Link, Outlier};

/// Maximum number of outliers and lost nodes that are sent; the report of node 0 has all of them.
const LISTED: usize = 16;

/// The result of a check of all nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkReport {
    pub nnodes: u32,
    /// All nodes, up to 16. With more than 16, only nodes with a finding, except on node 0.
    pub nodes: Vec<NodeResult>,
    pub differences: Vec<Difference>,
    /// The links; with more than 16 nodes they are only on node 0.
    pub links: Vec<Link>,
    pub outliers: Vec<Outlier>,
    /// Total number of outliers; [`LinkReport::outliers`] may be cut.
    pub outlier_count: u32,
    /// Nodes that were lost while links were measured.
    pub lost: Vec<(u32, Loss)>,
    /// Directions that were not measured in time.
    pub unmeasured: u32,
}

/// One node of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeResult {
    pub node: u32,
    pub hostname: String,
    pub endpoint: MeasureEndpoint,
}

impl LinkReport {
    pub fn hostname(&self, node: u32) -> &str {
        let found = self.nodes.iter().find(|result| result.node == node);
        found.map_or("?", |result| result.hostname.as_str())
    }

    pub fn endpoint(&self, node: u32) -> Option<&MeasureEndpoint> {
        self.nodes.iter().find(|result| result.node == node).map(|result| &result.endpoint)
    }

    /// The report for the other nodes; if there are many nodes, it has only those with a finding.
    pub(crate) fn for_members(&self) -> LinkReport {
        let mut short = self.clone();
        short.outliers.truncate(LISTED);
        short.lost.truncate(LISTED);
        if self.nnodes > ALL_PAIRS {
            short.links = Vec::new();
            let named: BTreeSet<u32> = short
                .outliers
                .iter()
                .flat_map(|outlier| [outlier.worst.from, outlier.worst.to])
                .chain(short.lost.iter().map(|(node, _)| *node))
                .collect();
            short.nodes.retain(|one| named.contains(&one.node) || one.endpoint.failed.is_some());
            short.nodes.truncate(4 * LISTED);
        }
        short
    }

    /// The report without optional text.
    pub fn shortened(&self) -> LinkReport {
        let mut short = self.clone();
        short.links.clear();
        for result in &mut short.nodes {
            result.endpoint.failed = None;
        }
        short
    }

    pub(crate) fn sanitize(&mut self) {
        self.nodes.truncate(4 * LISTED);
        for result in &mut self.nodes {
            sanitize(&mut result.hostname);
            result.endpoint.sanitize();
        }
        self.differences.iter_mut().for_each(Difference::sanitize);
        self.outliers.truncate(LISTED);
        let worst = self.outliers.iter_mut().map(|outlier| &mut outlier.worst);
        self.links.iter_mut().chain(worst).for_each(Link::sanitize);
    }
}
