//! The table of ids: every finding with its use, exit code and default severity.
//!
//! An id is a contract: run.json, termination messages, profiles and users' alerts contain it,
//! so a released id keeps its spelling. The order is that of `check`'s report, in which the
//! first failure decides the exit code.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Severity, Verdict};
use text::lang::Text;
use text::text;

/// A use of an id, with its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// A check, which `run` applies as well; a failure refuses.
    Checks(Verdict, Usual),
    /// A finding that belongs to this check.
    PartOf(Id),
    /// A refusal: nothing is started.
    Refuses(Verdict),
    /// A warning: the launch goes on.
    Warns,
    /// The cause of a job's end.
    Ends(Exit),
    /// A rule of `lint`.
    Lints,
    /// A part that `lint` could not check; does not affect its exit code.
    LintsUnread,
}

/// The exit code of a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Verdict(Verdict),
    Code(i32),
    /// The code of the rank, the engine or the command that is the cause.
    Own,
    /// 128 plus the signal.
    Signal,
    /// As in shells: 126 if the program may not be executed, 127 if it does not exist.
    NotExecuted,
}

/// The default severity of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usual {
    Fail,
    Warn,
    /// Advice: no job fails because of it and no result changes. A launch only counts these,
    /// `check` explains them.
    Advise,
    /// Fails under this condition, and warns otherwise.
    FailWhere(Where),
}

/// Conditions under which a check fails that otherwise warns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Where {
    /// A job beside another one is slow; without free memory it cannot start.
    GpusAreFull,
    /// Without locked memory no buffer can be registered.
    RdmaIsRequired,
    /// Without a required muster differing nodes only give a warning.
    MusterIsRequired,
}

impl Where {
    pub fn words(self) -> Text {
        match self {
            Where::GpusAreFull => Text::new("where no further process fits", "再容不下任何进程时"),
            Where::RdmaIsRequired => Text::new("with --rdma required", "使用 --rdma required 时"),
            Where::MusterIsRequired => {
                Text::new("with --muster required", "使用 --muster required 时")
            }
        }
    }
}

impl Usual {
    /// The severity without the condition.
    pub const fn severity(self) -> Severity {
        match self {
            Fail => Severity::Fail,
            Warn | Advise | FailWhere(_) => Severity::Warn,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Fail => "fail",
            Warn | Advise | FailWhere(_) => "warn",
        }
    }

    /// The condition under which the check fails, in words.
    pub fn fails_where(self) -> Option<Text> {
        match self {
            Fail | Warn | Advise => None,
            FailWhere(place) => Some(place.words()),
        }
    }

    /// `fail`, `warn`, `warn; fail where …`.
    pub fn words(self) -> Text {
        let usual = self.as_str();
        match self.fails_where() {
            None => Text::same(usual),
            Some(Text { en, zh }) => text!("{usual}; fail {en}", "{usual}；{zh}为 fail"),
        }
    }
}

use Exit::{Code, NotExecuted, Own, Signal};
use Use::{Checks, Ends, Lints, LintsUnread, PartOf, Refuses, Warns};
use Usual::{Advise, Fail, FailWhere, Warn};
use Verdict::{
    EngineStart, GpuCount, GpuFabric, GpuFault, Internal, Layout, Limit, MasterName, MasterReach,
    Membership, Muster, NoProgress, OtherNode, PortInUse, Python, Rdma, Stale, Usage,
    WithoutProgress,
};

