//! Runs `check` on all nodes: node 0 lets the nodes measure the links in steps and sends all of them the report.
//!
//! Takes the nodes that [`gather`](super::gather) admitted; gives one [`LinkReport`] for all. Only node 0 schedules
//! measurements, so no node has two at a time. A node that dies or stops responding in the meantime is reported, and
//! the others continue. Every step and the whole have a deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::Gathered;
use super::listener::{ConnectionEvent, EventReceiver, drain};
use super::registry::Registry;
use crate::keepalive::Heartbeat;
use crate::links::endpoint::{MeasureTarget, Measurement};
use crate::links::judge::outliers;
use crate::links::{ALL_STEPS, Link, Outlier, STEP, schedule};
use crate::protocol::{
    Difference, FromMember, FromNode0, LinkReport, Loss, MeasureEndpoint, NodeResult, NodeSummary,
};
use crate::session::Config;
use text::order::InOrder;

/// Maximum number of directions that are measured a second time, since one busy moment proves nothing.
const DOUBTFUL: usize = 16;
/// Time limit for sending the last frames.
const DRAIN: Duration = Duration::from_secs(3);

/// Node that measures, and node that it measures to.
type Direction = (u32, u32);

impl Gathered {
    /// Lets all nodes measure the links between them, and sends them the report.
    pub async fn measure(self, own: MeasureEndpoint, mut target: MeasureTarget) -> LinkReport {
        let Gathered { admission, summaries, differences, .. } = self;
        // No further node is expected, and other connections could disturb the measurement.
        let (config, summary, events, registry, _) = admission.start(None).await;
        // Without randomness only the secret, if there is one, keeps others out.
        let token = linux::random::hex::<16>().unwrap_or_default();
        target.serve(config.secret.clone(), token.clone());
        let endpoint = |summary: &NodeSummary| {
            let mut endpoint = summary.endpoint.as_deref().cloned().unwrap_or_default();
            if let (Some(address), Some(member)) =
                (&mut endpoint.address, registry.get(summary.node))
                && address.ip().is_unspecified()
            {
                // The node listens on all addresses, including the address from which it connected.
                address.set_ip(member.from.ip());
            }
            (summary.node, endpoint)
        };
        let mut endpoints: BTreeMap<u32, MeasureEndpoint> = summaries.iter().map(endpoint).in_map();
        endpoints.insert(0, own);
        let mut measuring = Measuring {
            config,
            hostname: summary.hostname,
            token,
            events,
            registry,
            endpoints,
            lost: BTreeMap::new(),
            links: BTreeMap::new(),
            deadline: Instant::now() + ALL_STEPS,
        };
        let token = measuring.token.clone();
        measuring.registry.broadcast(&FromNode0::Measure { token });
        measuring.measure_all().await;
        measuring.finish(&summaries, differences).await
    }
}

struct Measuring {
    config: Config,
    hostname: String,
    token: String,
    events: EventReceiver,
    registry: Registry,
    endpoints: BTreeMap<u32, MeasureEndpoint>,
    lost: BTreeMap<u32, Loss>,
    links: BTreeMap<Direction, Link>,
    deadline: Instant,
}

impl Measuring {
    async fn measure_all(&mut self) {
        for step in schedule(self.config.nnodes) {
            self.step(&step).await;
        }
        // An outlier is measured again, with no other measurement at the same time.
        let mut doubtful: Vec<Direction> = self
            .outliers()
            .iter()
            .flat_map(|outlier| {
                self.links.keys().filter(|(from, to)| outlier.place.has(*from, *to))
            })
            .copied()
            .take(DOUBTFUL)
            .collect();
        doubtful.dedup();
        for direction in doubtful {
            self.step(&[direction]).await;
        }
    }

    fn outliers(&self) -> Vec<Outlier> {
        outliers(&self.measured(), &|node| self.endpoints.get(&node)?.megabits)
    }

    /// The links of nodes that are still connected. A measurement with a node that died says nothing about the link.
    fn measured(&self) -> Vec<Link> {
        let is_lost = |node: &u32| self.lost.contains_key(node);
        let stays = |link: &&Link| !is_lost(&link.from) && !is_lost(&link.to);
        self.links.values().filter(stays).cloned().collect()
    }

