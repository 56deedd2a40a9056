//! `ranklaunch lint`: each mistake is found at its line, its repaired version is
//! silent, and no input makes it panic or hang.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use ranklaunch::lang::Lang;
use ranklaunch::lint::{self, Importance, Knowledge, Limits, Manifest, RULES, Report};

use harness::skipped;

fn check(text: &str, node_memory: Option<&str>) -> Report {
    let manifest = Manifest { name: "m.yaml".into(), bytes: text.as_bytes().to_vec() };
    let limits = Limits { node_memory: node_memory.and_then(lint::size) };
    lint::lint(&[manifest], limits, knowledge())
}

fn knowledge() -> Knowledge {
    Knowledge { misuse: ranklaunch::plan::nccl::misuse, profiles: ranklaunch::settings::EMBEDDED }
}

/// Two pods of 4 GPUs, torchrun, everything in its place.
const PYTORCHJOB: &str = r#"apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: wan22
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template: &pod
        spec:
          terminationGracePeriodSeconds: 60
          containers:
            - name: pytorch
              image: wan2-2
              command: [bash, -c]
              args:
                - |
                  export PYTHONUNBUFFERED=1  # nothing to find
                  cd /workspace && torchrun \
                    --nproc_per_node=4 \
                    --nnodes=$WORLD_SIZE --node_rank=$RANK \
                    --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT \
                    generate.py --task t2v-A14B --size 832*480 \
                    --ulysses_size 8 --save_file "out-$(date '+%Y%m%d').mp4"
              env:
                - {name: OMP_NUM_THREADS, value: "8"}
              resources:
                requests: {cpu: "8"}
                limits:
                  nvidia.com/gpu: "4"
                  memory: 128Gi
              volumeMounts:
                - {name: dshm, mountPath: /dev/shm}
          volumes:
            - name: dshm
              emptyDir: {medium: Memory, sizeLimit: 2Gi}
    Worker:
      replicas: 1
      template: *pod
"#;

/// Two pods of 8 GPUs of a Job, and the Service that names them.
const INDEXED_JOB: &str = r#"apiVersion: v1
kind: Service
metadata:
  name: taehv
spec:
  clusterIP: None
  selector: {job-name: taehv}
---
apiVersion: batch/v1
kind: Job
metadata:
  name: taehv
spec:
  completionMode: Indexed
  parallelism: 2
  completions: 2
  template:
    spec:
      restartPolicy: Never
      subdomain: taehv
      containers:
        - name: training
          image: taehv
          command:
            - accelerate
            - launch
            - --num_processes=16
            - --num_machines=2
            - --machine_rank=$(JOB_COMPLETION_INDEX)
            - --main_process_ip=taehv-0.taehv
            - --main_process_port=29500
            - train.py
          resources:
            limits:
              nvidia.com/gpu: 8
              memory: 512Gi
              cpu: 32
          volumeMounts:
            - name: shm
              mountPath: /dev/shm/
      volumes:
        - name: shm
          emptyDir:
            medium: Memory
"#;

const RANKLAUNCH: &str = include_str!("../../../packaging/kubernetes/wan22-pytorchjob.yaml");
const TRAINJOB: &str = include_str!("../../../packaging/kubernetes/wan22-trainjob.yaml");
const RAYJOB: &str = include_str!("../../../packaging/kubernetes/wan22-rayjob.yaml");

/// One mistake: the rule, the sound manifest, what is replaced in it by what, and the line's
/// beginning of the finding.
struct Case {
    id: &'static str,
    sound: &'static str,
    from: &'static str,
    to: &'static str,
    line: &'static str,
    importance: Importance,
}

const fn case(
    id: &'static str,
    sound: &'static str,
    from: &'static str,
    to: &'static str,
    line: &'static str,
) -> Case {
    Case { id, sound, from, to, line, importance: Importance::Error }
}

const fn warns(case: Case) -> Case {
    Case { importance: Importance::Warning, ..case }
}

const fn tells(case: Case) -> Case {
    Case { importance: Importance::Info, ..case }
}

