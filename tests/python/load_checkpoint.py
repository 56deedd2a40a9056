"""Loads a checkpoint that is spoilt: `cut` in the middle, `empty`, or a `page` of a web server."""

import os
import sys

import torch

from survival import run

NAME = "step-20.pt"


def load():
    state = torch.load(NAME)
    print("loaded", sum(one.numel() for one in state.values()), "numbers", flush=True)


torch.save({"weight": torch.ones(1000)}, NAME)
if sys.argv[1] == "page":
    with open(NAME, "w") as file:
        file.write("<html><body>404 not found</body></html>\n")
else:
    os.truncate(NAME, os.path.getsize(NAME) // 2 if sys.argv[1] == "cut" else 0)
run(load)
