"""What a program of this folder knows of its run, and how it declares where it hangs.

The harness puts a copy beside each program and HANGS_SPEC into the environment. What is declared here is what the
harness judges by: it never guesses who hangs. A copy of an older torch has the same functions.
"""

import contextlib
import datetime
import json
import os
import socket
import time

import torch
import torch.distributed as dist

SPEC = json.loads(os.environ["HANGS_SPEC"])
FOLDER = SPEC["folder"]
# A file system whose server is frozen or slow; None where none can be mounted.
MOUNT = SPEC["mount"]
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CULPRIT = SPEC["culprit"]
# Any rank but the culprit.
OTHER = (CULPRIT + 1 + SPEC["draw"] % (WORLD - 1)) % WORLD
# Holds silent files open for as long as the process lives.
_kept = []


def path(name):
    return os.path.join(FOLDER, name)


def put(name, value=None):
    """A file of the run that is whole as soon as it is there."""
    with open(path(f".{name}-{os.getpid()}"), "w") as file:
        json.dump(value, file)
    os.rename(file.name, path(name))


put(f"imported-{RANK}")


def choice(*options):
    """One of them, the same on all ranks; one seed after the other takes the next."""
    return options[SPEC["seed"] % len(options)]


def is_culprit(step=None):
    """This rank hangs, at this step if one is given."""
    return RANK == CULPRIT and step in (None, SPEC["step"])


def steps():
    """The numbers of the steps: no run of a kind that hangs reaches the end."""
    return range(100_000)


def hangs(mark, kinds, may=(), burns=False, node=None):
    """Declares that this rank hangs now.

    mark   the line ends with the comment `# hangs: mark`; None where it stands at no line
    kinds  the words that are right for it
    may    ranks that may be named besides, as they are part of it
    burns  it uses the CPU, so that nothing but torch's own limit tells it from work
    node   of a link: the node that is cut off
    """
    put(f"hangs-{RANK}", {"rank": RANK, "mark": mark, "kinds": kinds.split(), "may": list(may), "burns": burns,
                          "node": node, "began": time.time()})


@contextlib.contextmanager
def busy():
    """Declares how long this rank kept the others waiting although it lives."""
    began = time.time()
    yield
    put(f"lived-{RANK}-{began}", time.time() - began)


def suspend():
    """Asks the harness to suspend the whole job, launchers included, and to continue it after some thresholds."""
    put("suspend", SPEC["seed"])


def seconds_to_live():
    return SPEC["living"]


class Job:
    """The groups of the run, and a step of training over them."""

    def __init__(self):
        limit = {"timeout": datetime.timedelta(seconds=SPEC["timeout"])} if SPEC["timeout"] else {}
        dist.init_process_group("gloo", **limit)
        self.groups = []
        for ranks in SPEC["groups"]:
            group = dist.new_group(ranks, **limit)
            if RANK in ranks:
                self.groups.append((ranks, group))
        self.gradient = torch.ones(1024)

    def reduce(self):
        """The collectives of a step, one in each group of this rank."""
        for ranks, group in self.groups:
            if SPEC["collective"] == "all_reduce":
                dist.all_reduce(self.gradient, group=group)
            elif SPEC["collective"] == "all_gather":
                dist.all_gather([torch.zeros(1024) for _ in ranks], self.gradient, group=group)
            else:
                # The root of a broadcast waits for nobody, so the others' answer comes back in the same step.
                dist.broadcast(self.gradient, ranks[0], group=group)
                dist.all_reduce(self.gradient, group=group)
        time.sleep(0.01)


def silent_pipe():
    """A descriptor that gives no byte."""
    end, other = os.pipe()
    _kept.append(other)
    return end


def silent_socket():
    """A connection whose other side sends nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    connection = socket.create_connection(listener.getsockname())
    _kept.append((listener, listener.accept()))
    return connection


def fifo():
    """The path of a FIFO that nobody has open."""
    made = path(f"fifo-{RANK}-{os.getpid()}")
    os.mkfifo(made)
    return made
