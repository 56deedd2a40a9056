//! The variables of each platform.

use settings::Rendezvous;
use settings::contract::Field;

use super::*;

#[test]
fn pytorchjob_of_every_version() {
    let v1_3 = "PYTHONUNBUFFERED=0 MASTER_PORT=23456 WORLD_SIZE=3";
    let v1_7 = "PYTHONUNBUFFERED=1 MASTER_PORT=23456 MASTER_ADDR=j-master-0 PET_MASTER_ADDR=j-master-0 PET_MASTER_PORT=23456";
    check(&[
        (
            &format!("{v1_3} MASTER_ADDR=localhost RANK=0"),
            "kubeflow-pytorchjob 3 0 localhost:23456",
        ),
        (
            &format!("{v1_3} MASTER_ADDR=j-master-0 RANK=2"),
            "kubeflow-pytorchjob 3 2 j-master-0:23456",
        ),
        (
            &format!("{v1_3} MASTER_ADDR=j-master-0 RANK=0"),
            "kubeflow-pytorchjob 3 0 j-master-0:23456",
        ),
        // 1.7 and later, nprocPerNode unset.
        (
            &format!(
                "{v1_7} WORLD_SIZE=2 RANK=1 PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=auto"
            ),
            "kubeflow-pytorchjob 2 1 j-master-0:23456",
        ),
        // nprocPerNode = 8: WORLD_SIZE counts processes, RANK still nodes.
        (
            &format!(
                "{v1_7} WORLD_SIZE=16 RANK=1 PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=8"
            ),
            "kubeflow-pytorchjob 2 1 j-master-0:23456",
        ),
        (
            &format!("{v1_7} WORLD_SIZE=2 RANK=0 PET_NNODES=2:2 PET_NODE_RANK=0"),
            "kubeflow-pytorchjob 2 0 j-master-0:23456",
        ),
        // A real dump: endpoint without a backend is static.
        (
            "WORLD_SIZE=3 RANK=0 PET_NODE_RANK=0 PET_NPROC_PER_NODE=1 PET_NNODES=3 PET_RDZV_ENDPOINT=j-master-0:29400",
            "kubeflow-pytorchjob 3 0 j-master-0:29400",
        ),
        (
            &format!("{v1_7} WORLD_SIZE=1 RANK=0 PET_NNODES=1 PET_NODE_RANK=0"),
            "kubeflow-pytorchjob 1 0 j-master-0:23456 free",
        ),
        (
            &format!("{v1_7} WORLD_SIZE=5 RANK=0 PET_NNODES=2 PET_NODE_RANK=0"),
            "kubeflow-pytorchjob 2 0 j-master-0:23456 membership.world-size",
        ),
        (
            &format!("{v1_7} WORLD_SIZE=2 RANK=1 PET_NNODES=2 PET_NODE_RANK=2"),
            "refused membership.rank",
        ),
    ]);
}

#[test]
fn elastic_pytorchjob_is_passed_through() {
    let c10d = "PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=j-worker-0:23456";
    check(&[
        (&format!("{c10d} PET_NNODES=1:4"), "kubeflow-pytorchjob 4 0 j-worker-0:23456 1..4"),
        (
            &format!(
                "{c10d} PET_NNODES=2:4 WORLD_SIZE=4 RANK=3 MASTER_ADDR=j-master-0 MASTER_PORT=23456"
            ),
            "kubeflow-pytorchjob 4 0 j-worker-0:23456 2..4",
        ),
        (
            "PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=j-worker-0 PET_NNODES=1:4",
            "kubeflow-pytorchjob 4 0 j-worker-0:29400 1..4",
        ),
        // No minimum and maximum, no Master replica: ranks come only from the rendezvous.
        (&format!("{c10d} PET_NNODES=3"), "kubeflow-pytorchjob 3 0 j-worker-0:23456 3..3"),
        // The same with a Master replica, which PET_NNODES leaves out.
        (
            &format!(
                "{c10d} PET_NNODES=2 WORLD_SIZE=3 RANK=2 MASTER_ADDR=j-master-0 MASTER_PORT=23456"
            ),
            "kubeflow-pytorchjob 3 2 j-worker-0:23456",
        ),
        (
            &format!(
                "{c10d} PET_NNODES=2 PET_NPROC_PER_NODE=8 WORLD_SIZE=24 RANK=2 MASTER_ADDR=j-master-0"
            ),
            "kubeflow-pytorchjob 3 2 j-worker-0:23456",
        ),
        (
            &format!("{c10d} PET_NNODES=2 WORLD_SIZE=2 RANK=1 MASTER_ADDR=j-master-0"),
            "kubeflow-pytorchjob 2 1 j-worker-0:23456",
        ),
        // standalone: true arrives as an empty string, with which torchrun itself fails.
        (
            &format!("{c10d} PET_NNODES=1:2 PET_STANDALONE="),
            "kubeflow-pytorchjob 1 0 127.0.0.1:23456 free",
        ),
        (
            &format!("{c10d} PET_NNODES=1 PET_STANDALONE= WORLD_SIZE=2 RANK=1"),
            "kubeflow-pytorchjob 1 0 127.0.0.1:23456 free",
        ),
        (
            &format!("{c10d} PET_NNODES=1:2 PET_STANDALONE=0"),
            "kubeflow-pytorchjob 2 0 j-worker-0:23456 1..2",
        ),
        (&format!("{c10d} PET_NNODES=4:1"), "refused membership.number"),
        (&format!("{c10d} PET_NNODES=1:x"), "refused membership.number"),
        (&format!("{c10d} PET_NNODES=0:2"), "refused membership.number"),
        ("PET_NNODES=1:2 PET_RDZV_ENDPOINT=j:70000", "refused membership.master-port"),
        ("PET_NNODES=1:2", "refused membership.master-addr"),
    ]);
    let mut settings = undecided();
    settings.rdzv = Sourced::new(Rendezvous::Static, Source::Flag("--rdzv".to_owned()));
    let told = tell(&settings, &host(&format!("{c10d} PET_NNODES=1:4")), &gpus(8));
    assert_eq!(told.line(), "refused membership.elastic");
}

