//! The contract rows of launchers: MPI, Slurm, and platforms that start one process per GPU.
//!
//! If launchers are nested, the inner one started us: mpirun inside a Slurm allocation starts
//! its own daemons by srun, whose variables then describe a daemon. So MPI launchers are
//! stronger than every platform around them.
//!
//! mpirun of Open MPI starts one daemon per host, numbered from 0; daemon 0 is on mpirun's own host.
//! Hosts are filled in the order of their daemons. No variable says whether mpirun's own host has
//! processes, but the number of this host's daemon and the number of ranks before this host do. Open
//! MPI 4 names the hosts of all daemons. Open MPI 5 names only mpirun's own host, in the id of the job,
//! and tells each process its own daemon.

use super::row::Test::{Holds, Set, Unset};
use super::row::{MASTER, Platform, PlatformRow, as_, beside, is, master, nodes, only, or};
use crate::contract::Field::{
    Cpus, GpuCount, JobId, MasterAddr, MasterPort, Nnodes, NodeRank, Several, TaskLocal, TaskRank,
    Tasks, TasksPerNode,
};
use crate::contract::Reading::{
    Count, DaemonHost, HostPart, HostlistFirst, LocalIndex, PerTask, PortOfJob, PositionInHostlist,
    Processes, PrterunHost, SecondDaemon, TaskList,
};
use crate::contract::Strength::{Hint, Launcher, Specific};
use crate::hostlist;
use linux::host::Host;

