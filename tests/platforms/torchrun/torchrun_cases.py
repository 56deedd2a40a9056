"""What torch's own tests of torchrun look at, and what a script can see besides: arguments, exit codes, signals,
modules, attempts and standard input."""

import json
import os
import shutil
import subprocess

from case import case, expect
from launchers import NAMED, PROBE, PYTHON, SIGNALS, TORCHRUN, compared, port, rows

AT_ONCE = 4
OWN = ["--rdzv-id=x1", "--monitor-interval=1", "--start-method=spawn"]
SHELL = ["sh", "-c", ': >"$PROBE_FOLDER/began-$RANK"']
EXIT = "exit code"
OF_DIRECT = "engine `direct`"


def finish():
    """Nothing was made outside of the cases' folders."""


@compared("a script, four ranks", want=(0, [0, 1, 2, 3]), short=True)
def script(launch):
    return launch.probe(["--nnodes=1", "--nproc-per-node=4", *OWN]), launch.ranks()


@compared("a script with the options of torch.distributed.launch", want=(0, [0, 1]))
def old_options(launch):
    options = ["--nnodes=1", "--nproc-per-node=2", "--master-addr=localhost", f"--master-port={port()}", "--node-rank=0"]
    return launch.probe(options), launch.ranks()


@compared("a shell", want=(0, [0, 1]))
def shell(launch):
    code, _ = launch.run(["--nproc-per-node=2", "--no-python"], SHELL)
    return code, launch.ranks()


@compared("a module that is no python", want=True)
def no_python_with_module(launch):
    if launch.which != TORCHRUN:
        # Typed as it was.
        return launch.bench.run("ranklaunch", "run", "--no-python", "--module", "json.tool") != 0
    return launch.refuses(["--no-python", "--module"], ["json.tool"])


@compared("no number of processes", want=(0, [0]), short=True)
def no_number(launch):
    return launch.probe(["--nnodes=1"]), launch.ranks()


@compared("torchrun's variables", want=(0, [0, 1], True), short=True)
def variables_of_torchrun(launch):
    given = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_RDZV_ID": "x1", "PET_MONITOR_INTERVAL": "1",
             "PET_START_METHOD": "spawn", "PET_NO_PYTHON": "1"}
    refused = launch.refuses([], SHELL, **given, PET_MODULE="1")
    code, _ = launch.run([], SHELL, **given, PET_MODULE="0")
    return code, launch.ranks(), refused


@compared("auto without GPUs", engine="`auto` without GPUs", direct="`auto` without GPUs")
def auto(launch):
    return launch.probe(["--nproc-per-node=auto"]), launch.ranks()


@compared("one process per CPU")
def cpu(launch):
    return launch.probe(["--nproc-per-node=cpu"]), launch.ranks()


for value in ("unknown", "gpu", "xpu", "0", "-1", ""):
    @compared(f"processes per node: '{value}'", want=True, short=value == "gpu")
    def no_such_number(launch, value=value):
        return launch.refuses([f"--nproc-per-node={value}"])


@compared("one to two nodes", want=(0, [0]), engine="nodes `1:2`", direct="nodes `1:2`")
def elastic(launch):
    options = ["--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port()}"]
    if launch.which == TORCHRUN:
        options += ["--rdzv-conf=join_timeout=5,last_call_timeout=1,timeout=5"]
    return launch.probe(options), launch.ranks()


@compared("an exception, with c10d", want=(1, True))
def exception(launch):
    options = ["--nproc-per-node=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port()}", "--max-restarts=0"]
    code, said = launch.run(options, [PROBE, "raise"])
    return code, "RuntimeError: raised by the probe" in said


@compared("standalone", want=(0, [0, 1]))
def standalone(launch):
    return launch.probe(["--standalone", "--nproc-per-node=2"]), launch.ranks()


@compared("a script by its path", want=(0, [0, 1]))
def run_path(launch):
    return launch.probe(["--run-path", "--nproc-per-node=2"]), launch.ranks()


for backend in ("static", "c10d"):
    @compared(f"two nodes by {backend}", want=([0, 0], [0, 1, 2, 3]))
    def two_nodes(launch, backend=backend):
        at = port()
        meet = [f"--rdzv-backend={backend}", f"--rdzv-endpoint=127.0.0.1:{at}", "--rdzv-id=x1"]
        if backend == "static":
            meet = ["--master-addr=127.0.0.1", f"--master-port={at}"]
        nodes = []
        for rank in range(2):
            # c10d of torchrun numbers the nodes itself.
            own = [f"--node-rank={rank}"] if backend == "static" or launch.which != TORCHRUN else []
            logs = os.path.join(launch.folder, f"logs-{rank}")
            nodes.append(launch.start(["--nnodes=2", "--nproc-per-node=2", *own, *meet], [PROBE], RANKLAUNCH_LOG_DIR=logs))
        return [process.wait(120) for process, _ in nodes], launch.ranks()


@compared("etcd, which is not installed", want=True)
def etcd(launch):
    return launch.refuses(["--nproc-per-node=2", "--rdzv-backend=etcd", f"--rdzv-endpoint=localhost:{port()}"])


@compared("is_torchelastic_launched", want=(0, "True"), direct=OF_DIRECT)
def is_torchelastic_launched(launch):
    return launch.probe(["--nproc-per-node=1"], "elastic"), launch.read("elastic-0")


for method in ("tcp", "env"):
    @compared(f"init_process_group by {method}", want=(0, ["1.0", "1.0"]))
    def init_method(launch, method=method):
        at = port()
        options = ["--nproc-per-node=2", "--master-addr=localhost", f"--master-port={at}"]
        code = launch.probe(options, "reduce", f"tcp://localhost:{at}" if method == "tcp" else "env://")
        return code, [launch.read(f"sum-{rank}") for rank in launch.ranks("sum")]


