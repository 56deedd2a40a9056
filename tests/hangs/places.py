"""Where the nodes of a job run: on this machine, on two hosts of namespaces, in two containers."""

import contextlib
import itertools
import os
import queue
import shutil
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
PLATFORMS = os.path.join(os.path.dirname(HERE), "platforms")
sys.path.append(os.path.join(PLATFORMS, "hosts"))

from case import terminate  # noqa: E402
from nodes import Hosts, run, wait_for  # noqa: E402

GRACE = 3
# Links into /usr on most systems, folders on others.
LIBRARIES = ("bin", "sbin", "lib", "lib32", "lib64")
numbers = itertools.count(1)


class Nodes:
    """The launchers of a job, one per node, and what was made for them."""

    def __init__(self):
        self.launchers, self.beside, self.clean = [], [], contextlib.ExitStack()

    def running(self):
        return any(launcher.poll() is None for launcher in self.launchers)

    def codes(self):
        return [launcher.poll() for launcher in self.launchers]

    def stop(self):
        """Ends the job. What holds its ranks in the kernel goes first."""
        for server in self.beside:
            terminate(server, signal.SIGKILL)
            server.wait()
        for launcher in self.launchers:
            self.terminate(launcher)
        for launcher in self.launchers:
            try:
                launcher.wait(4 * GRACE + 20)
            except subprocess.TimeoutExpired:
                terminate(launcher, signal.SIGKILL)
                launcher.wait()
        self.clean.close()

    def terminate(self, launcher):
        if launcher.poll() is None:
            terminate(launcher)


class Here:
    """One node, on this machine."""

    name, nodes = "one node", 1

    def __init__(self, work):
        self.work = work

    def can_mount(self):
        return os.geteuid() == 0 and os.path.exists("/dev/fuse")

    def can_limit(self):
        """A control group of version 1 can be made for a rank."""
        return os.geteuid() == 0 and os.access("/sys/fs/cgroup/memory", os.W_OK)

    def entering(self, job, node, folder="/"):
        """The beginning of a command line that runs on a node."""
        return []

    def address(self, job, node):
        return "127.0.0.1"

    def port(self):
        """Of a master. The lists of the jobs side by side do not meet, nor the kernel's own choice."""
        return 20_000 + next(numbers) % 8_000

    def start(self, job, mount, link=None):
        """Starts the launchers of a job; their output goes to its folder. `mount`: how a file system of its own is."""
        made = Nodes()
        try:
            if mount:
                self.mount(job, mount, made)
            if link:
                self.cable(job, made)
            if job.kind.asks("needs") == "memory group":
                group = job.spec["group"] = f"/sys/fs/cgroup/memory/{os.environ['HANGS_LABEL']}-{next(numbers)}"
                os.mkdir(group)
                made.clean.callback(subprocess.run, ["rmdir", group], capture_output=True)
            port = self.port()
            for node in range(self.nodes):
                words = job.words(node, self.nodes, self.address(job, 0), port)
                with open(os.path.join(job.folder, f"node-{node}.txt"), "w") as output:
                    made.launchers.append(subprocess.Popen(
                        [*self.entering(job, node, job.folder), *words], cwd=job.folder, env=job.environment(), stdin=subprocess.DEVNULL,
                        stdout=output, stderr=subprocess.STDOUT))
        except BaseException:
            made.stop()
            raise
        return made

    def mount(self, job, speed, made):
        os.mkdir(job.mount)
        for node in range(self.nodes):
            words = [*self.entering(job, node), sys.executable, os.path.join(HERE, "fuse.py"), job.mount, speed]
            server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
            made.beside.append(server)
            if server.stdout.readline() != "mounted\n":
                raise RuntimeError(f"{job.mount} is not mounted")
            made.clean.callback(subprocess.run, [*self.entering(job, node), "umount", "-l", job.mount], capture_output=True)

    @contextlib.contextmanager
    def suspended(self, job, by_group):
        """Nothing of the job runs: its processes are stopped, or a control group freezes them where one can."""
        pids = tree([launcher.pid for launcher in job.nodes.launchers])
        group = "/sys/fs/cgroup/freezer"
        if by_group and os.geteuid() == 0 and os.access(group, os.W_OK):
            own = f"{group}/{os.environ['HANGS_LABEL']}-{next(numbers)}"
            os.mkdir(own)
            try:
                for pid in pids:
                    write(f"{own}/cgroup.procs", pid)
                write(f"{own}/freezer.state", "FROZEN")
                yield
            finally:
                write(f"{own}/freezer.state", "THAWED")
                for pid in pids:
                    write(f"{group}/cgroup.procs", pid)
                # Processes started since end with the suite.
                with contextlib.suppress(OSError):
                    os.rmdir(own)
            return
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def stacks(self, job, node):
        """What `ranklaunch stacks` prints as JSON."""
        said = subprocess.run([*self.entering(job, node), job.executable, "stacks", "--node", str(node), "--format", "json",
                               job.run_id()], capture_output=True, text=True, timeout=60)
        return said.stdout


