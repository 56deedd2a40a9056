"""Saves 32 MiB of weights in the folder that is named."""

import sys

import torch

from survival import run


def save():
    torch.save({"weight": torch.ones(8 << 20)}, f"{sys.argv[1]}/step-10.pt")


run(save)
