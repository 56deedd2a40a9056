"""packaging/compose as it stands: two services that are the two nodes of a job."""

import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import threading

import image
from case import RANK, SECONDS, LeftOut, case, expect
from nodes import wait_for

REPOSITORY = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
PAGE = os.path.join(REPOSITORY, "docs", "platforms", "docker")
BLOCK = re.compile(r"^<!-- test(?:: (\d+))? -->\n```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TORCH = os.environ.get("RANKLAUNCH_TEST_PYTHON", "")
# A machine without GPUs, and ranks without torch: all that differs from a user's job.
PROFILE = '[job]\nengine = "direct"\ndevice = "cpu"\npython = "/usr/local/bin/python3"\n'
AT_ONCE = 3
IMAGES = []
BENCHES = []
LOCK = threading.Lock()
PROJECTS = itertools.count()


@functools.cache
def compose():
    """The command of Compose, or why there is none."""
    engine = subprocess.run(["docker", "version"], capture_output=True, text=True)
    if engine.returncode:
        raise LeftOut(f"no Docker engine: {engine.stderr.strip()}")
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) and not subprocess.run([*command, "version"], capture_output=True).returncode:
            return command
    raise LeftOut("neither docker compose nor docker-compose is installed")


def finish():
    for bench in [*BENCHES]:
        down(bench)
    for name in IMAGES:
        subprocess.run(["docker", "rmi", "-f", name], capture_output=True)


def prepare(bench, profile=PROFILE):
    """The folder of a user: the example beside a script, and a program `docker` that knows `compose`."""
    command = compose()
    with LOCK:
        if not IMAGES:
            IMAGES.append(image.imported(bench.work, bench.executable, "docker"))
        BENCHES.append(bench)
        project = f"ranklaunch-{os.getpid()}-{next(PROJECTS)}"
    for name in ("compose.yaml", "gpus.yaml"):
        shutil.copy(os.path.join(REPOSITORY, "packaging", "compose", name), bench.folder)
    shutil.copy(RANK, bench.path("train.py"))
    bench.write("ranklaunch.toml", profile)
    bench.environment = {name: value for name, value in bench.environment.items() if not name.startswith("RANKLAUNCH_")}
    bench.environment.update(IMAGE=IMAGES[0], COMPOSE_PROJECT_NAME=project)
    if command == ["docker-compose"]:
        # The page says `docker compose`. This machine has the older name of it.
        os.makedirs(bench.path("bin"))
        real = shutil.which("docker")
        bench.write("bin/docker", "#!/bin/sh\nif [ \"$1\" = compose ]; then shift; exec docker-compose \"$@\"; fi\n"
                                  f"exec {real} \"$@\"\n")
        os.chmod(bench.path("bin/docker"), 0o755)
        bench.environment["PATH"] = f"{bench.path('bin')}:{bench.environment['PATH']}"


def down(bench):
    subprocess.run([*compose(), "down", "--timeout", "0", "--volumes"], cwd=bench.folder, env=bench.environment,
                   capture_output=True)
    if bench in BENCHES:
        BENCHES.remove(bench)


def run(bench, *words, **environment):
    return bench.run(*compose(), *words, **environment)


def codes(bench):
    """The exit code of each service, once both have ended."""

    def ended():
        asked = subprocess.run([*compose(), "ps", "-q"] + (["-a"] if compose()[0] == "docker" else []),
                               cwd=bench.folder, env=bench.environment, capture_output=True, text=True)
        states = json.loads(subprocess.run(["docker", "inspect", *asked.stdout.split()], capture_output=True,
                                           text=True).stdout)
        named = {one["Config"]["Labels"]["com.docker.compose.service"]: one["State"] for one in states}
        done = not any(state["Running"] for state in named.values())
        return done and {name: state["ExitCode"] for name, state in sorted(named.items())}

    return wait_for(ended, 90, "the end of both services")


def nothing_is_left(bench):
    """The containers were all that Compose started: their processes end with them, and `down` removes them."""
    project = bench.environment["COMPOSE_PROJECT_NAME"]
    down(bench)
    for what in (["ps", "-aq"], ["network", "ls", "-q"], ["volume", "ls", "-q"]):
        left = subprocess.run(["docker", *what, "--filter", f"label=com.docker.compose.project={project}"],
                              capture_output=True, text=True).stdout
        expect(not left, f"docker {' '.join(what)} still has {left}")


@case("compose", "up: both services are nodes of one job", 0)
def succeeds(bench):
    prepare(bench)
    code = run(bench, "up", "--exit-code-from", "node0")
    bench.says("rank 0 of 2 on node0", "rank 1 of 2 on node1")
    bench.count("done: all ranks ended with code 0", 2)
    found = codes(bench)
    expect(found == {"node0": 0, "node1": 0}, f"exit codes: {found}")
    nothing_is_left(bench)
    return code


@case("compose", "a failing rank on node 1 ends both services with its cause", 7)
def fails(bench):
    prepare(bench)
    code = run(bench, "up", "--exit-code-from", "node1", ARGS="fail 1 7")
    found = codes(bench)
    expect(found == {"node0": 143, "node1": 7}, f"exit codes: {found}")
    bench.count("rank 1 on node 1 (node1) exited with code 7", 2)
    nothing_is_left(bench)
    return code


