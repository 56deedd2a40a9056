//! The façade for tests, benches and fuzz targets outside of the crate.
//!
//! Everything else is private to the crate, so that the compiler reports unused code. This is no
//! interface for other programs: it changes without notice.

pub mod check {
    pub use crate::check::CheckStatus;
}
pub mod cli {
    pub use crate::cli::{Cli, Command, Stop, definition, parse};
}
pub mod decide {
    pub use crate::decide::{Stage, decide};
}
pub mod findings {
    pub use crate::findings::{Exit, ExitCode, Explanation, Family, Id, IdKind, sources};
}
#[cfg(any(test, fuzzing))]
pub mod fuzz {
    pub use crate::fuzz::{TARGETS, Target, run};
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
    pub use crate::contract::known_variables;
    pub use crate::observe::{Gpu, GpuFacts, GpuSource};
    pub mod gpu {
        pub use crate::observe::gpu::{FabricState, gpus, gpus_within, visible};
    }
}
pub mod pace {
    pub use crate::pace::Pace;
}
pub mod torchrun {
    pub use crate::torchrun_options::torchrun_options;
}
pub mod plan {
    pub use crate::plan::{Plan, Scope, nccl::misuse};
}
pub mod rank {
    pub use crate::rank::{GlobalRank, LocalRank};
}
pub mod status {
    use std::time::Duration;

    use crate::muster::Session;

    /// Answers each question of a session with this status.
    pub fn answer(session: &Session, status: NodeStatus) {
        session.questions().answer_with(move |_| serde_json::to_vec(&status).unwrap_or_default());
    }

    /// Asks all nodes of a session as a viewer on node 0 does; gives a function that blocks, packs what the viewer is sent, and then says
    /// how many answered, and the bytes of all.
    pub fn ask(
        session: &Session,
        nodes: usize,
        within: Duration,
    ) -> impl FnOnce() -> (u32, usize) + Send + use<> {
        let questions = session.questions();
        move || {
            let (mut read, mut bytes) = (0, 0);
            let asked = br#"{"question":"status"}"#.to_vec();
            questions.watch(asked, look_pace(nodes, true), within, |_, answer| {
                let packed = answer.ok().and_then(|packed| serde_json::to_string(&packed).ok());
                let Some(packed) = packed else { return };
                bytes += packed.len();
                read += 1;
            });
            (read, bytes)
        }
    }

    pub use crate::status::{
        EndStatus, GpuStatus, HcaStatus, InterfaceStatus, Ledger, LogStatus, MemoryStatus,
        NodeStatus, Phase, RankState, RankStatus, RunStatus, SlowStatus, Standstill, StatusBoard,
        look_pace,
    };
}
pub mod probe {
    pub use crate::probe::{Answer, ProbeError, run};
}
pub mod report {
    pub use crate::report::{closing, plan_json, plan_shell, plan_view};
}
pub mod settings {
    pub use crate::settings::{EMBEDDED, Engine, Form, LayoutRule, ProbeMode, forms, read};
}
pub mod sys {
    pub use crate::sys::{Dispositions, Signal, SignalSet, in_child, restore_in_child, send};
}
pub mod verdict {
    pub use crate::verdict::{Class, Refusal, Verdict};
}
