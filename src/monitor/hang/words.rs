//! The kinds of hangs, the sentence about a culprit, and signs beside records and stacks, one sentence each: signs
//! that NCCL reports, and signs on the nodes of the culprits.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::doing::Doing;
use super::{NodeEvidence, RankEvidence};
use crate::watch::{Behind, RasVerdict, ReasonKind};
use diagnose::Frame;
use diagnose::recorder::{Collective, Culprit as Suspect, Entered};
use text::lang::{Text, between, leading};
use text::ranges::listed;
use text::rank::GlobalRank;
use text::text;

/// The facts that the sentence is made of.
pub(super) struct Facts<'a> {
    pub(super) kind: Kind,
    /// All ranks that wait, wait for messages.
    pub(super) of_messages: bool,
    pub(super) suspect: &'a Suspect,
    pub(super) node: Option<u32>,
    pub(super) doing: &'a Doing,
    pub(super) frame: Option<&'a Frame>,
    pub(super) evidence: Option<&'a RankEvidence>,
    /// Others wait for it.
    pub(super) is_awaited: bool,
}

/// `rank 2 (node 0) never entered all_reduce 4 of group default_pg: load_batch at train.py:41, in read
/// of pipe:[71]`
pub(super) fn sentence(facts: &Facts<'_>) -> Text {
    let Text { en: what, zh: what_zh } = deed(facts);
    let Text { en: at, zh: at_zh } = at(facts);
    let Text { en: does, zh: does_zh } = does(facts);
    Text::new(format!("{what}{at}{does}"), format!("{what_zh}{at_zh}{does_zh}"))
}

fn deed(facts: &Facts<'_>) -> Text {
    let who = who(facts);
    let (en, zh) = (&who.en, leading(&who.zh));
    let Text { en: of, zh: of_zh } = collective(facts.suspect.collective.as_ref());
    let in_zh = between(&of_zh);
    let Text { en: missed, zh: missed_zh } = missed(facts);
    match (facts.kind, &facts.suspect.entered) {
        (Kind::Ended, _) => {
            text!("{en} has ended with code 0 and {missed}", "{zh}已以退出码 0 结束，{missed_zh}")
        }
        (Kind::Slow, _) => {
            let Text { en: works, zh: works_zh } = work(facts);
            text!("{en} {works}", "{zh}{works_zh}")
        }
        (Kind::Stopped, _) => text!(
            "{en} is stopped by a signal (SIGSTOP or SIGTSTP)",
            "{zh}已被信号暂停（SIGSTOP 或 SIGTSTP）"
        ),
        (Kind::BlockedIo, _) => {
            text!("{en} is blocked in the kernel", "{zh}阻塞在内核中")
        }
        (Kind::WorkerDied, _) => text!(
            "{en} waits for a process of its own that has ended",
            "{zh}在等待一个已经结束的子进程"
        ),
        (_, Some(Entered::Odd { own, expected })) => text!(
            "{en} entered {own} where the others entered {expected}, in {of}",
            "{zh}进入了 {own}，而其他 rank 进入了 {expected}，位于{of_zh}"
        ),
        (_, Some(Entered::Sides(sides))) => {
            let Text { en, zh } = Entered::sides(sides);
            let (seq, group) = facts
                .suspect
                .collective
                .as_ref()
                .map_or((0, ""), |one| (one.seq, one.group.as_str()));
            text!(
                "{en}, as number {seq} of group {group}",
                "{zh}，均为组 {group} 的第 {seq} 个集合通信"
            )
        }
        (Kind::OtherCollective, None) => {
            text!("the ranks called different things in {of}", "各 rank 在{in_zh}中的调用不一致")
        }
        (Kind::OtherShape, None) if facts.suspect.rank.is_some() => text!(
            "{en} has left {of}, in which others still wait: it called that with another size, or something else",
            "{zh}已离开{of_zh}，而其他 rank 仍在其中等待：它传入的大小不同，或调用了别的操作"
        ),
        (Kind::OtherShape, None) => {
            text!("the ranks do not agree about sizes in {of}", "各 rank 在{in_zh}中的大小不一致")
        }
        (Kind::Link, _) if facts.suspect.rank.is_some() => {
            let zh = &who.zh;
            text!(
                "all ranks have entered {of} alike, and NCCL does not reach {en}",
                "所有 rank 都已一致地进入{of_zh}，但 NCCL 无法联系到 {zh}"
            )
        }
        (Kind::Link, _) if facts.of_messages => text!(
            "all ranks wait for messages, and a connection does not carry what was sent",
            "所有 rank 都在等待点对点消息，而有连接未能送达已发送的数据"
        ),
        (Kind::Link, _) => text!(
            "all ranks have entered {of} alike, and none leaves it",
            "所有 rank 都已一致地进入{of_zh}，但没有一个完成"
        ),
        (Kind::Deadlock, _) if matches!(facts.doing, Doing::Lock | Doing::Gil) => {
            text!("{en} waits for a lock that nobody releases", "{zh}在等待一个无人释放的锁")
        }
        (Kind::Deadlock, _) if facts.doing.is_message() => text!(
            "{en} waits for the other end of a message that no rank sends or receives (rank, tag and group must match)",
            "{zh}在等待点对点消息的另一端，但没有 rank 发送或接收它（rank、tag 与组须一致）"
        ),
        (Kind::Deadlock, _) => text!(
            "{en} waits in {of} for a rank that waits for it in another group",
            "{zh}在{in_zh}中等待，而它所等的 rank 又在另一组中等待它"
        ),
        (Kind::NeverEntered | Kind::Unknown, _) if !facts.is_awaited => {
            text!("{en} stands still", "{zh}没有进展")
        }
        (Kind::NeverEntered, _) => text!("{en} {missed}", "{zh}{missed_zh}"),
        (Kind::Unknown, _) => text!(
            "{en} {missed}, and where it is cannot be seen",
            "{zh}{missed_zh}，且无法得知它停在何处"
        ),
    }
}

