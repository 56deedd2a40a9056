//! The console lines about events while the job runs.
//!
//! If ranks end while the job is stopped, one line reports all of their ends: otherwise the failure of one
//! rank would be lost among the ends of the others.

use std::time::Duration;

use linux::sys::{Signal, signal_name};
use report::ending::{self, describe};
use supervise::{EndBudget, EndStep};
use text::lang::{Text, leading};
use text::ranges;
use text::rank::{GlobalRank, RankId};
use text::text;
use verdict::outcome::{End, KillReason, Notice, Planned, RankUnit, StopReason};

/// Prints a line for the important events; all events go to the journal.
pub(super) struct Narrator<S> {
    say: S,
    grace: Duration,
    planned: Planned,
    ends: Ends,
}

impl<S: Fn(&Text)> Narrator<S> {
    pub(super) fn new(say: S, grace: Duration, planned: Planned) -> Narrator<S> {
        Narrator { say, grace, planned, ends: Ends::default() }
    }

    pub(super) fn hear(&mut self, notice: &Notice) {
        record(notice);
        let (ends, is_told) = match self.ends.hear(notice) {
            Heard::Later | Heard::Never => return,
            Heard::Now => (Grouped::new(), true),
            Heard::After(ends) => (ends, true),
            Heard::Last(ends) => (ends, false),
        };
        of_ends(self.planned, &ends).iter().for_each(&self.say);
        if let Some(line) = line(self.grace, self.planned, notice).filter(|_| is_told) {
            (self.say)(&line);
        }
    }

    /// Prints the lines that are still pending.
    pub(super) fn end(mut self) {
        of_ends(self.planned, &self.ends.take()).iter().for_each(self.say);
    }
}

/// Ranks by their end, in the order of the first rank with each end.
type Grouped = Vec<(End, Vec<u32>)>;

/// The ranks that ended since the stop began.
#[derive(Debug, Default)]
struct Ends {
    /// Ranks that have begun and not ended.
    running: usize,
    is_stopping: bool,
    is_killing: bool,
    told: Grouped,
}

/// Decides when to print a notice, and with which ends of ranks.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Now,
    /// Printed together with others, once all have ended or something else happens.
    Later,
    /// Print these ends, then the notice itself.
    After(Grouped),
    /// Print these ends, the last of which is the notice.
    Last(Grouped),
    /// Print nothing: ranklaunch itself has caused it.
    Never,
}

impl Ends {
    fn hear(&mut self, notice: &Notice) -> Heard {
        match notice {
            Notice::RankStarted { .. } => self.running += 1,
            Notice::RankEnded { .. } => self.running = self.running.saturating_sub(1),
            Notice::Stopping { .. } => self.is_stopping = true,
            Notice::Killing { .. } => self.is_killing = true,
            _ => {}
        }
        match notice {
            Notice::RankEnded { rank, end }
                if self.is_killing || (end.is_some() && self.is_stopping) =>
            {
                let number = rank.global.0;
                // The shims are killed with the ranks.
                let end = end.unwrap_or(End::Signal(Signal::KILL.as_raw()));
                if !end.success() {
                    match self.told.iter_mut().find(|(known, _)| *known == end) {
                        Some((_, ranks)) => ranks.push(number),
                        None => self.told.push((end, vec![number])),
                    }
                }
                if self.running > 0 { Heard::Later } else { Heard::Last(self.take()) }
            }
            // The ranks of the engine have ended, or it was killed with them.
            Notice::EngineEnded { .. } if self.is_stopping && self.told.is_empty() => Heard::Never,
            Notice::EngineEnded { .. } if self.is_stopping => Heard::Last(self.take()),
            // SIGKILL is on its way to all of them.
            Notice::Leftovers { .. } if self.is_killing => Heard::Never,
            _ if self.told.is_empty() => Heard::Now,
            _ => Heard::After(self.take()),
        }
    }

    fn take(&mut self) -> Grouped {
        let mut ends = std::mem::take(&mut self.told);
        ends.iter_mut().for_each(|(_, ranks)| ranks.sort_unstable());
        ends
    }
}

fn of_ends(planned: Planned, ends: &Grouped) -> Vec<Text> {
    let line = |(end, ranks): &(End, Vec<u32>)| {
        let Text { en, zh } = describe(*end);
        let Text { en: who, zh: who_zh } = all_named(planned, ranks);
        let who_zh = leading(&who_zh);
        text!("{who} ended with {en}", "{who_zh}结束：{zh}")
    };
    ends.iter().map(line).collect()
}

