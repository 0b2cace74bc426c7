"""Pages that are made from the code must be made again when the code changes: `make docs` does it."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED: dict[str, Callable[[], str]] = runpy.run_path(str(ROOT / "docs" / "generate.py"))["GENERATED"]


@pytest.mark.parametrize("contents", ["docs/index.md", "mkdocs.yml"])
def test_every_page_is_in_the_contents(contents: str) -> None:
    listed = (ROOT / contents).read_text()
    pages = (str(path.relative_to(ROOT / "docs")) for path in sorted((ROOT / "docs").rglob("*.md")))
    # Decisions have a list of their own.
    missing = [page for page in pages if page not in listed and page != "index.md" and not page.startswith("explanation/decisions/0")]
    assert not missing, f"{contents} has no {missing}"


def test_menu_entries_are_titles_of_pages() -> None:
    for title, page in re.findall(r"^ +- ([^:\n]+): (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE):
        heading = re.search(r"^# (.+)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
        assert heading is not None and heading[1].startswith(title), f"{page}: {title}"


@pytest.mark.parametrize("name", sorted(GENERATED))
def test_the_page_is_as_the_code_says(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == GENERATED[name](), f"docs/{name} is out of date: make docs"
