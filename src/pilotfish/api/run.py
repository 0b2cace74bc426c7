"""Implements Run, which submits calls and executables to a pool."""

from __future__ import annotations

import itertools
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, Unpack

from pilotfish.api.futures import ExecutableFuture, TaskFuture
from pilotfish.api.ordered_map import OrderedMap
from pilotfish.api.run_futures import RunFutures
from pilotfish.applications.executable_encoder import (
    ExecutableDefaults,
    ExecutableEncoder,
    ExecutableKeywords,
    kept_patterns,
    take_future_files,
)
from pilotfish.applications.python_call import PICKLE, CallEncoder, worker_payload, worker_spec
from pilotfish.applications.task_list import NO_NEEDS, TaskNeeds, read_cost
from pilotfish.applications.task_options import TaskKeywords, read_task_options
from pilotfish.client.pools import PoolHandle, ensure_pool
from pilotfish.client.run_options import RunKeywords, read_run_keywords
from pilotfish.client.session import state_of_run
from pilotfish.client.site_selection import read_selection
from pilotfish.errors import BadInput, PilotfishError
from pilotfish.model.task import RunOptions

Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")
DEFAULT_POOL = "default"


class Submitter(OrderedMap):
    """Submits calls as tasks with the same options: ``run.options(cores=2).submit(f, x)``."""

    def __init__(self, session: RunFutures, calls: CallEncoder, needs: TaskNeeds = NO_NEEDS) -> None:
        self._session = session
        self._calls = calls
        self._needs = needs

    def submit(self, fn: Callable[Arguments, Value], /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> TaskFuture[Value]:
        """Submits a call as a task. If the call cannot be pickled, raises the error immediately.

        A future cannot be an argument: pass ``future.result()``, or use ``options(after=[future])`` if only the order matters.
        """
        for value in itertools.chain(args, kwargs.values()):
            if isinstance(value, TaskFuture):
                raise BadInput(
                    f"submit: the future of task {value.task_id} was given as an argument",
                    "pass its .result(), or run.options(after=[future]).submit(…) if only the order matters",
                )
        spec, payload = self._calls.encode(fn, args, kwargs)
        future: TaskFuture[Value] = TaskFuture(self._session)
        return self._session.submit(future, spec, payload, self._needs)


class Run(Submitter):
    """A run. It is opened immediately. At the end of the ``with`` block, it is closed, and the program waits for its last task.

    The run belongs to the pool, not to this program. If an exception (or Ctrl-C) ends the block, the tasks continue, and
    ``pilotfish status`` shows them. ``sites``: sites that its tasks may use, such as ``"hpc"`` or ``["hpc:4", "local"]``; by default, all
    workers of the pool. ``max_failures``: the run is cancelled after this number of failed tasks. ``share``: name of its share, with an
    optional weight: ``"thesis:2"``. ``deadline``: finish time to aim for: ``"18:00"``, ``"2h"`` or a datetime. ``speculate``: slow tasks
    get a second copy on idle workers, and the first result counts. A Python call runs in the current directory of this program. If a node
    does not have that directory, the call runs in a directory of the worker.

    ``Run(uid=…)`` opens the run with this ``uid`` again, also in another program. The new object has ``status``, ``tasks``, ``why`` and
    ``cancel``. Until the run is closed, the new object can also submit more tasks. It has no futures of tasks that were submitted before:
    read their results with ``pilotfish results``. If no run has this ``uid``, a new run gets it.
    """

    def __init__(
        self,
        name: str = "",
        *,
        pool: str | PoolHandle = DEFAULT_POOL,
        sites: str | Sequence[str] = (),
        uid: str = "",
        **run_options: Unpack[RunKeywords],
    ) -> None:
        selection = read_selection(sites)
        place = ensure_pool(pool) if isinstance(pool, str) else pool
        options = RunOptions(
            name=name,
            command=shlex.join(sys.argv),
            cwd=os.getcwd(),
            sites=selection.names,
            **read_run_keywords(run_options, time.time()),
        )
        session = RunFutures(place, options, uid)
        selection.use(session.client.ask)
        super().__init__(session, CallEncoder(session.spec_number))
        self._executables = ExecutableEncoder(self._session.spec_number)
        self._workers: dict[Any, int] = {}
        self.defaults = ExecutableDefaults()
        """Default options for all executables of the run: ``run.defaults.inputs = ["model.dat"]``."""

    @property
    def id(self) -> int:
        return self._session.run

    @property
    def uid(self) -> str:
        return self._session.uid

    def __repr__(self) -> str:
        return f"<pilotfish.Run {self.id}: {self._session.unfinished} unfinished>"

    # --- tasks --------------------------------------------------------------------------------------------------------------------

    def options(
        self, *, after: Iterable[TaskFuture[Any]] = (), cost: float = 1.0, form: str = PICKLE, **task_options: Unpack[TaskKeywords]
    ) -> Submitter:
        """Returns a submitter for calls with these task options: cores, memory, time, gpus, resources, retries, priority, tags, name.

        ``after``: tasks to wait for. ``cost``: expected run time relative to other calls of the same function.
        """
        calls = CallEncoder(self._session.spec_number, read_task_options(task_options, "options"), form)
        return Submitter(self._session, calls, TaskNeeds(self._indices(after), cost=read_cost(cost)))

    def executable(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        after: Iterable[TaskFuture[Any]] = (),
        cost: float = 1.0,
        **options: Unpack[ExecutableKeywords],
    ) -> ExecutableFuture:
        """Submits an executable as a task. The result is a ``Completed``. ``cost``: expected run time relative to the other tasks.

        If the task has inputs or outputs, it runs in a private directory. Otherwise it runs in the current directory of this program, on
        nodes that have this directory. With ``sandbox=True`` it runs in a private directory in all cases. A file that another task keeps
        (``keep=``) may be an input before the file exists: ``inputs=[other.file("mesh.bin")]``.
        """
        kept = kept_patterns(options, self.defaults)
        future_files = take_future_files(options, lambda task: self._indices([task], "inputs")[0])
        spec, payload, contents = self._executables.encode(argv, options, self.defaults, future_files)
        needs = TaskNeeds(self._indices(after), contents, read_cost(cost), future_files)
        future = ExecutableFuture(self._session)
        if kept:
            future.keep = kept
        return self._session.submit(future, spec, payload, needs, shlex.join(map(os.fsdecode, argv)))

    def work(
        self, worker: Callable[[], Any], parameters: Any, *, after: Iterable[TaskFuture[Any]] = (), **task_options: Unpack[TaskKeywords]
    ) -> TaskFuture[Any]:
        """Submits one call of ``do_work(parameters)`` of an ApplicationWorker. Each slot keeps one worker object."""
        key = worker, repr(task_options)
        spec = self._workers.get(key)
        if spec is None:
            spec = self._workers[key] = self._session.spec_number(*worker_spec(worker, read_task_options(task_options, "work")))
        future: TaskFuture[Any] = TaskFuture(self._session)
        return self._session.submit(future, spec, worker_payload(parameters), TaskNeeds(self._indices(after)))

    def _indices(self, futures: Iterable[TaskFuture[Any]], field: str = "after") -> tuple[int, ...]:
        if isinstance(futures, TaskFuture):
            raise BadInput(f"{field}: one future was given, not a list", f"write {field}=[future]")
        indices = []
        for future in futures:
            if not isinstance(future, TaskFuture) or future._session is not self._session:
                raise BadInput(
                    f"{field}: {future!r} is not a task of this run", "give futures that this run's submit or executable returned"
                )
            if future.index < 0:
                raise BadInput(f"{field}: that task was not sent", "see its exception()")
            indices.append(future.index)
        return tuple(indices)

    # --- the run as a whole -------------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Cancels all unfinished tasks."""
        self._session.client.ask("cancel", run=self.id)

    def status(self) -> dict[str, Any]:
        """Returns the row of the run, as in ``pilotfish status --json``."""
        row: dict[str, Any] = self._session.client.ask("run", run=self.id)
        return {**row, "state": state_of_run(row)}

    def tasks(self, state: str | None = None) -> Iterator[dict[str, Any]]:
        """Returns the rows of all tasks, or of the tasks in one ``state``, as in ``pilotfish tasks --json``."""
        return self._session.tasks(state)

    def why(self) -> str:
        """Returns the reason for the state of the run, as text."""
        return self._session.why(run=self.id)

    def close(self, wait: bool = True) -> None:
        """Declares that no more tasks will come. With ``wait``, returns after the end of the last task."""
        self._session.finish()
        if wait:
            self._session.wait()

    def detach(self) -> None:
        """Disconnects from the run. The pool has recorded all submitted tasks and continues them without this program."""
        self._session.detach()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        unfinished = self._session.unfinished
        try:
            self.detach()
        except PilotfishError:
            return  # the user sees the exception that ended the block
        if unfinished and sys.stderr is not None:
            print(f"run {self.id} continues with {unfinished} unfinished tasks; see: pilotfish status", file=sys.stderr)
