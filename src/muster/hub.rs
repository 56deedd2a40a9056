//! Node 0 while the job runs: hears every failure, decides which was the first,
//! tells all.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::hall::Member;
use super::listen::{ConnectionId, Ear, Said};
use super::session::{Command, Ends, Event};
use super::types::{Cause, Config, Decide, Loss, now};
use super::wire::{self, Frame};

/// After the first report: how long an earlier failure may take to be reported.
const WINDOW: Duration = Duration::from_millis(250);
/// How long the chosen node may take to send its last lines.
const LAST_LINES: Duration = Duration::from_millis(1200);
/// How long connections may take to drain at the end.
const DRAIN: Duration = Duration::from_secs(2);

struct Hub {
    config: Config,
    hostname: String,
    members: BTreeMap<u32, Member>,
    by_id: HashMap<ConnectionId, u32>,
    decide: Decide,
    began: Instant,
    /// Node → its failure, while the first one is looked for.
    failures: BTreeMap<u32, Cause>,
    first_report: Option<Instant>,
    own_done: bool,
    over: bool,
    events: tokio::sync::mpsc::UnboundedSender<Event>,
}

/// Runs until the conductor leaves.
pub(super) async fn run(
    config: Config,
    hostname: String,
    mut ear: Ear,
    mut members: BTreeMap<u32, Member>,
    decide: Decide,
    ends: Ends,
) {
    let Ends { events, mut commands } = ends;
    let by_id = members.iter().map(|(node, member)| (member.id, *node)).collect();
    let now = Instant::now();
    // The last heartbeats may be as old as the agreement took.
    members.values_mut().for_each(|member| member.heard = now);
    let mut hub = Hub {
        config,
        hostname,
        members,
        by_id,
        decide,
        began: now,
        failures: BTreeMap::new(),
        first_report: None,
        own_done: false,
        over: false,
        events,
    };
    let mut next_beat = now;
    let mut ear_open = true;
    loop {
        let wake = hub.decision_at().map_or(next_beat, |at| at.min(next_beat));
        tokio::select! {
            command = commands.recv() => match command {
                Some(Command::Failed(cause)) => hub.failed(*cause),
                Some(Command::Done) => hub.own_done = true,
                None => break,
            },
            said = ear.recv(), if ear_open => match said {
                Some((id, said)) => hub.hear(id, said),
                None => ear_open = false,
            },
            () = sleep_until(wake) => {}
        }
        let now = Instant::now();
        if now >= next_beat {
            hub.forgive(now - next_beat);
            next_beat = now + hub.config.beat();
            hub.beat();
        }
        hub.decide_if_due();
        hub.end_if_all_done();
    }
    // Dropping the outboxes closes the connections once they are drained.
    drop(hub);
    let drained = async { while ear.recv().await.is_some() {} };
    let _ = tokio::time::timeout(DRAIN, drained).await;
}

impl Hub {
    fn broadcast(&self, frame: &Frame) {
        let bytes: Arc<[u8]> = wire::encode(frame).into();
        for member in self.members.values() {
            let _ = member.out.send(Arc::clone(&bytes));
        }
    }

    fn hear(&mut self, id: ConnectionId, said: Said) {
        let Some(node) = self.by_id.get(&id).copied() else { return };
        let Some(member) = self.members.get_mut(&node) else { return };
        match said {
            Said::Frame(frame) => {
                member.heard = Instant::now();
                match frame {
                    Frame::Beat { memory } => member.memory = memory.or(member.memory),
                    Frame::Done => member.done = true,
                    // A node speaks for itself only.
                    Frame::Failed(cause) if cause.node == node => {
                        let cause = cause.seen_with(member.memory);
                        self.failed(cause);
                    }
                    _ => {}
                }
            }
            Said::Gone => self.lose(node, Loss::Died),
            Said::Arrived { .. } | Said::Stranger { .. } => {}
        }
    }

    fn lose(&mut self, node: u32, loss: Loss) {
        let Some(member) = self.members.remove(&node) else { return };
        self.by_id.remove(&member.id);
        // After its farewell, or after its own report, its going is no news.
        if self.over || member.done || self.failures.contains_key(&node) {
            return;
        }
        let silence = self.config.peer_timeout;
        let on = member.card.as_ref().and_then(|card| card.on).map(|seat| seat.node);
        let cause = Cause::lost((node, on), &member.hostname, loss, member.memory, silence, now());
        self.failed(cause);
    }

    fn failed(&mut self, cause: Cause) {
        if self.over {
            return;
        }
        if self.first_report.is_none() {
            self.first_report = Some(Instant::now());
            self.broadcast(&Frame::Stop);
            let _ = self.events.send(Event::Stop);
        }
        let known = self.failures.get(&cause.node).map(|known| known.at);
        // The second report of a node adds lines; the time of the first one counts.
        let at = known.map_or(cause.at, |at| at.min(cause.at));
        self.failures.insert(cause.node, Cause { at, ..cause });
    }

    fn first(&self) -> Option<&Cause> {
        self.failures.values().min_by_key(|cause| cause.order())
    }

    fn decision_at(&self) -> Option<Instant> {
        let first = self.first_report.filter(|_| !self.over)?;
        let whole = self.first().is_some_and(|cause| cause.whole);
        Some(first + if whole { WINDOW } else { LAST_LINES })
    }

    fn decide_if_due(&mut self) {
        if self.decision_at().is_none_or(|at| at > Instant::now()) {
            return;
        }
        let Some(cause) = self.first().cloned() else { return };
        self.over = true;
        let again = (self.decide)(&cause, self.began.elapsed());
        self.broadcast(&Frame::Verdict { cause: cause.clone(), again });
        let _ = self.events.send(Event::Verdict { cause: Box::new(cause), again });
    }

    fn end_if_all_done(&mut self) {
        let all = self.own_done && self.members.values().all(|member| member.done);
        if all && !self.over && self.first_report.is_none() {
            self.over = true;
            self.broadcast(&Frame::AllDone);
            let _ = self.events.send(Event::AllDone);
        }
    }

    /// While we did not run ourselves we heard nobody: that is no one's silence.
    fn forgive(&mut self, late: Duration) {
        self.members.values_mut().for_each(|member| member.heard += late);
    }

    fn beat(&mut self) {
        self.broadcast(&Frame::Beat { memory: (self.config.memory)() });
        let longest = self.config.longest_silence();
        let silent: Vec<u32> = self
            .members
            .iter()
            .filter(|(_, member)| member.heard.elapsed() > longest)
            .map(|(node, _)| *node)
            .collect();
        for node in silent {
            tracing::warn!(node, hostname = self.hostname, "silent node");
            self.lose(node, Loss::Silent);
        }
    }
}
