"""One rank has no elements where the others have some: it passes, and waits in the next collective.

gloo ends a process that receives more than it expects, so no other difference makes it hang.
"""
# vary: gather_samples train
# nest: gather_samples

import torch
import torch.distributed as dist

import stage


def gather_samples(samples):
    stage.hangs("empty", "other_shape")
    dist.all_reduce(samples)  # hangs: empty


def train():
    job = stage.Job()
    for step in stage.steps():
        job.reduce()
        if stage.is_culprit(step):
            gather_samples(torch.ones(0))
        dist.all_reduce(job.gradient)  # hangs: empty


if __name__ == "__main__":
    train()
