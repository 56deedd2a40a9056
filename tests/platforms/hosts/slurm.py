"""Slurm of a distribution: a controller on the login host and a daemon on every other host.

Everything is below one folder: keys, sockets, spool, logs. The daemons stay children of the suite.
"""

import os
import re
import subprocess

from nodes import LOGIN, end, wait_for

CONF = """
ClusterName=suite
SlurmctldHost={login}
SlurmUser=root
AuthType=auth/munge
# A job that is requeued waits until the credential of its first run has expired.
AuthInfo=socket={work}/munge/socket,cred_expire=10
MpiDefault=none
ProctrackType=proctrack/linuxproc
ReturnToService=2
SlurmctldPidFile={work}/controller.pid
SlurmdPidFile={work}/daemon-%n.pid
SlurmdSpoolDir={work}/spool-%n
StateSaveLocation={work}/state
SlurmctldLogFile={work}/log/controller.log
SlurmdLogFile={work}/log/daemon-%n.log
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=2,batch_sched_delay=0,sched_min_interval=100000
InactiveLimit=0
# As it is by default: a machine that is busy needs it.
KillWait=30
MinJobAge=3600
SlurmctldTimeout=300
SlurmdTimeout=300
JobRequeue=1
NodeName=n[1-{count}] CPUs=64 RealMemory=4000 State=UNKNOWN
PartitionName=all Nodes=n[1-{count}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""
CGROUP = "ConstrainCores=no\nConstrainRAMSpace=no\n"
# A daemon of these looks for systemd, or a hierarchy of its own, even if nothing is to be constrained.
SINCE_23_11 = "CgroupPlugin=disabled\n"


def version():
    """Of the installed Slurm, as (22, 5)."""
    said = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in said.split()[1].split(".")[:2])


class Slurm:
    def __init__(self, hosts, work):
        self.hosts = hosts
        self.work = os.path.join(work, "slurm")
        self.daemons = []
        for folder in ("munge", "state", "log"):
            os.makedirs(os.path.join(self.work, folder))
        os.chmod(os.path.join(self.work, "munge"), 0o711)
        conf = CONF.format(login=LOGIN, work=self.work, count=len(hosts.names))
        self.write("slurm.conf", conf)
        self.write("cgroup.conf", CGROUP + (SINCE_23_11 if version() >= (23, 11) else ""))
        self.conf = os.path.join(self.work, "slurm.conf")
        os.environ["SLURM_CONF"] = self.conf
        self.munge()
        self.daemon([], "slurmctld", "-D", "-c", "-f", self.conf)
        for name in hosts.names:
            self.daemon(hosts.entering(name), "slurmd", "-D", "-N", name, "-f", self.conf)
        wait_for(lambda: self.idle() == len(hosts.names), 60, "all hosts idle in sinfo")

    def write(self, name, text):
        with open(os.path.join(self.work, name), "w") as file:
            file.write(text)

    def munge(self):
        """One daemon serves all hosts, since its socket lies in the shared file system."""
        folder = os.path.join(self.work, "munge")
        key = os.path.join(folder, "key")
        with open(key, "wb") as file:
            file.write(os.urandom(128))
        os.chmod(key, 0o400)
        self.daemon([], "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/socket",
                    f"--pid-file={folder}/pid", f"--log-file={folder}/log", f"--seed-file={folder}/seed")
        wait_for(lambda: os.path.exists(f"{folder}/socket"), 20, "munge's socket")

    def daemon(self, entering, *command):
        name = os.path.join(self.work, "log", f"{command[0]}-{len(self.daemons)}.txt")
        with open(name, "w") as output:
            self.daemons.append(subprocess.Popen([*entering, *command], stdin=subprocess.DEVNULL,
                                                 stdout=output, stderr=subprocess.STDOUT, start_new_session=True))

    def idle(self):
        said = subprocess.run(["sinfo", "--noheader", "--Node", "--format=%T"], capture_output=True, text=True)
        return said.stdout.split().count("idle")

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            end(daemon, 5)


def job(number):
    """What the controller says of a job: JobState, ExitCode, Restarts and the rest."""
    said = subprocess.run(["scontrol", "--oneliner", "show", "job", str(number)], capture_output=True, text=True)
    return dict(re.findall(r"(\w+)=(\S+)", said.stdout))


def state(number):
    return job(number).get("JobState", "")


def exit_code(number):
    """The exit code of a job that has ended, as a shell would say it."""
    code, signal = job(number).get("ExitCode", "-1:0").split(":")
    return int(code) or (128 + int(signal) if int(signal) else 0)


ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL"}


def ended(number, seconds=120):
    wait_for(lambda: state(number) in ENDED, seconds, f"the end of job {number}")
    return exit_code(number)
