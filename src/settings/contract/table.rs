//! The contracts of platforms, one row each: what proves the platform, and which variable gives
//! which field in which form. Launchers are in [`super::launchers`], names that belong to no
//! platform in [`super::conventions`].
//!
//! A new platform is one more entry of [`PLATFORMS`]. A part of its variables proves a platform
//! too; missing ones are then refused by name. Rows are in the order of trust: if two give the
//! same field with the same strength, the earlier one is named first. The first claim of a field
//! in a row and all that follow by [`is`] have the same strength and must agree; [`or`] is
//! read only if those before it are absent or blank.

use super::derived::{has_one_task, has_several_tasks};
use super::row::Test::{Ends, Holds, Is, Set, Unset};
use super::row::{
    MASTER, Platform, PlatformRow, as_, beside, cluster, is, master, nodes, only, or,
};
use crate::contract::Field::{
    GpuCount, JobId, MasterAddr, MasterPort, Nnodes, NodeRank, Nproc, Offered, RdzvBackend,
    RdzvEndpoint, Several, Standalone,
};
use crate::contract::Reading::{
    Cluster, Count, FirstOfList, FirstReplica, HostPart, ListLength, Loopback, MainFirst, Plain,
    PortPart, PositionInList, Range,
};
use crate::contract::Strength::Specific;
use linux::host::Host;

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
    // Versions up to 1.6 set no PET_ variables; they are recognised by PYTHONUNBUFFERED=0
    // and by the name of the master pod.
    Specific
        .platform(
            "kubeflow-pytorchjob",
            &[
                &[Set("PET_NNODES"), Set("WORLD_SIZE")],
                &[Set("PET_NNODES"), Set("PET_RDZV_ENDPOINT")],
                &[Is("PYTHONUNBUFFERED", "0"), Set("WORLD_SIZE"), Set("RANK"), Set("MASTER_PORT")],
                &[Ends("MASTER_ADDR", "-master-0"), Set("WORLD_SIZE"), Unset("VC_TASK_INDEX")],
            ],
            &[PET],
        )
        .port(23456),
    Specific
        .platform(
            "kubeflow-trainer-v2",
            &[&[
                Set("PET_NNODES"),
                Set("PET_NODE_RANK"),
                Unset("WORLD_SIZE"),
                Unset("PET_RDZV_ENDPOINT"),
            ]],
            &[PET],
        )
        .port(29500),
    // RJOB_ and RLAUNCH_ are the spellings of other tools of the same platform; in a
    // job of several tasks they count within the task.
    Specific.platform(
        "kubebrain",
        &[
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
        &[
            &[
                is(Nnodes, "NODE_COUNT"),
                is(Nnodes, "KUBEBRAIN_REPLICA_TOTAL"),
                or(Nnodes, "RLAUNCH_REPLICA_TOTAL"),
                or(Nnodes, "RJOB_REPLICA_TOTAL"),
                is(NodeRank, "NODE_RANK"),
                is(NodeRank, "KUBEBRAIN_REPLICA"),
                or(NodeRank, "RLAUNCH_REPLICA"),
                or(NodeRank, "RJOB_REPLICA"),
                or(NodeRank, "RJOB_TASK_INDEX"),
            ],
            &MASTER,
            &[
                or(MasterPort, "PORT_0"),
                is(Offered, "PROC_PER_NODE"),
                is(GpuCount, "GPU_COUNT"),
                is(JobId, "JOB_ID"),
                or(JobId, "KUBEBRAIN_RJOB_NAME"),
            ],
        ],
    ),
    Specific.platform(
        "volcengine-mlp",
        &[&[Set("MLP_WORKER_NUM")], &[Set("MLP_ROLE_INDEX")]],
        &[
            &nodes("MLP_WORKER_NUM", "MLP_ROLE_INDEX"),
            &master("MLP_WORKER_0_HOST", Plain),
            &[
                or(MasterPort, "MLP_WORKER_0_PORT"),
                is(Offered, "MLP_WORKER_GPU"),
                is(GpuCount, "MLP_WORKER_GPU"),
            ],
        ],
    ),
    Specific.platform(
        "runpod",
        &[&[Set("PRIMARY_ADDR"), Set("NUM_NODES")], &[Set("PRIMARY_ADDR"), Set("NODE_RANK")]],
        &[
            &nodes("NUM_NODES", "NODE_RANK"),
            &master("PRIMARY_ADDR", Plain),
            &[or(MasterPort, "PRIMARY_PORT"), is(Offered, "NUM_TRAINERS")],
        ],
    ),
    // The order of SM_HOSTS is the order of ranks, as in the platform's own toolkit.
    Specific
        .platform(
            "sagemaker",
            &[&[Set("SM_HOSTS")]],
            &[
                &[
                    as_(is(Nnodes, "SM_HOSTS"), ListLength),
                    beside(as_(is(NodeRank, "SM_CURRENT_HOST"), PositionInList), "SM_HOSTS"),
                ],
                &master("SM_HOSTS", FirstOfList),
                &[is(GpuCount, "SM_NUM_GPUS"), is(JobId, "TRAINING_JOB_NAME")],
            ],
        )
        .port(7777),
    // The main node does not get its own address, and its index need not be 0.
    Specific.platform(
        "aws-batch",
        &[&[Set("AWS_BATCH_JOB_NUM_NODES")], &[Set("AWS_BATCH_JOB_NODE_INDEX")]],
        &[&[
            is(Nnodes, "AWS_BATCH_JOB_NUM_NODES"),
            beside(
                as_(is(NodeRank, "AWS_BATCH_JOB_NODE_INDEX"), MainFirst),
                "AWS_BATCH_JOB_MAIN_NODE_INDEX",
            ),
            is(MasterAddr, "MASTER_ADDR"),
            or(MasterAddr, "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"),
            as_(or(MasterAddr, "AWS_BATCH_JOB_MAIN_NODE_INDEX"), Loopback),
            is(MasterPort, "MASTER_PORT"),
        ]],
    ),
    Specific
        .platform(
            "skypilot",
            // Versions until 0.2 have the short names and give no count.
            &[
                &[Set("SKYPILOT_NUM_NODES")],
                &[Set("SKYPILOT_NODE_RANK")],
                &[Set("SKY_NODE_RANK"), Set("SKY_NODE_IPS")],
            ],
            &[&[
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
            ]],
        )
        .port(8008),
    Specific.platform(
        "leader-worker-set",
        &[&[Set("LWS_GROUP_SIZE")], &[Set("LWS_WORKER_INDEX")]],
        &[&nodes("LWS_GROUP_SIZE", "LWS_WORKER_INDEX"), &master("LWS_LEADER_ADDRESS", Plain)],
    ),
    // Tencent TI's own launcher (torchrun's parameters in the manual: NODE_NUM, INDEX, CHIEF_IP).
    Specific.platform(
        "tencent-ti",
        &[&[Set("CHIEF_IP"), Set("NODE_NUM")], &[Set("CHIEF_IP"), Set("INDEX")]],
        &[
            &nodes("NODE_NUM", "INDEX"),
            &master("CHIEF_IP", Plain),
            &[is(Offered, "GPU_NUM_PER_NODE")],
        ],
    ),
    // The address of DLRover's own master is not that of a node.
    Specific.platform(
        "dlrover",
        &[&[Set("NODE_NUM"), Set("NODE_RANK")], &[Set("DLROVER_MASTER_ADDR")]],
        &[&nodes("NODE_NUM", "NODE_RANK"), &MASTER, &[is(JobId, "ELASTIC_JOB_NAME")]],
    ),
    Specific.platform(
        "dstack",
        &[&[Set("DSTACK_NODES_NUM")], &[Set("DSTACK_NODE_RANK")]],
        &[
            &nodes("DSTACK_NODES_NUM", "DSTACK_NODE_RANK"),
            &master("DSTACK_MASTER_NODE_IP", Plain),
            &[is(GpuCount, "DSTACK_GPUS_PER_NODE")],
        ],
    ),
    // An array without a master consists of independent jobs.
    Specific.platform(
        "ngc",
        &[
            &[Set("NGC_MASTER_ADDR"), Set("NGC_ARRAY_SIZE")],
            &[Set("NGC_MASTER_ADDR"), Set("NGC_ARRAY_INDEX")],
        ],
        &[
            &nodes("NGC_ARRAY_SIZE", "NGC_ARRAY_INDEX"),
            &master("NGC_MASTER_ADDR", Plain),
            &[is(JobId, "NGC_JOB_ID")],
        ],
    ),
    Specific.platform(
        "lepton",
        &[&[Set("LEPTON_JOB_TOTAL_WORKERS")], &[Set("LEPTON_JOB_WORKER_INDEX")]],
        &[
            &nodes("LEPTON_JOB_TOTAL_WORKERS", "LEPTON_JOB_WORKER_INDEX"),
            &[
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
        ],
    ),
    // Replicas without a leader are independent; then no host is given.
    Specific.platform(
        "beaker",
        &[&[Set("BEAKER_REPLICA_COUNT")], &[Set("BEAKER_REPLICA_RANK")]],
        &[
            &nodes("BEAKER_REPLICA_COUNT", "BEAKER_REPLICA_RANK"),
            &master("BEAKER_LEADER_REPLICA_HOSTNAME", Plain),
            &[is(GpuCount, "BEAKER_ASSIGNED_GPU_COUNT")],
        ],
    ),
    // @parallel; the same names on AWS Batch, on Kubernetes and on one machine.
    Specific.platform(
        "metaflow",
        &[&[Set("MF_PARALLEL_NUM_NODES")], &[Set("MF_PARALLEL_NODE_INDEX")]],
        &[
            &nodes("MF_PARALLEL_NUM_NODES", "MF_PARALLEL_NODE_INDEX"),
            &master("MF_PARALLEL_MAIN_IP", Plain),
        ],
    ),
    // PyTorch jobs, whose WORLD_SIZE and RANK count processes. Its MPI jobs are a launcher.
    Specific.platform(
        "azure-ml-pytorch",
        &[&[Set("AZUREML_NODE_COUNT"), Set("NODE_RANK")]],
        &[&nodes("AZUREML_NODE_COUNT", "NODE_RANK"), &MASTER],
    ),
    // The universe `parallel`: each process has a slot of its own. No variable names a host.
    Specific.platform(
        "htcondor",
        &[&[Set("_CONDOR_PROCNO"), Set("_CONDOR_NPROCS")]],
        &[&nodes("_CONDOR_NPROCS", "_CONDOR_PROCNO"), &MASTER],
    ),
    Specific.platform(
        "vertex-ai",
        &[&[Holds("CLUSTER_SPEC", |host| has_key(host, "CLUSTER_SPEC", "cluster"))]],
        &[&cluster("CLUSTER_SPEC")],
    ),
    // TonY on YARN. An index counts within its kind of task.
    Specific.platform(
        "tony",
        &[&[Holds("CLUSTER_SPEC", is_spec_of_tony)]],
        &[
            &[
                as_(is(Nnodes, "CLUSTER_SPEC"), Cluster),
                only(is(NodeRank, "TASK_INDEX"), is_worker_of_tony),
            ],
            &master("CLUSTER_SPEC", Cluster),
            &[as_(or(MasterPort, "CLUSTER_SPEC"), Cluster)],
        ],
    ),
    // Meituan's platform, as public training scripts read it.
    Specific.platform(
        "afo",
        &[&[Holds("AFO_ENV_CLUSTER_SPEC", |host| has_key(host, "AFO_ENV_CLUSTER_SPEC", "worker"))]],
        &[&cluster("AFO_ENV_CLUSTER_SPEC")],
    ),
    // The index counts within a task role, so with several roles it is no node rank. The second
    // name of the count is from versions before 1.0.
    Specific.platform(
        "openpai",
        &[&[Set(PAI_INDEX)], &[Set("PAI_CURRENT_TASK_ROLE_NAME")]],
        &[
            &[
                only(
                    is(Nnodes, "PAI_TASK_ROLE_TASK_COUNT_{PAI_CURRENT_TASK_ROLE_NAME}"),
                    has_one_role,
                ),
                only(or(Nnodes, "PAI_CURRENT_TASK_ROLE_TASK_COUNT"), has_one_role),
                only(is(NodeRank, PAI_INDEX), has_one_role),
                as_(is(Several, "PAI_TASK_ROLE_COUNT"), Count),
            ],
            &master("PAI_HOST_IP_{PAI_CURRENT_TASK_ROLE_NAME}_0", Plain),
        ],
    ),
    Specific.platform(
        "huawei-modelarts",
        &[&[Set("MA_NUM_HOSTS")]],
        &[
            &nodes("MA_NUM_HOSTS", "VC_TASK_INDEX"),
            &master("VC_WORKER_HOSTS", FirstOfList),
            &[is(GpuCount, "MA_NUM_GPUS")],
        ],
    ),
    // WORLD_SIZE counts the replicas of master and worker; a task of another kind
    // gets no RANK. VC_TASK_INDEX counts within the task and is no node rank.
    Specific
        .platform("volcano", &[&[Set("VC_TASK_INDEX"), Set("WORLD_SIZE"), Set("MASTER_ADDR")]], &[])
        .port(23456),
    // The env and svc plugins without the pytorch plugin: with a single kind of task
    // its index is the node rank.
    Specific
        .platform(
            "volcano-workers",
            &[&[
                Holds("VC_TASK_INDEX", has_one_task),
                Unset("MA_NUM_HOSTS"),
                Unset("WORLD_SIZE"),
                Unset("RANK"),
            ]],
            // Count and hosts have the task's name in theirs: [`super::derived`].
            &[&[is(NodeRank, "VC_TASK_INDEX"), or(NodeRank, "VK_TASK_INDEX")], &MASTER],
        )
        .port(23456),
    // With two kinds of task no variable tells to which this pod belongs.
    Specific
        .platform(
            "volcano-tasks",
            &[&[
                Holds("VC_TASK_INDEX", has_several_tasks),
                Unset("MA_NUM_HOSTS"),
                Unset("WORLD_SIZE"),
                Unset("RANK"),
            ]],
            &[&MASTER],
        )
        .port(23456),
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
