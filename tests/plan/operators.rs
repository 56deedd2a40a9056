//! Kubernetes operators: the environment that each gives its containers, by version and role, and
//! the values read from it, with the variable that decided.
//!
//! The names and numbers are those of the operators' own tests, if these exist. Kueue is not in the
//! table: it admits the pods of other operators and sets labels, annotations, node selectors and
//! scheduling gates, but no variable of a container.

use harness::node::{Node, Planned};

struct Pod {
    /// Operator, version, role.
    of: &'static str,
    environment: &'static str,
    args: &'static [&'static str],
    /// `platform nnodes rank addr:port nproc`, or `code id` of the refusal.
    expected: &'static str,
    /// The variables of nnodes, node_rank, master_addr and master_port; `-` for none.
    by: &'static str,
}

const fn pod(
    of: &'static str,
    environment: &'static str,
    expected: &'static str,
    by: &'static str,
) -> Pod {
    Pod { of, environment, args: &[], expected, by }
}

const fn with(pod: Pod, args: &'static [&'static str]) -> Pod {
    Pod { args, ..pod }
}

impl Pod {
    /// The plan on a node of four GPUs.
    fn plan(&self) -> Planned {
        let node = Node::with_gpus(4).file("/etc/hosts", HOSTS).platform(self.environment);
        node.json(&[self.args, &["--", "train.py"]].concat())
    }
}

const GENERIC: &str = "WORLD_SIZE RANK MASTER_ADDR MASTER_PORT";
const PET: &str = "PET_NNODES PET_NODE_RANK PET_MASTER_ADDR PET_MASTER_PORT";
const ENDPOINT: &str = "PET_NNODES - PET_RDZV_ENDPOINT PET_RDZV_ENDPOINT";
const REFUSED: &str = "";

