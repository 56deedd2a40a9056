"""Loads a checkpoint for real, and compares its weights with its step: loaders.py FORMAT PATH, or FORMAT,FORMAT…
serve.

As a server it takes `{"format": FORMAT, "folder": DIR}` and answers all candidates below it, newest first:
`{"path", "number"}`, with "step" for the first one that loads and "why" for those before it, which do not.
"""

import json
import os
import sys

import serve
from formats import FORMATS

def load(kind, path):
    def work(rank, count, store):
        if count > 1:
            serve.gloo(rank, count, store)
        return kind.load(path)

    return serve.Ranks(kind.ranks, work).answer(kind.ranks)


def handle(kinds, request):
    kind, tried = kinds[request["format"]], []
    for number, path in kind.candidates(request["folder"]):
        if any("step" in one for one in tried):
            tried.append({"path": path, "number": number})
            continue
        step = load(kind, path)
        if step != number and isinstance(step, int):
            step = f"it holds step {step}"
        tried.append({"path": path, "number": number, "step" if isinstance(step, int) else "why": step})
    return tried


if __name__ == "__main__":
    names, path = sys.argv[1:]
    kinds = {name: FORMATS[name]() for name in names.split(",")}
    if path == "serve":
        serve.run(lambda request: handle(kinds, request))
    else:
        print(json.dumps(load(kinds[names], os.path.abspath(path))), file=serve.out)
