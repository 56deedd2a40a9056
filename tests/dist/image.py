#!/usr/bin/env python3
"""Fails unless a file is a whole OCI layout: image.py FILE. Every digest and size is counted again."""
import gzip
import hashlib
import io
import json
import sys
import tarfile

tar = tarfile.open(sys.argv[1])
files = {entry.name: tar.extractfile(entry).read() for entry in tar if entry.isfile()}


def blob(entry):
    data = files["blobs/sha256/" + entry["digest"].removeprefix("sha256:")]
    assert len(data) == entry["size"] and "sha256:" + hashlib.sha256(data).hexdigest() == entry["digest"], entry
    return data


assert json.loads(files["oci-layout"])["imageLayoutVersion"] == "1.0.0"
(entry,) = json.loads(files["index.json"])["manifests"]
manifest = json.loads(blob(entry))
config = json.loads(blob(manifest["config"]))
layers = [gzip.decompress(blob(layer)) for layer in manifest["layers"]]
assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers]
assert config["config"]["Entrypoint"] == ["/ranklaunch"]
assert "@" in config["config"]["Labels"]["org.opencontainers.image.authors"], config["config"]["Labels"]
(docker,) = json.loads(files["manifest.json"])
assert docker["Config"] == "blobs/sha256/" + manifest["config"]["digest"].removeprefix("sha256:")
assert docker["Layers"] == ["blobs/sha256/" + layer["digest"].removeprefix("sha256:") for layer in manifest["layers"]]
entries = [(entry.name, oct(entry.mode), entry.uid, entry.mtime) for entry in tarfile.open(fileobj=io.BytesIO(layers[0]))]
assert [name for name, *_ in entries] == ["LICENSE", "ranklaunch"] and entries[1][1:3] == ("0o755", 0), entries
print(f"image: {config['architecture']}, {', '.join(name for name, *_ in entries)}, all digests right")
