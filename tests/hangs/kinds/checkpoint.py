"""The checkpoint is written to something that takes no more."""
# vary: save train
# nest: save
# mount: frozen

import os

import torch

import stage


def save(state):
    how = stage.choice("file", "tool", "mount" if stage.MOUNT else "tool")
    if how == "mount":
        stage.hangs("mount", "never_entered blocked_io")
        return torch.save(state, os.path.join(stage.MOUNT, "model.pt"))  # hangs: mount
    fifo = stage.fifo()
    # A tool that should upload what it reads.
    tool = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    stage.hangs(how, "never_entered blocked_io")
    if how == "file":
        torch.save(state, fifo)  # hangs: file
    with open(fifo, "wb") as file:
        file.write(state["weights"].numpy().tobytes())  # hangs: tool
    os.close(tool)


def train():
    job = stage.Job()
    state = {"weights": torch.rand(1 << 20)}
    for step in stage.steps():
        if stage.is_culprit(step):
            save(state)
        job.reduce()


if __name__ == "__main__":
    train()
