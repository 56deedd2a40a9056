//! Connections that node 0 rejected: the lines about them, and the rule when a torchrun without ranklaunch counts as a
//! node of the job.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::time::Instant;

use crate::config::{Config, Without};
use crate::foreign::ForeignAction;
use crate::protocol::handshake::Rejection;
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal};

/// Receives lines for people.
pub(crate) type Say<'a> = &'a mut (dyn FnMut(Text) + Send);

/// Maximum number of addresses that get a line each.
const NAMED: usize = 32;
/// Number of these addresses that a refusal names.
const SHOWN: usize = 3;
/// Maximum time between attempts of torch's client, whose pauses grow to a minute.
const TORCH_PAUSE: Duration = Duration::from_secs(90);

/// The first rejection of an address.
#[derive(Debug)]
struct Named {
    line: Text,
    /// The hint for the case that the address is a node of this job.
    hint: Text,
}

/// Repeated attempts of a client of torch's store, with the times of the first and the last.
#[derive(Debug)]
struct Attempts {
    from: SocketAddr,
    first: Instant,
    last: Instant,
}

#[derive(Debug)]
pub struct Rejected {
    without: Without,
    has_secret: bool,
    proof: Duration,
    port: u16,
    named: BTreeMap<IpAddr, Named>,
    plain: BTreeMap<IpAddr, Attempts>,
    /// Number of rejected connections, and the address of the last.
    count: Option<(u64, SocketAddr)>,
}

impl Rejected {
    pub fn new(config: &Config) -> Rejected {
        Rejected {
            without: config.without,
            has_secret: config.secret.is_some(),
            proof: config.proof(),
            port: config.port,
            named: BTreeMap::new(),
            plain: BTreeMap::new(),
            count: None,
        }
    }

    /// The first addresses that were named; None if no address was named.
    pub fn text(&self) -> Option<Text> {
        let lines: Vec<&Text> = self.named.values().map(|named| &named.line).take(SHOWN).collect();
        let joined = |words: fn(&Text) -> &str, sign: &str| {
            lines.iter().map(|line| words(line)).collect::<Vec<_>>().join(sign)
        };
        (!lines.is_empty())
            .then(|| Text::new(joined(|line| &line.en, "; "), joined(|line| &line.zh, "；")))
    }

    pub fn hint(&self) -> Option<&Text> {
        self.named.values().next().map(|named| &named.hint)
    }

    pub fn hear(&mut self, from: SocketAddr, why: &Rejection, say: Say<'_>) -> ForeignAction {
        if *why == Rejection::Asking {
            return ForeignAction::Wait;
        }
        let count = self.count.map_or(0, |(count, _)| count);
        self.count = Some((count.saturating_add(1), from));
        let secret = || {
            text!(
                "give all nodes the same RANKLAUNCH_SECRET or RANKLAUNCH_SECRET_FILE",
                "请为所有节点设置相同的 RANKLAUNCH_SECRET 或 RANKLAUNCH_SECRET_FILE"
            )
        };
        let (line, hint) = match why {
            Rejection::PlainTorchrun => return self.plain(from, say),
            Rejection::Version => (
                text!(
                    "{from} runs a ranklaunch whose version does not fit this one: rejected",
                    "{from} 运行的 ranklaunch 版本与本节点不兼容：拒绝其加入"
                ),
                text!("use one image on all nodes", "请在所有节点使用同一镜像"),
            ),
            Rejection::Mode { theirs: true } => (
                text!(
                    "{from} has a secret (RANKLAUNCH_SECRET), but this node has none: rejected",
                    "{from} 设置了密钥（RANKLAUNCH_SECRET），而本节点没有：拒绝其加入"
                ),
                secret(),
            ),
            Rejection::Mode { theirs: false } => (
                text!(
                    "{from} has no secret (RANKLAUNCH_SECRET), but this node has one: rejected",
                    "{from} 未设置密钥（RANKLAUNCH_SECRET），而本节点已设置：拒绝其加入"
                ),
                secret(),
            ),
            Rejection::Secret => (
                text!("{from} has another secret: rejected", "{from} 的密钥不一致：拒绝其加入"),
                secret(),
            ),
            // These are only counted, to avoid thousands of lines.
            Rejection::Asking | Rejection::Silent | Rejection::Unknown(_) => {
                return ForeignAction::Wait;
            }
        };
        self.name(from, line, hint, say);
        ForeignAction::Wait
    }

    /// Prints a line for the first rejection of an address.
    pub fn name(&mut self, from: SocketAddr, line: Text, hint: Text, say: Say<'_>) {
        let known = self.named.contains_key(&from.ip());
        if !known && self.named.len() < NAMED {
            say(line.clone());
            self.named.insert(from.ip(), Named { line, hint });
        }
    }

    /// Handles a client of torch's store: a node that was started by hand, a rank of an attempt
    /// that is being ended, or a node of another job.
    fn plain(&mut self, from: SocketAddr, say: Say<'_>) -> ForeignAction {
        let proof = self.proof;
        // With a secret, an unproven connection must not end the muster.
        let line = match self.without {
            _ if self.has_secret => text!(
                "{from} speaks like torchrun without ranklaunch but cannot prove that it is a node: ignored",
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
        if self.has_secret {
            return ForeignAction::Wait;
        }
        let now = Instant::now();
        let attempts =
            self.plain.entry(from.ip()).or_insert(Attempts { from, first: now, last: now });
        if now.duration_since(attempts.last) > TORCH_PAUSE {
            attempts.first = now;
        }
        attempts.last = now;
        self.verdict()
    }

    /// The action that follows from the attempts. An address that has tried for the whole proof time is a node of this
    /// job. The pauses of torch's client grow, so the last half of that time may be one of them.
    pub fn verdict(&self) -> ForeignAction {
        let proof = self.proof;
        let proven = self.plain.values().find(|attempts| {
            let lasted = attempts.last.duration_since(attempts.first);
            lasted >= proof / 2
                && attempts.first.elapsed() >= proof
                && attempts.last.elapsed() <= TORCH_PAUSE
        });
        let Some(Attempts { from, .. }) = proven else {
            return ForeignAction::Wait;
        };
        match self.without {
            Without::Follow => ForeignAction::Alone(text!(
                "{from} runs torchrun without ranklaunch, so all nodes go on without a muster",
                "{from} 直接运行 torchrun 而未使用 ranklaunch，因此所有节点跳过集结继续运行"
            )),
            Without::Refuse => ForeignAction::Refuse(Refusal::new(
                Id::MusterPlainTorchrun,
                text!(
                    "{from} runs torchrun without ranklaunch",
                    "{from} 直接运行 torchrun 而未使用 ranklaunch"
                ),
                plain_hint(),
            )),
            Without::Wait => ForeignAction::Wait,
        }
    }

    /// Prints the rejected connections: health checks, port scans and others.
    pub fn say(&self, say: Say<'_>) {
        let Some((count, last)) = self.count else { return };
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
