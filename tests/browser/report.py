"""What a browser makes of report.html: of real runs, and of one with a thousand ranks.

report.py RANKLAUNCH [FOLDER]: FOLDER gets pictures of each page.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from browser import Browser

HERE = Path(__file__).resolve().parent
SECTIONS = ["verdict", "ledger", "timeline", "findings", "use", "plan", "checks", "members"]


def check(what, holds, seen=None):
    if not holds:
        raise SystemExit(f"FAILED: {what}: {seen!r}")
    print(f"  {what}")


def launch(ranklaunch, logs, lang, *arguments, options=(), program="rank.py", ranks=2):
    # Of a folder of its own, which the pictures show in tracebacks.
    shutil.copy(HERE / program, logs.parent)
    environment = {name: os.environ[name] for name in ["PATH", "HOME", "TMPDIR"] if name in os.environ}
    words = [ranklaunch, "--lang", lang, "--engine", "direct", "--device", "cpu", "--nproc-per-node", str(ranks), "--grace", "10s",
             "--log-dir", str(logs), *options, "--", program, *arguments]
    return subprocess.Popen(words, cwd=logs.parent, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)


def ended(process):
    said = process.communicate(timeout=60)[1].decode()
    return process.returncode, said


def of_job(logs):
    return (logs / "latest" / "report.html").resolve()


def two_nodes(ranklaunch, logs):
    """Rank 1 fails on node 0; node 1 is told."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    nodes = [launch(ranklaunch, logs, "en", "--fail", options=[
        "--nnodes", "2", "--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port)]) for node in range(2)]
    return [ended(node) for node in nodes]


def until(holds, what):
    deadline = time.monotonic() + 30
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"FAILED: {what} did not happen")
        time.sleep(0.05)


def cut_off(ranklaunch, logs):
    """A run of which every process is killed, with half a line at the end of its journal."""
    process = launch(ranklaunch, logs, "en", "--until-killed")
    journal = logs / "latest" / "node-0" / "agent.jsonl"
    until(lambda: journal.exists() and '"sampled"' in journal.read_text(), "the first sample")
    children = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(pid): int(parent) for pid, parent in (line.split() for line in children.splitlines())}
    below = {process.pid}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    # The agent first: it may report no end.
    for pid in sorted(below - {process.pid}) + [process.pid]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.communicate(timeout=30)
    with journal.open("ab") as file:
        file.write(b'{"timestamp":"2026-11-23T18:00:')
    return journal.parent


