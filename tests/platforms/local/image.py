"""A small image with python and ranklaunch, made of this machine's own files: no registry is needed.

It has a shell, this python with its standard library, and the libraries that both are linked with.
"""

import os
import re
import shutil
import subprocess
import sys

LEFT_OUT = shutil.ignore_patterns("__pycache__", "test", "tests", "idlelib", "tkinter", "ensurepip", "lib2to3",
                                  "site-packages", "dist-packages", "config-*", "_test*", "_tkinter*")
HOSTS = "127.0.0.1 localhost\n"
USERS = "root:x:0:0:root:/root:/bin/sh\n"


def libraries(file):
    """The libraries that a program or a library is linked with, its loader among them."""
    said = subprocess.run(["ldd", file], capture_output=True, text=True).stdout
    return re.findall(r"(/\S+) \(0x", said)


def make(root, executable):
    """Fills a folder with the image's files."""
    for folder in ("bin", "dev", "etc", "proc", "root", "sys", "tmp", "workspace", "usr/local/bin", "usr/local/lib"):
        os.makedirs(os.path.join(root, folder))
    os.symlink("../bin", os.path.join(root, "usr/bin"))
    for name, text in (("hosts", HOSTS), ("passwd", USERS)):
        with open(os.path.join(root, "etc", name), "w") as file:
            file.write(text)
    python = os.path.realpath(sys.executable)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = os.path.join(root, "usr/local/lib", version)
    shutil.copytree(os.path.dirname(os.__file__), library, ignore=LEFT_OUT, symlinks=True)
    os.makedirs(os.path.join(library, "site-packages"), exist_ok=True)
    programs = {"/bin/sh": "bin/sh", shutil.which("cat"): "bin/cat", shutil.which("sleep"): "bin/sleep",
                python: f"usr/local/bin/{version}", executable: "usr/local/bin/ranklaunch"}
    for source, place in programs.items():
        shutil.copy(os.path.realpath(source), os.path.join(root, place))
    os.symlink(version, os.path.join(root, "usr/local/bin/python3"))
    modules = os.path.join(library, "lib-dynload")
    loaded = [os.path.join(modules, name) for name in os.listdir(modules)] if os.path.isdir(modules) else []
    for file in [*programs, *loaded]:
        for needed in libraries(file):
            place = os.path.join(root, needed.lstrip("/"))
            os.makedirs(os.path.dirname(place), exist_ok=True)
            if not os.path.exists(place):
                shutil.copy(os.path.realpath(needed), place)


def imported(work, executable, *command):
    """Makes the image by a command that reads a tar file: `docker import FILE NAME`, `podman import FILE NAME`."""
    name = f"ranklaunch-platforms-{os.getpid()}:{command[0]}"
    root, tar = os.path.join(work, "root"), os.path.join(work, "root.tar")
    make(root, executable)
    subprocess.run(["tar", "-C", root, "-cf", tar, "."], check=True)
    shutil.rmtree(root)
    subprocess.run([*command, "import", "-c", "ENV PATH=/usr/local/bin:/usr/bin:/bin", tar, name], check=True,
                   capture_output=True)
    os.remove(tar)
    return name