const CASES: &[Case] = &[
    case("gpu.nproc", PYTORCHJOB, "per_node=4", "per_node=5", "--nproc_per_node=5"),
    case("gpu.nproc", PYTORCHJOB, "gpu: \"4\"", "gpu: \"1\"", "--nproc_per_node=4"),
    warns(case("gpu.nproc", PYTORCHJOB, "per_node=4", "per_node=2", "--nproc_per_node=2")),
    case(
        "gpu.nproc",
        PYTORCHJOB,
        "                    --nproc_per_node=4 \\\n",
        "                    --nproc_per_node $N \\\n",
        "",
    ),
    case(
        "gpu.requests",
        PYTORCHJOB,
        "requests: {cpu: \"8\"}",
        "requests: {cpu: \"8\", nvidia.com/gpu: \"2\"}",
        "requests: {",
    ),
    case(
        "gpu.mem",
        PYTORCHJOB,
        "memory: 128Gi",
        "memory: 128Gi\n                  nvidia.com/gpumem: 64k",
        "nvidia.com/gpumem",
    ),
    case(
        "gpu.visible",
        PYTORCHJOB,
        "OMP_NUM_THREADS, value: \"8\"",
        "CUDA_VISIBLE_DEVICES, value: \"0,1,2,3,4,5,6,7\"",
        "- {name: CUDA_VISIBLE",
    ),
    case(
        "gpu.visible",
        PYTORCHJOB,
        "export PYTHONUNBUFFERED=1",
        "export CUDA_VISIBLE_DEVICES=4,5",
        "export CUDA_VISIBLE",
    ),
    case("nodes.single", PYTORCHJOB, "--nnodes=$WORLD_SIZE", "--nnodes=1", "--nnodes=1"),
    case("nodes.single", PYTORCHJOB, "--nnodes=$WORLD_SIZE", "--standalone", "--standalone"),
    case("nodes.count", PYTORCHJOB, "--nnodes=$WORLD_SIZE", "--nnodes=4", "--nnodes=4"),
    case("nodes.count", INDEXED_JOB, "num_machines=2", "num_machines=4", "- --num_machines=4"),
    case("nodes.processes", INDEXED_JOB, "processes=16", "processes=32", "- --num_processes=32"),
    warns(case(
        "nodes.processes",
        INDEXED_JOB,
        "processes=16",
        "processes=8",
        "- --num_processes=8",
    )),
    case(
        "nodes.world-size",
        PYTORCHJOB,
        "OMP_NUM_THREADS, value: \"8\"",
        "WORLD_SIZE, value: \"16\"",
        "- {name: WORLD_SIZE",
    ),
    case("nodes.rank", INDEXED_JOB, "$(JOB_COMPLETION_INDEX)", "0", "- --machine_rank=0"),
    case(
        "nodes.rank",
        RANKLAUNCH,
        "[--profile, wan22]",
        "[--profile, wan22, --node-rank, \"0\"]",
        "",
    ),
    case("nodes.single", RANKLAUNCH, "[--profile, wan22]", "[--profile, zimdb]", "args:"),
    case(
        "gpu.nproc",
        RANKLAUNCH,
        "[--profile, wan22]",
        "[--profile, wan22, --nproc-per-node, \"8\"]",
        "args:",
    ),
    case(
        "profile.select",
        RANKLAUNCH,
        "[--profile, wan22]",
        "[--profile, taehv, --nproc-per-node, \"3\"]",
        "nvidia.com/gpu:",
    ),
    case(
        "profile.select",
        RANKLAUNCH,
        "[--profile, wan22]",
        "[--profile, taehv, --nproc-per-node, \"3\", --, t.py, --config, a]",
        "nvidia.com/gpu:",
    ),
    case("layout.world", PYTORCHJOB, "--ulysses_size 8", "--ulysses_size 10", "--ulysses_size 10"),
    case("layout.heads", PYTORCHJOB, "--ulysses_size 8", "--ulysses_size 14", "--ulysses_size 14"),
    case(
        "layout.alone",
        PYTORCHJOB,
        "                    --nproc_per_node=4 \\\n                    --nnodes=$WORLD_SIZE",
        "                    --nproc_per_node=1 \\\n                    --nnodes=1",
        "",
    ),
    case(
        "layout.alone",
        PYTORCHJOB,
        "--nproc_per_node=4 \\\n                    --nnodes=$WORLD_SIZE --node_rank=$RANK \\\n                    --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT \\\n                    generate.py",
        "--nproc_per_node=1 --nnodes=1 \\\n                    generate.py --dit_fsdp",
        "generate.py --dit_fsdp",
    ),
    case(
        "layout.heads",
        RANKLAUNCH,
        "    Worker:\n      replicas: 1",
        "    Worker:\n      replicas: 2",
        "replicas: 2",
    ),
    case("job.index", INDEXED_JOB, "  completionMode: Indexed\n", "", "parallelism: 2"),
    case("job.completions", INDEXED_JOB, "completions: 2", "completions: 4", "completions: 4"),
    warns(case(
        "job.subdomain",
        INDEXED_JOB,
        "      subdomain: taehv\n",
        "",
        "restartPolicy: Never",
    )),
    case(
        "pytorchjob.master",
        PYTORCHJOB,
        "    Master:\n      replicas: 1",
        "    Master:\n      replicas: 2",
        "replicas: 2",
    ),
    case(
        "pytorchjob.container",
        PYTORCHJOB,
        "- name: pytorch",
        "- name: training",
        "- name: training",
    ),
    warns(case(
        "pytorchjob.elastic",
        PYTORCHJOB,
        "spec:\n  pytorch",
        "spec:\n  elasticPolicy:\n    minReplicas: 1\n  pytorch",
        "minReplicas",
    )),
    case(
        "pytorchjob.elastic",
        PYTORCHJOB,
        "spec:\n  pytorch",
        "spec:\n  elasticPolicy:\n    standalone: true\n  pytorch",
        "standalone: true",
    ),
    case(
        "trainjob.reserved",
        TRAINJOB,
        "    numNodes: 2\n    # Not",
        "    numNodes: 2\n    env: [{name: PET_NNODES, value: \"2\"}]\n    # Not",
        "env: [{",
    ),
    case(
        "pytorchjob.rank",
        PYTORCHJOB,
        "    Worker:\n      replicas: 1\n      template: *pod\n",
        "",
        "",
    ),
    case(
        "pytorchjob.rank",
        PYTORCHJOB,
        "    Master:\n      replicas: 1\n      template: &pod",
        "    Chief: {replicas: 1, template: {spec: {containers: []}}}\n    Other:\n      replicas: 2\n      template: &pod",
        "--nnodes=$WORLD_SIZE",
    ),
    case(
        "env.undefined",
        INDEXED_JOB,
        "$(JOB_COMPLETION_INDEX)",
        "$(HOSTNAME)",
        "- --machine_rank=$(HOSTNAME)",
    ),
    case("env.undefined", INDEXED_JOB, "$(JOB_COMPLETION_INDEX)", "$$(HOSTNAME)", ""),
    case(
        "env.undefined",
        PYTORCHJOB,
        "--save_file",
        "--name $(POD_NAME) --save_file",
        "--ulysses_size 8 --name",
    ),
    case("env.undefined", PYTORCHJOB, "--save_file", "--name $(hostname) --save_file", ""),
    case("ray.nodes", RAYJOB, "--nnodes 1", "--nnodes 2", "entrypoint:"),
    case("launcher.none", PYTORCHJOB, "torchrun \\", "python \\", "cd /workspace"),
    case("shm.missing", PYTORCHJOB, "/dev/shm", "/dev/shmem", "- name: pytorch"),
    case("shm.medium", PYTORCHJOB, "{medium: Memory, ", "{", "emptyDir:"),
    case("shm.medium", INDEXED_JOB, "medium: Memory", "medium: \"\"", "medium:"),
    case(
        "shm.medium",
        INDEXED_JOB,
        "- name: shm\n          emptyDir",
        "- name: other\n          emptyDir",
        "- name: shm",
    ),
    case("shm.size", PYTORCHJOB, "sizeLimit: 2Gi", "sizeLimit: 64Mi", "emptyDir:"),
    case("shm.size", PYTORCHJOB, "sizeLimit: 2Gi", "sizeLimit: 256Gi", "emptyDir:"),
    warns(case(
        "memory.missing",
        PYTORCHJOB,
        "                  memory: 128Gi\n",
        "",
        "- name: pytorch",
    )),
    case("memory.node", PYTORCHJOB, "memory: 128Gi", "memory: 256Gi", "memory: 256Gi"),
    warns(case("cpu.missing", INDEXED_JOB, "              cpu: 32\n", "", "- name: training")),
    case(
        "grace.short",
        PYTORCHJOB,
        "Seconds: 60",
        "Seconds: 10",
        "terminationGracePeriodSeconds: 10",
    ),
    case(
        "grace.short",
        PYTORCHJOB,
        "image: wan2-2",
        "lifecycle: {preStop: {exec: {command: [sh, -c, sleep 45]}}}",
        "terminationGracePeriodSeconds: 60",
    ),
    case(
        "grace.short",
        RANKLAUNCH,
        "value: \"120\"",
        "value: \"600\"",
        "terminationGracePeriodSeconds",
    ),
    case(
        "network.port",
        PYTORCHJOB,
        "          terminationGracePeriodSeconds: 60\n",
        "          terminationGracePeriodSeconds: 60\n          dnsPolicy: ClusterFirstWithHostNet\n          hostNetwork: true\n",
        "",
    ),
    warns(case(
        "network.port",
        RANKLAUNCH,
        "          terminationGracePeriodSeconds: 120\n",
        "          terminationGracePeriodSeconds: 120\n          dnsPolicy: ClusterFirstWithHostNet\n          hostNetwork: true\n",
        "hostNetwork: true",
    )),
    warns(case(
        "network.dns",
        PYTORCHJOB,
        "          terminationGracePeriodSeconds: 60\n",
        "          terminationGracePeriodSeconds: 60\n          hostNetwork: true\n",
        "hostNetwork: true",
    )),
    warns(case(
        "env.nccl",
        PYTORCHJOB,
        "OMP_NUM_THREADS, value: \"8\"",
        "NCCL_TIMEOUT, value: \"10800\"",
        "- {name: NCCL_TIMEOUT",
    )),
    warns(case(
        "env.nccl",
        PYTORCHJOB,
        "PYTHONUNBUFFERED=1",
        "NCCL_SOCKET_IFNAME=eth0,eno1,ens,ib",
        "export NCCL_SOCKET_IFNAME",
    )),
    case(
        "master.self",
        PYTORCHJOB,
        "PYTHONUNBUFFERED=1",
        "MASTER_ADDR=$(hostname -I | awk '{print $1}')",
        "export MASTER_ADDR",
    ),
    case(
        "service.links",
        INDEXED_JOB,
        "name: taehv\nspec:\n  clusterIP: None",
        "name: master\nspec:\n  ports: [{port: 29500}]",
        "name: master",
    ),
    warns(case(
        "signals.shell",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [bash, -c, \"cd /workspace; ranklaunch --profile wan22; echo over\"]",
        "command:",
    )),
    warns(case(
        "signals.shell",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [bash, -c, \"ranklaunch --profile wan22 2>&1 | tee /log\"]",
        "command:",
    )),
    case(
        "signals.shell",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [bash, -c, \"cd /workspace; exec ranklaunch --profile wan22; echo over\"]",
        "",
    ),
    case(
        "signals.shell",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [bash, -c, \"cd /workspace && ranklaunch --profile wan22\"]",
        "",
    ),
    case(
        "signals.shell",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [bash, -c, \"trap 'kill $!' TERM; ranklaunch --profile wan22 & wait\"]",
        "",
    ),
    case(
        "command.cut",
        PYTORCHJOB,
        "                    --nproc_per_node=4 \\\n",
        "                    # Four GPUs in each pod\n                    --nproc_per_node=4 \\\n",
        "# Four GPUs",
    ),
    case(
        "command.cut",
        PYTORCHJOB,
        "cd /workspace && torchrun",
        "# A comment\n                  torchrun",
        "",
    ),
    case("command.refused", RANKLAUNCH, "[--profile, wan22]", "[--profil, wan22]", "args:"),
    tells(case("command.unread", PYTORCHJOB, "per_node=4", "per_node=$N", "--nproc_per_node=$N")),
    tells(case("command.unread", PYTORCHJOB, "[bash, -c]", "[bash, /start.sh]", "command:")),
    tells(case(
        "command.unread",
        PYTORCHJOB,
        "cd /workspace && torchrun",
        "[ -n \"$A\" ] || torchrun",
        "[ -n",
    )),
];

#[test]
fn sound_manifests_have_no_findings() {
    for sound in [PYTORCHJOB, INDEXED_JOB, RANKLAUNCH, TRAINJOB, RAYJOB] {
        let report = check(sound, Some("1Ti"));
        assert!(
            report.findings.is_empty() && report.refused.is_empty(),
            "{}",
            lint::text(&report, Lang::En)
        );
        assert_eq!(report.exit_code(), 0);
    }
}

/// Whatever way the launcher is written, its sizes are read.
#[test]
fn a_launcher_is_known_in_every_form_of_its_command_line() {
    for form in [
        "torchrun \\",
        "/opt/conda/bin/torchrun \\",
        "python -u -m torch.distributed.run \\",
        "python -um torch.distributed.run \\",
        "python3.11 -X dev -mtorch.distributed.run \\",
        "python /opt/conda/bin/torchrun \\",
    ] {
        let sound = PYTORCHJOB.replace("torchrun \\", form);
        assert_eq!(check(&sound, Some("1Ti")).findings, [], "{form}");
        let broken = sound.replace("per_node=4", "per_node=5");
        assert_ne!(broken, sound);
        let report = check(&broken, Some("1Ti"));
        assert!(report.findings.iter().any(|one| one.id.as_str() == "gpu.nproc"), "{form}");
    }
}

#[test]
fn every_mistake_is_found_at_its_line() {
    for Case { id, sound, from, to, line, importance } in CASES {
        let broken = sound.replace(from, to);
        assert_ne!(&broken, sound, "{id}: {from} is not in the manifest");
        let report = check(&broken, Some("200Gi"));
        let said = lint::text(&report, Lang::En);
        let of_rule: Vec<_> =
            report.findings.iter().filter(|found| found.id.as_str() == *id).collect();
        if line.is_empty() {
            assert!(of_rule.is_empty(), "{id} by mistake:\n{broken}\n{said}");
            continue;
        }
        assert!(!of_rule.is_empty(), "{id} is not found:\n{broken}\n{said}");
        let lines: Vec<&str> = broken.lines().collect();
        for found in &of_rule {
            let at = lines.get(found.line - 1).copied().unwrap_or_default().trim();
            assert!(at.starts_with(line), "{id} at line {}: {at}\n{said}", found.line);
            assert!(!found.hint.en.is_empty(), "{said}");
            assert!(!found.text.zh.is_empty() && !found.hint.zh.is_empty());
        }
        // The gravest stands first.
        assert_eq!(of_rule.first().map(|found| found.importance), Some(*importance), "{said}");
        let counts = *importance != Importance::Info;
        assert!(!counts || report.exit_code() == 1, "{said}");
    }
}

/// Rules and lines of the findings, the lines less `before`.
fn shifted(text: &str, before: usize) -> Vec<(&'static str, usize)> {
    let report = check(text, Some("200Gi"));
    assert!(report.refused.is_empty(), "{}\n{text}", lint::text(&report, Lang::En));
    report.findings.iter().map(|found| (found.id.as_str(), found.line - before)).collect()
}

/// The same mistakes with the line ends of Windows, behind another document, in a
/// List, and behind a byte order mark and a comment.
#[test]
fn every_mistake_is_found_in_every_disguise() {
    const OTHER: &str =
        "kind: ConfigMap\nmetadata: {name: other}\ndata:\n  a: |\n    --- \n    x\n---\n";
    const LIST: &str = "apiVersion: v1\nkind: List\nitems:\n";
    for Case { id, sound, from, to, .. } in CASES {
        let plain = sound.replace(from, to);
        let expected = shifted(&plain, 0);
        assert_eq!(shifted(&plain.replace('\n', "\r\n"), 0), expected, "{id}, CRLF");
        let behind = format!("{OTHER}{plain}");
        assert_eq!(shifted(&behind, OTHER.lines().count()), expected, "{id}, second document");
        let marked = format!("\u{feff}# words\n{plain}");
        assert_eq!(shifted(&marked, 1), expected, "{id}, byte order mark");
        // Every document an item, at its own line.
        let items: String = plain
            .split_inclusive('\n')
            .scan(true, |first, line| {
                let is_object = line.starts_with("apiVersion:");
                let lead = if is_object && std::mem::take(first) { "- " } else { "  " };
                if line.starts_with("---") {
                    *first = true;
                    return Some("\n".to_owned());
                }
                Some(if line.trim().is_empty() { "\n".to_owned() } else { format!("{lead}{line}") })
            })
            .collect();
        let list = format!("{LIST}{items}");
        assert_eq!(shifted(&list, LIST.lines().count()), expected, "{id}, List\n{list}");
    }
}

#[test]
fn every_rule_has_a_mistake() {
    let tested: BTreeSet<&str> =
        CASES.iter().filter(|case| !case.line.is_empty()).map(|case| case.id).collect();
    let rules: BTreeSet<&str> = RULES.iter().map(|rule| rule.id.as_str()).collect();
    assert_eq!(tested, rules);
    assert_eq!(rules.len(), RULES.len(), "an id stands twice");
}

fn ids(report: &Report) -> Vec<(&'static str, usize)> {
    report.findings.iter().map(|found| (found.id.as_str(), found.line)).collect()
}

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
        lint::text(&report, Lang::En)
    );
}

/// The multi-pod manifest whose every pod says `--nnodes=1`.
#[test]
fn four_pods_that_are_each_alone_are_named() {
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
        lint::text(&report, Lang::En)
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
            ("shm.missing", 10),
            ("memory.missing", 10),
            ("cpu.missing", 10),
            ("command.unread", 13)
        ],
        "{}",
        lint::text(&report, Lang::En)
    );
}

/// Every manifest that the guides of these jobs print, as it stands there.
#[test]
fn the_manifests_of_the_guides_are_read_as_they_are() {
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
            assert!(report.refused.is_empty(), "{}\n{block}", lint::text(&report, Lang::En));
            let name = block.lines().find_map(|line| line.trim().strip_prefix("name: "));
            let ids: Vec<&str> = report.findings.iter().map(|found| found.id.as_str()).collect();
            found.insert(name.unwrap_or_default().to_owned(), ids.join(" "));
        }
    }
    let of = |name: &str| found.get(name).map(String::as_str);
    let room = "shm.missing memory.missing cpu.missing command.unread";
    assert_eq!(of("taehv-training-16gpu"), Some(format!("job.index {room}").as_str()), "{found:?}");
    assert_eq!(of("taehv-16gpu-training"), Some(room), "{found:?}");
    for other in ["zimdb-data-pvc", "zimdb-model-pvc", "tensorboard", "training-config"] {
        assert_eq!(of(other), Some(""), "{found:?}");
    }
}

