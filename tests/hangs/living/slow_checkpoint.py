"""A checkpoint of 40 s on a slow disk: pieces, one long file, or files that are moved there."""
# vary: save train
# nest: save
# mount: slow
# needs: mount
# living: 4

import os
import shutil

import torch
import torch.distributed as dist

import stage

# Bytes that the file system takes in a second.
SPEED = 4 * 32 * 1024


def save(weights):
    how = stage.choice("pieces", "whole", "moved")
    folder = stage.MOUNT
    if how == "pieces":
        for number, piece in enumerate(weights.chunk(20)):
            torch.save(piece.clone(), os.path.join(folder, f"shard-{number}.pt"))
    if how == "whole":
        torch.save(weights, os.path.join(folder, "model.pt"))
    if how == "moved":
        torch.save(weights, stage.path("model.pt"))
        shutil.copyfile(stage.path("model.pt"), os.path.join(folder, "model.pt"))


def train():
    job = stage.Job()
    weights = torch.rand(int(stage.seconds_to_live() * SPEED / 4))
    for step in range(stage.SPEC["step"] + 2):
        job.reduce()
        if stage.is_culprit(step):
            with stage.busy():
                save(weights)
        dist.barrier()


if __name__ == "__main__":
    train()
