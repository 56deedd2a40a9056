"""A cable that takes time: joins two tap devices and holds every frame back.

delay.py NEAR FAR SECONDS makes both devices in this network namespace, says READY,
and runs until it is killed.
"""

import collections
import fcntl
import os
import select
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000


def tap(name):
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


near, far = tap(sys.argv[1]), tap(sys.argv[2])
delay = float(sys.argv[3])
print("READY", flush=True)
on_the_way = collections.deque()
while True:
    now = time.monotonic()
    while on_the_way and on_the_way[0][0] <= now:
        _, device, frame = on_the_way.popleft()
        try:
            os.write(device, frame)
        except OSError:
            pass  # not up yet, or its queue is full: a cable loses frames
    wait = max(0, on_the_way[0][0] - now) if on_the_way else None
    for device in select.select([near, far], [], [], wait)[0]:
        try:
            frame = os.read(device, 65536)
        except OSError:
            continue
        on_the_way.append((time.monotonic() + delay, far if device == near else near, frame))
