"""What every engine does: success, a rank that fails, TERM."""

import os
import subprocess
import time

from case import case, expect
from job import RANK, Job, met, one_cause, python, short, terms
from nodes import wait_for

# Engine, environment, what CI runs as well.
ENGINES = [
    ("torchrun", "newest", True),
    ("torchrun", "torch_2_6", False),
    ("torchrun", "torch_2_3", False),
    ("torchrun", "torch_2_0", False),
    ("accelerate", "newest", True),
    ("accelerate", "accelerate_0_30", False),
    ("accelerate", "accelerate_0_20", False),
    ("deepspeed", "deepspeed", True),
    ("direct", "newest", True),
    ("command", "newest", True),
]
# A checkpoint needs so long, of a grace period of 10 s; an engine that ends one rank after the other needs it for each.
SAVING = 7
# Ranks of a torchrun below a user's own command get TERM from ranklaunch too, after two thirds of that time:
# not every launcher passes it on.
SAVING_COMMAND = 4


def add(engine, environment, is_short):
    named = engine if environment in ("newest", engine) else f"{engine} ({environment.replace('_', ' ', 1).replace('_', '.')})"
    pythons = (environment, environment)
    mark = short if is_short else lambda function: function

    @case(named, "all ranks end with 0", 0)
    @mark
    def done(bench):
        # The light ranks prove the engine's part; torch's own is in one case of each version.
        way = ["torch"] if engine in ("torchrun", "direct") else []
        codes = Job(bench, engine, [RANK, *way, "done"], pythons=pythons).ended()
        version = torch_of(python(environment)) if way else "sockets"
        met(bench, version)
        expect(codes == [0, 0], f"ended with {codes}")
        bench.verdicts(2, id="done")
        return 0

    @case(named, "a failing rank", 7)
    @mark
    def failing(bench):
        job = Job(bench, engine, [RANK, "fail", "3", "7"], pythons=pythons)
        codes = job.ended()
        # Nothing waits for the end of the grace period, which is 30 s.
        waited = time.time() - os.path.getmtime(bench.path("ready-3"))
        expect(waited < 18, f"the nodes ended {waited:.0f} s after the rank")
        if engine == "command":
            # The engine sees the end of the user's launcher, which is torchrun: always 1.
            one_cause(job, "the command on node 1 (n2) ended with code 1")
            expect(codes == [143, 1], f"ended with {codes}")
            bench.verdicts(2, node=1, rank=None)
            bench.never_says("rank 1 on node 1", "[r1] rank 3")
            bench.says("[n1] rank 3 of 4")
            return 7
        expect(codes == [143, 7], f"ended with {codes}")
        one_cause(job, "rank 3 on node 1 (n2) exited with code 7")
        bench.verdicts(2, node=1, rank=3)
        return codes[1]

    @case(named, "TERM reaches every rank once and at once, and a checkpoint of all ranks is whole", 143, seconds=SAVING)
    @mark
    def term(bench):
        saving = SAVING_COMMAND if engine == "command" else SAVING
        job = Job(bench, engine, [RANK, "save", str(saving)], "--grace", "10s", pythons=pythons)
        bench.wait(*(f"ready-{rank}" for rank in range(4)))
        job.terminate()
        codes = job.ended()
        times = terms(bench)
        expect(all(len(one) == 1 for one in times), f"TERM per rank: {times}")
        first, last = min(one[0] for one in times), max(one[0] for one in times)
        expect(last - first < saving / 2, f"TERM came within {last - first:.1f} s")
        for rank in range(4):
            expect(bench.read(f"saved-{rank}"), f"rank {rank} has not saved")
        expect(codes == [143, 143], f"ended with {codes}")
        return codes[0]


def torch_of(interpreter):
    """`torch 2.6.0`, without the seconds of an import."""
    said = subprocess.run([interpreter, "-c", "from importlib.metadata import version; print(version('torch'))"],
                          capture_output=True, text=True, check=True).stdout
    return "torch " + said.strip().split("+")[0]


for row in ENGINES:
    add(*row)


@case("deepspeed", "control: its own launcher sends TERM to one rank after the other", 0, seconds=10)
def one_after_the_other(bench):
    import base64
    import json

    world = base64.urlsafe_b64encode(json.dumps({"n1": [0, 1]}).encode()).decode()
    process = bench.start(python("deepspeed"), "-m", "deepspeed.launcher.launch", "--world_info", world,
                          "--master_addr", "127.0.0.1", "--master_port", str(bench.port), "--no_local_rank",
                          RANK, "save", "2", on="n1", OMP_NUM_THREADS="1")
    bench.wait("ready-0", "ready-1")
    own = wait_for(lambda: launcher_below(process.pid), 10, "the launcher")
    subprocess.run(["kill", "-TERM", own], check=True)
    # The one that got it waits for the other, which did not: neither ends by itself.
    wait_for(lambda: bench.read("term-0") and bench.read("term-1"), 90, "TERM for both ranks")
    process.wait(90)
    one, other = terms(bench, 2)
    expect(abs(other[0] - one[0]) > 2, f"TERM came at {one} and {other}")
    return 0


def launcher_below(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return next(iter(file.read().split()), None)
