"""MPI launchers: Open MPI 4 or 5, and MPICH with hydra."""

import os
import re
import signal
import subprocess
import tempfile
import time

import slurm
from case import HERE, RANK, case, expect, terminate
from nodes import wait_for
from pages import add
from slurm_cases import files, submit, torch

REMOTE = os.path.join(HERE, "remote.py")
# The program that stands for ssh, as the versions call it.
AGENT = {4: ["--mca", "plm_rsh_agent"], 5: ["--prtemca", "plm_ssh_agent"]}
# The option for the seconds between TERM and KILL, of which Open MPI 5.0 has none.
GRACE = ["--mca", "odls_base_sigkill_timeout"]


def major():
    said = subprocess.run(["mpirun.openmpi", "--version"], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"\(Open ?\w+\) (\d+)", said)[1])


def mpirun(bench, *arguments, hosts="n1,n2", on="n1", start=False, **environment):
    """Open MPI's mpirun on one of the hosts."""
    bench.write("hostfile", "".join(f"{host} slots=8\n" for host in hosts.split(",")))
    begin = bench.start if start else bench.run
    return begin("mpirun.openmpi", "--allow-run-as-root", *AGENT[major()], REMOTE,
                 "--hostfile", "hostfile", *forwarded(bench), *arguments, on=on, **own_folder(bench), **environment)


def own_folder(bench):
    """Cases run side by side, and several mpirun of version 4 that make their common folder at once fail."""
    return {"OMPI_MCA_orte_tmpdir_base": tempfile.mkdtemp(prefix="o", dir=bench.work)}


def forwarded(bench):
    """mpirun gives other hosts only the variables that it is told to."""
    return [part for name in ["PATH", *sorted(name for name in bench.environment if name.startswith("RANKLAUNCH_"))]
            for part in ("-x", name)]


def hydra(bench, *arguments, hosts="n1,n2", on="n1", start=False, **environment):
    """MPICH's mpiexec on one of the hosts."""
    begin = bench.start if start else bench.run
    return begin("mpiexec.hydra", "-launcher", "ssh", "-launcher-exec", REMOTE, "-hosts", hosts, *arguments,
                     on=on, **environment)


@case("mpi", "Open MPI: one task per node", 0)
def openmpi(bench):
    code = mpirun(bench, "-N", "1", "--bind-to", "none", "ranklaunch", "run", "--nproc-per-node", "2", "--", RANK)
    bench.ranks(4, ["n1", "n2"])
    bench.verdicts(2, id="done")
    bench.platform("open-mpi")
    bench.nothing_is_left()
    return code


@case("mpi", "Open MPI: mpirun on a host without tasks", 0)
def openmpi_from_login(bench):
    began = time.monotonic()
    code = mpirun(bench, "-N", "1", "ranklaunch", "run", "--", RANK, hosts="n3,n2", on="n1")
    if major() == 4:
        bench.ranks(2, ["n3", "n2"])
        return code
    # Open MPI 5 names only its own host to a process: all nodes refuse at once.
    expect(code == 65, f"ended with {code}")
    expect(time.monotonic() - began < 20, "the refusal took too long")
    bench.says("MASTER_ADDR is not set", "membership.master-addr")
    code = mpirun(bench, "-N", "1", "-x", "MASTER_ADDR=n3", "ranklaunch", "run", "--", RANK, hosts="n3,n2", on="n1")
    bench.ranks(2, ["n3", "n2"])
    return code


@case("mpi", "Open MPI: accelerate", 0, long=True)
def openmpi_accelerate(bench):
    options = torch("accelerate").split()
    code = mpirun(bench, "-N", "1", "--bind-to", "none", "ranklaunch", "run", *options, "--", RANK)
    bench.ranks(4, ["n1", "n2"])
    bench.verdicts(2, id="done")
    return code


@case("mpi", "Open MPI: deepspeed", 0, long=True)
def openmpi_deepspeed(bench):
    options = torch("deepspeed").split()
    code = mpirun(bench, "-N", "1", "--bind-to", "none", "ranklaunch", "run", *options, "--", RANK)
    bench.ranks(4, ["n1", "n2"])
    return code


@case("mpi", "Open MPI: eight tasks per node are refused with advice", 65)
def openmpi_refused(bench):
    code = mpirun(bench, "-N", "8", "ranklaunch", "run", "--engine", "torchrun", "--", RANK)
    bench.says("OMPI_COMM_WORLD_LOCAL_SIZE=8", "starts this command 8 times on a node", "--engine direct")
    return code


@case("mpi", "Open MPI: eight tasks per node are ranks with --engine direct", 0)
def openmpi_ranks(bench):
    code = mpirun(bench, "-N", "8", "ranklaunch", "run", "--", RANK)
    bench.ranks(16, ["n1", "n2"])
    return code


