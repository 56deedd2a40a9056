"""The commands of docs/platforms: each block that is marked runs as it stands, as a case.

`<!-- test -->` before a block of commands means that it ends with 0, `<!-- test: 65 -->` another code.
What the commands name lies in the folder: train.py, train.sbatch, hosts. A profile there says what a
cluster with GPUs would not need: another engine than torchrun, and no GPUs.
"""

import os
import re
import shutil

from case import HERE, RANK, case, expect

REPOSITORY = os.path.abspath(os.path.join(HERE, "..", "..", ".."))
BLOCK = re.compile(r"^<!-- test(?:: (\d+))? -->\n```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROFILE = """[job]
engine = "direct"
device = "cpu"
"""


def text(page):
    with open(os.path.join(REPOSITORY, "docs", "platforms", page)) as file:
        return file.read()


def blocks(page):
    """The commands of a page, with the exit code of each."""
    return [(int(code or 0), commands) for code, commands in BLOCK.findall(text(page))]


def prepare(bench):
    """A folder as the page means it, and an environment without the suite's own settings."""
    shutil.copy(RANK, bench.path("train.py"))
    shutil.copy(os.path.join(REPOSITORY, "packaging", "slurm", "train.sbatch"), bench.folder)
    bench.write("hosts", "n1 slots=8\nn2 slots=8\n")
    bench.write("ranklaunch.toml", PROFILE)
    bench.environment = {name: value for name, value in bench.environment.items()
                         if not name.startswith("RANKLAUNCH_") or name == "RANKLAUNCH_LOG_DIR"}


def add(group, page, on, **environment):
    """A case for each block of a page."""
    found = blocks(page)
    assert found, f"no block of {page} is marked"
    for number, (code, commands) in enumerate(found, 1):

        def run(bench, commands=commands):
            prepare(bench)
            ended = bench.run("bash", "-ec", commands, on=on, **environment)
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
