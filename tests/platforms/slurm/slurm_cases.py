"""Slurm: how it starts, signals and ends jobs."""

import datetime
import os
import re
import signal
import subprocess

import slurm
from case import RANK, LeftOut, Wrong, case, expect
from nodes import wait_for
from pages import add



def step(*rank, srun="", options="--nproc-per-node 2"):
    """The line of a batch script that starts two ranks on each node of the job."""
    return " ".join(["srun --ntasks-per-node=1", srun, "ranklaunch run", options, "--", RANK, *rank])


def torch(engine="torchrun"):
    """The options for an engine with a python that has it."""
    python = os.environ.get("RANKLAUNCH_TEST_PYTHON")
    module = {"torchrun": "torch"}.get(engine, engine)
    found = python and subprocess.run([python, "-c", f"import importlib.util as u; exit(not u.find_spec('{module}'))"])
    if not found or found.returncode:
        raise LeftOut(f"no python with {module}: set RANKLAUNCH_TEST_PYTHON")
    return f"--nproc-per-node 2 --engine {engine} --python {python}"


def submit(bench, script, *options):
    """Submits a batch script, and gives the job's number. Its output is that of the case."""
    name = bench.output()
    path = bench.write(f"{name}.sh", "#!/bin/bash\n" + script)
    said = subprocess.run(["sbatch", "--parsable", "--open-mode=append", f"--output={bench.path(name)}", *options, path],
                          cwd=bench.folder, env=bench.environment, capture_output=True, text=True)
    if said.returncode != 0:
        raise Wrong(f"sbatch: {said.stderr}")
    bench.jobs.append(said.stdout.strip().partition(";")[0])
    return bench.jobs[-1]


def files(kind, world):
    return [f"{kind}-{rank}" for rank in range(world)]


@case("slurm", "one task per node", 0)
def one_task_per_node(bench):
    code = slurm.ended(submit(bench, step(), "-N3"))
    bench.ranks(6, ["n1", "n2", "n3"])
    bench.verdicts(3, id="done", code=0)
    bench.platform("slurm")
    bench.says("done: all ranks ended with code 0 (world size 6")
    bench.nothing_is_left()
    return code


@case("slurm", "srun from the login host", 0)
def srun_from_login(bench):
    code = bench.run("srun", "-N2", "-n2", "ranklaunch", "run", "--", RANK)
    bench.ranks(2, ["n1", "n2"])
    return code


@case("slurm", "torchrun", 0, long=True)
def torchrun(bench):
    code = slurm.ended(submit(bench, step(options=torch()), "-N2"))
    bench.ranks(4, ["n1", "n2"])
    bench.verdicts(2, id="done")
    return code


@case("slurm", "accelerate", 0, long=True)
def accelerate(bench):
    code = slurm.ended(submit(bench, step(options=torch("accelerate")), "-N2"))
    bench.ranks(4, ["n1", "n2"])
    bench.verdicts(2, id="done")
    return code


@case("slurm", "deepspeed", 0, long=True)
def deepspeed(bench):
    code = slurm.ended(submit(bench, step(options=torch("deepspeed")), "-N2"))
    bench.ranks(4, ["n1", "n2"])
    bench.verdicts(2, id="done")
    return code


@case("slurm", "eight tasks per node are refused with advice", 65)
def eight_are_refused(bench):
    code = bench.run("srun", "-N2", "--ntasks-per-node=8", "ranklaunch", "run", "--engine", "torchrun", "--", RANK)
    bench.says("SLURM_STEP_TASKS_PER_NODE=8(x2)", "starts this command 8 times on a node", "--ntasks-per-node=1",
               "--engine direct", "membership.tasks")
    expect(not bench.records(), "a refused task started something")
    return code


@case("slurm", "eight tasks per node are ranks with --engine direct", 0)
def eight_are_ranks(bench):
    code = bench.run("srun", "-N2", "--ntasks-per-node=8", "ranklaunch", "run", "--engine", "direct", "--", RANK)
    bench.ranks(16, ["n1", "n2"])
    return code


@case("slurm", "three tasks on two nodes are refused", 65)
def uneven_is_refused(bench):
    code = bench.run("srun", "-N2", "-n3", "ranklaunch", "run", "--engine", "torchrun", "--", RANK)
    # Releases differ in the node that gets two tasks.
    expect(re.search(r"SLURM_STEP_TASKS_PER_NODE=(2,1|1,2)\b", bench.text()), "the list of tasks is not printed")
    bench.says("membership.tasks")
    return code


