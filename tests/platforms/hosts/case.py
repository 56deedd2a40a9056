"""What a case is, and what it may look at.

A case is a function with a group, a name and the exit code that its job ends with. It gets a [`Bench`]:
a folder of its own in the shared file system, the hosts, and what jobs left there. It gives the exit code,
and fails by an exception.
"""

import glob
import json
import os
import re
import signal
import subprocess
import sys
import traceback

from nodes import wait_for

CASES = []
HERE = os.path.dirname(os.path.abspath(__file__))
RANK = os.path.join(HERE, "rank.py")
# Of one command; a job that hangs is a failure of its case.
SECONDS = 150


class LeftOut(Exception):
    """Why a case cannot run here."""


class Wrong(Exception):
    """What was expected, and what there was."""


def case(group, name, code, seconds=0, long=False):
    """`seconds` is what the case waits for by the clock, so that it starts before shorter ones. `long`: it needs
    many seconds of CPU, as everything that imports torch."""

    def add(function):
        CASES.append(Case(group, name, code, seconds, long, function))
        return function

    return add


class Case:
    def __init__(self, group, name, code, seconds, long, function):
        self.group, self.name, self.code, self.function = group, name, code, function
        self.seconds, self.is_long = seconds, long or seconds > 20

    def run(self, bench):
        """None where all was as expected, else what was not."""
        try:
            code = self.function(bench)
        except LeftOut:
            raise
        except (Wrong, TimeoutError) as wrong:
            return str(wrong)
        except Exception:  # noqa: BLE001  a case that breaks has failed, the others go on
            return traceback.format_exc()
        finally:
            bench.close()
        return None if code == self.code else f"ended with {code}, expected {self.code}"


class Bench:
    """The folder of a case, and everything that it starts there."""

    def __init__(self, suite, folder):
        self.hosts, self.work, self.executable = suite.hosts, suite.work, suite.executable
        self.folder = folder
        os.makedirs(folder)
        self.outputs = []
        self.jobs = []
        self.processes = []
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RANKLAUNCH_")},
            "PATH": f"{suite.work}/bin:{os.environ['PATH']}",
            "PLATFORMS_REMOTE": os.path.join(suite.work, "remote.socket"),
            "RANKLAUNCH_LANG": "en",
            "RANKLAUNCH_LOG_DIR": os.path.join(folder, "logs"),
            "RANKLAUNCH_ENGINE": "direct",
            "RANKLAUNCH_DEVICE": "cpu",
            "RANKLAUNCH_PYTHON": sys.executable,
            # A node that never comes must not hold the suite for half an hour.
            "RANKLAUNCH_WAIT_TIMEOUT": "60s",
            "RANKLAUNCH_TERMINATION_LOG": os.path.join(folder, "termination"),
        }

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)
        return self.path(name)

    def read(self, name):
        try:
            with open(self.path(name), errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def touch(self, name):
        self.write(name, "")

    def wait(self, *names, seconds=90):
        """Waits for files that ranks write."""
        for name in names:
            wait_for(lambda name=name: os.path.exists(self.path(name)), seconds, f"{name} in {self.folder}")

    def run(self, *command, seconds=SECONDS, on=None, **environment):
        """Runs a command to its end, on the login host or on another one, and gives its exit code."""
        name = self.output()
        entering = self.hosts.entering(on, self.folder) if on else []
        with open(self.path(name), "w") as output:
            try:
                return subprocess.run([*entering, *command], cwd=self.folder, stdin=subprocess.DEVNULL,
                                      stdout=output, stderr=subprocess.STDOUT, timeout=seconds,
                                      env={**self.environment, **environment}).returncode
            except subprocess.TimeoutExpired:
                raise Wrong(f"not ended within {seconds} s: {' '.join(command)}") from None

    def start(self, *command, on=None, **environment):
        """Starts a command whose end the case waits for."""
        entering = self.hosts.entering(on, self.folder) if on else []
        with open(self.path(self.output()), "w") as output:
            process = subprocess.Popen([*entering, *command], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, env={**self.environment, **environment})
        self.processes.append(process)
        return process

    def close(self):
        """Ends what a case that failed has left running."""
        for process in self.processes:
            if process.poll() is None:
                terminate(process)
        if self.jobs:
            subprocess.run(["scancel", *self.jobs], capture_output=True)

    def output(self):
        self.outputs.append(f"output-{len(self.outputs)}.txt")
        return self.outputs[-1]

    def text(self):
        """All that its commands and jobs printed."""
        return "".join(self.read(name) for name in self.outputs)

    def says(self, *texts):
        for text in texts:
            if text not in self.text():
                raise Wrong(f"not printed: {text}")

    def count(self, text, expected):
        found = self.text().count(text)
        expect(found == expected, f"{found} times instead of {expected}: {text}")

    def never_says(self, *texts):
        for text in texts:
            if text in self.text():
                raise Wrong(f"printed: {text}")

    def signals(self, kind, world, times):
        """Each rank of `until` or `save-for` got a signal so many times."""
        counts = [len(self.read(f"{kind}-{rank}")) for rank in range(world)]
        expect(counts == [times] * world, f"{kind} came {counts} times instead of {times}")

    def ranks(self, world, hosts):
        """Each rank of the world printed its line once, in blocks on the hosts in this order."""
        found = sorted((int(rank), host) for rank, of, host in
                       re.findall(r"rank (\d+) of (\d+) on (\S+) in job", self.text()) if int(of) == world)
        expected = [(rank, hosts[rank * len(hosts) // world]) for rank in range(world)]
        expect(found == expected, f"ranks were {found}, expected {expected}")

    def records(self):
        """run.json of every node that wrote one, in the order of the nodes."""
        # `latest` is a link to one of the others.
        paths = glob.glob(os.path.join(self.folder, "logs", "[!l]*", "node-*", "run.json"))
        found = []
        for path in paths:
            with open(path) as file:
                found.append(json.load(file))
        return sorted(found, key=lambda record: (record["started"], record["plan"]["membership"]["node_rank"]))

    def verdicts(self, nodes, **expected):
        """All nodes recorded a verdict with these fields."""
        records = self.records()
        expect(len(records) == nodes, f"{len(records)} records of {nodes} nodes")
        for record in records:
            for field, value in expected.items():
                found = record["verdict"][field]
                expect(found == value, f"run.json has {field} {found}, expected {value}: {record['verdict']}")

    def platform(self, name):
        found = {record["plan"]["membership"]["platform"] for record in self.records()}
        expect(found == {name}, f"run.json names the platform {found}, expected {name}")

    def nothing_is_left(self, seconds=20):
        """No process on any host still has this case's folder in its command line or as its folder."""
        wait_for(lambda: not self.left(), seconds, f"the end of {self.left()}")

    def left(self):
        found = []
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                folder = os.readlink(f"/proc/{process}/cwd")
                with open(f"/proc/{process}/cmdline") as file:
                    command = file.read().replace("\0", " ")
            except OSError:
                continue
            if folder == self.folder and ("rank.py" in command or "ranklaunch" in command):
                found.append(command)
        return found


def terminate(process, number=signal.SIGTERM):
    """Sends a signal to a command of `Bench.start`: on another host it is the child of the process that entered."""
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        children = file.read().split()
    with open(f"/proc/{process.pid}/comm") as file:
        entered = file.read().strip() == "nsenter"
    os.kill(int(children[0]) if entered and children else process.pid, number)


def expect(condition, otherwise):
    if not condition:
        raise Wrong(otherwise)
