//! Schedulers that give only a part of the facts that a member needs, and schedulers that the program
//! does not know: no node works alone by accident.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use settings::Source;

/// Environments of one member of several, and a word of the remedy that is offered. The variables are
/// from the manuals (PBS Pro 2022.1 and Torque 6 user guides, LSF 10.1, Grid Engine's submit(1),
/// Azure Batch, Volcano's plugins) and from start-up scripts in public repositories.
const MEMBERS: &[(&str, &str)] = &[
    // pbsdsh on the second host; on a second slot; the script of Torque's first host
    (
        "PBS_JOBID=12.s PBS_NODENUM=1 PBS_VNODENUM=1 PBS_TASKNUM=3 PBS_ENVIRONMENT=PBS_BATCH",
        "pbsdsh",
    ),
    ("PBS_NODENUM=1", "pbsdsh"),
    ("PBS_JOBID=12.s PBS_NODENUM=0 PBS_VNODENUM=1", "pbsdsh"),
    ("PBS_JOBID=12.s PBS_NODENUM=0 PBS_VNODENUM=0 PBS_TASKNUM=1 PBS_NUM_NODES=2", "pbsdsh"),
    // bsub -n 2 -R span[ptile=1]
    ("LSB_JOBID=9 LSB_HOSTS=n1~n2 LSB_MCPU_HOSTS=n1~1~n2~1 LSB_DJOB_NUMPROC=2", "blaunch"),
    ("LSB_JOBID=9 LSB_MCPU_HOSTS=n1~8~n2~8", "blaunch"),
    ("LSB_JOBID=9 JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=2", "blaunch"),
    ("JOB_ID=3 NHOSTS=2 NSLOTS=16 PE=mpi", "qrsh -inherit"),
    (
        "FLUX_JOB_ID=f FLUX_JOB_NNODES=2 FLUX_JOB_SIZE=16 FLUX_TASK_RANK=0 PMI_RANK=0 PMI_SIZE=16 MASTER_ADDR=h",
        "--nnodes",
    ),
    ("FLUX_JOB_ID=f FLUX_JOB_NNODES=2 FLUX_JOB_SIZE=2 FLUX_TASK_RANK=1", "--master-addr"),
    ("_CONDOR_PROCNO=1 _CONDOR_NPROCS=2", "--master-addr"),
    ("BEAKER_REPLICA_COUNT=2 BEAKER_REPLICA_RANK=0", "--master-addr"),
    ("BEAKER_REPLICA_RANK=1", "--nnodes"),
    ("AZ_BATCH_HOST_LIST=10.0.0.4,10.0.0.5", "--nodes"),
    ("AZ_BATCH_NODE_LIST=10.0.0.4;10.0.0.5", "--nodes"),
    ("AZUREML_NODE_COUNT=2", "--nodes"),
    ("AZUREML_NODE_COUNT=2 AZ_BATCHAI_TASK_INDEX=1", "--nodes"),
    ("PHILLY_CONTAINER_COUNT=2 PHILLY_CONTAINER_INDEX=0", "--nodes"),
    ("GROVE_PCSG_NAME=s-0-m GROVE_PCSG_INDEX=0 GROVE_PCSG_TEMPLATE_NUM_PODS=4", "--nodes"),
    ("GROVE_PCSG_POD_INDEX=2 GROVE_PCLQ_POD_INDEX=1", "--nodes"),
    ("K_MPI_JOB_ROLE=launcher I_MPI_HYDRA_HOST_FILE=/missing", "--nodes"),
    ("K_MPI_JOB_ROLE=launcher HYDRA_HOST_FILE=/missing", "--nodes"),
    ("VC_TASK_INDEX=1", "--nodes"),
    ("VK_TASK_INDEX=2", "--nodes"),
    ("VC_TASK_INDEX=0 VC_PS_NUM=1 VC_TRAINER_NUM=2", "pytorch plugin"),
    (
        "SM_CURRENT_INSTANCE_GROUP_HOSTS=[\"algo-1\",\"algo-2\"] SM_CURRENT_INSTANCE_GROUP=g",
        "--nodes",
    ),
    ("DET_AGENT_ID=a DET_NUM_NODES=2", "rendezvous.json"),
    ("DET_AGENT_ID=a DET_KUBERNETES_JOB_PARALLELISM=2 DET_SLOT_IDS=[0,1]", "rendezvous.json"),
    // A list of hosts that this container does not have, or that is empty
    ("PBS_JOBID=12.s PBS_NODENUM=0 PBS_NODEFILE=/missing", "--nodes"),
    ("LSB_JOBID=9 LSB_DJOB_HOSTFILE=/missing", "--nodes"),
    ("LSB_JOBID=9 LSB_MCPU_HOSTS=", "--nodes"),
    ("LSB_JOBID=9 LSB_HOSTS=8", "--nodes"),
    ("JOB_ID=3 NSLOTS=16 PE_HOSTFILE=/missing", "--nodes"),
    ("LT_NUM_NODES=2 LT_DEVICES=8", "--nodes"),
    ("NODE_RANK=1 LOCAL_RANK=0", "--nnodes"),
    // Slurm's variables that a container was given one by one
    ("SLURM_PROCID=1 SLURM_NTASKS=2", "--nodes"),
    ("SLURM_NODEID=1 SLURM_NNODES=2", "--nodes"),
    ("SLURM_JOB_NODELIST=n[01-02]", "--nodes"),
    // horovodrun, SenseCore, ByteDance's Arnold, Paddle, a TPU slice of several hosts
    ("HOROVOD_RANK=1 HOROVOD_SIZE=2 HOROVOD_CROSS_RANK=1", "--nodes"),
    ("SENSECORE_PYTORCH_NNODES=2 SENSECORE_PYTORCH_NODE_RANK=1", "--nodes"),
    ("ARNOLD_ID=1 ARNOLD_WORKER_NUM=2 ARNOLD_WORKER_GPU=8", "--nodes"),
    ("PADDLE_TRAINER_ID=1 PADDLE_TRAINERS_NUM=2", "--nodes"),
    ("DMLC_NUM_WORKER=2 DMLC_WORKER_ID=1 DMLC_ROLE=worker", "--nodes"),
    ("TPU_WORKER_ID=1 TPU_WORKER_HOSTNAMES=t0,t1", "--nodes"),
    // A shell of salloc with an interactive step, that of a batch script, a login to the node; the
    // script of a heterogeneous job, whose own component has one node
    (SALLOC_6, "srun"),
    (SALLOC_5, "srun"),
    (SALLOC_NAMED, "srun"),
    ("SLURM_JOB_ID=7 SLURM_STEP_ID=-4 SLURM_STEP_NUM_NODES=1 SLURM_NNODES=2", "srun"),
    (
        "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 SLURM_HET_SIZE=2 SLURM_JOB_NUM_NODES_HET_GROUP_1=4",
        "srun",
    ),
    ("SLURM_JOB_ID=7 SLURM_NNODES=1 SLURM_PACK_SIZE=3", "srun"),
    // Fujitsu's PJM, LoadLeveler, Moab, Cobalt without files; Cray's aprun and mpiexec
    ("PJM_JOBID=7 PJM_NODE=2 PJM_MPI_PROC=2", "--nodes"),
    ("PJM_JOBID=7 PJM_NODE=2x3x1", "--nodes"),
    ("PJM_JOBID=7 PJM_VNODES=2", "--nodes"),
    ("LOADL_STEP_ID=x.7.0 LOADL_PROCESSOR_LIST=n1~n2 LOADL_TOTAL_TASKS=2", "--nodes"),
    ("MOAB_JOBID=7 MOAB_NODECOUNT=2", "--nodes"),
    ("MOAB_JOBID=7 MOAB_NODELIST=n1:n2", "--nodes"),
    ("MOAB_JOBID=7 MOAB_NODELIST=n1&n2", "--nodes"),
    ("COBALT_JOBID=7 COBALT_JOBSIZE=2", "--nodes"),
    ("COBALT_JOBID=7 COBALT_PARTNAME=n1,n2", "--nodes"),
    ("ALPS_APP_PE=1 ALPS_APP_DEPTH=1", "--nodes"),
    ("ARMADA_GANG_CARDINALITY=2 ARMADA_GANG_ID=g", "--nodes"),
    ("PALS_RANKID=1 PALS_NODEID=1", "--nodes"),
    // Ascend; OpenPAI with two task roles; TonY's chief; JAX's names without the index
    ("RANK_TABLE_FILE=/hccl.json RANK_SIZE=16 RANK_ID=0 DEVICE_ID=0", "--nodes"),
    (
        "PAI_CURRENT_TASK_ROLE_NAME=w PAI_TASK_ROLE_COUNT=2 PAI_CURRENT_TASK_ROLE_CURRENT_TASK_INDEX=0 PAI_TASK_ROLE_TASK_COUNT_w=1",
        "--nodes",
    ),
    (
        "CLUSTER_SPEC={\"chief\":[\"h0:1\"],\"worker\":[\"h1:1\"]} JOB_NAME=chief TASK_INDEX=0",
        "--node-rank",
    ),
    ("COORDINATOR_ADDRESS=h NUM_PROCESSES=2", "--node-rank"),
    ("COORDINATOR_ADDRESS=h PROCESS_ID=0", "--nnodes"),
    ("COORDINATOR_HOST=h NUM_TASKS=2 TASK_ID=1", "--nodes"),
    // the svc plugin of Volcano alone
    ("VC_TRAINER_HOSTS=j-trainer-0.j,j-trainer-1.j VC_TRAINER_NUM=2", "--nodes"),
];

