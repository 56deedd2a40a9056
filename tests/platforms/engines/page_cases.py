"""The commands of docs/platforms/engines.md: each block that is marked runs as it stands, on both hosts.

`<!-- test -->` before a block means that it ends with 0 on both, `<!-- test: NAME -->` with that environment.
`<!-- file: NAME -->` before a block makes it a file of the folder.
"""

import ast
import os
import re
import shutil
import subprocess

from accelerate_cases import text
from case import case, expect
from job import HOSTS, MASTER, RANK, python, short

DOCS = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "docs", "platforms"))
BLOCK = re.compile(r"^<!-- test(?:: (\w+))? -->\n```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^<!-- file: (\S+) -->\n```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROFILE = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def read(page):
    with open(os.path.join(DOCS, page)) as file:
        return file.read()


PAGE, CHINESE = read("engines.md"), read("engines.zh-CN.md")


def add(environment, commands):
    @case("docs/platforms/engines.md", commands.split("\n")[0], 0)
    def run(bench):
        shutil.copy(RANK, bench.path("train.py"))
        for name, content in FILE.findall(PAGE):
            bench.write(name, content)
        bench.write("accelerate.toml", PROFILE.search(PAGE).group(1))
        bench.write("accelerate.yaml", text("MULTI_GPU"))
        # Variables that a platform gives to each of two nodes; these have no GPUs.
        path = f"{os.path.dirname(python(environment or 'newest'))}:{bench.environment['PATH']}"
        bench.environment = {name: value for name, value in bench.environment.items() if not name.startswith("RANKLAUNCH_")}
        bench.environment.update(RANKLAUNCH_DEVICE="cpu", RANKLAUNCH_STALE="off", HF_HOME=bench.folder, PATH=path,
                                 RANKLAUNCH_LOG_DIR=bench.path("logs"), OMP_NUM_THREADS="1",
                                 WORLD_SIZE="2", MASTER_ADDR=MASTER, MASTER_PORT=str(bench.port))
        nodes = [bench.start("bash", "-ec", commands, on=host, RANK=str(rank)) for rank, host in enumerate(HOSTS)]
        codes = [one.wait(150) for one in nodes]
        expect(codes == [0, 0], f"ended with {codes}")
        if " plan " not in commands:
            for rank in range(4):
                bench.says(f"rank {rank} of 4 on ")
        return 0


for block in BLOCK.findall(PAGE):
    add(*block)


@case("docs/platforms/engines.md", "the same commands in Chinese", 0)
def chinese(_bench):
    for pattern in (BLOCK, FILE, PROFILE):
        expect(pattern.findall(PAGE) and pattern.findall(PAGE) == pattern.findall(CHINESE), f"other blocks: {pattern.pattern}")
    return 0


@case("docs/guide/migration.md", "every option of the installed deepspeed is in its table", 0)
@short
def options_of_deepspeed(_bench):
    # Its parser is read and not asked: that would import torch.
    find = "import importlib.util; print(importlib.util.find_spec('deepspeed').submodule_search_locations[0])"
    package = subprocess.run([python("deepspeed"), "-c", find], capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    with open(os.path.join(package, "launcher", "runner.py")) as file:
        calls = [node for node in ast.walk(ast.parse(file.read())) if isinstance(node, ast.Call)]
    added = [call.args for call in calls if getattr(call.func, "attr", "") == "add_argument"]
    options = {word.value for words in added for word in words if isinstance(word, ast.Constant) and word.value.startswith("--")}
    expect(len(options) > 15, f"found {options}")
    section = read("../guide/migration.md").partition("\n## deepspeed\n")[2].partition("\n## ")[0]
    listed = {name.replace("-", "_") for name in re.findall(r"`(--[\w-]+)`", section)}
    missing = {name for name in options if name.replace("-", "_") not in listed}
    expect(not missing, f"not in the table: {sorted(missing)}")
    return 0