/// A container with all that a pod of 8 GPUs is asked for, and `rest` beside it.
fn pod(rest: &str, gpus: u32) -> String {
    format!(
        "{{terminationGracePeriodSeconds: 60, containers: [{{name: pytorch, image: x, {rest}, \
         resources: {{limits: {{nvidia.com/gpu: {gpus}, memory: 64Gi, cpu: 32}}}}, \
         volumeMounts: [{{name: s, mountPath: /dev/shm}}]}}], \
         volumes: [{{name: s, emptyDir: {{medium: Memory, sizeLimit: 16Gi}}}}]}}"
    )
}

fn single(rest: &str, gpus: u32) -> String {
    let pod = pod(rest, gpus);
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {pod}\n")
}

/// A PyTorchJob with these replicas of one pod of 8 GPUs.
fn pytorchjob(above: &str, replicas: &[(&str, u32)], rest: &str) -> String {
    let pod = pod(rest, 8);
    let mut text = format!(
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: a}}\nspec:\n{above}  pytorchReplicaSpecs:\n"
    );
    for (role, count) in replicas {
        let _ =
            write!(text, "    {role}:\n      replicas: {count}\n      template: {{spec: {pod}}}\n");
    }
    text
}

fn indexed(head: &str, rest: &str) -> String {
    let pod = pod(rest, 8);
    let spec = format!(
        "{{parallelism: 2, completions: 2, completionMode: Indexed, template: {{metadata: {{labels: {{app: a}}}}, spec: {pod}}}}}"
    );
    format!("{head}---\napiVersion: batch/v1\nkind: Job\nmetadata: {{name: a}}\nspec: {spec}\n")
}

