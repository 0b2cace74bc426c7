"""Pages that are made from the code must be made again when the code changes: `make docs` does it."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED: dict[str, Callable[[], str]] = runpy.run_path(str(ROOT / "docs" / "generate.py"))["GENERATED"]


@pytest.mark.parametrize("name", sorted(GENERATED))
def test_the_page_is_as_the_code_says(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == GENERATED[name](), f"docs/{name} is out of date: make docs"