/// The part of a rank in what the others wait for.
fn missed(facts: &Facts<'_>) -> Text {
    if facts.of_messages && facts.suspect.collective.is_none() {
        return text!(
            "never took part in what the others wait for",
            "从未参与其他 rank 所等待的通信"
        );
    }
    let Text { en: of, zh: of_zh } = collective(facts.suspect.collective.as_ref());
    text!("never entered {of}", "从未进入{of_zh}")
}

/// `ranks 0-1 wait for the other end of a message that no rank sends or receives (…): exchange at train.py:9 (rank
/// 0), exchange at train.py:12 (rank 1)`
/// `operations`: not all are known to be messages.
pub(super) fn messages(waiting: &[(u32, Option<&Frame>)], operations: bool) -> Text {
    /// Maximum number of lines.
    const MOST: usize = 4;
    let mut places: Vec<(&Frame, Vec<u32>)> = Vec::new();
    for (rank, frame) in waiting.iter().filter_map(|(rank, frame)| Some((*rank, (*frame)?))) {
        match places.iter_mut().find(|(known, _)| *known == frame) {
            Some((_, ranks)) => ranks.push(rank),
            None => places.push((frame, vec![rank])),
        }
    }
    let (mut en, mut zh) = (Vec::new(), Vec::new());
    for (frame, ranks) in places.iter().take(MOST) {
        let Text { en: at, zh: at_zh } = place(frame);
        let list = listed(ranks.iter().copied(), '-');
        let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
        en.push(format!("{at} ({noun} {list})"));
        zh.push(format!("{at_zh}（rank {list}）"));
    }
    let more = places.len().saturating_sub(MOST);
    if more > 0 {
        en.push(format!("{more} more lines"));
        zh.push(format!("另有 {more} 行"));
    }
    let all = listed(waiting.iter().map(|(rank, _)| *rank), '-');
    let (en, zh) = (en.join(", "), zh.join("，"));
    let Text { en: of, zh: of_zh } = if operations {
        text!(
            "a message or asynchronous collective in which no rank takes part",
            "点对点消息或异步集合通信的另一端，但没有 rank 参与其中"
        )
    } else {
        text!(
            "a message that no rank sends or receives",
            "点对点消息的另一端，但没有 rank 发送或接收它"
        )
    };
    let (colon, colon_zh) = if en.is_empty() { ("", "") } else { (": ", "：") };
    text!(
        "ranks {all} wait for the other end of {of} (rank, tag and group must match){colon}{en}",
        "rank {all} 在等待{of_zh}（rank、tag 与组须一致）{colon_zh}{zh}"
    )
}