class Namespaces(Here):
    """Two nodes, each with a network, a host name and processes of its own; the bridge is for control."""

    name, nodes = "two hosts", 2

    def __init__(self, work, at_once):
        super().__init__(work)
        self.hosts = Hosts(work, 2 * at_once)
        # Jobs side by side have hosts of their own: the traffic of one is no sign of life of another.
        self.free = queue.SimpleQueue()
        for first in range(0, 2 * at_once, 2):
            self.free.put(first)

    def start(self, job, mount, link=None):
        job.first = self.free.get()
        try:
            made = super().start(job, mount, link)
        except BaseException:
            self.free.put(job.first)
            raise
        # Given back last, when nothing of the job is left on them.
        stack = contextlib.ExitStack()
        stack.callback(self.free.put, job.first)
        stack.push(made.clean.pop_all())
        made.clean = stack
        return made

    def entering(self, job, node, folder="/"):
        return self.hosts.entering(self.hosts.names[job.first + node], folder)

    def address(self, job, node):
        return f"10.77.0.{job.first + node + 1}"

    def cable(self, job, made):
        """A link between the two hosts for the collectives of this job alone."""
        job.link = f"data{next(numbers)}"
        first, second = (self.hosts.inside(self.hosts.names[job.first + node]) for node in range(2))
        run("ip", "link", "add", job.link, "netns", first, "type", "veth", "peer", "name", job.link, "netns", second)
        made.clean.callback(subprocess.run, [*self.entering(job, 0), "ip", "link", "delete", job.link], capture_output=True)
        job.network = int(job.link.removeprefix("data")) % 250
        for node in range(2):
            run(*self.entering(job, node), "ip", "address", "add", f"10.78.{job.network}.{node + 1}/24", "dev", job.link)
            run(*self.entering(job, node), "ip", "link", "set", job.link, "up")

    def can_limit(self):
        return False

    def cut(self, job, node, how):
        """Nothing passes the link any more."""
        inside = self.entering(job, node)
        if how == "down":
            run(*inside, "ip", "link", "set", job.link, "down")
        else:
            # Packets of the node go to a card that does not exist.
            peer = f"10.78.{job.network}.{2 - node}"
            run(*inside, "ip", "neighbor", "replace", peer, "lladdr", "02:00:00:00:00:99", "dev", job.link, "nud",
                "permanent")

    def close(self):
        self.hosts.stop()


class Containers(Here):
    """Two containers of Docker as it is, of an ordinary user, with no capability added."""

    name, nodes = "two containers", 2

    def __init__(self, work, python):
        super().__init__(work)
        self.label = os.environ["HANGS_LABEL"]
        self.folders = [os.path.join(above, name) for above in ("/", "/usr") for name in LIBRARIES]
        self.folders = [path for path in self.folders if os.path.isdir(path) and not os.path.islink(path)]
        ask = "import sys; print(sys.prefix); print(sys.base_prefix)"
        prefixes = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.split()
        self.folders += sorted({prefix for prefix in prefixes if prefix != "/usr"})
        self.image()
        run("docker", "network", "create", self.label, capture_output=True)

    def image(self):
        root = os.path.join(self.work, "image")
        for name in ("usr", "etc", "root"):
            os.makedirs(os.path.join(root, name))
        os.mkdir(os.path.join(root, "tmp"))
        os.chmod(os.path.join(root, "tmp"), 0o1777)
        for name in LIBRARIES:
            if os.path.islink(f"/{name}"):
                os.symlink(os.readlink(f"/{name}"), os.path.join(root, name))
        tar = os.path.join(self.work, "image.tar")
        run("tar", "-C", root, "-cf", tar, ".")
        run("docker", "import", tar, self.label, capture_output=True)
        shutil.rmtree(root)

    def can_mount(self):
        return False

    def can_limit(self):
        return False

    @contextlib.contextmanager
    def suspended(self, job, by_group):
        run("docker", "pause", *job.nodes.names, capture_output=True)
        try:
            yield
        finally:
            run("docker", "unpause", *job.nodes.names, capture_output=True)

    def start(self, job, mount, link=None):
        made, port, alias = Boxes(), self.port(), f"hangs{next(numbers)}"
        # The ordinary user writes into it.
        os.chmod(job.folder, 0o777)
        for node in range(2):
            name = f"{self.label}-{alias}-{node}"
            options = ["--name", name, "--network", self.label, "--network-alias", f"{alias}-{node}", "--user",
                       "1000:1000", "--shm-size", "1g", "-w", job.folder, "-v", f"{job.folder}:{job.folder}",
                       "-v", f"{job.executable}:{job.executable}:ro"]
            for folder in self.folders:
                options += ["-v", f"{folder}:{folder}:ro"]
            for name_, value in job.variables().items():
                options += ["-e", f"{name_}={value}"]
            words = ["docker", "run", *options, self.label, *job.words(node, 2, f"{alias}-0", port)]
            made.names.append(name)
            made.clean.callback(subprocess.run, ["docker", "rm", "-f", "-v", name], capture_output=True)
            with open(os.path.join(job.folder, f"node-{node}.txt"), "w") as output:
                made.launchers.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output,
                                                       stderr=subprocess.STDOUT))
        return made

    def stacks(self, job, node):
        said = subprocess.run(["docker", "exec", job.nodes.names[node], job.executable, "stacks", "--format", "json"],
                              capture_output=True, text=True, timeout=60)
        return said.stdout

    def close(self):
        for words in (["network", "rm"], ["rmi", "-f"]):
            subprocess.run(["docker", *words, self.label], capture_output=True)


class Boxes(Nodes):
    def __init__(self):
        super().__init__()
        self.names = []

    def stop(self):
        subprocess.run(["docker", "kill", "--signal", "TERM", *self.names], capture_output=True)
        super().stop()

    def terminate(self, launcher):
        """The client of Docker ends with its container."""


def write(path, value):
    """Writes to a file of the kernel. A process may have ended."""
    with contextlib.suppress(ProcessLookupError), open(path, "w") as file:
        file.write(str(value))


def tree(roots):
    """These processes and all below them, those above first."""
    children = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            parent = int(file.read().rsplit(")", 1)[1].split()[1])
            children.setdefault(parent, []).append(int(name))
    found = list(roots)
    for pid in found:
        found += children.get(pid, [])
    return found


def has_docker():
    try:
        return subprocess.run(["docker", "version"], capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
