//! The variables of a platform become one membership and one command line, incomplete ones a
//! refusal: real environments with the real executable.

use harness::node::{Node, PYTHON};

const TORCHRUN: &str = "/opt/env/bin/python3 -m torch.distributed.run";

/// The profiles of the three codebases, each on the platform on which it runs.
#[test]
fn profiles_give_the_expected_platform_command_lines() {
    let pytorchjob = "PYTHONUNBUFFERED=1 MASTER_ADDR=wan22-master-0 MASTER_PORT=23456 \
        PET_MASTER_ADDR=wan22-master-0 PET_MASTER_PORT=23456 WORLD_SIZE=2 PET_NNODES=2 \
        PET_NPROC_PER_NODE=auto";
    let generic = "WORLD_SIZE=2 MASTER_ADDR=jo-dbxfe2k2l635222i-worker-0 MASTER_PORT=29500";
    let kubebrain = "KUBEBRAIN_REPLICA_TOTAL=2 DISTRIBUTED_JOB_ENVS_INITIALIZED=true NODE_COUNT=2 \
        PROC_PER_NODE=8 GPU_COUNT=8 MASTER_ADDR=10.1.2.3 PORT_0=9205 HOST_NETWORK=true";
    let accelerate = "/opt/tiny/envs/tiny-vae/bin/python -m accelerate.commands.launch";
    let table = [
        (
            "wan22",
            format!("{pytorchjob} RANK=1 PET_NODE_RANK=1"),
            8,
            format!(
                "{TORCHRUN} --nnodes 2 --nproc-per-node 5 --node-rank 1 --rdzv-backend static \
                 --master-addr wan22-master-0 --master-port 23456 --max-restarts 0 -- generate.py \
                 --task t2v-A14B --size 832*480 --ckpt_dir /Wan2.2-T2V-A14B \
                 --ulysses_size 10 --sample_guide_scale 10 --prompt"
            ),
        ),
        (
            "wan22",
            format!("{generic} RANK=0"),
            4,
            format!(
                "{TORCHRUN} --nnodes 2 --nproc-per-node 4 --node-rank 0 --rdzv-backend static \
                 --master-addr jo-dbxfe2k2l635222i-worker-0 --master-port 29500 --max-restarts 0 \
                 -- generate.py --task t2v-A14B --size 832*480 --ckpt_dir /Wan2.2-T2V-A14B \
                 --ulysses_size 8 "
            ),
        ),
        (
            "taehv",
            format!("{generic} RANK=1 RANKLAUNCH_CONDA_ENV=tiny-vae"),
            8,
            format!(
                "{accelerate} --num_machines 2 --num_processes 16 --machine_rank 1 \
                 --main_process_ip jo-dbxfe2k2l635222i-worker-0 --main_process_port 29500 \
                 --rdzv_backend static --max_restarts 0 --deepspeed_multinode_launcher standard \
                 --config_file deepspeed_16gpu.yaml -- train_taehv.py --config \
                 taehv_config_16gpu_h100.py"
            ),
        ),
        (
            "taehv",
            format!("{kubebrain} KUBEBRAIN_REPLICA=1 NODE_RANK=1 RANKLAUNCH_CONDA_ENV=tiny-vae"),
            8,
            format!(
                "{accelerate} --num_machines 2 --num_processes 16 --machine_rank 1 \
                 --main_process_ip 10.1.2.3 --main_process_port 9205 --rdzv_backend static \
                 --max_restarts 0 --deepspeed_multinode_launcher standard --config_file \
                 deepspeed_16gpu.yaml -- train_taehv.py --config taehv_config_16gpu_h100.py"
            ),
        ),
        (
            "zimdb",
            "WORLD_SIZE=1 RANK=0 MASTER_ADDR=zimdb-master-0 MASTER_PORT=23456 PET_NNODES=1 \
             PET_NODE_RANK=0 PET_NPROC_PER_NODE=4 PET_MASTER_ADDR=zimdb-master-0 \
             PET_MASTER_PORT=23456"
                .to_owned(),
            4,
            format!(
                "{TORCHRUN} --nnodes 1 --nproc-per-node 4 --node-rank 0 --rdzv-backend static \
                 --master-addr 127.0.0.1 --master-port 23456 --max-restarts 0 -- train.py"
            ),
        ),
    ];
    for (profile, platform, gpus, expected) in table {
        let node = Node::with_gpus(gpus).platform(&platform);
        // The environment is the user's choice, in a root to which CONDA_EXE points.
        let node = node
            .interpreter("/opt/tiny/envs/tiny-vae")
            .file("/opt/tiny/conda-meta/history", "")
            .file("/opt/tiny/bin/conda", "")
            .env("CONDA_EXE", "/opt/tiny/bin/conda");
        let planned = node.json(&["--profile", profile]);
        assert_eq!(planned.code, 0, "{profile} {:#}", planned.json);
        let argv = planned.words("/argv").join(" ");
        assert!(argv.starts_with(&expected), "{profile}\n want {expected}\n have {argv}");
        let removed = planned.words("/env_remove");
        for name in platform.split_whitespace().filter_map(|pair| pair.split_once('=')) {
            let reaches = name.0.starts_with("PET_") || matches!(name.0, "RANK" | "WORLD_SIZE");
            assert_eq!(removed.contains(&name.0.to_owned()), reaches, "{} of {profile}", name.0);
        }
    }
}

