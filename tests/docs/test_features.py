"""Checks the feature table: every row has a state, and what is done has a page and a test."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "reference" / "features.md"
ROW = re.compile(r"^\| ([A-Z]\d+) \| ([^|]+) \| ([^|]+) \| ([^|]*)\| ([^|]*)\|$", re.MULTILINE)
STATES = ("done", "partly", "planned")


def test_rows_are_unique_and_numbered_without_gaps() -> None:
    found = [row[0] for row in ROW.findall(PAGE.read_text())]
    letters = dict.fromkeys(row[0] for row in found)
    assert found == [f"{letter}{number}" for letter in letters for number in range(1, sum(row[0] == letter for row in found) + 1)]
    assert list(letters) == list("DGFAPSMTXE")


def test_every_row_has_a_state_and_partly_names_the_missing_part() -> None:
    for row, _, state, _, _ in ROW.findall(PAGE.read_text()):
        name, _, missing = state.strip().partition(": ")
        assert name in STATES, f"{row}: {state}"
        assert bool(missing) == (name == "partly"), f"{row}: {state}"


def test_every_feature_that_exists_has_a_page_and_a_test() -> None:
    for row, _, state, page, test in ROW.findall(PAGE.read_text()):
        if state.strip() == "planned":
            assert not page.strip() and not test.strip(), row
        else:
            assert page.startswith("["), row
            assert (ROOT / test.strip().strip("`")).is_file(), f"{row}: {test}"
