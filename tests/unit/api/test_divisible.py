"""Divisible work as a person writes it, against a master that does all tasks itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pilotfish
from pilotfish import BadInput, TaskFailed, divide, iterate
from pilotfish.api import divisible
from pilotfish.api.balance_report import BalanceReport, Iteration, WorkerShare
from pilotfish.api.run import Run
from tests.support.fake_slot import do_task
from tests.unit.api.test_executor import FakePool


def row(worker: str, cores: float = 1, **more: Any) -> dict[str, Any]:
    capacity = {"cores": cores, "memory": 4e9}
    said = {"worker": worker, "connected": True, "state": "idle", "site": "", "tags": {}, "info": {"benchmark": 100.0, "cpu": worker}}
    return {**said, "capacity": capacity, "properties": {**capacity, "worker": worker}, **more}


class Stage:
    """A run in a pool whose workers are what a test says."""

    def __init__(self, directory: Path) -> None:
        self.pool = FakePool(directory)
        self.rows: list[dict[str, Any]] = [row("a"), row("b")]
        self.pool.master.answers["workers"] = lambda arguments: self.rows
        self.run = Run(pool=self.pool)

    def ranks(self) -> list[str]:
        """Of all tasks, in order."""
        record = self.pool.book.by_number(self.run.id)
        return [record.specs[spec][0].rank for spec, _ in record.tasks]


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(divisible, "JOIN_TIMEOUT_S", 0.0)
    made = Stage(tmp_path / "pool")
    yield made
    if made.pool.master._thread.is_alive():
        made.run.close()
        made.pool.master.kill()


def add(piece: Any, state: Any = None) -> int:
    return sum(piece)


def break_at_seven(piece: Any) -> int:
    if 7 in piece:
        raise ValueError("seven is not wanted")
    return 0


# --- what comes out -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [1, 2, 3, 100])
def test_every_unit_is_done_once_and_results_are_in_order(stage: Stage, load: int) -> None:
    report = divide(stage.run, list, load, lambda results: [unit for part in results for unit in part])
    assert report.value == list(range(load))
    assert sum(sum(one.sizes.values()) for one in report.iterations) == load


def test_a_sequence_is_sliced(stage: Stage) -> None:
    report = divide(stage.run, str.upper, "abcdefgh", "".join)
    assert report.value == "ABCDEFGH"


def test_a_cut_makes_what_the_function_gets(stage: Stage) -> None:
    report = divide(stage.run, lambda ends: ends[1] - ends[0], 50, sum, cut=lambda start, stop: (start, stop))
    assert report.value == 50


def test_the_output_of_one_iteration_is_the_input_of_the_next(stage: Stage) -> None:
    report = iterate(stage.run, lambda piece, state: len(piece) * state, 10, 3, state=1, update=lambda state, results: sum(results))
    assert report.value == 1000
    assert len(report.iterations) == 3
    assert sum(divide(stage.run, add, 10).value) == sum(range(10))
    plain = iterate(stage.run, lambda piece, state: len(piece), 10, 1)
    assert sum(plain.value) == 10


def test_an_update_ends_it_when_that_will_do(stage: Stage) -> None:
    def update(state: int, results: list[int]) -> int:
        if state == 2:
            raise StopIteration
        return state + 1

    report = iterate(stage.run, add, 4, 10, 0, update)
    assert report.value == 2
    assert len(report.iterations) == 3


def test_no_load_is_no_work_and_needs_no_worker(stage: Stage) -> None:
    stage.rows = []
    report = divide(stage.run, add, 0, sum)
    assert report.value == 0
    assert "no work was done" in str(report)
    assert iterate(stage.run, add, [], 2, 5, lambda state, results: state + len(results)).value == 5
    assert iterate(stage.run, add, 10, 0, 7).value == 7
    assert stage.ranks() == []


# --- who gets what --------------------------------------------------------------------------------------------------------------------


def test_each_chunk_ranks_its_worker_highest_and_requires_nothing(stage: Stage) -> None:
    iterate(stage.run, add, 10, 1)
    assert stage.ranks() == ['worker == "a"', 'worker == "b"']


def test_a_worker_of_many_cores_gets_a_chunk_for_each(stage: Stage) -> None:
    stage.rows = [row("a", cores=4)]
    iterate(stage.run, add, 100, 1)
    assert len(stage.ranks()) == 4
    iterate(stage.run, add, 100, 1, cores=2)
    assert len(stage.ranks()) == 6


def test_first_sizes_follow_the_benchmarks_where_these_are_numbers(stage: Stage) -> None:
    stage.rows = [row("a", info={"benchmark": 300.0}), row("b", info={"benchmark": 100.0}), row("c", info={"benchmark": float("nan")})]
    (first,) = iterate(stage.run, add, 600, 1).iterations
    assert first.sizes == {"a": 300, "b": 100, "c": 200}
    stage.rows = [row("a", info={"benchmark": "quick"}), row("b", info={})]
    (first,) = iterate(stage.run, add, 10, 1).iterations
    assert first.sizes == {"a": 5, "b": 5}


def test_of_equal_processors_one_that_seemed_slow_is_not_taken_for_slow(stage: Stage) -> None:
    stage.rows = [row(name, info={"cpu": "same", "benchmark": said}) for name, said in (("a", 100.0), ("b", 10.0), ("c", 100.0))]
    (first,) = iterate(stage.run, add, 30, 1).iterations
    assert first.sizes == {"a": 10, "b": 10, "c": 10}


def test_less_load_than_workers_makes_fewer_chunks(stage: Stage) -> None:
    stage.rows = [row(f"w{number}") for number in range(8)]
    (only,) = iterate(stage.run, add, 3, 1, 0, lambda state, results: sum(results)).iterations
    assert sorted(only.sizes.values()) == [1, 1, 1]
    assert len(only.left_out) == 5


@pytest.mark.parametrize(
    "unfit",
    [
        {"connected": False},
        {"state": "quarantined"},
        {"capacity": {"cores": 0.5}},
        {"tags": {"disk": "slow"}},
        {"properties": {"memory": 1}},
    ],
)
def test_workers_that_may_not_do_it_get_no_chunk(stage: Stage, unfit: dict[str, Any]) -> None:
    stage.rows = [row("a", tags={"disk": "fast"}), row("b", **{"tags": {"disk": "fast"}, **unfit})]
    report = iterate(stage.run, add, 10, 1, tags={"disk": "fast"}, requirement="memory > 1G")
    assert report.iterations[0].sizes == {"a": 10}


def test_workers_that_come_and_go_are_taken_into_account_at_the_next_iteration(stage: Stage) -> None:
    def update(state: Any, results: list[Any]) -> int:
        stage.rows = [row("b"), row("c")]
        return 0

    report = iterate(stage.run, add, 10, 2, 0, update)
    assert set(report.iterations[0].sizes) == {"a", "b"}
    assert "a" not in report.iterations[1].sizes


def test_with_no_worker_yet_equal_chunks_wait_for_whoever_comes(stage: Stage) -> None:
    stage.rows = []
    assert divide(stage.run, add, 3, sum).value == 3
    stage.run = Run(pool=stage.pool)
    report = iterate(stage.run, add, 80, 1, 0, lambda state, results: sum(results))
    assert report.value == sum(range(80))
    assert stage.ranks() == [""] * divisible.CHUNKS_WITHOUT_WORKERS
    assert report.iterations[0].balanced, "nobody asked for a baseline"


def test_who_waits_for_a_worker_is_told_why(stage: Stage, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotfish.api.divisible.EXPLAIN_AFTER_S", 0.0)
    master = stage.pool.master
    stage.rows = []

    def why(arguments: Any) -> dict[str, Any]:
        """And then somebody comes."""
        record = stage.pool.book.by_number(stage.run.id)
        for index, (spec, payload) in enumerate(record.tasks):
            master.end(record, index, *do_task(*record.specs[spec], payload))
        master.tell_ended(record)
        return {"sentence": "there is no worker", "reasons": []}

    master.work = lambda spec, code, payload: None
    master.answers["why"] = why
    assert sum(iterate(stage.run, add, 10, 1).value) == sum(range(10))
    assert capsys.readouterr().err == "there is no worker\n"


# --- what goes wrong ------------------------------------------------------------------------------------------------------------------


def test_a_chunk_that_fails_is_named_with_its_worker(stage: Stage) -> None:
    stage.rows = [row("a")]
    with pytest.raises(TaskFailed, match=r"round \d, units \d+ to \d+, at worker a: ValueError: seven is not wanted") as caught:
        divide(stage.run, break_at_seven, 10)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.hint


@pytest.mark.parametrize("cut", [lambda start, stop: threading.Lock(), lambda start, stop: (unit for unit in range(3))])
def test_a_piece_that_cannot_be_sent_is_told_with_its_units(stage: Stage, cut: Callable[[int, int], Any]) -> None:
    with pytest.raises(BadInput, match="units 0 to 4 cannot be sent: .*pickle"):
        iterate(stage.run, add, 10, 1, cut=cut)


def test_what_an_own_function_raises_here_comes_through(stage: Stage) -> None:
    def refuse(*given: Any) -> Any:
        raise ZeroDivisionError("mine")

    calls: list[Callable[[], Any]] = [
        lambda: iterate(stage.run, add, 10, 1, cut=refuse),
        lambda: iterate(stage.run, add, 10, 1, 0, refuse),
        lambda: divide(stage.run, add, 10, refuse),
    ]
    for call in calls:
        with pytest.raises(ZeroDivisionError, match="mine"):
            call()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"load": -1}, "load: -1 units"),
        ({"load": 1.5}, "load: 1.5 can be neither counted nor cut"),
        ({"load": {1: 2}}, "can be neither counted nor cut"),
        ({"load": True}, "load: True"),
        ({"iterations": -1}, "iterations: -1"),
        ({"iterations": 1.5}, "iterations: 1.5"),
        ({"cut": 3}, "cut: 3 is not a function"),
        ({"rank": "cores"}, "each chunk is for one worker"),
        ({"baseline": -1}, "baseline: -1"),
        ({"ratio": -1}, "ratio: -1"),
        ({"ratio": "much"}, "ratio: 'much'"),
        ({"ratio": (5, 1)}, r"ratio: \(5, 1\)"),
        ({"ratio": float("nan")}, "ratio: nan"),
        ({"baselin": True}, "no option 'baselin'"),
        ({"cores": -1}, "cores"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_field_and_value(stage: Stage, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        iterate(stage.run, add, **{"load": 10, "iterations": 1, **wrong})
    assert stage.ranks() == []


def test_what_is_no_run_is_refused() -> None:
    with pytest.raises(BadInput, match="run: 'default' is not a run"):
        divide("default", add, 10)  # type: ignore[arg-type]


# --- the report -----------------------------------------------------------------------------------------------------------------------


def test_a_baseline_is_measured_with_equal_chunks(stage: Stage) -> None:
    stage.rows = [row("a", info={"benchmark": 300.0}), row("b", info={"benchmark": 100.0})]
    report = iterate(stage.run, add, 100, 4, baseline=True)
    assert [one.balanced for one in report.iterations] == [False, False, True, True]
    assert report.iterations[0].sizes == report.iterations[1].sizes == {"a": 50, "b": 50}
    assert not any(one.balanced for one in iterate(stage.run, add, 100, 3, baseline=3).iterations)


def test_the_ratio_is_what_was_given_or_is_searched(stage: Stage) -> None:
    assert iterate(stage.run, add, 10, 1, ratio=5.0).ratio == 5.0
    found = iterate(stage.run, add, 10, 6, ratio=(1.0, 100.0)).iterations
    assert len({one.ratio for one in found}) > 1
    assert all(1.0 <= one.ratio <= 100.0 for one in found)


def test_where_all_had_equal_chunks_no_gain_is_told() -> None:
    share = WorkerShare(30, 1.0, 0.1)
    said = str(BalanceReport(None, [Iteration(2.0, {"a": share, "b": share}, (), 1.5, 0.0, 8.0, 1.4)]))
    assert "0.75" not in said and "theta 0" not in said
    assert "all workers had equal chunks" in said


def test_a_report_reads_as_a_table() -> None:
    share = WorkerShare(30, 1.0, 0.1)
    first = Iteration(4.0, {"a": share, "b": share}, (), 4.0, 0.5, 8.0, None, False)
    later = Iteration(2.0, {"a": share}, ("b",), 4.0, 0.5, 8.0, 1.9, notes=("it was late",))
    report = BalanceReport(None, [first, later])
    assert report.theta == 2.0
    assert report.expected_theta == pytest.approx(4.0 / 1.9)
    said = str(report)
    assert "theta 2.00: with equal chunks it would take 2.00 times as long\nPhi 0.50: heterogeneity" in said
    assert "f_c 8: bytes transferred per unit" in said
    assert "iteration 2: it was late" in said
    assert "1 of 2" in said and "left out" in said
    assert repr(pilotfish.BalanceReport()).startswith("BalanceReport(")
