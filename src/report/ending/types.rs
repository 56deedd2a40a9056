//! The type [`Ending`]: an exit code, its cause and the text.

use serde::{Deserialize, Serialize};

use crate::lang::Text;
use crate::rank::GlobalRank;
use crate::supervise::{Planned, RankUnit};
use crate::sys::Signal;
use crate::text;
use crate::verdict::{Class, Confidence, Id, Why};

/// How the program ends and why, for the console, run.json and the termination message.
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
    /// The root cause, where the output of the processes shows it.
    #[serde(default)]
    pub why: Option<Box<Why>>,
    /// The output shows only that something failed elsewhere.
    #[serde(default)]
    pub consequence: bool,
}

/// Whose output shows the cause of an ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// A rank, or the command that the node runs with engine `command`.
    Started(GlobalRank),
    Engine,
}

impl Ending {
    /// An ending that names no node.
    pub(super) fn new(
        code: i32,
        class: Class,
        id: Id,
        rank: Option<u32>,
        text: Text,
        hint: Text,
    ) -> Ending {
        Ending { code, class, id, rank, node: None, text, hint, why: None, consequence: false }
    }

    /// Whose output shows the cause. None if ranklaunch itself or a stop from outside is the
    /// cause.
    pub fn speaker(&self, planned: Planned) -> Option<Speaker> {
        let command = self.class == Class::Script && planned.what == RankUnit::Command;
        let started = self.culprit().map(GlobalRank).or(command.then_some(planned.first));
        started.map(Speaker::Started).or(self.blames_engine().then_some(Speaker::Engine))
    }

    /// The global rank that caused it: the one that the output blames, else the one that ended
    /// first.
    pub fn culprit(&self) -> Option<u32> {
        self.why.as_ref().and_then(|why| why.rank).or(self.rank)
    }

    /// Whether the output of the processes can explain it.
    pub(crate) fn asks_why(&self) -> bool {
        let says_so_itself = matches!(self.id, Id::RankExec | Id::PortLost | Id::EngineExec);
        !says_so_itself && (self.class == Class::Script || self.blames_engine())
    }

    /// The same ending with what the output says. Where the kernel named the cause, its words are
    /// more precise than those of the catalogue.
    #[must_use]
    pub(crate) fn explained(self, why: Why) -> Ending {
        let why = match self.id {
            Id::MemoryOom => {
                let (text, remedy) = (self.text.clone(), self.hint.clone());
                Why { text, remedy, confidence: Confidence::Certain, ..why }
            }
            // Only the end of the rank shows it, and that is known better here.
            _ if why.log.is_empty() => {
                let counted = [128 + Signal::KILL.as_raw(), 128 + Signal::BUS.as_raw()];
                let remedy = if counted.contains(&self.code) { &self.hint } else { &why.remedy };
                Why { text: self.text.clone(), remedy: remedy.clone(), ..why }
            }
            _ => why,
        };
        // Of the command of a node, a rank that a line names is one of the command's own.
        let rank = why.rank.filter(|_| self.rank.is_some() || self.class != Class::Script);
        Ending { why: Some(Box::new(Why { rank, ..why })), ..self }
    }

    /// The same ending where the output shows only consequences.
    #[must_use]
    pub(crate) fn unexplained(self) -> Ending {
        let hint = text!(
            "its output shows only consequences of a failure elsewhere: read the logs of the other ranks and nodes, and the events of the platform (kubectl describe pod, sacct, dmesg)",
            "其输出只有别处故障的后果：请查看其他 rank 与节点的日志，以及平台事件（kubectl describe pod、sacct、dmesg）"
        );
        let hint = if self.id == Id::RankExit { hint } else { self.hint };
        Ending { hint, consequence: true, ..self }
    }

    /// Whether it names processes that could not be ended.
    pub fn names_survivors(&self) -> bool {
        [Id::Unkillable, Id::Forbidden].contains(&self.id)
    }

    /// Whether the engine's last lines show the cause, on any node.
    pub fn blames_engine(&self) -> bool {
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
