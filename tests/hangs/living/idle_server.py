"""An inference server to which nobody sends a request for a while."""
# vary: serve train
# nest: serve

import http.server
import threading
import urllib.request

import torch
import torch.distributed as dist

import stage


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ready")


def serve(server):
    # A client that comes late.
    client = threading.Timer(stage.seconds_to_live(), urllib.request.urlopen,
                             [f"http://127.0.0.1:{server.server_port}/"])
    client.start()
    server.handle_request()
    client.join()


def train():
    job = stage.Job()
    job.reduce()
    # Each rank serves, or rank 0 serves and tells the others what to compute.
    everyone = stage.choice(True, False)
    with stage.busy():
        if everyone or stage.RANK == 0:
            serve(http.server.HTTPServer(("127.0.0.1", 0), Handler))
        dist.broadcast(torch.ones(8), 0)
    dist.barrier()


if __name__ == "__main__":
    train()
