"""How often hangs are judged right. See run.sh."""

import argparse
import concurrent.futures
import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time

import draw
import score
from job import play
from places import Containers, Here, Namespaces, has_docker

# Seconds after which a rank that makes no progress is reported.
THRESHOLD, SHORT_THRESHOLD = 10, 5
# Requirements of a program, in words.
NEEDS = {"mount": "root and /dev/fuse", "two nodes": "hosts of namespaces",
         "memory group": "root and control groups of version 1"}
# Another program of the machine, which writes and computes a little all the time: a node is never alone.
NEIGHBOUR = """
import os, sys, time
with open(sys.argv[1], "wb") as file:
    while True:
        file.seek(0)
        for _ in range(4):
            file.write(bytes(1 << 20))
            file.flush()
            time.sleep(0.25)
        os.fsync(file.fileno())
"""


class Suite:
    def __init__(self, said):
        short = bool(os.environ.get("SHORT"))
        self.work, self.executable, self.python = said.work, said.executable, said.python
        self.seconds = SHORT_THRESHOLD if short else THRESHOLD
        self.hang_after = f"{self.seconds}s"
        self.largest = 4 if short else 8
        self.programs = bool(os.environ.get("PROGRAMS"))
        if self.programs:
            self.hang_after = None
        # Importing torch costs a core per rank, so that runs start one after the other while others wait.
        self.starting = threading.Semaphore(max(1, (os.cpu_count() or 1) // 2))
        self.at_once = int(os.environ.get("JOBS") or at_once())
        self.left_out = []
        self.neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR, os.path.join(self.work, "neighbour")])
        self.places = list(self.found_places(os.environ.get("PLACES", "one two containers").split()))

    def found_places(self, wanted):
        if "one" in wanted:
            yield Here(self.work)
        if "two" in wanted:
            # The network namespace of run.sh, so that no bridge is made in this machine's own.
            if os.environ.get("HANGS_NAMESPACES"):
                yield Namespaces(self.work, self.at_once)
            else:
                self.left_out.append("two hosts: namespaces need root")
        if "containers" in wanted:
            if os.environ.get("SHORT"):
                self.left_out.append("two containers: SHORT")
            elif has_docker():
                yield Containers(self.work, self.python)
            else:
                self.left_out.append("two containers: no Docker engine answers")

    def runs(self, kinds, seeds):
        """Every kind with its seeds. Each place takes its share, hosts more than containers."""
        for kind in kinds:
            able = [place for place in self.places if self.fits(kind, place)]
            if not able:
                self.left_out.append(f"{kind.name}: it needs {NEEDS[kind.asks('needs')]}")
                continue
            if os.environ.get("SHORT"):
                able = able[-1:] if kind.asks("needs") == "two nodes" else able[:1]
            for seed in seeds:
                yield kind, seed, able[seed % len(able)]

    def fits(self, kind, place):
        needs = kind.asks("needs", "")
        able = {"mount": place.can_mount(), "two nodes": hasattr(place, "cut"), "memory group": place.can_limit()}
        return not needs or able[needs]

    def play(self, kind, seed, place, off=False):
        began = time.monotonic()
        result = play(self, kind, seed, place, off)
        good = not result.broken and (not result.hang if kind.lives else bool(result.hang))
        if off:
            good = not result.broken and not result.hang
        if good and not os.environ.get("KEEP") and (off or kind.lives or right(score.mark(result))):
            shutil.rmtree(result.folder, ignore_errors=True)
        word = ("missed" if off else "lives" if kind.lives else "hangs") if good else "wrong"
        print(f"{word:6} {result.label} ({time.monotonic() - began:.0f} s)", flush=True)
        return result

    def all(self, runs):
        with concurrent.futures.ThreadPoolExecutor(self.at_once) as pool:
            return list(pool.map(lambda run: self.play(*run), runs))

    def close(self):
        self.neighbour.kill()
        self.neighbour.wait()
        for place in self.places:
            getattr(place, "close", lambda: None)()


def at_once():
    """Runs side by side: they mostly wait, but eight ranks of torch take 3 GiB."""
    with open("/proc/meminfo") as file:
        available = next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
    return max(1, min(3 * (os.cpu_count() or 1), available // (3 << 20)))


def right(one):
    return one.culprit and one.line in (None, True) and one.kind and one.in_time


def again(suite, results):
    """The short form has one run of each kind: too few to tell 95 % from less. Of a few kinds that went wrong two more
    runs decide, and both have to be right; what went wrong first is printed."""
    wrong = [result for result in results
             if result.broken or not result.kind.lives and not right(score.mark(result))]
    if not 1 <= len(wrong) <= 3:
        return results
    for result in wrong:
        why = result.broken or score.mark(result).why
        print(f"FAILED ONCE: {result.label}: {why}", flush=True)
    kinds = {result.kind.name for result in wrong}
    more = suite.all(suite.runs([result.kind for result in wrong], (2, 3)))
    return [result for result in results if result.kind.name not in kinds] + more


def control(suite, kinds):
    """A run of which nothing may be said, since nothing is to be detected."""
    simple = [kind for kind in kinds if not (kind.lives or kind.asks("timeout") or kind.asks("needs"))]
    return [(simple[0], 0, suite.places[0], True)] if simple and not suite.programs else []


def controls(results, missed):
    """What has to fail: reports taken for those of other ranks, and a run in which nothing is detected."""
    hung = [result for result in results if result.hang and not result.kind.lives and -1 not in result.declared]
    if hung and not score.not_enough(hung, shift=1):
        yield "control: other ranks than the declared ones are found right as well"
    for result in missed:
        if result.broken or result.hang or not score.not_enough([result]):
            yield f"control: {result.label}, --hang-after off: {result.broken or result.hang or 'the score passes'}"


def main():
    arguments = argparse.ArgumentParser(prog="run.sh")
    for name in ("work", "executable", "python"):
        arguments.add_argument(name)
    said = arguments.parse_args()
    only = os.environ.get("ONLY", "").split()
    kinds = [kind for kind in draw.kinds() if not only or kind.name in only or ("living" if kind.lives else "hangs") in only]
    short = os.environ.get("SHORT")
    seeds = [int(seed) for seed in os.environ.get("SEEDS", "").split()] or range(1, 2 if short else 21)
    began = time.monotonic()
    with contextlib.closing(Suite(said)) as suite:
        runs = list(suite.runs(kinds, seeds))
        print(f"{len(runs)} runs of {len(kinds)} kinds, hung after {suite.hang_after}", flush=True)
        played = suite.all(runs + control(suite, kinds))
        results = [result for result in played if not result.is_off]
        if short:
            results = again(suite, results)
        missed = [result for result in played if result.is_off]
        wrong = score.table(results) + list(controls(results, missed))
    print(f"\n{len(results)} runs in {time.monotonic() - began:.0f} s")
    for what in suite.left_out:
        print(f"left out: {what}")
    for what in wrong:
        print(f"failed: {what}")
    # A suite that ran nothing has shown nothing.
    return 1 if wrong or not results else 0


if __name__ == "__main__":
    sys.exit(main())
