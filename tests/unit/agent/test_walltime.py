"""Tests the agent machine near the end of its walltime: it drains, sends signals, and blames no task for the end."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from pilotfish.agent import supervisor
from pilotfish.agent.node.pending_results import AMBIGUOUS, AMBIGUOUS_WITHOUT_BATCH
from tests.unit.agent.test_agent_machine import WELCOME, assign, joined, of, ok, sent, starts

END = 100.0
WARNING = 80.0


def with_signal(*tasks: tuple[int, int], spec: int = 1) -> list[Any]:
    header = assign(*tasks, spec=spec, kind="exec")
    header[1][0][4] = {"warn_signal": 10}
    return header


def test_near_the_end_queued_attempts_are_returned_and_the_master_is_informed() -> None:
    machine = joined(cores=1.0, ends_at=END)
    machine.received(assign((1, 1), (2, 1)), b"", 70.0)
    machine.turn(70.0)
    effects = machine.turn(WARNING)
    assert sent(effects, "returned") == [["returned", [[2, 1]]]]
    assert [header[0] for header in sent(effects, "draining")] == ["draining"]
    assert not of(effects, "warn") and not of(effects, "kill")
    machine.received(assign((3, 1)), b"", WARNING + 1)
    effects = machine.turn(WARNING + 1)
    assert sent(effects, "returned") == [["returned", [[3, 1]]]] and not starts(effects)


def test_the_deadline_includes_the_warning() -> None:
    machine = joined(ends_at=END)
    for beat in range(1, 16):
        machine.received(["pulse"], b"", 5.0 * beat)
        machine.turn(5.0 * beat)
    machine.received(["pulse"], b"", 79.0)
    assert machine.deadline <= WARNING and not machine.ending


def test_an_attempt_that_asked_for_a_signal_gets_it_once_and_others_do_not() -> None:
    machine = joined(ends_at=END)
    machine.received(with_signal((1, 1)), b"", 70.0)
    machine.received(assign((2, 1), spec=2, kind="exec"), b"", 70.0)
    assert starts(machine.turn(70.0)) == {0: [1], 1: [2]}
    assert of(machine.turn(WARNING), "warn") == [("warn", 0, 10)]
    assert not of(machine.turn(WARNING + 1), "warn")


def test_a_prefetched_attempt_that_starts_late_gets_its_signal_too() -> None:
    machine = joined(cores=1.0, ends_at=END)
    machine.received(with_signal(*[(task, 1) for task in range(4)]), b"", 79.0)
    machine.turn(79.0)
    machine.slot_finished(0, [ok(wall_us=100)], 79.99)
    assert starts(machine.turn(79.99)) == {0: [1, 2, 3]}
    assert not of(machine.turn(WARNING), "warn")
    machine.slot_finished(0, [ok(), ok()], WARNING + 0.001)
    warned = [of(machine.turn(WARNING + late), "warn") for late in (0.001, 0.06, 0.2)]
    assert [effect for effects in warned for effect in effects] == [("warn", 0, 10)]


def test_an_idle_agent_leaves_before_its_end() -> None:
    machine = joined(ends_at=END)
    machine.received(["pulse"], b"", WARNING)
    effects = machine.turn(WARNING)
    assert sent(effects, "leave") and of(effects, "exit")[0][2] == 0


def test_a_busy_agent_leaves_when_its_attempts_have_ended() -> None:
    machine = joined(ends_at=END)
    machine.received(assign((1, 1)), b"", 79.0)
    machine.turn(79.0)
    assert not of(machine.turn(WARNING), "exit")
    machine.slot_finished(0, [ok()], 85.0)
    assert not of(machine.turn(85.0), "exit")
    machine.received(["acked", 0, 0], b"", 85.1)
    assert of(machine.turn(85.1), "exit")


def test_at_the_end_running_attempts_get_no_failure() -> None:
    machine = joined(ends_at=END)
    machine.received(assign((1, 1)), b"", 79.0)
    machine.turn(79.0)
    machine.turn(WARNING)
    machine.received(["pulse"], b"", 99.0)
    effects = machine.turn(END)
    assert sent(effects, "leave") and not sent(effects, "results")


def test_a_master_that_was_unreachable_at_the_warning_is_informed_later() -> None:
    machine = joined(ends_at=END)
    machine.received(assign((1, 1)), b"", 79.0)
    machine.turn(79.0)
    machine.unlinked(79.5)
    assert not sent(machine.turn(WARNING), "draining")
    machine.linked(1, 81.0)
    machine.turn(81.0)
    machine.received(WELCOME, b"", 81.1)
    assert len(sent(machine.turn(81.1), "draining")) == 1


def test_a_long_pilot_warns_a_minute_before_its_end() -> None:
    assert joined(ends_at=3600.0).warn_at == 3540.0
    assert joined().warn_at == float("inf")


TERMINATED = (["signal", "task", "it was ended by SIGTERM"], 5, 0, 0, b"")


def test_a_signal_that_hits_a_task_and_then_its_agent_is_no_failure_of_the_task() -> None:
    machine = joined()
    machine.received(assign((1, 1), (2, 1)), b"", 1.0)
    machine.turn(1.0)
    machine.slot_finished(0, [TERMINATED], 2.0)
    machine.slot_finished(1, [ok()], 2.0)
    assert [row[0] for row in sent(machine.turn(2.0), "results")[0][2]] == [2]
    machine.stop("it was stopped by a signal (SIGTERM)", 2.1)
    effects = machine.turn(2.1)
    assert not sent(effects, "results") and sent(effects, "leave")


def test_a_signal_that_hits_a_task_alone_is_reported_a_little_later() -> None:
    machine = joined()
    machine.received(assign((1, 1)), b"", 1.0)
    machine.turn(1.0)
    machine.slot_finished(0, [TERMINATED], 2.0)
    assert not sent(machine.turn(2.0), "results")
    results: list[Any] = []
    while not results:
        assert machine.deadline < 2.3
        results = sent(machine.turn(machine.deadline), "results")
    assert results[0][2][0][:3] == [1, 1, TERMINATED[0]]
    machine.received(["acked", 0, 0], b"", 2.3)
    assert not machine.results.kept


def test_an_ambiguous_failure_counts_as_finished_after_a_reconnect() -> None:
    machine = joined()
    machine.received(assign((1, 1)), b"", 1.0)
    machine.turn(1.0)
    machine.slot_finished(0, [TERMINATED], 2.0)
    machine.turn(2.0)
    machine.unlinked(2.01)
    machine.turn(2.01)
    machine.linked(1, 2.02)
    assert sent(machine.turn(2.02), "hello")[0][-1] == [[1, 1, 2]]


def test_at_the_end_it_reports_the_run_time_of_attempts_that_are_cut_off_without_a_signal() -> None:
    machine = joined(cores=3.0, ends_at=END)
    machine.received(with_signal((1, 1)), b"", 60.0)
    machine.received(assign((2, 1), spec=2, kind="exec"), b"", 60.0)
    machine.turn(60.0)
    machine.received(assign((3, 1), spec=2, kind="exec"), b"", 75.0)
    machine.turn(75.0)
    machine.turn(WARNING)
    (leave,) = sent(machine.turn(END), "leave")
    assert leave[2] == [[2, 1, 40.0], [3, 1, 25.0]]


def test_an_agent_stopped_before_its_end_reports_no_cut_off_attempts() -> None:
    machine = joined(ends_at=END)
    machine.received(assign((1, 1)), b"", 10.0)
    machine.turn(10.0)
    machine.stop("terminated", 20.0)
    (leave,) = sent(machine.turn(20.0), "leave")
    assert leave[2] == []


def test_the_time_of_a_pilot_runs_from_the_start_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, least, most in (
        (f"{time.time() - 30:.0f}", 29.0, 60.0),
        ("", 0.0, 0.0),
        ("soon", 0.0, 0.0),
        ("0", 0.0, 0.0),
        ("9e12", 0.0, 0.0),
    ):
        monkeypatch.setenv("PILOTFISH_STARTED", said)
        assert least <= supervisor._elapsed_s() <= most, said
        assert "PILOTFISH_STARTED" not in os.environ, "tasks have no use for it"


def test_without_a_batch_system_only_a_signal_delays_the_report_of_a_failure() -> None:
    exited = (["exit", "task", "exit status 3"], 5, 0, 0, b"")
    for ambiguous, reported in ((AMBIGUOUS, []), (AMBIGUOUS_WITHOUT_BATCH, [2])):
        machine = joined()
        machine.results.ambiguous = ambiguous
        machine.received(assign((1, 1), (2, 1)), b"", 1.0)
        machine.turn(1.0)
        machine.slot_finished(0, [TERMINATED], 2.0)
        machine.slot_finished(1, [exited], 2.0)
        assert [row[0] for header in sent(machine.turn(2.0), "results") for row in header[2]] == reported
