"""A rank that stays: writes its pid to ready/NAME beside itself, then waits.

NAME decides what else it does: *-with-children starts one child in its session
and one outside, *-deaf ignores TERM, *-nobody becomes another user, and *-until
ends with 0 as soon as the file go-NAME is there. With LISTEN=PORT in the environment
it holds that port.
"""

import os
import signal
import socket
import subprocess
import sys
import time

name = sys.argv[1] + os.environ.get("LOCAL_RANK", "")
here = os.path.dirname(os.path.abspath(__file__))


def say(what, pid):
    path = os.path.join(here, "ready", what)
    # Ranks of two nodes have one name.
    part = f"{path}.part-{os.getpid()}"
    with open(part, "w") as file:
        file.write(str(pid))
    os.rename(part, path)


if "LISTEN" in os.environ:
    listener = socket.create_server(("0.0.0.0", int(os.environ["LISTEN"])))
if "-with-children" in name:
    say(name + "-child", subprocess.Popen(["sleep", "600"]).pid)
    say(name + "-escaped", subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
if "-deaf" in name:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
pid = os.getpid()
if "-nobody" in name:
    # The files are root's: say it first.
    say(name, pid)
    os.setuid(65534)
else:
    say(name, pid)
deadline = time.monotonic() + 600
while time.monotonic() < deadline:
    if "-until" in name and os.path.exists(os.path.join(here, "go-" + sys.argv[1])):
        sys.exit(0)
    time.sleep(0.02 if "-until" in name else 600)
