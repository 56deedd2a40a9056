//! Launchers and the flags in which they are told sizes, as data.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Launcher {
    Torchrun,
    Accelerate,
    Deepspeed,
    Ranklaunch,
    /// A Python script without any launcher.
    Python,
}

/// What a launcher's flag states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Field {
    Nproc,
    Nnodes,
    NodeRank,
    MasterAddr,
    MasterPort,
    Endpoint,
    /// Processes of the whole job.
    Processes,
    Standalone,
    /// A file that holds the rest of the settings.
    ConfigFile,
    Grace,
    Heads,
    Profile,
}

/// One launcher and its flags, spelled with dashes.
pub(super) struct Row {
    pub(super) launcher: Launcher,
    pub(super) name: &'static str,
    pub(super) fields: &'static [(&'static str, Field)],
    /// Flags that take no value; a flag that is in no list takes one unless a script or a flag follows.
    pub(super) switches: &'static [&'static str],
}

pub(super) const LAUNCHERS: &[Row] = &[
    Row {
        launcher: Launcher::Torchrun,
        name: "torchrun",
        fields: &[
            ("--nproc-per-node", Field::Nproc),
            ("--nnodes", Field::Nnodes),
            ("--node-rank", Field::NodeRank),
            ("--master-addr", Field::MasterAddr),
            ("--master-port", Field::MasterPort),
            ("--rdzv-endpoint", Field::Endpoint),
            ("--standalone", Field::Standalone),
        ],
        switches: &["--standalone", "-m", "--module", "--no-python", "--run-path", "--use-env"],
    },
    Row {
        launcher: Launcher::Accelerate,
        name: "accelerate",
        fields: &[
            ("--num-processes", Field::Processes),
            ("--num-machines", Field::Nnodes),
            ("--machine-rank", Field::NodeRank),
            ("--main-process-ip", Field::MasterAddr),
            ("--main-process-port", Field::MasterPort),
            ("--config-file", Field::ConfigFile),
        ],
        switches: &[
            "--multi-gpu",
            "--cpu",
            "--use-deepspeed",
            "--use-fsdp",
            "--use-megatron-lm",
            "--same-network",
            "--no-python",
            "-m",
            "--module",
            "--debug",
            "-q",
            "--quiet",
        ],
    },
    Row {
        launcher: Launcher::Deepspeed,
        name: "deepspeed",
        fields: &[
            ("--num-gpus", Field::Nproc),
            ("--num-nodes", Field::Nnodes),
            ("--node-rank", Field::NodeRank),
            ("--master-addr", Field::MasterAddr),
            ("--master-port", Field::MasterPort),
            ("--hostfile", Field::ConfigFile),
        ],
        switches: &[
            "--no-python",
            "--no-local-rank",
            "--module",
            "-m",
            "--no-ssh",
            "--force-multi",
        ],
    },
];