const PODS: &[Pod] = &[
    // kubeflow/training-operator v1.3, pkg/controller.v1/pytorch/pod.go: the master gets localhost
    // as the master's address.
    pod(
        "PyTorchJob 1.3, master",
        "PYTHONUNBUFFERED=0 MASTER_ADDR=localhost MASTER_PORT=23456 WORLD_SIZE=3 RANK=0",
        "kubeflow-pytorchjob 3 0 localhost:23456 4",
        GENERIC,
    ),
    pod(
        "PyTorchJob 1.3, worker 1",
        "PYTHONUNBUFFERED=0 MASTER_ADDR=test-job-master-0 MASTER_PORT=23456 WORLD_SIZE=3 RANK=2",
        "kubeflow-pytorchjob 3 2 test-job-master-0:23456 4",
        GENERIC,
    ),
    // v1.5, pkg/controller.v1/pytorch/{envvar,master}.go, and the job of
    // pytorchjob_controller_test.go: one master, two workers, port 8080.
    pod(
        "PyTorchJob 1.5, master",
        "PYTHONUNBUFFERED=0 MASTER_ADDR=test-job-master-0 MASTER_PORT=8080 WORLD_SIZE=3 RANK=0",
        "kubeflow-pytorchjob 3 0 test-job-master-0:8080 4",
        GENERIC,
    ),
    // The elastic job of the same file: no master, so neither RANK nor WORLD_SIZE.
    pod(
        "PyTorchJob 1.5, elastic worker",
        "PYTHONUNBUFFERED=0 PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=elastic-worker-0:8080 \
         PET_NNODES=1:3 PET_MAX_RESTARTS=3",
        "kubeflow-pytorchjob 3 0 elastic-worker-0:8080 4 elastic [1,3]",
        ENDPOINT,
    ),
    // elastic_test.go: an endpoint and a number of processes by the policy.
    pod(
        "PyTorchJob 1.5, elastic with rdzvHost and nProcPerNode",
        "PYTHONUNBUFFERED=0 PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=localhost:1234 \
         PET_RDZV_ID=rdzv-id PET_RDZV_CONF=rdzv-conf-name=rdzv-conf-value PET_NNODES=1:3 \
         PET_NPROC_PER_NODE=1 PET_MAX_RESTARTS=3",
        "kubeflow-pytorchjob 3 0 localhost:1234 1 elastic [1,3]",
        ENDPOINT,
    ),
    // elastic.go, generateEnvNNodes: without minReplicas and maxReplicas only the workers count.
    pod(
        "PyTorchJob 1.6, elastic with a master, no bounds",
        "PYTHONUNBUFFERED=0 MASTER_ADDR=test-job-master-0 MASTER_PORT=8080 WORLD_SIZE=3 RANK=1 \
         PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=test-job-worker-0:8080 PET_NNODES=2",
        "kubeflow-pytorchjob 3 1 test-job-worker-0:8080 4",
        "WORLD_SIZE RANK PET_RDZV_ENDPOINT PET_RDZV_ENDPOINT",
    ),
    // elastic.go, standalone: an empty value, on which torchrun itself fails.
    pod(
        "PyTorchJob 1.6, elastic, standalone",
        "PYTHONUNBUFFERED=0 PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=test-job-worker-0:8080 \
         PET_NNODES=1 PET_STANDALONE=",
        "kubeflow-pytorchjob 1 0 127.0.0.1:23456 4",
        "PET_STANDALONE PET_STANDALONE - -",
    ),
    // torchrun takes each of its options from a variable, even from a single one.
    pod(
        "torchrun's number of processes alone",
        "PET_NPROC_PER_NODE=2",
        "torchrun-variables 1 0 127.0.0.1:29500 2",
        "- - - -",
    ),
    pod(
        "torchrun's address alone",
        "PET_NPROC_PER_NODE=2 PET_MASTER_ADDR=test-job-master-0",
        "65 membership.half-given",
        REFUSED,
    ),
    // v1.7 to v1.9, envvar.go: nprocPerNode. `auto` is injected even if the user set nothing.
    pod(
        "PyTorchJob 1.7, worker 0, auto",
        "PYTHONUNBUFFERED=1 MASTER_ADDR=test-job-master-0 MASTER_PORT=8080 WORLD_SIZE=3 RANK=1 \
         PET_MASTER_ADDR=test-job-master-0 PET_MASTER_PORT=8080 PET_NNODES=3 PET_NODE_RANK=1 \
         PET_NPROC_PER_NODE=auto",
        "kubeflow-pytorchjob 3 1 test-job-master-0:8080 4",
        PET,
    ),
    // A number makes WORLD_SIZE count processes, while RANK still counts pods.
    pod(
        "PyTorchJob 1.8, master, nprocPerNode 2",
        "PYTHONUNBUFFERED=1 MASTER_ADDR=test-job-master-0 MASTER_PORT=8080 WORLD_SIZE=6 RANK=0 \
         PET_MASTER_ADDR=test-job-master-0 PET_MASTER_PORT=8080 PET_NNODES=3 PET_NODE_RANK=0 \
         PET_NPROC_PER_NODE=2",
        "kubeflow-pytorchjob 3 0 test-job-master-0:8080 2",
        PET,
    ),
    pod(
        "PyTorchJob 1.9, worker 1, gpu",
        "PYTHONUNBUFFERED=1 MASTER_ADDR=test-job-master-0 MASTER_PORT=8080 WORLD_SIZE=3 RANK=2 \
         PET_MASTER_ADDR=test-job-master-0 PET_MASTER_PORT=8080 PET_NNODES=3 PET_NODE_RANK=2 \
         PET_NPROC_PER_NODE=gpu",
        "kubeflow-pytorchjob 3 2 test-job-master-0:8080 4",
        PET,
    ),
    with(
        pod(
            "PyTorchJob 1.9, worker 1, cpu",
            "PYTHONUNBUFFERED=1 MASTER_ADDR=test-job-master-0 MASTER_PORT=8080 WORLD_SIZE=3 \
             RANK=2 PET_MASTER_ADDR=test-job-master-0 PET_MASTER_PORT=8080 PET_NNODES=3 \
             PET_NODE_RANK=2 PET_NPROC_PER_NODE=cpu",
            "kubeflow-pytorchjob 3 2 test-job-master-0:8080 2",
            PET,
        ),
        &["--nproc-per-node", "2", "--device", "cpu"],
    ),
    // envvar.go sets the rank only if a master exists.
    pod(
        "PyTorchJob 1.9, workers without a master and without elasticPolicy",
        "PYTHONUNBUFFERED=1 MASTER_PORT=8080 PET_NNODES=2 PET_NPROC_PER_NODE=auto",
        "65 membership.half-given",
        REFUSED,
    ),
    pod(
        "PyTorchJob 1.9, more processes than GPUs",
        "PYTHONUNBUFFERED=1 MASTER_ADDR=test-job-master-0 MASTER_PORT=8080 WORLD_SIZE=24 RANK=0 \
         PET_MASTER_ADDR=test-job-master-0 PET_MASTER_PORT=8080 PET_NNODES=3 PET_NODE_RANK=0 \
         PET_NPROC_PER_NODE=8",
        "80 gpu.count",
        REFUSED,
    ),
    // kubeflow/trainer 76746c0, pkg/runtime/framework/plugins/torch/torch.go and
    // torch_nproc_per_node_test.go; the rank is the completion index by the downward API.
    pod(
        "TrainJob, node 0, numProcPerNode 3",
        "PET_NNODES=2 PET_NPROC_PER_NODE=3 PET_NODE_RANK=0 PET_MASTER_PORT=29500 \
         PET_MASTER_ADDR=test-job-node-0-0.test-job JOB_COMPLETION_INDEX=0",
        "kubeflow-trainer-v2 2 0 test-job-node-0-0.test-job:29500 3",
        PET,
    ),
    pod(
        "TrainJob, node 1, auto",
        "PET_NNODES=2 PET_NPROC_PER_NODE=auto PET_NODE_RANK=1 PET_MASTER_PORT=29500 \
         PET_MASTER_ADDR=test-job-node-0-0.test-job JOB_COMPLETION_INDEX=1",
        "kubeflow-trainer-v2 2 1 test-job-node-0-0.test-job:29500 4",
        PET,
    ),
    // torchtune gets its endpoint as an argument, so the container has no address.
    pod(
        "TrainJob, torchtune without an address",
        "PET_NNODES=2 PET_NPROC_PER_NODE=auto PET_NODE_RANK=1 JOB_COMPLETION_INDEX=1",
        "65 membership.master-addr",
        REFUSED,
    ),
    // kubeflow/mpi-operator v2beta1, pkg/controller/mpi_job_controller.go: the launcher's own
    // container has no process number; programs that mpirun starts have Open MPI's.
    pod(
        "MPIJob v2beta1, launcher",
        "K_MPI_JOB_ROLE=launcher OMPI_MCA_orte_keep_fqdn_hostnames=true \
         OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile OMPI_MCA_plm_rsh_args=-oConnectionAttempts=10",
        "mpi-operator 1 0 127.0.0.1:29500 4",
        "- - - -",
    ),
    pod(
        "MPIJob v2beta1, one process on each of two workers",
        "K_MPI_JOB_ROLE=worker OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 \
         OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 MASTER_ADDR=pi-worker-0.pi \
         MASTER_PORT=29500",
        "open-mpi 2 1 pi-worker-0.pi:29500 4",
        "OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK MASTER_ADDR MASTER_PORT",
    ),
    pod(
        "MPIJob v2beta1, slotsPerWorker 4",
        "K_MPI_JOB_ROLE=worker OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_RANK=5 \
         OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 MASTER_ADDR=pi-worker-0.pi",
        "65 membership.tasks",
        REFUSED,
    ),
    // volcano-sh/volcano 08812f6, pkg/controllers/job/plugins/distributed-framework/pytorch/
    // pytorch_test.go: a master and two workers.
    pod(
        "Volcano, pytorch plugin, master",
        "MASTER_ADDR=test-pytorch-master-0.test-pytorch MASTER_PORT=23456 WORLD_SIZE=3 RANK=0",
        "generic 3 0 test-pytorch-master-0.test-pytorch:23456 4",
        GENERIC,
    ),
    // With the env plugin, plugins/env/const.go: the index counts within the task.
    pod(
        "Volcano, pytorch and env plugins, worker 1",
        "MASTER_ADDR=test-pytorch-master-0.test-pytorch MASTER_PORT=23456 WORLD_SIZE=3 RANK=2 \
         VK_TASK_INDEX=1 VC_TASK_INDEX=1",
        "volcano 3 2 test-pytorch-master-0.test-pytorch:23456 4",
        GENERIC,
    ),
    // plugins/svc/svc.go, without the pytorch plugin.
    pod(
        "Volcano, env and svc plugins, worker 1 of 2",
        "VK_TASK_INDEX=1 VC_TASK_INDEX=1 VC_WORKER_NUM=2 \
         VC_WORKER_HOSTS=test-worker-0.test,test-worker-1.test",
        "volcano-workers 2 1 test-worker-0.test:23456 4",
        "VC_WORKER_NUM VC_TASK_INDEX VC_WORKER_HOSTS -",
    ),
    pod(
        "Volcano, env and svc plugins, two kinds of task",
        "VK_TASK_INDEX=0 VC_TASK_INDEX=0 VC_MASTER_NUM=1 VC_WORKER_NUM=2 \
         VC_MASTER_HOSTS=test-master-0.test VC_WORKER_HOSTS=test-worker-0.test,test-worker-1.test",
        "65 membership.half-given",
        REFUSED,
    ),
    // pytorch_test.go, "test pod without master": the plugin sets nothing.
    pod(
        "Volcano, pytorch plugin without a master",
        "VC_TASK_INDEX=0",
        "volcano-index 1 0 127.0.0.1:29500 4",
        "- - - -",
    ),
    // kubernetes-sigs/jobset, pkg/controllers/jobset_controller.go: labels and annotations for the
    // job index and the restart attempt; the only variable is that of the Job (KEP-2214).
    with(
        pod(
            "JobSet, pod 3 of one Job, count and address by flag",
            "JOB_COMPLETION_INDEX=3",
            "kubernetes-indexed-job 4 3 pytorch-workers-0-0.pytorch:3389 4",
            "--nnodes JOB_COMPLETION_INDEX --master-addr --master-port",
        ),
        &["--nnodes", "4", "--master-addr", "pytorch-workers-0-0.pytorch", "--master-port", "3389"],
    ),
    // The index begins at 0 in each Job of a replicated job, so beyond 4 nodes there is none.
    with(
        pod(
            "JobSet, index beyond the count",
            "JOB_COMPLETION_INDEX=4",
            "65 membership.rank",
            REFUSED,
        ),
        &["--nnodes", "4", "--master-addr", "pytorch-workers-0-0.pytorch"],
    ),
    with(
        pod("JobSet, no address", "JOB_COMPLETION_INDEX=1", "65 membership.master-addr", REFUSED),
        &["--nnodes", "4"],
    ),
    // kubernetes-sigs/lws 1b17603, pkg/utils/pod/pod_utils.go, AddLWSVariables.
    pod(
        "LeaderWorkerSet, leader of group 1",
        "LWS_LEADER_ADDRESS=test-1.test.default LWS_GROUP_SIZE=3 LWS_WORKER_INDEX=0",
        "leader-worker-set 3 0 test-1.test.default:29500 4",
        "LWS_GROUP_SIZE LWS_WORKER_INDEX LWS_LEADER_ADDRESS -",
    ),
    pod(
        "LeaderWorkerSet, worker 2 of group 1",
        "LWS_LEADER_ADDRESS=test-1.test.default LWS_GROUP_SIZE=3 LWS_WORKER_INDEX=2",
        "leader-worker-set 3 2 test-1.test.default:29500 4",
        "LWS_GROUP_SIZE LWS_WORKER_INDEX LWS_LEADER_ADDRESS -",
    ),
    pod(
        "LeaderWorkerSet of the first versions, without an index",
        "LWS_LEADER_ADDRESS=test-1.test.default LWS_GROUP_SIZE=3",
        "65 membership.half-given",
        REFUSED,
    ),
    // ray-project/kuberay feeaf72, ray-operator/controllers/ray/common/pod.go: no rank, and the
    // port is that of Ray's own control store.
    pod(
        "KubeRay, head",
        "RAY_CLUSTER_NAME=raycluster RAY_NODE_TYPE_NAME=headgroup RAY_PORT=6379 \
         RAY_ADDRESS=127.0.0.1:6379",
        "kuberay 1 0 127.0.0.1:29500 4",
        "- - - -",
    ),
    with(
        pod(
            "KubeRay, worker, numbered by hand",
            "RAY_CLUSTER_NAME=raycluster RAY_NODE_TYPE_NAME=workers RAY_PORT=6379 \
             RAY_IP=raycluster-head-svc FQ_RAY_IP=raycluster-head-svc.default.svc.cluster.local \
             RAY_ADDRESS=raycluster-head-svc.default.svc.cluster.local:6379",
            "flags 2 1 raycluster-head-svc.default.svc.cluster.local:29500 4",
            "--nnodes --node-rank FQ_RAY_IP -",
        ),
        &["--nnodes", "2", "--node-rank", "1"],
    ),
];

