"""Everything that the documentation tells a person to type is typed here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, WORKS_WITH, Scratch, blocks_of, check, matches, pages, temporary_scratch


@pytest.fixture
def scratch() -> Iterator[Scratch]:
    with temporary_scratch() as made:
        yield made


@pytest.mark.parametrize("page", [page for page in pages() if page != WORKS_WITH], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_the_page_runs(page: Path, request: pytest.FixtureRequest) -> None:
    blocks = blocks_of(page)
    for block in blocks:
        check(block)
    if any(block.language != "text" for block in blocks):
        scratch: Scratch = request.getfixturevalue("scratch")
        for block in blocks:
            scratch.run(block)


LINK = re.compile(r"\]\(([^)#:\s]+)(#[\w-]+)?\)")


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_the_page_leads_somewhere(page: Path) -> None:
    for target, _ in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page}: {target}"


@pytest.mark.parametrize(
    ("expected", "actual", "fits"),
    [
        ("a ... c", "a b\nb c", True),
        ("a   b", "a b", True),
        ("a\nb", "a\nb\n", True),
        ("Run 1: ... s.", "Run 1: 20 tasks in 1.2 s.", True),
        ("a ... c", "a b", False),
        ("", "", True),
        ("", "x", False),
        ("(x+)", "(x+)", True),
    ],
)
def test_shown_output_is_compared_loosely_but_compared(expected: str, actual: str, fits: bool) -> None:
    assert matches(expected, actual) is fits
