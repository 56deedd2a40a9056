//! The zIMDB job on Kubeflow: a PyTorchJob whose command was torchrun, as one pod of four ranks and
//! as four pods of one rank. Each pod is a container with the operator's variables and names, the
//! job's own variables, and gloo in place of GPUs.

use std::path::Path;
use std::time::Duration;

use harness::docker::{self, Owned, Setup};
use harness::{Ended, Running};

/// Up to eight starts of torch share the CPUs of this machine.
const LONG: Duration = Duration::from_secs(240);

/// Variables that the job's manifest sets in both forms. The devices are missing, as on a node whose
/// driver mount failed; `--device cpu` says that this is intended.
const OF_MANIFEST: &[(&str, &str)] = &[
    ("NCCL_DEBUG", "INFO"),
    ("NCCL_SOCKET_IFNAME", "eth0"),
    ("CUDA_VISIBLE_DEVICES", "0,1,2,3"),
    ("NCCL_IB_DISABLE", "1"),
    ("NCCL_P2P_DISABLE", "0"),
];

/// A pod of a PyTorchJob, by training-operator 1.9 (pkg/controller.v1/pytorch/envvar.go): the master
/// is number 0, worker i is number i + 1.
fn pod(image: &Owned, network: &Owned, number: u32, pods: u32) -> Setup {
    let name = match number {
        0 => "zimdb-master-0".to_owned(),
        _ => format!("zimdb-worker-{}", number - 1),
    };
    let (number, pods) = (number.to_string(), pods.to_string());
    let of_operator = [
        ("PYTHONUNBUFFERED", "1"),
        ("MASTER_ADDR", "zimdb-master-0"),
        ("MASTER_PORT", "23456"),
        ("WORLD_SIZE", &pods),
        ("RANK", &number),
        ("PET_MASTER_ADDR", "zimdb-master-0"),
        ("PET_MASTER_PORT", "23456"),
        ("PET_NNODES", &pods),
        ("PET_NODE_RANK", &number),
        ("PET_NPROC_PER_NODE", "auto"),
    ];
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/demo");
    let network = ["--network", &network.name, "--network-alias", &name, "--hostname", &name];
    let setup = Setup::of(image).python().mount(&demo, "/workspace");
    let setup = setup.options(&network).options(&["--shm-size", "1g", "--workdir", "/workspace"]);
    let all = of_operator.iter().chain(OF_MANIFEST);
    all.fold(setup, |setup, (name, value)| setup.env(name, value))
}

fn words(args: &[&str]) -> Vec<String> {
    let python = harness::python().display().to_string();
    let more = ["--device".to_owned(), "cpu".to_owned(), "--python".to_owned(), python];
    args.iter().map(|&word| word.to_owned()).chain(more).collect()
}

fn start(setup: Setup, args: &[String], then: &[&str]) -> Running {
    let args: Vec<&str> = args.iter().map(String::as_str).chain(then.iter().copied()).collect();
    setup.start(&args)
}

/// The profile replaces `torchrun --standalone --nproc_per_node=4`.
#[test]
fn one_pod_with_four_gpus_runs_four_ranks() {
    if docker::missing().is_some() {
        return;
    }
    let (image, network) = (docker::host_like(), docker::network());
    let args = words(&["run", "--profile", "zimdb"]);
    let ended = start(pod(&image, &network, 0, 1), &args, &[]).ends_within(LONG).expect_code(0);
    assert!(ended.out.contains("[r0] step 2: all-reduce gives 14"), "{}\n{}", ended.out, ended.err);
    for rank in 0..4 {
        let line = format!("[r{rank}] rank {rank} of 4 on node 0");
        assert!(ended.out.contains(&line), "{line}\n{}", ended.out);
    }
}

/// Four pods of one rank each need no number in the command, because the operator sets them.
#[test]
fn four_pods_with_one_gpu_are_one_job() {
    if docker::missing().is_some() {
        return;
    }
    let (image, network) = (docker::host_like(), docker::network());
    let args = words(&["run"]);
    let pods: Vec<Running> = (0..4)
        .map(|number| start(pod(&image, &network, number, 4), &args, &["--", "train.py"]))
        .collect();
    let ended: Vec<Ended> =
        pods.into_iter().map(|pod| pod.ends_within(LONG).expect_code(0)).collect();
    for (rank, pod) in ended.iter().enumerate() {
        let line = format!("[r{rank}] rank {rank} of 4 on node {rank}");
        assert!(pod.out.contains(&line), "{line}\n{}\n{}", pod.out, pod.err);
    }
    assert!(ended[0].out.contains("[r0] step 2: all-reduce gives 14"), "{}", ended[0].out);
}

/// The manifest of the second form has `torchrun --nproc_per_node=4 --nnodes=1` in each of the four
/// pods: four jobs of four ranks on one GPU each. The profile of the first form is refused there, and
/// the unchanged command gets a warning.
#[test]
fn one_pods_command_in_four_pods_is_named() {
    if docker::missing().is_some() {
        return;
    }
    let (image, network) = (docker::host_like(), docker::network());
    let args = words(&["run", "--profile", "zimdb"]);
    let refused = start(pod(&image, &network, 2, 4), &args, &[]).wait();
    refused
        .expect_code(65)
        .expect_id("membership.contradiction")
        .expect_words(&["the job has 1 node, but the platform says 4 (PET_NNODES=4)"]);

    let args = words(&["plan", "--nproc-per-node", "4", "--nnodes", "1"]);
    let planned = start(pod(&image, &network, 2, 4), &args, &["--", "train.py"]).wait();
    let planned = planned.expect_code(0);
    for line in ["membership.alone", "--nnodes is 1, but the platform says 4 nodes (PET_NNODES=4)"]
    {
        assert!(planned.out.contains(line), "{line}\n{}", planned.out);
    }
    // The control: a pod that is alone gets no warning.
    let alone = start(pod(&image, &network, 0, 1), &args, &["--", "train.py"]).wait();
    assert!(!alone.expect_code(0).out.contains("membership.alone"));
}
