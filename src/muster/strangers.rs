//! Who came to node 0 and was not let in: what is said of them, and when a torchrun
//! without ranklaunch is believed to be a node of the job.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::time::Instant;

use super::hall::Turn;
use super::handshake::Stranger;
use super::types::{Config, Without};
use super::words::instead;
use crate::lang::Text;
use crate::text;
use crate::verdict::{Id, Refusal};

/// Addresses of strangers that get a line each.
const NAMED: usize = 32;
/// torch's client tries again after pauses that grow to a minute.
const TORCH_PAUSE: Duration = Duration::from_secs(90);

/// Somebody who was not let in.
#[derive(Debug)]
struct Named {
    line: Text,
    /// What may help, where he is a node of this job after all.
    hint: Text,
}

/// How long a client of torch's store has tried again and again.
#[derive(Debug)]
struct Knocks {
    from: SocketAddr,
    first: Instant,
    last: Instant,
}

#[derive(Debug)]
pub(super) struct Strangers {
    without: Without,
    sealed: bool,
    proof: Duration,
    port: u16,
    named: BTreeMap<IpAddr, Named>,
    plain: BTreeMap<IpAddr, Knocks>,
    /// Connections that were no node's, and where the last one came from.
    turned_away: Option<(u64, SocketAddr)>,
}

impl Strangers {
    pub(super) fn new(config: &Config) -> Strangers {
        Strangers {
            without: config.without,
            sealed: config.secret.is_some(),
            proof: config.proof(),
            port: config.port,
            named: BTreeMap::new(),
            plain: BTreeMap::new(),
            turned_away: None,
        }
    }

    /// Those who were named, in few words. None: nobody was.
    pub(super) fn words(&self) -> Option<Text> {
        instead(&mut self.named.values().map(|named| &named.line))
    }

    pub(super) fn hint(&self) -> Option<&Text> {
        self.named.values().next().map(|named| &named.hint)
    }

    pub(super) fn hear(
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
                    "{from} runs a ranklaunch whose version does not fit this one: rejected",
                    "{from} 运行的 ranklaunch 版本与本节点不兼容：拒绝其加入"
                ),
                text!("use one image on all nodes", "请在所有节点使用同一镜像"),
            ),
            Stranger::Mode { theirs: true } => (
                text!(
                    "{from} has a secret (RANKLAUNCH_SECRET), and this node has none: rejected",
                    "{from} 设置了密钥（RANKLAUNCH_SECRET），而本节点没有：拒绝其加入"
                ),
                secret(),
            ),
            Stranger::Mode { theirs: false } => (
                text!(
                    "{from} has no secret (RANKLAUNCH_SECRET), and this node has one: rejected",
                    "{from} 未设置密钥（RANKLAUNCH_SECRET），而本节点已设置：拒绝其加入"
                ),
                secret(),
            ),
            Stranger::Secret => (
                text!("{from} has another secret: rejected", "{from} 的密钥不一致：拒绝其加入"),
                secret(),
            ),
            // Counted only: ten thousand lines would help nobody.
            Stranger::Asking | Stranger::Silent | Stranger::Unknown(_) => return Ok(Turn::Wait),
        };
        self.name(from, line, hint, say);
        Ok(Turn::Wait)
    }

    /// Says a line of the first thing that somebody at an address did.
    pub(super) fn name(
        &mut self,
        from: SocketAddr,
        line: Text,
        hint: Text,
        say: &mut (dyn FnMut(Text) + Send),
    ) {
        let known = self.named.contains_key(&from.ip());
        if !known && self.named.len() < NAMED {
            say(line.clone());
            self.named.insert(from.ip(), Named { line, hint });
        }
    }

    /// A client of torch's store: a node that somebody starts by hand, a rank of an
    /// attempt that is being ended, or a node of another job.
    fn plain(
        &mut self,
        from: SocketAddr,
        say: &mut (dyn FnMut(Text) + Send),
    ) -> Result<Turn, Refusal> {
        let proof = self.proof;
        // With a secret an unproven word must not end the muster.
        let line = match self.without {
            _ if self.sealed => text!(
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
        self.name(from, line, plain_hint(), say);
        if self.sealed {
            return Ok(Turn::Wait);
        }
        let now = Instant::now();
        let knocks = self.plain.entry(from.ip()).or_insert(Knocks { from, first: now, last: now });
        if now.duration_since(knocks.last) > TORCH_PAUSE {
            knocks.first = now;
        }
        knocks.last = now;
        self.end_knocks()
    }

    /// Whoever came again and again for as long as it takes is a node of this job. The
    /// pauses of torch's client grow, so the last half of that time may be one of them.
    pub(super) fn end_knocks(&self) -> Result<Turn, Refusal> {
        let proof = self.proof;
        let proven = self.plain.values().find(|knocks| {
            let lasted = knocks.last.duration_since(knocks.first);
            lasted >= proof / 2
                && knocks.first.elapsed() >= proof
                && knocks.last.elapsed() <= TORCH_PAUSE
        });
        let Some(Knocks { from, .. }) = proven else {
            return Ok(Turn::Wait);
        };
        match self.without {
            Without::Follow => Ok(Turn::Alone(text!(
                "{from} runs torchrun without ranklaunch, so all nodes go on without a muster",
                "{from} 直接运行 torchrun 而未使用 ranklaunch，因此所有节点跳过集结继续运行"
            ))),
            Without::Refuse => Err(Refusal::new(
                Id::MusterPlainTorchrun,
                text!(
                    "{from} runs torchrun without ranklaunch",
                    "{from} 直接运行 torchrun 而未使用 ranklaunch"
                ),
                plain_hint(),
            )),
            Without::Wait => Ok(Turn::Wait),
        }
    }

    /// Who else was at the port: a health check, a port scan, or worse.
    pub(super) fn say(&self, say: &mut (dyn FnMut(Text) + Send)) {
        let Some((count, last)) = self.turned_away else { return };
        let (port, ip) = (self.port, last.ip());
        say(text!(
            "connections to port {port} that were no node of this job and were closed: {count}, the last from {ip}",
            "端口 {port} 上有 {count} 个连接不属于本任务的节点，已关闭；最后一个来自 {ip}"
        ));
    }
}

fn plain_hint() -> Text {
    text!(
        "start that node with ranklaunch as well, or all nodes with --muster off",
        "请在该节点同样使用 ranklaunch 启动，或在所有节点使用 --muster off"
    )
}
