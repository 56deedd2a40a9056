"""A rank that stands at the line with the comment `# KIND`: one KIND for each rank as argument."""

import asyncio
import ctypes
import os
import re
import signal
import sys
import threading
import time

LONG = 600


def sleeps():
    time.sleep(LONG)  # sleeps


def locks():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # locks


def loops():
    while True: pass  # loops


def holds():
    # PyDLL keeps the GIL during the call, as a faulty extension does.
    ctypes.PyDLL(None).sleep(LONG)  # holds


def matches():
    while True:
        re.match(r"(a+)+$", "a" * 60 + "b")  # matches


def threads():
    def inside():
        time.sleep(LONG)  # threads

    thread = threading.Thread(target=inside, daemon=True)
    thread.start()
    thread.join()


def coroutines():
    async def inside():
        time.sleep(LONG)  # coroutines

    async def outside():
        await inside()

    asyncio.run(outside())


def stops():
    os.kill(os.getpid(), signal.SIGSTOP)  # stops


def forks():
    child = os.fork()
    if child == 0:
        time.sleep(LONG)  # forks
    os.waitpid(child, 0)


def reads():
    end, _ = os.pipe()
    os.read(end, 1)  # reads


class Slow:
    def __len__(self):
        return 8

    def __getitem__(self, at):
        time.sleep(LONG)  # workers


def workers():
    from torch.utils.data import DataLoader

    for _ in DataLoader(Slow(), num_workers=2):
        pass


kind = sys.argv[1 + int(os.environ["RANK"])]
print("READY", flush=True)
globals()[kind]()
