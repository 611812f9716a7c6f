"""A browser that shows a page without a window, if one is installed."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
          "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip
#: Measures each frame: its width, the width of its content, the elements that stand out on the right, and the least
#: size of a letter in a drawing.
_MEASURE = """
const boxed = '.wide *, pre *';
function measure(frame) {
  const root = frame.contentDocument.documentElement, width = root.clientWidth;
  const out = [...root.querySelectorAll('body *')].filter(
    each => !each.matches(boxed) && each.getBoundingClientRect().right > width + 0.5);
  const letters = [...root.querySelectorAll('svg text')].map(each => {
    const scale = each.getScreenCTM();
    return parseFloat(getComputedStyle(each).fontSize) * Math.hypot(scale.c, scale.d);
  });
  return {name: frame.title, frame: frame.width, width, content: root.scrollWidth,
          out: out.map(each => each.outerHTML.slice(0, 80)), letter: Math.min(...letters, 100)};
}
addEventListener('load', () => {
  document.title = JSON.stringify([...document.querySelectorAll('iframe')].map(measure));
});
"""


def needed() -> str:
    """The browser's path; skips the test if none is installed."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser is installed: none of {', '.join(_BROWSERS)}")
    return browser


def browse(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the browser with its profile in ``directory``."""
    command = [needed(), *_FLAGS, f"--user-data-dir={directory / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def measured(directory: Path, pages: Mapping[str, str], widths: tuple[int, ...]) -> list[dict[str, Any]]:
    """Each page by name at each width, measured in one start of the browser: every page has a frame of that width."""
    frames = directory / "frames.html"
    frames.write_text("\n".join(_frames(pages, widths)), encoding="utf-8")
    shown = browse(directory, "--dump-dom", frames.as_uri())
    title = re.search(r"<title>(\[.*?)</title>", shown.stdout, re.DOTALL)
    assert title, shown.stderr
    found: list[dict[str, Any]] = json.loads(html.unescape(title[1]))
    return found


def _frames(pages: Mapping[str, str], widths: tuple[int, ...]) -> Iterator[str]:
    yield f"<!doctype html><title></title><script>{_MEASURE}</script>"
    for name, text in pages.items():
        for width in widths:
            content = html.escape(text)
            yield f'<iframe title="{name}" width="{width}" height="800" style="border: 0" srcdoc="{content}"></iframe>'
