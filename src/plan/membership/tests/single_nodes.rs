//! Environments of single nodes that hold counts, indices and lists of hosts: none is refused.
//!
//! The control of [`super::schedulers`]. Variables are those of the documentation of each service.

use super::*;

/// The kind of environment, and one or more of its forms.
#[rustfmt::skip]
const KINDS: &[(&str, &[&str])] = &[
    // Pipelines.
    ("GitHub Actions", &["GITHUB_ACTIONS=true CI=true GITHUB_RUN_NUMBER=7 GITHUB_RUN_ATTEMPT=1 RUNNER_OS=Linux",
        "GITHUB_ACTIONS=true JOB_INDEX=1 JOB_TOTAL=4", "STRATEGY_JOB_INDEX=1 STRATEGY_JOB_TOTAL=4 STRATEGY_JOB_ID=2"]),
    ("GitLab CI", &["GITLAB_CI=true CI_NODE_INDEX=2 CI_NODE_TOTAL=4 CI_JOB_ID=71 CI_CONCURRENT_ID=1", "CI_NODE_INDEX=1 CI_NODE_TOTAL=1"]),
    ("Jenkins", &["JENKINS_URL=http://j BUILD_NUMBER=4 BUILD_ID=4 EXECUTOR_NUMBER=1 NODE_NAME=agent-1 JOB_NAME=train"]),
    ("Buildkite", &["BUILDKITE=true BUILDKITE_PARALLEL_JOB=1 BUILDKITE_PARALLEL_JOB_COUNT=4 BUILDKITE_JOB_ID=0a"]),
    ("CircleCI", &["CIRCLECI=true CIRCLE_NODE_INDEX=1 CIRCLE_NODE_TOTAL=4 CIRCLE_BUILD_NUM=9"]),
    ("Travis", &["TRAVIS=true TRAVIS_JOB_NUMBER=4.1 TRAVIS_BUILD_NUMBER=4"]),
    ("Azure Pipelines", &["TF_BUILD=True SYSTEM_JOBPOSITIONINPHASE=2 SYSTEM_TOTALJOBSINPHASE=4 SYSTEM_JOBID=1"]),
    ("TeamCity", &["TEAMCITY_VERSION=2024 BUILD_NUMBER=3"]),
    ("Bitbucket", &["BITBUCKET_PARALLEL_STEP=1 BITBUCKET_PARALLEL_STEP_COUNT=3 BITBUCKET_BUILD_NUMBER=5"]),
    ("Semaphore", &["SEMAPHORE=true SEMAPHORE_JOB_INDEX=1 SEMAPHORE_JOB_COUNT=4 SEMAPHORE_JOB_ID=x"]),
    ("Harness", &["HARNESS_BUILD_ID=9 HARNESS_NODE_INDEX=1 HARNESS_NODE_TOTAL=3 HARNESS_STAGE_INDEX=0 HARNESS_STAGE_TOTAL=2"]),
    ("Knapsack", &["KNAPSACK_PRO_CI_NODE_INDEX=1 KNAPSACK_PRO_CI_NODE_TOTAL=4"]),
    ("GoCD", &["GO_JOB_RUN_INDEX=1 GO_JOB_RUN_COUNT=3 GO_JOB_NAME=train"]),
    ("CodeBuild", &["CODEBUILD_BUILD_NUMBER=3 CODEBUILD_SHARD_INDEX=1 CODEBUILD_SHARD_COUNT=4"]),
    ("Drone", &["DRONE=true DRONE_STAGE_NUMBER=1 DRONE_STEP_NUMBER=2 DRONE_BUILD_NUMBER=8"]),
    // Tests and builds.
    ("pytest-xdist", &["PYTEST_XDIST_WORKER=gw1 PYTEST_XDIST_WORKER_COUNT=4", "PYTEST_XDIST_WORKER=gw1 PYTEST_XDIST_WORKER_ID=1 PYTEST_XDIST_WORKER_COUNT=4"]),
    ("Bazel", &["TEST_SHARD_INDEX=1 TEST_TOTAL_SHARDS=4 TEST_TMPDIR=/t", "GTEST_SHARD_INDEX=1 GTEST_TOTAL_SHARDS=4"]),
    ("jest", &["JEST_WORKER_ID=1", "VITEST_POOL_ID=1 VITEST_WORKER_ID=1"]),
    ("make", &["MAKEFLAGS=-j8 MAKELEVEL=1"]),
    ("distcc", &["DISTCC_HOSTS=localhost~build1~build2", "DISTCC_HOSTS=build1/8,build2/8", "DISTCC_JOB_ID=1 DISTCC_HOSTS=b1~b2"]),
    ("icecream", &["ICECC_HOSTS=b1,b2 ICECC_JOB_COUNT=8"]),
    // Notebooks and editors.
    ("Jupyter", &["JPY_SESSION_NAME=n JPY_PARENT_PID=7 JUPYTERHUB_USER=u JUPYTERHUB_SERVER_NAME="]),
    ("VS Code", &["VSCODE_PID=7 VSCODE_CWD=/w TERM_PROGRAM=vscode"]),
    ("PyCharm", &["PYCHARM_HOSTED=1 PYDEVD_LOAD_VALUES_ASYNC=True"]),
    ("Colab", &["COLAB_GPU=1 COLAB_RELEASE_TAG=r TPU_WORKER_ID=0 TPU_WORKER_HOSTNAMES=localhost"]),
    ("Kaggle", &["KAGGLE_KERNEL_RUN_TYPE=Batch KAGGLE_CONTAINER_NAME=k"]),
    // Workers of frameworks.
    ("Ray", &["RAY_JOB_ID=01000000 RAY_NODE_ID=ab RAY_WORKER_ID=cd RAY_RAYLET_PID=7 RAY_ADDRESS=h:6379"]),
    ("Dask", &["DASK_SCHEDULER_ADDRESS=tcp://h:8786 DASK_WORKER_INDEX=1 DASK_WORKER_COUNT=4"]),
    ("Spark", &["SPARK_EXECUTOR_ID=1 SPARK_EXECUTOR_INSTANCES=4 SPARK_EXECUTOR_CORES=4", "SPARK_WORKER_INSTANCES=2 SPARK_WORKER_ID=1"]),
    ("Airflow", &["AIRFLOW_CTX_TASK_ID=train AIRFLOW_CTX_TRY_NUMBER=1 AIRFLOW__CORE__PARALLELISM=32", "AIRFLOW_CTX_TASK_ID=1 AIRFLOW_CTX_TASK_COUNT=4"]),
    ("Celery", &["CELERY_WORKER_ID=1 CELERY_WORKER_COUNT=4 CELERYD_CONCURRENCY=8"]),
    ("pm2", &["NODE_APP_INSTANCE=1 PM2_INSTANCES=4 PM2_INSTANCE_ID=1",
        "PM2_HOME=/root/.pm2 PM2_USAGE=CLI pm_id=1 name=train namespace=default instances=4 exec_mode=cluster_mode instance_var=INSTANCE_ID INSTANCE_ID=1 pm_uptime=1 restart_time=0 unique_id=u"]),
    ("Cloud Foundry instances", &["VCAP_APPLICATION={} CF_INSTANCE_INDEX=1 INSTANCE_INDEX=1 INSTANCES=4"]),
    ("gunicorn", &["WEB_CONCURRENCY=4 WORKER_ID=1 WORKER_COUNT=4"]),
    // Arrays of jobs; each member is a job of its own.
    ("Slurm array", &["SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=8 SLURM_ARRAY_TASK_MAX=8 SLURM_JOB_ID=9 SLURM_JOB_NUM_NODES=1 SLURM_NNODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_NTASKS=1",
        "SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=8"]),
    ("PBS array", &["PBS_JOBID=7[3].s PBS_ARRAY_INDEX=3 PBS_ARRAY_ID=7[].s PBS_NODENUM=0 PBS_TASKNUM=1", "PBS_ARRAYID=3 PBS_JOBID=7-3.s PBS_NUM_NODES=1 PBS_NODENUM=0"]),
    ("LSF array", &["LSB_JOBID=7 LSB_JOBINDEX=3 LSB_JOBINDEX_END=8 LSB_HOSTS=n1 LSB_MCPU_HOSTS=n1~1 LSB_DJOB_NUMPROC=1"]),
    ("Grid Engine array", &["SGE_TASK_ID=3 SGE_TASK_FIRST=1 SGE_TASK_LAST=8 SGE_TASK_STEPSIZE=1 NHOSTS=1 NSLOTS=1 JOB_ID=7"]),
    ("AWS Batch array", &["AWS_BATCH_JOB_ARRAY_INDEX=3 AWS_BATCH_JOB_ARRAY_SIZE=8 AWS_BATCH_JOB_ID=x AWS_BATCH_JOB_ATTEMPT=1"]),
    ("NGC array", &["NGC_ARRAY_INDEX=1 NGC_ARRAY_SIZE=2 NGC_JOB_ID=7"]),
    ("Cloud Run", &["CLOUD_RUN_TASK_INDEX=1 CLOUD_RUN_TASK_COUNT=4 CLOUD_RUN_TASK_ATTEMPT=0 CLOUD_RUN_JOB=j"]),
    ("Google Batch", &["BATCH_TASK_INDEX=1 BATCH_TASK_COUNT=4 BATCH_JOB_ID=j BATCH_TASK_RETRY_ATTEMPT=0"]),
    ("Kubernetes Indexed Job", &["JOB_COMPLETION_INDEX=3"]),
    ("condor_submit queue", &["_CONDOR_SLOT=slot1 _CONDOR_JOB_AD=/a _CONDOR_SCRATCH_DIR=/s _CONDOR_NPROCS=8"]),
    // Allocations of one node with several tasks or slots.
    ("Slurm", &["SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 SLURM_NNODES=1 SLURM_JOB_NODELIST=n1 SLURM_NODELIST=n1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=8 SLURM_TASKS_PER_NODE=8",
        "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_NNODES=1",
        "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 SLURM_NNODES=1 SLURM_JOB_NODELIST=n1 SLURM_STEP_ID=4294967290 SLURM_STEP_NODELIST=n1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=8",
        // srun -N1 -n1 in a job of two nodes
        "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0"]),
    ("PBS", &["PBS_JOBID=7.s PBS_ENVIRONMENT=PBS_INTERACTIVE PBS_NODENUM=0 PBS_VNODENUM=0 PBS_TASKNUM=1 PBS_NUM_NODES=1 PBS_NUM_PPN=8 PBS_NP=8 NCPUS=8 PBS_NODEFILE=/missing"]),
    ("LSF", &["LSB_JOBID=7 LSB_HOSTS=n1~n1~n1~n1 LSB_MCPU_HOSTS=n1~4 LSB_DJOB_NUMPROC=4 LSB_DJOB_HOSTFILE=/missing LSB_MAX_NUM_PROCESSORS=4",
        "LSB_JOBID=7 LSB_HOSTS=batch1~h01~h01 LSB_MCPU_HOSTS=batch1~1~h01~42 JSM_NAMESPACE_RANK=0 JSM_NAMESPACE_SIZE=1"]),
    ("PJM, LoadLeveler, Moab, Cobalt", &["PJM_JOBID=7 PJM_NODE=1 PJM_MPI_PROC=8", "LOADL_STEP_ID=x LOADL_PROCESSOR_LIST=n1~n1 LOADL_TOTAL_TASKS=2",
        "MOAB_JOBID=7 MOAB_NODECOUNT=1 MOAB_NODELIST=n1 MOAB_PROCCOUNT=8 MOAB_TASKMAP=n1:8", "COBALT_JOBID=7 COBALT_JOBSIZE=1 COBALT_PARTNAME=n1"]),
    ("OpenPAI", &["PAI_CURRENT_TASK_ROLE_NAME=worker PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX=0 PAI_TASK_ROLE_COUNT=1 PAI_TASK_ROLE_TASK_COUNT_worker=1 PAI_HOST_IP_worker_0=10.0.0.1",
        "PAI_CURRENT_TASK_ROLE_NAME=worker PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX=0 PAI_CURRENT_TASK_ROLE_TASK_COUNT=1"]),
    ("TonY", &["JOB_NAME=worker TASK_INDEX=0 TASK_NUM=1 CLUSTER_SPEC={\"worker\":[\"h1:1\"]} SESSION_ID=0"]),
    ("JAXJob", &["COORDINATOR_ADDRESS=j-worker-0 COORDINATOR_PORT=1234 NUM_PROCESSES=1 PROCESS_ID=0"]),
    ("Ascend", &["RANK_TABLE_FILE=/hccl.json RANK_SIZE=1 RANK_ID=0", "RERANK_SIZE=100 RANK_SIZE=10 RANK_ID=1"]),
    ("Grid Engine", &["JOB_ID=7 NHOSTS=1 NSLOTS=8 NQUEUES=1 PE=smp PE_HOSTFILE=/missing"]),
    ("Flux", &["FLUX_JOB_ID=f FLUX_JOB_NNODES=1 FLUX_JOB_SIZE=1 FLUX_TASK_RANK=0 FLUX_TASK_LOCAL_ID=0 PMI_RANK=0 PMI_SIZE=1", "FLUX_URI=local:///run/flux"]),
    ("HTCondor", &["_CONDOR_PROCNO=0 _CONDOR_NPROCS=1"]),
    ("Beaker", &["BEAKER_REPLICA_COUNT=1 BEAKER_REPLICA_RANK=0 BEAKER_JOB_ID=x", "BEAKER_JOB_ID=x BEAKER_ASSIGNED_GPU_COUNT=8"]),
    ("Lepton", &["LEPTON_JOB_TOTAL_WORKERS=1 LEPTON_JOB_WORKER_INDEX=0 LEPTON_JOB_NAME=j", "LEPTON_DEPLOYMENT_NAME=d LEPTON_SUBDOMAIN=s"]),
    ("Volcano", &["VC_TASK_INDEX=0 VC_TRAINER_NUM=1 VC_TRAINER_HOSTS=j-0.j", "VC_TASK_INDEX=0 VK_TASK_INDEX=0"]),
    ("Determined", &["DET_AGENT_ID=a DET_SLOT_IDS=[0,1] DET_TRIAL_ID=1 DET_EXPERIMENT_ID=4 DET_TASK_ID=4.1"]),
    ("SageMaker", &["SM_HOSTS=[\"algo-1\"] SM_CURRENT_HOST=algo-1 SM_CURRENT_INSTANCE_GROUP_HOSTS=[\"algo-1\"] SM_NUM_GPUS=8"]),
    ("Azure Batch", &["AZ_BATCH_NODE_ID=n AZ_BATCH_TASK_ID=t AZ_BATCH_NODE_LIST=10.0.0.4 AZ_BATCH_POOL_ID=p"]),
    ("Unknown scheduler", &["ACME_NODE_INDEX=0 ACME_NUM_NODES=1", "ACME_TASK_ID=0 ACME_NUM_TASKS=8 ACME_NUM_NODES=1", "ACME_HOSTS=n1 ACME_JOBID=7"]),
    // Containers, and services beside them.
    ("Nomad", &["NOMAD_ALLOC_INDEX=1 NOMAD_ALLOC_ID=a NOMAD_CPU_LIMIT=500 NOMAD_GROUP_NAME=g"]),
    ("ECS", &["ECS_CONTAINER_METADATA_URI=http://1 AWS_EXECUTION_ENV=AWS_ECS_FARGATE"]),
    ("Cloud Foundry", &["CF_INSTANCE_INDEX=1 INSTANCE_INDEX=1 CF_INSTANCE_IP=10.0.0.1"]),
    ("Service links", &["NODE_SERVICE_HOST=10.0.0.1 NODE_PORT=tcp://10.0.0.1:80 RANK_SERVICE_HOST=10.0.0.2 NODES_PORT_80_TCP_ADDR=10.0.0.1"]),
    ("Services", &["KAFKA_HOSTS=k1,k2 ETCD_HOSTS=e1,e2,e3 ZK_HOSTS=z1~z2 ZOOKEEPER_HOSTS=z1:2181,z2:2181", "ES_HOSTS=e1,e2 ELASTICSEARCH_HOSTS=http://a:9200,http://b:9200",
        "REDIS_NODES=r1~r2 REDIS_CLUSTER_REPLICAS=1", "CLICKHOUSE_HOSTS=c1,c2", "QDRANT_HOSTS=q1,q2 MILVUS_HOSTS=m1,m2", "KAFKA_NODE_ID=1 KAFKA_NUM_NODES=3",
        "OPENSEARCH_HOSTS=os1,os2,os3 OPENSEARCH_CLUSTER_NAME=prod", "OPENSEARCH_HOSTS=o1,o2 OPENSEARCH_CLUSTER_MASTER_SERVICE_HOST=10.0.0.1 OPENSEARCH_CLUSTER_MASTER_PORT=tcp://10.0.0.1:9200",
        "SENTINEL_HOSTS=192.168.1.11~192.168.1.12 SENTINEL_MASTER_NAME=mymaster", "CLICKHOUSE_HOSTS=c1,c2 CLICKHOUSE_CLUSTER=main", "CLICKHOUSE_REPLICA_ID=1 CLICKHOUSE_REPLICAS=2",
        "SCYLLA_HOSTS=c1,c2 SCYLLA_CLUSTER=x", "COUCHBASE_HOSTS=c1,c2 COUCHBASE_MASTER=x", "NATS_HOSTS=n1,n2 NATS_CLUSTER=c", "CONSUL_HOSTS=a,b CONSUL_LEADER=a",
        "WEKA_HOSTS=10.0.0.1,10.0.0.2 WEKA_CLUSTER=c", "QDRANT_HOSTS=q1,q2 QDRANT_NODE_ID=1", "MINIO_NODES=4 MINIO_NODE_INDEX=1", "VAULT_NODES=3 VAULT_NODE_ID=1",
        "ACME_HOSTS=a1,a2 ACME_CLUSTER=c ACME_MASTER=a1 ACME_LEADER=a2 ACME_HEAD=a1", "acme_hosts=a1,a2 acme_cluster=c",
        "ACME_HOST=a1 ACME_HOSTS=a1,a2 ACME_USER=u"]),
    ("Web", &["ALLOWED_HOSTS=a.com,b.com DJANGO_ALLOWED_HOSTS=*", "no_proxy=10.0.0.1,10.0.0.2 NO_PROXY=a,b NO_PROXY_HOSTS=a,b", "SSH_KNOWN_HOSTS=/etc/ssh/known EXTRA_HOSTS=a,b"]),
    ("Tools of many hosts", &["PSSH_HOSTS=/etc/hosts ANSIBLE_HOSTS=h1,h2", "I_MPI_HYDRA_HOST_FILE=/etc/hosts HYDRA_HOST_FILE=/etc/hosts", "SLURM_HOSTFILE=/etc/hosts"]),
    // Names of the job's own script.
    ("Counts", &["GPU_COUNT=8 GPU_INDEX=1 NUM_GPUS=8 CPU_COUNT=64 NUM_WORKERS=4 NPROC=8", "NUM_NODES=1 NODE_COUNT=1", "NUM_NODES=2", "OMP_NUM_THREADS=8 MKL_NUM_THREADS=8"]),
    ("Parts of the work", &["SHARD_ID=1 NUM_SHARDS=4 SHARD_COUNT=4", "FOLD_INDEX=1 FOLD_COUNT=5", "PROMPT_INDEX=3 PROMPT_COUNT=20", "CLIP_INDEX=1 CLIP_TOTAL=7 BATCH_SIZE=8 BATCH_INDEX=2",
        "TRIAL_ID=1 TRIAL_COUNT=9", "RETRY_COUNT=3 RETRY_INDEX=1", "WANDB_SWEEP_ID=s WANDB_RUN_ID=r", "TASK_INDEX=1 TASK_COUNT=9"]),
    ("Parts of the data", &["DATA_WORKER_ID=1 DATA_WORKER_COUNT=4", "PREFECT_WORKER_ID=1 PREFECT_WORKER_COUNT=4", "VLLM_DP_RANK=1 VLLM_DP_SIZE=2"]),
    ("Models", &["ADAPTER_RANK=8 ADAPTER_SIZE=64", "QLORA_RANK=8 QLORA_SIZE=64", "PEFT_RANK=16 PEFT_COUNT=32", "SVD_RANK=4 SVD_SIZE=128", "LORA_RANK=8 LORA_SIZE=16", "MODEL_SIZE=7 MODEL_INDEX=1 MODEL_ID=1"]),
    ("Parts of a host", &["NUMA_NODE_ID=1 NUMA_NODE_COUNT=2", "LOCAL_RANK=0", "MIG_INDEX=1 MIG_COUNT=7", "ACME_GPU_INDEX=1 ACME_NUM_GPUS=8 ACME_GPU_COUNT=8", "ACME_NODE_GPU_COUNT=8 ACME_NODE_GPU_ID=1"]),
    ("Counts of one", &["WORLD_SIZE=1 RANK=0 LOCAL_RANK=0", "NNODES=1 NODE_RANK=0"]),
];

