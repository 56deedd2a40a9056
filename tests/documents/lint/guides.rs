//! Manifests of guides, and first versions of real jobs.

use harness::skipped;
use text::lang::Lang;

use super::{check, ids};

/// The job as it was before its first start: one GPU per pod, five processes.
#[test]
fn the_first_pytorchjob_shows_its_errors_at_once() {
    let text = r#"apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: wan22-t2v-distributed, namespace: hu}
spec:
  pytorchReplicaSpecs:
    Master: &replica
      replicas: 1
      template:
        spec:
          containers:
          - name: pytorch
            image: wan2-2:1014
            command: ["torchrun", "--nproc_per_node=5", "--nnodes=2", "--node_rank=$(RANK)",
              "--master_addr=$(MASTER_ADDR)", "--master_port=$(MASTER_PORT)",
              "generate.py", "--task", "t2v-A14B", "--ulysses_size", "14"]
            resources:
              limits:
                nvidia.com/gpu: "1"
                nvidia.com/gpumem: 64k
                memory: 256Gi
    Worker: *replica
"#;
    let report = check(text, Some("200Gi"));
    assert_eq!(
        ids(&report),
        [
            ("shm.missing", 11),
            ("cpu.missing", 11),
            ("gpu.nproc", 13),
            ("layout.world", 15),
            ("layout.heads", 15),
            ("gpu.mem", 19),
            ("memory.node", 20),
        ],
        "{}",
        lint::plain(&report, Lang::En)
    );
}

/// A manifest of several pods in which each pod has `--nnodes=1`.
#[test]
fn four_isolated_pods_are_named() {
    let text = r#"apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: zimdb-training}
spec:
  pytorchReplicaSpecs:
    Master: {replicas: 1, template: &t {spec: {containers: [{
      name: pytorch, image: zimdb,
      command: [torchrun, --nproc_per_node=4, --nnodes=1, train.py],
      env: [{name: CUDA_VISIBLE_DEVICES, value: "0,1,2,3"}, {name: NCCL_P2P_DISABLE, value: "0"}],
      resources: {limits: {nvidia.com/gpu: 1, memory: 64Gi, cpu: 16}},
      volumeMounts: [{name: s, mountPath: /dev/shm}]}],
      volumes: [{name: s, emptyDir: {medium: Memory}}]}}}
    Worker: {replicas: 3, template: *t}
"#;
    let report = check(text, None);
    assert_eq!(
        ids(&report),
        [("gpu.nproc", 8), ("nodes.single", 8), ("gpu.visible", 9)],
        "{}",
        lint::plain(&report, Lang::En)
    );
}

/// The plain Job of two pods that start a script.
#[test]
fn a_plain_job_of_two_pods_is_named() {
    let text = r#"apiVersion: batch/v1
kind: Job
metadata:
  name: taehv-training-16gpu
spec:
  parallelism: 2  # two nodes
  template:
    spec:
      containers:
      - name: training
        image: your-training-image
        command: ["/bin/bash"]
        args: ["/workspace/my_taehv_training/start_multinode_platform.sh"]
        resources:
          limits:
            nvidia.com/gpu: 8
"#;
    let report = check(text, None);
    assert_eq!(
        ids(&report),
        [
            ("job.index", 6),
            ("object.rejected", 9),
            ("shm.missing", 10),
            ("memory.missing", 10),
            ("cpu.missing", 10),
            ("command.unread", 13)
        ],
        "{}",
        lint::plain(&report, Lang::En)
    );
}

/// Every manifest of the guides of these jobs, unchanged.
#[test]
fn manifests_of_the_guides_are_read_unchanged() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/seeds");
    let Ok(files) = std::fs::read_dir(&folder) else {
        skipped(format_args!("{} is missing", folder.display()));
        return;
    };
    let mut found = std::collections::BTreeMap::new();
    for file in files {
        let guide = std::fs::read_to_string(file.expect("an entry").path()).expect("text");
        let blocks = guide.split("```yaml\n").skip(1).filter_map(|rest| rest.split("\n```").next());
        for block in blocks.filter(|block| block.contains("kind:")) {
            let report = check(&format!("{block}\n"), None);
            assert!(report.refused.is_empty(), "{}\n{block}", lint::plain(&report, Lang::En));
            let name = block.lines().find_map(|line| line.trim().strip_prefix("name: "));
            let ids: Vec<&str> = report.findings.iter().map(|found| found.id.as_str()).collect();
            found.insert(name.unwrap_or_default().to_owned(), ids.join(" "));
        }
    }
    let of = |name: &str| found.get(name).map(String::as_str);
    let room = "shm.missing memory.missing cpu.missing command.unread";
    assert_eq!(
        of("taehv-training-16gpu"),
        Some(format!("job.index object.rejected {room}").as_str()),
        "{found:?}"
    );
    // The image of this manifest is the placeholder your-registry/….
    let placeholder = room.replace("command.unread", "image.name command.unread");
    assert_eq!(of("taehv-16gpu-training"), Some(placeholder.as_str()), "{found:?}");
    for other in ["zimdb-data-pvc", "zimdb-model-pvc", "tensorboard", "training-config"] {
        assert_eq!(of(other), Some(""), "{found:?}");
    }
}
