//! The session on node 0 while the job runs: collects failures, decides which failure was the first, and sends the
//! verdict to all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::admission::Resume;
use super::compare::check_node;
use super::listener::{Arrival, ConnectionEvent, EventReceiver, drain};
use super::refusals::{duplicate, misfit, other_program};
use super::registry::{Away, Member, Registry};
use super::voting::renewed;
use crate::keepalive::{Cut, Heartbeat, Pause, UNANSWERED, millis, now};
use crate::protocol::{
    Again, Cause, Decide, Electorate, FromMember, FromNode0, Loss, MemberKind, NodeSummary, channel,
};
use crate::questions::{Desk, Outgoing};
use crate::session::{self, Config, Ends, LostNodes, SessionCommand};
use crate::succession::Succession;
use text::order::InOrder;
use verdict::{Class, Id, Refusal};

/// Time after the first report in which an earlier failure may still arrive.
const WINDOW: Duration = Duration::from_millis(250);
/// The same time if only consequences are known: the cause is on a node that has not reported, whose ranks were only
/// now told to end.
const WINDOW_FOR_CAUSE: Duration = Duration::from_secs(2);
/// Time limit for the chosen node to send the cause and its last lines. They come within milliseconds; the limit is
/// meant for a node whose cores are all taken.
const LAST_LINES: Duration = Duration::from_secs(5);
/// Ends after which a launcher takes part in no further attempt, whether or not its farewell is heard.
const LEAVES: [Id; 2] = [Id::GuardKilled, Id::StoppedSignal];
/// Time limit for draining connections at the end.
const DRAIN: Duration = Duration::from_secs(2);

/// The parts that the session takes over from the agreement.
pub(crate) struct Job {
    pub config: Config,
    pub own: NodeSummary,
    /// All that are connected; those that do not run wait for a seat.
    pub registry: Registry,
    /// The nodes that start ranks, with this one.
    pub running: Arc<[u32]>,
    pub resume: Option<Resume>,
    pub decide: Decide,
}

struct Run {
    job: Job,
    /// Members whose connection was cut and that may return.
    away: Away,
    /// Members that count as lost while their connection is open. The verdict reaches them if they only did not run for
    /// a while.
    silent: Vec<Member>,
    pause: Pause,
    began: Instant,
    phase: RunPhase,
    /// Nodes whose ranks still run, including this node.
    running: BTreeSet<u32>,
    /// Nodes that wait for a seat.
    waiting: BTreeSet<u32>,
    /// Nodes with a vote on what follows that never left.
    voting: BTreeSet<u32>,
    /// Nodes that have said farewell.
    leaving: BTreeSet<u32>,
    lost: LostNodes,
    /// A node with a seat is lost that may still run its ranks.
    is_unsure: bool,
    /// What the members know of that.
    told_unsure: bool,
    events: UnboundedSender<session::SessionEvent>,
    desk: Desk,
}

/// Phase of the job.
enum RunPhase {
    Running,
    /// The first failure is being determined. Holds the time of the first report, and the report of each node.
    Failing {
        since: Instant,
        failures: BTreeMap<u32, Cause>,
    },
    /// The verdict is given. Holds the frame that carries it.
    Done(Box<FromNode0>),
}