/// Further variables of the same container.
const BESIDE: &[&str] = &[
    "",
    "HOSTNAME=pod-0 KUBERNETES_SERVICE_HOST=10.0.0.1 KUBERNETES_PORT=tcp://10.0.0.1:443 POD_NAMESPACE=ns",
    "CUDA_VISIBLE_DEVICES=0,1 NVIDIA_VISIBLE_DEVICES=all CUDA_VERSION=13.0 NV_CUDNN_VERSION=9",
    "USER=u HOME=/root SHLVL=2 LANG=C.UTF-8 PWD=/w TERM=xterm COLUMNS=80 LINES=24",
];

#[test]
fn single_nodes_are_never_refused() {
    let (mut count, mut wrong) = (0, Vec::new());
    for (kind, forms) in KINDS {
        for form in *forms {
            for beside in BESIDE {
                let pairs = format!("{form} {beside}");
                let told = of(&pairs);
                count += 1;
                match &told.result {
                    Ok(member) if member.nnodes == 1 => {}
                    _ => wrong.push(format!("{kind}: {pairs}\n  {} {}", told.line(), told.text())),
                }
            }
        }
    }
    assert!(count >= 200, "{count} environments");
    assert!(wrong.is_empty(), "{} of {count}\n{}", wrong.len(), wrong.join("\n"));
}

