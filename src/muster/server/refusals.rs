//! The refusals of node 0, for a node, for the whole job, or because it cannot listen; and the connections that it
//! rejected: the lines about them, and the rule when a torchrun without ranklaunch counts as a node of the job.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::time::Instant;

use crate::foreign::ForeignAction;
use crate::protocol::handshake::Rejection;
use crate::protocol::{Hello, MemberKind, NodeSummary, Purpose};
use crate::session::{Config, Without};
use linux::pace::{clock, spell};
use text::lang::{Text, between, cause, spaced};
use text::ranges::{ranges, spelled};
use text::text;
use verdict::{Id, Refusal, Verdict};

/// The refusal of one node, in the form that all nodes receive. A taken port of node 0, and a notice on any node, gives
/// all nodes the exit code of that node.
pub(crate) fn declined(unit: MemberKind, node: u32, host: &str, refusal: &Refusal) -> Refusal {
    let Text { en, zh } = &refusal.text;
    let Text { en: who, zh: who_zh } = unit.named(node);
    let text = text!("{who} ({host}) cannot take part: {en}", "{who_zh}（{host}）无法参与：{zh}");
    let hint = refusal.hint.clone();
    if refusal.id == Id::StoppedNotice {
        return Refusal::of_ending(refusal.id, text, hint);
    }
    let (verdict, id) = match refusal.verdict {
        Verdict::PortInUse if node == 0 => (Verdict::PortInUse, refusal.id),
        _ => (Verdict::Muster, Id::MusterDeclined),
    };
    Refusal::with(verdict, id, text, hint)
}

/// A list such as `2, 5–9, 11`, with at most a handful of ranges.
fn listed(nodes: &[u32]) -> String {
    const SHOWN: usize = 8;
    let found = ranges(nodes.iter().copied());
    let mut words: Vec<String> =
        found.iter().take(SHOWN).map(|range| spelled(*range, '–')).collect();
    if found.len() > SHOWN {
        words.push("…".to_owned());
    }
    words.join(", ")
}

pub(crate) fn duplicate(
    unit: MemberKind,
    (first, first_from): (&str, SocketAddr),
    later: &Hello,
    from: SocketAddr,
) -> Refusal {
    let (Text { en: who, zh: who_zh }, all) = (unit.named(later.node), unit.plural());
    let (all, all_zh, who_zh) = (all.en, between(&all.zh), spaced(&who_zh));
    let second = &later.hostname;
    Refusal::new(
        Id::MusterDuplicate,
        text!(
            "two {all} claim to be {who}: {first} ({first_from}) and {second} ({from})",
            "有两个{all_zh}自称为{who_zh}：{first}（{first_from}）和 {second}（{from}）"
        ),
        text!(
            "give each node its own RANK or --node-rank",
            "请为每个节点设置不同的 RANK 或 --node-rank"
        ),
    )
}

/// The refusal for a node of another job.
fn wrong_job(config: &Config, hello: &Hello) -> Refusal {
    let (ours, theirs) = (config.key(), &hello.key);
    if (&ours.job, ours.port) == (&theirs.job, theirs.port) {
        return wrong_count(config, hello);
    }
    let (ours, theirs) = (ours.text(), theirs.text());
    let (our_en, our_zh, en, zh) = (ours.en, ours.zh, theirs.en, theirs.zh);
    Refusal::new(
        Id::MusterOtherJob,
        text!(
            "node 0 there leads another job: {our_en}; this node belongs to {en}",
            "那里的节点 0 属于另一个任务：{our_zh}，而本节点属于{zh}"
        ),
        text!(
            "end the earlier job, or give the jobs different master ports",
            "请结束之前的任务，或为各任务指定不同的 Master 端口"
        ),
    )
}

