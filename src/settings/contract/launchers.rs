//! The contract rows of launchers: MPI, Slurm, and platforms that start one process per GPU.
//!
//! If launchers are nested, the inner one started us: mpirun inside a Slurm allocation starts
//! its own daemons by srun, whose variables then describe a daemon. So MPI launchers are
//! stronger than every platform around them.

use crate::contract::{Field, Reading, Strength};
use linux::host::Host;

use super::open_mpi::{
    DAEMON, DAEMON_OF_5, first_is_second_daemon, first_is_with_mpirun, first_is_with_prterun,
};

use super::row::Test::{Holds, Set, Unset};
use super::row::{Platform, PlatformRow, as_, beside, is, only, or};
use Field::{
    Cpus, GpuCount, JobId, MasterAddr, MasterPort, Nnodes, NodeRank, Several, TaskLocal, TaskRank,
    Tasks, TasksPerNode,
};
use Reading::{
    Count, DaemonHost, HostPart, HostlistFirst, LocalIndex, PerTask, PortOfJob, PositionInHostlist,
    Processes, PrterunHost, SecondDaemon, TaskList,
};

/// The rows of all MPI launchers. They count processes, and none of their variables is meant to
/// name a master, so the master is the user's, or the first node of the surrounding allocation, or
/// what the launcher's own rows derive.
macro_rules! of_mpi {
    ($(size: $size:literal,)? rank: $rank:literal $(, place: $place:literal, local: $local:literal)? $(; $($own:expr),+)?) => {
        &[
            $(as_(is(Nnodes, $size), Processes),)?
            as_(is(NodeRank, $rank), Processes),
            $(is(Tasks, $size),)?
            is(TaskRank, $rank),
            $(is(TaskLocal, $place), is(TasksPerNode, $local),)?
            is(MasterAddr, "MASTER_ADDR"),
            MASTER_OF_ALLOCATION,
            MASTER_OF_OLD_ALLOCATION,
            is(MasterPort, "MASTER_PORT"),
            $($($own,)+)?
        ]
    };
}

