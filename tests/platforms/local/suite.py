"""Runs the cases of a folder on this machine. See start.sh."""

import argparse
import concurrent.futures
import importlib
import os
import re
import shutil
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PLATFORMS = os.path.dirname(HERE)
sys.path += [HERE, os.path.join(PLATFORMS, "hosts")]

from case import CASES, Bench, LeftOut  # noqa: E402

# Seconds from which a case is left out of the short form.
LONG = 20


class Suite:
    """What a bench takes from its suite: no other hosts, and one place for the executable."""

    hosts = None

    def __init__(self, work, executable):
        self.work, self.executable = work, executable
        os.makedirs(os.path.join(work, "bin"))
        shutil.copy(executable, os.path.join(work, "bin", "ranklaunch"))


def run(suite, case):
    """The result of a case, and why it is not that it passed."""
    # A colon would end the folder's name in PATH and in Docker's volumes, a comma in YAML.
    name = re.sub(r"[^\w.=-]", "-", case.name)
    bench, began = Bench(suite, os.path.join(suite.work, "cases", name)), time.monotonic()
    try:
        wrong = case.run(bench)
        result, why = ("failed", wrong) if wrong else ("passed", "")
    except LeftOut as reason:
        result, why = "left out", str(reason)
    print(f"{result:8} {case.group}: {case.name} ({time.monotonic() - began:.1f} s)", flush=True)
    if result == "failed":
        lines = bench.text().splitlines()[-30:]
        print("\n".join(["    " + why.replace("\n", "\n    "), *("    | " + line for line in lines)]), flush=True)
    return result, why


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments = argparse.ArgumentParser(prog="run.sh")
    arguments.add_argument("folder", help=argparse.SUPPRESS)
    arguments.add_argument("work", help=argparse.SUPPRESS)
    arguments.add_argument("executable", help=argparse.SUPPRESS)
    arguments.add_argument("--list", action="store_true", help="name the cases")
    arguments.add_argument("cases", nargs="*", help="parts of names of cases")
    said = arguments.parse_args()
    sys.path.append(os.path.join(PLATFORMS, said.folder))
    module = importlib.import_module(f"{said.folder}_cases")
    wanted = [case for case in CASES if not said.cases or any(part in case.name for part in said.cases)]
    if said.list:
        print("\n".join(f"{case.group}: {case.name} ({case.code})" for case in wanted))
        return 0
    results, began = {"passed": [], "failed": [], "left out": []}, time.monotonic()
    suite = Suite(said.work, said.executable)
    pool = concurrent.futures.ThreadPoolExecutor(module.AT_ONCE)
    try:
        later = [case for case in wanted if os.environ.get("SHORT") and case.seconds > LONG]
        now = sorted((case for case in wanted if case not in later), key=lambda case: -case.seconds)
        results["left out"] += [(case, "SHORT") for case in later]
        pending = {pool.submit(run, suite, case): case for case in now}
        for one in concurrent.futures.as_completed(pending):
            result, why = one.result()
            results[result].append((pending[one], why))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        module.finish()
    counts = ", ".join(f"{len(found)} {result}" for result, found in results.items())
    print(f"\n{said.folder}: {counts}, in {time.monotonic() - began:.0f} s")
    for result in ("failed", "left out"):
        for case, why in results[result]:
            print(f"{result}: {case.group}: {case.name}: {why.splitlines()[0]}")
    # A suite that ran nothing has tested nothing.
    return 1 if results["failed"] or not results["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
