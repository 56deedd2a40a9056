"""The user's code waits for something that does not come."""
# vary: wait_for_weights train
# nest: wait_for_weights

import os
import queue
import threading
import time

import stage


def wait_for_weights(file):
    how = stage.choice("poll", "event", "queue", "sleep")
    stage.hangs(how, "never_entered")
    if how == "poll":
        while not os.path.exists(file):  # hangs: poll
            time.sleep(0.05)  # hangs: poll
    if how == "event":
        threading.Event().wait()  # hangs: event
    if how == "queue":
        queue.Queue().get()  # hangs: queue
    time.sleep(100_000)  # hangs: sleep


def train():
    job = stage.Job()
    for step in stage.steps():
        if stage.is_culprit(step):
            wait_for_weights(stage.path("weights"))
        job.reduce()


if __name__ == "__main__":
    train()
