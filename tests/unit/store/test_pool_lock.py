"""One master per pool: on this machine, on others that share the directory, and among many that start at once."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilotfish.errors import AlreadyRunning, JournalError
from pilotfish.store import pool_lock as lock_module
from pilotfish.store.pool_lock import LEASE_S, LockOwner, PoolLock, this_process

HOLDER = """
import signal, sys
from pilotfish.store.pool_lock import PoolLock
lock = PoolLock.acquire(sys.argv[1])
print(lock.generation, flush=True)
signal.pause()
"""


def holder(directory: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(directory)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().strip().isdigit()
    return process


def write_lock(directory: Path, generation: int, **changes: Any) -> Path:
    path = directory / f"lock-{generation:08d}"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(this_process(LEASE_S), token="other", **changes)))
    return path


def make_older(path: Path, by_s: float) -> None:
    then = time.time() - by_s
    os.utime(path, (then, then))


def locks(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_second_master_is_refused_and_told_who_has_the_pool(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        try:
            with pytest.raises(AlreadyRunning, match=rf"process {process.pid} on {socket.gethostname()}") as refusal:
                PoolLock.acquire(tmp_path)
            assert "pilotfish stop" in refusal.value.hint
        finally:
            process.kill()


def test_a_killed_owner_is_replaced_at_once_even_before_its_parent_has_noticed(tmp_path: Path) -> None:
    process = holder(tmp_path)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    lock = PoolLock.acquire(tmp_path)
    assert lock.generation == 2
    assert locks(tmp_path) == ["lock-00000002"]
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_a_stopped_owner_is_not_dead_however_old_its_lease(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        try:
            make_older(tmp_path / "lock-00000001", 10 * LEASE_S)
            with pytest.raises(AlreadyRunning):
                PoolLock.acquire(tmp_path)
        finally:
            process.kill()


def test_a_child_that_outlives_the_owner_does_not_keep_the_pool(tmp_path: Path) -> None:
    with_child = HOLDER.replace("signal.pause()", "import os\nchild = os.fork()\nif child:\n    print(child, flush=True)\nsignal.pause()")
    with subprocess.Popen([sys.executable, "-c", with_child, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        child = int(process.stdout.readline())
        try:
            process.kill()
            process.wait()
            assert PoolLock.acquire(tmp_path).generation == 2
        finally:
            os.kill(child, signal.SIGKILL)


def test_another_process_with_the_number_of_the_dead_owner_is_not_taken_for_it(tmp_path: Path) -> None:
    write_lock(tmp_path, 4, started="1")
    assert PoolLock.acquire(tmp_path).generation == 5


@pytest.mark.parametrize("elsewhere", [{"host": "elsewhere", "boot": "other"}, {"boot": "other"}, {"host": "elsewhere"}])
def test_an_owner_elsewhere_keeps_the_pool_until_its_lease_has_run_out(tmp_path: Path, elsewhere: dict[str, str]) -> None:
    path = write_lock(tmp_path, 7, pid=1, started="1", **elsewhere)
    make_older(path, LEASE_S - 15)
    with pytest.raises(AlreadyRunning, match=f"process 1 on {elsewhere.get('host', socket.gethostname())}") as refusal:
        PoolLock.acquire(tmp_path)
    assert "try again in" in refusal.value.hint
    make_older(path, LEASE_S + 5)
    assert PoolLock.acquire(tmp_path).generation == 8


def test_renewing_keeps_the_lease_young(tmp_path: Path) -> None:
    lock = PoolLock.acquire(tmp_path)
    path = tmp_path / "lock-00000001"
    make_older(path, 20)
    old = path.stat().st_mtime
    lock.renew()
    assert path.stat().st_mtime >= old + 19


def test_an_owner_whose_pool_was_taken_over_is_told_at_its_next_renewal(tmp_path: Path) -> None:
    lock = PoolLock.acquire(tmp_path)
    write_lock(tmp_path, 2, pid=77, host="elsewhere", boot="other")
    with pytest.raises(AlreadyRunning, match="process 77 on elsewhere has taken over"):
        lock.renew()
    lock.release()
    assert (tmp_path / "lock-00000002").exists()


def test_a_lock_that_somebody_removed_is_put_back_unless_another_was_quicker(tmp_path: Path) -> None:
    lock = PoolLock.acquire(tmp_path)
    (tmp_path / "lock-00000001").unlink()
    lock.renew()
    with pytest.raises(AlreadyRunning):
        PoolLock.acquire(tmp_path)
    (tmp_path / "lock-00000001").unlink()
    write_lock(tmp_path, 1, host="elsewhere", boot="other")
    with pytest.raises(AlreadyRunning, match="elsewhere"):
        lock.renew()


def test_a_released_pool_is_free_at_once_and_its_number_goes_on(tmp_path: Path) -> None:
    for generation in range(1, 5):
        lock = PoolLock.acquire(tmp_path)
        assert lock.generation == generation
        lock.release()
        assert locks(tmp_path) == [f"lock-{generation:08d}"]


def test_a_slow_contender_cannot_take_what_others_took_and_gave_up_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lock(tmp_path, 1, started="1")
    original = lock_module._require_free
    holders = []

    def slowly(directory: str, generation: int, draft: str) -> None:
        original(directory, generation, draft)
        monkeypatch.setattr(lock_module, "_require_free", original)
        PoolLock.acquire(directory).release()
        holders.append(PoolLock.acquire(directory))

    monkeypatch.setattr(lock_module, "_require_free", slowly)
    with pytest.raises(AlreadyRunning):
        PoolLock.acquire(tmp_path)
    assert locks(tmp_path) == ["lock-00000003"]
    holders[0].renew()


def test_of_many_that_start_at_once_exactly_one_takes_over(tmp_path: Path) -> None:
    contenders = 6
    for round_number in range(25):
        directory = tmp_path / str(round_number)
        directory.mkdir()
        write_lock(directory, 3, started="1")
        go_out, go_in = os.pipe()
        end_out, end_in = os.pipe()
        answers_out, answers_in = os.pipe()
        children = []
        for _ in range(contenders):
            child = os.fork()
            if child == 0:
                os.close(go_in)
                os.close(end_in)
                os.read(go_out, 1)
                answer = b"?"
                try:
                    PoolLock.acquire(directory)
                    answer = b"+"
                except AlreadyRunning:
                    answer = b"-"
                finally:
                    os.write(answers_in, answer)
                    os.read(end_out, 1)
                    os._exit(0)
            children.append(child)
        os.close(go_in)
        answers = b"".join(os.read(answers_out, 1) for _ in range(contenders))
        os.close(end_in)
        for child in children:
            os.waitpid(child, 0)
        for descriptor in (go_out, end_out, answers_out, answers_in):
            os.close(descriptor)
        assert sorted(answers) == sorted(b"+" + b"-" * (contenders - 1))
        assert len(locks(directory)) == 1


def test_it_works_where_files_cannot_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    lock = PoolLock.acquire(tmp_path)
    lock.renew()
    with pytest.raises(AlreadyRunning):
        PoolLock.acquire(tmp_path)
    lock.release()
    assert PoolLock.acquire(tmp_path).generation == 2


@pytest.mark.parametrize("content", [b"", b"garbage", b'{"pid": "x"}'])
def test_an_unreadable_lock_counts_as_held_until_it_is_old(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lock-00000001"
    path.write_bytes(content)
    with pytest.raises(AlreadyRunning, match="unreadable"):
        PoolLock.acquire(tmp_path)
    make_older(path, LEASE_S + 5)
    assert PoolLock.acquire(tmp_path).generation == 2


def test_the_lock_is_private_and_says_who_holds_it(tmp_path: Path) -> None:
    lock = PoolLock.acquire(tmp_path, lease_s=12.0)
    path = tmp_path / "lock-00000001"
    assert path.stat().st_mode & 0o777 == 0o600
    owner = msgspec.json.decode(path.read_bytes(), type=LockOwner)
    assert owner == lock.owner
    assert (owner.pid, owner.host, owner.lease_s) == (os.getpid(), socket.gethostname(), 12.0)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="missing"):
        PoolLock.acquire(tmp_path / "missing")
