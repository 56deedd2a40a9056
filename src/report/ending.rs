//! The verdict: one exit code and its cause, from the ends of all processes.
//!
//! Takes the `Outcome` of the ranks or a `Refusal`; gives an [`Ending`], the same for the console, run.json and the
//! termination message. `causes` chooses the cause and has its text, `memory` attributes a SIGKILL. The table of exit
//! codes is in [`verdict`].

mod causes;
mod memory;

pub(crate) use causes::read_log;
pub use causes::{describe, lost_port, not_executed_hint, other_world};

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use diagnose::GIVEN_UP;
use linux::sys::Signal;
use monitor::hang::FirstCulprit;
use monitor::watch::Breach;
use settings::Reaction;
use text::lang::Text;
use text::rank::GlobalRank;
use text::text;
use verdict::outcome::{Planned, RankUnit};
use verdict::{Class, Confidence, Id, Retry, Victims, Why};

/// The end of the program and its reason, for the console, run.json and the termination message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Exit code of the program, before the profile's `[exit]` remaps it.
    pub code: i32,
    pub class: Class,
    /// Stable id of the cause (`rank.exit`, `rank.signal`, `layout.unsolvable`…).
    pub id: Id,
    /// Global rank that caused it.
    pub rank: Option<u32>,
    /// Node that caused it, if the nodes share a verdict.
    #[serde(default)]
    pub node: Option<u32>,
    pub text: Text,
    pub hint: Text,
    /// The root cause, if the output of the processes shows it.
    #[serde(default)]
    pub why: Option<Box<Why>>,
    /// The output shows only that something failed elsewhere.
    #[serde(default)]
    pub consequence: bool,
}

/// The source of the output that shows the cause of an ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// A rank, or the command that the node runs with engine `command`.
    Started(GlobalRank),
    Engine,
}

/// A notice that the job is to end, as the verdict tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    pub reason: Text,
    /// The node that heard it.
    pub node: u32,
    /// Time from the notice to its deadline; None: not known.
    pub left: Option<Duration>,
}

impl Ending {
    /// An ending that names no node and no rank.
    fn new(code: i32, class: Class, id: Id, text: Text, hint: Text) -> Ending {
        let (rank, node) = (None, None);
        Ending { code, class, id, rank, node, text, hint, why: None, consequence: false }
    }

    /// An ending with the exit code that the table of ids gives its id.
    fn judged(class: Class, id: Id, text: Text, hint: Text) -> Ending {
        Ending::new(id.verdict().code(), class, id, text, hint)
    }

    /// The source of the output that shows the cause. None if ranklaunch itself or a stop from outside is the
    /// cause.
    pub fn speaker(&self, planned: Planned) -> Option<Speaker> {
        let command = self.class == Class::Script && planned.what == RankUnit::Command;
        let started = self.culprit().map(GlobalRank).or(command.then_some(planned.first));
        started.map(Speaker::Started).or(self.blames_engine().then_some(Speaker::Engine))
    }

    /// The global rank that caused it: the rank that the output blames, else the rank that ended first.
    pub fn culprit(&self) -> Option<u32> {
        self.why.as_ref().and_then(|why| why.rank).or(self.rank)
    }

    /// Whether the output of the processes can explain it.
    pub fn asks_why(&self) -> bool {
        let says_so_itself = matches!(self.id, Id::RankExec | Id::PortLost | Id::EngineExec);
        !says_so_itself && (self.class == Class::Script || self.blames_engine())
    }

    /// The same ending with the explanation from the output. If the kernel named the cause, its statement is
    /// more precise than the catalogue.
    #[must_use]
    pub fn explained(self, why: Why) -> Ending {
        let why = match self.id {
            Id::MemoryOom => {
                let (text, remedy) = (self.text.clone(), self.hint.clone());
                Why { text, remedy, confidence: Confidence::Certain, ..why }
            }
            // Only the end of the rank shows the cause, and this ending knows that end better.
            _ if why.log.is_empty() => {
                let counted = [128 + Signal::KILL.as_raw(), 128 + Signal::BUS.as_raw()];
                let remedy = if counted.contains(&self.code) { &self.hint } else { &why.remedy };
                Why { text: self.text.clone(), remedy: remedy.clone(), ..why }
            }
            _ => why,
        };
        // For the command of a node, a rank in a line is one of the command's own.
        let rank = why.rank.filter(|_| self.rank.is_some() || self.class != Class::Script);
        Ending { why: Some(Box::new(Why { rank, ..why })), ..self }
    }

