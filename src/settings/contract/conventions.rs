//! The contract rows of names that belong to no single platform (torchrun's own, those of many
//! start-up scripts, variables of containers that need not mean a job of several nodes), and of batch
//! systems that start a script on one of several nodes, or a command on each node without telling its
//! place. The variables of such a batch system are only evidence of other nodes ([`Several`]).
//!
//! No row of a batch system decides anything if another source counts nodes, since an allocation may
//! be used in parts. A batch system that gives count and index belongs in [`super::table`].

use super::row::Test::{Is, Port, Set, Unset};
use super::row::{
    MASTER, Platform, PlatformRow, as_, beside, cluster, is, master, nodes, only, or,
};
use super::table::PET;
use crate::contract::Field::{
    JobId, MasterAddr, MasterPort, Nnodes, NodeRank, Offered, Rank, Several, WorldSize,
};
use crate::contract::Reading::{self, Count, HostFile, HostPart, Hosts, Index, PerNode};
use crate::contract::Strength::{Conventional, Generic, Hint};
use linux::host::Host;

pub(super) const CONVENTIONS: &[Platform] = &[
    Conventional.platform(
        "torchrun-variables",
        &[
            &[Set("PET_NNODES")],
            &[Set("PET_NODE_RANK")],
            &[Set("PET_NPROC_PER_NODE")],
            &[Set("PET_STANDALONE")],
        ],
        &[PET],
    ),
    // Variables that torchrun sets for its workers, here leftovers.
    Conventional.platform(
        "torchrun-worker",
        &[&[Set("TORCHELASTIC_RUN_ID"), Set("GROUP_WORLD_SIZE"), Set("GROUP_RANK")]],
        &[&nodes("GROUP_WORLD_SIZE", "GROUP_RANK")],
    ),
    // Composer's launcher counts processes in WORLD_SIZE, and gives the number per node.
    Conventional.platform(
        "composer",
        &[&[
            Set("WORLD_SIZE"),
            Set("NODE_RANK"),
            Set("LOCAL_WORLD_SIZE"),
            Unset("RANK"),
            Unset("NNODES"),
            Unset("TORCHELASTIC_RUN_ID"),
        ]],
        &[&[
            beside(as_(is(Nnodes, "WORLD_SIZE"), PerNode), "LOCAL_WORLD_SIZE"),
            is(NodeRank, "NODE_RANK"),
            is(Offered, "LOCAL_WORLD_SIZE"),
        ]],
    ),
    // The names of most start-up scripts, and of our own `--engine command`. NODE_RANK
    // beside WORLD_SIZE is PyTorch Lightning's pair, in which WORLD_SIZE counts nodes.
    Conventional.platform(
        "node-variables",
        &[
            &[Set("NNODES")],
            &[Set("NODE_RANK")],
            &[Set("NODE_COUNT"), Set("MASTER_ADDR")],
            &[Set("NUM_NODES"), Set("MASTER_ADDR")],
        ],
        &[&[
            is(Nnodes, "NNODES"),
            or(Nnodes, "NODE_COUNT"),
            or(Nnodes, "NUM_NODES"),
            is(NodeRank, "NODE_RANK"),
            is(Offered, "NPROC_PER_NODE"),
        ]],
    ),
    // A cluster description without RANK, as TensorFlow reads it.
    Conventional.platform(
        "tf-config",
        &[&[Set("TF_CONFIG"), Unset("RANK"), Unset("WORLD_SIZE")]],
        &[&cluster("TF_CONFIG")],
    ),
    // JAXJob of Kubeflow, one process per pod.
    Conventional.platform(
        "kubeflow-jaxjob",
        &[
            &[Set("COORDINATOR_ADDRESS"), Set("NUM_PROCESSES")],
            &[Set("COORDINATOR_ADDRESS"), Set("PROCESS_ID")],
        ],
        &[
            &nodes("NUM_PROCESSES", "PROCESS_ID"),
            &master("COORDINATOR_ADDRESS", HostPart),
            &[or(MasterPort, "COORDINATOR_PORT")],
        ],
    ),
    // Also PAI-DLC, which adds nothing of its own but NPROC_PER_NODE.
    Generic.platform(
        "generic",
        // MASTER_PORT alone is a proof as well, since users set it together with flags.
        &[&[Set("WORLD_SIZE")], &[Set("RANK")], &[Set("MASTER_ADDR")], &[Port("MASTER_PORT")]],
        &[
            &[is(WorldSize, "WORLD_SIZE"), is(Rank, "RANK")],
            &MASTER,
            &[is(Offered, "NPROC_PER_NODE")],
        ],
    ),
    // A Ray pod has no rank and no torch port; the head has a loopback address as its own.
    Hint.platform(
        "kuberay",
        &[&[Set("RAY_CLUSTER_NAME"), Set("RAY_NODE_TYPE_NAME")]],
        &[&[
            is(MasterAddr, "FQ_RAY_IP"),
            as_(or(MasterAddr, "RAY_ADDRESS"), HostPart),
            is(JobId, "RAY_CLUSTER_NAME"),
        ]],
    ),
    // No variable has the number of completions, and many indexed Jobs run independent pods,
    // so the index is a node rank only if nnodes is known.
    Hint.platform(
        "kubernetes-indexed-job",
        &[&[Set("JOB_COMPLETION_INDEX")]],
        &[&[is(NodeRank, "JOB_COMPLETION_INDEX")]],
    ),
];

