"""Two ranks use two groups in opposite order; the others wait for both."""
# vary: both_groups train
# nest: both_groups

import torch.distributed as dist

import stage


def both_groups(value, first, second):
    if stage.RANK == stage.CULPRIT:
        first, second = second, first
    pair = {stage.CULPRIT, stage.OTHER}
    stage.hangs("first", "deadlock other_collective", may=pair)
    dist.all_reduce(value, group=first)  # hangs: first
    dist.all_reduce(value, group=second)


def train():
    job = stage.Job()
    pair = sorted([stage.CULPRIT, stage.OTHER])
    data, tensor = dist.new_group(pair), dist.new_group(pair)
    for step in stage.steps():
        job.reduce()
        if step == stage.SPEC["step"] and stage.RANK in pair:
            both_groups(job.gradient, data, tensor)
        dist.all_reduce(job.gradient)


if __name__ == "__main__":
    train()