@case("mpi", "Open MPI: a failed rank", 7)
def openmpi_failed(bench):
    code = mpirun(bench, "-N", "1", "ranklaunch", "run", "--nproc-per-node", "2", "--", RANK, "fail", "3", "7")
    # mpirun ends with the code of the process that it saw first.
    expect(code in (7, 143), f"mpirun ended with {code}")
    bench.says("exited with code 7")
    bench.nothing_is_left()
    own = [record for record in bench.records() if record["plan"]["membership"]["node_rank"] == 1]
    expect(own and own[0]["verdict"]["rank"] == 3, f"{own}")
    return own[0]["exit_code"]


def saved_at_term(bench, options):
    """Whether ranks that save for some seconds at TERM did so before mpirun killed them."""
    job = mpirun(bench, "-N", "1", *options, "ranklaunch", "run", "--", RANK, "save-for", "4", "never", start=True)
    bench.wait(*files("ready", 2))
    terminate(job)
    job.wait(60)
    bench.nothing_is_left()
    saved = all(os.path.exists(bench.path(file)) for file in files("saved", 2))
    for file in [*files("ready", 2), *files("saved", 2)]:
        if os.path.exists(bench.path(file)):
            os.remove(bench.path(file))
    return saved


@case("mpi", "Open MPI: one second after TERM is said, and what gives more", 0, seconds=20, long=True)
def openmpi_grace(bench):
    expect(not saved_at_term(bench, []), "mpirun gave the ranks more than 1 s")
    bench.says("mpirun kills this command 1 s after TERM")
    if major() == 4:
        bench.says(" ".join([*GRACE, "30"]))
        # mpirun waits this time before TERM as well as after it.
        expect(saved_at_term(bench, [*GRACE, "8"]), "not saved, although the option gives 8 s")
        bench.count("mpirun kills this command 1 s after TERM", 2)
        return 0
    bench.says("send USR1 to mpirun")
    # The reason for another hint: should the option work again, this says so.
    expect(not saved_at_term(bench, ["--prtemca", GRACE[1], "8"]), "Open MPI 5 has the option again")
    job = mpirun(bench, "-N", "1", "ranklaunch", "run", "--", RANK, "until", "finish", start=True)
    bench.wait(*files("ready", 2))
    terminate(job, signal.SIGUSR1)
    wait_for(lambda: all(bench.read(name) for name in files("usr1", 2)), 30, "USR1 at every rank")
    bench.touch("finish")
    expect(job.wait(60) == 0, "USR1 ended the job")
    bench.signals("usr1", 2, 1)
    return 0


@case("mpi", "Open MPI: binding to one core is said with its option", 0)
def openmpi_binding(bench):
    code = mpirun(bench, "-N", "1", "--bind-to", "core", "ranklaunch", "run", "--nproc-per-node", "2", "--", RANK)
    bench.says("cpu.limit")
    for record in bench.records():
        hints = [one["hint"] for one in record["plan"]["warnings"] if one["id"] == "cpu.limit"]
        expect(hints and "--bind-to none" in hints[0], f"hints for cpu.limit: {hints}")
    unbound = mpirun(bench, "-N", "1", "--bind-to", "none", "sh", "-c", "ranklaunch check --format json")
    expect("--bind-to" not in bench.read(bench.outputs[-1]), f"said without a binding ({unbound})")
    return code


@case("mpi", "Open MPI inside a Slurm allocation", 0)
def openmpi_in_slurm(bench):
    own = " ".join(f"{name}={value}" for name, value in own_folder(bench).items())
    script = (f"{own} mpirun.openmpi --allow-run-as-root -N 1 --bind-to none "
              f"ranklaunch run --nproc-per-node 2 -- {RANK}")
    code = slurm.ended(submit(bench, script, "-N2", "--ntasks-per-node=1", "-w", "n[2-3]"))
    bench.ranks(4, ["n2", "n3"])
    bench.platform("open-mpi")
    return code


@case("mpi", "MPICH: one task per node", 0)
def mpich(bench):
    code = hydra(bench, "-ppn", "1", "-n", "2", "ranklaunch", "run", "--nproc-per-node", "2", "--", RANK)
    bench.ranks(4, ["n1", "n2"])
    bench.verdicts(2, id="done")
    bench.platform("pmi")
    bench.nothing_is_left()
    return code


@case("mpi", "MPICH: mpiexec on a host without tasks", 65)
def mpich_from_login(bench):
    # No variable says where rank 0 is. It refuses, and has mpiexec end the others, which wait at mpiexec's host.
    began = time.monotonic()
    code = hydra(bench, "-ppn", "1", "-n", "2", "ranklaunch", "run", "--", RANK, hosts="n2,n3")
    expect(time.monotonic() - began < 20, "the refusal took too long")
    bench.says("MASTER_ADDR", "exit code 65 (membership.master-addr)", "mpiexec is asked to end the job on all nodes")
    bench.nothing_is_left()
    return code


@case("mpi", "MPICH: mpiexec on the second host", 65)
def mpich_from_second(bench):
    began = time.monotonic()
    code = hydra(bench, "-ppn", "1", "-n", "2", "ranklaunch", "run", "--", RANK, on="n2")
    expect(time.monotonic() - began < 20, "the refusal took too long")
    bench.says("membership.master-addr")
    bench.nothing_is_left()
    return code


