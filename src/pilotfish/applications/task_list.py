"""Collects the tasks of a run before they are sent."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Unpack

from pilotfish.applications.calls.future_arguments import FutureArguments, FutureFound, FutureResult
from pilotfish.applications.calls.python_call import CallEncoder, worker_payload, worker_spec
from pilotfish.applications.destinations import check_destinations
from pilotfish.applications.executables.executable import FutureFile
from pilotfish.applications.executables.executable_encoder import (
    ExecutableDefaults,
    ExecutableEncoder,
    ExecutableKeywords,
    kept_patterns,
    make_future_file,
    take_future_files,
)
from pilotfish.applications.reuse.result_reuse import ResultReuse
from pilotfish.applications.reuse.task_keys import ProgramFiles
from pilotfish.applications.task_needs import NO_NEEDS, TaskNeeds, read_cost
from pilotfish.applications.task_options import TASK_KEYWORDS, TaskOptions, read_task_options
from pilotfish.errors import BadInput
from pilotfish.model.task import TaskSpec
from pilotfish.portable.payload_format import join_pieces

Post = Callable[..., None]
LIST_NAMES = ("after", "after_any", "cost")
"""Options of ``TaskList.add`` in addition to ExecutableKeywords."""


class TaskEntry(NamedTuple):
    """A task in a TaskList. ``spec`` is an index in the ``specs`` of the list."""

    spec: int
    payload: bytes
    needs: TaskNeeds = NO_NEEDS


class ListedResult(FutureResult):
    """Stands for the result of a listed call in the arguments of a later call of the same list."""

    def __init__(self, maker: int) -> None:
        self.maker = maker

    def __repr__(self) -> str:
        return f"<result of task {self.maker}>"


def _maker_of(found: FutureResult) -> int:
    if isinstance(found, ListedResult):
        return found.maker
    raise BadInput(f"{found!r} is no result of this list", "write tasks.result(index)")


class TaskList:
    """Tasks of one run. The first task that is added has the index 0. Several threads can use the list at the same time."""

    def __init__(self, first: int = 0, worker: Any = None, changed: Callable[[], None] | None = None, post: Post | None = None) -> None:
        self.defaults = ExecutableDefaults()
        """Default options of all executables: ``tasks.defaults.outputs = ["out.dat"]``."""
        self.specs: list[tuple[TaskSpec, bytes]] = []
        self._entries: list[TaskEntry] = []
        self._next = first
        self._worker = worker
        self._changed = changed
        self._post = post
        self._lock = threading.RLock()
        self._worker_specs: dict[str, int] = {}
        self._calls: dict[str, CallEncoder] = {}
        self._records: dict[int, bytes] = {}
        self._reuse = ResultReuse(self._records, resume=True)
        self._register = self._reuse.register(self._add_spec)
        self._executables = ExecutableEncoder(self._register, LIST_NAMES)
        self.has_outputs = False
        """Whether an executable has output files to copy back."""
        self.has_undirected_files = False
        """Whether an executable has output files without a destination."""
        self._destinations: dict[int, dict[str, str]] = {}
        self._kept: dict[int, tuple[str, ...]] = {}
        """Names and patterns of the files that executables keep for other tasks, by the index of the executable."""
        self.descriptions: dict[int, tuple[str, str]] = {}
        """Maps the index of a task to the command line and label that listings show. Tasks whose listings show what they execute are left
        out."""
        self.cancelled: dict[int, None] = {}
        """Indices of the tasks to cancel."""

    def __len__(self) -> int:
        return self._next

    def add(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        after: Iterable[int] = (),
        after_any: Iterable[int] = (),
        cost: float = 1.0,
        **options: Unpack[ExecutableKeywords],
    ) -> int:
        """Adds an executable and returns its index, for ``after`` and ``after_any`` of later tasks.

        ``after``: indices of tasks that must succeed before this task starts. ``after_any``: indices of tasks that must have ended, with
        any result, before this task starts. ``cost``: duration relative to the other tasks.
        """
        with self._lock:
            kept = kept_patterns(options, self.defaults)
            destinations = check_destinations(options.get("outputs", ()))
            future_files = take_future_files(options, self._index_of)
            spec, payload, contents = self._executables.encode(argv, options, self.defaults, future_files)
            needs = TaskNeeds(tuple(after), contents, read_cost(cost), future_files, tuple(after_any))
            self._check_order(needs)
            words = [os.fsdecode(word) for word in argv]
            index = self._append(spec, payload, self._reuse.executable(needs, spec, words, payload, bool(options.get("inputs"))))
            if options.get("outputs") or self.defaults.outputs:
                self._note_outputs(index, destinations)
            if kept:
                self._kept[index] = kept
            return index

    def _note_outputs(self, index: int, destinations: dict[str, str]) -> None:
        if destinations:
            self._destinations[index] = destinations
        self.has_outputs = True
        self.has_undirected_files = self.has_undirected_files or not destinations or bool(self.defaults.outputs)

    @property
    def count(self) -> int:
        return self._next

    def destinations(self) -> dict[int, dict[str, str]]:
        """Returns the destinations of outputs by the index of the task and the name of the output."""
        return self._destinations

    def _index_of(self, task: object) -> int:
        if isinstance(task, int):
            return task
        raise BadInput(f"inputs: {task!r} is no task of this list", "name it by its index: tasks.file(0, 'model.dat')")

    def file(self, task: int, name: str) -> FutureFile:
        """Returns a value that stands for a file or directory. Use it in the ``inputs`` of later tasks, which then wait for the file.
        ``task``: index of the task that keeps the file."""
        return make_future_file(task, name, self._kept.get(task, ()), str(task))

    def result(self, task: int) -> ListedResult:
        """Returns a value that stands for the result of an earlier call. Use the value in the arguments of later calls, which then wait for
        the result.

        The value can be anywhere in the arguments: ``tasks.call(combine, [tasks.result(i) for i in parts])``.
        """
        if isinstance(task, bool) or not isinstance(task, int) or not 0 <= task < self._next:
            raise BadInput(f"result: {task!r} is not the index of an earlier task", f"indices so far go from 0 to {self._next - 1}")
        return ListedResult(task)

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> int:
        """Adds a Python call and returns its index. The arguments can contain results of earlier calls (see ``result``)."""
        with self._lock:
            key = self.defaults.key()
            calls = self._calls.get(key)
            if calls is None:
                calls = self._calls[key] = CallEncoder(self._register, self._default_task_options(), reuses_results=True)
            try:
                number, payload = calls.encode(function, args, kwargs)
                found, needs = None, NO_NEEDS
            except FutureFound:
                found = FutureArguments(_maker_of)
                number, payload = calls.encode(function, args, kwargs, found)
                needs = TaskNeeds(future_files=found.needed)
            return self._append(number, join_pieces(payload), self._reuse.call((function, args, kwargs), needs, number, found))

    def work(self, parameters: Any, *, after: Iterable[int] = (), cost: float = 1.0) -> int:
        """Adds one call of ``do_work(parameters)`` of the application's worker object."""
        if self._worker is None:
            raise BadInput("work: this application has no worker", "set worker = YourApplicationWorker in the manager's class")
        with self._lock:
            key = self.defaults.key()
            number = self._worker_specs.get(key)
            if number is None:
                number = self._worker_specs[key] = self._register(*worker_spec(self._worker, self._default_task_options()))
            needs = TaskNeeds(tuple(after), cost=read_cost(cost))
            self._check_order(needs)
            try:
                return self._append(number, worker_payload(parameters), needs)
            except FutureFound:
                found = FutureArguments(_maker_of)
                payload = worker_payload(parameters, found)
                return self._append(number, payload, needs._replace(future_files=found.needed))

    def post(self, function: Callable[..., object], /, *args: Any) -> None:
        """Calls a function in the manager's thread pool.

        The method ``tasks_done`` of the manager can use ``post`` to process ended tasks. These tasks count as processed only when the
        function has returned.
        """
        if self._post is None:
            raise BadInput("post: there is no thread pool here", "only a manager has one")
        self._post(function, *args)

    def describe(self, index: int, command: str, label: str) -> None:
        """Gives a task the command line and the label that listings show."""
        self.descriptions[index] = command, label

    def cancel(self, indices: Iterable[int]) -> None:
        """Cancels tasks that were added before the current callback of the manager. Ignores tasks that this callback adds, and tasks that
        have ended."""
        if self._post is None:
            raise BadInput("cancel: the run has not started", "only a manager can cancel tasks: leave them out")
        self.cancelled.update(dict.fromkeys(indices))

    def take(self, resume: bool = False) -> list[TaskEntry]:
        """Returns the tasks that were added since the last call of ``take``. ``resume``: whether these tasks can get earlier results."""
        with self._lock:
            entries, self._entries = self._entries, []
        return entries if resume else [entry._replace(needs=entry.needs._replace(reuse=False)) for entry in entries]

    def take_programs(self) -> dict[bytes, ProgramFiles]:
        """Returns the programs of the executables that were added since the last call of ``take_programs``."""
        return self._reuse.take_programs()

    def _add_spec(self, spec: TaskSpec, code: bytes) -> int:
        self.specs.append((spec, code))
        return len(self.specs) - 1

    def _check_order(self, needs: TaskNeeds) -> None:
        for other in (*needs.after, *needs.after_any, *(file.maker for file in needs.future_files)):
            if isinstance(other, bool) or not isinstance(other, int) or not 0 <= other < self._next:
                raise BadInput(f"after: {other!r} is not the index of an earlier task", f"indices so far go from 0 to {self._next - 1}")

    def _append(self, spec: int, payload: bytes, needs: TaskNeeds = NO_NEEDS) -> int:
        index = self._next
        if needs.key:
            self._records[index] = needs.key
        self._entries.append(TaskEntry(spec, payload, needs))
        self._next = index + 1
        if self._changed is not None:
            self._changed()
        return index

    def _default_task_options(self) -> TaskOptions:
        return read_task_options({name: value for name, value in self.defaults.copy().items() if name in TASK_KEYWORDS}, "defaults")
