"""A server that has imported a framework, and forks the processes of one writer or one load at a time.

A request is a line of JSON on standard input, its answer a line on standard output; the frameworks' own output goes to
standard error. Imports take seconds, forks milliseconds.
"""

import ctypes
import gc
import json
import os
import select
import shutil
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
LONGEST_LOAD = 600


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
    """The processes of one job. Each rank leads a process group of its own, as if it were on a node of its own."""

    def __init__(self, count, work):
        (read, write), (groups, leader) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            os.close(groups)
            lead(count, work, write, leader)
        os.close(write)
        os.close(leader)
        self.answers = os.fdopen(read, "rb", buffering=0)
        # The numbers of the groups, which are the pids of the ranks.
        with os.fdopen(groups) as groups:
            self.groups = json.load(groups)

    def answer(self, count):
        """What each rank gave, until one of them fails; ends all processes."""
        data = b""
        while data.count(b"\n") < count:
            if not select.select([self.answers], [], [], LONGEST_LOAD)[0]:
                break
            more = self.answers.read(65536)
            data += more
            if not more or any(isinstance(json.loads(line), str) for line in data.split(b"\n")[:-1]):
                break
        self.kill()
        self.answers.close()
        got = [json.loads(line) for line in data.split(b"\n")[:-1]]
        failed = [one for one in got if isinstance(one, str)]
        if failed or len(got) < count:
            return failed[0] if failed else "a rank ended, or took too long"
        if got.count(got[0]) != count:
            return f"the ranks loaded different steps: {got}"
        return got[0]

    def kill(self):
        for group in self.groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                pass
        reap()


def lead(count, work, write, groups):
    """Starts the ranks, says which they are, and ends when none is left. No rank is the parent of another, so that any
    of them can be lost alone."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    store = os.path.join(tempfile.mkdtemp(prefix="ranks-"), "store")
    ranks = []
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            os.close(groups)
            be(rank, count, store, work, write)
        try:
            os.setpgid(pid, pid)
        except OSError:
            pass  # It did so itself.
        ranks.append(pid)
    os.close(write)
    os.write(groups, json.dumps(ranks).encode())
    os.close(groups)
    reap()
    shutil.rmtree(os.path.dirname(store), ignore_errors=True)
    os._exit(0)


def be(rank, count, store, work, write):
    os.setpgid(0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        if count > 1:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count), LOCAL_WORLD_SIZE=str(count))
        answer = work(rank, count, store)
    except BaseException as error:  # A failed load of any kind.
        traceback.print_exc()
        answer = f"{type(error).__name__}: {error}"[:300]
    try:
        os.write(write, (json.dumps(answer) + "\n").encode())
    except BrokenPipeError:
        pass  # Nobody asks a writer.
    # The others may still need the connections of one that is done.
    while not isinstance(answer, str):
        signal.pause()
    os._exit(1)


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
