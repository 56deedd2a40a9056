//! Node 0 before the launch: lets the nodes in, finds out who is missing, agrees.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::compare::{self, Difference};
use super::handshake::Stranger;
use super::hub;
use super::listen::{Door, Ear, Id, Outbox, Said};
use super::restart::Restarts;
use super::session::Session;
use super::types::{Agreement, BEAT, Card, Config, Memory, now_millis};
use super::wire::{self, Frame, Hello};
use crate::lang::Text;
use crate::text;
use crate::verdict::{Refusal, Verdict};

/// How long the earlier of two nodes with one rank has to prove that it lives.
const CHALLENGE: Duration = Duration::from_secs(2);
/// Addresses of strangers that get a line each.
const NAMED_STRANGERS: usize = 32;

/// How the wait ended.
#[derive(Debug)]
pub enum Assembly {
    All(Box<Gathered>),
    /// A node runs without ranklaunch: everybody goes on without a muster.
    Alone(Text),
}

/// How the agreement ended.
#[derive(Debug)]
pub enum Settled {
    Session(Session),
    /// A node vanished in between; the others come back by themselves.
    Lost(Text),
}

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
    card: Option<Card>,
    accepted: bool,
}

impl Member {
    fn tell(&self, frame: &Frame) {
        // A connection that is gone says so by itself.
        let _ = self.out.send(wire::encode(frame).into());
    }
}

/// All nodes are there.
#[derive(Debug)]
pub struct Gathered {
    hall: Hall,
    cards: Vec<Card>,
    differences: Vec<Difference>,
}

#[derive(Debug)]
struct Hall {
    config: Config,
    own: Card,
    door: Door,
    ear: Ear,
    members: BTreeMap<u32, Member>,
    /// Newcomers with a rank that is taken, until the earlier one has answered.
    challenges: BTreeMap<u32, (Instant, Id, Hello, SocketAddr, Outbox)>,
    seen: BTreeMap<u32, (SocketAddr, Instant)>,
    strangers: BTreeSet<IpAddr>,
}

/// What one thing that happened means for the muster.
enum Turn {
    Wait,
    Alone(Text),
    /// A node left that was counted on.
    Left(u32),
}

/// Waits for all nodes. The own card is node 0's.
///
/// # Errors
/// When the port cannot be listened on, a node is missing at the deadline, or
/// nodes do not fit together. All that have arrived are told.
pub async fn gather(
    config: &Config,
    own: Card,
    say: &mut (dyn FnMut(Text) + Send),
) -> Result<Assembly, Refusal> {
    let (door, ear) = Door::open(config.port, config.nnodes, config.secret.clone())
        .map_err(|error| cannot_listen(config.port, &error))?;
    let mut hall = Hall {
        config: config.clone(),
        own,
        door,
        ear,
        members: BTreeMap::new(),
        challenges: BTreeMap::new(),
        seen: BTreeMap::new(),
        strangers: BTreeSet::new(),
    };
    let end = Instant::now() + config.patience;
    let mut next_line = Instant::now() + config.progress_every;
    let mut tick = beat();
    while !hall.is_complete() {
        let challenge = hall.next_challenge();
        let turn = tokio::select! {
            Some((id, said)) = hall.ear.recv() => hall.hear(id, said, say),
            _ = tick.tick() => {
                hall.beat();
                Ok(Turn::Wait)
            }
            () = sleep_until(challenge) => hall.end_challenges(),
            () = sleep_until(next_line.min(end)) => {
                next_line = Instant::now() + config.progress_every;
                if Instant::now() >= end {
                    Err(hall.missing())
                } else {
                    say(hall.progress());
                    Ok(Turn::Wait)
                }
            }
        };
        match turn {
            Ok(Turn::Wait | Turn::Left(_)) => {}
            Ok(Turn::Alone(text)) => {
                hall.broadcast(&Frame::Alone(text.clone()));
                hall.leave().await;
                return Ok(Assembly::Alone(text));
            }
            Err(refusal) => {
                hall.broadcast(&Frame::Refuse(refusal.clone()));
                hall.leave().await;
                return Err(refusal);
            }
        }
    }
    let mut cards = vec![hall.own.clone()];
    cards.extend(hall.members.values().filter_map(|member| member.card.clone()));
    let differences = compare::differences(&cards);
    Ok(Assembly::All(Box::new(Gathered { hall, cards, differences })))
}

