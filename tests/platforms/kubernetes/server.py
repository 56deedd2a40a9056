"""etcd and kube-apiserver on loopback, and kubectl for them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path

TOKEN = "suite"


class Refused(Exception):
    """kubectl failed; the text is what it said."""


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


class Server:
    def __init__(self, folder: Path, apiserver: Path):
        self.folder, self.daemons = folder, []
        self.config = folder / "kubeconfig"
        self.started(apiserver)

    def started(self, apiserver: Path) -> None:
        client, peer, port = free_ports(3)
        etcd = f"http://127.0.0.1:{client}"
        self.start("etcd", "--data-dir", self.folder / "etcd", "--name", "suite", "--listen-client-urls", etcd,
                   "--advertise-client-urls", etcd, "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                   "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                   "--initial-cluster", f"suite=http://127.0.0.1:{peer}")
        # Anybody with the token may do anything; the key signs tokens of service accounts, of which none is used.
        (self.folder / "tokens.csv").write_text(f"{TOKEN},suite,suite,system:masters\n")
        key = self.folder / "key.pem"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        self.start(str(apiserver), "--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--secure-port", port,
                   "--insecure-port", 0, "--cert-dir", self.folder / "certificates", "--authorization-mode", "AlwaysAllow",
                   "--token-auth-file", self.folder / "tokens.csv", "--service-cluster-ip-range", "10.0.0.0/24",
                   "--service-account-issuer", "https://suite", "--service-account-key-file", key,
                   "--service-account-signing-key-file", key, "--disable-admission-plugins", "ServiceAccount")
        self.config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "suite",
            "clusters": [{"name": "suite", "cluster": {"server": f"https://127.0.0.1:{port}",
                                                       "insecure-skip-tls-verify": True}}],
            "users": [{"name": "suite", "user": {"token": TOKEN}}],
            "contexts": [{"name": "suite", "context": {"cluster": "suite", "user": "suite"}}],
        }))
        self.wait("the namespace default", lambda: self.kubectl("get", "namespace", "default"))

    def start(self, *words) -> None:
        name = Path(str(words[0])).name
        log = open(self.folder / f"{name}.log", "w")
        words = [str(word) for word in words]
        self.daemons.append((name, subprocess.Popen(words, stdout=log, stderr=log, cwd=self.folder)))

    def wait(self, what: str, ready, seconds: float = 120) -> None:
        """Until `ready` does not fail, as long as the daemons live."""
        deadline = time.monotonic() + seconds
        while True:
            for name, daemon in self.daemons:
                if daemon.poll() is not None:
                    raise Refused(f"{name} ended with {daemon.returncode}: {self.last(name)}")
            try:
                return ready()
            except Refused as why:
                if time.monotonic() > deadline:
                    raise Refused(f"no {what} within {seconds:.0f} s: {why}") from None
            time.sleep(0.2)

    def last(self, name: str) -> str:
        return "\n".join((self.folder / f"{name}.log").read_text().splitlines()[-5:])

    def kubectl(self, *words, given: str | None = None) -> str:
        """Standard output. Raises Refused with what kubectl says."""
        environment = {**os.environ, "KUBECONFIG": str(self.config), "HOME": str(self.folder)}
        done = subprocess.run(["kubectl", "--request-timeout=60s", *map(str, words)], input=given, text=True,
                              capture_output=True, env=environment, timeout=120)
        if done.returncode:
            raise Refused(done.stderr.strip())
        return done.stdout

    def define(self, file: Path) -> None:
        """Loads a CustomResourceDefinition. Too large for `apply`, whose annotation holds the whole."""
        said = self.kubectl("create", "--validate=false", "-o", "name", "-f", file)
        for name in said.split():
            # kubectl fails at once as long as there are no conditions at all.
            self.wait(name, lambda name=name: self.kubectl("wait", "--for=condition=Established", "--timeout=60s", name))

    def objects(self, file: Path) -> list[dict]:
        """The objects of a manifest, parsed by kubectl itself."""
        said = self.kubectl("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", file)
        # One JSON text after the other, or one list.
        found, rest, decoder = [], said.strip(), json.JSONDecoder()
        while rest:
            one, end = decoder.raw_decode(rest)
            found += one["items"] if one.get("kind") == "List" else [one]
            rest = rest[end:].strip()
        return found

    def dry_run(self, one: dict) -> dict:
        """The object as the server would store it."""
        return json.loads(self.kubectl("apply", "--dry-run=server", "--validate=false", "-o", "json", "-f", "-",
                                       given=json.dumps(one)))

    def close(self) -> None:
        for _, daemon in reversed(self.daemons):
            daemon.kill()
            daemon.wait()
