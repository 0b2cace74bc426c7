"""Commands that a client sends again because their answer was lost: they are carried out once, and answered as they were the first time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pilotfish import core
from pilotfish.core.clients import client_messages, pool_commands
from pilotfish.core.explain import queries
from pilotfish.core.state import MAX_ANSWERS
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from tests.support.machine_stage import CLIENT, Stage, fail
from tests.unit.core.test_site_events import POND, stage_with
from tests.unit.core.test_state_snapshot import round_trip

COMMANDS: list[tuple[str, dict[str, Any]]] = [
    ("cancel", {"run": 2}),
    ("cancel", {"tasks": ["2.0"]}),
    ("pause", {"run": 2}),
    ("set", {"run": 2, "priority": 7}),
    ("rerun", {"run": 1}),
    ("forget", {"run": 1}),
    ("workers_set", {"local": 3}),
    ("drain", {"worker": "w"}),
    ("revoke", {"key_id": "pilot:local-1"}),
    ("site_use", {"site": "pond", "pilots": 2}),
    ("site_release", {"site": "pond"}),
    ("pilots_add", {"site": "pond", "pilots": 2}),
    ("pilots_withdraw", {"pilots": ["pond-1"]}),
]


def busy_stage() -> Stage:
    """A run that has ended badly, one that has just begun, a worker and a pilot that somebody asked for."""
    stage = stage_with(pond=POND)
    stage.ask("pilots_add", site="pond", pilots=1)
    worker = stage.join("w")
    tasks = stage.work()
    stage.close_run(1)
    stage.finish(worker, *tasks, failure=fail())
    stage.work(count=3)
    return stage


def come_back(stage: Stage, how: str) -> None:
    """What may happen between a request and its repetition."""
    if how == "reconnect":
        stage.tell(i.LinkClosed(CLIENT))
    elif how == "restart":
        stage.restart()
    else:
        stage.start(round_trip(stage.machine.state))


@pytest.mark.parametrize("how", ["reconnect", "restart", "snapshot"])
@pytest.mark.parametrize(("kind", "arguments"), COMMANDS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_command_that_comes_again_is_answered_as_before_and_done_once(kind: str, arguments: dict[str, Any], how: str) -> None:
    stage = busy_stage()
    first = stage.request("a-1", kind, **arguments)
    assert not isinstance(first, m.Problem)
    if how == "snapshot":
        stage.shadow = round_trip(stage.machine.state)
    come_back(stage, how)
    written = len(stage.journal)
    assert stage.request("a-1", kind, **arguments) == first
    assert len(stage.journal) == written


def test_the_same_command_under_another_name_is_another_one() -> None:
    stage = busy_stage()
    (first,) = stage.request("a-1", "pilots_add", site="pond")["pilots"]
    (second,) = stage.request("a-2", "pilots_add", site="pond")["pilots"]
    assert first != second
    stage.request("a-3", "forget", run=1)
    assert isinstance(stage.request("a-4", "forget", run=1), m.Problem)


def test_what_was_refused_may_be_asked_again() -> None:
    stage = busy_stage()
    assert isinstance(stage.request("a-1", "forget", run=2), m.Problem)
    stage.ask("cancel", run=2)
    assert stage.request("a-1", "forget", run=2) == {"forgotten": 2}


def test_a_command_that_changed_nothing_is_not_written_down() -> None:
    stage = busy_stage()
    stage.request("a-1", "pause", run=2)
    written = len(stage.journal)
    stage.request("a-2", "pause", run=2)
    stage.request("a-3", "status")
    assert len(stage.journal) == written


def test_only_the_latest_answers_are_kept() -> None:
    stage = busy_stage()
    for number in range(MAX_ANSWERS + 1):
        stage.request(f"a-{number}", "pause" if number % 2 == 0 else "resume", run=2)
    kept = stage.machine.state.answers
    assert len(kept) == MAX_ANSWERS
    assert "a-0" not in kept and f"a-{MAX_ANSWERS}" in kept


def test_a_request_with_an_endless_name_is_refused() -> None:
    assert isinstance(busy_stage().request("a" * 1000, "pause", run=2), m.Problem)


def test_an_argument_that_only_another_version_knows_is_refused_before_anything_is_done() -> None:
    stage = busy_stage()
    before = len(stage.journal)
    problem = stage.request("a-1", "cancel", run=2, colour="blue")
    assert isinstance(problem, m.Problem)
    assert "'colour'" in problem.message and "'cancel'" in problem.message
    assert "another version" in problem.hint and "pilotfish stop" in problem.hint
    assert len(stage.journal) == before


def test_every_argument_that_a_request_reads_is_known() -> None:
    """The core reads its arguments by name, and some of them from two tables."""
    source = "".join(path.read_text() for path in Path(core.__file__).parent.rglob("*.py"))
    read = re.findall(r"""(?:arguments\.get\(|read_(?:number|text)\((?:message\.)?arguments, )"(\w+)\"""", source)
    assert sorted({*read, *pool_commands.CHANGEABLE, *queries._FINDERS}) == client_messages.ARGUMENTS.split()
