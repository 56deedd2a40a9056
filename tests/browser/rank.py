"""A rank that prints what would break out of a page, and fails as rank 1."""

import os
import sys
import time

rank = int(os.environ["RANK"])
print("</script><script>window.broken = 1</script><img src=http://192.0.2.1/x onerror='window.broken = 2'>", flush=True)
if "--until-killed" in sys.argv:
    time.sleep(600)
time.sleep(2.5)
if "--fail" in sys.argv and rank == 1:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. <script>window.broken = 3</script>")
time.sleep(0.3)
