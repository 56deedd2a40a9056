"""The master port is lost after the nodes have agreed, before torch binds it."""

import os
import sys

from case import case, expect
from job import RANK, Job, one_cause, short

THIEF = os.path.join(os.path.dirname(os.path.abspath(__file__)), "thief.py")


def stolen(bench, engine, environment):
    """The job, and the exit codes of its nodes. The thief has the port as soon as node 0 frees it."""
    thief = bench.start(sys.executable, THIEF, str(bench.port), on="n1")
    bench.wait("thief-waits")
    # Node 1 comes when the thief has seen node 0 listen, so that it cannot miss the moment.
    job = Job(bench, engine, [RANK, "torch", "done"], "--grace", "5s", pythons=(environment, environment),
              after_first=lambda: bench.wait("thief-sees-it"))
    codes = job.ended()
    bench.wait("thief-has-it", seconds=1)
    expect(thief.poll() is None, "the thief has ended")
    bench.never_says("by torch")
    one_cause(job, str(bench.port))
    return job, codes


def by_the_engine(engine, environment, named, is_short=False):
    @case("lost port", f"{named}: 87 with the port and who has it", 87)
    def run(bench):
        job, codes = stolen(bench, engine, environment)
        one_cause(job, "port.lost", "held by pid", "thief.py")
        expect(codes == [87, 143], f"ended with {codes}")
        return codes[0]

    if is_short:
        short(run)


def by_a_rank(engine, environment, is_short=False):
    @case("lost port", f"{engine}: rank 0 binds it, and its own words are the cause", 1)
    def run(bench):
        job, codes = stolen(bench, engine, environment)
        one_cause(job, "cause port_in_use", "rank 0 on node 0 (n1) exited with code 1")
        expect(codes == [1, 143], f"ended with {codes}")
        return codes[0]

    if is_short:
        short(run)


by_the_engine("torchrun", "newest", "torchrun", True)
by_the_engine("torchrun", "torch_2_6", "torchrun (torch 2.6)")
by_the_engine("torchrun", "torch_2_0", "torchrun (torch 2.0)")
by_the_engine("accelerate", "newest", "accelerate")
by_a_rank("deepspeed", "deepspeed")
by_a_rank("direct", "newest", True)