/// What people write and what it comes to: the ids, nothing else.
#[test]
fn what_people_write_is_understood() {
    let two = [("Master", 1), ("Worker", 1)];
    let workers = |count| [("Worker", count)];
    let policy = "  elasticPolicy: {rdzvBackend: c10d, minReplicas: 2, maxReplicas: 2}\n";
    let headless = |selector: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: svc}}\nspec: {{clusterIP: None, selector: {{{selector}}}}}\n"
        )
    };
    let jobset = |replicas: u32, rest: &str| {
        let pod = pod(rest, 8);
        format!(
            "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {{name: a}}\nspec:\n  replicatedJobs:\n  - name: w\n    replicas: {replicas}\n    template: {{spec: {{parallelism: {}, completions: {}, template: {{spec: {pod}}}}}}}\n",
            2 / replicas,
            2 / replicas
        )
    };
    let index = "env: [{name: I, valueFrom: {fieldRef: {fieldPath: \"metadata.annotations['batch.kubernetes.io/job-completion-index']\"}}}]";
    let ray = "apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: a}\nspec: {headGroupSpec: {template: {spec: {containers: [{name: ray-head, image: x, resources: {limits: {nvidia.com/gpu: 8, memory: 200Gi, cpu: 32}}}SIDE]}}}}\n";
    let side =
        ", {name: side, image: x, resources: {limits: {nvidia.com/gpu: 2, memory: 2Gi, cpu: 8}}}";
    let generate = |arguments: &str, gpus: u32| {
        let words = arguments.split(' ').map(|word| format!("'{word}'")).collect::<Vec<_>>();
        let words = words.join(", ");
        single(&format!("command: [torchrun, --nproc_per_node={gpus}, generate.py, {words}]"), gpus)
    };
    let plain_job = |rest: &str| {
        let pod = pod(rest, 8);
        format!(
            "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: a}}\nspec: {{parallelism: 2, template: {{spec: {pod}}}}}\n"
        )
    };
    let deployment = |rest: &str, gpus: u32| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: a}}\nspec: {{replicas: 2, template: {{spec: {{containers: [{{name: m, image: x, {rest}, resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}}}]}}}}}}\n"
        )
    };
    let mpijob = |launcher: &str, worker: &str| {
        let worker = pod(&format!("{worker} workingDir: /w"), 8);
        format!(
            "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nmetadata: {{name: a}}\nspec:\n  mpiReplicaSpecs:\n    Launcher: {{replicas: 1, template: {{spec: {{containers: [{{name: l, image: x, {launcher}}}]}}}}}}\n    Worker: {{replicas: 2, template: {{spec: {worker}}}}}\n"
        )
    };
    let hyperpod = |options: &str, spec: &str| {
        let pod = pod(&format!("command: [hyperpodrun, {options}, t.py]"), 8);
        format!(
            "apiVersion: sagemaker.amazonaws.com/v1\nkind: HyperPodPyTorchJob\nmetadata: {{name: a}}\nspec: {{{spec}replicaSpecs: [{{name: pods, replicas: 2, template: {{spec: {pod}}}}}]}}\n"
        )
    };
    let rows: Vec<(String, &[&str])> = vec![
        // A shell's options are one letter each.
        (single("command: [bash, -cex, 'torchrun --nproc_per_node=16 t.py']", 8), &["gpu.nproc"]),
        (single("command: [bash, -cxue, 'torchrun --nproc_per_node=8 t.py']", 8), &[]),
        (
            single("command: [bash, -euxo, pipefail, -c, 'torchrun --nproc_per_node=16 t.py']", 8),
            &["gpu.nproc"],
        ),
        (
            single("command: [bash, -ceuo, pipefail, 'torchrun --nproc_per_node=16 t.py']", 8),
            &["gpu.nproc"],
        ),
        (single("command: [bash, +e, -c, 'torchrun --nproc_per_node=16 t.py']", 8), &["gpu.nproc"]),
        (single("command: [bash, -ex, /start.sh]", 8), &["command.unread"]),
        (
            single(
                "command: [sh, -c], args: ['echo torchrun --nproc_per_node=99; pip install torchrun && torchrun --nproc_per_node=8 t.py']",
                8,
            ),
            &[],
        ),
        // A launcher behind words that only run it.
        (single("command: [nohup, torchrun, --nproc_per_node=16, t.py]", 8), &["gpu.nproc"]),
        (single("command: [timeout, 1h, torchrun, --nproc_per_node=16, t.py]", 8), &["gpu.nproc"]),
        (
            single("command: [env, -u, A, B=1, torchrun, --nproc_per_node=16, t.py]", 8),
            &["gpu.nproc"],
        ),
        (single("command: [uv, run, torchrun, --nproc_per_node=16, t.py]", 8), &["gpu.nproc"]),
        (
            single("command: [uv, run, -m, torch.distributed.run, --nproc_per_node=16, t.py]", 8),
            &["gpu.nproc"],
        ),
        (
            single("command: [conda, run, -n, x, torchrun, --nproc_per_node=16, t.py]", 8),
            &["gpu.nproc"],
        ),
        (
            single(
                "command: [numactl, -N, '0', stdbuf, -oL, torchrun, --nproc_per_node=16, t.py]",
                8,
            ),
            &["gpu.nproc"],
        ),
        (
            single(
                "command: [bash, -c, 'time taskset -c 0-7 torchrun --nproc_per_node=16 t.py']",
                8,
            ),
            &["gpu.nproc"],
        ),
        (
            single(
                "command: [bash, -c, 'command -v torchrun && exec torchrun --nproc_per_node=8 t.py']",
                8,
            ),
            &[],
        ),
        (single("args: [-g, --, torchrun, --nproc_per_node=16, t.py]", 8), &["gpu.nproc"]),
        (single("args: [-m, torch.distributed.run, --nproc_per_node=16, t.py]", 8), &["gpu.nproc"]),
        (single("command: [uv, run, t.py]", 8), &["launcher.none"]),
        (single("command: [uv, run, t.py]", 1), &[]),
        (single("command: [env.py, torchrun, --nproc_per_node=16, t.py]", 8), &["launcher.none"]),
        // As argparse reads them: abbreviations, the last one, underscores as they are.
        (generate("--ulysses 16", 8), &["layout.world", "layout.heads"]),
        (generate("--ulysses_s=16", 8), &["layout.world", "layout.heads"]),
        (generate("--ulysses_size 16 --ulysses 8", 8), &[]),
        (generate("--ulysses-size 16", 8), &[]),
        (generate("--ulysses_size 8 --tas ti2v-5B", 8), &[]),
        (generate("--ulysses_size 5 --tas ti2v-5B", 5), &["layout.heads"]),
        (generate("--ulysses_size 8 -- --ulysses_size 16", 8), &[]),
        // One rank alone must not shard.
        (generate("--dit_fsdp --t5_fsdp", 1), &["layout.alone"]),
        (generate("--dit_f", 1), &["layout.alone"]),
        (generate("--dit_fsdp --t5_fsdp --ulysses_size 8", 8), &[]),
        (generate("--offload_model True", 1), &[]),
        (single("command: [python, generate.py, --t5_fsdp]", 1), &["layout.alone"]),
        (
            single(
                "command: [python, generate.py, --t5_fsdp], env: [{name: WORLD_SIZE, value: '2'}]",
                1,
            ),
            &[],
        ),
        (single("command: [python, train.py, --t5_fsdp]", 1), &[]),
        (single("command: [ranklaunch, --profile, wan22]", 1), &[]),
        (single("command: [ranklaunch, --profile, wan22, --, --dit_fsdp]", 1), &["layout.alone"]),
        (single("command: [ranklaunch, --profile, wan22, --, --dit_fsdp]", 8), &[]),
        (single("command: [ranklaunch, --layout, none, --profile, wan22, --, --dit_fsdp]", 1), &[]),
        // c10d hands out the ranks itself.
        (
            pytorchjob(
                policy,
                &workers(2),
                "command: [torchrun, --nnodes=2, --nproc_per_node=8, --node_rank=0, --rdzv_backend=c10d, '--rdzv_endpoint=a-worker-0:29400', t.py]",
            ),
            &[],
        ),
        (
            pytorchjob(
                policy,
                &workers(2),
                "command: [torchrun, --nnodes=2, --nproc_per_node=8, --node_rank=0, t.py]",
            ),
            &[],
        ),
        (
            pytorchjob(
                policy,
                &workers(2),
                "command: [torchrun, --nnodes=2, --nproc_per_node=8, --node_rank=0, --rdzv_backend=static, t.py]",
            ),
            &["nodes.rank"],
        ),
        (
            pytorchjob(
                "",
                &[("Master", 1), ("Worker", 3)],
                "command: [torchrun, --nnodes=4, --nproc_per_node=8, --node_rank=0, t.py]",
            ),
            &["nodes.rank"],
        ),
        // No Master and no policy: nobody says who is who.
        (
            pytorchjob(
                "",
                &workers(8),
                "command: [torchrun, --nproc_per_node=8, --nnodes=8, t.py]",
            ),
            &["pytorchjob.rank"],
        ),
        (
            pytorchjob(
                "",
                &workers(8),
                "command: [bash, -c, 'torchrun --nproc_per_node=8 --nnodes=8 --node_rank=$RANK --master_addr=$MASTER_ADDR t.py']",
            ),
            &["pytorchjob.rank"],
        ),
        (pytorchjob("", &workers(8), "command: [ranklaunch, --, t.py]"), &["pytorchjob.rank"]),
        (pytorchjob("", &workers(1), "command: [torchrun, --nproc_per_node=8, t.py]"), &[]),
        (
            pytorchjob(
                "",
                &workers(8),
                "command: [torchrun, --nproc_per_node=8, --nnodes=8, --rdzv_backend=c10d, '--rdzv_endpoint=a-worker-0:29400', t.py]",
            ),
            &[],
        ),
        (pytorchjob(policy, &workers(2), "command: [torchrun, --nproc_per_node=8, t.py]"), &[]),
        // One process for 8 GPUs.
        (pytorchjob("", &two, "command: [python, t.py]"), &["launcher.none", "launcher.none"]),
        (
            pytorchjob(
                "",
                &two,
                "command: [bash, -c, 'python prepare.py; torchrun --nproc_per_node=8 --nnodes=2 --node_rank=$RANK t.py']",
            ),
            &[],
        ),
        (single("command: [python, t.py]", 1), &[]),
        (single("command: [python, -m, vllm.entrypoints.openai.api_server]", 8), &[]),
        // Variables that nobody sets.
        (
            indexed(
                &headless("app: a"),
                "command: [torchrun, --nnodes=2, --nproc_per_node=8, --rdzv_backend=c10d, '--rdzv_endpoint=$(MASTER_ADDR):29500', t.py]",
            ),
            &["env.undefined"],
        ),
        (
            indexed(
                &headless("app: a"),
                "command: [torchrun, --nnodes=2, --nproc_per_node=8, --rdzv_backend=c10d, '--rdzv_endpoint=$(MASTER_ADDR):29500', t.py], env: [{name: MASTER_ADDR, value: svc}]",
            ),
            &[],
        ),
        (
            pytorchjob(
                "",
                &two,
                "command: [torchrun, --nnodes=2, --nproc_per_node=8, '--node_rank=$(RANK)', '--master_addr=$(MASTER_ADDR)', t.py]",
            ),
            &[],
        ),
        (
            single(
                "command: [torchrun, --nproc_per_node=8, t.py, '--out=$(OUT)'], envFrom: [{configMapRef: {name: a}}]",
                8,
            ),
            &[],
        ),
        (
            single("command: [torchrun, --nproc_per_node=8, t.py, '--out=$(DB_SERVICE_HOST)']", 8),
            &[],
        ),
        // Pods are found through the headless Service that selects them, by its own name only.
        (
            indexed(
                &headless("app: a"),
                "command: [torchrun, --nnodes=2, --nproc_per_node=8, --rdzv_backend=c10d, '--rdzv_endpoint=svc:29500', t.py]",
            ),
            &[],
        ),
        (
            indexed(
                &headless("app: other"),
                "command: [torchrun, --nnodes=2, --nproc_per_node=8, --rdzv_backend=c10d, '--rdzv_endpoint=svc:29500', t.py]",
            ),
            &["job.subdomain"],
        ),
        (
            indexed(
                &headless("app: a"),
                "command: [torchrun, --nnodes=2, --nproc_per_node=8, --rdzv_backend=c10d, '--rdzv_endpoint=a-0.svc:29500', t.py]",
            ),
            &["job.subdomain"],
        ),
        // Each Job of a JobSet counts from 0.
        (
            jobset(
                2,
                &format!(
                    "command: [torchrun, --nnodes=2, --nproc_per_node=8, '--node_rank=$(JOB_COMPLETION_INDEX)', --master_addr=a-w-0-0.a, t.py], {index}"
                ),
            ),
            &["nodes.rank"],
        ),
        (
            jobset(
                2,
                &format!(
                    "command: [torchrun, --nnodes=2, --nproc_per_node=8, '--node_rank=$(I)', --master_addr=a-w-0-0.a, t.py], {index}"
                ),
            ),
            &["nodes.rank"],
        ),
        (
            jobset(
                1,
                &format!(
                    "command: [torchrun, --nnodes=2, --nproc_per_node=8, '--node_rank=$(I)', --master_addr=a-w-0-0.a, t.py], {index}"
                ),
            ),
            &[],
        ),
        // KubeRay mounts /dev/shm into the Ray container, the first one.
        (ray.replace("SIDE", ""), &[]),
        (ray.replace("SIDE", side), &["shm.missing"]),
        // The numbers of the profiles.
        (single("command: [ranklaunch, --profile, zimdb]", 1), &["gpu.nproc"]),
        (single("command: [ranklaunch, --profile, zimdb]", 4), &[]),
        (single("command: [ranklaunch, --profile, zimdb, --nproc-per-node, auto]", 1), &[]),
        (single("command: [ranklaunch, --profile, taehv]", 4), &["profile.select"]),
        (single("command: [ranklaunch, --profile, taehv]", 8), &[]),
        (
            single("command: [ranklaunch], env: [{name: RANKLAUNCH_PROFILE, value: taehv}]", 4),
            &["profile.select"],
        ),
        (
            pytorchjob(
                "",
                &[("Master", 1), ("Worker", 3)],
                "command: [ranklaunch, --profile, zimdb]",
            ),
            &["nodes.single", "nodes.single", "gpu.nproc", "gpu.nproc"],
        ),
        (
            pytorchjob(
                "",
                &[("Master", 1), ("Worker", 3)],
                "command: [ranklaunch, --profile, zimdb, --nnodes, '4', --nproc-per-node, auto]",
            ),
            &[],
        ),
        (single("command: [ranklaunch, --profile, of-the-image]", 3), &[]),
        // An MPIJob's Launcher starts ranks on the Workers, which start nothing themselves.
        (mpijob("command: [deepspeed, t.py]", ""), &[]),
        (mpijob("command: [mpirun, -np, '16', python, t.py]", ""), &[]),
        (mpijob("command: [bash, -c, 'accelerate launch --num_processes 16 t.py']", ""), &[]),
        (mpijob("command: [mpirun, t.py]", "command: [/usr/sbin/sshd, -De],"), &[]),
        (
            mpijob("command: [mpirun, t.py]", "").replace(", memory: 64Gi, cpu: 32", ""),
            &["memory.missing", "cpu.missing"],
        ),
        // hyperpodrun is torchrun with a rendezvous of its own.
        (hyperpod("--nnodes=2, --nproc_per_node=8", ""), &[]),
        (hyperpod("--nproc_per_node=8", ""), &[]),
        (hyperpod("--nnodes=2", "nprocPerNode: '8', "), &[]),
        (hyperpod("--nnodes=2, --nproc_per_node=16", ""), &["gpu.nproc"]),
        (hyperpod("--nnodes=3", ""), &["nodes.count"]),
        (hyperpod("--nnodes=2", "nprocPerNode: '4', "), &["gpu.nproc"]),
        // Pods of a plain Job that know nothing of ranks may be tasks of their own.
        (plain_job("command: [sleep, '60']"), &["command.unread"]),
        (plain_job("command: [python, t.py]"), &["job.index", "launcher.none"]),
        (plain_job("command: [bash, /start.sh]"), &["job.index", "command.unread"]),
        (plain_job("command: [torchrun, --nnodes=2, --nproc_per_node=8, t.py]"), &["job.index"]),
        // A server with one GPU shares no memory, and nobody asks what starts it.
        (deployment("command: [tensorflow_model_server]", 1), &[]),
        (deployment("command: [vllm, serve, m]", 1), &[]),
        (deployment("command: [vllm, serve, m]", 2), &["shm.missing"]),
        (deployment("command: [/app/burn]", 2), &["shm.missing"]),
        (deployment("command: [python, t.py]", 1), &["shm.missing", "memory.missing", "cpu.missing"]),
        // Its workers serve as well, whatever they start.
        (
            "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: a}\nspec: {leaderWorkerTemplate: {size: 2, leaderTemplate: {spec: {containers: [{name: l, image: x, command: [vllm, serve, m], resources: {limits: {nvidia.com/gpu: 1}}}]}}, workerTemplate: {spec: {containers: [{name: w, image: x, command: [bash, /w.sh], resources: {limits: {nvidia.com/gpu: 1}}}]}}}}\n".to_owned(),
            &["command.unread"],
        ),
        // Serving is not training: no port of a master, no data loaders.
        (
            single("command: [vllm, serve, m, --port, '8000']", 8)
                .replace("spec: {", "spec: {hostNetwork: true, "),
            &[],
        ),
        (single("command: [vllm, serve, m]", 8).replace(", memory: 64Gi, cpu: 32", ""), &[]),
        (
            single("command: [torchrun, --nproc_per_node=8, t.py]", 8)
                .replace("spec: {", "spec: {hostNetwork: true, "),
            &["network.port"],
        ),
        (
            single("command: [torchrun, --standalone, --nproc_per_node=8, t.py]", 8)
                .replace("spec: {", "spec: {hostNetwork: true, "),
            &[],
        ),
    ];
    let mut wrong = String::new();
    for (text, expected) in &rows {
        let report = check(text, None);
        let mut found: Vec<&str> = report.findings.iter().map(|found| found.id.as_str()).collect();
        let mut expected = expected.to_vec();
        found.sort_unstable();
        expected.sort_unstable();
        if found != expected || !report.refused.is_empty() {
            let _ = writeln!(wrong, "{text}{}not {expected:?}\n", lint::text(&report, Lang::En));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// A layout of ulysses × ring: what the planner solves is no mistake here.
#[test]
fn a_ring_layout_is_judged_by_its_own_rule() {
    const RING: &str = "[job]\nscript = \"ring.py\"\nargs = [\"--ulysses\", \"{ulysses_size}\", \"--ring\", \"{ring_size}\"]\n[layout]\nrule = \"ulysses-ring\"\nheads = 40\nulysses_argument = \"--ulysses\"\nring_argument = \"--ring\"\n";
    let knowledge = Knowledge { profiles: &[("ring", RING)], ..knowledge() };
    let found = |rest: &str| {
        let text = pytorchjob("", &[("Master", 1), ("Worker", 2)], rest);
        let manifest = Manifest { name: "m.yaml".into(), bytes: text.into_bytes() };
        let report = lint::lint(&[manifest], Limits::default(), knowledge);
        let mut ids: Vec<_> = report.findings.iter().map(|found| found.id.as_str()).collect();
        ids.dedup();
        (ids, lint::text(&report, Lang::En))
    };
    let torchrun = |args: &str| {
        format!(
            "command: [bash, -c, 'torchrun --nnodes=3 --nproc_per_node=8 --node_rank=$RANK --master_addr=$MASTER_ADDR ring.py {args}']"
        )
    };
    for (rest, expected) in [
        // 3 nodes × 8 GPUs, 40 heads: ulysses 8 × ring 3.
        ("command: [ranklaunch, --profile, ring]".to_owned(), vec![]),
        (
            "command: [ranklaunch, --profile, ring, --, ring.py, --ulysses, '4', --ring, '6']"
                .to_owned(),
            vec![],
        ),
        (
            "command: [ranklaunch, --profile, ring, --, ring.py, --ulysses, '16']".to_owned(),
            vec!["layout.heads"],
        ),
        (torchrun("--ulysses 8 --ring 3"), vec![]),
        (torchrun("--ulysses 8 --ring 2"), vec!["layout.world"]),
        (torchrun("--ulysses 3 --ring 8"), vec!["layout.heads"]),
    ] {
        let (ids, said) = found(&rest);
        assert_eq!(ids, expected, "{rest}\n{said}");
    }
}

/// Every finding on manifests of other projects, against what a reader found in them.
#[test]
fn real_manifests_are_judged_as_a_reader_judges_them() {
    const EXPECTED: &str = include_str!("real.txt");
    let folder = std::env::var_os("RANKLAUNCH_MANIFESTS").filter(|folder| !folder.is_empty());
    let Some(folder) = folder.map(std::path::PathBuf::from).filter(|folder| folder.is_dir()) else {
        skipped("RANKLAUNCH_MANIFESTS names no folder with the manifests of tests/lint/real.txt");
        return;
    };
    let mut expected: std::collections::BTreeMap<&str, Vec<String>> = Default::default();
    let mut name = "";
    for line in EXPECTED.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let finding = line.split("  #").next().unwrap_or_default();
        if line.starts_with(' ') {
            expected.entry(name).or_default().push(finding.trim().to_owned());
        } else {
            name = finding;
            expected.entry(name).or_default();
        }
    }
    assert!(expected.len() > 50, "{}", expected.len());
    let mut wrong = String::new();
    for (name, expected) in &expected {
        let bytes =
            std::fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let manifest = Manifest { name: (*name).to_owned(), bytes };
        let report = lint::lint(&[manifest], Limits::default(), knowledge());
        let json = lint::json(&report, Lang::En);
        let found = json["findings"].as_array().expect("a list").iter();
        let found: Vec<String> = found
            .map(|one| {
                let word = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
                format!("{} {} {}", one["line"], word("severity"), word("id"))
            })
            .collect();
        if found != *expected || !report.refused.is_empty() {
            let refused: Vec<_> = report.refused.iter().map(|refused| &refused.text.en).collect();
            let _ = writeln!(wrong, "{name}\n  is  {found:?}\n  not {expected:?} {refused:?}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    let unknown = std::fs::read_dir(&folder).expect("a folder").flatten().filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.ends_with(".yaml") && !expected.contains_key(name.as_str())
    });
    assert_eq!(unknown.count(), 0, "a manifest without an expectation");
}

#[test]
fn objects_without_training_are_left_alone() {
    let text = r#"apiVersion: v1
kind: List
items:
  - apiVersion: v1
    kind: PersistentVolumeClaim
    metadata: {name: zimdb-data-pvc}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 10Gi}}}
  - apiVersion: apps/v1
    kind: Deployment
    metadata: {name: tensorboard}
    spec:
      replicas: 2
      template:
        spec:
          containers:
            - {name: tensorboard, image: tb, command: [tensorboard], args: [--logdir=/mnt]}
