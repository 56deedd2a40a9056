//! Culprits that keep a job waiting, for people and for programs: the report of `ranklaunch explain` on
//! dumps of torch's flight recorder.

use std::fmt::Write as _;

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use diagnose::recorder::{Collective, Culprit, Entered, Hang, HangKind, Late};
use text::columns::labelled;
use text::escape::{data, property};
use text::lang::{Lang, Text, between};
use text::ranges::listed;
use text::text;

/// Maximum number of culprits that people see; the others are counted.
const MOST_SHOWN: usize = 4;

/// A judgement with the data for its text.
#[derive(Debug, Clone, Copy)]
pub struct HangView<'a> {
    pub hang: &'a Hang,
    /// Ranks that hold the others back, if the clocks of all nodes agree.
    pub late: &'a [Late],
}

impl HangView<'_> {
    /// The report for people: the event in the first line, the remedy in the second. `width`: columns of the terminal.
    pub fn text(self, lang: Lang, width: Option<usize>) -> String {
        let hang = self.hang;
        let mut out = String::new();
        let mut line = |label: Text, words: &Text| {
            labelled(&mut out, 0, label.get(lang), words.get(lang), width);
        };
        let label = || text!("hang", "卡死");
        match hang.culprits.first() {
            Some(first) => {
                let Text { en, zh } = sentence(first, hang);
                let (kind, sure) = (kind_name(first.kind), hang.confidence.words());
                let (sure, sure_zh) = (sure.en, sure.zh);
                line(label(), &text!("{en} ({kind}, {sure})", "{zh}（{kind}，{sure_zh}）"));
                line(text!("remedy", "处理"), &kind_hint(first.kind));
                // If no side is odd, one sentence describes all sides.
                let is_same = |other: &&Culprit| {
                    matches!(other.entered, Some(Entered::Sides(_)))
                        && other.entered == first.entered
                };
                let others: Vec<&Culprit> =
                    hang.culprits.iter().skip(1).filter(|other| !is_same(other)).collect();
                for culprit in others.iter().take(MOST_SHOWN - 1) {
                    line(text!("and", "另有"), &sentence(culprit, hang));
                }
                let more = others.len().saturating_sub(MOST_SHOWN - 1);
                if more > 0 {
                    line(text!("and", "另有"), &text!("{more} more", "另有 {more} 个"));
                }
                for (label, frame) in [
                    (text!("frame", "代码"), &first.frame),
                    (text!("waited at", "等待处"), &first.waited_at),
                ] {
                    if let Some(frame) = frame {
                        let words = format!("{}:{} {}", frame.path, frame.line, frame.function);
                        line(label, &Text::same(words));
                    }
                }
                if let Some((entry, frame)) = &first.last {
                    let Text { en, zh } = collective(entry);
                    let at = |frame| (format!(", at {frame}"), format!("，位于 {frame}"));
                    let (at, at_zh) = frame.as_ref().map(at).unwrap_or_default();
                    line(text!("last seen", "最后出现"), &text!("in {en}{at}", "{zh}{at_zh}"));
                }
            }
            None => {
                let (what, remedy) = nobody(hang);
                line(label(), &what);
                line(text!("remedy", "处理"), &remedy);
            }
        }
        if !hang.waiting.is_empty() {
            let Text { en, zh } = ranks(&hang.waiting);
            let since = |since: String| (format!(", since {since}"), format!("，自 {since} 起"));
            let (since, since_zh) = hang.since_ns.and_then(time_of).map(since).unwrap_or_default();
            line(text!("waiting", "等待"), &text!("{en}{since}", "{zh}{since_zh}"));
        }
        if !hang.silent.is_empty() {
            line(text!("no dump", "无转储"), &ranks(&hang.silent));
        }
        if !hang.older.is_empty() {
            let Text { en, zh } = ranks(&hang.older);
            line(
                text!("older", "较早"),
                &text!(
                    "{en}: dumped before the others left what was not entered there, so nobody's absence is proven; or what they waited in has failed",
                    "{zh}：转储时间早于其他 rank 离开此处尚未进入的操作，因此不能证明谁缺席；也可能是该操作已失败"
                ),
            );
        }
        if hang.culprits.is_empty() {
            for slow in self.late.iter().take(MOST_SHOWN) {
                line(text!("slow", "慢"), &late(slow));
            }
        }
        out
    }

    /// One element of `hang` in the form of run.json, without nodes, since no dump names them.
    pub fn json(self, lang: Lang) -> Value {
        let hang = self.hang;
        let culprits: Vec<Value> = hang
            .culprits
            .iter()
            .map(|culprit| {
                json!({
                    "node": null,
                    "rank": culprit.rank,
                    "kind": kind_name(culprit.kind),
                    "frame": culprit.frame.as_ref().map(ToString::to_string),
                    "function": culprit.frame.as_ref().map(|frame| &frame.function),
                    "collective": culprit.collective.as_ref().map(collective_json),
                    "waited_at": culprit.waited_at.as_ref().map(ToString::to_string),
                    "last": culprit.last.as_ref().map(|(last, _)| collective_json(last)),
                    "text": sentence(culprit, hang).get(lang),
                    "hint": kind_hint(culprit.kind).get(lang),
                })
            })
            .collect();
        let waiting = match hang.waiting.as_slice() {
            [] => json!([]),
            ranks => json!([{ "node": null, "ranks": ranks }]),
        };
        let slow = self.late.iter().filter(|_| hang.culprits.is_empty()).map(|slow| {
            json!({
                "rank": slow.rank,
                "group": slow.group,
                "collectives": slow.of,
                "last_share": slow.share,
                "median_s": slow.median_ns as f64 / 1e9,
                "lost_share": slow.lost,
            })
        });
        json!({
            "at": null,
            "since": hang.since_ns.and_then(time_of),
            "after_s": hang.waited.filter(|(_, exactly)| *exactly).map(|(ns, _)| ns as f64 / 1e9),
            "culprits": culprits,
            "waiting": waiting,
            "confidence": hang.confidence,
            "read": hang.read,
            "silent": hang.silent,
            "older": hang.older,
            "slow": slow.collect::<Vec<_>>(),
        })
    }

    /// A workflow command for each culprit.
    pub fn github(self, lang: Lang) -> String {
        let mut out = String::new();
        for culprit in self.hang.culprits.iter().take(MOST_SHOWN) {
            let (text, hint) = (sentence(culprit, self.hang), kind_hint(culprit.kind));
            let message = data(&format!("{}\n{}", text.get(lang), hint.get(lang)));
            let title = property(kind_name(culprit.kind));
            let _ = writeln!(out, "::error title={title}::{message}");
        }
        out
    }
}