def thousand(folder):
    """The folders of 125 nodes with 8 ranks each, which sampled for an hour."""
    def stamp(second):
        return f"2026-11-23T{10 + second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.000Z"

    for node in range(125):
        here = folder / "run-thousand" / f"node-{node}"
        here.mkdir(parents=True)
        lines = []
        add = lambda second, **fields: lines.append(json.dumps({"timestamp": stamp(second), "level": "INFO", "fields": fields}))
        add(0, message="checked", host=f"worker-{node}", versions={"torch": "2.9.0", "driver": "570.1"}, environment={},
            checks=[{"id": f"check.{at}", "severity": "ok" if at else "warn", "text": {"en": f"{node * at} GiB are free", "zh": "可用"}, "hint": ""} for at in range(25)])
        add(1, message="planned", run_id="run-thousand", attempt=0, node=node, members=125, lang="en",
            plan={"engine": "torchrun", "world_size": 1000, "gpus": [{"selected": True}] * 8,
                  "decisions": [{"what": f"value_{at}", "value": "2", "because": {"en": "a reason", "zh": "理由"}, "source": "solved"} for at in range(30)]})
        for local in range(8):
            add(20 + local % 3, began=node * 8 + local, local=local, pid=1000 + local)
        for at in range(30, 3600, 30):
            busy = [(at // 30 * (local + 3) + node) % 40 + 55 for local in range(8)]
            add(at, message="sampled", memory={"used": 1 << 39, "available": 1 << 39}, network=[{"interface": "eth0", "received": 1e9, "sent": 1e9}],
                ranks=[{"rank": node * 8 + local, "cpu_percent": busy[local], "memory": 80 << 30} for local in range(8)],
                gpus=[{"gpu": local, "utilization": busy[local], "memory_used": 70 << 30, "power": 400.0 + busy[local]} for local in range(8)])
        add(3600, stopping=True)
        for local in range(8):
            failed = node == 17 and local == 3
            add(3601, ended=node * 8 + local, **({"code": 1} if failed else {"signal": 15}))
        verdict = {"class": "script", "id": "rank.exit", "node": 17, "rank": 139, "text": {"en": "rank 139 exited with code 1", "zh": "rank 139 退出"}, "hint": ""}
        add(3605, message="ended", record={"attempt": 0, "exit_code": 1 if node == 17 else 92, "ended": stamp(3605), "verdict": verdict})
        (here / "agent.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "run-thousand"


CONTRAST = """
(() => {
  const part = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const numbers = (c) => c.match(/[\\d.]+/g).map(Number);
  const behind = (one) => { for (; one; one = one.parentElement) { const c = numbers(getComputedStyle(one).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  let worst = [99, ""];
  const walk = document.createTreeWalker(document.querySelector("#page"), NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const one = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || !one.checkVisibility() || one.closest("noscript") || one.matches(".skip")) continue;
    const svg = one.closest("svg");
    const [a, b] = [light(numbers(svg ? getComputedStyle(one).fill : getComputedStyle(one).color)), light(behind(svg ? svg.parentElement : one))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < worst[0]) worst = [ratio, one.tagName + "." + one.className + ": " + one.textContent.slice(0, 40)];
  }
  return worst;
})()
"""


# Elements whose content is wider than they are.
CLIPPED = """[...document.querySelectorAll('header, nav, nav ul, h1, .facts, .keys, .tiles, .scroll, table, td, th, dl, dd, #timeline-box, .charts')]
  .filter(one => one.checkVisibility() && one.clientWidth > 1 && one.scrollWidth > one.clientWidth)
  .map(one => [one.tagName, one.className, (one.closest('section') || {}).id, one.textContent.slice(0, 30), one.scrollWidth, one.clientWidth])"""
# Widths of the sentences of findings and checks.
NARROW = """[...document.querySelectorAll('#findings tbody tr, #checks tbody tr')].filter(one => one.checkVisibility())
  .map(one => one.lastElementChild.getBoundingClientRect().width)"""
# Colours by their meaning, as they are seen: of the keys of legends and tables, and of what is drawn.
COLOURS = """(() => {
  const keys = {}, drawn = {};
  for (const one of document.querySelectorAll('[data-meaning]')) {
    const style = getComputedStyle(one), key = one.matches('.key');
    const colour = key ? style.backgroundColor : one.tagName === 'line' ? style.stroke : style.fill;
    ((key ? keys : drawn)[one.dataset.meaning] ||= new Set()).add(colour);
  }
  const lists = of => Object.fromEntries(Object.entries(of).map(([name, all]) => [name, [...all]]));
  return [lists(keys), lists(drawn)];
})()"""
AT_FAULT = "[...document.querySelectorAll('#timeline [data-meaning=fault] title')].map(one => one.textContent.split(/[ ·]+/).slice(0, 4).join(' '))"


def colours(browser, where):
    keys, drawn = browser.run(COLOURS)
    check(f"{where}: each colour that is drawn has a key", set(drawn) <= set(keys) and drawn, (keys, drawn))
    check(f"{where}: a meaning has one colour", all(keys[name] == seen for name, seen in drawn.items()) and all(len(one) == 1 for one in keys.values()), (keys, drawn))
    all_of = [one for seen in keys.values() for one in seen]
    check(f"{where}: no colour has two meanings", len(all_of) == len(set(all_of)), keys)


def seen(browser, page, headline, fault):
    """What a person is to see first."""
    browser.size(1280, 900)
    browser.scheme("light")
    browser.open(page.as_uri())
    said = browser.run("document.querySelector('h1').textContent")
    check(f"the headline is {headline}", said == headline, said)
    facts = browser.run("document.querySelector('.facts.id').textContent")
    check("the run's id comes below it", page.parent.name in facts, facts)
    guilty = browser.run(AT_FAULT)
    check(f"at fault: {fault or 'nobody'}", guilty == fault, guilty)


def looks(browser, page, name, pictures):
    """What holds for every page."""
    for scheme in ["light", "dark"]:
        browser.scheme(scheme)
        for width in [1440, 1280, 1100, 768, 390]:
            browser.size(width, 900)
            browser.open(page.as_uri())
            check(f"{name}, {scheme}, {width}: no error", not browser.errors(), browser.errors())
            check(f"{name}, {scheme}, {width}: one request, that of the file", browser.requests() == [page.as_uri()], browser.requests())
            wide = browser.run("document.scrollingElement.scrollWidth")
            check(f"{name}, {scheme}, {width}: nothing is wider than the window", wide <= width, wide)
            for language in range(2):
                clipped = browser.run(CLIPPED)
                check(f"{name}, {scheme}, {width}, language {language}: nothing is cut off", not clipped, clipped)
                narrow = browser.run(NARROW)
                check(f"{name}, {scheme}, {width}, language {language}: sentences have room", all(one >= 200 for one in narrow), narrow)
                browser.run("document.getElementById('language').click()")
            colours(browser, f"{name}, {scheme}, {width}")
            worst = browser.run(CONTRAST)
            check(f"{name}, {scheme}, {width}: all text has a contrast of 4.5", worst[0] >= 4.5, worst)
            if pictures:
                browser.picture(pictures / f"{name}-{scheme}-{width}.png")
    browser.size(1280, 900)
    browser.scheme("light")
    browser.open(page.as_uri())
    check(f"{name}: all sections", browser.run("[...document.querySelectorAll('main section')].map(one => one.id)") == SECTIONS)
    tree = browser.tree()
    roles = [role for role, _ in tree]
    for landmark in ["banner", "navigation", "main", "contentinfo"]:
        check(f"{name}: the landmark {landmark}", roles.count(landmark) == 1, roles.count(landmark))
    unnamed = [role for role, said in tree if role in ["image", "button", "link", "region", "table"] and not said]
    check(f"{name}: everything has a name", not unnamed, unnamed)
    check(f"{name}: tables have headers", roles.count("columnheader") >= roles.count("table") > 0, roles.count("columnheader"))
    levels = browser.run("[...document.querySelectorAll('h1,h2,h3')].map(one => Number(one.tagName[1]))")
    check(f"{name}: no level of heading is left out", all(b - a <= 1 for a, b in zip(levels, levels[1:])), levels)


def hostile(browser, page):
    browser.open(page.as_uri())
    check("markup of a log is not run", browser.run("window.broken") is None)
    check("and adds no element", browser.run("document.querySelectorAll('script').length") == 2 and browser.run("document.images.length") == 0)
    text = browser.run("document.querySelector('#verdict').textContent")
    check("but is shown", "Tried to allocate 2.00 GiB. <script>window.broken = 3</script>" in text, text)
    with tempfile.TemporaryDirectory() as folder:
        # The control: what would be seen, were anything asked for or run.
        broken = Path(folder) / "broken.html"
        source = page.read_text()
        policy, end = source.index('<meta http-equiv'), source.index("\n", source.index('<meta http-equiv'))
        injected = "<img src=http://127.0.0.1:9/x><script>window.broken = 4</script></body>"
        broken.write_text((source[:policy] + source[end:]).replace("</body>", injected))
        browser.open(broken.as_uri())
        check("without the policy it would be run and asked for", browser.run("window.broken") == 4 and len(browser.requests()) == 2, browser.requests())
        broken.write_text(source.replace("</body>", injected))
        browser.open(broken.as_uri())
        failed = [event["params"].get("blockedReason") for event in browser.events if event.get("method") == "Network.loadingFailed"]
        check("the policy alone stops both", browser.run("window.broken") is None and (len(browser.requests()) == 1 or failed == ["csp"]), (browser.requests(), failed))


def keyboard(browser, page, lang):
    browser.open(page.as_uri())
    other = {"en": "zh-CN", "zh-CN": "en"}[lang]
    heading = "document.querySelector('#ledger h2').textContent"
    focus = "document.activeElement.id || document.activeElement.className"
    check("the page begins in the language of the run", browser.run("document.documentElement.lang") == lang, lang)
    before = browser.run(heading)
    browser.key("Tab")
    check("the first key leads past the menu", browser.run(focus) == "skip", browser.run(focus))
    check("and is seen", browser.run("document.activeElement.getBoundingClientRect().left") >= 0)
    browser.key("Tab")
    check("then comes the language", browser.run(focus) == "language", browser.run(focus))
    browser.key("Enter")
    check("which a key switches", browser.run("document.documentElement.lang") == other and browser.run(heading) != before, browser.run(heading))
    check("without losing the place", browser.run(focus) == "language", browser.run(focus))
    said = browser.run("document.querySelector('#verdict h2').textContent")
    check("the verdict is in both languages", said != "" and said.isascii() == (other == "en"), said)
    browser.key("Enter")
    browser.key("Tab")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(colour)
    browser.key(" ")
    browser.key(" ")
    check("a key makes it dark", browser.run("document.documentElement.dataset.theme") == "dark" and browser.run(colour) != light)
    browser.key(" ")
    check("and as the system has it", browser.run("document.documentElement.dataset.theme || ''") == "" and browser.run(colour) == light)
    # Every other stop is seen as well.
    count = browser.run("[...document.querySelectorAll('a,button,summary,[tabindex=\"0\"]')].filter(one => one.checkVisibility()).length")
    for _ in range(count - 3):
        browser.key("Tab")
        outline = browser.run("getComputedStyle(document.activeElement).outlineStyle")
        if outline == "none":
            check("every stop is seen", False, browser.run("document.activeElement.outerHTML.slice(0, 80)"))
    check(f"all {count} stops are seen", True)


def main():
    ranklaunch = os.path.abspath(sys.argv[1])
    pictures = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    if pictures:
        pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ranklaunch-report-") as folder, Browser() as browser:
        folder = Path(folder)
        print("a run that failed")
        code, said = ended(launch(ranklaunch, folder / "failed", "en", "--fail"))
        check("the exit code is that of the rank", code == 1, said)
        node = folder / "failed" / "latest" / "node-0" / "report.html"
        page = (folder / "failed" / "latest" / "report.html").resolve()
        check("the node and the job have a page", node.exists() and page.exists())
        looks(browser, page, "failed", pictures)
        hostile(browser, page)
        keyboard(browser, page, "en")
        if pictures:
            # Those of docs/report.md.
            browser.size(1080, 900)
            for lang in ["en", "zh"]:
                browser.open(page.as_uri())
                browser.run("if (%s) document.getElementById('language').click()" % json.dumps(lang == "zh"))
                browser.picture(pictures / f"report.{lang}.png", 1330)
            browser.size(1280, 900)
        seen(browser, page, "rank.py", ["rank 1 attempt 0:"])
        check("no step is known, and no goodput", "goodput" not in browser.run("document.body.innerText"))
        print("a run that is done, in Chinese")
        code, said = ended(launch(ranklaunch, folder / "done", "zh"))
        check("it is done", code == 0, said)
        page = of_job(folder / "done")
        profile = folder / "steps.toml"
        profile.write_text('[job]\nscript = "rank.py"\nargs = ["--steps"]\n')
        code, said = ended(launch(ranklaunch, folder / "steps", "en", "--steps", options=["--profile", str(profile)]))
        check("so is one with a profile", code == 0, said)
        steps = of_job(folder / "steps")
        seen(browser, steps, "rank.py · steps", [])
        named = browser.run("[...document.querySelectorAll('#verdict dt')].map(one => one.textContent)")
        check("it has no cause", named == ["Exit code"], named)
        check("its steps are known", "goodput" in browser.run("document.querySelector('#ledger .tiles').textContent"))
        dots = browser.run("[...document.querySelectorAll('.chart svg')].map(one => Math.max(...[...one.querySelectorAll('polyline')].map(line => line.points.length)))")
        check("no curve is a dot", all(one > 1 for one in dots), dots)
        print("a run that stands still for one rank")
        code, said = ended(launch(ranklaunch, folder / "hang", "en", program="hang.py", ranks=4, options=[
            "--python", os.environ["PYTHON"], "--hang-after", "12s", "--on-hang", "end"]))
        check("it is ended", code == 91, said)
        looks(browser, of_job(folder / "hang"), "hang", pictures)
        seen(browser, of_job(folder / "hang"), "hang.py", ["rank 3 attempt 0:"])
        print("a run of two nodes")
        codes = two_nodes(ranklaunch, folder / "nodes")
        check("both fail", all(code for code, _ in codes), codes)
        looks(browser, of_job(folder / "nodes"), "nodes", pictures)
        seen(browser, of_job(folder / "nodes"), "rank.py", ["rank 1 attempt 0:"])
        print("a run that is restarted")
        code, said = ended(launch(ranklaunch, folder / "again", "en", "--fail", "--steps", options=["--max-restarts", "1", "--retry-on", "rank.exit"]))
        check("it is done", code == 0, said)
        looks(browser, of_job(folder / "again"), "again", pictures)
        seen(browser, of_job(folder / "again"), "rank.py", ["rank 1 attempt 0:"])
        looks(browser, page, "done", pictures)
        keyboard(browser, page, "zh-CN")
        print("a run that was cut off")
        node = cut_off(ranklaunch, folder / "cut")
        check("it has no page", not (node / "report.html").exists())
        made = subprocess.run([ranklaunch, "report", str(node.parent)], capture_output=True, text=True, timeout=30)
        page = Path(made.stdout.strip())
        check("ranklaunch report makes one", made.returncode == 0 and page.exists(), made)
        looks(browser, page, "cut-off", pictures)
        check("which says so", browser.run("document.querySelector('#verdict .pill').textContent") == "no end")
        print("a run of a thousand ranks")
        made = subprocess.run([ranklaunch, "report", str(thousand(folder))], capture_output=True, text=True, timeout=60)
        page = Path(made.stdout.strip())
        check("it has at most 2 MB", made.returncode == 0 and page.stat().st_size <= 2_000_000, made)
        looks(browser, page, "thousand", pictures)
        check("with all ranks", browser.run("document.querySelectorAll('#members details tbody tr').length") == 1000)
        took = browser.run("performance.timing.loadEventEnd - performance.timing.navigationStart")
        check("within 5 s", took < 5000, took)
    print("all pages are as they should be")


main()
