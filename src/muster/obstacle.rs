//! What stands between a node and node 0: what was seen, in words, and what of it
//! the verdict names when the wait is over.

use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::handshake::Stranger;
use super::key::JobKey;
use super::second::second;
use super::types::Config;
use super::words::spell;
use crate::lang::Text;
use crate::pace::clock;
use crate::text;
use crate::verdict::{Id, Refusal, Verdict};

/// What one attempt to reach node 0 came to.
#[derive(Debug, Clone)]
pub(super) enum Obstacle {
    Untried,
    Name(Text),
    /// No connection came about.
    Connection(SocketAddr, io::ErrorKind, Text),
    /// It takes connections and says nothing.
    Mute(SocketAddr),
    /// It answers otherwise, or hangs up.
    Odd(SocketAddr, Text),
    /// It says that it is another program.
    Program(SocketAddr, Text),
    /// torch's store of a running job.
    Store(SocketAddr, Whose),
    /// Node 0, with which no channel came about.
    Stranger(SocketAddr, Stranger),
    /// Node 0 does not let this node in for now.
    Refused(Refusal),
    /// Node 0 is there and waits for others.
    Gathering(SocketAddr),
    /// Node 0 was there.
    Left(SocketAddr, Text),
}

/// To which job a store belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Whose {
    /// To ours: an attempt of it runs, or is being ended.
    Ours,
    Other(JobKey),
    /// No ranklaunch wrote whose it is.
    Nobodys,
    /// The same, and a node with our rank is in it.
    Full,
}

impl Obstacle {
    /// The more it says of the cause, the higher.
    fn rank(&self) -> u8 {
        match self {
            Obstacle::Untried => 0,
            Obstacle::Name(_) => 1,
            Obstacle::Connection(_, io::ErrorKind::ConnectionRefused, _) => 3,
            Obstacle::Connection(..) => 2,
            Obstacle::Mute(_) => 4,
            Obstacle::Odd(..) => 5,
            Obstacle::Program(..) => 6,
            Obstacle::Store(..) => 7,
            Obstacle::Left(..) => 8,
            Obstacle::Stranger(..) => 9,
            Obstacle::Refused(_) => 10,
            Obstacle::Gathering(_) => 11,
        }
    }

    fn words(&self) -> Text {
        match self {
            Obstacle::Untried => text!("nothing was tried yet", "尚未尝试"),
            Obstacle::Name(cause) => cause.clone(),
            Obstacle::Connection(peer, io::ErrorKind::ConnectionRefused, _) => text!(
                "{peer} refuses connections: that host is up and nothing listens there; node 0 has not started yet, or has another --master-port",
                "{peer} 拒绝连接：该主机已启动，但没有进程监听此端口；节点 0 尚未启动，或使用了另一个 --master-port"
            ),
            Obstacle::Connection(peer, _, Text { en, zh }) => {
                text!("{peer}: {en}", "{peer}：{zh}")
            }
            Obstacle::Mute(peer) => text!(
                "{peer} takes connections and says nothing: a proxy without node 0 behind it, a node 0 that hangs, or another program",
                "{peer} 接受连接但没有任何应答：可能是后面没有节点 0 的代理、卡住的节点 0，或其他程序"
            ),
            Obstacle::Odd(peer, Text { en, zh }) => text!(
                "{peer} takes connections and does not answer as node 0: {en}",
                "{peer} 接受连接，但应答不符合节点 0：{zh}"
            ),
            Obstacle::Program(peer, Text { en, zh }) => text!(
                "{peer} is {en}: another program holds the master port there",
                "{peer} 是 {zh}：该 Master 端口被其他程序占用"
            ),
            Obstacle::Store(peer, Whose::Ours) => text!(
                "{peer} is the store of this job's running attempt: this node joins the next one",
                "{peer} 是本任务当前尝试的 store：本节点将加入下一次尝试"
            ),
            Obstacle::Store(peer, Whose::Other(key)) => {
                let Text { en, zh } = key.words();
                text!(
                    "{peer} is the store of another job: {en}",
                    "{peer} 是另一个任务的 store：{zh}"
                )
            }
            Obstacle::Store(peer, Whose::Nobodys) => text!(
                "{peer} is torch's store: node 0 runs torchrun without a muster, or it is of another job",
                "{peer} 是 torch 的 store：节点 0 直接运行了 torchrun 而没有集结，或属于另一个任务"
            ),
            Obstacle::Store(peer, Whose::Full) => text!(
                "{peer} is torch's store of a job that has a node of this rank already",
                "{peer} 是 torch 的 store，其任务中已有相同编号的节点"
            ),
            Obstacle::Stranger(peer, stranger) => unlike(*peer, stranger),
            Obstacle::Refused(refusal) => refusal.text.clone(),
            Obstacle::Gathering(peer) => text!(
                "node 0 ({peer}) is there and waits for other nodes",
                "节点 0（{peer}）已就绪，正在等待其他节点"
            ),
            Obstacle::Left(peer, Text { en, zh }) => text!(
                "node 0 ({peer}) was there and ended the connection: {en}",
                "节点 0（{peer}）曾经在线，随后断开了连接：{zh}"
            ),
        }
    }
}

