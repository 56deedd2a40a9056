"""Stands in for DeepSpeed's launcher: its ranks stay in its session, and it ends them one by one."""

import base64
import json
import os
import signal
import subprocess
import sys
import time

at = sys.argv.index("--no_python")
flags = dict(zip(sys.argv[1:at], sys.argv[2:at]))
world = json.loads(base64.urlsafe_b64decode(flags["--world_info"]))
sizes = [len(devices) for devices in world.values()]
node = int(flags["--node_rank"])
first, local = sum(sizes[:node]), sizes[node]
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
           "MASTER_ADDR": flags["--master_addr"], "MASTER_PORT": flags["--master_port"]}
    own = {name: str(value) for name, value in own.items()}
    ranks.append(subprocess.Popen(sys.argv[at + 1:], env={**os.environ, **own}))
while any(rank.poll() is None for rank in ranks):
    if any(rank.poll() for rank in ranks):
        end(signal.SIGTERM, None)
    time.sleep(0.1)
sys.exit(max(abs(rank.returncode) for rank in ranks))