/// `Family("title", "标题") { Name = "id": [uses], … } …`
macro_rules! ids {
    ($($family:ident($en:literal, $zh:literal) {
        $($name:ident = $id:literal: [$($use:expr),*],)*
    })*) => {
        /// The subject of an id; ids are listed in this order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Family { $($family,)* }

        impl Family {
            pub const ALL: &[Family] = &[$(Family::$family,)*];

            pub fn title(self) -> Text {
                match self { $(Family::$family => Text::new($en, $zh),)* }
            }

            /// The ids of the family, in the order of the table.
            pub fn ids(self) -> impl Iterator<Item = Id> {
                Id::ALL.iter().copied().filter(move |id| id.family() == self)
            }
        }

        /// A stable id of a check, a rule, a refusal, a warning or a cause.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Id { $($($name,)*)* }

        impl Id {
            /// All ids, family by family.
            pub const ALL: &[Id] = &[$($(Id::$name,)*)*];

            pub const fn as_str(self) -> &'static str {
                match self { $($(Id::$name => $id,)*)* }
            }

            /// The family of the id; the explanation is in that family's file.
            pub const fn family(self) -> Family {
                match self { $($(Id::$name => Family::$family,)*)* }
            }

            /// The uses of the id.
            pub const fn uses(self) -> &'static [Use] {
                match self { $($(Id::$name => &[$($use),*],)*)* }
            }
        }
    };
}

