//! The contracts, one row each: what proves the platform, and which variable
//! gives which field how.
//!
//! A new platform is one more entry of [`PLATFORMS`] and nothing else. Rows
//! stand in the order of trust: where two give the same field with the same
//! strength, the earlier one is named first. The first claim of a field in a
//! row and all that follow by [`also`] weigh the same and must agree; [`or`] is
//! read only where those before it say nothing.

use crate::observe::{Field, Reading, Strength};

use Field::{
    GpuCount, GraceSeconds, JobId, MasterAddr, MasterPort, Nnodes, NodeRank, Nproc, Offered, Rank,
    RdzvBackend, RdzvEndpoint, Standalone, TasksPerNode, WorldSize,
};
use Reading::{
    FirstOfList, HostPart, HostlistFirst, LeadingNumber, ListLength, Loopback, MainFirst, Plain,
    PortPart, PositionInList, Range,
};
use Test::{Ends, Is, Port, Set, Unset};

/// One contract.
pub(super) struct Platform {
    pub(super) id: &'static str,
    pub(super) strength: Strength,
    /// The platform is proven when all tests of any one group hold.
    pub(super) proofs: &'static [&'static [Test]],
    pub(super) claims: &'static [Row],
    /// The master port where the contract leaves it out.
    pub(super) default_port: Option<u16>,
}

