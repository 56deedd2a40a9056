"""A server in the rank takes the port of the master before torch does."""

import os
import socket

import torch.distributed as dist

from survival import run

server = socket.create_server(("0.0.0.0", int(os.environ["MASTER_PORT"])))
run(dist.init_process_group, "gloo")
