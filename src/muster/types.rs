//! What nodes tell each other, and how a muster is held.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::secret::Secret;
use super::wire::{clean, clean_refusal};
use crate::lang::Text;
use crate::pace::Pace;
use crate::settings::{Engine, LayoutRule};
use crate::text;
use crate::verdict::{Class, Id, Refusal};

/// What a connection is for. Nodes meet only others with the same purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// To launch a job; the only one that version 1 knows.
    #[default]
    Run,
    /// To look at all nodes and the links between them.
    Check,
    /// From node to node: to measure one link.
    Measure,
}

/// What a node that runs without ranklaunch, or without a muster, means to this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Without {
    /// Once it is proven, this node goes on alone as well (`--muster auto`).
    Follow,
    /// Once it is proven, the launch is refused (`--muster required`).
    Refuse,
    /// It is no node of this job: all of them run one command, or agreed before.
    Wait,
}

/// What the members of a muster are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Each counts as a node of the job.
    Node,
    /// Several are on one node: their platform starts a command once per rank.
    Task,
}

impl Unit {
    pub(super) fn of(card: &Card) -> Unit {
        if card.on.is_some() { Unit::Task } else { Unit::Node }
    }

    /// `node 3`
    pub(super) fn named(self, number: u32) -> Text {
        match self {
            Unit::Node => text!("node {number}", "节点 {number}"),
            Unit::Task => text!("task {number}", "task {number}"),
        }
    }

    /// `nodes`
    pub(super) fn plural(self) -> Text {
        match self {
            Unit::Node => text!("nodes", "节点"),
            Unit::Task => text!("tasks", " task "),
        }
    }
}

/// How one node takes part.
#[derive(Clone)]
pub struct Config {
    pub purpose: Purpose,
    pub unit: Unit,
    pub node: u32,
    pub nnodes: u32,
    /// The platform's id of the job, where it has one; else port and node count tell jobs apart.
    pub job: Option<String>,
    pub master_addr: String,
    /// Where node 0 listens: the master port, or `--muster-port`.
    pub port: u16,
    /// How long nodes wait for each other.
    pub patience: Duration,
    /// When a wait says who is missing.
    pub pace: Pace,
    /// A partition that is shorter is survived.
    pub peer_timeout: Duration,
    pub secret: Option<Secret>,
    pub without: Without,
    /// The grace of the ranks: so long may the store of an attempt live that is being ended.
    pub grace: Duration,
    /// The number of nodes is a bare WORLD_SIZE, which counts processes on some platforms.
    pub is_world_size: bool,
    /// This node's memory, read for every heartbeat.
    pub memory: Arc<dyn Fn() -> Option<Memory> + Send + Sync>,
}

impl fmt::Debug for Config {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Config")
            .field("node", &self.node)
            .field("nnodes", &self.nnodes)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// A partition that is shorter is survived; a node that is silent for longer is lost.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(15);
/// Before the start a silence may be so many times longer: nothing runs that could
/// hang, and node 0 may have thousands of handshakes to do.
pub(super) const BEFORE_THE_START: u32 = 4;

/// What a node says about itself. Plain values, no variables and no paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    pub node: u32,
    pub nnodes: u32,
    pub hostname: String,
    /// ranklaunch's version.
    pub version: String,
    pub engine: Engine,
    pub rule: LayoutRule,
    pub heads: Option<u32>,
    /// Most processes that the node can carry.
    pub most: u32,
    /// A number of processes that somebody fixed on that node.
    pub exact: Option<u32>,
    pub gpus: u32,
    pub torch: Option<String>,
    pub driver: Option<String>,
    /// Digest of the script's bytes.
    pub script: Option<String>,
    /// Digest of the NCCL settings that must be alike everywhere.
    pub nccl: Option<String>,
    /// RDMA ports that will be used.
    pub rails: u32,
    /// `InfiniBand`, `Ethernet`
    pub link_layer: Option<String>,
    /// Milliseconds by which the node's clock is behind node 0's. Filled in by the handshake.
    pub clock_offset: i64,
    /// Bytes, of the interface that the ranks use.
    #[serde(default)]
    pub mtu: Option<u32>,
    /// Gb/s of the RDMA ports that will be used: `8 × 400`.
    #[serde(default)]
    pub rates: Option<String>,
    /// The newest version of the protocol that the node speaks; 0 before version 2.
    #[serde(default)]
    pub protocol: u8,
    /// Where the others can measure to. Only of [`Purpose::Check`].
    #[serde(default)]
    pub station: Option<Box<Station>>,
    /// Of a task: where it is.
    #[serde(default)]
    pub on: Option<Seat>,
}

/// The node that a task is on, as the task counts nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    pub node: u32,
    pub nnodes: u32,
}

