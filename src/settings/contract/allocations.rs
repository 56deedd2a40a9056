//! The rows of batch systems that start a script on one of several nodes, or a command on each node
//! without telling its place. Their variables are only evidence of other nodes ([`Several`]).
//!
//! No row decides anything if another source counts nodes, since an allocation may be used in
//! parts. A batch system that gives count and index belongs in [`super::table`].
//!
//! [`Several`]: crate::contract::Field::Several

use crate::contract::{Reading, Strength};
use linux::host::Host;

use super::row::Test::{self, Is, Set, Unset};
use super::row::{Platform, PlatformRow, as_, is, only};
use crate::contract::Field::Several;
use Reading::{Count, HostFile, Hosts, Index};

pub(super) const ALLOCATIONS: &[Platform] = &[
    // PBS Pro, OpenPBS and Torque. A script runs on the first host; pbsdsh and tm_spawn(3) number
    // hosts and slots. PBS_TASKNUM is left out: versions differ in what it counts.
    row(
        "pbs",
        &[
            &[Set("PBS_JOBID")],
            &[Set("PBS_ENVIRONMENT")],
            &[Set("PBS_NODENUM")],
            &[Set("PBS_VNODENUM")],
            &[Set("PBS_NODEFILE")],
            &[Set("PBS_NUM_NODES")],
        ],
        &[
            several("PBS_NUM_NODES", Count),
            several("PBS_NODEFILE", HostFile),
            several("PBS_NODENUM", Index),
            several("PBS_VNODENUM", Index),
        ],
    ),
    // LSF, also below jsrun, which counts its processes. The script's own host has no process, but is in
    // the lists. A host with several slots is listed once per slot.
    row(
        "lsf",
        &[
            &[Set("LSB_JOBID")],
            &[Set("LSB_HOSTS")],
            &[Set("LSB_MCPU_HOSTS")],
            &[Set("LSB_DJOB_HOSTFILE")],
            &[Set("JSM_NAMESPACE_RANK")],
        ],
        &[
            only(several("LSB_HOSTS", Hosts), is_uncounted_by_jsrun),
            only(several("LSB_MCPU_HOSTS", Hosts), is_uncounted_by_jsrun),
            only(several("LSB_DJOB_HOSTFILE", HostFile), is_uncounted_by_jsrun),
            only(several("LSB_DJOB_RANKFILE", HostFile), is_uncounted_by_jsrun),
            several("JSM_NAMESPACE_RANK", Index),
            several("JSM_NAMESPACE_SIZE", Count),
        ],
    ),
    // Sun, Univa and Altair Grid Engine. NSLOTS may all be on one host; members of an array
    // (SGE_TASK_ID) are jobs of their own.
    row(
        "grid-engine",
        &[&[Set("PE_HOSTFILE")], &[Set("NHOSTS"), Set("NSLOTS")]],
        &[several("NHOSTS", Count), several("PE_HOSTFILE", HostFile)],
    ),
    // Fujitsu's Job Operation Software. Virtual nodes may share a host; only the file shows it.
    row(
        "pjm",
        &[&[Set("PJM_JOBID")], &[Set("PJM_NODE")], &[Set("PJM_O_NODEINF")]],
        &[
            several("PJM_NODE", Count),
            several("PJM_O_NODEINF", HostFile),
            only(several("PJM_VNODES", Count), |host| host.variable("PJM_O_NODEINF").is_none()),
        ],
    ),
    // A list has one host per task.
    row(
        "loadleveler",
        &[&[Set("LOADL_STEP_ID")], &[Set("LOADL_PROCESSOR_LIST")], &[Set("LOADL_HOSTFILE")]],
        &[several("LOADL_PROCESSOR_LIST", Hosts), several("LOADL_HOSTFILE", HostFile)],
    ),
    row(
        "moab",
        &[&[Set("MOAB_JOBID")], &[Set("MOAB_NODECOUNT")], &[Set("MOAB_NODELIST")]],
        &[several("MOAB_NODECOUNT", Count), several("MOAB_NODELIST", Hosts)],
    ),
    row(
        "cobalt",
        &[&[Set("COBALT_JOBID")], &[Set("COBALT_NODEFILE")]],
        &[
            several("COBALT_JOBSIZE", Count),
            several("COBALT_PARTNAME", Hosts),
            several("COBALT_NODEFILE", HostFile),
        ],
    ),
    // Cray's aprun and mpiexec, which give no count.
    row("alps", &[&[Set("ALPS_APP_PE")]], &[several("ALPS_APP_PE", Index)]),
    row("pals", &[&[Set("PALS_RANKID")]], &[several("PALS_RANKID", Index)]),
    // Pods that start together or not at all.
    row(
        "armada",
        &[&[Set("ARMADA_GANG_CARDINALITY")]],
        &[several("ARMADA_GANG_CARDINALITY", Count)],
    ),
    // MindSpore's names on Ascend, which number devices.
    row(
        "ascend",
        &[&[Set("RANK_TABLE_FILE")]],
        &[several("RANK_SIZE", Count), several("RANK_ID", Index)],
    ),
    // Multi-instance tasks, whose first instance runs the application's command.
    row(
        "azure-batch",
        &[&[Set("AZ_BATCH_HOST_LIST")], &[Set("AZ_BATCH_NODE_LIST")]],
        &[several("AZ_BATCH_HOST_LIST", Hosts), several("AZ_BATCH_NODE_LIST", Hosts)],
    ),
    // Azure ML beside its PyTorch jobs, and the service it grew from, as public start-up scripts read them.
    row(
        "azure-ml-count",
        &[
            &[Set("AZUREML_NODE_COUNT"), Unset("NODE_RANK")],
            &[Set("AZ_BATCHAI_TASK_INDEX"), Unset("NODE_RANK")],
        ],
        &[several("AZUREML_NODE_COUNT", Count), several("AZ_BATCHAI_TASK_INDEX", Index)],
    ),
    row(
        "philly",
        &[&[Set("PHILLY_CONTAINER_INDEX")], &[Set("PHILLY_CONTAINER_COUNT")]],
        &[several("PHILLY_CONTAINER_COUNT", Count), several("PHILLY_CONTAINER_INDEX", Index)],
    ),
    // Pods of a scaling group of NVIDIA Grove, which gives no address of the first pod.
    row(
        "grove",
        &[&[Set("GROVE_PCSG_TEMPLATE_NUM_PODS")], &[Set("GROVE_PCSG_POD_INDEX")]],
        &[several("GROVE_PCSG_TEMPLATE_NUM_PODS", Count), several("GROVE_PCSG_POD_INDEX", Index)],
    ),
    // The launcher of an MPIJob with Intel MPI or MPICH, whose mpirun reads the file.
    row(
        "mpi-operator",
        &[&[Is("K_MPI_JOB_ROLE", "launcher")]],
        &[several("I_MPI_HYDRA_HOST_FILE", HostFile), several("HYDRA_HOST_FILE", HostFile)],
    ),
    // The index of a pod within its task. Without the plugin svc no variable counts the pods.
    row(
        "volcano-index",
        &[
            &[Set("VC_TASK_INDEX"), Unset("WORLD_SIZE"), Unset("RANK")],
            &[Set("VK_TASK_INDEX"), Unset("WORLD_SIZE"), Unset("RANK")],
        ],
        &[several("VC_TASK_INDEX", Index), several("VK_TASK_INDEX", Index)],
    ),
    // A heterogeneous job of SageMaker without the list of all hosts.
    row(
        "sagemaker-group",
        &[&[Set("SM_CURRENT_INSTANCE_GROUP_HOSTS"), Unset("SM_HOSTS")]],
        &[several("SM_CURRENT_INSTANCE_GROUP_HOSTS", Hosts)],
    ),
    // Determined's master gives a container its place in a file (`job_files`). Kubernetes counts its pods.
    row(
        "determined",
        &[
            &[Set("DET_AGENT_ID")],
            &[Set("DET_ALLOCATION_ID")],
            &[Set("DET_KUBERNETES_JOB_PARALLELISM")],
            &[Set("DET_NUM_NODES")],
        ],
        &[several("DET_KUBERNETES_JOB_PARALLELISM", Count), several("DET_NUM_NODES", Count)],
    ),
    // ByteDance's platform, as its public training scripts read it.
    row(
        "arnold",
        &[&[Set("ARNOLD_WORKER_NUM")], &[Set("ARNOLD_ID")]],
        &[several("ARNOLD_WORKER_NUM", Count), several("ARNOLD_ID", Index)],
    ),
    // `fabric run`, which writes the arguments of its command line into variables.
    row("lightning", &[&[Set("LT_NUM_NODES")]], &[several("LT_NUM_NODES", Count)]),
];

const fn row(
    id: &'static str,
    proofs: &'static [&'static [Test]],
    claims: &'static [PlatformRow],
) -> Platform {
    Platform { id, strength: Strength::Hint, proofs, claims, default_port: None }
}

/// True unless jsrun counts its processes. Slots of the allocation do not show on which hosts jsrun started them.
fn is_uncounted_by_jsrun(host: &Host) -> bool {
    host.variable("JSM_NAMESPACE_SIZE").is_none()
}

const fn several(variable: &'static str, reading: Reading) -> PlatformRow {
    as_(is(Several, variable), reading)
}
