"""Implements concurrent.futures.Executor on a private or shared pool."""

from __future__ import annotations

import concurrent.futures
import logging
import os
import pickle
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar, Unpack

from pilotfish.api.futures import TaskFuture
from pilotfish.api.ordered_map import OrderedMap
from pilotfish.api.run_futures import FutureType, RunFutures, interpreter_exits
from pilotfish.applications.python_call import CallEncoder
from pilotfish.applications.task_list import NO_NEEDS, TaskNeeds
from pilotfish.applications.task_options import TaskKeywords, read_task_options
from pilotfish.client.pools import ensure_pool, private_pool
from pilotfish.errors import BadInput, PilotfishError
from pilotfish.model.messages import EndedItem
from pilotfish.model.task import RunOptions
from pilotfish.portable.payload_format import PackedPayload

log = logging.getLogger("concurrent.futures")
Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")
CANNOT_SEND = (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError, BadInput)
"""Errors that pickling may raise if a call cannot be sent."""


class ExecutorBroken(PilotfishError, concurrent.futures.BrokenExecutor):
    """The executor cannot run tasks any more."""

    code = "P4101"


class LeftBehind(PilotfishError):
    """Processes or files of a private pool still exist after its end."""

    code = "P4102"


def initialized(function: Callable[..., Any], initializer: Callable[..., Any], initargs: tuple[Any, ...], token: str) -> Callable[..., Any]:
    """Wraps a function, so that the initializer runs once per process. The wrapper is sent as code, because slots lack this package."""

    def run_initialized(*args: Any, **kwargs: Any) -> Any:
        import sys
        from concurrent.futures import BrokenExecutor

        done = sys.__dict__.setdefault("_pilotfish_initialized", {})
        if token not in done:
            try:
                initializer(*initargs)
                done[token] = None
            except BaseException as error:  # noqa: BLE001 (user code may raise anything)
                done[token] = f"the initializer failed: {type(error).__name__}: {error}"
        if done[token] is not None:
            raise BrokenExecutor(done[token])
        return function(*args, **kwargs)

    run_initialized.__name__ = getattr(function, "__name__", "call")
    run_initialized.__qualname__ = getattr(function, "__qualname__", run_initialized.__name__)
    return run_initialized


class _ExecutorSession(RunFutures):
    """A session that becomes unusable if the initializer fails, because all later tasks would fail too."""

    broken: ExecutorBroken | None = None

    def submit(self, future: FutureType, spec: int, payload: PackedPayload, needs: TaskNeeds = NO_NEEDS, command: str = "") -> FutureType:
        future.add_done_callback(self._check_initializer)
        return super().submit(future, spec, payload, needs, command)

    def ended(self, items: list[EndedItem], body: memoryview) -> None:
        super().ended(items, body)
        if self.broken is not None and self.failure is None:
            self.lost(self.broken)

    def _check_initializer(self, future: concurrent.futures.Future[Any]) -> None:
        if future.cancelled() or self.broken is not None:
            return
        error = future.exception()
        if type(error) is concurrent.futures.BrokenExecutor:
            log.critical("Exception in initializer: %s", error)
            self.broken = ExecutorBroken(str(error), "fix the initializer")


class Executor(OrderedMap, concurrent.futures.Executor):
    """Runs calls on a private pool of ``max_workers`` cores that ends with the executor, or in the pool named by ``pool``.

    ``pool`` and ``max_workers`` exclude each other: a named pool uses the cores of this machine that its ``local_cores`` allows.
    At the end of the ``with`` block, LeftBehind is raised if processes or files of the private pool still exist. Task options (cores,
    memory, time, retries …) apply to every task.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        pool: str | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        echo: bool = True,
        **task_options: Unpack[TaskKeywords],
    ) -> None:
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        if pool is not None and max_workers is not None:
            raise BadInput(
                f"max_workers: {max_workers!r} means a pool of its own, but pool={pool!r} was given too",
                "leave out one of them; local_cores in config.toml is the number of cores of this machine that a shared pool uses",
            )
        self._workers = max_workers or len(os.sched_getaffinity(0))
        self._pool = pool
        self._initializer = initializer, initargs
        self._echo = echo
        self._options = read_task_options(task_options, "Executor")
        self._lock = threading.Lock()
        self._is_shut_down = False
        self._owner = os.getpid()
        self._session: RunFutures | None = None
        self._calls: CallEncoder | None = None

    def _start(self) -> RunFutures:
        """Opens the session at the first task."""
        with self._lock:
            self._check_usable()
            if self._session is None:
                pool = ensure_pool(self._pool) if self._pool is not None else private_pool(self._workers)
                options = RunOptions(name="executor", command="pilotfish.Executor", cwd=os.getcwd(), owned=True)
                private_cores = self._workers if self._pool is None else 0
                kind = RunFutures if self._initializer[0] is None else _ExecutorSession
                session = kind(pool, options, private_cores=private_cores, echo=self._echo)
                self._calls = self._make_encoder(session)
                # The session does not refer to the executor. So an executor that the program forgets is collected, and its session ends.
                weakref.finalize(self, session.finish, True).atexit = False
                self._session = session
            return self._session

    def _make_encoder(self, session: RunFutures) -> CallEncoder:
        initializer, initargs = self._initializer
        if initializer is None:
            return CallEncoder(session.spec_number, self._options)
        wrap = partial(initialized, initializer=initializer, initargs=initargs, token=session.uid)
        return CallEncoder(session.spec_number, self._options, wrap=wrap)

    def submit(self, fn: Callable[Arguments, Value], /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> TaskFuture[Value]:
        session = self._session or self._start()
        if self._is_shut_down or session.failure is not None:
            self._check_usable()
        future: TaskFuture[Value] = TaskFuture(session)
        assert self._calls is not None
        try:
            spec, payload = self._calls.encode(fn, args, kwargs)
        except CANNOT_SEND as error:
            # As in the standard library, the future gets the error, so that a loop that submits tasks continues.
            future.set_exception(error)
            return future
        return session.submit(future, spec, payload)

    def _check_usable(self) -> None:
        """Raises an error if no task can be submitted."""
        if self._is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if interpreter_exits.is_set():
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")
        if self._session is not None and self._session.failure is not None:
            failure = self._session.failure
            raise ExecutorBroken(str(failure), failure.hint) from failure

    @property
    def _broken(self) -> bool:
        # Some libraries read this private attribute of the executors of the standard library.
        return self._session is not None and self._session.failure is not None

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Declares that no more tasks will come. With ``wait``, returns after the end of the last task and of the private pool."""
        if self._owner != os.getpid():
            return
        with self._lock:
            self._is_shut_down = True
            session = self._session
        if session is None:
            return
        if cancel_futures:
            session.cancel_pending()
        session.finish(forget=True)
        if wait:
            session.wait()
            if session.leftovers:
                raise LeftBehind("the pool ended, but left behind: " + "; ".join(session.leftovers), "remove it with: pilotfish gc")
