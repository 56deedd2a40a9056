"""The planned interpreter is the one that the tool itself runs."""

import glob
import json
import os
import re
import shutil
import subprocess
import sys

import layouts
from case import LeftOut, case, expect
from conda_cases import conda
from user import ASK, RANK, SYSTEM, User, interpreter, same, tool, venv

AT_ONCE = 4
HERE = os.path.dirname(os.path.abspath(__file__))
PAGE = os.path.join(HERE, "..", "..", "..", "docs", "platforms", "interpreters")


def finish():
    """Nothing was made outside of the cases' folders."""


# uv, venv, virtualenv


@case("interpreters", "uv run, in a project that it makes the environment of", 0)
def uv_run(bench):
    user = User(bench, f"{os.path.dirname(sys.executable)}:{SYSTEM}")
    uv = tool("uv")
    user.tool(uv, "init", "--bare", "--name", "job", ".")
    ran = user.tool(uv, "run", "python", "-c", ASK)
    expect(ran.startswith(f"{user.project}/.venv/"), f"uv runs {ran}")
    return same(interpreter(user.plan(before=[uv, "run"])), ran)


@case("interpreters", "uv run, with UV_PROJECT_ENVIRONMENT", 0)
def uv_elsewhere(bench):
    user = User(bench, f"{os.path.dirname(sys.executable)}:{SYSTEM}")
    uv, place = tool("uv"), os.path.join(user.home, "job-environment")
    user.tool(uv, "init", "--bare", "--name", "job", ".")
    ran = user.tool(uv, "run", "python", "-c", ASK, UV_PROJECT_ENVIRONMENT=place)
    expect(ran.startswith(place), f"uv runs {ran}")
    return same(interpreter(user.plan(before=[uv, "run"], UV_PROJECT_ENVIRONMENT=place)), ran)


@case("interpreters", "uv venv, activated", 0)
def uv_venv(bench):
    user = User(bench)
    user.tool(tool("uv"), "venv", "--python", sys.executable, "environment")
    return activated(user, "environment")


@case("interpreters", "venv of the standard library, activated", 0)
def plain_venv(bench):
    user = User(bench)
    venv(user, "environment")
    return activated(user, "environment")


@case("interpreters", "virtualenv, activated", 0)
def plain_virtualenv(bench):
    user = User(bench)
    user.tool(tool("virtualenv"), "--python", sys.executable, "--no-download", "environment")
    return activated(user, "environment")


def activated(user, folder):
    line = f". {folder}/bin/activate; "
    ran = user.tool("sh", "-c", f"{line} python -c '{ASK}'")
    plan = json.loads(user.tool("sh", "-c", f"{line} ranklaunch plan --format json --engine direct -- train.py"))
    return same(interpreter(plan), ran)


@case("interpreters", "only the folder of a virtual environment on PATH", 0)
def only_path(bench):
    user = User(bench)
    place = venv(user, os.path.join(user.project, "environment"))
    path = f"{place}/bin:{bench.environment['PATH']}"
    plan = user.plan(PATH=path)
    found = user.rank(asked=["VIRTUAL_ENV"], PATH=path)
    expect(found == {"VIRTUAL_ENV": place}, f"the rank has {found}")
    return same(interpreter(plan), user.tool("python", "-c", ASK, PATH=path))


# Environments that are gone, or that nobody activated


@case("interpreters", "a VIRTUAL_ENV that is gone is said, and PATH is used", 0)
def stale(bench):
    user = User(bench)
    place, gone = venv(user, os.path.join(user.project, "environment")), os.path.join(user.project, "gone")
    plan = user.plan(VIRTUAL_ENV=gone, PATH=f"{place}/bin:{bench.environment['PATH']}")
    said = [one["text"] for one in plan["warnings"] if one["id"] == "python.environment"]
    expect(len(said) == 1 and f"VIRTUAL_ENV={gone}" in said[0] and place in said[0], f"warnings: {said}")
    usual = user.plan(VIRTUAL_ENV=place)
    expect(not [one for one in usual["warnings"] if one["id"] == "python.environment"], "said without a reason")
    return same(interpreter(plan), f"{place}/bin/python")