    /// The same ending if the output shows only consequences. `gone`: a rank that had ended with code 0 before.
    #[must_use]
    pub fn unexplained(self, gone: Option<GlobalRank>) -> Ending {
        let hint = text!(
            "its output shows only consequences of a failure elsewhere: read the logs of the other ranks and nodes, and the events of the platform (kubectl describe pod, sacct, dmesg)",
            "其输出只有别处故障的后果：请查看其他 rank 与节点的日志，以及平台事件（kubectl describe pod、sacct、dmesg）"
        );
        let hint = match gone {
            Some(gone) => text!(
                "its output shows only that it lost another rank, and rank {gone} had ended with code 0 before: no rank may end before the others are done with it (dist.barrier() at the end)",
                "其输出只显示与另一 rank 断开，而 rank {gone} 在此之前已以退出码 0 结束：任何 rank 都不应在其他 rank 用完它之前退出（在末尾调用 dist.barrier()）"
            ),
            None => hint,
        };
        let hint = if self.id == Id::RankExit { hint } else { self.hint };
        Ending { hint, consequence: true, ..self }
    }

    /// The ending of a job that was to end by a notice.
    #[must_use]
    pub fn of_notice(self, announced: Option<&Announced>) -> Ending {
        let Some(Announced { reason: Text { en, zh }, node, left }) = announced else {
            return self;
        };
        let (before, before_zh) = match left.map(|left| left.as_secs()) {
            Some(seconds) => {
                (format!(", {seconds} s before the end"), format!("，提前 {seconds} 秒"))
            }
            None => <(String, String)>::default(),
        };
        let id = Id::StoppedNotice.as_str();
        match self.id {
            Id::StoppedNotice => Ending {
                text: text!(
                    "stopped after a notice on node {node}{before}: {en}",
                    "节点 {node} 收到通知{before_zh}，任务停止：{zh}"
                ),
                ..self
            },
            Id::StoppedSignal => Ending {
                hint: text!(
                    "a notice had come on node {node}{before}: {en}; it signals only ranks that handle its signal, shortly before the end: ranklaunch explain {id}",
                    "此前节点 {node} 收到通知{before_zh}：{zh}；通知只在临近结束时向处理该信号的 rank 发送信号：ranklaunch explain {id}"
                ),
                ..self
            },
            _ => self,
        }
    }

    /// The ending of a job that stood still, with the rank that the others waited for.
    #[must_use]
    pub fn of_standstill(self, culprit: Option<FirstCulprit>) -> Ending {
        let Some(culprit) = culprit.filter(|_| self.id == Id::Hang) else { return self };
        let FirstCulprit { node, rank, text, hint, .. } = culprit;
        Ending { node, rank, text, hint, ..self }
    }

    /// The same ending with the rank that the others waited for, if ranks gave up their wait: that rank is the
    /// cause, not the waiting ones. `culprit`: from the hang that was reported before and was not over.
    #[must_use]
    pub fn of_given_up_wait(self, culprit: Option<FirstCulprit>) -> Ending {
        let gave_up = |why: &Why| GIVEN_UP.contains(&why.id.as_str());
        let gave_up = self.why.as_deref().map_or(self.consequence, gave_up)
            && matches!(self.id, Id::RankExit | Id::RankSignal);
        let Some(culprit) = culprit.filter(|_| gave_up) else { return self };
        let FirstCulprit { node, rank, frame, text, hint, confidence, waiting } = culprit;
        let said = match self.why {
            Some(why) => *why,
            None => Why::without_log(self.id.as_str(), self.text, Text::same("")),
        };
        let victims = vec![Victims { ranks: waiting, id: said.id, text: said.text }];
        let why = Why {
            confidence,
            rank,
            frame,
            victims,
            log: said.log,
            line: said.line,
            evidence: said.evidence,
            also: said.also,
            ..Why::without_log(Id::Hang.as_str(), text.clone(), hint.clone())
        };
        let why = Some(Box::new(why));
        Ending { id: Id::Hang, node, rank, text, hint, why, ..self }
    }

