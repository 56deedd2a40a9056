#!/usr/bin/env python3
"""Takes the pictures of the documentation: record.py RANKLAUNCH FOLDER

Runs ranklaunch in a real terminal emulator (tmux), on a node with the GPUs of tests/fake-nvml, and writes what
the emulator shows as SVG text: scenes × languages, each some kilobytes. `make docs SUITE=pictures` calls it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unicodedata
from pathlib import Path
from xml.sax.saxutils import escape

COLUMNS = 96
# Pixels of a cell and of the frame.
WIDE, HIGH, PAD = 8.4, 18, 14
ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("en", "zh")

# The 16 colours of the emulator; bold of the first eight is the bright one.
PALETTE = ["#3b4252", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#dcdfe4",
           "#6b7489", "#ff7b86", "#b5e08c", "#ffd68a", "#82c4ff", "#e096f5", "#74d7e2", "#ffffff"]
PAPER, INK = "#1e2127", "#dcdfe4"

# A training of which rank 5 fails where the variable says so.
TRAIN = """\
import os, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def say(*words): print(*words, flush=True)
time.sleep(0.1 * rank)
say(f"loading Wan2.2-T2V-A14B, shard {rank} of {world}")
time.sleep(1.5)
steps = int(os.environ.get("STEPS", "4"))
for step in range(steps):
    time.sleep(0.5)
    if rank == 0 or "ALL" in os.environ:
        say(f"step {step + 1}/{steps}: loss {0.91 - 0.07 * step:.3f}")
    if rank == 5 and step == 1 and "FAILS" in os.environ:
        sys.stderr.write('''Traceback (most recent call last):
  File "generate.py", line 212, in <module>
    video = pipeline(prompt, size=size)
  File "wan/text2video.py", line 174, in generate
    noise = self.model(latents, t=timestep, **arg_c)[0]
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.25 GiB. GPU 5 has a total capacity of 79.25 GiB of which 3.88 GiB is free.
''')
        sys.exit(1)
time.sleep(float(os.environ.get("STAYS", "0")))
"""


class Scene:
    """One command in a window. `until`: what the window shows when the picture is taken; None: its end. `job`: the
    command of each node of a job at which it looks. `block`: the one of ranklaunch's blocks at which the picture begins.
    `torch`: its ranks import the real one."""

    def __init__(self, name, words, rows, until=None, job=(), block=0, torch=False, **variables):
        self.name, self.words, self.rows, self.until = name, words, rows, until
        self.job, self.block, self.torch, self.variables = job, block, torch, variables


def hang():
    """The command and the program of the README."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"^ranklaunch (.*\\\n.* hang\.py)$", readme, re.MULTILINE)[1]
    return command.replace("\\\n", " ").split(), re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1]


LAYOUT = ["--layout", "ulysses-world", "--heads", "40"]
PROGRAM = ["--", "generate.py", "--task", "t2v-A14B", "--ulysses_size", "{ulysses_size}"]
def node(number):
    return ["--nnodes", "2", "--node-rank", str(number), "--master-addr", "127.0.0.1"]


TWO = node(0)
DIRECT = ["--engine", "direct", "--stale", "off", "--inject", "off"]
# The GPUs are looked at each half minute.
SCENES = [
    Scene("start", ["run", *TWO, *DIRECT, *LAYOUT, *PROGRAM], 44, until=r"0:0[2-9](/| of )30:00"),
    Scene("run", ["run", *DIRECT, *LAYOUT, *PROGRAM], 44, until=r"GPU \d", STEPS="72", STAYS="60"),
    Scene("failure", ["run", *DIRECT, *LAYOUT, *PROGRAM], 44, FAILS="1", STEPS="60"),
    Scene("top", ["top"], 20, until=r"5[78]G.* step \d\d", job=[["run", *node(number), *DIRECT, *LAYOUT, *PROGRAM] for number in range(2)],
          STEPS="120", STAYS="60", ALL="1"),
    Scene("hang", ["run", *hang()[0]], 40, block=1, torch=True),
    Scene("check", ["check", *LAYOUT, "--nnodes", "1", *PROGRAM], 44),
]


def cells(letter):
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


