"""Futures as arguments with real pools: values, failures, run files, and the deaths of master and agent while results are needed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest

import pilotfish
from pilotfish.api.run import Run
from pilotfish.client.pools import PoolHandle
from pilotfish.errors import TaskFailed
from pilotfish.portable.processes import processes_of
from tests.support.peer_pool import CAN_HIDE, PeerPool, peer_pool

WAIT_S = 60.0


@dataclass
class Sample:
    parts: dict[str, Any]


def total(sample: Sample, *, extra: Any = 0) -> float:
    return float(sum(numpy.sum(part) for part in sample.parts["xs"]) + extra)


def wait_for(condition: Callable[[], object]) -> None:
    tick = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if condition():
            return
        tick.wait(0.01)
    raise AssertionError("it never happened")


def process_of(home: Path, role: str) -> int:
    (place,) = (home / "pools").iterdir()
    return next(pid for pid, command in processes_of(place) if f"pilotfish.{role}" in command or f" {role}" in command)


def test_results_go_from_call_to_call_in_any_shape_and_size(pilotfish_home: Path) -> None:
    with pilotfish.Executor(max_workers=2) as executor:
        small = executor.submit(pow, 2, 3)
        large = executor.submit(numpy.ones, 300_000)
        nested = executor.submit(total, Sample({"xs": [small, large, (1.0,)]}), extra=small)
        assert nested.result(WAIT_S) == 8 + 300_000 + 1 + 8
        assert executor.submit(total, Sample({"xs": [small, large]})).result(WAIT_S) == 300_008, "also when they have ended"
        assert list(executor.map(pow, [small, nested], [2, 1])) == [64, 300_017.0]
        assert executor.submit(sum, [executor.submit(abs, -i) for i in range(300)]).result(WAIT_S) == 44850


def test_an_error_is_that_of_the_first_call(pilotfish_home: Path) -> None:
    with pilotfish.Executor(max_workers=2) as executor:
        failed = executor.submit(divmod, 1, 0)
        calls = [executor.submit(abs, failed)]
        calls.append(executor.submit(max, [calls[0]], 1))
        for call in calls:
            error = call.exception(WAIT_S)
            assert isinstance(error, TaskFailed) and str(error) == "task 1.0, which it needs, failed"
            assert isinstance(error.__cause__, ZeroDivisionError)


def test_a_run_passes_results_to_calls_of_application_workers_and_after_its_program_has_gone(pool: PoolHandle) -> None:
    class Adder(pilotfish.ApplicationWorker):
        def do_work(self, parameters: Any) -> Any:
            return sum(parameters)

    run = Run(pool=pool)
    run._session.client.ask("workers_set", local=1)
    first = run.submit(pow, 2, 4)
    second = run.work(Adder, [first, 1])
    third = run.options(after=[first]).submit(max, first, second)
    assert third.result(WAIT_S) == 17
    uid = run.uid
    run.submit(max, [third, run.submit(time.sleep, 0.2), -1], key=lambda value: value or 0)
    run.detach()
    with Run(pool=pool, uid=uid) as again:
        wait_for(lambda: all(row["state"] not in ("waiting", "ready", "assigned", "running") for row in again.tasks()))
        assert [row["state"] for row in again.tasks()] == ["done"] * 5


@pytest.mark.parametrize("role", ["master", "agent"])
def test_a_result_outlives_the_death_of_master_or_agent_although_the_program_has_taken_it(
    pilotfish_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    monkeypatch.setattr("pilotfish.client.submission.CONFIRM_BYTES", 0)
    started, go = tmp_path / "started", tmp_path / "go"

    def use(value: Any, started: Path, go: Path) -> float:
        import time

        started.touch()
        while not go.exists():
            time.sleep(0.01)
        return float(value.sum())

    with pilotfish.Executor(max_workers=2) as executor:
        made = executor.submit(numpy.ones, 200_000)
        used = executor.submit(use, made, started, go)
        made.result(WAIT_S)
        for i in range(20):
            executor.submit(abs, i).result(WAIT_S)  # so that the program has confirmed the first result
        wait_for(started.exists)
        started.unlink()
        os.kill(process_of(pilotfish_home, role), signal.SIGKILL)
        if role == "agent":
            wait_for(started.exists)
        go.touch()
        assert used.result(WAIT_S) == 200_000.0
        later = executor.submit(numpy.sum, [made])
        assert later.result(WAIT_S) == 200_000.0


def test_calls_of_a_run_file_use_results_of_earlier_calls(pilotfish_home: Path, tmp_path: Path) -> None:
    file = tmp_path / "chain.py"
    file.write_text(
        "def add(values):\n    open('sum.txt', 'w').write(str(sum(values)))\n"
        "def run(tasks):\n    parts = [tasks.call(pow, 2, i) for i in range(4)]\n"
        "    tasks.call(add, [tasks.result(part) for part in parts])\n"
    )
    command = [sys.executable, "-m", "pilotfish", "run", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "sum.txt").read_text() == "15", done
    subprocess.run([sys.executable, "-m", "pilotfish", "stop", "--now"], check=True, capture_output=True, timeout=WAIT_S)


def test_as_completed_yields_results_in_the_order_of_their_ends(pilotfish_home: Path, tmp_path: Path) -> None:
    def wait_and_return(value: int, place: Path) -> int:
        import time

        while not place.exists():
            time.sleep(0.005)
        return value

    places = [tmp_path / str(i) for i in range(3)]
    with pilotfish.Executor(max_workers=3) as executor:
        futures = [executor.submit(wait_and_return, i, place) for i, place in enumerate(places)]
        order = []
        places[2].touch()
        for future in as_completed(futures, WAIT_S):
            order.append(future.result())
            if len(order) < 3:
                places[2 - len(order)].touch()
    assert order == [2, 1, 0]


def test_an_initializer_shares_a_lock_as_progress_bars_do(pilotfish_home: Path, tmp_path: Path) -> None:
    class Bar:
        """Like tqdm, whose process_map gives a lock of multiprocessing to set_lock in each process."""

        lock: Any = None

        @classmethod
        def set_lock(cls, lock: Any) -> None:
            cls.lock = lock

    def count(file: Path) -> None:
        with Bar.lock, Bar.lock:
            file.write_text(str(int(file.read_text()) + 1))

    file = tmp_path / "count"
    file.write_text("0")
    lock = multiprocessing.RLock()
    with pilotfish.Executor(max_workers=2, initializer=Bar.set_lock, initargs=(lock,)) as executor:
        with lock:
            futures = [executor.submit(count, file) for _ in range(40)]
            assert executor._max_workers == 2 and not futures[0].done()
        wait(futures, WAIT_S)
        assert [future.exception() for future in futures] == [None] * 40
    assert file.read_text() == "40"


def test_an_initializer_gets_the_objects_of_a_manager(pilotfish_home: Path) -> None:
    def start(given: Any) -> None:
        given.put("started")

    with multiprocessing.Manager() as manager:
        queue = manager.Queue()
        with pilotfish.Executor(max_workers=1, initializer=start, initargs=(queue,)) as executor:
            assert executor.submit(abs, -1).result(WAIT_S) == 1
        assert queue.get(timeout=WAIT_S) == "started"


@pytest.fixture
def peers(pilotfish_home: Path, tmp_path: Path) -> Iterator[PeerPool]:
    if not CAN_HIDE:
        pytest.skip("only root can hide a directory from a process")
    with peer_pool(pilotfish_home, tmp_path / "place") as made:
        yield made


def test_a_large_result_goes_from_worker_to_worker_and_not_through_the_program(peers: PeerPool) -> None:
    peers.start("a", "b")
    with peers.run() as run:
        made = run.options(tags={"name": "a"}).submit(numpy.ones, 300_000)
        small = run.options(tags={"name": "a"}).submit(numpy.ones, 10)
        used = run.options(tags={"name": "b"}).submit(total, Sample({"xs": [made, small]}), extra=10)
        assert used.result(WAIT_S) == 300_020
        wait_for(lambda: peers.got()["peers"] == 1)
        peers.kill("a")
        peers.kill("b")
        peers.start("c")
        assert run.options(tags={"name": "c"}).submit(numpy.sum, made).result(WAIT_S) == 300_000, "the master had it as well"
