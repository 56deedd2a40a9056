"""conda, mamba and pixi, by environments laid out as they make them (layouts.py)."""

import glob
import os

import layouts
from case import case, expect
from user import ASK, User, interpreter, same


def conda(bench):
    """A user with an installation that only CONDA_EXE names, and two environments."""
    user = User(bench)
    place = layouts.root(os.path.join(user.home, "somewhere", "conda"))
    layouts.environment(f"{place}/envs/train")
    layouts.tools_only(f"{place}/envs/tools")
    bench.environment["CONDA_EXE"] = f"{place}/bin/conda"
    return user, place


def is_planned(user, name, prefix, **environment):
    """`--conda-env` plans the interpreter of the environment, and conda itself is not started."""
    ran = user.tool(f"{prefix}/bin/python", "-c", "import sys; print(sys.prefix)")
    expect(ran == prefix, f"the interpreter says that its prefix is {ran}")
    plan = user.plan("--conda-env", name, **environment)
    same(interpreter(plan), f"{prefix}/bin/python")
    expect(not glob.glob(f"{user.home}/**/conda-was-started", recursive=True), "conda was started")
    user.no_login_shell()
    return plan


@case("interpreters", "conda (its layout): by name in the installation of CONDA_EXE, and base", 0)
def conda_by_name(bench):
    user, place = conda(bench)
    is_planned(user, "train", f"{place}/envs/train")
    is_planned(user, "base", place)
    return 0


@case("interpreters", "conda (its layout): CONDA_ENVS_PATH, CONDA_ENVS_DIRS and envs_dirs of .condarc", 0)
def conda_folders(bench):
    user, place = conda(bench)
    lists = [("CONDA_ENVS_PATH", "{}:/nowhere"), ("CONDA_ENVS_DIRS", "/nowhere:{}")]
    for number, (variable, value) in enumerate(lists):
        folder = os.path.join(user.home, f"folder-{number}")
        is_planned(user, "other", layouts.environment(f"{folder}/other"), **{variable: value.format(folder)})
    for file in (".condarc", ".config/conda/.condarc", ".mambarc", "named.yaml"):
        folder = os.path.join(user.home, f"of-{file.replace('/', '-')}")
        prefix = layouts.environment(f"{folder}/other")
        layouts.write(os.path.join(user.home, file), f"channels:\n  - conda-forge\nenvs_dirs:\n  - {folder}\n")
        named = {"CONDARC": os.path.join(user.home, file)} if file == "named.yaml" else {}
        is_planned(user, "other", prefix, **named)
        os.remove(os.path.join(user.home, file))
    # The variable comes before the file, and both before the installation's own folder.
    first = layouts.environment(os.path.join(user.home, "first/train"))
    second = layouts.environment(os.path.join(user.home, "second/train"))
    layouts.write(os.path.join(user.home, ".condarc"), f"envs_dirs: ['{os.path.dirname(second)}']\n")
    is_planned(user, "train", second)
    is_planned(user, "train", first, CONDA_ENVS_DIRS=os.path.dirname(first))
    return 0


@case("interpreters", "conda (its layout): ~/.conda/environments.txt, and a path in place of a name", 0)
def conda_noted(bench):
    user, _place = conda(bench)
    prefix = layouts.environment(os.path.join(user.home, "far/away"))
    layouts.write(os.path.join(user.home, ".conda/environments.txt"), f"{prefix}\n")
    is_planned(user, "away", prefix)
    is_planned(user, prefix, prefix)
    is_planned(user, "~/far/away", prefix)
    return 0


@case("interpreters", "micromamba (its layout): MAMBA_ROOT_PREFIX", 0)
def micromamba(bench):
    user = User(bench)
    place = os.path.join(user.home, "mamba")
    prefix = layouts.environment(f"{place}/envs/train")
    is_planned(user, "train", prefix, MAMBA_ROOT_PREFIX=place)
    return 0


@case("interpreters", "pixi (its layout): what pixi run sets is enough, and so is the path", 0)
def pixi(bench):
    user = User(bench)
    prefix = layouts.environment(os.path.join(user.project, ".pixi/envs/default"))
    running = {"CONDA_PREFIX": prefix, "CONDA_DEFAULT_ENV": "job", "PIXI_PROJECT_ROOT": user.project,
               "PIXI_ENVIRONMENT_NAME": "default", "PATH": f"{prefix}/bin:{bench.environment['PATH']}"}
    same(interpreter(user.plan(**running)), user.tool("python", "-c", ASK, **running))
    is_planned(user, ".pixi/envs/default", prefix)
    return 0