class Style:
    def __init__(self):
        self.reset()

    def reset(self):
        self.ink, self.bold, self.dim, self.reverse = None, False, False, False

    def take(self, codes):
        for code in (int(code or 0) for code in codes.split(";")):
            if code == 0:
                self.reset()
            elif code == 1:
                self.bold = True
            elif code == 2:
                self.dim = True
            elif code == 22:
                self.bold = self.dim = False
            elif code in (7, 27):
                self.reverse = code == 7
            elif code == 39:
                self.ink = None
            elif 30 <= code <= 37:
                self.ink = code - 30
            elif 90 <= code <= 97:
                self.ink = code - 90 + 8

    def colour(self):
        return INK if self.ink is None else PALETTE[self.ink]

    def attributes(self):
        said = f' fill="{PAPER if self.reverse else self.colour()}"'
        if self.bold:
            said += ' font-weight="bold"'
        if self.dim:
            said += ' opacity="0.6"'
        return said


def svg(captured, title):
    """What `tmux capture-pane -e` gives, as SVG. Each run of one style has its width in cells, so that a
    reader's font cannot shift the columns."""
    rows = captured.rstrip("\n").split("\n")
    high = 2 * PAD + HIGH * (len(rows) + 1)
    wide = 2 * PAD + WIDE * COLUMNS
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high}" role="img" aria-label="{escape(title)}" '
           'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, \'Noto Sans Mono CJK SC\', monospace" font-size="14">',
           f"<title>{escape(title)}</title>",
           f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>']
    for at, colour in enumerate(("#e06c75", "#e5c07b", "#98c379")):
        out.append(f'<circle cx="{PAD + 6 + 18 * at}" cy="{PAD}" r="5" fill="{colour}"/>')
    style = Style()
    for number, row in enumerate(rows):
        column = 0
        for part in re.split(r"(\x1b\[[0-9;]*m)", row):
            if part.startswith("\x1b["):
                style.take(part[2:-1])
                continue
            # Letters of one and of two cells apart, since fonts disagree about the latter.
            for run in re.findall(r"[\u2e80-\uffef]+|[^\u2e80-\uffef]+", part):
                length = sum(map(cells, run))
                x, y = PAD + WIDE * column, PAD + HIGH * (number + 2) - 4
                if style.reverse:
                    out.append(f'<rect x="{x:.1f}" y="{y - HIGH + 4}" width="{WIDE * length:.1f}" height="{HIGH}" fill="{style.colour()}"/>')
                if run.strip():
                    out.append(f'<text x="{x:.1f}" y="{y}" textLength="{WIDE * length:.1f}" '
                               f'lengthAdjust="spacingAndGlyphs" xml:space="preserve"{style.attributes()}>{escape(run)}</text>')
                column += length
    return "\n".join(out + ["</svg>", ""])


def library(folder):
    """The driver of tests/fake-nvml, which plays what the file beside it says."""
    built = folder / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, ROOT / "tests/fake-nvml/nvml.c", "-ldl"], check=True)


def environment(prefix):
    """A virtual environment with the version of a torch, which these ranks do not import."""
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin/python").symlink_to(os.path.realpath(sys.executable))
    # Without it the folder is none of a virtual environment, to Python as well.
    (prefix / "pyvenv.cfg").write_text(f"home = {Path(os.path.realpath(sys.executable)).parent}\n")
    major, minor = sys.version_info[:2]
    torch = prefix / f"lib/python{major}.{minor}/site-packages/torch"
    torch.mkdir(parents=True)
    (torch / "version.py").write_text("__version__ = '2.8.0+cu128'\ncuda: Optional[str] = '12.8'\n")


def until_it_runs(ranklaunch, nodes, job, variables):
    """The id of the run, once all nodes are told of it."""
    deadline = time.monotonic() + 60
    while True:
        # Of this folder, since others may run here.
        told = subprocess.run([ranklaunch, "ps", "--format", "json"], env=variables, capture_output=True, text=True).stdout
        for run in (job / "ranklaunch-logs").glob("run-*"):
            if told.count(f'"{run.name}"') > nodes:
                return run.name
        if time.monotonic() > deadline:
            raise SystemExit(f"the job does not run: {told}")
        time.sleep(0.2)


