"""One rank is in the barrier of another group, to which the others do not come."""
# vary: synchronize train
# nest: synchronize

import torch.distributed as dist

import stage


def synchronize(group):
    stage.hangs("barrier", "never_entered other_collective deadlock", may=[stage.OTHER])
    dist.barrier(group=group)  # hangs: barrier


def train():
    job = stage.Job()
    pair = dist.new_group(sorted([stage.CULPRIT, stage.OTHER]))
    for step in stage.steps():
        if stage.is_culprit(step):
            synchronize(pair)
        job.reduce()


if __name__ == "__main__":
    train()
