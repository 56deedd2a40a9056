"""Compares what a start-up script runs with what `ranklaunch adopt` makes of it.

    oracle.py RANKLAUNCH SCRIPT…

Each script is executed by a real bash in a scratch folder. Programs first in PATH stand for launchers and for what must
not run: they record their words and their environment. So nothing here reads a script: the words of a launcher are those
that bash gave it. What they mean (nodes, processes of a node, program and arguments) is taken from the launchers'
manuals. Then the script that `adopt` printed runs in the same way, and `ranklaunch plan` with the recorded words and
environment of each `ranklaunch` must say the same. Prints one JSON object per script.
"""

import json
import os
import re
import shutil
import string
import subprocess
import sys
import tempfile

GPUS = 8
# Of a script that wants other ones nothing may be launched.
ARGUMENTS = [["4"] * 4, [], ["4"], ["4"] * 2, ["--hf-token", "a", "--checkpoint", "b"]]
NODES = 2

RECORD = r"""#!/bin/bash -p
name=${0##*/}
exec 9>> "$ORACLE_RECORD"
# A script may start several in the background.
/usr/bin/flock 9
{ printf '%s\0' "$name" "$@"; printf '\1'; /usr/bin/env -0; printf '\2'; } >&9
exit 0
"""

# Runs the command behind the options of srun or mpirun, once, as the first task.
TASKS = r"""#!/bin/bash -p
before=
for first; do
    # srun may ask for tasks of its own.
    case $before$first in
        --ntasks-per-node=[0-9]*|--ntasks-per-node[0-9]*) tasks=${first#*=} ;;
    esac
    before=
    [ "$first" != --ntasks-per-node ] || before=$first
    case $first in
        torchrun|deepspeed|accelerate|python*|ranklaunch|bash|sh|env|*/bash|*/python*|*.sh|singularity|apptainer|nsys|numactl) break ;;
    esac
    shift
done
[ $# -gt 0 ] || exit 0
case ${0##*/} in
    srun)
        [ -z "$tasks" ] || export SLURM_NTASKS_PER_NODE=$tasks SLURM_NTASKS=$((tasks * SLURM_NNODES)) \
            SLURM_STEP_TASKS_PER_NODE="$tasks(x$SLURM_NNODES)"
        export SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=$SLURM_NNODES SLURM_STEP_NODELIST=$SLURM_JOB_NODELIST SLURM_STEP_NUM_TASKS=$SLURM_NTASKS ;;
    mpirun|mpiexec) export OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=8 ORACLE_TASKS=1 ;;
esac
export ORACLE_TASKS=1
exec "$@"
"""

# Python is a launcher where it runs the module of one, else one of several tasks, else something of the script.
PYTHON = r"""#!/bin/bash -p
for word; do
    case $word in
        torch.distributed.launch|torch.distributed.run|torchrun|accelerate.commands.launch|deepspeed.launcher.runner)
            exec torchrun-module "$@" ;;
    esac
done
words=("$@")
while [ $# -gt 0 ]; do
    if [ "$1" = -- ]; then shift; exec "$@"; fi
    shift
done
[ -z "$ORACLE_TASKS" ] || exec python-task "${words[@]}"
[ "${words[0]}" != -c ] || echo 8
exit 0
"""

CARRIER = r"""#!/bin/bash -p
while [ $# -gt 0 ]; do
    case $1 in torchrun|deepspeed|accelerate|python*|ranklaunch|bash) exec "$@" ;; esac
    shift
done
exit 0
"""

# Folders of the scratch folder only.
FOLDERS = r"""#!/bin/bash -p
for word; do
    case $word in -*|/*|..*) ;; *) /bin/mkdir -p "$word" ;; esac
done
exit 0
"""

NOTHING = "#!/bin/bash -p\nexit 0\n"

