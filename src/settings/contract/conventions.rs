//! The contract rows of names that belong to no single platform: torchrun's own, those of many
//! start-up scripts, and variables of containers that need not mean a job of several nodes.

use crate::contract::{Field, Reading, Strength};

use super::row::Test::{Port, Set, Unset};
use super::row::{Platform, as_, beside, is, or};
use super::table::PET;
use Field::{JobId, MasterAddr, MasterPort, Nnodes, NodeRank, Offered, Rank, WorldSize};
use Reading::{Cluster, HostPart, PerNode};

pub(super) const CONVENTIONS: &[Platform] = &[
    Platform {
        id: "torchrun-variables",
        strength: Strength::Conventional,
        proofs: &[
            &[Set("PET_NNODES")],
            &[Set("PET_NODE_RANK")],
            &[Set("PET_NPROC_PER_NODE")],
            &[Set("PET_STANDALONE")],
        ],
        claims: PET,
        default_port: None,
    },
    Platform {
        // Variables that torchrun sets for its workers, here leftovers.
        id: "torchrun-worker",
        strength: Strength::Conventional,
        proofs: &[&[Set("TORCHELASTIC_RUN_ID"), Set("GROUP_WORLD_SIZE"), Set("GROUP_RANK")]],
        claims: &[is(Nnodes, "GROUP_WORLD_SIZE"), is(NodeRank, "GROUP_RANK")],
        default_port: None,
    },
    Platform {
        // Composer's launcher counts processes in WORLD_SIZE, and gives the number per node.
        id: "composer",
        strength: Strength::Conventional,
        proofs: &[&[
            Set("WORLD_SIZE"),
            Set("NODE_RANK"),
            Set("LOCAL_WORLD_SIZE"),
            Unset("RANK"),
            Unset("NNODES"),
            Unset("TORCHELASTIC_RUN_ID"),
        ]],
        claims: &[
            beside(as_(is(Nnodes, "WORLD_SIZE"), PerNode), "LOCAL_WORLD_SIZE"),
            is(NodeRank, "NODE_RANK"),
            is(Offered, "LOCAL_WORLD_SIZE"),
        ],
        default_port: None,
    },
    Platform {
        // The names of most start-up scripts, and of our own `--engine command`. NODE_RANK
        // beside WORLD_SIZE is PyTorch Lightning's pair, in which WORLD_SIZE counts nodes.
        id: "node-variables",
        strength: Strength::Conventional,
        proofs: &[
            &[Set("NNODES")],
            &[Set("NODE_RANK")],
            &[Set("NODE_COUNT"), Set("MASTER_ADDR")],
            &[Set("NUM_NODES"), Set("MASTER_ADDR")],
        ],
        claims: &[
            is(Nnodes, "NNODES"),
            or(Nnodes, "NODE_COUNT"),
            or(Nnodes, "NUM_NODES"),
            is(NodeRank, "NODE_RANK"),
            is(Offered, "NPROC_PER_NODE"),
        ],
        default_port: None,
    },
    Platform {
        // A cluster description without RANK, as TensorFlow reads it.
        id: "tf-config",
        strength: Strength::Conventional,
        proofs: &[&[Set("TF_CONFIG"), Unset("RANK"), Unset("WORLD_SIZE")]],
        claims: &[
            as_(is(Nnodes, "TF_CONFIG"), Cluster),
            as_(is(NodeRank, "TF_CONFIG"), Cluster),
            is(MasterAddr, "MASTER_ADDR"),
            as_(or(MasterAddr, "TF_CONFIG"), Cluster),
            is(MasterPort, "MASTER_PORT"),
            as_(or(MasterPort, "TF_CONFIG"), Cluster),
        ],
        default_port: None,
    },
    Platform {
        // JAXJob of Kubeflow, one process per pod.
        id: "kubeflow-jaxjob",
        strength: Strength::Conventional,
        proofs: &[
            &[Set("COORDINATOR_ADDRESS"), Set("NUM_PROCESSES")],
            &[Set("COORDINATOR_ADDRESS"), Set("PROCESS_ID")],
        ],
        claims: &[
            is(Nnodes, "NUM_PROCESSES"),
            is(NodeRank, "PROCESS_ID"),
            is(MasterAddr, "MASTER_ADDR"),
            as_(or(MasterAddr, "COORDINATOR_ADDRESS"), HostPart),
            is(MasterPort, "MASTER_PORT"),
            or(MasterPort, "COORDINATOR_PORT"),
        ],
        default_port: None,
    },
    Platform {
        // Also PAI-DLC, which adds nothing of its own but NPROC_PER_NODE.
        id: "generic",
        strength: Strength::Generic,
        // MASTER_PORT alone is a proof as well, since users set it together with flags.
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
        ],
        default_port: None,
    },
    Platform {
        // A Ray pod has no rank and no torch port; the head has a loopback address as its own.
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
        // No variable has the number of completions, and many indexed Jobs run independent pods,
        // so the index is a node rank only if nnodes is known.
        id: "kubernetes-indexed-job",
        strength: Strength::Hint,
        proofs: &[&[Set("JOB_COMPLETION_INDEX")]],
        claims: &[is(NodeRank, "JOB_COMPLETION_INDEX")],
        default_port: None,
    },
];
