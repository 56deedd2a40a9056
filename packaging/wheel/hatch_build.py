"""What differs from release to release: pack.py gives it in variables."""
import os
from email.utils import parseaddr

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class Release(MetadataHookInterface):
    def update(self, metadata):
        name, address = parseaddr(os.environ["MAINTAINER"])
        metadata["version"] = os.environ["VERSION"]
        metadata["maintainers"] = [{"name": name, "email": address}]


class Tags(BuildHookInterface):
    def initialize(self, version, build_data):
        # Of every Python 3. Static, so that it runs with either C library; 2.17 is the glibc of the node-probe.
        systems = ("manylinux_2_17", "manylinux2014", "musllinux_1_1")
        build_data["tag"] = "py3-none-" + ".".join(f"{system}_{os.environ['ARCH']}" for system in systems)
        build_data["pure_python"] = False
