//! Obstacles between a node and node 0, and the refusal that names the most informative obstacle when the wait is over.
//!
//! Identifies the program that holds the port of node 0: torch's store, another job, or another program. Decides when
//! this node acts on the finding. A node leaves the muster only on proof: a store that answers as torch's does, has no
//! job key, and outlives every possible remainder of an attempt. With a secret, an answer that is not proven by the
//! secret does not change the behaviour of this node.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::foreign::{self, ForeignAction, StoreAnswer};
use crate::net::{DialError, Observation, Seen, second_port};
use crate::protocol::JobKey;
use crate::protocol::handshake::Rejection;
use crate::session::{Config, Without};
use linux::pace::{clock, spell};
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal, Verdict};

/// Result of one attempt to reach node 0.
#[derive(Debug, Clone)]
pub(crate) enum JoinProblem {
    /// No connection could be made.
    Dial(DialError),
    /// The peer accepts connections but does not answer.
    Silent(SocketAddr),
    /// The peer gives an unexpected answer, or closes the connection.
    Unexpected(SocketAddr, Text),
    /// The peer's answer identifies another program.
    Program(SocketAddr, Text),
    /// torch's store of a running job.
    Store(SocketAddr, StoreOwner),
    /// The peer is node 0, but the handshake failed.
    Rejected(SocketAddr, Rejection),
    /// Node 0 answered earlier and left.
    Left(SocketAddr, Text),
    /// Node 0 does not admit this node for now.
    Refused(Refusal),
    /// Node 0 waits for other nodes.
    Gathering(SocketAddr),
}

/// The job to which a store belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreOwner {
    /// Our job: one of its attempts runs or is being ended.
    Ours,
    Other(JobKey),
    /// The store has no job key.
    Unknown,
    /// A store without a job key that already has a node with our node rank.
    Complete,
}

impl Observation for JoinProblem {
    /// Whether this problem replaces `best`. A waiting node 0 is no longer an obstacle once it is gone.
    fn replaces(&self, best: &JoinProblem) -> bool {
        self.rank() >= best.rank() || matches!(best, JoinProblem::Gathering(_))
    }
}

impl JoinProblem {
    /// Higher for a problem that tells more about the cause.
    fn rank(&self) -> u8 {
        match self {
            JoinProblem::Dial(error) => error.rank(),
            JoinProblem::Silent(_) => DialError::HIGHEST + 1,
            JoinProblem::Unexpected(..) => DialError::HIGHEST + 2,
            JoinProblem::Program(..) => DialError::HIGHEST + 3,
            JoinProblem::Store(..) => DialError::HIGHEST + 4,
            JoinProblem::Left(..) => DialError::HIGHEST + 5,
            JoinProblem::Rejected(..) => DialError::HIGHEST + 6,
            JoinProblem::Refused(_) => DialError::HIGHEST + 7,
            JoinProblem::Gathering(_) => DialError::HIGHEST + 8,
        }
    }

    fn text(&self, leader: u32) -> Text {
        match self {
            JoinProblem::Dial(error) => error.text(),
            JoinProblem::Silent(peer) => text!(
                "{peer} accepts connections but does not answer: a proxy without node {leader} behind it, a node {leader} that hangs, or another program",
                "{peer} 接受连接但没有任何应答：可能是后面没有节点 {leader} 的代理、卡住的节点 {leader}，或其他程序"
            ),
            JoinProblem::Unexpected(peer, Text { en, zh }) => text!(
                "{peer} accepts connections but does not answer as node {leader}: {en}",
                "{peer} 接受连接，但应答不符合节点 {leader}：{zh}"
            ),
            JoinProblem::Program(peer, Text { en, zh }) => text!(
                "{peer} is {en}: another program holds the master port there",
                "{peer} 是 {zh}：该 Master 端口被其他程序占用"
            ),
            JoinProblem::Store(peer, StoreOwner::Ours) => text!(
                "{peer} is the store of this job's running attempt: this node joins the next one",
                "{peer} 是本任务当前尝试的 store：本节点将加入下一次尝试"
            ),
            JoinProblem::Store(peer, StoreOwner::Other(key)) => {
                let Text { en, zh } = key.text();
                text!(
                    "{peer} is the store of another job: {en}",
                    "{peer} 是另一个任务的 store：{zh}"
                )
            }
            JoinProblem::Store(peer, StoreOwner::Unknown) => text!(
                "{peer} is torch's store: node {leader} runs torchrun without a muster, or it is of another job",
                "{peer} 是 torch 的 store：节点 {leader} 直接运行了 torchrun 而没有集结，或属于另一个任务"
            ),
            JoinProblem::Store(peer, StoreOwner::Complete) => text!(
                "{peer} is torch's store of a job that has a node of this rank already",
                "{peer} 是 torch 的 store，其任务中已有相同编号的节点"
            ),
            JoinProblem::Rejected(peer, rejection) => mismatch(*peer, rejection, leader),
            JoinProblem::Refused(refusal) => refusal.text.clone(),
            JoinProblem::Gathering(peer) => text!(
                "node {leader} ({peer}) is there and waits for other nodes",
                "节点 {leader}（{peer}）已就绪，正在等待其他节点"
            ),
            JoinProblem::Left(peer, Text { en, zh }) => text!(
                "node {leader} ({peer}) was there and ended the connection: {en}",
                "节点 {leader}（{peer}）曾经在线，随后断开了连接：{zh}"
            ),
        }
    }
}

