"""A rank of a training whose result depends on every step, bit by bit, and on nothing else.

immortal.py FOLDER [STEPS]

All ranks add up their gradients over gloo in each step, and rank 0 saves every fifth one to FOLDER/checkpoints. The training
ends after STEPS, or soon after FOLDER/stop exists, and rank 0 leaves FOLDER/final.pt then. After a TERM to one of them all
save and end. Each rank keeps a file in
FOLDER/ran while it runs, and each step of rank 0 is a line of FOLDER/steps. PACE: seconds of a step.
"""

import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

INTERVAL = 5
KEPT = 3
SIZE = 256
told = False


def keeps(path):
    """Shows by the time of this file that the rank runs."""
    with open(path, "w") as file:
        file.write("%.3f" % time.time())

    def touch():
        while True:
            time.sleep(0.05)
            os.utime(path)

    threading.Thread(target=touch, daemon=True).start()


def on_term(number, frame):
    global told
    told = True

    def gives_up():
        # A step takes less, unless another rank is gone.
        time.sleep(1)
        os._exit(128 + number)

    threading.Thread(target=gives_up, daemon=True).start()


def save(state, path):
    with open(path + ".tmp", "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)


def rotate(folder):
    numbers = sorted(int(name[5:-3]) for name in os.listdir(folder) if name.startswith("step-") and name.endswith(".pt"))
    for number in numbers[:-KEPT]:
        os.unlink("%s/step-%d.pt" % (folder, number))


def main():
    folder, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None
    pace = float(os.environ.get("PACE", "0"))
    rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
    keeps("%s/ran/%s-%d" % (folder, attempt, rank))
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, on_term)
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    weights, step = torch.linspace(-1, 1, SIZE, dtype=torch.float64).float(), 0
    resume = os.environ.get("RANKLAUNCH_RESUME_FROM")
    if resume:
        state = torch.load(resume, weights_only=True)
        weights, step = state["weights"], state["step"]
    checkpoints = folder + "/checkpoints"
    while True:
        step += 1
        random = torch.Generator().manual_seed(step * world + rank)
        data = torch.randn(SIZE, generator=random)
        # The last numbers are whether all end with this step, which rank 0 decides, and how many were told to end.
        sums = torch.zeros(SIZE + 2)
        sums[:SIZE] = torch.tanh(weights * data) * data + 0.01 * weights
        is_last = step == steps if steps else os.path.exists(folder + "/stop")
        sums[SIZE], sums[SIZE + 1] = float(rank == 0 and is_last), float(told)
        time.sleep(pace)
        dist.all_reduce(sums)
        weights = weights - 0.05 * sums[:SIZE] / world
        if rank == 0:
            with open(folder + "/steps", "a") as file:
                file.write("%s %d\n" % (attempt, step))
            if step % INTERVAL == 0 or sums[SIZE + 1] > 0:
                save({"weights": weights, "step": step}, "%s/step-%d.pt" % (checkpoints, step))
                rotate(checkpoints)
        if sums[SIZE] > 0:
            if rank == 0:
                save({"weights": weights, "step": step}, folder + "/final.pt")
            dist.barrier()
            return
        if sums[SIZE + 1] > 0:
            dist.barrier()
            os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
