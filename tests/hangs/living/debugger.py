"""A person stops a rank in a debugger and lets it go on."""
# vary: compute train
# nest: compute

import ctypes
import subprocess
import sys

import torch.distributed as dist

import stage

# Stops its parent as gdb and strace do, for as long as it is told. linux/ptrace.h: SEIZE, INTERRUPT, DETACH.
DEBUGGER = """
import ctypes, os, sys, time
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
rank = int(sys.argv[1])
sys.stdin.readline()
for request in (0x4206, 0x4207):
    if ptrace(request, rank, None, None):
        sys.exit(os.strerror(ctypes.get_errno()))
time.sleep(float(sys.argv[2]))
ptrace(17, rank, None, None)
"""
# Yama lets a child trace its parent only if that one permits it. sys/prctl.h: PR_SET_PTRACER.
PR_SET_PTRACER, ANY = 0x59616D61, -1


def compute(debugger):
    with stage.busy():
        debugger.stdin.write("go\n")
        debugger.stdin.flush()
        while debugger.poll() is None:
            sum(range(1000))
    if debugger.returncode:
        raise RuntimeError("the debugger could not stop this rank")


def train():
    job = stage.Job()
    for step in range(stage.SPEC["step"] + 2):
        job.reduce()
        if stage.is_culprit(step):
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(ANY))
            words = [sys.executable, "-c", DEBUGGER, str(stage.os.getpid()), str(stage.seconds_to_live())]
            compute(subprocess.Popen(words, stdin=subprocess.PIPE, text=True))
        dist.barrier()


if __name__ == "__main__":
    train()
