"""A rank that sleeps in the kernel (state D): it reads a frozen file system, or its child does not start."""
# vary: load_shard train
# nest: load_shard
# mount: frozen

import os

import stage


def load_shard(name):
    how = stage.choice("spawn", "read") if stage.MOUNT else "spawn"
    stage.hangs(how, "blocked_io")
    if how == "read":
        with open(os.path.join(stage.MOUNT, name), "rb") as file:
            return file.read()  # hangs: read
    # The kernel holds the parent of a vfork until the child executes its program, and this child waits before that
    # for a reader of its standard output.
    output = (os.POSIX_SPAWN_OPEN, 1, stage.fifo(), os.O_WRONLY, 0)
    os.posix_spawn("/bin/sh", ["sh", "-c", ":"], os.environ, file_actions=[output])  # hangs: spawn


def train():
    job = stage.Job()
    for step in stage.steps():
        if stage.is_culprit(step):
            load_shard("data")
        job.reduce()


if __name__ == "__main__":
    train()