def take(scene, language, ranklaunch, folder):
    work = folder / scene.name
    shutil.rmtree(work, ignore_errors=True)
    job = work / "job"
    job.mkdir(parents=True)
    (job / "generate.py").write_text(TRAIN)
    (job / "hang.py").write_text(hang()[1])
    shutil.copy(folder / "libnvidia-ml.so.1", work)
    play = work / "libnvidia-ml.so.1.conf"
    play.write_text("FAKE_NVML_GPUS=8\n")
    conf = work / "conf"
    conf.write_text("set -g remain-on-exit on\nset -g remain-on-exit-format ''\nset -g status off\n"
                    "set -g default-terminal screen-256color\n")
    tmux = ["tmux", "-u", "-S", str(work / "socket"), "-f", str(conf)]
    prefix = Path(find("torch")).parent.parent if scene.torch else folder / "env"
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "VIRTUAL_ENV": str(prefix), "TERM": "screen-256color", "HOME": str(work), "LANG": "C.UTF-8",
                 "RANKLAUNCH_LANG": language, "RANKLAUNCH_NVML_LIBRARY": str(work / "libnvidia-ml.so.1"), **scene.variables}
    pairs = [f"{name}={value}" for name, value in variables.items()]
    silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    nodes = [subprocess.Popen([ranklaunch, *words], cwd=job, env=variables, **silent) for words in scene.job]
    run = [until_it_runs(ranklaunch, len(nodes), job, variables)] if nodes else []
    subprocess.run([*tmux, "new-session", "-d", "-x", str(COLUMNS), "-y", str(scene.rows), "-c", str(job), "--",
                    "env", "-i", *pairs, ranklaunch, *scene.words, *run], check=True)
    ask = lambda *words: subprocess.run([*tmux, *words], check=True, capture_output=True, text=True).stdout
    try:
        deadline = time.monotonic() + 120
        while True:
            captured = ask("capture-pane", "-e", "-p")
            ended = ask("display-message", "-p", "#{pane_dead}").strip() == "1"
            if "loading" in captured:
                # The ranks use their GPUs.
                used = ",".join(str(58_000 + 37 * gpu) for gpu in range(8))
                play.write_text(f"FAKE_NVML_GPUS=8\nFAKE_NVML_USED={used}\n")
            if ended if scene.until is None else re.search(scene.until, captured):
                break
            if ended or time.monotonic() > deadline:
                raise SystemExit(f"{scene.name}: it does not show {scene.until}\n{captured}")
            time.sleep(0.1)
        # The last lines, and a line that is drawn below them.
        time.sleep(1)
        captured = ask("capture-pane", "-e", "-p")
    finally:
        subprocess.run([*tmux, "send-keys", "C-c"], capture_output=True)
        time.sleep(1)
        subprocess.run([*tmux, "kill-server"], capture_output=True)
        for one in nodes:
            one.terminate()
        for one in nodes:
            one.wait(60)
    prompt = f"\x1b[32m$\x1b[0m ranklaunch {' '.join(scene.words)}"
    if scene.words[0] == "run":
        prompt = prompt.replace(" run", "", 1)
    return fold(prompt) + "\n" + from_block(captured.rstrip("\n"), scene.block) + "\n"


def find(*modules):
    """A python that has these modules."""
    return subprocess.run([ROOT / "tests/python/find.sh", *modules], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def from_block(captured, number):
    rows = captured.split("\n")
    begins = [at for at, row in enumerate(rows) if re.sub(r"\x1b\[[0-9;]*m", "", row).startswith("── ranklaunch")]
    return "\n".join(rows[begins[number]:]) if number else captured


def fold(line):
    """The command as it would be typed, on several lines."""
    rows, row = [], ""
    for word in re.split(r"(?<! --) ", line):
        if len(re.sub(r"\x1b\[[0-9;]*m", "", row)) + len(word) + 3 > COLUMNS:
            rows.append(row + " \\")
            row = "    " + word
        else:
            row = f"{row} {word}" if row else word
    return "\n".join([*rows, row])


def main():
    ranklaunch, target = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    only = sys.argv[3:]
    target.mkdir(parents=True, exist_ok=True)
    # The same in each picture.
    folder = Path(tempfile.gettempdir()) / "wan22"
    folder.mkdir(mode=0o700)
    try:
        library(folder)
        environment(folder / "env")
        for scene in SCENES:
            if only and scene.name not in only:
                continue
            for language in LANGUAGES:
                picture = svg(take(scene, language, str(ranklaunch), folder), f"ranklaunch {scene.name}")
                file = target / f"{scene.name}.{language}.svg"
                file.write_text(picture)
                size = len(picture.encode())
                assert size < 100_000, f"{file}: {size} bytes"
                print(f"{file}: {size} bytes", flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