---
# nothing
---
apiVersion: v1
kind: ConfigMap
metadata: {name: training-config}
data: {config.json: "{}"}
"#;
    let report = check(text, None);
    assert_eq!((ids(&report), report.exit_code()), (vec![], 0));
}

#[test]
fn kinds_keep_their_pods_where_we_look() {
    // A kind, and how deep its pod template stands: the shm rule proves that it was found.
    let pod = "{containers: [{name: pytorch, image: i, command: [torchrun, --nproc_per_node=2, --nnodes=1, t.py], resources: {limits: {nvidia.com/gpu: 2, memory: 8Gi, cpu: 4}}}]}";
    for head in [
        "apiVersion: v1\nkind: Pod\nspec: POD",
        "apiVersion: batch/v1\nkind: CronJob\nspec: {jobTemplate: {spec: {template: {spec: POD}}}}",
        "apiVersion: sagemaker.amazonaws.com/v1\nkind: HyperPodPyTorchJob\nspec: {replicaSpecs: [{name: pods, replicas: 1, template: {spec: POD}}]}",
        "apiVersion: kubeflow.org/v1\nkind: MPIJob\nspec: {mpiReplicaSpecs: {Launcher: {template: {spec: {containers: [{name: l, image: i, command: [deepspeed, t.py]}]}}}, Worker: {template: {spec: POD}}}}",
        "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nspec: {mpiReplicaSpecs: {Launcher: {template: {spec: {containers: [{name: l, image: i, command: [mpirun, -np, '4', python, t.py]}]}}}, Worker: {template: {spec: POD}}}}",
        "apiVersion: kubebrain.io/v1\nkind: TrainingJob\nspec: {replicaSpecs: {Worker: {template: {spec: POD}}}}",
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nspec: {tasks: [{name: master, replicas: 1, template: {spec: POD}}]}",
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: CronJob\nspec: {jobTemplate: {spec: {tasks: [{replicas: 1, template: {spec: POD}}]}}}",
        "apiVersion: flow.volcano.sh/v1alpha1\nkind: JobTemplate\nspec: {tasks: [{replicas: 1, template: {spec: POD}}]}",
        "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nspec: {replicatedJobs: [{name: w, template: {spec: {template: {spec: POD}}}}]}",
        "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nspec: {leaderWorkerTemplate: {size: 1, workerTemplate: {spec: POD}}}",
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainingRuntime\nspec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {spec: POD}}}}]}}}",
        "apiVersion: apps/v1\nkind: StatefulSet\nspec: {replicas: 1, template: {spec: POD}}",
        "apiVersion: apps/v1\nkind: Deployment\nspec: {replicas: 3, template: {spec: POD}}",
    ] {
        let report = check(&head.replace("POD", pod), None);
        assert_eq!(ids(&report), [("shm.missing", 3)], "{head}\n{}", lint::text(&report, Lang::En));
    }
    let report = check("apiVersion: a/v1\nkind: Stranger\nspec: {}", None);
    assert_eq!((ids(&report), report.exit_code()), (vec![("kind.unknown", 1)], 0));
}

