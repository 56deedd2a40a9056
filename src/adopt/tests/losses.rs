//! What a reading of a script must not lose, and what goes all the same.

use super::*;

fn adopted(script: &str) -> Adopted {
    adopted_with(script, NONE)
}

/// Lines around a launch, and whether the script that is printed still has the text.
fn holds(cases: &[(&str, &str, bool)]) {
    for (script, part, stays) in cases {
        let adopted = adopted(script);
        assert_eq!(
            adopted.answers[0].script.contains(part),
            *stays,
            "{script}\n{}",
            adopted.answers[0].script
        );
        if *stays {
            let name = part.split('=').next().and_then(|it| it.rsplit(' ').next()).unwrap_or(part);
            assert!(
                adopted.answers[0].profile.as_ref().is_none_or(|profile| !profile.is_all
                    || profile.text.contains(part.trim())
                    || profile.text.contains(name)),
                "{script}"
            );
        }
    }
}

#[test]
fn commands_in_assignments_stay() {
    holds(&[
        ("OUT=$(mkdir -p /data && cp c /data && echo ok)\ntorchrun a.py", "mkdir -p /data", true),
        ("PORT=$(python prepare_data.py)\ntorchrun a.py", "prepare_data.py", true),
        ("A=`rm -rf x`\ntorchrun a.py", "rm -rf x", true),
        ("A=\"${B:-$(rm -rf x)}\"\ntorchrun a.py", "rm -rf x", true),
        ("A=$(echo $(rm -rf x))\ntorchrun a.py", "rm -rf x", true),
        ("A=$(date > started)\ntorchrun a.py", "started", true),
        ("export MASTER_ADDR=$(start_store)\ntorchrun a.py", "start_store", true),
        ("A=$(date +%s)\ntorchrun a.py", "date", false),
        ("A=$(cd \"$(dirname \"$0\")\" && pwd)\ntorchrun a.py", "dirname", false),
        ("A=$((1 + 2))\ntorchrun a.py", "A=", false),
        ("N=$(nvidia-smi -L 2>/dev/null | wc -l)\ntorchrun a.py", "nvidia-smi", false),
    ]);
}

#[test]
fn exported_variables_stay() {
    holds(&[
        ("BAR=1\nexport BAR\ntorchrun a.py", "BAR=1\n", true),
        ("WANDB_NAME=q; export WANDB_NAME\ntorchrun a.py", "WANDB_NAME=q", true),
        ("declare -gx Z=1\ntorchrun a.py", "declare -gx Z=1", true),
        ("set -a\nBAR=2\ntorchrun a.py", "BAR=2", true),
        ("set -o allexport\nBAR=2\ntorchrun a.py", "BAR=2", true),
        ("export LR=1\nLR=2\ntorchrun a.py", "LR=2", true),
        ("PATH=/opt/bin:$PATH\ntorchrun a.py", "PATH=/opt", true),
        ("set -a\nset +a\nBAR=2\ntorchrun a.py", "BAR=2", false),
        ("set -e\nBAR=2\ntorchrun a.py", "BAR=2", false),
        ("MASTER_PORT=1; export MASTER_PORT\ntorchrun a.py", "MASTER_PORT", false),
    ]);
}

#[test]
fn files_that_other_lines_name_are_written() {
    holds(&[
        ("torchrun e.py > eval.json\npython upload.py eval.json", "> eval.json", true),
        ("O=eval.json\ntorchrun e.py > $O\npython up.py $O", "> $O", true),
        ("O=eval.json\ntorchrun e.py > $O 2>&1\npython up.py eval.json", "> $O 2>&1", true),
        ("torchrun e.py | tee eval.log\npython up.py eval.log", "tee eval.log", true),
        ("torchrun e.py > out.log; grep loss out.log", "> out.log", true),
        ("torchrun e.py > out.log\necho done, see out.log", "> out.log", false),
        ("torchrun e.py 2>&1 | tee eval.log", "tee", false),
        ("nvidia-smi > gpus.txt\ntorchrun a.py", "nvidia-smi > gpus.txt", true),
    ]);
    let adopted = adopted("torchrun e.py > out.log");
    assert!(adopted.lines.iter().any(|line| line.why.en.contains("out.log")));
}

#[test]
fn no_pipe_is_left_without_a_reader() {
    let line = "L=\"torchrun a.py\"\n";
    for (script, stays) in [
        (format!("{line}$L 2>&1 | tee -a log\n"), "$L 2>&1\n"),
        (format!("{line}srun bash -c \"$L\" | tee log\n"), "srun bash -c \"$L\"\n"),
        ("pip install x | tee log\ntorchrun a.py".to_owned(), "pip install x | tee log\n"),
        ("for i in 1 2; do torchrun a.py; done | tee log".to_owned(), "done | tee log"),
    ] {
        let adopted = adopted(&script);
        let text = &adopted.answers[0].script;
        assert!(text.contains(stays) && !text.contains("| :"), "{script}\n{text}");
    }
}

