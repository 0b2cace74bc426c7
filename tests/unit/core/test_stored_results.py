"""A new task that does the same as an earlier one gets its result at once."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from pilotfish.core import state_snapshot
from pilotfish.core.apply import apply
from pilotfish.core.data.intermediate_files import left_for
from pilotfish.core.state import State, Task
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.contents import KEY_BYTES, ExpectedFile, ProducedContent
from pilotfish.model.facts import TurnRecord, decode_record, encode_record
from pilotfish.model.states import ASSIGNED, CANCELLED, DONE, FAILED, WAITING
from pilotfish.model.task import StoredPayload, TaskSpec
from tests.support.machine_stage import CLIENT, Stage, fail
from tests.support.state_check import fingerprint

EXEC = TaskSpec("exec", launch={"sandbox": True})


def record(name: str, **parts: str) -> bytes:
    """A record whose parts are those of ``name`` unless they are given."""
    every = {"code": "c", "arguments": name, "inputs": "i", "environment": "e", **parts}
    key = "|".join(every.values()).encode().rjust(16, b".")
    return key + b"".join(part.encode().ljust(4, b"_")[:4] for part in every.values())


def submit(stage: Stage, run: int, *names: str | bytes, reuse: bool = True, spec: TaskSpec = EXEC, **fields: Any) -> list[Task]:
    known = stage.machine.state.runs[run]
    first, first_spec = len(known.tasks), len(known.specs)
    keys = b"".join(bytes(KEY_BYTES) if not name else record(name) if isinstance(name, str) else name for name in names)
    offsets = list(range(len(names))) if reuse else []
    tasks = [(first_spec, 1)] * len(names)
    message = m.Submit(run, first, first_spec, [spec], [0], tasks, keys=keys, reuse=offsets, **fields)
    stage.tell(i.ClientMessage(CLIENT, message, [b"", *[b"x"] * len(names)]))
    return known.tasks[first:]


def finished(stage: Stage, *names: str, **options: Any) -> list[Task]:
    """Runs tasks with these keys to their ends."""
    tasks = submit(stage, stage.open_run(f"u{stage.machine.state.next_run}", **options), *names, reuse=False)
    stage.finish(stage.links or stage.join("first", cores=4.0), *tasks)
    return tasks


def ask_keys(stage: Stage, *records: bytes, **arguments: Any) -> Any:
    return stage.ask("results", keys=base64.b64encode(b"".join(records)).decode(), **arguments)


def test_only_tasks_with_a_known_key_are_finished_at_once() -> None:
    stage = Stage()
    a, b = finished(stage, "a", "b")
    run = stage.open_run("again")
    tasks = submit(stage, run, "b", "new", "", "a")
    assert [task.state == DONE for task in tasks] == [True, False, False, True]
    assert tasks[0].output == b"r" and tasks[0].attempt == 0
    rows = stage.ask("tasks", run=run)
    assert [row["reused_from"] for row in rows] == [f"1.{b.id & 1}", None, None, f"1.{a.id & 1}"]
    assert stage.ask("run", run=run)["reused"] == 2
    assert "it has the result of task 1.0, which did the same" in stage.ask("why", task=f"{run}.3")["sentence"]
    assert submit(stage, run, "a", reuse=False)[0].state != DONE, "only on request"


def test_a_repeated_submission_changes_nothing() -> None:
    stage = Stage()
    finished(stage, "a")
    run = stage.open_run("again")
    message = m.Submit(run, 0, 0, [EXEC], [0], [(0, 1)] * 2, keys=record("a") + record("b"), reuse=[0, 1, 1])
    for _ in range(2):
        stage.tell(i.ClientMessage(CLIENT, message, [b"", b"x", b"x"]))
    assert [task.state == DONE for task in stage.machine.state.runs[run].tasks] == [True, False]


def test_failed_and_cancelled_tasks_are_not_reused() -> None:
    stage = Stage()
    run = stage.open_run("first")
    bad, dropped = submit(stage, run, "bad", "dropped")
    stage.finish(stage.join("w"), bad, failure=fail())
    stage.ask("cancel", tasks=["1.1"])
    assert (bad.state, dropped.state) == (FAILED, CANCELLED)
    assert [task.state for task in submit(stage, stage.open_run("again"), "bad", "dropped") if task.state == DONE] == []


def test_results_survive_a_restart_and_a_snapshot() -> None:
    stage = Stage()
    finished(stage, "a")
    submit(stage, stage.open_run("again"), "a")
    stage.restart()
    again = State()
    for fact in state_snapshot.dump(stage.machine.state):
        turn = decode_record(encode_record(TurnRecord(stage.now, [fact])))
        apply(again, turn.facts[0], turn.at)
    assert fingerprint(again) == fingerprint(stage.machine.state)
    assert again.runs[1].keys == stage.machine.state.runs[1].keys and again.runs[2].reused == {0: 1 << 32}
    assert submit(stage, stage.open_run("third"), "a")[0].state == DONE


def test_a_large_result_stays_as_long_as_a_task_has_it() -> None:
    stage = Stage()
    (task,) = finished(stage, "a")
    task.output = stage.shadow.task(task.id).output = large = StoredPayload(1, 2, 3)
    submit(stage, stage.open_run("again"), "a")
    assert e.KeepPayload(large) in stage.effects
    stage.close_run(1)
    stage.ask("forget", run=1)
    assert [effect for effect in stage.effects if isinstance(effect, e.ReleasePayload)] == [e.ReleasePayload(large)]
    assert submit(stage, stage.open_run("third"), "a")[0].output == large, "the reused result is found now"
    stage.close_run(2)
    stage.ask("forget", run=2)
    assert submit(stage, stage.open_run("fourth"), "a")[0].state == DONE


def test_with_the_last_run_that_has_it_a_result_is_forgotten() -> None:
    stage = Stage()
    finished(stage, "a")
    stage.close_run(1)
    stage.ask("forget", run=1)
    assert stage.ask("cache") == []
    assert submit(stage, stage.open_run("again"), "a")[0].state != DONE


def test_a_person_can_forget_results_and_keep_the_run() -> None:
    stage = Stage()
    finished(stage, "a", "b", name="first")
    (row,) = stage.ask("cache")
    assert (row["run"], row["results"], row["bytes"]) == (1, 2, 2)
    assert stage.ask("cache_forget", runs=["first"]) == {"forgotten": [1]}
    assert stage.ask("cache_forget") == {"forgotten": []} and stage.ask("cache") == []
    assert submit(stage, stage.open_run("again"), "a")[0].state != DONE
    (told,) = ask_keys(stage, record("a"), explain=True, run=2)
    assert told == {"source": None, "nearest": "1.0", "state": "forgotten", "changed": [], "code": record("a")[16:20].hex()}
    assert stage.machine.state.runs[1].tasks[0].output == b"r"


def test_forgotten_results_do_not_come_back_with_another_run_that_has_them() -> None:
    stage = Stage()
    finished(stage, "a")
    second = stage.open_run("second")
    submit(stage, second, "a")
    assert stage.ask("cache_forget", runs=["1"]) == {"forgotten": [1]}
    finished(stage, "a")
    stage.close_run(3)
    stage.ask("forget", run=3)
    assert stage.ask("cache") == []
    stage.restart()
    assert submit(stage, stage.open_run("fourth"), "a")[0].state != DONE


def test_outputs_that_their_client_took_are_not_reused() -> None:
    stage = Stage()
    finished(stage, "a", owned=True)
    assert submit(stage, stage.open_run("again"), "a")[0].state != DONE


def test_a_task_that_waits_for_one_that_must_run_runs_too() -> None:
    stage = Stage()
    finished(stage, "a", "b", "c")
    tasks = submit(stage, stage.open_run("again"), "a", "b", "new", "c", deps={1: [0], 3: [1, 2]})
    assert [task.state for task in tasks[:2]] == [DONE, DONE]
    assert tasks[2].state != DONE and tasks[3].state == WAITING


def test_files_that_a_task_left_stay_with_the_result() -> None:
    stage = Stage()
    first = stage.open_run("first")
    (maker,) = submit(stage, first, "maker", reuse=False)
    link = stage.join("w")
    made = [ProducedContent("d" * 64, 9, at_master=False, name="mesh.bin", mode=0o644)]
    item = m.ResultItem(maker.id, stage.held[link].pop(maker.id), None, 1, 1, 1, 1, made)
    stage.tell(i.AgentMessage(link, m.Results(0, [item], [], []), [b"r"]))
    run = stage.open_run("again")
    assert submit(stage, run, "maker")[0].state == DONE
    assert stage.machine.state.contents["d" * 64].runs == 2
    stage.close_run(first)
    stage.ask("forget", run=first)
    assert list(stage.machine.state.runs[run].left_files[0]) == ["mesh.bin"]
    stage.lose("w")
    assert submit(stage, stage.open_run("third"), "maker")[0].state != DONE, "its file is gone with the worker"
    (told,) = ask_keys(stage, record("maker"), explain=True, run=3)
    assert told["state"] == "lost"


def test_long_outputs_stay_with_the_result_and_are_no_files_of_the_task() -> None:
    stage = Stage()
    first = stage.open_run("first")
    (maker,) = submit(stage, first, "maker", reuse=False)
    link = stage.join("w")
    streams = [ProducedContent(digit * 64, 9, at_master=digit == "d", at_worker=digit == "e") for digit in "de"]
    item = m.ResultItem(maker.id, stage.held[link].pop(maker.id), None, 1, 1, 1, 1, streams)
    stage.tell(i.AgentMessage(link, m.Results(0, [item], [], []), [b"r"]))
    for name in ("*", "d*", ".", ""):
        assert [file.digest for file in left_for(stage.machine.state.runs[first], ExpectedFile(0, name, "x"))] == [""]
    run = stage.open_run("again")
    assert submit(stage, run, "maker")[0].state == DONE
    stage.close_run(first)
    stage.ask("forget", run=first)
    stage.restart()
    assert [stage.machine.state.contents[digit * 64].runs for digit in "de"] == [1, 1]
    stage.lose("w")
    assert submit(stage, stage.open_run("third"), "maker")[0].state != DONE, "one of its streams is gone with the worker"


@pytest.mark.parametrize("part", ["code", "inputs", "environment"])
def test_what_changed_is_told(part: str) -> None:
    stage = Stage()
    finished(stage, "a")
    changed, other, unlike = record("a", **{part: "new"}), record("b"), record("z", code="1", inputs="2", environment="3")
    told = ask_keys(stage, changed, other, unlike, record("a"), explain=True)
    assert told[0] == {"source": None, "nearest": "1.0", "state": "done", "changed": [part], "code": record("a")[16:20].hex()}
    assert told[1] == {"source": None, "nearest": "1.0", "state": "done", "changed": ["arguments"], "code": record("a")[16:20].hex()}
    assert told[2] == {"source": None}
    assert told[3]["source"] == "1.0"


@pytest.mark.parametrize("fields", [{"keys": b"x"}, {"keys": b"", "reuse": [5]}])
def test_records_that_do_not_fit_are_refused(fields: dict[str, Any]) -> None:
    stage = Stage()
    message = m.Submit(stage.open_run("first"), 0, 0, [EXEC], [0], [(0, 1)], **fields)
    stage.tell(i.ClientMessage(CLIENT, message, [b"", b"x"]))
    assert "do not fit" in stage.sent(m.Problem)[0].message
    assert isinstance(ask_keys(stage, b"short"), m.Problem)


def test_a_snapshot_of_an_older_version_has_no_keys() -> None:
    stage = Stage()
    finished(stage, "a")
    again = State()
    for fact in state_snapshot.dump(stage.machine.state):
        apply(again, type(fact)(fact.kind, fact.row[:-3]) if fact.kind == "run" else fact, stage.now)
    run = again.runs[1]
    assert (bytes(run.keys), len(run.reused), run.tasks[0].state) == (b"", 0, DONE)


def rerun_with_key(stage: Stage, *names: str, **fields: Any) -> tuple[Any, Any]:
    """Reruns the failed first task of a run with a new key. Returns the records that the master offers, and the answer."""
    run = stage.open_run("first")
    task, *others = submit(stage, run, *names, **fields)
    link = stage.join("w")
    stage.finish(link, task, failure=fail())
    stage.finish(link, *(other for other in others if other.state == ASSIGNED))
    stage.close_run(run)
    offered = stage.ask("rerunnable", run=run, tasks=[f"{run}.0"])["keys"]
    answer = stage.ask("rerun", run=run, tasks=[f"{run}.0"], changes={"keys": [(0, record("fixed"))]})
    stage.finish(link, task)
    return offered, answer


def test_the_result_of_a_rerun_is_reused_by_the_new_key_that_the_client_made() -> None:
    stage = Stage()
    offered, answer = rerun_with_key(stage, "a", "b")
    assert offered == [(0, record("a"))] and answer["tasks"] == 1
    stage.restart()
    old, new = submit(stage, stage.open_run("again"), "a", "fixed")
    assert old.state != DONE and new.state == DONE


def test_a_rerun_says_which_of_its_tasks_need_others_of_them() -> None:
    stage = Stage()
    run = stage.open_run("first")
    first, *_ = submit(stage, run, "a", "b", "c", deps={1: [0], 2: [0]})
    stage.finish(stage.join("w"), first, failure=fail())
    stage.close_run(run)
    offered = stage.ask("rerunnable", run=run)
    assert [key[0] for key in offered["keys"]] == [0, 1, 2]
    assert offered["needs"] == [(1, [0], []), (2, [0], [])]


def test_a_cancelled_task_that_needs_a_rerun_task_loses_its_key_because_this_names_the_old_code() -> None:
    for new, has_key in (("fixed", False), ("a", True)):
        stage = Stage()
        run = stage.open_run("first")
        submit(stage, run, "a", "b", deps={1: [0]})
        stage.join("w")
        stage.ask("cancel", run=run)
        stage.close_run(run)
        stage.ask("rerun", run=run, tasks=[f"{run}.0"], changes={"keys": [(0, record(new))]})
        stage.restart()
        keys = bytes(stage.machine.state.runs[run].keys)
        assert (keys[32:48] == record("b")[:16]) is has_key and keys[48:] == record("b")[16:]


def test_a_new_key_for_a_task_that_does_not_run_again_is_refused() -> None:
    stage = Stage()
    run = stage.open_run("first")
    task, _ = submit(stage, run, "a", "b")
    stage.finish(stage.join("w"), task, failure=fail())
    stage.ask("cancel", run=run)
    stage.close_run(run)
    for wrong in ([(1, record("b"))], [(0, b"short")], [(7, record("b"))]):
        problem = stage.ask("rerun", run=run, tasks=[f"{run}.0"], changes={"keys": wrong})
        assert isinstance(problem, m.Problem) and "keys" in problem.message


def test_the_result_of_a_rerun_without_a_new_key_is_not_reused_because_its_files_may_have_changed() -> None:
    stage = Stage()
    run = stage.open_run("first")
    (task,) = submit(stage, run, "a")
    link = stage.join("w")
    stage.finish(link, task, failure=fail())
    stage.close_run(run)
    stage.ask("rerun", run=run)
    stage.finish(link, task)
    assert task.state == DONE
    assert submit(stage, stage.open_run("again"), "a")[0].state != DONE


def test_a_concurrency_limit_does_not_matter_because_no_task_runs() -> None:
    stage = Stage()
    finished(stage, *"abc")
    limited = TaskSpec("exec", launch={"sandbox": True}, concurrency_limit=("few", 1))
    run = stage.open_run("again")
    tasks = submit(stage, run, "new", "a", "b", "other", "c", spec=limited, deps={4: [1, 2]})
    assert [task.state == DONE for task in tasks] == [False, True, True, False, True]
    (limit,) = stage.machine.state.runs[run].limits.values()
    assert limit.admitted == 1
    for task in (tasks[0], tasks[3]):
        stage.finish(stage.links or stage.join("second", cores=4.0), task)
    assert all(task.state == DONE for task in tasks) and limit.admitted == 0


def test_a_result_that_lacks_output_is_not_reused_if_more_may_be_kept() -> None:
    stage = Stage()
    finished(stage, "a")
    for state in (stage.machine.state, stage.shadow):
        state.runs[1].left_out[0] = 5
    more = TaskSpec("exec", launch={"sandbox": True, "max_output": 8})
    run = stage.open_run("again")
    assert submit(stage, run, "a")[0].state == DONE
    assert submit(stage, run, "a", spec=more)[0].state != DONE


def test_a_task_that_started_before_its_program_changed_is_not_reused() -> None:
    stage = Stage()
    finished(stage, "a")
    ended_at = stage.machine.state.runs[1].end_times[0]
    started_at = ended_at - stage.machine.state.runs[1].wall_us[0] / 1e6
    run = stage.open_run("again")
    (row,) = ask_keys(stage, record("a"))
    assert (row["started_at"], row["ended_at"]) == (started_at, ended_at)
    for changes, is_reused in (((0.0, started_at + 0.1), False), ((ended_at + 0.1, 0.0), False), ((ended_at, started_at), True)):
        (new,) = submit(stage, run, "a", reuse_after={0: changes})
        assert (new.state == DONE) is is_reused