@case("mpi", "MPICH: accelerate", 0, long=True)
def mpich_accelerate(bench):
    options = torch("accelerate").split()
    code = hydra(bench, "-ppn", "1", "-n", "2", "ranklaunch", "run", *options, "--", RANK)
    bench.ranks(4, ["n1", "n2"])
    bench.verdicts(2, id="done")
    return code


@case("mpi", "MPICH: TERM to mpiexec gives the ranks all their time", 143)
def mpich_term(bench):
    job = hydra(bench, "-ppn", "1", "-n", "2", "ranklaunch", "run", "--", RANK, "save-for", "3", "never", start=True)
    bench.wait(*files("ready", 2))
    terminate(job)
    job.wait(60)
    bench.nothing_is_left()
    bench.wait(*files("saved", 2), seconds=1)
    bench.signals("term", 2, 1)
    bench.never_says("after TERM")
    bench.verdicts(2, id="stopped.signal", code=143)
    return bench.records()[0]["exit_code"]


@case("mpi", "MPICH: binding to one core is said with its option", 0)
def mpich_binding(bench):
    bound = ["-ppn", "1", "-n", "2", "ranklaunch", "run", "--nproc-per-node", "2", "--", RANK]
    code = hydra(bench, "-bind-to", "core", *bound)
    bench.says("cpu.limit")
    for record in bench.records():
        hints = [one["hint"] for one in record["plan"]["warnings"] if one["id"] == "cpu.limit"]
        expect(hints and "--bind-to none" in hints[0], f"hints for cpu.limit: {hints}")
    return code


@case("mpi", "MPICH: with MASTER_ADDR", 0)
def mpich_with_master(bench):
    code = hydra(bench, "-ppn", "1", "-n", "2", "ranklaunch", "run", "--", RANK, hosts="n3,n2", MASTER_ADDR="n3")
    bench.ranks(2, ["n3", "n2"])
    return code


@case("mpi", "MPICH: eight tasks per node are refused with advice", 65)
def mpich_refused(bench):
    code = hydra(bench, "-ppn", "8", "-n", "16", "ranklaunch", "run", "--engine", "torchrun", "--", RANK)
    bench.says("MPI_LOCALNRANKS=8", "starts this command 8 times on a node", "--engine direct")
    return code


@case("mpi", "MPICH: eight tasks per node are ranks with --engine direct", 0)
def mpich_ranks(bench):
    code = hydra(bench, "-ppn", "8", "-n", "16", "ranklaunch", "run", "--", RANK)
    bench.ranks(16, ["n1", "n2"])
    return code


@case("mpi", "MPICH inside a Slurm allocation", 0)
def mpich_in_slurm(bench):
    script = f"mpiexec.hydra -ppn 1 -n 2 ranklaunch run --nproc-per-node 2 -- {RANK}"
    code = slurm.ended(submit(bench, script, "-N2", "--ntasks-per-node=1", "-w", "n[2-3]"))
    bench.ranks(4, ["n2", "n3"])
    bench.platform("pmi")
    return code


def two_jobs(bench, launched):
    """Two jobs on the same hosts at the same time."""
    jobs = [launched("ranklaunch", "run", "--", RANK, "until", "finish") for _ in range(2)]
    wait_for(lambda: len(bench.read("ready-0")) == 2 and len(bench.read("ready-1")) == 2, 60, "both jobs")
    bench.touch("finish")
    codes = {job.wait(60) for job in jobs}
    ports = {record["plan"]["membership"]["master_port"] for record in bench.records()}
    expect(len(ports) == 2, f"ports of both jobs: {ports}")
    bench.verdicts(4, id="done")
    return codes.pop() if len(codes) == 1 else codes


@case("mpi", "Open MPI: two jobs on the same hosts do not meet", 0)
def openmpi_two_jobs(bench):
    return two_jobs(bench, lambda *command: mpirun(bench, "-N", "1", *command, start=True))


@case("mpi", "MPICH: two jobs on the same hosts do not meet", 0)
def mpich_two_jobs(bench):
    return two_jobs(bench, lambda *command: hydra(bench, "-ppn", "1", "-n", "2", *command, start=True))


@case("mpi", "srun --mpi=pmi2", 0)
def srun_pmi2(bench):
    code = bench.run("srun", "-N2", "--ntasks-per-node=1", "--mpi=pmi2", "ranklaunch", "run", "--", RANK)
    bench.ranks(2, ["n1", "n2"])
    wait_for(lambda: len(bench.records()) == 2, 10, "two records")
    return code


# The hosts of the pages have ssh; here a program stands for it.
add("mpi", "mpi.md", "n1", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
    PRTE_ALLOW_RUN_AS_ROOT="1", PRTE_ALLOW_RUN_AS_ROOT_CONFIRM="1",
    OMPI_MCA_plm_rsh_agent=REMOTE, PRTE_MCA_plm_ssh_agent=REMOTE, HYDRA_LAUNCHER="ssh", HYDRA_LAUNCHER_EXEC=REMOTE)
