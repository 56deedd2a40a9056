"""Runs a ranklaunch command on every node of a Ray job and exits with the job's code.

    python ranklaunch_ray.py --nodes 2 --gpus-per-node 8 -- ranklaunch run OPTIONS -- train.py ARGS

Ray tells a process neither the number of nodes nor its rank among them. This program reserves one
place on each of N nodes, starts the command there as a child of a small actor, and gives it what
it lacks: RANKLAUNCH_NNODES, RANKLAUNCH_NODE_RANK, RANKLAUNCH_MASTER_ADDR, RANKLAUNCH_MASTER_PORT.
Whatever it prints appears here behind `node0: `.

It needs Python 3.9 and ray, and only where it is started: the other nodes receive it from Ray.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import ipaddress
import itertools
import json
import os
import queue
import random
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import ray
from ray.exceptions import RayError, TaskCancelledError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

# Exit codes as ranklaunch has them; `ranklaunch explain CODE` shows each.
USAGE, MEMBERSHIP, GPUS_MISSING, NODES_MISSING, NOT_FOUND, STOPPED = 64, 65, 80, 88, 127, 143
# These say that the cause is elsewhere: on another node, or outside of the job.
ELSEWHERE = (0, 92, STOPPED)

CHUNK = 64 * 1024
# Chunks that an actor keeps while the driver is slow; then the command has to wait with its console.
CHUNKS = 16
# A line without an end is shown in parts of this length.
LONGEST_LINE = 64 * 1024
# Neither the kernel's ephemeral ports, nor those of Ray's workers (10002 to 19999), nor NodePorts.
PORTS = range(20000, 30000)
# After a node was lost, the others have this long to notice and to name the cause themselves.
LOSS_SECONDS = 15.0
PR_SET_PDEATHSIG = 1


class Refusal(Exception):
    """Nothing was started, for this reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass
class Place:
    """Where an actor runs."""

    address: str | None
    host: str
    port: int | None
    program: str | None


@dataclass
class End:
    """How the command ended on one node; ranklaunch also says which node has the cause."""

    code: int
    cause: int | None = None
    text: str = ""


class Agent:
    """The actor of one node: starts the command there, and keeps its output until it is read."""

    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.stopped = False
        self.lock = threading.Lock()
        self.output: queue.Queue[bytes | End] = queue.Queue(CHUNKS)
        self.reading = threading.Lock()
        self.part: tuple[int, bytes | End] = (0, b"")

    def place(self, program: str) -> Place:
        address = ray.util.get_node_ip_address()
        return Place(address or None, socket.gethostname(), free_port(), shutil.which(program))

    def start(self, command: Sequence[str], variables: dict[str, str]) -> None:
        # The kernel counts the thread that starts a child as its parent, so this one stays.
        threading.Thread(target=self._run, args=(command, variables), daemon=True).start()

    def read(self, number: int) -> bytes | End:
        """Waits for the part of this number, from 1; the last one is the end.

        Ray's cancel loses an answer: whoever asks again for the same number gets the same part.
        """
        with self.reading:
            if number > self.part[0]:
                self.part = (number, self.output.get())
            return self.part[1]

    def stop(self) -> None:
        with self.lock:
            self.stopped = True
            if self.child is not None:
                self.child.terminate()

    def _run(self, command: Sequence[str], variables: dict[str, str]) -> None:
        with tempfile.TemporaryDirectory(prefix="ranklaunch-ray-") as folder:
            verdict = Path(folder, "verdict.json")
            try:
                code = self._watch(command, {**variables, "RANKLAUNCH_TERMINATION_LOG": str(verdict)})
            except OSError as error:
                self.output.put(f"ranklaunch_ray: {command[0]}: {error}\n".encode())
                code = NOT_FOUND
            end = End(code)
            with contextlib.suppress(OSError, ValueError, AttributeError):
                message = json.loads(verdict.read_bytes())
                end = End(code, message.get("node"), message.get("text", ""))
            self.output.put(end)

    def _watch(self, command: Sequence[str], variables: dict[str, str]) -> int:
        libc, worker = ctypes.CDLL(None), os.getpid()

        def in_child() -> None:
            # Ray's threads block SIGINT, and ranks would inherit that.
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            # A worker that is killed cannot pass anything on; ranklaunch takes this TERM as a stop.
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != worker:
                os._exit(STOPPED)

        with self.lock:
            if self.stopped:
                return STOPPED
            # Ray can be told to ignore SIGCHLD in its workers. Then nobody learns how a child ended, and
            # Python takes it for a success. Only the main thread may call signal.signal.
            libc.signal(signal.SIGCHLD, None)
            # A session of its own, since a signal to the group of the worker is not for the command.
            self.child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**environment(), **variables},
                start_new_session=True,
                preexec_fn=in_child,
            )
        pipe = self.child.stdout
        assert pipe is not None
        with pipe, selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while True:
                if selector.select(0.5):
                    part = os.read(pipe.fileno(), CHUNK)
                    if not part:
                        break
                    self.output.put(part)
                elif self.child.poll() is not None:
                    # A process that outlives the command holds the pipe open.
                    break
        code = self.child.wait()
        return code if code >= 0 else 128 - code


