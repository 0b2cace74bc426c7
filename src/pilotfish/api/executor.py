"""Implements concurrent.futures.Executor on a private or shared pool."""

from __future__ import annotations

import concurrent.futures
import logging
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar, Unpack

from pilotfish.api.dataflow import submit_call
from pilotfish.api.futures import TaskFuture
from pilotfish.api.initializer import Initializer
from pilotfish.api.ordered_map import OrderedMap
from pilotfish.api.run_futures import FutureType, RunFutures, interpreter_exits
from pilotfish.applications.calls.python_call import PICKLE, CallEncoder
from pilotfish.applications.executables.executable import Inputs, pack_inputs
from pilotfish.applications.executables.working_directory import require_current_directory
from pilotfish.applications.reuse.result_reuse import ResultReuse
from pilotfish.applications.task_needs import NO_NEEDS, TaskNeeds
from pilotfish.applications.task_options import TaskKeywords, read_flag, read_task_options
from pilotfish.client.descriptions.site_selection import read_selection
from pilotfish.client.pools import ensure_pool, private_pool, selected_pool
from pilotfish.errors import BadInput, PilotfishError
from pilotfish.model.messages import EndedItem
from pilotfish.model.site import LOCAL
from pilotfish.model.task import RunOptions
from pilotfish.portable.payload_format import PackedPayload

log = logging.getLogger("concurrent.futures")
Value = TypeVar("Value")
EXECUTOR_NAMES = ("max_workers", "sites", "pool", "initializer", "initargs", "echo", "cache", "inputs")
"""Options of ``Executor`` in addition to the task options."""
CANNOT_SEND = (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError, BadInput)
"""Errors that mean that a call cannot be sent, usually because it cannot be pickled."""


class ExecutorBroken(PilotfishError, concurrent.futures.BrokenExecutor):
    """The executor cannot run tasks any more."""

    code = "P4101"


class LeftBehind(PilotfishError):
    """Processes or files of a private pool still exist after its end."""

    code = "P4102"


class _ExecutorSession(RunFutures):
    """The session of an executor with an initializer. If the initializer fails, all unfinished tasks fail too."""

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


class ExecutorKeywords(TaskKeywords, total=False):
    """Keyword arguments of ``Executor``, in addition to the task options."""

    cache: bool
    sites: str | Sequence[str]


