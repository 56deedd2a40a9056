"""A rank waits for a process that computes, and the whole job is suspended and continued meanwhile."""
# vary: load_batch train
# nest: load_batch
# living: 1.5

import concurrent.futures
import multiprocessing
import subprocess
import sys
import time

import torch.distributed as dist

import stage

WORKER = """
import sys, time
end = time.process_time() + float(sys.argv[1])
while time.process_time() < end:
    pass
"""


def work(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def load_batch(pool):
    stage.suspend()
    if pool:
        return pool.submit(work, stage.seconds_to_live()).result()
    subprocess.run([sys.executable, "-c", WORKER, str(stage.seconds_to_live())], check=True)


def train():
    pool = None
    if stage.is_culprit() and stage.choice(True, False):
        # Forked before there are threads.
        pool = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
        pool.submit(work, 0).result()
    job = stage.Job()
    for step in range(stage.SPEC["step"] + 2):
        job.reduce()
        if stage.is_culprit(step):
            with stage.busy():
                load_batch(pool)
        dist.barrier()


if __name__ == "__main__":
    train()