/// Runs until the conductor leaves.
pub(crate) async fn run(mut job: Job, mut inbox: EventReceiver, ends: Ends) {
    let Ends { events, mut commands, lost, desk, .. } = ends;
    job.registry.forget_silence();
    let mut heartbeat = Heartbeat::every(job.config.heartbeat());
    let running: BTreeSet<u32> = job.running.iter().copied().in_set();
    let waiting = job.registry.nodes().filter(|node| !running.contains(node)).collect();
    let (began, phase, mut away) = (Instant::now(), RunPhase::Running, Away::default());
    away.reach(&job.registry, job.config.succession.as_ref());
    let (silent, pause) = (Vec::new(), Pause::none(job.config.peer_timeout));
    let leaving = BTreeSet::new();
    let last = job.config.succession.as_ref().and_then(Succession::electorate);
    let voters = last.map(|last| last.voters).unwrap_or_default();
    let voting = voters.into_iter().filter(|node| job.registry.get(*node).is_some()).collect();
    let mut run = Run {
        job,
        away,
        silent,
        pause,
        began,
        phase,
        running,
        waiting,
        voting,
        leaving,
        lost,
        is_unsure: false,
        told_unsure: false,
        events,
        desk,
    };
    let mut is_open = true;
    let mut renewal = JoinSet::new();
    loop {
        if renewal.is_empty()
            && let Some((succession, next)) = run.other_voters()
        {
            renewal.spawn(async move { succession.renew(&next).await.then_some(next) });
        }
        let decision = run.decision_at();
        tokio::select! {
            command = commands.recv() => match command {
                Some(SessionCommand::Failed(cause)) => run.failed(*cause),
                Some(SessionCommand::Done) => drop(run.running.remove(&run.job.config.leader)),
                None => break,
            },
            event = inbox.recv(), if is_open => match event {
                Some(event) => {
                    // Frames that arrived while this process was not running are read before its heartbeat is due.
                    run.pause.note(heartbeat.overdue());
                    run.hear(event);
                }
                None => is_open = false,
            },
            late = heartbeat.due() => run.keep_alive(late),
            (node, member, loss) = run.away.lost() => run.lose(node, member, loss),
            event = run.desk.next() => {
                let frames = run.desk.follow(event, &|node| run.job.registry.get(node).is_some());
                run.send_later(frames);
            }
            () = sleep_until(decision.unwrap_or(began)), if decision.is_some() => run.decide(),
            Some(renewed) = renewal.join_next() => run.renewed(renewed.ok().flatten()),
        }
        run.end_if_all_done();
    }
    run.linger(&mut inbox).await;
    if let Some(succession) = &run.job.config.succession {
        succession.ended(false);
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
                let Some((node, member)) = self.job.registry.hear(id) else { return };
                match *frame {
                    FromMember::Heartbeat { memory } => member.note_memory(memory),
                    FromMember::Done => drop(self.running.remove(&node)),
                    FromMember::Bye { returns } => {
                        self.leaving.insert(node);
                        if !returns {
                            self.lost.lock().insert(node);
                            self.votes_no_more(node, Loss::Died);
                        }
                    }
                    FromMember::Summary(summary) if !self.job.running.contains(&node) => {
                        member.alive = summary.alive;
                        self.compare(node, &summary);
                    }
                    FromMember::Question(frame) => {
                        let is_there = |node| self.job.registry.get(node).is_some();
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
            ConnectionEvent::Gone(id, how) => {
                if let Some(node) = self.job.registry.node_of(id) {
                    self.cut(node, how);
                }
            }
            ConnectionEvent::Arrived(arrival) => self.resume(arrival),
            ConnectionEvent::Rejected { .. } => {}
        }
    }

    /// Handles a connection to the running job: a node that resumes its session, or a stranger, whose connection is
    /// closed.
    fn resume(&mut self, arrival: Arrival) {
        let node = arrival.hello.node;
        let token = self.job.resume.as_ref().map(|resume| &resume.token);
        let is_ours = token.is_some() && token == arrival.hello.resume.as_ref();
        if !is_ours {
            self.park(arrival);
            return;
        }
        if node == self.job.config.leader || node >= self.job.config.all() {
            return;
        }
        tracing::warn!(node, "the connection of the node was cut, and is there again");
        self.forget_questions(node);
        let was = self.away.take(node);
        // Before the node is a member again: the first frame that it waits for is the welcome.
        self.tell_unsure();
        self.job.registry.resume(arrival, was);
        let Some(member) = self.job.registry.get(node) else { return };
        member.send(&FromNode0::Welcome { at: now(), wall: millis(SystemTime::now()) });
        member.send(&FromNode0::Unsure(self.told_unsure));
        match &self.phase {
            RunPhase::Running => {}
            RunPhase::Failing { .. } => member.send(&FromNode0::Stop),
            RunPhase::Done(verdict) => member.send(verdict),
        }
    }

    /// A node that comes while the job runs may wait for a seat, if the job has spares. It is told what it does otherwise
    /// not learn before the next attempt.
    fn park(&mut self, arrival: Arrival) {
        let (config, hello) = (&self.job.config, &arrival.hello);
        let node = hello.node;
        if config.seating.spares == 0 || !matches!(self.phase, RunPhase::Running) {
            return;
        }
        let earlier = self.job.registry.get(node).map(|one| (one.hostname.as_str(), one.from));
        let refusal =
            misfit(config, hello, arrival.from).map(|(_, refusal)| refusal).or_else(|| {
                // The earlier one may be dead without anybody knowing: this one tries again.
                let again = |two: Refusal| Refusal { id: Id::MusterAttempt, ..two };
                earlier.map(|one| again(duplicate(config.unit, one, hello, arrival.from)))
            });
        if let Some(refusal) = refusal {
            arrival.out.send(&FromNode0::Refuse(refusal));
            return;
        }
        if hello.resume.is_some() || self.away.has(node) {
            return;
        }
        self.job.registry.insert(arrival);
        if let Some(member) = self.job.registry.get(node) {
            member.send(&FromNode0::Welcome { at: now(), wall: millis(SystemTime::now()) });
        }
    }

    /// The summary of a node that came while the job runs.
    fn compare(&mut self, node: u32, summary: &NodeSummary) {
        let Some(member) = self.job.registry.get(node) else { return };
        let Job { config, own, .. } = &self.job;
        // Without an id only the program tells the next job of these nodes from this one.
        let is_other = config.job.is_none() && summary.command != own.command;
        let checked = match is_other {
            true => Err(other_program(config, own, summary)),
            false => check_node(own, summary),
        };
        match checked {
            Ok(()) => {
                tracing::info!(node, "a node came and waits for a seat");
                let last = self.job.config.succession.as_ref().and_then(Succession::electorate);
                // Who was not there when that was agreed has no vote on it.
                let park = FromNode0::Park { electorate: last.map(Box::new), votes: false };
                member.send(&park);
                member.send(&FromNode0::Unsure(self.told_unsure));
                if !self.job.running.contains(&node) {
                    self.lost.lock().remove(&node);
                }
                self.waiting.insert(node);
            }
            Err(refusal) => {
                tracing::warn!(node, why = %refusal.text.en, "a node came that does not fit");
                member.send(&FromNode0::Refuse(refusal));
                self.job.registry.remove(node);
            }
        }
    }

    /// The connection of a node was closed.
    fn cut(&mut self, node: u32, how: Cut) {
        let Some(member) = self.job.registry.remove(node) else { return };
        self.forget_questions(node);
        let has_left = self.leaving.contains(&node) || !self.job.running.contains(&node);
        let is_awaited = self.is_awaited(node) || self.reports_partly(node);
        // Whatever the phase, a voter counts until it has said farewell, or its death is proven.
        let votes = self.voting.contains(&node) && !self.leaving.contains(&node);
        let is_spare = !self.job.running.contains(&node) && !self.leaving.contains(&node);
        if is_spare || (!has_left && matches!(self.phase, RunPhase::Done(_))) {
            self.lost.lock().insert(node);
        }
        if !is_awaited && !votes {
            return;
        }
        let config = &self.job.config;
        if is_awaited && let Some(pause) = self.pause.just_over() {
            // The member gave up this node, which was not running.
            let on = (config.unit == MemberKind::Task).then_some(0);
            let (host, silence) = (&self.job.own.hostname, config.peer_timeout);
            let who = (config.leader, on);
            let lost = Cause::lost(who, host, Loss::Silent, None, silence, now());
            self.failed(lost.of_pause(pause));
            return;
        }
        let can_return = self.job.resume.is_some();
        let longest = if can_return { config.peer_timeout } else { Duration::ZERO };
        self.away.wait_for(node, member, how, longest);
        self.tell_unsure();
    }

    /// If this leader is lost before it gives a verdict, the others know only what they were told.
    fn tell_unsure(&mut self) {
        let is_away = self.away.nodes().any(|node| self.job.running.contains(&node));
        let is_unsure = self.is_unsure || is_away;
        if is_unsure != std::mem::replace(&mut self.told_unsure, is_unsure) {
            self.job.registry.broadcast(&FromNode0::Unsure(is_unsure));
        }
    }

    /// Whether the end of a node's connection matters. It does not matter after the node's farewell or its own report.
    fn is_awaited(&self, node: u32) -> bool {
        let has_reported = match &self.phase {
            RunPhase::Running => false,
            RunPhase::Failing { failures, .. } => failures.contains_key(&node),
            RunPhase::Done(_) => true,
        };
        !has_reported && self.running.contains(&node)
    }

    /// Whether more is to come of what the node has reported.
    fn reports_partly(&self, node: u32) -> bool {
        let RunPhase::Failing { failures, .. } = &self.phase else { return false };
        failures.get(&node).is_some_and(|cause| !cause.whole)
    }

    fn forget_questions(&mut self, node: u32) {
        let frames = self.desk.lost(node);
        self.send_later(frames);
    }

    /// Whether the node takes no part in the next attempt.
    fn leaves(&self, node: u32) -> bool {
        self.lost.lock().contains(&node)
    }

    /// Waits for members whose connection was cut and that do not know the verdict, and for voters that leave for good.
    async fn linger(&mut self, inbox: &mut EventReceiver) {
        let until = Instant::now() + UNANSWERED;
        let votes = |run: &Run, node: u32| run.voting.contains(&node) && run.leaves(node);
        while !self.away.is_empty() || self.job.registry.nodes().any(|node| votes(self, node)) {
            tokio::select! {
                Some(event) = inbox.recv() => self.hear(event),
                (node, _, loss) = self.away.lost() => {
                    self.lost.lock().insert(node);
                    self.votes_no_more(node, loss);
                }
                () = sleep_until(until) => return,
            }
        }
    }

    fn send_later(&self, frames: Vec<Outgoing>) {
        for (to, frame) in frames {
            let bytes: Arc<[u8]> = channel::encode(&FromNode0::Question(frame)).into();
            for member in to.into_iter().filter_map(|node| self.job.registry.get(node)) {
                member.send_later(Arc::clone(&bytes));
            }
        }
    }

    fn lose(&mut self, node: u32, member: Member, loss: Loss) {
        let is_awaited = self.is_awaited(node);
        self.lost.lock().insert(node);
        self.is_unsure |= loss != Loss::Died && self.job.running.contains(&node);
        self.tell_unsure();
        self.running.remove(&node);
        if let RunPhase::Failing { failures, .. } = &mut self.phase
            && let Some(cause) = failures.get_mut(&node)
        {
            // Nothing more comes.
            cause.whole = true;
        }
        self.votes_no_more(node, loss);
        let silence = self.job.config.peer_timeout;
        let on = member.seat.map(|seat| seat.node);
        let cause = Cause::lost((node, on), &member.hostname, loss, member.memory, silence, now());
        if loss == Loss::Silent {
            self.silent.push(member);
        }
        let succession = self.job.config.succession.as_ref();
        // A majority of the voters may go on without this leader.
        let is_quorum = succession.is_none_or(|succession| succession.is_quorum(&self.voting));
        if is_awaited || (matches!(self.phase, RunPhase::Running) && !is_quorum) {
            self.failed(cause);
        }
    }

    fn votes_no_more(&mut self, node: u32, loss: Loss) {
        self.voting.remove(&node);
        if let Some(succession) = &self.job.config.succession {
            match loss {
                Loss::Died => succession.died(node),
                Loss::Cut | Loss::Silent => succession.parted(node),
            }
        }
    }

    fn failed(&mut self, cause: Cause) {
        if LEAVES.contains(&cause.id) {
            self.lost.lock().insert(cause.node);
        }
        match &mut self.phase {
            RunPhase::Done(_) => {}
            RunPhase::Running => {
                self.job.registry.broadcast(&FromNode0::Stop);
                let _ = self.events.send(session::SessionEvent::Stop);
                let failures = BTreeMap::from([(cause.node, cause)]);
                self.phase = RunPhase::Failing { since: Instant::now(), failures };
            }
            RunPhase::Failing { failures, .. } => {
                // A second report of a node adds lines; the time of its first report counts.
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
        // The cause may be a node that is not yet known to be dead.
        let window = if self.away.is_empty() { window } else { window.max(UNANSWERED) };
        Some(*since + window)
    }

    fn decide(&mut self) {
        let RunPhase::Failing { failures, .. } = &self.phase else { return };
        let Some(mut cause) = first(failures).cloned() else { return };
        // Who has failed before is no better than one that fails now, but better than none.
        let avoided = &self.job.config.seating.avoided;
        let leaves = cause.loss.is_some() || cause.class == Class::Stopped;
        let is_better = |node: &u32| leaves || !avoided.contains(node);
        let helps = |node: u32| self.waiting.contains(&node) && is_better(&node);
        // Without another leader the leader keeps its seat.
        let Config { leader, succession, .. } = &self.job.config;
        let can_leave =
            cause.node != *leader || succession.as_ref().is_some_and(Succession::can_go_on);
        let waits = can_leave && self.job.registry.nodes().any(helps);
        let again = (self.job.decide)(&mut cause, self.began.elapsed(), waits);
        let again = again.map(|again| self.after_all_have_ended(again));
        let verdict = FromNode0::Verdict { cause: cause.clone(), again };
        self.silent.drain(..).for_each(|member| member.send(&verdict));
        self.give(verdict);
        let _ = self.events.send(session::SessionEvent::Verdict { cause: Box::new(cause), again });
    }

    /// While the attempt runs, others vote in place of voters that are gone: so one loss after the other leaves a majority.
    fn other_voters(&self) -> Option<(Succession, Electorate)> {
        let succession = self.job.config.succession.as_ref()?;
        if !matches!(self.phase, RunPhase::Running) {
            return None;
        }
        let last = succession.electorate()?;
        let leader = self.job.config.leader;
        let is_here = |voter: &u32| *voter == leader || self.voting.contains(voter);
        let is_whole = !last.voters.is_empty() && last.voters.iter().all(is_here);
        // Without a majority they cannot agree.
        if is_whole || !succession.is_quorum(&self.voting) {
            return None;
        }
        let next = renewed(&self.job.config, &self.job.registry, &last)?;
        (!next.voters.is_empty()).then(|| (succession.clone(), next))
    }

    fn renewed(&mut self, next: Option<Electorate>) {
        let Some(next) = next else { return };
        tracing::info!(voters = ?next.voters, "others vote");
        self.voting = next.voters.iter().copied().in_set();
        self.job.registry.broadcast(&FromNode0::Missed(Box::new(next)));
    }

    /// Whatever the cause is: a node that was lost meanwhile, and for whose seat another one waits, ends its ranks first.
    fn after_all_have_ended(&self, again: Again) -> Again {
        let config = &self.job.config;
        if !self.is_unsure || config.seating.spares == 0 {
            return again;
        }
        let until = u64::try_from(config.proof().as_millis()).unwrap_or(u64::MAX);
        Again { pause: again.pause.max(until), ..again }
    }

    fn end_if_all_done(&mut self) {
        if self.running.is_empty() && matches!(self.phase, RunPhase::Running) {
            self.give(FromNode0::AllDone);
            let _ = self.events.send(session::SessionEvent::AllDone);
        }
    }

    fn give(&mut self, verdict: FromNode0) {
        self.job.registry.broadcast(&verdict);
        self.phase = RunPhase::Done(Box::new(verdict));
    }

    fn keep_alive(&mut self, late: Duration) {
        let Job { config, registry, .. } = &mut self.job;
        self.pause.note(late);
        let longest = config.longest_silence();
        for node in registry.keep_alive(late, (config.memory)(), longest) {
            tracing::warn!(node, "silent node");
            self.forget_questions(node);
            if let Some(member) = self.job.registry.remove(node) {
                self.lose(node, member, Loss::Silent);
            }
        }
    }
}
