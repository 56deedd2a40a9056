"""The main process waits in next() for a worker of the DataLoader that stands in the user's dataset."""
# vary: Samples read_sample train
# nest: read_sample

import os
import threading

import torch
from torch.utils.data import DataLoader, Dataset

import stage


def read_sample(at):
    how = stage.choice("pipe", "socket", "fifo", "lock")
    silent = {"pipe": stage.silent_pipe, "socket": stage.silent_socket, "fifo": stage.fifo, "lock": threading.Lock}[how]()
    if how == "lock":
        silent.acquire()
    stage.hangs(how, "never_entered")
    if how == "pipe":
        return os.read(silent, 1)  # hangs: pipe
    if how == "socket":
        return silent.recv(1)  # hangs: socket
    if how == "fifo":
        return open(silent).read()  # hangs: fifo
    return silent.acquire()  # hangs: lock


class Samples(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, at):
        if stage.is_culprit(at):
            read_sample(at)
        return torch.ones(4)


def train():
    job = stage.Job()
    for batch in DataLoader(Samples(), batch_size=1, num_workers=1 + stage.SPEC["draw"] % 2):
        job.reduce()


if __name__ == "__main__":
    train()
