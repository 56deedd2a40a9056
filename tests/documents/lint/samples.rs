//! Sound manifests, and builders of short ones.

use std::fmt::Write as _;

/// Two pods of 4 GPUs with torchrun and a complete manifest.
pub(super) const PYTORCHJOB: &str = r#"apiVersion: kubeflow.org/v1
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

/// A Job with two pods of 8 GPUs, and the Service that names them.
pub(super) const INDEXED_JOB: &str = r#"apiVersion: v1
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

/// Two pods of one task, which know their index and the first pod from Volcano.
pub(super) const VOLCANO: &str = r#"apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: demo}
spec:
  minAvailable: 2
  schedulerName: volcano
  plugins: {svc: [], env: []}
  tasks:
    - name: trainer
      replicas: 2
      template: &pod
        spec:
          terminationGracePeriodSeconds: 60
          restartPolicy: Never
          containers:
          - name: c
            image: registry.example/img:1
            command:
            - torchrun
            - --nnodes=2
            - --nproc_per_node=1
            - --node_rank=$(VC_TASK_INDEX)
            - --master_addr=$(VC_TRAINER_HOSTS)
            - --master_port=29500
            - train.py
            resources: {requests: {cpu: 4, memory: 64Gi}, limits: {nvidia.com/gpu: 1, memory: 64Gi}}
            volumeMounts: [{name: shm, mountPath: /dev/shm}]
          volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}]
"#;
pub(super) const RANKLAUNCH: &str =
    include_str!("../../../packaging/kubernetes/wan22-pytorchjob.yaml");
pub(super) const TRAINJOB: &str = include_str!("../../../packaging/kubernetes/wan22-trainjob.yaml");
pub(super) const SPARES: &str =
    include_str!("../../../packaging/kubernetes/wan22-spares-jobset.yaml");
pub(super) const RAYJOB: &str = include_str!("../../../packaging/kubernetes/wan22-rayjob.yaml");

/// A container with all required fields for a pod of 8 GPUs, and `rest` beside them.
pub(super) fn pod(rest: &str, gpus: u32) -> String {
    format!(
        "{{terminationGracePeriodSeconds: 60, containers: [{{name: pytorch, image: x, {rest}, \
         resources: {{limits: {{nvidia.com/gpu: {gpus}, memory: 64Gi, cpu: 32}}}}, \
         volumeMounts: [{{name: s, mountPath: /dev/shm}}]}}], \
         volumes: [{{name: s, emptyDir: {{medium: Memory, sizeLimit: 16Gi}}}}]}}"
    )
}

pub(super) fn single(rest: &str, gpus: u32) -> String {
    let pod = pod(rest, gpus);
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {pod}\n")
}

/// A PyTorchJob with these replicas of one pod of 8 GPUs.
pub(super) fn pytorchjob(above: &str, replicas: &[(&str, u32)], rest: &str) -> String {
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

/// The same pod with the fields that a Job requires.
pub(super) fn pod_of_job(rest: &str) -> String {
    pod(rest, 8).replacen('{', "{restartPolicy: Never, ", 1)
}

pub(super) fn indexed(head: &str, rest: &str) -> String {
    let pod = pod_of_job(rest);
    let spec = format!(
        "{{parallelism: 2, completions: 2, completionMode: Indexed, template: {{metadata: {{labels: {{app: a}}}}, spec: {pod}}}}}"
    );
    format!("{head}---\napiVersion: batch/v1\nkind: Job\nmetadata: {{name: a}}\nspec: {spec}\n")
}

/// A Volcano job with these tasks (name, replicas, node rank) of pods of one GPU.
pub(super) fn volcano(tasks: &[(&str, u32, &str)]) -> String {
    let nodes: u32 = tasks.iter().map(|(_, count, _)| count).sum();
    let mut text = format!(
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{name: a}}\nspec:\n  minAvailable: {nodes}\n  plugins: {{svc: [], env: []}}\n  tasks:\n"
    );
    let first = tasks.first().map_or("", |(name, ..)| name);
    for (name, count, rank) in tasks {
        let line = format!(
            "torchrun --nnodes={nodes} --nproc_per_node=1 --node_rank={rank} --master_addr=a-{first}-0.a --master_port=29500 t.py"
        );
        let pod = pod(&format!("command: [sh, -c, '{line}']"), 1);
        let _ = write!(
            text,
            "    - name: {name}\n      replicas: {count}\n      template: {{spec: {pod}}}\n"
        );
    }
    text
}
