"""An exception is printed and swallowed, then the rank waits elsewhere."""
# vary: forward report_failure train
# nest: report_failure

import queue
import threading
import traceback

import torch

import stage


def forward(batch):
    return batch @ torch.ones(3)


def report_failure(uploads):
    how = stage.choice("uploads", "acknowledged")
    stage.hangs(how, "never_entered")
    if how == "uploads":
        uploads.put("failed")
        uploads.join()  # hangs: uploads
    threading.Event().wait(100_000)  # hangs: acknowledged


def train():
    job = stage.Job()
    for step in stage.steps():
        try:
            forward(torch.ones(4 if stage.is_culprit(step) else 3))
            job.reduce()
        except Exception:  # noqa: BLE001  as it is found in training loops
            traceback.print_exc()
            report_failure(queue.Queue())


if __name__ == "__main__":
    train()