    /// The ending of a job that broke a rule of its profile, with the breach and its time.
    #[must_use]
    pub fn of_breach(self, fatal: Option<&(Breach, Instant)>) -> Ending {
        let Some((breach, at)) = fatal.filter(|_| self.id == Id::WatchRule) else { return self };
        let (rank, text) = (breach.rank.map(|GlobalRank(rank)| rank), breach.what(*at));
        let hint = breach.hint.clone().unwrap_or_else(|| {
            text!(
                "the last lines show what the rank did; with on = \"report\" the rule only tells",
                "最后几行显示该 rank 在做什么；on = \"report\" 时只报告"
            )
        });
        let why = Why {
            retry: if breach.on == Reaction::Restart { Retry::SameNodes } else { Retry::Never },
            rank,
            evidence: breach.line(),
            ..Why::without_log(&breach.rule, text.clone(), hint.clone())
        };
        Ending { rank, text, hint, why: Some(Box::new(why)), ..self }
    }

    /// Whether the ending names processes that could not be ended.
    pub fn names_survivors(&self) -> bool {
        [Id::Unkillable, Id::Forbidden].contains(&self.id)
    }

    /// Whether the engine's last lines show the cause, on any node.
    pub(crate) fn blames_engine(&self) -> bool {
        self.rank.is_none()
            && matches!(
                self.id,
                Id::EngineExec
                    | Id::EngineStart
                    | Id::EngineRanks
                    | Id::EngineGone
                    | Id::EngineEnd
                    | Id::PortLost
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of rank 0, and the cause in its output.
    fn ended(id: Id, code: i32, said: Option<&str>, consequence: bool) -> Ending {
        let text = Text::same("rank 0 ended");
        let ending = Ending::new(code, Class::Script, id, text, Text::same("read it"));
        let why = said.map(|id| {
            let said = Why::without_log(id, Text::same("said"), Text::same("do"));
            Box::new(Why { rank: Some(0), log: "rank-0.err".to_owned(), line: 7, ..said })
        });
        Ending { rank: Some(0), why, consequence, ..ending }
    }

    fn culprit() -> FirstCulprit {
        FirstCulprit {
            node: Some(1),
            rank: Some(2),
            frame: Some("train.py:41 load".to_owned()),
            text: Text::same("rank 2 never came"),
            hint: Text::same("look there"),
            confidence: Confidence::Likely,
            waiting: vec![0, 1, 3],
        }
    }

    #[test]
    fn only_given_up_waits_yield_to_the_culprit() {
        for (id, code, said, consequence, yields) in [
            (Id::RankExit, 1, Some("watchdog_timeout"), false, true),
            (Id::RankSignal, 134, Some("watchdog_timeout"), false, true),
            (Id::RankExit, 1, Some("store_timeout"), false, true),
            (Id::RankExit, 1, None, true, true),
            // A failure of its own, a signal from outside, a kill by the kernel, and an end without any output.
            (Id::RankExit, 1, Some("user_exception"), false, false),
            (Id::RankSignal, 137, Some("killed_by_signal"), false, false),
            (Id::MemoryOom, 137, None, true, false),
            (Id::RankExit, 3, None, false, false),
            (Id::StoppedSignal, 143, None, true, false),
        ] {
            let before = ended(id, code, said, consequence);
            let after = before.clone().of_given_up_wait(Some(culprit()));
            assert_eq!(after.id == Id::Hang, yields, "{before:?}");
            assert_eq!((after.code, after.class), (code, Class::Script));
            if !yields {
                assert_eq!(after, before);
            }
            // The control: no hang was reported, or the job went on.
            assert_eq!(before.clone().of_given_up_wait(None), before);
        }
    }

    #[test]
    fn hang_cause_names_culprit_and_shows_log_line() {
        let before = ended(Id::RankExit, 1, Some("watchdog_timeout"), false);
        let after = before.of_given_up_wait(Some(culprit()));
        assert_eq!(
            (after.rank, after.node, &*after.text.en),
            (Some(2), Some(1), "rank 2 never came")
        );
        let why = after.why.expect("a cause");
        assert_eq!(
            (&*why.id, why.rank, why.frame.as_deref()),
            ("hang", Some(2), Some("train.py:41 load"))
        );
        assert_eq!((&*why.log, why.line, why.confidence), ("rank-0.err", 7, Confidence::Likely));
        let [victims] = &why.victims[..] else { panic!("{:?}", why.victims) };
        assert_eq!((&victims.ranks[..], &*victims.id), (&[0, 1, 3][..], "watchdog_timeout"));
    }
}
