"""Pages in two languages stay equal: as many headings, table rows and code blocks, links to each other, none dead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import powerband

ROOT = Path(powerband.__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
CHINESE = [page for page in PAGES if page.name.endswith(".zh-CN.md")]


def shape(text: str) -> dict[str, list]:
    """What two pages with the same content share, whatever their language."""
    blocks = re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return {
        "headings": [line.split()[0] for line in prose.splitlines() if line.startswith("#")],
        "columns": [line.replace(r"\|", "").count("|") for line in prose.splitlines() if line.startswith("|")],
        "languages": [block.splitlines()[0] for block in blocks],
        "lines": [len(block.splitlines()) for block in blocks],
    }


@pytest.mark.parametrize("page", CHINESE, ids=str)
def test_a_page_and_its_translation_have_one_shape(page: Path):
    english = ROOT / str(page).replace(".zh-CN", "")
    ours, theirs = (ROOT / page).read_text(encoding="utf-8"), english.read_text(encoding="utf-8")
    assert shape(ours) == shape(theirs)
    assert f"[English]({english.name})" in ours and f"[中文]({page.name})" in theirs


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_somewhere(page: Path):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in targets if link and not (ROOT / page.parent / link).exists()] == []


def test_a_missing_row_is_seen():
    page = "# a\n\n| x | y |\n| --- | --- |\n| 1 | 2 |\n"
    assert shape(page) != shape(page.replace("| 1 | 2 |\n", "")) and shape(page) != shape(page + "## b\n")
