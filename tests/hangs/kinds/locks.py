"""Deadlocks inside a rank: two locks in opposite order, one lock twice, a task that waits for its own pool."""
# vary: flush_metrics train
# nest: flush_metrics

import concurrent.futures
import threading

import stage

metrics, writer = threading.Lock(), threading.Lock()


def write(has_writer, has_metrics):
    with writer:
        has_writer.set()
        has_metrics.wait()
        with metrics:  # hangs: two
            pass


def flush_metrics():
    how = stage.choice("two", "twice", "pool")
    stage.hangs(how, "deadlock never_entered" if how == "pool" else "deadlock")
    if how == "two":
        has_writer, has_metrics = threading.Event(), threading.Event()
        threading.Thread(target=write, args=(has_writer, has_metrics), daemon=True).start()
        with metrics:
            has_metrics.set()
            has_writer.wait()
            with writer:  # hangs: two
                pass
    if how == "twice":
        with metrics:
            metrics.acquire()  # hangs: twice
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        def outer():
            return pool.submit(int).result()  # hangs: pool

        pool.submit(outer).result()  # hangs: pool


def train():
    job = stage.Job()
    for step in stage.steps():
        if stage.is_culprit(step):
            flush_metrics()
        job.reduce()


if __name__ == "__main__":
    train()
