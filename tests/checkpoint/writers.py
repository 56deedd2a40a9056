"""Writes checkpoints as a framework does, until it is killed: writers.py FORMAT DIR, or FORMAT,FORMAT… serve.

As a server it takes `{"format": FORMAT, "write": DIR}` and answers the numbers of the process groups that write, one of
each rank, and `{"reap": true}`, which is answered when none of their processes is left.
"""

import os
import sys

import serve
from formats import FORMATS

def start(kind, folder):
    def work(rank, count, store):
        os.chdir(folder)
        if count > 1:
            serve.gloo(rank, count, store)
        kind.write(folder, rank)

    return serve.Ranks(kind.ranks, work)


def handle(kinds, request):
    if "write" in request:
        ranks = start(kinds[request["format"]], request["write"])
        ranks.answers.close()
        return ranks.groups
    serve.reap()
    return True


# megatron starts processes that import this file.
if __name__ == "__main__":
    names, folder = sys.argv[1:]
    kinds = {name: FORMATS[name]() for name in names.split(",")}
    if folder == "serve":
        serve.run(lambda request: handle(kinds, request))
    else:
        os.makedirs(folder, exist_ok=True)
        os.waitpid(start(kinds[names], os.path.abspath(folder)).pid, 0)
