"""Workers whose time is nearly over, as the master sees them."""

from __future__ import annotations

from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.states import DONE, DRAINING, READY, RUNNING
from tests.core_stage import Stage


def test_a_worker_that_says_that_it_ends_soon_gets_no_more_and_finishes_what_it_runs() -> None:
    stage = Stage()
    link = stage.join("w", ends_in_s=60.0)
    first, second = stage.work(count=2)
    stage.started(link, first)
    stage.tell(i.AgentSpoke(link, m.Draining("nearly over")))
    assert stage.machine.state.workers["w"].state == DRAINING
    stage.tell(i.AgentSpoke(link, m.Draining("nearly over")))
    stage.finish(link, first)
    assert (first.state, second.state) == (DONE, READY)


def test_what_is_cut_off_by_the_end_of_a_worker_is_charged_to_nobody() -> None:
    stage = Stage()
    link = stage.join("w", ends_in_s=60.0)
    (task,) = stage.work()
    stage.started(link, task)
    assert task.state == RUNNING
    stage.tell(i.AgentSpoke(link, m.Draining("nearly over")))
    stage.tell(i.AgentSpoke(link, m.Leave("the time of this pilot is over")))
    assert task.state == READY and task.troubles is None
