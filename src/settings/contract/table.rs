//! The contracts of platforms, one row each: what proves the platform, and which variable gives
//! which field in which form. Launchers are in [`super::launchers`], names that belong to no
//! platform in [`super::conventions`].
//!
//! A new platform is one more entry of [`PLATFORMS`]. A part of its variables proves a platform
//! too; missing ones are then refused by name. Rows are in the order of trust: if two give the
//! same field with the same strength, the earlier one is named first. The first claim of a field
//! in a row and all that follow by [`also`] have the same strength and must agree; [`or`] is
//! read only if those before it are absent or blank.

use crate::contract::{Field, Reading, Strength};
use linux::host::Host;

use super::row::Test::{Ends, Holds, Is, Set, Unset};
use super::row::{Platform, PlatformRow, also, as_, beside, is, only, or};
use super::volcano;
use Field::{
    GpuCount, JobId, MasterAddr, MasterPort, Nnodes, NodeRank, Nproc, Offered, RdzvBackend,
    RdzvEndpoint, Several, Standalone,
};
use Reading::{
    Cluster, Count, FirstOfList, FirstReplica, HostPart, ListLength, Loopback, MainFirst, PortPart,
    PositionInList, Range,
};

/// torchrun's own variables: an image or a manifest may set them without any operator.
pub(super) const PET: &[PlatformRow] = &[
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

/// If the platform leaves MASTER_ADDR and MASTER_PORT to the user, the user's win.
pub(super) const PLATFORMS: &[Platform] = &[
    Platform {
        // Versions up to 1.6 set no PET_ variables; they are recognised by PYTHONUNBUFFERED=0
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
        ],
        default_port: None,
    },
    Platform {
        id: "volcengine-mlp",
        strength: Strength::Specific,
        proofs: &[&[Set("MLP_WORKER_NUM")], &[Set("MLP_ROLE_INDEX")]],
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
        proofs: &[
            &[Set("PRIMARY_ADDR"), Set("NUM_NODES")],
            &[Set("PRIMARY_ADDR"), Set("NODE_RANK")],
        ],
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
        proofs: &[&[Set("SM_HOSTS")]],
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
        // The main node does not get its own address, and its index need not be 0.
        id: "aws-batch",
        strength: Strength::Specific,
        proofs: &[&[Set("AWS_BATCH_JOB_NUM_NODES")], &[Set("AWS_BATCH_JOB_NODE_INDEX")]],
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
        // Versions until 0.2 have the short names and give no count.
        proofs: &[
            &[Set("SKYPILOT_NUM_NODES")],
            &[Set("SKYPILOT_NODE_RANK")],
            &[Set("SKY_NODE_RANK"), Set("SKY_NODE_IPS")],
        ],
        claims: &[
            is(Nnodes, "SKYPILOT_NUM_NODES"),
            as_(or(Nnodes, "SKY_NODE_IPS"), ListLength),
            is(NodeRank, "SKYPILOT_NODE_RANK"),
            or(NodeRank, "SKY_NODE_RANK"),
            is(MasterAddr, "MASTER_ADDR"),
            as_(or(MasterAddr, "SKYPILOT_NODE_IPS"), FirstOfList),
            as_(or(MasterAddr, "SKY_NODE_IPS"), FirstOfList),
            is(MasterPort, "MASTER_PORT"),
            is(GpuCount, "SKYPILOT_NUM_GPUS_PER_NODE"),
            is(JobId, "SKYPILOT_TASK_ID"),
        ],
        default_port: Some(8008),
    },
    Platform {
        id: "leader-worker-set",
        strength: Strength::Specific,
        proofs: &[&[Set("LWS_GROUP_SIZE")], &[Set("LWS_WORKER_INDEX")]],
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
        // Tencent TI's own launcher (torchrun's parameters in the manual: NODE_NUM, INDEX, CHIEF_IP).
        id: "tencent-ti",
        strength: Strength::Specific,
        proofs: &[&[Set("CHIEF_IP"), Set("NODE_NUM")], &[Set("CHIEF_IP"), Set("INDEX")]],
        claims: &[
            is(Nnodes, "NODE_NUM"),
            is(NodeRank, "INDEX"),
            is(MasterAddr, "MASTER_ADDR"),
            or(MasterAddr, "CHIEF_IP"),
            is(MasterPort, "MASTER_PORT"),
            is(Offered, "GPU_NUM_PER_NODE"),
        ],
        default_port: None,
    },
    Platform {
        // The address of DLRover's own master is not that of a node.
        id: "dlrover",
        strength: Strength::Specific,
        proofs: &[&[Set("NODE_NUM"), Set("NODE_RANK")], &[Set("DLROVER_MASTER_ADDR")]],
        claims: &[
            is(Nnodes, "NODE_NUM"),
            is(NodeRank, "NODE_RANK"),
            is(MasterAddr, "MASTER_ADDR"),
            is(MasterPort, "MASTER_PORT"),
            is(JobId, "ELASTIC_JOB_NAME"),
        ],
        default_port: None,
    },
    Platform {
        id: "dstack",
        strength: Strength::Specific,
        proofs: &[&[Set("DSTACK_NODES_NUM")], &[Set("DSTACK_NODE_RANK")]],
        claims: &[
            is(Nnodes, "DSTACK_NODES_NUM"),
            is(NodeRank, "DSTACK_NODE_RANK"),
            is(MasterAddr, "MASTER_ADDR"),
            or(MasterAddr, "DSTACK_MASTER_NODE_IP"),
            is(MasterPort, "MASTER_PORT"),
            is(GpuCount, "DSTACK_GPUS_PER_NODE"),
        ],
        default_port: None,
    },
    Platform {
        // An array without a master consists of independent jobs.
        id: "ngc",
        strength: Strength::Specific,
        proofs: &[
            &[Set("NGC_MASTER_ADDR"), Set("NGC_ARRAY_SIZE")],
            &[Set("NGC_MASTER_ADDR"), Set("NGC_ARRAY_INDEX")],
        ],
        claims: &[
            is(Nnodes, "NGC_ARRAY_SIZE"),
            is(NodeRank, "NGC_ARRAY_INDEX"),
            is(MasterAddr, "MASTER_ADDR"),
            or(MasterAddr, "NGC_MASTER_ADDR"),
            is(MasterPort, "MASTER_PORT"),
            is(JobId, "NGC_JOB_ID"),
        ],
        default_port: None,
    },
    Platform {
        id: "lepton",
        strength: Strength::Specific,
        proofs: &[&[Set("LEPTON_JOB_TOTAL_WORKERS")], &[Set("LEPTON_JOB_WORKER_INDEX")]],
        claims: &[
            is(Nnodes, "LEPTON_JOB_TOTAL_WORKERS"),
            is(NodeRank, "LEPTON_JOB_WORKER_INDEX"),
            is(MasterAddr, "MASTER_ADDR"),
            // Both variables have a default that is made of the job's name.
            beside(
                only(as_(or(MasterAddr, "LEPTON_JOB_SERVICE_PREFIX"), FirstReplica), |host| {
                    host.variable("LEPTON_SUBDOMAIN").is_some()
                }),
                "LEPTON_SUBDOMAIN",
            ),
            beside(as_(or(MasterAddr, "LEPTON_JOB_NAME"), FirstReplica), "LEPTON_SUBDOMAIN"),
            is(MasterPort, "MASTER_PORT"),
        ],
        default_port: None,
    },
    Platform {
        // Replicas without a leader are independent; then no host is given.
        id: "beaker",
        strength: Strength::Specific,
        proofs: &[&[Set("BEAKER_REPLICA_COUNT")], &[Set("BEAKER_REPLICA_RANK")]],
        claims: &[
            is(Nnodes, "BEAKER_REPLICA_COUNT"),
            is(NodeRank, "BEAKER_REPLICA_RANK"),
            is(MasterAddr, "MASTER_ADDR"),
            or(MasterAddr, "BEAKER_LEADER_REPLICA_HOSTNAME"),
            is(MasterPort, "MASTER_PORT"),
            is(GpuCount, "BEAKER_ASSIGNED_GPU_COUNT"),
        ],
        default_port: None,
    },
    Platform {
        // @parallel; the same names on AWS Batch, on Kubernetes and on one machine.
        id: "metaflow",
        strength: Strength::Specific,
        proofs: &[&[Set("MF_PARALLEL_NUM_NODES")], &[Set("MF_PARALLEL_NODE_INDEX")]],
        claims: &[
            is(Nnodes, "MF_PARALLEL_NUM_NODES"),
            is(NodeRank, "MF_PARALLEL_NODE_INDEX"),
            is(MasterAddr, "MASTER_ADDR"),
            or(MasterAddr, "MF_PARALLEL_MAIN_IP"),
            is(MasterPort, "MASTER_PORT"),
        ],
        default_port: None,
    },
    Platform {
        // PyTorch jobs, whose WORLD_SIZE and RANK count processes. Its MPI jobs are a launcher.
        id: "azure-ml-pytorch",
        strength: Strength::Specific,
        proofs: &[&[Set("AZUREML_NODE_COUNT"), Set("NODE_RANK")]],
        claims: &[
            is(Nnodes, "AZUREML_NODE_COUNT"),
            is(NodeRank, "NODE_RANK"),
            is(MasterAddr, "MASTER_ADDR"),
            is(MasterPort, "MASTER_PORT"),
        ],
        default_port: None,
    },
    Platform {
        // The universe `parallel`: each process has a slot of its own. No variable names a host.
        id: "htcondor",
        strength: Strength::Specific,
        proofs: &[&[Set("_CONDOR_PROCNO"), Set("_CONDOR_NPROCS")]],
        claims: &[
            is(Nnodes, "_CONDOR_NPROCS"),
            is(NodeRank, "_CONDOR_PROCNO"),
            is(MasterAddr, "MASTER_ADDR"),
            is(MasterPort, "MASTER_PORT"),
        ],
        default_port: None,
    },
    Platform {
        id: "vertex-ai",
        strength: Strength::Specific,
        proofs: &[&[Holds("CLUSTER_SPEC", |host| has_key(host, "CLUSTER_SPEC", "cluster"))]],
        claims: &[
            as_(is(Nnodes, "CLUSTER_SPEC"), Cluster),
            as_(is(NodeRank, "CLUSTER_SPEC"), Cluster),
            is(MasterAddr, "MASTER_ADDR"),
            as_(or(MasterAddr, "CLUSTER_SPEC"), Cluster),
            is(MasterPort, "MASTER_PORT"),
            as_(or(MasterPort, "CLUSTER_SPEC"), Cluster),
        ],
        default_port: None,
    },
    Platform {
        // TonY on YARN. An index counts within its kind of task.
        id: "tony",
        strength: Strength::Specific,
        proofs: &[&[Holds("CLUSTER_SPEC", is_spec_of_tony)]],
        claims: &[
            as_(is(Nnodes, "CLUSTER_SPEC"), Cluster),
            only(is(NodeRank, "TASK_INDEX"), is_worker_of_tony),
            is(MasterAddr, "MASTER_ADDR"),
            as_(or(MasterAddr, "CLUSTER_SPEC"), Cluster),
            is(MasterPort, "MASTER_PORT"),
            as_(or(MasterPort, "CLUSTER_SPEC"), Cluster),
        ],
        default_port: None,
    },
    Platform {
        // Meituan's platform, as public training scripts read it.
        id: "afo",
        strength: Strength::Specific,
        proofs: &[&[Holds("AFO_ENV_CLUSTER_SPEC", |host| {
            has_key(host, "AFO_ENV_CLUSTER_SPEC", "worker")
        })]],
        claims: &[
            as_(is(Nnodes, "AFO_ENV_CLUSTER_SPEC"), Cluster),
            as_(is(NodeRank, "AFO_ENV_CLUSTER_SPEC"), Cluster),
            is(MasterAddr, "MASTER_ADDR"),
            as_(or(MasterAddr, "AFO_ENV_CLUSTER_SPEC"), Cluster),
            is(MasterPort, "MASTER_PORT"),
            as_(or(MasterPort, "AFO_ENV_CLUSTER_SPEC"), Cluster),
        ],
        default_port: None,
    },
    Platform {
        // The index counts within a task role, so with several roles it is no node rank. The second
        // name of the count is from versions before 1.0.
        id: "openpai",
        strength: Strength::Specific,
        proofs: &[&[Set(PAI_INDEX)], &[Set("PAI_CURRENT_TASK_ROLE_NAME")]],
        claims: &[
            only(is(Nnodes, "PAI_TASK_ROLE_TASK_COUNT_{PAI_CURRENT_TASK_ROLE_NAME}"), has_one_role),
            only(or(Nnodes, "PAI_CURRENT_TASK_ROLE_TASK_COUNT"), has_one_role),
            only(is(NodeRank, PAI_INDEX), has_one_role),
            as_(is(Several, "PAI_TASK_ROLE_COUNT"), Count),
            is(MasterAddr, "MASTER_ADDR"),
            or(MasterAddr, "PAI_HOST_IP_{PAI_CURRENT_TASK_ROLE_NAME}_0"),
            is(MasterPort, "MASTER_PORT"),
        ],
        default_port: None,
    },
    Platform {
        id: "huawei-modelarts",
        strength: Strength::Specific,
        proofs: &[&[Set("MA_NUM_HOSTS")]],
        claims: &[
            is(Nnodes, "MA_NUM_HOSTS"),
            is(NodeRank, "VC_TASK_INDEX"),
            is(MasterAddr, "MASTER_ADDR"),
            as_(or(MasterAddr, "VC_WORKER_HOSTS"), FirstOfList),
            is(MasterPort, "MASTER_PORT"),
            is(GpuCount, "MA_NUM_GPUS"),
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
        // The env and svc plugins without the pytorch plugin: with a single kind of task
        // its index is the node rank.
        id: "volcano-workers",
        strength: Strength::Specific,
        proofs: &[&[
            Holds("VC_TASK_INDEX", volcano::has_one_task),
            Unset("MA_NUM_HOSTS"),
            Unset("WORLD_SIZE"),
            Unset("RANK"),
        ]],
        // Count and hosts have the task's name in theirs: `volcano::evidence`.
        claims: &[
            is(NodeRank, "VC_TASK_INDEX"),
            or(NodeRank, "VK_TASK_INDEX"),
            is(MasterAddr, "MASTER_ADDR"),
            is(MasterPort, "MASTER_PORT"),
        ],
        default_port: Some(23456),
    },
    Platform {
        // With two kinds of task no variable tells to which this pod belongs.
        id: "volcano-tasks",
        strength: Strength::Specific,
        proofs: &[&[
            Holds("VC_TASK_INDEX", volcano::has_several_tasks),
            Unset("MA_NUM_HOSTS"),
            Unset("WORLD_SIZE"),
            Unset("RANK"),
        ]],
        claims: &[is(MasterAddr, "MASTER_ADDR"), is(MasterPort, "MASTER_PORT")],
        default_port: Some(23456),
    },
];

const PAI_INDEX: &str = "PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX";

fn has_one_role(host: &Host) -> bool {
    host.variable("PAI_TASK_ROLE_COUNT").is_none_or(|count| count.trim() == "1")
}

/// Whether a description in JSON has this key.
fn has_key(host: &Host, variable: &str, key: &str) -> bool {
    host.variable(variable).is_some_and(|text| text.contains(&format!("\"{key}\"")))
}

fn is_spec_of_tony(host: &Host) -> bool {
    has_key(host, "CLUSTER_SPEC", "worker") && !has_key(host, "CLUSTER_SPEC", "cluster")
}

/// Whether this is a worker of a job whose other tasks do not train.
fn is_worker_of_tony(host: &Host) -> bool {
    host.variable("JOB_NAME").is_some_and(|kind| kind == "worker")
        && !["chief", "master"].iter().any(|kind| has_key(host, "CLUSTER_SPEC", kind))
}