STUBS = {
    RECORD: "torchrun deepspeed accelerate torchrun-module python-task ranklaunch hyperpodrun accelerate-launch",
    TASKS: "srun mpirun mpiexec",
    PYTHON: "python python3 python3.6 python3.7 python3.8 python3.9 python3.10 python3.11 python3.12",
    FOLDERS: "mkdir",
    CARRIER: "nohup sudo ssh docker podman singularity apptainer timeout numactl uv nsys taskset",
    NOTHING: "pip pip3 conda rm rmdir mv cp ln touch chmod chown tee wget curl git scp rsync pkill killall nc ncat ping"
    " sleep apt apt-get sbatch qsub kubectl wandb aws gsutil ray tensorboard ldconfig mount umount huggingface-cli hf"
    " reboot shutdown systemctl fuser ip ifconfig lsof netstat ss module nvcc ibdev2netdev make cmake ninja dd tar unzip"
    " find xargs crontab at service",
    "#!/bin/bash -p\nfor n in 0 1 2 3 4 5 6 7; do echo \"GPU $n: H100 (UUID: $n)\"; done\n": "nvidia-smi",
    "#!/bin/bash -p\necho node0\necho node1\n": "scontrol",
    "#!/bin/bash -p\necho 10.0.0.1\n": "hostname getent",
    "#!/bin/bash -p\necho 1700000000\n": "date",
}

# Functions win over programs and builtins.
FUNCTIONS = """
RANDOM=42
cd() { :; }
pushd() { :; }
popd() { :; }
kill() { :; }
module() { :; }
ml() { :; }
conda() { :; }
ulimit() { :; }
source() { [ -f "$1" ] && case $1 in "$ORACLE_FOLDER"/*|[!/]*) builtin source "$@" ;; esac; return 0; }
.() { source "$@"; }
"""


def run(text, folder, stubs, environment, name, arguments):
    """The commands that a script ran, with their environments."""
    path = os.path.join(folder, name)
    record = os.path.join(folder, "record")
    with open(path, "w") as file:
        file.write(text)
    open(record, "w").close()
    os.chmod(record, 0o666)
    variables = dict(
        environment,
        PATH=f"{stubs}:/usr/bin:/bin",
        HOME=folder,
        USER="oracle",
        ORACLE_RECORD=record,
        ORACLE_FOLDER=folder,
        BASH_ENV=os.path.join(stubs, "functions.sh"),
    )
    unprivileged = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    words = ["/bin/bash", name, *arguments]
    try:
        subprocess.run(
            words, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, timeout=6, **unprivileged,
        )
    except subprocess.TimeoutExpired:
        return None
    ran = []
    for entry in open(record, "rb").read().split(b"\2")[:-1]:
        words, _, rest = entry.partition(b"\1")
        decode = lambda item: item.decode("utf-8", "replace")
        words = [decode(word) for word in words.split(b"\0")[:-1]]
        env = dict(decode(item).split("=", 1) for item in rest.split(b"\0") if b"=" in item)
        ran.append((words, env))
    return ran


SWITCHES = {
    "torchrun": "--standalone -m --module --no-python --run-path --use-env --virtual-local-rank",
    "deepspeed": "-m --module --no-python --no-local-rank --no-ssh --force-multi --save-pid --no-ssh-check"
    " --enable-each-rank-log --bind-cores-to-rank",
    "accelerate": "--multi-gpu --cpu --use-deepspeed --use-fsdp --use-megatron-lm --same-network --no-python -m --module"
    " --debug -q --quiet --tpu --use-xpu --use-mps-device --mps",
}


def launcher_of(words):
    """Name and own words of a launcher."""
    name = words[0]
    if name == "torchrun-module":
        for at, word in enumerate(words):
            if word.startswith("torch.distributed.") or word == "torchrun":
                return "torchrun", words[at + 1:]
            if word.startswith("accelerate."):
                return "accelerate", words[at + 1:]
            if word.startswith("deepspeed."):
                return "deepspeed", words[at + 1:]
    if name == "accelerate":
        return ("accelerate", words[2:]) if words[1:2] == ["launch"] else (None, [])
    if name == "accelerate-launch":
        return "accelerate", words[1:]
    if name == "hyperpodrun":
        return "torchrun", words[1:]
    return name, words[1:]