pub(super) const ALLOCATIONS: &[Platform] = &[
    // PBS Pro, OpenPBS and Torque. A script runs on the first host; pbsdsh and tm_spawn(3) number
    // hosts and slots. PBS_TASKNUM is left out: versions differ in what it counts.
    Hint.platform(
        "pbs",
        &[
            &[Set("PBS_JOBID")],
            &[Set("PBS_ENVIRONMENT")],
            &[Set("PBS_NODENUM")],
            &[Set("PBS_VNODENUM")],
            &[Set("PBS_NODEFILE")],
            &[Set("PBS_NUM_NODES")],
        ],
        &[&[
            several("PBS_NUM_NODES", Count),
            several("PBS_NODEFILE", HostFile),
            several("PBS_NODENUM", Index),
            several("PBS_VNODENUM", Index),
        ]],
    ),
    // LSF, also below jsrun, which counts its processes. The script's own host has no process, but is in
    // the lists. A host with several slots is listed once per slot.
    Hint.platform(
        "lsf",
        &[
            &[Set("LSB_JOBID")],
            &[Set("LSB_HOSTS")],
            &[Set("LSB_MCPU_HOSTS")],
            &[Set("LSB_DJOB_HOSTFILE")],
            &[Set("JSM_NAMESPACE_RANK")],
        ],
        &[&[
            only(several("LSB_HOSTS", Hosts), is_uncounted_by_jsrun),
            only(several("LSB_MCPU_HOSTS", Hosts), is_uncounted_by_jsrun),
            only(several("LSB_DJOB_HOSTFILE", HostFile), is_uncounted_by_jsrun),
            only(several("LSB_DJOB_RANKFILE", HostFile), is_uncounted_by_jsrun),
            several("JSM_NAMESPACE_RANK", Index),
            several("JSM_NAMESPACE_SIZE", Count),
        ]],
    ),
    // Sun, Univa and Altair Grid Engine. NSLOTS may all be on one host; members of an array
    // (SGE_TASK_ID) are jobs of their own.
    Hint.platform(
        "grid-engine",
        &[&[Set("PE_HOSTFILE")], &[Set("NHOSTS"), Set("NSLOTS")]],
        &[&[several("NHOSTS", Count), several("PE_HOSTFILE", HostFile)]],
    ),
    // Fujitsu's Job Operation Software. Virtual nodes may share a host; only the file shows it.
    Hint.platform(
        "pjm",
        &[&[Set("PJM_JOBID")], &[Set("PJM_NODE")], &[Set("PJM_O_NODEINF")]],
        &[&[
            several("PJM_NODE", Count),
            several("PJM_O_NODEINF", HostFile),
            only(several("PJM_VNODES", Count), |host| host.variable("PJM_O_NODEINF").is_none()),
        ]],
    ),
    // A list has one host per task.
    Hint.platform(
        "loadleveler",
        &[&[Set("LOADL_STEP_ID")], &[Set("LOADL_PROCESSOR_LIST")], &[Set("LOADL_HOSTFILE")]],
        &[&[several("LOADL_PROCESSOR_LIST", Hosts), several("LOADL_HOSTFILE", HostFile)]],
    ),
    Hint.platform(
        "moab",
        &[&[Set("MOAB_JOBID")], &[Set("MOAB_NODECOUNT")], &[Set("MOAB_NODELIST")]],
        &[&[several("MOAB_NODECOUNT", Count), several("MOAB_NODELIST", Hosts)]],
    ),
    Hint.platform(
        "cobalt",
        &[&[Set("COBALT_JOBID")], &[Set("COBALT_NODEFILE")]],
        &[&[
            several("COBALT_JOBSIZE", Count),
            several("COBALT_PARTNAME", Hosts),
            several("COBALT_NODEFILE", HostFile),
        ]],
    ),
    // Cray's aprun and mpiexec, which give no count.
    Hint.platform("alps", &[&[Set("ALPS_APP_PE")]], &[&[several("ALPS_APP_PE", Index)]]),
    Hint.platform("pals", &[&[Set("PALS_RANKID")]], &[&[several("PALS_RANKID", Index)]]),
    // Pods that start together or not at all.
    Hint.platform(
        "armada",
        &[&[Set("ARMADA_GANG_CARDINALITY")]],
        &[&[several("ARMADA_GANG_CARDINALITY", Count)]],
    ),
    // MindSpore's names on Ascend, which number devices.
    Hint.platform(
        "ascend",
        &[&[Set("RANK_TABLE_FILE")]],
        &[&[several("RANK_SIZE", Count), several("RANK_ID", Index)]],
    ),
    // Multi-instance tasks, whose first instance runs the application's command.
    Hint.platform(
        "azure-batch",
        &[&[Set("AZ_BATCH_HOST_LIST")], &[Set("AZ_BATCH_NODE_LIST")]],
        &[&[several("AZ_BATCH_HOST_LIST", Hosts), several("AZ_BATCH_NODE_LIST", Hosts)]],
    ),
    // Azure ML beside its PyTorch jobs, and the service it grew from, as public start-up scripts read them.
    Hint.platform(
        "azure-ml-count",
        &[
            &[Set("AZUREML_NODE_COUNT"), Unset("NODE_RANK")],
            &[Set("AZ_BATCHAI_TASK_INDEX"), Unset("NODE_RANK")],
        ],
        &[&[several("AZUREML_NODE_COUNT", Count), several("AZ_BATCHAI_TASK_INDEX", Index)]],
    ),
    Hint.platform(
        "philly",
        &[&[Set("PHILLY_CONTAINER_INDEX")], &[Set("PHILLY_CONTAINER_COUNT")]],
        &[&[several("PHILLY_CONTAINER_COUNT", Count), several("PHILLY_CONTAINER_INDEX", Index)]],
    ),
    // Pods of a scaling group of NVIDIA Grove, which gives no address of the first pod.
    Hint.platform(
        "grove",
        &[&[Set("GROVE_PCSG_TEMPLATE_NUM_PODS")], &[Set("GROVE_PCSG_POD_INDEX")]],
        &[&[
            several("GROVE_PCSG_TEMPLATE_NUM_PODS", Count),
            several("GROVE_PCSG_POD_INDEX", Index),
        ]],
    ),
    // The launcher of an MPIJob with Intel MPI or MPICH, whose mpirun reads the file.
    Hint.platform(
        "mpi-operator",
        &[&[Is("K_MPI_JOB_ROLE", "launcher")]],
        &[&[several("I_MPI_HYDRA_HOST_FILE", HostFile), several("HYDRA_HOST_FILE", HostFile)]],
    ),
    // The index of a pod within its task. Without the plugin svc no variable counts the pods.
    Hint.platform(
        "volcano-index",
        &[
            &[Set("VC_TASK_INDEX"), Unset("WORLD_SIZE"), Unset("RANK")],
            &[Set("VK_TASK_INDEX"), Unset("WORLD_SIZE"), Unset("RANK")],
        ],
        &[&[several("VC_TASK_INDEX", Index), several("VK_TASK_INDEX", Index)]],
    ),
    // A heterogeneous job of SageMaker without the list of all hosts.
    Hint.platform(
        "sagemaker-group",
        &[&[Set("SM_CURRENT_INSTANCE_GROUP_HOSTS"), Unset("SM_HOSTS")]],
        &[&[several("SM_CURRENT_INSTANCE_GROUP_HOSTS", Hosts)]],
    ),
    // Determined's master gives a container its place in a file (`job_files`). Kubernetes counts its pods.
    Hint.platform(
        "determined",
        &[
            &[Set("DET_AGENT_ID")],
            &[Set("DET_ALLOCATION_ID")],
            &[Set("DET_KUBERNETES_JOB_PARALLELISM")],
            &[Set("DET_NUM_NODES")],
        ],
        &[&[several("DET_KUBERNETES_JOB_PARALLELISM", Count), several("DET_NUM_NODES", Count)]],
    ),
    // ByteDance's platform, as its public training scripts read it.
    Hint.platform(
        "arnold",
        &[&[Set("ARNOLD_WORKER_NUM")], &[Set("ARNOLD_ID")]],
        &[&[several("ARNOLD_WORKER_NUM", Count), several("ARNOLD_ID", Index)]],
    ),
    // `fabric run`, which writes the arguments of its command line into variables.
    Hint.platform("lightning", &[&[Set("LT_NUM_NODES")]], &[&[several("LT_NUM_NODES", Count)]]),
];

/// True unless jsrun counts its processes. Slots of the allocation do not show on which hosts jsrun started them.
fn is_uncounted_by_jsrun(host: &Host) -> bool {
    host.variable("JSM_NAMESPACE_SIZE").is_none()
}

const fn several(variable: &'static str, reading: Reading) -> PlatformRow {
    as_(is(Several, variable), reading)
}
