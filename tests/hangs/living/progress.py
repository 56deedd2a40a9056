"""A rank waits for a service and only says from time to time how far that is."""
# vary: wait_for_service train
# nest: wait_for_service

import sys
import time

import torch.distributed as dist

import stage


def wait_for_service():
    pause = 2
    for done in range(int(stage.seconds_to_live() / pause)):
        if stage.choice("lines", "bar") == "lines":
            print(f"the export is at {done} of 100", flush=True)
        else:
            sys.stderr.write(f"\rexport: {done}%|{'#' * done}")
            sys.stderr.flush()
        time.sleep(pause)


def train():
    job = stage.Job()
    for step in range(stage.SPEC["step"] + 2):
        job.reduce()
        if stage.is_culprit(step):
            with stage.busy():
                wait_for_service()
        dist.barrier()


if __name__ == "__main__":
    train()