/// The progress line with the current problem.
pub(crate) fn progress(config: &Config, seen: &Seen<JoinProblem>, waited: Duration) -> Text {
    let (leader, (address, port)) = (config.leader, config.leader_address());
    let (waited, limit) = (clock(waited), clock(config.wait_timeout));
    let Text { en, zh } = match seen.get() {
        Some((last, _)) => last.text(leader),
        None => text!("nothing was tried yet", "尚未尝试"),
    };
    text!(
        "waiting for node {leader} at {address}:{port} ({waited} of {limit}): {en}",
        "正在等待节点 {leader}（{address}:{port}，{waited}/{limit}）：{zh}"
    )
}

/// The refusal at the deadline.
pub(crate) fn refusal(config: &Config, seen: &Seen<JoinProblem>) -> Refusal {
    let (leader, (address, port)) = (config.leader, config.leader_address());
    let waited = spell(config.wait_timeout);
    let untried = || JoinProblem::Dial(DialError::Name(Text::same(format!("{address:?}"))));
    let (last, best) = seen.get().unwrap_or_else(|| (untried(), untried()));
    let Text { mut en, mut zh } = best.text(leader);
    if last.rank() != best.rank() {
        let now = last.text(leader);
        en = format!("{en}; at the end: {}", now.en).into();
        zh = format!("{zh}；最后：{}", now.zh).into();
    }
    let not_reached = text!(
        "node {leader} at {address}:{port} was not reached in {waited}: {en}",
        "{waited} 内未能连上节点 {leader}（{address}:{port}）：{zh}"
    );
    let (verdict, id, hint) = match best {
        JoinProblem::Dial(error @ DialError::Name(_)) => {
            let text = text!(
                "the master's name {address} has no address after {waited}: {en}",
                "{waited} 后仍无法解析 Master 名称 {address}：{zh}"
            );
            return error.refusal(&address, port, text);
        }
        JoinProblem::Dial(error) => return error.refusal(&address, port, not_reached),
        JoinProblem::Rejected(peer, rejection) => {
            return Refusal { text: Text { en, zh }, ..incompatible(config, peer, &rejection) };
        }
        JoinProblem::Refused(refusal) => return refusal,
        JoinProblem::Silent(_)
        | JoinProblem::Unexpected(..)
        | JoinProblem::Left(..)
        | JoinProblem::Gathering(_) => (
            Verdict::MasterReach,
            Id::MasterReach,
            text!(
                "look at node {leader}'s log; a mesh sidecar must leave port {port} alone, and another program must not hold it",
                "请查看节点 {leader} 的日志；网格 sidecar 不应拦截端口 {port}，该端口也不应被其他程序占用"
            ),
        ),
        JoinProblem::Program(..) => {
            let second = second_port(port);
            (
                Verdict::MasterReach,
                Id::MasterReach,
                text!(
                    "end that program on node {leader}, or give all nodes another --master-port; a node {leader} whose port is taken tells the others on port {second}, where nothing was heard",
                    "请结束节点 {leader} 上的该程序，或为所有节点指定另一个 --master-port；端口被占用的节点 {leader} 会在端口 {second} 上告知其他节点，但那里没有任何应答"
                ),
            )
        }
        JoinProblem::Store(_, StoreOwner::Ours) => (
            Verdict::Muster,
            Id::MusterAttempt,
            text!(
                "the job went on without this node: look at node {leader}; --max-restarts lets a replaced node join",
                "任务在没有本节点的情况下继续运行：请查看节点 {leader}；--max-restarts 允许替换的节点加入"
            ),
        ),
        JoinProblem::Store(..) => (
            Verdict::Muster,
            Id::MusterStore,
            text!(
                "start node {leader} with ranklaunch as well, or this node with --muster off; give each job its own --master-port",
                "请在节点 {leader} 同样使用 ranklaunch，或在本节点使用 --muster off；各任务应使用不同的 --master-port"
            ),
        ),
    };
    Refusal::with(verdict, id, not_reached, hint)
}

