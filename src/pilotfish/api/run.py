"""Implements Run, which submits calls and executables to a pool."""

from __future__ import annotations

import os
import shlex
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar, Unpack

from pilotfish.api.dataflow import submit_call, submit_with_futures
from pilotfish.api.found_run import FoundRun, find_run, results_of
from pilotfish.api.futures import ExecutableFuture, TaskFuture
from pilotfish.api.ordered_map import OrderedMap
from pilotfish.api.output_copier import OutputCopier
from pilotfish.api.run_futures import RunFutures
from pilotfish.applications.calls.future_arguments import FutureFound
from pilotfish.applications.calls.python_call import PICKLE, CallEncoder, WorkerEncoder, worker_payload
from pilotfish.applications.destinations import check_destinations, output_directory
from pilotfish.applications.executables.executable import Inputs, pack_inputs
from pilotfish.applications.executables.executable_encoder import (
    ExecutableDefaults,
    ExecutableEncoder,
    ExecutableKeywords,
    kept_patterns,
    take_future_files,
)
from pilotfish.applications.executables.working_directory import require_current_directory
from pilotfish.applications.reuse.result_reuse import ResultReuse
from pilotfish.applications.task_needs import NO_NEEDS, TaskNeeds, read_cost
from pilotfish.applications.task_options import TaskKeywords, read_flag, read_task_options
from pilotfish.client.descriptions.run_options import RunKeywords, check_run_name, check_run_text, read_run_keywords
from pilotfish.client.descriptions.site_selection import read_selection
from pilotfish.client.outputs.output_destinations import OutputDestinations
from pilotfish.client.pools import PoolHandle, ensure_pool, selected_pool
from pilotfish.client.reuse.program_register import ProgramRegister
from pilotfish.client.session import state_of_run
from pilotfish.errors import BadInput, PilotfishError
from pilotfish.model.task import RunOptions

Value = TypeVar("Value")
RUN_NAMES = ("name", "pool", "sites", "uid", "into", "overwrite")
"""Options of ``Run`` in addition to RunKeywords."""
CALL_NAMES = ("after", "cost", "form", "cache", "inputs")
"""Options of ``Run.options`` in addition to the task options."""


def _warn_of_unfinished(session: RunFutures, options: RunOptions) -> None:
    """Warns if an earlier run of the same program has unfinished tasks. The results of these tasks cannot be reused yet."""
    for row in session.client.ask("runs"):
        is_same = (row["name"], row["command"], row["cwd"]) == (options.name, options.command, options.cwd)
        unfinished = row["tasks"] - sum(row["counts"].get(state, 0) for state in ("done", "failed", "cancelled"))
        if is_same and row["run"] != session.run and unfinished > 0:
            tasks = f"{unfinished:,} unfinished task{'s' * (unfinished > 1)}"
            text = f"run {row['run']} of the same program has {tasks}; equal tasks of this run are executed again. "
            pool = session.pool.name
            found = f"Run.find({row['run']}{f', pool={pool!r}' if pool != selected_pool() else ''})"
            warnings.warn(f"{text}To wait for that run: list({found}.results())", stacklevel=3)


def _command_line(argv: Sequence[str]) -> str:
    """Returns the command that started this program, as a user can type it. Adds the word ``python``, which ``argv`` does not contain."""
    return shlex.join(["python", *argv] if argv[0].endswith(".py") else argv)


class Submitter(OrderedMap):
    """Submits calls as tasks with the same options: ``run.options(cores=2).submit(f, x)``."""

    _cancels_rest = False

    def __init__(self, session: RunFutures, calls: CallEncoder, reuse: ResultReuse, needs: TaskNeeds = NO_NEEDS) -> None:
        self._session = session
        self._calls = calls
        self._needs = needs
        self._reuse = reuse

    def submit(self, fn: Callable[..., Value], /, *args: Any, **kwargs: Any) -> TaskFuture[Value]:
        """Submits a call as a task. If the call cannot be pickled, raises the error immediately.

        A future in the arguments stands for its result, also inside of lists, dicts and other objects. The call waits for this result. If
        only the order of the tasks matters, use ``options(after=[future])``.
        """
        future: TaskFuture[Value] = TaskFuture(self._session)
        reuse = self._reuse if self._reuse.is_wanted else None
        return submit_call(self._session, future, self._calls, (fn, args, kwargs), self._needs, reuse)


