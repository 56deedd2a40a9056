"""A rank reads again and again what its control group has no memory for."""
# vary: look_up train
# nest: look_up
# needs: memory group
# timeout: 4

import mmap
import os
import random

import stage

SIZE, LIMIT = 256 << 20, 24 << 20


def look_up(table):
    # Only what is read from now on counts, not what torch has already.
    with open(os.path.join(stage.SPEC["group"], "memory.limit_in_bytes"), "w") as limit:
        limit.write(str(LIMIT))
    with open(os.path.join(stage.SPEC["group"], "cgroup.procs"), "w") as members:
        members.write(str(os.getpid()))
    stage.hangs("pages", "never_entered slow", burns=True)
    found = 0
    while found >= 0:  # hangs: pages
        found += table[random.randrange(SIZE)]  # hangs: pages


def train():
    job = stage.Job()
    if stage.is_culprit():
        with open(stage.path("table"), "wb+") as file:
            for _ in range(SIZE >> 20):
                file.write(os.urandom(1 << 20))
            file.flush()
            table = mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ)
    for step in stage.steps():
        if stage.is_culprit(step):
            look_up(table)
        job.reduce()


if __name__ == "__main__":
    train()