impl Gathered {
    /// All cards, in the order of the node rank.
    pub fn cards(&self) -> &[Card] {
        &self.cards
    }

    pub fn differences(&self) -> &[Difference] {
        &self.differences
    }

    /// The least that one node can carry, with what somebody fixed counted as such.
    pub fn fewest(&self) -> u32 {
        let most = |card: &Card| card.exact.unwrap_or(card.most);
        self.cards.iter().map(most).min().unwrap_or(1).max(1)
    }

    /// The heads, where at least one node knows them.
    pub fn heads(&self) -> Option<u32> {
        self.cards.iter().find_map(|card| card.heads)
    }

    /// Tells all nodes that nothing comes of it.
    pub async fn refuse(self, refusal: &Refusal) {
        self.hall.broadcast(&Frame::Refuse(refusal.clone()));
        self.hall.leave().await;
    }

    /// Proposes; when all nodes can follow, frees the port and lets everybody go.
    ///
    /// # Errors
    /// When the proposal does not fit what a node was told, or a node cannot follow.
    pub async fn agree(
        self,
        agreement: Agreement,
        restarts: Restarts,
        say: &mut (dyn FnMut(Text) + Send),
    ) -> Result<Settled, Refusal> {
        let Gathered { mut hall, cards, differences } = self;
        if let Err(refusal) = compare::check_exact(&cards, agreement.nproc) {
            hall.broadcast(&Frame::Refuse(refusal.clone()));
            hall.leave().await;
            return Err(refusal);
        }
        hall.broadcast(&Frame::Agreed { agreement, differences });
        let mut tick = beat();
        while !hall.members.values().all(|member| member.accepted) {
            let challenge = hall.next_challenge();
            let turn = tokio::select! {
                Some((id, said)) = hall.ear.recv() => hall.hear(id, said, say),
                _ = tick.tick() => Ok(hall.beat().map_or(Turn::Wait, Turn::Left)),
                () = sleep_until(challenge) => hall.end_challenges(),
            };
            match turn {
                Ok(Turn::Wait) => {}
                Ok(Turn::Left(node)) => {
                    hall.leave().await;
                    return Ok(Settled::Lost(text!(
                        "node {node} vanished during the agreement; gathering again",
                        "节点 {node} 在协商过程中消失；重新集结"
                    )));
                }
                // A plain torchrun now is nobody whom we wait for.
                Ok(Turn::Alone(_)) => {}
                Err(refusal) => {
                    hall.broadcast(&Frame::Refuse(refusal.clone()));
                    hall.leave().await;
                    return Err(refusal);
                }
            }
        }
        let Hall { config, own, door, ear, members, .. } = hall;
        // First the port, then the word: torch's store binds it at once.
        door.shut().await;
        for member in members.values() {
            member.tell(&Frame::Go);
        }
        Ok(Settled::Session(Session::start(|ends| {
            hub::run(config, own.hostname, ear, members, restarts, ends)
        })))
    }
}

/// Node 0 cannot take part: tells those who come within a few seconds.
pub async fn turn_away(config: &Config, hostname: &str, refusal: &Refusal) {
    /// Nodes that wait dial about once a second.
    const PATIENCE: Duration = Duration::from_secs(3);
    let opened = Door::open(config.port, config.nnodes, config.secret.clone());
    let Ok((door, mut ear)) = opened else { return };
    let answer: Arc<[u8]> = wire::encode(&Frame::Refuse(declined(0, hostname, refusal))).into();
    let mut told = BTreeSet::new();
    let tell = async {
        let others = usize::try_from(config.nnodes.saturating_sub(1)).unwrap_or(usize::MAX);
        while told.len() < others {
            match ear.recv().await {
                Some((_, Said::Arrived { hello, out, .. })) => {
                    let _ = out.send(Arc::clone(&answer));
                    told.insert(hello.node);
                }
                Some(_) => {}
                None => return,
            }
        }
    };
    let _ = tokio::time::timeout(PATIENCE, tell).await;
    door.shut().await;
    let drained = async { while ear.recv().await.is_some() {} };
    let _ = tokio::time::timeout(Duration::from_secs(1), drained).await;
}