const SALLOC_6: &str = "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2 SLURM_NNODES=2 SLURM_JOB_NODELIST=n[1-2] SLURM_STEP_ID=4294967290 SLURM_STEPID=4294967290 SLURM_STEP_NODELIST=n1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=2 SLURM_TASKS_PER_NODE=1(x2)";
const SALLOC_5: &str =
    "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2 SLURM_STEP_ID=4294967291 SLURM_STEP_NUM_NODES=1";
const SALLOC_NAMED: &str =
    "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2 SLURM_STEP_ID=interactive SLURM_STEP_NUM_NODES=1";

#[test]
fn member_without_its_place_is_refused() {
    for (pairs, way) in MEMBERS {
        let told = of(pairs);
        let refusal = told.result.expect_err(pairs);
        assert_eq!(refusal.verdict.code(), 65, "{pairs}");
        for hint in [&refusal.hint.en, &refusal.hint.zh] {
            let zh = *way == "pytorch plugin" && hint.contains("pytorch 插件");
            assert!(hint.contains(way) || zh, "{pairs}: {hint}");
        }
        let said = pairs.split_whitespace().any(|pair| {
            let (name, _) = pair.split_once('=').unwrap_or_default();
            refusal.text.en.contains(name) && refusal.text.zh.contains(name)
        });
        assert!(said, "{pairs}: {}", refusal.text.en);
    }
}

