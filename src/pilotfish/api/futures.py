"""Defines the futures of tasks and executables."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import TYPE_CHECKING, TypeVar

from pilotfish.applications.executable import Completed, FutureFile, decode_ending
from pilotfish.applications.executable_encoder import make_future_file
from pilotfish.model.messages import EndedItem
from pilotfish.model.states import CANCELLED, DONE, FAILED, TASK_STATES
from pilotfish.model.task import Usage

if TYPE_CHECKING:
    from pilotfish.api.run_futures import RunFutures

Value = TypeVar("Value")
_logger = logging.getLogger("concurrent.futures")


class TaskFuture(Future[Value]):
    """The future of one task. ``cancel`` succeeds until this program knows that the task runs."""

    # The defaults are class attributes to save memory: there may be a million pending futures, and most never change them.
    index: int = -1
    """Index of the task in its run. It is -1 if the arguments of the task could not be sent."""
    stdout: bytes = b""
    stderr: bytes = b""
    _ended: EndedItem | None = None
    _is_executable = False

    def __init__(self, session: RunFutures) -> None:
        super().__init__()
        self._session = session

    @property
    def task_id(self) -> str:
        """The task id, as on the command line: ``run.index``."""
        return f"{self._session.run}.{self.index}"

    @property
    def usage(self) -> Usage | None:
        """Time and memory that the task used. None until the task has ended."""
        ended = self._ended
        return None if ended is None else Usage(ended.wall_us, ended.cpu_us, ended.rss_kib)

    def why(self) -> str:
        """Returns the reason for the state of the task, as text."""
        return self._session.why(task=self.task_id)

    def cancel(self) -> bool:
        if not super().cancel():
            return False
        self._session.report_cancelled(self)
        return True

    def add_done_callback(self, fn: Callable[[Future[Value]], object]) -> None:
        def call(future: Future[Value]) -> None:
            try:
                fn(future)
            except Exception:
                raise  # the standard library logs it
            except BaseException:
                # In a thread of the program, the program handles the error. The thread of the client must continue with other results.
                if self._session.client.in_other_thread():
                    raise
                _logger.exception("exception calling callback for %r", future)

        super().add_done_callback(call)

    # --- called by the session ----------------------------------------------------------------------------------------------------

    def began(self) -> None:
        """Marks the future as running."""
        if not self.running():
            try:
                self.set_running_or_notify_cancel()
            except InvalidStateError:
                pass  # the task ended or was cancelled at the same time

    def ended(self, item: EndedItem, payload: memoryview) -> None:
        """Sets the result or error that the master reports."""
        self._ended = item
        try:
            if item.state not in (DONE, FAILED):
                assert item.state == CANCELLED, TASK_STATES[item.state]
                if super().cancel():
                    self.set_running_or_notify_cancel()
                else:
                    self.set_exception(CancelledError(f"task {self.task_id} was cancelled while it ran"))
                return
            value, error, stdout, stderr = decode_ending(item, payload, self._is_executable, self._session.client.contents)
            if stdout or stderr:
                self.stdout, self.stderr = stdout, stderr
                if not self._is_executable:
                    self._session.show_output(stdout, stderr)
            if error is None:
                self.set_result(value)
            else:
                self.set_exception(error)
        except InvalidStateError:
            # The program cancelled the future before the end of the task was reported.
            if self.cancelled():
                self.set_running_or_notify_cancel()


class ExecutableFuture(TaskFuture[Completed]):
    """The future of an executable. Its result is a ``Completed``."""

    _is_executable = True
    keep: tuple[str, ...] = ()
    """Names and patterns of the files that the task keeps for later tasks. See ``file``."""

    def file(self, name: str) -> FutureFile:
        """Returns a file or directory that the task will keep, for the ``inputs`` of later tasks. These tasks wait for the file.

        The name must be in ``keep`` of this task.
        """
        return make_future_file(self, name, self.keep, self.task_id)
