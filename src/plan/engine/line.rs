//! Builds a command line flag by flag.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use crate::Plan;
use text::version::Version;

/// Options that are known only when the engine is started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineOptions {
    /// The engine's own local, temporary log folder.
    pub log_dir: Option<PathBuf>,
    /// Time for which an engine that fails by itself waits after TERM before it kills its ranks.
    pub shutdown_timeout: Option<Duration>,
}

/// The interpreter, or the name by which a shell would find one.
pub(super) fn python(plan: &Plan) -> OsString {
    plan.python.as_ref().map_or_else(|| "python3".into(), |path| path.into())
}

/// The spelling of an engine's flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    Hyphens,
    Underscores,
}

impl Spelling {
    fn flag(self, name: &str) -> OsString {
        match self {
            Spelling::Hyphens => format!("--{name}").into(),
            Spelling::Underscores => format!("--{}", name.replace('-', "_")).into(),
        }
    }
}

/// torch's version; an unknown one counts as the plain 2.0.
pub(super) fn torch_version(plan: &Plan) -> Version {
    let known = plan.torch_version.as_deref().and_then(|version| version.parse().ok());
    known.unwrap_or(Version::new(2, 0, 0))
}

/// The command line so far.
pub(super) struct Line {
    pub(super) argv: Vec<OsString>,
    spelling: Spelling,
}

impl Line {
    pub(super) fn module(plan: &Plan, module: &str, spelling: Spelling) -> Line {
        Line { argv: vec![python(plan), "-m".into(), module.into()], spelling }
    }

    pub(super) fn switch(&mut self, name: &str) {
        self.argv.push(self.spelling.flag(name));
    }

    pub(super) fn value(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.switch(name);
        self.argv.push(value.as_ref().to_owned());
    }
}
