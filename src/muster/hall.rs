//! Who is there: lets nodes in one by one and keeps what they said.
//!
//! Owns the rules of admission (job, node count, rank, duplicates); the gathering asks
//! it what each event means.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::compare;
use super::key::JobKey;
use super::listen::{ConnectionId, Door, Ear, Outbox, Said};
use super::strangers::Strangers;
use super::types::{BEFORE_THE_START, Card, Config, Memory, Unit, millis, now};
use super::wire::{self, Frame, Hello};
use super::words::{
    declined, duplicate, ranges, spell, wrong_count, wrong_job, wrong_purpose, wrong_rank,
};
use crate::lang::Text;
use crate::pace::clock;
use crate::text;
use crate::verdict::{Id, Refusal};

/// How long the earlier of two nodes with one rank has to prove that it lives.
const CHALLENGE: Duration = Duration::from_secs(2);

/// A node that is connected to node 0.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: ConnectionId,
    pub(super) from: SocketAddr,
    pub(super) hostname: String,
    pub(super) out: Outbox,
    pub(super) heard: Instant,
    pub(super) memory: Option<Memory>,
    pub(super) done: bool,
    pub(super) card: Option<Card>,
    pub(super) accepted: bool,
}

impl Member {
    pub(super) fn tell(&self, frame: &Frame) {
        // A connection that is gone says so by itself.
        let _ = self.out.send(wire::encode(frame).into());
    }
}

#[derive(Debug)]
pub(super) struct Hall {
    pub(super) config: Config,
    pub(super) own: Card,
    pub(super) door: Door,
    pub(super) ear: Ear,
    pub(super) members: BTreeMap<u32, Member>,
    /// Connection → node: ten thousand nodes are not searched for each frame.
    by_id: HashMap<ConnectionId, u32>,
    /// Members whose card is here, and members that have accepted.
    carded: usize,
    accepted: usize,
    /// Newcomers with a rank that is taken, until the earlier one has answered.
    pub(super) challenges: BTreeMap<u32, (Instant, ConnectionId, Hello, SocketAddr, Outbox)>,
    pub(super) seen: BTreeMap<u32, (SocketAddr, Instant)>,
    strangers: Strangers,
}

/// What one thing that happened means for the muster.
pub(super) enum Turn {
    Wait,
    Alone(Text),
    /// A node left that was counted on.
    Left(u32),
}

