"""Ranks that meet at MASTER_ADDR:MASTER_PORT, as torch's store does, without torch."""

import os
import socket
import time

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
here = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    server = socket.create_server(here)
    seen = set()
    while len(seen) < world - 1:
        # A plain connection sends nothing, and a client of a store sends something else.
        said = server.accept()[0].recv(64)
        if said.startswith(b"rank "):
            seen.add(said)
else:
    deadline = time.monotonic() + 30
    while True:
        try:
            with socket.create_connection(here) as connection:
                connection.sendall(f"rank {rank}".encode())
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
print("rank", rank, "of", world, "met")
