"""The connections between ranks stop to carry anything, as on a link that loses all: no end sees an error."""

import ctypes
import os
import socket
import struct

SO_ATTACH_FILTER = 26
# The only instruction of a classic BPF program: take no byte of what arrives.
DROP = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))


def cut():
    """Cuts all connections of this process but that to torch's store."""
    store = int(os.environ["MASTER_PORT"])
    for name in os.listdir("/proc/self/fd"):
        try:
            end = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with end:
            if end.family not in (socket.AF_INET, socket.AF_INET6) or end.type != socket.SOCK_STREAM:
                continue
            try:
                ports = end.getsockname()[1], end.getpeername()[1]
            except OSError:
                continue
            if store not in ports:
                end.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(DROP)))