/// A node as the others see it when links are measured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Station {
    /// Its listener on the interface that the ranks use. Unspecified: wherever it was reached.
    pub address: Option<SocketAddr>,
    pub interface: Option<String>,
    /// What the interface claims, in Mb/s.
    pub megabits: Option<u32>,
    /// The first of its own checks that failed.
    pub failed: Option<Refusal>,
}

impl Station {
    pub(super) fn clean(&mut self) {
        self.interface.iter_mut().for_each(clean);
        if let Some(refusal) = &mut self.failed {
            clean_refusal(refusal);
        }
    }
}

impl Card {
    /// Whether any node can be so: no honest one offers or asks for no process.
    pub(super) fn is_sound(&self) -> bool {
        self.most > 0 && self.exact != Some(0)
    }
}

/// What node 0 decided for all. Every node renders its own command line from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement {
    pub nnodes: u32,
    pub nproc: u32,
    /// nnodes × nproc; also the key of the profile's `[[select]]` rows.
    pub world: u32,
    pub ulysses: u32,
    pub ring: u32,
    pub heads: Option<u32>,
    pub master_port: u16,
    /// `<job>-<UTC time>-<4 hex>`
    pub run_id: String,
    /// `20250102-030405`
    pub timestamp: String,
    /// 0 at first; the same on all nodes.
    pub attempt: u32,
}

impl Agreement {
    /// Run id and timestamp become folder names and arguments: only letters, digits, `.` and `-`.
    pub(super) fn is_sound(&self) -> bool {
        let plain = |word: &str| {
            (1..=128).contains(&word.len())
                && !word.starts_with('.')
                && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'))
        };
        plain(&self.run_id)
            && plain(&self.timestamp)
            && self.nproc > 0
            && self.nnodes.checked_mul(self.nproc) == Some(self.world)
    }
}

/// Percent of a memory limit from which an OOM kill is the likely death.
const SHORT: u64 = 90;

/// Bytes in use and the limit, as the tightest cgroup has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    pub used: u64,
    pub limit: u64,
}

impl Memory {
    /// So near to the limit that a death is probably an OOM kill.
    pub(super) fn is_short(self) -> bool {
        self.percent() >= SHORT
    }

    /// Percent in use, rounded down.
    pub fn percent(self) -> u64 {
        u64::try_from(u128::from(self.used) * 100 / u128::from(self.limit.max(1))).unwrap_or(100)
    }
}

/// The first failure of the job: the same on every node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    pub node: u32,
    /// Of a task: the rank of its node.
    #[serde(default)]
    pub on: Option<u32>,
    pub hostname: String,
    /// Global rank.
    pub rank: Option<u32>,
    /// `rank.exit`, `node.died`…
    pub id: Id,
    /// As in the verdict of the node itself.
    pub class: Class,
    /// Exit code of that node's launcher.
    pub code: i32,
    pub text: Text,
    pub hint: Text,
    /// Milliseconds since 1970 by node 0's clock.
    pub at: i64,
    /// Last lines of the rank that failed, oldest first.
    pub lines: Vec<String>,
    /// All that the node knows is in; before that only who failed and how.
    pub whole: bool,
    /// Set where the node itself could not speak any more.
    pub loss: Option<Loss>,
}

/// Why a node is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Loss {
    /// Its connection was closed without a farewell.
    Died,
    /// Nothing was heard from it for the peer timeout.
    Silent,
}

impl Cause {
    /// The cause when a node is lost.
    pub(super) fn lost(
        (node, on): (u32, Option<u32>),
        hostname: &str,
        loss: Loss,
        memory: Option<Memory>,
        silence: Duration,
        at: i64,
    ) -> Cause {
        let seconds = silence.as_secs();
        let unit = if on.is_some() { Unit::Task } else { Unit::Node };
        let Text { en: who, zh: who_zh } = unit.named(node);
        let full = memory.filter(|memory| memory.is_short()).map(Memory::percent);
        let (id, text, hint) = match (loss, full) {
            (Loss::Died, Some(percent)) => (
                Id::NodeDied,
                text!(
                    "the agent of {who} ({hostname}) died; last seen at {percent} % of its memory limit: probably OOM-killed",
                    "{who_zh}（{hostname}）的 agent 已死亡；最后一次心跳时内存已达上限的 {percent} %：很可能被 OOM 杀死"
                ),
                text!(
                    "raise that pod's memory limit, or use less host memory (data loader workers, pinned memory, checkpoints in RAM)",
                    "请提高该 Pod 的内存限制，或减少主机内存占用（数据加载进程、锁页内存、内存中的检查点）"
                ),
            ),
            (Loss::Died, None) => (
                Id::NodeDied,
                text!(
                    "the agent of {who} ({hostname}) died",
                    "{who_zh}（{hostname}）的 agent 已死亡"
                ),
                text!(
                    "look at that node: its pod may have been deleted, evicted or killed for memory (kubectl describe pod)",
                    "请检查该节点：其 Pod 可能被删除、驱逐或因内存不足被杀（kubectl describe pod）"
                ),
            ),
            (Loss::Silent, _) => (
                Id::NodeSilent,
                text!(
                    "nothing was heard from {who} ({hostname}) for {seconds} s",
                    "已有 {seconds} 秒未收到 {who_zh}（{hostname}）的任何消息"
                ),
                text!(
                    "that node lost power or its network, or this node lost the network to it",
                    "该节点断电或断网，或本节点到它的网络中断"
                ),
            ),
        };
        Cause {
            node,
            on,
            hostname: hostname.to_owned(),
            rank: None,
            id,
            class: Class::Launcher,
            code: 137,
            text,
            hint,
            at,
            lines: Vec::new(),
            whole: true,
            loss: Some(loss),
        }
    }

