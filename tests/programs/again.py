"""A rank that says when it began, saves once, and waits for its death.

again.py FOLDER

Writes FOLDER/ATTEMPT-RANK with the time of its first line. Rank 0 saves FOLDER/checkpoints/step-ATTEMPT.pt, so that each attempt
makes progress. Ends with 0 when FOLDER/end exists.
"""

import os
import sys
import time

import torch

began = time.time()


def main():
    folder, rank, attempt = sys.argv[1], os.environ["RANK"], os.environ["RANKLAUNCH_ATTEMPT"]
    if rank == "0":
        path = "%s/checkpoints/step-%s.pt" % (folder, attempt)
        torch.save({"step": int(attempt)}, path + ".new")
        os.rename(path + ".new", path)
        if int(attempt) > 3:
            os.unlink("%s/checkpoints/step-%d.pt" % (folder, int(attempt) - 3))
    here = "%s/%s-%s" % (folder, attempt, rank)
    with open(here + ".new", "w") as file:
        file.write("%f" % began)
    os.rename(here + ".new", here)
    while not os.path.exists(folder + "/end"):
        time.sleep(0.02)


if __name__ == "__main__":
    main()
