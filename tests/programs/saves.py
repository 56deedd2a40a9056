# A rank that saves when the job stops, and needs its helpers until then: it waits for a word of each of
# them before and while it saves, as a training does in next() of its data loader.
#
#   saves.py FOLDER HELPERS KIND SECONDS END HANDLERS
#
# With CHECKPOINTS, a folder, and SAVERS, their number, the ranks save a checkpoint together as well: step-1 before
# they are ready, step-2 at the stop, each its own file of safetensors, and the first rank the index.
#
# KIND is fork, spawn, forkserver, pool (concurrent.futures), none, or a start method of the workers of torch's
# DataLoader: loader-fork and so on. Writes FOLDER/saved-RANK after SECONDS of saving; FOLDER/signal-RANK has the
# number of the signal. END is exit, or at-once, which leaves the helpers, or itself, without any signal. HANDLERS
# are set late, when the helpers run, or at the top, which helpers inherit or import.
import json
import multiprocessing
import os
import signal
import struct
import sys
import tempfile
import time

FOLDER, HELPERS, KIND, SECONDS = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
END, HANDLERS = sys.argv[5:]
RANK = os.environ.get("RANK") or os.environ.get("NODE_RANK") or "0"
MAIN = os.getpid() if __name__ == "__main__" else 0
stopped = []


def written(name, text):
    # A second signal may interrupt the handler of the first: the name is this call's own.
    new, path = tempfile.mkstemp(dir=FOLDER)
    with os.fdopen(new, "w") as file:
        file.write(text)
    os.rename(path, os.path.join(FOLDER, name))


def checkpoint(step):
    """This rank's part of a checkpoint, as huggingface_hub's save_torch_state_dict lays it out."""
    if "CHECKPOINTS" not in os.environ:
        return
    folder, savers = os.path.join(os.environ["CHECKPOINTS"], "step-%d" % step), int(os.environ["SAVERS"])
    if not os.path.isdir(folder):
        try:
            os.makedirs(folder)
        except OSError:
            pass  # Another rank made it.
    names = ["model-%05d-of-%05d.safetensors" % (one + 1, savers) for one in range(savers)]
    own, size = "layer.%s" % RANK, 1 << 20
    header = json.dumps({own: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with open(os.path.join(folder, names[int(RANK)]), "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + b"1" * size)
    if RANK == "0":
        index = {"metadata": {}, "weight_map": {"layer.%d" % one: name for one, name in enumerate(names)}}
        with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
            json.dump(index, file)


def on_signal(number, frame):
    stopped.append(number)
    # Helpers that inherit the handler are told by TERM, when the rank has ended.
    if os.getpid() == MAIN:
        written("signal-%s" % RANK, str(number))


def set_handlers():
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, on_signal)


if HANDLERS == "top":
    set_handlers()


def work(pipe):
    while True:
        pipe.recv()
        time.sleep(0.002)
        pipe.send(os.getpid())


def square(number):
    time.sleep(0.002)
    return number * number


def asked_by_pipe(context):
    pipes = []
    for _ in range(HELPERS):
        ours, theirs = context.Pipe()
        context.Process(target=work, args=(theirs,), daemon=True).start()
        theirs.close()
        pipes.append(ours)

    def step():
        for pipe in pipes:
            pipe.send(0)
        for pipe in pipes:
            if not pipe.poll(60):
                raise RuntimeError("a helper does not answer")
            pipe.recv()

    return step


def asked_in_a_pool():
    from concurrent.futures import ProcessPoolExecutor

    pool = ProcessPoolExecutor(HELPERS)
    return lambda: list(pool.map(square, range(2 * HELPERS)))


class Data(object):
    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        time.sleep(0.002)
        return index


def asked_of_torch():
    from torch.utils.data import DataLoader

    method = KIND.partition("-")[2]
    loader = DataLoader(
        Data(), batch_size=4, num_workers=HELPERS, multiprocessing_context=method, persistent_workers=True
    )
    batches = iter(loader)
    return lambda: next(batches)


def main():
    step = {
        "none": lambda: lambda: time.sleep(0.002),
        "pool": asked_in_a_pool,
        "loader": asked_of_torch,
    }.get(KIND.partition("-")[0], lambda: asked_by_pipe(multiprocessing.get_context(KIND)))()
    step()
    checkpoint(1)
    if HANDLERS == "late":
        set_handlers()
    print("READY", RANK, flush=True)
    try:
        while not stopped and END != "itself":
            step()
    except KeyboardInterrupt:
        on_signal(signal.SIGINT, None)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        step()
    checkpoint(2)
    written("saved-%s" % RANK, "whole")
    print("SAVED", RANK, flush=True)
    if END == "at-once":
        os._exit(0)


if __name__ == "__main__":
    main()
