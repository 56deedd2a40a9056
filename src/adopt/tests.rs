//! Whole scripts: the classes of their lines, and lines that are cut anywhere.

use super::*;
use classes::Class;

mod files;
mod losses;

const NONE: Files<'_> = &|_| Err(text!("none is here", "此处没有"));

/// A script that names these files.
pub(crate) fn adopted_with(script: &str, files: Files<'_>) -> Adopted {
    let read = Adopted::of_script("a.sh", script, files);
    read.unwrap_or_else(|why| panic!("{}: {script}", why.en))
}

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
    let adopted = Adopted::of_script("train.sh", SCRIPT, NONE).expect("a launch");
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
    assert!(adopted.answers[0].script.contains(line), "{}", adopted.answers[0].script);
    assert!(adopted.answers[0].profile.is_none());
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
        let adopted = Adopted::of_script("a.sh", script, NONE).expect(script);
        assert_eq!(adopted.answers[0].script, line, "{script}");
    }
    for none in [
        "echo torchrun a.py",
        "pip install deepspeed",
        "which torchrun",
        "torchrun --help",
        "python a.py",
        "",
    ] {
        assert!(Adopted::of_script("a.sh", none, NONE).is_err(), "{none}");
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
    let adopted = Adopted::of_manifest("job.yaml", manifest, NONE).expect("a launch");
    let answers: Vec<(&str, &str)> = adopted
        .answers
        .iter()
        .map(|one| (one.containers[0].as_str(), one.script.as_str()))
        .collect();
    assert_eq!(
        answers,
        [
            (
                "pytorch",
                "command: [\"ranklaunch\", \"--nproc-per-node\", \"4\", \"--\", \"train.py\", \"$(ARG)\"]\n"
            ),
            ("other", "ranklaunch --nproc-per-node 2 -- eval.py\n"),
        ]
    );
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
