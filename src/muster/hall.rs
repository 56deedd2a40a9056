//! Who is there: lets nodes in one by one and keeps what they said.
//!
//! Owns the rules of admission (job, node count, rank, duplicates, strangers); the
//! gathering asks it what each event means.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::compare;
use super::handshake::Stranger;
use super::listen::{Door, Ear, Id, Outbox, Said};
use super::types::{BEFORE_THE_START, Card, Config, Memory, now_millis};
use super::wire::{self, Frame, Hello};
use super::words::{declined, duplicate, ranges, spell, wrong_job, wrong_purpose};
use crate::lang::Text;
use crate::text;
use crate::verdict::{Refusal, Verdict};

/// How long the earlier of two nodes with one rank has to prove that it lives.
const CHALLENGE: Duration = Duration::from_secs(2);
/// Id of the refusal at the deadline: whoever is missing then has had its time.
pub(super) const MISSING: &str = "muster.missing";
/// Addresses of strangers that get a line each.
const NAMED_STRANGERS: usize = 32;

/// A node that is connected to node 0.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: Id,
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

/// Ports tell jobs apart where the platform does not name them.
pub(super) fn is_of_other_job(config: &Config, hello: &Hello) -> bool {
    match (&config.job, &hello.job) {
        (Some(ours), Some(theirs)) => ours != theirs,
        _ => config.port != hello.port,
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
    by_id: HashMap<Id, u32>,
    /// Members whose card is here, and members that have accepted.
    carded: usize,
    accepted: usize,
    /// Newcomers with a rank that is taken, until the earlier one has answered.
    pub(super) challenges: BTreeMap<u32, (Instant, Id, Hello, SocketAddr, Outbox)>,
    pub(super) seen: BTreeMap<u32, (SocketAddr, Instant)>,
    pub(super) strangers: BTreeSet<IpAddr>,
    /// Connections that were no node's, and where the last one came from.
    turned_away: Option<(u64, SocketAddr)>,
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
            strangers: BTreeSet::new(),
            turned_away: None,
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
        id: Id,
        said: Said,
        say: &mut (dyn FnMut(Text) + Send),
    ) -> Result<Turn, Refusal> {
        match said {
            Said::Arrived { hello, from, out } => self.arrived(id, hello, from, out),
            Said::Frame(frame) => self.frame(id, frame),
            Said::Gone => {
                self.challenges.retain(|_, (_, other, ..)| *other != id);
                let Some(node) = self.by_id.get(&id).copied() else { return Ok(Turn::Wait) };
                self.remove(node);
                // A newcomer that waited for its place has it now.
                if let Some((_, id, hello, from, out)) = self.challenges.remove(&node) {
                    self.arrived(id, hello, from, out)?;
                }
                Ok(Turn::Left(node))
            }
            Said::Stranger { from, who } => self.stranger(from, &who, say),
        }
    }

    fn arrived(
        &mut self,
        id: Id,
        hello: Hello,
        from: SocketAddr,
        out: Outbox,
    ) -> Result<Turn, Refusal> {
        let node = hello.node;
        let refuse_it = |refusal: Refusal| {
            let _ = out.send(wire::encode(&Frame::Refuse(refusal)).into());
            Ok(Turn::Wait)
        };
        if hello.purpose != self.config.purpose {
            return refuse_it(wrong_purpose(self.config.purpose));
        }
        if is_of_other_job(&self.config, &hello) {
            return refuse_it(wrong_job(&self.config, &hello));
        }
        self.seen.insert(node, (from, Instant::now()));
        if hello.nnodes != self.config.nnodes {
            let (ours, theirs) = (self.config.nnodes, hello.nnodes);
            let host = &hello.hostname;
            let refusal = Refusal::new(
                Verdict::Muster,
                "muster.nnodes",
                text!(
                    "node {node} ({host}, {from}) counts {theirs} nodes, and node 0 counts {ours}",
                    "节点 {node}（{host}，{from}）认为共有 {theirs} 个节点，而节点 0 认为有 {ours} 个"
                ),
                text!(
                    "give all nodes the same WORLD_SIZE or --nnodes",
                    "请为所有节点指定相同的 WORLD_SIZE 或 --nnodes"
                ),
            );
            let _ = refuse_it(refusal.clone());
            return Err(refusal);
        }
        if node == 0 || node >= self.config.nnodes {
            let (nnodes, host) = (self.config.nnodes, &hello.hostname);
            let refusal = Refusal::new(
                Verdict::Muster,
                "muster.rank",
                text!(
                    "{host} ({from}) says that it is node {node} of {nnodes}",
                    "{host}（{from}）自称为共 {nnodes} 个节点中的节点 {node}"
                ),
                text!("number the nodes from 0", "节点应从 0 开始编号"),
            );
            let _ = refuse_it(refusal.clone());
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
        member.tell(&Frame::Welcome { at: now_millis() });
        self.by_id.insert(id, node);
        self.members.insert(node, member);
        Ok(Turn::Wait)
    }

    fn frame(&mut self, id: Id, frame: Frame) -> Result<Turn, Refusal> {
        let Some(node) = self.by_id.get(&id).copied() else { return Ok(Turn::Wait) };
        let Some(member) = self.members.get_mut(&node) else { return Ok(Turn::Wait) };
        member.heard = Instant::now();
        self.seen.insert(node, (member.from, Instant::now()));
        if let Some((_, _, hello, from, out)) = self.challenges.remove(&node) {
            let refusal = duplicate(node, member, &hello, from);
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
                return Err(declined(node, &member.hostname, &refusal));
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
    pub(super) fn end_challenges(&mut self) -> Result<Turn, Refusal> {
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
                self.arrived(id, hello, from, out)?;
            }
        }
        // Whoever had agreed before is gone with its answer.
        Ok(due.first().map_or(Turn::Wait, |node| Turn::Left(*node)))
    }

    fn stranger(
        &mut self,
        from: SocketAddr,
        who: &Stranger,
        say: &mut (dyn FnMut(Text) + Send),
    ) -> Result<Turn, Refusal> {
        if *who == Stranger::Asking {
            return Ok(Turn::Wait);
        }
        let count = self.turned_away.map_or(0, |(count, _)| count);
        self.turned_away = Some((count.saturating_add(1), from));
        // With a secret an unproven word must not end the muster.
        let plain = *who == Stranger::PlainTorchrun && self.config.secret.is_none();
        if plain && self.config.may_fall_back {
            return Ok(Turn::Alone(text!(
                "{from} runs torchrun without ranklaunch, so all nodes go on without a muster",
                "{from} 直接运行 torchrun 而未使用 ranklaunch，因此所有节点跳过集结继续运行"
            )));
        }
        if plain {
            return Err(Refusal::new(
                Verdict::Muster,
                "muster.plain-torchrun",
                text!(
                    "{from} runs torchrun without ranklaunch",
                    "{from} 直接运行 torchrun 而未使用 ranklaunch"
                ),
                text!(
                    "start that node with ranklaunch as well, or use --muster auto",
                    "请在该节点同样使用 ranklaunch 启动，或使用 --muster auto"
                ),
            ));
        }
        let line = match who {
            Stranger::PlainTorchrun => text!(
                "{from} speaks like torchrun without ranklaunch and cannot prove who it is: ignored",
                "{from} 疑似直接运行的 torchrun，且无法证明身份：忽略"
            ),
            Stranger::Version => text!(
                "{from} runs a ranklaunch whose version does not fit this one",
                "{from} 运行的 ranklaunch 版本与本节点不兼容"
            ),
            Stranger::Mode { theirs: true } => text!(
                "{from} has a secret (RANKLAUNCH_SECRET), and this node has none: not let in",
                "{from} 设置了密钥（RANKLAUNCH_SECRET），而本节点没有：拒绝其加入"
            ),
            Stranger::Mode { theirs: false } => text!(
                "{from} has no secret (RANKLAUNCH_SECRET), and this node has one: not let in",
                "{from} 未设置密钥（RANKLAUNCH_SECRET），而本节点已设置：拒绝其加入"
            ),
            Stranger::Secret => {
                text!("{from} has another secret: not let in", "{from} 的密钥不一致：拒绝其加入")
            }
            // Counted only: ten thousand lines would help nobody.
            Stranger::Asking | Stranger::Unknown(_) => return Ok(Turn::Wait),
        };
        if self.strangers.len() < NAMED_STRANGERS && self.strangers.insert(from.ip()) {
            say(line);
        }
        Ok(Turn::Wait)
    }

    /// Who else was at the port: a health check, a port scan, or worse.
    pub(super) fn say_strangers(&self, say: &mut (dyn FnMut(Text) + Send)) {
        let Some((count, last)) = self.turned_away else { return };
        let (port, ip) = (self.config.port, last.ip());
        say(text!(
            "connections to port {port} that were no node of this job and were closed: {count}, the last from {ip}",
            "端口 {port} 上有 {count} 个连接不属于本任务的节点，已关闭；最后一个来自 {ip}"
        ));
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

    pub(super) fn progress(&self) -> Text {
        let (arrived, nnodes) = (self.arrived_count(), self.config.nnodes);
        let absent = ranges(&self.absent());
        text!(
            "{arrived} of {nnodes} nodes have arrived; waiting for node {absent}",
            "已有 {arrived}/{nnodes} 个节点到达；正在等待节点 {absent}"
        )
    }

    pub(super) fn missing(&self) -> Refusal {
        let absent = self.absent();
        let (arrived, nnodes) = (self.arrived_count(), self.config.nnodes);
        let waited = spell(self.config.patience);
        let list = ranges(&absent);
        let seen = absent.iter().find_map(|node| self.seen.get(node));
        let Text { en, zh } = match seen {
            Some((from, at)) => {
                let ago = at.elapsed().as_secs();
                text!("last seen from {from} {ago} s ago", "{ago} 秒前曾从 {from} 连接")
            }
            None => text!("never connected", "从未连接"),
        };
        Refusal::new(
            Verdict::Muster,
            MISSING,
            text!(
                "{arrived} of {nnodes} nodes arrived in {waited}; missing node {list} ({en})",
                "{waited} 内只有 {arrived}/{nnodes} 个节点到达；缺少节点 {list}（{zh}）"
            ),
            text!(
                "look at that node; if WORLD_SIZE counts processes on this platform, use --world-size-counts processes; --wait-timeout waits longer",
                "请检查该节点；若本平台的 WORLD_SIZE 表示进程数，请使用 --world-size-counts processes；--wait-timeout 可延长等待"
            ),
        )
    }
}