fn declined(node: u32, host: &str, refusal: &Refusal) -> Refusal {
    let Text { en, zh } = &refusal.text;
    Refusal::new(
        Verdict::Muster,
        "muster.declined",
        text!("node {node} ({host}) cannot take part: {en}", "节点 {node}（{host}）无法参与：{zh}"),
        refusal.hint.clone(),
    )
}

fn beat() -> tokio::time::Interval {
    let mut tick = interval(BEAT);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick
}

impl Hall {
    fn is_complete(&self) -> bool {
        let others = usize::try_from(self.config.nnodes.saturating_sub(1)).unwrap_or(usize::MAX);
        self.challenges.is_empty()
            && self.members.len() == others
            && self.members.values().all(|member| member.card.is_some())
    }

    fn broadcast(&self, frame: &Frame) {
        let bytes: Arc<[u8]> = wire::encode(frame).into();
        for member in self.members.values() {
            let _ = member.out.send(Arc::clone(&bytes));
        }
    }

    /// Closes everything, after what was said has left.
    async fn leave(self) {
        let Hall { door, members, challenges, mut ear, .. } = self;
        door.shut().await;
        drop((members, challenges));
        let drained = async { while ear.recv().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_secs(3), drained).await;
    }

    /// A heartbeat to all; gives a node that was silent for too long.
    fn beat(&mut self) -> Option<u32> {
        let peer_timeout = self.config.peer_timeout;
        let silent = self.members.iter().find(|(_, member)| member.heard.elapsed() > peer_timeout);
        let silent = silent.map(|(node, _)| *node);
        if let Some(node) = silent {
            self.members.remove(&node);
        }
        self.broadcast(&Frame::Beat { memory: None });
        silent
    }

    fn hear(
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
                let gone = self.members.iter().find(|(_, member)| member.id == id);
                let Some(node) = gone.map(|(node, _)| *node) else { return Ok(Turn::Wait) };
                self.members.remove(&node);
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
        let other_job = match (&self.config.job, &hello.job) {
            (Some(ours), Some(theirs)) => ours != theirs,
            _ => self.config.port != hello.port,
        };
        if other_job {
            return refuse_it(wrong_job(&self.config, &hello));
        }
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
        self.seen.insert(node, (from, Instant::now()));
        self.members.insert(node, member);
        Ok(Turn::Wait)
    }

    fn frame(&mut self, id: Id, frame: Frame) -> Result<Turn, Refusal> {
        let Some((node, member)) = self.members.iter_mut().find(|(_, member)| member.id == id)
        else {
            return Ok(Turn::Wait);
        };
        let node = *node;
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
                member.card = Some(card);
            }
            Frame::Accept => member.accepted = true,
            Frame::Decline(refusal) => {
                return Err(declined(node, &member.hostname, &refusal));
            }
            Frame::Beat { memory } => member.memory = memory.or(member.memory),
            _ => {}
        }
        Ok(Turn::Wait)
    }

    fn next_challenge(&self) -> Instant {
        let far = Instant::now() + Duration::from_secs(3600);
        self.challenges.values().map(|(until, ..)| *until).min().unwrap_or(far)
    }

    /// Those who did not answer in time lose their place to the later one.
    fn end_challenges(&mut self) -> Result<Turn, Refusal> {
        let now = Instant::now();
        let due: Vec<u32> = self
            .challenges
            .iter()
            .filter(|(_, (until, ..))| *until <= now)
            .map(|(node, _)| *node)
            .collect();
        for node in &due {
            self.members.remove(node);
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
            Stranger::Unknown(why) => {
                tracing::info!(%from, why, "a stranger at the muster's port");
                return Ok(Turn::Wait);
            }
        };
        if self.strangers.len() < NAMED_STRANGERS && self.strangers.insert(from.ip()) {
            say(line);
        }
        Ok(Turn::Wait)
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

    fn progress(&self) -> Text {
        let (arrived, nnodes) = (self.arrived_count(), self.config.nnodes);
        let absent = ranges(&self.absent());
        text!(
            "{arrived} of {nnodes} nodes have arrived; waiting for node {absent}",
            "已有 {arrived}/{nnodes} 个节点到达；正在等待节点 {absent}"
        )
    }

    fn missing(&self) -> Refusal {
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
            "muster.missing",
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

/// `2, 5-9, 11`, at most a handful of ranges.
pub(super) fn ranges(nodes: &[u32]) -> String {
    const SHOWN: usize = 8;
    let mut found: Vec<(u32, u32)> = Vec::new();
    for node in nodes {
        match found.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*node) => *last = *node,
            _ => found.push((*node, *node)),
        }
    }
    let mut words: Vec<String> = found
        .iter()
        .take(SHOWN)
        .map(
            |(first, last)| {
                if first == last { first.to_string() } else { format!("{first}-{last}") }
            },
        )
        .collect();
    if found.len() > SHOWN {
        words.push("…".to_owned());
    }
    words.join(", ")
}