/// The control of all members: a setting gives one node, or several.
#[test]
fn stated_node_count_wins() {
    for (pairs, _) in MEMBERS {
        let mut settings = undecided();
        settings.nnodes = flag("--nnodes", 1);
        let told = tell(&settings, &host(pairs), &gpus(8));
        assert_eq!(told.result.map(|member| member.nnodes).ok(), Some(1), "{pairs}");
        settings.nnodes = flag("--nnodes", 3);
        settings.node_rank = flag("--node-rank", 2);
        settings.master_addr = flag("--master-addr", "n0".to_owned());
        let told = tell(&settings, &host(pairs), &gpus(8));
        let place = told.result.map(|member| (member.nnodes, member.node_rank)).ok();
        assert_eq!(place, Some((3, 2)), "{pairs}");
    }
    // An allocation may be used in parts.
    check(&[(
        "LSB_JOBID=9 LSB_HOSTS=n1~n2~n3 NNODES=2 NODE_RANK=1 MASTER_ADDR=n1",
        "node-variables 2 1 n1:29500",
    )]);
    let profile = Source::Profile { file: "a.toml".into(), line: 3 };
    let settings = Settings { nnodes: Some(Sourced::new(1, profile)), ..undecided() };
    let told = tell(&settings, &host("PBS_NODENUM=1"), &gpus(8));
    assert_eq!(told.line(), "refused membership.half-given", "a profile serves many jobs");
}

