//! The rules of questions and answers, without I/O: the frames that follow from each event.
//!
//! One [`Exchange`] per node. Takes the questions asked on this node, the frames of the other nodes, the answers of
//! this node and the time. Gives frames to send and answers to begin. The asking node fetches the parts of an answer,
//! [`WINDOW`] at a time and from a few answers at once. A node sends no more than was requested from it: each part of a
//! held answer is sent once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use tokio::time::Instant;

use super::frames::{
    Form, LARGEST_DEFLATED, LONGEST_QUESTION, NoAnswer, PART, Packed, QuestionFrame,
};
use super::standing::{Lease, Repeated, Room, Standing, later};
use text::order::InOrder;

/// Maximum bytes of an answer that is sent to the leader at once. Such an answer costs two frames instead of four. If
/// thousands of nodes answer in the same moment, no answer takes more room than that.
const SMALL: usize = 4 << 10;
/// Parts of one answer that are in transit.
const WINDOW: usize = 4;
/// Answers that are fetched at the same time. The leader fetches over one connection per node; another node fetches all
/// over one connection.
const SLOTS_OF_LEADER: usize = 32;
const SLOTS: usize = 2;
/// Time without a part after which an answer gives up its slot to the next answer.
const STALL: Duration = Duration::from_secs(1);
/// Maximum number of open questions of one node, and of all nodes on the leader.
const MOST_OF_ONE: usize = 4;
const MOST: usize = 16;
/// Maximum bytes of all answers that are held in transit.
const MOST_HELD: usize = 256 << 20;
/// Interval at which deadlines are checked.
const TICK: Duration = Duration::from_millis(100);

/// The message to the asker's thread: a node and its answer.
pub(crate) type Reply = (u32, Result<Packed, NoAnswer>);

/// The asker for whom this node answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum For {
    /// A question that this node distributed.
    Round(u64),
    /// A question of the leader. `again`: it is answered repeatedly. The leader does not fetch such an answer, so only a small
    /// answer is sent. The leader asks each time if a node sends none.
    Leader { id: u64, until: Instant, again: bool },
}

/// An action for the session's task.
#[derive(Debug)]
pub(crate) enum Action {
    Send { to: Vec<u32>, frame: QuestionFrame },
    Answer { asker: For, question: Arc<[u8]>, form: Form },
}

/// The receiver of the answers of a round.
#[derive(Debug)]
enum Asker {
    Here(Sender<Reply>),
    Node { node: u32, id: u64 },
}

/// One question and the nodes that have not answered it.
#[derive(Debug)]
struct Round {
    asker: Asker,
    until: Instant,
    open: BTreeMap<u32, Progress>,
}

/// Progress of a node's answer.
#[derive(Debug)]
enum Progress {
    Asked,
    Announced { length: usize, lease: Lease },
    Fetched(Fetched),
}

#[derive(Debug)]
struct Fetched {
    length: usize,
    bytes: Vec<u8>,
    /// Parts that were requested.
    asked: usize,
    heard: Instant,
    slot: Option<Lease>,
    lease: Lease,
}

/// An answer that another node fetches.
#[derive(Debug)]
struct Held {
    bytes: Vec<u8>,
    sent: usize,
    until: Instant,
    /// Set on the leader for an answer that it passes on.
    _lease: Option<Lease>,
}

#[derive(Debug, Default)]
pub(crate) struct Exchange {
    me: u32,
    leader: u32,
    nodes: Arc<[u32]>,
    next_round: u64,
    rounds: BTreeMap<u64, Round>,
    /// Held answers by the node that fetches, its question and the node that answered.
    held: BTreeMap<(u32, u64, u32), Held>,
    /// Announced answers that wait for a slot.
    waiting: VecDeque<(u64, u32)>,
    slots: Room,
    room: Room,
    /// Set on the leader while a viewer asks repeatedly.
    standing: Option<Standing>,
    /// Set on another node for the question that it answers repeatedly.
    repeated: Option<Repeated>,
    next_tick: Option<Instant>,
    actions: Vec<Action>,
}

