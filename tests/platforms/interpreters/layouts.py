"""Environments of conda, mamba and pixi, laid out as these tools make them.

An environment has an interpreter of its own (a file, not a link), its library below lib/pythonX.Y, and
conda-meta/history. Here the library's files are links to this python's, except for site-packages.
"""

import json
import os
import shutil
import sys

VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"


def environment(prefix):
    """An environment with python, and gives its prefix."""
    library = os.path.join(prefix, "lib", VERSION)
    os.makedirs(os.path.join(library, "site-packages"))
    os.makedirs(os.path.join(prefix, "bin"))
    base = os.path.dirname(os.__file__)
    for name in os.listdir(base):
        if name not in ("site-packages", "dist-packages", "__pycache__"):
            os.symlink(os.path.join(base, name), os.path.join(library, name))
    shutil.copy(os.path.realpath(sys.executable), os.path.join(prefix, "bin", VERSION))
    for name in ("python3", "python"):
        os.symlink(VERSION, os.path.join(prefix, "bin", name))
    meta(prefix)
    return prefix


def meta(prefix):
    write(os.path.join(prefix, "conda-meta", "history"), "")


def tools_only(prefix):
    """An environment without python, which is one as well."""
    os.makedirs(os.path.join(prefix, "bin"))
    meta(prefix)
    return prefix


def root(prefix):
    """An installation of conda: its base environment and its program."""
    environment(prefix)
    # It must never be started: that takes a second, and starts python.
    program(os.path.join(prefix, "bin", "conda"), f"touch {prefix}/conda-was-started")
    return prefix


def variables(prefix, packages, stored):
    """Variables of packages, and of `conda env config vars set`."""
    write(os.path.join(prefix, "etc/conda/env_vars.d", "package.json"), json.dumps(packages))
    write(os.path.join(prefix, "conda-meta", "state"), json.dumps({"version": 1, "env_vars": stored}))


def script(prefix, name, text):
    write(os.path.join(prefix, "etc/conda/activate.d", name), text)


def stub_torch(site):
    """What proves torch by its files, for plans only."""
    write(os.path.join(site, "torch", "__init__.py"), "")
    write(os.path.join(site, "torch", "version.py"), "__version__ = '2.6.0'\ncuda = None\n")


def program(path, text):
    write(path, f"#!/bin/sh\n{text}\n")
    os.chmod(path, 0o755)


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)
    return path
