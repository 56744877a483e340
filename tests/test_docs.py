"""That the files which the documentation names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = "bitsparse|cuda_src|_ext|tests|benchmarks|examples|docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_are_where_a_page_says(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    paths = re.findall(rf"`((?:{FOLDERS})/[\w./-]+)`", text)
    missing += [path for path in paths if "FAMILY" not in path and not (ROOT / path).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_sections_are_where_a_link_says(page: Path) -> None:
    for file, section in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8")):
        target = (page.parent / file).read_text(encoding="utf-8") if file else page.read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.*)$", target, re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
        assert section in anchors