#[test]
fn trainer_v2_needs_no_generic_variables() {
    check(&[
        (
            "PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=auto PET_MASTER_ADDR=j-node-0-0.j PET_MASTER_PORT=29500 JOB_COMPLETION_INDEX=1",
            "kubeflow-trainer-v2 2 1 j-node-0-0.j:29500",
        ),
        (
            "PET_NNODES=1 PET_NODE_RANK=0 PET_NPROC_PER_NODE=4 JOB_COMPLETION_INDEX=0",
            "kubeflow-trainer-v2 1 0 127.0.0.1:29500 free",
        ),
    ]);
}

#[test]
fn kubebrain_in_all_spellings() {
    check(&[
        (
            "KUBEBRAIN_REPLICA=1 KUBEBRAIN_REPLICA_TOTAL=4 MASTER_ADDR=10.1.2.3 PORT_0=9205",
            "kubebrain 4 1 10.1.2.3:9205",
        ),
        (
            "KUBEBRAIN_REPLICA=0 KUBEBRAIN_REPLICA_TOTAL=1 NODE_RANK=0 NODE_COUNT=1 PROC_PER_NODE=8 MASTER_ADDR=10.1.2.3 PORT_0=9205 GPU_COUNT=8",
            "kubebrain 1 0 10.1.2.3:9205 free",
        ),
        (
            "DISTRIBUTED_JOB_ENVS_INITIALIZED=true NODE_RANK=1 NODE_COUNT=2 MASTER_ADDR=10.1.2.3",
            "kubebrain 2 1 10.1.2.3:29500",
        ),
        (
            "RLAUNCH_REPLICA=1 RLAUNCH_REPLICA_TOTAL=2 MASTER_ADDR=10.1.2.3",
            "kubebrain 2 1 10.1.2.3:29500",
        ),
        (
            "RJOB_REPLICA=1 RJOB_REPLICA_TOTAL=2 MASTER_ADDR=10.1.2.3",
            "kubebrain 2 1 10.1.2.3:29500",
        ),
        ("RJOB_TASK_INDEX=1 NODE_COUNT=2 MASTER_ADDR=10.1.2.3", "kubebrain 2 1 10.1.2.3:29500"),
        (
            "KUBEBRAIN_NAMESPACE=n WORLD_SIZE=2 RANK=1 MASTER_ADDR=jo-worker-0 MASTER_PORT=29500 PORT_0=9205",
            "kubebrain 2 1 jo-worker-0:29500",
        ),
        (
            "KUBEBRAIN_REPLICA=0 KUBEBRAIN_REPLICA_TOTAL=2 WORLD_SIZE=2 RANK=1 MASTER_ADDR=h",
            "kubebrain 2 0 h:29500 membership.rank",
        ),
        // A number of processes beside the number of nodes.
        (
            "KUBEBRAIN_REPLICA=1 KUBEBRAIN_REPLICA_TOTAL=2 WORLD_SIZE=16 RANK=1 MASTER_ADDR=10.1.2.3",
            "kubebrain 2 1 10.1.2.3:29500",
        ),
        (
            "KUBEBRAIN_REPLICA=1 KUBEBRAIN_REPLICA_TOTAL=2 NODE_COUNT=4 MASTER_ADDR=10.1.2.3",
            "refused membership.contradiction",
        ),
        (
            "KUBEBRAIN_REPLICA=1 NODE_RANK=0 NODE_COUNT=2 MASTER_ADDR=10.1.2.3",
            "refused membership.contradiction",
        ),
        ("KUBEBRAIN_REPLICA=1 KUBEBRAIN_REPLICA_TOTAL=2", "refused membership.master-addr"),
        ("KUBEBRAIN_REPLICA=1 KUBEBRAIN_REPLICA_TOTAL=x", "refused membership.number"),
    ]);
    let job = Contract::read(
        &host("KUBEBRAIN_REPLICA=0 JOB_ID=rj-1 GPU_COUNT=8 PROC_PER_NODE=8"),
        None,
        None,
    );
    let first = |field| job.first(field).map(ToString::to_string);
    assert_eq!(first(Field::JobId).as_deref(), Some("JOB_ID=rj-1"));
    assert_eq!(first(Field::GpuCount).as_deref(), Some("GPU_COUNT=8"));
    assert_eq!(first(Field::Offered).as_deref(), Some("PROC_PER_NODE=8"));
}

