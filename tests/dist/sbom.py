#!/usr/bin/env python3
"""Fails unless an SBOM lists what is linked: sbom.py BILL ROOT EXECUTABLE.

Two other witnesses: `cargo tree`, and the crates whose paths the executable itself holds.
"""
import hashlib
import json
import re
import subprocess
import sys

bill = json.load(open(sys.argv[1]))
main = bill["metadata"]["component"]
target = next(one["value"] for one in main["properties"] if one["name"] == "target")
linked = set()
for package in ("ranklaunch", "node-probe"):
    tree = subprocess.run(["cargo", "tree", "--locked", "--package", package, "--target", target, "--edges", "no-build,no-dev,no-proc-macro", "--prefix", "none",
                           "--format", "{p}"], cwd=sys.argv[2], check=True, stdout=subprocess.PIPE, text=True).stdout
    for line in filter(None, map(str.strip, tree.splitlines())):
        name, version = line.split()[:2]
        linked.add((name, version.removeprefix("v")))
linked.discard(("ranklaunch", main["version"]))
listed = {
    (one["name"], one["version"]) for one in bill["components"] if one.get("purl", "").startswith("pkg:cargo/")
}
if listed != linked:
    sys.exit(f"{sys.argv[1]}: not listed {sorted(linked - listed)}, not linked {sorted(listed - linked)}")
executable = open(sys.argv[3], "rb").read()
inside = {(name.decode(), version.decode()) for name, version in re.findall(rb"registry/src/[^/\0]+/([A-Za-z0-9_-]+?)-(\d+\.\d+\.\d+[^/\0]*)/", executable)}
assert len(inside) > 20, f"only {len(inside)} crates left their paths in {sys.argv[3]}"
if not inside <= listed:
    sys.exit(f"{sys.argv[1]}: in the executable and not listed: {sorted(inside - listed)}")
references = {one["bom-ref"] for one in bill["components"]} | {main["bom-ref"]}
assert all(entry["ref"] in references and set(entry["dependsOn"]) <= references for entry in bill["dependencies"]), "an edge leads nowhere"
assert main["hashes"][0]["content"] == hashlib.sha256(executable).hexdigest(), "of another executable"
without = [one["name"] for one in bill["components"] if not one.get("licenses")]
assert not without, f"without a licence: {without}"
print(f"SBOM: {len(listed)} crates as cargo tree has them, {len(inside)} of them seen in the executable, {len(bill['components']) - len(listed)} libraries of the tools")
