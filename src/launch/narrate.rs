//! The console lines about events while the job runs.

use std::time::Duration;

use super::context::Context;
use crate::lang::Text;
use crate::rank::{GlobalRank, RankId};
use crate::report::ending::{self, describe};
use crate::supervise::{self, End, Notice, Planned, RankUnit};
use crate::sys::signal_name;
use crate::text;

/// Prints a line for the important events; all events go to the journal.
pub(super) fn narrate(context: &Context, planned: Planned, notice: &Notice) {
    record(notice);
    let line = match notice {
        Notice::RankEnded { rank, end: Some(end) } if !end.success() => {
            let Text { en, zh } = describe(*end);
            let Text { en: who, zh: who_zh } = named(planned, rank.global);
            text!("{who} ended with {en}", "{who_zh} 结束：{zh}")
        }
        Notice::RankEnded { rank, end: None } => {
            let Text { en: who, zh: who_zh } = named(planned, rank.global);
            text!(
                "the shim of {who} was killed, so {who} was ended with it",
                "{who_zh} 的 shim 被杀死，{who_zh} 已随之终止"
            )
        }
        Notice::NotExecuted { rank, program, after, given_up } => {
            let seconds = after.as_secs();
            let (end, end_zh) = match given_up.map(|timeout| timeout.as_secs_f64()) {
                Some(most) => {
                    (format!(" (given up after {most} s)"), format!("（{most} 秒后放弃）"))
                }
                None => Default::default(),
            };
            let waits = text!(
                "{program} has not been executed after {seconds} s{end}: does its mount answer?",
                "{program} 在 {seconds} 秒后仍未开始执行{end_zh}：其所在的挂载点是否有应答？"
            );
            match rank {
                None => waits,
                Some(rank) => {
                    let Text { en: who, zh: who_zh } = named(planned, rank.global);
                    let Text { en, zh } = waits;
                    text!("{who}: {en}", "{who_zh}：{zh}")
                }
            }
        }
        Notice::OtherWorld(other) => {
            let world = planned.world.unwrap_or_default();
            let Text { en, zh } = ending::other_world(*other, world);
            text!(
                "{en}: this is not the planned job, so it will not count as done",
                "{zh}：这不是计划的任务，结束后不会视为完成"
            )
        }
        Notice::Stopping { reason: supervise::StopReason::Signal(signal) } => {
            let name = signal_name(*signal);
            let grace = context.settings.grace.value.as_secs_f64();
            text!(
                "{name} received: the ranks have {grace:.0} s to end",
                "收到 {name}：各 rank 须在 {grace:.0} 秒内结束"
            )
        }
        Notice::Leftovers { rank, names, count, grace_ms } => {
            let more = if *count > names.len() { ", …" } else { "" };
            let names = format!("{}{more}", names.join(", "));
            let (en, zh) = match grace_ms {
                0 => ("SIGKILL".to_owned(), "SIGKILL".to_owned()),
                ms => {
                    let seconds = Duration::from_millis(*ms).as_secs_f64();
                    (
                        format!("SIGTERM, and SIGKILL after at most {seconds:.0} s"),
                        format!("SIGTERM，最多 {seconds:.0} 秒后 SIGKILL"),
                    )
                }
            };
            match rank.map(|rank| rank.global) {
                Some(rank) => text!(
                    "rank {rank} ended with code 0 and left processes in the background ({count}): {names}; ending with {en} (a job must not end before its work: use wait, or no &)",
                    "rank {rank} 以退出码 0 结束，但在后台留下了 {count} 个进程：{names}；将对其发送 {zh}（任务不应先于其工作结束：请使用 wait，或去掉 &）"
                ),
                None => text!(
                    "left running after the ranks ({count}): {names}; ending with {en}",
                    "各 rank 结束后仍有 {count} 个进程：{names}；将对其发送 {zh}"
                ),
            }
        }
        Notice::Unread { rank: RankId { global, .. } } => text!(
            "the output of rank {global} cannot be read: too many open files (ulimit -n)",
            "无法读取 rank {global} 的输出：可打开的文件数已用尽（ulimit -n）"
        ),
        Notice::Killing => {
            text!("the grace period is over: sending SIGKILL", "宽限期已过：发送 SIGKILL")
        }
        Notice::EngineEnded { end: End::Signal(signal) } => {
            let name = signal_name(*signal);
            text!("the engine was killed by {name}", "启动引擎被 {name} 杀死")
        }
        _ => return,
    };
    context.say(&line);
}

/// Writes the notice to the journal. `ended` and `stopping` are what `explain` reads of a run that
/// has no run.json.
fn record(notice: &Notice) {
    match notice {
        Notice::RankStarted { rank, pid } => {
            tracing::info!(?notice, began = rank.global.0, local = rank.local.0, pid);
        }
        Notice::RankEnded { rank, end } => {
            let (code, signal) = match end {
                Some(End::Code(code)) => (Some(*code), None),
                Some(End::Signal(signal)) => (None, Some(*signal)),
                None => (None, None),
            };
            tracing::info!(?notice, ended = rank.global.0, code, signal);
        }
        Notice::Stopping { .. } => tracing::info!(?notice, stopping = true),
        _ => tracing::info!(?notice),
    }
}

fn named(planned: Planned, rank: GlobalRank) -> Text {
    match planned.what {
        RankUnit::Rank => text!("rank {rank}", "rank {rank}"),
        RankUnit::Command => text!("the command on node {rank}", "节点 {rank} 上的命令"),
    }
}
