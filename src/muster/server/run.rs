//! The session on node 0 while the job runs: collects failures, decides which was the first, and
//! sends the verdict to all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep_until};

use super::listener::{ConnectionEvent, EventReceiver, drain};
use super::registry::Registry;
use crate::muster::clock::now;
use crate::muster::config::Config;
use crate::muster::keepalive::Heartbeat;
use crate::muster::protocol::{Cause, Decide, FromMember, FromNode0, Loss};
use crate::muster::session::{self, Ends, SessionCommand};

/// After the first report, the time in which an earlier failure may still arrive.
const WINDOW: Duration = Duration::from_millis(250);
/// Time limit for the chosen node to send the cause and its last lines. They come within
/// milliseconds; the limit is for a node whose cores are all taken.
const LAST_LINES: Duration = Duration::from_secs(5);
/// Time limit for draining connections at the end.
const DRAIN: Duration = Duration::from_secs(2);

struct Run {
    config: Config,
    hostname: String,
    registry: Registry,
    decide: Decide,
    began: Instant,
    phase: RunPhase,
    /// Nodes whose ranks still run, this one included.
    running: BTreeSet<u32>,
    events: UnboundedSender<session::SessionEvent>,
}

/// Phase of the job.
enum RunPhase {
    Running,
    /// The first failure is being determined: since when, and the report of each node.
    Failing {
        since: Instant,
        failures: BTreeMap<u32, Cause>,
    },
    /// The verdict is given.
    Done,
}

/// Runs until the conductor leaves.
pub(crate) async fn run(
    config: Config,
    hostname: String,
    mut inbox: EventReceiver,
    mut registry: Registry,
    decide: Decide,
    ends: Ends,
) {
    let Ends { events, mut commands } = ends;
    registry.forget_silence();
    let mut heartbeat = Heartbeat::every(config.heartbeat());
    let running = std::iter::once(0).chain(registry.nodes()).collect();
    let began = Instant::now();
    let phase = RunPhase::Running;
    let mut run = Run { config, hostname, registry, decide, began, phase, running, events };
    let mut is_open = true;
    loop {
        let decision = run.decision_at();
        tokio::select! {
            command = commands.recv() => match command {
                Some(SessionCommand::Failed(cause)) => run.failed(*cause),
                Some(SessionCommand::Done) => drop(run.running.remove(&0)),
                None => break,
            },
            event = inbox.recv(), if is_open => match event {
                Some(event) => run.hear(event),
                None => is_open = false,
            },
            late = heartbeat.due() => run.keep_alive(late),
            () = sleep_until(decision.unwrap_or(began)), if decision.is_some() => run.decide(),
        }
        run.end_if_all_done();
    }
    // Dropping the senders closes the connections once they are drained.
    drop(run);
    drain(inbox, DRAIN).await;
}

/// The earliest of the known failures.
fn first(failures: &BTreeMap<u32, Cause>) -> Option<&Cause> {
    failures.values().min_by_key(|cause| cause.order())
}

impl Run {
    fn hear(&mut self, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Frame(id, frame) => {
                let Some((node, member)) = self.registry.hear(id) else { return };
                match frame {
                    FromMember::Heartbeat { memory } => member.note_memory(memory),
                    FromMember::Done => drop(self.running.remove(&node)),
                    // A node reports only its own failures.
                    FromMember::Failed(cause) if cause.node == node => {
                        let cause = cause.seen_with(member.memory);
                        self.failed(cause);
                    }
                    _ => {}
                }
            }
            ConnectionEvent::Gone(id) => {
                if let Some(node) = self.registry.node_of(id) {
                    self.lose(node, Loss::Died);
                }
            }
            ConnectionEvent::Arrived(_) | ConnectionEvent::Rejected { .. } => {}
        }
    }

    fn lose(&mut self, node: u32, loss: Loss) {
        let Some(member) = self.registry.remove(node) else { return };
        let has_reported = match &self.phase {
            RunPhase::Running => false,
            RunPhase::Failing { failures, .. } => failures.contains_key(&node),
            RunPhase::Done => true,
        };
        // After its farewell or its own report, its disconnection means nothing.
        if has_reported || !self.running.remove(&node) {
            return;
        }
        let silence = self.config.peer_timeout;
        let on = member.seat.map(|seat| seat.node);
        let cause = Cause::lost((node, on), &member.hostname, loss, member.memory, silence, now());
        self.failed(cause);
    }

    fn failed(&mut self, cause: Cause) {
        match &mut self.phase {
            RunPhase::Done => {}
            RunPhase::Running => {
                self.registry.broadcast(&FromNode0::Stop);
                let _ = self.events.send(session::SessionEvent::Stop);
                let failures = BTreeMap::from([(cause.node, cause)]);
                self.phase = RunPhase::Failing { since: Instant::now(), failures };
            }
            RunPhase::Failing { failures, .. } => {
                // The second report of a node adds lines; the time of the first one counts.
                let known = failures.get(&cause.node).map(|known| known.at);
                let at = known.map_or(cause.at, |at| at.min(cause.at));
                failures.insert(cause.node, Cause { at, ..cause });
            }
        }
    }

    fn decision_at(&self) -> Option<Instant> {
        let RunPhase::Failing { since, failures } = &self.phase else { return None };
        let is_whole = first(failures).is_some_and(|cause| cause.whole);
        Some(*since + if is_whole { WINDOW } else { LAST_LINES })
    }

    fn decide(&mut self) {
        let RunPhase::Failing { failures, .. } = &self.phase else { return };
        let Some(cause) = first(failures).cloned() else { return };
        self.phase = RunPhase::Done;
        let again = (self.decide)(&cause, self.began.elapsed());
        self.registry.broadcast(&FromNode0::Verdict { cause: cause.clone(), again });
        let _ = self.events.send(session::SessionEvent::Verdict { cause: Box::new(cause), again });
    }

    fn end_if_all_done(&mut self) {
        if self.running.is_empty() && matches!(self.phase, RunPhase::Running) {
            self.phase = RunPhase::Done;
            self.registry.broadcast(&FromNode0::AllDone);
            let _ = self.events.send(session::SessionEvent::AllDone);
        }
    }

    fn keep_alive(&mut self, late: Duration) {
        let longest = self.config.longest_silence();
        for node in self.registry.keep_alive(late, (self.config.memory)(), longest) {
            tracing::warn!(node, hostname = self.hostname, "silent node");
            self.lose(node, Loss::Silent);
        }
    }
}
