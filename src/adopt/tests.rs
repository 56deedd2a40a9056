//! Whole scripts: the classes of their lines, and lines that are cut anywhere.

use super::*;
use classes::Class;

mod losses;

const SCRIPT: &str = "\
#!/bin/bash
pkill -f train.py
ps aux | grep train.py
export NCCL_DEBUG=INFO
export WANDB_MODE=offline
PORT=29501
until nc -z $HOST $PORT; do
    sleep 1
done
if [ -n \"$FAST\" ]; then
    pip install flash-attn
fi
source ./settings.sh
for seed in 1 2; do
    nohup torchrun --nproc_per_node=2 --master_port=$PORT train.py --seed $seed > log.$seed 2>&1 &
done
wait
";

fn class_of(adopted: &Adopted, line: usize) -> Class {
    let found = adopted.lines.iter().filter(|one| (one.first..=one.last).contains(&line));
    found.map(|one| one.class).min().expect("every line has a class")
}

#[test]
fn every_line_has_its_class() {
    let adopted = Adopted::of_script("train.sh", SCRIPT).expect("a launch");
    for (line, class) in [
        (2, Class::Unnecessary),
        (3, Class::Unnecessary),
        (4, Class::Unnecessary),
        (5, Class::Kept),
        // A sourced script may use it.
        (6, Class::Kept),
        (7, Class::Unnecessary),
        (9, Class::Unnecessary),
        (11, Class::Kept),
        (13, Class::NotUnderstood),
        (15, Class::Replaced),
        (16, Class::Kept),
    ] {
        assert_eq!(class_of(&adopted, line), class, "line {line}");
    }
    let line =
        "    nohup ranklaunch --nproc-per-node 2 --master-port $PORT -- train.py --seed $seed &\n";
    assert!(adopted.script.contains(line), "{}", adopted.script);
    assert!(adopted.profile.is_none());
}

#[test]
fn launches_are_found_behind_anything() {
    for (script, line) in [
        ("srun -N 2 torchrun a.py", "srun -N 2 ranklaunch --nproc-per-node 1 -- a.py"),
        (
            "bash -c 'cd x && torchrun a.py'",
            "bash -c 'cd x && ranklaunch --nproc-per-node 1 -- a.py'",
        ),
        ("x || torchrun --nproc_per_node gpu a.py", "x || ranklaunch --nproc-per-node gpu -- a.py"),
        ("A=1 python -m torch.distributed.run a.py", "A=1 ranklaunch --nproc-per-node 1 -- a.py"),
        (
            "submit --gpus 8 -- torchrun a.py",
            "submit --gpus 8 -- ranklaunch --nproc-per-node 1 -- a.py",
        ),
        (
            "CMD=\"torchrun a.py\"\neval $CMD",
            "CMD=\"ranklaunch --nproc-per-node 1 -- a.py\"\neval $CMD",
        ),
        (
            "id=$(submit -- torchrun a.py | tail -1)",
            "id=$(submit -- ranklaunch --nproc-per-node 1 -- a.py | tail -1)",
        ),
        (
            "A=$(srun -n 1 \"$B\" hostname)\ntorchrun --master_port 1 a.py",
            "ranklaunch --nproc-per-node 1 --master-port 1 -- a.py",
        ),
        ("mpirun -np 4 python -u a.py", "mpirun -np 4 ranklaunch --engine direct -- a.py"),
        ("deepspeed --include localhost:1,2 a.py", "CUDA_VISIBLE_DEVICES=1,2 ranklaunch -- a.py"),
        ("torchrun $OPTIONS a.py", "ranklaunch --nproc-per-node 1 $OPTIONS -- a.py"),
    ] {
        let adopted = Adopted::of_script("a.sh", script).expect(script);
        assert_eq!(adopted.script, line, "{script}");
    }
    for none in [
        "echo torchrun a.py",
        "pip install deepspeed",
        "which torchrun",
        "torchrun --help",
        "python a.py",
        "",
    ] {
        assert!(Adopted::of_script("a.sh", none).is_none(), "{none}");
    }
}

#[test]
fn cut_scripts_lose_no_line() {
    for end in (0..SCRIPT.len()).step_by(3) {
        fuzz::script(SCRIPT.get(..end).unwrap_or_default().as_bytes());
        fuzz::script(SCRIPT.get(end..).unwrap_or_default().as_bytes());
    }
}

#[test]
fn commands_of_manifests_are_adopted() {
    let manifest = "\
kind: PyTorchJob
spec:
  template:
    spec:
      containers:
      - name: pytorch
        command: [torchrun, --nnodes=$(WORLD_SIZE), --node_rank=$(RANK), --nproc_per_node=4, train.py, $(ARG)]
        env:
        - name: NCCL_SOCKET_IFNAME
          value: eth0
      - name: other
        command: [bash, -c]
        args:
        - |
          sleep 5
          torchrun --nproc_per_node=2 eval.py
";
    let adopted = Adopted::of_manifest("job.yaml", manifest).expect("a launch");
    let expected = "command: [\"ranklaunch\", \"--nproc-per-node\", \"4\", \"--\", \"train.py\", \"$(ARG)\"]\n\
        ranklaunch --nproc-per-node 2 -- eval.py\n";
    assert_eq!(adopted.script, expected);
    for (line, class) in [
        (1, Class::Kept),
        (7, Class::Replaced),
        (9, Class::Unnecessary),
        (15, Class::Unnecessary),
        (16, Class::Replaced),
    ] {
        let found = adopted.lines.iter().filter(|one| (one.first..=one.last).contains(&line));
        assert!(found.into_iter().any(|one| one.class == class), "line {line}");
    }
}

#[test]
fn config_of_another_machine_is_wrong() {
    let mut adopted = Adopted::of_script("a.sh", "accelerate launch --config_file x.yaml a.py")
        .expect("a launch");
    assert_eq!(adopted.config_files(), ["x.yaml"]);
    let before = adopted.lines.len();
    adopted.add_config("x.yaml", "distributed_type: FSDP\nnum_machines: 1\nmachine_rank: 0\n");
    assert_eq!(adopted.lines.len(), before);
    let config =
        "distributed_type: FSDP\nnum_machines: 2\nnum_processes: 16\nmain_process_ip: null\n";
    adopted.add_config("x.yaml", config);
    let wrong = adopted.lines.iter().find(|line| line.class == Class::Wrong).expect("a mistake");
    assert!(wrong.why.en.contains("num_machines 2, num_processes 16"), "{}", wrong.why.en);
}
