"""Runs the cases on one cluster, one after the other. See run.sh, which prepares what this needs."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

# Daemons read these when they start. A stop of a RayJob waits for the ranks; the entry point of
# one says `python`. Another cluster of this machine keeps its own folder.
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_JOB_STOP_WAIT_TIME_S="60", RAY_TMPDIR=sys.argv[1])
folders = [Path(sys.executable).parent, Path(sys.argv[2]).parent]
os.environ["PATH"] = ":".join([*map(str, folders), os.environ["PATH"]])
# The GPUs of this cluster exist for Ray only.
os.environ.update(RANKLAUNCH_DEVICE="cpu", RANKLAUNCH_NPROC_PER_NODE="1", RANKLAUNCH_STALE="off")
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "packaging" / "ray"))

import jobs  # noqa: E402, F401  registers its cases
from bench import Bench, Failed, LeftOut, cluster_of  # noqa: E402
from cases import CASES  # noqa: E402

# One case of each kind: what an entry point gets right, a failure, stops, lost nodes, a RayJob.
SHORT = [
    "two nodes add up",
    "a failing rank gives its code and one cause",
    "TERM to the driver is the ranks' TERM, once",
    "a killed driver leaves nothing",
    "ray.cancel by force leaves nothing",
    "an actor that is killed ends the others",
    "a node that joins late",
    "too few GPUs are refused with the list",
    "an address that no node can use",
    "the verdict of several nodes",
    "a RayJob whose rank fails is FAILED",
    "the manifest's job of two pods",
]


def main() -> int:
    work, executable, *wanted = sys.argv[1:]
    cases = [one for one in CASES if not wanted or any(part in one[0] for part in wanted)]
    later = []
    if os.environ.get("SHORT") and not wanted:
        later = [name for name, _ in cases if name not in SHORT]
        cases = [one for one in cases if one[0] in SHORT]
        assert len(cases) == len(SHORT), "a case of the short form is not called so any more"
    if not cases:
        print(f"no case is called {' or '.join(wanted)}")
        return 2
    results = []
    # ranklaunch warns of variables that look like its own.
    torch = os.environ.pop("RANKLAUNCH_TEST_PYTHON", "")
    if torch:
        os.environ["RANKLAUNCH_PYTHON"] = torch
    with cluster_of(3) as cluster:
        for name, function in cases:
            bench, began = Bench(cluster, Path(work), executable, torch, name), time.monotonic()
            try:
                function(bench)
                bench.nothing_left()
                result = "passed"
            except LeftOut as why:
                result = f"left out: {why}"
            except Failed as why:
                result = f"FAILED: {why}"
                for program in bench.programs:
                    print("\n".join(f"    | {line}" for line in program.text().splitlines()[-60:]))
            finally:
                bench.close()
            results.append(result)
            print(f"{name}: {result} ({time.monotonic() - began:.1f} s)", flush=True)
    for name in later:
        print(f"{name}: left out: SHORT")
        results.append("left out")
    passed, failed = results.count("passed"), sum(result.startswith("FAILED") for result in results)
    print(f"Ray: {passed} passed, {failed} failed, {len(results) - passed - failed} left out")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