/// The refusal for a node with another node count.
fn wrong_count(config: &Config, hello: &Hello) -> Refusal {
    let Hello { node, key, hostname, .. } = hello;
    let (ours, theirs) = (config.nnodes, key.nnodes);
    let (Text { en: who, zh: who_zh }, all) = (config.unit.named(*node), config.unit.plural());
    let Text { en: first, zh: first_zh } = config.unit.named(0);
    let (all, all_zh, first_zh) = (all.en, spaced(&all.zh), spaced(&first_zh));
    Refusal::new(
        Id::MusterNnodes,
        text!(
            "{who} ({hostname}) counts {theirs} {all}, but {first} counts {ours}",
            "{who_zh}（{hostname}）认为共有 {theirs} 个{all_zh}，而{first_zh} 认为有 {ours} 个"
        ),
        text!(
            "give all nodes of a job the same WORLD_SIZE or --nnodes and --spares, and each job its own master port",
            "请为同一任务的所有节点指定相同的 WORLD_SIZE 或 --nnodes 以及 --spares，并为每个任务使用各自的 Master 端口"
        ),
    )
}

/// In what a node does not fit the job of this leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Misfit {
    Job,
    Purpose,
    Rank,
    Count,
}

/// The first thing in which a node does not fit, by its greeting, and its refusal.
pub(crate) fn misfit(
    config: &Config,
    hello: &Hello,
    from: SocketAddr,
) -> Option<(Misfit, Refusal)> {
    let Hello { node, key, purpose, .. } = hello;
    if config.key().is_of_other_job(key) {
        Some((Misfit::Job, wrong_job(config, hello)))
    } else if *purpose != config.purpose {
        Some((Misfit::Purpose, wrong_purpose(config.purpose)))
    } else if *node == config.leader || *node >= key.nnodes.saturating_add(config.seating.spares) {
        Some((Misfit::Rank, wrong_rank(config, hello, from)))
    } else if key.nnodes != config.nnodes {
        Some((Misfit::Count, wrong_count(config, hello)))
    } else {
        None
    }
}

/// The refusal for a node that comes while a job without an id runs, with another program.
pub(crate) fn other_program(config: &Config, own: &NodeSummary, other: &NodeSummary) -> Refusal {
    let Text { en: who, zh: who_zh } = config.unit.named(other.node);
    let none = || "-".to_owned();
    let (ours, theirs) = (&own.command, &other.command);
    let (ours, theirs) = (ours.clone().unwrap_or_else(none), theirs.clone().unwrap_or_else(none));
    let host = &other.hostname;
    Refusal::new(
        Id::MusterOtherJob,
        text!(
            "the job of these nodes runs {ours}, but {who} ({host}) came with {theirs}",
            "这些节点的任务正在运行 {ours}，而后到的{who_zh}（{host}）要运行 {theirs}"
        ),
        text!(
            "end the earlier job, or give the jobs different master ports",
            "请结束之前的任务，或为各任务指定不同的 Master 端口"
        ),
    )
}

/// The refusal for a node rank beyond the node count.
fn wrong_rank(config: &Config, hello: &Hello, from: SocketAddr) -> Refusal {
    let (nnodes, host) = (config.nnodes, &hello.hostname);
    let Text { en: who, zh: who_zh } = config.unit.named(hello.node);
    let who_zh = spaced(&who_zh);
    Refusal::new(
        Id::MusterRank,
        text!(
            "{host} ({from}) says that it is {who} of {nnodes}",
            "{host}（{from}）自称为共 {nnodes} 个中的{who_zh}"
        ),
        text!("number the nodes from 0", "节点应从 0 开始编号"),
    )
}

/// The refusal for another purpose. Its id makes the node try again, since the launch may follow
/// a check.
fn wrong_purpose(ours: Purpose) -> Refusal {
    let word = if ours == Purpose::Run { "run" } else { "check" };
    Refusal::with(
        Verdict::Muster,
        Id::MusterJob,
        text!(
            "node 0 runs `ranklaunch {word}`, but this node does not",
            "节点 0 正在执行 `ranklaunch {word}`，而本节点不是"
        ),
        text!("start the same subcommand on all nodes", "请在所有节点执行相同的子命令"),
    )
}

