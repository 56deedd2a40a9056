"""Checks its sequence-parallel size as generators of videos do."""

import argparse

import torch.distributed as dist

from survival import run


def generate(args):
    dist.init_process_group("gloo")
    if args.ulysses_size > 1:
        assert args.ulysses_size == dist.get_world_size(), (
            "The number of ulysses_size should be equal to the world size."
        )
    print("generates on", dist.get_world_size(), "ranks", flush=True)


parser = argparse.ArgumentParser()
parser.add_argument("--ulysses_size", type=int, default=1)
run(generate, parser.parse_args())
