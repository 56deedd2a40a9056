//! Forms that users write, and the findings on each.

use std::fmt::Write as _;

use text::lang::Lang;

use super::check;
use super::samples::*;

/// Forms that users write, and the ids of the findings.
#[test]
fn common_manifest_forms_are_understood() {
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
        let pod = pod_of_job(rest);
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
        // Words that only run the launcher come before it.
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
        // Options are read like argparse does: abbreviations, the last one, underscores unchanged.
        (generate("--ulysses 16", 8), &["layout.world", "layout.heads"]),
        (generate("--ulysses_s=16", 8), &["layout.world", "layout.heads"]),
        (generate("--ulysses_size 16 --ulysses 8", 8), &[]),
        (generate("--ulysses-size 16", 8), &[]),
        (generate("--ulysses_size 8 --tas ti2v-5B", 8), &[]),
        (generate("--ulysses_size 5 --tas ti2v-5B", 5), &["layout.heads"]),
        (generate("--ulysses_size 8 -- --ulysses_size 16", 8), &[]),
        // A single rank must not shard.
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
        // No Master and no policy: no node rank is set.
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
        // One process runs for 8 GPUs.
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
        // The pods of an array are separate jobs.
        (
            indexed(
                "",
                "command: [ranklaunch, --nnodes, '1', --, t.py, --shard, '$(JOB_COMPLETION_INDEX)']",
            ),
            &[],
        ),
        (
            indexed(
                "",
                "command: [ranklaunch, --nnodes, '1', t.py, --shard, '$(JOB_COMPLETION_INDEX)']",
            ),
            &[],
        ),
        (indexed("", "command: [ranklaunch, --nnodes, '1', --, t.py]"), &["nodes.single"]),
        (indexed("", "command: [ranklaunch, --nnodes, '1', t.py]"), &["nodes.single"]),
        (
            indexed(
                "",
                "command: [torchrun, --nproc_per_node=8, t.py, '--shard=$(JOB_COMPLETION_INDEX)']",
            ),
            &[],
        ),
        (
            indexed("", "command: [torchrun, --nproc_per_node=8, t.py]"),
            &["nodes.single", "job.subdomain"],
        ),
        (
            pytorchjob("", &two, "command: [ranklaunch, --nnodes, '1', --, t.py]"),
            &["nodes.single", "nodes.single"],
        ),
        // ranklaunch reads the operator's setting.
        (
            pytorchjob("  nprocPerNode: '16'\n", &two, "command: [ranklaunch, --, t.py]"),
            &["gpu.nproc"],
        ),
        (pytorchjob("  nprocPerNode: '8'\n", &two, "command: [ranklaunch, --, t.py]"), &[]),
        // Replicas are told no rank.
        (
            deployment("command: [ranklaunch, --, t.py]", 1),
            &["job.index", "shm.missing", "memory.missing", "cpu.missing"],
        ),
        (
            deployment("command: [ranklaunch, --nnodes, '1', --, t.py]", 1),
            &["shm.missing", "memory.missing", "cpu.missing"],
        ),
        // The variables are never set.
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
        // Pods are found through the headless Service that selects them, and only by its own name.
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
        // Each Job of a JobSet numbers its pods from 0.
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
        // KubeRay mounts /dev/shm into the Ray container, which is the first one.
        (ray.replace("SIDE", ""), &[]),
        (ray.replace("SIDE", side), &["shm.missing"]),
        // The numbers come from the profiles.
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
        // hyperpodrun is torchrun with its own rendezvous.
        (hyperpod("--nnodes=2, --nproc_per_node=8", ""), &[]),
        (hyperpod("--nproc_per_node=8", ""), &[]),
        (hyperpod("--nnodes=2", "nprocPerNode: '8', "), &[]),
        (hyperpod("--nnodes=2, --nproc_per_node=16", ""), &["gpu.nproc"]),
        (hyperpod("--nnodes=3", ""), &["nodes.count"]),
        (hyperpod("--nnodes=2", "nprocPerNode: '4', "), &["gpu.nproc"]),
        // Pods of a plain Job without ranks may be independent.
        (plain_job("command: [sleep, '60']"), &["command.unread"]),
        (plain_job("command: [python, t.py]"), &["job.index", "launcher.none"]),
        (plain_job("command: [bash, /start.sh]"), &["job.index", "command.unread"]),
        (plain_job("command: [torchrun, --nnodes=2, --nproc_per_node=8, t.py]"), &["job.index"]),
        // A server with one GPU needs no shared memory, and its command is not checked.
        (deployment("command: [tensorflow_model_server]", 1), &[]),
        (deployment("command: [vllm, serve, m]", 1), &[]),
        (deployment("command: [vllm, serve, m]", 2), &["shm.missing"]),
        (deployment("command: [/app/burn]", 2), &["shm.missing"]),
        (deployment("command: [python, t.py]", 1), &["shm.missing", "memory.missing", "cpu.missing"]),
        // The workers of a LeaderWorkerSet serve too, whatever they start.
        (
            "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: a}\nspec: {leaderWorkerTemplate: {size: 2, leaderTemplate: {spec: {containers: [{name: l, image: x, command: [vllm, serve, m], resources: {limits: {nvidia.com/gpu: 1}}}]}}, workerTemplate: {spec: {containers: [{name: w, image: x, command: [bash, /w.sh], resources: {limits: {nvidia.com/gpu: 1}}}]}}}}\n".to_owned(),
            &["command.unread"],
        ),
        // A server needs no master port and no data loaders.
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
            let _ = writeln!(wrong, "{text}{}not {expected:?}\n", lint::plain(&report, Lang::En));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
