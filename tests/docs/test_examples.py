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


def test_the_run_file_brings_its_files_back(typist: Typist) -> None:
    said = typist.type("run", str(EXAMPLES / "run_file.py"))
    assert said.status == 0, said
    assert said.out.endswith("20 files in run-1/\n")
    assert (typist.directory / "run-1" / "7" / "message.out").read_text() == "hello from task 7\n"


def test_the_application_makes_tasks_while_it_runs(typist: Typist) -> None:
    said = typist.type("run", "--json", str(EXAMPLES / "adaptive.py"))
    assert said.status == 0, said
    counts = json.loads(said.out)
    assert counts["tasks"] == counts["counts"]["done"]
    assert counts["tasks"] > 10


def test_there_is_no_example_that_nobody_runs() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"oscillator.py", "run_file.py", "adaptive.py"}
