"""Results of calls that are arguments of later calls: passed as bytes, kept as long as they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pilotfish.core.state import Task
from pilotfish.core.tasks import assignment
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.contents import RESULT, ExpectedFile, IntermediateFile, ProducedContent
from pilotfish.model.states import CANCELLED, DONE, FAILED, READY, WAITING
from pilotfish.model.task import DEPENDENCY, SHARED_SEGMENT, Failure, Payload, StoredPayload, TaskSpec
from pilotfish.portable.payload_format import REFERENCE_BYTES, unpack
from tests.support.machine_stage import CLIENT, Stage

STORED = StoredPayload(1, 16, 100)


def results_of(*makers: int) -> tuple[ExpectedFile, ...]:
    return tuple(ExpectedFile(maker, RESULT, str(place)) for place, maker in enumerate(makers))


def submit(stage: Stage, run: int, count: int, expected: dict[int, tuple[ExpectedFile, ...]], kind: str = "python") -> list[Task]:
    known = stage.machine.state.runs[run]
    first, new = len(known.tasks), not known.specs
    message = m.Submit(run, first, len(known.specs), [TaskSpec(kind)] * new, [0] * new, [(0, 1)] * count, expected_files=expected)
    stage.tell(i.ClientMessage(CLIENT, message, [*[b""] * new, *[b"x"] * count]))
    return known.tasks[first:]


def finish(
    stage: Stage, link: int, task: Task, output: Payload = b"value", failure: Failure | None = None, made: Sequence[ProducedContent] = ()
) -> None:
    item = m.ResultItem(task.id, stage.held[link].pop(task.id), failure, 1, 1, 1, 5, list(made))
    stage.tell(i.AgentMessage(link, m.Results(0, [item]), [output]))


def given(stage: Stage) -> list[list[Payload]]:
    return [effect.payloads for effect in stage.effects if isinstance(effect, e.Send) and isinstance(effect.message, m.Assign)]


def released(stage: Stage) -> list[StoredPayload]:
    return [effect.stored for effect in stage.effects if isinstance(effect, e.ReleasePayload)]


def take(stage: Stage, run: int, count: int) -> None:
    stage.tell(i.ClientMessage(CLIENT, m.Taken(run, count)))


def test_a_call_waits_for_the_results_in_its_arguments_and_gets_their_bytes() -> None:
    stage = Stage()
    one, two, user = submit(stage, stage.open_run(), 3, {2: results_of(1, 0)})
    assert (one.state, two.state, user.state) == (READY, READY, WAITING)
    link = stage.join("w", cores=2.0)
    finish(stage, link, one, b"first")
    assert user.state == WAITING
    finish(stage, link, two, b"second")
    (payloads,) = given(stage)
    (sent,) = [sent for message in stage.sent(m.Assign) for sent in message.tasks]
    body = b"".join(payload for payload in payloads if isinstance(payload, bytes))
    assert sent.length == len(body) and not sent.contents
    assert [bytes(part) for part in unpack(body)] == [b'{"results": ["1.1", "1.0"]}', b"x", b"second", b"first"]


@pytest.mark.parametrize("shares", [True, False])
def test_a_worker_of_this_machine_gets_references_and_another_one_gets_bytes(shares: bool) -> None:
    stage = Stage()
    maker, _ = submit(stage, stage.open_run(), 2, {1: results_of(0)})
    stored = StoredPayload(SHARED_SEGMENT, 7, 1000)
    finish(stage, stage.join("w", info={"shares": shares}), maker, stored)
    (sent,) = [sent for message in stage.sent(m.Assign) for sent in message.tasks]
    (payloads,) = given(stage)
    assert stored in payloads, "the host reads the file only when it sends the message"
    head = payloads[-4]
    assert isinstance(head, bytes) and int.from_bytes(head[-8:], "big") == (REFERENCE_BYTES if shares else 1000)
    assert sent.length == sum(len(piece) for piece in payloads[-4:-1] if isinstance(piece, bytes)) + (REFERENCE_BYTES if shares else 1000)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("end", ["done", "failed", "cancelled", "run cancelled"])
def test_a_result_that_the_client_has_taken_stays_until_the_last_call_that_needs_it_has_ended(end: str, restarted: bool) -> None:
    stage = Stage()
    run = stage.open_run(owned=True)
    maker, one, two = submit(stage, run, 3, {1: results_of(0), 2: results_of(0, 0)})
    link = stage.join("w")
    finish(stage, link, maker, STORED)
    take(stage, run, 1)
    assert maker.output == STORED and not released(stage)
    finish(stage, link, one)
    assert maker.output == STORED and not released(stage)
    if restarted:
        stage.restart()
        maker, one, two = stage.machine.state.runs[run].tasks
        link = stage.join("w", holding=[(two.id, two.attempt, m.STARTED)])
        stage.held[link] = {two.id: two.attempt}
        assert maker.output == STORED
    if end == "done":
        finish(stage, link, two)
    elif end == "failed":
        finish(stage, link, two, b"", Failure("exception", "task", "ValueError"))
    else:
        stage.ask("cancel", **({"tasks": ["1.2"]} if end == "cancelled" else {"run": run}))
    assert released(stage) == [STORED] and not maker.output
    assert not maker.shape.run.awaited_results and not maker.shape.run.kept_results


def test_a_result_that_no_call_needs_any_more_goes_when_the_client_has_taken_it() -> None:
    stage = Stage()
    run = stage.open_run(owned=True)
    maker, user = submit(stage, run, 2, {1: results_of(0)})
    link = stage.join("w")
    finish(stage, link, maker, STORED)
    finish(stage, link, user)
    assert maker.output == STORED
    take(stage, run, 2)
    assert released(stage) == [STORED] and not maker.output


def test_a_call_fails_with_the_name_of_the_task_that_it_needs() -> None:
    stage = Stage()
    run = stage.open_run()
    one, two, three, last = submit(stage, run, 4, {2: results_of(1), 3: results_of(2)})
    link = stage.join("w", cores=2.0)
    finish(stage, link, one, b"", Failure("exception", "task", "ValueError"))
    finish(stage, link, two, b"", Failure("exception", "task", "KeyError"))
    assert [task.state for task in (three, last)] == [FAILED, FAILED]
    assert {task.failure for task in (three, last)} == {Failure(DEPENDENCY, "task", "task 1.1, which it needs, failed")}
    late, later = submit(stage, run, 2, {0: results_of(0), 1: results_of(1)})
    assert [task.failure.message for task in (late, later) if task.failure] == [
        "task 1.0, which it needs, failed",
        "task 1.1, which it needs, failed",
    ]


def test_a_cancelled_call_fails_those_that_need_its_result() -> None:
    stage = Stage()
    maker, user = submit(stage, stage.open_run(), 2, {1: results_of(0)})
    stage.ask("cancel", tasks=["1.0"])
    assert (maker.state, user.state) == (CANCELLED, FAILED)
    assert user.failure is not None and user.failure.message == "task 1.0, which it needs, was cancelled"


def test_a_second_attempt_gets_the_results_again() -> None:
    stage = Stage()
    maker, user = submit(stage, stage.open_run(), 2, {1: results_of(0)})
    finish(stage, stage.join("w"), maker, b"first")
    before = given(stage)
    stage.lose("w")
    stage.join("other")
    (again,) = given(stage)
    assert before[0][-4:] == again[-4:] and user.attempt == 2


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("exec", results_of(0)),
        ("python", (ExpectedFile(0, "mesh.bin", "mesh.bin"),)),
        ("python", (*results_of(0), ExpectedFile(0, "mesh.bin", "mesh.bin"))),
        ("python", results_of(1)),
    ],
)
def test_only_calls_can_get_results_and_only_of_earlier_calls(kind: str, expected: Any) -> None:
    stage = Stage()
    assert not submit(stage, stage.open_run(), 2, {1: expected}, kind)
    assert stage.sent(m.Problem)


def test_results_that_do_not_fit_into_a_message_fail_the_call_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "MAX_PASSED_BYTES", 64)
    stage = Stage()
    maker, user, other = submit(stage, stage.open_run(), 3, {1: results_of(0)})
    link = stage.join("w", cores=2.0)
    finish(stage, link, other)
    finish(stage, link, maker, StoredPayload(1, 16, 100))
    assert user.state == FAILED and user.failure is not None and "several steps" in user.failure.message


@pytest.mark.parametrize("restarted", [False, True])
def test_a_call_that_runs_again_gets_the_results_again(restarted: bool) -> None:
    stage = Stage()
    run = stage.open_run()
    maker, user = submit(stage, run, 2, {1: results_of(0)})
    stage.close_run(run)
    link = stage.join("w")
    finish(stage, link, maker)
    finish(stage, link, user, b"", Failure("exception", "task", "ValueError"))
    if restarted:
        stage.restart()
        maker, user = stage.machine.state.runs[run].tasks
        link = stage.join("w")
    assert stage.ask("rerun", run=run)["tasks"] == 1
    assert maker.state == DONE and given(stage)[0][-3:] == [b'{"results": ["1.0"]}', b"x", b"value"]
    assert maker.shape.run.awaited_results == {0: 1}
    finish(stage, link, user)
    assert user.state == DONE and not maker.shape.run.awaited_results


@pytest.mark.parametrize("restarted", [False, True])
def test_a_large_result_is_a_content_that_the_next_worker_fetches_from_the_first(restarted: bool) -> None:
    stage = Stage()
    digest = "a" * 64
    maker, small, _ = submit(stage, stage.open_run(), 3, {2: results_of(0, 1)})
    link = stage.join("w", cores=2.0)
    finish(stage, link, maker, STORED, made=[ProducedContent(digest, 100, True, True, RESULT)])
    if restarted:
        stage.restart()
        small = stage.machine.state.runs[1].tasks[1]
        link = stage.join("w", cores=2.0, holding=[(small.id, small.attempt, m.STARTED)])
        stage.held[link] = {small.id: small.attempt}
    finish(stage, link, small, b"small")
    (sent,) = [sent for message in stage.sent(m.Assign) for sent in message.tasks]
    assert [content.digest for content in sent.contents] == [digest] and sent.intermediate == (IntermediateFile("0", 0, digest, 100),)
    assert given(stage)[0][-4:] == [b'{"results": ["1.0", "1.1"]}', b"x", b"", b"small"], "the content is not in the message"


def test_a_call_goes_to_the_worker_that_has_its_large_result() -> None:
    stage = Stage()
    run = stage.open_run()
    first = stage.join("first")
    makers = submit(stage, run, 1, {})
    stage.join("second")
    blocker = submit(stage, run, 1, {})
    assert [task.worker and task.worker.id for task in (*makers, *blocker)] == ["first", "second"]
    users = submit(stage, run, 2, {1: results_of(0)})
    finish(stage, first, makers[0], STORED, made=[ProducedContent("a" * 64, 100, True, True, RESULT)])
    assert users[1].contents[0].holders == {"first": None}
    assert users[1].worker is not None and users[1].worker.id == "first", "although another task waited for longer"