/// Programs that start separate jobs: the beginning of the names of their variables, and what they set in every
/// process that they start. From their manuals.
#[rustfmt::skip]
const STARTERS: &[(&str, &str)] = &[
    ("APPVEYOR", "APPVEYOR=True"), ("BAMBOO", "bamboo_planKey=P"), ("BITBUCKET_PARALLEL", "BITBUCKET_BUILD_NUMBER=5"),
    ("BITRISE", "BITRISE_IO=true"), ("BUDDY", "BUDDY_WORKSPACE_ID=1"), ("BUILDKITE_PARALLEL", "BUILDKITE=true"),
    ("CIRCLE", "CIRCLECI=true"), ("CIRRUS", "CIRRUS_CI=true"), ("CODEBUILD", "CODEBUILD_BUILD_ID=p:1"),
    ("CODEFRESH", "CF_BUILD_ID=1"), ("DRONE", "DRONE=true"), ("DRONE_STAGE", "DRONE=true"), ("GITEA", "GITEA_ACTIONS=true"),
    ("GITHUB", "GITHUB_ACTIONS=true"), ("GITLAB", "GITLAB_CI=true"), ("GO_JOB_RUN", "GO_PIPELINE_LABEL=1"),
    ("HARNESS", "HARNESS_BUILD_ID=9"), ("HARNESS_STAGE", "HARNESS_BUILD_ID=9"), ("JENKINS", "JENKINS_URL=http://j/"),
    ("KOCHIKU", "KOCHIKU_WORKER_CHUNK=1"), ("NEVERCODE", "NEVERCODE=true"), ("SEMAPHORE", "SEMAPHORE=true"),
    ("SHIPPABLE", "SHIPPABLE=true"), ("SYSTEM", "TF_BUILD=True"), ("TEAMCITY_BUILD", "TEAMCITY_VERSION=2024.1"),
    ("TRAVIS", "TRAVIS=true"), ("VELA", "VELA=true"), ("WERCKER", "WERCKER=true"),
    ("CUCUMBER", "CUCUMBER_PARALLEL=true"), ("JEST", "JEST_WORKER_ID=1"), ("MOCHA", "MOCHA_WORKER_ID=1"),
    ("PLAYWRIGHT", "TEST_WORKER_INDEX=1 TEST_PARALLEL_INDEX=1"), ("PYTEST_XDIST", "PYTEST_XDIST_WORKER=gw1"),
    ("VITEST", "VITEST=true VITEST_POOL_ID=1"), ("WDIO", "WDIO_WORKER_ID=0-0"), ("BAZEL", "BAZEL_TEST=1"),
    ("PM2", "pm_id=1"), ("PM2", "NODE_APP_INSTANCE=1"), ("CF_INSTANCE", "VCAP_APPLICATION={}"),
];