#[test]
fn launch_lines_of_variables_go_on_at_line_ends() {
    let adopted = adopted(
        "L=\"torchrun --nproc_per_node 2\n  --max_restarts 3 \\\n  --tee 3 \\\n  \"\n$L a.py\n",
    );
    let text = &adopted.answers[0].script;
    assert_eq!(text, "L=\"ranklaunch --nproc-per-node 2 --max-restarts 3 -- \\\n  \"\n$L a.py\n");
}

#[test]
fn launchers_behind_an_unknown_prefix_are_found() {
    for (script, line) in [
        (
            "$PREFIX torchrun --nproc_per_node 2 a.py",
            "$PREFIX ranklaunch --nproc-per-node 2 -- a.py",
        ),
        ("$(cmd) $X accelerate launch a.py", "$(cmd) $X ranklaunch --engine accelerate -- a.py"),
    ] {
        let adopted = adopted(script);
        assert_eq!(adopted.answers[0].script, line);
        assert!(adopted.answers[0].profile.is_none(), "the prefix is in no profile");
    }
    for none in ["$PREFIX echo torchrun a.py", "\"$PREFIX\" torchrun a.py"] {
        assert!(Adopted::of_script("a.sh", none, NONE).is_err(), "{none}");
    }
}

#[test]
fn traps_and_kills_of_other_programs_stay() {
    holds(&[
        ("trap 'rm -rf /scratch/job; cp -r out /a' EXIT\ntorchrun a.py", "cp -r out", true),
        ("trap cleanup EXIT\ntorchrun a.py", "trap cleanup", true),
        ("trap 'kill $SERVER' EXIT\ntorchrun a.py", "trap", true),
        ("trap 'kill 0; exit 1' INT\ntorchrun a.py", "trap", false),
        ("torchrun a.py\npkill -f my_server", "pkill", true),
        ("torchrun a.py\nkill $(cat other.pid)", "kill", true),
        ("ps aux | grep server | xargs kill\ntorchrun a.py", "xargs kill", true),
        ("ps aux | grep a.py | awk '{print $2}' | xargs kill -9\ntorchrun a.py", "kill", false),
        ("pkill -9 python\ntorchrun a.py", "pkill", false),
    ]);
}

#[test]
fn waits_for_something_else_stay() {
    holds(&[
        (
            "while ! nc -z db 5432; do sleep 1; done\ntorchrun a.py",
            "nc -z db 5432; do sleep 1",
            true,
        ),
        ("until [ -f /data/ready ]; do sleep 5; done\ntorchrun a.py", "sleep 5", true),
        ("my_server &\nsleep 9\ntorchrun a.py", "sleep 9", true),
        ("wait-for-it.sh db:5432\ntorchrun a.py", "wait-for-it.sh", true),
        ("until nc -z $MASTER_ADDR 29500; do sleep 1; done\ntorchrun a.py", "nc -z", false),
        ("sleep 5\ntorchrun a.py", "sleep", false),
    ]);
}

#[test]
fn process_substitutions_are_one_word() {
    let script = "torchrun a.py < in.txt >> out.log 2> >(tee err.log)";
    let adopted = adopted(script);
    assert_eq!(adopted.answers[0].script, "ranklaunch --nproc-per-node 1 -- a.py < in.txt");
    assert!(adopted.answers[0].profile.is_none(), "the input has no place in a profile");
    holds(&[("torchrun a.py --x <(gen a)", "a.py --x <(gen a)", true)]);
}

#[test]
fn devices_and_interpreters_are_kept() {
    for (script, line) in [
        ("deepspeed -i localhost:0,1 a.py", "CUDA_VISIBLE_DEVICES=0,1 ranklaunch -- a.py"),
        (
            "deepspeed --include w0:0,1@w1:0,1 a.py",
            "CUDA_VISIBLE_DEVICES=0,1 ranklaunch --nnodes 2 --node-rank \"${NODE_RANK:?}\" -- a.py",
        ),
        (
            "deepspeed --include w0:0,1@w1:2 a.py",
            "ranklaunch --nnodes 2 --node-rank \"${NODE_RANK:?}\" -- a.py",
        ),
        (
            "/opt/py/bin/python -m torch.distributed.run a.py",
            "ranklaunch --nproc-per-node 1 --python /opt/py/bin/python -- a.py",
        ),
        (
            "/opt/py/bin/torchrun a.py",
            "ranklaunch --nproc-per-node 1 --python /opt/py/bin/python -- a.py",
        ),
        ("N=8; L=\"--nproc_per_node=$N\"; torchrun $L a.py", "--nproc-per-node $N -- a.py"),
        ("L=\"--nproc_per_node=8\"; torchrun \"$L\" a.py", "--nproc-per-node 8 -- a.py"),
        ("L=--nproc_per_node=$1; torchrun $L a.py", "--nproc-per-node $1 -- a.py"),
    ] {
        let adopted = adopted(script);
        assert!(
            adopted.answers[0].script.contains(line),
            "{script}\n{}",
            adopted.answers[0].script
        );
    }
}

