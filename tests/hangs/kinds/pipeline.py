"""A stage of a pipeline neither receives nor sends any more; the others wait for its messages."""
# vary: wait_for_input exchange train
# nest: wait_for_input exchange

import os

import torch.distributed as dist

import stage


def wait_for_input():
    stage.hangs("fetch", "never_entered")
    os.read(stage.silent_pipe(), 1)  # hangs: fetch


def exchange(value):
    """Sends to the next stage and receives from the one before, as people write it."""
    after, before = (stage.RANK + 1) % stage.WORLD, (stage.RANK - 1) % stage.WORLD
    how = stage.choice("recv", "irecv", "batch")
    if how == "recv":
        sent = dist.isend(value, after)
        dist.recv(value.clone(), before)
        sent.wait()
    elif how == "irecv":
        for operation in [dist.irecv(value.clone(), before), dist.isend(value, after)]:
            operation.wait()
    else:
        both = [dist.P2POp(dist.isend, value, after), dist.P2POp(dist.irecv, value.clone(), before)]
        for operation in dist.batch_isend_irecv(both):
            operation.wait()


def train():
    job = stage.Job()
    job.reduce()
    for step in stage.steps():
        if stage.is_culprit(step):
            wait_for_input()
        exchange(job.gradient)


if __name__ == "__main__":
    train()
