"""Tests speculative copies with real agents: which attempt wins, how the other one ends, and whose files are copied back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import pilotfish
from tests.engines import processes
from tests.engines.processes import PATIENCE_S, wait_until
from tests.support.peer_pool import PeerPool, peer_pool

SCRIPT = (
    'echo "$1 of $PILOTFISH_WORKER" > out.txt; [ $1 != straggler ] || [ $PILOTFISH_WORKER != slow ] || { echo $$ > "$2"; exec sleep 1000; }'
)
USUAL = 3


@pytest.fixture
def pool(pilotfish_home: Path, tmp_path: Path) -> Iterator[PeerPool]:
    with peer_pool(pilotfish_home, tmp_path / "place", matching="central") as made:
        yield made


def words(name: str, note: Path) -> list[str]:
    return ["sh", "-c", SCRIPT, "sh", name, str(note)]


def begin_straggler(pool: PeerPool, run: pilotfish.Run, note: Path) -> tuple[pilotfish.TaskFuture[pilotfish.Completed], int]:
    """Run quick tasks and one that hangs at the only worker; return that task and its process."""
    pool.start("slow")
    for number in range(USUAL):
        run.executable(words(f"usual{number}", note), outputs=["out.txt"]).result(PATIENCE_S)
    straggler = run.executable(words("straggler", note), outputs=["out.txt"])
    wait_until(lambda: note.exists() and note.read_text().strip() != "", "the straggler to begin")
    return straggler, int(note.read_text())


def test_the_copy_wins_and_the_straggler_is_killed_and_its_file_never_comes(pool: PeerPool, tmp_path: Path) -> None:
    with pilotfish.Run(pool=pool.pool, speculate=True) as run:
        straggler, process = begin_straggler(pool, run, tmp_path / "note")
        pool.start("quick")
        completed = straggler.result(PATIENCE_S)
    assert completed.files["out.txt"].content == b"straggler of quick\n"
    wait_until(lambda: not processes.is_alive(process), "the loser to be killed")
    counts = pool.ask("run", run=run.id)
    assert counts["counts"]["done"] == USUAL + 1
    assert pool.ask("task", task=f"{run.id}.{USUAL}")["attempt"] == 2
    done = {row["worker"]: row["tasks_done"] for row in pool.ask("workers")}
    assert done == {"slow": USUAL, "quick": 1}
    wait_until(lambda: not any(row["running"] for row in pool.ask("workers")), "nobody to hold anything")


def test_a_stopped_straggler_that_wakes_up_too_late_changes_nothing(pool: PeerPool, tmp_path: Path) -> None:
    """The whole agent is suspended while the copy wins, and learns of it when it continues."""
    with pilotfish.Run(pool=pool.pool, speculate=True) as run:
        straggler, process = begin_straggler(pool, run, tmp_path / "note")
        wait_until(lambda: pool.ask("task", task=f"{run.id}.{USUAL}")["state"] == "running", "the master to know that it runs")
        agent = pool.process_of("slow")
        os.kill(agent, signal.SIGSTOP)
        try:
            pool.start("quick")
            completed = straggler.result(PATIENCE_S)
        finally:
            os.kill(agent, signal.SIGCONT)
    assert completed.files["out.txt"].content == b"straggler of quick\n"
    wait_until(lambda: not processes.is_alive(process), "the loser to be killed")
    assert pool.ask("run", run=run.id)["counts"]["done"] == USUAL + 1


def test_no_task_is_copied_without_permission(pool: PeerPool, tmp_path: Path) -> None:
    with pilotfish.Run(pool=pool.pool) as run:
        straggler, process = begin_straggler(pool, run, tmp_path / "note")
        pool.start("quick")
        answer = pool.ask("why", task=f"{run.id}.{USUAL}")
        assert [reason["code"] for reason in answer["reasons"]] == ["placed"]
        os.kill(process, signal.SIGTERM)
        with pytest.raises(pilotfish.TaskFailed):
            straggler.result(PATIENCE_S)