/// The name in JSON.
fn kind_name(kind: HangKind) -> &'static str {
    match kind {
        HangKind::OtherCollective => "other_collective",
        HangKind::OtherShape => "other_shape",
        HangKind::Deadlock => "deadlock",
        HangKind::NeverEntered => "never_entered",
        HangKind::Unknown => "unknown",
        HangKind::Link => "link",
    }
}

fn kind_hint(kind: HangKind) -> Text {
    match kind {
        HangKind::OtherCollective => text!(
            "let all ranks of the group take the same branch: compare the code at the two lines, and what each rank decides by (its rank, its data, an exception that it caught)",
            "让组内所有 rank 走同一分支：比较这两处代码，以及各 rank 据以判断的内容（rank 号、数据、被捕获的异常）"
        ),
        HangKind::OtherShape => text!(
            "give all ranks of the group tensors of the same size and type: pad them, or leave the last incomplete batch out (drop_last)",
            "让组内所有 rank 使用大小和类型一致的张量：做填充，或丢弃最后不完整的批次（drop_last）"
        ),
        HangKind::Deadlock => text!(
            "use the groups in the same order on all ranks, and wait for one collective before the next begins in another group",
            "让所有 rank 以相同顺序使用各个组，并在另一组的下一个集合通信开始前等待当前操作完成"
        ),
        HangKind::NeverEntered => text!(
            "look at what that rank does: the end of its log, its stack (ranklaunch stacks, or py-spy dump), whether it reads data, writes a checkpoint, compiles, or has left its loop earlier than the others",
            "查看该 rank 在做什么：日志末尾、调用栈（ranklaunch stacks 或 py-spy dump），是否在读数据、写检查点、编译，或比其他 rank 更早退出循环"
        ),
        HangKind::Unknown => text!(
            "see whether its process lives: it may have ended, be stopped or hang in the kernel; where it does live, give its dump as well",
            "检查其进程是否存活：可能已结束、被暂停或卡在内核中；若存活，请一并提供它的转储"
        ),
        HangKind::Link => text!(
            "look at the network and the GPUs of these ranks: `ranklaunch check` with all nodes, counters of the adapters, Xids in the kernel's log",
            "检查这些 rank 的网络与 GPU：在所有节点上运行 `ranklaunch check`，查看网卡计数器与内核日志中的 Xid"
        ),
    }
}

/// `rank 1`, `ranks 0, 2–3`
fn ranks(ranks: &[u32]) -> Text {
    let list = listed(ranks.iter().copied(), '–');
    if ranks.len() == 1 {
        text!("rank {list}", "rank {list}")
    } else {
        text!("ranks {list}", "rank {list}")
    }
}

/// `all_reduce 7 of default_pg`
fn collective(of: &Collective) -> Text {
    let Collective { op, group, seq } = of;
    text!("{op} {seq} of group {group}", "组 {group} 的第 {seq} 个集合通信 {op}")
}

