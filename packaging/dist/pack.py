#!/usr/bin/env python3
"""Packs what build.sh built: archives, Debian packages, wheels, images, SBOMs and their sums.

Takes executables as ARCH:LINKER:FILE. Gives files whose bytes depend only on the commit and on what the SBOM names:
every list is sorted, every time is that of the commit, every owner is root. Standard library only, except that
hatchling makes the wheels.
"""
import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import sbom

ROOT = Path(__file__).resolve().parents[2]
# By the name of the kernel: Debian's and that of images.
PORTS = {"x86_64": "amd64", "aarch64": "arm64"}
SUMMARY = "node-side launcher for distributed PyTorch"


def run(*words, **more):
    return subprocess.run(list(map(str, words)), check=True, stdout=subprocess.PIPE, **more).stdout


def zipped(data):
    """With neither a name nor a time. gzip.compress writes another header with another version of Python."""
    out = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=out, mtime=0) as file:
        file.write(data)
    return out.getvalue()


def dated(changelog, version, released):
    """The changelog with the day of this version, where its heading has none yet."""
    heading = re.compile(rf"^## \[{re.escape(version)}\] – (.+)$", re.MULTILINE)
    found = heading.search(changelog)
    if not found:
        sys.exit(f"CHANGELOG.md has no heading '## [{version}] – …'")
    if re.fullmatch(r"\d{4}-\d\d-\d\d", found[1]):
        return changelog
    return changelog[:found.start(1)] + released + changelog[found.end(1):]


def texts(own, asked):
    """What the executable writes about itself, and the texts of the source, by their paths below a prefix."""
    found = {
        "share/bash-completion/completions/ranklaunch": run(own, "completions", "bash"),
        "share/zsh/vendor-completions/_ranklaunch": run(own, "completions", "zsh"),
        "share/fish/vendor_completions.d/ranklaunch.fish": run(own, "completions", "fish"),
    }
    for lang, place in (("en", "share/man/man1"), ("zh", "share/man/zh_CN/man1")):
        with tempfile.TemporaryDirectory() as folder:
            run(own, "man", "--lang", lang, "--output", folder)
            for page in sorted(Path(folder).iterdir()):
                found[f"{place}/{page.name}.gz"] = zipped(page.read_bytes())
    for profile in sorted((ROOT / "config").glob("*.toml")):
        found[f"share/ranklaunch/profiles/{profile.name}"] = profile.read_bytes()
    for schema in sorted((ROOT / "packaging/schemas").glob("*.json")):
        found[f"share/ranklaunch/schemas/{schema.name}"] = schema.read_bytes()
    found["lib/systemd/system/ranklaunch@.service"] = (ROOT / "packaging/systemd/ranklaunch@.service").read_bytes()
    doc = "share/doc/ranklaunch"
    for name in ("README.md", "README.zh-CN.md"):
        found[f"{doc}/{name}"] = (ROOT / "packaging" / name).read_bytes()
    changelog = dated((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), asked.version, asked.released)
    found[f"{doc}/changelog.gz"] = zipped(changelog.encode())
    return found


def tree(files, epoch, prefix=""):
    """A tar of {path: (bytes, mode)} with its folders."""
    folders = {str(parent) for path in files for parent in Path(path).parents if str(parent) != "."}
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(folders | set(files)):
            entry = tarfile.TarInfo(prefix + path)
            entry.mtime, entry.uname, entry.gname = epoch, "root", "root"
            if path in files:
                content, entry.mode = files[path]
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
            else:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
    return data.getvalue()


def debian(out, work, arch, files, asked):
    """A package without scripts: nothing runs when it is installed or removed."""
    port = PORTS[arch]
    folder = work / f"deb-{port}"
    shutil.rmtree(folder, ignore_errors=True)
    sums = []
    for path, (content, mode) in sorted(files.items()):
        path = path.removeprefix("/")
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(mode)
        sums.append(f"{hashlib.md5(content).hexdigest()}  {path}\n")
    control = folder / "DEBIAN"
    control.mkdir()
    (folder / "etc/ranklaunch").mkdir(parents=True)
    size = sum(len(content) for content, _ in files.values())
    (control / "control").write_text(
        f"Package: ranklaunch\nVersion: {asked.version}\nArchitecture: {port}\nMaintainer: {asked.maintainer}\n"
        f"Installed-Size: {-(-size // 1024)}\nSection: science\nPriority: optional\nSuggests: python3\nDescription: {SUMMARY}\n"
        " One static executable in place of the start-up script of a distributed PyTorch job.\n It depends on no other package: python and torch are those of the job.\n", encoding="utf-8")
    (control / "md5sums").write_text("".join(sums))
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
        elif path.parent == control:
            path.chmod(0o644)
        os.utime(path, (asked.epoch, asked.epoch))
    package = out / f"ranklaunch_{asked.version}_{port}.deb"
    run("dpkg-deb", "--root-owner-group", "-Zxz", "-z6", "--build", folder, package,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(asked.epoch)})


