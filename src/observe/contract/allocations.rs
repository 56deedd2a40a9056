//! The rows of batch systems that start a script on one node of several, or a command on each
//! without its place: their variables are only evidence that there are others ([`Several`]).
//!
//! None decides anything where another source counts nodes, since an allocation may be used in
//! parts. A batch system that gives count and index belongs in [`super::table`].
//!
//! [`Several`]: crate::observe::Field::Several

use crate::observe::{Reading, Strength};

use super::row::Test::{self, Set, Unset};
use super::row::{Platform, PlatformRow, as_, is};
use crate::observe::Field::Several;
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
    // LSF, also below jsrun. Slots of one host are as many equal names.
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
            several("LSB_HOSTS", Hosts),
            several("LSB_MCPU_HOSTS", Hosts),
            several("LSB_DJOB_HOSTFILE", HostFile),
            several("LSB_DJOB_RANKFILE", HostFile),
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
    // Multi-instance tasks, whose first instance runs the application's command.
    row(
        "azure-batch",
        &[&[Set("AZ_BATCH_HOST_LIST")], &[Set("AZ_BATCH_NODE_LIST")]],
        &[several("AZ_BATCH_HOST_LIST", Hosts), several("AZ_BATCH_NODE_LIST", Hosts)],
    ),
    // The number of a pod within its task, which without the plugin svc nothing counts.
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
    // A container has its place from the master, in a file (`job_files`). Kubernetes counts its pods.
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

const fn several(variable: &'static str, reading: Reading) -> PlatformRow {
    as_(is(Several, variable), reading)
}