    /// The kernel that takes a whole container takes the guard before the agent, which
    /// may just have the time to say so: where memory was short, that is why.
    pub(super) fn seen_with(self, memory: Option<Memory>) -> Cause {
        if self.id != Id::GuardKilled || !memory.is_some_and(Memory::is_short) {
            return self;
        }
        let (who, at) = ((self.node, self.on), self.at);
        Cause::lost(who, &self.hostname, Loss::Died, memory, Duration::ZERO, at)
    }

    /// Sorts the first failure to the front. A dead agent is never a consequence of
    /// a failing rank elsewhere, while its end reaches us after the errors that the
    /// vanished ranks cause on other nodes.
    pub(super) fn order(&self) -> (bool, i64, u32) {
        (self.loss != Some(Loss::Died), self.at, self.node)
    }

    /// Whether operators should start the job again: by the convention that codes from 128 are retryable.
    pub fn is_retryable(&self) -> bool {
        self.code >= 128
    }
}

/// All nodes begin anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Again {
    /// The number of the coming attempt.
    pub attempt: u32,
    /// Milliseconds until then.
    pub pause: u64,
}

/// Node 0's policy: what follows from the first failure of an attempt that lasted so long.
pub type Decide = Box<dyn FnMut(&Cause, Duration) -> Option<Again> + Send>;

/// The wall clock as it was at one moment, and steady from then on: a clock that is
/// stepped between two failures must not turn their order around.
#[derive(Debug, Clone, Copy)]
struct Clock {
    wall: i64,
    since: Instant,
}

impl Clock {
    fn set(wall: SystemTime) -> Clock {
        Clock { wall: millis(wall), since: Instant::now() }
    }

    fn now(self) -> i64 {
        let since = i64::try_from(self.since.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.wall.saturating_add(since)
    }
}

/// Milliseconds by this process's steady clock, which began with the wall clock's
/// milliseconds since 1970. Two nodes compare theirs by the offset of the handshake.
pub fn now() -> i64 {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    CLOCK.get_or_init(|| Clock::set(SystemTime::now())).now()
}

/// Milliseconds since 1970.
pub(super) fn millis(at: SystemTime) -> i64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
pub(crate) fn card(node: u32, nnodes: u32) -> Card {
    Card {
        node,
        nnodes,
        hostname: format!("host-{node}"),
        version: "1".to_owned(),
        engine: Engine::Direct,
        rule: LayoutRule::None,
        heads: None,
        most: 8,
        exact: None,
        gpus: 8,
        torch: None,
        driver: None,
        script: None,
        nccl: None,
        rails: 0,
        link_layer: None,
        clock_offset: 0,
        mtu: None,
        rates: None,
        protocol: super::handshake::HIGHEST,
        station: None,
        on: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_stepped_later_changes_no_order() {
        let an_hour_ago = SystemTime::now() - Duration::from_secs(3600);
        let clock = Clock::set(an_hour_ago);
        let (first, second) = (clock.now(), clock.now());
        // The wall clock has jumped an hour ahead of it meanwhile.
        assert!(first <= second && second - millis(an_hour_ago) < 60_000, "{first} {second}");
        let before = now();
        std::thread::sleep(Duration::from_millis(5));
        assert!((5..5000).contains(&(now() - before)));
    }

    #[test]
    fn a_guard_that_was_killed_where_memory_was_short_was_probably_taken_by_the_kernel() {
        let said = |id: Id, used: Option<u64>| {
            let lost = Cause::lost((1, None), "h", Loss::Died, None, Duration::ZERO, 7);
            let own = Cause { id, loss: None, ..lost };
            own.seen_with(used.map(|used| Memory { used, limit: 100 }))
        };
        let taken = said(Id::GuardKilled, Some(93));
        assert_eq!((taken.id, taken.at, taken.node), (Id::NodeDied, 7, 1));
        assert!(taken.text.en.contains("at 93 % of its memory limit"), "{taken:?}");
        for (id, used) in
            [(Id::GuardKilled, Some(50)), (Id::GuardKilled, None), (Id::RankExit, Some(93))]
        {
            assert_eq!(said(id, used).id, id);
        }
    }
}
