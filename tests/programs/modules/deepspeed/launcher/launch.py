"""Stands in for DeepSpeed's launcher: its ranks stay in its session, and it ends them one by one."""

import argparse
import base64
import json
import os
import signal
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--node_rank", type=int)
parser.add_argument("--master_addr")
parser.add_argument("--master_port")
parser.add_argument("--world_info")
parser.add_argument("--no_python", action="store_true")
parser.add_argument("--no_local_rank", action="store_true")
parser.add_argument("program", nargs=argparse.REMAINDER)
said = parser.parse_args()
world = json.loads(base64.urlsafe_b64decode(said.world_info))
sizes = [len(devices) for devices in world.values()]
first, local = sum(sizes[:said.node_rank]), sizes[said.node_rank]
ranks = []


def end(number, _frame):
    for rank in ranks:
        rank.terminate()
        try:
            rank.wait(30)
        except subprocess.TimeoutExpired:
            rank.kill()
    sys.exit(128 + number)


for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, end)
for k in range(local):
    own = {"RANK": first + k, "LOCAL_RANK": k, "WORLD_SIZE": sum(sizes), "LOCAL_SIZE": local,
           "MASTER_ADDR": said.master_addr, "MASTER_PORT": said.master_port}
    own = {name: str(value) for name, value in own.items()}
    ranks.append(subprocess.Popen(said.program, env={**os.environ, **own}))
while any(rank.poll() is None for rank in ranks):
    if any(rank.poll() for rank in ranks):
        end(signal.SIGTERM, None)
    time.sleep(0.1)
sys.exit(max(abs(rank.returncode) for rank in ranks))
