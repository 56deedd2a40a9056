//! The session on node 0 while the job runs: collects failures, decides which was the first, and
//! sends the verdict to all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep_until};

use super::listener::{ConnectionEvent, EventReceiver, drain};
use super::registry::Registry;
use crate::muster::clock::now;
use crate::muster::config::Config;
use crate::muster::keepalive::Heartbeat;
use crate::muster::protocol::{Cause, Decide, FromMember, FromNode0, Loss, codec};
use crate::muster::questions::desk::{Desk, Outgoing};
use crate::muster::session::{self, Ends, SessionCommand};

/// After the first report, the time in which an earlier failure may still arrive.
const WINDOW: Duration = Duration::from_millis(250);
/// The same if nothing but consequences is known: the cause is on a node that has not reported, whose
/// ranks were only now told to end.
const WINDOW_FOR_CAUSE: Duration = Duration::from_secs(2);
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
    desk: Desk,
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
    let Ends { events, mut commands, desk } = ends;
    registry.forget_silence();
    let mut heartbeat = Heartbeat::every(config.heartbeat());
    let running = std::iter::once(0).chain(registry.nodes()).collect();
    let began = Instant::now();
    let phase = RunPhase::Running;
    let mut run = Run { config, hostname, registry, decide, began, phase, running, events, desk };
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
            event = run.desk.next() => {
                let frames = run.desk.follow(event, &|node| run.registry.get(node).is_some());
                run.send_later(frames);
            }
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
                    FromMember::Question(frame) => {
                        let is_there = |node| self.registry.get(node).is_some();
                        let frames = self.desk.hear(node, frame, &is_there);
                        self.send_later(frames);
                    }
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

    fn send_later(&self, frames: Vec<Outgoing>) {
        for (to, frame) in frames {
            let bytes: Arc<[u8]> = codec::encode(&FromNode0::Question(frame)).into();
            for member in to.into_iter().filter_map(|node| self.registry.get(node)) {
                member.send_later(Arc::clone(&bytes));
            }
        }
    }

    fn lose(&mut self, node: u32, loss: Loss) {
        let Some(member) = self.registry.remove(node) else { return };
        let frames = self.desk.lost(node);
        self.send_later(frames);
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
        let window = match first(failures)? {
            cause if !cause.whole => LAST_LINES,
            cause if cause.consequence => WINDOW_FOR_CAUSE,
            _ => WINDOW,
        };
        Some(*since + window)
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
