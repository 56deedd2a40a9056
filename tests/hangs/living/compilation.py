"""One rank, or each, waits for a compiler that works."""
# vary: build train
# nest: build

import subprocess
import sys

import torch.distributed as dist

import stage

COMPILER = """
import sys, time
end = time.monotonic() + float(sys.argv[1])
text = "\\n".join(f"def f{n}(x):\\n    return [x * {n} + y for y in range(x)]" for n in range(300))
while time.monotonic() < end:
    compile(text, "kernel", "exec")
"""


def build():
    subprocess.run([sys.executable, "-c", COMPILER, str(stage.seconds_to_live())], check=True)


def train():
    job = stage.Job()
    # Each rank compiles its own kernels, or one compiles for all.
    everyone = stage.choice(False, True)
    for step in range(stage.SPEC["step"] + 2):
        job.reduce()
        if stage.is_culprit(step) or (everyone and step == stage.SPEC["step"]):
            with stage.busy():
                build()
        dist.barrier()


if __name__ == "__main__":
    train()