impl Exchange {
    pub(crate) fn new((me, leader): (u32, u32), nodes: Arc<[u32]>) -> Exchange {
        Exchange {
            me,
            leader,
            nodes,
            slots: Room::of(if me == leader { SLOTS_OF_LEADER } else { SLOTS }),
            room: Room::of(MOST_HELD),
            ..Exchange::default()
        }
    }

    /// Whether this node is the one through which all others ask.
    fn leads(&self) -> bool {
        self.me == self.leader
    }

    pub(crate) fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    /// The time at which [`Exchange::tick`] is due; None while nothing is open.
    pub(crate) fn due(&self) -> Option<Instant> {
        let repeated = self.repeated.as_ref().map(|one| one.next);
        let standing = self.standing.as_ref().map(Standing::ends);
        self.next_tick.into_iter().chain(repeated).chain(standing).min()
    }

    /// Asks a question of this node to all nodes. `every`: the interval at which a viewer repeats the question. The leader
    /// then answers with the recent answers that it has heard, and asks only the other nodes. `is_there`: whether the leader
    /// has a connection to a node.
    pub(crate) fn ask(
        &mut self,
        question: &Arc<[u8]>,
        every: Option<Duration>,
        within: Duration,
        reply: Sender<Reply>,
        is_there: &dyn Fn(u32) -> bool,
        now: Instant,
    ) {
        let Some(reply) = self.admitted(question, reply) else { return };
        let mut known = BTreeSet::new();
        if let Some(every) = every.filter(|_| self.leads()) {
            let is_same = |standing: &&mut Standing| standing.is(question, every);
            if let Some(standing) = self.standing.as_mut().filter(is_same) {
                if let Some(stands) = standing.looks(now) {
                    let others = self.nodes.iter().copied().filter(|node| *node != self.me);
                    let to = others.filter(|node| is_there(*node)).collect();
                    let frame = QuestionFrame::ask(standing.id, stands, question, Some(every));
                    self.actions.push(Action::Send { to, frame });
                }
                for (node, answer) in standing.fresh(now).filter(|(node, _)| is_there(*node)) {
                    known.insert(node);
                    let _ = reply.send((node, Ok(answer)));
                }
            } else {
                self.next_round += 1;
                self.standing = Some(Standing::new(self.next_round, question, every, now));
            }
        }
        self.open(Asker::Here(reply), question, within, &known, is_there, now);
    }

    /// The reply channel if the question is allowed. None: the question is refused, and the asker is told why.
    fn admitted(&self, question: &[u8], reply: Sender<Reply>) -> Option<Sender<Reply>> {
        let refused = if question.len() > LONGEST_QUESTION {
            let [bytes, most] = [question.len(), LONGEST_QUESTION]
                .map(|count| u64::try_from(count).unwrap_or(u64::MAX));
            Some(NoAnswer::Question { bytes, most })
        } else {
            let of_us = |round: &&Round| matches!(round.asker, Asker::Here(_));
            (self.rounds.values().filter(of_us).count() >= MOST_OF_ONE).then_some(NoAnswer::Busy)
        };
        let Some(why) = refused else { return Some(reply) };
        // A receiver that is gone no longer waits.
        self.nodes.iter().for_each(|node| drop(reply.send((*node, Err(why)))));
        None
    }

