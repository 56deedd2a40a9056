"""A small file system over FUSE whose server is as slow as it is told: fuse.py FOLDER frozen|slow

It has one folder of files that keep nothing but their size. `frozen`: what reads or writes more than the first
64 KiB of a file waits until this program ends. `slow`: each request to write is answered after a quarter of a second,
so that 32 KiB take as long. Prints `mounted` when it is.
"""

import ctypes
import errno
import os
import struct
import sys
import time

LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE = 1, 2, 3, 4, 14, 15, 16, 17, 18
FSYNC, FLUSH, INIT, ACCESS, INTERRUPT, CREATE, BATCH_FORGET = 20, 25, 26, 34, 36, 35, 42
# linux/fuse.h: what has no answer.
UNANSWERED = (FORGET, BATCH_FORGET, INTERRUPT)
ENOENT, ENOSYS = 2, 38
ROOT, DATA = 1, 2
FROZEN_FROM, LARGEST, REQUEST = 1 << 16, 1 << 30, 1 << 15
MS_NOSUID, MS_NODEV = 2, 4

folder, speed = sys.argv[1:]
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40777,user_id=0,group_id=0,allow_other".encode()
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"hangs", folder.encode(), b"fuse", MS_NOSUID | MS_NODEV, options):
    raise OSError(ctypes.get_errno(), "mount of FUSE", folder)
print("mounted", flush=True)
# Numbers of the files by name. `data` is there from the start and large enough to be read.
numbers, sizes = {b"data": DATA}, {DATA: LARGEST}


def attributes(node):
    mode = 0o40777 if node == ROOT else 0o100666
    size = 0 if node == ROOT else sizes.get(node, 0)
    return struct.pack("<6Q10I", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def entry(node):
    return struct.pack("<4Q2I", node, 0, 0, 0, 0, 0) + attributes(node)


def answer(code, node, body):
    """The bytes of an answer, a number of errno, or None where the request is never answered."""
    if code == INIT:
        # Version 7.31; a request takes more than a page (FUSE_BIG_WRITES), up to 32 KiB.
        return struct.pack("<4I2H2I2H8I", 7, 31, 0, 1 << 5, 16, 12, REQUEST, 1, 8, 0, *[0] * 8)
    if code == LOOKUP:
        number = numbers.get(body.rstrip(b"\0"))
        return entry(number) if number else ENOENT
    if code in (GETATTR, SETATTR):
        return struct.pack("<Q2I", 0, 0, 0) + attributes(node)
    if code == CREATE:
        number = numbers.setdefault(body[16:].rstrip(b"\0"), DATA + len(numbers))
        sizes[number] = 0
        return entry(number) + struct.pack("<Q2I", 0, 0, 0)
    if code == OPEN:
        return struct.pack("<Q2I", 0, 0, 0)
    if code == READ:
        _, offset, size = struct.unpack_from("<QQI", body)
        return None if offset + size > FROZEN_FROM and speed == "frozen" else bytes(size)
    if code == WRITE:
        _, offset, size = struct.unpack_from("<QQI", body)
        if speed == "frozen" and offset + size > FROZEN_FROM:
            return None
        if speed == "slow":
            time.sleep(0.25)
        sizes[node] = max(sizes.get(node, 0), offset + size)
        return struct.pack("<2I", size, 0)
    if code in (RELEASE, FLUSH, FSYNC, ACCESS):
        return b""
    if code == STATFS:
        return struct.pack("<5Q10I", 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096, *[0] * 7)
    return ENOSYS


while True:
    try:
        request = os.read(device, REQUEST + 8192)
    except OSError as error:
        # It was unmounted.
        sys.exit(error.errno != errno.ENODEV)
    _, code, unique, node = struct.unpack_from("<2I2Q", request)
    if code in UNANSWERED:
        continue
    said = answer(code, node, request[40:])
    if said is None:
        continue
    error, said = (-said, b"") if isinstance(said, int) else (0, said)
    os.write(device, struct.pack("<IiQ", 16 + len(said), error, unique) + said)
