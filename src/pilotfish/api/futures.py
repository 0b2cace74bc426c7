"""Defines the futures of tasks and executables."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from concurrent.futures._base import FINISHED, PENDING, RUNNING
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from pilotfish.api.long_output import LongOutput, excerpt, whole
from pilotfish.applications.calls.future_arguments import FutureResult
from pilotfish.applications.calls.python_result import CallOutcome
from pilotfish.applications.executables.executable import Completed, FutureFile, completed_of, decode_ending
from pilotfish.applications.executables.executable_encoder import make_future_file
from pilotfish.errors import TaskFailed
from pilotfish.model.messages import EndedItem
from pilotfish.model.states import CANCELLED, DONE, FAILED, TASK_STATES
from pilotfish.model.task import DEPENDENCY, Usage
from pilotfish.portable.payload_format import Buffer

if TYPE_CHECKING:
    from pilotfish.api.run_futures import RunFutures

Value = TypeVar("Value")
CopyOutputs = Callable[[int, object, BaseException | None], BaseException | None]
"""A function that copies output files. It gets the index, the result and the error of a task, and returns the error for the future."""
_logger = logging.getLogger("concurrent.futures")


def root_cause(error: BaseException) -> BaseException:
    """Returns the first error in a chain of failed tasks. In such a chain, each task after the first failed because it needs the result of
    the task before it."""
    while isinstance(error, TaskFailed) and error.cause == DEPENDENCY and error.__cause__ is not None:
        error = error.__cause__
    return error


_looking = threading.RLock()
"""This lock is held while the condition of a future is stored, and while a future without a condition ends. It is reentrant: a finalizer or
a signal handler can interrupt a thread that holds the lock, and look at a future in this thread."""


class LazyCondition:
    """Creates the attribute ``_condition`` of a future when a thread looks at the future for the first time.

    A program can hold a million futures, but it waits for only a few of them. A condition needs 1.2 kB, three times as much as the rest of
    the future, and creating a condition takes longer than all other work on a result.
    """

    def __get__(self, future: Any, owner: type) -> threading.Condition:
        made = threading.Condition()
        with _looking:
            # From now on, Python finds the condition in the dictionary of the future, before this descriptor of the class.
            condition: threading.Condition = vars(future).setdefault("_condition", made)
        return condition


class TaskFuture(FutureResult, Future[Value]):
    """The future of one task. ``cancel`` returns False if the future has a result or an error, or if the master has already reported that
    the task runs.

    The future of a Python call can be an argument of another call of the same Run or Executor. There, the future stands for the result.
    """

    # The defaults are class attributes to save memory: there can be a million pending futures, and most of them keep the defaults.
    index: int = -1
    """Index of the task in its run. It is -1 if the arguments of the task could not be sent."""
    _stdout: bytes | LongOutput = b""
    _stderr: bytes | LongOutput = b""
    _ended: EndedItem | None = None
    destinations: dict[str, str] | None = None
    """Destinations of output files by name, as paths below the directory ``into`` of the run. Before the task has ended, these are the
    destinations that were given at submission. After that, these are the destinations of all files that the task left. None if no output
    file of the task is copied to a destination."""
    _is_executable = False
    _causes: Sequence[BaseException] = ()
    """Errors of tasks whose results this task needs. If this task cannot run because of them, its error has the first of them as cause."""
    _condition = LazyCondition()
    _state = PENDING
    _result = _exception = None

    def __init__(self, session: RunFutures) -> None:
        # ``super().__init__()`` is not called, because it creates a condition. A test compares the attributes with those of the standard
        # library.
        self._waiters = []
        self._done_callbacks: list[Callable[[Future[Value]], object]] = []
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

    @property
    def stdout(self) -> bytes:
        """The whole standard output of the task after its end, even if the output is long."""
        return whole(self._stdout)

    @property
    def stderr(self) -> bytes:
        """The whole standard error of the task after its end, even if the output is long."""
        return whole(self._stderr)

    def why(self) -> str:
        """Returns a text that explains why the task is in its state, like ``pilotfish why``."""
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
                raise  # the standard library logs the error
            except BaseException:
                # In a thread of the program, the program gets the error. In the client's thread, the error is only logged, because this
                # thread must continue with other results.
                if self._session.client.in_other_thread():
                    raise
                _logger.exception("exception calling callback for %r", future)

        super().add_done_callback(call)

    # The next three methods of the standard library need a condition even if no thread waits.

    def done(self) -> bool:
        return self._state not in (PENDING, RUNNING)

    def result(self, timeout: float | None = None) -> Value:
        if self._state == FINISHED and self._exception is None:
            value: Value = self._result  # type: ignore[assignment]
            return value
        return super().result(timeout)

    def set_result(self, result: Value) -> None:
        with _looking:
            # Waiting threads and callbacks exist only after a look at the future, which creates the condition.
            if self._state == PENDING and "_condition" not in vars(self):
                self._result = result
                self._state = FINISHED
                return
        super().set_result(result)

    # --- called by the session ----------------------------------------------------------------------------------------------------

    def began(self) -> None:
        """Marks the future as running."""
        if not self.running():
            try:
                self.set_running_or_notify_cancel()
            except InvalidStateError:
                pass  # the task ended or was cancelled at the same time

    def ended(self, item: EndedItem, payload: Buffer, copier: CopyOutputs | None = None) -> None:
        """Sets the result or the error of the task. ``copier``: a function that copies the output files. It is called first."""
        self._ended = item
        try:
            if item.state not in (DONE, FAILED):
                assert item.state == CANCELLED, TASK_STATES[item.state]
                if super().cancel():
                    self.set_running_or_notify_cancel()
                else:
                    self.set_exception(CancelledError(f"task {self.task_id} was cancelled while it ran"))
                return
            outcome = decode_ending(item, payload, self._is_executable, self._session.client.contents)
            value, error = outcome.value, outcome.error
            if outcome.stdout or outcome.stderr:
                self._keep_output(outcome)
            if copier is not None:
                left = completed_of(value, error)
                error = copier(self.index, value, error)
                self._name_files(left)
            if error is None:
                self.set_result(value)
            else:
                if self._causes and isinstance(error, TaskFailed) and error.cause == DEPENDENCY:
                    error.__cause__ = root_cause(self._causes[0])
                self.set_exception(error)
        except InvalidStateError:
            # The program cancelled the future before the end of the task was reported.
            if self.cancelled():
                self.set_running_or_notify_cancel()

    def _name_files(self, left: Completed | None) -> None:
        """Replaces the destinations that were given at submission by the destinations of all files that the task left."""
        outputs = self._session.outputs
        if left is not None and outputs is not None:
            places = {name: outputs.destinations.find(self.index, name) for name in left.files}
            self.destinations = {name: place[1] for name, place in places.items() if place is not None}

    def _keep_output(self, outcome: CallOutcome) -> None:
        keep, (out_file, error_file) = self._session.long_outputs.keep, outcome.files
        self._stdout, self._stderr = keep("stdout", outcome.stdout, out_file), keep("stderr", outcome.stderr, error_file)
        out, error = excerpt(self._stdout), excerpt(self._stderr)
        if not self._is_executable:
            self._session.show_output(out, error)
        if isinstance(outcome.error, TaskFailed) and isinstance(outcome.error.completed, Completed):
            outcome.error.completed = replace(outcome.error.completed, stdout=out, stderr=error)


class ExecutableFuture(TaskFuture[Completed]):
    """The future of an executable. Its result is a ``Completed``: exit status, output and files."""

    _is_executable = True
    keep: tuple[str, ...] = ()
    """Names and patterns of the files that the task keeps for later tasks. See ``file``."""

    def file(self, name: str) -> FutureFile:
        """Returns a ``FutureFile``, which stands for a file or directory that this task will create. Use the ``FutureFile`` in the
        ``inputs`` of later tasks. The later tasks wait for this task.

        ``name``: name of the file or directory. It must match a name or a pattern in the option ``keep`` of this task.
        """
        return make_future_file(self, name, self.keep, self.task_id)