    /// Runs one step; its directions are measured in parallel.
    async fn step(&mut self, directions: &[Direction]) {
        let end = (Instant::now() + STEP).min(self.deadline);
        if Instant::now() >= self.deadline {
            return;
        }
        let mut pending = BTreeSet::new();
        let mut own = JoinSet::new();
        for (from, to) in directions.iter().copied() {
            let address = self.endpoints.get(&to).and_then(|endpoint| endpoint.address);
            let is_lost = self.lost.contains_key(&from) || self.lost.contains_key(&to);
            let Some(address) = address.filter(|_| !is_lost) else { continue };
            if from == 0 {
                let hello = Measurement::hello(&self.config, &self.hostname, &self.token);
                let secret = self.config.secret.clone();
                own.spawn(Measurement { hello, to, address, secret }.run());
            } else if let Some(member) = self.registry.get(from) {
                member.send(&FromNode0::MeasureTo { to, address });
            }
            pending.insert((from, to));
        }
        let mut heartbeat = Heartbeat::before_start();
        while !pending.is_empty() {
            tokio::select! {
                Some(done) = own.join_next() => match done {
                    Ok(link) => self.note(link, &mut pending),
                    Err(_) => pending.retain(|(from, _)| *from != 0),
                },
                event = self.events.recv() => match event {
                    Some(event) => self.hear(event, &mut pending),
                    None => break,
                },
                _ = heartbeat.due() => self.registry.broadcast(&FromNode0::Heartbeat { memory: None }),
                () = sleep_until(end) => break,
            }
        }
        // After the deadline of all steps, no node is at fault.
        if Instant::now() < self.deadline {
            for (from, _) in pending {
                self.lose(from, Loss::Silent);
            }
        }
    }

    fn note(&mut self, link: Link, pending: &mut BTreeSet<Direction>) {
        let direction = (link.from, link.to);
        if !pending.remove(&direction) {
            return;
        }
        match self.links.get_mut(&direction) {
            Some(first) => first.add(link),
            None => drop(self.links.insert(direction, link)),
        }
    }

    fn hear(&mut self, event: ConnectionEvent, pending: &mut BTreeSet<Direction>) {
        match event {
            // A node reports only its own links.
            ConnectionEvent::Frame(id, frame) => {
                if let FromMember::Measured(link) = *frame
                    && self.registry.node_of(id) == Some(link.from)
                {
                    self.note(link, pending);
                }
            }
            ConnectionEvent::Gone(id, _) => {
                let Some(node) = self.registry.node_of(id) else { return };
                self.lose(node, Loss::Died);
                pending.retain(|(from, _)| *from != node);
            }
            _ => {}
        }
    }

    fn lose(&mut self, node: u32, loss: Loss) {
        self.registry.remove(node);
        self.lost.insert(node, loss);
    }

    async fn finish(
        mut self,
        summaries: &[NodeSummary],
        differences: Vec<Difference>,
    ) -> LinkReport {
        let outliers = self.outliers();
        let links = self.measured();
        let asked: usize = schedule(self.config.nnodes).iter().map(Vec::len).sum();
        let nodes = summaries.iter().map(|summary| NodeResult {
            node: summary.node,
            hostname: summary.hostname.clone(),
            endpoint: self.endpoints.remove(&summary.node).unwrap_or_default(),
        });
        let report = LinkReport {
            nnodes: self.config.nnodes,
            nodes: nodes.collect(),
            differences,
            unmeasured: u32::try_from(asked.saturating_sub(links.len())).unwrap_or(u32::MAX),
            links,
            outlier_count: u32::try_from(outliers.len()).unwrap_or(u32::MAX),
            outliers,
            lost: self.lost.into_iter().collect(),
        };
        self.registry.broadcast(&FromNode0::Report(Box::new(report.for_members())));
        // Dropping the senders closes the connections once they are drained.
        drop(self.registry);
        drain(self.events, DRAIN).await;
        report
    }
}