pub(super) const LAUNCHERS: &[Platform] = &[
    Launcher.platform(
        "azure-ml",
        &[&[Set("AZ_BATCH_MASTER_NODE"), Set("OMPI_COMM_WORLD_SIZE")]],
        &[
            &processes("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
            &places("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
            &master("AZ_BATCH_MASTER_NODE", HostPart),
        ],
    ),
    // With one process per node, processes are nodes; more are refused by TasksPerNode.
    // Inside a Slurm allocation the list of the job is used, since that of the step belongs
    // to a daemon.
    Launcher.platform(
        "open-mpi",
        &[
            &[Set("OMPI_COMM_WORLD_SIZE"), Unset("AZ_BATCH_MASTER_NODE")],
            &[Set("OMPI_COMM_WORLD_RANK"), Unset("AZ_BATCH_MASTER_NODE")],
        ],
        &[
            &processes("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
            &places("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
            MASTER_OF_ALLOCATION,
            &[
                only(OF_MPIRUN, first_is_with_mpirun),
                only(OF_DAEMONS, first_is_second_daemon),
                only(OF_PRTERUN, first_is_with_prterun),
                PORT_OF_PMIX,
                is(JobId, "PMIX_NAMESPACE"),
            ],
        ],
    ),
    Launcher.platform(
        "mvapich",
        &[&[Set("MV2_COMM_WORLD_SIZE")], &[Set("MV2_COMM_WORLD_RANK")]],
        &[
            &processes("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
            &places("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
            MASTER_OF_ALLOCATION,
        ],
    ),
    // MPICH and Intel MPI (hydra), Cray PALS. srun --mpi=pmi2 and Flux also set PMI_RANK and PMI_SIZE,
    // but none of the other variables; then their own rows are more complete.
    Launcher.platform(
        "pmi",
        &[
            &[Set("PMI_SIZE"), Set("MPI_LOCALNRANKS")],
            &[Set("PMI_RANK"), Set("MPI_LOCALNRANKS")],
            &[
                Set("PMI_SIZE"),
                Unset("SLURM_STEP_NUM_NODES"),
                Unset("OMPI_COMM_WORLD_SIZE"),
                Unset("FLUX_TASK_RANK"),
            ],
            &[
                Set("PMI_RANK"),
                Unset("SLURM_STEP_NUM_NODES"),
                Unset("OMPI_COMM_WORLD_SIZE"),
                Unset("FLUX_TASK_RANK"),
            ],
        ],
        &[
            &processes("PMI_SIZE", "PMI_RANK"),
            &places("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
            MASTER_OF_ALLOCATION,
            &[or(TaskLocal, "PMI_LOCAL_RANK"), or(TasksPerNode, "PMI_LOCAL_SIZE")],
        ],
    ),
    // PMIx gives the rank in the environment, but the count only by a call.
    Launcher.platform(
        "pmix",
        &[&[
            Set("PMIX_RANK"),
            Set("PMIX_NAMESPACE"),
            Unset("OMPI_COMM_WORLD_SIZE"),
            Unset("SLURM_STEP_NUM_NODES"),
            Unset("PMI_SIZE"),
            Unset("FLUX_TASK_RANK"),
        ]],
        &[
            &[as_(is(NodeRank, "PMIX_RANK"), Processes), is(TaskRank, "PMIX_RANK")],
            MASTER_OF_ALLOCATION,
            &[PORT_OF_PMIX, is(JobId, "PMIX_NAMESPACE")],
        ],
    ),
    // The step wins over the job, since srun may use a part of the nodes. A heterogeneous
    // step numbers its nodes by component, while its list is sorted; the position in the
    // list is the rank that matches the first of the list as master.
    Specific.platform(
        "slurm",
        &[&[Set("SLURM_JOB_ID"), Holds("SLURM_STEP_NUM_NODES", is_step)]],
        &[&[
            is(Nnodes, "SLURM_STEP_NUM_NODES"),
            beside(as_(is(NodeRank, "SLURMD_NODENAME"), PositionInHostlist), "SLURM_STEP_NODELIST"),
            or(NodeRank, "SLURM_NODEID"),
            is(MasterAddr, "MASTER_ADDR"),
            as_(or(MasterAddr, "SLURM_STEP_NODELIST"), HostlistFirst),
            FIRST_OF_ALLOCATION,
            FIRST_OF_OLD_ALLOCATION,
            is(MasterPort, "MASTER_PORT"),
            port_of_step("SLURM_HET_JOB_ID"),
            port_of_step("SLURM_PACK_JOB_ID"),
            port_of_step("SLURM_JOB_ID"),
            is(Tasks, "SLURM_STEP_NUM_TASKS"),
            or(Tasks, "SLURM_NTASKS"),
            // A heterogeneous step numbers its tasks by component as well, while rank 0 has to be on
            // the first host of the list.
            only(is(TaskRank, "SLURM_PROCID"), is_of_one_component),
            beside(as_(or(TaskRank, "SLURM_STEP_TASKS_PER_NODE"), TaskList), "SLURM_LOCALID"),
            is(TaskLocal, "SLURM_LOCALID"),
            beside(as_(is(TasksPerNode, "SLURM_STEP_TASKS_PER_NODE"), TaskList), "SLURM_NODEID"),
            is(GpuCount, "SLURM_GPUS_ON_NODE"),
            as_(is(Cpus, "SLURM_CPUS_PER_TASK"), PerTask),
            or(Cpus, "SLURM_CPUS_ON_NODE"),
            // Steps of one job may run at the same time.
            beside(JOB_OF_SLURM, "SLURM_STEP_ID"),
            beside(JOB_OF_OLD_SLURM, "SLURM_STEP_ID"),
            beside(or(JobId, "SLURM_JOB_ID"), "SLURM_STEP_ID"),
        ]],
    ),
    // The batch script itself, or a shell of salloc. It runs on one node, whatever
    // SLURM_NODEID is; only srun starts a command on all nodes. In a heterogeneous job the script
    // has the numbers of its own component, and every other component has at least one node.
    Specific.platform(
        "slurm-allocation",
        &[
            &[Set("SLURM_JOB_ID"), Set("SLURM_JOB_NUM_NODES"), Unset("SLURM_STEP_NUM_NODES")],
            &[Set("SLURM_JOB_ID"), Set("SLURM_NNODES"), Unset("SLURM_STEP_NUM_NODES")],
            &[Set("SLURM_JOB_ID"), Holds("SLURM_STEP_ID", is_step_of_script)],
        ],
        &[
            &[
                only(is(Nnodes, "SLURM_JOB_NUM_NODES"), is_of_one_component),
                only(or(Nnodes, "SLURM_NNODES"), is_of_one_component),
                as_(is(Several, "SLURM_HET_SIZE"), Count),
                as_(is(Several, "SLURM_PACK_SIZE"), Count),
            ],
            MASTER_OF_ALLOCATION,
            &[
                is(GpuCount, "SLURM_GPUS_ON_NODE"),
                is(Cpus, "SLURM_CPUS_ON_NODE"),
                JOB_OF_SLURM,
                JOB_OF_OLD_SLURM,
                or(JobId, "SLURM_JOB_ID"),
            ],
        ],
    ),
    // With as many tasks as nodes, each node has one task. Flux names no host.
    Specific.platform(
        "flux",
        &[&[Set("FLUX_TASK_RANK"), Holds("FLUX_JOB_NNODES", is_flux_by_node)]],
        &[
            &nodes("FLUX_JOB_NNODES", "FLUX_TASK_RANK"),
            &MASTER,
            &[as_(or(MasterPort, "FLUX_JOB_ID"), PortOfJob), is(JobId, "FLUX_JOB_ID")],
        ],
    ),
    // No variable says how many tasks this node has.
    Specific.platform(
        "flux-tasks",
        &[&[Set("FLUX_TASK_RANK"), Holds("FLUX_JOB_SIZE", |host| !is_flux_by_node(host))]],
        &[
            &[
                as_(is(Nnodes, "FLUX_JOB_SIZE"), Processes),
                as_(is(NodeRank, "FLUX_TASK_RANK"), Processes),
            ],
            &MASTER,
            &[as_(or(MasterPort, "FLUX_JOB_ID"), PortOfJob)],
        ],
    ),
    // With LOCAL_RANK, RANK numbers processes, as in Azure ML's PyTorch jobs, pyxis and
    // DeepSpeed. Leftovers of torchrun are recognised by their run id.
    Hint.platform(
        "process-per-gpu",
        &[
            &[Set("RANK"), Set("WORLD_SIZE"), Set("LOCAL_RANK"), Unset("TORCHELASTIC_RUN_ID")],
            &[
                Set("RANK"),
                Set("WORLD_SIZE"),
                Set("LOCAL_WORLD_SIZE"),
                Unset("TORCHELASTIC_RUN_ID"),
            ],
            &[Set("RANK"), Set("WORLD_SIZE"), Set("GROUP_RANK"), Unset("TORCHELASTIC_RUN_ID")],
        ],
        &[&[
            is(Tasks, "WORLD_SIZE"),
            is(TaskRank, "RANK"),
            is(TaskLocal, "LOCAL_RANK"),
            is(TasksPerNode, "LOCAL_WORLD_SIZE"),
            as_(is(TasksPerNode, "LOCAL_RANK"), LocalIndex),
            is(NodeRank, "GROUP_RANK"),
        ]],
    ),
];

/// `flux run` with one task on each node.
fn is_flux_by_node(host: &Host) -> bool {
    let (size, nodes) = (host.variable("FLUX_JOB_SIZE"), host.variable("FLUX_JOB_NNODES"));
    size.is_some() && size == nodes
}

fn is_of_one_component(host: &Host) -> bool {
    let size = |name: &&str| host.variable(name);
    ["SLURM_HET_SIZE", "SLURM_PACK_SIZE"].iter().filter_map(size).all(|size| size.trim() == "1")
}

/// Whether srun has started this step for a command.
fn is_step(host: &Host) -> bool {
    host.variable("SLURM_STEP_NUM_NODES").is_some() && !is_step_of_script(host)
}

/// Whether the step is that of a shell of salloc, of a batch script or of a login to the node. Such a
/// step has one node whatever the job has (slurm.h: SLURM_INTERACTIVE_STEP, -6, and the ids above it).
fn is_step_of_script(host: &Host) -> bool {
    const FIRST_SPECIAL: u32 = 0xffff_fff0;
    let is_plain = |id: String| id.trim().parse().is_ok_and(|id: u32| id < FIRST_SPECIAL);
    host.variable("SLURM_STEP_ID").is_some_and(|id| !is_plain(id))
}

/// Several jobs may share a node's network, and no variable gives a port.
const fn port_of_step(variable: &'static str) -> PlatformRow {
    beside(as_(or(MasterPort, variable), PortOfJob), "SLURM_STEP_ID")
}

const PORT_OF_PMIX: PlatformRow = as_(or(MasterPort, "PMIX_NAMESPACE"), PortOfJob);
/// The variable beside it names this host's daemon, whose number tells whether the first or the second host has rank 0.
const OF_MPIRUN: PlatformRow =
    beside(as_(or(MasterAddr, "OMPI_MCA_orte_hnp_uri"), DaemonHost), DAEMON);
const OF_DAEMONS: PlatformRow =
    beside(as_(or(MasterAddr, "OMPI_MCA_orte_node_regex"), SecondDaemon), DAEMON);
const OF_PRTERUN: PlatformRow =
    beside(as_(or(MasterAddr, "PMIX_NAMESPACE"), PrterunHost), DAEMON_OF_5);
const FIRST_OF_ALLOCATION: PlatformRow = as_(or(MasterAddr, "SLURM_JOB_NODELIST"), HostlistFirst);
const FIRST_OF_OLD_ALLOCATION: PlatformRow = as_(or(MasterAddr, "SLURM_NODELIST"), HostlistFirst);
/// The master is the user's, or the first node of the surrounding allocation.
const MASTER_OF_ALLOCATION: &[PlatformRow] = &[
    is(MasterAddr, "MASTER_ADDR"),
    FIRST_OF_ALLOCATION,
    FIRST_OF_OLD_ALLOCATION,
    is(MasterPort, "MASTER_PORT"),
];

/// A launcher counts processes. No variable of MPI is meant to name a master.
const fn processes(size: &'static str, rank: &'static str) -> [PlatformRow; 4] {
    let [nnodes, node_rank] = nodes(size, rank);
    [as_(nnodes, Processes), as_(node_rank, Processes), is(Tasks, size), is(TaskRank, rank)]
}

/// The number of a process on its node, and the number of all processes there.
const fn places(place: &'static str, local: &'static str) -> [PlatformRow; 2] {
    [is(TaskLocal, place), is(TasksPerNode, local)]
}
/// The components of a heterogeneous job have their own ids and share this one.
const JOB_OF_SLURM: PlatformRow = is(JobId, "SLURM_HET_JOB_ID");
/// The name of [`JOB_OF_SLURM`] before Slurm 20.
const JOB_OF_OLD_SLURM: PlatformRow = or(JobId, "SLURM_PACK_JOB_ID");

/// The variable with the address of this host's daemon, in Open MPI 4 and in Open MPI 5.
const DAEMON: &str = "OMPI_MCA_orte_local_daemon_uri";
const DAEMON_OF_5: &str = "PMIX_SERVER_URI2";

/// The host of mpirun has processes, so rank 0 is there.
fn first_is_with_mpirun(host: &Host) -> bool {
    daemons_without_process(host, DAEMON) == Some(0)
}

/// The host of mpirun has no process, so rank 0 is on the host of the next daemon.
fn first_is_second_daemon(host: &Host) -> bool {
    daemons_without_process(host, DAEMON) == Some(1)
}

/// As [`first_is_with_mpirun`], for Open MPI 5.
fn first_is_with_prterun(host: &Host) -> bool {
    let names_host = |id: String| hostlist::of_prterun(&id).is_some();
    host.variable(DAEMON).is_none()
        && host.variable("PMIX_NAMESPACE").is_some_and(names_host)
        && daemons_without_process(host, DAEMON_OF_5) == Some(0)
}

/// Number of daemons before this host's that have no process, if all hosts have as many processes as this one.
fn daemons_without_process(host: &Host, daemon: &str) -> Option<u32> {
    let number = |name| host.variable(name)?.trim().parse::<u32>().ok();
    let local = number("OMPI_COMM_WORLD_LOCAL_SIZE")?;
    let hosts_before = number("OMPI_COMM_WORLD_RANK")?.checked_div(local)?;
    // `<job>.<daemon>;tcp://…`; the id of a job of Open MPI 5 has a host name, which may have dots.
    let uri = host.variable(daemon)?;
    let (_, daemon) = uri.split_once(';')?.0.rsplit_once('.')?;
    daemon.parse::<u32>().ok()?.checked_sub(hosts_before)
}
