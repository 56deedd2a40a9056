"""A user of this machine, and which interpreter is theirs."""

import json
import os
import subprocess
import sys

import layouts
from case import LeftOut, Wrong, expect

TOOLS = os.environ.get("INTERPRETER_TOOLS", "")
SYSTEM = "/usr/bin:/bin"
ASK = "import sys; print(sys.executable)"
# Files that only a login shell or an interactive one reads.
OF_LOGIN = [".bash_profile", ".bash_login", ".profile", ".bashrc", ".zshenv", "bash_env"]
RANK = "import os\nprint('rank', *(f'{name}={os.environ.get(name)}' for name in os.environ['ASKED'].split()))\n"


class User:
    """A user's home and project in the folder of a case, with an environment of their own."""

    def __init__(self, bench, path=SYSTEM):
        self.bench = bench
        self.home, self.project = bench.path("home"), bench.path("project")
        os.makedirs(self.home)
        os.makedirs(self.project)
        for name in OF_LOGIN:
            layouts.write(os.path.join(self.home, name), f"touch {self.home}/login-shell-was-started\n")
        layouts.write(os.path.join(self.project, "train.py"), RANK)
        # For cases in which the machine's first python has no part.
        self.own = os.path.dirname(sys.executable)
        bench.environment = {
            "HOME": self.home, "PATH": f"{bench.work}/bin:{path}", "LANG": "C.UTF-8", "RANKLAUNCH_LANG": "en",
            "BASH_ENV": os.path.join(self.home, "bash_env"), "UV_OFFLINE": "1", "UV_PYTHON_DOWNLOADS": "never",
            "UV_CACHE_DIR": os.path.join(self.home, "uv"), "RANKLAUNCH_DEVICE": "cpu",
        }

    def tool(self, *command, cwd=None, **environment):
        """What a command prints; it must succeed."""
        said = subprocess.run(command, cwd=cwd or self.project, env={**self.bench.environment, **environment},
                              capture_output=True, text=True, timeout=120)
        if said.returncode:
            raise Wrong(f"{' '.join(command)} ended with {said.returncode}: {said.stderr[-600:]}")
        return said.stdout.strip()

    def plan(self, *options, before=(), cwd=None, script="train.py", engine="direct", **environment):
        """The plan, or the text of the refusal."""
        command = [*before, "ranklaunch", "plan", "--format", "json", "--engine", engine, *options, "--", script]
        return json.loads(self.tool(*command, cwd=cwd, **environment))

    def refused(self, *options, engine="direct", script="train.py", cwd=None, **environment):
        """What the refused launch prints."""
        self.bench.outputs.append(f"refused-{len(self.bench.outputs)}.txt")
        with open(self.bench.path(self.bench.outputs[-1]), "w") as output:
            ended = subprocess.run(["ranklaunch", "run", "--engine", engine, *options, "--", script],
                                   cwd=cwd or self.project, env={**self.bench.environment, **environment},
                                   stdout=output, stderr=subprocess.STDOUT, timeout=60)
        expect(ended.returncode == 67, f"ended with {ended.returncode} in place of 67")
        return self.bench.read(self.bench.outputs[-1])

    def rank(self, *options, asked, **environment):
        """The line of a rank that prints variables."""
        environment = {**environment, "ASKED": " ".join(asked)}
        text = self.tool("ranklaunch", "run", "--engine", "direct", *options, "--", "train.py", **environment)
        lines = [line for line in text.splitlines() if "rank " in line and "=" in line]
        expect(len(lines) == 1, f"one line of the rank: {text}")
        return dict(pair.split("=", 1) for pair in lines[0].split("rank ", 1)[1].split())

    def no_login_shell(self):
        expect(not os.path.exists(os.path.join(self.home, "login-shell-was-started")), "a login shell was started")


def interpreter(plan):
    found = [one for one in plan["decisions"] if one["what"] == "python"]
    expect(len(found) == 1, f"one interpreter: {found}")
    return found[0]["value"]


def same(planned, ran):
    """The same file in the same environment. python and python3 of a folder are one installation."""
    expect((os.path.dirname(planned), os.path.realpath(planned)) == (os.path.dirname(ran), os.path.realpath(ran)),
           f"planned {planned}, but the tool runs {ran}")
    return 0


def tool(name):
    path = os.path.join(TOOLS, name)
    if not os.access(path, os.X_OK):
        raise LeftOut(f"{name} is not installed: INTERPRETER_TOOLS")
    return path


def venv(user, path, *options):
    user.tool(sys.executable, "-m", "venv", "--without-pip", *options, path)
    return path
