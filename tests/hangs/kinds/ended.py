"""A rank that ended quietly with code 0; the others wait for what it should have said in the store."""
# vary: train announce
# culprit: not 0

import sys

import torch.distributed as dist

import stage


def announce(how):
    stage.hangs(None, "ended")
    print("nothing to do for this rank", flush=True)
    sys.exit(0)


def train():
    how = stage.choice("before", "group", "key")
    if how == "before" and stage.is_culprit():
        announce(how)
    job = stage.Job()
    for step in range(stage.SPEC["step"]):
        job.reduce()
    if stage.is_culprit():
        announce(how)
    if how == "group":
        dist.new_group(list(range(stage.WORLD)))
    dist.distributed_c10d._get_default_store().get(f"evaluated by {stage.CULPRIT}")


if __name__ == "__main__":
    train()
