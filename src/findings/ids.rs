//! Every id that the program says, and how it is used where no other table says so.
//!
//! An id is a contract: it stands in run.json, in termination messages, in profiles and in
//! people's alerts, so one that has been released keeps its spelling. What is a check stands in
//! [`crate::check::TABLE`] and what is a rule of lint in [`crate::lint::RULES`], with what they
//! cost; here stands what the others do: refuse, warn, or end a job.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::Family;
use crate::verdict::Verdict;

/// What is said under an id, and which exit code that has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Nothing is started.
    Refuses(Verdict),
    /// Said; the launch goes on.
    Warns,
    /// The cause of a job's end.
    Ends(Exit),
}

/// The exit code of a job that ended for a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Verdict(Verdict),
    Code(i32),
    /// That of the rank, the engine or the command which is the cause.
    Own,
    /// 128 plus the signal.
    Signal,
    /// As shells do: 126 for what may not be executed, 127 for what is not there.
    NotExecuted,
}

use Exit::{Code, NotExecuted, Own, Signal};
use Use::{Ends, Refuses, Warns};
use Verdict::{
    EngineStart, Internal, Layout, Limit, MasterName, MasterReach, Membership, Muster, OtherNode,
    PortInUse, Python, Rdma, Stale, Usage,
};

/// `Family { Name = "id": [uses], … } …`
macro_rules! ids {
    ($($family:ident { $($name:ident = $id:literal: [$($use:expr),*],)* })*) => {
        /// A stable id of a check, a rule, a refusal, a warning or a cause.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Id { $($($name,)*)* }

        impl Id {
            /// All of them, family by family.
            pub const ALL: &[Id] = &[$($(Id::$name,)*)*];

            pub const fn as_str(self) -> &'static str {
                match self { $($(Id::$name => $id,)*)* }
            }

            /// What it belongs to; its explanation stands in that family's file.
            pub const fn family(self) -> Family {
                match self { $($(Id::$name => Family::$family,)*)* }
            }

            /// What is said under it beside what the tables of checks and of rules say.
            pub const fn uses(self) -> &'static [Use] {
                match self { $($(Id::$name => &[$($use),*],)*)* }
            }
        }
    };
}