ids! {
    Gpu("GPUs", "GPU") {
        GpuFault = "gpu.fault": [Checks(GpuFault, Fail)],
        GpuFaultLost = "gpu.fault.lost": [PartOf(Id::GpuFault)],
        GpuFaultResetRequired = "gpu.fault.reset-required": [PartOf(Id::GpuFault)],
        GpuFaultRecovery = "gpu.fault.recovery": [PartOf(Id::GpuFault)],
        GpuFaultRemap = "gpu.fault.remap": [PartOf(Id::GpuFault)],
        GpuFaultProhibited = "gpu.fault.prohibited": [PartOf(Id::GpuFault)],
        GpuFaultMismatch = "gpu.fault.mismatch": [PartOf(Id::GpuFault)],
        GpuFaultDriver = "gpu.fault.driver": [PartOf(Id::GpuFault)],
        GpuFaultAccess = "gpu.fault.access": [PartOf(Id::GpuFault)],
        GpuFaultHung = "gpu.fault.hung": [PartOf(Id::GpuFault)],
        GpuFaultCrash = "gpu.fault.crash": [PartOf(Id::GpuFault)],
        GpuFaultUnknown = "gpu.fault.unknown": [PartOf(Id::GpuFault)],
        GpuFabric = "gpu.fabric": [Checks(GpuFabric, Fail)],
        GpuCount = "gpu.count": [Checks(GpuCount, Fail)],
        GpuVendor = "gpu.vendor": [PartOf(Id::GpuCount)],
        GpuBusy = "gpu.busy": [Checks(Stale, FailWhere(Where::GpusAreFull))],
        GpuHealth = "gpu.health": [Checks(GpuFault, Warn)],
        GpuLink = "gpu.link": [Checks(GpuFault, Warn)],
        GpuMode = "gpu.mode": [Checks(GpuFault, Warn)],
        HamiLimit = "hami.limit": [Checks(Limit, Warn)],
        GpuNone = "gpu.none": [Warns],
        GpuUnused = "gpu.unused": [Warns],
        GpuLocalRank = "gpu.local-rank": [Warns],
        GpuMig = "gpu.mig": [Warns],
        BindCommand = "bind.command": [Warns],
        BindUnknown = "bind.unknown": [Warns],
    }
    Limits("Limits, disks, clock and logs", "资源限制、磁盘、时钟与日志") {
        ShmSize = "shm.size": [Checks(Limit, Warn), Lints],
        ShmLeftovers = "shm.leftovers": [Checks(Limit, Advise)],
        Memlock = "memlock": [Checks(Limit, FailWhere(Where::RdmaIsRequired))],
        Nofile = "nofile": [Checks(Limit, Advise), Refuses(Limit)],
        PidsLimit = "pids.limit": [Checks(Limit, Warn), Refuses(Limit)],
        RandomNone = "random.none": [Refuses(Limit)],
        StackSize = "stack.size": [Checks(Limit, Advise)],
        MemoryLimit = "memory.limit": [Checks(Limit, Advise)],
        CpuLimit = "cpu.limit": [Checks(Limit, Advise)],
        DiskLogs = "disk.logs": [Checks(Limit, Advise)],
        DiskSpace = "disk.space": [Checks(Limit, Warn)],
        StorageAlive = "storage.alive": [Checks(Limit, Warn)],
        SignalsTerm = "signals.term": [Checks(Limit, Warn)],
        ClockSync = "clock.sync": [Checks(Limit, Advise), Warns, Refuses(Muster)],
        LogsFolder = "logs.folder": [Warns],
        LogsMemory = "logs.memory": [Warns],
        LauncherGrace = "launcher.grace": [Warns],
    }
    Network("Ports, master, RDMA and NCCL", "端口、Master、RDMA 与 NCCL") {
        PortFree = "port.free": [Checks(PortInUse, Fail), Refuses(PortInUse)],
        PortForbidden = "port.forbidden": [Refuses(PortInUse)],
        PortNone = "port.none": [Refuses(PortInUse)],
        MasterResolve = "master.resolve": [Checks(MasterName, Warn), Refuses(MasterName)],
        MasterReach = "master.reach": [Checks(MasterReach, Warn), Refuses(MasterReach)],
        MasterAddr = "master.addr": [Warns],
        MasterElsewhere = "master.elsewhere": [Warns],
        MasterLocalhost = "master.localhost": [Warns],
        MasterPort = "master.port": [Warns],
        NetInterface = "net.interface": [Warns],
        RdmaPorts = "rdma.ports": [Checks(Rdma, Warn), Refuses(Rdma)],
        RdmaGpudirect = "rdma.gpudirect": [Checks(Rdma, Warn)],
        EnvNccl = "env.nccl": [Checks(Usage, Warn), Lints],
        EnvProxy = "env.proxy": [Checks(Usage, Advise)],
    }
    Program("Program, python and torch", "程序、Python 与 torch") {
        ProgramMissing = "program.missing": [Refuses(Usage)],
        ScriptFile = "script.file": [Checks(Usage, Fail)],
        EngineFile = "engine.file": [Checks(Usage, Fail)],
        EngineFlags = "engine.flags": [Checks(Usage, Fail)],
        EngineArgs = "engine.args": [Warns],
        EngineConfig = "engine.config": [Warns],
        PythonInterpreter = "python.interpreter": [Refuses(Python), Warns],
        PythonEnvironment = "python.environment": [Warns],
        PythonTorch = "python.torch": [Checks(Python, Warn)],
        WarmRequired = "warm.required": [Refuses(Python)],
        CudaCompat = "cuda.compat": [Checks(Python, Warn)],
        NumaCalls = "numa.calls": [Checks(Limit, Warn)],
        TorchAllreduce = "torch.allreduce": [Checks(Python, Fail)],
        PlaceholderUnknown = "placeholder.unknown": [Warns],
        InteractiveNproc = "interactive.nproc": [Refuses(Usage)],
        SelfPath = "self.path": [Refuses(Internal)],
        Internal = "internal": [Refuses(Internal)],
    }
    Checkpoint("Checkpoints", "检查点") {
        CheckpointInput = "checkpoint.input": [Refuses(Usage)],
        CheckpointFolder = "checkpoint.folder": [Refuses(Usage)],
        CheckpointText = "checkpoint.text": [Refuses(Usage)],
        CheckpointAlone = "checkpoint.alone": [Refuses(Usage)],
        CheckpointUnread = "checkpoint.unread": [Refuses(Limit)],
        CheckpointMissing = "checkpoint.missing": [Refuses(Usage), Warns],
        CheckpointDiffer = "checkpoint.differ": [Refuses(Muster)],
        CheckpointStuck = "checkpoint.stuck": [Ends(Exit::Verdict(WithoutProgress))],
    }
    Membership("Which node of how many", "节点数与节点编号") {
        MembershipHalfGiven = "membership.half-given": [Refuses(Membership)],
        MembershipContradiction = "membership.contradiction": [Refuses(Membership)],
        MembershipNumber = "membership.number": [Refuses(Membership)],
        MembershipRank = "membership.rank": [Refuses(Membership), Warns],
        MembershipProcesses = "membership.processes": [Refuses(Membership)],
        MembershipTasks = "membership.tasks": [Refuses(Membership)],
        MembershipNproc = "membership.nproc": [Refuses(Membership)],
        MembershipElastic = "membership.elastic": [Refuses(Membership)],
        MembershipSpares = "membership.spares": [Checks(Membership, Warn), Refuses(Membership)],
        MembershipMasterAddr = "membership.master-addr": [Refuses(Membership)],
        MembershipMasterPort = "membership.master-port": [Refuses(Membership)],
        MembershipAlone = "membership.alone": [Warns],
        MembershipWorldSize = "membership.world-size": [Warns],
        Nested = "nested": [Refuses(Membership)],
        EnvStaleRank = "env.stale-rank": [Warns],
        EnvTorchrun = "env.torchrun": [Warns],
    }
    Layout("Processes and parallel sizes", "进程数与并行规模") {
        LayoutLiteral = "layout.literal": [Refuses(Layout)],
        LayoutNproc = "layout.nproc": [Refuses(Layout)],
        LayoutUnsolvable = "layout.unsolvable": [Refuses(Layout)],
        LayoutAlone = "layout.alone": [Refuses(Layout), Lints],
        LayoutMinNproc = "layout.min-nproc": [Refuses(Layout)],
        LayoutArgument = "layout.argument": [Warns],
        LayoutSize = "layout.size": [Warns],
        LayoutElastic = "layout.elastic": [Warns],
        LayoutHeadsConflict = "layout.heads-conflict": [Warns],
        LayoutHeadsUnknown = "layout.heads-unknown": [Warns],
        LayoutUnreadable = "layout.unreadable": [Warns],
        SelectNoMatch = "select.no-match": [Refuses(Layout)],
        NprocRange = "nproc.range": [Refuses(Usage)],
        NprocTasks = "nproc.tasks": [Refuses(Usage)],
    }
    Muster("Between the nodes", "节点之间") {
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
        MusterTorchVersions = "muster.torch-versions": [Refuses(Muster)],
        MusterRule = "muster.rule": [Refuses(Muster)],
        MusterDevice = "muster.device": [Refuses(Muster)],
        MusterHeads = "muster.heads": [Refuses(Muster)],
        MusterLayout = "muster.layout": [Refuses(Layout)],
        MusterTasks = "muster.tasks": [Refuses(Muster)],
        MusterVersion = "muster.version": [Warns, Refuses(Muster)],
        MusterCommand = "muster.command": [Warns, Refuses(Muster)],
        MusterScript = "muster.script": [Warns, Refuses(Muster)],
        MusterTorch = "muster.torch": [Warns, Refuses(Muster)],
        MusterDriver = "muster.driver": [Warns, Refuses(Muster)],
        MusterGpus = "muster.gpus": [Warns],
        MusterNccl = "muster.nccl": [Warns, Refuses(Muster)],
        MusterRails = "muster.rails": [Warns, Refuses(Muster)],
        MusterRates = "muster.rates": [Warns, Refuses(Muster)],
        MusterLinkLayer = "muster.link-layer": [Warns, Refuses(Muster)],
        MusterMtu = "muster.mtu": [Warns, Refuses(Muster)],
        OtherVersion = "other-version": [Warns, Refuses(Muster), Ends(Exit::Verdict(OtherNode))],
        NodesArrive = "nodes.arrive": [Checks(Muster, Fail), Refuses(Muster)],
        NodesChecks = "nodes.checks": [Checks(Muster, Fail)],
        NodesDiffer = "nodes.differ": [Checks(Muster, FailWhere(Where::MusterIsRequired))],
        NodesRails = "nodes.rails": [Checks(Muster, FailWhere(Where::MusterIsRequired))],
        LinkReach = "link.reach": [Checks(Muster, Fail), Refuses(PortInUse)],
        LinkLatency = "link.latency": [Checks(Muster, Warn)],
        LinkBandwidth = "link.bandwidth": [Checks(Muster, Warn)],
        RestartsElastic = "restarts.elastic": [Warns],
        RestartsMuster = "restarts.muster": [Warns],
    }
    Settings("Command line, variables and profile", "命令行、变量与配置文件") {
        Flags = "flags": [Refuses(Usage)],
        SettingsProfile = "settings.profile": [Refuses(Usage)],
        SettingsProfileOwner = "settings.profile_owner": [Refuses(Usage), Warns],
        SettingsSite = "settings.site": [Refuses(Usage), Warns],
        SettingsLocked = "settings.locked": [Refuses(Usage)],
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
        SettingsSpares = "settings.spares": [Refuses(Usage)],
        SettingsNodes = "settings.nodes": [Refuses(Usage)],
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
        SettingsInject = "settings.inject": [Refuses(Usage)],
        SettingsWarm = "settings.warm": [Refuses(Usage)],
        SettingsHangAfter = "settings.hang_after": [Refuses(Usage)],
        SettingsOnHang = "settings.on_hang": [Refuses(Usage)],
        SettingsCheckpointDir = "settings.checkpoint_dir": [Refuses(Usage)],
        SettingsCheckpointFormat = "settings.checkpoint_format": [Refuses(Usage)],
        SettingsCheckpointMissing = "settings.checkpoint_missing": [Refuses(Usage)],
        SettingsMaxRestartsWithoutProgress = "settings.max_restarts_without_progress": [Refuses(Usage)],
        SettingsNotice = "settings.notice": [Refuses(Usage)],
        SettingsNoticeSignal = "settings.notice_signal": [Refuses(Usage)],
        SettingsNoticeLead = "settings.notice_lead": [Refuses(Usage)],
        SettingsDeadline = "settings.deadline": [Refuses(Usage)],
        SettingsMaxRestarts = "settings.max_restarts": [Refuses(Usage)],
        SettingsRetryOn = "settings.retry_on": [Refuses(Usage)],
        SettingsNoRetryOn = "settings.no_retry_on": [Refuses(Usage)],
        SettingsWarmModules = "settings.warm_modules": [Refuses(Usage)],
        SettingsLogDir = "settings.log_dir": [Refuses(Usage)],
        SettingsLogCapRank = "settings.log_cap_rank": [Refuses(Usage)],
        SettingsLogCapNode = "settings.log_cap_node": [Refuses(Usage)],
        SettingsLogKeep = "settings.log_keep": [Refuses(Usage)],
        SettingsConsole = "settings.console": [Refuses(Usage)],
        SettingsConsolePrefix = "settings.console_prefix": [Refuses(Usage)],
        SettingsColor = "settings.color": [Refuses(Usage)],
        SettingsVerbose = "settings.verbose": [Refuses(Usage)],
        SettingsTerminationLog = "settings.termination_log": [Refuses(Usage)],
        SettingsProgress = "settings.progress": [Refuses(Usage)],
        SettingsHttp = "settings.http": [Refuses(Usage)],
        SettingsLang = "settings.lang": [Refuses(Usage)],
        SettingsHostRoot = "settings.host_root": [Refuses(Usage)],
        CaptureFolder = "capture.folder": [Refuses(Usage)],
        ReportWrite = "report.write": [Refuses(Usage)],
        InstallWrite = "install.write": [Refuses(Usage)],
        LintUnreadable = "lint.unreadable": [Refuses(Usage)],
        AdoptInput = "adopt.input": [Refuses(Usage)],
        ExplainUnknown = "explain.unknown": [Refuses(Usage)],
        ExplainLog = "explain.log": [Refuses(Usage)],
        ReportRun = "report.run": [Refuses(Usage)],
        StacksJob = "stacks.job": [Refuses(Usage)],
        StacksPlace = "stacks.place": [Refuses(Usage)],
        StacksAgent = "stacks.agent": [Refuses(Usage)],
        LogsUnknown = "logs.unknown": [Refuses(Usage)],
        NodesUnknown = "nodes.unknown": [Refuses(Usage)],
        LogsValue = "logs.value": [Refuses(Usage)],
        TopTerminal = "top.terminal": [Refuses(Usage)],
    }
    End("How a job ended", "任务如何结束") {
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
        StoppedNotice = "stopped.notice": [Ends(Code(143))],
        Hang = "hang": [Ends(Exit::Verdict(NoProgress)), Ends(Own)],
        WatchRule = "watch.rule": [Ends(Exit::Verdict(NoProgress))],
        EngineExec = "engine.exec": [Refuses(EngineStart)],
        EngineStart = "engine.start": [Ends(Exit::Verdict(EngineStart))],
        EngineRanks = "engine.ranks": [Ends(Exit::Verdict(EngineStart))],
        EngineGone = "engine.gone": [Ends(Own), Ends(Exit::Verdict(Internal))],
        EngineEnd = "engine.end": [Ends(Own)],
        PortLost = "port.lost": [Ends(Exit::Verdict(PortInUse))],
        NodeDied = "node.died": [Ends(Code(143))],
        NodeCut = "node.cut": [Ends(Code(143))],
        NodeSilent = "node.silent": [Ends(Code(143))],
        NodeOther = "node.other": [Ends(Exit::Verdict(OtherNode))],
        Unkillable = "unkillable": [Ends(Exit::Verdict(Stale))],
        Forbidden = "forbidden": [Ends(Exit::Verdict(Stale))],
        StaleUnkillable = "stale.unkillable": [Refuses(Stale)],
        StaleEnded = "stale.ended": [Warns],
        StaleBeside = "stale.beside": [Warns],
    }
    Lint("Rules of lint", "lint 规则") {
        GpuNproc = "gpu.nproc": [Lints],
        GpuRequests = "gpu.requests": [Lints],
        GpuMem = "gpu.mem": [Lints],
        GpuVisible = "gpu.visible": [Lints],
        NodesSingle = "nodes.single": [Lints],
        NodesCount = "nodes.count": [Lints],
        NodesProcesses = "nodes.processes": [Lints],
        NodesWorldSize = "nodes.world-size": [Lints],
        NodesRank = "nodes.rank": [Lints],
        SparesSeats = "spares.seats": [Lints],
        SparesLost = "spares.lost": [Lints],
        ProfileSelect = "profile.select": [Lints],
        LayoutWorld = "layout.world": [Lints],
        LayoutHeads = "layout.heads": [Lints],
        JobIndex = "job.index": [Lints],
        JobCompletions = "job.completions": [Lints],
        JobSubdomain = "job.subdomain": [Lints],
        PytorchjobMaster = "pytorchjob.master": [Lints],
        PytorchjobContainer = "pytorchjob.container": [Lints],
        PytorchjobRank = "pytorchjob.rank": [Lints],
        PytorchjobElastic = "pytorchjob.elastic": [Lints],
        TrainjobReserved = "trainjob.reserved": [Lints],
        RayNodes = "ray.nodes": [Lints],
        LauncherNone = "launcher.none": [Lints],
        ShmMissing = "shm.missing": [Lints],
        ShmMedium = "shm.medium": [Lints],
        MemoryMissing = "memory.missing": [Lints],
        MemoryNode = "memory.node": [Lints],
        CpuMissing = "cpu.missing": [Lints],
        GraceShort = "grace.short": [Lints],
        NetworkPort = "network.port": [Lints],
        NetworkDns = "network.dns": [Lints],
        EnvUndefined = "env.undefined": [Lints],
        EnvLiteral = "env.literal": [Lints],
        VolumeOnce = "volume.once": [Lints],
        QuantityInvalid = "quantity.invalid": [Lints],
        ObjectRejected = "object.rejected": [Lints],
        PodContainers = "pod.containers": [Lints],
        ImageName = "image.name": [Lints],
        CommandString = "command.string": [Lints],
        MasterSelf = "master.self": [Lints],
        ServiceLinks = "service.links": [Lints],
        SignalsShell = "signals.shell": [Lints],
        CommandCut = "command.cut": [Lints],
        CommandRefused = "command.refused": [Lints],
        CommandUnread = "command.unread": [LintsUnread],
        YamlDuplicateKey = "yaml.duplicate-key": [Lints],
        KindUnknown = "kind.unknown": [LintsUnread],
    }
}

