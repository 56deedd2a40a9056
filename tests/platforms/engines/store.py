"""One side of a TCPStore of two: store.py server|client PORT. Ends with 0 if both sides have read the other's value."""

import datetime
import sys

import torch.distributed

role, port = sys.argv[1], int(sys.argv[2])
limit = datetime.timedelta(seconds=12)
store = torch.distributed.TCPStore("127.0.0.1", port, 2, role == "server", timeout=limit)
other = "client" if role == "server" else "server"
store.set(role, role)
assert store.get(other) == other.encode()
store.add("over", 1)
# The server's end would end the store.
while role == "server" and store.add("over", 0) < 2:
    pass