pub(super) enum Test {
    Set(&'static str),
    Unset(&'static str),
    Is(&'static str, &'static str),
    Ends(&'static str, &'static str),
    /// A port; not the tcp://… of a Service link, which nobody meant.
    Port(&'static str),
}

pub(super) struct Row {
    pub(super) field: Field,
    pub(super) variable: &'static str,
    pub(super) reading: Reading,
    pub(super) beside: Option<&'static str>,
    /// Read only where the rows before it say nothing about the field.
    pub(super) fallback: bool,
}

const fn is(field: Field, variable: &'static str) -> Row {
    Row { field, variable, reading: Plain, beside: None, fallback: false }
}

const fn also(field: Field, variable: &'static str) -> Row {
    is(field, variable)
}

const fn or(field: Field, variable: &'static str) -> Row {
    Row { fallback: true, ..is(field, variable) }
}

const fn as_(row: Row, reading: Reading) -> Row {
    Row { reading, ..row }
}

const fn beside(row: Row, variable: &'static str) -> Row {
    Row { beside: Some(variable), ..row }
}

/// torchrun's own variables: an image or a manifest may set them without any operator.
const PET: &[Row] = &[
    as_(is(Nnodes, "PET_NNODES"), Range),
    is(NodeRank, "PET_NODE_RANK"),
    is(Nproc, "PET_NPROC_PER_NODE"),
    is(MasterAddr, "PET_MASTER_ADDR"),
    as_(or(MasterAddr, "PET_RDZV_ENDPOINT"), HostPart),
    is(MasterPort, "PET_MASTER_PORT"),
    as_(or(MasterPort, "PET_RDZV_ENDPOINT"), PortPart),
    is(RdzvEndpoint, "PET_RDZV_ENDPOINT"),
    is(RdzvBackend, "PET_RDZV_BACKEND"),
    is(Standalone, "PET_STANDALONE"),
    is(JobId, "PET_RDZV_ID"),
];

/// Where the platform leaves MASTER_ADDR and MASTER_PORT to the user, theirs win.
pub(super) const PLATFORMS: &[Platform] = &[
    Platform {
        // Versions up to 1.6 set no PET_ variables; they are known by PYTHONUNBUFFERED=0
        // and by the name of the master pod.
        id: "kubeflow-pytorchjob",
        strength: Strength::Specific,
        proofs: &[
            &[Set("PET_NNODES"), Set("WORLD_SIZE")],
            &[Set("PET_NNODES"), Set("PET_RDZV_ENDPOINT")],
            &[Is("PYTHONUNBUFFERED", "0"), Set("WORLD_SIZE"), Set("RANK"), Set("MASTER_PORT")],
            &[Ends("MASTER_ADDR", "-master-0"), Set("WORLD_SIZE"), Unset("VC_TASK_INDEX")],
        ],
        claims: PET,
        default_port: Some(23456),
    },
    Platform {
        id: "kubeflow-trainer-v2",
        strength: Strength::Specific,
        proofs: &[&[
            Set("PET_NNODES"),
            Set("PET_NODE_RANK"),
            Unset("WORLD_SIZE"),
            Unset("PET_RDZV_ENDPOINT"),
        ]],
        claims: PET,
        default_port: Some(29500),
    },
    Platform {
        // RJOB_ and RLAUNCH_ are the spellings of other tools of the same platform; in a
        // job of several tasks they count within the task.
        id: "kubebrain",
        strength: Strength::Specific,
        proofs: &[
            &[Set("KUBEBRAIN_REPLICA")],
            &[Set("KUBEBRAIN_REPLICA_TOTAL")],
            &[Set("KUBEBRAIN_NAMESPACE")],
            &[Set("KUBEBRAIN_RJOB_NAME")],
            &[Set("KUBEBRAIN_REPLICA_NAME")],
            &[Set("KUBEBRAIN_CLUSTER_ENTRY")],
            &[Set("DISTRIBUTED_JOB_ENVS_INITIALIZED")],
            &[Set("RJOB_TASK_INDEX")],
            &[Set("RJOB_REPLICA_TOTAL")],
            &[Set("RLAUNCH_REPLICA_TOTAL")],
            &[Set("RLAUNCH_WORKER")],
        ],
        claims: &[
            is(Nnodes, "NODE_COUNT"),
            also(Nnodes, "KUBEBRAIN_REPLICA_TOTAL"),
            or(Nnodes, "RLAUNCH_REPLICA_TOTAL"),
            or(Nnodes, "RJOB_REPLICA_TOTAL"),
            is(NodeRank, "NODE_RANK"),
            also(NodeRank, "KUBEBRAIN_REPLICA"),
            or(NodeRank, "RLAUNCH_REPLICA"),
            or(NodeRank, "RJOB_REPLICA"),
            or(NodeRank, "RJOB_TASK_INDEX"),
            is(MasterAddr, "MASTER_ADDR"),
            is(MasterPort, "MASTER_PORT"),
            or(MasterPort, "PORT_0"),
            is(Offered, "PROC_PER_NODE"),
            is(GpuCount, "GPU_COUNT"),
            is(JobId, "JOB_ID"),
            or(JobId, "KUBEBRAIN_RJOB_NAME"),
            is(GraceSeconds, "TerminationGracePeriodSeconds"),
        ],
        default_port: None,
    },
    Platform {
        id: "volcengine-mlp",
        strength: Strength::Specific,
        proofs: &[&[Set("MLP_WORKER_NUM"), Set("MLP_ROLE_INDEX")]],
        claims: &[
            is(Nnodes, "MLP_WORKER_NUM"),
            is(NodeRank, "MLP_ROLE_INDEX"),
            is(MasterAddr, "MASTER_ADDR"),
            or(MasterAddr, "MLP_WORKER_0_HOST"),
            is(MasterPort, "MASTER_PORT"),
            or(MasterPort, "MLP_WORKER_0_PORT"),
            is(Offered, "MLP_WORKER_GPU"),
            is(GpuCount, "MLP_WORKER_GPU"),
        ],
        default_port: None,
    },
    Platform {
        id: "runpod",
        strength: Strength::Specific,
        proofs: &[&[Set("NUM_NODES"), Set("NODE_RANK"), Set("PRIMARY_ADDR")]],
        claims: &[
            is(Nnodes, "NUM_NODES"),
            is(NodeRank, "NODE_RANK"),
            is(MasterAddr, "MASTER_ADDR"),
            or(MasterAddr, "PRIMARY_ADDR"),
            is(MasterPort, "MASTER_PORT"),
            or(MasterPort, "PRIMARY_PORT"),
            is(Offered, "NUM_TRAINERS"),
        ],
        default_port: None,
    },
    Platform {
        // The order of SM_HOSTS is the order of ranks, as in the platform's own toolkit.
        id: "sagemaker",
        strength: Strength::Specific,
        proofs: &[&[Set("SM_HOSTS"), Set("SM_CURRENT_HOST")]],
        claims: &[
            as_(is(Nnodes, "SM_HOSTS"), ListLength),
            beside(as_(is(NodeRank, "SM_CURRENT_HOST"), PositionInList), "SM_HOSTS"),
            is(MasterAddr, "MASTER_ADDR"),
            as_(or(MasterAddr, "SM_HOSTS"), FirstOfList),
            is(MasterPort, "MASTER_PORT"),
            is(GpuCount, "SM_NUM_GPUS"),
            is(JobId, "TRAINING_JOB_NAME"),
        ],
        default_port: Some(7777),
    },
    Platform {
        // The main node is not told its own address, and its index need not be 0.
        id: "aws-batch",
        strength: Strength::Specific,
        proofs: &[&[Set("AWS_BATCH_JOB_NUM_NODES"), Set("AWS_BATCH_JOB_NODE_INDEX")]],
        claims: &[
            is(Nnodes, "AWS_BATCH_JOB_NUM_NODES"),
            beside(
                as_(is(NodeRank, "AWS_BATCH_JOB_NODE_INDEX"), MainFirst),
                "AWS_BATCH_JOB_MAIN_NODE_INDEX",
            ),
            is(MasterAddr, "MASTER_ADDR"),
            or(MasterAddr, "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"),
            as_(or(MasterAddr, "AWS_BATCH_JOB_MAIN_NODE_INDEX"), Loopback),
            is(MasterPort, "MASTER_PORT"),
        ],
        default_port: None,
    },
    Platform {
        id: "skypilot",
        strength: Strength::Specific,
        proofs: &[&[Set("SKYPILOT_NUM_NODES"), Set("SKYPILOT_NODE_RANK")]],
        claims: &[
            is(Nnodes, "SKYPILOT_NUM_NODES"),
            is(NodeRank, "SKYPILOT_NODE_RANK"),
            is(MasterAddr, "MASTER_ADDR"),
            as_(or(MasterAddr, "SKYPILOT_NODE_IPS"), FirstOfList),
            is(MasterPort, "MASTER_PORT"),
            is(GpuCount, "SKYPILOT_NUM_GPUS_PER_NODE"),
            is(JobId, "SKYPILOT_TASK_ID"),
        ],
        default_port: Some(8008),
    },
    Platform {
        id: "leader-worker-set",
        strength: Strength::Specific,
        proofs: &[&[Set("LWS_GROUP_SIZE"), Set("LWS_LEADER_ADDRESS")]],
        claims: &[
            is(Nnodes, "LWS_GROUP_SIZE"),
            is(NodeRank, "LWS_WORKER_INDEX"),
            is(MasterAddr, "MASTER_ADDR"),
            or(MasterAddr, "LWS_LEADER_ADDRESS"),
            is(MasterPort, "MASTER_PORT"),
        ],
        default_port: None,
    },
    Platform {
        // What the step has beats what the job has: srun may use a part of the nodes.
        id: "slurm",
        strength: Strength::Specific,
        proofs: &[
            &[Set("SLURM_JOB_ID"), Set("SLURM_STEP_NUM_NODES")],
            &[Set("SLURM_JOB_ID"), Set("SLURM_JOB_NUM_NODES")],
            &[Set("SLURM_JOB_ID"), Set("SLURM_NNODES")],
        ],
        claims: &[
            is(Nnodes, "SLURM_STEP_NUM_NODES"),
            or(Nnodes, "SLURM_JOB_NUM_NODES"),
            or(Nnodes, "SLURM_NNODES"),
            is(NodeRank, "SLURM_NODEID"),
            is(MasterAddr, "MASTER_ADDR"),
            as_(or(MasterAddr, "SLURM_STEP_NODELIST"), HostlistFirst),
            as_(or(MasterAddr, "SLURM_JOB_NODELIST"), HostlistFirst),
            as_(or(MasterAddr, "SLURM_NODELIST"), HostlistFirst),
            is(MasterPort, "MASTER_PORT"),
            as_(is(TasksPerNode, "SLURM_STEP_TASKS_PER_NODE"), LeadingNumber),
            is(GpuCount, "SLURM_GPUS_ON_NODE"),
            is(JobId, "SLURM_JOB_ID"),
        ],
        default_port: None,
    },
    Platform {
        id: "azure-ml",
        strength: Strength::Specific,
        proofs: &[&[Set("AZ_BATCH_MASTER_NODE"), Set("OMPI_COMM_WORLD_SIZE")]],
        claims: &[
            is(Nnodes, "OMPI_COMM_WORLD_SIZE"),
            is(NodeRank, "OMPI_COMM_WORLD_RANK"),
            is(TasksPerNode, "OMPI_COMM_WORLD_LOCAL_SIZE"),
            is(MasterAddr, "MASTER_ADDR"),
            as_(or(MasterAddr, "AZ_BATCH_MASTER_NODE"), HostPart),
            is(MasterPort, "MASTER_PORT"),
        ],
        default_port: None,
    },
    Platform {
        // One process per node, so that processes are nodes; more are refused by TasksPerNode.
        id: "open-mpi",
        strength: Strength::Specific,
        proofs: &[&[
            Set("OMPI_COMM_WORLD_SIZE"),
            Set("OMPI_COMM_WORLD_RANK"),
            Unset("AZ_BATCH_MASTER_NODE"),
        ]],
        claims: &[
            is(Nnodes, "OMPI_COMM_WORLD_SIZE"),
            is(NodeRank, "OMPI_COMM_WORLD_RANK"),
            is(TasksPerNode, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ],
        default_port: None,
    },
    Platform {
        // WORLD_SIZE counts the replicas of master and worker; a task of another kind
        // gets no RANK. VC_TASK_INDEX counts within the task and is no node rank.
        id: "volcano",
        strength: Strength::Specific,
        proofs: &[&[Set("VC_TASK_INDEX"), Set("WORLD_SIZE"), Set("MASTER_ADDR")]],
        claims: &[],
        default_port: Some(23456),
    },
    Platform {
        id: "torchrun-variables",
        strength: Strength::Conventional,
        proofs: &[&[Set("PET_NNODES")]],
        claims: PET,
        default_port: None,
    },
    Platform {
        // What torchrun gives its workers, here left over or with `--nested`.
        id: "torchrun-worker",
        strength: Strength::Conventional,
        proofs: &[&[Set("TORCHELASTIC_RUN_ID"), Set("GROUP_WORLD_SIZE"), Set("GROUP_RANK")]],
        claims: &[is(Nnodes, "GROUP_WORLD_SIZE"), is(NodeRank, "GROUP_RANK")],
        default_port: None,
    },
    Platform {
        // The names of most start-up scripts, and of our own `--engine command`.
        id: "node-variables",
        strength: Strength::Conventional,
        proofs: &[&[Set("NNODES"), Set("NODE_RANK")]],
        claims: &[is(Nnodes, "NNODES"), is(NodeRank, "NODE_RANK"), is(Offered, "NPROC_PER_NODE")],
        default_port: None,
    },
    Platform {
        // Also PAI-DLC, which adds nothing of its own but NPROC_PER_NODE.
        id: "generic",
        strength: Strength::Generic,
        // A port alone is what a person sets beside flags that say the rest.
        proofs: &[
            &[Set("WORLD_SIZE")],
            &[Set("RANK")],
            &[Set("MASTER_ADDR")],
            &[Port("MASTER_PORT")],
        ],
        claims: &[
            is(WorldSize, "WORLD_SIZE"),
            is(Rank, "RANK"),
            is(MasterAddr, "MASTER_ADDR"),
            is(MasterPort, "MASTER_PORT"),
            is(Offered, "NPROC_PER_NODE"),
            is(GraceSeconds, "TerminationGracePeriodSeconds"),
        ],
        default_port: None,
    },
    Platform {
        // A Ray pod has no rank and no torch port; the head knows itself by a loopback address.
        id: "kuberay",
        strength: Strength::Hint,
        proofs: &[&[Set("RAY_CLUSTER_NAME"), Set("RAY_NODE_TYPE_NAME")]],
        claims: &[
            is(MasterAddr, "FQ_RAY_IP"),
            as_(or(MasterAddr, "RAY_ADDRESS"), HostPart),
            is(JobId, "RAY_CLUSTER_NAME"),
        ],
        default_port: None,
    },
    Platform {
        // The number of completions is in no variable, and many indexed Jobs are farms of
        // independent pods: the index is a node rank only once nnodes is known.
        id: "kubernetes-indexed-job",
        strength: Strength::Hint,
        proofs: &[&[Set("JOB_COMPLETION_INDEX")]],
        claims: &[is(NodeRank, "JOB_COMPLETION_INDEX")],
        default_port: None,
    },
];