def environment() -> dict[str, str]:
    """The variables of this worker, without the thread count that Ray derives from its CPUs.

    Ray sets OMP_NUM_THREADS in its workers if nobody else has. For ranks, ranklaunch chooses it.
    What was set before the worker began is in /proc/self/environ; what Ray adds later is not.
    """
    variables = dict(os.environ)
    with contextlib.suppress(OSError):
        if b"\0OMP_NUM_THREADS=" not in b"\0" + Path("/proc/self/environ").read_bytes():
            variables.pop("OMP_NUM_THREADS", None)
    return variables


def free_port() -> int | None:
    """A port of this node that nothing listens on."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    for port in random.sample(PORTS, 100):
        with contextlib.suppress(OSError):
            socket.create_server(("", port), family=family, dualstack_ipv6=family == socket.AF_INET6).close()
            return port
    return None


@dataclass
class Options:
    nodes: int
    gpus_per_node: int | None
    cpus_per_node: int
    timeout: float
    master_port: int | None
    command: list[str]


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.format_usage()}ranklaunch_ray: {message}\n")


def parse(arguments: Sequence[str]) -> Options:
    parser = Parser(
        prog="ranklaunch_ray.py",
        usage="%(prog)s --nodes N [OPTIONS] -- ranklaunch run|check OPTIONS -- SCRIPT ARGS",
        description="Runs a ranklaunch command on every node of a Ray job and exits with the job's code.",
    )
    gpus = "GPUs to reserve on each node [default: 0, refused if the nodes have GPUs]"
    port = "port of node 0 where the ranks meet [default: a free one from 20000 to 29999]"
    for flag, kind, default, shown, text in (
        ("--nodes", int, None, "N", "nodes of the job; one command runs on each"),
        ("--gpus-per-node", int, None, "N", gpus),
        ("--cpus-per-node", int, 1, "N", "CPUs to reserve on each node [default: 1]; the ranks may use all"),
        ("--timeout", float, 1800.0, "SECONDS", "wait this long for the nodes [default: 1800]"),
        ("--master-port", int, None, "PORT", port),
    ):
        required = flag == "--nodes"
        parser.add_argument(flag, type=kind, default=default, metavar=shown, help=text, required=required)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    known, command = parser.parse_args(arguments[:at]), list(arguments[at + 1 :])
    if not command:
        parser.error("the command is missing: -- ranklaunch run OPTIONS -- SCRIPT ARGS")
    if known.nodes < 1 or known.cpus_per_node < 0 or (known.gpus_per_node or 0) < 0:
        parser.error("there is at least one node, and a number of CPUs or GPUs is not negative")
    if known.cpus_per_node == 0 and not known.gpus_per_node:
        parser.error("Ray reserves no place that has neither a CPU nor a GPU")
    for word in itertools.takewhile(lambda word: word != "--", command):
        if word.split("=")[0] in ("--nnodes", "--node-rank", "--master-addr", "--master-port"):
            parser.error(f"{word} contradicts what the nodes get from Ray; leave it out")
    return Options(**vars(known), command=command)


def say(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"ranklaunch_ray: {text}", file=sys.stderr, flush=True)


def first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


class Stop:
    """SIGTERM, SIGINT, SIGHUP and Ray's cancel, which comes as SIGINT: the agents get one TERM."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.agents: list[Any] = []

    def ask(self, *_: object) -> None:
        self.asked.set()

    def check(self) -> None:
        if self.asked.is_set():
            raise Refusal(STOPPED, "stopped before the start")

    def forward(self) -> None:
        # Not in the handler, which must not call Ray; not in the main thread, which a console that
        # nobody reads may block.
        self.asked.wait()
        say("stopping: TERM to every node")
        for agent in self.agents:
            with contextlib.suppress(RayError):
                agent.stop.remote()

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        # nohup's SIGHUP stays ignored.
        numbers = [n for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
        before = {number: signal.signal(number, self.ask) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                # None: it was not set by Python, which cannot bring it back.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)


def living_nodes() -> dict[str, dict[str, float]]:
    """Address and resources of every living node; several on one host are told apart."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return {f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}": node["Resources"] for node in alive}


def what_is_missing(nodes: int, bundle: dict[str, float]) -> tuple[int, str]:
    """Why the nodes are not there yet, and the exit code if that does not change."""
    alive = living_nodes()
    short = {
        address: [f"{has.get(name, 0):g} {name}" for name, wanted in bundle.items() if has.get(name, 0) < wanted]
        for address, has in alive.items()
    }
    fit = sum(not lacks for lacks in short.values())
    wants = " and ".join(f"{wanted:g} {name}" for name, wanted in bundle.items())
    text = f"{fit} of {nodes} nodes with {wants} are there"
    lacking = [f"{address} has {' and '.join(lacks)}" for address, lacks in short.items() if lacks]
    if fit >= nodes:
        free = ray.available_resources()
        held = ", ".join(f"{free.get(name, 0):g} {name}" for name in bundle)
        return (NODES_MISSING, f"{text}, but other work of Ray is on them; free in the whole cluster: {held}")
    if lacking:
        text += "; " + ", ".join(lacking)
    gpus = any("GPU" in lack for lacks in short.values() for lack in lacks)
    return (GPUS_MISSING if gpus and len(alive) >= nodes else NODES_MISSING), text


def reserve(options: Options, stop: Stop) -> PlacementGroup:
    """One bundle on each of as many nodes; what is missing is said whenever it changes."""
    wanted = {"GPU": float(options.gpus_per_node or 0), "CPU": float(options.cpus_per_node)}
    bundle = {name: number for name, number in wanted.items() if number}
    deadline = time.monotonic() + options.timeout
    # At once, since a pending group is what makes an autoscaler add nodes.
    group = placement_group([bundle] * options.nodes, strategy="STRICT_SPREAD")
    said = ""
    try:
        while not group.wait(1):
            stop.check()
            code, missing = what_is_missing(options.nodes, bundle)
            left = deadline - time.monotonic()
            if left <= 0:
                raise Refusal(code, f"{missing}, and {options.timeout:g} s are over")
            if missing != said:
                say(f"waiting, at most {left:.0f} s: {missing}")
                said = missing
        if options.gpus_per_node is None:
            gpus = {address: has["GPU"] for address, has in living_nodes().items() if has.get("GPU")}
            if gpus:
                found = ", ".join(f"{address} has {number:g}" for address, number in gpus.items())
                raise Refusal(USAGE, f"which GPUs? {found}: give --gpus-per-node N, or 0 for a job on CPUs")
    except BaseException:
        remove_placement_group(group)
        raise
    return group


def answers(refs: list[Any], timeout: float, stop: Stop) -> list[Any]:
    """What every agent answers; the first that is lost, or a stop, is a refusal."""
    deadline = time.monotonic() + timeout
    while True:
        done, waiting = ray.wait(refs, num_returns=len(refs), timeout=0.5)
        stop.check()
        for ref in done:
            try:
                ray.get(ref)
            except RayError as error:
                raise Refusal(NODES_MISSING, f"node {refs.index(ref)} was lost: {first_line(error)}") from error
        if not waiting:
            return list(ray.get(refs))
        if time.monotonic() > deadline:
            ranks = ", ".join(str(refs.index(ref)) for ref in waiting)
            raise Refusal(NODES_MISSING, f"no actor began within {timeout:g} s on node {ranks}")


def meeting_point(places: list[Place], port: int | None) -> tuple[str, int]:
    """Address and port of node 0, as every other node can reach it."""
    address, port = places[0].address, port or places[0].port
    if address is None or port is None:
        raise Refusal(MEMBERSHIP, f"Ray gives no address or free port of node 0 ({places[0].host}): {address}, {port}")
    with contextlib.suppress(ValueError):
        alone = all(place.address == address for place in places)
        if ipaddress.ip_address(address).is_loopback and not alone:
            raise Refusal(MEMBERSHIP, f"node 0 ({places[0].host}) is {address} for Ray, which no other node can reach")
    return address, port


class Console:
    """Every node's lines on stdout, each behind the node's rank."""

    def __init__(self, nodes: int) -> None:
        self.rests = [b""] * nodes

    def write(self, node: int, part: bytes) -> None:
        *lines, rest = (self.rests[node] + part).split(b"\n")
        if len(rest) > LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        self.rests[node] = rest
        self.show(b"".join(b"node%d: %s\n" % (node, line) for line in lines))

    def end(self, node: int) -> None:
        """Shows a last line that has no end."""
        if self.rests[node]:
            self.write(node, b"\n")

    def close(self, ends: list[End]) -> None:
        """Every command has ended."""

    def show(self, text: bytes) -> None:
        # Nobody may read any more; the job goes on.
        with contextlib.suppress(OSError):
            rest = memoryview(text)
            while rest:
                rest = rest[os.write(1, rest) :]


class Table(Console):
    """`ranklaunch check`: all nodes measure together and print one table, so node 0's is enough.

    Of any other node, the output is shown if it ended with another code.
    """

    def write(self, node: int, part: bytes) -> None:
        if node == 0:
            self.show(part)
        else:
            self.rests[node] = (self.rests[node] + part)[-LONGEST_LINE:]

    def end(self, node: int) -> None:
        pass

    def close(self, ends: list[End]) -> None:
        for node, end in enumerate(ends):
            rest, self.rests[node] = self.rests[node], b""
            if end.code != ends[0].code:
                super().write(node, rest)
                super().end(node)


def follow(agents: list[Any], places: list[Place], console: Console, stop: Stop) -> list[End]:
    """Shows the output of all nodes until every command has ended or is lost."""
    ends: dict[int, End] = {}
    lost_at: float | None = None
    reads = {agent.read.remote(1): (node, 1) for node, agent in enumerate(agents)}
    while reads:
        for ref in ray.wait(list(reads), timeout=1)[0]:
            node, number = reads.pop(ref)
            try:
                part = ray.get(ref)
            except TaskCancelledError:
                # Cancelling this program cancelled its calls as well; the agents live.
                stop.ask()
                number -= 1
            except RayError as error:
                say(f"node {node} ({places[node].host}, {places[node].address}) was lost: {first_line(error)}")
                lost_at = lost_at or time.monotonic()
                ends[node] = End(STOPPED)
                console.end(node)
                continue
            else:
                if isinstance(part, End):
                    ends[node] = part
                    console.end(node)
                    continue
                console.write(node, part)
            reads[agents[node].read.remote(number + 1)] = (node, number + 1)
        if lost_at is not None and time.monotonic() > lost_at + LOSS_SECONDS:
            stop.ask()
    return [ends[node] for node in range(len(agents))]


def verdict(ends: Sequence[End]) -> tuple[int, str]:
    """The job's exit code and reason: those of the node with the cause, as the nodes name it."""
    text = next((end.text for end in ends if end.text), "")
    causes = {end.cause for end in ends}
    for node, end in enumerate(ends):
        if node in causes and end.code not in ELSEWHERE:
            return end.code, end.text or text
    own = [end for end in ends if end.code not in ELSEWHERE]
    worst = max(own or ends, key=lambda end: end.code)
    return worst.code, worst.text or text


def run(options: Options, stop: Stop) -> int:
    group = reserve(options, stop)
    try:
        actor = ray.remote(Agent)
        stop.agents = [
            # Calls at once: one reads, one stops; every cancel leaves a read behind until it ends.
            actor.options(
                num_cpus=options.cpus_per_node,
                num_gpus=options.gpus_per_node or 0,
                max_concurrency=8,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, node),
            ).remote()
            for node in range(options.nodes)
        ]
        asked = [agent.place.remote(options.command[0]) for agent in stop.agents]
        places: list[Place] = answers(asked, options.timeout, stop)
        without = [f"{node} ({place.host})" for node, place in enumerate(places) if place.program is None]
        if without:
            raise Refusal(NOT_FOUND, f"{options.command[0]} is not on node {', '.join(without)}")
        address, port = meeting_point(places, options.master_port)
        for node, place in enumerate(places):
            say(f"node {node} is {place.host} ({place.address})")
        threading.Thread(target=stop.forward, daemon=True).start()
        for node, agent in enumerate(stop.agents):
            variables = {"NNODES": options.nodes, "NODE_RANK": node, "MASTER_ADDR": address, "MASTER_PORT": port}
            agent.start.remote(options.command, {f"RANKLAUNCH_{name}": str(value) for name, value in variables.items()})
        table = options.command[1:2] == ["check"]
        console = Table(options.nodes) if table else Console(options.nodes)
        ends = follow(stop.agents, places, console, stop)
        console.close(ends)
    finally:
        # Agents that have ended hold nothing; any other takes its command with it.
        for agent in stop.agents:
            ray.kill(agent)
        remove_placement_group(group)
    code, text = verdict(ends)
    say(f"exit code {code}" + (f": {text}" if text else ""))
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """The whole program, also for a caller that is connected to Ray already."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    connected, stop = ray.is_initialized(), Stop()
    if not connected:
        try:
            ray.init(address="auto")
        except (ConnectionError, RayError) as error:
            say(f"refused, exit code {NODES_MISSING}: no Ray cluster: {first_line(error)}")
            return NODES_MISSING
    # After ray.init, which sets handlers of its own. In another thread: the main thread is for
    # signals, and in a task that is cancelled every call of Ray there raises KeyboardInterrupt.
    with stop.on_signals(), ThreadPoolExecutor(1) as pool:
        job = pool.submit(run, options, stop)
        while not job.done():
            try:
                wait([job], timeout=1)
            except KeyboardInterrupt:
                stop.ask()
    try:
        return job.result()
    except Refusal as refusal:
        say(f"refused, exit code {refusal.code}: {refusal}")
        return refusal.code
    finally:
        if not connected:
            ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
