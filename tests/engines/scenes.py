"""Scenarios for every site: many tasks, expired and preempted pilots, queues that die."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tests.engines import processes
from tests.engines.campus import Campus
from tests.engines.daemons import Engine

TASKS = 200
WAVES = 3
PATIENCE_S = 3 * processes.PATIENCE_S
"""Seconds to wait for several pilots in sequence."""


def run_200_tasks(campus: Campus, site: str) -> None:
    """All tasks end, once, as the user, in pilots of that site."""
    with campus.run(f"{site}:2") as run:
        futures = [run.executable(["sh", "-c", "id -un; sleep 0.02"]) for _ in range(TASKS)]
        said = [future.result(timeout=processes.PATIENCE_S).stdout.decode().strip() for future in futures]
    assert said == [campus.person.name] * TASKS
    row = campus.ask("run", run=run.id)
    assert row["counts"]["done"] == TASKS and row["attempts"] == TASKS
    assert campus.row(site)["workers"] >= 1


def let_the_queue_die_and_come_back(campus: Campus, site: str, engine: Engine) -> None:
    """Running pilots continue while the queue is down, and the missing status is no failure."""
    with campus.run(f"{site}:2") as run:
        futures = [run.executable(["sleep", "0.2"]) for _ in range(100)]
        campus.wait_for_workers(site, 1)
        engine.kill_daemon()
        processes.wait_until(lambda: bool(campus.row(site)["trouble"]), "the outage is noticed")
        engine.restart_daemon()
        assert [future.result(timeout=processes.PATIENCE_S).exit for future in futures] == [0] * 100
        processes.wait_until(lambda: not campus.row(site)["trouble"], "the site answers again")
    assert campus.ask("run", run=run.id)["attempts"] == 100
    assert campus.row(site)["failures"] == {}


def let_time_run_out(campus: Campus, site: str, life_s: float) -> None:
    """Agents of two pilots with two cores leave after ``life_s`` seconds and are replaced. Only tasks cut off by that run twice."""
    flag = campus.person.home / f"cut off at {site}"
    with campus.run(f"{site}:2") as run:
        warned = run.executable(["sh", "-c", "trap 'echo warned; exit 0' USR1; sleep 300 & wait"], warn_signal="USR1", retries=0)
        campus.wait_for_workers(site, 2)
        futures = [run.executable(["sh", "-c", f"sleep {life_s / 16}; echo $PILOTFISH_WORKER"]) for _ in range(60)]
        # A pilot with more time left is needed by the long tasks, and would be outlived as a whole by the one that is cut off.
        processes.wait_until(lambda: _have_half_their_time(campus, life_s), "pilots are half-way to their end", PATIENCE_S)
        cut_off = run.executable(["sh", "-c", f"mkdir '{flag}' && sleep 300; echo again"], retries=0, losses=0, priority=1)
        long_s = life_s * 0.6
        long_ones = [run.executable(["sh", "-c", "echo $(date +%s) $PILOTFISH_ENDS_AT"], time=f"{long_s}s") for _ in range(2)]
        assert warned.result(timeout=PATIENCE_S).stdout == b"warned\n"
        assert cut_off.result(timeout=PATIENCE_S).stdout == b"again\n"
        workers = {future.result(timeout=PATIENCE_S).stdout.decode().split(".")[0] for future in futures}
        for future in long_ones:
            began, ends = map(float, future.result(timeout=PATIENCE_S).stdout.split())
            assert began + long_s <= ends + 1.0
    assert len(workers) > 2
    attempts = {row["index"]: row["attempt"] for row in finished_tasks(campus, run.id)}
    assert attempts.pop(1 + len(futures)) == 2, attempts
    # On a busy machine a short task may start too late to end with its pilot, at most one on each of its two cores.
    assert sum(attempts.values()) - len(attempts) <= 2 * len(workers) and len(workers) < 10, attempts
    assert campus.row(site)["failures"] == {}


def _have_half_their_time(campus: Campus, life_s: float) -> bool:
    left = [row["ends_at"] - time.time() for row in campus.ask("workers") if row["ends_at"]]
    return bool(left) and max(left) < 0.55 * life_s and max(left) > 0.3 * life_s


def have_the_system_end_pilots(campus: Campus, site: str) -> None:
    """The batch system ends pilots earlier than their agents expect, with enough notice for an orderly exit."""
    flag = campus.person.home / f"ended at {site}"
    with campus.run(f"{site}:1") as run:
        long_one = run.executable(["sh", "-c", f"mkdir '{flag}' && sleep 300; echo again"], retries=0, losses=0)
        futures = [run.executable(["sleep", "0.1"]) for _ in range(20)]
        processes.wait_until(flag.exists, "it runs")
        (first,) = campus.pilots(site)
        assert long_one.result(timeout=PATIENCE_S).stdout == b"again\n"
        assert [future.result(timeout=PATIENCE_S).exit for future in futures] == [0] * 20
        processes.wait_until(lambda: first["pilot"] not in [one["pilot"] for one in campus.pilots(site)], "its end is known")
    finished_tasks(campus, run.id)
    assert set(campus.row(site)["failures"]) <= {"expired"}


def throw_pilots_out(campus: Campus, site: str, throw_out: Callable[[], None], rounds: int = 70) -> None:
    """Both pilots are preempted several times while they run tasks of all kinds; every task succeeds and is charged no failure."""
    with campus.run(f"{site}:2") as run:
        futures: list[Future[Any]] = []
        for _ in range(rounds):
            futures += [run.executable(["sleep", "0.5"]), run.submit(time.sleep, 0.5)]
            futures.append(run.executable(["sh", "-c", "trap 'exit 7' TERM; sleep 0.5 & wait"]))
        for _ in range(WAVES):
            campus.wait_for_workers(site, 2)
            there = workers_at(campus, site)
            throw_out()
            processes.wait_until(lambda: not there & workers_at(campus, site), "all are thrown out")  # noqa: B023
        for future in futures:
            future.result(timeout=PATIENCE_S)
    finished_tasks(campus, run.id)
    assert len(campus.pilots(site)) <= 2


def workers_at(campus: Campus, site: str) -> set[str]:
    """Return the workers of a site. A pilot that its batch system restarted has a new name."""
    return {worker["worker"] for worker in campus.ask("workers", all=False) if worker["pilot"].rpartition("-")[0] == site}


def jobs_with_workers(campus: Campus, site: str) -> list[str]:
    """Return the jobs of the pilots that have a worker. Other pilots may have left the batch system already."""
    with_worker = {worker["pilot"] for worker in campus.ask("workers", all=False)}
    return [pilot["job"] for pilot in campus.pilots(site) if pilot["pilot"] in with_worker]


def finished_tasks(campus: Campus, run: int) -> list[dict[str, Any]]:
    """Return all tasks of the run, none of which was charged for its worker's end."""
    rows: list[dict[str, Any]] = campus.ask("tasks", run=run, limit=1000)
    assert [row for row in rows if row["state"] != "done" or row["failures"] or row["losses"]] == []
    return rows
