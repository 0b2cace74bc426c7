"""The benchmarks' bookkeeping: what is compared with what, and that nobody is dropped in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import peers
from benchmarks.harness import Contestant, Figure, Goal, Options, Question, compare, judge, ratio, table, take_turns

RATE = Figure("per_s", "calls/s")
DELAY = Figure("ms", "ms", 1, higher_is_better=False)
QUESTION = Question("speed", "calls", [RATE])


def options(tmp_path: Path, **changes: Any) -> Options:
    chosen: dict[str, Any] = {
        "out": tmp_path / "out",
        "cache": tmp_path / "cache",
        "rounds": 3,
        "seconds": 0.1,
        "workers": 2,
        "only": (),
        "strict": False,
    }
    return Options(**{**chosen, **changes})


def contestant(name: str, kind: Any, key: str, *values: float) -> Contestant:
    left = iter(values)
    return Contestant(name, kind, lambda: {key: next(left)})


def test_each_round_begins_with_another_contestant(tmp_path: Path) -> None:
    order: list[str] = []

    def note(name: str) -> Contestant:
        return Contestant(name, "peer", lambda: order.append(name) or {"per_s": 1.0})  # type: ignore[func-returns-value]

    take_turns([note("a"), note("b"), note("c")], options(tmp_path))
    assert order == ["a", "b", "c", "b", "c", "a", "c", "a", "b"]


def test_ratios_are_taken_within_a_round_so_that_a_noisy_minute_hurts_both(tmp_path: Path) -> None:
    ours, theirs = take_turns(
        [contestant("pilotfish", "ours", "per_s", 100, 10, 100), contestant("other", "peer", "per_s", 50, 5, 50)], options(tmp_path)
    )
    assert ratio(ours, theirs, RATE) == 2.0


def test_a_goal_is_judged_against_the_best_of_the_others(tmp_path: Path) -> None:
    standings = take_turns(
        [
            contestant("pilotfish", "ours", "ms", 1, 1, 1),
            contestant("slow", "peer", "ms", 9, 9, 9),
            contestant("quick", "peer", "ms", 2, 2, 2),
        ],
        options(tmp_path),
    )
    verdict = judge(Goal("3 times as quick", DELAY, ("peer",), 3.0), standings)
    assert (verdict["seen"], verdict["rival"], verdict["met"]) == (2.0, "quick", False)
    assert judge(Goal("at most 1 ms", DELAY, (), 1.0), standings)["met"] is True


def test_a_goal_nobody_could_see_is_neither_met_nor_missed(tmp_path: Path) -> None:
    standings = take_turns([contestant("other", "peer", "per_s", 1, 1, 1)], options(tmp_path))
    assert judge(Goal("any", RATE, ("peer",), 1.0), standings)["met"] is None


def test_a_contestant_that_fails_is_shown_with_its_reason_and_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = Contestant("broken", "peer", lambda: {"error": "not installed: no such wheel"})
    compare(QUESTION, [contestant("pilotfish", "ours", "per_s", 3, 2, 1), broken], options(tmp_path))
    assert "! broken: not installed: no such wheel" in capsys.readouterr().out
    written = json.loads((tmp_path / "out" / "speed.json").read_text())
    assert {one["name"]: one["medians"]["per_s"] for one in written["contestants"]} == {"pilotfish": 2, "broken": None}


def test_strict_fails_when_a_goal_is_not_met(tmp_path: Path) -> None:
    question = Question("speed", "calls", [RATE], [Goal("10 a second", RATE, (), 10.0)])
    assert compare(question, [contestant("pilotfish", "ours", "per_s", 3, 3, 3)], options(tmp_path, strict=True)) == 1
    assert compare(question, [contestant("pilotfish", "ours", "per_s", 30, 30, 30)], options(tmp_path, strict=True)) == 0


def test_a_table_without_ours_compares_with_the_first_that_has_a_figure(tmp_path: Path) -> None:
    standings = take_turns(
        [contestant("floor", "floor", "per_s", 4, 4, 4), contestant("peer", "peer", "per_s", 2, 2, 2)], options(tmp_path)
    )
    assert "floor is x times better" in table(QUESTION, standings)


def test_a_peer_that_cannot_be_installed_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.REQUIREMENTS, "absent", ["/nowhere/at/all.whl"])
    monkeypatch.setattr(peers, "PEERS", [peers.Peer("Absent", "peer", "process_pool", "absent")])
    figures = peers.engine_contestants("calls", options(tmp_path))[0].measure()
    assert figures["error"].startswith("not installed: ")


def test_a_contestant_answers_through_its_own_process(tmp_path: Path) -> None:
    pool = next(one for one in peers.engine_contestants("calls", options(tmp_path, seconds=0.05)) if one.name == peers.POOL)
    figures = pool.measure()
    assert figures["per_s"] > 0
    assert figures["left_behind"] == 0
