"""Failed and cancelled tasks run again in their own run: with their numbers, fresh failure counts and new attempt numbers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pilotfish.core.state import SUPERSEDED, Task
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.states import CANCELLED, DONE, FAILED, READY, TASK_STATES, WAITING
from pilotfish.model.task import Request, TaskSpec
from pilotfish.portable.payload_format import pack
from tests.support.machine_stage import CLIENT, Stage, fail
from tests.support.state_check import check, fingerprint
from tests.unit.core.test_state_snapshot import round_trip

SPEC = TaskSpec("exec")


def states(tasks: list[Task]) -> list[str]:
    return [TASK_STATES[task.state] for task in tasks]


def closed_run(stage: Stage, count: int = 2, spec: TaskSpec = SPEC, **needs: Any) -> tuple[int, list[Task]]:
    run = stage.open_run()
    tasks = stage.submit(run, spec, count, **needs)
    stage.close_run(run)
    return run, tasks


def rerun(stage: Stage, run: int, **arguments: Any) -> dict[str, int]:
    answer: dict[str, int] = stage.ask("rerun", run=run, **arguments)
    return answer


def refusal(stage: Stage, run: int, **arguments: Any) -> str:
    answer = stage.ask("rerun", run=run, **arguments)
    assert isinstance(answer, m.Problem), answer
    return answer.message


def test_a_failed_task_runs_again_with_its_number() -> None:
    stage = Stage()
    run, tasks = closed_run(stage)
    link = stage.join("w", cores=2.0)
    stage.finish(link, tasks[0])
    stage.finish(link, tasks[1], failure=fail())
    assert stage.machine.state.runs[run].finished
    assert rerun(stage, run) == {"run": run, "tasks": 1, "ends": 2, "deleted": 0}
    assert len(stage.machine.state.runs) == 1 and not stage.machine.state.runs[run].finished
    assert tasks[1].attempt == 2 and tasks[1].failure is None
    stage.finish(link, tasks[1])
    assert states(tasks) == ["done", "done"] and stage.machine.state.runs[run].finished
    assert list(stage.machine.state.runs[run].ended) == [0, SUPERSEDED, 1]


def test_the_retries_count_anew() -> None:
    stage = Stage()
    run, (task,) = closed_run(stage, 1, TaskSpec("exec", retries=1))
    link = stage.join("w")
    for _ in range(2):
        stage.finish(link, task, failure=fail())
    assert task.state == FAILED
    rerun(stage, run)
    stage.finish(link, task, failure=fail())
    assert task.state != FAILED and task.attempt == 4
    stage.finish(link, task, failure=fail())
    assert task.state == FAILED


@pytest.mark.parametrize("whole", [True, False])
def test_cancelled_tasks_run_again_with_their_payloads(whole: bool) -> None:
    stage = Stage()
    run, tasks = closed_run(stage)
    payloads = [task.payload for task in tasks]
    stage.ask("cancel", **({"run": run} if whole else {"tasks": [f"{run}.0", f"{run}.1"]}))
    assert states(tasks) == ["cancelled", "cancelled"]
    assert rerun(stage, run, state="cancelled")["tasks"] == 2
    link = stage.join("w", cores=2.0)
    assert [task.payload for task in tasks] == payloads
    stage.finish(link)
    assert states(tasks) == ["done", "done"]


def test_a_result_of_a_cancelled_attempt_does_not_count_after_a_rerun() -> None:
    stage = Stage()
    run, (task,) = closed_run(stage, 1)
    link = stage.join("w")
    old = task.attempt
    stage.ask("cancel", run=run)
    rerun(stage, run)
    assert task.attempt > old
    stage.tell(i.AgentMessage(link, m.Results(0, [m.ResultItem(task.id, old, None, 1, 1, 1, 1)]), [b"x"]))
    assert task.state != DONE and stage.machine.stale_results == 1


def test_after_the_maximum_of_failures_all_others_run_again_and_failures_count_anew() -> None:
    stage = Stage()
    run = stage.open_run(max_failures=1)
    tasks = stage.submit(run, SPEC, 3)
    stage.close_run(run)
    link = stage.join("w")
    stage.finish(link, tasks[0], failure=fail())
    assert states(tasks) == ["failed", "cancelled", "cancelled"]
    assert rerun(stage, run, state="cancelled")["tasks"] == 2
    stage.finish(link, tasks[1])
    stage.finish(link, tasks[2], failure=fail())
    assert states(tasks) == ["failed", "done", "failed"]
    assert rerun(stage, run)["tasks"] == 2


def test_what_needs_a_failed_task_waits_for_it_again() -> None:
    stage = Stage()
    run, tasks = closed_run(stage, 3, deps={1: [0], 2: [1]})
    link = stage.join("w")
    stage.finish(link, tasks[0], failure=fail())
    assert states(tasks) == ["failed", "failed", "failed"]
    assert rerun(stage, run, tasks=[f"{run}.2"])["tasks"] == 3, "it needs the others"
    assert states(tasks)[1:] == ["waiting", "waiting"]
    for task in tasks:
        stage.finish(link, task)
    assert states(tasks) == ["done", "done", "done"]


def test_it_is_skipped_again_if_the_task_fails_again() -> None:
    stage = Stage()
    run, tasks = closed_run(stage, 2, deps={1: [0]})
    link = stage.join("w")
    stage.finish(link, tasks[0], failure=fail())
    rerun(stage, run, tasks=[f"{run}.0"])
    assert states(tasks)[1] == "waiting"
    stage.finish(link, tasks[0], failure=fail())
    assert states(tasks) == ["failed", "failed"] and stage.machine.state.runs[run].finished


def test_only_failed_tasks_if_asked_for_and_none_that_needs_a_cancelled_one() -> None:
    stage = Stage()
    run, tasks = closed_run(stage, 4, deps={2: [0], 3: [0, 1]})
    link = stage.join("w", cores=2.0)
    stage.finish(link, tasks[0], failure=fail())
    stage.ask("cancel", tasks=[f"{run}.1"])
    assert states(tasks) == ["failed", "cancelled", "failed", "failed"]
    assert rerun(stage, run, state="failed")["tasks"] == 2
    assert [task.state == FAILED for task in tasks] == [False, False, False, True]


def test_tasks_with_a_concurrency_limit_are_counted_again() -> None:
    stage = Stage()
    run, tasks = closed_run(stage, 3, TaskSpec("exec", concurrency_limit=("tape", 1)))
    stage.ask("cancel", run=run)
    rerun(stage, run)
    assert states(tasks) == ["ready", "waiting", "waiting"]
    link = stage.join("w", cores=2.0)
    for task in tasks:
        stage.finish(link, task)
    assert states(tasks) == ["done", "done", "done"]


def test_a_limit_lets_no_task_pass_that_waits_for_another() -> None:
    stage = Stage()
    run, tasks = closed_run(stage, 3, TaskSpec("exec", concurrency_limit=("tape", 1)), deps={2: [1]})
    stage.ask("cancel", run=run)
    rerun(stage, run)
    link = stage.join("w", cores=2.0)
    stage.finish(link, tasks[0])
    assert states(tasks)[2] == "waiting"
    check(stage.machine.state)


def watch(stage: Stage, run: int, cursor: int) -> list[m.Ended]:
    stage.tell(i.ClientMessage(CLIENT, m.Watch(run, cursor, True)))
    return stage.sent(m.Ended)


def test_a_client_that_comes_later_sees_each_task_once() -> None:
    stage = Stage()
    run, tasks = closed_run(stage, 3)
    link = stage.join("w", cores=3.0)
    stage.finish(link, tasks[0], failure=fail())
    stage.finish(link, tasks[1])
    stage.finish(link, tasks[2], failure=fail())
    rerun(stage, run)
    stage.finish(link, tasks[2])
    stage.finish(link, tasks[0])
    told = watch(stage, run, 0)
    while stage.machine.more_to_send or not stage.sent(m.RunFinished):
        stage.tell()
        told += stage.sent(m.Ended)
    assert [(message.cursor, [item.index for item in message.items]) for message in told] == [(1, [1]), (3, [2, 0])]
    assert all(item.state == DONE for message in told for item in message.items)


def test_a_client_that_saw_the_failure_sees_the_next_end() -> None:
    stage = Stage()
    run, tasks = closed_run(stage, 2)
    link = stage.join("w", cores=2.0)
    watch(stage, run, 0)
    stage.finish(link, tasks[0], failure=fail())
    assert stage.sent(m.Ended)[0].items[0].state == FAILED
    rerun(stage, run)
    stage.finish(link, tasks[0])
    (told,) = stage.sent(m.Ended)
    assert (told.cursor, told.items[0].index, told.items[0].state) == (1, 0, DONE)


def test_the_run_belongs_to_nobody_then_and_outputs_are_kept() -> None:
    stage = Stage()
    run = stage.open_run(owned=True)
    tasks = stage.submit(run, SPEC, 2)
    link = stage.join("w", cores=2.0)
    stage.finish(link, tasks[0])
    stage.finish(link, tasks[1], failure=fail())
    assert "still open" in refusal(stage, run)
    stage.close_run(run)
    stage.tell(i.ClientMessage(CLIENT, m.Taken(run, 2)))
    rerun(stage, run)
    stage.finish(link, tasks[1])
    stage.tell(i.ClientMessage(CLIENT, m.Taken(run, 3)))
    assert tasks[1].output == b"r", "nobody owns it now, so it is kept"
    stage.tell(i.LinkClosed(CLIENT))
    assert stage.machine.state.runs[run].finished and tasks[1].state == DONE


def test_tasks_that_a_program_of_its_own_run_cancelled_are_gone() -> None:
    stage = Stage()
    run = stage.open_run(owned=True)
    stage.submit(run, SPEC, 2)
    stage.ask("cancel", run=run)
    assert "were deleted" in refusal(stage, run)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"tasks": ["1.1"]}, "task 1.1 is done"),
        ({"tasks": []}, "not a list of tasks"),
        ({"tasks": ["7.1"]}, "there is no task"),
        ({"state": "done"}, "neither failed nor cancelled"),
        ({"state": "cancelled"}, "no cancelled task"),
        ({"changes": {"specs": [[9, ["exec"], False]]}}, "no spec 9"),
        ({"changes": {"specs": [[0, ["exec"], True]]}}, "0 payloads for 1 specs"),
        ({"changes": {"inputs": [[0, []]]}}, "0 payloads for 0 specs and 1 inputs"),
        ({"changes": 7}, "changes:"),
    ],
)
def test_what_cannot_run_again_is_refused(arguments: dict[str, Any], text: str) -> None:
    stage = Stage()
    run, tasks = closed_run(stage)
    link = stage.join("w", cores=2.0)
    stage.finish(link, tasks[1])
    stage.finish(link, tasks[0], failure=fail())
    before = fingerprint(stage.machine.state)
    assert text in refusal(stage, run, **arguments)
    assert fingerprint(stage.machine.state) == before


def ask_with(stage: Stage, payloads: list[bytes], request: str = "", **arguments: Any) -> Any:
    message = m.Ask(1, "rerun", arguments, request, [len(payload) for payload in payloads])
    stage.tell(i.ClientMessage(CLIENT, message, list(payloads)))
    assert not stage.sent(m.Problem), stage.sent(m.Problem)
    return stage.sent(m.Answer)[0].data


def failed_run(stage: Stage) -> tuple[int, list[Task], int]:
    run, tasks = closed_run(stage)
    link = stage.join("w", cores=2.0)
    stage.finish(link, tasks[0], tasks[1], failure=fail())
    return run, tasks, link


def test_new_limits_code_and_inputs_are_used() -> None:
    stage = Stage()
    run, tasks, _ = failed_run(stage)
    new = TaskSpec("exec", request=Request(cores=2.0), time_s=9.0)
    changes = {"specs": [[0, new, True]], "inputs": [[1, []]], "sites": ["local", ""]}
    payload = pack([b"{}"])
    ask_with(stage, [b"code", payload], run=run, changes=changes)
    state = stage.machine.state
    assert [task.spec for task in tasks] == [1, 1] and state.runs[run].specs[1].code == b"code"
    assert tasks[0].shape.time_s == 9.0 and tasks[1].payload == payload and tasks[0].payload != payload
    (sent,) = [one for message in stage.sent(m.Assign) for one in message.specs]
    assert sent.time_s == 9.0 and sent.length == 4
    assert state.runs[run].options.sites == ("local", "")
    check(round_trip(state))


def test_a_repeated_request_is_carried_out_once() -> None:
    stage = Stage()
    run, tasks, link = failed_run(stage)
    changes = {"inputs": [[0, []]]}
    first = ask_with(stage, [b"new"], "client-7", run=run, changes=changes)
    stage.finish(link, tasks[0], failure=fail())
    assert ask_with(stage, [b"new"], "client-7", run=run, changes=changes) == first
    assert tasks[0].state == FAILED


def test_it_survives_restarts_and_snapshots() -> None:
    stage = Stage()
    run, tasks, link = failed_run(stage)
    rerun(stage, run)
    stage.finish(link, tasks[0])
    before = fingerprint(stage.machine.state)
    assert fingerprint(round_trip(stage.machine.state)) == before
    stage.restart()
    again = stage.machine.state.runs[run]
    assert (again.superseded, again.unfinished) == (2, 1)


def test_a_snapshot_of_an_older_version_is_read() -> None:
    from pilotfish.core import state_snapshot
    from pilotfish.core.apply import apply
    from pilotfish.core.state import State

    stage = Stage()
    run, _, _ = failed_run(stage)
    state = State()
    for fact in state_snapshot.dump(stage.machine.state):
        apply(state, f.Restored(fact.kind, fact.row[:-4]) if fact.kind == "run" else fact, 0.0)
    assert state.runs[run].finished and state.runs[run].idle_s == 0.0


def test_a_journal_of_an_older_version_says_that_payloads_are_deleted() -> None:
    old = msgspec.msgpack.encode([0.0, [["run-cancelled", 1, "why"], ["cancelled", [1], "why"]]])
    whole, single = f.decode_record(old).facts
    assert isinstance(whole, f.RunCancelled) and isinstance(single, f.TasksCancelled)
    assert not whole.keeps_payloads and not single.keeps_payloads


def test_the_time_between_end_and_rerun_is_not_time_of_the_run() -> None:
    stage = Stage()
    run, tasks, link = failed_run(stage)
    elapsed = stage.ask("run", run=run)["elapsed_s"]
    stage.now += 3600.0
    rerun(stage, run)
    if not stage.held[link]:
        link = stage.join("late", cores=2.0)
    stage.finish(link, *tasks)
    assert stage.ask("run", run=run)["elapsed_s"] < elapsed + 1.0


def test_a_site_that_lacked_the_directory_is_tried_again() -> None:
    stage = Stage()
    run, tasks, _ = failed_run(stage)
    tasks[0].shape.no_directory_sites["local"] = None
    rerun(stage, run)
    assert not tasks[0].shape.no_directory_sites


def test_a_paused_run_that_was_cancelled_is_resumed() -> None:
    stage = Stage()
    run, tasks = closed_run(stage)
    stage.ask("pause", run=run)
    stage.ask("cancel", run=run)
    rerun(stage, run)
    stage.join("w", cores=2.0)
    assert all(task.state not in (READY, WAITING, CANCELLED) for task in tasks)


def test_queued_tasks_are_recalled_when_the_run_moves_to_another_site() -> None:
    stage = Stage()
    run = stage.open_run()
    link = stage.join("w", cores=1.0)
    for _ in range(3):
        stage.finish(link, *stage.submit(run, SPEC, 1), wall_us=100)
    tasks = stage.submit(run, SPEC, 3)
    ahead = list(stage.machine.state.workers["w"].ahead)
    assert ahead
    row = stage.ask("set", run=run, sites=["pond"])
    assert row["run"] == run and stage.machine.state.runs[run].options.sites == ("pond",)
    recalled = [item for message in stage.sent(m.Recall) for item in message.items]
    assert recalled == [(task.id, task.attempt) for task in ahead]
    stage.tell(i.AgentMessage(link, m.Returned(recalled)))
    assert [TASK_STATES[task.state] for task in tasks].count("ready") == len(ahead)
