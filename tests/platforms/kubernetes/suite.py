"""The cases of run.sh: manifests against an API server, and the commands of the page.

What this does not test: webhooks. An operator's own checks and defaults (training-operator's
nprocPerNode "auto", Volcano's queue, KubeRay's head service) run in the operator, not in the server.
"""

from __future__ import annotations

import argparse
import copy
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from server import Refused, Server

REPOSITORY = Path(__file__).resolve().parents[3]
MANIFESTS = REPOSITORY / "packaging" / "kubernetes"
BLOCK = re.compile(r"^<!-- test(?:: (\d+))? -->\n```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Fields of later versions than the server's, which it drops: Kubernetes 1.21, 1.25 and 1.26.
LATER = {"completionMode", "podFailurePolicy"}


class LeftOut(Exception):
    """The case cannot run here; the text says why."""


class Failed(Exception):
    """What was seen, and what was expected."""


def dropped(given, stored, path: str = "") -> list[str]:
    """The fields of `given` that `stored` lacks: names that the schema does not know."""
    if isinstance(given, dict):
        found = []
        for key, value in given.items():
            if not isinstance(stored, dict) or key not in stored:
                if value not in ({}, [], None, ""):
                    found.append(f"{path}.{key}")
            else:
                found += dropped(value, stored[key], f"{path}.{key}")
        return found
    if isinstance(given, list):
        if not isinstance(stored, list) or len(stored) < len(given):
            return [path]
        return [name for at, one in enumerate(given) for name in dropped(one, stored[at], f"{path}[{at}]")]
    return []


def changed(value, change) -> bool:
    """Applies `change(table, key)` to the first key for which it answers True."""
    if isinstance(value, dict):
        return any(change(value, key) or changed(value[key], change) for key in list(value))
    return isinstance(value, list) and any(changed(one, change) for one in value)


def wrong_type(table: dict, key: str) -> bool:
    if type(table[key]) is not int:
        return False
    table[key] = "many"
    return True


def misspelt(table: dict, key: str) -> bool:
    if key not in ("containers", "port", "runtimeRef"):
        return False
    table[f"{key}s"] = table.pop(key)
    return True


class Suite:
    def __init__(self, options):
        self.options, self.results = options, []
        self.work, self.executable = Path(options.work), options.executable
        self.server = None

    def case(self, name: str, run) -> None:
        if self.options.parts and not any(part in name for part in self.options.parts):
            return
        began = time.monotonic()
        try:
            run()
            result = "passed"
        except LeftOut as why:
            result = f"left out: {why}"
        except (Failed, Refused, subprocess.TimeoutExpired) as why:
            result = f"FAILED: {why}"
        self.results.append(result)
        print(f"{name}: {result} ({time.monotonic() - began:.1f} s)", flush=True)

    def all(self) -> int:
        if self.options.without:
            self.case("API server", self.no_server)
        else:
            self.case("API server starts", self.start)
        if self.server:
            try:
                self.definitions()
                for file in sorted(MANIFESTS.glob("*.yaml")):
                    self.manifest(file)
            finally:
                self.server.close()
        self.page()
        if not self.results:
            print(f"no case is called {' or '.join(self.options.parts)}")
            return 2
        passed = self.results.count("passed")
        failed = sum(result.startswith("FAILED") for result in self.results)
        print(f"Kubernetes: {passed} passed, {failed} failed, {len(self.results) - passed - failed} left out")
        return 1 if failed else 0

    def no_server(self) -> None:
        raise LeftOut(self.options.without)

    def start(self) -> None:
        self.server = Server(self.work, Path(self.options.server) / "kube-apiserver")
        answer = self.server.kubectl("get", "--raw", "/readyz")
        if answer != "ok":
            raise Failed(f"/readyz says {answer}")

    def definitions(self) -> None:
        """The operators' own CustomResourceDefinitions, each a case."""
        folder = os.environ.get("RANKLAUNCH_CRDS") or REPOSITORY.parent / "shared" / "crds"
        files = sorted(Path(folder).glob("*.yaml"))
        if not files:
            def none():
                raise LeftOut(f"no CustomResourceDefinition in {folder}; RANKLAUNCH_CRDS names a folder of them")
            self.case("CustomResourceDefinitions", none)
        for file in files:
            self.case(f"{file.name} is served", lambda file=file: self.server.define(file))

    def manifest(self, file: Path) -> None:
        def objects() -> list[dict]:
            try:
                return self.server.objects(file)
            except Refused as why:
                if "no matches for kind" in str(why) or "resource mapping not found" in str(why):
                    kinds = " ".join(re.findall(r"^apiVersion: (\S+/\S+)$", file.read_text(), re.MULTILINE))
                    raise LeftOut(f"no definition of {kinds} is loaded") from None
                raise

        def accepted():
            for one in objects():
                lost = [name for name in dropped(one, self.server.dry_run(one))
                        if name.rsplit(".", 1)[-1] not in LATER]
                if lost:
                    raise Failed(f"the schema does not know {', '.join(lost)}")
                # The control: a name that the schema does not know is found.
                odd = copy.deepcopy(one)
                odd["spec"]["notAField"] = 1
                try:
                    if ".spec.notAField" not in dropped(odd, self.server.dry_run(odd)):
                        raise Failed(f"spec.notAField of {one['kind']} was not found to be dropped")
                except Refused:
                    pass

        def refused(change, what):
            # A Service without a cluster address has nothing that could be wrong in this way.
            for one in [one for one in objects() if one["kind"] != "Service"]:
                broken = copy.deepcopy(one)
                if not changed(broken["spec"], change):
                    raise Failed(f"{one['kind']} has nothing to break")
                try:
                    self.server.dry_run(broken)
                except Refused:
                    continue
                raise Failed(f"{one['kind']} with {what} was accepted")

        def linted():
            done = subprocess.run([self.executable, "lint", file], capture_output=True, text=True, timeout=60)
            if done.returncode:
                raise Failed(done.stdout + done.stderr)

        self.case(f"{file.name} is accepted, no field is lost", accepted)
        self.case(f"{file.name} with a wrong type is refused", lambda: refused(wrong_type, "a word for a number"))
        self.case(f"{file.name} with a misspelt field is refused", lambda: refused(misspelt, "a misspelt field"))
        self.case(f"{file.name} is sound by lint", linted)

    def page(self) -> None:
        """The blocks of docs/platforms/kubernetes.md that are marked, in a folder with the page's profile."""
        pages = [(REPOSITORY / "docs" / "platforms" / name).read_text()
                 for name in ("kubernetes.md", "kubernetes.zh-CN.md")]
        blocks = [BLOCK.findall(page) for page in pages]
        folder = self.work / "page"
        folder.mkdir()
        (folder / "acme.toml").write_text(next(part for part in TOML.findall(pages[0]) if "[platform]" in part))
        (folder / "train.py").write_text("")
        shutil.copytree(MANIFESTS, folder / "packaging" / "kubernetes")

        def run(code: str, commands: str):
            path = f"{Path(self.executable).parent}:{os.environ['PATH']}"
            kept = {name: os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ}
            done = subprocess.run(["bash", "-ec", commands], cwd=folder, capture_output=True, text=True, timeout=120,
                                  env={**kept, "PATH": path, "RANKLAUNCH_PROBE": "off", "RANKLAUNCH_LANG": "en"})
            if done.returncode != int(code or 0):
                raise Failed(f"ended with {done.returncode}, expected {code or 0}:\n{done.stdout}{done.stderr}")

        def same():
            if blocks[0] != blocks[1] or TOML.findall(pages[0]) != TOML.findall(pages[1]):
                raise Failed("kubernetes.zh-CN.md has other commands than kubernetes.md")
            if not blocks[0]:
                raise Failed("no block is marked")

        for number, (code, commands) in enumerate(blocks[0], 1):
            self.case(f"docs/platforms/kubernetes.md, block {number}", lambda c=code, w=commands: run(c, w))
        self.case("docs/platforms/kubernetes.md has the same commands in Chinese", same)


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    for name in ("--work", "--executable", "--server"):
        words.add_argument(name, required=True)
    words.add_argument("--without", help="why there is no API server")
    words.add_argument("parts", nargs="*", help="parts of names of cases")
    return Suite(words.parse_args()).all()


if __name__ == "__main__":
    sys.exit(main())
