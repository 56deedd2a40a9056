"""How long ranks that share one GPU take to their first all-reduce, and what memory is theirs, beside torchrun.

    tests/gpu/start.py RANKLAUNCH PYTHON [nccl|gloo] [RANKS…]

Prints a table: the shorter of two starts, in turn, with the ratio to torchrun's. With gloo it runs anywhere.
"""

import os
import subprocess
import sys
import tempfile
import time


PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../programs/first_reduce.py")


def measured(command, backend, ranks, folder):
    """Seconds to the last rank's first all-reduce, and MiB of all."""
    with tempfile.TemporaryDirectory() as here:
        began = time.time()
        done = subprocess.run(
            [*command, PROGRAM, here, backend],
            cwd=folder,
            timeout=180,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "NCCL_SOCKET_IFNAME": "lo", "PYTHONDONTWRITEBYTECODE": "1"},
        )
        if done.returncode != 0 or "no warm start" in done.stdout:
            sys.exit("FAILED: %s: %s\n%s" % (command, done.returncode, done.stdout[-4000:]))
        values = [open(os.path.join(here, name)).read().split() for name in os.listdir(here)]
        assert len(values) == ranks, values
        return max(float(at) for at, _ in values) - began, sum(int(memory) for _, memory in values) / 1024


def main(ranklaunch, python, backend="nccl", *ranks):
    ranklaunch = os.path.abspath(ranklaunch)
    with tempfile.TemporaryDirectory() as folder:
        for count in map(int, ranks or (1, 4, 8)):
            own = [ranklaunch, "run", "--device", "cpu", "--stale", "off", "--python", python, "--nproc-per-node", str(count)]
            own += ["--env", "CUDA_VISIBLE_DEVICES=0"] if backend == "nccl" else []
            ways = {
                "torchrun": [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)],
                "torchrun engine, --warm off": [*own, "--engine", "torchrun", "--warm", "off", "--"],
                "torchrun engine, --warm auto": [*own, "--engine", "torchrun", "--warm", "required", "--"],
                "direct engine, --warm auto": [*own, "--engine", "direct", "--warm", "required", "--"],
            }
            best = {}
            for _ in range(2):
                for way, command in ways.items():
                    best[way] = min(best.get(way, (9e9, 0)), measured(command, backend, count, folder))
            base = best["torchrun"]
            for way, (seconds, memory) in best.items():
                print(
                    "%d ranks  %-28s %6.2f s  %.3f   %6.0f MiB  %.3f"
                    % (count, way, seconds, seconds / base[0], memory, memory / base[1]),
                    flush=True,
                )


if __name__ == "__main__":
    main(*sys.argv[1:])
