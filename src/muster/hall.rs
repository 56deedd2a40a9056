//! Who is there: lets nodes in one by one and keeps what they said.
//!
//! Owns the rules of admission (job, node count, rank, duplicates, strangers); the
//! gathering asks it what each event means.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::compare;
use super::handshake::Stranger;
use super::key::JobKey;
use super::listen::{Door, Ear, Id, Outbox, Said};
use super::types::{BEFORE_THE_START, Card, Config, Memory, Without, millis, now};
use super::wire::{self, Frame, Hello};
use super::words::{
    declined, duplicate, instead, ranges, spell, wrong_count, wrong_job, wrong_purpose, wrong_rank,
};
use crate::lang::Text;
use crate::pace::clock;
use crate::text;
use crate::verdict::{Refusal, Verdict};

/// How long the earlier of two nodes with one rank has to prove that it lives.
const CHALLENGE: Duration = Duration::from_secs(2);
/// Id of the refusal at the deadline: whoever is missing then has had its time.
pub(super) const MISSING: &str = "muster.missing";
/// Addresses of strangers that get a line each.
const NAMED_STRANGERS: usize = 32;
/// torch's client tries again after pauses that grow to a minute.
const TORCH_PAUSE: Duration = Duration::from_secs(90);

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

/// Somebody who was not let in.
#[derive(Debug)]
struct Named {
    line: Text,
    /// What may help, where he is a node of this job after all.
    hint: Text,
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
    strangers: BTreeMap<IpAddr, Named>,
    /// Clients of torch's store: when each came first and last.
    plain: BTreeMap<IpAddr, (Instant, Instant)>,
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
            strangers: BTreeMap::new(),
            plain: BTreeMap::new(),
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
            Said::Stranger { from, who } => self.stranger(from, &who, say),
        }
    }

    /// A stray of another job costs this one nothing: he is told, and named.
    fn arrived(
        &mut self,
        id: Id,
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
                "{host} ({from}) belongs to {en}: not let in",
                "{host}（{from}）属于{zh}：拒绝其加入"
            );
            self.name(from, line, refusal.hint, say);
            return Ok(Turn::Wait);
        }
        if hello.purpose != self.config.purpose {
            refuse_it(&wrong_purpose(self.config.purpose));
            return Ok(Turn::Wait);
        }
        if node == 0 || node >= hello.nnodes {
            let refusal = wrong_rank(&self.config, &hello, from);
            refuse_it(&refusal);
            self.name(from, refusal.text, refusal.hint, say);
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
        let secret = || {
            text!(
                "give all nodes the same RANKLAUNCH_SECRET or RANKLAUNCH_SECRET_FILE",
                "请为所有节点设置相同的 RANKLAUNCH_SECRET 或 RANKLAUNCH_SECRET_FILE"
            )
        };
        let (line, hint) = match who {
            Stranger::PlainTorchrun => return self.plain(from, say),
            Stranger::Version => (
                text!(
                    "{from} runs a ranklaunch whose version does not fit this one: not let in",
                    "{from} 运行的 ranklaunch 版本与本节点不兼容：拒绝其加入"
                ),
                text!("use one image on all nodes", "请在所有节点使用同一镜像"),
            ),
            Stranger::Mode { theirs: true } => (
                text!(
                    "{from} has a secret (RANKLAUNCH_SECRET), and this node has none: not let in",
                    "{from} 设置了密钥（RANKLAUNCH_SECRET），而本节点没有：拒绝其加入"
                ),
                secret(),
            ),
            Stranger::Mode { theirs: false } => (
                text!(
                    "{from} has no secret (RANKLAUNCH_SECRET), and this node has one: not let in",
                    "{from} 未设置密钥（RANKLAUNCH_SECRET），而本节点已设置：拒绝其加入"
                ),
                secret(),
            ),
            Stranger::Secret => (
                text!("{from} has another secret: not let in", "{from} 的密钥不一致：拒绝其加入"),
                secret(),
            ),
            // Counted only: ten thousand lines would help nobody.
            Stranger::Asking | Stranger::Silent | Stranger::Unknown(_) => return Ok(Turn::Wait),
        };
        self.name(from, line, hint, say);
        Ok(Turn::Wait)
    }

    /// Says a line of the first thing that somebody at an address did.
    fn name(
        &mut self,
        from: SocketAddr,
        line: Text,
        hint: Text,
        say: &mut (dyn FnMut(Text) + Send),
    ) {
        let known = self.strangers.contains_key(&from.ip());
        if !known && self.strangers.len() < NAMED_STRANGERS {
            say(line.clone());
            self.strangers.insert(from.ip(), Named { line, hint });
        }
    }

    /// A client of torch's store: a node that somebody starts by hand, a rank of an
    /// attempt that is being ended, or a node of another job.
    fn plain(
        &mut self,
        from: SocketAddr,
        say: &mut (dyn FnMut(Text) + Send),
    ) -> Result<Turn, Refusal> {
        let proof = self.config.proof();
        let hint = text!(
            "start that node with ranklaunch as well, or all nodes with --muster off",
            "请在该节点同样使用 ranklaunch 启动，或在所有节点使用 --muster off"
        );
        // With a secret an unproven word must not end the muster.
        let sealed = self.config.secret.is_some();
        let line = match self.config.without {
            _ if sealed => text!(
                "{from} speaks like torchrun without ranklaunch and cannot prove who it is: ignored",
                "{from} 疑似直接运行的 torchrun，且无法证明身份：忽略"
            ),
            Without::Wait => text!(
                "{from} runs torchrun without ranklaunch: no node of this job, ignored",
                "{from} 直接运行 torchrun 而未使用 ranklaunch：不属于本任务，忽略"
            ),
            Without::Follow | Without::Refuse => {
                let seconds = proof.as_secs();
                text!(
                    "{from} runs torchrun without ranklaunch; if it still does after {seconds} s, it is taken for a node of this job",
                    "{from} 直接运行 torchrun 而未使用 ranklaunch；若 {seconds} 秒后仍是如此，则视为本任务的节点"
                )
            }
        };
        self.name(from, line, hint.clone(), say);
        let now = Instant::now();
        let (first, last) = self.plain.entry(from.ip()).or_insert((now, now));
        if now.duration_since(*last) > TORCH_PAUSE {
            *first = now;
        }
        *last = now;
        let proven = !sealed && now.duration_since(*first) >= proof && !self.is_complete();
        match self.config.without {
            Without::Follow if proven => Ok(Turn::Alone(text!(
                "{from} runs torchrun without ranklaunch, so all nodes go on without a muster",
                "{from} 直接运行 torchrun 而未使用 ranklaunch，因此所有节点跳过集结继续运行"
            ))),
            Without::Refuse if proven => Err(Refusal::new(
                Verdict::Muster,
                "muster.plain-torchrun",
                text!(
                    "{from} runs torchrun without ranklaunch",
                    "{from} 直接运行 torchrun 而未使用 ranklaunch"
                ),
                hint,
            )),
            _ => Ok(Turn::Wait),
        }
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

    pub(super) fn progress(&self, waited: Duration) -> Text {
        let (arrived, nnodes, port) = (self.arrived_count(), self.config.nnodes, self.config.port);
        let absent = ranges(&self.absent());
        let (waited, patience) = (clock(waited), clock(self.config.patience));
        text!(
            "{arrived} of {nnodes} nodes have arrived; waiting on port {port} for node {absent} ({waited} of {patience})",
            "已有 {arrived}/{nnodes} 个节点到达；正在端口 {port} 上等待节点 {absent}（{waited}/{patience}）"
        )
    }

    pub(super) fn missing(&self) -> Refusal {
        let absent = self.absent();
        let (arrived, nnodes) = (self.arrived_count(), self.config.nnodes);
        let waited = spell(self.config.patience);
        let list = ranges(&absent);
        let seen = absent.iter().find_map(|node| self.seen.get(node));
        let strangers = instead(&mut self.strangers.values().map(|named| &named.line));
        let Text { en, zh } = match (seen, strangers) {
            (Some((from, at)), _) => {
                let ago = at.elapsed().as_secs();
                text!("last seen from {from} {ago} s ago", "{ago} 秒前曾从 {from} 连接")
            }
            (None, Some(strangers)) => strangers,
            (None, None) => text!("never connected", "从未连接"),
        };
        let known = self.strangers.values().next().filter(|_| seen.is_none());
        let hint = match known {
            Some(named) => named.hint.clone(),
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
            Verdict::Muster,
            MISSING,
            text!(
                "{arrived} of {nnodes} nodes arrived in {waited}; missing node {list} ({en})",
                "{waited} 内只有 {arrived}/{nnodes} 个节点到达；缺少节点 {list}（{zh}）"
            ),
            hint,
        )
    }
}
