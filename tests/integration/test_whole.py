"""Tests the whole system on this machine: a client, a master, an agent and its slots."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pilotfish
from pilotfish.client.master_client import MasterClient
from pilotfish.client.pools import PoolHandle
from pilotfish.errors import TaskFailed
from pilotfish.store.pool_directory import PoolDirectory
from tests.chaos.scene import Scene, is_alive, wait_until
from tests.conftest import PATIENCE_S

MiB = 1024 * 1024
Start = Callable[..., PoolHandle]


@pytest.fixture
def start(pilotfish_home: Path) -> Iterator[Start]:
    """Start pools with special settings; all are stopped at the end and must leave nothing."""
    pools: list[PoolHandle] = []

    def make(**settings: Any) -> PoolHandle:
        directory = PoolDirectory(pilotfish_home / "pools" / f"p{len(pools)}").make().directory
        pool = PoolHandle(directory, {"local_cores": 2, "linger_s": 600.0, **settings})
        pool.revive()
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.revive()
        client = MasterClient.connect(pool.directory)
        client.ask("stop", now=True)
        client.close()
        assert pool.wait_until_stopped(PATIENCE_S) == []


def ask(pool: PoolHandle, kind: str, **arguments: Any) -> Any:
    client = MasterClient.connect(pool.directory, pool.revive, 0.0)  # a master that was just killed may still seem to listen
    try:
        return client.ask(kind, **arguments)
    finally:
        client.close()


def test_values_files_and_output_come_back(start: Start, tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("seven\n")
    with pilotfish.Run(pool=start()) as run:
        call = run.submit(divmod, 17, 5)
        program = run.executable(
            ["sh", "-c", "cat input.txt; tr a-z A-Z < input.txt > out.txt; echo oops >&2"],
            inputs=[tmp_path / "input.txt"],
            outputs=["out.txt"],
        )
        assert call.result(PATIENCE_S) == (3, 2)
        completed = program.result(PATIENCE_S)
    assert (completed.exit, completed.stdout, completed.stderr) == (0, b"seven\n", b"oops\n")
    assert completed.files["out.txt"].content == b"SEVEN\n"


def test_a_large_value_goes_there_and_back_and_survives_a_restart(start: Start) -> None:
    pool = start()
    value = os.urandom(20 * MiB)
    with pilotfish.Run(uid="large", pool=pool) as run:
        assert run.submit(bytes, value).result(PATIENCE_S) == value
    killed = Scene(pool, Path()).hit("master", signal.SIGKILL)
    wait_until(lambda: not is_alive(killed), "the master to die")
    pool.revive()
    length = ask(pool, "payload", task="1.0", which="result")["length"]
    assert length >= len(value)


def test_dependencies_hold_and_a_failure_cuts_only_what_needs_it(start: Start) -> None:
    with pilotfish.Run(pool=start()) as run:
        first = run.executable(["true"])
        bad = run.executable(["false"], after=[first])
        skipped = run.executable(["true"], after=[bad])
        fine = run.executable(["true"], after=[first])
        assert fine.result(PATIENCE_S).exit == 0
        with pytest.raises(TaskFailed, match="1"):
            bad.result(PATIENCE_S)
        with pytest.raises(TaskFailed, match="which it needs, failed"):
            skipped.result(PATIENCE_S)


def test_retries_are_used_for_failures(start: Start, tmp_path: Path) -> None:
    script = f"echo x >> {tmp_path}/tries; test $(wc -l < {tmp_path}/tries) -ge 3"
    with pilotfish.Run(pool=start()) as run:
        assert run.executable(["sh", "-c", script], retries=2).result(PATIENCE_S).exit == 0
    assert (tmp_path / "tries").read_text() == "x\n" * 3


def test_a_time_limit_ends_the_whole_tree(start: Start, tmp_path: Path) -> None:
    marker = tmp_path / "child"
    with pilotfish.Run(pool=start()) as run:
        hung = run.executable(["sh", "-c", f"sleep 1000 & echo $! > {marker}; wait"], time=0.5)
        with pytest.raises(TaskFailed, match="time"):
            hung.result(PATIENCE_S)
    child = int(marker.read_text())
    wait_until(lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text(), "the child to be gone")


def _grab(mebibytes: int) -> int:
    """Use the memory by writing to it; pages that are never written do not count."""
    kept = bytearray(mebibytes * MiB)
    kept[::4096] = b"x" * len(kept[::4096])
    return len(kept)


def test_memory_is_enforced_escalated_after_exhaustion_and_neighbours_live(start: Start) -> None:
    with pilotfish.Run(pool=start(local_cores=2)) as run:
        neighbour = run.executable(["sleep", "1"])
        hungry = run.options(memory="100 MiB").submit(_grab, 300)
        assert hungry.result(PATIENCE_S) == 300 * MiB, "tried with 100, 200 and 400 MiB"
        assert neighbour.result(PATIENCE_S).exit == 0


def test_a_crash_is_reported_with_its_signal_and_the_worker_lives(start: Start) -> None:
    pool = start()
    with pilotfish.Run(pool=pool) as run:
        crash = run.submit(os.abort)
        with pytest.raises(TaskFailed, match="SIGABRT|signal 6"):
            crash.result(PATIENCE_S)
        assert run.submit(pow, 2, 5).result(PATIENCE_S) == 32
    workers = ask(pool, "workers", all=True)
    assert [worker["worker"] for worker in workers] == ["local-1"]


def test_a_running_task_can_be_cancelled_and_its_tree_dies(start: Start, tmp_path: Path) -> None:
    pool = start()
    marker = tmp_path / "pid"
    with pilotfish.Run(pool=pool) as run:
        run.executable(["sh", "-c", f"echo $$ > {marker}; exec sleep 1000"])
        wait_until(lambda: marker.exists() and bool(marker.read_text()), "the task to run")
        run.cancel()
    pid = int(marker.read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text(), "the task to be gone")


def test_a_paused_run_waits_and_says_why(start: Start) -> None:
    pool = start()
    run = pilotfish.Run(pool=pool)
    ask(pool, "pause", run=run.id)
    future = run.submit(pow, 2, 3)
    wait_until(lambda: bool(ask(pool, "run", run=run.id)["tasks"]), "the task to arrive")
    found = ask(pool, "why", task="1.0")
    assert found["reasons"][0]["code"] == "paused"
    assert found["reasons"][0]["commands"] == ["pilotfish resume 1"]
    ask(pool, "resume", run=run.id)
    assert future.result(PATIENCE_S) == 8
    run.close()


def test_what_failed_can_be_run_again_in_its_run(start: Start, tmp_path: Path) -> None:
    pool = start()
    flag = tmp_path / "fixed"
    with pilotfish.Run(pool=pool) as run:
        run.executable(["test", "-e", str(flag)])
        run.executable(["true"])
    flag.touch()
    assert ask(pool, "rerun", run=run.id)["tasks"] == 1
    wait_until(lambda: ask(pool, "run", run=run.id)["state"] == "done", "the second try")
    assert ask(pool, "run", run=run.id)["counts"]["done"] == 2


def test_a_request_that_nothing_can_meet_is_explained(start: Start) -> None:
    pool = start()
    run = pilotfish.Run(pool=pool)
    run.submit(pow, 2, 3).result(PATIENCE_S)
    run.options(cores=64).submit(pow, 2, 3)
    wait_until(lambda: ask(pool, "run", run=run.id)["tasks"] == 2, "the task to arrive")
    found = ask(pool, "why", task="1.1")
    assert found["reasons"][0]["code"] == "too-big"
    assert "64 cores" in found["sentence"] and "2 cores" in found["sentence"]
    assert ask(pool, "status")["warnings"][0]["code"] == "too-big"
    ask(pool, "workers_set", local=66)
    run.close()
    assert ask(pool, "run", run=run.id)["counts"]["done"] == 2, "the remedy works: more workers"


def test_moldable_tasks_get_the_cores_that_are_free(start: Start) -> None:
    with pilotfish.Run(pool=start(local_cores=2)) as run:
        wide = run.options(cores="1-8").submit(os.getenv, "PILOTFISH_CORES")
        assert wide.result(PATIENCE_S) == "2"


def test_connectionless_agents_do_the_work_too(start: Start) -> None:
    pool = start(poll_s=0.5)
    with pilotfish.Run(pool=pool) as run:
        assert list(run.map(pow, range(20), [2] * 20)) == [number**2 for number in range(20)]
    assert ask(pool, "workers")[0]["worker"] == "local-1"


def test_results_outlive_the_master(start: Start) -> None:
    pool = start()
    with pilotfish.Run(pool=pool) as run:
        run.executable(["echo", "kept"])
    ask(pool, "stop")
    assert pool.wait_until_stopped(PATIENCE_S) == []
    pool.revive()
    client = MasterClient.connect(pool.directory)
    reply = client.ask_bytes("payload", task=f"{run.id}.0")
    client.close()
    assert b"kept\n" in bytes(reply.body)


def test_a_second_master_on_the_same_pool_refuses(start: Start) -> None:
    from pilotfish.client.pools import _start

    pool = start()
    assert "running" in _start(pool)
    assert ask(pool, "status")["epoch"] == 1


def test_a_pool_that_others_can_read_is_refused(start: Start, pilotfish_home: Path) -> None:
    directory = PoolDirectory(pilotfish_home / "pools" / "open").make().directory
    directory.chmod(0o755)
    with pytest.raises(pilotfish.errors.BadInput, match="can be read by others") as caught:
        PoolHandle(directory).revive()
    assert "chmod" in caught.value.hint


def test_a_worker_dies_and_the_pool_gets_another(start: Start) -> None:
    pool = start()
    scene = Scene(pool, Path())
    with pilotfish.Run(pool=pool) as run:
        assert run.submit(pow, 2, 2).result(PATIENCE_S) == 4
        scene.hit("agent", signal.SIGKILL)
        assert run.submit(pow, 2, 3).result(PATIENCE_S) == 8
    gone = [worker for worker in ask(pool, "workers", all=True) if worker["state"] == "lost"]
    assert len(gone) == 1 and "signal 9" in gone[0]["reason"]


def test_the_master_goes_by_itself_when_the_work_is_done(start: Start) -> None:
    pool = start(linger_s=0.2)
    with pilotfish.Run(pool=pool) as run:
        run.submit(pow, 2, 2).result(PATIENCE_S)
    assert pool.wait_until_stopped(PATIENCE_S) == []


def test_a_pool_grows_and_shrinks_as_asked(start: Start) -> None:
    pool = start(local_cores=1)

    def cores() -> list[float]:
        return [worker["capacity"]["cores"] for worker in ask(pool, "workers") if worker["state"] != "draining"]

    run = pilotfish.Run(pool=pool)
    wait_until(lambda: cores() == [1], "one worker")
    for _ in range(500):
        run.executable(["sleep", "0.2"])
    ask(pool, "workers_set", local=3)
    wait_until(lambda: cores() == [1, 2], "two more cores")
    ask(pool, "workers_set", local=1)
    wait_until(lambda: cores() == [1], "the pool to shrink")
    run.cancel()
    run.close()


def test_growing_the_pool_makes_room_for_a_task_that_fitted_nowhere(start: Start) -> None:
    pool = start(local_cores=1)
    run = pilotfish.Run(pool=pool)
    run.submit(pow, 2, 2).result(PATIENCE_S)
    wide = run.options(cores=2).submit(pow, 2, 3)
    wait_until(lambda: bool(ask(pool, "status")["warnings"]), "the warning")
    assert "pilotfish workers --local-cores 2" in ask(pool, "why", task=wide.task_id)["reasons"][0]["commands"]
    ask(pool, "workers_set", local=2)
    assert wide.result(PATIENCE_S) == 8
    run.close()


def test_a_large_task_does_not_starve_behind_small_ones(start: Start) -> None:
    with pilotfish.Run(pool=start(local_cores=2)) as run:
        small = [run.executable(["sleep", "0.3"]) for _ in range(3)]
        large = run.executable(["true"], cores=2)
        more = [run.executable(["sleep", "0.3"]) for _ in range(60)]
        assert large.result(PATIENCE_S).exit == 0
        assert not all(future.done() for future in more)
        assert all(future.result(PATIENCE_S).exit == 0 for future in small)
        run.cancel()


def test_large_payloads_are_removed_when_nobody_needs_them(start: Start) -> None:
    pool = start()
    shared = pool.directory / "payloads" / "shared"
    with pilotfish.Run(pool=pool) as run:
        futures = [run.submit(bytes, bytes(MiB)) for _ in range(5)]
        assert all(future.result(PATIENCE_S) == bytes(MiB) for future in futures)
        wait_until(lambda: len(list(shared.iterdir())) == 5, "the inputs to go; the results stay")
    ask(pool, "forget", run=run.id)
    wait_until(lambda: not list(shared.iterdir()), "the results to go")


def test_an_idle_worker_is_released_and_restarted_for_new_tasks(start: Start) -> None:
    pool = start(idle_s=0.5)
    with pilotfish.Run(pool=pool) as run:
        assert run.submit(pow, 2, 2).result(PATIENCE_S) == 4
        wait_until(lambda: not ask(pool, "workers"), "the idle worker to go")
        assert "nothing to do" in ask(pool, "workers", all=True)[0]["reason"]
        assert run.submit(pow, 2, 3).result(PATIENCE_S) == 8


def test_runs_that_share_a_worker_never_get_each_others_functions(start: Start) -> None:
    pool = start(local_cores=1)
    with pilotfish.Run(pool=pool) as one, pilotfish.Run(pool=pool) as two:
        for number in range(5):
            assert one.submit(abs, -number).result(PATIENCE_S) == number
            assert two.submit(str, number).result(PATIENCE_S) == str(number)


UNCLOSED = """
import os, sys
from pilotfish import Run
from pilotfish.client.pools import PoolHandle
from pathlib import Path

run = Run("unclosed", pool=PoolHandle(Path(sys.argv[1])))
for future in [run.submit(abs, -number) for number in range(8)]:
    future.result()
os._exit(1)
"""


def test_a_program_that_ends_before_it_closes_its_run_is_told_truly_and_at_once(start: Start, tmp_path: Path) -> None:
    pool = start(author_s=5.0)
    (tmp_path / "longrun.py").write_text(UNCLOSED)
    subprocess.run([sys.executable, "longrun.py", str(pool.directory)], cwd=tmp_path, timeout=PATIENCE_S, check=False)

    def pilotfish_says(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pilotfish", *words, "--pool", pool.name]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    said = pilotfish_says("attach", "unclosed")
    assert "run 1 is open: all its tasks have ended; its program ended or lost its connection before it closed the run" in said.stderr
    assert re.search(r"the run ends in [1-5] s if the program does not come back", said.stderr)
    assert "Run 1: 8 tasks, 8 done in" in said.stdout
    assert "its program ended before it closed the run, and may have wanted to submit more tasks" in said.stdout
    why = pilotfish_says("why", "1").stdout
    assert "it submitted 8 tasks, 8 of them done" in why
    assert f"fix: python longrun.py {pool.directory}" in " ".join(why.split())
