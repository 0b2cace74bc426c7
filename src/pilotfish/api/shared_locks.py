"""Lets the slots of a private pool use locks of the program that created the pool.

Only a process that is forked from this program gets its ``multiprocessing`` locks, and slots are not forked from this program. So this
program serves its locks to the slots: for each lock and each thread of a slot, a thread of this program acquires and releases the lock. If
a slot dies, the locks that it holds are released.
"""

from __future__ import annotations

import io
import os
import secrets
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pilotfish.applications.calls.function_pickler import FunctionPickler

REQUEST = struct.Struct("!cd")
"""A request: the operation, and the maximum seconds to wait. A negative number means no limit."""
NUMBER = struct.Struct("!I")
ACQUIRE = b"a"
"""The operation that acquires a lock. Any other operation releases it."""
YES, NO, NOT_HELD = b"1", b"0", b"e"
_PEER = struct.Struct("3i")
_THREAD_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Semaphore)
_NOT_SHARED = (threading.Event, threading.Condition, threading.Barrier)


def is_lock(value: object) -> bool:
    """Tests whether a value is a lock or a semaphore, of threading or of multiprocessing."""
    module = sys.modules.get("multiprocessing.synchronize")
    return isinstance(value, _THREAD_LOCKS) or (module is not None and isinstance(value, module.SemLock))


def is_managed(value: object) -> bool:
    """Tests whether a value is the proxy of an object in a ``multiprocessing.Manager``."""
    module = sys.modules.get("multiprocessing.managers")
    return module is not None and isinstance(value, module.BaseProxy)


def reduce_managed(proxy: Any) -> Any:
    """Returns what pickle needs to create the proxy of a managed object in a slot. This includes the key of the manager: processes that
    ``multiprocessing`` starts inherit the key, but slots do not."""
    make, (*arguments, options) = proxy.__reduce__()
    return make, (*arguments, {**options, "authkey": bytes(proxy._authkey)})


def _make_proxy_class() -> type:
    """Defines the class of the lock in a slot. It is pickled by value. So of the names in this module, it can use only imported modules."""

    class SharedLock:
        """A lock of the program that submitted the call."""

        def __init__(self, address: str, number: int) -> None:
            self._address, self._number = address, number
            self._channels: dict[Any, Any] = {}

        def __reduce__(self) -> Any:
            return type(self), (self._address, self._number)

        def _ask(self, operation: bytes, wait_s: float) -> bytes:
            key = os.getpid(), threading.get_ident()  # one channel for each thread, because a thread owns an RLock
            channel = self._channels.pop(key, None)
            try:
                if channel is None:
                    channel = socket.socket(socket.AF_UNIX)
                    channel.connect(self._address)
                    channel.sendall(struct.pack("!I", self._number))
                channel.sendall(struct.pack("!cd", operation, wait_s))
                answer: bytes = channel.recv(1)
                if not answer:
                    raise ConnectionResetError
            except BaseException as error:
                # After an interrupt, the answer to this request can still arrive. It must not become the answer to the next request.
                if channel is not None:
                    channel.close()
                if isinstance(error, ConnectionError):
                    raise RuntimeError("the program to which this lock belongs has ended") from None
                raise
            self._channels[key] = channel
            return answer

        def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
            wait_s = 0.0 if not block else -1.0 if timeout is None else max(0.0, timeout)
            return self._ask(b"a", wait_s) == b"1"

        def release(self) -> None:
            if self._ask(b"r", 0.0) != b"1":
                raise RuntimeError("this thread released a lock that it does not hold")

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *error: object) -> None:
            self.release()

    return SharedLock


SharedLock = _make_proxy_class()


class LockServer:
    """Serves locks to processes of this user on this machine. After ``close``, the server accepts no new connections."""

    def __init__(self) -> None:
        self._locks: list[Any] = []
        self.address = f"\0pilotfish-locks-{secrets.token_hex(16)}"
        # The socket has no file, so no file can be left on the disk, and there are no file permissions. So the server checks the user of
        # each process that connects.
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen(128)
        threading.Thread(target=self._accept, name="pilotfish-locks", daemon=True).start()

    def proxy(self, lock: Any) -> Any:
        """Returns what pickle needs to create the lock in a slot."""
        number = next((number for number, known in enumerate(self._locks) if known is lock), len(self._locks))
        if number == len(self._locks):
            self._locks.append(lock)
        return SharedLock, (self.address, number)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                channel, _ = self._listener.accept()
            except OSError:
                return  # the server was closed
            _, user, _ = _PEER.unpack(channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if user == os.geteuid():
                threading.Thread(target=self._serve, args=[channel], name="pilotfish-lock", daemon=True).start()
            else:
                channel.close()

    def _serve(self, channel: socket.socket) -> None:
        """Acquires and releases one lock for one thread of a slot. Runs in its own thread, because a thread owns an RLock."""
        held = 0
        with channel, channel.makefile("rb") as requests:
            number = requests.read(NUMBER.size)
            if len(number) < NUMBER.size or NUMBER.unpack(number)[0] >= len(self._locks):
                return
            lock = self._locks[NUMBER.unpack(number)[0]]
            try:
                while len(request := requests.read(REQUEST.size)) == REQUEST.size:
                    operation, wait_s = REQUEST.unpack(request)
                    if operation == ACQUIRE:
                        answer = YES if _acquire(lock, wait_s) else NO
                        held += answer == YES
                    else:
                        answer = _release(lock)
                        held -= answer == YES
                    channel.sendall(answer)
            except OSError:
                pass  # the slot died
            finally:
                for _ in range(held):
                    _release(lock)


def _acquire(lock: Any, wait_s: float) -> bool:
    if wait_s < 0:
        return bool(lock.acquire())
    return bool(lock.acquire(True, wait_s) if wait_s else lock.acquire(False))


def _release(lock: Any) -> bytes:
    try:
        lock.release()
        return YES
    except (RuntimeError, ValueError, AssertionError):
        return NOT_HELD


class _LockPickler(FunctionPickler):
    find: Callable[[Any], Any]

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, _NOT_SHARED):
            raise TypeError(f"{value!r} would be copied, not shared")
        return self.find(value) if is_lock(value) or is_managed(value) else super().reducer_override(value)


def dump_with_locks(value: object, proxy: Callable[[Any], Any], slot_globals: str = "") -> bytes:
    """Pickles a value with locks. ``proxy``: a function that gets a lock, and returns what pickle needs to create the lock in a slot.
    ``slot_globals``: see ``FunctionPickler``."""
    file = io.BytesIO()
    pickler = _LockPickler(file, 5)
    pickler.find = proxy
    pickler.slot_globals = slot_globals
    pickler.dump(value)
    return file.getvalue()