@case("interpreters", "a virtual environment whose base was removed is said", 0)
def dangling(bench):
    user = User(bench)
    base = layouts.environment(os.path.join(user.home, "base"))
    place = os.path.join(user.project, "environment")
    user.tool(f"{base}/bin/python", "-m", "venv", "--without-pip", place)
    user.tool(f"{place}/bin/python", "-c", ASK)
    shutil.rmtree(base)
    plan = user.plan(VIRTUAL_ENV=place, PATH=f"{bench.work}/bin:{place}/bin:{os.path.dirname(sys.executable)}:{SYSTEM}")
    said = [one["text"] for one in plan["warnings"] if one["id"] == "python.environment"]
    expect(len(said) == 1 and f"VIRTUAL_ENV={place}" in said[0], f"warnings: {said}")
    return same(interpreter(plan), sys.executable)


def hint(bench, place, script="train.py", cwd=None, make=venv):
    """An interpreter without torch is chosen; the environment at `place` has it."""
    user = User(bench)
    empty = venv(user, os.path.join(user.home, "empty"))
    place = os.path.join(user.project, place)
    make(user, place)
    for site in glob.glob(f"{place}/lib/python*/site-packages"):
        layouts.stub_torch(site)
    if script != "train.py":
        layouts.write(os.path.join(user.project, script), RANK)
    named = os.path.relpath(script, cwd) if cwd else script
    said = user.refused(engine="torchrun", script=named, cwd=cwd and os.path.join(user.project, cwd),
                        PATH=f"{empty}/bin:{bench.environment['PATH']}")
    expect(f"{empty}/bin/python" in said and "has no torch" in said, "it says which interpreter has no torch")
    expect(f"--python {place}/bin/python has it" in said, f"no hint of {place}: {said}")
    # Without torch there it is no hint.
    for site in glob.glob(f"{place}/lib/python*/site-packages"):
        shutil.rmtree(os.path.join(site, "torch"))
    said = user.refused(engine="torchrun", script=named, cwd=cwd and os.path.join(user.project, cwd),
                        PATH=f"{empty}/bin:{bench.environment['PATH']}")
    expect(place not in said, f"a hint of {place}, which has no torch either")
    user.no_login_shell()
    return 0


@case("interpreters", ".venv in the working directory, not activated: a hint names it", 0)
def hint_here(bench):
    return hint(bench, ".venv")


@case("interpreters", ".venv beside the script, not activated: a hint names it", 0)
def hint_beside(bench):
    return hint(bench, "code/.venv", script="code/train.py")


@case("interpreters", ".venv above the working directory, not activated: a hint names it", 0)
def hint_above(bench):
    return hint(bench, ".venv", script="deep/down/train.py", cwd="deep/down")


@case("interpreters", "an environment of pixi in the project (its layout), not activated: a hint names it", 0)
def hint_pixi(bench):
    return hint(bench, ".pixi/envs/default", make=lambda _user, place: layouts.environment(place))


@case("interpreters", "no python in PATH at all: a hint names .venv", 67)
def no_python(bench):
    user = User(bench, bench.path("nothing"))
    os.makedirs(bench.path("nothing"))
    venv(user, os.path.join(user.project, ".venv"))
    said = user.refused()
    expect(f"--python {user.project}/.venv/bin/python" in said, "a hint of .venv")
    return 67


# pyenv, environment modules


