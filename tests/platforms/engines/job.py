"""A job of two nodes with two ranks each, with any engine: how it is started, and what is common to its checks."""

import os
import re
import shlex

from case import LeftOut, Wrong, expect, terminate
from nodes import NETWORK

RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rank.py")
MASTER = f"{NETWORK}.1"
HOSTS = ["n1", "n2"]
# The functions of the cases that CI runs.
SHORT = set()
# Stands for a user's own `train.sh`.
OWN_LAUNCHER = ("exec {python} -m torch.distributed.run --nnodes $NNODES --node-rank $NODE_RANK "
                "--nproc-per-node $NPROC_PER_NODE --master-addr $MASTER_ADDR --master-port $MASTER_PORT {program}")


def short(function):
    """CI runs it as well."""
    SHORT.add(function)
    return function


def python(name):
    """The interpreter of an environment that run.sh made."""
    found = os.environ.get(f"ENGINES_{name}")
    if not found:
        raise LeftOut(f"the environment {name} does not install here")
    return found


class Job:
    """`ranklaunch run` on each host. Every node may have an interpreter of its own."""

    def __init__(self, bench, engine, program, *options, pythons=("newest", "newest"), nproc=2, nodes=2,
                 after_first=lambda: None, **environment):
        bench.environment = {name: value for name, value in bench.environment.items()
                             if name not in ("RANKLAUNCH_ENGINE", "RANKLAUNCH_PYTHON")}
        # No configuration of the user's own, and no threads that the CPUs of a test lack.
        bench.environment.update(HF_HOME=bench.path("huggingface"), OMP_NUM_THREADS="1", **environment)
        self.bench = bench
        found = [python(name) for name in pythons]
        # The output of node 0; the case may have started something before.
        self.first = len(bench.outputs)
        self.processes = []
        for index in range(nodes):
            self.processes.append(self.start(index, engine, program, options, found[index], nproc, nodes))
            if index == 0:
                after_first()

    def start(self, node, engine, program, options, interpreter, nproc, nodes):
        if engine == "command":
            script = OWN_LAUNCHER.format(python=interpreter, program=shlex.join(program))
            program = ["sh", "-c", script]
        return self.bench.start(
            "ranklaunch", "run", "--engine", engine, "--python", interpreter, "--nnodes", str(nodes),
            "--node-rank", str(node), "--master-addr", MASTER, "--master-port", str(self.bench.port),
            "--nproc-per-node", str(nproc), "--grace", "30s", "--stale", "off", *options, "--", *program,
            on=HOSTS[node])

    def ended(self, seconds=150):
        """The exit codes of the nodes. Nothing of the job is left on a host."""
        codes = []
        for process in self.processes:
            try:
                codes.append(process.wait(seconds))
            except Exception:
                raise Wrong(f"node {len(codes)} has not ended within {seconds} s") from None
        self.bench.nothing_is_left()
        return codes

    def said(self, index):
        """What a node printed."""
        return self.bench.read(f"output-{self.first + index}.txt")

    def terminate(self):
        """TERM to all nodes, as a platform that deletes a job sends it."""
        for process in self.processes:
            terminate(process)


def met(bench, by, world=4):
    """Each rank of the world printed its line once."""
    found = sorted(re.findall(r"rank (\d+) of (\d+) on (\S+) by (.+)", bench.text()))
    expected = [(str(rank), str(world), HOSTS[rank * 2 // world], by) for rank in range(world)]
    expect(found == expected, f"the ranks were {found}, expected {expected}")


def one_cause(job, *words):
    """Both nodes say the same words."""
    for index in range(2):
        for word in words:
            if word not in job.said(index):
                raise Wrong(f"node {index} does not say: {word}")


def once(job, words):
    """Node 0 says it for all, and the other does not repeat it."""
    for index, is_said in enumerate((True, False)):
        if (words in job.said(index)) != is_said:
            raise Wrong(f"node {index}: {words}: expected {is_said}")


def terms(bench, ranks=4):
    """The times of TERM, for each rank."""
    return [[float(line) for line in bench.read(f"term-{rank}").split()] for rank in range(ranks)]
