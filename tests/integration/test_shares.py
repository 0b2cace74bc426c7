"""Tests shares with real workers: how two runs divide two slots."""

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

TASKS = 240


@pytest.fixture
def typist() -> Iterator[Typist]:
    directory = Path(tempfile.mkdtemp(prefix="pilotfish-shares-"))
    person = Typist(directory)
    yield person
    said = person.type("stop", "--now", "--json")
    assert said.status == 0, said
    shutil.rmtree(directory)


def submit(typist: Typist, share: str, *, command: str = "sleep 0.05") -> None:
    words = ["--detach", "--local-cores", "2", "--share", share, "--param", f"n=1..{TASKS}"]
    said = typist.type("run", *words, "--", "sh", "-c", f"{command} # {{n}}")
    assert said.status == 0, said


def runs(typist: Typist) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(typist.type("status", "--json").out)["runs"]
    return rows


def done(typist: Typist) -> dict[str, int]:
    return {row["share"]: row["counts"]["done"] for row in runs(typist)}


def test_two_slots_are_divided_by_weight(typist: Typist) -> None:
    gate = typist.directory / "gate"
    submit(typist, "gate", command=f"while ! test -e {gate}; do sleep 0.02; done; true")
    wait_until(lambda: runs(typist)[0]["counts"]["ready"] == TASKS - 2, "both slots to be taken")
    submit(typist, "one")
    submit(typist, "three:3")
    why = json.loads(typist.type("why", "2.0", "--json").out)
    assert why["reasons"][-1]["code"] == "busy"
    typist.type("cancel", "1")
    seen = [done(typist)]

    def most_is_done() -> bool:
        seen.append(done(typist))
        return seen[-1]["three"] > 0.6 * TASKS

    wait_until(most_is_done, "most tasks of the greater share to be done")
    contested = [counts for counts in seen if counts["three"] < TASKS][-1]
    assert contested["one"] / contested["three"] == pytest.approx(1 / 3, rel=0.15), seen


def test_a_late_run_of_higher_priority_goes_first_once_it_is_told(typist: Typist) -> None:
    submit(typist, "first", command="sleep 0.2")
    submit(typist, "first", command="true")
    assert runs(typist)[1]["counts"]["done"] == 0
    assert typist.type("set", "2", "--priority", "5", "--deadline", "2h").status == 0
    wait_until(lambda: runs(typist)[1]["counts"]["done"] == TASKS, "the second run to be done first")
    first, second = runs(typist)
    assert first["counts"]["done"] < TASKS
    assert second["late_s"] < 0
    assert ", met" in typist.type("status").out