@compared("a prefix of each line", want=["[default0]:words", "[default1]:words"],
          engine="prefix of a line", direct="prefix of a line")
def prefix(launch):
    _, said = launch.run(["--nproc-per-node=2", "--no-python", "--tee=3"], ["sh", "-c", "echo words"])
    return sorted(line for line in said.splitlines() if line.endswith("words"))


@compared("a script that needs --local-rank", want=(True, [0, 1]))
def local_rank(launch):
    return launch.probe(["--nproc-per-node=2"], "local-rank") != 0, launch.ranks()


for number in (1, 3, 77, 255):
    row = None if number == 1 else EXIT

    @compared(f"exit code {number}", want=1, engine=row, direct=row, short=number == 3)
    def exit_code(launch, number=number):
        return launch.probe(["--nproc-per-node=2"], "exit", str(number))


for number in (9, 11, 15, 6):
    @compared(f"killed by signal {number}", want=1, engine=EXIT, direct=EXIT, short=number == 9)
    def killed(launch, number=number):
        return launch.probe(["--nproc-per-node=2"], "kill", str(number))


@compared("two restarts", want=(0, [["2", "2"]] * 3), short=True)
def restarts(launch):
    code = launch.probe(["--nproc-per-node=2", "--max-restarts=2"], "attempts")
    return code, [[launch.read(f"attempt-{attempt}-{rank}") for rank in launch.ranks(f"attempt-{attempt}")]
                  for attempt in range(3)]


@compared("arguments, untouched", short=True)
def arguments(launch):
    words = ["--lr", "1e-4", "--nproc_per_node", "9", "-m", "--", "--nnodes=3", "a b", "", "$HOME", "*", "中文", "-x=1",
             '{"a": {b}}', "'", "\\n", "--help"]
    code = launch.probe(["--nproc-per-node=2"], "words", *words)
    return code, [json.loads(launch.read(f"words-{rank}")) == words for rank in launch.ranks("words")]


@compared("a module", want=(0, [["mod.sub", True]] * 2))
def module(launch):
    folder = os.path.join(launch.folder, "work", "mod", "sub")
    os.makedirs(folder)
    for path in (os.path.dirname(folder), folder):
        open(os.path.join(path, "__init__.py"), "w").close()
    with open(os.path.join(folder, "__main__.py"), "w") as file:
        file.write("import json, os, sys\nfile = open(os.environ['PROBE_FOLDER'] + '/module-' + os.environ['RANK'], 'w')\n"
                   "json.dump([__package__, sys.argv[1:] == ['--a', '1']], file)\n")
    code, _ = launch.run(["--nproc-per-node=2", "-m"], ["mod.sub", "--a", "1"],
                         cwd=os.path.dirname(os.path.dirname(folder)))
    return code, [json.loads(launch.read(f"module-{rank}")) for rank in launch.ranks("module")]


@compared("the paths of a script")
def paths(launch):
    # The same names for each launcher.
    folder = os.path.join(launch.folder, "work")
    os.makedirs(os.path.join(folder, "s"))
    shutil.copy(PROBE, os.path.join(folder, "s", "x.py"))
    with open(os.path.join(folder, "s", "beside.py"), "w") as file:
        file.write("VALUE = 1\n")
    code, _ = launch.run(["--nproc-per-node=1"], ["s/x.py", "paths"], cwd=folder)
    seen = json.loads(launch.read("paths-0"))
    return code, [str(one).replace(launch.folder, "") for one in seen]


@compared("a script that is not there", want=True)
def not_there(launch):
    return launch.refuses(["--nproc-per-node=2"], ["no.py"])


@compared("an exception that @record writes down", want=(1, True))
def record(launch):
    code, said = launch.run(["--nproc-per-node=2"], [PROBE, "record"])
    return code, "ValueError: the cause" in said


for name, number in SIGNALS.items():
    row = "USR1, USR2" if name.startswith("SIGUSR") else None

    @compared(f"{name} to the launcher", engine=row, direct=row, short=name == "SIGTERM",
              want=None if row else ([str(int(number))], [0, 1]))
    def signalled(launch, number=number):
        return launch.signalled(number)


@compared("variables of a rank", direct=OF_DIRECT)
def variables(launch):
    code = launch.probe(["--nproc-per-node=2"], "variables")
    return code, [json.loads(launch.read(f"variables-{rank}")) for rank in launch.ranks("variables")]


@compared("torchrun in a rank", want=(0, ["1.0", "1.0"]))
def nested(launch):
    code = launch.probe(["--nproc-per-node=2"], "nested")
    return code, [launch.read(f"sum-{rank}") for rank in launch.ranks("sum")]


@compared("a pipe as standard input", want=(0, ["True", "True"]), engine="standard input", direct="standard input", short=True)
def standard_input(launch):
    code = launch.probe(["--nproc-per-node=2"], "input", stdin=subprocess.PIPE)
    return code, [launch.read(f"input-{rank}") for rank in launch.ranks("input")]


@case("torchrun", "every difference of the guide has a case, in both languages", 0)
def guide(bench):
    expect(set(rows()) == NAMED, f"rows without a case, or cases without a row: {set(rows()) ^ NAMED}")
    chinese = rows(".zh-CN.md", "### 脚本能看到的差异")
    expect(len(chinese) == len(rows()), f"the Chinese guide has {chinese}")
    expect(os.path.exists(PYTHON), f"{PYTHON} is there")
    return 0
