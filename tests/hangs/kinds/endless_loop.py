"""The user's code computes without an end."""
# vary: converge train
# nest: converge
# timeout: 4

import torch

import stage


def converge(value):
    how = stage.choice("python", "tensors", "ring")
    stage.hangs(how, "never_entered slow", burns=True)
    if how == "python":
        while value != 1:  # hangs: python
            value = (value + 2) % 1_000_000  # hangs: python
    if how == "tensors":
        at, goal = torch.rand(64, 64), torch.ones(64, 64)
        while not torch.equal(at, goal):  # hangs: tensors
            at = at @ at  # hangs: tensors
    node = []
    node.append(node)
    while node:  # hangs: ring
        node = node[0]  # hangs: ring


def train():
    job = stage.Job()
    for step in stage.steps():
        if stage.is_culprit(step):
            converge(2)
        job.reduce()


if __name__ == "__main__":
    train()
