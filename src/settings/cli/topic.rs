//! The topics of `ranklaunch help TOPIC`. Their texts are in `report`, which knows the exit codes.

use clap::ValueEnum;

use text::lang::Text;
use text::text;

/// What `help` explains beside the commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Topic {
    Layout,
    Membership,
    Hangs,
    ExitCodes,
}

impl Topic {
    pub const ALL: [Topic; 4] = [Topic::Layout, Topic::Membership, Topic::Hangs, Topic::ExitCodes];

    pub fn name(self) -> &'static str {
        match self {
            Topic::Layout => "layout",
            Topic::Membership => "membership",
            Topic::Hangs => "hangs",
            Topic::ExitCodes => "exit-codes",
        }
    }

    pub(crate) fn named(word: &str) -> Option<Topic> {
        Topic::ALL.into_iter().find(|topic| topic.name() == word)
    }

    /// Its subject, in one line.
    pub(crate) fn about(self) -> Text {
        match self {
            Topic::Layout => text!(
                "processes per node and parallel sizes: how they are chosen",
                "每个节点的进程数与各并行度如何确定"
            ),
            Topic::Membership => text!(
                "nodes, ranks and master: who says what, and how nodes meet",
                "节点、rank 与 Master：由什么决定，各节点如何集结"
            ),
            Topic::Hangs => text!(
                "jobs that stand still: how they are found, and what to do",
                "任务卡死：如何发现，如何处理"
            ),
            Topic::ExitCodes => text!("all exit codes with their meaning", "全部退出码及其含义"),
        }
    }
}
