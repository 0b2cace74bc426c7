"""Defines ApplicationManager and ApplicationWorker.

A manager runs beside the master and creates tasks; workers execute them in the slots. The manager has its own thread and is never
called from two threads at once. Its new tasks are recorded together with the fact that it has handled the finished ones. After a crash
of its process or of the master, it therefore sees no task twice and loses none that it created.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pilotfish.applications.executable import decode_ending
from pilotfish.model.messages import EndedItem
from pilotfish.model.states import CANCELLED, TASK_STATES
from pilotfish.model.task import Usage
from pilotfish.portable.payload_format import Buffer, PayloadFormatError, unpack

if TYPE_CHECKING:
    from pilotfish.applications.task_list import TaskList


class TaskDone(Struct, frozen=True):
    """A task that ended. ``state``: done, failed or cancelled; ``value``: its return value (of an executable: Completed)."""

    index: int
    state: str
    value: Any
    error: BaseException | None
    usage: Usage


class ApplicationManager:
    """Base class of managers; override the methods that you need. ``tasks`` adds tasks and may be kept and used at any time."""

    worker: Callable[[], ApplicationWorker] | None = None
    """The ApplicationWorker whose ``do_work`` executes ``tasks.work(parameters)``."""

    def initialize(self, tasks: TaskList) -> None:
        """Called once per run: add the first tasks here."""

    def resume(self, done: Sequence[TaskDone]) -> None:
        """Called instead of ``initialize`` after a restart of the manager's process, with the tasks that were processed before.

        Rebuild the state in memory here. Without an override, the old results are not read.
        """

    def tasks_done(self, done: Sequence[TaskDone], tasks: TaskList) -> None:
        """Called when tasks have ended. Add more tasks, or process results in a thread pool with ``tasks.post``."""

    def has_more_work(self) -> bool:
        """Called when all tasks have ended. Return True to keep the run open for tasks of another thread."""
        return False

    def finalize(self) -> None:
        """Called after the last task, before the run is closed."""


class ApplicationWorker:
    """Base class of workers. Each slot that executes tasks of the application has one object."""

    def initialize(self) -> None:
        """Called once, before the first task of this slot."""

    def do_work(self, parameters: Any) -> Any:
        """Executes one task; the return value must be picklable."""
        raise NotImplementedError(f"{type(self).__name__}.do_work")

    def finalize(self) -> None:
        """Called when the slot ends normally."""


def _is_executable(payload: Buffer) -> bool:
    """Tests whether a result comes from an executable: its report has an exit status."""
    try:
        return b'"exit"' in bytes(unpack(payload)[0])
    except (PayloadFormatError, IndexError):
        return False


def read_ending(item: EndedItem, payload: Buffer, kept: Path | None = None) -> TaskDone:
    """Decodes the result of a task of any kind. ``kept``: directory where the pool keeps large outputs."""
    value: Any = None
    error: BaseException | None = None
    if item.state != CANCELLED:
        value, error, _, _ = decode_ending(item, payload, _is_executable(payload), kept)
    return TaskDone(item.index, TASK_STATES[item.state], value, error, Usage(item.wall_us, item.cpu_us, item.rss_kib))
