# A rank whose helpers are signalled by others and ended by itself, with each start method. Says what happened,
# a line of JSON for each.
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import time


def answers(pipe):
    while True:
        pipe.send(pipe.recv())


def in_a_library(pipe):
    pipe.send(0)
    sum(itertools.repeat(1))


def on_its_own(pipe):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    pipe.send(0)
    time.sleep(600)


def parent_of_a_program(pipe):
    with subprocess.Popen(["sleep", "600"]) as program:
        pipe.send(program.pid)
        pipe.send(program.wait())
    time.sleep(600)


def ticks(pid):
    with open("/proc/%d/stat" % pid) as file:
        return int(file.read().rpartition(")")[2].split()[11])


def main():
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        said = {"method": method}

        def start(target):
            ours, theirs = context.Pipe()
            process = context.Process(target=target, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            return process, ours

        process, pipe = start(answers)
        pipe.send(1)
        pipe.recv()
        subprocess.check_call(["sh", "-c", "kill -TERM %d" % process.pid])
        try:
            pipe.send(2)
            said["a stranger's TERM"] = pipe.recv()
        except (EOFError, OSError):
            said["a stranger's TERM"] = "killed"
        process.terminate()
        process.join()
        said["terminate"] = process.exitcode

        process, pipe = start(answers)
        pipe.send(1)
        pipe.recv()
        os.kill(process.pid, signal.SIGTERM)
        process.join()
        said["os.kill"] = process.exitcode

        process, pipe = start(in_a_library)
        pipe.recv()
        while ticks(process.pid) < 30:
            time.sleep(0.01)
        process.terminate()
        process.join()
        said["in a library"] = process.exitcode

        process, pipe = start(on_its_own)
        pipe.recv()
        process.terminate()
        process.join()
        said["a handler of its own"] = process.exitcode

        process, pipe = start(parent_of_a_program)
        subprocess.check_call(["sh", "-c", "kill -TERM %d" % pipe.recv()])
        said["a program of its own"] = pipe.recv()
        process.terminate()
        process.join()
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