class Executor(OrderedMap, concurrent.futures.Executor):
    """Runs calls in a private pool, which ends with the executor. With ``pool`` or ``sites``, runs the calls in a pool of the user instead.

    - ``max_workers``: number of cores of the private pool; by default, all cores that this program is allowed to use. You cannot combine
      ``max_workers`` with ``pool`` or ``sites``. For a pool of yours, set ``local_cores`` in ``config.toml`` to limit the cores of this
      machine.
    - ``pool``: name of a pool. ``sites``: sites that the tasks may use, as in ``Run``. If you give ``sites`` without ``pool``, the pool is
      ``$PILOTFISH_POOL``, or ``default`` if this variable is not set.
    - ``initializer(*initargs)``: a function that each slot calls once, before its first task of this executor. In a private pool,
      ``initargs`` can contain locks and semaphores of ``multiprocessing`` and ``threading``. This program and the slots share them.
    - ``echo``: whether to print what the tasks write to standard output and standard error.
    - ``cache``: whether a call gets the result of an equal call of any run of the pool; see ``Run.options``. ``cache`` needs ``pool`` or
      ``sites``. With ``cache``, the pool keeps the results of this executor until you delete the run of the executor with ``pilotfish
      forget``.
    - ``inputs``: files and directories that each call gets. They are read once, when the executor is created. With ``inputs``, each call
      runs in a sandbox: a fresh directory that has the inputs under their names.
    - Task options (cores, memory, time, retries …) apply to every task. If the private pool can never meet these options, ``submit``
      raises NoSuitableWorker.

    If Ctrl-C ends the ``with`` block, the unfinished calls of a private pool are cancelled at once, also the running calls. The private
    pool ends with the ``with`` block. If processes or files of the pool still exist after that, LeftBehind is raised.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        pool: str | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        echo: bool = True,
        inputs: Inputs = (),
        **options: Unpack[ExecutorKeywords],
    ) -> None:
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        sites = options.pop("sites", ())
        self._sites = read_selection(sites)
        self._pool = selected_pool() if pool is None and sites else pool
        if self._pool is not None and max_workers is not None:
            other = f"sites={sites!r}" if pool is None else f"pool={pool!r}"
            raise BadInput(
                f"max_workers: {max_workers!r} means a pool of its own, but {other} was given too",
                "leave out one of them; local_cores in config.toml is the number of cores of this machine that a shared pool uses",
            )
        cache = read_flag(options.pop("cache", False), "cache")
        if cache and self._pool is None:
            raise BadInput("cache: the results of a private pool end with the executor", 'name a pool that keeps them: pool="default"')
        self._workers = max_workers or len(os.sched_getaffinity(0))
        self._initializer = initializer, initargs
        self._echo = echo
        self._inputs = pack_inputs(inputs)
        self._cache = cache
        self._reuse: ResultReuse | None = None
        self._options = read_task_options(options, "Executor", EXECUTOR_NAMES)
        self._lock = threading.Lock()
        self._is_shut_down = False
        self._owner = os.getpid()
        self._session: RunFutures | None = None
        self._calls: CallEncoder | None = None

    def _start(self) -> RunFutures:
        """Returns the session. Opens it at the first call."""
        with self._lock:
            self._check_usable()
            if self._session is None:
                directory = require_current_directory()
                pool = ensure_pool(self._pool) if self._pool is not None else private_pool(self._workers)
                keeps, sites = self._cache, self._sites.names
                options = RunOptions(name="executor", command="pilotfish.Executor", cwd=directory, owned=not keeps, sites=sites)
                private_cores = self._workers if self._pool is None else 0
                kind = RunFutures if self._initializer[0] is None else _ExecutorSession
                session = kind(pool, options, private_cores=private_cores, echo=self._echo)
                try:
                    self._sites.use(session.client.ask)
                except PilotfishError:
                    session.finish(forget=True)
                    raise
                if self._cache:
                    around = self._initializer if self._initializer[0] is not None else None
                    self._reuse = ResultReuse(session.records, around=around).for_calls(self._inputs, cache=True)
                self._calls = self._make_encoder(session)
                # The session does not refer to the executor. So Python deletes the executor when the program no longer uses it, and this
                # ends the session.
                weakref.finalize(self, session.finish, not keeps).atexit = False
                self._session = session
            return self._session

    def _make_encoder(self, session: RunFutures) -> CallEncoder:
        initializer, initargs = self._initializer
        register = session.spec_number if self._reuse is None else self._reuse.register(session.spec_number)
        if initializer is None:
            calls = CallEncoder(register, self._options, inputs=self._inputs, reuses_results=self._cache)
        else:
            made = Initializer(initializer, initargs, session.uid, serves_locks=self._pool is None)
            weakref.finalize(session, made.close)
            calls = CallEncoder(register, self._options, PICKLE, made.dump, self._inputs, self._cache)
            calls.slot_globals = made.slot_globals
        calls.inherits = self._pool is not None
        return calls

    def submit(self, fn: Callable[..., Value], /, *args: Any, **kwargs: Any) -> TaskFuture[Value]:
        session = self._session or self._start()
        if self._is_shut_down or session.failure is not None:
            self._check_usable()
        future: TaskFuture[Value] = TaskFuture(session)
        assert self._calls is not None
        try:
            return submit_call(session, future, self._calls, (fn, args, kwargs), reuse=self._reuse)
        except CANNOT_SEND as error:
            # As in the standard library, the future gets the error: a loop that submits many tasks is not interrupted.
            future.set_exception(error)
            return future

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
    def _max_workers(self) -> int:
        """Returns the number of cores. Some libraries read this private attribute of the executors of the standard library."""
        if self._pool is None:
            return self._workers
        session = self._session or self._start()
        status = session.client.ask("status")
        local = int(status["local_cores"]) if LOCAL in session.sites or not session.sites else 0
        if not session.sites:
            return max(1, int(status["cores"]), local)
        workers = [row for row in session.client.ask("workers") if row["connected"] and row["site"] in session.sites]
        return max(1, int(sum(row["capacity"]["cores"] for row in workers)), local)

    @property
    def _broken(self) -> bool:
        # Some libraries read this private attribute of the executors of the standard library.
        return self._session is not None and self._session.failure is not None

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Closes the executor: no more tasks can be submitted. With ``wait``, returns when the last task has ended and, if the pool is
        private, the pool has ended, too. Without ``wait``, returns at once, and the remaining tasks continue.

        ``cancel_futures``: whether to cancel the tasks that do not run yet.
        """
        if self._owner != os.getpid():
            return
        with self._lock:
            self._is_shut_down = True
            session = self._session
        if session is None:
            return
        if cancel_futures:
            session.cancel_pending()
        session.finish(forget=not self._cache)
        if wait:
            session.wait()
            if session.leftovers:
                raise LeftBehind("the pool ended, but left behind: " + "; ".join(session.leftovers), "remove it with: pilotfish gc")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self._abandon()
        try:
            self.shutdown(wait=True)
        except KeyboardInterrupt:
            self._abandon()
            self.shutdown(wait=True)
            raise

    def _abandon(self) -> None:
        """After Ctrl-C, cancels the calls of a private pool, because no program can read their results any more."""
        if self._pool is None and self._owner == os.getpid() and self._session is not None:
            self._session.abandon()
