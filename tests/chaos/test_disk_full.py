"""Tests a full disk below the journal: nothing is lost, and the master stays up until there is space again."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import pilotfish
from pilotfish.client.master_client import FULL_DISK_S, MasterClient
from pilotfish.client.pools import PoolHandle
from pilotfish.store.pool_directory import PoolDirectory
from tests.chaos.scene import Scene, wait_until
from tests.conftest import PATIENCE_S

MiB = 1024 * 1024
ENOUGH_FOR_US_NOT_FOR_THE_MASTER = 10 * MiB


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 48 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m,mode=0700", "tmpfs", str(place)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"needs to mount a file system of its own: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(path: Path) -> None:
    """Fill the disk to the last block."""
    with path.open("wb", buffering=0) as file:
        for size in (MiB, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def test_a_full_disk_holds_the_work_up_and_loses_none(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTFISH_HOME", str(small_disk))
    pool = PoolHandle(PoolDirectory(small_disk / "pools" / "p").make().directory, {"local_cores": 2, "linger_s": 600.0})
    pool.revive()
    scene = Scene(pool, small_disk / "log")
    master = scene.master()
    with pilotfish.Run(pool=pool) as run:
        assert run.submit(pow, 2, 2).result(PATIENCE_S) == 4
        running = run.executable(["sleep", "2"])
        wait_until(lambda: bool(scene.task()), "the task to run")
        fill(small_disk / "ballast")
        waiting = [run.submit(pow, 2, number) for number in range(50)]
        wait_until(lambda: not scene.task(), "the task to end on a full disk")
        assert not running.done() or running.result().exit == 0
        os.unlink(small_disk / "ballast")
        assert running.result(PATIENCE_S).exit == 0
        assert [future.result(PATIENCE_S) for future in waiting] == [2**number for number in range(50)]
    assert scene.master() == master, "the same master, all along"
    client = MasterClient.connect(pool.directory)
    client.ask("stop", now=True)
    client.close()
    assert pool.wait_until_stopped(PATIENCE_S) == []


@pytest.mark.parametrize("size", [1_000_000, 100_000])
def test_large_arguments_wait_while_room_is_short_and_take_none_of_it(small_disk: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setenv("PILOTFISH_HOME", str(small_disk))
    ballast = small_disk / "ballast"
    with pilotfish.Executor(max_workers=1) as executor:
        assert executor.submit(len, b"first").result(PATIENCE_S) == 5
        (pool,) = (small_disk / "pools").iterdir()
        with ballast.open("wb", buffering=0) as file:
            while free_bytes(small_disk) > ENOUGH_FOR_US_NOT_FOR_THE_MASTER:
                file.write(bytes(4096))
        wait_until(lambda: "disk-full" in warnings_of(pool), "the master to notice")
        futures = [executor.submit(len, os.urandom(size)) for _ in range(3)]
        before = free_bytes(small_disk)
        tick = threading.Event()
        tick.wait(3 * FULL_DISK_S)
        assert not any(future.done() for future in futures)
        assert free_bytes(small_disk) > before - size, "what is refused again and again takes no room"
        ballast.unlink()
        assert [future.result(PATIENCE_S) for future in futures] == [size] * 3


def free_bytes(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def warnings_of(pool: Path) -> list[str]:
    client = MasterClient.connect(pool)
    try:
        return [warning["code"] for warning in client.ask("status")["warnings"]]
    finally:
        client.close()