/// The activity that keeps a rank at work.
fn work(facts: &Facts<'_>) -> Text {
    let Some(evidence) = facts.evidence else { return text!("is at work", "正在工作") };
    if evidence.computes || !(evidence.busy || evidence.drains) {
        text!("computes", "正在计算")
    } else if evidence.busy {
        text!("reads or writes", "正在读写数据")
    } else {
        text!("writes to a disk", "正在写磁盘")
    }
}

fn who(facts: &Facts<'_>) -> Text {
    match (facts.suspect.rank, facts.node) {
        (Some(rank), Some(node)) => {
            text!("rank {rank} (node {node})", "rank {rank}（节点 {node}）")
        }
        (Some(rank), None) => text!("rank {rank}", "rank {rank}"),
        (None, _) => text!("a rank", "某个 rank"),
    }
}

fn collective(of: Option<&Collective>) -> Text {
    let Some(Collective { op, group, seq }) = of else {
        return text!("the collective that the others wait in", "其他 rank 正在等待的集合通信");
    };
    text!("{op} {seq} of group {group}", "组 {group} 的第 {seq} 个集合通信 {op}")
}

/// The line, put before the activity of the rank there.
fn at(facts: &Facts<'_>) -> Text {
    let Some(frame) = facts.frame else { return Text::same("") };
    let Text { en, zh } = place(frame);
    text!(": {en}", "：{zh}")
}

fn place(frame: &Frame) -> Text {
    let function = &frame.function;
    if function.is_empty() {
        return text!("at {frame}", "位于 {frame}");
    }
    text!("{function} at {frame}", "{frame} 的 {function}")
}

