"""Documentation: every page has its Chinese page with the same structure, links resolve, the README is short."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import powerband

ROOT = Path(powerband.__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
CHINESE = [page for page in PAGES if page.name.endswith(".zh-CN.md")]
ENGLISH_ONLY = {Path("CHANGELOG.md"), Path("CONTRIBUTING.md")}
README_LINES = 120


def prose(text: str) -> str:
    """The text without its code blocks."""
    return re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)


def structure(text: str) -> dict[str, list]:
    """What a page and its translation have in common: headings, tables and code blocks."""
    blocks = re.findall(r"^ *```.*?^ *```$", text, re.MULTILINE | re.DOTALL)
    lines = prose(text).splitlines()
    return {
        "headings": [line.split()[0] for line in lines if line.startswith("#")],
        "columns": [line.replace(r"\|", "").count("|") for line in lines if line.startswith("|")],
        "languages": [block.splitlines()[0] for block in blocks],
        "lines": [len(block.splitlines()) for block in blocks],
    }


def anchors(text: str) -> set[str]:
    """Anchors of the headings of a page, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """Relative links of `page` whose file or whose heading does not exist."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose((ROOT / page).read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (ROOT / page.parent / name) if name else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            broken.append(link)
    return broken


def missing_files(text: str) -> list[str]:
    """Files of the repository that `text` names in code and that do not exist; ``NAME`` and ``*`` are placeholders."""
    named = re.findall(r"(?<![\w/.-])(?:tests|benchmarks|src|scripts|examples)/[\w/.-]+(?![\w*])", text)
    return [path for path in named if "NAME" not in path and not (ROOT / path.rstrip(".")).exists()]


@pytest.mark.parametrize("page", [p for p in PAGES if p not in CHINESE and p not in ENGLISH_ONLY], ids=str)
def test_every_page_has_a_chinese_page(page: Path):
    assert page.with_suffix(".zh-CN.md") in CHINESE


@pytest.mark.parametrize("page", CHINESE, ids=str)
def test_a_page_and_its_translation_have_the_same_structure(page: Path):
    english = ROOT / str(page).replace(".zh-CN", "")
    ours, theirs = (ROOT / page).read_text(encoding="utf-8"), english.read_text(encoding="utf-8")
    assert structure(ours) == structure(theirs)
    assert f"[English]({english.name})" in ours and f"[中文]({page.name})" in theirs


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_relative_links_resolve(page: Path):
    assert broken_links(page) == []


def test_the_reference_is_up_to_date():
    generated = runpy.run_path(str(ROOT / "scripts" / "reference.py"))["pages"]()
    stale = [path.name for path, text in generated.items() if path.read_text(encoding="utf-8") != text]
    assert not stale, f"{', '.join(stale)} differ from the configuration. Run python scripts/reference.py."


@pytest.mark.parametrize(
    "page", [*(page for page in PAGES if page.name != "CHANGELOG.md"), Path("benchmarks/README.md")], ids=str
)
def test_named_files_exist(page: Path):
    assert missing_files((ROOT / page).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", CHINESE, ids=str)
def test_chinese_pages_link_to_chinese_pages(page: Path):
    links = re.findall(r"\]\(([^)\s#]+\.md)[^)]*\)", (ROOT / page).read_text(encoding="utf-8"))
    english = [link for link in links if not link.endswith(".zh-CN.md") and "://" not in link]
    allowed = {page.name.replace(".zh-CN", ""), *(path.name for path in ENGLISH_ONLY)}
    assert [link for link in english if Path(link).name not in allowed] == []


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_the_readme_is_short(name: str):
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= README_LINES


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page for page in PAGES if page.parts[0] == "docs" and page not in CHINESE]
    assert [page for page in pages if f": {page.relative_to('docs').as_posix()}\n" not in navigation] == []


def test_the_site_needs_no_network():
    configuration = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "font: false" in configuration
    assert "http" not in configuration


def test_a_missing_row_is_detected():
    page = "# a\n\n| x | y |\n| --- | --- |\n| 1 | 2 |\n"
    assert structure(page) != structure(page.replace("| 1 | 2 |\n", ""))
    assert structure(page) != structure(page + "## b\n")


def test_a_missing_file_is_detected():
    assert missing_files("See `tests/test_docs.py` and `src/powerband/algos/NAME.py`.") == []
    assert missing_files("See `tests/test_no_such_file.py`.") == ["tests/test_no_such_file.py"]


def test_a_broken_link_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("# One heading\n[x](b.md) [y](#one-heading) [z](#two) [w](https://a.b)")
    assert broken_links(Path("a.md")) == ["b.md", "#two"]


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks/results").rglob("*.json")), ids=lambda file: file.name)
def test_a_published_figure_names_no_folder_of_a_user(file: Path) -> None:
    assert not re.search(r"/(root|home)/\w", file.read_text(encoding="utf-8")), (
        f"{file}: give paths relative to a folder"
    )