pub(crate) fn cannot_listen(port: u16, error: &io::Error) -> Refusal {
    let Text { en, zh } = cause(error);
    Refusal::new(
        Id::PortFree,
        text!(
            "node 0 cannot listen on port {port} for the other nodes: {en}",
            "节点 0 无法在端口 {port} 上监听其他节点：{zh}"
        ),
        text!(
            "end what holds the port, or choose another with --master-port, the same on every node",
            "请结束占用该端口的进程，或在所有节点上用 --master-port 指定同一个其他端口"
        ),
    )
}

/// The refusal if node 0 may not open a file for the connection of every node. `limit`: None means unlimited.
pub(crate) fn too_few_files(nnodes: u32, limit: Option<u64>) -> Option<Refusal> {
    /// Logs, pipes of ranks, and unidentified connections, which evict each other.
    const OTHERS: u64 = 128;
    let needed = u64::from(nnodes) + OTHERS;
    let limit = limit.filter(|limit| *limit < needed)?;
    Some(Refusal::new(
        Id::MusterNofile,
        text!(
            "node 0 may open {limit} files (hard limit), but a muster of {nnodes} nodes needs {needed}",
            "节点 0 最多可打开 {limit} 个文件（硬限制），而 {nnodes} 个节点的集结需要 {needed} 个"
        ),
        text!(
            "docker run --ulimit nofile=1048576, or LimitNOFILE of containerd; --muster off on all nodes starts each by itself",
            "docker run --ulimit nofile=1048576，或 containerd 的 LimitNOFILE；在所有节点使用 --muster off 可让各节点自行启动"
        ),
    ))
}

/// The nodes that have not arrived, and the facts known about them.
#[derive(Debug)]
pub struct Absence<'a> {
    pub config: &'a Config,
    pub absent: Vec<u32>,
    /// The last address and time at which one of the missing nodes was heard.
    pub seen: Option<(SocketAddr, Instant)>,
    pub rejected: &'a Rejected,
    /// The job has run before.
    pub has_run: bool,
}

impl Absence<'_> {
    /// Names such as `node 2` or `nodes 2–3`; `node 2: host2` if the hosts are listed.
    fn named(&self) -> Text {
        const SHOWN: usize = 8;
        let numbers = listed(&self.absent);
        let name = |node: &u32| self.config.hosts.get(usize::try_from(*node).ok()?);
        let names: Vec<&str> = self.absent.iter().filter_map(name).map(String::as_str).collect();
        let named = match names.get(..SHOWN) {
            _ if names.is_empty() => numbers,
            Some(first) if names.len() > SHOWN => format!("{numbers}: {}, …", first.join(", ")),
            _ => format!("{numbers}: {}", names.join(", ")),
        };
        let (one, all) = (self.config.unit.named(&named), self.config.unit.plural().en);
        let zh = &one.zh;
        if self.absent.len() == 1 { one } else { text!("{all} {named}", "{zh}") }
    }

    fn arrived(&self) -> u32 {
        let absent = u32::try_from(self.absent.len()).unwrap_or(u32::MAX);
        self.config.all().saturating_sub(absent)
    }

    pub fn progress(&self, waited: Duration) -> Text {
        let (arrived, nnodes, port) = (self.arrived(), self.config.nnodes, self.config.port);
        let (Text { en: absent, zh: absent_zh }, all) = (self.named(), self.config.unit.plural());
        let (all, all_zh, absent_zh) = (all.en, all.zh, spaced(&absent_zh));
        let (waited, timeout) = (clock(waited), clock(self.config.wait_timeout));
        if arrived >= nnodes {
            return text!(
                "{arrived} {all} have arrived, which is enough for {nnodes} seats; waiting a moment on port {port} for {absent}",
                "已有 {arrived} 个{all_zh}到达，足以占满 {nnodes} 个席位；在端口 {port} 上稍候{absent_zh}"
            );
        }
        text!(
            "{arrived} of {nnodes} {all} have arrived; waiting on port {port} for {absent} ({waited} of {timeout})",
            "已有 {arrived}/{nnodes} 个{all_zh}到达；正在端口 {port} 上等待{absent_zh}（{waited}/{timeout}）"
        )
    }

    /// The refusal at the deadline.
    pub fn refusal(&self) -> Refusal {
        let (arrived, nnodes) = (self.arrived(), self.config.nnodes);
        let waited = spell(self.config.wait_timeout);
        let (Text { en: list, zh: list_zh }, all) = (self.named(), self.config.unit.plural());
        let (all, all_zh, list_zh) = (all.en, all.zh, spaced(&list_zh));
        let Text { en, zh } = match (self.seen, self.rejected.text()) {
            (Some((from, at)), _) => {
                let ago = at.elapsed().as_secs();
                text!("last seen from {from} {ago} s ago", "{ago} 秒前曾从 {from} 连接")
            }
            (None, Some(rejected)) => rejected,
            (None, None) if self.has_run => text!("did not come back", "未再连接"),
            (None, None) => text!("never connected", "从未连接"),
        };
        let known = self.rejected.hint().filter(|_| self.seen.is_none());
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
            text!(
                "{arrived} of {nnodes} {all} arrived in {waited}; missing {list} ({en})",
                "{waited} 内只有 {arrived}/{nnodes} 个{all_zh}到达；缺少{list_zh}（{zh}）"
            ),
            hint,
        )
    }
}

