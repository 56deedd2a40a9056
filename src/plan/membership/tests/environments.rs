//! One environment of each platform and version, with its membership or refusal, so that a new
//! row of the contract table cannot change the result of the others.

use std::collections::BTreeSet;

use super::{check, host};
use settings::contract::{Contract, platform_ids};

/// The environment of one container, and the result of `plan` on a node of eight GPUs.
const ENVIRONMENTS: &[(&str, &str)] = &[
    // pytorchjob v1.3 master
    (
        "PYTHONUNBUFFERED=0 MASTER_ADDR=localhost MASTER_PORT=23456 WORLD_SIZE=2 RANK=0",
        "kubeflow-pytorchjob 2 0 localhost:23456",
    ),
    // pytorchjob v1.3 worker
    (
        "PYTHONUNBUFFERED=0 MASTER_ADDR=job-master-0 MASTER_PORT=23456 WORLD_SIZE=2 RANK=1",
        "kubeflow-pytorchjob 2 1 job-master-0:23456",
    ),
    // pytorchjob v1.5 worker
    (
        "PYTHONUNBUFFERED=0 MASTER_ADDR=job-master-0 MASTER_PORT=23456 WORLD_SIZE=4 RANK=3",
        "kubeflow-pytorchjob 4 3 job-master-0:23456",
    ),
    // pytorchjob v1.3 1 master only
    (
        "PYTHONUNBUFFERED=0 MASTER_ADDR=localhost MASTER_PORT=23456 WORLD_SIZE=1 RANK=0",
        "kubeflow-pytorchjob 1 0 localhost:23456 free",
    ),
    // pytorchjob v1.7 auto
    (
        "PYTHONUNBUFFERED=1 MASTER_ADDR=job-master-0 MASTER_PORT=23456 WORLD_SIZE=2 RANK=1 PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=auto PET_MASTER_ADDR=job-master-0 PET_MASTER_PORT=23456",
        "kubeflow-pytorchjob 2 1 job-master-0:23456",
    ),
    // pytorchjob v1.7 nproc 8
    (
        "PYTHONUNBUFFERED=1 MASTER_ADDR=job-master-0 MASTER_PORT=23456 WORLD_SIZE=16 RANK=1 PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=8 PET_MASTER_ADDR=job-master-0 PET_MASTER_PORT=23456",
        "kubeflow-pytorchjob 2 1 job-master-0:23456",
    ),
    // pytorchjob v1.8 nproc gpu
    (
        "MASTER_ADDR=job-master-0 MASTER_PORT=23456 WORLD_SIZE=2 RANK=0 PET_NNODES=2 PET_NODE_RANK=0 PET_NPROC_PER_NODE=gpu PET_MASTER_ADDR=job-master-0 PET_MASTER_PORT=23456",
        "kubeflow-pytorchjob 2 0 job-master-0:23456",
    ),
    // pytorchjob v1.9 master only 1 node nproc 8
    (
        "MASTER_ADDR=job-master-0 MASTER_PORT=23456 WORLD_SIZE=8 RANK=0 PET_NNODES=1 PET_NODE_RANK=0 PET_NPROC_PER_NODE=8 PET_MASTER_ADDR=job-master-0 PET_MASTER_PORT=23456",
        "kubeflow-pytorchjob 1 0 job-master-0:23456 free",
    ),
    // pytorchjob v1.9 workers only, no elastic
    (
        "MASTER_PORT=23456 PET_NPROC_PER_NODE=auto PET_NNODES=2 PYTHONUNBUFFERED=1",
        "refused membership.half-given",
    ),
    // pytorchjob elastic 1:4 (v1.9)
    (
        "PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=elastic-worker-0:23456 PET_NNODES=1:4 PET_NPROC_PER_NODE=auto PET_MAX_RESTARTS=100 PET_RDZV_ID=elastic PYTHONUNBUFFERED=1",
        "kubeflow-pytorchjob 4 0 elastic-worker-0:23456 1..4",
    ),
    // pytorchjob elastic 2 fixed (v1.9)
    (
        "PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=e-worker-0:29400 PET_NNODES=2:2 PET_NPROC_PER_NODE=auto PYTHONUNBUFFERED=1",
        "kubeflow-pytorchjob 2 0 e-worker-0:29400 2..2",
    ),
    // pytorchjob elastic w/ master no minmax
    (
        "MASTER_ADDR=job-master-0 MASTER_PORT=23456 WORLD_SIZE=3 RANK=1 PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=e-worker-0:23456 PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=auto PET_MASTER_ADDR=job-master-0 PET_MASTER_PORT=23456",
        "kubeflow-pytorchjob 3 1 job-master-0:23456",
    ),
    // pytorchjob elastic v1.5
    (
        "PYTHONUNBUFFERED=0 PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=e-worker-0:23456 PET_NNODES=2:4 PET_NPROC_PER_NODE=8 PET_MAX_RESTARTS=3",
        "kubeflow-pytorchjob 4 0 e-worker-0:23456 2..4",
    ),
    // pytorchjob elastic standalone
    (
        "PET_STANDALONE= PET_NNODES=1:1 PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=e-worker-0:23456 PET_NPROC_PER_NODE=4",
        "kubeflow-pytorchjob 1 0 127.0.0.1:23456 free",
    ),
    // trainer v2 numProc 8
    (
        "PET_NNODES=4 PET_NODE_RANK=2 PET_NPROC_PER_NODE=8 PET_MASTER_ADDR=tj-node-0-0.tj PET_MASTER_PORT=29500 JOB_COMPLETION_INDEX=2",
        "kubeflow-trainer-v2 4 2 tj-node-0-0.tj:29500",
    ),
    // trainer v2 auto
    (
        "PET_NNODES=4 PET_NODE_RANK=2 PET_NPROC_PER_NODE=auto PET_MASTER_ADDR=tj-node-0-0.tj PET_MASTER_PORT=29500 JOB_COMPLETION_INDEX=2",
        "kubeflow-trainer-v2 4 2 tj-node-0-0.tj:29500",
    ),
    // trainer v2 1 node
    (
        "PET_NNODES=1 PET_NODE_RANK=0 PET_NPROC_PER_NODE=auto PET_MASTER_ADDR=tj-node-0-0.tj PET_MASTER_PORT=29500 JOB_COMPLETION_INDEX=0",
        "kubeflow-trainer-v2 1 0 tj-node-0-0.tj:29500 free",
    ),
    // Open MPI 4.1: mpirun on n1, which has a process; on n2, the other host
    (
        "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_MCA_orte_hnp_uri=42.0;tcp://10.77.0.1:41897 OMPI_MCA_orte_local_daemon_uri=42.0;tcp://10.77.0.1:41897",
        "open-mpi 2 0 10.77.0.1:29500",
    ),
    (
        "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_MCA_orte_hnp_uri=42.0;tcp://10.77.0.1,172.17.0.1:41897 OMPI_MCA_orte_local_daemon_uri=42.1;tcp://10.77.0.2:46143 OMPI_MCA_orte_node_regex=n[1:1-3]@0(3)",
        "open-mpi 2 1 10.77.0.1:29500",
    ),
    // the same from a host without a process
    (
        "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_MCA_orte_hnp_uri=42.0;tcp://10.77.0.254:41897 OMPI_MCA_orte_local_daemon_uri=42.2;tcp://10.77.0.2:46143 OMPI_MCA_orte_node_regex=login,n[1:3,2]@0(3)",
        "open-mpi 2 1 n3:29500",
    ),
    // hosts that are not filled in this order
    (
        "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_MCA_orte_hnp_uri=42.0;tcp://10.77.0.254:41897 OMPI_MCA_orte_local_daemon_uri=42.3;tcp://10.77.0.2:46143 OMPI_MCA_orte_node_regex=login,n[1:3,2]@0(3)",
        "refused membership.master-addr",
    ),
    // Open MPI 5 with ssh: mpirun on the first host of the list
    (
        "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 PMIX_NAMESPACE=prterun-n1.gpu-b.lan-28@1 PMIX_SERVER_URI2=prterun-n1.gpu-b.lan-28@0.1;tcp4://127.0.0.1:58665",
        "open-mpi 2 1 n1.gpu-b.lan:20703",
    ),
    // Open MPI 5 with ssh: mpirun on a host without processes, so nothing names rank 0's host
    (
        "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 PMIX_NAMESPACE=prterun-n1-23@1 PMIX_SERVER_URI2=prterun-n1-23@0.2;tcp4://127.0.0.1:58665",
        "refused membership.master-addr",
    ),
    // trainer v2 mpi (OMPI)
    (
        "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0",
        "refused membership.master-addr",
    ),
    // volcano pytorch plugin
    (
        "VC_TASK_INDEX=0 VK_TASK_INDEX=0 MASTER_ADDR=vj-master-0.vj MASTER_PORT=23456 WORLD_SIZE=3 RANK=1 VC_MASTER_HOSTS=vj-master-0.vj VC_MASTER_NUM=1 VC_WORKER_HOSTS=vj-worker-0.vj,vj-worker-1.vj VC_WORKER_NUM=2",
        "volcano 3 1 vj-master-0.vj:23456",
    ),
    // volcano svc only, 2 workers (worker 1)
    (
        "VC_TASK_INDEX=1 VK_TASK_INDEX=1 VC_WORKER_HOSTS=vj-worker-0.vj,vj-worker-1.vj VC_WORKER_NUM=2",
        "volcano-workers 2 1 vj-worker-0.vj:23456",
    ),
    // volcano svc, MASTER_ADDR by user
    (
        "VC_TASK_INDEX=1 VC_WORKER_HOSTS=a,b VC_WORKER_NUM=2 MASTER_ADDR=vj-worker-0.vj",
        "volcano-workers 2 1 vj-worker-0.vj:23456",
    ),
    // volcano tensorflow plugin
    (
        "VC_TASK_INDEX=1 TF_CONFIG={\"cluster\":{\"worker\":[\"w0:2222\",\"w1:2222\"]},\"task\":{\"type\":\"worker\",\"index\":1}}",
        "tf-config 2 1 w0:2222",
    ),
    // PAI-DLC
    (
        "MASTER_ADDR=dlc1-master-0 MASTER_PORT=23456 WORLD_SIZE=2 RANK=1 NPROC_PER_NODE=8",
        "kubeflow-pytorchjob 2 1 dlc1-master-0:23456",
    ),
    // volcengine MLP
    (
        "MLP_WORKER_NUM=2 MLP_ROLE_INDEX=1 MLP_WORKER_0_HOST=10.0.0.2 MLP_WORKER_0_PORT=2222 MLP_WORKER_GPU=8 MLP_HOST=10.0.0.3 MLP_ROLE=worker",
        "volcengine-mlp 2 1 10.0.0.2:2222",
    ),
    // volcengine MLP 1 node
    (
        "MLP_WORKER_NUM=1 MLP_ROLE_INDEX=0 MLP_WORKER_0_HOST=10.0.0.2 MLP_WORKER_0_PORT=2222 MLP_WORKER_GPU=8",
        "volcengine-mlp 1 0 10.0.0.2:2222 free",
    ),
    // kubebrain
    (
        "KUBEBRAIN_REPLICA=1 KUBEBRAIN_REPLICA_TOTAL=2 NODE_RANK=1 NODE_COUNT=2 PROC_PER_NODE=8 MASTER_ADDR=10.1.2.3 PORT_0=9205 GPU_COUNT=8 JOB_ID=j1",
        "kubebrain 2 1 10.1.2.3:9205",
    ),
    // kubebrain seeds (WORLD_SIZE nodes)
    (
        "WORLD_SIZE=2 RANK=1 MASTER_ADDR=jo-db-worker-0 MASTER_PORT=29500 KUBEBRAIN_NAMESPACE=x",
        "kubebrain 2 1 jo-db-worker-0:29500",
    ),
    // kubebrain single replica debug
    (
        "KUBEBRAIN_REPLICA=0 KUBEBRAIN_REPLICA_TOTAL=1 GPU_COUNT=8",
        "kubebrain 1 0 127.0.0.1:29500 free",
    ),
    // slurm srun 1 task/node
    (
        "SLURM_JOB_ID=77 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_JOB_NODELIST=gpu[003-004] SLURM_NODELIST=gpu[003-004] SLURM_NODEID=1 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=gpu[003-004] SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_GPUS_ON_NODE=8",
        "slurm 2 1 gpu003:21232",
    ),
    // slurm srun 8 task/node
    (
        "SLURM_JOB_ID=77 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_JOB_NODELIST=gpu[003-004] SLURM_NODELIST=gpu[003-004] SLURM_NODEID=1 SLURM_PROCID=9 SLURM_LOCALID=1 SLURM_NTASKS=16 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=gpu[003-004] SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=8(x2) SLURM_GPUS_ON_NODE=8",
        "refused membership.tasks",
    ),
    // slurm sbatch (no srun), 2 nodes
    (
        "SLURM_JOB_ID=77 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_JOB_NODELIST=gpu[003-004] SLURM_NODELIST=gpu[003-004] SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=2 SLURM_TASKS_PER_NODE=1(x2) SLURM_JOB_NAME=x SLURM_SUBMIT_DIR=/x",
        "refused membership.half-given",
    ),
    // slurm sbatch (no srun), 1 node ntasks 8
    (
        "SLURM_JOB_ID=77 SLURM_JOB_NUM_NODES=1 SLURM_NNODES=1 SLURM_JOB_NODELIST=gpu003 SLURM_NODELIST=gpu003 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=8 SLURM_TASKS_PER_NODE=8",
        "slurm-allocation 1 0 127.0.0.1:29500 free",
    ),
    // slurm salloc shell on login node
    (
        "SLURM_JOB_ID=77 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_JOB_NODELIST=gpu[003-004] SLURM_NODELIST=gpu[003-004]",
        "refused membership.half-given",
    ),
    // slurm srun --ntasks-per-node=8 on 1 node, RANK exported
    (
        "SLURM_JOB_ID=77 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_JOB_NODELIST=gpu[003-004] SLURM_NODELIST=gpu[003-004] SLURM_NODEID=0 SLURM_PROCID=3 SLURM_LOCALID=3 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=gpu[003-004] SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=8 SLURM_GPUS_ON_NODE=8 RANK=3 WORLD_SIZE=8 LOCAL_RANK=3",
        "refused membership.tasks",
    ),
    // slurm nodelist mixed
    (
        "SLURM_JOB_ID=77 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=4 SLURM_JOB_NODELIST=gpu[003-004] SLURM_NODELIST=gpu[003-004] SLURM_NODEID=1 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=4 SLURM_STEP_NODELIST=dgx-[01,03-05] SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_GPUS_ON_NODE=8",
        "slurm 4 1 dgx-01:21232",
    ),
    // slurm + user MASTER_*
    (
        "SLURM_JOB_ID=77 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_JOB_NODELIST=gpu[003-004] SLURM_NODELIST=gpu[003-004] SLURM_NODEID=1 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=gpu[003-004] SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_GPUS_ON_NODE=8 MASTER_ADDR=gpu003-ib MASTER_PORT=12345",
        "slurm 2 1 gpu003-ib:12345",
    ),
    // slurm + pyxis pytorch hook
    (
        "SLURM_JOB_ID=77 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_JOB_NODELIST=gpu[003-004] SLURM_NODELIST=gpu[003-004] SLURM_NODEID=1 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=gpu[003-004] SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_GPUS_ON_NODE=8 MASTER_ADDR=gpu003 MASTER_PORT=49229 WORLD_SIZE=2 RANK=1 LOCAL_RANK=0",
        "slurm 2 1 gpu003:49229",
    ),
    // slurm + pyxis pytorch hook 8 tasks
    (
        "SLURM_JOB_ID=77 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_JOB_NODELIST=gpu[003-004] SLURM_NODELIST=gpu[003-004] SLURM_NODEID=1 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=gpu[003-004] SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=8(x2) SLURM_GPUS_ON_NODE=8 MASTER_ADDR=gpu003 MASTER_PORT=49229 WORLD_SIZE=16 RANK=9 LOCAL_RANK=1",
        "refused membership.tasks",
    ),
    // slurm, user sets WORLD_SIZE=processes
    (
        "SLURM_JOB_ID=77 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_JOB_NODELIST=gpu[003-004] SLURM_NODELIST=gpu[003-004] SLURM_NODEID=1 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=gpu[003-004] SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_GPUS_ON_NODE=8 WORLD_SIZE=16 MASTER_ADDR=gpu003 MASTER_PORT=12345",
        "slurm 2 1 gpu003:12345",
    ),
    // mpirun -npernode 1 in sbatch: head
    (
        "SLURM_JOB_ID=77 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_JOB_NODELIST=gpu[003-004] SLURM_NODELIST=gpu[003-004] SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=2 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 MASTER_ADDR=gpu003",
        "open-mpi 2 0 gpu003:29500",
    ),
    // mpirun -npernode 1 in sbatch: remote
    (
        "SLURM_JOB_ID=77 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_JOB_NODELIST=gpu[003-004] SLURM_NODELIST=gpu[003-004] SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=gpu004 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1 SLURM_GPUS_ON_NODE=8 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 MASTER_ADDR=gpu003",
        "open-mpi 2 1 gpu003:29500",
    ),
    // openmpi 1/node
    (
        "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 MASTER_ADDR=n0",
        "open-mpi 2 1 n0:29500",
    ),
    // openmpi 8/node
    (
        "OMPI_COMM_WORLD_SIZE=16 OMPI_COMM_WORLD_RANK=9 OMPI_COMM_WORLD_LOCAL_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 MASTER_ADDR=n0",
        "refused membership.tasks",
    ),
    // intel mpi -ppn 1 rank 1 of 2
    (
        "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALNRANKS=1 MPI_LOCALRANKID=0 I_MPI_HYDRA_HOST_FILE=/x MASTER_ADDR=n0 MASTER_PORT=29500",
        "pmi 2 1 n0:29500",
    ),
    // intel mpi -ppn 8 rank 9 of 16
    (
        "PMI_RANK=9 PMI_SIZE=16 MPI_LOCALNRANKS=8 MPI_LOCALRANKID=1 MASTER_ADDR=n0 MASTER_PORT=29500",
        "refused membership.tasks",
    ),
    // mpich hydra no master
    ("PMI_RANK=1 PMI_SIZE=2 PMI_FD=6 HYDI_CONTROL_FD=5", "refused membership.master-addr"),
    // mvapich2
    (
        "MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_SIZE=1 MV2_COMM_WORLD_LOCAL_RANK=0 MASTER_ADDR=n0",
        "mvapich 2 1 n0:29500",
    ),
    // aws batch main
    (
        "AWS_BATCH_JOB_NUM_NODES=2 AWS_BATCH_JOB_NODE_INDEX=0 AWS_BATCH_JOB_MAIN_NODE_INDEX=0 AWS_BATCH_JOB_ID=a#0",
        "aws-batch 2 0 127.0.0.1:29500",
    ),
    // aws batch child
    (
        "AWS_BATCH_JOB_NUM_NODES=2 AWS_BATCH_JOB_NODE_INDEX=1 AWS_BATCH_JOB_MAIN_NODE_INDEX=0 AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.1.5",
        "aws-batch 2 1 10.0.1.5:29500",
    ),
    // aws batch array job (not MNP)
    (
        "AWS_BATCH_JOB_ARRAY_INDEX=3 AWS_BATCH_JOB_ARRAY_SIZE=10 AWS_BATCH_JOB_ID=x:3",
        "none 1 0 127.0.0.1:29500 free",
    ),
    // sagemaker
    (
        "SM_HOSTS=[\"algo-1\",\"algo-2\"] SM_CURRENT_HOST=algo-2 SM_NUM_GPUS=8 SM_NETWORK_INTERFACE_NAME=eth0 SM_MASTER=algo-1",
        "sagemaker 2 1 algo-1:7777",
    ),
    // sagemaker 1
    (
        "SM_HOSTS=[\"algo-1\"] SM_CURRENT_HOST=algo-1 SM_NUM_GPUS=8",
        "sagemaker 1 0 127.0.0.1:7777 free",
    ),
    // azure ml mpi
    (
        "AZ_BATCH_MASTER_NODE=10.0.0.4:6000 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=1",
        "azure-ml 2 1 10.0.0.4:29500",
    ),
    // azure ml pytorch 1 proc/inst
    (
        "AZUREML_NODE_COUNT=2 AZ_BATCH_MASTER_NODE=10.0.0.4:6000 MASTER_ADDR=10.0.0.4 MASTER_PORT=6105 WORLD_SIZE=2 RANK=1 NODE_RANK=1 LOCAL_RANK=0",
        "azure-ml-pytorch 2 1 10.0.0.4:6105",
    ),
    // the same without the number of nodes: rank 0 cannot tell it from one node of two processes
    (
        "AZ_BATCH_MASTER_NODE=10.0.0.4:6000 MASTER_ADDR=10.0.0.4 MASTER_PORT=6105 WORLD_SIZE=2 RANK=1 NODE_RANK=1 LOCAL_RANK=0",
        "refused membership.tasks",
    ),
    // azure ml pytorch 8 proc/inst
    (
        "AZ_BATCH_MASTER_NODE=10.0.0.4:6000 MASTER_ADDR=10.0.0.4 MASTER_PORT=6105 WORLD_SIZE=16 RANK=9 NODE_RANK=1 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8",
        "refused membership.tasks",
    ),
    // plain per-GPU start (LOCAL_RANK)
    (
        "MASTER_ADDR=10.0.0.4 MASTER_PORT=6105 WORLD_SIZE=16 RANK=9 LOCAL_RANK=1",
        "refused membership.tasks",
    ),
    // skypilot
    (
        "SKYPILOT_NUM_NODES=2 SKYPILOT_NODE_RANK=1 SKYPILOT_NODE_IPS=10.0.0.1~10.0.0.2 SKYPILOT_NUM_GPUS_PER_NODE=8 SKYPILOT_TASK_ID=sky-x",
        "skypilot 2 1 10.0.0.1:8008",
    ),
    // skypilot 1
    (
        "SKYPILOT_NUM_NODES=1 SKYPILOT_NODE_RANK=0 SKYPILOT_NODE_IPS=10.0.0.1 SKYPILOT_NUM_GPUS_PER_NODE=8",
        "skypilot 1 0 127.0.0.1:8008 free",
    ),
    // runpod cluster
    (
        "NUM_NODES=2 NODE_RANK=1 NUM_TRAINERS=8 WORLD_SIZE=16 PRIMARY_ADDR=10.65.0.2 MASTER_ADDR=10.65.0.2 PRIMARY_PORT=29400 MASTER_PORT=29400 HOST_NODE_ADDR=10.65.0.2:29400 NODE_ADDR=10.65.0.3",
        "runpod 2 1 10.65.0.2:29400",
    ),
    // runpod single pod
    ("RUNPOD_POD_ID=x RUNPOD_GPU_COUNT=1", "none 1 0 127.0.0.1:29500 free"),
    // LWS leader
    (
        "LWS_LEADER_ADDRESS=l-0.l.ns LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=0",
        "leader-worker-set 2 0 l-0.l.ns:29500",
    ),
    // LWS worker
    (
        "LWS_LEADER_ADDRESS=l-0.l.ns LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=1",
        "leader-worker-set 2 1 l-0.l.ns:29500",
    ),
    // LWS old, no index
    ("LWS_LEADER_ADDRESS=l-0.l.ns LWS_GROUP_SIZE=2", "refused membership.half-given"),
    // indexed job, no flags
    ("JOB_COMPLETION_INDEX=1", "kubernetes-indexed-job 1 0 127.0.0.1:29500 free"),
    // jobset
    (
        "JOB_COMPLETION_INDEX=1 JOBSET_NAME=js REPLICATED_JOB_NAME=w JOB_INDEX=0 MASTER_ADDR=js-w-0-0.js NNODES=2 NODE_RANK=1",
        "node-variables 2 1 js-w-0-0.js:29500",
    ),
    // jobset upstream example (WORLD_SIZE processes, no rank)
    (
        "JOB_COMPLETION_INDEX=1 MASTER_ADDR=pytorch-workers-0-0.pytorch MASTER_PORT=3389 WORLD_SIZE=4 RANK=1",
        "generic 4 1 pytorch-workers-0-0.pytorch:3389",
    ),
    // kuberay head
    (
        "RAY_CLUSTER_NAME=rc RAY_NODE_TYPE_NAME=headgroup RAY_ADDRESS=127.0.0.1:6379 RAY_PORT=6379",
        "kuberay 1 0 127.0.0.1:29500 free",
    ),
    // kuberay worker
    (
        "RAY_CLUSTER_NAME=rc RAY_NODE_TYPE_NAME=g FQ_RAY_IP=rc-head-svc.ns.svc.cluster.local RAY_IP=rc-head-svc RAY_ADDRESS=rc-head-svc.ns.svc.cluster.local:6379",
        "kuberay 1 0 127.0.0.1:29500 free",
    ),
    // vertex CLUSTER_SPEC+env
    (
        "CLUSTER_SPEC={\"cluster\":{\"workerpool0\":[\"w0:2222\"],\"workerpool1\":[\"w1:2222\"]},\"task\":{\"type\":\"workerpool1\",\"index\":0}} MASTER_ADDR=w0 MASTER_PORT=2222 RANK=1 WORLD_SIZE=2",
        "vertex-ai 2 1 w0:2222",
    ),
    // vertex CLUSTER_SPEC only
    (
        "CLUSTER_SPEC={\"cluster\":{\"workerpool0\":[\"w0:2222\"],\"workerpool1\":[\"w1:2222\"]},\"task\":{\"type\":\"workerpool1\",\"index\":0}}",
        "vertex-ai 2 1 w0:2222",
    ),
    // dstack
    (
        "DSTACK_NODES_NUM=2 DSTACK_NODE_RANK=1 DSTACK_MASTER_NODE_IP=10.0.0.1 DSTACK_GPUS_PER_NODE=8 DSTACK_GPUS_NUM=16",
        "dstack 2 1 10.0.0.1:29500",
    ),
    // determined
    (
        "DET_AGENT_ID=a DET_TRIAL_ID=1 DET_SLOT_IDS=[0,1] DET_CLUSTER_ID=x",
        "determined 1 0 127.0.0.1:29500 free",
    ),
    // databricks
    ("DATABRICKS_RUNTIME_VERSION=14.3 DB_IS_DRIVER=TRUE", "none 1 0 127.0.0.1:29500 free"),
    // plain docker --gpus all
    ("NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=all", "none 1 0 127.0.0.1:29500 free"),
    // stale torchrun env, none above
    (
        "LOCAL_RANK=3 RANK=3 GROUP_RANK=0 GROUP_WORLD_SIZE=1 WORLD_SIZE=8 LOCAL_WORLD_SIZE=8 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0 ROLE_RANK=3",
        "torchrun-worker 1 0 127.0.0.1:29500 free env.stale-rank",
    ),
    // stale 2-node torchrun env
    (
        "LOCAL_RANK=3 RANK=11 GROUP_RANK=1 GROUP_WORLD_SIZE=2 WORLD_SIZE=16 LOCAL_WORLD_SIZE=8 MASTER_ADDR=n0 MASTER_PORT=29500 TORCHELASTIC_RUN_ID=none",
        "torchrun-worker 2 1 n0:29500 env.stale-rank",
    ),
    // WORLD_SIZE=16 processes, 2x8, RANK 1
    ("WORLD_SIZE=16 RANK=1 MASTER_ADDR=n0 MASTER_PORT=29500", "generic 16 1 n0:29500"),
    // WORLD_SIZE=16, NPROC_PER_NODE=8 RANK 1
    (
        "WORLD_SIZE=16 RANK=1 NPROC_PER_NODE=8 MASTER_ADDR=n0 MASTER_PORT=29500",
        "generic 16 1 n0:29500",
    ),
    // WORLD_SIZE=16 NNODES=2 NODE_RANK=1
    (
        "WORLD_SIZE=16 NNODES=2 NODE_RANK=1 MASTER_ADDR=n0 MASTER_PORT=29500",
        "node-variables 2 1 n0:29500",
    ),
    // WORLD_SIZE=16 NODE_RANK=1 (composer)
    (
        "WORLD_SIZE=16 NODE_RANK=1 LOCAL_WORLD_SIZE=8 MASTER_ADDR=n0 MASTER_PORT=29500",
        "composer 2 1 n0:29500",
    ),
    // MASTER_ADDR=None
    ("WORLD_SIZE=2 RANK=1 MASTER_ADDR=None MASTER_PORT=29500", "refused membership.master-addr"),
    // MASTER_PORT tcp
    (
        "WORLD_SIZE=2 RANK=1 MASTER_ADDR=n0 MASTER_PORT=tcp://10.0.0.1:29500",
        "refused membership.master-port",
    ),
    // RANK ge nodes
    ("WORLD_SIZE=2 RANK=2 MASTER_ADDR=n0 MASTER_PORT=29500", "refused membership.rank"),
    // WORLD_SIZE empty
    ("WORLD_SIZE= RANK= MASTER_ADDR= MASTER_PORT=", "generic 1 0 127.0.0.1:29500 free"),
    // IPv6 master
    (
        "WORLD_SIZE=2 RANK=1 MASTER_ADDR=fd00:10::5 MASTER_PORT=29500",
        "generic 2 1 fd00:10::5:29500",
    ),
    // IPv6 bracket
    (
        "WORLD_SIZE=2 RANK=1 MASTER_ADDR=[fd00:10::5] MASTER_PORT=29500",
        "generic 2 1 fd00:10::5:29500",
    ),
    // openshift/DLRover
    (
        "NODE_NUM=2 NODE_RANK=1 NODE_ID=1 NODE_TYPE=worker DLROVER_MASTER_ADDR=m:50001 ELASTIC_JOB_NAME=e",
        "refused membership.master-addr",
    ),
    // lightning ai multi-node
    (
        "MASTER_ADDR=10.0.0.1 MASTER_PORT=1234 NODE_RANK=1 WORLD_SIZE=2",
        "node-variables 2 1 10.0.0.1:1234",
    ),
    // huawei modelarts
    (
        "VC_TASK_INDEX=1 VC_WORKER_NUM=2 VC_WORKER_HOSTS=ma-w-0.ma,ma-w-1.ma MA_NUM_HOSTS=2 MA_NUM_GPUS=8 VC_TASK_NAME=worker",
        "huawei-modelarts 2 1 ma-w-0.ma:29500",
    ),
    // baidu / tencent ti: INDEX+NODE_NUM
    (
        "NODE_NUM=2 INDEX=1 CHIEF_IP=10.0.0.1 GPU_NUM_PER_NODE=8 HOST_NUM=2 NODE_LIST=a,b",
        "tencent-ti 2 1 10.0.0.1:29500",
    ),
    // OCI DS job
    ("NODE_RANK=1 NODE_COUNT=2 MASTER_ADDR=10.0.0.2", "node-variables 2 1 10.0.0.2:29500"),
    // nvidia NGC BCP
    (
        "NGC_ARRAY_SIZE=2 NGC_ARRAY_INDEX=1 NGC_MASTER_ADDR=10.0.0.1 NGC_REPLICA_ID=1 NGC_GPUS_PER_NODE=8",
        "ngc 2 1 10.0.0.1:29500",
    ),
    // together/lepton
    (
        "LEPTON_JOB_TOTAL_WORKERS=2 LEPTON_JOB_WORKER_INDEX=1 LEPTON_JOB_WORKER_HOSTNAME_PREFIX=w",
        "refused membership.master-addr",
    ),
    (
        "LEPTON_JOB_TOTAL_WORKERS=2 LEPTON_JOB_WORKER_INDEX=1 MASTER_ADDR=w-0",
        "lepton 2 1 w-0:29500",
    ),
    // lepton as its own start-up scripts read it, with and without a prefix (env_to_pytorch)
    (
        "LEPTON_JOB_NAME=j LEPTON_JOB_TOTAL_WORKERS=2 LEPTON_JOB_WORKER_INDEX=1 LEPTON_JOB_SERVICE_PREFIX=p LEPTON_SUBDOMAIN=j-job-svc",
        "lepton 2 1 p-0.j-job-svc:29500",
    ),
    (
        "LEPTON_JOB_NAME=j LEPTON_JOB_TOTAL_WORKERS=2 LEPTON_JOB_WORKER_INDEX=1",
        "lepton 2 1 j-0.j-job-svc:29500",
    ),
    // beaker with and without the selection of a leader (beaker-gantry)
    (
        "BEAKER_REPLICA_COUNT=2 BEAKER_REPLICA_RANK=1 BEAKER_LEADER_REPLICA_HOSTNAME=h0 BEAKER_JOB_ID=01J",
        "beaker 2 1 h0:29500",
    ),
    ("BEAKER_REPLICA_COUNT=2 BEAKER_REPLICA_RANK=1", "refused membership.master-addr"),
    // metaflow @parallel (plugins/kubernetes)
    (
        "MF_PARALLEL_NUM_NODES=2 MF_PARALLEL_NODE_INDEX=1 MF_PARALLEL_MAIN_IP=10.0.0.1",
        "metaflow 2 1 10.0.0.1:29500",
    ),
    // condor, universe parallel (condor_starter, parallel_proc)
    ("_CONDOR_PROCNO=1 _CONDOR_NPROCS=2 MASTER_ADDR=h0", "htcondor 2 1 h0:29500"),
    // flux run -N2 -n2, and -N2 -n16 (flux-shell)
    (
        "FLUX_JOB_ID=f2 FLUX_JOB_NNODES=2 FLUX_JOB_SIZE=2 FLUX_TASK_RANK=1 FLUX_TASK_LOCAL_ID=0 PMI_RANK=1 PMI_SIZE=2 MASTER_ADDR=h1 MASTER_PORT=29500",
        "flux 2 1 h1:29500",
    ),
    (
        "FLUX_JOB_ID=f2 FLUX_JOB_NNODES=2 FLUX_JOB_SIZE=16 FLUX_TASK_RANK=9 FLUX_TASK_LOCAL_ID=1 PMI_RANK=9 PMI_SIZE=16 MASTER_ADDR=h1",
        "refused membership.tasks",
    ),
    // a script of PBS, LSF, Grid Engine and Azure Batch on the only host of its allocation
    (
        "PBS_JOBID=1.s PBS_ENVIRONMENT=PBS_BATCH PBS_NODENUM=0 PBS_VNODENUM=0 PBS_TASKNUM=1 PBS_NUM_NODES=1 PBS_NUM_PPN=8",
        "pbs 1 0 127.0.0.1:29500 free",
    ),
    (
        "LSB_JOBID=9 LSB_HOSTS=n1~n1 LSB_MCPU_HOSTS=n1~2 LSB_DJOB_NUMPROC=2",
        "lsf 1 0 127.0.0.1:29500 free",
    ),
    ("NHOSTS=1 NSLOTS=8 NQUEUES=1 PE=smp JOB_ID=3", "grid-engine 1 0 127.0.0.1:29500 free"),
    (
        "AZ_BATCH_HOST_LIST=10.0.0.4 AZ_BATCH_NODE_LIST=10.0.0.4",
        "azure-batch 1 0 127.0.0.1:29500 free",
    ),
    ("AZUREML_NODE_COUNT=1 AZ_BATCHAI_TASK_INDEX=0", "azure-ml-count 1 0 127.0.0.1:29500 free"),
    ("PHILLY_CONTAINER_COUNT=1 PHILLY_CONTAINER_INDEX=0", "philly 1 0 127.0.0.1:29500 free"),
    (
        "GROVE_PCSG_NAME=s-0-m GROVE_PCSG_POD_INDEX=0 GROVE_PCSG_TEMPLATE_NUM_PODS=1",
        "grove 1 0 127.0.0.1:29500 free",
    ),
    ("K_MPI_JOB_ROLE=launcher", "mpi-operator 1 0 127.0.0.1:29500 free"),
    (
        "SKY_NODE_RANK=1 SKY_NODE_IPS=10.0.0.1~10.0.0.2 SKY_NUM_GPUS_PER_NODE=8",
        "skypilot 2 1 10.0.0.1:8008",
    ),
    ("VC_TASK_INDEX=0 VK_TASK_INDEX=0", "volcano-index 1 0 127.0.0.1:29500 free"),
    ("SM_CURRENT_INSTANCE_GROUP_HOSTS=[\"algo-1\"]", "sagemaker-group 1 0 127.0.0.1:29500 free"),
    ("ARNOLD_WORKER_NUM=1 ARNOLD_ID=0", "arnold 1 0 127.0.0.1:29500 free"),
    ("LT_NUM_NODES=1 LT_DEVICES=8", "lightning 1 0 127.0.0.1:29500 free"),
    ("PJM_JOBID=7 PJM_NODE=1 PJM_MPI_PROC=8", "pjm 1 0 127.0.0.1:29500 free"),
    ("LOADL_STEP_ID=x.7.0 LOADL_PROCESSOR_LIST=n1~n1", "loadleveler 1 0 127.0.0.1:29500 free"),
    (
        "MOAB_JOBID=7 MOAB_NODECOUNT=1 MOAB_NODELIST=n1 MOAB_TASKMAP=n1:8",
        "moab 1 0 127.0.0.1:29500 free",
    ),
    ("COBALT_JOBID=7 COBALT_JOBSIZE=1 COBALT_PARTNAME=n1", "cobalt 1 0 127.0.0.1:29500 free"),
    ("ARMADA_GANG_CARDINALITY=1 ARMADA_GANG_ID=g", "armada 1 0 127.0.0.1:29500 free"),
    ("ALPS_APP_PE=0", "alps 1 0 127.0.0.1:29500 free"),
    ("PALS_RANKID=0", "pals 1 0 127.0.0.1:29500 free"),
    ("RANK_TABLE_FILE=/hccl.json RANK_SIZE=1 RANK_ID=0", "ascend 1 0 127.0.0.1:29500 free"),
    (
        "PAI_CURRENT_TASK_ROLE_NAME=w PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX=1 PAI_TASK_ROLE_COUNT=1 PAI_TASK_ROLE_TASK_COUNT_w=2 PAI_HOST_IP_w_0=10.0.0.1",
        "openpai 2 1 10.0.0.1:29500",
    ),
    (
        "COORDINATOR_ADDRESS=j-worker-0 COORDINATOR_PORT=1234 NUM_PROCESSES=2 PROCESS_ID=1",
        "kubeflow-jaxjob 2 1 j-worker-0:1234",
    ),
    (
        "JOB_NAME=worker TASK_INDEX=1 TASK_NUM=2 CLUSTER_SPEC={\"worker\":[\"h1:1\",\"h2:2\"]}",
        "tony 2 1 h1:1",
    ),
    (
        "AFO_ENV_CLUSTER_SPEC={\"role\":\"worker\",\"index\":1,\"worker\":\"h1:1,h2:2\"}",
        "afo 2 1 h1:1",
    ),
    // dlrover with a master that its image sets
    (
        "NODE_NUM=2 NODE_RANK=1 DLROVER_MASTER_ADDR=m:50001 MASTER_ADDR=e-worker-0",
        "dlrover 2 1 e-worker-0:29500",
    ),
    // PMIx without the size of a job
    ("PMIX_RANK=0 PMIX_NAMESPACE=x", "refused membership.half-given"),
    // volcano: a master and workers that the pytorch plugin does not number
    ("VC_TASK_INDEX=0 VC_MASTER_NUM=1 VC_WORKER_NUM=2", "refused membership.half-given"),
];

#[test]
fn every_environment_gives_its_expected_membership() {
    check(ENVIRONMENTS);
}

/// Platforms whose variables are not sufficient alone; their result is a refusal that names what
/// is missing.
const NEVER_SOUND: &[&str] = &["pmix", "volcano-tasks", "flux-tasks"];

/// The control of the table: a row of the contract table needs a sound example here.
#[test]
fn every_platform_has_a_sound_environment() {
    let (mut sound, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for (pairs, plan) in ENVIRONMENTS {
        let read = Contract::read(&host(pairs), None, None);
        let of = if plan.starts_with("refused") { &mut refused } else { &mut sound };
        of.insert(read.platform);
        of.extend(read.evidence.into_iter().map(|found| found.platform));
    }
    let is_there = |id: &str| {
        if NEVER_SOUND.contains(&id) { refused.contains(id) } else { sound.contains(id) }
    };
    let missing: Vec<&str> = platform_ids().filter(|id| !is_there(id)).collect();
    assert!(missing.is_empty(), "without a sound environment: {missing:?}");
}
