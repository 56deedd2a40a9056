"""Writes checkpoints as a framework does, until it is killed: writers.py FORMAT DIR, or FORMAT serve.

As a server it takes `{"write": DIR}` and answers the number of the process group that writes, and `{"reap": true}`,
which is answered when none of its processes is left.
"""

import os
import sys

import serve
from formats import FORMATS

name, folder = sys.argv[1:]
kind = FORMATS[name]()


def writes(folder):
    def work(rank, count, store):
        os.chdir(folder)
        if count > 1:
            serve.gloo(rank, count, store)
        kind.write(folder, rank)

    return work


def handle(request):
    if "write" in request:
        ranks = serve.Ranks(kind.ranks, writes(request["write"]))
        os.close(ranks.answers)
        return ranks.pid
    serve.reap()
    return True


if folder == "serve":
    serve.run(handle)
else:
    os.makedirs(folder, exist_ok=True)
    writes(os.path.abspath(folder))(0, 1, None) if kind.ranks == 1 else os.waitpid(serve.Ranks(kind.ranks, writes(os.path.abspath(folder))).pid, 0)
