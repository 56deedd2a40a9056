"""Meets the other ranks over gloo step by step; one rank never comes to a step, in the way that is named.

argv: kind, culprit, step[, seconds after which the others give up[, fifo]]. Kinds: pipe, stop, lock, hidden,
none; nap (sleeps for a while); all (each rank computes); and with a fifo, whose reader goes on when something was written: raise (fails
there), later (fails after the step); barrier (calls that in place of what the others call). With a file in place
of the fifo: worker (waits for a process that computes until the file is there). With a port: thread and child
(download from there, in a thread and in a process).
"""

import ctypes
import datetime
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist

kind, culprit, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
limit = datetime.timedelta(seconds=float(sys.argv[4]) if len(sys.argv) > 4 else 1800)
dist.init_process_group("gloo", timeout=limit)
rank = dist.get_rank()
lock = threading.Lock()


def wait_for_a_pipe():
    read, _ = os.pipe()
    os.read(read, 1)  # the line: pipe


def wait_for_a_lock():
    lock.acquire()
    lock.acquire()  # the line: lock


def hide_and_wait():
    # PR_SET_DUMPABLE of linux/prctl.h: as the kernel treats an interpreter with file capabilities.
    ctypes.CDLL(None).prctl(4, 0)
    os.read(os.pipe()[0], 1)  # the line: hidden


DOWNLOAD = """
import socket, sys
server = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
server.settimeout(None)
while server.recv(65536):
    pass
"""
COMPUTE = """
import os, sys
while not os.path.exists(sys.argv[1]):
    pass
"""


def run(program):
    subprocess.run([sys.executable, "-c", program, sys.argv[5]], check=True)  # the line: child


def download():
    server = socket.create_connection(("127.0.0.1", int(sys.argv[5])))
    server.settimeout(None)
    while server.recv(65536):
        pass


def download_in_a_thread():
    thread = threading.Thread(target=download)
    thread.start()
    thread.join()  # the line: thread


def compute():
    until = time.monotonic() + 10
    while time.monotonic() < until: pass  # the line: none


for step in range(last + 1):
    if kind == "all" and step == last:
        compute()
    if rank == culprit and step == last:
        if kind == "pipe":
            wait_for_a_pipe()
        elif kind == "lock":
            wait_for_a_lock()
        elif kind == "hidden":
            hide_and_wait()
        elif kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif kind in ("raise", "later"):
            with open(sys.argv[5]) as fifo:
                fifo.read()
            if kind == "raise":
                raise ValueError("the batch is odd")
        elif kind == "barrier":
            dist.barrier()  # the line: barrier
        elif kind == "nap":
            time.sleep(7)
        elif kind == "worker":
            run(COMPUTE)
        elif kind == "child":
            run(DOWNLOAD)
        elif kind == "thread":
            download_in_a_thread()
        elif kind == "none":
            # For longer than anybody waits, and goes on.
            compute()
    dist.all_reduce(torch.ones(4))
if kind == "later" and rank == culprit:
    raise ValueError("the last batch is odd")
print("done", flush=True)
