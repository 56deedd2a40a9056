"""Hosts without a scheduler: one line on each, which is the same line where it lists the hosts.

Nothing here numbers the jobs, so each case has a port of its own: cases run at the same time.
"""

import itertools
import os
import signal

from case import RANK, LeftOut, case, expect, terminate
from nodes import wait_for
from pages import add

PORTS = itertools.count(29600)
TORCH = os.environ.get("RANKLAUNCH_TEST_PYTHON", "")


def on_each(bench, hosts, *command, **environment):
    """Starts the same line on every host."""
    bench.environment.setdefault("RANKLAUNCH_MASTER_PORT", str(next(PORTS)))
    return [bench.start("ranklaunch", *command, on=host, **environment) for host in hosts]


def codes(jobs, seconds=90):
    return [job.wait(seconds) for job in jobs]


def all_of(found):
    """The one code of all hosts, or what they had."""
    return found[0] if len(set(found)) == 1 else found


@case("bare", "the same line on two hosts", 0)
def same_line(bench):
    jobs = on_each(bench, ["n1", "n2"], "run", "--nodes", "n1,n2", "--nproc-per-node", "2", "--", RANK)
    found = codes(jobs)
    bench.ranks(4, ["n1", "n2"])
    bench.verdicts(2, id="done")
    bench.platform("flags")
    bench.nothing_is_left()
    return all_of(found)


@case("bare", "the order of the list is that of the ranks", 0)
def order(bench):
    found = codes(on_each(bench, ["n1", "n2", "n3"], "run", "--nodes", "n3,n1,n2", "--", RANK))
    bench.ranks(3, ["n3", "n1", "n2"])
    return all_of(found)


@case("bare", "addresses, and RANKLAUNCH_NODES", 0)
def addresses(bench):
    jobs = on_each(bench, ["n1", "n2"], "run", "--", RANK, RANKLAUNCH_NODES="10.77.0.2 10.77.0.1")
    found = codes(jobs)
    bench.ranks(2, ["n2", "n1"])
    return all_of(found)


@case("bare", "a range of names, in the profile that all hosts read", 0)
def profile(bench):
    bench.write("ranklaunch.toml", f'[job]\nnodes = "n[1-3]"\nscript = "{RANK}"\n')
    found = codes(on_each(bench, ["n1", "n2", "n3"], "run"))
    bench.ranks(3, ["n1", "n2", "n3"])
    return all_of(found)


@case("bare", "names that only /etc/hosts connects with a host", 0)
def other_names(bench):
    found = codes(on_each(bench, ["n1", "n2"], "run", "--nodes", "worker-1,worker-2", "--", RANK))
    bench.ranks(2, ["n1", "n2"])
    return all_of(found)


@case("bare", "a host that is not in the list is refused at once, and names itself", 65)
def not_listed(bench):
    code = bench.run("ranklaunch", "run", "--nodes", "n1,worker-2", "--", RANK, on="n3", seconds=20)
    bench.says("--nodes is n1, worker-2, but this host is none of them: it is n3, 10.77.0.3", "--node-rank 0 to 1")
    return code


@case("bare", "a host that is in the list twice is refused on every host", 65)
def twice(bench):
    found = []
    for host, said in (("n1", "both n1 and 10.77.0.1 are this host"), ("n2", "this host is none of them")):
        found.append(bench.run("ranklaunch", "run", "--nodes", "n1,10.77.0.1", "--", RANK, on=host, seconds=20))
        bench.says(said)
    return all_of(found)


@case("bare", "a host with another name says its place", 0)
def behind_another_name(bench):
    bench.environment["MASTER_PORT"] = str(next(PORTS))
    jobs = [bench.start("ranklaunch", "run", "--nodes", "10.77.0.1,elsewhere", *place, "--", RANK, on=host)
            for host, place in (("n1", []), ("n2", ["--node-rank", "1"]))]
    found = codes(jobs)
    bench.ranks(2, ["n1", "n2"])
    return all_of(found)


@case("bare", "count, rank and master instead of the list", 0)
def by_hand(bench):
    bench.environment["MASTER_PORT"] = str(next(PORTS))
    jobs = [bench.start("ranklaunch", "run", "--nnodes", "2", "--node-rank", str(rank), "--master-addr", "n1", "--",
                        RANK, on=host) for rank, host in enumerate(["n1", "n2"])]
    found = codes(jobs)
    bench.ranks(2, ["n1", "n2"])
    return all_of(found)


@case("bare", "a failing rank ends both hosts with one cause", 7)
def failing(bench):
    found = codes(on_each(bench, ["n1", "n2"], "run", "--nodes", "n1,n2", "--", RANK, "fail", "1", "7"))
    expect(found[0] == 143, f"the host without the failing rank ended with {found[0]}")
    bench.verdicts(2, rank=1)
    bench.nothing_is_left()
    return found[1]


@case("bare", "TERM on one host: both save and end", 143)
def stopped(bench):
    jobs = on_each(bench, ["n1", "n2"], "run", "--nodes", "n1,n2", "--", RANK, "save-for", "1", "never")
    bench.wait("ready-0", "ready-1")
    terminate(jobs[1])
    found = codes(jobs)
    expect(bench.read("saved-0") and bench.read("saved-1"), "both ranks saved")
    bench.nothing_is_left()
    return all_of(found)


@case("bare", "a host that never comes is missed by its number and name", 88)
def missing(bench):
    jobs = on_each(bench, ["n1", "n2"], "run", "--nodes", "n1,n2,n3", "--wait-timeout", "5s", "--", RANK)
    found = codes(jobs, 40)
    bench.says("2 of 3 nodes arrived in 5s; missing node 2: n3 (never connected)")
    bench.nothing_is_left()
    return all_of(found)


@case("bare", "Ctrl-C on one host ends both", 130)
def interrupted(bench):
    jobs = on_each(bench, ["n1", "n2"], "run", "--nodes", "n1,n2", "--", RANK, "until", "never")
    bench.wait("ready-0", "ready-1")
    terminate(jobs[0], signal.SIGINT)
    found = codes(jobs)
    wait_for(lambda: not bench.left(), 20, "the end of all")
    expect(found[1] in (130, 143), f"the other host ended with {found[1]}")
    return found[0]


@case("bare", "torchrun and gloo on two hosts", 0, seconds=30)
def torchrun(bench):
    if not TORCH:
        raise LeftOut("no python with torch: RANKLAUNCH_TEST_PYTHON")
    jobs = on_each(bench, ["n1", "n2"], "run", "--nodes", "n[1-2]", "--nproc-per-node", "2", "--", RANK,
                   RANKLAUNCH_ENGINE="torchrun", RANKLAUNCH_PYTHON=TORCH)
    found = codes(jobs, 140)
    bench.ranks(4, ["n1", "n2"])
    return all_of(found)


add("bare", "bare-hosts.md", ["n1", "n2"], port=29700)
