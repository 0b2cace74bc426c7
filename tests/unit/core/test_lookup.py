"""What a person may type for a run, task, worker, pilot or site."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.core.explain.lookup import NamedPilot, NamedSite, find_named, find_run, find_task
from pilotfish.errors import BadInput
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.ids import show_task
from pilotfish.model.site import REFUSED
from tests.support.machine_stage import Stage
from tests.unit.core.test_site_events import POND, add, stage_with


def two_runs() -> Stage:
    stage = Stage()
    stage.work(count=2, name="sweep.v2")
    stage.work(count=2, name="sweep.v2")
    return stage


@pytest.mark.parametrize(("typed", "run"), [(None, 2), ("last", 2), ("1", 1), (1, 1), ("sweep.v2", 2)])
def test_a_run_is_its_number_its_name_or_the_last(typed: Any, run: int) -> None:
    assert find_run(two_runs().machine.state, typed).id == run


@pytest.mark.parametrize(
    ("typed", "message", "hint"),
    [
        ("9", "there is no run '9'", "pilotfish status"),
        ("2", "there is no run '2'", "pilotfish status"),
        ("swep.v2", "there is no run 'swep.v2'", "Did you mean 'sweep.v2'?"),
        ("1.0", "is a task, and a run is needed here", "pilotfish logs 1.0"),
        ("last.0", "is a task, and a run is needed here", "Its run is last; for the task alone: pilotfish logs last.0"),
        ("sweep.v2.0", "is a task, and a run is needed here", "pilotfish logs sweep.v2.0"),
        (" ", "is no run: it is empty", "pilotfish status"),
        ([1], "there is no run [1]", "pilotfish status"),
    ],
)
def test_a_name_that_no_run_has_is_answered_with_a_fix(typed: Any, message: str, hint: str) -> None:
    stage = two_runs()
    stage.work(name="s2")
    del stage.machine.state.runs[2]
    with pytest.raises(BadInput) as problem:
        find_run(stage.machine.state, typed)
    assert message in str(problem.value) and hint in problem.value.hint


def test_without_runs_there_is_no_last_one() -> None:
    with pytest.raises(BadInput, match="there are no runs yet"):
        find_run(Stage().machine.state)


@pytest.mark.parametrize(("typed", "task"), [("1.1", "1.1"), ("sweep.v2.1", "2.1"), ("last.0", "2.0")])
def test_a_task_is_a_run_and_an_index(typed: str, task: str) -> None:
    state = two_runs().machine.state
    assert show_task(find_task(state, typed).id) == task
    assert find_named(state, typed) is find_task(state, typed)


@pytest.mark.parametrize("typed", ["1", "1.9", "1.x", ".1", "", None, "nothing.0", "1." + "9" * 30])
def test_what_is_no_task_is_refused(typed: Any) -> None:
    with pytest.raises(BadInput):
        find_task(two_runs().machine.state, typed)


def test_a_subject_may_be_anything_that_has_a_name() -> None:
    stage = stage_with(pond=POND)
    pilot, refused = add(stage), add(stage)
    stage.work(name="sweep")
    stage.join("w", pilot=pilot)
    stage.join("v", pilot=pilot)
    stage.lose("v")
    stage.tell(i.PilotEndReported(refused, False, "was refused", cause=REFUSED))
    state = stage.machine.state
    assert find_named(state) is find_named(state, "sweep") is state.runs[1]
    assert find_named(state, "w") is state.workers["w"]
    assert find_named(state, "v") is state.ended_workers["v"]
    assert find_named(state, pilot) == NamedPilot(pilot)
    found = find_named(state, refused)
    assert isinstance(found, NamedPilot) and found.events
    assert find_named(state, "pond") == NamedSite("pond", state.sites["pond"])


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("foo", "no run, worker, pilot or site 'foo'"),
        ("pond-2", "no run, worker, pilot or site 'pond-2'"),
        ("foo.0", "no run 'foo'"),
        ("7", "no run '7'"),
        ("1.7", "no task 1.7"),
        ("", "is empty"),
    ],
)
def test_an_error_names_all_kinds_that_an_unknown_name_could_have(typed: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        find_named(two_runs().machine.state, typed)


def test_why_takes_any_subject_in_one_question() -> None:
    stage = two_runs()
    stage.join("w")
    asked = {typed: stage.ask("why", subject=typed)["subject"] for typed in ("last", "1.0", "w")}
    assert asked == {"last": "run 2", "1.0": "task 1.0", "w": "worker w"}
    assert stage.ask("why")["subject"] == "run 2"
    assert stage.ask("why", run=1)["subject"] == "run 1", "older clients name the kind"
    assert isinstance(stage.ask("why", subject="nothing"), m.Problem)
    answer = stage.ask("why", subject="1.0")
    assert (answer["task"]["id"], answer["run"]["run"]) == ("1.0", 1), "a client need not ask again to show the command"


def test_a_worker_that_is_gone_says_how_it_ended() -> None:
    stage = Stage()
    stage.join("w")
    stage.lose("w")
    answer = stage.ask("why", subject="w")
    assert answer["state"] == "lost" and answer["reasons"][0]["code"] == "ended" and answer["reasons"][0]["text"]