    /// Handles a frame of another node.
    pub(crate) fn hear(
        &mut self,
        from: u32,
        frame: QuestionFrame,
        is_there: &dyn Fn(u32) -> bool,
        now: Instant,
    ) {
        match frame {
            QuestionFrame::Ask { id, within, question, every } => {
                let (within, question) = (Duration::from_millis(within), question.into());
                if self.leads() {
                    self.asked_by(from, id, within, &question, is_there, now);
                } else {
                    let until = later(now, within);
                    if let Some(every) = every {
                        let repeated = Repeated::new(id, &question, every, until, now);
                        if self.repeated.replace(repeated).is_some_and(|known| known.id == id) {
                            return;
                        }
                    }
                    let asker = For::Leader { id, until, again: every.is_some() };
                    self.actions.push(Action::Answer { asker, question, form: Form::Deflated });
                }
            }
            QuestionFrame::Ready { id, node, length } if self.speaks_for(from, node) => {
                self.announced(id, node, length, now);
            }
            QuestionFrame::None { id, node, why } if self.speaks_for(from, node) => {
                self.deliver(id, node, Err(why), now);
            }
            QuestionFrame::Part { id, node, bytes } if self.speaks_for(from, node) => {
                if let Some(standing) = self.standing.as_mut().filter(|one| one.id == id) {
                    if bytes.len() <= SMALL {
                        standing.note(node, bytes, now);
                    }
                    return;
                }
                self.received(id, node, bytes, now);
            }
            QuestionFrame::Fetch { id, node } => self.send_part(from, id, node),
            // A frame about a node counts only from the peer that speaks for that node.
            _ => {}
        }
    }

    /// Handles an answer of this node.
    pub(crate) fn answered(&mut self, asker: For, answer: Result<Vec<u8>, NoAnswer>, now: Instant) {
        match asker {
            For::Round(id) => {
                let is_here = |round: &Round| matches!(round.asker, Asker::Here(_));
                let packed = match self.rounds.get(&id).is_some_and(is_here) {
                    true => Packed::Plain,
                    false => Packed::Deflated,
                };
                self.deliver(id, self.me, answer.map(packed), now);
            }
            // Nobody waits for a late answer.
            For::Leader { until, .. } if until < now => {}
            For::Leader { id, until, again } => match answer {
                Ok(bytes) if bytes.len() <= SMALL => {
                    self.send(self.leader, QuestionFrame::Part { id, node: self.me, bytes });
                }
                _ if again => {}
                Ok(bytes) => self.hold(self.leader, id, self.me, bytes, until, None, now),
                Err(why) => self.send(self.leader, QuestionFrame::None { id, node: self.me, why }),
            },
        }
    }

    /// Handles the loss of the connection to a node.
    pub(crate) fn lost(&mut self, node: u32, now: Instant) {
        self.rounds.retain(
            |_, round| !matches!(round.asker, Asker::Node { node: asker, .. } if asker == node),
        );
        self.held.retain(|(to, ..), _| *to != node);
        if let Some(standing) = &mut self.standing {
            standing.lost(node);
        }
        let open = |round: &Round| round.open.contains_key(&node);
        let rounds: Vec<u64> =
            self.rounds.iter().filter(|(_, round)| open(round)).map(|(id, _)| *id).collect();
        for id in rounds {
            self.deliver(id, node, Err(NoAnswer::Lost), now);
        }
        self.fetch_next(now);
    }

    /// Ends the questions and answers that are past their deadline, and begins repeated answers that are due.
    pub(crate) fn tick(&mut self, now: Instant) {
        drop(self.repeated.take_if(|one| one.until <= now));
        drop(self.standing.take_if(|one| one.ends() <= now));
        if let Some(again) = self.repeated.as_mut().filter(|one| one.next <= now) {
            let asker = For::Leader { id: again.id, until: again.again(now), again: true };
            let question = Arc::clone(&again.question);
            self.actions.push(Action::Answer { asker, question, form: Form::Deflated });
        }
        let past: Vec<u64> =
            self.rounds.iter().filter(|(_, round)| round.until <= now).map(|(id, _)| *id).collect();
        for id in past {
            let open =
                self.rounds.get(&id).map(|round| round.open.keys().copied().collect::<Vec<_>>());
            for node in open.unwrap_or_default() {
                self.deliver(id, node, Err(NoAnswer::Late), now);
            }
        }
        self.held.retain(|_, held| held.until > now);
        for round in self.rounds.values_mut() {
            for progress in round.open.values_mut() {
                if let Progress::Fetched(fetched) = progress
                    && now.saturating_duration_since(fetched.heard) > STALL
                {
                    fetched.slot = None;
                }
            }
        }
        self.fetch_next(now);
        let is_idle = self.rounds.is_empty() && self.held.is_empty();
        self.next_tick = (!is_idle).then(|| later(now, TICK));
    }