/// Receives lines for people.
pub(crate) type Say<'a> = &'a mut (dyn FnMut(Text) + Send);

/// Maximum number of addresses that get a line each.
const NAMED: usize = 32;
/// Number of these addresses that a refusal names.
const SHOWN: usize = 3;
/// Maximum time between attempts of torch's client, whose pauses grow to a minute.
const TORCH_PAUSE: Duration = Duration::from_secs(90);

/// Repeated attempts of a client of torch's store, with the times of the first and the last.
#[derive(Debug)]
struct Attempts {
    from: SocketAddr,
    first: Instant,
    last: Instant,
}

#[derive(Debug)]
pub struct Rejected {
    config: Config,
    /// The line for the first rejection of an address, and the hint for the case that it is a node of this job.
    named: BTreeMap<IpAddr, (Text, Text)>,
    plain: BTreeMap<IpAddr, Attempts>,
    /// Number of rejected connections, and the address of the last.
    count: Option<(u64, SocketAddr)>,
}

impl Rejected {
    pub fn new(config: &Config) -> Rejected {
        Rejected {
            config: config.clone(),
            named: BTreeMap::new(),
            plain: BTreeMap::new(),
            count: None,
        }
    }

    /// The first addresses that were named; None if no address was named.
    pub fn text(&self) -> Option<Text> {
        let lines: Vec<&Text> = self.named.values().map(|(line, _)| line).take(SHOWN).collect();
        let joined = |words: fn(&Text) -> &str, sign: &str| {
            lines.iter().map(|line| words(line)).collect::<Vec<_>>().join(sign)
        };
        (!lines.is_empty())
            .then(|| Text::new(joined(|line| &line.en, "; "), joined(|line| &line.zh, "；")))
    }

    pub fn hint(&self) -> Option<&Text> {
        self.named.values().next().map(|(_, hint)| hint)
    }

