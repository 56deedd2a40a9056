"""A rank waits for a thread or a process of its own that downloads over a plain connection, slowly or fast."""
# vary: Stream download train
# nest: download

import concurrent.futures
import socket
import subprocess
import sys

import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

import stage

# Bytes in a second.
RATES = (5_000, 50_000, 1_000_000, 20_000_000)
# Sends so many bytes in a second. No process of the rank, which has none of the bytes that it sends.
SERVER = """
import os, socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
if os.fork():
    os._exit(0)
client, _ = listener.accept()
for _ in range(int(float(sys.argv[1]) * 4)):
    client.sendall(bytes(int(sys.argv[2]) // 4))
    time.sleep(0.25)
"""
CLIENT = """
import socket, sys
server = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
server.settimeout(None)
while server.recv(65536):
    pass
"""


def received(port):
    server = socket.create_connection(("127.0.0.1", port))
    server.settimeout(None)
    size = 0
    while part := server.recv(65536):
        size += len(part)
    return size


class Stream(IterableDataset):
    def __init__(self, port):
        self.port = port

    def __iter__(self):
        yield received(self.port)


def download(port):
    where = stage.choice("thread", "loader", "subprocess")
    if where == "thread":
        return concurrent.futures.ThreadPoolExecutor(1).submit(received, port).result()
    if where == "loader":
        return list(DataLoader(Stream(port), batch_size=None, num_workers=1))
    subprocess.run([sys.executable, "-c", CLIENT, str(port)], check=True)


def train():
    job = stage.Job()
    for step in range(stage.SPEC["step"] + 2):
        job.reduce()
        if stage.is_culprit(step):
            rate = RATES[stage.SPEC["draw"] % len(RATES)]
            server = subprocess.Popen([sys.executable, "-c", SERVER, str(stage.seconds_to_live()), str(rate)],
                                      stdout=subprocess.PIPE, text=True)
            port = int(server.stdout.readline())
            server.wait()
            with stage.busy():
                download(port)
        dist.barrier()


if __name__ == "__main__":
    train()