    fn open(
        &mut self,
        asker: Asker,
        question: &Arc<[u8]>,
        within: Duration,
        known: &BTreeSet<u32>,
        is_there: &dyn Fn(u32) -> bool,
        now: Instant,
    ) {
        self.next_round += 1;
        let id = self.next_round;
        let (asking, form) = match &asker {
            Asker::Here(_) => (None, Form::Plain),
            Asker::Node { node, .. } => (Some(*node), Form::Deflated),
        };
        // The asking node gets its own answer by itself.
        let is_asked = |node: &u32| Some(*node) != asking && !known.contains(node);
        let all = self.nodes.iter().copied().filter(is_asked);
        let open: BTreeMap<u32, Progress> = all.map(|node| (node, Progress::Asked)).in_map();
        let others = open.keys().copied().filter(|node| *node != self.me);
        let (there, gone): (Vec<u32>, Vec<u32>) =
            others.partition(|node| !self.leads() || is_there(*node));
        self.rounds.insert(id, Round { asker, until: later(now, within), open });
        self.next_tick.get_or_insert(later(now, TICK));
        for node in gone {
            self.deliver(id, node, Err(NoAnswer::Lost), now);
        }
        let question = Arc::clone(question);
        let frame = QuestionFrame::ask(id, within, &question, None);
        let to = if self.leads() { there } else { vec![self.leader] };
        if !to.is_empty() {
            self.actions.push(Action::Send { to, frame });
        }
        self.actions.push(Action::Answer { asker: For::Round(id), question, form });
    }

    /// Handles a question that another node asks all nodes through this node.
    fn asked_by(
        &mut self,
        from: u32,
        id: u64,
        within: Duration,
        question: &Arc<[u8]>,
        is_there: &dyn Fn(u32) -> bool,
        now: Instant,
    ) {
        let same = |round: &Round| match round.asker {
            Asker::Node { node, id } if node == from => Some(id),
            _ => None,
        };
        let of_it: Vec<u64> = self.rounds.values().filter_map(same).collect();
        if of_it.contains(&id) {
            return;
        }
        if of_it.len() >= MOST_OF_ONE || self.rounds.len() >= MOST {
            let nodes = Arc::clone(&self.nodes);
            for node in nodes.iter().copied().filter(|node| *node != from) {
                self.send(from, QuestionFrame::None { id, node, why: NoAnswer::Busy });
            }
            return;
        }
        let asker = Asker::Node { node: from, id };
        self.open(asker, question, within, &BTreeSet::new(), is_there, now);
    }

    /// Whether `from` may speak for `node`. The leader hears each node directly; the others hear all nodes through the leader.
    fn speaks_for(&self, from: u32, node: u32) -> bool {
        if self.leads() { from == node } else { from == self.leader }
    }

    fn announced(&mut self, id: u64, node: u32, length: usize, now: Instant) {
        let Some(progress) = self.progress(id, node) else { return };
        if !matches!(progress, Progress::Asked) {
            return;
        }
        if length > LARGEST_DEFLATED {
            let why = NoAnswer::too_large(length, LARGEST_DEFLATED);
            return self.deliver(id, node, Err(why), now);
        }
        let Some(lease) = self.room.take(length) else {
            return self.deliver(id, node, Err(NoAnswer::Busy), now);
        };
        if let Some(progress) = self.progress(id, node) {
            *progress = Progress::Announced { length, lease };
        }
        self.waiting.push_back((id, node));
        self.fetch_next(now);
    }

    fn progress(&mut self, id: u64, node: u32) -> Option<&mut Progress> {
        self.rounds.get_mut(&id)?.open.get_mut(&node)
    }