/// Names in /etc/hosts, so that no name server is asked.
const HOSTS: &str = "127.0.0.1 localhost\n10.0.0.1 test-job-master-0 elastic-worker-0 \
    test-job-worker-0 test-job-node-0-0.test-job pi-worker-0.pi test-pytorch-master-0.test-pytorch \
    test-worker-0.test pytorch-workers-0-0.pytorch test-1.test.default \
    raycluster-head-svc.default.svc.cluster.local\n";

#[test]
fn every_operator_is_recognised_by_its_variables() {
    let wrong: Vec<String> = PODS
        .iter()
        .filter_map(|pod| {
            let planned = pod.plan();
            let have = (read(&planned), deciders(&planned));
            (have.0 != pod.expected || have.1 != pod.by).then(|| {
                format!(
                    "{}\n want {} by {}\n have {} by {}\n {}",
                    pod.of,
                    pod.expected,
                    pod.by,
                    have.0,
                    have.1,
                    planned.at("/refused/text")
                )
            })
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every variable that an operator sets is reported as used or unused, each with a reason, even if
/// the job is refused.
#[test]
fn every_variable_of_an_operator_is_accounted_for() {
    // Variables that say nothing about the nodes of a job.
    let about_others = ["PYTHONUNBUFFERED", "K_MPI_JOB_ROLE"];
    for pod in PODS {
        let planned = pod.plan();
        let listed = planned.json["evidence"].as_array().cloned().unwrap_or_default();
        for (name, _) in pod.environment.split_whitespace().filter_map(|pair| pair.split_once('='))
        {
            let is_known = |prefix: &&str| name.starts_with(*prefix);
            let prefixes = ["PET_", "WORLD_", "RANK", "MASTER_", "OMPI_COMM", "VC_TASK", "LWS_"];
            if about_others.contains(&name) || !prefixes.iter().any(is_known) {
                continue;
            }
            let mut own = listed.iter().filter(|one| one["variable"] == name).peekable();
            assert!(own.peek().is_some(), "{}: {name} in {listed:#?}", pod.of);
            assert!(own.all(|one| one["because"].as_str().is_some_and(|why| !why.is_empty())));
        }
        let by = deciders(&planned);
        for name in by.split(' ').filter(|name| name.contains('_')) {
            let used = |one: &serde_json::Value| one["variable"] == name && one["used"] == true;
            assert!(listed.iter().any(used), "{}: {name} is used, in {listed:#?}", pod.of);
        }
    }
}

/// The evidence of one variable: whether it is used, and why.
fn evidence_of(planned: &Planned, variable: &str) -> Option<(bool, String)> {
    let listed = planned.json["evidence"].as_array()?;
    let one = listed.iter().find(|one| one["variable"] == variable)?;
    Some((one["used"].as_bool()?, one["because"].as_str()?.to_owned()))
}

#[test]
fn elastic_policy_reaches_torchrun_unchanged() {
    let node = Node::with_gpus(4).platform(
        "PET_NNODES=1:2 PET_NPROC_PER_NODE=1 PET_MAX_RESTARTS=3 PET_RDZV_BACKEND=c10d \
         PET_RDZV_ENDPOINT=job-worker-0:23456 PET_RDZV_ID=job PET_ROLE=trainer PET_TEE=3 \
         PET_RDZV_CONF=last_call_timeout=5,read_timeout=9 PET_VIRTUAL_LOCAL_RANK=1",
    );
    let planned = node.json(&["--", "train.py"]);
    let line = planned.words("/argv").join(" ");
    for part in [
        "--max-restarts 3",
        "--rdzv-conf join_timeout=1800,last_call_timeout=5,read_timeout=9",
        "--rdzv-id job",
        "--role trainer",
        "--virtual-local-rank",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    for variable in [
        "PET_MAX_RESTARTS",
        "PET_RDZV_CONF",
        "PET_RDZV_BACKEND",
        "PET_RDZV_ID",
        "PET_ROLE",
        "PET_VIRTUAL_LOCAL_RANK",
    ] {
        assert!(evidence_of(&planned, variable).is_some_and(|(used, _)| used), "{variable}");
    }
    assert!(evidence_of(&planned, "PET_TEE").is_some_and(|(used, _)| !used));
    assert!(!planned.warning_ids().iter().any(|id| id == "restarts.elastic"));
}

#[test]
fn every_torchrun_variable_has_use_or_reason() {
    for (option, is_switch) in settings::torchrun_options::torchrun_options() {
        let variable = format!("PET_{}", option.replace('-', "_").to_uppercase());
        let value = if is_switch { "1" } else { "7" };
        let node = Node::with_gpus(4).platform("PET_NNODES=1 PET_NODE_RANK=0");
        let node = node.env(&variable, value);
        let planned = node.json(&["--engine", "direct", "--", "train.py"]);
        let (_, because) = evidence_of(&planned, &variable).expect(&variable);
        // If the launch is refused for the variable, nothing else is decided.
        let is_idle = because == "nothing was decided by it" && planned.code == 0;
        assert!(!because.is_empty() && !is_idle, "{variable}: {because}");
        let is_warned = planned.warning_ids().iter().any(|id| id == "env.torchrun");
        let is_lost = ["role", "event-log-handler", "virtual-local-rank"].contains(&option);
        assert_eq!(is_warned, is_lost, "{variable}");
    }
    let node = Node::with_gpus(4).env("PET_SHUTDOWN_TIMEOUT", "600").env("PET_FOO", "1");
    let planned = node.json(&["--", "train.py"]);
    assert_eq!(planned.warning_ids().iter().filter(|id| *id == "env.torchrun").count(), 1);
    assert!(evidence_of(&planned, "PET_FOO").is_some_and(|(used, _)| !used));
}

fn read(planned: &Planned) -> String {
    if planned.code != 0 {
        return planned.refusal();
    }
    let of = |name: &str| planned.at(&format!("/membership/{name}"));
    let (addr, port, elastic) = (of("master_addr"), of("master_port"), of("elastic"));
    let mut line = format!(
        "{} {} {} {addr}:{port} {}",
        of("platform"),
        of("nnodes"),
        of("node_rank"),
        planned.at("/nproc_per_node")
    );
    if elastic != "null" {
        line = format!("{line} elastic {elastic}");
    }
    line
}

/// The name of the variable or the flag behind each value.
fn deciders(planned: &Planned) -> String {
    if planned.code != 0 {
        return String::new();
    }
    let decisions = planned.json["decisions"].as_array().cloned().unwrap_or_default();
    let of = |what: &str| {
        let one = decisions.iter().find(|one| one["what"] == what);
        let source = one.and_then(|one| one["source"].as_str()).unwrap_or("-");
        let name = source.split('=').next().unwrap_or_default();
        if name == "default" { "-".to_owned() } else { name.to_owned() }
    };
    ["nnodes", "node_rank", "master_addr", "master_port"].map(of).join(" ")
}
