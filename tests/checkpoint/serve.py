"""A server that has imported a framework, and forks the processes of one writer or one load at a time.

A request is a line of JSON on standard input, its answer a line on standard output; the frameworks' own output goes to
standard error. Imports take seconds, forks milliseconds.
"""

import ctypes
import gc
import json
import os
import select
import signal
import sys
import tempfile
import traceback

# Frameworks print while they are imported.
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

PR_SET_CHILD_SUBREAPER = 36
PR_SET_PDEATHSIG = 1
# Seconds until a load that waits for another rank counts as failed.
LONGEST_LOAD = 120


def prctl(option, value):
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def reap():
    """Waits until no process is left of what was forked, orphans too."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


class Ranks:
    """The processes of one job, in a process group of their own whose number is the first one's pid."""

    def __init__(self, count, work):
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(write)
            self.answers = read
            try:
                os.setpgid(self.pid, self.pid)
            except OSError:
                pass  # It did so itself.
            return
        os.setpgid(0, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        store = os.path.join(tempfile.mkdtemp(prefix="ranks-"), "store")
        rank = 0
        for other in range(1, count):
            if os.fork() == 0:
                prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                rank = other
                break
        try:
            if count > 1:
                os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count))
            answer = work(rank, count, store)
        except BaseException as error:  # A failed load of any kind.
            traceback.print_exc()
            answer = f"{type(error).__name__}: {error}"[:300]
        os.write(write, (json.dumps(answer) + "\n").encode())
        # The end of the first rank ends the others.
        reap()
        os._exit(0)

    def answer(self, count):
        """What each rank gave, until one of them fails; ends all processes."""
        data = b""
        while data.count(b"\n") < count:
            if not select.select([self.answers], [], [], LONGEST_LOAD)[0]:
                break
            more = os.read(self.answers, 65536)
            data += more
            if not more or any(isinstance(json.loads(line), str) for line in data.split(b"\n")[:-1]):
                break
        self.kill()
        os.close(self.answers)
        got = [json.loads(line) for line in data.split(b"\n")[:-1]]
        failed = [one for one in got if isinstance(one, str)]
        if failed or len(got) < count:
            return failed[0] if failed else "a rank ended, or took too long"
        return got[0]

    def kill(self):
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        reap()


def gloo(rank, count, store):
    import torch.distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.FileStore(store, count), rank=rank, world_size=count)


def run(handle):
    """Answers requests until standard input ends."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    os.environ["OMP_NUM_THREADS"] = "1"
    gc.collect()
    gc.freeze()
    print(json.dumps("ready"), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(handle(json.loads(line))), file=out, flush=True)
