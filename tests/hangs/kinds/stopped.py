"""A rank that is stopped: by itself, or by another process in the middle of its work."""
# vary: compute train
# nest: compute

import os
import signal
import subprocess

import stage


def compute():
    how = stage.choice("itself", "another")
    stage.hangs(how, "stopped")
    if how == "itself":
        os.kill(os.getpid(), signal.SIGSTOP)  # hangs: itself
    subprocess.Popen(["/bin/sh", "-c", f"sleep 0.3; kill -STOP {os.getpid()}"])
    while True:  # hangs: another
        sum(range(1000))  # hangs: another


def train():
    job = stage.Job()
    for step in stage.steps():
        if stage.is_culprit(step):
            compute()
        job.reduce()


if __name__ == "__main__":
    train()