impl Id {
    /// The checks, in the order of the report.
    pub fn checks() -> impl Iterator<Item = Id> {
        Id::ALL.iter().copied().filter(|id| id.own_check().is_some())
    }

    /// The check with this name.
    pub fn check_named(name: &str) -> Option<Id> {
        Id::checks().find(|id| id.as_str() == name)
    }

    /// The verdict of a failure and the default severity; only for checks.
    fn own_check(self) -> Option<(Verdict, Usual)> {
        self.uses().iter().find_map(|one| match one {
            Checks(verdict, usual) => Some((*verdict, *usual)),
            _ => None,
        })
    }

    /// The check to which the id belongs: itself, or `gpu.fault` for `gpu.fault.lost`.
    pub fn check(self) -> Option<Id> {
        let of = self.uses().iter().find_map(|one| match one {
            PartOf(check) => Some(*check),
            _ => None,
        });
        of.or_else(|| self.own_check().map(|_| self))
    }

    /// The default severity; only for checks.
    pub fn usual(self) -> Option<Usual> {
        self.check()?.own_check().map(|(_, usual)| usual)
    }

    /// Whether the warning of the check is only advice.
    pub fn is_advice(self) -> bool {
        self.own_check().is_some_and(|(_, usual)| usual == Advise)
    }

