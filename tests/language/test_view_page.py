"""The view as a page: what it holds, and how a real browser shows it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from radixlang import State, function, gen, select, user
from radixlang.views.page import run_to_page

Make = Callable[..., Any]
NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
PROBE = """<script>onload = () => {
  const style = each => getComputedStyle(document.querySelector(each));
  document.body.dataset.report = JSON.stringify({
    width: innerWidth, overflow: document.documentElement.scrollWidth - innerWidth,
    branches: document.querySelectorAll("details").length, page: style("body").backgroundColor,
    ink: style("body").color, seen: document.querySelector("details").offsetHeight,
    requests: performance.getEntriesByType("resource").length });
  parent.document.body.dataset.report = document.body.dataset.report;
};</script>"""


@function
def branchy(s: State, width: int = 3, depth: int = 1) -> None:
    s += user("<b>Shared</b> & common") + gen("first", max_tokens=6, logprobs=True, top_logprobs=2)
    level = [s]
    for _ in range(depth):
        level = [child for parent in level for child in parent.fork(width)]
        for child in level:
            child += "side " + select("pick", ["yes", "no"]) + gen("end", max_tokens=4)


def page_of(make: Make, **arguments: Any) -> str:
    return run_to_page(branchy.run(runtime=make(lambda p, q: "yes."), seed=1, **arguments))


def test_page_is_whole_and_needs_no_network(fake: Make) -> None:
    page = page_of(fake)
    assert page.startswith("<!doctype html>")
    assert not re.search(r"(src|href)\s*=|@import|url\(|fetch\(|https?:", page)
    assert page.count("<details") == page.count("</details>") == 4
    assert "$" not in page


def test_text_of_the_run_is_never_markup(fake: Make) -> None:
    page = page_of(fake)
    assert "&lt;b&gt;Shared&lt;/b&gt; &amp; common" in page
    assert "<b>Shared" not in page


def test_markup_of_a_chat_stands_back(fake: Make) -> None:
    page = page_of(fake)
    assert "<i>&lt;|im_start|&gt;</i>user" in page
    assert "<i>&lt;b&gt;</i>" not in page  # of a text, it is text
    peeks = re.findall(r'<span class="peek">([^<]*)</span>', page)
    assert peeks[1].startswith("side yes")
    assert not any("im_end" in peek for peek in peeks)


def test_probabilities_cost_and_origin_are_told(fake: Make) -> None:
    page = page_of(fake)
    notes = [unescape(note) for note in re.findall(r'data-p="([^"]*)"', page)]
    assert any(re.match(r"\d+\.\d% 'y'\n", note) for note in notes)  # a token and alternatives
    assert any("'yes'" in note and "'no'" in note for note in notes)  # a select
    assert re.search(r"\+\d+ tokens \([\d.]+ k?B\), \d+ cached", page)
    assert {"computed", "sampled", "forced"} <= set(re.findall(r'<span class="(\w+)"', page))


def test_large_trees_start_closed_below_the_levels_that_have_room(fake: Make) -> None:
    assert page_of(fake).count("<details open") == 4
    assert page_of(fake, width=100).count("<details open") == 1
    assert page_of(fake, width=8, depth=3).count("<details open") == 1 + 8 + 64  # whole levels


def shown(tmp_path: Path, page: str, width: int, *flags: str) -> dict[str, Any]:
    """What a headless browser says of the page in a frame of this width."""
    if BROWSER is None:
        pytest.skip("no chromium here to look at the page with; apt-get install chromium")
    frame = (
        f'<iframe style="width:{width}px;height:800px;border:0" srcdoc="{escape(page + PROBE)}">'
    )
    file = tmp_path / "frame.html"
    file.write_text(f"<!doctype html><body>{frame}</iframe></body>", encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", *flags,
               f"--user-data-dir={tmp_path}/p", "--virtual-time-budget=20000",
               file.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<body data-report="([^"]*)"', done.stdout)
    assert found is not None, done.stderr[-2000:]
    report: dict[str, Any] = json.loads(unescape(found[1]))
    return report


def brightness(color: str) -> float:
    red, green, blue = (int(part) for part in re.findall(r"\d+", color)[:3])
    return 0.3 * red + 0.6 * green + 0.1 * blue


@pytest.mark.parametrize("width", [390, 1200])
def test_browser_shows_it_light_at_any_width(fake: Make, tmp_path: Path, width: int) -> None:
    report = shown(tmp_path, page_of(fake), width, "--blink-settings=preferredColorScheme=1")
    assert (report["width"], report["overflow"], report["branches"]) == (width, 0, 4)
    assert report["requests"] == 0
    assert brightness(report["page"]) > 200 > 60 > brightness(report["ink"])


def test_browser_shows_it_dark_with_2000_branches(fake: Make, tmp_path: Path) -> None:
    page = page_of(fake, width=2, depth=10)  # 2 + 4 + … + 1,024 and the root
    report = shown(tmp_path, page, 390, "--blink-settings=preferredColorScheme=0")
    assert (report["branches"], report["overflow"]) == (2047, 0)
    assert brightness(report["page"]) < 60 < 200 < brightness(report["ink"])
    assert report["seen"] > 0