/// Further names whose programs set nothing else in the processes that they start.
const NAMES: &[&str] = &[
    "CI",
    "KNAPSACK_PRO",
    "KNAPSACK_PRO_CI",
    "PERCY_PARALLEL",
    "GINKGO_PARALLEL",
    "LOCUST",
    "PABOT",
    "CYPRESS",
    "ZUUL",
    "WOODPECKER",
    "CONCOURSE",
    "CODESHIP",
    "SUPERVISOR",
    "CIRCUS",
    "HONCHO",
    "PUMA",
    "UWSGI",
    "PASSENGER",
];

/// Indices and counts of members, as their users name them.
const INDICES: &[&str] = &[
    "NODE_INDEX",
    "NODE_ID",
    "INSTANCE_ID",
    "MACHINE_INDEX",
    "POD_INDEX",
    "node_index",
    "WORKER_ID",
    "TASK_INDEX",
];
const COUNTS: &[&str] = &[
    "NODE_TOTAL",
    "NODES",
    "INSTANCES",
    "instances",
    "HOST_COUNT",
    "PODS",
    "TOTAL_WORKERS",
    "TASK_COUNT",
];

const ALONE: &str = "none 1 0 127.0.0.1:29500 free";
const REFUSED: &str = "refused membership.half-given";

