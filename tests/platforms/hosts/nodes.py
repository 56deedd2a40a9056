"""Hosts on one machine: each has a network, a host name, a process table and /etc/hosts of its own.

Runs in the namespaces that start.sh makes: the bridge is inside them, so this machine's own network is
never touched. The caller itself is the login host.
"""

import os
import subprocess
import time

NETWORK = "10.77.0"
LOGIN = "login"

# Commands of a host's shell before it holds the host: the file system stays shared, /etc/hosts and
# /sys are its own. A sysfs shows the interfaces of its own namespace; the control groups come along.
HOLD = """
hostname {name}
mkdir -p {work}/cgroup-{name}
mount --rbind /sys/fs/cgroup {work}/cgroup-{name}
mount -t sysfs sysfs /sys
mount --rbind {work}/cgroup-{name} /sys/fs/cgroup
: > {work}/{name}.up
# A shell as first process would be said not to forward signals. With SIGCHLD ignored, the kernel reaps
# what other processes leave behind.
exec env --ignore-signal=CHLD sleep infinity
"""


def run(*command, **options):
    return subprocess.run(command, check=True, **options)


class Hosts:
    """The hosts n1, n2, … of a bridge."""

    def __init__(self, work, count):
        self.work = work
        self.names = [f"n{index}" for index in range(1, count + 1)]
        self.holders = {}
        self.login()
        for index, name in enumerate(self.names, 1):
            self.start(name, f"{NETWORK}.{index}")

    def login(self):
        hosts = os.path.join(self.work, "hosts")
        with open(hosts, "w") as file:
            file.write(f"127.0.0.1 localhost\n{NETWORK}.254 {LOGIN}\n")
            for index, name in enumerate(self.names, 1):
                # worker-1 is a name that the host itself does not know as its own.
                file.write(f"{NETWORK}.{index} {name} worker-{index}\n")
        run("hostname", LOGIN)
        run("mount", "--bind", hosts, "/etc/hosts")
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "hosts", "type", "bridge")
        run("ip", "address", "add", f"{NETWORK}.254/24", "dev", "hosts")
        run("ip", "link", "set", "hosts", "up")

    def start(self, name, address):
        """A process that holds the namespaces of a host, and a cable to the bridge."""
        script = HOLD.format(name=name, work=self.work)
        holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc",
             "--propagation", "private", "sh", "-ec", script],
            stdin=subprocess.DEVNULL,
        )
        self.holders[name] = holder
        wait_for(lambda: os.path.exists(os.path.join(self.work, f"{name}.up")), 20, f"host {name}")
        inside = self.inside(name)
        run("ip", "link", "add", f"{name}-port", "type", "veth", "peer", "name", "eth0", "netns", inside)
        run("ip", "link", "set", f"{name}-port", "master", "hosts", "up")
        for command in (["address", "add", f"{address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"],
                        ["link", "set", "lo", "up"]):
            run(*self.entering(name), "ip", *command)

    def inside(self, name):
        """The process that is the first one of the host, by its id here."""
        holder = self.holders[name].pid
        with open(f"/proc/{holder}/task/{holder}/children") as file:
            return file.read().split()[0]

    def entering(self, name, folder="/"):
        """The beginning of a command line that runs on a host, in a folder."""
        return ["nsenter", "-t", self.inside(name), "-m", "-u", "-i", "-n", "-p", f"--wd={folder}"]

    def stop(self):
        # Its first process dies with the holder, and with that one all others of the host.
        for holder in self.holders.values():
            holder.kill()
            holder.wait()


def wait_for(condition, seconds, what):
    """Waits until a condition holds, and gives its value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(0.1)


def end(process, seconds):
    """Ends a process of our own."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