ids! {
    Gpu {
        GpuFault = "gpu.fault": [],
        GpuFaultLost = "gpu.fault.lost": [],
        GpuFaultResetRequired = "gpu.fault.reset-required": [],
        GpuFaultRecovery = "gpu.fault.recovery": [],
        GpuFaultRemap = "gpu.fault.remap": [],
        GpuFaultProhibited = "gpu.fault.prohibited": [],
        GpuFaultMismatch = "gpu.fault.mismatch": [],
        GpuFaultDriver = "gpu.fault.driver": [],
        GpuFaultAccess = "gpu.fault.access": [],
        GpuFaultHung = "gpu.fault.hung": [],
        GpuFaultCrash = "gpu.fault.crash": [],
        GpuFaultUnknown = "gpu.fault.unknown": [],
        GpuFabric = "gpu.fabric": [],
        GpuCount = "gpu.count": [],
        GpuBusy = "gpu.busy": [],
        GpuHealth = "gpu.health": [],
        GpuLink = "gpu.link": [],
        GpuMode = "gpu.mode": [],
        HamiLimit = "hami.limit": [],
        GpuNone = "gpu.none": [Warns],
        GpuUnused = "gpu.unused": [Warns],
        GpuLocalRank = "gpu.local-rank": [Warns],
        GpuMig = "gpu.mig": [Warns],
        BindCommand = "bind.command": [Warns],
        BindUnknown = "bind.unknown": [Warns],
    }
    Limits {
        ShmSize = "shm.size": [],
        ShmLeftovers = "shm.leftovers": [],
        Memlock = "memlock": [],
        Nofile = "nofile": [Refuses(Limit)],
        PidsLimit = "pids.limit": [Refuses(Limit)],
        RandomNone = "random.none": [Refuses(Limit)],
        StackSize = "stack.size": [],
        MemoryLimit = "memory.limit": [],
        CpuLimit = "cpu.limit": [],
        DiskLogs = "disk.logs": [],
        DiskSpace = "disk.space": [],
        StorageAlive = "storage.alive": [],
        SignalsTerm = "signals.term": [],
        ClockSync = "clock.sync": [Warns, Refuses(Muster)],
        LogsFolder = "logs.folder": [Warns],
        LogsMemory = "logs.memory": [Warns],
        LauncherGrace = "launcher.grace": [Warns],
    }
    Network {
        PortFree = "port.free": [Refuses(PortInUse)],
        PortForbidden = "port.forbidden": [Refuses(PortInUse)],
        PortNone = "port.none": [Refuses(PortInUse)],
        MasterResolve = "master.resolve": [Refuses(MasterName)],
        MasterReach = "master.reach": [Refuses(MasterReach)],
        MasterAddr = "master.addr": [Warns],
        MasterElsewhere = "master.elsewhere": [Warns],
        MasterLocalhost = "master.localhost": [Warns],
        MasterPort = "master.port": [Warns],
        NetInterface = "net.interface": [Warns],
        RdmaPorts = "rdma.ports": [Refuses(Rdma)],
        RdmaGpudirect = "rdma.gpudirect": [],
        EnvNccl = "env.nccl": [],
        EnvProxy = "env.proxy": [],
    }
    Program {
        ProgramMissing = "program.missing": [Refuses(Usage)],
        ScriptFile = "script.file": [],
        EngineFile = "engine.file": [],
        EngineConfig = "engine.config": [Warns],
        PythonInterpreter = "python.interpreter": [Refuses(Python), Warns],
        PythonTorch = "python.torch": [],
        CudaCompat = "cuda.compat": [],
        NumaCalls = "numa.calls": [],
        TorchAllreduce = "torch.allreduce": [],
        PlaceholderUnknown = "placeholder.unknown": [Warns],
        InteractiveNproc = "interactive.nproc": [Refuses(Usage)],
        SelfPath = "self.path": [Refuses(Internal)],
        Internal = "internal": [Refuses(Internal)],
    }
    Membership {
        MembershipHalfGiven = "membership.half-given": [Refuses(Membership)],
        MembershipContradiction = "membership.contradiction": [Refuses(Membership)],
        MembershipNumber = "membership.number": [Refuses(Membership)],
        MembershipRank = "membership.rank": [Refuses(Membership), Warns],
        MembershipProcesses = "membership.processes": [Refuses(Membership)],
        MembershipTasks = "membership.tasks": [Refuses(Membership)],
        MembershipNproc = "membership.nproc": [Refuses(Membership)],
        MembershipElastic = "membership.elastic": [Refuses(Membership)],
        MembershipMasterAddr = "membership.master-addr": [Refuses(Membership)],
        MembershipMasterPort = "membership.master-port": [Refuses(Membership)],
        MembershipWorldSize = "membership.world-size": [Warns],
        Nested = "nested": [Refuses(Membership)],
        EnvStaleRank = "env.stale-rank": [Warns],
    }
    Layout {
        LayoutLiteral = "layout.literal": [Refuses(Layout)],
        LayoutNproc = "layout.nproc": [Refuses(Layout)],
        LayoutUnsolvable = "layout.unsolvable": [Refuses(Layout)],
        LayoutAlone = "layout.alone": [Refuses(Layout)],
        LayoutMinNproc = "layout.min-nproc": [Refuses(Layout)],
        LayoutArgument = "layout.argument": [Warns],
        LayoutElastic = "layout.elastic": [Warns],
        LayoutHeadsConflict = "layout.heads-conflict": [Warns],
        LayoutHeadsUnknown = "layout.heads-unknown": [Warns],
        LayoutUnreadable = "layout.unreadable": [Warns],
        SelectNoMatch = "select.no-match": [Refuses(Layout)],
        NprocRange = "nproc.range": [Refuses(Usage)],
        NprocTasks = "nproc.tasks": [Refuses(Usage)],
    }
    Muster {
        MusterMissing = "muster.missing": [Refuses(Muster)],
        MusterDeclined = "muster.declined": [Refuses(Muster)],
        MusterDuplicate = "muster.duplicate": [Refuses(Muster)],
        MusterRank = "muster.rank": [Refuses(Muster)],
        MusterNnodes = "muster.nnodes": [Refuses(Muster)],
        MusterJob = "muster.job": [Refuses(PortInUse), Refuses(Muster)],
        MusterOtherJob = "muster.other-job": [Refuses(Muster)],
        MusterAttempt = "muster.attempt": [Refuses(Muster)],
        MusterStore = "muster.store": [Refuses(Muster)],
        MusterPlainTorchrun = "muster.plain-torchrun": [Refuses(Muster)],
        MusterSecret = "muster.secret": [Refuses(Usage), Refuses(Muster)],
        MusterElastic = "muster.elastic": [Refuses(Muster)],
        MusterNofile = "muster.nofile": [Refuses(Limit)],
        MusterEngine = "muster.engine": [Refuses(Muster)],
        MusterRule = "muster.rule": [Refuses(Muster)],
        MusterHeads = "muster.heads": [Refuses(Muster)],
        MusterLayout = "muster.layout": [Refuses(Layout)],
        MusterTasks = "muster.tasks": [Refuses(Muster)],
        MusterVersion = "muster.version": [Warns, Refuses(Muster)],
        MusterScript = "muster.script": [Warns, Refuses(Muster)],
        MusterTorch = "muster.torch": [Warns, Refuses(Muster)],
        MusterDriver = "muster.driver": [Warns, Refuses(Muster)],
        MusterGpus = "muster.gpus": [Warns],
        MusterNccl = "muster.nccl": [Warns, Refuses(Muster)],
        MusterRails = "muster.rails": [Warns, Refuses(Muster)],
        MusterRates = "muster.rates": [Warns, Refuses(Muster)],
        MusterLinkLayer = "muster.link-layer": [Warns, Refuses(Muster)],
        MusterMtu = "muster.mtu": [Warns, Refuses(Muster)],
        NodesArrive = "nodes.arrive": [Refuses(Muster)],
        NodesChecks = "nodes.checks": [],
        NodesDiffer = "nodes.differ": [],
        NodesRails = "nodes.rails": [],
        LinkReach = "link.reach": [Refuses(PortInUse)],
        LinkLatency = "link.latency": [],
        LinkBandwidth = "link.bandwidth": [],
        RestartsElastic = "restarts.elastic": [Warns],
        RestartsMuster = "restarts.muster": [Warns],
    }
    Settings {
        Flags = "flags": [Refuses(Usage)],
        SettingsProfile = "settings.profile": [Refuses(Usage)],
        SettingsChdir = "settings.chdir": [Refuses(Usage)],
        SettingsHung = "settings.hung": [Refuses(Usage)],
        SettingsProgram = "settings.program": [Refuses(Usage)],
        SettingsModule = "settings.module": [Refuses(Usage)],
        SettingsLauncherAsScript = "settings.launcher_as_script": [Refuses(Usage)],
        SettingsShellScript = "settings.shell_script": [Refuses(Usage)],
        SettingsTarget = "settings.target": [Refuses(Usage)],
        SettingsAssume = "settings.assume": [Refuses(Usage)],
        SettingsValue = "settings.value": [Refuses(Usage)],
        SettingsGrace = "settings.grace": [Refuses(Usage), Warns],
        SettingsNodeRank = "settings.node_rank": [Refuses(Usage), Warns],
        SettingsEmpty = "settings.empty": [Warns],
        SettingsUnknownVariable = "settings.unknown_variable": [Warns],
        SettingsSeverity = "settings.severity": [Refuses(Usage)],
        SettingsEngine = "settings.engine": [Refuses(Usage)],
        SettingsPython = "settings.python": [Refuses(Usage)],
        SettingsCondaEnv = "settings.conda_env": [Refuses(Usage)],
        SettingsEnv = "settings.env": [Refuses(Usage)],
        SettingsInteractive = "settings.interactive": [Refuses(Usage)],
        SettingsNnodes = "settings.nnodes": [Refuses(Usage)],
        SettingsMasterAddr = "settings.master_addr": [Refuses(Usage)],
        SettingsMasterPort = "settings.master_port": [Refuses(Usage)],
        SettingsWorldSizeCounts = "settings.world_size_counts": [Refuses(Usage)],
        SettingsRdzv = "settings.rdzv": [Refuses(Usage)],
        SettingsNested = "settings.nested": [Refuses(Usage)],
        SettingsNprocPerNode = "settings.nproc_per_node": [Refuses(Usage)],
        SettingsMinNproc = "settings.min_nproc": [Refuses(Usage)],
        SettingsDevice = "settings.device": [Refuses(Usage)],
        SettingsLayout = "settings.layout": [Refuses(Usage)],
        SettingsHeads = "settings.heads": [Refuses(Usage)],
        SettingsUlyssesArgument = "settings.ulysses_argument": [Refuses(Usage)],
        SettingsRingArgument = "settings.ring_argument": [Refuses(Usage)],
        SettingsCheckpointArgument = "settings.checkpoint_argument": [Refuses(Usage)],
        SettingsStale = "settings.stale": [Refuses(Usage)],
        SettingsMuster = "settings.muster": [Refuses(Usage)],
        SettingsMusterPort = "settings.muster_port": [Refuses(Usage)],
        SettingsWaitTimeout = "settings.wait_timeout": [Refuses(Usage)],
        SettingsRdma = "settings.rdma": [Refuses(Usage)],
        SettingsProbe = "settings.probe": [Refuses(Usage)],
        SettingsBind = "settings.bind": [Refuses(Usage)],
        SettingsDeadline = "settings.deadline": [Refuses(Usage)],
        SettingsMaxRestarts = "settings.max_restarts": [Refuses(Usage)],
        SettingsLogDir = "settings.log_dir": [Refuses(Usage)],
        SettingsLogCapRank = "settings.log_cap_rank": [Refuses(Usage)],
        SettingsLogCapNode = "settings.log_cap_node": [Refuses(Usage)],
        SettingsConsole = "settings.console": [Refuses(Usage)],
        SettingsConsolePrefix = "settings.console_prefix": [Refuses(Usage)],
        SettingsTerminationLog = "settings.termination_log": [Refuses(Usage)],
        SettingsLang = "settings.lang": [Refuses(Usage)],
        SettingsHostRoot = "settings.host_root": [Refuses(Usage)],
        CaptureFolder = "capture.folder": [Refuses(Usage)],
        ReportWrite = "report.write": [Refuses(Usage)],
        InstallWrite = "install.write": [Refuses(Usage)],
        LintUnreadable = "lint.unreadable": [Refuses(Usage)],
        ExplainUnknown = "explain.unknown": [Refuses(Usage)],
    }
    End {
        Done = "done": [Ends(Code(0))],
        RankExit = "rank.exit": [Ends(Own)],
        RankSignal = "rank.signal": [Ends(Signal)],
        RankExec = "rank.exec": [Ends(NotExecuted)],
        InitExec = "init.exec": [Ends(NotExecuted)],
        MemoryOom = "memory.oom": [Ends(Code(137))],
        ShimKilled = "shim.killed": [Ends(Code(137))],
        GuardKilled = "guard.killed": [Ends(Code(137))],
        AgentKilled = "agent.killed": [Ends(Signal)],
        AgentHung = "agent.hung": [Ends(Signal)],
        StoppedSignal = "stopped.signal": [Ends(Signal)],
        EngineExec = "engine.exec": [Refuses(EngineStart)],
        EngineStart = "engine.start": [Ends(Exit::Verdict(EngineStart))],
        EngineRanks = "engine.ranks": [Ends(Exit::Verdict(EngineStart))],
        EngineGone = "engine.gone": [Ends(Own), Ends(Exit::Verdict(Internal))],
        EngineEnd = "engine.end": [Ends(Own)],
        PortLost = "port.lost": [Ends(Exit::Verdict(PortInUse))],
        NodeDied = "node.died": [Ends(Code(143))],
        NodeSilent = "node.silent": [Ends(Code(143))],
        NodeOther = "node.other": [Ends(Exit::Verdict(OtherNode))],
        Unkillable = "unkillable": [Ends(Exit::Verdict(Stale))],
        Forbidden = "forbidden": [Ends(Exit::Verdict(Stale))],
        StaleUnkillable = "stale.unkillable": [Refuses(Stale)],
        StaleEnded = "stale.ended": [Warns],
        StaleBeside = "stale.beside": [Warns],
    }
    Lint {
        GpuNproc = "gpu.nproc": [],
        GpuRequests = "gpu.requests": [],
        GpuMem = "gpu.mem": [],
        GpuVisible = "gpu.visible": [],
        NodesSingle = "nodes.single": [],
        NodesCount = "nodes.count": [],
        NodesProcesses = "nodes.processes": [],
        NodesWorldSize = "nodes.world-size": [],
        NodesRank = "nodes.rank": [],
        ProfileSelect = "profile.select": [],
        LayoutWorld = "layout.world": [],
        LayoutHeads = "layout.heads": [],
        JobIndex = "job.index": [],
        JobCompletions = "job.completions": [],
        JobSubdomain = "job.subdomain": [],
        PytorchjobMaster = "pytorchjob.master": [],
        PytorchjobContainer = "pytorchjob.container": [],
        PytorchjobRank = "pytorchjob.rank": [],
        PytorchjobElastic = "pytorchjob.elastic": [],
        TrainjobReserved = "trainjob.reserved": [],
        RayNodes = "ray.nodes": [],
        LauncherNone = "launcher.none": [],
        ShmMissing = "shm.missing": [],
        ShmMedium = "shm.medium": [],
        MemoryMissing = "memory.missing": [],
        MemoryNode = "memory.node": [],
        CpuMissing = "cpu.missing": [],
        GraceShort = "grace.short": [],
        NetworkPort = "network.port": [],
        NetworkDns = "network.dns": [],
        EnvUndefined = "env.undefined": [],
        MasterSelf = "master.self": [],
        ServiceLinks = "service.links": [],
        SignalsShell = "signals.shell": [],
        CommandCut = "command.cut": [],
        CommandRefused = "command.refused": [],
        CommandUnread = "command.unread": [],
        YamlDuplicateKey = "yaml.duplicate-key": [],
        KindUnknown = "kind.unknown": [],
    }
}

/// The word is no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unknown;

impl FromStr for Id {
    type Err = Unknown;

    fn from_str(word: &str) -> Result<Id, Unknown> {
        Id::ALL.iter().copied().find(|id| id.as_str() == word).ok_or(Unknown)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.as_str())
    }
}

impl AsRef<str> for Id {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl From<Id> for String {
    fn from(id: Id) -> String {
        id.as_str().to_owned()
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
