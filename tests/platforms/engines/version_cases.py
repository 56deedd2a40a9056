"""Nodes with different versions of torch: refused where they cannot meet."""

import concurrent.futures
import os

from case import case, expect
from job import RANK, Job, met, one_cause, once, python

STORE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "store.py")
VERSIONS = {"torch_2_0": "2.0.1", "torch_2_3": "2.3.1", "torch_2_6": "2.6.0"}
# Node 0, node 1, whether torchrun of both can meet.
PAIRS = [
    ("torch_2_0", "torch_2_6", False),
    ("torch_2_6", "torch_2_0", False),
    ("torch_2_0", "newest", False),
    ("newest", "torch_2_0", False),
    ("torch_2_3", "torch_2_6", False),
    ("torch_2_3", "newest", False),
    ("torch_2_6", "torch_2_3", False),
    ("newest", "torch_2_3", False),
    ("torch_2_6", "newest", True),
    ("newest", "torch_2_6", True),
]


def name(environment):
    return VERSIONS.get(environment, "the newest")


def refused(zero, one):
    @case("versions", f"torch {name(zero)} on node 0 and {name(one)} on node 1 are refused", 88)
    def run(bench):
        job = Job(bench, "torchrun", [RANK, "done"], pythons=(zero, one))
        codes = job.ended()
        for environment in (zero, one):
            if environment in VERSIONS:
                one_cause(job, f"torch {VERSIONS[environment]}")
        one_cause(job, "muster.torch-versions", "which cannot meet node 0's torch")
        bench.never_says("by sockets")
        expect(codes == [88, 88], f"ended with {codes}")
        return codes[0]


def allowed(zero, one):
    @case("versions", f"torch {name(zero)} on node 0 and {name(one)} on node 1 run, with a warning", 0)
    def run(bench):
        job = Job(bench, "torchrun", [RANK, "done"], pythons=(zero, one))
        codes = job.ended()
        met(bench, "sockets")
        once(job, "torch is not the same on all nodes")
        expect(codes == [0, 0], f"ended with {codes}")
        return codes[0]


for zero, one, fits in PAIRS:
    (allowed if fits else refused)(zero, one)
# Stores that work, between versions of torchrun that assign the ranks in different ways.
STORES = [("torch_2_6", "torch_2_3"), ("newest", "torch_2_3")]


@case("versions", "control: each pair of stores does what is assumed of it", 0, seconds=60)
def stores(bench):
    def works(numbered):
        index, (zero, one, _) = numbered
        port = str(bench.port + index)
        server = bench.start(python(zero), STORE, "server", port, on="n1")
        client = bench.start(python(one), STORE, "client", port, on="n1")
        server.wait(90)
        return zero, one, client.wait(90) == 0

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        found = list(pool.map(works, enumerate(PAIRS)))
    expected = [(zero, one, fits or (zero, one) in STORES) for zero, one, fits in PAIRS]
    expect(found == expected, f"found {found}")
    return 0


@case("versions", "direct starts ranks that may need no torch", 0)
def direct(bench):
    job = Job(bench, "direct", [RANK, "done"], pythons=("torch_2_0", "torch_2_6"))
    codes = job.ended()
    met(bench, "sockets")
    once(job, "torch is not the same on all nodes")
    expect(codes == [0, 0], f"ended with {codes}")
    return 0
