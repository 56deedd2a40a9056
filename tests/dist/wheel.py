#!/usr/bin/env python3
"""Fails unless a wheel holds what its name and the release say: wheel.py WHEEL EXECUTABLE SBOM VERSION."""
import base64
import hashlib
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

file, executable, bill, version = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
wheel = zipfile.ZipFile(file)
info = f"ranklaunch-{version}.dist-info"
script = f"ranklaunch-{version}.data/scripts/ranklaunch"
read = lambda name: wheel.read(name)
words = lambda name: Parser().parsestr(read(f"{info}/{name}").decode())

assert read(script) == executable.read_bytes(), f"{script} is not {executable.name}"
assert wheel.getinfo(script).external_attr >> 16 & 0o777 == 0o755, "its mode"
assert read(f"{info}/sboms/ranklaunch.cdx.json") == bill.read_bytes(), f"it has another SBOM than {bill.name}"
assert b"GNU C Library" in read(f"{info}/licenses/third-party.txt") and b"MIT" in read(f"{info}/licenses/LICENSE")

about = words("METADATA")
assert (about["Name"], about["Version"], about["License-Expression"]) == ("ranklaunch", version, "MIT"), about.items()
assert about["Summary"] and about["Requires-Python"] == ">=3.6" and "pip install ranklaunch" in about.get_payload(), about.items()
assert not about.get_all("Requires-Dist"), "it depends on a package"

arch = executable.name.removesuffix("-linux").rsplit("-", 1)[1]
tags = {f"py3-none-{system}_{arch}" for system in ("manylinux2014", "manylinux_2_17", "musllinux_1_1")}
assert set(words("WHEEL").get_all("Tag")) == tags, words("WHEEL").items()
python, abi, systems = file.stem.split("-")[2:]
assert {f"{python}-{abi}-{system}" for system in systems.split(".")} == tags, file.name

listed = [line.split(",") for line in read(f"{info}/RECORD").decode().splitlines()]
assert sorted(name for name, *_ in listed) == sorted(wheel.namelist()), "RECORD names other files"
for name, sum, _ in listed[:-1]:
    right = base64.urlsafe_b64encode(hashlib.sha256(read(name)).digest()).rstrip(b"=").decode()
    assert sum == f"sha256={right}", f"{name}: {sum} in RECORD"
moments = {one.date_time for one in wheel.infolist()}
assert len(moments) == 1, f"several times: {moments}"
print(f"wheel for {arch}: {len(listed)} files, {file.stat().st_size} bytes, the executable of the archive, tags of glibc and musl")
