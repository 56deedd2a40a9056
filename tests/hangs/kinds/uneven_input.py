"""One rank has fewer batches than the others and goes on to what comes after the epoch."""
# vary: batches evaluate train
# nest: evaluate

import torch
import torch.distributed as dist

import stage


def batches():
    return range(stage.SPEC["step"]) if stage.is_culprit() else stage.steps()


def evaluate(value):
    how = stage.choice("barrier", "all_gather", "broadcast")
    stage.hangs(how, "other_collective never_entered")
    if how == "barrier":
        dist.barrier()  # hangs: barrier
    if how == "all_gather":
        dist.all_gather([torch.zeros(1024) for _ in range(stage.WORLD)], value)  # hangs: all_gather
    dist.broadcast(value, stage.OTHER)  # hangs: broadcast


def train():
    job = stage.Job()
    for batch in batches():
        job.reduce()
        dist.all_reduce(job.gradient)
    evaluate(job.gradient)


if __name__ == "__main__":
    train()
