"""The commands of docs/platforms: each block that is marked runs as it stands, as a case.

`<!-- test -->` before a block of commands means that it ends with 0, `<!-- test: 65 -->` another code,
`<!-- test once -->` that it starts all hosts by itself.
What the commands name lies in the folder: train.py, train.sbatch, hosts. A profile there says what a
cluster with GPUs would not need: another engine than torchrun, and no GPUs.
"""

import os
import re
import shutil

from case import HERE, RANK, SECONDS, case, expect

REPOSITORY = os.path.abspath(os.path.join(HERE, "..", "..", ".."))
BLOCK = re.compile(r"^<!-- test(?:: (\d+))?( once)? -->\n```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROFILE = """[job]
engine = "direct"
device = "cpu"
"""


def text(page):
    with open(os.path.join(REPOSITORY, "docs", "platforms", page)) as file:
        return file.read()


def blocks(page):
    """The commands of a page, with the exit code of each, and whether one host runs it."""
    return [(int(code or 0), commands, bool(once)) for code, once, commands in BLOCK.findall(text(page))]


def prepare(bench):
    """A folder as the page means it, and an environment without the suite's own settings."""
    shutil.copy(RANK, bench.path("train.py"))
    shutil.copy(os.path.join(REPOSITORY, "packaging", "slurm", "train.sbatch"), bench.folder)
    bench.write("hosts", "n1 slots=8\nn2 slots=8\n")
    bench.write("ranklaunch.toml", PROFILE)
    bench.environment = {name: value for name, value in bench.environment.items()
                         if not name.startswith("RANKLAUNCH_") or name == "RANKLAUNCH_LOG_DIR"}


def add(group, page, on, port=None, **environment):
    """A case for each block of a page. It runs on a host, or on each host of a list at the same time.

    Without a platform that numbers jobs, each block gets a port of its own, from `port` on.
    """
    found = blocks(page)
    assert found, f"no block of {page} is marked"
    for number, (code, commands, once) in enumerate(found, 1):

        def run(bench, commands=commands, once=once, number=number):
            prepare(bench)
            ports = {"MASTER_PORT": str(port + number)} if port else {}
            hosts = on if isinstance(on, list) else [on]
            hosts = hosts[:1] if once else hosts
            jobs = [bench.start("bash", "-ec", commands, on=host, **ports, **environment) for host in hosts]
            codes = {job.wait(SECONDS) for job in jobs}
            ended = codes.pop() if len(codes) == 1 else codes
            logs = [name for name in os.listdir(bench.folder) if name.endswith(".log")]
            bench.outputs += logs
            if not ended and " plan " not in commands:
                bench.says("done: all ranks ended with code 0")
            return ended

        first = commands.split("\n")[0]
        case(group, f"docs/platforms/{page}, block {number}: {first[:60]}", code)(run)

    def same(_bench):
        chinese = page.replace(".md", ".zh-CN.md")
        expect(blocks(chinese) == found, f"{chinese} has other commands than {page}")
        return 0

    case(group, f"docs/platforms/{page} has the same commands in Chinese", 0)(same)
