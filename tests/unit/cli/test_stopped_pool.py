"""A pool that somebody stopped: what can be said of it without its master."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from pilotfish.cli.commands.status_commands import stop_sentence
from pilotfish.store.pool_directory import StopMark, read_stop_mark, stop_mark_path, write_stop_mark
from tests.support.fake_session import FakeMaster
from tests.unit.cli.conftest import CommandLine

FIVE_MINUTES = 300.0


@pytest.fixture
def pool(pilotfish: CommandLine, tmp_path: Path) -> Path:
    return tmp_path / ".pilotfish" / "pools" / "default"


def test_what_is_known_is_told_without_a_master(pilotfish: CommandLine, master: FakeMaster, pool: Path) -> None:
    pilotfish("run", "--quiet", "--", "echo")
    master.stuck = True
    pilotfish("run", "--detach", "--param", "x=1..4", "--", "echo", "{x}")
    stop_mark_path(pool).touch()
    write_stop_mark(pool, [run.row() for run in master.runs.values()])
    master.asked.clear()
    first, _, *table = pilotfish("status").out.splitlines()
    assert first == "The pool default was stopped 1 s ago with 4 tasks unfinished in run 2. Resume: pilotfish attach 2"
    assert [" ".join(line.split()) for line in table[1:]] == [
        "1 - done 1 1 0 0 0 - - echo",
        "2 - waiting 4 0 0 0 4 - - echo {x} --param x=1..4",
    ]
    data = json.loads(pilotfish("status", "--json").out)
    assert (data["pid"], [row["state"] for row in data["runs"]]) == (None, ["done", "waiting"])
    assert data["stopped_at"] == pytest.approx(time.time(), abs=FIVE_MINUTES)
    assert pilotfish("workers").out == f"{first}\n"
    assert json.loads(pilotfish("workers", "--json").out) == []
    assert master.asked == [], "nobody was woken"


def test_a_stop_of_which_nothing_is_written_has_the_master_asked(pilotfish: CommandLine, master: FakeMaster, pool: Path) -> None:
    master.stuck = True
    pilotfish("run", "--detach", "--", "echo")
    stop_mark_path(pool).touch()
    lines = pilotfish("status").out.splitlines()
    assert lines[0].startswith("pool default · master 4711")
    assert lines[1].endswith("with 1 task unfinished in run 1. Resume: pilotfish attach 1")
    stop_mark_path(pool).unlink()
    assert "stopped" not in pilotfish("status").out
    assert json.loads(pilotfish("status", "--json").out)["stopped_at"] is None


def test_the_note_keeps_the_first_moment_and_comes_to_nobody_who_goes_on(pool: Path) -> None:
    write_stop_mark(pool, [])
    assert read_stop_mark(pool) is None, "whoever wants the work has removed the marker"
    stop_mark_path(pool).write_text("{")
    stop = read_stop_mark(pool)
    assert stop is not None and stop.runs is None
    write_stop_mark(pool, [{"run": 1}])
    write_stop_mark(pool, [{"run": 1}, {"run": 2}])
    assert read_stop_mark(pool) == StopMark(stop.at, [{"run": 1}, {"run": 2}])


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([], "The pool b was stopped 5 min ago."),
        ([(1, "done", 0)], "The pool b was stopped 5 min ago."),
        ([(1, "open", 0)], "The pool b was stopped 5 min ago with run 1 unfinished. Resume: pilotfish attach 1"),
        ([(1, "closed", 1), (3, "closed", 2)], "ago with 3 tasks unfinished in runs 1, 3. Resume: pilotfish attach 3"),
        ([(run, "closed", 1) for run in range(1, 6)], "ago with 5 tasks unfinished in 5 runs. Resume: pilotfish attach 5"),
    ],
)
def test_a_sentence_tells_what_is_left_and_how_to_go_on(runs: list[tuple[int, str, int]], words: str) -> None:
    rows = [{"run": run, "state": state, "counts": {"ready": ready, "done": 7}} for run, state, ready in runs]
    assert stop_sentence("b", StopMark(time.time() - FIVE_MINUTES, rows)).endswith(words)
