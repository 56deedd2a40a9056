"""MPI launchers: Open MPI 4 and MPICH with hydra."""

import os

import slurm
from case import HERE, RANK, case, expect, terminate
from nodes import wait_for
from pages import add
from slurm_cases import files, submit

REMOTE = os.path.join(HERE, "remote.py")


def mpirun(bench, *arguments, hosts="n1,n2", on="n1", start=False, **environment):
    """Open MPI's mpirun on one of the hosts."""
    bench.write("hostfile", "".join(f"{host} slots=8\n" for host in hosts.split(",")))
    begin = bench.start if start else bench.run
    return begin("mpirun.openmpi", "--allow-run-as-root", "--mca", "plm_rsh_agent", REMOTE,
                 "--hostfile", "hostfile", *forwarded(bench), *arguments, on=on, **environment)


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
    code = mpirun(bench, "-N", "1", "ranklaunch", "run", "--", RANK, hosts="n3,n2", on="n1")
    bench.ranks(2, ["n3", "n2"])
    return code


@case("mpi", "Open MPI: eight tasks per node are refused with advice", 65)
def openmpi_refused(bench):
    code = mpirun(bench, "-N", "8", "ranklaunch", "run", "--engine", "torchrun", "--", RANK)
    bench.says("OMPI_COMM_WORLD_LOCAL_SIZE=8", "starts this command 8 times on a node", "--engine direct")
    return code


@case("mpi", "Open MPI: eight tasks per node are ranks with --engine direct", 0)
def openmpi_ranks(bench):
    code = mpirun(bench, "-N", "8", "--oversubscribe", "ranklaunch", "run", "--", RANK)
    bench.ranks(16, ["n1", "n2"])
    return code


@case("mpi", "Open MPI: a failed rank", 7)
def openmpi_failed(bench):
    code = mpirun(bench, "-N", "1", "ranklaunch", "run", "--nproc-per-node", "2", "--", RANK, "fail", "3", "7")
    # mpirun ends with the code of the process that it saw first.
    expect(code in (7, 92), f"mpirun ended with {code}")
    bench.says("exited with code 7")
    bench.nothing_is_left()
    own = [record for record in bench.records() if record["plan"]["membership"]["node_rank"] == 1]
    expect(own and own[0]["verdict"]["rank"] == 3, f"{own}")
    return own[0]["exit_code"]


@case("mpi", "Open MPI: one second after TERM is said, and the option that it names gives more", 0, seconds=20)
def openmpi_grace(bench):
    saved = {}
    # mpirun waits this time before TERM as well as after it.
    for name, options in (("short", []), ("long", ["--mca", "odls_base_sigkill_timeout", "8"])):
        job = mpirun(bench, "-N", "1", *options, "ranklaunch", "run", "--", RANK, "save-for", "4", "never", start=True)
        bench.wait(*files("ready", 2))
        terminate(job)
        job.wait(60)
        bench.nothing_is_left()
        saved[name] = all(os.path.exists(bench.path(file)) for file in files("saved", 2))
        if name == "short":
            bench.says("mpirun kills this command 1 s after TERM", "--mca odls_base_sigkill_timeout 30")
        for file in [*files("ready", 2), *files("saved", 2)]:
            if os.path.exists(bench.path(file)):
                os.remove(bench.path(file))
    expect(saved == {"short": False, "long": True}, f"checkpoints written: {saved}")
    bench.count("mpirun kills this command 1 s after TERM", 2)
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
    script = ("mpirun.openmpi --allow-run-as-root -N 1 --bind-to none "
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


@case("mpi", "MPICH: mpiexec on a host without tasks", 65 | 86)
def mpich_from_login(bench):
    # No variable says where rank 0 is: it is refused with advice, and the other does not find it at mpiexec's host.
    # hydra joins their codes bit by bit.
    code = hydra(bench, "-ppn", "1", "-n", "2", "ranklaunch", "run", "--wait-timeout", "5s", "--", RANK, hosts="n2,n3")
    bench.says("MASTER_ADDR", "exit code 65 (membership.master-addr)", "exit code 86 (master.reach)")
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
    OMPI_MCA_plm_rsh_agent=REMOTE, HYDRA_LAUNCHER="ssh", HYDRA_LAUNCHER_EXEC=REMOTE)
