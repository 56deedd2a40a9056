"""One run: a program of a seed at a place, what it declared, and what ranklaunch said of it."""

import contextlib
import dataclasses
import datetime
import glob
import json
import os
import re
import shutil
import time

import draw
from places import GRACE, wait_for

HERE = os.path.dirname(os.path.abspath(__file__))
# Seconds after the threshold within which a hang has to be reported.
PATIENCE = 15
# Seconds that ranks have to get to their step on a machine that is busy.
START = 300
# For how many thresholds a job is suspended.
PAUSE = 3
# Share of torch's own limit after which a rank that computes is reported.
LIMIT = 0.8


@dataclasses.dataclass
class Result:
    kind: draw.Kind
    seed: int
    place: str
    world: int
    folder: str
    # Declarations of the ranks, by rank.
    declared: dict = dataclasses.field(default_factory=dict)
    # The event, and its time.
    hang: dict | None = None
    at: float = 0
    # When it is to be reported.
    due: float = 0
    # Seconds that the longest wait for a living rank took.
    lived: float = 0
    # With --hang-after off.
    is_off: bool = False
    # Why the run says nothing.
    broken: str = ""

    @property
    def label(self):
        return f"{self.kind.name}, seed {self.seed}, {self.place}, {self.world} ranks"


class Job:
    """The folder of a run and the command lines of its launchers."""

    def __init__(self, suite, kind, seed, place, mount, off):
        self.executable, self.python = suite.executable, suite.python
        self.hang_after = "off" if off else suite.hang_after
        self.kind, self.seed, self.place = kind, seed, place
        self.folder = os.path.join(suite.work, "runs", f"{kind.name}-{seed}-{place.name.replace(' ', '-')}")
        self.temporary = os.path.join(suite.work, "t")
        os.makedirs(self.folder)
        os.makedirs(self.temporary, exist_ok=True)
        self.mount, self.link, self.nodes = os.path.join(self.folder, "mount"), None, None
        seconds = suite.seconds
        self.spec, self.program, text = draw.drawn(kind, seed, place.nodes == 2, suite.largest, seconds)
        self.spec |= {"folder": self.folder, "mount": self.mount if mount else None}
        with open(self.path(self.program), "w") as file:
            file.write(text)
        shutil.copy(os.path.join(HERE, "stage.py"), self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)

    def variables(self):
        link = {"GLOO_SOCKET_IFNAME": self.link} if self.link else {}
        return {"HANGS_SPEC": json.dumps(self.spec), "OMP_NUM_THREADS": "1", "HOME": "/tmp", "RANKLAUNCH_LANG": "en",
                "RANKLAUNCH_GRACE": f"{GRACE}s", "RANKLAUNCH_TERMINATION_LOG": self.path("termination"), **link}

    def environment(self):
        # Leftovers of ranks end with the suite.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RANKLAUNCH_")}
        return kept | self.variables() | {"TMPDIR": self.temporary}

    def words(self, node, nodes, master, port):
        several = ["--nnodes", str(nodes), "--node-rank", str(node), "--master-addr", master, "--master-port",
                   str(port)] if nodes > 1 else []
        share = self.spec["world"] // nodes
        when = ["--hang-after", self.hang_after] if self.hang_after else []
        return [self.executable, "run", "--engine", "direct", "--device", "cpu", "--stale", "off", *several, "--python",
                self.python, "--nproc-per-node", str(share), *when, "--log-dir", self.path("logs"), "--", self.program]

    def run_id(self):
        return os.path.basename(os.path.realpath(self.path("logs/latest")))

    def output(self):
        """The last lines that the launchers printed."""
        lines = []
        for path in sorted(glob.glob(self.path("node-*.txt"))):
            with open(path, errors="replace") as file:
                lines += file.read().splitlines()[-6:]
        return "\n".join(lines)

    def read(self, pattern):
        found = []
        for path in sorted(glob.glob(self.path(pattern))):
            with open(path) as file:
                found.append(json.load(file))
        return found

    def hang(self):
        """The first report of a hang that a node wrote, and its time."""
        found = []
        # `latest` is a link to one of the others.
        for path in glob.glob(self.path("logs/[!l]*/**/agent.jsonl"), recursive=True):
            with open(path, errors="replace") as file:
                for line in file:
                    if '"hang"' in line and line.endswith("\n"):
                        event = json.loads(line)
                        event |= event.get("fields", {})
                        if event.get("message") == "hang" and isinstance(event.get("hang"), dict):
                            found.append((moment(event["timestamp"]), event["hang"]))
        return min(found, key=lambda one: one[0], default=(0, None))

    def marked(self, mark):
        """The numbers of the lines with a mark."""
        with open(self.path(self.program)) as file:
            return [number for number, line in enumerate(file, 1) if re.search(rf"# hangs: {mark}$", line.rstrip())]