def wheel(out, work, arch, executable, texts, asked):
    """The executable for pip. packaging/wheel says what else is in it."""
    folder = work / f"wheel-{arch}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "packaging/wheel", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, content in {"ranklaunch": executable, **texts}.items():
        (folder / name).write_bytes(content)
    (folder / "ranklaunch").chmod(0o755)
    run(asked.hatchling, "-B", "-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=folder, env={
        **os.environ, "SOURCE_DATE_EPOCH": str(asked.epoch), "ARCH": arch, "VERSION": asked.version, "MAINTAINER": asked.maintainer})


def image(out, arch, executable, licence, asked):
    """An image FROM scratch in one file: an OCI layout that also has the list that `docker load` reads."""
    layer = tree({"ranklaunch": (executable, 0o755), "LICENSE": (licence, 0o644)}, asked.epoch)
    blobs = {}

    def blob(data, kind):
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = (data, 0o644)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    def text(value):
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    created = sbom.moment(asked.epoch)
    name = f"ranklaunch:{asked.version}"
    labels = {
        "org.opencontainers.image.title": "ranklaunch", "org.opencontainers.image.description": SUMMARY,
        "org.opencontainers.image.version": asked.version, "org.opencontainers.image.revision": asked.commit,
        "org.opencontainers.image.licenses": "MIT", "org.opencontainers.image.created": created,
        "org.opencontainers.image.authors": asked.maintainer,
    }
    config = blob(text({
        "created": created, "architecture": PORTS[arch], "os": "linux",
        "config": {"Entrypoint": ["/ranklaunch"], "Labels": labels, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
        "history": [{"created": created, "created_by": "packaging/dist/pack.py"}],
    }), "application/vnd.oci.image.config.v1+json")
    packed = blob(zipped(layer), "application/vnd.oci.image.layer.v1.tar+gzip")
    manifest = blob(text({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": [packed], "annotations": labels,
    }), "application/vnd.oci.image.manifest.v1+json")
    manifest["platform"] = {"architecture": PORTS[arch], "os": "linux"}
    manifest["annotations"] = {"org.opencontainers.image.ref.name": asked.version, "io.containerd.image.name": f"docker.io/library/{name}"}
    path = lambda entry: "blobs/sha256/" + entry["digest"].removeprefix("sha256:")
    files = {
        **blobs,
        "oci-layout": (text({"imageLayoutVersion": "1.0.0"}), 0o644),
        "index.json": (text({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest]}), 0o644),
        "manifest.json": (text([{"Config": path(config), "RepoTags": [name], "Layers": [path(packed)]}]), 0o644),
    }
    (out / f"ranklaunch-{asked.version}-{arch}-image.tar").write_bytes(tree(files, asked.epoch))


def main():
    words = argparse.ArgumentParser()
    for name in ("out", "own", "version", "commit", "maintainer", "released", "zig", "hatchling"):
        words.add_argument(f"--{name}", required=True)
    words.add_argument("--epoch", type=int, required=True)
    words.add_argument("built", nargs="+")
    asked = words.parse_args()
    out, work = Path(asked.out), Path(asked.out + ".build")
    common = texts(asked.own, asked)
    licence = (ROOT / "LICENSE").read_bytes()
    for one in asked.built:
        arch, linker, file = one.split(":", 2)
        executable = Path(file).read_bytes()
        name = f"ranklaunch-{asked.version}-{arch}-linux"
        bill, notices = sbom.both(ROOT, f"{arch}-unknown-linux-gnu", linker, asked, executable)
        (out / f"{name}.cdx.json").write_bytes(bill)
        (out / name).write_bytes(executable)
        (out / name).chmod(0o755)
        files = {path: (content, 0o644) for path, content in common.items()}
        files["bin/ranklaunch"] = (executable, 0o755)
        files["share/doc/ranklaunch/third-party.txt.gz"] = (zipped(notices), 0o644)
        files["share/doc/ranklaunch/ranklaunch.cdx.json"] = (bill, 0o644)
        # Debian wants the licence in a file of this name, and other systems look for LICENSE.
        archive = {**files, "share/doc/ranklaunch/LICENSE": (licence, 0o644)}
        # The files of an archive are for /usr/local, where zsh has another folder and systemd needs the whole path.
        archive["share/zsh/site-functions/_ranklaunch"] = archive.pop("share/zsh/vendor-completions/_ranklaunch")
        unit = "lib/systemd/system/ranklaunch@.service"
        archive[unit] = (common[unit].replace(b"ExecStart=/usr/bin/", b"ExecStart=/usr/local/bin/"), 0o644)
        (out / f"{name}.tar.gz").write_bytes(zipped(tree(archive, asked.epoch, f"{name}/")))
        packaged = {f"usr/{path}": content for path, content in files.items()}
        packaged["usr/share/doc/ranklaunch/copyright"] = (licence, 0o644)
        debian(out, work, arch, packaged, asked)
        wheel(out, work, arch, executable, {"LICENSE": licence, "third-party.txt": notices, "ranklaunch.cdx.json": bill}, asked)
        image(out, arch, executable, licence, asked)
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(out.iterdir()) if file.name != "SHA256SUMS"]
    (out / "SHA256SUMS").write_text("".join(sums))


if __name__ == "__main__":
    sys.exit(main())