impl Hall {
    pub(super) fn new(config: &Config, own: Card, door: Door, ear: Ear) -> Hall {
        Hall {
            config: config.clone(),
            own,
            door,
            ear,
            members: BTreeMap::new(),
            by_id: HashMap::new(),
            carded: 0,
            accepted: 0,
            challenges: BTreeMap::new(),
            seen: BTreeMap::new(),
            strangers: Strangers::new(config),
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        let others = usize::try_from(self.config.nnodes.saturating_sub(1)).unwrap_or(usize::MAX);
        self.challenges.is_empty() && self.carded == others
    }

    /// Whether all members can follow what was proposed.
    pub(super) fn all_accepted(&self) -> bool {
        self.accepted == self.members.len()
    }

    fn remove(&mut self, node: u32) {
        let Some(member) = self.members.remove(&node) else { return };
        self.by_id.remove(&member.id);
        self.carded = self.carded.saturating_sub(usize::from(member.card.is_some()));
        self.accepted = self.accepted.saturating_sub(usize::from(member.accepted));
    }

    pub(super) fn broadcast(&self, frame: &Frame) {
        let bytes: Arc<[u8]> = wire::encode(frame).into();
        for member in self.members.values() {
            let _ = member.out.send(Arc::clone(&bytes));
        }
    }

    /// Closes everything, after what was said has left.
    pub(super) async fn leave(self) {
        let Hall { door, members, challenges, mut ear, .. } = self;
        door.shut().await;
        drop((members, challenges));
        let drained = async { while ear.recv().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(3), drained).await;
    }

    /// A heartbeat to all; gives a node that was silent for too long.
    pub(super) fn beat(&mut self) -> Option<u32> {
        let patience = self.config.peer_timeout * BEFORE_THE_START;
        let silent = self.members.iter().find(|(_, member)| member.heard.elapsed() > patience);
        let silent = silent.map(|(node, _)| *node);
        if let Some(node) = silent {
            self.remove(node);
        }
        self.broadcast(&Frame::Beat { memory: None });
        silent
    }

    pub(super) fn hear(
        &mut self,
        id: ConnectionId,
        said: Said,
        say: &mut (dyn FnMut(Text) + Send),
    ) -> Result<Turn, Refusal> {
        match said {
            Said::Arrived { hello, from, out } => self.arrived(id, hello, from, out, say),
            Said::Frame(frame) => self.frame(id, frame),
            Said::Gone => {
                self.challenges.retain(|_, (_, other, ..)| *other != id);
                let Some(node) = self.by_id.get(&id).copied() else { return Ok(Turn::Wait) };
                self.remove(node);
                // A newcomer that waited for its place has it now.
                if let Some((_, id, hello, from, out)) = self.challenges.remove(&node) {
                    self.arrived(id, hello, from, out, say)?;
                }
                Ok(Turn::Left(node))
            }
            Said::Stranger { from, who } => self.strangers.hear(from, &who, say),
        }
    }

    /// A stray of another job costs this one nothing: he is told, and named.
    fn arrived(
        &mut self,
        id: ConnectionId,
        hello: Hello,
        from: SocketAddr,
        out: Outbox,
        say: &mut (dyn FnMut(Text) + Send),
    ) -> Result<Turn, Refusal> {
        let node = hello.node;
        let refuse_it = |refusal: &Refusal| {
            let _ = out.send(wire::encode(&Frame::Refuse(refusal.clone())).into());
        };
        let theirs = JobKey::of_hello(&hello);
        if JobKey::of(&self.config).is_of_other_job(&theirs) {
            let refusal = wrong_job(&self.config, &hello);
            refuse_it(&refusal);
            let host = &hello.hostname;
            let Text { en, zh } = theirs.words();
            let line = text!(
                "{host} ({from}) belongs to {en}: rejected",
                "{host}（{from}）属于{zh}：拒绝其加入"
            );
            self.strangers.name(from, line, refusal.hint, say);
            return Ok(Turn::Wait);
        }
        if hello.purpose != self.config.purpose {
            refuse_it(&wrong_purpose(self.config.purpose));
            return Ok(Turn::Wait);
        }
        if node == 0 || node >= hello.nnodes {
            let refusal = wrong_rank(&self.config, &hello, from);
            refuse_it(&refusal);
            self.strangers.name(from, refusal.text, refusal.hint, say);
            return Ok(Turn::Wait);
        }
        self.seen.insert(node, (from, Instant::now()));
        // Its job has the name of ours.
        if hello.nnodes != self.config.nnodes {
            let refusal = wrong_count(&self.config, &hello);
            refuse_it(&refusal);
            return Err(refusal);
        }
        if let Some(earlier) = self.members.get(&node) {
            earlier.tell(&Frame::Ping);
            let until = Instant::now() + CHALLENGE;
            self.challenges.insert(node, (until, id, hello, from, out));
            return Ok(Turn::Wait);
        }
        let member = Member {
            id,
            from,
            hostname: hello.hostname,
            out,
            heard: Instant::now(),
            memory: None,
            done: false,
            card: None,
            accepted: false,
        };
        let wall = Some(millis(std::time::SystemTime::now()));
        member.tell(&Frame::Welcome { at: now(), wall });
        self.by_id.insert(id, node);
        self.members.insert(node, member);
        Ok(Turn::Wait)
    }

    fn frame(&mut self, id: ConnectionId, frame: Frame) -> Result<Turn, Refusal> {
        let Some(node) = self.by_id.get(&id).copied() else { return Ok(Turn::Wait) };
        let Some(member) = self.members.get_mut(&node) else { return Ok(Turn::Wait) };
        member.heard = Instant::now();
        self.seen.insert(node, (member.from, Instant::now()));
        if let Some((_, _, hello, from, out)) = self.challenges.remove(&node) {
            let refusal = duplicate(self.config.unit, member, &hello, from);
            let _ = out.send(wire::encode(&Frame::Refuse(refusal.clone())).into());
            return Err(refusal);
        }
        match frame {
            Frame::Card(card) if card.node == node => {
                compare::check(&self.own, &card)?;
                self.carded += usize::from(member.card.is_none());
                member.card = Some(card);
            }
            Frame::Accept => {
                self.accepted += usize::from(!member.accepted);
                member.accepted = true;
            }
            Frame::Decline(refusal) => {
                return Err(declined(self.config.unit, node, &member.hostname, &refusal));
            }
            Frame::Beat { memory } => member.memory = memory.or(member.memory),
            _ => {}
        }
        Ok(Turn::Wait)
    }

    pub(super) fn next_challenge(&self) -> Instant {
        let far = Instant::now() + Duration::from_secs(3600);
        self.challenges.values().map(|(until, ..)| *until).min().unwrap_or(far)
    }

    /// Those who did not answer in time lose their place to the later one.
    pub(super) fn end_challenges(
        &mut self,
        say: &mut (dyn FnMut(Text) + Send),
    ) -> Result<Turn, Refusal> {
        let now = Instant::now();
        let due: Vec<u32> = self
            .challenges
            .iter()
            .filter(|(_, (until, ..))| *until <= now)
            .map(|(node, _)| *node)
            .collect();
        for node in &due {
            self.remove(*node);
            if let Some((_, id, hello, from, out)) = self.challenges.remove(node) {
                self.arrived(id, hello, from, out, say)?;
            }
        }
        // Whoever had agreed before is gone with its answer.
        Ok(due.first().map_or(Turn::Wait, |node| Turn::Left(*node)))
    }

    /// A plain torchrun came again and again for as long as it takes.
    pub(super) fn end_knocks(&self) -> Result<Turn, Refusal> {
        if self.is_complete() { Ok(Turn::Wait) } else { self.strangers.end_knocks() }
    }

    /// Who else was at the port: a health check, a port scan, or worse.
    pub(super) fn say_strangers(&self, say: &mut (dyn FnMut(Text) + Send)) {
        self.strangers.say(say);
    }

    fn absent(&self) -> Vec<u32> {
        (1..self.config.nnodes)
            .filter(|node| self.members.get(node).is_none_or(|member| member.card.is_none()))
            .collect()
    }

    fn arrived_count(&self) -> u32 {
        let absent = u32::try_from(self.absent().len()).unwrap_or(u32::MAX);
        self.config.nnodes.saturating_sub(absent)
    }

    pub(super) fn progress(&self, waited: Duration) -> Text {
        let (arrived, nnodes, port) = (self.arrived_count(), self.config.nnodes, self.config.port);
        let absent = ranges(&self.absent());
        let (waited, patience) = (clock(waited), clock(self.config.patience));
        match self.config.unit {
            Unit::Node => text!(
                "{arrived} of {nnodes} nodes have arrived; waiting on port {port} for node {absent} ({waited} of {patience})",
                "已有 {arrived}/{nnodes} 个节点到达；正在端口 {port} 上等待节点 {absent}（{waited}/{patience}）"
            ),
            Unit::Task => text!(
                "{arrived} of {nnodes} tasks have arrived; waiting on port {port} for task {absent} ({waited} of {patience})",
                "已有 {arrived}/{nnodes} 个 task 到达；正在端口 {port} 上等待 task {absent}（{waited}/{patience}）"
            ),
        }
    }

    pub(super) fn missing(&self) -> Refusal {
        let absent = self.absent();
        let (arrived, nnodes) = (self.arrived_count(), self.config.nnodes);
        let waited = spell(self.config.patience);
        let list = ranges(&absent);
        let seen = absent.iter().find_map(|node| self.seen.get(node));
        let strangers = self.strangers.words();
        let Text { en, zh } = match (seen, strangers) {
            (Some((from, at)), _) => {
                let ago = at.elapsed().as_secs();
                text!("last seen from {from} {ago} s ago", "{ago} 秒前曾从 {from} 连接")
            }
            (None, Some(strangers)) => strangers,
            (None, None) => text!("never connected", "从未连接"),
        };
        let known = self.strangers.hint().filter(|_| seen.is_none());
        let hint = match known {
            Some(hint) => hint.clone(),
            None if self.config.is_world_size => text!(
                "look at that node; if WORLD_SIZE counts processes on this platform, use --world-size-counts processes; --wait-timeout waits longer",
                "请检查该节点；若本平台的 WORLD_SIZE 表示进程数，请使用 --world-size-counts processes；--wait-timeout 可延长等待"
            ),
            None => text!(
                "look at that node's own log: it says where it looks for node 0; --wait-timeout waits longer",
                "请查看该节点自己的日志，其中写明了它在何处寻找节点 0；--wait-timeout 可延长等待"
            ),
        };
        Refusal::new(
            Id::MusterMissing,
            match self.config.unit {
                Unit::Node => text!(
                    "{arrived} of {nnodes} nodes arrived in {waited}; missing node {list} ({en})",
                    "{waited} 内只有 {arrived}/{nnodes} 个节点到达；缺少节点 {list}（{zh}）"
                ),
                Unit::Task => text!(
                    "{arrived} of {nnodes} tasks arrived in {waited}; missing task {list} ({en})",
                    "{waited} 内只有 {arrived}/{nnodes} 个 task 到达；缺少 task {list}（{zh}）"
                ),
            },
            hint,
        )
    }
}