def expected(words, env):
    """Nodes, processes of a node, and the words from the program on."""
    if words[0] == "python-task":
        at = 1
        while words[at].startswith("-") and words[at] != "-m":
            at += 2 if words[at] in ("-W", "-X") else 1
        if "SLURM_NNODES" in env:
            return int(env["SLURM_NNODES"]), int(env["SLURM_NTASKS_PER_NODE"]), words[at:]
        return 1, 8, words[at:]
    name, rest = launcher_of(words)
    if name is None:
        return None
    switches = SWITCHES[name].split()
    options, module, at = {}, False, 0
    while at < len(rest) and rest[at].startswith("-"):
        word = rest[at]
        at += 1
        if word == "--":
            continue
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        module |= flag in ("-m", "--module")
        if not equals and flag not in switches:
            value = rest[at] if at < len(rest) else ""
            at += 1
        options[flag] = value
    if at >= len(rest):
        return None
    program = (["-m"] if module else []) + rest[at:]
    visible = env.get("CUDA_VISIBLE_DEVICES")
    gpus = len([one for one in visible.split(",") if one.strip()]) if visible else GPUS
    number = lambda text, other: int(text) if text and text.lstrip("-").isdigit() else other
    if name == "torchrun":
        nodes = options.get("--nnodes", "1").split(":")[-1]
        nproc = options.get("--nproc-per-node", "1")
        if "--standalone" in options:
            nodes = "1"
        return number(nodes, None), number(nproc, gpus if nproc in ("gpu", "auto") else None), program
    if name == "accelerate":
        nodes = number(options.get("--num-machines"), 1)
        ids = options.get("--gpu-ids", "all")
        processes = number(options.get("--num-processes"), (gpus if ids == "all" else len(ids.split(","))) * nodes)
        return nodes, processes // nodes, program
    include = options.get("--include", options.get("-i", ""))
    nproc = number(options.get("--num-gpus"), gpus)
    if ":" in include:
        nproc = len(include.split(":")[1].split(","))
    return number(options.get("--num-nodes"), 1), gpus if nproc < 0 else nproc, program


def environment_of(text):
    """What a platform would set for this script."""
    if re.search(r"^#SBATCH|\bsrun\b|SLURM_", text, re.M):
        found = re.search(r"^#SBATCH\s+(?:--nodes|-N)[= ]*(\d+)", text, re.M)
        nodes = int(found[1]) if found else 1
        found = re.search(r"^#SBATCH\s+--n?tasks-per-node[= ]*(\d+)", text, re.M)
        tasks = int(found[1]) if found else 1
        return {
            "SLURM_JOB_ID": "7", "SLURM_JOBID": "7", "SLURM_NNODES": str(nodes), "SLURM_JOB_NUM_NODES": str(nodes),
            "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": str(nodes * tasks),
            "SLURM_NTASKS_PER_NODE": str(tasks), "SLURM_TASKS_PER_NODE": f"{tasks}(x{nodes})",
            "SLURM_STEP_TASKS_PER_NODE": f"{tasks}(x{nodes})",
            "SLURM_JOB_NODELIST": f"node[0-{nodes - 1}]" if nodes > 1 else "node0",
            "SLURM_NODELIST": f"node[0-{nodes - 1}]" if nodes > 1 else "node0", "SLURMD_NODENAME": "node0",
            "SLURM_GPUS_ON_NODE": str(GPUS), "SLURM_GPUS_PER_NODE": str(GPUS), "SLURM_CPUS_PER_TASK": "8",
            "SLURM_SUBMIT_DIR": ".", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
        }
    values = {
        "WORLD_SIZE": str(NODES), "RANK": "0", "NNODES": str(NODES), "NODE_RANK": "0", "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29511", "NUM_NODES": str(NODES), "NODE_COUNT": str(NODES), "nnodes": str(NODES),
        "NPROC_PER_NODE": str(GPUS), "GPUS_PER_NODE": str(GPUS), "NUM_GPUS": str(GPUS), "NUM_TRAINERS": str(GPUS),
        "PROC_PER_NODE": str(GPUS), "GPU_NUM": str(GPUS), "NGPUS": str(GPUS), "BEAKER_REPLICA_RANK": "0",
        "BEAKER_LEADER_REPLICA_HOSTNAME": "10.0.0.1", "BEAKER_NODE_HOSTNAME": "10.0.0.1",
    }
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    reads = lambda name: re.search(r"\$\{?" + name + r"\b", code)
    return {name: value for name, value in values.items() if reads(name)}


