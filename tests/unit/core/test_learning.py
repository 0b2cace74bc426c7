"""What the machine learns from what happens, and what people tell it beforehand."""

from __future__ import annotations

import pytest

from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.facts import decode_record
from pilotfish.model.task import TaskSpec
from tests.support.machine_stage import CLIENT, Stage


def submit(stage: Stage, costs: list[float], count: int | None = None) -> int:
    run = stage.open_run()
    tasks = [(0, 1)] * (len(costs) if count is None else count)
    message = m.Submit(run, 0, 0, [TaskSpec("exec", "sim")], [0], tasks, costs=costs)
    stage.tell(i.ClientMessage(CLIENT, message, [b"", *[b"x"] * len(tasks)]))
    return run


def test_costs_are_kept_and_survive_a_restart() -> None:
    stage = Stage()
    run = submit(stage, [1.0, 20.0, 3.5])
    stage.restart()
    known = stage.machine.state.runs[run]
    assert [known.cost(index) for index in range(4)] == [1.0, 20.0, 3.5, 1.0]


def test_tasks_without_costs_all_cost_the_same_and_nothing_is_kept_of_it() -> None:
    stage = Stage()
    run = stage.machine.state.runs[submit(stage, [], count=3)]
    assert run.cost(2) == 1.0 and not run.costs


@pytest.mark.parametrize("costs", [[1.0], [1.0, 0.0], [1.0, -2.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_costs_that_make_no_sense_are_refused(costs: list[float]) -> None:
    stage = Stage()
    submit(stage, costs, count=2)
    assert "cost" in stage.sent(m.Problem)[0].message
    assert not stage.machine.state.unfinished


def test_how_long_tasks_take_is_learnt_by_class_cost_and_worker() -> None:
    stage = Stage()
    link = stage.join("a")
    run = submit(stage, [2.0] * 8)
    for task in list(stage.machine.state.runs[run].tasks):
        stage.finish(link, task, wall_us=6_000_000)
    unit = stage.machine.state.forecasts.unit("exec sim")
    assert unit is not None and unit.value == pytest.approx(3.0, rel=0.05)
    stage.restart()
    again = stage.machine.state.forecasts.unit("exec sim")
    assert again is not None and again.value == pytest.approx(3.0, rel=0.05)


def test_a_measured_link_is_written_down_and_learnt() -> None:
    stage = Stage()
    for _ in range(3):
        stage.tell(i.TransferMeasured("far", 10_000_000, 5.0))
    assert sum(isinstance(fact, f.LinkMeasured) for record in stage.journal for fact in decode_record(record).facts) == 3
    known = stage.machine.state.forecasts.bandwidth("far")
    assert known is not None and known.value == pytest.approx(2e6, rel=0.05)