class Run(Submitter):
    """A run of a pool. ``Run(…)`` opens the run. The end of the ``with`` block closes the run and waits for its last task.

    The run belongs to the pool, not to this program. If an exception or Ctrl-C ends the block, the tasks continue, and ``pilotfish status``
    shows the run.

    - ``pool``: name of the pool; by default, ``$PILOTFISH_POOL``, or ``default`` if this variable is not set.
    - ``sites``: sites that the tasks may use, such as ``"hpc"`` or ``["hpc:4", "local"]``; by default, all workers of the pool. In
      ``"hpc:4"``, 4 is the number of pilots; in ``"local:4"``, 4 is the number of cores.
    - ``max_failures``: the run is cancelled after this number of failed tasks. If a task fails, the tasks that need its result cannot run;
      these tasks are not counted.
    - ``share``: name of the share of the run, with an optional weight, such as ``"thesis:2"``.
    - ``deadline``: time at which the run should be finished: ``"18:00"``, ``"2h"`` or a datetime.
    - ``into``: directory for output files of executables. An output file with a destination, such as ``outputs={"frame.png":
      "frames/1.png"}``, is copied to this destination below ``into``. Any other output file is copied to ``INDEX/NAME`` below ``into``:
      INDEX is the index of the task, and NAME is the name of the file. Without ``into``, only output files with a destination are copied,
      below the current directory. The future of a task is done only after the files of the task have been copied.
    - ``overwrite``: whether to replace files that exist at the destinations.
    - ``speculate``: whether slow tasks get a second copy on an idle worker. The first result counts.
    - ``resume``: whether each task gets the result of an equal task that succeeded in an earlier run. To reuse results only for some calls,
      use the option ``cache`` of ``options`` instead.

    A Python call without ``inputs`` runs in the current directory of this program. On a node without that directory, the call runs in a
    directory of the worker.

    ``Run.find(…)`` finds an existing run, also in a later program. The found run has ``results`` and ``futures``.

    ``Run(uid=…)`` opens the run with this ``uid`` again, also in another program. Until the run is closed, the new object can submit more
    tasks. If no run has this ``uid``, a new run with this ``uid`` is opened.
    """

    def __init__(
        self,
        name: str = "",
        *,
        pool: str | PoolHandle | None = None,
        sites: str | Sequence[str] = (),
        uid: str = "",
        into: str | os.PathLike[str] = "",
        overwrite: bool = False,
        **run_options: Unpack[RunKeywords],
    ) -> None:
        check_run_name(name, "name=")
        check_run_text(uid, "uid=")
        selection = read_selection(sites)
        directory = require_current_directory()
        resume = read_flag(run_options.pop("resume", False), "resume")
        options = RunOptions(
            name=name,
            command=_command_line(sys.argv),
            cwd=directory,
            sites=selection.names,
            resume=resume,
            **read_run_keywords(run_options, time.time(), RUN_NAMES),
        )
        pool = selected_pool() if pool is None else pool
        session = RunFutures(ensure_pool(pool) if isinstance(pool, str) else pool, options, uid)
        selection.use(session.client.ask)
        if resume:
            _warn_of_unfinished(session, options)
        base = output_directory(into or ".")
        resumes = str(session.client.directory) if resume else ""
        self._use(session, OutputDestinations(base, base if into else "", overwrite, resumes=resumes), resume)

    def _use(self, session: RunFutures, destinations: OutputDestinations, resume: bool = False) -> None:
        self._outputs = session.outputs = OutputCopier(session.client.directory, destinations)
        reuse = ResultReuse(session.records, resume)
        self._register = reuse.register(session.spec_number)
        super().__init__(session, CallEncoder(self._register, reuses_results=resume), reuse)
        self._executables = ExecutableEncoder(self._register)
        self._workers = WorkerEncoder(self._session.spec_number)
        self.defaults = ExecutableDefaults()
        """Default options for all executables of the run: ``run.defaults.inputs = ["model.dat"]``."""

    @classmethod
    def find(cls, wanted: int | str, *, pool: str | PoolHandle | None = None) -> Run:
        """Finds a run by its number, name or uid, also in a later program. If several runs have the name, ``find`` returns the newest run.

        You cannot submit tasks to a found run. You can use its ``results``, ``futures``, ``status``, ``tasks``, ``why`` and ``cancel``. If
        the pool was stopped, ``find`` does not resume the pool. You can read the results of ended tasks nevertheless.
        """
        found = cls.__new__(cls)
        session = find_run(wanted, selected_pool() if pool is None else pool)
        found._use(session, OutputDestinations(os.getcwd(), "", False))
        weakref.finalize(found, session.detach).atexit = False
        return found

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
        self,
        *,
        after: Iterable[TaskFuture[Any]] = (),
        cost: float = 1.0,
        form: str = PICKLE,
        cache: bool = False,
        inputs: Inputs = (),
        **task_options: Unpack[TaskKeywords],
    ) -> Submitter:
        """Returns an object that submits calls with these task options, such as ``cores``, ``memory`` or ``time``.

        ``after``: futures of tasks to wait for. ``cost``: expected run time relative to other calls of the same function. ``inputs``: files
        and directories that each call gets. ``options`` reads these files at once, so later changes of the files have no effect. A call
        with ``inputs`` runs in a sandbox: a fresh directory that has the inputs under their names, and that is deleted after the call.
        ``form="source"`` sends functions as source text, so that workers with a different version of Python can run them.

        ``cache``: whether a call gets the result of an equal call of any run of the pool. Two calls are equal if they have the same code,
        arguments, inputs, versions of packages and current directory.
        """
        packed = pack_inputs(inputs)
        wanted = read_task_options(task_options, "options", CALL_NAMES)
        reuse = self._reuse.for_calls(packed, read_flag(cache, "cache"))
        register = reuse.register(self._session.spec_number)
        calls = CallEncoder(register, wanted, form, inputs=packed, reuses_results=reuse.is_wanted)
        needs = TaskNeeds(self._indices(after), cost=read_cost(cost))
        return Submitter(self._session, calls, reuse, needs)

    def executable(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        after: Iterable[TaskFuture[Any]] = (),
        cost: float = 1.0,
        **options: Unpack[ExecutableKeywords],
    ) -> ExecutableFuture:
        """Submits an executable as a task. The result is a ``Completed``. ``cost``: expected run time relative to the other tasks.

        If the task has ``inputs``, ``outputs``, ``keep`` or ``sandbox=True``, it runs in a sandbox. Any other task runs in the current
        directory of this program, on nodes that have this directory. An input can be a file that another task will create and keep
        (``keep=``): ``inputs=[other.file("mesh.bin")]``.
        """
        kept = kept_patterns(options, self.defaults)
        destinations = check_destinations(options.get("outputs", ()))
        future_files = take_future_files(options, lambda task: self._indices([task], "inputs")[0])
        spec, payload, contents = self._executables.encode(argv, options, self.defaults, future_files)
        needs = TaskNeeds(self._indices(after), contents, read_cost(cost), future_files)
        future = ExecutableFuture(self._session)
        if kept:
            future.keep = kept
        if destinations or (self._outputs.destinations.into and (options.get("outputs") or self.defaults.outputs)):
            self._outputs.check(destinations)
            future.destinations = destinations
        words = list(map(os.fsdecode, argv))
        if self._reuse.resume:
            needs = self._reuse.executable(needs, spec, words, payload, bool(options.get("inputs")))
            ProgramRegister(self._session.client.directory, self.id).add(self._reuse.take_programs())
        return self._session.submit(future, spec, payload, needs, shlex.join(words))

    def work(
        self, worker: Callable[[], Any], parameters: Any, *, after: Iterable[TaskFuture[Any]] = (), **task_options: Unpack[TaskKeywords]
    ) -> TaskFuture[Any]:
        """Submits a call of ``worker().do_work(parameters)``. ``worker`` is an ApplicationWorker class; each slot creates one object."""
        spec = self._workers.number(worker, task_options)
        future: TaskFuture[Any] = TaskFuture(self._session)
        needs = TaskNeeds(self._indices(after))
        try:
            return self._session.submit(future, spec, worker_payload(parameters), needs)
        except FutureFound:
            return submit_with_futures(self._session, future, lambda found: (spec, worker_payload(parameters, found)), needs)

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
        self._session.ask("cancel", run=self.id)

    def status(self) -> dict[str, Any]:
        """Returns a dict with the state of the run and the numbers of its tasks, as in ``pilotfish status --json``."""
        row: dict[str, Any] = self._session.ask("run", run=self.id)
        return {**row, "state": state_of_run(row)}

    def tasks(self, state: str | None = None) -> Iterator[dict[str, Any]]:
        """Yields one dict per task, as in ``pilotfish tasks --json``. With ``state``, yields only tasks in this state."""
        return self._session.tasks(state)

    def futures(self) -> list[TaskFuture[Any]]:
        """Returns the futures of all tasks that the run has now, in the order of the tasks. These include tasks that other programs
        submitted."""
        return self._reader().futures()

    def results(self, return_exceptions: bool = False) -> Iterator[Any]:
        """Yields the results of all tasks that the run has now, in the order of the tasks. Waits for unfinished tasks.

        If a task failed or was cancelled, the iterator raises the error of the task and ends. With ``return_exceptions``, it yields the
        error and continues.
        """
        return results_of(self._reader(), return_exceptions)

    def _reader(self) -> FoundRun:
        self._session.ask("run", run=self.id)  # when the answer arrives, the master has all tasks that were submitted before
        return FoundRun(self._session.pool, self.uid)

    def why(self) -> str:
        """Returns a text that explains why the run is in its state, like ``pilotfish why``."""
        return self._session.why(run=self.id)

    def close(self, wait: bool = True) -> None:
        """Closes the run: it gets no more tasks. With ``wait``, returns when the last task has ended."""
        self._session.finish()
        if wait:
            self._session.wait()

    def detach(self) -> None:
        """Closes the run and disconnects from it. The pool continues all submitted tasks without this program."""
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
            tasks = f"{unfinished:,} unfinished {'task' if unfinished == 1 else 'tasks'}"
            pool = self._session.pool.name
            option = f" --pool {shlex.quote(pool)}" if pool != selected_pool() else ""
            print(f"run {self.id} continues with {tasks}; see: pilotfish status{option}", file=sys.stderr)
