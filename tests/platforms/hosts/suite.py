#!/usr/bin/env python3
"""Runs the cases of tests/platforms/slurm, mpi and bare. See start.sh, which makes the namespaces that this needs."""

import argparse
import concurrent.futures
import importlib
import os
import re
import shutil
import subprocess
import sys
import time

from case import CASES, Bench, LeftOut
from nodes import Hosts
from remote import Server
from slurm import Slurm

HERE = os.path.dirname(os.path.abspath(__file__))
# A folder beside this one, whose cases are in FOLDER_cases.py.
GROUPS = ["slurm", "mpi", "bare"]
# Of those, what needs Slurm: MPI also runs inside its allocations.
WITH_SLURM = {"slurm", "mpi"}
for group in GROUPS:
    sys.path.append(os.path.join(os.path.dirname(HERE), group))
    importlib.import_module(f"{group}_cases")


class Suite:
    def __init__(self, work, executable, groups):
        self.work = work
        self.executable = executable
        # The commands of the cases say `ranklaunch`, as a user does.
        os.makedirs(os.path.join(work, "bin"))
        shutil.copy(executable, os.path.join(work, "bin", "ranklaunch"))
        os.symlink(os.path.join(HERE, "remote.py"), os.path.join(work, "bin", "ssh"))
        self.hosts = Hosts(work, 3)
        Server(self.hosts, work)
        self.slurm = Slurm(self.hosts, work) if WITH_SLURM & groups else None

    def stop(self):
        if self.slurm:
            self.slurm.stop()
        self.hosts.stop()


def run(suite, wanted, at_once):
    """Runs the cases, longest first, and prints each result; gives the names of those that failed."""
    wanted = sorted(wanted, key=lambda one: -one.seconds)
    results = {"passed": [], "failed": [], "left out": []}

    def one(case):
        # mpirun takes a comma in the name of a hostfile for the end of that name.
        name = re.sub(r"[^\w.:=-]+", "-", f"{case.group}-{case.name}")
        folder = os.path.join(suite.work, "cases", name)
        bench = Bench(suite, folder)
        began = time.monotonic()
        try:
            wrong = case.run(bench)
        except LeftOut as why:
            return case, "left out", str(why), bench, 0
        return case, "failed" if wrong else "passed", wrong, bench, time.monotonic() - began

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for future in concurrent.futures.as_completed([pool.submit(one, case) for case in wanted]):
            case, result, why, bench, seconds = future.result()
            results[result].append((case, why))
            print(f"{result:8} {case.group}: {case.name} ({case.code}, {seconds:.1f} s)", flush=True)
            if result == "failed":
                lines = bench.text().splitlines()
                print("\n".join(["    " + why.replace("\n", "\n    "), *("    | " + line for line in lines[-12:])]))
    return results


def main():
    arguments = argparse.ArgumentParser(prog="start.sh", description=__doc__)
    arguments.add_argument("--work", required=True, help=argparse.SUPPRESS)
    arguments.add_argument("--executable", required=True, help=argparse.SUPPRESS)
    arguments.add_argument("--list", action="store_true", help="name the cases and their exit codes")
    arguments.add_argument("--case", action="append", help="only cases whose name contains this")
    arguments.add_argument("--short", action="store_true", help="without long cases: one of torch is left")
    arguments.add_argument("--at-once", type=int, default=4, help="cases that run at the same time (%(default)s)")
    arguments.add_argument("--shell", nargs=argparse.REMAINDER, help="a command on the login host, else a shell")
    arguments.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}; without one, all")
    said = arguments.parse_args()
    unknown = set(said.groups) - set(GROUPS)
    if unknown:
        arguments.error(f"no such group: {', '.join(sorted(unknown))}")
    wanted = [case for case in CASES if case.group in (said.groups or GROUPS)]
    wanted = [case for case in wanted if not said.case or any(part in case.name for part in said.case)]
    later = [case for case in wanted if said.short and case.is_long]
    wanted = [case for case in wanted if case not in later]
    if said.list:
        for case in wanted:
            print(f"{case.group}: {case.name} ({case.code})")
        return 0

    began = time.monotonic()
    groups = {case.group for case in wanted} if said.shell is None else set(GROUPS)
    suite = Suite(said.work, said.executable, groups)
    try:
        if said.shell is not None:
            bench = Bench(suite, os.path.join(said.work, "shell"))
            for name in suite.hosts.names:
                bench.environment[f"ON_{name}"] = " ".join(suite.hosts.entering(name, bench.folder))
            return subprocess.run(said.shell or ["bash"], cwd=bench.folder, env=bench.environment).returncode
        results = run(suite, wanted, said.at_once)
    finally:
        suite.stop()
    for case in later:
        results["left out"].append((case, "--short"))
    print(f"\n{len(results['passed'])} passed, {len(results['failed'])} failed, {len(results['left out'])} left out, "
          f"in {time.monotonic() - began:.0f} s")
    for result in ("failed", "left out"):
        for case, why in results[result]:
            print(f"{result}: {case.group}: {case.name}: {why.splitlines()[0]}")
    # A selection that names no case has tested nothing.
    return 1 if results["failed"] or not (results["passed"] or results["left out"]) else 0


if __name__ == "__main__":
    sys.exit(main())