#[test]
fn unknown_arguments_make_no_profile() {
    for script in [
        "torchrun a.py --f data/*.json",
        "torchrun a.py --f data/[ab].json",
        "F=\"--x ['A']\"; torchrun a.py $F",
        "IFS=,; F=\"--x a,b c\"; torchrun a.py $F",
        "torchrun a.py < in.txt",
        "torchrun a.py <<E\nx\nE\n",
    ] {
        let adopted = adopted(script);
        assert!(adopted.answers[0].profile.is_none(), "{script}");
    }
    assert!(adopted("F=\"--x A\"; torchrun a.py $F").answers[0].profile.is_some());
}

/// Without the switch the launcher would start Python.
#[test]
fn program_that_is_no_script_is_a_command() {
    for (line, key) in [
        ("torchrun --no-python -- bash t.sh", "command = [\"bash\", \"t.sh\"]"),
        ("torchrun --no_python bash t.sh", "command = [\"bash\", \"t.sh\"]"),
        ("accelerate launch --no_python bash t.sh", "command = [\"bash\", \"t.sh\"]"),
        ("torchrun train x", "script = \"train\"\nargs = [\"x\"]"),
    ] {
        let adopted = adopted(line);
        let profile = adopted.answers[0].profile.as_ref().expect("a profile");
        assert!(profile.text.contains(key), "{line}: {}", profile.text);
    }
}

#[test]
fn profiles_hold_one_set_of_arguments() {
    let two = "accelerate launch --use_fsdp a.py\naccelerate launch --use_deepspeed b.py\n";
    let adopted = adopted(two);
    assert!(
        adopted.answers[0].script.contains("ranklaunch --profile a.toml -- a.py\n"),
        "{}",
        adopted.answers[0].script
    );
    let stays = "ranklaunch --engine command -- accelerate launch --use_deepspeed b.py\n";
    assert!(adopted.answers[0].script.contains(stays), "{}", adopted.answers[0].script);
}

#[test]
fn hidden_launches_are_not_understood() {
    for line in [
        "echo \"torchrun b.py\" | bash",
        "python -c \"import os; os.system('torchrun b.py')\"",
        "alias tr=\"torchrun b.py\"",
    ] {
        let adopted = adopted(&format!("{line}\ntorchrun a.py\n"));
        let found = adopted.lines.iter().filter(|one| one.first == 1);
        assert!(
            found.into_iter().any(|one| one.class == Class::NotUnderstood),
            "{line}: {:?}",
            adopted.lines
        );
    }
}

#[test]
fn compose_values_stay_as_written() {
    let text = "services:\n  a:\n    command: torchrun --nproc_per_node ${N:-2} a.py --lr ${LR} --t \"${T:?}\" $${X}\n";
    let adopted = Adopted::of_manifest("compose.yaml", text, NONE).expect("a launch");
    for value in ["\"${N:-2}\"", "\"${LR}\"", "\"${T:?}\"", "\"$${X}\""] {
        assert!(adopted.answers[0].script.contains(value), "{}", adopted.answers[0].script);
    }
    let port = "services:\n  a:\n    command: torchrun --nnodes $N --master_port $PORT a.py\n";
    let adopted = Adopted::of_manifest("compose.yaml", port, NONE).expect("a launch");
    assert!(adopted.lines.iter().all(|line| line.class != Class::Wrong), "{adopted:?}");
    assert!(adopted.answers[0].script.contains("\"--master-port\", \"$PORT\""), "{adopted:?}");
}

#[test]
fn devices_of_a_launcher_are_in_no_profile() {
    for line in ["deepspeed --include localhost:1,2 a.py", "accelerate launch --gpu_ids 1,2 a.py"] {
        let adopted = adopted(line);
        let answer = &adopted.answers[0];
        assert!(answer.profile.as_ref().is_none_or(|profile| !profile.is_all), "{line}");
        assert!(answer.script.contains("CUDA_VISIBLE_DEVICES=1,2 "), "{line}");
    }
}