#[test]
fn a_trainjob_without_its_runtime_is_judged_by_what_is_there() {
    let alone = TRAINJOB.split_once("---\n").expect("two documents").1;
    let report = check(alone, None);
    assert!(report.findings.iter().all(|found| found.importance == Importance::Info), "{report:?}");
}

#[test]
fn what_is_no_manifest_is_refused_with_its_line() {
    for (text, line) in [
        ("a: [1\nb: 2\n", "m.yaml:2: "),
        ("kind: Job\nspec: {{ .Values.x }}\n", "m.yaml:"),
        ("- 1\n- 2\n", "m.yaml:1: "),
        ("kind: Job\n---\nfoo: bar\n", "m.yaml:3: "),
        ("", "m.yaml:1: "),
        ("# only words\n", "m.yaml:1: "),
        // Tabs do not indent.
        ("kind: Job\nspec:\n\ttemplate: {}\n", "m.yaml:3: "),
        ("kind: Job\r\nspec:\r\n\ttemplate: {}\r\n", "m.yaml:3: "),
    ] {
        let report = check(text, None);
        let refused = report.refused.first().map(|r| r.text.en.to_string()).unwrap_or_default();
        assert!(refused.starts_with(line), "{text}: {refused}");
        assert_eq!(report.exit_code(), 64);
    }
    let bytes = b"kind: Job\nx: \xff\n".to_vec();
    let manifest = Manifest { name: "m.yaml".into(), bytes };
    let report = lint::lint(&[manifest], Limits::default(), knowledge());
    assert!(report.refused.iter().any(|r| r.text.en.starts_with("m.yaml:2: not UTF-8")));
}