/// Names that both are about nodes, and so are evidence without the name of a scheduler.
fn is_of_nodes(name: &str) -> bool {
    !["WORKER", "TASK"].iter().any(|word| name.contains(word))
}

#[test]
fn parts_of_pipelines_are_single_nodes() {
    let (mut count, mut wrong) = (0, Vec::new());
    let mut expect = |pairs: String, expected: &str| {
        count += 1;
        let line = of(&pairs).line();
        if line != expected {
            wrong.push(format!("{pairs}: {line}"));
        }
    };
    let starters = STARTERS.iter().copied().chain(NAMES.iter().map(|name| (*name, "")));
    for (name, witness) in starters {
        for index in INDICES {
            for count in COUNTS {
                for (place, size) in [(0, 4), (4, 4)] {
                    let pair = format!("{index}={place} {count}={size}");
                    let own = format!("{name}_{index}={place} {name}_{count}={size}");
                    expect(format!("{witness} {own}"), ALONE);
                    if !witness.is_empty() {
                        expect(format!("{witness} {pair}"), ALONE);
                    }
                }
            }
        }
    }
    assert!(count > 10_000, "{count} environments");
    let first = wrong.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} of {count}\n{first}", wrong.len());
}

/// The control: without the program the same names are refused, and so is what only a scheduler gives.
#[test]
fn members_in_a_pipeline_are_refused() {
    let mut wrong = Vec::new();
    let mut expect = |pairs: String, expected: &str| {
        let line = of(&pairs).line();
        if line != expected {
            wrong.push(format!("{pairs}: {line}"));
        }
    };
    for index in INDICES {
        for count in COUNTS {
            let pair = format!("{index}=1 {count}=4");
            let are_nodes = is_of_nodes(index) && is_of_nodes(count);
            expect(pair.clone(), if are_nodes { REFUSED } else { ALONE });
            for off in [
                "GITHUB_ACTIONS=false",
                "GITLAB_CI=",
                "GITHUB_TOKEN=t JENKINS_USER=u",
                "SUPERVISOR_ENABLED=1",
                "CI=true CONTINUOUS_INTEGRATION=true",
                "PM2_HOME=/root/.pm2",
            ] {
                expect(format!("{off} {pair}"), if are_nodes { REFUSED } else { ALONE });
            }
            for (name, witness) in STARTERS {
                // The witness itself has the name of an index.
                if name.contains('_') || witness.starts_with(&format!("{name}_{index}=")) {
                    continue;
                }
                // Its own names without what it sets, and within the names of others.
                expect(format!("{name}_{index}=1 {name}_{count}=4"), REFUSED);
                expect(format!("{witness} HPC_{name}_{index}=1 HPC_{name}_{count}=4"), REFUSED);
                let meets = [
                    "MASTER_IP=10.0.0.1",
                    "HEAD_ADDR=10.0.0.1",
                    "LEADER_HOST=h",
                    "MASTER_PORT=29500",
                    "NODE_LIST=a,b,c,d",
                ];
                for meets in meets.iter().filter(|_| are_nodes) {
                    expect(format!("{witness} {pair} {meets}"), REFUSED);
                }
                expect(format!("{witness} HOST_RANK=1 HOST_COUNT=4"), REFUSED);
                expect(format!("{witness} ACME_{index}=1 ACME_{count}=4"), REFUSED);
                expect(format!("{witness} {pair} COORDINATOR_ADDRESS=h"), REFUSED);
                if are_nodes {
                    let line = of(&format!("{witness} {pair} MASTER_ADDR=h")).line();
                    assert!(line.starts_with("refused"), "{witness} {pair}: {line}");
                }
            }
        }
    }
    let first = wrong.iter().take(20).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{}\n{first}", wrong.len());
}