    /// Begins to fetch as many announced answers as there are slots.
    fn fetch_next(&mut self, now: Instant) {
        while let Some((id, node)) = self.waiting.front().copied() {
            let Some(slot) = self.slots.take(1) else { return };
            self.waiting.pop_front();
            let Some(round) = self.rounds.get_mut(&id) else { continue };
            let Some(Progress::Announced { length, lease }) = round.open.remove(&node) else {
                continue;
            };
            let bytes = Vec::with_capacity(length);
            let asked = length.div_ceil(PART).clamp(1, WINDOW);
            let fetched = Fetched { length, bytes, asked, heard: now, slot: Some(slot), lease };
            round.open.insert(node, Progress::Fetched(fetched));
            let to = self.way_to(node);
            (0..asked).for_each(|_| self.send(to, QuestionFrame::Fetch { id, node }));
        }
    }

    fn received(&mut self, id: u64, node: u32, part: Vec<u8>, now: Instant) {
        let to = self.way_to(node);
        let is_small = self.leads() && part.len() <= SMALL;
        let fetched = match self.progress(id, node) {
            Some(Progress::Fetched(fetched)) => fetched,
            Some(Progress::Asked) if is_small => {
                return self.deliver(id, node, Ok(Packed::Deflated(part)), now);
            }
            _ => return,
        };
        fetched.heard = now;
        fetched.bytes.extend(part);
        if fetched.bytes.len() < fetched.length {
            if fetched.asked < fetched.length.div_ceil(PART) {
                fetched.asked += 1;
                self.send(to, QuestionFrame::Fetch { id, node });
            }
            return;
        }
        let whole = fetched.bytes.len() == fetched.length;
        let bytes = std::mem::take(&mut fetched.bytes);
        let answer = if whole { Ok(Packed::Deflated(bytes)) } else { Err(NoAnswer::Unreadable) };
        self.deliver(id, node, answer, now);
    }

    fn way_to(&self, node: u32) -> u32 {
        if self.leads() { node } else { self.leader }
    }

    /// Gives the asker the answer of a node, or the reason why there is none.
    fn deliver(&mut self, id: u64, node: u32, answer: Result<Packed, NoAnswer>, now: Instant) {
        let Some(round) = self.rounds.get_mut(&id) else { return };
        let Some(progress) = round.open.remove(&node) else { return };
        let until = round.until;
        // The slot of the answer is free from here on.
        let lease = match progress {
            Progress::Fetched(fetched) => Some(fetched.lease),
            Progress::Asked | Progress::Announced { .. } => None,
        };
        match &round.asker {
            // A receiver that is gone no longer waits.
            Asker::Here(reply) => drop(reply.send((node, answer))),
            Asker::Node { node: to, id } => {
                let (to, id) = (*to, *id);
                match answer {
                    Ok(Packed::Deflated(bytes) | Packed::Plain(bytes)) => {
                        self.hold(to, id, node, bytes, until, lease, now);
                    }
                    Err(why) => self.send(to, QuestionFrame::None { id, node, why }),
                }
            }
        }
        if self.rounds.get(&id).is_some_and(|round| round.open.is_empty()) {
            self.rounds.remove(&id);
        }
        self.fetch_next(now);
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one entry")]
    fn hold(
        &mut self,
        to: u32,
        id: u64,
        node: u32,
        bytes: Vec<u8>,
        until: Instant,
        lease: Option<Lease>,
        now: Instant,
    ) {
        self.send(to, QuestionFrame::Ready { id, node, length: bytes.len() });
        self.held.insert((to, id, node), Held { bytes, sent: 0, until, _lease: lease });
        self.next_tick.get_or_insert(later(now, TICK));
    }

    /// Sends the next part of a held answer. Each part is sent once, so that a node that asks without end gets no more
    /// than the answer.
    fn send_part(&mut self, to: u32, id: u64, node: u32) {
        let key = (to, id, node);
        let Some(held) = self.held.get_mut(&key) else { return };
        let end = held.bytes.len().min(held.sent + PART);
        let bytes = held.bytes.get(held.sent..end).unwrap_or_default().to_owned();
        held.sent = end;
        if end == held.bytes.len() {
            self.held.remove(&key);
        }
        self.send(to, QuestionFrame::Part { id, node, bytes });
    }

    fn send(&mut self, to: u32, frame: QuestionFrame) {
        self.actions.push(Action::Send { to: vec![to], frame });
    }
}
