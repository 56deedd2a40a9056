"""All ranks wait for a message that nobody sends."""
# vary: exchange train
# nest: exchange

import threading

import torch
import torch.distributed as dist

import stage


def exchange(value):
    before = (stage.RANK - 1) % stage.WORLD
    how = stage.choice("recv", "irecv", "tag", "thread")
    stage.hangs(how, "deadlock")
    if how == "recv":
        dist.recv(value, before)  # hangs: recv
    elif how == "irecv":
        dist.irecv(value, before).wait()  # hangs: irecv
    elif how == "tag":
        sent = dist.isend(value, (stage.RANK + 1) % stage.WORLD, tag=1)
        dist.recv(value, before, tag=2)  # hangs: tag
        sent.wait()
    else:
        receiver = threading.Thread(target=lambda: dist.recv(value, before))  # hangs: thread
        receiver.start()
        receiver.join()


def train():
    job = stage.Job()
    for step in stage.steps():
        job.reduce()
        if step == stage.SPEC["step"]:
            exchange(torch.ones(8))


if __name__ == "__main__":
    train()
