"""What the pages show is what their code prints; their links lead somewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# without code: other commands print the benchmarks' tables, other tests hold the other pages
WRITTEN_ELSEWHERE = {"architecture.md", "benchmarks.md", "gallery.md", "README.md"}
PAGES = sorted(path for path in DOCS.glob("*.md") if path.name not in WRITTEN_ELSEWHERE)
Steady = Callable[[str], str]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_page_shows_what_its_code_prints(
    path: Path, run_page: Callable[[Path], Any], steady: Steady
) -> None:
    page = run_page(path)
    if os.environ.get("RADIXLANG_UPDATE_DOCS"):
        path.write_text(page.updated(), encoding="utf-8")
    assert page.printed, "a page without any output to compare"
    for block, printed in page.printed:
        shown = printed if os.environ.get("RADIXLANG_UPDATE_DOCS") else block.body
        assert steady(shown) == steady(printed)


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_links_lead_to_files(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"
    assert text.startswith("# ") or text.startswith("<!-- model -->\n# ")


def test_every_page_is_in_the_index() -> None:
    index = DOCS / "README.md"
    linked = set(re.findall(r"\]\(([^)#:]+)", index.read_text(encoding="utf-8")))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {index.name}
    assert pages - linked == set()
