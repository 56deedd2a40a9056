#!/usr/bin/env python3
"""Runs the cases of this folder on two hosts. See run.sh, which makes the namespaces that this needs."""

import argparse
import concurrent.futures
import os
import shutil
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(os.path.dirname(HERE), "hosts"))

from case import CASES, Bench, LeftOut  # noqa: E402
from nodes import Hosts  # noqa: E402

import accelerate_cases  # noqa: E402, F401  these register their cases
import engine_cases  # noqa: E402, F401
import known_cases  # noqa: E402, F401
import page_cases  # noqa: E402, F401
import port_cases  # noqa: E402, F401
import version_cases  # noqa: E402, F401
from job import SHORT  # noqa: E402


class Suite:
    def __init__(self, work, executable):
        self.work, self.executable = work, executable
        # The commands of the cases say `ranklaunch`, as a user does.
        os.makedirs(os.path.join(work, "bin"))
        shutil.copy(executable, os.path.join(work, "bin", "ranklaunch"))
        self.hosts = Hosts(work, 2)

    def stop(self):
        self.hosts.stop()


def run(suite, wanted, at_once):
    """Runs the cases and prints each result; gives them by result."""
    results = {"passed": [], "failed": [], "left out": []}

    def one(numbered):
        number, case = numbered
        name = f"{case.group}-{case.name}".replace(" ", "-").replace("/", "-").replace("'", "")
        bench = Bench(suite, os.path.join(suite.work, "cases", name))
        # Cases run side by side on the same hosts.
        bench.port = 21000 + 10 * number
        began = time.monotonic()
        try:
            wrong = case.run(bench)
        except LeftOut as why:
            return case, "left out", str(why), bench, 0
        return case, "failed" if wrong else "passed", wrong, bench, time.monotonic() - began

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for future in concurrent.futures.as_completed([pool.submit(one, case) for case in enumerate(wanted)]):
            case, result, why, bench, seconds = future.result()
            results[result].append((case, why))
            print(f"{result:8} {case.group}: {case.name} ({seconds:.1f} s)", flush=True)
            if result == "failed":
                lines = bench.text().splitlines()
                print("\n".join(["    " + why.replace("\n", "\n    "), *("    | " + line for line in lines[-30:])]))
    return results


def main():
    arguments = argparse.ArgumentParser(prog="run.sh", description=__doc__)
    arguments.add_argument("--work", help=argparse.SUPPRESS)
    arguments.add_argument("--executable", help=argparse.SUPPRESS)
    arguments.add_argument("--list", action="store_true", help="name the cases")
    arguments.add_argument("--short", action="store_true", help="only the cases that CI runs")
    arguments.add_argument("--at-once", type=int, default=2, help="cases that run at the same time (%(default)s)")
    arguments.add_argument("cases", nargs="*", help="parts of names; without one, all cases")
    said = arguments.parse_args()
    wanted = [case for case in CASES if not said.cases or any(part in f"{case.group}: {case.name}" for part in said.cases)]
    later = [case for case in wanted if said.short and case.function not in SHORT]
    wanted = [case for case in wanted if case not in later]
    if said.list:
        for case in wanted:
            print(f"{case.group}: {case.name}")
        return 0

    began = time.monotonic()
    suite = Suite(said.work, said.executable)
    try:
        results = run(suite, wanted, said.at_once)
    finally:
        suite.stop()
    print(f"\n{len(results['passed'])} passed, {len(results['failed'])} failed, {len(results['left out'])} left out, "
          f"in {time.monotonic() - began:.0f} s" + (f"; {len(later)} only without SHORT=1" if later else ""))
    for result in ("failed", "left out"):
        for case, why in results[result]:
            print(f"{result}: {case.group}: {case.name}: {why.splitlines()[0]}")
    # A selection that names no case has tested nothing.
    return 1 if results["failed"] or not results["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