/// What was seen while a node looked for node 0.
#[derive(Debug)]
pub(super) struct Seen(Mutex<(Obstacle, Obstacle)>);

impl Seen {
    pub(super) fn nothing() -> Seen {
        Seen(Mutex::new((Obstacle::Untried, Obstacle::Untried)))
    }

    /// What says the most stays, of equals the latest. A node 0 that waits is no
    /// obstacle any more once it is gone.
    pub(super) fn note(&self, obstacle: Obstacle) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, best) = &mut *seen;
        if obstacle.rank() >= best.rank() || matches!(best, Obstacle::Gathering(_)) {
            *best = obstacle.clone();
        }
        *last = obstacle;
    }

    fn get(&self) -> (Obstacle, Obstacle) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is seen now, after so long.
    pub(super) fn progress(&self, config: &Config, waited: Duration) -> Text {
        let (address, port) = (&config.master_addr, config.port);
        let (waited, patience) = (clock(waited), clock(config.patience));
        let Text { en, zh } = self.get().0.words();
        text!(
            "waiting for node 0 at {address}:{port} ({waited} of {patience}): {en}",
            "正在等待节点 0（{address}:{port}，{waited}/{patience}）：{zh}"
        )
    }

    /// The wait is over.
    pub(super) fn refuse(&self, config: &Config) -> Refusal {
        let (last, best) = self.get();
        let (verdict, id, hint) = remedy(config, &best);
        if let Obstacle::Refused(refusal) = best {
            return refusal;
        }
        let (address, port, waited) = (&config.master_addr, config.port, spell(config.patience));
        let Text { mut en, mut zh } = best.words();
        if last.rank() != best.rank() {
            let now = last.words();
            en = format!("{en}; at the end: {}", now.en).into();
            zh = format!("{zh}；最后：{}", now.zh).into();
        }
        let text = match best {
            Obstacle::Name(_) => text!(
                "the master's name {address} has no address after {waited}: {en}",
                "{waited} 后仍无法解析 Master 名称 {address}：{zh}"
            ),
            Obstacle::Stranger(..) => Text { en, zh },
            _ => text!(
                "node 0 at {address}:{port} was not reached in {waited}: {en}",
                "{waited} 内未能连上节点 0（{address}:{port}）：{zh}"
            ),
        };
        Refusal::with(verdict, id, text, hint)
    }
}

fn remedy(config: &Config, obstacle: &Obstacle) -> (Verdict, Id, Text) {
    let port = config.port;
    match obstacle {
        Obstacle::Untried | Obstacle::Name(_) => (
            Verdict::MasterName,
            Id::MasterResolve,
            text!(
                "check MASTER_ADDR, the headless Service and the DNS of the cluster",
                "请检查 MASTER_ADDR、headless Service 以及集群 DNS"
            ),
        ),
        Obstacle::Connection(_, io::ErrorKind::ConnectionRefused, _) => (
            Verdict::MasterReach,
            Id::MasterReach,
            text!(
                "look at node 0's log: it says on which port it waits; give all nodes one --master-port (here {port})",
                "请查看节点 0 的日志中它等待的端口；所有节点应使用同一个 --master-port（本节点为 {port}）"
            ),
        ),
        Obstacle::Connection(..) => (
            Verdict::MasterReach,
            Id::MasterReach,
            text!(
                "check that node 0's host is up and that no firewall or NetworkPolicy closes port {port}",
                "请检查节点 0 的主机是否在线，以及防火墙或 NetworkPolicy 是否放行端口 {port}"
            ),
        ),
        Obstacle::Mute(_) | Obstacle::Odd(..) | Obstacle::Left(..) | Obstacle::Gathering(_) => (
            Verdict::MasterReach,
            Id::MasterReach,
            text!(
                "look at node 0's log; a mesh sidecar must leave port {port} alone, and another program must not hold it",
                "请查看节点 0 的日志；网格 sidecar 不应拦截端口 {port}，该端口也不应被其他程序占用"
            ),
        ),
        Obstacle::Program(..) => {
            let second = second(port);
            (
                Verdict::MasterReach,
                Id::MasterReach,
                text!(
                    "end that program on node 0, or give all nodes another --master-port; a node 0 whose port is taken tells the others on port {second}, where nothing was heard",
                    "请结束节点 0 上的该程序，或为所有节点指定另一个 --master-port；端口被占用的节点 0 会在端口 {second} 上告知其他节点，但那里没有任何应答"
                ),
            )
        }
        Obstacle::Store(_, Whose::Ours) => (
            Verdict::Muster,
            Id::MusterAttempt,
            text!(
                "the job went on without this node: look at node 0; --max-restarts lets a replaced node join",
                "任务在没有本节点的情况下继续运行：请查看节点 0；--max-restarts 允许替换的节点加入"
            ),
        ),
        Obstacle::Store(..) => (
            Verdict::Muster,
            Id::MusterStore,
            text!(
                "start node 0 with ranklaunch as well, or this node with --muster off; give each job its own --master-port",
                "请在节点 0 同样使用 ranklaunch，或在本节点使用 --muster off；各任务应使用不同的 --master-port"
            ),
        ),
        Obstacle::Stranger(peer, stranger) => {
            let Refusal { verdict, id, hint, .. } = shut_out(*peer, stranger);
            (verdict, id, hint)
        }
        Obstacle::Refused(refusal) => (refusal.verdict, Id::MusterJob, refusal.hint.clone()),
    }
}