#[test]
fn other_platforms_are_table_rows() {
    check(&[
        (
            "VC_TASK_INDEX=0 WORLD_SIZE=3 RANK=1 MASTER_ADDR=j-master-0.j",
            "volcano 3 1 j-master-0.j:23456",
        ),
        ("VC_TASK_INDEX=0 WORLD_SIZE=3 MASTER_ADDR=j-master-0.j", "refused membership.half-given"),
        (
            "MLP_WORKER_NUM=2 MLP_ROLE_INDEX=1 MLP_WORKER_GPU=8 MLP_WORKER_0_HOST=10.0.0.2 MLP_WORKER_0_PORT=2222",
            "volcengine-mlp 2 1 10.0.0.2:2222",
        ),
        (
            "NUM_NODES=2 NUM_TRAINERS=8 NODE_RANK=1 WORLD_SIZE=16 PRIMARY_ADDR=10.65.0.2 PRIMARY_PORT=29500 MASTER_ADDR=10.65.0.2 MASTER_PORT=29500",
            "runpod 2 1 10.65.0.2:29500",
        ),
        (
            "SM_HOSTS=[\"algo-1\",\"algo-2\"] SM_CURRENT_HOST=algo-2 SM_NUM_GPUS=8",
            "sagemaker 2 1 algo-1:7777",
        ),
        ("SM_HOSTS=[\"algo-1\"] SM_CURRENT_HOST=algo-3", "refused membership.rank"),
        (
            "AWS_BATCH_JOB_NUM_NODES=3 AWS_BATCH_JOB_NODE_INDEX=1 AWS_BATCH_JOB_MAIN_NODE_INDEX=1",
            "aws-batch 3 0 127.0.0.1:29500",
        ),
        (
            "AWS_BATCH_JOB_NUM_NODES=3 AWS_BATCH_JOB_NODE_INDEX=0 AWS_BATCH_JOB_MAIN_NODE_INDEX=1 AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.0.9",
            "aws-batch 3 1 10.0.0.9:29500",
        ),
        (
            "AWS_BATCH_JOB_NUM_NODES=3 AWS_BATCH_JOB_NODE_INDEX=2 AWS_BATCH_JOB_MAIN_NODE_INDEX=1 AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.0.9",
            "aws-batch 3 2 10.0.0.9:29500",
        ),
        (
            "SKYPILOT_NUM_NODES=2 SKYPILOT_NODE_RANK=1 SKYPILOT_NODE_IPS=10.0.0.1~10.0.0.2~",
            "skypilot 2 1 10.0.0.1:8008",
        ),
        (
            "LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=1 LWS_LEADER_ADDRESS=lws-0.lws.default",
            "leader-worker-set 2 1 lws-0.lws.default:29500",
        ),
        (
            "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=4 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1 SLURM_STEP_NODELIST=n[03-04] SLURM_JOB_NODELIST=n[01-04] SLURM_STEP_TASKS_PER_NODE=1(x2)",
            "slurm 2 1 n03:27446",
        ),
        (
            "SLURM_JOB_ID=7 SLURM_NNODES=2 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=0 SLURM_JOB_NODELIST=n[1,3] MASTER_ADDR=n1-ib MASTER_PORT=1234 WORLD_SIZE=16 RANK=0",
            "slurm 2 0 n1-ib:1234",
        ),
        (
            "SLURM_JOB_ID=7 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=0 SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_TASKS_PER_NODE=8(x2)",
            "refused membership.tasks",
        ),
        ("SLURM_JOB_ID=7 SLURM_NNODES=2 SLURM_NODELIST=n[1-2]", "refused membership.half-given"),
        (
            "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=1 MASTER_ADDR=h0",
            "open-mpi 2 1 h0:29500",
        ),
        (
            "OMPI_COMM_WORLD_SIZE=16 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=8 MASTER_ADDR=h0",
            "refused membership.tasks",
        ),
        (
            "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=1 AZ_BATCH_MASTER_NODE=10.0.0.4:6000",
            "azure-ml 2 1 10.0.0.4:29500",
        ),
        ("NNODES=2 NODE_RANK=1 MASTER_ADDR=a", "node-variables 2 1 a:29500"),
        ("JOB_COMPLETION_INDEX=3", "kubernetes-indexed-job 1 0 127.0.0.1:29500 free"),
        (
            "RAY_CLUSTER_NAME=r RAY_NODE_TYPE_NAME=g FQ_RAY_IP=r-head RAY_ADDRESS=r-head:6379",
            "kuberay 1 0 127.0.0.1:29500 free",
        ),
    ]);
}
