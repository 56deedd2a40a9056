//! A random job with a random fault.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use harness::chance::Chance;
use harness::{Role, run_args};

/// The termination message, in a job's folder.
pub(crate) const MESSAGE: &str = "message";

/// Weights of the faults.
const FAULTS: [Kind; 24] = {
    use Kind::*;
    [
        None,
        Kill,
        Kill,
        Kill,
        Kill,
        Kill,
        Stop,
        Stop,
        Stop,
        Term,
        Term,
        DiskFull,
        DiskFull,
        MuteConsole,
        MuteConsole,
        FolderDeleted,
        FolderDeleted,
        ClockStep,
        ClockStep,
        Cut,
        Freeze,
        Reset,
        Reset,
        Reset,
    ]
};
/// Weights of the engines; every start of torch takes seconds.
const ENGINES: [&str; 12] = [
    "direct",
    "direct",
    "direct",
    "direct",
    "direct",
    "command",
    "command",
    "deepspeed",
    "deepspeed",
    "torchrun",
    "accelerate",
    "accelerate",
];

/// A fault of a running job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// SIGKILL
    Kill {
        node: u32,
        role: Role,
    },
    /// SIGSTOP, and SIGCONT after this number of milliseconds.
    Stop {
        node: u32,
        role: Role,
        millis: u64,
    },
    /// SIGTERM to the launcher.
    Term {
        node: u32,
    },
    /// The log folder of node 0 is on a disk of this many KiB.
    DiskFull {
        kib: u32,
    },
    /// The console of node 0 is not read.
    MuteConsole,
    /// The log folder of node 0 is deleted while the job writes.
    FolderDeleted,
    /// The time of day jumps on a node.
    ClockStep {
        node: u32,
        seconds: i64,
    },
    /// The network of a node is cut.
    Cut {
        node: u32,
    },
    /// The launcher of a node is stopped for this many milliseconds, which the others survive.
    Freeze {
        node: u32,
        millis: u64,
    },
    /// The connections of a node to node 0 are reset, which all survive.
    Reset {
        node: u32,
    },
}

/// A [`Fault`] without its circumstances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    None,
    Kill,
    Stop,
    Term,
    DiskFull,
    MuteConsole,
    FolderDeleted,
    ClockStep,
    Cut,
    Freeze,
    Reset,
}

impl Kind {
    /// True if a job of one node cannot have this fault.
    pub(crate) fn needs_nodes(self) -> bool {
        matches!(self, Kind::Cut | Kind::Freeze | Kind::Reset)
    }
}

impl Fault {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Fault::None => Kind::None,
            Fault::Kill { .. } => Kind::Kill,
            Fault::Stop { .. } => Kind::Stop,
            Fault::Term { .. } => Kind::Term,
            Fault::DiskFull { .. } => Kind::DiskFull,
            Fault::MuteConsole => Kind::MuteConsole,
            Fault::FolderDeleted => Kind::FolderDeleted,
            Fault::ClockStep { .. } => Kind::ClockStep,
            Fault::Cut { .. } => Kind::Cut,
            Fault::Freeze { .. } => Kind::Freeze,
            Fault::Reset { .. } => Kind::Reset,
        }
    }

    /// The name in the account of a hunt.
    pub(crate) fn name(self) -> String {
        match self {
            Fault::Kill { role, .. } | Fault::Stop { role, .. } => {
                format!("{:?} {role:?}", self.kind())
            }
            other => format!("{:?}", other.kind()),
        }
    }

    /// True if the fault ends the job; otherwise the job's own end counts.
    pub(crate) fn is_fatal(self) -> bool {
        matches!(self, Fault::Kill { .. } | Fault::Term { .. } | Fault::Cut { .. })
    }
}

/// A job and its fault.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) engine: &'static str,
    pub(crate) nodes: u32,
    pub(crate) nproc: u32,
    /// Lines of each rank before it ends, and the microseconds between two.
    pub(crate) lines: u32,
    pub(crate) pause: u32,
    /// The rank that ends (`None`: all ranks) and its code; with a fatal fault no rank ends.
    pub(crate) ends: (Option<u32>, i32),
    pub(crate) fault: Fault,
    /// Milliseconds from the first line of all ranks to the fault.
    pub(crate) after: u64,
    /// Processes beside each rank, which the rank needs to save when the job is stopped. With 0, it
    /// does not save.
    pub(crate) helpers: u32,
}

impl Spec {
    /// A small job without a fault.
    pub(crate) fn plain() -> Spec {
        Spec {
            engine: "direct",
            nodes: 1,
            nproc: 2,
            lines: 200,
            pause: 100,
            ends: (None, 0),
            fault: Fault::None,
            after: 0,
            helpers: 0,
        }
    }

