"""A headless Chromium, driven over a pipe by its DevTools protocol. Needs nothing but Python."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time

DEADLINE = 30
# Requests of the browser to its own vendor are no requests of a page.
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-default-apps",
         "--disable-sync", "--no-first-run", "--disable-extensions", "--disable-client-side-phishing-detection"]


def program():
    for name in ["chromium", "chromium-browser", "google-chrome", "chrome"]:
        if shutil.which(name):
            return name
    raise SystemExit("no chromium: tests/packages.sh chromium")


class Browser:
    """One browser with one page. Use it with `with`."""

    def __enter__(self):
        self.profile = tempfile.mkdtemp(prefix="ranklaunch-browser-")
        their_in, our_out = os.pipe()
        our_in, their_out = os.pipe()
        for end in (their_in, their_out):
            os.set_inheritable(end, True)
        words = [program(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                 "--remote-debugging-pipe", f"--user-data-dir={self.profile}", *QUIET, "about:blank"]
        # The protocol is on descriptors 3 and 4.
        shell = f'exec "$@" 3<&{their_in} 4>&{their_out}'
        self.process = subprocess.Popen(["bash", "-c", shell, "chromium", *words], close_fds=False,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(their_in)
        os.close(their_out)
        self.out, self.into = os.fdopen(our_out, "wb"), os.fdopen(our_in, "rb")
        os.set_blocking(self.into.fileno(), False)
        self.buffer, self.number, self.events, self.session = b"", 0, [], None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Network", "Log", "Accessibility"]:
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def _read(self, until):
        """One message."""
        while b"\0" not in self.buffer:
            chunk = self.into.read(1 << 20)
            if chunk:
                self.buffer += chunk
            elif chunk == b"" or time.monotonic() > until:
                raise TimeoutError("the browser gave no answer")
            else:
                time.sleep(0.002)
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.out.write(json.dumps(message).encode() + b"\0")
        self.out.flush()
        until = time.monotonic() + DEADLINE
        while True:
            answer = self._read(until)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def open(self, url):
        """Loads a page; what happened before is forgotten."""
        self.events = []
        self.ask("Page.navigate", url=url)
        until = time.monotonic() + DEADLINE
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read(until))
        # One more turn of the page's loop shows every request that it began by itself.
        self.run("new Promise(done => setTimeout(done, 200))")

    def run(self, code):
        """The value of JavaScript in the page."""
        answer = self.ask("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def key(self, name, code=None):
        codes = {"Tab": 9, "Enter": 13, " ": 32}
        text = {"Enter": "\r", " ": " "}.get(name)
        for kind in ["keyDown", "keyUp"]:
            more = {"text": text} if text and kind == "keyDown" else {}
            self.ask("Input.dispatchKeyEvent", type=kind, key=name, code=code or name,
                     windowsVirtualKeyCode=codes[name], **more)

    def size(self, width, height):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name):
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def requests(self):
        return [event["params"]["request"]["url"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]

    def errors(self):
        """Exceptions, and what the console calls an error."""
        thrown = [event["params"]["exceptionDetails"]["text"] for event in self.events if event.get("method") == "Runtime.exceptionThrown"]
        logged = [event["params"]["entry"]["text"] for event in self.events
                  if event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error"]
        return thrown + logged

    def tree(self):
        """Role and name of everything that a screen reader finds."""
        nodes = self.ask("Accessibility.getFullAXTree")["nodes"]
        shown = [node for node in nodes if not node.get("ignored")]
        return [(node.get("role", {}).get("value"), node.get("name", {}).get("value", "")) for node in shown]

    def picture(self, path, height=8000):
        """The whole page, or the top of it."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], height), "scale": 1}
        data = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