/// Node 0 is there and of another kind: nothing that waits would change it.
pub(super) fn shut_out(peer: SocketAddr, stranger: &Stranger) -> Refusal {
    let (text, hint) = (unlike(peer, stranger), like(stranger));
    match stranger {
        Stranger::Version => Refusal::new(Id::MusterVersion, text, hint),
        _ => Refusal::with(Verdict::Muster, Id::MusterSecret, text, hint),
    }
}

/// The port of node 0 belongs to another job.
pub(super) fn taken(config: &Config, peer: SocketAddr, by: &Text) -> Refusal {
    let Text { en, zh } = by;
    let ours = JobKey::of(config).words();
    let (own_en, own_zh) = (ours.en, ours.zh);
    Refusal::with(
        Verdict::PortInUse,
        Id::MusterJob,
        text!(
            "the master port of node 0 ({peer}) is in use: {en}; this node belongs to {own_en}",
            "节点 0 的 Master 端口（{peer}）已被占用：{zh}；本节点属于{own_zh}"
        ),
        text!(
            "end the other job, or give each job its own --master-port, the same on all of its nodes",
            "请结束另一个任务，或为每个任务指定各自的 --master-port（同一任务的所有节点保持一致）"
        ),
    )
}

fn unlike(peer: SocketAddr, stranger: &Stranger) -> Text {
    match stranger {
        Stranger::Mode { theirs: true } => text!(
            "node 0 ({peer}) has a secret, and this node has none",
            "节点 0（{peer}）设置了密钥，而本节点没有"
        ),
        Stranger::Mode { theirs: false } => text!(
            "this node has a secret, and node 0 ({peer}) has none",
            "本节点设置了密钥，而节点 0（{peer}）没有"
        ),
        Stranger::Version => text!(
            "node 0 ({peer}) runs a ranklaunch whose version does not fit this one",
            "节点 0（{peer}）的 ranklaunch 版本与本节点不兼容"
        ),
        _ => text!(
            "node 0 ({peer}) and this node have different secrets",
            "节点 0（{peer}）与本节点的密钥不一致"
        ),
    }
}

fn like(stranger: &Stranger) -> Text {
    match stranger {
        Stranger::Version => text!("use one image on all nodes", "请在所有节点使用同一镜像"),
        _ => text!(
            "give all nodes the same RANKLAUNCH_SECRET or RANKLAUNCH_SECRET_FILE",
            "请为所有节点设置相同的 RANKLAUNCH_SECRET 或 RANKLAUNCH_SECRET_FILE"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::muster::tests::config;

    #[test]
    fn the_verdict_keeps_what_said_the_most() {
        let peer = SocketAddr::from(([10, 0, 0, 1], 29501));
        let refused = || {
            let cause = text!("Connection refused", "连接被拒绝");
            Obstacle::Connection(peer, io::ErrorKind::ConnectionRefused, cause)
        };
        let name = || Obstacle::Name(text!("no address", "没有地址"));
        let rows = [
            (vec![name()], 85, "has no address after 20s: no address"),
            (vec![refused(), name()], 86, "another --master-port; at the end: no address"),
            (vec![refused(), Obstacle::Mute(peer), refused()], 86, "takes connections and says"),
            (vec![Obstacle::Stranger(peer, Stranger::Secret), refused()], 88, "different secrets"),
            (vec![Obstacle::Gathering(peer), refused()], 86, "refuses connections"),
            (vec![Obstacle::Store(peer, Whose::Ours)], 88, "store of this job's running attempt"),
        ];
        for (all, code, words) in rows {
            let seen = Seen::nothing();
            all.into_iter().for_each(|one| seen.note(one));
            let refusal = seen.refuse(&config(1, 2, 29501));
            assert_eq!(refusal.verdict.code(), code, "{refusal:?}");
            assert!(refusal.text.en.contains(words), "{words}: {}", refusal.text.en);
            assert!(!refusal.hint.zh.is_empty() && refusal.text.en != refusal.text.zh);
        }
        let seen = Seen::nothing();
        seen.note(refused());
        let line = seen.progress(&config(1, 2, 29501), Duration::from_secs(3));
        let words = "waiting for node 0 at 127.0.0.1:29501 (0:03 of 0:20): 10.0.0.1:29501 refuses";
        assert!(line.en.starts_with(words), "{}", line.en);
    }
}
