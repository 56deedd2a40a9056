"""A rank that writes down what it sees, and then does what its argument names."""

import json
import os
import signal
import stat
import sys
import time

FOLDER, RANK = os.environ["PROBE_FOLDER"], os.environ["RANK"]


def write(what, text=""):
    with open(os.path.join(FOLDER, f"{what}-{RANK}"), "w") as file:
        file.write(text)


def signals():
    def told(number, frame):
        write("got", str(number))
        if number not in (signal.SIGUSR1, signal.SIGUSR2):
            time.sleep(1)
            write("saved")
            sys.exit(0)

    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
        signal.signal(getattr(signal, name), told)
    write("ready")
    # A signal that does not end the job ends this wait.
    for _ in range(80):
        time.sleep(0.1)
        if os.path.exists(os.path.join(FOLDER, f"got-{RANK}")):
            time.sleep(1)
            return


def main(how="", *words):
    write("began")
    if how == "words":
        write("words", json.dumps(words))
    elif how == "paths":
        beside = __import__("beside")
        write("paths", json.dumps([sys.argv[0], os.path.realpath(sys.path[0]), __file__, __name__, beside.VALUE,
                                   sys.stdout.line_buffering, sys.stdin.isatty()]))
    elif how == "variables":
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
        others = ("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "TORCHELASTIC_RESTART_COUNT",
                  "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
        write("variables", json.dumps([[os.environ.get(name) for name in names],
                                       [name in os.environ for name in others]]))
    elif how == "input":
        write("input", str(stat.S_ISFIFO(os.fstat(0).st_mode)))
    elif how == "exit":
        sys.exit(int(words[0]) if RANK == "1" else 0)
    elif how == "kill":
        if RANK == "1":
            os.kill(os.getpid(), int(words[0]))
        time.sleep(60)
    elif how == "raise":
        raise RuntimeError("raised by the probe")
    elif how == "attempts":
        attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        write(f"attempt-{attempt}", os.environ["TORCHELASTIC_MAX_RESTARTS"])
        # The first one that fails ends the others.
        for rank in range(int(os.environ["WORLD_SIZE"])):
            while not os.path.exists(os.path.join(FOLDER, f"attempt-{attempt}-{rank}")):
                time.sleep(0.05)
        if attempt < 2:
            raise RuntimeError(f"attempt {attempt}")
    elif how == "record":
        from torch.distributed.elastic.multiprocessing.errors import record

        @record
        def fails():
            if RANK == "1":
                raise ValueError("the cause")
            time.sleep(30)

        fails()
    elif how == "elastic":
        import torch.distributed

        write("elastic", str(torch.distributed.is_torchelastic_launched()))
    elif how == "reduce":
        import torch
        import torch.distributed as dist

        rank, world = int(RANK), int(os.environ["WORLD_SIZE"])
        method = words[0] if words else "env://"
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world)
        sum_of = torch.tensor([float(rank)])
        dist.all_reduce(sum_of)
        write("sum", str(sum_of.item()))
        dist.destroy_process_group()
    elif how == "nested" and RANK == "0":
        import subprocess

        line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", __file__, "reduce"]
        sys.exit(subprocess.call(line))
    elif how == "local-rank":
        import argparse

        parser = argparse.ArgumentParser()
        parser.add_argument("--local-rank", "--local_rank", type=int, required=True)
        # The first rank that fails ends the other one.
        for rank in range(int(os.environ["WORLD_SIZE"])):
            while not os.path.exists(os.path.join(FOLDER, f"began-{rank}")):
                time.sleep(0.01)
        parser.parse_args(words)
    elif how == "signals":
        signals()


if __name__ == "__main__":
    main(*sys.argv[1:])