/// The refusal if the leader is incompatible with this node. Waiting would not change that.
pub(crate) fn incompatible(config: &Config, peer: SocketAddr, rejection: &Rejection) -> Refusal {
    let (text, hint) = (mismatch(peer, rejection, config.leader), rejection.remedy());
    match rejection {
        Rejection::Version => Refusal::new(Id::MusterVersion, text, hint),
        _ => Refusal::with(Verdict::Muster, Id::MusterSecret, text, hint),
    }
}

/// The refusal if the port of the leader belongs to another job.
pub(crate) fn taken(config: &Config, peer: SocketAddr, by: &Text) -> Refusal {
    let (leader, Text { en, zh }) = (config.leader, by);
    let ours = config.key().text();
    let (own_en, own_zh) = (ours.en, ours.zh);
    Refusal::with(
        Verdict::PortInUse,
        Id::MusterJob,
        text!(
            "the master port of node {leader} ({peer}) is in use: {en}; this node belongs to {own_en}",
            "节点 {leader} 的 Master 端口（{peer}）已被占用：{zh}；本节点属于{own_zh}"
        ),
        text!(
            "end the other job, or give each job its own --master-port, the same on all of its nodes",
            "请结束另一个任务，或为每个任务指定各自的 --master-port（同一任务的所有节点保持一致）"
        ),
    )
}

fn mismatch(peer: SocketAddr, rejection: &Rejection, leader: u32) -> Text {
    match rejection {
        Rejection::Mode { theirs: true } => text!(
            "node {leader} ({peer}) has a secret, but this node has none",
            "节点 {leader}（{peer}）设置了密钥，而本节点没有"
        ),
        Rejection::Mode { theirs: false } => text!(
            "this node has a secret, but node {leader} ({peer}) has none",
            "本节点设置了密钥，而节点 {leader}（{peer}）没有"
        ),
        Rejection::Version => text!(
            "node {leader} ({peer}) runs a ranklaunch whose version does not fit this one",
            "节点 {leader}（{peer}）的 ranklaunch 版本与本节点不兼容"
        ),
        _ => text!(
            "node {leader} ({peer}) and this node have different secrets",
            "节点 {leader}（{peer}）与本节点的密钥不一致"
        ),
    }
}

/// Another job must hold the port for this long, since it may be about to end.
const OTHER_JOB: Duration = Duration::from_secs(3);

pub(crate) struct Holder<'a> {
    config: &'a Config,
    seen: &'a Seen<JoinProblem>,
    /// Time since which a store without a job key has answered.
    pub(super) unmarked: Option<Instant>,
    /// Time since which another job has answered.
    pub(super) other_job: Option<Instant>,
    /// The last other program that answered.
    program: Option<(SocketAddr, Text)>,
}

