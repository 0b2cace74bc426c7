"""Collects the tasks of a run before they are sent."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Unpack

from pilotfish.applications.executable import FutureFile
from pilotfish.applications.executable_encoder import (
    ExecutableDefaults,
    ExecutableEncoder,
    ExecutableKeywords,
    kept_patterns,
    make_future_file,
    take_future_files,
)
from pilotfish.applications.python_call import CallEncoder, worker_payload, worker_spec
from pilotfish.applications.task_options import TASK_KEYWORDS, TaskOptions, read_task_options
from pilotfish.errors import BadInput
from pilotfish.model.contents import Content, ExpectedFile
from pilotfish.model.task import MAX_COST, MIN_COST, TaskSpec
from pilotfish.portable.payload_format import join_pieces

Post = Callable[..., None]


class TaskNeeds(NamedTuple):
    """Conditions for the start of a task. ``after``: indices of earlier tasks. ``contents``: contents needed beside those of its spec."""

    after: Sequence[int] = ()
    contents: tuple[Content, ...] = ()
    cost: float = 1.0
    """Expected duration relative to the other tasks of its task class."""
    future_files: tuple[ExpectedFile, ...] = ()
    """Files that earlier tasks of the run will produce."""


def read_cost(cost: float) -> float:
    if isinstance(cost, bool) or not isinstance(cost, int | float) or not MIN_COST <= cost <= MAX_COST:
        raise BadInput(
            f"cost: {cost!r} is not a number from {MIN_COST:g} to {MAX_COST:g}", "write its run time relative to the other tasks"
        )
    return float(cost)


NO_NEEDS = TaskNeeds()


class TaskEntry(NamedTuple):
    """A task in a TaskList. ``spec`` is an index in the ``specs`` of the list."""

    spec: int
    payload: bytes
    needs: TaskNeeds = NO_NEEDS


class TaskList:
    """Tasks of one run, numbered in the order in which they are added. Any thread may use it."""

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
        self._executables = ExecutableEncoder(self._register)
        self._calls: dict[str, CallEncoder] = {}
        self.has_outputs = False
        """Whether an executable has output files to copy back."""
        self._kept: dict[int, tuple[str, ...]] = {}
        """Names and patterns of the files that executables keep for other tasks, by the index of the executable."""

    def __len__(self) -> int:
        return self._next

    def add(
        self, argv: Sequence[str | os.PathLike[str]], *, after: Iterable[int] = (), cost: float = 1.0, **options: Unpack[ExecutableKeywords]
    ) -> int:
        """Adds an executable and returns its index, for ``after`` of later tasks. ``cost``: duration relative to the other tasks."""
        with self._lock:
            kept = kept_patterns(options, self.defaults)
            future_files = take_future_files(options, self._index_of)
            spec, payload, contents = self._executables.encode(argv, options, self.defaults, future_files)
            index = self._append(spec, payload, TaskNeeds(tuple(after), contents, read_cost(cost), future_files))
            self.has_outputs = self.has_outputs or bool(options.get("outputs") or self.defaults.outputs)
            if kept:
                self._kept[index] = kept
            return index

    def _index_of(self, task: object) -> int:
        if isinstance(task, int):
            return task
        raise BadInput(f"inputs: {task!r} is no task of this list", "name it by its index: tasks.file(0, 'model.dat')")

    def file(self, task: int, name: str) -> FutureFile:
        """Returns a kept file or directory that the task will produce, for the ``inputs`` of later tasks. Those tasks wait for it."""
        return make_future_file(task, name, self._kept.get(task, ()), str(task))

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> int:
        """Adds a Python call."""
        with self._lock:
            key = self.defaults.key()
            calls = self._calls.get(key)
            if calls is None:
                calls = self._calls[key] = CallEncoder(self._register, self._default_task_options())
            number, payload = calls.encode(function, args, kwargs)
            return self._append(number, join_pieces(payload))

    def work(self, parameters: Any, *, after: Iterable[int] = (), cost: float = 1.0) -> int:
        """Adds one call of ``do_work(parameters)`` of the application's worker object."""
        if self._worker is None:
            raise BadInput("work: this application has no worker", "set worker = YourApplicationWorker in the manager's class")
        with self._lock:
            key = self.defaults.key()
            number = self._worker_specs.get(key)
            if number is None:
                number = self._worker_specs[key] = self._register(*worker_spec(self._worker, self._default_task_options()))
            return self._append(number, worker_payload(parameters), TaskNeeds(tuple(after), cost=read_cost(cost)))

    def post(self, function: Callable[..., object], /, *args: Any) -> None:
        """Calls a function in the manager's thread pool. The ended tasks count as processed only when the function has returned."""
        if self._post is None:
            raise BadInput("post: there is no thread pool here", "only a manager has one")
        self._post(function, *args)

    def take(self) -> list[TaskEntry]:
        """Returns the tasks that were added since the last call of ``take``."""
        with self._lock:
            entries, self._entries = self._entries, []
            return entries

    def _register(self, spec: TaskSpec, code: bytes) -> int:
        self.specs.append((spec, code))
        return len(self.specs) - 1

    def _append(self, spec: int, payload: bytes, needs: TaskNeeds = NO_NEEDS) -> int:
        index = self._next
        for other in (*needs.after, *(file.maker for file in needs.future_files)):
            if isinstance(other, bool) or not isinstance(other, int) or not 0 <= other < index:
                raise BadInput(f"after: {other!r} is not the index of an earlier task", f"indices so far go from 0 to {index - 1}")
        self._entries.append(TaskEntry(spec, payload, needs))
        self._next = index + 1
        if self._changed is not None:
            self._changed()
        return index

    def _default_task_options(self) -> TaskOptions:
        return read_task_options({name: value for name, value in self.defaults.copy().items() if name in TASK_KEYWORDS}, "defaults")