@case("interpreters", "conda (its layout): an environment that is missing lists those that exist", 67)
def conda_missing(bench):
    user, place = conda(bench)
    folders = [os.path.join(user.home, name) for name in ("by-path", "by-dirs", "by-file")]
    for number, folder in enumerate(folders):
        layouts.environment(f"{folder}/env-{number}")
    away = layouts.environment(os.path.join(user.home, "far/away"))
    layouts.write(os.path.join(user.home, ".condarc"), f"envs_dirs:\n  - {folders[2]}\n")
    layouts.write(os.path.join(user.home, ".conda/environments.txt"), f"{away}\n{user.home}/removed\n")
    for name, problem in (("trian", "there is no conda environment trian"),
                          (f"{user.home}/nope", f"there is no folder {user.home}/nope"),
                          (user.home, f"there is no bin/python in {user.home}")):
        said = user.refused("--conda-env", name, CONDA_ENVS_PATH=folders[0], CONDA_ENVS_DIRS=folders[1])
        for text in (problem, f"train in {place}", f"env-0 in {folders[0]}", f"env-1 in {folders[1]}",
                     f"env-2 in {folders[2]}", away):
            expect(text in said, f"not said of {name}: {text}")
        for absent in ("removed", "tools"):
            expect(absent not in said, f"{absent} is no environment with python")
    # Without python it is another mistake.
    expect("which has no bin/python" in user.refused("--conda-env", "tools"), "an environment without python")
    user.no_login_shell()
    return 67


@case("interpreters", "conda (its layout): variables of packages, of the user, and of activate.d reach the rank", 0)
def conda_activation(bench):
    user, place = conda(bench)
    prefix = f"{place}/envs/train"
    layouts.variables(prefix, {"PACKAGE": "1", "BOTH": "package", "DROPPED": "1"},
                      {"BOTH": "user", "DROPPED": "***unset***"})
    layouts.script(prefix, "a-first.sh", "echo noise; echo noise >&2\nexport ORDER=a\nlocal_only=1\n")
    layouts.script(prefix, "b-second.sh", 'export ORDER="${ORDER}b" CUDA_HOME="$CONDA_PREFIX/targets"\n'
                                          'export PATH="$CONDA_PREFIX/nvvm/bin:$PATH"\n'
                                          'list=(1 2)\nexport COUNT=${#list[@]}\n')
    layouts.script(prefix, "c.fish", "set -x FISH 1\n")
    asked = ["PACKAGE", "BOTH", "DROPPED", "ORDER", "CUDA_HOME", "COUNT", "FISH", "local_only", "CONDA_DEFAULT_ENV",
             "CONDA_PREFIX", "PATH"]
    found = user.rank("--conda-env", "train", asked=asked)
    path = found.pop("PATH")
    expect(path.startswith(f"{prefix}/nvvm/bin:{prefix}/bin:"), f"PATH is {path}")
    expected = {"PACKAGE": "1", "BOTH": "user", "DROPPED": "None", "ORDER": "ab", "CUDA_HOME": f"{prefix}/targets",
                "COUNT": "2", "FISH": "None", "local_only": "None", "CONDA_DEFAULT_ENV": "train",
                "CONDA_PREFIX": prefix}
    expect(found == expected, f"the rank has {found}")
    # The user's own setting is stronger, and an active environment is not activated again.
    found = user.rank("--conda-env", "train", "--env", "CUDA_HOME=/mine", asked=["CUDA_HOME"])
    expect(found == {"CUDA_HOME": "/mine"}, f"the rank has {found}")
    found = user.rank("--conda-env", "train", asked=["ORDER"], CONDA_PREFIX=prefix, ORDER="as-it-was")
    expect(found == {"ORDER": "as-it-was"}, f"the rank has {found}")
    user.no_login_shell()
    return 0


@case("interpreters", "conda (its layout): an activation script that fails is said, and does not stop the job", 0)
def conda_bad_script(bench):
    user, place = conda(bench)
    layouts.script(f"{place}/envs/train", "bad.sh", "exit 7\n")
    plan = is_planned(user, "train", f"{place}/envs/train")
    said = [one["text"] for one in plan["warnings"] if one["id"] == "python.environment"]
    expect(len(said) == 1 and "bad.sh" in said[0], f"warnings: {said}")
    found = user.rank("--conda-env", "train", asked=["CONDA_DEFAULT_ENV"])
    expect(found == {"CONDA_DEFAULT_ENV": "train"}, f"the rank has {found}")
    return 0


@case("interpreters", "conda (its layout): an activation script that never ends is given up", 0, seconds=25)
def conda_hung_script(bench):
    user, place = conda(bench)
    layouts.script(f"{place}/envs/train", "hung.sh", f"sleep 3600 & echo $! >{user.home}/pid; wait\n")
    plan = is_planned(user, "train", f"{place}/envs/train")
    said = [one["text"] for one in plan["warnings"] if one["id"] == "python.environment"]
    expect(len(said) == 1 and "hung.sh" in said[0], f"warnings: {said}")
    with open(os.path.join(user.home, "pid")) as file:
        pid = file.read().strip()
    expect(not os.path.exists(f"/proc/{pid}"), "the script still runs")
    return 0