    pub fn hear(&mut self, from: SocketAddr, why: &Rejection, say: Say<'_>) -> ForeignAction {
        if *why == Rejection::Asking {
            return ForeignAction::Wait;
        }
        let count = self.count.map_or(0, |(count, _)| count);
        self.count = Some((count.saturating_add(1), from));
        let line = match why {
            Rejection::PlainTorchrun => return self.plain(from, say),
            Rejection::Version => text!(
                "{from} runs a ranklaunch whose version does not fit this one: rejected",
                "{from} 运行的 ranklaunch 版本与本节点不兼容：拒绝其加入"
            ),
            Rejection::Mode { theirs: true } => text!(
                "{from} has a secret (RANKLAUNCH_SECRET), but this node has none: rejected",
                "{from} 设置了密钥（RANKLAUNCH_SECRET），而本节点没有：拒绝其加入"
            ),
            Rejection::Mode { theirs: false } => text!(
                "{from} has no secret (RANKLAUNCH_SECRET), but this node has one: rejected",
                "{from} 未设置密钥（RANKLAUNCH_SECRET），而本节点已设置：拒绝其加入"
            ),
            Rejection::Secret => {
                text!("{from} has another secret: rejected", "{from} 的密钥不一致：拒绝其加入")
            }
            // These are only counted, to avoid thousands of lines.
            Rejection::Asking | Rejection::Silent | Rejection::Unknown(_) => {
                return ForeignAction::Wait;
            }
        };
        self.name(from, line, why.remedy(), say);
        ForeignAction::Wait
    }

    /// Prints a line for the first rejection of an address.
    pub fn name(&mut self, from: SocketAddr, line: Text, hint: Text, say: Say<'_>) {
        let known = self.named.contains_key(&from.ip());
        if !known && self.named.len() < NAMED {
            say(line.clone());
            self.named.insert(from.ip(), (line, hint));
        }
    }

    /// Handles a client of torch's store: a node that was started by hand, a rank of an attempt
    /// that is being ended, or a node of another job.
    fn plain(&mut self, from: SocketAddr, say: Say<'_>) -> ForeignAction {
        let has_secret = self.config.secret.is_some();
        // With a secret, an unproven connection must not end the muster.
        let line = match self.config.without {
            _ if has_secret => text!(
                "{from} speaks like torchrun without ranklaunch but cannot prove that it is a node: ignored",
                "{from} 疑似直接运行的 torchrun，且无法证明身份：忽略"
            ),
            Without::Wait => text!(
                "{from} runs torchrun without ranklaunch: no node of this job, ignored",
                "{from} 直接运行 torchrun 而未使用 ranklaunch：不属于本任务，忽略"
            ),
            Without::Follow | Without::Refuse => {
                let seconds = self.config.proof().as_secs();
                text!(
                    "{from} runs torchrun without ranklaunch; if it still does after {seconds} s, it is taken for a node of this job",
                    "{from} 直接运行 torchrun 而未使用 ranklaunch；若 {seconds} 秒后仍是如此，则视为本任务的节点"
                )
            }
        };
        self.name(from, line, plain_hint(), say);
        if has_secret {
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
        let proof = self.config.proof();
        let proven = self.plain.values().find(|attempts| {
            let lasted = attempts.last.duration_since(attempts.first);
            lasted >= proof / 2
                && attempts.first.elapsed() >= proof
                && attempts.last.elapsed() <= TORCH_PAUSE
        });
        let Some(Attempts { from, .. }) = proven else {
            return ForeignAction::Wait;
        };
        match self.config.without {
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
        let (port, ip) = (self.config.port, last.ip());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_0_refuses_with_too_few_descriptors() {
        assert_eq!(too_few_files(10_000, Some(20_000)), None);
        assert_eq!(too_few_files(10_000, None), None);
        let refusal = too_few_files(1_000, Some(1_024)).expect("too few");
        assert!(refusal.text.en.contains("1024 files (hard limit)"), "{}", refusal.text.en);
        assert!(refusal.text.en.contains("1000 nodes needs 1128"), "{}", refusal.text.en);
    }

    #[test]
    fn missing_nodes_are_shown_as_ranges() {
        assert_eq!(listed(&[2]), "2");
        assert_eq!(listed(&[1, 2, 3, 7, 9, 10]), "1–3, 7, 9–10");
        let odd: Vec<u32> = (0..100).map(|n| 2 * n + 1).collect();
        assert!(listed(&odd).ends_with("15, …"), "{}", listed(&odd));
    }
}
