"""Tests with real processes that memory which earlier calls keep in a slot is not charged to later tasks."""

from __future__ import annotations

import time
from typing import Any

from pilotfish.api.run import Run
from pilotfish.client.pools import PoolHandle

WAIT_S = 60.0
MIB = 1 << 20
KEPT_MIB = 300


def keep(mebibytes: int) -> int:
    import sys

    kept = bytearray(mebibytes * MIB)
    kept[::4096] = b"x" * len(kept[::4096])
    sys.kept_by_test = kept  # type: ignore[attr-defined]
    time.sleep(0.3)  # so that each slot gets one of these calls
    return len(kept)


def use(mebibytes: int) -> int:
    block = bytearray(mebibytes * MIB)
    block[::4096] = b"x" * len(block[::4096])
    time.sleep(0.6)
    return len(block)


def fill_slots(run: Run, mebibytes: int) -> None:
    for future in [run.submit(keep, mebibytes) for _ in range(4)]:
        assert future.result(WAIT_S) == mebibytes * MIB


def rows(run: Run, name: str) -> list[dict[str, Any]]:
    return [row for row in run.tasks() if row["name"] == name]


def test_an_executable_has_the_memory_of_its_own_processes(pool: PoolHandle) -> None:
    with Run(pool=pool) as run:
        fill_slots(run, KEPT_MIB)
        tasks = [run.executable(["sh", "-c", "sleep 1.3; echo done"], memory="200 MiB", losses=0) for _ in range(4)]
        assert [task.result(WAIT_S).text for task in tasks] == ["done\n"] * 4
    found = rows(run, "sh")
    assert [row["attempt"] for row in found] == [1] * 4
    assert max(row["rss_bytes"] for row in found) < 100 * MIB


def test_a_limit_counts_the_processes_of_an_executable_in_a_large_slot(pool: PoolHandle) -> None:
    with Run(pool=pool) as run:
        fill_slots(run, KEPT_MIB)
        code = "import time; block = bytearray(150 << 20); block[::4096] = b'x' * len(block[::4096]); time.sleep(1.5)"
        task = run.executable(["python3", "-c", code], memory="400 MiB")
        assert task.result(WAIT_S).exit == 0
    (row,) = rows(run, "python3")
    assert 150 * MIB < row["rss_bytes"] < 290 * MIB


def test_a_call_that_would_start_above_its_limit_gets_a_fresh_process(pool: PoolHandle) -> None:
    with Run(pool=pool) as run:
        fill_slots(run, KEPT_MIB)
        calls = [run.options(memory="120 MiB", losses=0).submit(use, 10) for _ in range(4)]
        assert [call.result(WAIT_S) for call in calls] == [10 * MIB] * 4
    assert [row["attempt"] for row in rows(run, "use")] == [1] * 4


def test_a_call_that_exceeds_its_limit_only_with_kept_memory_starts_again_in_a_fresh_process(pool: PoolHandle) -> None:
    with Run(pool=pool) as run:
        fill_slots(run, KEPT_MIB)
        calls = [run.options(memory="400 MiB", losses=0).submit(use, 200) for _ in range(2)]
        assert [call.result(WAIT_S) for call in calls] == [200 * MIB] * 2
    assert [row["attempt"] for row in rows(run, "use")] == [1] * 2
