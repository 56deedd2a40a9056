"""A rank of these cases: all ranks of a job meet, then this one does what it is told.

    rank.py [torch] done                ends with 0, as it does without words
    rank.py [torch] fail RANK CODE      that rank ends with a code, the others wait to be stopped
    rank.py [torch] save SECONDS        notes each TERM; the first one begins a checkpoint that takes so long, and
                                        that is whole only if every rank of the job has its part

With `torch` they meet through torch.distributed and gloo, else through sockets beside the master port.
What they do is written into the present folder: ready-R, term-R (a time for each), saved-R.
"""

import os
import signal
import socket
import sys
import time

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SECONDS = 90


class Gloo:
    """All ranks, through torch."""

    def __init__(self):
        import torch.distributed

        self.torch = torch
        torch.distributed.init_process_group("gloo")
        self.name = f"torch {torch.__version__.split('+')[0]}"

    def meet(self):
        ones = self.torch.ones(1)
        self.torch.distributed.all_reduce(ones)
        assert ones.item() == WORLD

    def leave(self):
        # A process that ends with the threads of gloo aborts now and then.
        self.torch.distributed.barrier()
        self.torch.distributed.destroy_process_group()


class Sockets:
    """All ranks, through rank 0, without the seconds that torch needs to be imported."""

    def __init__(self):
        # An engine's own store has the master port.
        self.address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1)
        self.name = "sockets"
        if RANK == 0:
            server = socket.create_server(("", self.address[1]))
            server.settimeout(SECONDS)
            self.peers = [server.accept()[0] for _ in range(WORLD - 1)]
        else:
            self.peers = [self.dial()]
        for peer in self.peers:
            peer.settimeout(SECONDS)

    def dial(self):
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                return socket.create_connection(self.address, 5)
            except OSError:
                assert time.monotonic() < deadline, "rank 0 did not answer"
                time.sleep(0.05)

    def meet(self):
        """A barrier. A rank that is gone ends it with an error."""
        if RANK == 0:
            assert all(peer.recv(1) == b"." for peer in self.peers), "a rank is gone"
            for peer in self.peers:
                peer.sendall(b".")
        else:
            self.peers[0].sendall(b".")
            assert self.peers[0].recv(1) == b".", "rank 0 is gone"

    def leave(self):
        pass


def say(*words):
    """One write, since ranks below a launcher of the user share its pipe."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def write(name, text="\n"):
    with open(f"{name}-{RANK}", "a") as file:
        file.write(text)


def main(words):
    came = []

    def on_term(*_):
        came.append(time.monotonic())
        write("term", f"{came[-1]}\n")

    ranks = Gloo if words[0] == "torch" else Sockets
    what, *rest = words[1:] if words[0] == "torch" else words
    if what == "save":
        signal.signal(signal.SIGTERM, on_term)
    ranks = ranks()
    ranks.meet()
    say("rank", RANK, "of", WORLD, "on", socket.gethostname(), "by", ranks.name)
    write("ready")
    if what == "fail":
        if RANK == int(rest[0]):
            sys.exit(int(rest[1]))
        time.sleep(600)
    elif what == "save":
        while not came:
            time.sleep(0.05)
        until = time.monotonic() + float(rest[0])
        while time.monotonic() < until:
            time.sleep(0.05)
        ranks.meet()
        write("saved")
        say("saved", RANK)
    ranks.leave()


main(sys.argv[1:] or ["done"])