fn does(facts: &Facts<'_>) -> Text {
    let place = |call: &Option<String>, file: &Option<String>| match (call, file) {
        (Some(call), Some(file)) => text!(", in {call} of {file}", "，正在对 {file} 执行 {call}"),
        (Some(call), None) if call.ends_with("nanosleep") => {
            text!(", sleeping in {call}", "，正在 {call} 中休眠")
        }
        (Some(call), None) => text!(", in {call}", "，正在执行 {call}"),
        _ => Text::same(""),
    };
    let busy = facts.evidence.is_some_and(|rank| rank.busy);
    match facts.doing {
        _ if facts.kind == Kind::Ended => Text::same(""),
        Doing::Uninterruptible { call, file, .. } => place(call, file),
        Doing::Child { pid, name } => {
            text!(", in its process {name} (pid {pid})", "，位于其子进程 {name}（pid {pid}）")
        }
        Doing::DeadChild { pid, name } => {
            text!(", {name} (pid {pid})", "，{name}（pid {pid}）")
        }
        Doing::Gil => {
            text!(", where a thread keeps the GIL while it waits", "，该处有线程在等待时仍占有 GIL")
        }
        Doing::Checkpoint => text!(", in a checkpoint", "，正在读写检查点"),
        Doing::Compiles => text!(", in compilation", "，正在编译"),
        Doing::Thread => {
            text!(", where it waits for another of its threads", "，正在等待自己的另一个线程")
        }
        Doing::Rendezvous => text!(", where it meets the other ranks", "，正在与其他 rank 会合"),
        Doing::Elsewhere { .. } if facts.kind == Kind::Slow => Text::same(""),
        Doing::Elsewhere { .. } if busy => text!(", and computes", "，仍在计算"),
        Doing::Elsewhere { call, file } => place(call, file),
        _ => Text::same(""),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Ended,
    Stopped,
    BlockedIo,
    WorkerDied,
    Deadlock,
    OtherCollective,
    OtherShape,
    NeverEntered,
    Link,
    /// The rank is at work. This is no hang.
    Slow,
    Unknown,
}

impl Kind {
    pub fn hint(self) -> Text {
        match self {
            Kind::Ended => text!(
                "every rank must take part in every collective: give all ranks equally many batches (drop_last, a DistributedSampler, join()), or end all of them together",
                "每个 rank 都必须参与每一次集合通信：让各 rank 的 batch 数相同（drop_last、DistributedSampler、join()），或让它们一起结束"
            ),
            Kind::Stopped => text!(
                "find who stopped it: kill -CONT continues it",
                "请查明是谁暂停了它：kill -CONT 可使其继续"
            ),
            Kind::BlockedIo => text!(
                "look at that file system and its server (mount, dmesg, nfsstat); the rank cannot be killed before it answers",
                "请检查该文件系统及其服务端（mount、dmesg、nfsstat）；在其应答之前该 rank 无法被终止"
            ),
            Kind::WorkerDied => text!(
                "find what ended that worker: the memory limit, a small /dev/shm, or its own exit; num_workers=0 shows its exception",
                "请查明该 worker 为何结束：内存限制、/dev/shm 过小，或自行退出；num_workers=0 可看到其异常"
            ),
            Kind::Deadlock => text!(
                "take locks, and call the collectives of different groups, in the same order everywhere; release a lock before a wait; give each receive its send",
                "各处应以相同顺序获取锁、调用不同通信组的集合通信；等待之前先释放锁；每次接收都应有对应的发送"
            ),
            Kind::OtherCollective => text!(
                "all ranks must call the same collectives in the same order: look for a branch on the rank, on the data or on an exception",
                "所有 rank 必须以相同顺序调用相同的集合通信：请检查依赖 rank、数据或异常的分支"
            ),
            Kind::OtherShape => text!(
                "all ranks must pass tensors of the same size and type: pad the last batch, or gather the sizes first",
                "所有 rank 必须传入大小和类型相同的张量：请填充最后一个 batch，或先交换大小"
            ),
            Kind::NeverEntered => text!(
                "look at that line: what does it wait for on this rank alone?",
                "请查看该行代码：它为何只在这个 rank 上等待？"
            ),
            Kind::Link => text!(
                "look at the network between these nodes: ranklaunch check on all of them at once, error counters of the HCAs, a firewall that forgets idle connections",
                "请检查这些节点之间的网络：在所有节点上同时执行 ranklaunch check、HCA 错误计数、会丢弃空闲连接的防火墙"
            ),
            Kind::Slow => text!(
                "collectives that wait longer than their timeout fail; where that line takes so long for no good reason, look at it: ranklaunch stacks",
                "集合通信的等待一旦超过其超时时间就会失败；若该行代码不应耗时这么久，请检查该处：ranklaunch stacks"
            ),
            Kind::Unknown => text!(
                "look at the stacks of all ranks: ranklaunch stacks",
                "请查看所有 rank 的调用栈：ranklaunch stacks"
            ),
        }
    }
}

/// A sentence, with the node and the ranks that it is about.
#[derive(Debug, Clone, PartialEq)]
pub struct Sign {
    pub kind: SignKind,
    /// None if all nodes report the same.
    pub node: Option<u32>,
    /// Empty if the sign concerns all ranks of the node.
    pub ranks: Vec<u32>,
    pub text: Text,
}

/// The names are a contract: run.json and agent.jsonl contain them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SignKind {
    RasDead,
    RasUnresponsive,
    RasFailed,
    RasBehind,
    GpuUse,
    /// A sign on the node.
    #[serde(untagged)]
    Node(ReasonKind),
}

/// The signs of NCCL first, then those of the culprits' nodes. `culprits`: nodes and ranks. `is_link`: the
/// link that carries the messages of all nodes is suspected.
pub(super) fn signs(
    nodes: &[NodeEvidence],
    nccl: &RasVerdict,
    culprits: &[(Option<u32>, Option<u32>)],
    is_link: bool,
) -> Vec<Sign> {
    let mut found = of_nccl(nccl);
    for node in nodes {
        let of_node = culprits.iter().filter(|(of, _)| *of == Some(node.node));
        let own: Vec<GlobalRank> = of_node.filter_map(|(_, rank)| rank.map(GlobalRank)).collect();
        let concerns = |kind: ReasonKind, ranks: &[GlobalRank]| {
            let of_culprit = own.iter().any(|rank| ranks.is_empty() || ranks.contains(rank));
            of_culprit || (is_link && kind.is_of_links())
        };
        let number = node.node;
        let reasons = node.reasons.iter().filter(|one| concerns(one.kind, &one.ranks)).map(|one| {
            let Text { en, zh } = &one.text;
            Sign {
                kind: SignKind::Node(one.kind),
                node: Some(number),
                ranks: numbers(&one.ranks),
                text: text!("node {number}: {en}", "节点 {number}：{zh}"),
            }
        });
        found.extend(reasons);
        let gpus = node.gpus.iter().filter(|gpu| own.iter().any(|rank| gpu.ranks.contains(rank)));
        found.extend(gpus.map(|gpu| {
            let Text { en, zh } = gpu.text();
            Sign {
                kind: SignKind::GpuUse,
                node: Some(number),
                ranks: numbers(&gpu.ranks),
                text: text!("node {number}: {en}", "节点 {number}：{zh}"),
            }
        }));
    }
    found
}

