"""What packaging/ray/ranklaunch_ray.py promises, each on the cluster of three nodes.

A case may end only when none of its processes is left: suite.py looks after each.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import ranklaunch_ray
from bench import ENTRY, Bench, Program, expect, until

CASES: list[tuple[str, Callable[[Bench], None]]] = []
# A rank that runs until it is stopped, and one that saves its state then.
SLEEPS = "exec sleep 3333"
FAILS = "echo 'torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.' >&2; exit 5"
SAVES = "trap 'touch saved-$RANK; exit 0' TERM; sleep 3333 & touch ready-$RANK; wait"


def case(name: str) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    def register(function: Callable[[Bench], None]) -> Callable[[Bench], None]:
        CASES.append((name, function))
        return function

    return register


def in_folder(bench: Bench, script: str) -> str:
    return f"cd {bench.folder}; {script}"


def files(bench: Bench, pattern: str) -> list[str]:
    return sorted(path.name for path in bench.folder.glob(pattern))


def lost_one(program: Program) -> int:
    """The one node that the driver names as lost."""
    named = re.findall(r"^ranklaunch_ray: node (\d+) \(.*\) was lost: .+$", program.text(), re.MULTILINE)
    expect(len(named) == 1, f"one lost node is named, not {named}")
    return int(named[0])


@case("two nodes add up")
def _(bench: Bench) -> None:
    job = bench.entry("--nodes 2", bench.torch("", 3))
    job.ends(0)
    for node in range(2):
        job.shows(f"node{node}: [r{node}] READY: the sum of 2 ranks is 1")


@case("three nodes add up")
def _(bench: Bench) -> None:
    job = bench.entry("--nodes 3", bench.torch("", 3))
    job.ends(0)
    for node in range(3):
        job.shows(f"node{node}: [r{node}] READY: the sum of 3 ranks is 3")


@case("a failing rank gives its code and one cause")
def _(bench: Bench) -> None:
    job = bench.entry("--nodes 3", bench.ranks("", f"[ $RANK = 1 ] && exit 5; {SLEEPS}"))
    job.ends(5)
    causes = set(re.findall(r"── ranklaunch: (rank .*) after", job.text()))
    expect(len(causes) == 1 and causes.pop().startswith("rank 1 on node 1 "), f"one cause: {causes}")
    job.shows("ranklaunch_ray: exit code 5: rank 1 on node 1 (")


@case("the driver's log is enough to explain the failure")
def _(bench: Bench) -> None:
    job = bench.entry("--nodes 2", bench.ranks("", f"[ $RANK = 1 ] && {{ {FAILS}; }}; {SLEEPS}"))
    job.ends(5)
    log = bench.folder / "driver.log"
    log.write_text(job.text())
    read = Program([bench.executable, "explain", str(log)], bench.folder, {"LC_ALL": "C"})
    read.ends()
    read.shows("cuda_oom")


@case("a rank that is killed gives 137")
def _(bench: Bench) -> None:
    job = bench.entry("--nodes 2", bench.ranks("", f"[ $RANK = 1 ] && kill -9 $$; {SLEEPS}"))
    job.ends(137)


@case("TERM to the driver is the ranks' TERM, once")
def _(bench: Bench) -> None:
    stopped_by(bench, signal.SIGTERM)


@case("Ctrl-C is the ranks' TERM as well")
def _(bench: Bench) -> None:
    stopped_by(bench, signal.SIGINT)


def stopped_by(bench: Bench, number: signal.Signals) -> None:
    job = bench.entry("--nodes 2", bench.ranks("", in_folder(bench, SAVES)))
    until(lambda: files(bench, "ready-*") == ["ready-0", "ready-1"], "both ranks are ready")
    bench.running(2)
    job.signal(number)
    job.ends(143)
    expect(files(bench, "saved-*") == ["saved-0", "saved-1"], "both ranks had time to save")
    job.shows("ranklaunch_ray: stopping: TERM to every node")


@case("TERM while it waits for nodes")
def _(bench: Bench) -> None:
    job = bench.entry("--nodes 9", bench.ranks("", SLEEPS))
    job.shows("3 of 9 nodes with 1 CPU are there")
    job.signal(signal.SIGTERM)
    job.ends(143)


@case("a killed driver leaves nothing")
def _(bench: Bench) -> None:
    job = bench.entry("--nodes 3", bench.ranks("", SLEEPS))
    bench.running(3)
    job.signal(signal.SIGKILL)
    job.ends(-9)


# The driver as a Ray task, which Ray can cancel. It leaves when the case says so.
TASK = """
import os, sys, time
import ray, ranklaunch_ray
ray.init("auto")
ray.cloudpickle.register_pickle_by_value(ranklaunch_ray)
task = ray.remote(num_cpus=0, max_retries=0)(ranklaunch_ray.main).remote(sys.argv[2:])
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.05)
wait_for("cancel")
ray.cancel(task, force=sys.argv[1] == "force")
wait_for("leave")
"""


def cancel(bench: Bench, how: str) -> None:
    ranks = bench.ranks("", in_folder(bench, SAVES))
    job = bench.python(["-c", TASK, how, "--nodes", "2", "--", *ranks])
    until(lambda: files(bench, "ready-*") == ["ready-0", "ready-1"], "both ranks are ready")
    sleeping = bench.running(2)
    (bench.folder / "cancel").touch()
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in sleeping), "the ranks end")
    if how == "gently":
        expect(files(bench, "saved-*") == ["saved-0", "saved-1"], "both ranks had time to save")
    expect(job.process.poll() is None, "the caller lives: the cancel ended the ranks")
    (bench.folder / "leave").touch()
    job.ends(0)


@case("ray.cancel is a TERM")
def _(bench: Bench) -> None:
    cancel(bench, "gently")


@case("ray.cancel by force leaves nothing")
def _(bench: Bench) -> None:
    cancel(bench, "force")


@case("an actor that is killed ends the others")
def _(bench: Bench) -> None:
    job = bench.entry("--nodes 3", bench.ranks("", SLEEPS))
    bench.running(3)
    # The worker that holds the actor is the parent of ranklaunch.
    words = bench.ranks("", SLEEPS)
    agents = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if command_line(pid) == words]
    workers = sorted({parent(pid) for pid in agents} - set(agents))
    expect(len(workers) == 3, f"three workers, not {workers}")
    os.kill(workers[1], signal.SIGKILL)
    job.ends(143)
    lost_one(job)


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except (OSError, UnicodeDecodeError):
        return []


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


REMOVE = """
import ray
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group
ray.init("auto")
for name, row in placement_group_table().items():
    if row["state"] == "CREATED":
        remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(name))))