/// Names of schedulers that do not exist.
const SCHEDULERS: &[&str] = &["ACME", "_XQ", "MY_CLOUD", "HPC2", "AB_C_D", "acme"];
const INDICES: &[&str] = &[
    "RANK",
    "NODE_RANK",
    "NODE_INDEX",
    "NODE_ID",
    "NODEID",
    "NODENUM",
    "TASK_RANK",
    "TASK_ID",
    "TASKNUM",
    "PROCNO",
    "PROC_ID",
    "PROCID",
    "WORKER_INDEX",
    "WORKER_ID",
    "REPLICA_INDEX",
    "REPLICA_RANK",
    "HOST_INDEX",
    "INSTANCE_INDEX",
    "JOB_NODE_INDEX",
    "JOB_WORKER_INDEX",
    "MACHINE_RANK",
    "CURRENT_TASK_INDEX",
    "TASK_ROLE_INDEX",
];
const COUNTS: &[&str] = &[
    "NNODES",
    "NUM_NODES",
    "NODE_COUNT",
    "NODES_NUM",
    "NODE_NUM",
    "NODES",
    "NTASKS",
    "NUM_TASKS",
    "TASK_COUNT",
    "NPROCS",
    "NUM_PROCS",
    "PROC_COUNT",
    "WORKER_NUM",
    "NUM_WORKERS",
    "TOTAL_WORKERS",
    "REPLICA_COUNT",
    "REPLICA_TOTAL",
    "HOST_NUM",
    "NHOSTS",
    "INSTANCE_COUNT",
    "JOB_NUM_NODES",
    "JOB_SIZE",
    "WORLD_SIZE",
    "CURRENT_TASK_COUNT",
    "TASK_COUNT_worker",
];

