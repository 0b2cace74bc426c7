"""Defines ApplicationManager and ApplicationWorker.

A manager runs beside the master and creates tasks. Worker objects execute the tasks in the slots. The manager has its own thread and is
never called from two threads at once.

When the manager has processed ended tasks, the master records two things in one step: that these tasks are processed, and the new tasks
that the manager created. If the manager's process or the master crashes, the manager later continues after the last recorded step. No task
of a recorded step is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pilotfish.applications.executables.executable import decode_ending
from pilotfish.model.messages import EndedItem
from pilotfish.model.states import CANCELLED, TASK_STATES
from pilotfish.model.task import Usage
from pilotfish.portable.payload_format import Buffer, PayloadFormatError, unpack

if TYPE_CHECKING:
    from pilotfish.applications.task_list import TaskList


class TaskDone(Struct, frozen=True):
    """A task that ended. ``state``: done, failed or cancelled. ``value``: the return value of a call, or the Completed of an executable."""

    index: int
    state: str
    value: Any
    error: BaseException | None
    usage: Usage


class ApplicationManager:
    """Base class of managers. Override methods as needed. Add tasks to the argument ``tasks``. You can keep this object and add tasks to it
    at any time."""

    worker: Callable[[], ApplicationWorker] | None = None
    """Class of the worker objects. Their method ``do_work`` executes ``tasks.work(parameters)``."""

    def initialize(self, tasks: TaskList) -> None:
        """Pilotfish calls this method once per run. Add the first tasks here."""

    def resume(self, done: Sequence[TaskDone]) -> None:
        """After a restart of the manager's process, Pilotfish calls this method instead of ``initialize``. ``done``: tasks that were
        processed before the restart. If there are many such tasks, Pilotfish calls the method several times. If there are none, ``done``
        is empty.

        Rebuild the state in memory here. If you do not override this method, the results of these tasks are not read.
        """

    def tasks_done(self, done: Sequence[TaskDone], tasks: TaskList) -> None:
        """Pilotfish calls this method when tasks have ended. Add tasks here, or process results in a thread pool with ``tasks.post``."""

    def has_more_work(self) -> bool:
        """Pilotfish calls this method when all tasks have ended. Return True to keep the run open if another thread will add tasks."""
        return False

    def finalize(self) -> None:
        """Pilotfish calls this method after the last task has ended, before the run is closed."""


class ApplicationWorker:
    """Base class of worker objects. Each slot that executes tasks of the application has one worker object."""

    def initialize(self) -> None:
        """Pilotfish calls this method once, before the first task of this slot."""

    def do_work(self, parameters: Any) -> Any:
        """Executes one task. The return value must be picklable."""
        raise NotImplementedError(f"{type(self).__name__}.do_work")

    def finalize(self) -> None:
        """Pilotfish calls this method when the slot ends normally."""


def _is_executable(payload: Buffer) -> bool:
    """Tests whether a result comes from an executable. Only the report of an executable has an exit status."""
    try:
        return b'"exit"' in bytes(unpack(payload)[0])
    except (PayloadFormatError, IndexError):
        return False


def read_ending(item: EndedItem, payload: Buffer, kept: Path | None = None) -> TaskDone:
    """Decodes the result of an ended task of any kind. ``kept``: directory where the pool keeps large outputs."""
    value: Any = None
    error: BaseException | None = None
    if item.state != CANCELLED:
        value, error, *_ = decode_ending(item, payload, _is_executable(payload), kept)
    return TaskDone(item.index, TASK_STATES[item.state], value, error, Usage(item.wall_us, item.cpu_us, item.rss_kib))