#[test]
fn the_executable_prints_each_format() {
    let broken = PYTORCHJOB.replace("per_node=4", "per_node=5");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a:b,c%.yaml");
    std::fs::write(&path, &broken).expect("written");
    let run = |args: &[&str], stdin: Option<&str>| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ranklaunch"))
            .arg("lint")
            .args(args)
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut input = child.stdin.take().expect("stdin");
        // It may end without reading.
        let _ = input.write_all(stdin.unwrap_or_default().as_bytes());
        drop(input);
        let output = child.wait_with_output().expect("it ends");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let path = path.to_str().expect("a name");
    let line = 1 + broken.lines().take_while(|line| !line.contains("per_node=5")).count();

    let (code, out, _) = run(&[path], None);
    assert_eq!(code, Some(1));
    assert!(
        out.contains(&format!("{path}:{line}: error: ")) && out.contains("(gpu.nproc)"),
        "{out}"
    );

    let (code, out, _) = run(&["--format", "github", path], None);
    let escaped = path.replace('%', "%25").replace(':', "%3A").replace(',', "%2C");
    assert_eq!(code, Some(1));
    assert!(
        out.contains(&format!("::error file={escaped},line={line},title=gpu.nproc::5 processes")),
        "{out}"
    );
    assert!(out.lines().all(|line| line.starts_with("::")), "{out}");

    let (code, out, _) = run(&["--format", "json", "--lang", "zh", "-"], Some(&broken));
    assert_eq!(code, Some(1));
    let json: serde_json::Value = serde_json::from_str(&out).expect("json");
    assert_eq!(json["schema"], 1);
    let found = json["findings"].as_array().expect("a list").iter();
    let found: Vec<_> = found.filter(|found| found["id"] == "gpu.nproc").collect();
    assert_eq!(
        (found.len(), &found[0]["line"], &found[0]["severity"]),
        (1, &line.into(), &"error".into())
    );
    assert!(found[0]["text"].as_str().is_some_and(|text| text.contains("个进程")));

    let (code, out, err) = run(&["-"], Some(PYTORCHJOB));
    assert_eq!((code, out.as_str(), err.as_str()), (Some(0), "1 manifest, nothing found\n", ""));
    // What cannot be read does not hide the rest.
    let (code, out, err) = run(&["/nowhere.yaml", "-"], Some(&format!("{broken}---\na: [\n")));
    assert!(code == Some(64) && out.contains("(gpu.nproc)") && err.contains("-:"), "{out}{err}");
    let (code, _, err) = run(&["-"], Some("a: [\n"));
    assert!(code == Some(64) && err.contains("-:2: ") && err.contains("exit code 64"), "{err}");
    let (code, _, err) = run(&["/nowhere.yaml"], None);
    assert!(code == Some(64) && err.contains("/nowhere.yaml"), "{err}");
    let (code, _, err) = run(&["--node-memory", "much", "-"], Some(PYTORCHJOB));
    assert!(code == Some(64) && err.contains("256Gi"), "{err}");
}

