"""Files that one task leaves for another: promised by name, and handed on by content when they are there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pilotfish.core import state_snapshot
from pilotfish.core.apply import apply
from pilotfish.core.state import State, Task
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.contents import ExpectedFile, IntermediateFile, ProducedContent
from pilotfish.model.states import CANCELLED, DONE, FAILED, READY, WAITING
from pilotfish.model.task import Failure, TaskSpec
from pilotfish.portable.wire.frames import MAX_HEADER
from tests.support.machine_stage import CLIENT, Stage
from tests.support.state_check import fingerprint

MESH, PART, OTHER = "a" * 64, "b" * 64, "c" * 64
FILES = [
    ProducedContent(MESH, 10, True, True, "mesh.bin", 0o755),
    ProducedContent(PART, 20, True, True, "parts/1", 0o644),
    ProducedContent(OTHER, 30, True, True, "parts-of-others", 0o644),
    ProducedContent(OTHER, 30, True, True),
]


def submit(
    stage: Stage, run: int, count: int, expected: dict[int, tuple[ExpectedFile, ...]], spec: TaskSpec | None = None, **words: Any
) -> list[Task]:
    known = stage.machine.state.runs[run]
    first, new = len(known.tasks), not known.specs
    specs = [spec or TaskSpec("exec", launch={"sandbox": True})] if new else []
    message = m.Submit(run, first, len(known.specs), specs, [0] * new, [(0, 1)] * count, expected_files=expected, **words)
    stage.tell(i.ClientMessage(CLIENT, message, [*[b""] * new, *[b"x"] * count]))
    return known.tasks[first:]


def finish(stage: Stage, link: int, task: Task, made: list[ProducedContent], failure: Failure | None = None) -> None:
    item = m.ResultItem(task.id, stage.held[link].pop(task.id), failure, 1, 1, 1, 1, made)
    stage.tell(i.AgentMessage(link, m.Results(0, [item]), [b"r"]))


def given(stage: Stage) -> dict[int, tuple[IntermediateFile, ...]]:
    return {sent.task: sent.intermediate for message in stage.sent(m.Assign) for sent in message.tasks}


@pytest.mark.parametrize("restarted", [False, True])
def test_a_task_waits_for_a_file_and_gets_it_under_the_name_that_it_knows(restarted: bool) -> None:
    stage = Stage()
    maker, user = submit(stage, stage.open_run(), 2, {1: (ExpectedFile(0, "mesh.bin", "in/m.bin"), ExpectedFile(0, "parts", "p"))})
    assert (maker.state, user.state) == (READY, WAITING)
    link = stage.join("w")
    finish(stage, link, maker, FILES)
    expected = (IntermediateFile("in/m.bin", 0o755, MESH, 10), IntermediateFile("p/1", 0o644, PART, 20))
    if restarted:
        stage.restart()
        user = stage.machine.state.runs[1].tasks[1]
        stage.lose("w")
        stage.join("other")
    assert given(stage) == {user.id: expected}
    assert [record.digest for record in user.contents] == [MESH, PART]
    (sent,) = [one for message in stage.sent(m.Assign) for one in message.tasks]
    assert [content.digest for content in sent.contents] == [MESH, PART], "or the worker would not fetch them"


def test_who_comes_when_the_file_is_there_gets_it_at_once() -> None:
    stage = Stage()
    run = stage.open_run()
    (maker,) = submit(stage, run, 1, {})
    finish(stage, stage.join("w"), maker, FILES)
    (late,) = submit(stage, run, 1, {0: (ExpectedFile(0, "mesh.bin", "mesh.bin"),)})
    assert given(stage) == {late.id: (IntermediateFile("mesh.bin", 0o755, MESH, 10),)}


def test_what_is_known_of_files_is_in_a_snapshot() -> None:
    stage = Stage()
    maker, user = submit(stage, stage.open_run(), 2, {1: (ExpectedFile(0, "mesh.bin", "m.bin"),)})
    finish(stage, stage.join("w"), maker, FILES)
    stage.lose("w")
    state = State()
    for fact in state_snapshot.dump(stage.machine.state):
        apply(state, fact, stage.machine.state.at)
    assert fingerprint(state) == fingerprint(stage.machine.state)
    run, before = state.runs[1], user.shape.run
    assert (
        (run.expected_files, run.left_files, run.earlier_files)
        == (before.expected_files, before.left_files, before.earlier_files)
        != ({}, {}, {})
    )
    assert [record.digest for record in run.tasks[1].contents] == [MESH]


def test_when_the_maker_fails_nobody_waits_for_its_files() -> None:
    stage = Stage()
    maker, user = submit(stage, stage.open_run(), 2, {1: (ExpectedFile(0, "mesh.bin", "m.bin"),)})
    finish(stage, stage.join("w"), maker, [], Failure("version", "user", "made by another Python"))
    assert (maker.state, user.state) == (FAILED, FAILED)


def test_a_second_try_gets_what_the_first_had_and_waits_for_what_it_has_not() -> None:
    stage = Stage()
    needed = {1: (ExpectedFile(0, "mesh.bin", "m.bin"),), 2: (ExpectedFile(0, "parts", "p"), ExpectedFile(1, "out", "out"))}
    run = stage.open_run()
    maker, middle, last = submit(stage, run, 3, needed)
    stage.close_run(run)
    link = stage.join("w")
    finish(stage, link, maker, FILES)
    finish(stage, link, middle, [], Failure("version", "user", "made by another Python"))
    assert [task.state for task in (maker, middle, last)] == [DONE, FAILED, FAILED]
    assert stage.ask("rerun", run=run)["tasks"] == 2
    assert last.state == WAITING and [record.digest for record in middle.contents] == [MESH]
    stage.restart()
    _, middle, last = stage.machine.state.runs[run].tasks
    link = stage.join("w", holding=[(middle.id, 2, m.STARTED)])
    stage.held[link] = {middle.id: 2}
    finish(stage, link, middle, [ProducedContent(OTHER, 30, True, True, "out", 0o600)])
    assert given(stage) == {last.id: (IntermediateFile("p/1", 0o644, PART, 20), IntermediateFile("out", 0o600, OTHER, 30))}


def test_a_second_try_that_waits_for_nothing_new_still_fetches_what_it_was_handed() -> None:
    stage = Stage()
    run = stage.open_run()
    maker, middle, last = submit(stage, run, 3, {2: (ExpectedFile(0, "mesh.bin", "m"),)}, deps={1: [0], 2: [1]})
    stage.close_run(run)
    link = stage.join("w")
    finish(stage, link, maker, FILES)
    finish(stage, link, middle, [], Failure("version", "user", "made by another Python"))
    assert last.state == FAILED and stage.ask("rerun", run=run)["tasks"] == 2
    finish(stage, link, middle, [])
    (sent,) = [one for message in stage.sent(m.Assign) for one in message.tasks]
    assert (sent.task, sent.intermediate) == (last.id, (IntermediateFile("m", 0o755, MESH, 10),))
    assert [content.digest for content in sent.contents] == [MESH]


@pytest.mark.parametrize(("name", "here"), [("parts*", "parts*"), ("parts*", "all"), ("parts", "parts")])
def test_a_name_may_be_that_of_a_directory_or_a_pattern(name: str, here: str) -> None:
    stage = Stage()
    both = (ExpectedFile(0, name, here), ExpectedFile(0, "parts/1", "parts/1" if here != "all" else "all/parts/1"))
    maker, user = submit(stage, stage.open_run(), 2, {1: both})
    finish(stage, stage.join("w"), maker, FILES)
    below = "all/" if here == "all" else ""
    expected = {f"{below}parts/1", f"{below}parts-of-others"} if "*" in name else {"parts/1"}
    assert {file.name for file in given(stage)[user.id]} == expected
    assert len(given(stage)[user.id]) == len(expected), "what is named twice comes once"


def test_many_files_for_many_tasks_are_sent_in_pieces() -> None:
    stage = Stage()
    files = 4_000
    expected: dict[int, tuple[ExpectedFile, ...]] = {place: (ExpectedFile(0, "d", "d"),) for place in range(1, 21)}
    maker, *_ = submit(stage, stage.open_run(), 21, expected)
    link = stage.join("w", cores=20.0)
    finish(stage, link, maker, [ProducedContent(f"{number:064x}", 1, True, True, f"d/{number:0200}", 0o644) for number in range(files)])
    messages = stage.sent(m.Assign)
    assert sum(len(message.tasks) for message in messages) == 20
    assert max(len(msgspec.json.encode(message)) for message in messages) < MAX_HEADER


def test_a_promise_that_was_not_kept_is_told_to_who_waits() -> None:
    stage = Stage()
    maker, user = submit(stage, stage.open_run(), 2, {1: (ExpectedFile(0, "part", "p"), ExpectedFile(0, "mesh.bin", "m"))})
    finish(stage, stage.join("w"), maker, FILES)
    assert given(stage) == {user.id: (IntermediateFile("p", 0, "", 0), IntermediateFile("m", 0o755, MESH, 10))}
    assert [record.digest for record in user.contents] == [MESH]


@pytest.mark.parametrize("spec", [TaskSpec("python"), TaskSpec("exec"), TaskSpec("exec", launch={"sandbox": False})])
def test_who_has_no_directory_of_its_own_cannot_be_handed_files(spec: TaskSpec) -> None:
    stage = Stage()
    assert submit(stage, stage.open_run(), 2, {1: (ExpectedFile(0, "x", "x"),)}, spec) == []
    assert "has no directory for them" in stage.sent(m.Problem)[0].message


@pytest.mark.parametrize(
    "expected", [{0: (ExpectedFile(0, "x", "x"),)}, {1: (ExpectedFile(5, "x", "x"),)}, {1: (ExpectedFile(-1, "x", "x"),)}, {7: ()}]
)
def test_files_of_tasks_that_are_not_before_it_are_refused(expected: dict[int, tuple[ExpectedFile, ...]]) -> None:
    stage = Stage()
    assert submit(stage, stage.open_run(), 2, expected) == []
    assert "not before it" in stage.sent(m.Problem)[0].message


def test_what_is_sent_again_is_taken_once() -> None:
    """A client that lost its master repeats what was not acknowledged, specs or not."""
    stage = Stage()
    run = stage.open_run()
    submit(stage, run, 2, {1: (ExpectedFile(0, "mesh.bin", "m"),)})
    again = m.Submit(
        run, 0, 1, [], [], [(0, 1)] * 3, expected_files={1: (ExpectedFile(0, "mesh.bin", "m"),), 2: (ExpectedFile(1, "x", "x"),)}
    )
    stage.tell(i.ClientMessage(CLIENT, again, [b"x"] * 3))
    assert stage.sent(m.Accepted)[0].tasks == 3
    known = stage.machine.state.runs[run]
    assert list(known.expected_files) == [1, 2] and known.tasks[2].waits_for == 1


def test_who_was_cancelled_while_it_waited_gets_nothing() -> None:
    stage = Stage()
    maker, user = submit(stage, stage.open_run(), 2, {1: (ExpectedFile(0, "mesh.bin", "m.bin"),)})
    link = stage.join("w")
    stage.ask("cancel", tasks=["1.1"])
    finish(stage, link, maker, FILES)
    assert user.state == CANCELLED and not user.contents
