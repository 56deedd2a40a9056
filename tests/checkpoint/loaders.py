"""Loads a checkpoint for real, and compares its weights with its step: loaders.py FORMAT PATH, or FORMAT serve.

As a server it takes `{"folder": DIR}` and answers all candidates below it, newest first, until one loads:
`{"path", "number", "step"}`, with "why" in place of "step" for one that does not load. `{"path": PATH}` is answered
with its step, or why it does not load.
"""

import json
import os
import sys

import serve
from formats import FORMATS

name, path = sys.argv[1:]
kind = FORMATS[name]()


def load(path):
    def work(rank, count, store):
        if count > 1:
            serve.gloo(rank, count, store)
        return kind.load(path)

    return serve.Ranks(kind.ranks, work).answer(kind.ranks)


def handle(request):
    if "path" in request:
        return load(request["path"])
    tried = []
    for number, path in kind.candidates(request["folder"]):
        if any("step" in one for one in tried):
            tried.append({"path": path, "number": number})
            continue
        step = load(path)
        if step != number and isinstance(step, int):
            step = f"it holds step {step}"
        tried.append({"path": path, "number": number, "step" if isinstance(step, int) else "why": step})
    return tried


if path == "serve":
    serve.run(handle)
else:
    print(json.dumps(load(os.path.abspath(path))), file=serve.out)
