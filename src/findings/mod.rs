//! What the program says by id, explained: what it means, why it matters, how it is mended
//! and how it is overridden.
//!
//! Owns the table of ids ([`Id`]) and their explanations, which are data (`text/*.toml`, one
//! file per family, parsed when somebody asks). Takes an id or an exit code; gives an
//! [`Explanation`] in both languages. Kind, exit code and severity are not written there: they
//! are those of the tables that a launch itself uses. Judges nothing.

mod codes;
mod library;

pub use crate::verdict::{Exit, Family, Id, Use, Usual};
pub use codes::ExitCode;
pub use library::{Explanation, sources};

use crate::lang::Text;
use crate::text;

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
    /// At least one.
    pub fn kinds(self) -> Vec<Kind> {
        let kind = |one: &Use| match one {
            Use::Checks(..) | Use::PartOf(_) => Kind::Check,
            Use::Refuses(_) => Kind::Refusal,
            Use::Warns => Kind::Warning,
            Use::Ends(_) => Kind::Cause,
            Use::Lints | Use::LintsUnread => Kind::Lint,
        };
        let mut kinds: Vec<Kind> = self.uses().iter().map(kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// The exit codes that it can have, each once: of its check, of refusals, of ends, of lint.
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
    /// `80`, `128 + signal`, `126 or 127`, `that of the rank or the engine`.
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
