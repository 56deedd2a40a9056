"""Containers of podman: one node, and two on a network of podman's own."""

import os
import re
import resource
import shutil
import subprocess

import image
from case import RANK, SECONDS, LeftOut, case, expect
from nodes import wait_for

REPOSITORY = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
PAGE = os.path.join(REPOSITORY, "docs", "platforms", "docker.md")
BLOCK = re.compile(r"^<!-- test -->\n```sh\n(podman .*?)^```$", re.MULTILINE | re.DOTALL)
PROFILE = '[job]\nengine = "direct"\ndevice = "cpu"\npython = "/usr/local/bin/python3"\n'
# Containers have the names of the page, so that only one case has them at a time.
AT_ONCE = 1
# Output of podman and its runtime before an error, which is no error itself.
NOISE = "failed to connect to syslog"


class Podman:
    """Podman with a store, networks and settings of its own, as far as this machine lets it start."""

    found = None
    reason = None

    def __init__(self, bench):
        self.folder = os.path.join(bench.work, "podman")
        os.makedirs(os.path.join(self.folder, "networks"))
        self.environment = {"CONTAINERS_CONF": os.path.join(self.folder, "containers.conf"),
                            "CONTAINERS_STORAGE_CONF": os.path.join(self.folder, "storage.conf")}
        with open(self.environment["CONTAINERS_STORAGE_CONF"], "w") as file:
            file.write(f'[storage]\ndriver = "overlay"\ngraphroot = "{self.folder}/store"\n'
                       f'runroot = "{self.folder}/run"\n')
        self.configure("")
        os.environ.update(self.environment)
        self.image = image.imported(bench.work, bench.executable, "podman")
        self.words = []
        self.settle()

    def configure(self, containers, engine=""):
        with open(self.environment["CONTAINERS_CONF"], "w") as file:
            file.write(f'[containers]\n{containers}\n[engine]\n{engine}\n[network]\n'
                       f'network_config_dir = "{self.folder}/networks"\n')

    def release(self):
        """The store is a mount, which only the end of the machine would remove."""
        subprocess.run(["umount", os.path.join(self.folder, "store", "overlay")], capture_output=True)

    def settle(self):
        """The settings of docs/platforms/docker.md, each only where podman does not start without it."""
        # Without the right to raise limits: half of what this process may have, and of podman's own 32768.
        limits = [f'"{name}={least // 2}:{least // 2}"' for name, least in
                  (("nofile", resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
                   ("nproc", min(resource.getrlimit(resource.RLIMIT_NPROC)[1], 32768))) if least > 0]
        limited = f"default_ulimits = [{', '.join(limits)}]"
        for containers, engine in (("", ""), (limited, ""), (limited, 'runtime = "runc"')):
            self.configure(containers, engine)
            tried = subprocess.run(["podman", "run", "--rm", "--network", "none", self.image, "ranklaunch",
                                    "--version"], capture_output=True, text=True)
            if tried.returncode == 0:
                print(f"podman starts with: {containers} {engine}".rstrip(": "), flush=True)
                return
            said = [line for line in tried.stderr.splitlines() if NOISE not in line]
            self.words.append(said[-1] if said else f"it ended with {tried.returncode}")
            print(f"podman: {self.words[-1]}", flush=True)
        self.release()
        raise LeftOut(f"podman starts no container here: {self.words[-1]}")


def podman(bench):
    """Sets a bench up as a user's folder."""
    if not shutil.which("podman"):
        raise LeftOut("podman is not installed")
    if os.getuid():
        raise LeftOut("rootless podman needs subordinate ids, which this test does not hand out")
    if Podman.reason:
        raise LeftOut(Podman.reason)
    if not Podman.found:
        try:
            Podman.found = Podman(bench)
        except LeftOut as reason:
            Podman.reason = str(reason)
            raise
    shutil.copy(RANK, bench.path("train.py"))
    bench.write("ranklaunch.toml", PROFILE)
    bench.environment = {name: value for name, value in bench.environment.items() if not name.startswith("RANKLAUNCH_")}
    bench.environment.update(Podman.found.environment, IMAGE=Podman.found.image)


def clean():
    for command in (["rm", "-f", "-a", "-t", "0"], ["network", "prune", "-f"]):
        subprocess.run(["podman", *command], capture_output=True)


def finish():
    if Podman.found:
        clean()
        subprocess.run(["podman", "rmi", "-f", "-a"], capture_output=True)
        Podman.found.release()


def start(bench, name, *words, options=(), network="none"):
    bench.outputs.append(f"start-{name}.txt")
    with open(bench.path(bench.outputs[-1]), "w") as output:
        ended = subprocess.run(
            ["podman", "run", "--detach", "--name", name, "--hostname", name, "--network", network, "--shm-size", "1g",
             "--stop-timeout", "60", "--volume", f"{bench.folder}:/workspace", "--workdir", "/workspace", *options,
             Podman.found.image, "ranklaunch", "run", *words],
            env=bench.environment, stdout=output, stderr=subprocess.STDOUT, timeout=SECONDS)
    return ended.returncode


def ended(bench, *names):
    """The exit codes of containers that end, with their output in the bench."""
    codes = []
    for name in names:
        codes.append(bench.run("podman", "wait", name))
        codes[-1] = int(bench.read(bench.outputs[-1]).split()[-1]) if codes[-1] == 0 else f"podman wait: {codes[-1]}"
        bench.run("podman", "logs", name)
    clean()
    expect(not bench.left(), f"processes are left: {bench.left()}")
    return codes


def two(bench, *words):
    """Two containers on a network, or why podman has none."""
    podman(bench)
    if bench.run("podman", "network", "create", "job"):
        raise LeftOut(f"no network: {bench.text().splitlines()[-1]}")
    for name in ("node0", "node1"):
        if start(bench, name, "--nodes", "node0,node1", "--", "train.py", *words, network="job"):
            said = bench.text().splitlines()[-1]
            clean()
            raise LeftOut(f"no container starts on a network: {said}")


@case("podman", "one node, without a network", 0)
def one(bench):
    podman(bench)
    expect(start(bench, "alone", "--nproc-per-node", "2", "--", "train.py") == 0, "podman run failed")
    found = ended(bench, "alone")
    bench.says("rank 0 of 2 on alone", "rank 1 of 2 on alone", "done: all ranks ended with code 0")
    return found[0]


@case("podman", "a failing rank gives its code", 7)
def fails(bench):
    podman(bench)
    start(bench, "alone", "--nproc-per-node", "2", "--", "train.py", "fail", "1", "7")
    found = ended(bench, "alone")
    bench.says("exited with code 7")
    return found[0]


@case("podman", "podman stop is one TERM to every rank, with time to save", 143)
def stopped(bench):
    podman(bench)
    start(bench, "alone", "--nproc-per-node", "2", "--", "train.py", "save-for", "2", "never")
    bench.wait("ready-0", "ready-1")
    expect(bench.run("podman", "stop", "alone") == 0, "podman stop failed")
    saved = [bench.read(f"saved-{rank}") for rank in range(2)]
    expect(saved == ["\n", "\n"], f"each rank saved once: {saved}")
    return ended(bench, "alone")[0]


@case("podman", "with --init ranklaunch is not the first process, and stops as well", 143)
def with_init(bench):
    podman(bench)
    if start(bench, "alone", "--", "train.py", "save-for", "1", "never", options=["--init"]):
        said = bench.text().splitlines()[-1]
        clean()
        raise LeftOut(f"no --init: {said}")
    bench.wait("ready-0")
    bench.run("podman", "stop", "alone")
    expect(bench.read("saved-0") == "\n", "the rank saved once")
    return ended(bench, "alone")[0]


@case("podman", "two nodes find each other by podman's names", 0)
def nodes(bench):
    two(bench)
    found = ended(bench, "node0", "node1")
    bench.says("rank 0 of 2 on node0", "rank 1 of 2 on node1")
    return found[0] if len(set(found)) == 1 else found


@case("podman", "a node that is killed is named by the other", 143)
def killed(bench):
    two(bench, "until", "never")
    bench.wait("ready-0", "ready-1")
    bench.run("podman", "kill", "--signal", "KILL", "node1")
    found = ended(bench, "node0", "node1")
    bench.says("node 1 (node1)")
    expect(found[1] == 137, f"exit codes: {found}")
    return found[0]


@case("podman", "the commands of docs/platforms/docker.md", 0)
def page(bench):
    two(bench)
    ended(bench, "node0", "node1")
    with open(PAGE) as file:
        found = BLOCK.findall(file.read())
    expect(len(found) == 1, f"{len(found)} blocks of podman")
    code = bench.run("bash", "-ec", found[0])
    wait_for(lambda: not bench.left(), 20, "the end of all")
    bench.says("done: all ranks ended with code 0")
    return code