#[test]
fn the_shapes_of_unknown_schedulers_are_refused() {
    let mut wrong = Vec::new();
    for name in SCHEDULERS {
        for index in INDICES {
            for count in COUNTS {
                let small = |name: &str, of: &str| match name == name.to_ascii_lowercase() {
                    true => of.to_ascii_lowercase(),
                    false => of.to_owned(),
                };
                let (index, count) = (small(name, index), small(name, count));
                for (place, size) in [(0, 2), (1, 2), (7, 8)] {
                    let pairs = format!("{name}_{index}={place} {name}_{count}={size}");
                    let line = of(&pairs).line();
                    if line != "refused membership.half-given" {
                        wrong.push(format!("{pairs}: {line}"));
                    }
                }
                // One of one, and numbers that are no pair.
                for (place, size) in [("0", "1"), ("7", "2"), ("a1", "2"), ("1", "x")] {
                    let pairs = format!("{name}_{index}={place} {name}_{count}={size}");
                    let line = of(&pairs).line();
                    if line != "none 1 0 127.0.0.1:29500 free" {
                        wrong.push(format!("{pairs}: {line}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn lists_of_hosts_of_unknown_schedulers_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("a file of hosts");
    };
    write("two", "# hosts\nn1 slots=8\nn2 slots=8\n");
    write("slots", "n1\nn1\nn1:8\n");
    write("empty", "\n# none\n");
    write("itself", "localhost\nlocalhost\n");
    write("large", &"n1\n".repeat(2 << 20));
    write("domain", "n1\nn1.example.org\n");
    let line = |pairs: &str| {
        let environment = host(pairs).environment().clone();
        tell(&undecided(), &Host::replayed(folder.path(), environment), &gpus(8)).line()
    };
    let alone = "none 1 0 127.0.0.1:29500 free";
    let refused = "refused membership.half-given";
    for (pairs, expected) in [
        ("ACME_NODEFILE=/two", refused),
        ("COBALT_NODEFILE=/two COBALT_JOBID=7", refused),
        ("OAR_NODEFILE=/two", refused),
        ("ACME_HOST_FILE=/two", refused),
        ("ACME_MACHINEFILE=/two", refused),
        ("ACME_NODELIST=n[01-04]", refused),
        ("MOAB_NODELIST=n1,n2", refused),
        ("ACME_NODELIST=n1:n2", refused),
        ("ACME_NODELIST=n1&n2", refused),
        ("ACME_NODELIST=n1+n1", alone),
        ("acme_nodelist=n1 acme_nodefile=/two", refused),
        ("ACME_JOBID=12 ACME_HOSTS=n1:n2", refused),
        ("PJM_JOBID=7 PJM_O_NODEINF=/two", refused),
        ("PJM_JOBID=7 PJM_O_NODEINF=/slots PJM_VNODES=2", "pjm 1 0 127.0.0.1:29500 free"),
        ("LOADL_STEP_ID=x LOADL_HOSTFILE=/two", refused),
        ("PBS_JOBID=1.s PBS_NODENUM=0 PBS_NODEFILE=/domain", "pbs 1 0 127.0.0.1:29500 free"),
        ("ACME_HOST_LIST=10.0.0.1;10.0.0.2", refused),
        ("ACME_JOBID=12 ACME_HOSTS=n1~n2", refused),
        ("ACME_WORKER_HOSTS=n1,n2", refused),
        ("ACME_NODEFILE=/slots", alone),
        ("ACME_NODEFILE=/missing", alone),
        ("ACME_NODEFILE=/", alone),
        ("ACME_NODELIST=n1,n1", alone),
        ("ACME_JOBID=12 ACME_HOSTS=n1~n1:8", alone),
        // Nothing shows that these hosts are those of a job.
        ("ACME_HOSTS=n1,n2", alone),
        ("ACME_HOSTS=n1,n2 ACME_CLUSTER_NAME=c ACME_MASTER_NAME=m ACME_LEADER=n1", alone),
        ("ACME_REPLICA_HOSTS=n1,n2", alone),
        ("ACME_HOSTS=n1,n2 ACME_JOB_SERVICE_HOST=10.0.0.1 ACME_JOB_PORT=tcp://10.0.0.1:80", alone),
        ("ACME_JOBID=12 ACME_HOSTS=n1:9092,n2:9092", alone),
        ("HOSTFILE=/two", alone),
        // Files of a job whose size nothing else tells: missing, without a host, not text, not readable.
        ("PBS_JOBID=1.s PBS_NODENUM=0 PBS_NODEFILE=/missing", refused),
        ("PBS_JOBID=1.s PBS_NODENUM=0 PBS_NODEFILE=/empty", refused),
        ("PBS_JOBID=1.s PBS_NODENUM=0 PBS_NODEFILE=/", refused),
        ("PBS_JOBID=1.s PBS_NODENUM=0 PBS_NODEFILE=/large", refused),
        ("LSB_JOBID=1 LSB_DJOB_HOSTFILE=/empty", refused),
        ("LSB_JOBID=1 LSB_DJOB_RANKFILE=/missing", refused),
        ("PE_HOSTFILE=/missing NSLOTS=24", refused),
        // The controls: something else tells the size, or the host names itself.
        ("PBS_JOBID=1.s PBS_NUM_NODES=1 PBS_NODEFILE=/missing", "pbs 1 0 127.0.0.1:29500 free"),
        ("LSB_JOBID=1 LSB_HOSTS=n1~n1 LSB_DJOB_HOSTFILE=/missing", "lsf 1 0 127.0.0.1:29500 free"),
        ("LSB_DJOB_RANKFILE=/empty LSB_DJOB_HOSTFILE=/slots", "lsf 1 0 127.0.0.1:29500 free"),
        ("PE_HOSTFILE=/missing NHOSTS=1 NSLOTS=24", "grid-engine 1 0 127.0.0.1:29500 free"),
        ("PBS_JOBID=1.s PBS_NODEFILE=/itself", "pbs 1 0 127.0.0.1:29500 free"),
        ("LSB_JOBID=1 LSB_HOSTS=localhost", "lsf 1 0 127.0.0.1:29500 free"),
        (
            "PBS_NODEFILE=/missing NNODES=2 NODE_RANK=1 MASTER_ADDR=n1",
            "node-variables 2 1 n1:29500",
        ),
        // A script on the first host, and a job of one host with eight slots.
        ("PBS_JOBID=1.s PBS_NODENUM=0 PBS_NODEFILE=/two", refused),
        ("LSB_JOBID=1 LSB_DJOB_HOSTFILE=/two", refused),
        ("PE_HOSTFILE=/two NSLOTS=16", refused),
        ("PBS_JOBID=1.s PBS_NODENUM=0 PBS_NODEFILE=/slots", "pbs 1 0 127.0.0.1:29500 free"),
        ("LSB_JOBID=1 LSB_DJOB_HOSTFILE=/slots", "lsf 1 0 127.0.0.1:29500 free"),
        ("PE_HOSTFILE=/slots NSLOTS=24", "grid-engine 1 0 127.0.0.1:29500 free"),
    ] {
        assert_eq!(line(pairs), expected, "{pairs}");
    }
}

/// A list without any other sign of a job is that of a job if this host is in it.
#[test]
fn host_list_with_this_host_is_evidence() {
    let told = |own: &str, pairs: &str| {
        let mut contract = Contract::read(&host(pairs), None, None);
        contract.own_names = vec![own.to_owned()];
        let mut notes = Notes::default();
        let result = membership(&undecided(), &contract, &gpus(8), &mut notes);
        Told { result, notes }.line()
    };
    assert_eq!(told("n2.site.net", "ACME_HOSTS=n1,n2"), "refused membership.half-given");
    assert_eq!(told("n2", "NODELIST=n1,n2"), "refused membership.half-given");
    assert_eq!(told("n3", "ACME_HOSTS=n1,n2"), "none 1 0 127.0.0.1:29500 free");
    assert_eq!(told("build1", "DISTCC_HOSTS=build1,build2"), "none 1 0 127.0.0.1:29500 free");
}

/// The only task of a Volcano job may have any name.
#[test]
fn volcano_task_of_any_name_is_a_node() {
    for task in ["TRAINER", "LLM_TRAIN", "PS", "W1"] {
        let pairs =
            format!("VC_TASK_INDEX=1 VK_TASK_INDEX=1 VC_{task}_NUM=2 VC_{task}_HOSTS=j-0.j,j-1.j");
        assert_eq!(of(&pairs).line(), "volcano-workers 2 1 j-0.j:23456", "{task}");
        let pairs = format!("{pairs} MASTER_ADDR=m");
        assert_eq!(of(&pairs).line(), "volcano-workers 2 1 m:23456", "{task}");
    }
    let told = of("VC_TASK_INDEX=0 VC_A_NUM=1 VC_B_NUM=2 VC_C_NUM=3");
    assert!(told.text().contains("there are 6 nodes"), "{}", told.text());
    let told = of("VC_TASK_INDEX=0 VC_A_NUM=1");
    assert_eq!(told.line(), "volcano-workers 1 0 127.0.0.1:23456 free");
}

/// An image without SageMaker's toolkit has none of the toolkit's variables.
#[test]
fn sagemakers_own_file_names_the_hosts() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("opt/ml/input/config");
    std::fs::create_dir_all(&path).expect("a folder");
    let line = |text: &str, pairs: &str| {
        std::fs::write(path.join("resourceconfig.json"), text).expect("a file");
        let environment = host(pairs).environment().clone();
        tell(&undecided(), &Host::replayed(folder.path(), environment), &gpus(8)).line()
    };
    let job = "TRAINING_JOB_NAME=t";
    let two =
        r#"{"current_host":"algo-2","hosts":["algo-1","algo-2"],"network_interface_name":"eth0"}"#;
    let one = r#"{"current_host":"algo-1","hosts":["algo-1"]}"#;
    assert_eq!(line(two, job), "sagemaker 2 1 algo-1:7777");
    assert_eq!(line(two, &format!("{job} MASTER_ADDR=m MASTER_PORT=1")), "sagemaker 2 1 m:1");
    assert_eq!(line(one, job), "sagemaker 1 0 127.0.0.1:7777 free");
    // Outside of a training job the file is another program's. A broken file counts as no file.
    assert_eq!(line(two, ""), "none 1 0 127.0.0.1:29500 free");
    assert_eq!(line("{", job), "none 1 0 127.0.0.1:29500 free");
    let toolkit = r#"SM_HOSTS=["a","b"] SM_CURRENT_HOST=b"#;
    assert_eq!(line(one, &format!("{job} {toolkit}")), "sagemaker 2 1 a:7777");
    let mpi = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=1";
    assert!(line(one, &format!("{job} {mpi} MASTER_ADDR=m")).starts_with("open-mpi 2 1 m:"));
}

/// The variables of a container, by `master/pkg/tasks/task_trial.go` and `agent/internal/containers`.
const TRIAL: &str = "DET_AGENT_ID=a DET_ALLOCATION_ID=4.1.1 DET_TRIAL_ID=1 DET_TASK_TYPE=TRIAL";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// A trial of some containers with some slots each is one job on all of them, or refused on all.
    #[test]
    fn determined_trial_is_one_job_on_all_containers(
        containers in 1u32..6,
        slots in 1usize..9,
        has_file in any::<bool>(),
        has_slots in any::<bool>(),
        on_kubernetes in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run/determined/info");
        std::fs::create_dir_all(&path).expect("a folder");
        let addresses: Vec<String> = (0..containers).map(|at| format!("10.0.0.{at}")).collect();
        let all = slots * containers as usize;
        let config = format!(r#"{{"resources":{{"slots_per_trial":{all}}}}}"#);
        let mut pairs = format!("{TRIAL} DET_EXPERIMENT_CONFIG={config}");
        if has_slots {
            let ids: Vec<String> = (0..slots).map(|slot| slot.to_string()).collect();
            pairs = format!("{pairs} DET_SLOT_IDS=[{}]", ids.join(","));
        }
        if on_kubernetes {
            pairs = format!("{pairs} DET_KUBERNETES_JOB_PARALLELISM={containers}");
        }
        for rank in 0..containers {
            if has_file {
                let rendezvous = serde_json::json!({
                    "container_addrs": addresses,
                    "container_rank": rank,
                    "container_slot_counts": vec![slots; containers as usize],
                });
                std::fs::write(path.join("rendezvous.json"), rendezvous.to_string()).expect("a file");
            }
            let environment = host(&pairs).environment().clone();
            let told = tell(&undecided(), &Host::replayed(folder.path(), environment), &gpus(8));
            let line = told.line();
            match (has_file, containers) {
                (true, 2..) => {
                    let expected = format!("determined {containers} {rank} 10.0.0.0:29500");
                    prop_assert_eq!(line, expected);
                }
                // The control.
                (_, 1) if has_file || has_slots || all == 1 => {
                    prop_assert_eq!(line, "determined 1 0 127.0.0.1:29500 free");
                }
                _ => prop_assert_eq!(line, "refused membership.half-given", "{}", pairs),
            }
        }
    }
}

/// Containers of a shell, of a trial with a broken file, and one that is not Determined's.
#[test]
fn determined_file_counts_only_in_its_containers() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run/determined/info");
    std::fs::create_dir_all(&path).expect("a folder");
    let line = |text: &str, pairs: &str| {
        std::fs::write(path.join("rendezvous.json"), text).expect("a file");
        let environment = host(pairs).environment().clone();
        tell(&undecided(), &Host::replayed(folder.path(), environment), &gpus(8)).line()
    };
    let two = r#"{"container_addrs":["10.0.0.1","10.0.0.2"],"container_rank":1}"#;
    assert_eq!(line(two, TRIAL), "determined 2 1 10.0.0.1:29500");
    assert_eq!(line(two, &format!("{TRIAL} MASTER_ADDR=m MASTER_PORT=1")), "determined 2 1 m:1");
    assert_eq!(line(&two.replace("k\":1", "k\":2"), TRIAL), "refused membership.rank");
    let shell = "DET_AGENT_ID=a DET_TASK_TYPE=SHELL DET_SLOT_IDS=[0,1]";
    assert_eq!(line("{", shell), "determined 1 0 127.0.0.1:29500 free");
    let trial = format!("{TRIAL} DET_SLOT_IDS=[0] DET_KUBERNETES_JOB_PARALLELISM=2");
    assert_eq!(line("{", &trial), "refused membership.half-given");
    assert_eq!(line(two, ""), "none 1 0 127.0.0.1:29500 free");
}

#[test]
fn endless_host_file_is_not_read() {
    let host = Host::replayed(
        Path::new("/"),
        host("ACME_NODEFILE=/dev/zero PBS_NODEFILE=/proc").environment().clone(),
    );
    assert!(Contract::host_files(&host).is_empty());
}
