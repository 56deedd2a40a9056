"""What the installed engine cannot do is said before the start."""

from case import case, expect
from job import RANK, Job, python, short


def profile(bench, *engine_args):
    """The engine's own further arguments can only be given in a profile."""
    words = ", ".join(f'"{word}"' for word in engine_args)
    return ["--profile", bench.write("ranklaunch.toml", f"[job]\nengine_args = [{words}]\n")]


def plan(bench, engine, interpreter, *options):
    return bench.run("ranklaunch", "plan", "--engine", engine, "--python", interpreter, "--nnodes", "1",
                     "--nproc-per-node", "2", *options, "--", RANK, "done", on="n1")


@case("known before the start", "a flag that this torch does not have", 64)
def unknown_flag(bench):
    code = plan(bench, "torchrun", python("torch_2_6"), *profile(bench, "--shutdown-timeout", "5"))
    bench.says("torch 2.6.0 does not know --shutdown-timeout", "torch/distributed/run.py", "engine.flags")
    # The newest has it, so nothing is refused on a guess.
    newest = plan(bench, "torchrun", python("newest"), "--profile", bench.path("ranklaunch.toml"))
    expect(newest == 0, f"refused for the newest torch as well, with {newest}")
    return code


@case("known before the start", "a misspelt flag of accelerate is refused on both nodes, and --severity starts it", 64)
@short
def misspelt(bench):
    options = profile(bench, "--mixed_precison", "bf16")
    codes = Job(bench, "accelerate", [RANK, "done"], *options).ended()
    # Each node finds it by itself, or is told by the other.
    expect(64 in codes and all(code in (64, 88) for code in codes), f"ended with {codes}")
    bench.says("accelerate 1.15.0 does not know --mixed_precison")
    bench.never_says("by sockets")
    # The message is true: the engine itself ends because of it.
    code = bench.run("ranklaunch", "run", "--engine", "accelerate", "--python", python("newest"), "--nnodes", "1",
                     "--nproc-per-node", "2", "--stale", "off", "--severity", "engine.flags=warn", *options,
                     "--", RANK, "done", on="n1")
    bench.says("unrecognized arguments: --mixed_precison")
    expect(code != 0, f"ended with {code}")
    return 64


@case("known before the start", "an interpreter without deepspeed", 67)
@short
def no_deepspeed(bench):
    code = plan(bench, "deepspeed", python("newest"))
    bench.says("has no deepspeed, which the engine deepspeed needs", "-m pip install deepspeed")
    return code


@case("known before the start", "an interpreter with torch and without accelerate", 67)
def no_accelerate(bench):
    code = plan(bench, "accelerate", python("torch_2_6"))
    bench.says("has no accelerate, which the engine accelerate needs")
    return code


def fewer(engine, options, environment="newest"):
    """The user's own argument starts fewer ranks than planned."""

    @case(engine, "fewer ranks than planned are never done", 68)
    @short
    def run(bench):
        codes = Job(bench, engine, [RANK, "done"], *profile(bench, *options), nproc=2, nodes=1,
                    pythons=(environment, environment)).ended()
        bench.never_says("done: all ranks ended with code 0")
        return codes[0]


fewer("torchrun", ["--nproc-per-node", "1"])
fewer("accelerate", ["--num_processes", "1"])


def c10d(environment, named):
    @case("torchrun" + named, "the rendezvous c10d", 0)
    def run(bench):
        codes = Job(bench, "torchrun", [RANK, "torch", "done"], "--rdzv", "c10d",
                    pythons=(environment, environment)).ended()
        expect(codes == [0, 0], f"ended with {codes}")
        # Any node may get rank 0.
        lines = {line.split(" on ")[0].split("] ")[-1] for line in bench.text().splitlines() if " by torch " in line}
        expect(lines == {f"rank {rank} of 4" for rank in range(4)}, f"the ranks were {lines}")
        return 0


for row in [("newest", ""), ("torch_2_6", " (torch 2.6)"), ("torch_2_0", " (torch 2.0)")]:
    c10d(*row)


def below_a_shell(engine):
    @case(engine, "a rank below a shell has its time to save", 143)
    def run(bench):
        # Without `exec` the shell dies of TERM, while its child writes a checkpoint.
        job = Job(bench, engine, ["sh", "-c", f"{python('newest')} {RANK} save 3; exit 9"], "--grace", "10s")
        bench.wait(*(f"ready-{rank}" for rank in range(4)))
        job.terminate()
        codes = job.ended()
        for rank in range(4):
            expect(bench.read(f"saved-{rank}"), f"rank {rank} has not saved")
            expect(len(bench.read(f"term-{rank}").split()) == 1, f"TERM for rank {rank}: {bench.read(f'term-{rank}')}")
        expect(codes == [143, 143], f"ended with {codes}")
        return 143


below_a_shell("direct")
below_a_shell("torchrun")
