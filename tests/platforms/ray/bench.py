"""A Ray cluster on this machine, programs that use it, and what is left of them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

REPOSITORY = Path(__file__).resolve().parents[3]
ENTRY = REPOSITORY / "packaging" / "ray" / "ranklaunch_ray.py"
# For what takes seconds on an idle machine; a case fails only when this is over.
PATIENCE = 120.0


class Failed(Exception):
    """An expectation that was not met."""


class LeftOut(Exception):
    """Why a case cannot run here."""


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise Failed(what)


def until(holds: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Waits for a condition, and gives what it gave."""
    deadline = time.monotonic() + seconds
    while True:
        found = holds()
        if found:
            return found
        if time.monotonic() > deadline:
            raise Failed(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


class Program:
    """A process whose output is collected while it runs."""

    def __init__(self, command: list[str], folder: Path, variables: dict[str, str], read: bool = True) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **variables},
        )
        self.parts: list[bytes] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        if read:
            self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while part := os.read(self.process.stdout.fileno(), 65536):
            self.parts.append(part)

    def text(self) -> str:
        return b"".join(self.parts).decode(errors="replace")

    def shows(self, part: str, times: int = 1, seconds: float = PATIENCE) -> None:
        def there() -> bool:
            return self.text().count(part) >= times or self.process.poll() is not None

        until(there, f"{part!r} {times} times", seconds)
        expect(self.text().count(part) >= times, f"{part!r} is not {times} times in the output")

    def ends(self, code: int | None = None, seconds: float = PATIENCE) -> int:
        until(lambda: self.process.poll() is not None, "the program's end", seconds)
        self.reader.join(PATIENCE)
        expect(code is None or self.process.returncode == code, f"exit code {self.process.returncode}, not {code}")
        return self.process.returncode

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


def holding(mark: str) -> dict[int, str]:
    """Processes whose command line or environment has the mark, except for this one."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words, variables = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in words + variables:
            found[int(entry.name)] = words.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


class Bench:
    """What a case gets: the cluster, and programs that all carry the case's mark."""

    def __init__(self, cluster: Cluster, work: Path, executable: str, torch: str, name: str) -> None:
        self.cluster, self.executable, self.torch_python = cluster, executable, torch
        self.folder = work / "cases" / re.sub(r"\W+", "-", name)
        self.folder.mkdir(parents=True)
        self.mark = f"ray-case-{self.folder.name}"
        self.programs: list[Program] = []

    def entry(self, options: str, command: list[str], **variables: str) -> Program:
        """The program under test, on the cluster."""
        return self.python([str(ENTRY), *options.split(), "--", *command], **variables)

    def python(self, words: list[str], read: bool = True, **variables: str) -> Program:
        variables = {"RAY_ADDRESS": self.cluster.address, "PYTHONPATH": str(ENTRY.parent), **variables}
        program = Program([sys.executable, *words], self.folder, variables, read)
        self.programs.append(program)
        return program

    def ranklaunch(self, options: str, *script: str, verb: str = "run") -> list[str]:
        """A command line of ranklaunch for ranks on CPUs; `script` is their shell command."""
        command = [self.executable, verb, "--device", "cpu", "--env", f"CASE={self.mark}", "--stale", "off"]
        command += ["--log-dir", str(self.folder / self.mark)] if verb == "run" else []
        return [*command, *options.split(), *(["--", "sh", "-c", *script] if script else [])]

    def ranks(self, options: str, script: str) -> list[str]:
        return self.ranklaunch(f"--engine direct --nproc-per-node 1 {options}", script)

    def torch(self, options: str, steps: int) -> list[str]:
        """Ranks that add up numbers over gloo."""
        if not self.torch_python:
            raise LeftOut("no python has torch")
        command = self.ranklaunch(f"--engine direct --nproc-per-node 1 --python {self.torch_python} {options}")
        return [*command, "--", str(REPOSITORY / "tests" / "programs" / "reduce.py"), str(steps)]

    @contextmanager
    def another_node(self, **resources: int) -> Iterator[Any]:
        """A node of the cluster until the end of the block; then it is gone for Ray as well."""
        node = self.cluster.add_node(num_cpus=2, **resources)
        try:
            yield node
        finally:
            if node in self.cluster.list_all_nodes():
                self.cluster.remove_node(node)
            self.cluster.wait_for_nodes(PATIENCE)

    def running(self, ranks: int) -> list[int]:
        """Waits until so many ranks sleep; what looks for leftovers would see each of them."""
        return until(lambda: len(self._ranks()) >= ranks and self._ranks(), f"{ranks} ranks that run")

    def _ranks(self) -> list[int]:
        return [pid for pid, words in holding(self.mark).items() if words == "sleep 3333"]

    def nothing_left(self, seconds: float = 60.0) -> None:
        left: dict[int, str] = {}

        def none() -> bool:
            left.clear()
            left.update(holding(self.mark))
            return not left

        try:
            until(none, "no process of the case is left", seconds)
        except Failed as failed:
            raise Failed(f"{failed}: {left}") from None

    def close(self) -> None:
        for program in self.programs:
            if program.process.poll() is None:
                program.signal(signal.SIGKILL)
                program.process.wait()
        for pid in holding(self.mark):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def cluster_of(nodes: int) -> Iterator[Cluster]:
    """A head with a dashboard, and more nodes; all of them have this machine's address."""
    head = {"num_cpus": 2, "include_dashboard": True, "dashboard_port": 0}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=2)
        yield cluster
    finally:
        cluster.shutdown()
