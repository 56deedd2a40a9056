"""The last rank reads address 0 in native code while the others wait."""

import ctypes
import os
import time

from survival import SURVIVES, run_in_child

if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
    run_in_child(ctypes.string_at, 0)
else:
    time.sleep(0 if SURVIVES else 300)