@case("compose", "stop is one TERM to every rank, with time to save", 143)
def stopped(bench):
    prepare(bench)
    run(bench, "up", "-d", ARGS="save-for 3 never")
    bench.wait("ready-0", "ready-1")
    expect(run(bench, "stop") == 0, "docker compose stop failed")
    saved = [bench.read(f"saved-{rank}") for rank in range(2)]
    expect(saved == ["\n", "\n"], f"each rank saved once: {saved}")
    found = codes(bench)
    nothing_is_left(bench)
    return found["node0"] if len(set(found.values())) == 1 else found


@case("compose", "a rank that does not end is killed by its grace, not by Docker", 143)
def deaf(bench):
    prepare(bench)
    # The example gives a minute, which is long for a test.
    text = bench.read("compose.yaml")
    bench.write("compose.yaml", text.replace("RANKLAUNCH_GRACE: 55s", "RANKLAUNCH_GRACE: 2s"))
    expect(bench.read("compose.yaml") != text, "compose.yaml sets no grace period")
    run(bench, "up", "-d", ARGS="save-for 600 never")
    bench.wait("ready-0", "ready-1")
    run(bench, "stop")
    run(bench, "logs")
    bench.says("the grace period is over: sending SIGKILL")
    expect(not bench.read("saved-0") and not bench.read("saved-1"), "a rank saved in no time")
    found = codes(bench)
    nothing_is_left(bench)
    return found["node0"] if len(set(found.values())) == 1 else found


@case("compose", "a service that is killed is named by the other", 143)
def killed(bench):
    prepare(bench)
    run(bench, "up", "-d", ARGS="until never")
    bench.wait("ready-0", "ready-1")
    run(bench, "kill", "-s", "SIGKILL", "node1")
    found = codes(bench)
    run(bench, "logs")
    bench.says("node 1 (node1)")
    expect(found["node1"] == 137, f"exit codes: {found}")
    nothing_is_left(bench)
    return found["node0"]


@case("compose", "one service without the other waits, and names what it waits for", 88)
def one_of_two(bench):
    prepare(bench, PROFILE + '[launch]\nwait_timeout = "4s"\n')
    code = run(bench, "up", "--exit-code-from", "node0", "--no-deps", "node0")
    bench.says("node 1")
    nothing_is_left(bench)
    return code


@case("compose", "torchrun and gloo in both services", 0, seconds=30)
def torchrun(bench):
    if not TORCH:
        raise LeftOut("no python with torch: RANKLAUNCH_TEST_PYTHON")
    prepare(bench, PROFILE.replace("direct", "torchrun").replace("/usr/local/bin/python3", TORCH))
    asked = subprocess.run([TORCH, "-c", "import sys; print(sys.prefix, sys.base_prefix)"], capture_output=True,
                           text=True).stdout.split()
    folders = [*dict.fromkeys(asked), "/usr/lib", "/lib", "/lib64"]
    services = "".join(f"  {name}:\n    volumes:\n" + "".join(f"      - {one}:{one}:ro\n" for one in folders)
                       for name in ("node0", "node1"))
    bench.write("torch.yaml", f"services:\n{services}")
    code = run(bench, "-f", "compose.yaml", "-f", "torch.yaml", "up", "--exit-code-from", "node0")
    bench.says("rank 0 of 2 on node0", "rank 1 of 2 on node1")
    nothing_is_left(bench)
    return code


@case("compose", "gpus.yaml is understood, and is left out where Docker knows no GPUs", 0)
def gpus(bench):
    prepare(bench)
    files = ["-f", "compose.yaml", "-f", "gpus.yaml"]
    code = run(bench, *files, "config")
    bench.says("device_ids", "nvidia")
    expect(run(bench, "-f", "compose.yaml", "config") == 0, "compose.yaml alone")
    expect("nvidia" not in bench.read(bench.outputs[-1]), "compose.yaml asks for GPUs by itself")
    if not shutil.which("nvidia-smi"):
        expect(run(bench, *files, "up") != 0, "it started on a machine without GPUs")
    nothing_is_left(bench)
    return code


def blocks(language):
    with open(f"{PAGE}{language}.md") as file:
        return BLOCK.findall(file.read())


@case("compose", "docs/platforms/docker.md has the same commands in Chinese", 0)
def same_commands(_bench):
    expect(blocks("") and blocks("") == blocks(".zh-CN"), "docker.zh-CN.md has other commands")
    return 0


def add(number, code, commands):
    first = commands.split("\n")[0]

    @case("compose", f"docs/platforms/docker.md, block {number}: {first[:60]}", int(code or 0))
    def block(bench):
        prepare(bench)
        ended = bench.run("bash", "-ec", commands, seconds=SECONDS)
        bench.says("done: all ranks ended with code 0")
        nothing_is_left(bench)
        return ended


for at, (ends, lines) in enumerate(blocks(""), 1):
    if "podman" not in lines:
        add(at, ends, lines)
