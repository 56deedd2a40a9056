//! The façade for tests, benches and fuzz targets outside of the crate.
//!
//! Everything else is private to the crate, so that the compiler reports unused code. This is no
//! interface for other programs: it changes without notice.

pub mod check {
    pub use crate::check::CheckStatus;
}
pub mod cli {
    pub use crate::cli::{Cli, Command, Stop, parse};
}
pub mod decide {
    pub use crate::decide::{Stage, decide};
}
pub mod findings {
    pub use crate::findings::{Exit, ExitCode, Explanation, Family, Id, IdKind, sources};
}
#[cfg(any(test, fuzzing))]
pub mod fuzz {
    pub use crate::diagnose::fuzz::log;
    pub use crate::launch::fuzz::agreement;
    pub use crate::muster::fuzz::{frames, handshake};
}
pub mod host {
    pub use crate::host::Host;
}
pub mod lang {
    pub use crate::lang::{Lang, Text};
}
pub mod launch {
    pub use crate::launch::collect::{Deadlines, observe_within};
}
pub mod lint {
    pub use crate::lint::{
        Knowledge, LintLimits, LintSeverity, Manifest, RULES, Report, github, json, lint, size,
        text,
    };
}
pub mod muster {
    pub use crate::muster::{
        Accepted, Agreement, Assembly, Cause, Config, Joined, MemberKind, Memory, NodeSummary,
        PEER_TIMEOUT, Purpose, Secret, Session, SessionEvent, Settled, Without, gather, join, now,
    };
}
pub mod observe {
    pub use crate::observe::{Gpu, GpuFacts, GpuSource, known_variables};
    pub mod gpu {
        pub use crate::observe::gpu::{FabricState, gpus, gpus_within, visible};
    }
}
pub mod pace {
    pub use crate::pace::Pace;
}
pub mod plan {
    pub use crate::plan::{Plan, Scope, nccl::misuse};
}
pub mod probe {
    pub use crate::probe::{Answer, ProbeError, run};
}
pub mod report {
    pub use crate::report::{closing, plan_json, plan_shell, plan_view};
}
pub mod settings {
    pub use crate::settings::{EMBEDDED, Engine, LayoutRule, ProbeMode, forms, read};
}
pub mod sys {
    pub use crate::sys::{Dispositions, Signal, SignalSet, in_child, restore_in_child, send};
}
pub mod verdict {
    pub use crate::verdict::{Class, Refusal, Verdict};
}
