"""One rank calls another collective than the others, in the same group."""
# vary: exchange train
# nest: exchange

import torch
import torch.distributed as dist

import stage


def exchange(value):
    how = stage.choice("all_gather", "barrier", "broadcast")
    stage.hangs(how, "other_collective")
    if how == "all_gather":
        dist.all_gather([torch.zeros(1024) for _ in range(stage.WORLD)], value)  # hangs: all_gather
    if how == "barrier":
        dist.barrier()  # hangs: barrier
    dist.broadcast(value, stage.OTHER)  # hangs: broadcast


def train():
    job = stage.Job()
    for step in stage.steps():
        job.reduce()
        if stage.is_culprit(step):
            exchange(job.gradient)
        dist.all_reduce(job.gradient)


if __name__ == "__main__":
    train()
