"""A compiler that does not come back: it waits for a lock, or the builder that had the lock is gone."""
# vary: build train
# nest: build

import fcntl
import subprocess
import sys

from torch.utils.file_baton import FileBaton

import stage

COMPILER = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)"


def build(name):
    how = stage.choice("child", "baton", "output")
    file = open(stage.path(f"{name}.lock"), "w")
    compiler = [sys.executable, "-c", COMPILER, file.name]
    fcntl.flock(file, fcntl.LOCK_EX)
    stage.hangs(how, "never_entered deadlock")
    if how == "child":
        subprocess.run(compiler, check=True)  # hangs: child
    if how == "baton":
        FileBaton(file.name).wait()  # hangs: baton
    subprocess.check_output(compiler)  # hangs: output


def train():
    job = stage.Job()
    for step in stage.steps():
        if stage.is_culprit(step):
            build("kernel")
        job.reduce()


if __name__ == "__main__":
    train()