@case("slurm", "three tasks on two nodes are ranks with --engine direct", 0)
def uneven_is_ranks(bench):
    code = bench.run("srun", "-N2", "-n3", "ranklaunch", "run", "--engine", "direct", "--", RANK)
    found = sorted(re.findall(r"rank (\d) of 3 on (n\d) in job", bench.text()))
    expect([rank for rank, _ in found] == ["0", "1", "2"], f"ranks {found}")
    expect(len({host for _, host in found}) == 2, f"hosts {found}")
    wait_for(lambda: len(bench.records()) == 3, 10, "three records")
    return code


@case("slurm", "a failed rank stops all nodes and is named by all", 143)
def failed_rank(bench):
    code = slurm.ended(submit(bench, step("fail", "3", "7"), "-N2"))
    bench.verdicts(2, id="rank.exit", rank=3, node=1)
    codes = [record["exit_code"] for record in bench.records()]
    expect(sorted(codes) == [7, 143], f"exit codes {codes}")
    bench.count("rank 3 on node 1 (n2) exited with code 7", 2)
    bench.nothing_is_left()
    return code


@case("slurm", "kill-on-bad-exit leaves both nodes their last words", 143)
def kill_on_bad_exit(bench):
    script = step("fail", "3", "7", srun="--kill-on-bad-exit=1")
    code = slurm.ended(submit(bench, script, "-N2"))
    bench.verdicts(2, id="rank.exit", rank=3, node=1)
    bench.nothing_is_left()
    return code


@case("slurm", "scancel lets the ranks save", 143)
def scancel(bench):
    job = submit(bench, step("save-for", "3", "never"), "-N2")
    bench.wait(*files("ready", 4))
    subprocess.run(["scancel", job], check=True)
    slurm.ended(job)
    wait_for(lambda: len(bench.records()) == 2, 30, "two records")
    expect(slurm.state(job) == "CANCELLED", slurm.state(job))
    bench.wait(*files("saved", 4), seconds=1)
    bench.signals("term", 4, 1)
    bench.verdicts(2, id="stopped.signal", code=143)
    bench.nothing_is_left()
    return bench.records()[0]["exit_code"]


@case("slurm", "scancel below torchrun sends each rank TERM once", 143)
def scancel_torchrun(bench):
    job = submit(bench, step("save-for", "3", "never", options=torch()), "-N2")
    bench.wait(*files("ready", 4))
    subprocess.run(["scancel", job], check=True)
    slurm.ended(job)
    wait_for(lambda: len(bench.records()) == 2, 30, "two records")
    bench.wait(*files("saved", 4), seconds=1)
    bench.signals("term", 4, 1)
    bench.nothing_is_left()
    return bench.records()[0]["exit_code"]


@case("slurm", "control: scancel sends ranks of a plain torchrun TERM more than once", 0, long=True)
def scancel_control(bench):
    torch()
    python = os.environ["RANKLAUNCH_TEST_PYTHON"]
    line = f"srun {python} -m torch.distributed.run --standalone --nproc-per-node 2 {RANK} save-for 3 never"
    counts = []
    # Two signals that come before a rank is scheduled are one; so several jobs.
    while not any(count > 1 for count in counts):
        expect(len(counts) < 8, f"TERM came {counts} times, so the other cases prove nothing")
        for name in [*files("ready", 2), *files("term", 2)]:
            if os.path.exists(bench.path(name)):
                os.remove(bench.path(name))
        job = submit(bench, line, "-N1")
        bench.wait(*files("ready", 2))
        subprocess.run(["scancel", job], check=True)
        slurm.ended(job)
        counts += [len(bench.read(name)) for name in files("term", 2)]
    return 0