/// `platform nnodes rank addr:port nproc world`, or `code id` and words of the refusal.
#[test]
fn platform_contracts_are_read_with_their_traps() {
    let table = [
        ("", "none 1 0 127.0.0.1:29500 8 8"),
        ("WORLD_SIZE=2 RANK=1 MASTER_ADDR=h MASTER_PORT=29500", "generic 2 1 h:29500 8 16"),
        // A count without other evidence means nodes, even if it could be the GPUs of one node.
        ("WORLD_SIZE=8 RANK=0 MASTER_ADDR=h", "generic 8 0 h:29500 8 64"),
        // With nprocPerNode = 8, WORLD_SIZE counts processes and RANK counts nodes.
        (
            "PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=8 WORLD_SIZE=16 RANK=1 \
             MASTER_ADDR=j-master-0 MASTER_PORT=23456",
            "kubeflow-pytorchjob 2 1 j-master-0:23456 8 16",
        ),
        (
            "PET_NNODES=2 PET_NODE_RANK=0 PET_NPROC_PER_NODE=4 PET_MASTER_ADDR=j-node-0-0.j \
             PET_MASTER_PORT=29500 JOB_COMPLETION_INDEX=0",
            "kubeflow-trainer-v2 2 0 j-node-0-0.j:29500 4 8",
        ),
        // The operator of that time tells the master that its address is localhost.
        (
            "PYTHONUNBUFFERED=0 MASTER_ADDR=localhost MASTER_PORT=23456 WORLD_SIZE=3 RANK=0",
            "kubeflow-pytorchjob 3 0 localhost:23456 8 24",
        ),
        (
            "PET_NNODES=1:4 PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=j-worker-0:23456",
            "kubeflow-pytorchjob 4 0 j-worker-0:23456 8 32",
        ),
        (
            "KUBEBRAIN_REPLICA=1 KUBEBRAIN_REPLICA_TOTAL=4 MASTER_ADDR=10.1.2.3 PORT_0=9205",
            "kubebrain 4 1 10.1.2.3:9205 8 32",
        ),
        (
            "NUM_NODES=2 NUM_TRAINERS=8 NODE_RANK=1 WORLD_SIZE=16 PRIMARY_ADDR=10.65.0.2 \
             PRIMARY_PORT=29500 MASTER_ADDR=10.65.0.2 MASTER_PORT=29500",
            "runpod 2 1 10.65.0.2:29500 8 16",
        ),
        (
            "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=4 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1 \
             SLURM_STEP_NODELIST=n[03-04] SLURM_STEP_TASKS_PER_NODE=1(x2)",
            "slurm 2 1 n03:27446 8 16",
        ),
        (
            "AWS_BATCH_JOB_NUM_NODES=2 AWS_BATCH_JOB_NODE_INDEX=0 AWS_BATCH_JOB_MAIN_NODE_INDEX=0",
            "aws-batch 2 0 127.0.0.1:29500 8 16",
        ),
        ("SM_HOSTS=[\"a-1\",\"a-2\"] SM_CURRENT_HOST=a-2", "sagemaker 2 1 a-1:7777 8 16"),
        ("JOB_COMPLETION_INDEX=3", "kubernetes-indexed-job 1 0 127.0.0.1:29500 8 8"),
        ("PET_NPROC_PER_NODE=16 PET_NNODES=1", "80 gpu.count"),
        ("WORLD_SIZE=2 RANK=1 MASTER_ADDR=None", "65 membership.master-addr"),
        ("WORLD_SIZE=2 RANK=2 MASTER_ADDR=h", "65 membership.rank"),
        ("WORLD_SIZE=2 MASTER_ADDR=h", "65 membership.half-given"),
        ("WORLD_SIZE=0 RANK=0", "65 membership.number"),
        (
            "WORLD_SIZE=2 RANK=0 MASTER_ADDR=h MASTER_PORT=tcp://10.0.0.1:29500",
            "65 membership.master-port",
        ),
        (
            "KUBEBRAIN_REPLICA=1 KUBEBRAIN_REPLICA_TOTAL=2 NODE_COUNT=4 MASTER_ADDR=h",
            "65 membership.contradiction",
        ),
        (
            "OMPI_COMM_WORLD_SIZE=16 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=8 \
             MASTER_ADDR=h",
            "65 membership.tasks",
        ),
    ];
    let mut wrong = Vec::new();
    for (platform, expected) in table {
        let planned = Node::with_gpus(8).platform(platform).json(&["--", "train.py"]);
        let have = if planned.code == 0 {
            let of = |name: &str| planned.at(&format!("/membership/{name}"));
            let (nproc, world) = (planned.at("/nproc_per_node"), planned.at("/world_size"));
            format!(
                "{} {} {} {}:{} {nproc} {world}",
                of("platform"),
                of("nnodes"),
                of("node_rank"),
                of("master_addr"),
                of("master_port")
            )
        } else {
            planned.refusal()
        };
        if have != expected {
            wrong.push(format!("{platform}\n want {expected}\n have {have}"));
        }
        // The master's name is in /etc/hosts, in whatever form the platform gives it: no name
        // server is asked for `n[03-04]`.
        if asked_in_vain(&planned) {
            wrong.push(format!("{platform}\n has no address: {:#}", planned.json["warnings"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The control: a name that does not exist.
    let node = Node::with_gpus(8).platform("WORLD_SIZE=2 RANK=1 MASTER_ADDR=nobody");
    assert!(asked_in_vain(&node.json(&["--", "train.py"])));
}

fn asked_in_vain(planned: &harness::node::Planned) -> bool {
    planned.code == 0 && planned.warning_ids().contains(&"master.resolve".to_owned())
}

#[test]
fn an_elastic_job_is_passed_through_to_c10d() {
    let node = Node::with_gpus(8)
        .platform("PET_NNODES=1:4 PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=j-worker-0:23456");
    let planned = node.json(&["--", "train.py"]);
    let argv = planned.words("/argv").join(" ");
    assert!(
        argv.starts_with(&format!(
            "{TORCHRUN} --nnodes 1:4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint \
             j-worker-0:23456"
        )),
        "{argv}"
    );
    assert!(!argv.contains("--node-rank") && !argv.contains("is_host"), "{argv}");
}

/// The user's own choice of devices is the world; a subset consists of its tokens.
#[test]
fn cuda_visible_devices_is_read_as_in_pytorch() {
    let table = [
        ("3,1", "auto", "3:0 1:1", "absent"),
        ("3,1,2", "2", "3:0 1:1 2:-", "3,1"),
        ("GPU-fa4e0002,GPU-fa4e0005", "1", "2:0 5:-", "GPU-fa4e0002"),
        // PyTorch stops at the first invalid index.
        ("1,9,2", "auto", "1:0", "absent"),
        ("6,7", "3", "80 gpu.count", ""),
        // Empty means the CPU.
        ("", "auto", "", "absent"),
        // No device is left of the list.
        ("9", "auto", "80 gpu.count", ""),
        ("0,0", "auto", "80 gpu.count", ""),
    ];
    for (devices, nproc, gpus, exported) in table {
        let node = Node::with_gpus(8).env("CUDA_VISIBLE_DEVICES", devices);
        let planned = node.json(&["--nproc-per-node", nproc, "--", "train.py"]);
        if planned.code != 0 {
            assert_eq!(planned.refusal(), gpus, "{devices:?} {:#}", planned.json);
            continue;
        }
        let list = planned.json["gpus"].as_array().expect("a list");
        let have: Vec<String> = list
            .iter()
            .map(|gpu| {
                let rank = gpu["local_rank"].as_u64();
                format!("{}:{}", gpu["index"], rank.map_or("-".to_owned(), |r| r.to_string()))
            })
            .collect();
        assert_eq!(have.join(" "), gpus, "{devices:?}");
        assert_eq!(planned.at("/env/CUDA_VISIBLE_DEVICES"), exported, "{devices:?}");
    }
}

#[test]
fn idle_gpus_are_preferred_to_busy_ones() {
    let nvml = harness::fake_nvml::FakeNvml::new(&[("GPUS", "4"), ("USED", "30000,0,0,20000")]);
    let args = ["--nproc-per-node", "2", "--", "train.py"];
    let planned = Node::of(Some(nvml)).json(&args);
    assert_eq!(planned.at("/env/CUDA_VISIBLE_DEVICES"), "1,2", "{:#}", planned.json);
    assert!(!planned.warning_ids().contains(&"gpu.busy".to_owned()));
}

/// Everything below the node's root and the working folder is as it was.
#[test]
fn a_plan_changes_nothing() {
    let node = Node::with_gpus(8).platform("WORLD_SIZE=2 RANK=0 MASTER_ADDR=h");
    let listing = |folder: &std::path::Path| {
        let output = std::process::Command::new("find")
            .arg(folder)
            .args(["-printf", "%P %s %m %C@\n"])
            .output()
            .expect("find runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let before = listing(node.root());
    // The process would match any rule for stale processes, if one were applied.
    let script = tempfile::tempdir().expect("a folder");
    let file = script.path().join("generate.py");
    std::fs::write(&file, "exec sleep 600\n").expect("a script");
    let mut rank = std::process::Command::new("/bin/sh");
    std::os::unix::process::CommandExt::arg0(&mut rank, "python3");
    let mut rank = rank.arg(&file).env("TORCHELASTIC_RUN_ID", "none").spawn().expect("a rank");
    for format in ["text", "json", "shell"] {
        let path = file.to_str().expect("a path");
        let log_dir = script.path().join("logs");
        let log_dir = log_dir.to_str().expect("a path");
        let args = ["--format", format, "--python", PYTHON, "--log-dir", log_dir, "--", path];
        let ended = node.plan(&args).expect_code(0).expect_nothing_left();
        let files = std::fs::read_dir(ended.folder()).expect("a folder");
        let mut names: Vec<_> = files.flatten().map(|file| file.file_name()).collect();
        names.sort();
        assert_eq!(names, ["console.err", "console.out"], "only what the test itself keeps");
        assert!(!std::path::Path::new(log_dir).exists());
    }
    assert_eq!(listing(node.root()), before);
    assert_eq!(rank.try_wait().expect("wait"), None, "the process was ended");
    rank.kill().and_then(|()| rank.wait()).expect("ends");
}
