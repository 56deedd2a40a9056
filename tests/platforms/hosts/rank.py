"""A rank that needs no torch: all ranks of a job meet, then this one does what it is told.

    rank.py done                      ends with 0
    rank.py fail RANK CODE            that rank ends with a code, the others wait to be stopped
    rank.py until FILE                waits for a file; TERM saves and ends, TERM and USR1 are counted
    rank.py save-for SECONDS FILE     as `until`, but saving takes so long
    rank.py requeue                   USR1 saves, and rank 0 requeues the job, which then continues

Below torchrun, which has a store of its own at the master's port, they meet through torch and gloo.
What they do is written into the present folder: ready-R, usr1-R and term-R (a line for each), saved-R.
"""

import os
import signal
import socket
import subprocess
import sys
import time

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
JOB = os.environ.get("SLURM_JOB_ID", "none")
SECONDS = 60


def meet():
    if "TORCHELASTIC_RUN_ID" in os.environ:
        import torch
        import torch.distributed

        torch.distributed.init_process_group("gloo")
        ones = torch.ones(1)
        torch.distributed.all_reduce(ones)
        assert ones.item() == WORLD
    elif WORLD > 1 and RANK == 0:
        listen()
    elif WORLD > 1:
        connect()


def listen():
    """Rank 0: all others of this job, each once. A rank of another job is an error.

    It keeps the port until it ends, as torch's store does.
    """
    global server
    server = socket.create_server(("", int(os.environ["MASTER_PORT"])))
    server.settimeout(SECONDS)
    seen = {}
    while len(seen) < WORLD - 1:
        connection, _ = server.accept()
        connection.settimeout(5)
        try:
            said = connection.recv(64).decode(errors="replace").split()
        except OSError:
            continue
        # Others only look whether the port answers, and say nothing or speak to a torch store.
        if len(said) == 4 and said[0] == "rank":
            _, job, rank, world = said
            assert (job, int(world)) == (JOB, WORLD), f"a rank of another job came: {said}"
            assert rank not in seen, f"two ranks are rank {rank}"
            seen[rank] = connection
    for connection in seen.values():
        connection.sendall(b"all")


def connect():
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 5) as to:
                to.settimeout(SECONDS)
                to.sendall(f"rank {JOB} {RANK} {WORLD}".encode())
                if to.recv(3) == b"all":
                    return
        except OSError:
            pass
        assert time.monotonic() < deadline, "rank 0 did not answer"
        time.sleep(0.05)


def write(name, text="\n"):
    with open(f"{name}-{RANK}", "a") as file:
        file.write(text)


def wait(file):
    while not os.path.exists(file):
        time.sleep(0.05)


def on_term(saving):
    """A second TERM is counted, and does not save again."""
    came = []

    def save(*_):
        write("term")
        came.append(None)
        if len(came) > 1:
            return
        deadline = time.monotonic() + saving
        while time.monotonic() < deadline:
            time.sleep(0.05)
        write("saved")
        print("saved", RANK, flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)


def requeue():
    """As Lightning and submitit do it: a signal ahead of the time limit, a checkpoint, a requeue."""
    if int(os.environ.get("SLURM_RESTART_COUNT", "0")) > 0:
        assert os.path.exists(f"saved-{RANK}"), "no checkpoint of the first run"
        print("continued", RANK, flush=True)
        return

    def save(*_):
        write("usr1")
        write("saved")
        if RANK == 0:
            for other in range(WORLD):
                wait(f"saved-{other}")
            subprocess.run(["scontrol", "requeue", JOB], check=True)

    signal.signal(signal.SIGUSR1, save)
    write("ready")
    while True:
        time.sleep(0.05)


def main(what="done", *rest):
    if what == "until":
        signal.signal(signal.SIGUSR1, lambda *_: write("usr1"))
        on_term(0)
    if what == "save-for":
        on_term(float(rest[0]))
    meet()
    print("rank", RANK, "of", WORLD, "on", socket.gethostname(), "in job", JOB, flush=True)
    if what == "fail":
        if RANK == int(rest[0]):
            sys.exit(int(rest[1]))
        time.sleep(600)
    elif what in ("until", "save-for"):
        write("ready")
        wait(rest[-1])
    elif what == "requeue":
        requeue()


main(*sys.argv[1:])
if "torch" in sys.modules:
    # Its threads, which must not meet the end of the interpreter.
    sys.modules["torch"].distributed.destroy_process_group()
