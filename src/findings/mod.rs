//! What the program says by id, explained: what it means, why it matters, how it is mended
//! and how it is overridden.
//!
//! Owns the table of ids ([`Id`]) and their explanations, which are data (`text/*.toml`, one
//! file per family, parsed when somebody asks). Takes an id or an exit code; gives an
//! [`Explanation`] in both languages. Kind, exit code and severity are not written there: they
//! are those of the tables that a launch itself uses. Judges nothing.

mod codes;
mod ids;
mod library;

pub use codes::ExitCode;
pub use ids::{Exit, Id, Use};
pub use library::{Explanation, sources};

use crate::check::{self, Usual};
use crate::lang::Text;
use crate::lint;
use crate::text;

/// What ids are about; the order in which they are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    Gpu,
    Limits,
    Network,
    Program,
    Membership,
    Layout,
    Muster,
    Settings,
    End,
    Lint,
}

impl Family {
    pub const ALL: &[Family] = &[
        Family::Gpu,
        Family::Limits,
        Family::Network,
        Family::Program,
        Family::Membership,
        Family::Layout,
        Family::Muster,
        Family::Settings,
        Family::End,
        Family::Lint,
    ];

    pub fn title(self) -> Text {
        match self {
            Family::Gpu => text!("GPUs", "GPU"),
            Family::Limits => text!("Limits, disks, clock and logs", "资源限制、磁盘、时钟与日志"),
            Family::Network => text!("Ports, master, RDMA and NCCL", "端口、Master、RDMA 与 NCCL"),
            Family::Program => text!("Program, python and torch", "程序、Python 与 torch"),
            Family::Membership => {
                text!("Which node of how many", "节点数与节点编号")
            }
            Family::Layout => text!("Processes and parallel sizes", "进程数与并行规模"),
            Family::Muster => text!("Between the nodes", "节点之间"),
            Family::Settings => {
                text!("Command line, variables and profile", "命令行、变量与配置文件")
            }
            Family::End => text!("How a job ended", "任务如何结束"),
            Family::Lint => text!("Rules of lint", "lint 规则"),
        }
    }
}

/// How an id comes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A line of `ranklaunch check`, by which `run` judges as well.
    Check,
    /// Nothing is started.
    Refusal,
    Warning,
    /// The cause of a job's end.
    Cause,
    /// A rule of `ranklaunch lint`.
    Lint,
}

impl Kind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Check => "check",
            Kind::Refusal => "refusal",
            Kind::Warning => "warning",
            Kind::Cause => "cause",
            Kind::Lint => "lint",
        }
    }

    pub fn words(self) -> Text {
        match self {
            Kind::Check => text!("check", "检查项"),
            Kind::Refusal => text!("refusal", "拒绝启动"),
            Kind::Warning => text!("warning", "警告"),
            Kind::Cause => text!("cause of an end", "结束原因"),
            Kind::Lint => text!("rule of lint", "lint 规则"),
        }
    }
}

impl Id {
    /// The check under which it is judged: its own, or for `gpu.fault.lost` that of `gpu.fault`.
    pub fn check(self) -> Option<&'static check::Row> {
        let is_of = |row: &&check::Row| {
            let rest = self.as_str().strip_prefix(row.id);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        check::TABLE.iter().find(is_of)
    }

    /// What it does where neither the user nor a profile says; checks only.
    pub fn severity(self) -> Option<Usual> {
        self.check().map(|row| row.usual)
    }

    pub fn is_of_lint(self) -> bool {
        self.family() == Family::Lint || lint::RULES.iter().any(|rule| rule.id == self.as_str())
    }

    /// At least one.
    pub fn kinds(self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = self
            .uses()
            .iter()
            .map(|one| match one {
                Use::Refuses(_) => Kind::Refusal,
                Use::Warns => Kind::Warning,
                Use::Ends(_) => Kind::Cause,
            })
            .chain(self.check().map(|_| Kind::Check))
            .chain(self.is_of_lint().then_some(Kind::Lint))
            .collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// The exit codes that it can have, each once: of its check, of refusals, of ends, of lint.
    pub fn codes(self) -> Vec<Exit> {
        let of_uses = self.uses().iter().filter_map(|one| match one {
            Use::Refuses(verdict) => Some(Exit::Verdict(*verdict)),
            Use::Ends(exit) => Some(*exit),
            Use::Warns => None,
        });
        let mut codes: Vec<Exit> = Vec::new();
        // These two say what was not checked, which does not count.
        let counts = !matches!(self, Id::CommandUnread | Id::KindUnknown);
        let of_lint = (self.is_of_lint() && counts).then_some(Exit::Code(1));
        let all = self.check().map(|row| Exit::Verdict(row.verdict)).into_iter();
        for code in all.chain(of_uses).chain(of_lint) {
            if !codes.contains(&code) {
                codes.push(code);
            }
        }
        codes
    }
}

impl Exit {
    /// `80`, `128 + signal`, `126 or 127`, `that of the rank or the engine`.
    pub fn words(self) -> Text {
        match self {
            Exit::Verdict(verdict) => Text::same(verdict.code().to_string()),
            Exit::Code(code) => Text::same(code.to_string()),
            Exit::Own => text!("that of the one that failed", "失败者自身的退出码"),
            Exit::Signal => text!("128 + signal", "128 + 信号编号"),
            Exit::NotExecuted => text!("126 or 127", "126 或 127"),
        }
    }
}