/// `30m`, `1h30m`, `90s`, as the flag takes it.
fn spell(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds % 3600 / 60, seconds % 60) {
        (0, 0, _) if seconds == 0 => format!("{}ms", duration.as_millis()),
        (0, minutes, 0) => format!("{minutes}m"),
        (hours, 0, 0) => format!("{hours}h"),
        (hours, minutes, 0) => format!("{hours}h{minutes}m"),
        _ => format!("{seconds}s"),
    }
}

fn duplicate(node: u32, earlier: &Member, later: &Hello, from: SocketAddr) -> Refusal {
    let (first, first_from) = (&earlier.hostname, earlier.from);
    let second = &later.hostname;
    Refusal::new(
        Verdict::Muster,
        "muster.duplicate",
        text!(
            "two nodes say that they are node {node}: {first} ({first_from}) and {second} ({from})",
            "有两个节点自称为节点 {node}：{first}（{first_from}）和 {second}（{from}）"
        ),
        text!(
            "give each node its own RANK or --node-rank",
            "请为每个节点设置不同的 RANK 或 --node-rank"
        ),
    )
}

fn wrong_job(config: &Config, hello: &Hello) -> Refusal {
    let of = |job: &Option<String>, port: u16| {
        job.clone().unwrap_or_else(|| format!("the job on port {port}"))
    };
    let (ours, theirs) = (of(&config.job, config.port), of(&hello.job, hello.port));
    Refusal::new(
        Verdict::Muster,
        "muster.job",
        text!(
            "node 0 there belongs to another job: {ours}, and this node to {theirs}",
            "那里的节点 0 属于另一个任务 {ours}，而本节点属于 {theirs}"
        ),
        text!(
            "end the earlier job, or give the jobs different master ports",
            "请结束之前的任务，或为各任务指定不同的主端口"
        ),
    )
}

fn cannot_listen(port: u16, error: &io::Error) -> Refusal {
    Refusal::new(
        Verdict::PortInUse,
        "port.free",
        text!(
            "node 0 cannot listen on port {port} for the other nodes: {error}",
            "节点 0 无法在端口 {port} 上监听其他节点：{error}"
        ),
        text!(
            "end what holds the port, or choose another with --master-port, the same on every node",
            "请结束占用该端口的进程，或在所有节点上用 --master-port 指定同一个其他端口"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_nodes_and_durations_are_short_words() {
        assert_eq!(ranges(&[2]), "2");
        assert_eq!(ranges(&[1, 2, 3, 7, 9, 10]), "1-3, 7, 9-10");
        let odd: Vec<u32> = (0..100).map(|n| 2 * n + 1).collect();
        assert!(ranges(&odd).ends_with("15, …"), "{}", ranges(&odd));
        for (seconds, words) in
            [(1800, "30m"), (90, "90s"), (7200, "2h"), (5400, "1h30m"), (5, "5s")]
        {
            assert_eq!(spell(Duration::from_secs(seconds)), words);
        }
    }
}