def judge(ranklaunch, adopt, path, stubs):
    text = open(path, encoding="utf-8", errors="replace").read().replace("\r\n", "\n")
    shown = os.path.basename(path)
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        os.chmod(folder, 0o777)
        environment = environment_of(text)
        before, seen_before = [], []
        for arguments in ARGUMENTS:
            ran = run(text, folder, stubs, environment, shown, arguments)
            ran = [(expected(*one), one[1]) for one in ran or []]
            before, seen_before = [one for one, _ in ran if one], [env for one, env in ran if one]
            if before:
                break
        said = subprocess.run([*adopt, path], capture_output=True, text=True)
        if said.returncode != 0 or not said.stdout.startswith("{"):
            why = said.stderr.strip().splitlines()[:1] or ["refused"]
            return {"script": shown, "same": None if not before else False, "why": "adopt: " + why[0], "ran": len(before)}
        adopted = json.loads(said.stdout)
        lost = lines_without_a_class(text, adopted)
        problems = []
        [answer] = adopted["answers"]
        profile = answer["profile"]
        if profile:
            with open(os.path.join(folder, profile["file"]), "w") as file:
                file.write(profile["text"])
        forms = [("script", answer["script"])]
        if is_shell(text) and not is_shell(answer["script"]):
            problems.append("script: bash cannot read what is printed")
        if profile and profile["replaces_all"]:
            forms.append(("profile", f"ranklaunch --profile {profile['file']}\n"))
        for form, new in forms:
            after = run(new, folder, stubs, environment_of(new) | environment, shown, arguments)
            # A line without a program is one whose words are elsewhere.
            after = after and [one for one in after if one[0][0] != "ranklaunch" or one[0][-1] not in ("--", "-m")]
            if after is None or len(after) != len(before):
                problems.append(f"{form}: {len(before)} launches before, {after and len(after)} after")
                continue
            for wanted, seen, (words, env) in zip(before, seen_before, after):
                # A profile sets the variables by itself.
                problem = environment_differs(seen, env, environment) if form == "script" else None
                problem = problem or differs(ranklaunch, wanted, words, env, folder)
                problems += [f"{form}: {problem}"] if problem else []
        return {
            "script": shown, "same": bool(before) and not problems, "ran": len(before), "lost": lost,
            "why": problems[0] if problems else "" if before else "the script launches nothing here",
            "understood": sum(line["class"] == "not-understood" for line in adopted["lines"]),
        }


def is_shell(text):
    return subprocess.run(["/bin/bash", "-n"], input=text, text=True, capture_output=True).returncode == 0


# What ranklaunch or a shell says by itself, and what `adopt` takes out with a reason.
UNCOUNTED = re.compile(
    r"(MASTER_|WORLD_SIZE|LOCAL_|RANK|NODE_RANK|NNODES|NCCL_|GLOO_|TP_|TORCH_|RDZV|SLURM_|OMPI_|ORACLE_|CUDA_VISIBLE"
    r"|PYTHONUNBUFFERED|BASH|PATH$|PWD$|OLDPWD$|SHLVL$|_$|RANKLAUNCH)"
)


