"""Runs one command line by torchrun, by ranklaunch with torchrun as its engine, and by ranklaunch alone, and
compares what was seen with the guide."""

import functools
import os
import re
import signal
import socket
import subprocess

from case import Wrong, case, expect
from nodes import wait_for

HERE = os.path.dirname(os.path.abspath(__file__))
GUIDE = os.path.join(HERE, "..", "..", "..", "docs", "guide", "migration")
PROBE = os.path.join(HERE, "probe.py")
PYTHON = os.environ.get("TORCHRUN_PYTHON", "python3")
TORCHRUN, ENGINE, DIRECT = "torchrun", "ranklaunch", "direct"
# Options for which the guide has nothing: they are left out, as it says.
DROPPED = ["rdzv-id", "start-method", "monitor-interval", "run-path", "no-python", "redirects", "tee"]
# Rows of the guide that a case names.
NAMED = set()


def rows(end=".md", heading="### What a script sees otherwise"):
    """The first cells of the guide's table of differences."""
    with open(GUIDE + end) as file:
        section = file.read().split(heading, 1)[1].split("\n## ")[0]
    cells = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")]
    return cells[1:]


def compared(name, want=None, engine=None, direct=None, short=False):
    """A case whose function gives what is seen of a launch. `engine` and `direct` name the guide's row by which
    ranklaunch differs; `want` is what torchrun itself shows."""
    listed = {ENGINE: engine, DIRECT: direct}
    NAMED.update(row for row in listed.values() if row)

    def add(function):
        @functools.wraps(function)
        def run(bench):
            wrong = []
            seen = {which: function(Launch(bench, which)) for which in (TORCHRUN, ENGINE, DIRECT)}
            if want is not None and seen[TORCHRUN] != want:
                wrong.append(f"torchrun shows {seen[TORCHRUN]}, expected {want}")
            for which, row in listed.items():
                differs = seen[which] != seen[TORCHRUN]
                if differs and not row:
                    wrong.append(f"{which} shows {seen[which]}, torchrun {seen[TORCHRUN]}: not in the guide")
                if row and not differs:
                    wrong.append(f"{which} does as torchrun, {seen[which]}, but the guide says otherwise: {row}")
                if row and row not in rows():
                    wrong.append(f"no row of the guide: {row}")
            expect(not wrong, "\n".join(wrong))
            return 0

        return case("torchrun", name, 0, seconds=0 if short else 30)(run)

    return add


def port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Launch:
    """A launcher, and a folder for what its ranks write."""

    def __init__(self, bench, which):
        self.bench, self.which = bench, which
        self.folder = bench.path(which)
        os.makedirs(self.folder)
        self.environment = {name: value for name, value in bench.environment.items()
                            if name not in ("RANKLAUNCH_DEVICE", "RANKLAUNCH_ENGINE", "OMP_NUM_THREADS")}
        self.environment |= {"RANKLAUNCH_PYTHON": PYTHON, "RANKLAUNCH_LOG_DIR": os.path.join(self.folder, "logs"),
                             "PROBE_FOLDER": self.folder}

    def line(self, options, program):
        """`options` as torchrun spells them, `--name=value`."""
        if self.which == TORCHRUN:
            return [PYTHON, "-m", "torch.distributed.run", *options, *program]
        kept = [one for one in options if re.match(r"--?([a-z-]*)", one).group(1) not in DROPPED]
        engine = "direct" if self.which == DIRECT else "torchrun"
        module = []
        if kept[-1:] in (["-m"], ["--module"]):
            kept, module, program = kept[:-1], ["-m", program[0]], program[1:]
        return ["ranklaunch", "run", "--engine", engine, *kept, *module, "--", *program]

    def start(self, options, program, stdin=subprocess.DEVNULL, cwd=None, **environment):
        name = self.bench.output()
        with open(self.bench.path(name), "w") as output:
            process = subprocess.Popen(self.line(options, program), cwd=cwd or self.folder, stdin=stdin, stdout=output,
                                       stderr=subprocess.STDOUT, env={**self.environment, **environment})
        self.bench.processes.append(process)
        return process, name

    def run(self, options, program, **more):
        """The code, and what was printed."""
        process, name = self.start(options, program, **more)
        try:
            code = process.wait(150)
        except subprocess.TimeoutExpired:
            raise Wrong(f"{self.which} has not ended: {' '.join(program)}") from None
        return code, self.bench.read(name)

    def probe(self, options, *words, **more):
        """The code of a launch of probe.py."""
        return self.run(options, [PROBE, *words], **more)[0]

    def ranks(self, what="began"):
        """The ranks that wrote a file of this kind."""
        return sorted(int(name.rsplit("-", 1)[1]) for name in os.listdir(self.folder) if name.startswith(f"{what}-"))

    def read(self, name):
        with open(os.path.join(self.folder, name)) as file:
            return file.read()

    def signalled(self, number):
        """What two ranks got and did when the launcher gets a signal."""
        process, _ = self.start(["--nproc-per-node=2"], [PROBE, "signals"])
        wait_for(lambda: self.ranks("ready") == [0, 1], 60, "ranks that are ready")
        process.send_signal(number)
        process.wait(60)
        got = {self.read(f"got-{rank}").strip() for rank in self.ranks("got")}
        return sorted(got), self.ranks("saved")

    def refuses(self, options, program=(PROBE,), **more):
        """Whether nothing began."""
        code, _ = self.run(options, list(program), **more)
        return code != 0 and not self.ranks()


SIGNALS = {name: getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")}
