"""Runs the examples with other libraries. `make campaign` installs the libraries, in an environment of their own."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.docs.blocks import WORKS_WITH, Block, blocks_of, check, temporary_scratch

pytestmark = pytest.mark.campaign  # the examples are short, but the libraries are large

PYTHON = Path(sys.prefix) / "works-with" / "bin" / "python"
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
CALLS_WERE_SUBMITTED = '\nassert executor._session is not None, "the library made all calls in its own process"\n'
LIBRARIES = ["SciPy", "emcee", "Optuna", "adaptive", "pymoo", "tqdm", "Dask", "asyncio"]


def section_of(block: Block) -> str:
    """Returns the title of the section in which the block is."""
    lines = block.page.read_text().splitlines()[: block.line]
    titles: list[str] = SECTION.findall("\n".join(lines))
    return titles[-1]


BLOCKS = blocks_of(WORKS_WITH)


def test_every_library_has_an_example() -> None:
    assert list(dict.fromkeys(map(section_of, BLOCKS))) == LIBRARIES


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{section_of(block)}, line {block.line}")
def test_the_example_sends_its_calls_to_the_pool(block: Block) -> None:
    assert PYTHON.exists(), "the libraries are not installed: run make .venv/works-with/installed"
    check(block)
    with temporary_scratch(PYTHON) as scratch:
        scratch.run(replace(block, text=block.text + CALLS_WERE_SUBMITTED))