def environment_differs(before, after, platform):
    """A variable of the program that is another one, or is there no more."""
    for name, value in before.items():
        counts = not UNCOUNTED.match(name) and name not in platform
        if counts and "ranklaunch" not in after.get(name, "") and after.get(name) != value:
            return f"{name}={value!r} before, {after.get(name)!r} after"
    return None


def lines_without_a_class(text, adopted):
    named = set()
    for line in adopted["lines"]:
        named.update(range(line["first"], line["last"] + 1))
    lines = enumerate(text.splitlines(), 1)
    code = [at for at, line in lines if line.strip() and not line.strip().startswith("#")]
    return [at for at in code if at not in named]


def differs(ranklaunch, wanted, words, env, folder):
    if words[0] != "ranklaunch":
        wanted_now = expected(words, env)
        return None if wanted_now == wanted else f"{words[0]} still runs"
    given = words.index("--") if "--" in words else len(words)
    # A carrier starts the line elsewhere, in another shell.
    words = [string.Template(word).safe_substitute(env) for word in words[1:given]] + words[given:]
    # An environment of this script is not on the machine of this test.
    for option in ("--conda-env", "--python"):
        if option in words[: words.index("--") if "--" in words else None]:
            at = words.index(option)
            del words[at:at + 2]
    if "--profile" in words:
        file = os.path.join(folder, words[words.index("--profile") + 1])
        kept = [line for line in open(file) if not re.match(r"(conda_env|python|workdir) =", line)]
        open(file, "w").writelines(kept)
    env = {name: value for name, value in env.items() if not name.startswith("ORACLE_") and name != "BASH_ENV"}
    env["PATH"] = os.environ["PATH"]
    command = [ranklaunch, "plan", "--format", "json", "--assume", f"gpus={GPUS}", *words]
    said = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, stdin=subprocess.DEVNULL)
    try:
        plan = json.loads(said.stdout)
    except ValueError:
        return f"plan: {(said.stderr or said.stdout).strip()[:200]}"
    if not plan.get("membership"):
        return f"plan refuses: {json.dumps(plan.get('refusal') or plan, ensure_ascii=False)[:240]} ({' '.join(words)[:160]})"
    nodes, nproc, program = wanted
    got = (plan["membership"]["nnodes"], plan["nproc_per_node"])
    if plan.get("engine") == "command":
        # The launcher itself stays, with its words.
        stays = expected([os.path.basename(plan["argv"][0]), *plan["argv"][1:]], env)
        return None if stays == wanted else f"{wanted} before, {stays} after"
    if got != (nodes, nproc):
        refusal = json.dumps(plan.get("refusal"), ensure_ascii=False)[:200]
        return f"{nodes} nodes × {nproc} before, {got[0]} × {got[1]} after ({' '.join(words)[:120]}) {refusal}"
    # A plan ends in `--module -- NAME …`, or in `-- SCRIPT …`.
    tail = plan["argv"][-len(program) - 1:]
    tail = ["-m", *tail[2:]] if tail[:2] == ["--module", "--"] else tail[1:]
    # Plans hide what may be a secret.
    same = lambda one, other: one == other or (one.endswith("***") and other.startswith(one[:-3]))
    if not all(map(same, tail, program)):
        return f"arguments: {program} before, {tail} after"
    return None


def main():
    ranklaunch, *scripts = sys.argv[1:]
    adopt = os.environ.get("ORACLE_ADOPT", f"{ranklaunch} adopt --format json").split()
    stubs = tempfile.mkdtemp(prefix="stubs-")
    try:
        for text, names in STUBS.items():
            for name in names.split():
                path = os.path.join(stubs, name)
                with open(path, "w") as file:
                    file.write(text)
                os.chmod(path, 0o755)
        with open(os.path.join(stubs, "functions.sh"), "w") as file:
            file.write(FUNCTIONS)
        os.chmod(stubs, 0o755)
        for script in scripts:
            print(json.dumps(judge(ranklaunch, adopt, script, stubs), ensure_ascii=False), flush=True)
    finally:
        shutil.rmtree(stubs)


main()