    /// Draws any fault of any job; without `all`, faults and engines that take seconds are left out.
    pub(crate) fn draw(chance: &mut Chance, all: bool) -> Spec {
        let kind = match chance.of(&FAULTS) {
            Kind::Cut | Kind::Freeze if !all => Kind::None,
            kind => kind,
        };
        let engine = if all { chance.of(&ENGINES) } else { "direct" };
        let uses_torch = matches!(engine, "torchrun" | "accelerate");
        let nodes = match chance.of(&[1, 1, 1, 2, 2, 3, 4]) {
            1 if kind.needs_nodes() => 2,
            nodes if uses_torch => nodes.min(2),
            nodes => nodes,
        };
        let nproc = 1 + chance.below(if uses_torch { 2 } else { 3 });
        let node = chance.below(nodes);
        let mut roles = vec![Role::Guard, Role::Agent, Role::Shim, Role::Rank];
        if uses_torch || engine == "deepspeed" {
            roles.push(Role::Engine);
        }
        let role = chance.of(&roles);
        let fault = match kind {
            Kind::None => Fault::None,
            Kind::Kill => Fault::Kill { node, role },
            Kind::Stop => Fault::Stop { node, role, millis: 20 + chance.below(1_500) },
            Kind::Term => Fault::Term { node },
            Kind::DiskFull => Fault::DiskFull { kib: 64 + chance.below(512) },
            Kind::MuteConsole => Fault::MuteConsole,
            Kind::FolderDeleted => Fault::FolderDeleted,
            Kind::ClockStep => {
                let seconds = chance.of(&[-86_400, -3_600, 3_600, 31_536_000]);
                Fault::ClockStep { node, seconds }
            }
            Kind::Cut => Fault::Cut { node },
            Kind::Freeze => Fault::Freeze { node, millis: 3_000 + chance.below(7_000) },
            Kind::Reset => Fault::Reset { node: node.max(1) },
        };
        let world = if engine == "command" { nodes } else { nodes * nproc };
        let fails = chance.below(3) == 0;
        let ends =
            if fails { (Some(chance.below(world)), chance.of(&[1, 3, 77])) } else { (None, 0) };
        let pause = chance.of(&[0, 0, 20, 200]);
        let lines = match pause {
            0 => 2_000 + chance.below(20_000),
            20 => 1_000 + chance.below(3_000),
            _ => 200 + chance.below(1_000),
        };
        let after = chance.below(150);
        let helpers = if kind == Kind::Term { chance.below(4) } else { 0 };
        Spec { engine, nodes, nproc, lines, pause, ends, fault, after, helpers }
    }

    /// Number of ranks, or commands, per node.
    pub(crate) fn local(&self) -> u32 {
        if self.engine == "command" { 1 } else { self.nproc }
    }

    /// The files in which the ranks of a node keep their count.
    pub(crate) fn byte_counts(
        &self,
        node: u32,
        folder: &Path,
    ) -> impl Iterator<Item = PathBuf> + use<> {
        let (first, folder) = (node * self.local(), folder.to_owned());
        (first..first + self.local()).map(move |rank| folder.join(format!("bytes-{rank}")))
    }

    pub(crate) fn arguments(&self, misbehave: PathBuf) -> Vec<OsString> {
        let mut args = run_args(self.engine, self.nproc);
        // A busy machine may need seconds for the saving.
        let grace = if self.helpers > 0 { "60s" } else { "2s" };
        args.extend(["--grace", grace, "--wait-timeout", "120s"].map(OsString::from));
        // The message is on another disk than the logs, and written before them.
        args.extend(["--termination-log", MESSAGE].map(OsString::from));
        args.extend(["--".into(), misbehave.into(), "number".into(), ".".into()]);
        // With a pause of 0, an endless rank would only measure the disk. A rank that is to be hit must
        // still run when the fault comes.
        let (lines, pause) = match self.fault {
            Fault::Stop { .. }
            | Fault::ClockStep { .. }
            | Fault::Freeze { .. }
            | Fault::Reset { .. } => (self.lines.max(1_500), self.pause.max(200)),
            _ if self.fault.is_fatal() => (self.lines, self.pause.max(100)),
            _ => (self.lines, self.pause),
        };
        args.extend([lines.to_string(), pause.to_string()].map(OsString::from));
        let (who, code) = self.ends;
        let who = match who {
            _ if self.fault.is_fatal() => "nobody".to_owned(),
            Some(rank) => rank.to_string(),
            None => "all".to_owned(),
        };
        args.push(format!("{who}={code}").into());
        args.push(self.helpers.to_string().into());
        args
    }
}