"""


@case("a placement group that is removed")
def _(bench: Bench) -> None:
    job = bench.entry("--nodes 2", bench.ranks("", SLEEPS))
    bench.running(2)
    bench.python(["-c", REMOVE]).ends(0)
    job.ends(143)
    for node in range(2):
        job.shows(f"ranklaunch_ray: node {node} (")
    job.shows(" was lost: ", 2)


@case("a node that joins late")
def _(bench: Bench) -> None:
    job = bench.entry("--nodes 4", bench.ranks("", "echo rank $RANK of $WORLD_SIZE"))
    job.shows("3 of 4 nodes with 1 CPU are there")
    with bench.another_node():
        job.ends(0)
        for rank in range(4):
            job.shows(f"[r{rank}] rank {rank} of 4")


@case("a node that dies is named, and ends the others")
def _(bench: Bench) -> None:
    with bench.another_node() as fourth:
        job = bench.entry("--nodes 4", bench.ranks("", SLEEPS))
        bench.running(4)
        bench.cluster.remove_node(fourth, allow_graceful=False)
        job.ends(143)
        lost_one(job)


@case("too few GPUs are refused with the list")
def _(bench: Bench) -> None:
    with bench.another_node(num_gpus=1):
        job = bench.entry("--nodes 2 --gpus-per-node 1 --timeout 3", bench.ranks("", SLEEPS))
        job.ends(80)
        job.shows("1 of 2 nodes with 1 GPU and 1 CPU are there; ")
        expect(len(set(re.findall(r"(\S+) has 0 GPU", job.text()))) == 3, "three nodes lack GPUs")
        job = bench.entry("--nodes 1", bench.ranks("", SLEEPS))
        job.ends(64)
        job.shows("which GPUs? ")
        job.shows("has 1: give --gpus-per-node N")


@case("Ray's reservation of GPUs is what the command sees")
def _(bench: Bench) -> None:
    script = f"echo devices=$CUDA_VISIBLE_DEVICES.; touch {bench.folder}/begun; exec sleep $1"
    with bench.another_node(num_gpus=4):
        first = bench.entry("--nodes 1 --gpus-per-node 3", ["sh", "-c", script, bench.mark, "3333"])
        until(lambda: files(bench, "begun"), "the first command runs")
        second = bench.entry("--nodes 1 --gpus-per-node 1", ["sh", "-c", script, bench.mark, "0"])
        second.ends(0)
        first.signal(signal.SIGTERM)
        first.ends(143)
        three, one = (re.findall(r"devices=([\d,]+)\.", job.text()) for job in (first, second))
        expect(sorted(",".join(three + one).split(",")) == list("0123"), f"all four: {three} and {one}")
        expect(len(",".join(one).split(",")) == 1, f"one of them: {one}")


@case("nodes that other work holds")
def _(bench: Bench) -> None:
    first = bench.entry("--nodes 3 --cpus-per-node 2", bench.ranks("", SLEEPS))
    bench.running(3)
    second = bench.entry("--nodes 3 --timeout 2", bench.ranks("", SLEEPS))
    second.ends(88)
    second.shows("3 of 3 nodes with 1 CPU are there, but other work of Ray is on them")
    first.signal(signal.SIGTERM)
    first.ends(143)


@case("check examines all nodes and prints one table")
def _(bench: Bench) -> None:
    job = bench.entry(
        "--nodes 3", bench.ranklaunch("--engine direct --nproc-per-node 1 --lang en", "true", verb="check")
    )
    job.ends(0)
    job.shows("round trip, median (ms)")
    expect(re.findall(r"^.*\b3 nodes$", job.text(), re.MULTILINE) == ["3 nodes"], "one table, as node 0 prints it")


@case("a check that fails on one node")
def _(bench: Bench) -> None:
    script = '[ $RANKLAUNCH_NODE_RANK = 0 ] || export RANKLAUNCH_RDMA=required; "$@"'
    check = bench.ranklaunch("--engine direct --nproc-per-node 1 --lang en", "true", verb="check")
    job = bench.entry("--nodes 2", ["sh", "-c", script, "check", *check])
    job.ends(89)
    job.shows("rdma.ports")


@case("a slow console loses nothing and costs no memory")
def _(bench: Bench) -> None:
    count = 400_000
    words = ["seq", "1", str(count)]
    job = bench.python([str(ENTRY), "--nodes", "2", "--", *words], read=False)

    def waits() -> bool:
        writers = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if command_line(pid) == words]
        return len(writers) == 2 and all("pipe" in Path(f"/proc/{pid}/wchan").read_text() for pid in writers)

    # All buffers are full: whatever is written from now on must wait.
    until(waits, "both writers wait for the reader")
    job.reader.start()
    job.ends(0)
    lines = job.text().splitlines()
    for node in range(2):
        prefix = f"node{node}: "
        got = [line[len(prefix) :] for line in lines if line.startswith(prefix)]
        expect(got == [str(number) for number in range(1, count + 1)], f"every line of node {node}, in order")


@case("refusals before anything starts")
def _(bench: Bench) -> None:
    for options, command, code, reason in [
        ("--nodes 2", [], 64, "the command is missing"),
        ("--nodes 0", ["true"], 64, "at least one node"),
        ("--nodes 2", bench.ranks("--nnodes 2", SLEEPS), 64, "--nnodes contradicts"),
        ("--nodes 2", bench.ranks("--master-addr=10.0.0.1", SLEEPS), 64, "--master-addr=10.0.0.1 contradicts"),
        ("--nodes 2", ["no-such-program"], 127, "no-such-program is not on node 0 ("),
    ]:
        job = bench.entry(options, command)
        job.ends(code)
        job.shows(reason)


@case("an address that no node can use")
def _(bench: Bench) -> None:
    def refused(*places: ranklaunch_ray.Place) -> str:
        try:
            return str(ranklaunch_ray.meeting_point(list(places), None))
        except ranklaunch_ray.Refusal as refusal:
            return f"{refusal.code} {refusal}"

    def place(address: str | None, port: int | None = 20000) -> ranklaunch_ray.Place:
        return ranklaunch_ray.Place(address, "host", port, "/bin/ranklaunch")

    expect(refused(place("10.0.0.1"), place("10.0.0.2")) == "('10.0.0.1', 20000)", "a good one is taken")
    expect(refused(place("127.0.0.1"), place("127.0.0.1")) == "('127.0.0.1', 20000)", "one host alone")
    expect(refused(place(None), place("10.0.0.2")).startswith("65 "), "None is refused")
    expect(refused(place("10.0.0.1", None)).startswith("65 "), "no port is refused")
    expect(refused(place("127.0.0.1"), place("10.0.0.2")).startswith("65 "), "the loopback is refused")


@case("the command inherits no signal that Ray blocks or ignores")
def _(bench: Bench) -> None:
    def mask(status: str, name: str) -> int:
        return int(re.findall(rf"{name}:\t([0-9a-f]+)$", status, re.MULTILINE)[0], 16)

    job = bench.entry("--nodes 1", ["cat", "/proc/self/status"])
    job.ends(0)
    expect(mask(job.text(), "SigBlk") == 0, "no signal is blocked")
    # Signals that were ignored when this was started (nohup, make) are nobody's fault.
    before = mask(Path("/proc/self/status").read_text(), "SigIgn")
    ignored = mask(job.text(), "SigIgn") & ~before
    expect(ignored == 0, f"no signal more is ignored: {ignored:x} beside {before:x}")


# Ray ignores SIGCHLD in its workers where RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper is set.
IGNORES = """
import signal, sys
import ranklaunch_ray
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
agent = ranklaunch_ray.Agent()
agent.start(sys.argv[1:], {})
end = next(part for part in map(agent.read, range(1, 99)) if isinstance(part, ranklaunch_ray.End))
print("the code is", end.code)
"""


@case("a worker that ignores SIGCHLD learns the exit code")
def _(bench: Bench) -> None:
    for command, code in [("exit 5", 5), ("kill -9 $$", 137), ("exit 0", 0)]:
        worker = bench.python(["-c", IGNORES, "sh", "-c", command])
        worker.ends(0)
        worker.shows(f"the code is {code}\n")


@case("the verdict of several nodes")
def _(bench: Bench) -> None:
    def code(*nodes: tuple[int, int | None]) -> int:
        return ranklaunch_ray.verdict([ranklaunch_ray.End(*node) for node in nodes])[0]

    expect(code((0, None), (0, None)) == 0, "done")
    expect(code((92, 1), (5, 1)) == 5, "the node with the cause")
    expect(code((137, 1), (5, 1)) == 5, "the cause's code, not the highest")
    expect(code((143, 1), (90, 1)) == 90, "a node at fault")
    expect(code((92, None), (88, None)) == 88, "no cause is named: not 92")
    expect(code((0, None), (143, None)) == 143, "a lost node is no success")
    expect(code((143, 1), (143, None)) == 143, "a lost node that the other names")
    expect(code((92, 1), (143, 1)) == 143, "only codes that point elsewhere")
    expect(code((92, 7), (88, 7)) == 88, "a cause that is no node")
