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
    """A task that ended: ``state`` is done, failed or cancelled; ``value`` what it returned (an executable: Completed)."""

    index: int
    state: str
    value: Any
    error: BaseException | None
    usage: Usage


class ApplicationManager:
    """Derive from this and override what is needed. ``tasks`` adds tasks; it may be kept and used at any time."""

    worker: Callable[[], ApplicationWorker] | None = None
    """The ApplicationWorker whose ``do_work`` does what ``tasks.work(parameters)`` asks for."""

    def initialize(self, tasks: TaskList) -> None:
        """Called once in the life of the run: make the first tasks."""

    def resume(self, done: Sequence[TaskDone]) -> None:
        """Called instead of ``initialize`` when the manager's process was started again: what had been dealt with before.

        Rebuild here what was only in memory. Leave it out if there is nothing, and the old results are not even read.
        """

    def tasks_done(self, done: Sequence[TaskDone], tasks: TaskList) -> None:
        """Some tasks ended. Make more, or let ``tasks.post`` work on the results in a thread pool."""

    def has_more_work(self) -> bool:
        """Asked when all tasks have ended: True keeps the run open, for tasks that come from elsewhere."""
        return False

    def finalize(self) -> None:
        """Called after the last task, before the run is closed."""


class ApplicationWorker:
    """Derive from this. One object lives in each slot that does tasks of the application."""

    def initialize(self) -> None:
        """Called once, before the first task of this slot."""

    def do_work(self, parameters: Any) -> Any:
        """Do one task; what it returns must be picklable."""
        raise NotImplementedError(f"{type(self).__name__}.do_work")

    def finalize(self) -> None:
        """Called when the slot ends in good order."""


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
