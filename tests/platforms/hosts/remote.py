#!/usr/bin/env python3
"""Stands for ssh between the hosts: remote.py [OPTION...] HOST COMMAND...

A host cannot enter another one, since it sees only its own processes. So the caller hands its
standard input and outputs over a socket in the shared file system to the suite, which starts the
command. As under sshd, the command has a fresh environment and a session of its own, and outlives
a caller that is killed.
"""

import array
import json
import os
import socket
import subprocess
import sys
import threading

ENVIRONMENT = {"HOME": "/root", "USER": "root"}
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
WITH_VALUE = {"-l", "-p", "-o", "-i"}


class Server:
    """Starts what the hosts ask for."""

    def __init__(self, hosts, work):
        self.hosts = hosts
        # ranklaunch is installed, as on hosts that are used by hand.
        self.environment = {**ENVIRONMENT, "PATH": f"{PATH}:{work}/bin"}
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.path.join(work, "remote.socket"))
        self.listener.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection):
        with connection:
            text, control, _, _ = connection.recvmsg(1 << 16, socket.CMSG_LEN(3 * 4))
            files = array.array("i")
            for _, _, data in control:
                files.frombytes(data)
            host, command = json.loads(text)
            code = 255
            try:
                if host in self.hosts.names:
                    # The same shell that sshd would start.
                    line = [*self.hosts.entering(host, "/root"), "setsid", "-w", "sh", "-c", command]
                    code = subprocess.run(line, env=self.environment, stdin=files[0], stdout=files[1],
                                          stderr=files[2]).returncode
            finally:
                for file in files:
                    os.close(file)
            try:
                connection.sendall(bytes([code % 256]))
            except OSError:
                pass


def main(arguments):
    while arguments and arguments[0].startswith("-"):
        option = arguments.pop(0)
        if option in WITH_VALUE:
            arguments.pop(0)
    host = arguments.pop(0).rpartition("@")[2]
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["PLATFORMS_REMOTE"])
        files = array.array("i", [0, 1, 2])
        request = json.dumps([host, " ".join(arguments)]).encode()
        connection.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        code = connection.recv(1)
    return code[0] if code else 255


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
