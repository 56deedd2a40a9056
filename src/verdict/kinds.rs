//! Kinds of ids, and their exit codes.

use text::lang::Text;
use text::text;

use crate::{Exit, Id, Use};

/// The kind of an id, by the place where it occurs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IdKind {
    /// A check of `ranklaunch check`, which `run` applies as well.
    Check,
    /// A refusal: nothing is started.
    Refusal,
    Warning,
    /// The cause of a job's end.
    Cause,
    /// A rule of `ranklaunch lint`.
    Lint,
}

impl IdKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            IdKind::Check => "check",
            IdKind::Refusal => "refusal",
            IdKind::Warning => "warning",
            IdKind::Cause => "cause",
            IdKind::Lint => "lint",
        }
    }

    pub fn words(self) -> Text {
        match self {
            IdKind::Check => text!("check", "检查项"),
            IdKind::Refusal => text!("refusal", "拒绝启动"),
            IdKind::Warning => text!("warning", "警告"),
            IdKind::Cause => text!("cause of an end", "结束原因"),
            IdKind::Lint => text!("rule of lint", "lint 规则"),
        }
    }
}

impl Id {
    /// All kinds of this id, at least one.
    pub fn kinds(self) -> Vec<IdKind> {
        let kind = |one: &Use| match one {
            Use::Checks(..) | Use::PartOf(_) => IdKind::Check,
            Use::Refuses(_) => IdKind::Refusal,
            Use::Warns => IdKind::Warning,
            Use::Ends(_) => IdKind::Cause,
            Use::Lints | Use::LintsUnread => IdKind::Lint,
        };
        let mut kinds: Vec<IdKind> = self.uses().iter().map(kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// The possible exit codes, each once: of its check, refusals, endings, lint.
    pub fn codes(self) -> Vec<Exit> {
        let mut codes: Vec<Exit> = Vec::new();
        for one in self.uses() {
            let code = match one {
                Use::Checks(verdict, _) | Use::Refuses(verdict) => Exit::Verdict(*verdict),
                Use::PartOf(check) => Exit::Verdict(check.verdict()),
                Use::Ends(exit) => *exit,
                Use::Lints => Exit::Code(1),
                Use::Warns | Use::LintsUnread => continue,
            };
            if !codes.contains(&code) {
                codes.push(code);
            }
        }
        codes
    }
}

impl Exit {
    /// `80`, `128 + signal`, `126 or 127`, `the exit code of the process that failed`.
    pub fn words(self) -> Text {
        match self {
            Exit::Verdict(verdict) => Text::same(verdict.code().to_string()),
            Exit::Code(code) => Text::same(code.to_string()),
            Exit::Own => text!("the exit code of the process that failed", "失败进程自身的退出码"),
            Exit::Signal => text!("128 + signal", "128 + 信号编号"),
            Exit::NotExecuted => text!("126 or 127", "126 或 127"),
        }
    }
}