    /// A check that fails unless a setting says otherwise.
    pub(crate) fn refuses_by_default(self) -> bool {
        self.own_check().is_some_and(|(_, usual)| usual == Fail)
    }

    /// The refusal of an invalid value of the setting `name` (`node-rank`).
    pub fn of_setting(name: &str) -> Option<Id> {
        let name = name.replace('-', "_");
        Id::ALL.iter().copied().find(|id| id.as_str().strip_prefix("settings.") == Some(&*name))
    }

    /// Every verdict that the id can have.
    pub fn verdicts(self) -> impl Iterator<Item = Verdict> {
        let check = self.check().and_then(Id::own_check).map(|(verdict, _)| verdict);
        let others = self.uses().iter().filter_map(|one| match one {
            Refuses(verdict) | Ends(Exit::Verdict(verdict)) => Some(*verdict),
            _ => None,
        });
        check.into_iter().chain(others)
    }

    /// The first of [`Id::verdicts`]; [`Verdict::Internal`] if the id refuses nothing.
    pub fn verdict(self) -> Verdict {
        self.verdicts().next().unwrap_or(Internal)
    }

    pub fn is_of_lint(self) -> bool {
        self.uses().iter().any(|one| matches!(one, Lints | LintsUnread))
    }
}

/// The text is no id.
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

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Id {
    /// An unknown id from a node with another version becomes [`Id::OtherVersion`].
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Id, D::Error> {
        let word = String::deserialize(deserializer)?;
        Ok(word.parse().unwrap_or(Id::OtherVersion))
    }
}
