"""A job on a real GPU is watched, and what earlier jobs left on it is ended.

    tests/gpu/watched.py RANKLAUNCH PYTHON FOLDER [nccl|gloo]

What /metrics says of a GPU that works is compared with nvidia-smi; ps, stacks and dump are asked meanwhile. Then a
torchrun is killed whose rank stays on the GPU: `clean` names it, `check` finds the memory, and the next run ends it.
The control is a process that holds the GPU and is nobody's leftover. With gloo all but the figures of the GPU runs
anywhere, so that the script itself can be tried without one. Ends with 1 after a failure.
"""

import atexit
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

ranklaunch, python, out = map(os.path.abspath, sys.argv[1:4])
backend = sys.argv[4] if len(sys.argv) > 4 else "nccl"
real = backend == "nccl"
os.makedirs(out, exist_ok=True)
burn = os.path.join(os.path.dirname(os.path.abspath(__file__)), "burn.py")
failures = []


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def check(passes, what):
    print("ok:" if passes else "FAILED:", what, flush=True)
    if not passes:
        failures.append(what)


def ask(name, *arguments, code=0):
    """What ranklaunch prints, which is kept as FOLDER/NAME."""
    done = subprocess.run([ranklaunch, *arguments, "--lang", "en"], cwd=out, timeout=120, text=True, capture_output=True)
    with open(os.path.join(out, name), "w") as file:
        file.write(done.stdout + done.stderr)
    if code is not None:
        check(done.returncode == code, "%s: code %s" % (name, done.returncode))
    return done.stdout + done.stderr


def smi(field, of="gpu"):
    query = ["nvidia-smi", "-i", "0", "--format=csv,noheader,nounits", "--query-%s=%s" % (of, field)]
    return subprocess.run(query, text=True, capture_output=True, timeout=60).stdout.strip()


def metrics():
    with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=5) as page:
        text = page.read().decode()
    return {name: float(value) for name, value in re.findall(r"^ranklaunch_gpu_(\w+)\{[^}]*\} (\S+)$", text, re.M)}


def until(what, attempt, seconds=90):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = attempt()
        if found:
            return found
        time.sleep(0.2)
    sys.exit("FAILED: %s: not within %d s" % (what, seconds))


def alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def start(name, arguments, **more):
    """A process in a session of its own, once its rank has reduced: it and the pid of the rank."""
    path = os.path.join(out, name)
    with open(path, "w") as file:
        process = subprocess.Popen(
            arguments, cwd=out, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, **more
        )
    atexit.register(lambda: process.poll() is None and process.terminate())

    def ready():
        if process.poll() is not None:
            sys.exit("FAILED: %s ended with %s:\n%s" % (name, process.returncode, open(path).read()[-4000:]))
        return re.search(r"READY (\d+)", open(path).read())

    return process, int(until(name, ready).group(1))


run = ["run", "--device", "gpu" if real else "cpu", "--nproc-per-node", "1", "--python", python]
direct = [*run, "--engine", "direct", "--log-dir", os.path.join(out, "logs")]

# A job that works.
port = free_port()
job, pid = start("job.txt", [ranklaunch, *direct, "--http", str(port), "--hang-after", "600s", "--", burn, backend, "25" if real else "6"])
if real:
    until("a GPU at work", lambda: metrics().get("utilization_ratio", 0) >= 0.5)
    began, before = time.monotonic(), metrics()
    watts = []
    while time.monotonic() < began + 6:
        watts.append(float(smi("power.draw")))
        time.sleep(0.5)
    seconds, now = time.monotonic() - began, metrics()
    print("/metrics:", now)
    print("nvidia-smi:", smi("utilization.gpu,memory.used,memory.total,power.draw,clocks.sm,temperature.gpu"))
    check(float(smi("utilization.gpu")) >= 50, "nvidia-smi sees it at work too")
    used = float(smi("memory.used")) * 2**20
    check(abs(now["memory_used_bytes"] - used) < 2**30, "memory in use: %d and %d" % (now["memory_used_bytes"], used))
    spent = (now["energy_joules_total"] - before["energy_joules_total"]) / seconds
    mean = sum(watts) / len(watts)
    check(0.7 < spent / mean < 1.3, "%.0f W by the counter of energy, %.0f W by nvidia-smi" % (spent, mean))
    check(0.5 < now["power_watts"] / mean < 1.5, "power: %.0f W" % now["power_watts"])
run_id = os.path.basename(os.readlink(os.path.join(out, "logs/latest")))
said = ask("ps.txt", "ps")
check(re.search(run_id + r"[^\n]*\n(?:[^\n]+\n)*?[^\n]* running ", said), "ps shows that it runs")
said = ask("stacks.txt", "stacks", run_id)
check(re.search(r"burn\.py:\d", said), "stacks shows a line of it")
ask("dump.txt", "dump", run_id, "--output", os.path.join(out, "dump"))
if real:
    path = next((os.path.join(out, "dump/node-0", name) for name in ("ras.json", "ras.txt")
                 if os.path.exists(os.path.join(out, "dump/node-0", name))), None)
    said = open(path).read() if path else ""
    check(said, "NCCL's RAS answered: %s, %d bytes" % (path, len(said)))
    if path and path.endswith("json"):
        pids = re.findall(r'"pid": *(\d+)', said)
        check(str(pid) in pids, "RAS names the rank's pid")
check(job.wait(120) == 0, "the job ends with 0")
report = ask("report.txt", "report", os.path.join(out, "logs"))
print(report)

# A rank whose torchrun was killed.
elastic = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
torchrun, left = start("torchrun.txt", [*elastic, burn, backend, "600"])
torchrun.kill()
torchrun.wait()
check(alive(left), "the rank outlives its torchrun")
said = ask("clean.txt", "clean", "--dry-run", "--", burn, code=None)
check(str(left) in said, "clean names it")
if real:
    said = ask("busy.txt", "check", code=None)
    check("gpu.busy" in said, "check finds the memory in use")
began = time.monotonic()
next_job, _ = start("next.txt", [ranklaunch, *direct, "--", burn, backend, "1"])
check(next_job.wait(120) == 0, "the next run ends with 0, %.1f s with the rank's end" % (time.monotonic() - began))
check(not alive(left), "it has ended the rank")
if real:
    check(str(left) not in smi("pid", "compute-apps"), "the GPU is free of it")

# The control.
free, held = start("free.txt", [python, burn, backend, "60"], env={
    **os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})
beside, _ = start("beside.txt", [ranklaunch, *direct, "--", burn, backend, "1"])
check(beside.wait(120) == 0, "a run beside somebody's process ends with 0")
check(alive(held), "somebody's process lives")
with open(os.path.join(out, "beside.txt")) as file:
    check(str(held) in file.read(), "and is named")
os.kill(held, signal.SIGKILL)
free.wait()
print(len(failures), "failed")
sys.exit(bool(failures))
