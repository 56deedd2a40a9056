"""A rank that says where it sits, and ends when it is told to.

places.py FOLDER [SLOW]

Writes FOLDER/ATTEMPT-RANK with its seat, and ends with 0 when FOLDER/end exists, or with 3 when FOLDER/fail-ATTEMPT-RANK
does, whose text it prints. SLOW: a TERM takes so many seconds, as a save does.
"""

import os
import signal
import sys
import time

folder = sys.argv[1]
slow = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]


def on_term(number, frame):
    time.sleep(slow)
    os._exit(128 + number)


signal.signal(signal.SIGTERM, on_term)
here = os.path.join(folder, "%s-%s" % (attempt, rank))
with open(here + ".new", "w") as file:
    file.write("seat %s of %s, rank %s of %s" % tuple(
        os.environ[name] for name in ("NODE_RANK", "GROUP_WORLD_SIZE", "RANK", "WORLD_SIZE")))
os.rename(here + ".new", here)
while not os.path.exists(os.path.join(folder, "end")):
    fail = os.path.join(folder, "fail-%s-%s" % (attempt, rank))
    if os.path.exists(fail):
        with open(fail) as file:
            sys.stderr.write(file.read())
        sys.exit(3)
    time.sleep(0.02)
