"""The bill of materials (CycloneDX 1.5) and the licences of what an executable contains.

Read from `cargo metadata` of one target: what is linked into the executable or into the node-probe that it embeds, not
what only builds or tests it. The C library and the compiler's own are in it too, since both are linked statically.
"""
import hashlib
import json
import re
import subprocess
import time
import uuid
import zlib
from pathlib import Path

# Files whose whole text is kept. READMEs name licences as well, and are left out.
NOTICE = re.compile(r"^(licen[cs]e|copying|notice|unlicense|copyright)", re.IGNORECASE)
SPACE = uuid.UUID("5f3b1a52-6f0a-5c8e-9a55-0d7a3d1c7e01")


def moment(epoch):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))


def said(*words):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def tree(root, target):
    """Names and versions of what ends up in the executable. The metadata has features that only tests ask for."""
    found = set()
    for package in ("ranklaunch", "node-probe"):
        lines = said("cargo", "tree", "--locked", "--manifest-path", str(root / "Cargo.toml"), "--package", package, "--target", target,
                     "--edges", "no-build,no-dev,no-proc-macro", "--prefix", "none", "--format", "{p}").splitlines()
        found |= {tuple(line.split()[:2]) for line in lines if line.strip()}
    return {(name, version.removeprefix("v")) for name, version in found}


def linked(metadata, wanted):
    """The packages that end up in the executable, with what each needs, by their ids."""
    packages = {package["id"]: package for package in metadata["packages"]}
    inside = {id for id, package in packages.items() if (package["name"], package["version"]) in wanted}
    normal = lambda dep: dep["pkg"] in inside and any(kind["kind"] is None for kind in dep["dep_kinds"])
    nodes = {node["id"]: node["deps"] for node in metadata["resolve"]["nodes"]}
    return packages, {id: sorted(dep["pkg"] for dep in nodes[id] if normal(dep)) for id in inside}


def checksums(lock):
    """Of the packages in Cargo.lock by name and version. Before 3.11 Python reads no TOML; cargo writes this form alone."""
    return {(name, version): sum for name, version, sum in
            re.findall(r'^name = "(.+)"\nversion = "(.+)"\nsource = ".+"\nchecksum = "(.+)"$', lock, re.MULTILINE)}


def libc(linker):
    """The C library that the linker takes, as the package system calls it, and where its licence lies."""
    archive = Path(said(linker, "-print-file-name=libc.a").strip()).resolve()
    try:
        # Such as `libc6-dev:amd64: /usr/lib/…`; a package for cross-compilation has no architecture there. Without it
        # `-W` writes the versions of all that are installed, one behind the other.
        package = said("dpkg-query", "-S", str(archive)).splitlines()[0].split(": ")[0].split(", ")[0]
        return package.split(":")[0], said("dpkg-query", "-W", "-f", "${Version}", package)
    except (OSError, subprocess.CalledProcessError):
        return "libc", hashlib.sha256(archive.read_bytes()).hexdigest()[:16]


def notices_of(folder):
    files = [file for file in folder.iterdir() if file.is_file() and NOTICE.match(file.name)]
    # A word of the program in a file such as copyright.rs is no licence.
    return [file.read_text(errors="replace").strip() for file in sorted(files) if file.suffix not in (".rs", ".toml", ".html")]


