"""Locks in the arguments of an initializer: this program serves them to slots."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotfish.api.initializer import Initializer
from pilotfish.api.shared_locks import LockServer, dump_with_locks, is_lock
from pilotfish.errors import BadInput

WAIT_S = 30.0


@pytest.fixture
def server() -> Iterator[LockServer]:
    made = LockServer()
    yield made
    made.close()


def copy_of(server: LockServer, lock: Any) -> Any:
    return pickle.loads(dump_with_locks(lock, server.proxy))


@pytest.mark.parametrize(
    "make", [multiprocessing.Lock, multiprocessing.RLock, threading.Lock, threading.RLock, threading.Semaphore, threading.BoundedSemaphore]
)
def test_the_copy_in_a_slot_and_the_lock_of_the_program_exclude_each_other(server: LockServer, make: Any) -> None:
    lock = make()
    copy = copy_of(server, lock)
    with lock:
        assert not copy.acquire(False) and not copy.acquire(timeout=0.01)
    with copy:
        assert not lock.acquire(False)
    assert lock.acquire(False)
    lock.release()


@pytest.mark.parametrize("make", [threading.Event, threading.Condition, lambda: threading.Barrier(2)])
def test_what_cannot_be_shared_is_refused(server: LockServer, make: Any) -> None:
    with pytest.raises(TypeError, match="copied, not shared"):
        copy_of(server, make())


@pytest.mark.parametrize("make", [multiprocessing.RLock, threading.RLock])
def test_one_thread_can_acquire_an_rlock_again_and_another_one_cannot(server: LockServer, make: Any) -> None:
    lock = make()
    one, two = copy_of(server, lock), copy_of(server, lock)
    with one, one:
        assert not two.acquire(False), "each copy has its own channel, as each slot has"
        seen: list[bool] = []
        thread = threading.Thread(target=lambda: seen.append(one.acquire(False)))
        thread.start()
        thread.join(WAIT_S)
        assert seen == [False]
        with pytest.raises(RuntimeError, match="does not hold"):
            two.release()
    assert two.acquire(False)


def test_a_semaphore_counts(server: LockServer) -> None:
    copy = copy_of(server, multiprocessing.Semaphore(2))
    assert [copy.acquire(False) for _ in range(3)] == [True, True, False]


def test_locks_inside_of_objects_are_served_and_one_lock_stays_one(server: LockServer) -> None:
    lock = multiprocessing.RLock()
    copy = copy_of(server, {"nested": [lock], "again": lock})
    assert copy["nested"][0] is copy["again"] and is_lock(lock) and not is_lock("lock")
    assert copy_of(server, lock)._number == copy["again"]._number


def test_a_slot_that_dies_releases_its_locks(server: LockServer) -> None:
    lock = threading.Lock()
    data = dump_with_locks(lock, server.proxy)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            copy = pickle.loads(data)  # the lock is released when no copy is left
            copy.acquire()
            os.write(writing, b"x")
            signal.pause()
        finally:
            os._exit(1)
    assert os.read(reading, 1) == b"x" and not lock.acquire(False)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert lock.acquire(timeout=WAIT_S)
    os.close(reading)
    os.close(writing)


def test_a_slot_that_is_interrupted_while_it_waits_does_not_get_the_lock_later(server: LockServer) -> None:
    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    lock = threading.Lock()
    copy = copy_of(server, lock)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with lock:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                copy.acquire()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert copy.acquire(timeout=WAIT_S)
    assert not lock.acquire(False)
    copy.release()
    assert lock.acquire(timeout=WAIT_S)


def test_a_stranger_that_asks_for_a_lock_that_does_not_exist_gets_no_answer(server: LockServer) -> None:
    copy = copy_of(server, threading.Lock())
    copy._number = 7
    with pytest.raises(RuntimeError, match="has ended"):
        copy.acquire()


def test_where_locks_cannot_be_used_the_error_names_the_fix() -> None:
    lock = multiprocessing.RLock()
    with pytest.raises(BadInput, match="belongs to this program") as caught:
        Initializer(print, (lock,), "token", serves_locks=False).dump(abs)
    assert "leave out pool= and sites=" in caught.value.hint
    with pytest.raises(BadInput, match="Condition objects should only be shared") as caught:
        Initializer(print, (multiprocessing.Event(),), "token", serves_locks=True).dump(abs)
    assert "multiprocessing.Manager" in caught.value.hint


def test_a_function_and_its_initializer_share_their_global_variables(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("shared = []\ndef start(x):\n    shared.append(x)\ndef use():\n    return shared", names)
    function = pickle.loads(Initializer(names["start"], (5,), str(tmp_path), serves_locks=True).dump(names["use"]))
    assert function() == [5] and function() == [5]