@case("interpreters", "pyenv: its shims run what PYENV_VERSION, .python-version or the global version says", 0)
def pyenv(bench):
    place = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    versions = [name for name in sorted(os.listdir(f"{place}/versions"))
                if name.startswith("3.")] if os.path.isdir(f"{place}/versions") else []
    if not os.access(f"{place}/shims/python3", os.X_OK) or not versions:
        raise LeftOut(f"{place} has no shims, or no versions")
    user = User(bench, f"{place}/shims:{place}/bin:{SYSTEM}")
    bench.environment["PYENV_ROOT"] = place
    for version in versions[:3]:
        ways = [({"PYENV_VERSION": version}, None)]
        layouts.write(os.path.join(user.project, version, ".python-version"), f"{version}\n")
        ways.append(({}, os.path.join(user.project, version)))
        for environment, cwd in ways:
            script = os.path.join(user.project, "train.py")
            ran = user.tool("python3", "-c", ASK, cwd=cwd, **environment)
            expect(version in ran, f"pyenv runs {ran} for {version}")
            same(interpreter(user.plan(cwd=cwd, script=script, **environment)), ran)
    return same(interpreter(user.plan()), user.tool("python3", "-c", ASK))


@case("interpreters", "environment modules: module load puts the interpreter on PATH", 0)
def modules(bench):
    command = shutil.which("modulecmd") or next(iter(glob.glob("/usr/lib/*/modulecmd.tcl")), None)
    if not command:
        raise LeftOut("environment modules are not installed")
    user = User(bench)
    place = layouts.environment(os.path.join(user.home, "apps/python"))
    layouts.write(os.path.join(user.home, "modulefiles/python/3"),
                  f"#%Module1.0\nprepend-path PATH {place}/bin\nsetenv PYTHON_ROOT {place}\n")
    load = f'eval "$({command} sh load python/3)"; '
    bench.environment["MODULEPATH"] = os.path.join(user.home, "modulefiles")
    ran = user.tool("sh", "-c", f"{load} python3 -c '{ASK}'")
    expect(ran.startswith(place), f"the module runs {ran}")
    said = user.tool("sh", "-c", f"{load} ranklaunch plan --format json --engine direct -- train.py")
    return same(interpreter(json.loads(said)), ran)


# docs/platforms/interpreters.md: `<!-- test -->`, another exit code, or what has to be installed


BLOCK = re.compile(r"^<!-- test(?:: (\d+))?( modules)? -->\n```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language):
    with open(f"{PAGE}{language}.md") as file:
        return BLOCK.findall(file.read())


@case("interpreters", "docs/platforms/interpreters.md has the same commands in Chinese", 0)
def same_commands(_bench):
    expect(blocks("") and blocks("") == blocks(".zh-CN"), "interpreters.zh-CN.md has other commands")
    return 0


def add(number, code, needs, commands):
    first = commands.split("\n")[0]

    @case("interpreters", f"docs/platforms/interpreters.md, block {number}: {first}", int(code or 0))
    def block(bench):
        user, _conda = conda(bench)
        bench.environment["PATH"] += f":{os.path.dirname(tool('uv'))}"
        bench.environment.update(ASKED="HOME", MODULEPATH=os.path.join(user.home, "modulefiles"))
        venv(user, os.path.join(user.project, ".venv"))
        layouts.environment(os.path.join(user.project, ".pixi/envs/default"))
        layouts.write(os.path.join(user.project, "ranklaunch.toml"), '[job]\nengine = "direct"\n')
        layouts.write(os.path.join(user.home, "modulefiles/python/3"),
                      f"#%Module1.0\nprepend-path PATH {user.project}/.venv/bin\n")
        if "uv run" in commands:
            user.tool(tool("uv"), "init", "--bare", "--name", "job", ".")
        initialised = "/usr/share/modules/init/bash"
        if needs and not os.path.exists(initialised):
            raise LeftOut("environment modules are not installed")
        define = f". {initialised}\n" if needs else ""
        bench.outputs.append("block.txt")
        with open(bench.path("block.txt"), "w") as output:
            ended = subprocess.run(["bash", "-c", f"{define}set -e\n{commands}"], cwd=user.project,
                                   env=bench.environment, stdout=output, stderr=subprocess.STDOUT,
                                   timeout=120).returncode
        if not ended and " plan " not in commands:
            bench.says("done: all ranks ended with code 0")
        return ended


for at, (ends, needed, lines) in enumerate(blocks(""), 1):
    add(at, ends, needed, lines)