/// The line about one event; None for most events.
fn line(grace: Duration, planned: Planned, notice: &Notice) -> Option<Text> {
    Some(match notice {
        Notice::RankEnded { rank, end: Some(end) } if !end.success() => {
            let Text { en, zh } = describe(*end);
            let Text { en: who, zh: who_zh } = named(planned, rank.global);
            let who_zh = leading(&who_zh);
            text!("{who} ended with {en}", "{who_zh}结束：{zh}")
        }
        Notice::RankEnded { rank, end: None } => {
            let Text { en: who, zh: who_zh } = named(planned, rank.global);
            let who_zh = leading(&who_zh);
            text!(
                "the shim of {who} was killed, so {who} was ended with it",
                "{who_zh}的 shim 被杀死，{who_zh}已随之终止"
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
        Notice::Stopping { reason: StopReason::Signal(signal) } => signalled(*signal, grace),
        Notice::Sooner { signal, within } => signalled(*signal, *within),
        Notice::Stopping { reason: StopReason::Noticed(stop) } => {
            // The rest is for the logs and the verdict.
            let seconds = EndBudget::of(stop.within).until(EndStep::Ranks).as_secs_f64();
            let name = signal_name(stop.signal);
            let or_term = if stop.signal == Signal::TERM.as_raw() { "" } else { " or SIGTERM" };
            text!(
                "ranks that handle {name}{or_term} get it and have {seconds:.0} s to save and to end",
                "向处理 {name}{or_term} 的 rank 发送该信号：须在 {seconds:.0} 秒内保存并结束"
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
        Notice::Killing { why } => match why {
            KillReason::Grace => {
                text!("the grace period is over: sending SIGKILL", "宽限期已过：发送 SIGKILL")
            }
            KillReason::Interrupt => {
                text!("second SIGINT received: sending SIGKILL", "再次收到 SIGINT：发送 SIGKILL")
            }
            KillReason::GuardGone => {
                text!(
                    "the guard process is gone: sending SIGKILL",
                    "guard 进程已消失：发送 SIGKILL"
                )
            }
            KillReason::GivenUp => text!(
                "this node stood still and the others go on without it: sending SIGKILL, since a save now would come between theirs",
                "本节点曾停顿，其他节点已不再等它：发送 SIGKILL，以免此时的保存与它们的保存相互覆盖"
            ),
        },
        Notice::EngineEnded { end: End::Signal(signal) } => {
            let name = signal_name(*signal);
            text!("the engine was killed by {name}", "启动引擎被 {name} 杀死")
        }
        _ => return None,
    })
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

/// Some ranks in their order.
fn all_named(planned: Planned, ranks: &[u32]) -> Text {
    match ranks {
        [rank] => named(planned, GlobalRank(*rank)),
        _ => {
            let listed = ranges::listed(ranks.iter().copied(), '-');
            text!("ranks {listed}", "rank {listed}")
        }
    }
}

fn named(planned: Planned, rank: GlobalRank) -> Text {
    match planned.what {
        RankUnit::Rank => text!("rank {rank}", "rank {rank}"),
        RankUnit::Command => text!("the command on node {rank}", "节点 {rank} 上的命令"),
    }
}

/// A stop signal, and the time that is left to the ranks.
fn signalled(signal: i32, left: Duration) -> Text {
    let (name, seconds) = (signal_name(signal), left.as_secs_f64());
    let (again, again_zh) = match Signal::from_named_raw(signal) {
        Some(Signal::INT) => ("; a second one ends them at once", "；再次收到则立即终止"),
        _ => ("", ""),
    };
    text!(
        "{name} received: the ranks have {seconds:.0} s to end{again}",
        "收到 {name}：各 rank 须在 {seconds:.0} 秒内结束{again_zh}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::lang::Lang;
    use text::rank::LocalRank;

    fn rank(number: u32) -> RankId {
        RankId { global: GlobalRank(number), local: LocalRank(number) }
    }

    fn ended(number: u32, end: End) -> Notice {
        Notice::RankEnded { rank: rank(number), end: Some(end) }
    }

    #[test]
    fn ranks_ended_by_a_stop_share_one_line() {
        let (mut ends, term) = (Ends::default(), End::Signal(15));
        for number in 0..6 {
            let began = Notice::RankStarted { rank: rank(number), pid: 1 };
            assert_eq!(ends.hear(&began), Heard::Now);
        }
        // The one that failed is told at once; it begins the stop.
        assert_eq!(ends.hear(&ended(3, End::Code(1))), Heard::Now);
        let stopping = Notice::Stopping { reason: StopReason::RankFailed(GlobalRank(3)) };
        assert_eq!(ends.hear(&stopping), Heard::Now);
        assert_eq!(ends.hear(&ended(2, term)), Heard::Later);
        assert_eq!(ends.hear(&ended(0, term)), Heard::Later);
        assert_eq!(ends.hear(&ended(4, End::Code(0))), Heard::Later, "ended well");
        // Any other notice comes in its order.
        let before = vec![(term, vec![0, 2])];
        assert_eq!(
            ends.hear(&Notice::Killing { why: KillReason::Grace }),
            Heard::After(before.clone())
        );
        // The shim of this rank was killed with it.
        assert_eq!(ends.hear(&Notice::RankEnded { rank: rank(5), end: None }), Heard::Later);
        let last = vec![(End::Signal(9), vec![5]), (term, vec![1])];
        assert_eq!(ends.hear(&ended(1, term)), Heard::Last(last.clone()));
        assert_eq!(ends.hear(&Notice::EngineEnded { end: End::Signal(9) }), Heard::Never);
        let names = vec!["python3 (7)".to_owned()];
        let left = Notice::Leftovers { rank: None, names, count: 1, grace_ms: 0 };
        assert_eq!(ends.hear(&left), Heard::Never);
        assert_eq!(Ends::default().hear(&left), Heard::Now);
        let said = |ends: &Grouped| {
            let lines = of_ends(Planned::default(), ends);
            lines.iter().map(|line| line.get(Lang::En).to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(
            said(&vec![(term, vec![0, 1, 2, 4])]),
            ["ranks 0-2, 4 ended with signal SIGTERM"]
        );
        assert_eq!(
            said(&last),
            ["rank 5 ended with signal SIGKILL", "rank 1 ended with signal SIGTERM"]
        );
    }
}