/// Far more than any of these inputs needs on a busy machine, far less than a hang.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn two_jobs_on_the_hosts_network_need_two_ports() {
    let pod = |name: &str, port: u16| {
        format!(
            "---\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  hostNetwork: true\n  containers: [{{name: a, command: [torchrun, --nproc_per_node=2, --master_port={port}, t.py]}}]\n"
        )
    };
    let report = check(&(pod("a", 29500) + &pod("b", 29500)), None);
    assert_eq!(
        ids(&report),
        [("network.port", 5), ("network.port", 11)],
        "{}",
        lint::text(&report, Lang::En)
    );
    assert!(ids(&check(&(pod("a", 29500) + &pod("b", 29501)), None)).is_empty());
}

fn bounded(bytes: Vec<u8>) {
    let begun = Instant::now();
    let shown = String::from_utf8_lossy(bytes.get(..60).unwrap_or_default()).into_owned();
    let manifest = Manifest { name: "any".into(), bytes };
    let report = lint::lint(&[manifest], Limits { node_memory: Some(1) }, knowledge());
    for lang in [Lang::En, Lang::Zh] {
        let _ = (lint::text(&report, lang), lint::json(&report, lang), lint::github(&report, lang));
    }
    let (took, count) = (begun.elapsed(), report.findings.len());
    assert!(took < PATIENCE, "{took:?}, {count} findings, {shown}");
}

#[test]
fn bombs_end_soon() {
    let mut aliases = "kind: Pod\nx0: &x0 {name: a, <<: {}}\n".to_owned();
    for level in 1..40 {
        let below = level - 1;
        let _ =
            writeln!(aliases, "x{level}: &x{level} {{<<: [*x{below}, *x{below}], y: *x{below}}}");
    }
    let chain: String =
        (1..4000).map(|level| format!("x{level}: &x{level} [*x{}]\n", level - 1)).collect();
    let containers = format!(
        "kind: Pod\nspec: {{containers: [{}]}}",
        (0..20_000)
            .map(|n| format!("{{name: a{n}, resources: {{limits: {{nvidia.com/gpu: 1}}}}}}, "))
            .collect::<String>()
    );
    let services = "---\nkind: Service\nmetadata: {name: master}\n".repeat(900)
        + &"---\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}\n".repeat(900);
    let long = format!(
        "kind: Pod\nx: &x '{}'\nspec: {{containers: [{{command: [bash, -c, {}]}}]}}",
        "y".repeat(1 << 20),
        "*x, ".repeat(50_000)
    );
    for text in [
        aliases,
        long,
        format!("kind: Pod\nx0: &x0 []\n{chain}"),
        containers,
        services,
        "kind: List\nitems:\n- ".repeat(2000),
        "[".repeat(1 << 20),
        "a: ".repeat(1 << 18),
        "\"".repeat(1 << 20),
        "&a ".repeat(1 << 18),
        format!(
            "kind: Pod\nspec: {{containers: [{{command: [bash, -c, \"{}\"]}}]}}",
            "$(".repeat(100_000)
        ),
        format!(
            "kind: Pod\nspec: {{containers: [{{command: [bash, -c, \"{}\"]}}]}}",
            "if a; ".repeat(100_000)
        ),
    ] {
        bounded(text.into_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_give_findings_or_a_refusal(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        bounded(bytes);
    }

    #[test]
    fn a_damaged_manifest_gives_findings_or_a_refusal(
        which in 0..5usize,
        cuts in proptest::collection::vec((any::<prop::sample::Index>(), 0..6usize, "[-:\\[\\]{}&*|>'\"$`()<;# \na0é]{0,4}"), 1..8),
    ) {
        let mut text: Vec<char> =
            [PYTORCHJOB, INDEXED_JOB, RANKLAUNCH, TRAINJOB, RAYJOB][which].chars().collect();
        for (at, length, put) in cuts {
            let at = at.index(text.len());
            let end = (at + length).min(text.len());
            text.splice(at..end, put.chars());
            if text.is_empty() {
                text.push(' ');
            }
        }
        bounded(text.into_iter().collect::<String>().into_bytes());
    }
}