impl<'a> Holder<'a> {
    pub(crate) fn new(config: &'a Config, seen: &'a Seen<JoinProblem>) -> Holder<'a> {
        Holder { config, seen, unmarked: None, other_job: None, program: None }
    }

    /// Records that neither a store nor another job holds the port.
    pub(crate) fn clear(&mut self) {
        (self.unmarked, self.other_job) = (None, None);
    }

    /// Identifies the holder of the port. Some: a store, with the action to take.
    pub(crate) async fn ask(&mut self, peer: SocketAddr) -> Option<ForeignAction> {
        let seen = self.seen;
        let program = async {
            let name = foreign::name(peer).await?;
            seen.note(JoinProblem::Program(peer, name.clone()));
            Some((peer, name))
        };
        let store = foreign::ask(peer, self.config.node);
        tokio::pin!(program, store);
        // A store decides at once; any other program leaves one of the two questions unanswered.
        let found = tokio::select! {
            found = &mut store => {
                if matches!(found, StoreAnswer::Silent | StoreAnswer::No) {
                    self.program = program.await;
                }
                found
            }
            name = &mut program => {
                self.program = name;
                store.await
            }
        };
        self.judge(peer, found)
    }

    /// Records the program by its own name, or by its behaviour if it has no name.
    pub(crate) fn note(&self, peer: SocketAddr, behaviour: JoinProblem) {
        let named = self.program.as_ref().filter(|(at, _)| *at == peer);
        self.seen.note(match named {
            Some((_, name)) => JoinProblem::Program(peer, name.clone()),
            None => behaviour,
        });
    }

    /// The action to take about a store; None if the holder is not a store.
    fn judge(&mut self, peer: SocketAddr, found: StoreAnswer) -> Option<ForeignAction> {
        let config = self.config;
        let owner = match found {
            StoreAnswer::Marked(key) if config.key().is_of_other_job(&key) => {
                StoreOwner::Other(key)
            }
            StoreAnswer::Marked(_) => StoreOwner::Ours,
            StoreAnswer::Unmarked { taken: true } => StoreOwner::Complete,
            StoreAnswer::Unmarked { taken: false } => StoreOwner::Unknown,
            StoreAnswer::Silent | StoreAnswer::No => return None,
        };
        self.seen.note(JoinProblem::Store(peer, owner.clone()));
        if owner != StoreOwner::Unknown {
            self.unmarked = None;
        }
        let node = config.node;
        Some(match owner {
            StoreOwner::Unknown => self.unmarked(peer),
            StoreOwner::Ours => ForeignAction::Wait,
            // With a secret, an unproven answer must not end the muster.
            _ if config.secret.is_some() => ForeignAction::Wait,
            StoreOwner::Other(key) => self.other_job(peer, &key.text()),
            StoreOwner::Complete => {
                let by = text!(
                    "a torchrun that has a node {node} already",
                    "一个已有节点 {node} 的 torchrun"
                );
                self.other_job(peer, &by)
            }
        })
    }

    fn unmarked(&mut self, peer: SocketAddr) -> ForeignAction {
        let since = *self.unmarked.get_or_insert_with(Instant::now);
        let may_leave = self.config.without == Without::Follow && self.config.secret.is_none();
        if !may_leave || since.elapsed() < self.config.proof() {
            return ForeignAction::Wait;
        }
        let leader = self.config.leader;
        ForeignAction::Alone(text!(
            "node {leader} ({peer}) runs torchrun without ranklaunch or without a muster, so this node goes on without one",
            "节点 {leader}（{peer}）直接运行 torchrun 或未启用集结，因此本节点跳过集结继续运行"
        ))
    }

    /// Records another job. Gives a refusal after it has held the port for long enough.
    pub(crate) fn other_job(&mut self, peer: SocketAddr, by: &Text) -> ForeignAction {
        let since = *self.other_job.get_or_insert_with(Instant::now);
        if since.elapsed() < OTHER_JOB {
            return ForeignAction::Wait;
        }
        ForeignAction::Refuse(taken(self.config, peer, by))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::config;

    #[test]
    fn refusal_keeps_the_most_informative_problem() {
        let peer = SocketAddr::from(([10, 0, 0, 1], 29501));
        let refused = || JoinProblem::Dial(DialError::Refused(peer));
        let name = || JoinProblem::Dial(DialError::Name(Text::same("\"m\"")));
        let rows = [
            (vec![name()], 85, "has no address after 20s: no address for \"m\""),
            (vec![refused(), name()], 86, "another --master-port; at the end: no address for"),
            (
                vec![refused(), JoinProblem::Silent(peer), refused()],
                86,
                "accepts connections but does not answer",
            ),
            (
                vec![JoinProblem::Rejected(peer, Rejection::Secret), refused()],
                88,
                "different secrets",
            ),
            (vec![JoinProblem::Gathering(peer), refused()], 86, "refuses connections"),
            (
                vec![JoinProblem::Store(peer, StoreOwner::Ours)],
                88,
                "store of this job's running attempt",
            ),
        ];
        for (all, code, words) in rows {
            let seen = Seen::nothing();
            all.into_iter().for_each(|one| seen.note(one));
            let refusal = refusal(&config(1, 2, 29501), &seen);
            assert_eq!(refusal.verdict.code(), code, "{refusal:?}");
            assert!(refusal.text.en.contains(words), "{words}: {}", refusal.text.en);
            assert!(!refusal.hint.zh.is_empty() && refusal.text.en != refusal.text.zh);
        }
        let seen = Seen::nothing();
        seen.note(refused());
        let line = progress(&config(1, 2, 29501), &seen, Duration::from_secs(3));
        let words = "waiting for node 0 at 127.0.0.1:29501 (0:03 of 0:20): 10.0.0.1:29501 refuses";
        assert!(line.en.starts_with(words), "{}", line.en);

        let at = Some(SocketAddr::from(([10, 0, 0, 4], 29502)));
        let after_loss = Config { leader: 3, at, ..config(1, 2, 29501) };
        let line = progress(&after_loss, &seen, Duration::from_secs(3));
        let words = "waiting for node 3 at 10.0.0.4:29502 (0:03 of 0:20): ";
        assert!(line.en.starts_with(words), "{}", line.en);
    }
}
