"""A rank loads and imports for long before the first collective."""
# vary: load_model train
# nest: load_model

import importlib.util
import time

import torch

import stage


def load_model():
    end = time.monotonic() + stage.seconds_to_live()
    source = "\n".join(f"class Layer{n}:\n    size = {n}" for n in range(500))
    number = 0
    while time.monotonic() < end:
        number += 1
        file = stage.path(f"layers_{stage.RANK}_{number}.py")
        with open(file, "w") as model:
            model.write(source)
        spec = importlib.util.spec_from_file_location(f"layers_{number}", file)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        torch.rand(1 << 20).sort()


def train():
    # Before the ranks know of each other, or before the first step.
    early = stage.choice(True, False)
    job = None if early else stage.Job()
    if stage.is_culprit():
        with stage.busy():
            load_model()
    job = job or stage.Job()
    for step in range(3):
        job.reduce()


if __name__ == "__main__":
    train()
