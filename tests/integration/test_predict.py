"""Tests predictions and replays of a real pool: they neither ask its master nor change its files."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.scene import wait_until
from tests.integration.terminal import Typist

TASKS = 60


@pytest.fixture
def typist() -> Iterator[Typist]:
    directory = Path(tempfile.mkdtemp(prefix="pilotfish-predict-"))
    person = Typist(directory)
    yield person
    said = person.type("stop", "--now", "--json")
    assert said.status == 0, said
    shutil.rmtree(directory)


def ask(typist: Typist, *words: str) -> dict[str, Any]:
    said = typist.type(*words, "--json")
    assert said.status == 0, said
    answer: dict[str, Any] = json.loads(said.out)
    return answer


def submit(typist: Typist) -> Path:
    """Submit tasks of which half end by themselves, the others when the gate opens."""
    gate = typist.directory / "gate"
    script = f"sleep 0.1; test {{n}} -le 30 || while ! test -e {gate}; do sleep 0.05; done"
    said = typist.type("run", "--detach", "--local-cores", "2", "--param", f"n=1..{TASKS}", "--", "sh", "-c", script)
    assert said.status == 0, said
    wait_until(lambda: typist_done(typist) >= TASKS // 2, "half of the tasks to be done")
    return gate


def typist_done(typist: Typist) -> int:
    return int(ask(typist, "status")["runs"][0]["counts"]["done"])


def test_a_run_is_predicted_and_the_record_tells_how_good_that_was(typist: Typist) -> None:
    gate = submit(typist)
    told = ask(typist, "predict")
    assert told["left"] == TASKS // 2
    assert 0 < told["low_s"] <= told["median_s"] <= told["high_s"]
    assert sum(told["parts"][name] for name in ("waiting_s", "execution_s", "staging_s")) > 0
    options = ask(typist, "whatif", "cores=4", "-site local", "--samples", "8")["options"]
    assert [row["what"] for row in options].index("cores=4") < [row["what"] for row in options].index("as it is")
    assert options[-1]["what"] == "-site local" and options[-1]["median_s"] is None
    gate.touch()
    wait_until(lambda: typist_done(typist) == TASKS, "the run to end")
    record = ask(typist, "predict", "--accuracy")
    assert record["tested"] == 1
    assert record["predictions"][0]["took_s"] > 0
    refused = typist.type("predict", "1")
    assert refused.status != 0 and "run 1 has ended" in refused.err and "pilotfish predict --accuracy" in refused.err


def test_the_prediction_of_an_unknown_program_is_a_rough_guess(typist: Typist) -> None:
    script = "while test {n}; do sleep 0.1; done"
    assert typist.type("run", "--detach", "--deadline", "2h", "--param", "n=1..4", "--", "sh", "-c", script).status == 0
    said = typist.type("predict").out
    assert "a rough guess" in said.splitlines()[0] and "80 % interval" not in said
    assert "deadline" in said and "staging" not in said
    assert ask(typist, "predict")["in_time"] == 1.0
    assert "its deadline is" in typist.type("why").out


def test_a_finished_run_is_replayed(typist: Typist) -> None:
    submit(typist).touch()
    wait_until(lambda: typist_done(typist) == TASKS, "the run to end")
    rows = ask(typist, "replay", "1", "--policy", "workqueue,near", "--total-cores", "3")["rows"]
    assert rows[0]["what"] == "measured"
    assert [row["cores"] for row in rows] == [2, *[2, 3] * 3], "so many cores in all, as with run --local-cores"
    assert rows[1]["seconds"] == pytest.approx(rows[0]["seconds"], rel=0.5)
    assert rows[2]["seconds"] < rows[1]["seconds"]
    refused = typist.type("replay", "1", "--policy", "wrkqueue")
    assert refused.status != 0 and "--policy: there is no policy 'wrkqueue'" in refused.err
    assert "pilotfish replay 1 --policy" in typist.type("whatif", "+2 cores").err
    assert "pilotfish results 1" in typist.type("predict").err, "there is no prediction whose accuracy could be shown"


def test_a_stopped_pool_is_looked_at_without_being_started(typist: Typist) -> None:
    submit(typist)
    assert typist.type("stop").status == 0
    told = ask(typist, "predict")
    assert any("stopped" in note for note in told["notes"])
    assert told["median_s"] > 0
    assert ask(typist, "status")["pid"] is None
