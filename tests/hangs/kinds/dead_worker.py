"""The main process waits for a worker that was killed."""
# vary: feed receive train
# nest: receive

import multiprocessing
import os
import signal

import stage


def feed(samples):
    for number in range(stage.SPEC["step"]):
        samples.put(number)
    samples.close()
    samples.join_thread()
    os.kill(os.getpid(), signal.SIGKILL)


def receive(samples, step):
    if step < stage.SPEC["step"]:
        return samples.get()
    how = stage.choice("queue", "pool")
    stage.hangs(how, "worker_died never_entered deadlock" if how == "pool" else "worker_died")
    if how == "pool":
        # The pool replaces the worker, but not its task.
        return multiprocessing.Pool(2).map(os._exit, [9])  # hangs: pool
    return samples.get()  # hangs: queue


def train():
    job = stage.Job()
    if stage.is_culprit():
        samples = multiprocessing.Queue()
        multiprocessing.Process(target=feed, args=(samples,), daemon=True).start()
    for step in stage.steps():
        if stage.is_culprit():
            receive(samples, step)
        job.reduce()


if __name__ == "__main__":
    train()