def both(root, target, linker, asked, executable):
    """The bill as JSON, and a text with every licence."""
    metadata = json.loads(said("cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target, "--manifest-path", str(root / "Cargo.toml")))
    packages, needs = linked(metadata, tree(root, target))
    sums = checksums((root / "Cargo.lock").read_text())
    reference = lambda id: f"pkg:cargo/{packages[id]['name']}@{packages[id]['version']}"
    components, texts = [], {}
    for id in sorted(needs, key=reference):
        package = packages[id]
        component = {"type": "library", "bom-ref": reference(id), "name": package["name"], "version": package["version"], "purl": reference(id)}
        if package["license"]:
            component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        if sums.get((package["name"], package["version"])):
            component["hashes"] = [{"alg": "SHA-256", "content": sums[package["name"], package["version"]]}]
        if package["source"] is not None:
            component["externalReferences"] = [{"type": "vcs", "url": package["repository"]}] if package["repository"] else []
            for text in notices_of(Path(package["manifest_path"]).parent) or [f"(no file; the package says: {package['license']})"]:
                texts.setdefault(text, []).append(f"{package['name']} {package['version']}")
        if package["name"] != "ranklaunch":
            components.append(component)
    rust = said("rustc", "--version").split()[1]
    owner, version = libc(linker)
    compiler = said(linker, "-dumpfullversion").strip()
    native = [
        {"type": "library", "bom-ref": f"rust-std@{rust}", "name": "rust-std", "version": rust, "licenses": [{"expression": "MIT OR Apache-2.0"}]},
        {"type": "library", "bom-ref": f"{owner}@{version}", "name": owner, "version": version, "licenses": [{"expression": "LGPL-2.1-or-later"}]},
        {"type": "library", "bom-ref": f"libgcc@{compiler}", "name": "libgcc", "version": compiler, "licenses": [{"expression": "GPL-3.0-or-later WITH GCC-exception-3.1"}]},
    ]
    main = next(id for id in needs if packages[id]["name"] == "ranklaunch")
    probe = next(id for id in needs if packages[id]["name"] == "node-probe")
    depends = [{"ref": reference(id), "dependsOn": sorted({reference(other) for other in needs[id]})} for id in sorted(needs, key=reference)]
    for entry in depends:
        if entry["ref"] == reference(main):
            entry["dependsOn"] = sorted([*entry["dependsOn"], reference(probe), *(one["bom-ref"] for one in native)])
    digest = hashlib.sha256(executable).hexdigest()
    bill = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "serialNumber": f"urn:uuid:{uuid.uuid5(SPACE, digest)}",
        "metadata": {
            "timestamp": moment(asked.epoch),
            "component": {
                "type": "application", "bom-ref": reference(main), "name": "ranklaunch", "version": asked.version, "purl": reference(main),
                "licenses": [{"expression": "MIT"}], "hashes": [{"alg": "SHA-256", "content": digest}],
                "properties": [{"name": "commit", "value": asked.commit}, {"name": "target", "value": target}],
            },
            "tools": {"components": [
                {"type": "application", "name": "rustc", "version": rust}, {"type": "application", "name": linker, "version": compiler},
                {"type": "application", "name": "ld", "version": said(said(linker, "-print-prog-name=ld").strip(), "--version").splitlines()[0].split()[-1]},
                {"type": "application", "name": "zig", "version": asked.zig},
                # Of the packages, not of the executable.
                {"type": "application", "name": "hatchling", "version": said(asked.hatchling, "-c", "from hatchling.__about__ import __version__ as v; print(v, end=\"\")")},
                {"type": "application", "name": "zlib", "version": zlib.ZLIB_RUNTIME_VERSION},
                {"type": "application", "name": "dpkg-deb", "version": re.search(r"version (\S+)", said("dpkg-deb", "--version"))[1]},
            ]},
        },
        "components": components + native, "dependencies": depends,
    }
    text = ["ranklaunch is under the MIT licence. Its executable also contains what follows.\n",
            f"The GNU C Library ({owner} {version}, LGPL-2.1-or-later) and parts of GCC ({compiler}, GPL-3.0-or-later with\n"
            f"the GCC runtime library exception) are linked statically; their source is that of the distribution's packages, and\n"
            f"`make dist` in the source of ranklaunch links it against another one. The standard library of Rust {rust} is under\n"
            f"MIT or Apache-2.0.\n"]
    for licence, names in sorted(texts.items(), key=lambda item: (item[1], item[0])):
        text.append(f"{'=' * 78}\n{', '.join(names)}\n\n{licence}\n")
    return (json.dumps(bill, indent=1) + "\n").encode(), "\n".join(text).encode()