def moment(text):
    """Seconds since 1970 of a time stamp, which may have nanoseconds."""
    text = re.sub(r"(\.\d{6})\d*", r"\1", text.replace("Z", "+00:00"))
    return datetime.datetime.fromisoformat(text).timestamp()


def play(suite, kind, seed, place, off=False):
    """Runs a program until it is reported, or until that is too late; one that lives, to its end."""
    mount = kind.asks("mount") if place.can_mount() else None
    job = Job(suite, kind, seed, place, mount, off)
    result = Result(kind, seed, place.name, job.spec["world"], job.folder, is_off=off)
    with contextlib.ExitStack() as held:
        started = held.enter_context(contextlib.ExitStack())
        started.enter_context(suite.starting)
        try:
            job.nodes = place.start(job, mount, kind.asks("link"))
            held.callback(job.nodes.stop)
            ready = lambda: len(glob.glob(job.path("imported-*"))) == job.spec["world"] or not job.nodes.running()
            wait_for(ready, START, "the import of torch")
            started.close()
            (lives if kind.lives else hangs)(suite, job, result)
        except Exception as error:  # noqa: BLE001  a run that breaks is one of many
            result.broken = f"{type(error).__name__}: {error}\n{job.output()}"
    return result


def hangs(suite, job, result):
    declared = lambda: declarations(job) or not job.nodes.running()
    wait_for(declared, START, "the hang")
    # More than one rank may be part of it.
    expected = {rank for one in declarations(job) for rank in [one["rank"], *one["may"]]}
    if job.kind.name == "inverted_groups":
        wait_for(lambda: len(declarations(job)) == len(expected), 60, "the other rank of the hang")
    result.declared = {one["rank"]: one for one in declarations(job)}
    if not result.declared:
        raise RuntimeError("it ended before it hung")
    burns = any(one["burns"] for one in result.declared.values())
    wait = max(suite.seconds, LIMIT * job.spec["timeout"]) if burns else suite.seconds
    result.due = max(one["began"] for one in result.declared.values()) + wait
    for one in result.declared.values():
        one["lines"] = [f"{job.program}:{number}" for number in job.marked(one["mark"])] if one["mark"] else []
    if suite.programs:
        result.hang = stands(suite, job, result)
        return
    while time.time() < result.due + PATIENCE + 1 and job.nodes.running():
        result.at, result.hang = job.hang()
        if result.hang:
            return
        time.sleep(0.2)
    result.at, result.hang = job.hang()
    if not result.hang and not job.nodes.running():
        result.broken = f"the job ended before its hang was reported\n{job.output()}"


def declarations(job):
    """What the ranks declared. A link is cut here, since no rank can."""
    cut = job.read("cut")
    if cut and not os.path.exists(job.path("hangs-link")):
        node = job.spec["draw"] % 2
        job.place.cut(job, node, cut[0]["how"])
        # A link that is down is down on one node; what is lost on the way may be of either.
        told = {"rank": -1, "mark": None, "kinds": ["link"], "may": list(range(job.spec["world"])), "burns": False,
                "node": node if cut[0]["how"] == "down" else None, "began": time.time()}
        with open(job.path("hangs-link"), "w") as file:
            json.dump(told, file)
    return job.read("hangs-*")


def lives(suite, job, result):
    limit = START + 2 * job.spec["living"]
    if job.kind.name == "suspended":
        wait_for(lambda: job.read("suspend") or not job.nodes.running(), START, "the wait for a process")
        # So that it is watched for a while.
        time.sleep(suite.seconds / 4)
        with job.place.suspended(job, job.seed % 2):
            time.sleep(PAUSE * suite.seconds)
    wait_for(lambda: not job.nodes.running(), limit, "the end")
    result.at, result.hang = job.hang()
    result.lived = max(job.read("lived-*"), default=0)
    if any(job.nodes.codes()):
        result.broken = f"it ended with {job.nodes.codes()}\n{job.output()}"
    elif result.lived < suite.seconds + 2:
        result.broken = f"it kept nobody waiting: {result.lived:.1f} s"


def stands(suite, job, result):
    """The control of the programs: the stacks show each rank that declared at its line."""
    time.sleep(2)
    found = []
    for node in range(job.place.nodes):
        said = job.place.stacks(job, node)
        found += json.loads(said)["ranks"] if said.strip() else []
    culprits = []
    for rank, one in result.declared.items():
        shown = json.dumps([entry for entry in found if entry["rank"] == rank])
        # A rank that ended and a link have no line.
        lines = [line for line in one["lines"] if re.search(rf'{re.escape(job.folder)}/{line.replace(":", chr(34) + ", .line.: ")}\b', shown)]
        culprits.append({"rank": rank, "kind": one["kinds"][0], "frame": lines[0] if lines else None})
    result.at = time.time()
    result.due = result.at
    return {"culprits": culprits}