def of_step(bench, program, word):
    """The processes of a case that run a program with this word, by pid; the lowest is the oldest."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                command = file.read().split("\0")
            if os.readlink(f"/proc/{pid}/cwd") == bench.folder and word in command:
                if os.path.basename(command[0]).startswith(program):
                    found.append(int(pid))
        except OSError:
            continue
    return sorted(found)


def term_to_one(bench, program, word, options):
    """TERM to one process of one node only: all ranks save, and get it once."""
    job = submit(bench, step("save-for", "3", "never", options=options), "-N2")
    bench.wait(*files("ready", 4))
    found = of_step(bench, program, word)
    expect(found, f"no {program} {word}")
    os.kill(found[0], signal.SIGTERM)
    code = slurm.ended(job)
    bench.wait(*files("saved", 4), seconds=1)
    bench.signals("term", 4, 1)
    bench.nothing_is_left()
    return code


@case("slurm", "TERM to a guard only sends each rank TERM once", 143, long=True)
def term_to_guard(bench):
    return term_to_one(bench, "ranklaunch", "run", torch())


@case("slurm", "TERM to torchrun only sends each rank TERM once", 0, long=True)
def term_to_torchrun(bench):
    code = term_to_one(bench, "python", "torch.distributed.run", torch())
    expect(code != 0, "a job whose engine was ended is no success")
    return 0


def told_of_end(bench, options):
    """The ranks of two nodes are told before the time limit of one minute, save, and the job ends before it."""
    if slurm.version() < (23, 2):
        raise LeftOut("SLURM_JOB_END_TIME is set since Slurm 23.02")
    job = submit(bench, step("until", "never", options=options), "-N2", "--time=1")
    slurm.ended(job, 200)
    wait_for(lambda: len(bench.records()) == 2, 30, "two records")
    expect(slurm.state(job) == "FAILED", f"{slurm.state(job)}: not ended before its limit")
    bench.wait(*files("saved", 4), seconds=1)
    bench.signals("term", 4, 1)
    bench.verdicts(2, id="stopped.notice", code=143)
    sources = [record["notice"]["source"] for record in bench.records()]
    expect(sources == ["slurm"] * 2, f"{sources}")
    bench.nothing_is_left()
    return bench.records()[0]["exit_code"]


def left_at_notice(bench):
    """Seconds from the notice to the deadline, on each node."""
    time = lambda notice, key: datetime.datetime.fromisoformat(notice[key].replace("Z", "+00:00"))
    notices = [record["notice"] for record in bench.records()]
    return [(time(notice, "deadline") - time(notice, "heard")).total_seconds() for notice in notices]


@case("slurm", "the end of a short job is told when most of its time is over", 143, seconds=75)
def end_of_time(bench):
    code = told_of_end(bench, "--nproc-per-node 2")
    expect(max(left_at_notice(bench)) <= 6, f"{left_at_notice(bench)} s of a minute are left at the notice")
    return code


@case("slurm", "the end of the time is told so long before as was asked", 143, seconds=60)
def end_of_time_by_lead(bench):
    code = told_of_end(bench, "--nproc-per-node 2 --notice-lead 20")
    expect(all(15 < left <= 20 for left in left_at_notice(bench)), f"{left_at_notice(bench)} s are left at the notice")
    return code


@case("slurm", "the end of the time below torchrun", 143, seconds=75, long=True)
def end_of_time_torchrun(bench):
    return told_of_end(bench, torch() + " --notice-lead 20")


@case("slurm", "the end of the time below accelerate", 143, seconds=75, long=True)
def end_of_time_accelerate(bench):
    return told_of_end(bench, torch("accelerate") + " --notice-lead 20")


@case("slurm", "the time limit lets the ranks save without a notice", 143, seconds=75)
def time_limit(bench):
    job = submit(bench, step("until", "never", options="--nproc-per-node 2 --notice off"), "-N2", "--time=1")
    slurm.ended(job, 200)
    wait_for(lambda: len(bench.records()) == 2, 30, "two records")
    expect(slurm.state(job) == "TIMEOUT", slurm.state(job))
    bench.wait(*files("saved", 4), seconds=1)
    bench.signals("term", 4, 1)
    bench.verdicts(2, id="stopped.signal", code=143)
    return bench.records()[0]["exit_code"]


@case("slurm", "sbatch --signal=TERM ahead of the time limit", 143, seconds=30)
def term_ahead(bench):
    # Slurm looks at its clock once in a while, so the signal comes up to a minute early.
    job = submit(bench, step("until", "never"), "-N2", "--time=2", "--signal=TERM@90")
    code = slurm.ended(job, 200)
    expect(slurm.state(job) == "FAILED", f"{slurm.state(job)}: not ended before its limit")
    bench.wait(*files("saved", 4), seconds=1)
    bench.signals("term", 4, 1)
    bench.verdicts(2, id="stopped.signal", code=143)
    return code


@case("slurm", "scancel --signal=USR1 reaches each rank once and ends nothing", 0)
def usr1(bench):
    job = submit(bench, step("until", "finish"), "-N2")
    bench.wait(*files("ready", 4))
    for sent in (1, 2):
        subprocess.run(["scancel", "--signal=USR1", job], check=True)
        wait_for(lambda sent=sent: all(len(bench.read(name)) >= sent for name in files("usr1", 4)), 30,
                 f"USR1 number {sent} at every rank")
    bench.touch("finish")
    code = slurm.ended(job)
    counts = [len(bench.read(name)) for name in files("usr1", 4)]
    expect(counts == [2] * 4, f"USR1 came {counts} times, sent twice")
    bench.verdicts(2, id="done")
    return code


@case("slurm", "scancel --signal=USR1 below torchrun", 0, long=True)
def usr1_torchrun(bench):
    job = submit(bench, step("until", "finish", options=torch()), "-N2")
    bench.wait(*files("ready", 4))
    subprocess.run(["scancel", "--signal=USR1", job], check=True)
    wait_for(lambda: all(bench.read(name) for name in files("usr1", 4)), 30, "USR1 at every rank")
    bench.touch("finish")
    code = slurm.ended(job)
    counts = [len(bench.read(name)) for name in files("usr1", 4)]
    expect(counts == [1] * 4, f"USR1 came {counts} times, sent once")
    return code


@case("slurm", "control: scancel --signal=USR1 kills what does not expect it", 138)
def usr1_control(bench):
    # Slurm signals every process of the step, so without protection an engine dies.
    job = submit(bench, "srun sh -c 'touch ready; sleep 300; exit 0'", "-N1")
    bench.wait("ready")
    subprocess.run(["scancel", "--signal=USR1", job], check=True)
    return slurm.ended(job)


@case("slurm", "checkpoint on USR1, then requeue", 0)
def requeue_on_usr1(bench):
    job = submit(bench, step("requeue"), "-N2", "--requeue")
    bench.wait(*files("ready", 4))
    subprocess.run(["scancel", "--signal=USR1", job], check=True)
    code = slurm.ended(job)
    expect(slurm.job(job)["Restarts"] == "1", f"Restarts={slurm.job(job)['Restarts']}")
    counts = [len(bench.read(name)) for name in files("usr1", 4)]
    expect(counts == [1] * 4, f"USR1 came {counts} times")
    bench.count("continued", 4)
    return code


@case("slurm", "sbatch --signal=USR1 ahead of the time limit", 0, seconds=31)
def usr1_ahead(bench):
    job = submit(bench, step("requeue"), "-N2", "--requeue", "--time=2", "--signal=USR1@90")
    code = slurm.ended(job, 200)
    expect(slurm.job(job)["Restarts"] == "1", f"Restarts={slurm.job(job)['Restarts']}")
    bench.count("continued", 4)
    return code


@case("slurm", "scontrol requeue while running", 0)
def requeue(bench):
    job = submit(bench, step("until", "finish") + "; echo restarts ${SLURM_RESTART_COUNT:-0}", "-N2", "--requeue")
    bench.wait(*files("ready", 4))
    for name in files("ready", 4):
        os.remove(bench.path(name))
    subprocess.run(["scontrol", "requeue", job], check=True)
    bench.wait(*files("saved", 4))
    bench.wait(*files("ready", 4))
    bench.touch("finish")
    code = slurm.ended(job)
    bench.says("restarts 1")
    records = bench.records()
    ended = [record["verdict"]["id"] for record in records]
    expect(sorted(ended) == ["done"] * 2 + ["stopped.signal"] * 2, f"{ended}")
    expect(len({record["run_id"] for record in records}) == 2, "both runs have one id")
    return code


@case("slurm", "heterogeneous job whose groups are not in node order", 0)
def heterogeneous(bench):
    code = slurm.ended(submit(
        bench, f"srun --het-group=0,1 ranklaunch run -- {RANK}",
        "-N1", "-w", "n3", ":", "-N1", "-w", "n1"))
    bench.verdicts(2, id="done")
    bench.ranks(2, ["n1", "n3"])
    return code


@case("slurm", "heterogeneous step with two commands", 0)
def heterogeneous_step(bench):
    code = slurm.ended(submit(
        bench, f"srun --het-group=0 ranklaunch run -- {RANK} : --het-group=1 ranklaunch run -- {RANK}",
        "-N2", "-w", "n2,n3", ":", "-N1", "-w", "n1"))
    bench.verdicts(3, id="done")
    bench.ranks(3, ["n1", "n2", "n3"])
    return code


@case("slurm", "heterogeneous job whose groups are not in node order, with different numbers of tasks", 0)
def heterogeneous_tasks(bench):
    code = slurm.ended(submit(
        bench, f"srun --het-group=0,1 ranklaunch run --engine direct -- {RANK}",
        "-N1", "-n2", "-w", "n3", ":", "-N1", "-n1", "-w", "n1"))
    bench.verdicts(3, id="done")
    bench.ranks(3, ["n1", "n3", "n3"])
    return code


@case("slurm", "array of three jobs on the same nodes", 0)
def array(bench):
    name = bench.output()
    number = submit(bench, step(), "-N2", "--array=1-3", "--oversubscribe", "-w", "n[1-2]")
    states = wait_for(lambda: ended_states(number, 3), 120, "the array")
    bench.outputs.remove(name)
    expect(states == ["COMPLETED"] * 3, f"{states}")
    jobs = set(re.findall(r"rank \d of 4 on n\d in job (\d+)", bench.text()))
    expect(len(jobs) == 3, f"jobs {jobs}")
    bench.verdicts(6, id="done")
    return 0


def ended_states(number, jobs):
    """The states of an array's jobs once all have ended. A job that is COMPLETING, and an array
    that is not yet split into its jobs, has not."""
    said = subprocess.run(["scontrol", "--oneliner", "show", "job", number], capture_output=True, text=True)
    states = re.findall(r"JobState=(\S+)", said.stdout)
    running = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED"}
    return states if len(states) == jobs and running.isdisjoint(states) else None


@case("slurm", "two jobs on the same nodes do not meet", 0)
def two_jobs(bench):
    numbers = [submit(bench, step("until", "finish"), "-N2", "-w", "n[1-2]", "--oversubscribe") for _ in range(2)]
    wait_for(lambda: len(bench.read("ready-0")) == 2 and len(bench.read("ready-3")) == 2, 90, "both jobs")
    bench.touch("finish")
    codes = {slurm.ended(number) for number in numbers}
    for number in numbers:
        bench.count(f"in job {number}", 4)
    bench.verdicts(4, id="done")
    return codes.pop() if len(codes) == 1 else codes


@case("slurm", "control: the second job with the port of the first is refused on both nodes", 87)
def one_port(bench):
    script = step("until", "finish", options="--nproc-per-node 2 --master-port 29400 --wait-timeout 15s")
    first = submit(bench, script, "-N2", "-w", "n[1-2]", "--oversubscribe")
    bench.wait(*files("ready", 4))
    second = submit(bench, script, "-N2", "-w", "n[1-2]", "--oversubscribe")
    code = slurm.ended(second)
    expect(slurm.state(first) == "RUNNING", f"the first job is {slurm.state(first)}")
    bench.touch("finish")
    expect(slurm.ended(first) == 0, "the first job did not end with 0")
    bench.count(f"in job {second}", 0)
    return code


@case("slurm", "steps of one job at the same time", 0)
def steps(bench):
    one = step("until", "finish", srun="--overlap", options="")
    job = submit(bench, f"{one} & {one} & wait -n && wait -n", "-N2")
    wait_for(lambda: len(bench.read("ready-0")) == 2 and len(bench.read("ready-1")) == 2, 90, "both steps")
    bench.touch("finish")
    code = slurm.ended(job)
    bench.verdicts(4, id="done")
    return code


@case("slurm", "a step on some nodes of the job", 0)
def part_of_nodes(bench):
    code = slurm.ended(submit(bench, f"srun -N2 -n2 -r1 ranklaunch run -- {RANK}", "-N3"))
    bench.ranks(2, ["n2", "n3"])
    return code


@case("slurm", "SLURM_CPUS_PER_TASK limits the threads of a rank", 0)
def cpus_per_task(bench):
    command = "ranklaunch run -- sh -c 'echo threads $OMP_NUM_THREADS'"
    code = slurm.ended(submit(bench, f"srun --cpus-per-task=1 --ntasks-per-node=1 {command}", "-N2", "-c1"))
    bench.count("threads 1\n", 2)
    for record in bench.records():
        decided = [one["source"] for one in record["plan"]["decisions"] if one["what"] == "OMP_NUM_THREADS"]
        # Nobody binds the task here, so this machine's own CPUs bound it as well.
        if len(os.sched_getaffinity(0)) > 1:
            expect(decided == ["SLURM_CPUS_PER_TASK=1"], f"OMP_NUM_THREADS comes from {decided}")
    return code


@case("slurm", "a batch script without srun is refused at once", 65)
def without_srun(bench):
    code = slurm.ended(submit(bench, f"ranklaunch run -- {RANK}", "-N2"))
    bench.says("srun --ntasks-per-node=1 ranklaunch")
    return code


@case("slurm", "a batch script without srun on one node", 0)
def without_srun_on_one(bench):
    code = slurm.ended(submit(bench, f"ranklaunch run --nproc-per-node 2 -- {RANK}", "-N1"))
    bench.count("rank 1 of 2 on", 1)
    return code


@case("slurm", "--nnodes 1 in a batch script of two nodes uses its own", 0)
def one_of_two(bench):
    code = slurm.ended(submit(bench, f"ranklaunch run --nnodes 1 --nproc-per-node 2 -- {RANK}", "-N2"))
    bench.ranks(2, ["n1"])
    return code


@case("slurm", "nodes that all refuse end at once and name one cause", 67)
def all_refuse(bench):
    script = step(options="--engine torchrun --python /nonexistent/python --wait-timeout 60s", srun="--output=%t.txt")
    code = slurm.ended(submit(bench, script, "-N2"))
    bench.outputs += ["0.txt", "1.txt"]
    bench.count("exit code 67 (python.", 2)
    bench.never_says("could not be told", "not reached")
    return code


@case("slurm", "salloc with srun", 0)
def salloc(bench):
    code = bench.run("salloc", "-N2", "srun", "--ntasks-per-node=1", "ranklaunch", "run", "--", RANK)
    bench.ranks(2, ["n1", "n2"])
    return code


@case("slurm", "salloc without srun is refused at once", 65)
def salloc_without_srun(bench):
    code = bench.run("salloc", "-N2", "ranklaunch", "run", "--", RANK)
    bench.says("srun --ntasks-per-node=1 ranklaunch")
    return code


@case("slurm", "what pyxis sets for PyTorch images", 0)
def pyxis(bench):
    # pyxis is no package of the distribution; its hook for PyTorch images sets these in each task:
    # RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS MASTER_ADDR=first MASTER_PORT.
    hook = ("export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_STEP_NUM_TASKS "
            "MASTER_ADDR=n1 MASTER_PORT=29501")
    once = f"{hook}; exec ranklaunch run --nproc-per-node 2 -- {RANK}"
    code = bench.run("srun", "-N2", "--ntasks-per-node=1", "sh", "-c", once)
    bench.ranks(4, ["n1", "n2"])
    bench.platform("slurm")
    eight = f"{hook}; exec ranklaunch run -- {RANK}"
    refused = bench.run("srun", "-N2", "--ntasks-per-node=2", "sh", "-c", eight, RANKLAUNCH_ENGINE="torchrun")
    expect(refused == 65, f"two tasks per node: {refused}")
    return code


@case("slurm", "the termination message has the cause", 143)
def termination_message(bench):
    script = (f"srun --ntasks-per-node=1 sh -c 'exec ranklaunch run --termination-log message-$SLURM_NODEID "
              f"-- {RANK} fail 1 9'")
    code = slurm.ended(submit(bench, script, "-N2"))
    for node in (0, 1):
        message = bench.read(f"message-{node}")
        expect("exited with code 9" in message and "rank 1 on node 1 (n2)" in message, f"message of node {node}: {message}")
    return code


@case("slurm", "a node that loses its daemon's step is noticed", 143)
def killed_step(bench):
    job = submit(bench, step("until", "never"), "-N2", "-w", "n[1-2]")
    bench.wait(*files("ready", 4))
    # Slurm's own process for the step on n2 is gone, its tasks live on until the job is cancelled.
    found = subprocess.run(["pgrep", "-f", f"^slurmstepd: \\[{job}\\.0\\]"], capture_output=True, text=True).stdout.split()
    expect(len(found) == 2, f"slurmstepd of job {job}: {found}")
    subprocess.run(["kill", "-KILL", found[1]], check=True)
    subprocess.run(["scancel", job], check=True)
    slurm.ended(job)
    bench.nothing_is_left(40)
    return bench.records()[0]["exit_code"]


add("slurm", "slurm.md", None)
