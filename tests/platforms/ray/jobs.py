"""The entry point as a RayJob starts it: through the dashboard's job API, which KubeRay calls."""

from __future__ import annotations

import re
import shlex
import shutil

import yaml
from bench import ENTRY, REPOSITORY, Bench, LeftOut, Program, expect, until
from cases import SAVES, SLEEPS, case, files, in_folder
from ray.dashboard.modules.job.sdk import JobSubmissionClient

OVER = ("SUCCEEDED", "FAILED", "STOPPED")


class Job:
    """What `ray job submit` does."""

    def __init__(self, bench: Bench, entrypoint: str, **runtime_env: object) -> None:
        self.client = JobSubmissionClient(f"http://{bench.cluster.head_node.webui_url}")
        self.id = self.client.submit_job(entrypoint=entrypoint, runtime_env=runtime_env)

    def status(self) -> str:
        return self.client.get_job_status(self.id).value

    def ends(self, status: str) -> str:
        """Waits for the end, and gives the message of the status and the log."""
        until(lambda: self.status() in OVER, "the RayJob's end")
        said = f"{self.client.get_job_info(self.id).message}\n{self.client.get_job_logs(self.id)}"
        expect(self.status() == status, f"the RayJob is {self.status()}, not {status}:\n{said}")
        return said


def on_two(command: list[str]) -> str:
    return shlex.join(["python", str(ENTRY), "--nodes", "2", "--", *command])


@case("a RayJob with a working directory and variables succeeds")
def _(bench: Bench) -> None:
    source = bench.folder / "source"
    source.mkdir()
    (source / "train.sh").write_text("echo rank $RANK of $WORLD_SIZE, $OMP_NUM_THREADS threads\n")
    command = [*bench.ranks("", "unused")[:-4], "--", "sh", "train.sh"]
    variables = {"OMP_NUM_THREADS": "3"}
    said = Job(bench, on_two(command), working_dir=str(source), env_vars=variables).ends("SUCCEEDED")
    for node in range(2):
        expect(f"node{node}: [r{node}] rank {node} of 2, 3 threads" in said, f"rank {node} said so:\n{said}")


@case("Ray's own thread count does not reach the command")
def _(bench: Bench) -> None:
    said = Job(bench, on_two(["sh", "-c", "echo threads=$OMP_NUM_THREADS."])).ends("SUCCEEDED")
    expect(said.count("threads=.\n") == 2, f"unset on both nodes:\n{said}")


@case("a RayJob whose rank fails is FAILED")
def _(bench: Bench) -> None:
    said = Job(bench, on_two(bench.ranks("", f"[ $RANK = 1 ] && exit 5; {SLEEPS}"))).ends("FAILED")
    expect("exit code 5: rank 1 on node 1 (" in said, f"the cause is named:\n{said}")


@case("a RayJob that is stopped saves its state")
def _(bench: Bench) -> None:
    job = Job(bench, on_two(bench.ranks("", in_folder(bench, SAVES))))
    until(lambda: files(bench, "ready-*") == ["ready-0", "ready-1"], "both ranks are ready")
    bench.running(2)
    job.client.stop_job(job.id)
    job.ends("STOPPED")
    expect(files(bench, "saved-*") == ["saved-0", "saved-1"], "both ranks had time to save")


@case("the page's commands")
def _(bench: Bench) -> None:
    if not bench.torch_python:
        raise LeftOut("no python has torch")
    pages = [(REPOSITORY / "docs" / "platforms" / name).read_text() for name in ("ray.md", "ray.zh-CN.md")]
    commands, chinese = (re.findall(r"<!-- test -->\n```sh\n(.*?)```", page, re.DOTALL) for page in pages)
    expect(len(commands) == 2 and commands == chinese, "both pages have the same two commands")
    shutil.copy(ENTRY, bench.folder)
    (bench.folder / "train.py").write_text(
        "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
    )
    dashboard = f"http://{bench.cluster.head_node.webui_url}"
    with bench.another_node(num_gpus=8), bench.another_node(num_gpus=8):
        for command in commands:
            program = Program(
                ["sh", "-e", "-c", command, bench.mark],
                bench.folder,
                {"RAY_API_SERVER_ADDRESS": dashboard, "RAY_ADDRESS": bench.cluster.address},
            )
            bench.programs.append(program)
            program.ends(0)
    submitted, checked = bench.programs
    for rank in range(2):
        submitted.shows(f"node{rank}: [r{rank}] rank {rank} of 2")
    submitted.shows("ranklaunch_ray: exit code 0")
    checked.shows("round trip, median (ms)")
    checked.shows("ranklaunch_ray: exit code 0")


@case("the manifest's job of two pods")
def _(bench: Bench) -> None:
    if not bench.torch_python:
        raise LeftOut("no python has torch")
    manifest = (REPOSITORY / "packaging" / "kubernetes" / "wan22-rayjob.yaml").read_text()
    entry = yaml.safe_load(manifest)["spec"]["entrypoint"]
    for path, here in [
        ("/opt/ranklaunch/ranklaunch_ray.py", str(ENTRY)),
        ("/usr/local/bin/ranklaunch", bench.executable),
    ]:
        expect(entry.count(path) == 1, f"{path} is in {entry}")
        entry = entry.replace(path, here)
    (bench.folder / "generate.py").write_text(
        "import os, sys, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "print('rank', dist.get_rank(), 'of', dist.get_world_size(), *sys.argv[1:])\n"
    )
    logs = str(bench.folder.parent / "logs")
    variables = {"RANKLAUNCH_NPROC_PER_NODE": "4", "RANKLAUNCH_LOG_DIR": logs, "CASE": bench.mark}
    with bench.another_node(num_gpus=4), bench.another_node(num_gpus=4):
        said = Job(bench, entry, working_dir=str(bench.folder), env_vars=variables).ends("SUCCEEDED")
    for rank in range(8):
        line = rf"node{rank // 4}: \[r{rank}\] rank {rank} of 8 .*--ulysses_size 8 "
        expect(re.search(line, said) is not None, f"rank {rank} ran:\n{said}")
