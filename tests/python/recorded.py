"""One rank raises below torch's @record; the others wait.

recorded.py RANK [plain] [loud]: without @record; with a standard error that is read
"""

import os
import sys
import time

from torch.distributed.elastic.multiprocessing.errors import record


def read(sample):
    raise ValueError(f"sample {sample} has no label")


def main():
    if os.environ["RANK"] == sys.argv[1]:
        read(17)
    while True:
        time.sleep(0.01)


if "loud" not in sys.argv:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
if "plain" not in sys.argv:
    main = record(main)
main()