pub(super) const LAUNCHERS: &[Platform] = &[
    Platform {
        id: "azure-ml",
        strength: Strength::Launcher,
        proofs: &[&[Set("AZ_BATCH_MASTER_NODE"), Set("OMPI_COMM_WORLD_SIZE")]],
        claims: &[
            as_(is(Nnodes, "OMPI_COMM_WORLD_SIZE"), Processes),
            as_(is(NodeRank, "OMPI_COMM_WORLD_RANK"), Processes),
            is(Tasks, "OMPI_COMM_WORLD_SIZE"),
            is(TaskRank, "OMPI_COMM_WORLD_RANK"),
            is(TaskLocal, "OMPI_COMM_WORLD_LOCAL_RANK"),
            is(TasksPerNode, "OMPI_COMM_WORLD_LOCAL_SIZE"),
            is(MasterAddr, "MASTER_ADDR"),
            as_(or(MasterAddr, "AZ_BATCH_MASTER_NODE"), HostPart),
            is(MasterPort, "MASTER_PORT"),
        ],
        default_port: None,
    },
    Platform {
        // With one process per node, processes are nodes; more are refused by TasksPerNode.
        // Inside a Slurm allocation the list of the job is used, since that of the step belongs
        // to a daemon.
        id: "open-mpi",
        strength: Strength::Launcher,
        proofs: &[
            &[Set("OMPI_COMM_WORLD_SIZE"), Unset("AZ_BATCH_MASTER_NODE")],
            &[Set("OMPI_COMM_WORLD_RANK"), Unset("AZ_BATCH_MASTER_NODE")],
        ],
        claims: of_mpi!(
            size: "OMPI_COMM_WORLD_SIZE", rank: "OMPI_COMM_WORLD_RANK",
            place: "OMPI_COMM_WORLD_LOCAL_RANK", local: "OMPI_COMM_WORLD_LOCAL_SIZE";
            only(OF_MPIRUN, first_is_with_mpirun), only(OF_DAEMONS, first_is_second_daemon),
            only(OF_PRTERUN, first_is_with_prterun),
            PORT_OF_PMIX, is(JobId, "PMIX_NAMESPACE")
        ),
        default_port: None,
    },
    Platform {
        id: "mvapich",
        strength: Strength::Launcher,
        proofs: &[&[Set("MV2_COMM_WORLD_SIZE")], &[Set("MV2_COMM_WORLD_RANK")]],
        claims: of_mpi!(
            size: "MV2_COMM_WORLD_SIZE", rank: "MV2_COMM_WORLD_RANK",
            place: "MV2_COMM_WORLD_LOCAL_RANK", local: "MV2_COMM_WORLD_LOCAL_SIZE"
        ),
        default_port: None,
    },
    Platform {
        // MPICH and Intel MPI (hydra), Cray PALS. srun --mpi=pmi2 and Flux also set PMI_RANK and PMI_SIZE,
        // but none of the other variables; then their own rows are more complete.
        id: "pmi",
        strength: Strength::Launcher,
        proofs: &[
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
        claims: of_mpi!(
            size: "PMI_SIZE", rank: "PMI_RANK", place: "MPI_LOCALRANKID", local: "MPI_LOCALNRANKS";
            or(TaskLocal, "PMI_LOCAL_RANK"), or(TasksPerNode, "PMI_LOCAL_SIZE")
        ),
        default_port: None,
    },
    Platform {
        // PMIx gives the rank in the environment, but the count only by a call.
        id: "pmix",
        strength: Strength::Launcher,
        proofs: &[&[
            Set("PMIX_RANK"),
            Set("PMIX_NAMESPACE"),
            Unset("OMPI_COMM_WORLD_SIZE"),
            Unset("SLURM_STEP_NUM_NODES"),
            Unset("PMI_SIZE"),
            Unset("FLUX_TASK_RANK"),
        ]],
        claims: of_mpi!(rank: "PMIX_RANK"; PORT_OF_PMIX, is(JobId, "PMIX_NAMESPACE")),
        default_port: None,
    },
    Platform {
        // The step wins over the job, since srun may use a part of the nodes. A heterogeneous
        // step numbers its nodes by component, while its list is sorted; the position in the
        // list is the rank that matches the first of the list as master.
        id: "slurm",
        strength: Strength::Specific,
        proofs: &[&[Set("SLURM_JOB_ID"), Holds("SLURM_STEP_NUM_NODES", is_step)]],
        claims: &[
            is(Nnodes, "SLURM_STEP_NUM_NODES"),
            beside(as_(is(NodeRank, "SLURMD_NODENAME"), PositionInHostlist), "SLURM_STEP_NODELIST"),
            or(NodeRank, "SLURM_NODEID"),
            is(MasterAddr, "MASTER_ADDR"),
            as_(or(MasterAddr, "SLURM_STEP_NODELIST"), HostlistFirst),
            MASTER_OF_ALLOCATION,
            MASTER_OF_OLD_ALLOCATION,
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
        ],
        default_port: None,
    },
    Platform {
        // The batch script itself, or a shell of salloc. It runs on one node, whatever
        // SLURM_NODEID is; only srun starts a command on all nodes. In a heterogeneous job the script
        // has the numbers of its own component, and every other component has at least one node.
        id: "slurm-allocation",
        strength: Strength::Specific,
        proofs: &[
            &[Set("SLURM_JOB_ID"), Set("SLURM_JOB_NUM_NODES"), Unset("SLURM_STEP_NUM_NODES")],
            &[Set("SLURM_JOB_ID"), Set("SLURM_NNODES"), Unset("SLURM_STEP_NUM_NODES")],
            &[Set("SLURM_JOB_ID"), Holds("SLURM_STEP_ID", is_step_of_script)],
        ],
        claims: &[
            only(is(Nnodes, "SLURM_JOB_NUM_NODES"), is_of_one_component),
            only(or(Nnodes, "SLURM_NNODES"), is_of_one_component),
            as_(is(Several, "SLURM_HET_SIZE"), Count),
            as_(is(Several, "SLURM_PACK_SIZE"), Count),
            is(MasterAddr, "MASTER_ADDR"),
            MASTER_OF_ALLOCATION,
            MASTER_OF_OLD_ALLOCATION,
            is(MasterPort, "MASTER_PORT"),
            is(GpuCount, "SLURM_GPUS_ON_NODE"),
            is(Cpus, "SLURM_CPUS_ON_NODE"),
            JOB_OF_SLURM,
            JOB_OF_OLD_SLURM,
            or(JobId, "SLURM_JOB_ID"),
        ],
        default_port: None,
    },
    Platform {
        // With as many tasks as nodes, each node has one task. Flux names no host.
        id: "flux",
        strength: Strength::Specific,
        proofs: &[&[Set("FLUX_TASK_RANK"), Holds("FLUX_JOB_NNODES", is_flux_by_node)]],
        claims: &[
            is(Nnodes, "FLUX_JOB_NNODES"),
            is(NodeRank, "FLUX_TASK_RANK"),
            is(MasterAddr, "MASTER_ADDR"),
            is(MasterPort, "MASTER_PORT"),
            as_(or(MasterPort, "FLUX_JOB_ID"), PortOfJob),
            is(JobId, "FLUX_JOB_ID"),
        ],
        default_port: None,
    },
    Platform {
        // No variable says how many tasks this node has.
        id: "flux-tasks",
        strength: Strength::Specific,
        proofs: &[&[Set("FLUX_TASK_RANK"), Holds("FLUX_JOB_SIZE", |host| !is_flux_by_node(host))]],
        claims: &[
            as_(is(Nnodes, "FLUX_JOB_SIZE"), Processes),
            as_(is(NodeRank, "FLUX_TASK_RANK"), Processes),
            is(MasterAddr, "MASTER_ADDR"),
            is(MasterPort, "MASTER_PORT"),
            as_(or(MasterPort, "FLUX_JOB_ID"), PortOfJob),
        ],
        default_port: None,
    },
    Platform {
        // With LOCAL_RANK, RANK numbers processes, as in Azure ML's PyTorch jobs, pyxis and
        // DeepSpeed. Leftovers of torchrun are recognised by their run id.
        id: "process-per-gpu",
        strength: Strength::Hint,
        proofs: &[
            &[Set("RANK"), Set("WORLD_SIZE"), Set("LOCAL_RANK"), Unset("TORCHELASTIC_RUN_ID")],
            &[
                Set("RANK"),
                Set("WORLD_SIZE"),
                Set("LOCAL_WORLD_SIZE"),
                Unset("TORCHELASTIC_RUN_ID"),
            ],
            &[Set("RANK"), Set("WORLD_SIZE"), Set("GROUP_RANK"), Unset("TORCHELASTIC_RUN_ID")],
        ],
        claims: &[
            is(Tasks, "WORLD_SIZE"),
            is(TaskRank, "RANK"),
            is(TaskLocal, "LOCAL_RANK"),
            is(TasksPerNode, "LOCAL_WORLD_SIZE"),
            as_(is(TasksPerNode, "LOCAL_RANK"), LocalIndex),
            is(NodeRank, "GROUP_RANK"),
        ],
        default_port: None,
    },
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
const MASTER_OF_ALLOCATION: PlatformRow = as_(or(MasterAddr, "SLURM_JOB_NODELIST"), HostlistFirst);
const MASTER_OF_OLD_ALLOCATION: PlatformRow = as_(or(MasterAddr, "SLURM_NODELIST"), HostlistFirst);
/// The components of a heterogeneous job have their own ids and share this one.
const JOB_OF_SLURM: PlatformRow = is(JobId, "SLURM_HET_JOB_ID");
/// The name of [`JOB_OF_SLURM`] before Slurm 20.
const JOB_OF_OLD_SLURM: PlatformRow = or(JobId, "SLURM_PACK_JOB_ID");
