"""Takes a port at the moment at which it becomes free: thief.py PORT

Waits until something listens on the port, then until nothing does, and listens itself until it is killed. Whoever has
connections on the port keeps them, as torch's store would find it.
"""

import os
import signal
import socket
import sys

PORT = int(sys.argv[1])
LISTENS = "0A"


def is_taken():
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as file:
            for line in list(file)[1:]:
                _, local, _, state, *_ = line.split()
                if state == LISTENS and int(local.rpartition(":")[2], 16) == PORT:
                    return True
    return False


open("thief-waits", "w").close()
while not is_taken():
    pass
open("thief-sees-it", "w").close()
while is_taken():
    pass
# Like torch's store, for both families.
server = socket.create_server(("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True)
with open("thief-has-it", "w") as file:
    file.write(str(os.getpid()))
signal.pause()
