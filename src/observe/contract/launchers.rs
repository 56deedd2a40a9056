//! The rows of what starts processes: MPI's launchers, Slurm, and platforms that start one
//! process per GPU.
//!
//! A launcher that runs inside of another one is the one that started us: mpirun inside of
//! a Slurm allocation starts its own daemons by srun, whose variables then describe a
//! daemon. So the launchers of MPI weigh more than every platform around them.

use crate::observe::{Field, Reading, Strength};

use super::table::Test::{Set, Unset};
use super::table::{Platform, Row, as_, beside, is, or};
use Field::{
    Cpus, GpuCount, JobId, MasterAddr, MasterPort, Nnodes, NodeRank, TaskLocal, TaskRank, Tasks,
    TasksPerNode,
};
use Reading::{
    HostPart, HostlistFirst, LocalIndex, PerTask, PortOfJob, PositionInHostlist, Processes,
    TaskList,
};

/// The rows that all of MPI's launchers have: processes are counted, and no variable of
/// theirs names a master, so it is the user's or the first node of the allocation around.
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
        // One process per node, so that processes are nodes; more are refused by TasksPerNode.
        // Inside of a Slurm allocation the job's list, since the step's is one of a daemon.
        id: "open-mpi",
        strength: Strength::Launcher,
        proofs: &[
            &[Set("OMPI_COMM_WORLD_SIZE"), Unset("AZ_BATCH_MASTER_NODE")],
            &[Set("OMPI_COMM_WORLD_RANK"), Unset("AZ_BATCH_MASTER_NODE")],
        ],
        claims: of_mpi!(
            size: "OMPI_COMM_WORLD_SIZE", rank: "OMPI_COMM_WORLD_RANK",
            place: "OMPI_COMM_WORLD_LOCAL_RANK", local: "OMPI_COMM_WORLD_LOCAL_SIZE";
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
        // MPICH and Intel MPI (hydra), Cray PALS. srun --mpi=pmi2 sets PMI_RANK and PMI_SIZE
        // too, and nothing else of these: there the row of Slurm says more.
        id: "pmi",
        strength: Strength::Launcher,
        proofs: &[
            &[Set("PMI_SIZE"), Set("MPI_LOCALNRANKS")],
            &[Set("PMI_RANK"), Set("MPI_LOCALNRANKS")],
            &[Set("PMI_SIZE"), Unset("SLURM_STEP_NUM_NODES"), Unset("OMPI_COMM_WORLD_SIZE")],
            &[Set("PMI_RANK"), Unset("SLURM_STEP_NUM_NODES"), Unset("OMPI_COMM_WORLD_SIZE")],
        ],
        claims: of_mpi!(
            size: "PMI_SIZE", rank: "PMI_RANK", place: "MPI_LOCALRANKID", local: "MPI_LOCALNRANKS";
            or(TaskLocal, "PMI_LOCAL_RANK"), or(TasksPerNode, "PMI_LOCAL_SIZE")
        ),
        default_port: None,
    },
    Platform {
        // PMIx tells a process its rank in the environment, and the count by a call only.
        id: "pmix",
        strength: Strength::Launcher,
        proofs: &[&[
            Set("PMIX_RANK"),
            Set("PMIX_NAMESPACE"),
            Unset("OMPI_COMM_WORLD_SIZE"),
            Unset("SLURM_STEP_NUM_NODES"),
            Unset("PMI_SIZE"),
        ]],
        claims: of_mpi!(rank: "PMIX_RANK"; PORT_OF_PMIX, is(JobId, "PMIX_NAMESPACE")),
        default_port: None,
    },
    Platform {
        // What the step has beats what the job has: srun may use a part of the nodes.
        // A heterogeneous step numbers its nodes by component, while its list is sorted: the
        // place in the list is the rank that fits the first of the list as master.
        id: "slurm",
        strength: Strength::Specific,
        proofs: &[&[Set("SLURM_JOB_ID"), Set("SLURM_STEP_NUM_NODES")]],
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
            is(TaskRank, "SLURM_PROCID"),
            is(TaskLocal, "SLURM_LOCALID"),
            beside(as_(is(TasksPerNode, "SLURM_STEP_TASKS_PER_NODE"), TaskList), "SLURM_NODEID"),
            is(GpuCount, "SLURM_GPUS_ON_NODE"),
            as_(is(Cpus, "SLURM_CPUS_PER_TASK"), PerTask),
            or(Cpus, "SLURM_CPUS_ON_NODE"),
            // Steps of one job may run beside each other.
            beside(JOB_OF_SLURM, "SLURM_STEP_ID"),
            beside(JOB_OF_OLD_SLURM, "SLURM_STEP_ID"),
            beside(or(JobId, "SLURM_JOB_ID"), "SLURM_STEP_ID"),
        ],
        default_port: None,
    },
    Platform {
        // The batch script itself, or a shell of salloc: on one node, whatever SLURM_NODEID
        // says. Only srun starts a command on all of them.
        id: "slurm-allocation",
        strength: Strength::Specific,
        proofs: &[
            &[Set("SLURM_JOB_ID"), Set("SLURM_JOB_NUM_NODES"), Unset("SLURM_STEP_NUM_NODES")],
            &[Set("SLURM_JOB_ID"), Set("SLURM_NNODES"), Unset("SLURM_STEP_NUM_NODES")],
        ],
        claims: &[
            is(Nnodes, "SLURM_JOB_NUM_NODES"),
            or(Nnodes, "SLURM_NNODES"),
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
        // RANK numbers processes where LOCAL_RANK stands beside it, as Azure ML's PyTorch
        // jobs, pyxis and DeepSpeed have it. What torchrun left over is known by its run id.
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
        ],
        claims: &[
            is(Tasks, "WORLD_SIZE"),
            is(TaskRank, "RANK"),
            is(TaskLocal, "LOCAL_RANK"),
            is(TasksPerNode, "LOCAL_WORLD_SIZE"),
            as_(is(TasksPerNode, "LOCAL_RANK"), LocalIndex),
        ],
        default_port: None,
    },
];

/// Several jobs share the network of a node there, and no variable gives a port.
const fn port_of_step(variable: &'static str) -> Row {
    beside(as_(or(MasterPort, variable), PortOfJob), "SLURM_STEP_ID")
}

const PORT_OF_PMIX: Row = as_(or(MasterPort, "PMIX_NAMESPACE"), PortOfJob);
const MASTER_OF_ALLOCATION: Row = as_(or(MasterAddr, "SLURM_JOB_NODELIST"), HostlistFirst);
const MASTER_OF_OLD_ALLOCATION: Row = as_(or(MasterAddr, "SLURM_NODELIST"), HostlistFirst);
/// The components of a heterogeneous job have ids of their own and this one in common.
const JOB_OF_SLURM: Row = is(JobId, "SLURM_HET_JOB_ID");
/// The same before Slurm 20.
const JOB_OF_OLD_SLURM: Row = or(JobId, "SLURM_PACK_JOB_ID");
