"""Waits for a lock that another thread releases after so many seconds; never with 0.

argv: seconds.
"""

import sys
import threading
import time

seconds = float(sys.argv[1])
lock = threading.Lock()
lock.acquire()


def release():
    time.sleep(seconds or 1e6)
    lock.release()


threading.Thread(target=release, daemon=True).start()
lock.acquire()
print("done", flush=True)
