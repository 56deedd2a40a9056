"""Sockets of another user that are named like those of jobs. Started by root, it becomes that user.

MODE: silent (never answers), drip (one byte each half second), forged (a job whose id is a path and whose texts
have escapes), or many (3000 silent ones). Says READY when they listen, and goes on until it is ended.
"""

import json
import os
import resource
import socket
import sys
import threading
import time

mode = sys.argv[1]
PREFIX = "\0ranklaunch-stacks-"


def listening(pid, number):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    one.bind(f"{PREFIX}{pid}-{number:016x}")
    one.listen(8)
    return one


def answer(peer):
    escape = "\x1b]0;OWNED\x07"
    try:
        if mode == "drip":
            while True:
                peer.sendall(b" ")
                time.sleep(0.5)
        if mode == "forged":
            asked = json.loads(peer.makefile().readline())["ask"]
            file = {"name": "rank-0.log", "text": escape, "read_ms": 1}
            replies = {
                "job": {"run_id": sys.argv[2], "attempt": 0, "node": 0, "nodes": 1, "ranks": [0]},
                "stacks": {"nodes": [], "unanswered": [], "reaches_all": True, "took_ms": 1},
                "dump": {"nodes": [{"node": 0, "files": [file], "missing": []}], "unanswered": []},
            }
            if asked in replies:
                peer.sendall(json.dumps({"answer": asked, **replies[asked]}).encode() + b"\n")
        time.sleep(600)
    except OSError:
        pass


os.setgroups([])
os.setgid(65534)
os.setuid(65534)
if mode == "many":
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
# A name may claim the pid of anybody: here that of init.
sockets = [listening(1, number) for number in range(3000 if mode == "many" else 1)]
print("READY", flush=True)
if mode == "many":
    time.sleep(600)
while True:
    peer, _ = sockets[0].accept()
    threading.Thread(target=answer, args=(peer,), daemon=True).start()
