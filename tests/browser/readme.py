#!/usr/bin/env python3
"""The READMEs as GitHub shows them: readme.py [FOLDER for pictures]. No table and no block of code is wider than the
column of 860 pixels, so that nothing has to be scrolled. Rendered by GitHub's own parser (cmarkgfm)."""

import sys
import tempfile
from pathlib import Path

import cmarkgfm
from cmarkgfm.cmark import Options

from browser import Browser

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 860
# Sizes that GitHub gives text, cells and code; fonts are those of a Linux desktop.
STYLE = """
body { margin: 0; background: #fff; color: #1f2328; font: 16px/1.5 "Noto Sans", Helvetica, Arial, "Noto Sans CJK SC", sans-serif; overflow-wrap: break-word }
table { display: block; width: max-content; max-width: 100%; overflow: auto; border-collapse: collapse; margin-bottom: 16px }
th, td { padding: 6px 13px; border: 1px solid #d1d9e0 }
code, pre { font: 85%/1.45 ui-monospace, "Liberation Mono", "DejaVu Sans Mono", monospace; background: #f0f1f2 }
code { padding: .2em .4em; border-radius: 6px; white-space: break-spaces }
pre { padding: 16px; overflow: auto; border-radius: 6px; font-size: 13.6px }
pre code { padding: 0; font-size: 100%; white-space: pre; background: none }
img { max-width: 100% }
"""
TOO_WIDE = """
[...document.querySelectorAll('table, pre')]
    .filter(box => box.scrollWidth > box.clientWidth)
    .map(box => `${box.scrollWidth} in ${box.clientWidth} pixels: ${box.innerText.trim().slice(0, 70)}`)
"""


def page(text, folder):
    """The file with the text as HTML."""
    body = cmarkgfm.github_flavored_markdown_to_html(text, Options.CMARK_OPT_UNSAFE)
    file = Path(folder) / "page.html"
    file.write_text(f'<!doctype html><meta charset="utf-8"><base href="{ROOT.as_uri()}/"><style>{STYLE}</style>{body}', encoding="utf-8")
    return file.as_uri()


def too_wide(browser, text, folder):
    browser.open(page(text, folder))
    return browser.run(TOO_WIDE)


def main():
    pictures = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with Browser() as browser, tempfile.TemporaryDirectory() as folder:
        browser.size(WIDTH, 1000)
        for name in ("README.md", "README.zh-CN.md"):
            text = (ROOT / name).read_text(encoding="utf-8")
            wide = too_wide(browser, text, folder)
            boxes = browser.run("document.querySelectorAll('table, pre').length")
            broken = browser.run("[...document.images].filter(one => !one.complete || !one.naturalWidth).map(one => one.src)")
            if pictures:
                browser.picture(pictures / f"{name}.png")
            assert not wide, f"{name}: " + "; ".join(wide)
            assert boxes >= 8, f"{name}: only {boxes} tables and blocks are seen"
            assert not broken, f"{name}: no picture {broken}"
            assert not browser.errors(), browser.errors()
            print(f"{name}: {boxes} tables and blocks, none wider than {WIDTH} pixels")
        # The controls: a table of eight columns, and a line of 120 letters.
        cells = "|".join(["letters_without_a_break"] * 8)
        for wrong in (f"|{cells}|\n|{'-|' * 8}\n|{cells}|\n", f"```sh\n{'x' * 120}\n```\n"):
            assert len(too_wide(browser, wrong, folder)) == 1, f"the control passes: {wrong[:20]}"


if __name__ == "__main__":
    main()
