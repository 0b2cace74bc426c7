"""Tests delegated tasks with real agents: which tasks are delegated, and which worker gets them."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pilotfish
from pilotfish.model import facts as f
from pilotfish.model.facts import decode_record
from pilotfish.store.journal.journal_writer import Journal
from tests.engines.processes import PATIENCE_S, wait_until
from tests.support.peer_pool import CAN_HIDE, PeerPool, peer_pool

WHO = ["sh", "-c", "sleep 0.2; echo $PILOTFISH_WORKER"]


@pytest.fixture
def site(pilotfish_home: Path, tmp_path: Path) -> Iterator[PeerPool]:
    with peer_pool(pilotfish_home, tmp_path / "place", matching="distributed") as made:
        yield made


def counts(site: PeerPool) -> Counter[str]:
    """Count the delegated, claimed and assigned tasks in the journal."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(dir=site.place) as copy:
        shutil.copytree(site.pool.directory / "journal", f"{copy}/journal")
        journal, recovery = Journal.open(f"{copy}/journal")
        for record in recovery:
            for fact in decode_record(record).facts:
                if isinstance(fact, f.TasksDelegated | f.TasksClaimed | f.TasksAssigned | f.TasksDone):
                    found[type(fact).__name__] += len(fact.tasks)
        journal.close()
    return found


def said(futures: list[Any]) -> list[str]:
    return [future.result(timeout=PATIENCE_S).text.strip() for future in futures]


def settle(site: PeerPool) -> None:
    """Wait until the site assigns tasks by itself, so that the master assigns none."""

    def delegated() -> bool:
        before = counts(site)
        with site.run() as run:
            said([run.executable(["true"], sandbox=True) for _ in range(4)])
        after = counts(site)
        return after["TasksAssigned"] == before["TasksAssigned"] and after["TasksDelegated"] > before["TasksDelegated"]

    wait_until(delegated, "the site matches by itself")


def test_every_worker_of_a_site_gets_tasks_from_the_site_master(site: PeerPool) -> None:
    names = [f"w{number}" for number in range(4)]
    site.start(*names)
    settle(site)
    before = counts(site)
    with site.run() as run:
        workers = said([run.executable(WHO, sandbox=True) for _ in range(40)])
    after = counts(site)
    assert set(workers) == set(names)
    assert after["TasksDone"] - before["TasksDone"] == 40
    assert after["TasksDelegated"] - before["TasksDelegated"] >= 40
    assert after["TasksAssigned"] == before["TasksAssigned"]
    assert site.ask("run", run=run.id)["counts"]["done"] == 40


def test_requirements_ranks_and_tags_are_respected(site: PeerPool) -> None:
    site.start("small", tags={"kind": "good"})
    site.start("large", tags={"kind": "good"}, cores=2)
    site.start("bad", tags={"kind": "bad"}, cores=4)
    settle(site)
    with site.run() as run:
        good = said([run.executable(WHO, sandbox=True, requirement='kind == "good"') for _ in range(12)])
        tagged = said([run.executable(WHO, sandbox=True, tags={"kind": "bad"}) for _ in range(3)])
        ranked = [
            said([run.executable(WHO, sandbox=True, requirement='kind == "good"', rank=rank)])
            for rank in ("cores", "-cores", "cores", "-cores")
        ]
    assert set(good) == {"small", "large"}
    assert set(tagged) == {"bad"}
    assert ranked == [["large"], ["small"]] * 2


def test_tasks_go_to_workers_that_have_their_inputs(site: PeerPool) -> None:
    if not CAN_HIDE:
        pytest.skip("only root can hide a directory from a process")
    names = ["a", "b", "c"]
    site.start(*names)
    settle(site)
    with site.run() as run:
        made = {}
        for name in names:
            script = ["sh", "-c", "head -c 200000 /dev/urandom > out"]
            made[name] = run.executable(script, keep=["out"], requirement=f'worker == "{name}"').result(timeout=PATIENCE_S).files["out"]
        for _ in range(3):
            futures = {name: run.executable(WHO, inputs={"in": made[name]}) for name in reversed(names)}
            assert {name: future.result(timeout=PATIENCE_S).text.strip() for name, future in futures.items()} == {n: n for n in names}


def test_late_workers_get_tasks_and_workers_that_leave_cost_none(site: PeerPool) -> None:
    site.start("a", "b")
    settle(site)
    with site.run() as run:
        futures = [run.executable(WHO, sandbox=True, losses=100) for _ in range(60)]
        site.start("c", "d")
        site.agents.pop("b").terminate()
        site.kill("d")
        workers = said(futures)
    assert {"a", "c"} <= set(workers)


def test_a_site_whose_master_dies_has_another_and_no_task_is_lost(site: PeerPool) -> None:
    names = ["a", "b", "c", "d"]
    site.start(*names)
    settle(site)
    with site.run() as run:
        futures = [run.executable(WHO, sandbox=True, losses=100) for _ in range(60)]
        futures[5].result(timeout=PATIENCE_S)
        site_master = who_is_master(site)
        site.kill(site_master)
        workers = said(futures)
        assert set(workers) >= set(names) - {site_master}
        wait_until(lambda: who_is_master(site) not in (site_master, "") or bool(more(run, site)), "another one is lent tasks")


def who_is_master(site: PeerPool) -> str:
    with tempfile.TemporaryDirectory(dir=site.place) as copy:
        shutil.copytree(site.pool.directory / "journal", f"{copy}/journal")
        journal, recovery = Journal.open(f"{copy}/journal")
        lenders = [fact.worker for record in recovery for fact in decode_record(record).facts if isinstance(fact, f.TasksDelegated)]
        journal.close()
    return lenders[-1] if lenders else ""


def more(run: pilotfish.Run, site: PeerPool) -> bool:
    """Submit tasks that can be delegated; always return False, to be used as a condition."""
    said([run.executable(WHO, sandbox=True, losses=100) for _ in range(4)])
    return False


def test_a_site_continues_while_the_master_is_down(site: PeerPool, tmp_path: Path) -> None:
    log = tmp_path / "log"
    site.start("a", "b", "c", "d")
    settle(site)
    with site.run() as run:
        script = ["sh", "-c", f"sleep 0.3; echo $PILOTFISH_TASK $PILOTFISH_ATTEMPT >> {log}; echo $PILOTFISH_TASK"]
        futures = [run.executable(script, sandbox=True) for _ in range(40)]
        futures[0].result(timeout=PATIENCE_S)
        site.kill_master()
        before = time.monotonic()
        assert len(set(said(futures))) == 40
        assert time.monotonic() - before < PATIENCE_S
    ended = Counter(log.read_text().splitlines())
    assert max(ended.values()) == 1, "no attempt ran twice"
    assert len(ended) <= 40 + 8, f"what was done without the master counts: {len(ended)} attempts ended for 40 tasks"


def test_a_long_task_outlives_the_patience_of_an_agent_that_hears_nothing(pilotfish_home: Path, tmp_path: Path) -> None:
    with peer_pool(pilotfish_home, tmp_path / "place", matching="distributed", orphan_s=16.0) as site:
        site.start("a", "b")
        settle(site)
        with site.run() as run:
            futures = [run.executable(["sh", "-c", "sleep 20; echo well"], sandbox=True) for _ in range(2)]
            assert said(futures) == ["well"] * 2
        assert site.ask("run", run=run.id)["attempts"] == 2
        assert sorted(site.present()) == ["a", "b"]