/// A sentence on what a culprit did or did not do.
fn sentence(culprit: &Culprit, hang: &Hang) -> Text {
    let nothing = || text!("a collective", "集合通信");
    let Text { en: what, zh: what_zh } =
        culprit.collective.as_ref().map_or_else(nothing, collective);
    let in_zh = between(&what_zh);
    let who = culprit.rank.unwrap_or(0);
    match (culprit.kind, &culprit.entered) {
        (HangKind::NeverEntered, _) if culprit.is_inside => {
            let last = culprit.last.as_ref().map(|(last, _)| last);
            let Text { en: inside, zh: inside_zh } = last.map_or_else(nothing, collective);
            text!(
                "rank {who} has not left {inside}, as others have, so it has not entered {what}",
                "rank {who} 尚未完成{inside_zh}（其他 rank 已完成），因此没有进入{what_zh}"
            )
        }
        (HangKind::NeverEntered, _) => {
            text!("rank {who} has not entered {what}", "rank {who} 没有进入{what_zh}")
        }
        (_, Some(entered)) => {
            let (seq, group) = culprit
                .collective
                .as_ref()
                .map_or((0, ""), |collective| (collective.seq, collective.group.as_str()));
            match entered {
                Entered::Odd { own, expected } => text!(
                    "rank {who} entered {own} as number {seq} of group {group}, the others {expected}",
                    "在组 {group} 的第 {seq} 个集合通信处，rank {who} 进入的是 {own}，其他 rank 进入的是 {expected}"
                ),
                Entered::Sides(sides) => {
                    let Text { en, zh } = Entered::sides(sides);
                    text!(
                        "{en}, as number {seq} of group {group}",
                        "在组 {group} 的第 {seq} 个集合通信处，{zh}"
                    )
                }
            }
        }
        (HangKind::OtherCollective | HangKind::OtherShape, None) => text!(
            "the ranks do not agree about sizes in {what}: all inputs together are not as large as all outputs",
            "各 rank 在{in_zh}中的大小不一致：输入总量与输出总量不等"
        ),
        (HangKind::Deadlock, _) => text!(
            "rank {who} waits in {what} for a rank that waits for it in another group",
            "rank {who} 在{in_zh}中等待，而它所等的 rank 又在另一组中等待它"
        ),
        (HangKind::Unknown, _) => text!(
            "there is no dump of rank {who}, and all others have entered {what}",
            "没有 rank {who} 的转储，而其他 rank 都已进入{what_zh}"
        ),
        (HangKind::Link, _) => {
            let Text { en: all, zh: all_zh } = ranks(&hang.waiting);
            text!(
                "{all} have all entered {what} alike, and none leaves it",
                "{all_zh} 都已一致地进入{what_zh}，但没有一个完成"
            )
        }
    }
}

/// The statement and the remedy if no rank is named.
fn nobody(hang: &Hang) -> (Text, Text) {
    let read_all = text!(
        "give the dumps of all ranks, read at about the same time",
        "请提供所有 rank 在大致同一时刻的转储"
    );
    if hang.waiting.is_empty() {
        return (
            text!("no rank waits in a collective", "没有 rank 在集合通信中等待"),
            text!(
                "where the job does stand still, look at the stacks of its ranks (ranklaunch stacks, or py-spy dump)",
                "若任务确实卡死，请查看各 rank 的调用栈（ranklaunch stacks 或 py-spy dump）"
            ),
        );
    }
    if hang.moves {
        let waited = seconds(hang.waited.map_or(0, |(ns, _)| ns));
        return (
            text!(
                "none: when the dumps were written, no rank had waited longer than its steps take ({waited} s)",
                "无：写入转储时，没有 rank 的等待时间超过其平常步长（{waited} 秒）"
            ),
            text!(
                "where the job stands still, dump again after a minute",
                "若任务卡死，请一分钟后重新转储"
            ),
        );
    }
    if !hang.silent.is_empty() {
        return (
            text!(
                "not visible: ranks wait for some that were not dumped",
                "看不出原因：有 rank 在等待未转储的 rank"
            ),
            read_all,
        );
    }
    (text!("not visible in these dumps", "从这些转储中看不出原因"), read_all)
}

fn late(slow: &Late) -> Text {
    let Late { rank, group, of, share, median_ns, lost } = slow;
    let (share, lost) = (share * 100.0, lost * 100.0);
    let ms = *median_ns as f64 / 1e6;
    text!(
        "rank {rank} came last to {share:.0} % of {of} collectives of group {group}, by {ms:.1} ms in the median: the others lost {lost:.0} % of the time, if the clocks of all nodes agree",
        "rank {rank} 在组 {group} 的 {of} 个集合通信中有 {share:.0} % 最后到达，中位数晚 {ms:.1} 毫秒：若各节点时钟一致，其他 rank 因此损失了 {lost:.0} % 的时间"
    )
}

fn seconds(ns: i64) -> String {
    format!("{:.1}", ns as f64 / 1e9)
}

/// RFC 3339, in UTC.
fn time_of(ns: i64) -> Option<String> {
    let whole = OffsetDateTime::from_unix_timestamp_nanos(i128::from(ns)).ok()?;
    whole.replace_nanosecond(0).ok()?.format(&Rfc3339).ok()
}

fn collective_json(of: &Collective) -> Value {
    json!({ "op": of.op, "group": of.group, "seq": of.seq })
}
