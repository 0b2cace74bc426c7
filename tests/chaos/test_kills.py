"""Tests SIGKILL and SIGSTOP of every process at every stage: all tasks end once, and nothing is left."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pilotfish.client.pools import PoolHandle
from pilotfish.store.pool_directory import PoolDirectory
from tests.chaos.scene import CONTINUE, KILL, STOP, Scene, is_alive, wait_until

SETTINGS = {"local_cores": 2, "beat_s": 0.5, "lease_s": 3.0, "author_s": 3.0, "linger_s": 600.0}
TASKS = 60


@contextmanager
def a_scene(home: Path, log: Path, settings: dict[str, Any]) -> Iterator[Scene]:
    pool = PoolHandle(PoolDirectory(home / "pools" / "chaos").make().directory, settings)
    pool.revive()
    made = Scene(pool, log)
    yield made
    made.stop()


@pytest.fixture
def scene(pilotfish_home: Path, tmp_path: Path) -> Iterator[Scene]:
    with a_scene(pilotfish_home, tmp_path / "effects.log", dict(SETTINGS)) as made:
        yield made


def reach(scene: Scene, stage: str) -> None:
    """Wait until the run is at the stage. ``flight``: tasks so short that some results are always in transit."""
    if stage == "submitting":
        wait_until(lambda: bool(scene.row().get("tasks")), "the first tasks to be taken")
    elif stage in ("running", "flight"):
        wait_until(lambda: scene.started() >= 5, "tasks to run")


SECONDS = {"submitting": 0.02, "running": 0.2, "flight": 0.0}
COUNTS = {"submitting": TASKS, "running": TASKS, "flight": 4 * TASKS}
"""Number of tasks. There are more short ones, so that some are left even if a busy machine is slow to send the signal."""
HELD = {"submitting": 8, "running": 4, "flight": 24}
"""Maximum tasks that a worker of two slots holds and loses when it dies: running, prefetched, and results not yet written."""


VICTIMS = ("master", "supervisor", "agent", "slot_server", "keeper", "slot", "task")


def each_kill() -> Iterator[Any]:
    """Yield all kills. ``make test``: each process while tasks run, master and agent at every stage; ``make campaign``: the rest."""
    for victim, stage in itertools.product(VICTIMS, SECONDS):
        is_sampled = stage == "running" or victim in ("master", "agent")
        yield pytest.param(victim, stage, id=f"{victim}-{stage}", marks=[] if is_sampled else [pytest.mark.campaign])


@pytest.mark.parametrize(("victim", "stage"), list(each_kill()))
def test_kill_of(scene: Scene, victim: str, stage: str) -> None:
    with scene.start_client(COUNTS[stage], SECONDS[stage]) as client:
        reach(scene, stage)
        killed = scene.hit(victim, KILL)
        wait_until(lambda: not is_alive(killed), "the victim to die")
        row = scene.wait_for_end(COUNTS[stage])
        assert client.wait() == 0, "the client saw all its tasks end"
    scene.assert_each_task_ended_once(row, reruns=HELD[stage])


@pytest.mark.parametrize("stage", ["submitting", "running", "flight"])
def test_kill_of_the_client(scene: Scene, stage: str) -> None:
    with scene.start_client(TASKS, SECONDS[stage]) as client:
        reach(scene, stage)
        client.kill()
    row = scene.wait_for_end()
    scene.assert_each_task_ended_once(row, reruns=0)


@pytest.mark.parametrize("victim", ["master", "supervisor", "agent", "slot_server", "slot"])
def test_kill_of_an_idle_process(scene: Scene, victim: str) -> None:
    with scene.start_client(4, 0.0) as client:
        scene.wait_for_end(4)
        client.wait()
    with suppress(ProcessLookupError):
        os.kill(scene.pid_of(victim), KILL)
    scene.uid = "after"
    with scene.start_client(4, 0.0) as client:
        scene.wait_for_end(4)
        assert client.wait() == 0


@pytest.mark.parametrize("victim", ["agent", "slot", "task"])
def test_stop_of_a_process_that_is_never_continued(scene: Scene, victim: str) -> None:
    """A stopped task is like one that hangs: its time limit would end it; here it is continued at last."""
    with scene.start_client(TASKS, 0.1) as client:
        reach(scene, "running")
        stopped = scene.hit(victim, STOP)
        if victim == "task":
            wait_until(lambda: scene.started() > TASKS // 2, "the others to go on")
            with suppress(ProcessLookupError):  # it ended before it could be stopped
                os.kill(stopped, CONTINUE)
        row = scene.wait_for_end(TASKS)
        assert client.wait() == 0
        with suppress(ProcessLookupError):
            os.kill(stopped, CONTINUE)
    scene.assert_each_task_ended_once(row, reruns=4)


def test_stop_of_the_master_costs_time_and_nothing_else(scene: Scene) -> None:
    with scene.start_client(TASKS, 0.1) as client:
        reach(scene, "running")
        stopped = scene.hit("master", STOP)
        before = scene.started()
        wait_until(lambda: len(scene.lines()) > before, "running tasks to end under a stopped master")
        silent = SETTINGS["lease_s"] * 1.5
        _wait(silent)
        os.kill(stopped, CONTINUE)
        row = scene.wait_for_end(TASKS)
        assert client.wait() == 0
    scene.assert_each_task_ended_once(row, reruns=0)


def _wait(seconds: float) -> None:
    """Let real time pass, to check that a suspended master does not blame others for its own silence."""
    import select

    select.select([], [], [], seconds)


def test_stop_of_the_client_costs_nothing(scene: Scene) -> None:
    with scene.start_client(TASKS, 0.1) as client:
        reach(scene, "running")
        wait_until(lambda: scene.row().get("tasks") == TASKS, "all tasks to be taken")
        os.kill(client.pid, STOP)
        scene_started = scene.started()
        # All tasks may have started already if this machine was slow to stop the client.
        wait_until(lambda: scene.started() > scene_started or scene_started == TASKS, "work to go on without the client")
        os.kill(client.pid, CONTINUE)
        row = scene.wait_for_end(TASKS)
        assert client.wait() == 0
    scene.assert_each_task_ended_once(row, reruns=0)


def _work_without_a_master(scene: Scene, seconds: float) -> None:
    with scene.start_client(2, seconds) as client:
        wait_until(lambda: scene.started() == 2, "both tasks to run")
        client.kill()
    os.kill(scene.pid_of("master"), KILL)
    wait_until(lambda: len([line for line in scene.lines() if line.startswith("end")]) == 2, "both tasks to end without a master")
    row = scene.wait_for_end(2)
    scene.assert_each_task_ended_once(row, reruns=0)


def test_a_master_that_is_down_beyond_the_lease_loses_no_running_work(scene: Scene) -> None:
    """Tasks longer than the lease continue without a master, and their results count."""
    _work_without_a_master(scene, SETTINGS["lease_s"] + 2.0)


@pytest.mark.campaign
def test_a_master_that_is_down_for_a_minute_loses_no_running_work(pilotfish_home: Path, tmp_path: Path) -> None:
    """Same as above, with the default settings."""
    with a_scene(pilotfish_home, tmp_path / "effects.log", {"local_cores": 2}) as scene:
        _work_without_a_master(scene, 61.0)


def test_again_and_again(scene: Scene) -> None:
    """Many kills during one run."""
    kills = 0
    with scene.start_client(150, 0.05) as client:
        reach(scene, "running")
        for victim in ["master", "agent", "slot", "master", "task", "supervisor", "slot", "master", "agent"]:
            before = scene.started()
            wait_until(lambda before=before: scene.started() > before + 2 or scene.row().get("state") == "done", "some progress")  # type: ignore[misc]
            if scene.row().get("state") == "done":
                break
            scene.hit(victim, KILL)
            kills += 1
        row = scene.wait_for_end(150)
        assert client.wait() == 0
    scene.assert_each_task_ended_once(row, reruns=4 * kills)