fn numbers(ranks: &[GlobalRank]) -> Vec<u32> {
    ranks.iter().map(|rank| rank.0).collect()
}

fn of_nccl(nccl: &RasVerdict) -> Vec<Sign> {
    let mut found = Vec::new();
    let mut tell = |kind, ranks: Vec<u32>, text: fn(String) -> Text| {
        if !ranks.is_empty() {
            let text = text(named(&ranks));
            found.push(Sign { kind, node: None, ranks, text });
        }
    };
    let all = |ranks: &BTreeSet<GlobalRank>| ranks.iter().map(|one| one.0).collect();
    tell(SignKind::RasDead, all(&nccl.dead), |who| {
        text!(
            "NCCL's RAS considers {who} dead: no answer for a minute",
            "NCCL RAS 认为 {who} 已失效：一分钟没有应答"
        )
    });
    tell(SignKind::RasUnresponsive, all(&nccl.unresponsive), |who| {
        text!("NCCL's RAS gets no answer of {who}", "NCCL RAS 得不到 {who} 的应答")
    });
    tell(SignKind::RasFailed, all(&nccl.failed), |who| {
        text!(
            "NCCL has an error on {who} that the program has not looked at",
            "NCCL 在 {who} 上有程序尚未查看的错误"
        )
    });
    let mut behind: BTreeMap<(&str, &str), Vec<&Behind>> = BTreeMap::new();
    for one in &nccl.behind {
        behind.entry((&one.communicator, &one.op)).or_default().push(one);
    }
    for ((communicator, op), late) in behind {
        let ranks: Vec<u32> = late.iter().map(|one| one.rank.0).collect();
        let (who, of) = (named(&ranks), late.iter().map(|one| one.of).max().unwrap_or_default());
        let least = late.iter().map(|one| one.count).min().unwrap_or_default();
        let most = late.iter().map(|one| one.most).max().unwrap_or_default();
        found.push(Sign {
            kind: SignKind::RasBehind,
            node: None,
            ranks,
            text: text!(
                "NCCL counts {least} {op} of {who}, of others {most} (communicator {communicator} of {of} ranks)",
                "NCCL 统计到 {who} 启动了 {least} 次 {op}，其他 rank 为 {most} 次（通信域 {communicator}，{of} 个 rank）"
            ),
        });
    }
    found
}

fn named(ranks: &[u32]) -> String {
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", listed(ranks.iter().copied(), '-'))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    const ALL: [Kind; 11] = [
        Kind::Ended,
        Kind::Stopped,
        Kind::BlockedIo,
        Kind::WorkerDied,
        Kind::Deadlock,
        Kind::OtherCollective,
        Kind::OtherShape,
        Kind::NeverEntered,
        Kind::Link,
        Kind::Slow,
        Kind::Unknown,
    ];

    #[test]
    fn commands_in_hints_can_be_parsed() {
        let mut typed = 0;
        for Text { en, zh } in ALL.map(Kind::hint) {
            for command in
                [&*en, &*zh].into_iter().flat_map(|hint| hint.split("ranklaunch ").skip(1))
            {
                let part = command.split([',', ';', '、', '，', '；']).next().unwrap_or_default();
                let mut words = part.split(' ');
                let subcommand = words.next().into_iter();
                let options = words.take_while(|word| word.starts_with("--"));
                let line = ["ranklaunch"].into_iter().chain(subcommand).chain(options);
                let parsed = settings::cli::Command::parse(line.map(OsString::from));
                assert!(parsed.is_ok(), "{part}: {parsed:?}");
                typed += 1;
            }
        }
        assert!(typed > 2, "{typed}");
    }
}
