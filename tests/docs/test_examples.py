"""Every file in examples/ runs."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.terminal import Typist

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def typist() -> Iterator[Typist]:
    directory = Path(tempfile.mkdtemp(prefix="pilotfish-examples-"))
    person = Typist(directory)
    yield person
    assert person.type("stop", "--now").status == 0
    shutil.rmtree(directory)


def test_the_oscillator_is_swept(typist: Typist) -> None:
    said = typist.type("run", "--report", "--param", "damping=0.5,2.0", "--", str(EXAMPLES / "oscillator.py"), "{damping}", "1")
    assert said.status == 0, said
    assert "Where the time went" in said.out


def test_the_search_finds_the_minimum(typist: Typist) -> None:
    assert typist.type("run", str(EXAMPLES / "search.py")).status == 0
    found = [eval(task["value"]) for task in json.loads(typist.type("results", "--json", "--limit", "1000").out)]
    assert min(found, key=lambda pair: pair[1])[0] == pytest.approx(2.5, abs=0.05)


def test_there_is_no_example_that_nobody_runs() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"oscillator.py", "search.py"}
