# A rank that says that it began and then does what its argument names. It imports what a warmed interpreter can
# import for it, and says whether that has happened.
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time


def say(*words):
    print(*words, flush=True)


def main(how, folder):
    with open("/proc/self/environ") as file:
        forked = "RANKLAUNCH_WARM_LISTEN" in file.read()
    rank = os.environ.get("RANK")
    attempt = len([name for name in os.listdir(folder) if name.startswith("began-%s-" % rank)])
    with open(os.path.join(folder, "began-%s-%d" % (rank, attempt)), "w") as file:
        json.dump({"forked": forked, "at": time.time(), "pid": os.getpid(), "shim": os.getppid(),
                   "count": os.environ.get("TORCHELASTIC_RESTART_COUNT"),
                   "own": os.environ.get("RANKLAUNCH_ATTEMPT")}, file)
    say("began", rank, "forked" if forked else "alone")
    if how == "reads":
        say("read", repr(sys.stdin.readline()))
    if how == "waits":
        threading.Event().wait()
    if how == "handles":
        signal.signal(signal.SIGTERM, lambda number, frame: (say("told"), sys.exit(5)))
        threading.Event().wait()
    if how == "ignores":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say("deaf")
        threading.Event().wait()
    if how == "leaves":
        # A process that has left its family, and one that has not.
        subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM HUP; while :; do sleep 1; done"])
        subprocess.Popen(["sleep", "1000"])
    if how == "fails-once" and rank == "0" and attempt == 0:
        logging.error("as asked")
        with open(os.path.join(folder, "ends"), "w") as file:
            file.write(str(time.time()))
        sys.exit(3)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
