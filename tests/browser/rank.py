"""A rank that prints what would break out of a page, and steps; `--fail` lets rank 1 fail in the first attempt."""

import os
import sys
import time

rank, attempt = int(os.environ["RANK"]), int(os.environ.get("RANKLAUNCH_ATTEMPT", "0"))
print("</script><script>window.broken = 1</script><img src=http://192.0.2.1/x onerror='window.broken = 2'>", flush=True)
if "--until-killed" in sys.argv:
    time.sleep(600)
for step in range(1, 6) if "--steps" in sys.argv else []:
    print(f"step {step + 5 * attempt}/10", flush=True)
    time.sleep(0.4)
time.sleep(2.5)
if "--fail" in sys.argv and rank == 1 and attempt == 0:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. <script>window.broken = 3</script>")
time.sleep(0.3)
