"""A rank downloads slowly over a socket."""
# vary: download train
# nest: download

import subprocess
import sys
import urllib.request

import torch.distributed as dist

import stage

# Sends 8 KiB four times a second.
SERVER = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
client, _ = listener.accept()
client.recv(65536)
pieces = int(float(sys.argv[1]) * 4)
client.sendall(b"HTTP/1.0 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % (8192 * pieces))
for _ in range(pieces):
    client.sendall(bytes(8192))
    time.sleep(0.25)
"""


def download(port):
    how = stage.choice("pieces", "whole", "timeout")
    # With a time-out it sleeps in poll, not in the call that receives.
    limit = {"timeout": 30} if how == "timeout" else {}
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/weights", **limit) as answer:
        if how == "whole":
            return answer.read()
        while answer.read(4096):
            pass


def train():
    job = stage.Job()
    for step in range(stage.SPEC["step"] + 2):
        job.reduce()
        if stage.is_culprit(step):
            server = subprocess.Popen([sys.executable, "-c", SERVER, str(stage.seconds_to_live())],
                                      stdout=subprocess.PIPE, text=True)
            with stage.busy():
                download(int(server.stdout.readline()))
        dist.barrier()


if __name__ == "__main__":
    train()
