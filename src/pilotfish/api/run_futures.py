"""Connects the futures of one run to the client.

Each future refers to its ``RunFutures``. So the ``RunFutures`` still exists if a program keeps a future but not the Executor or Run.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, InvalidStateError
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from pilotfish.api.futures import TaskFuture
from pilotfish.api.long_output import OutputKeeper
from pilotfish.api.output_copier import OutputCopier
from pilotfish.api.worker_check import WorkerCheck, fixes
from pilotfish.applications.executables.executable import completed_of
from pilotfish.applications.task_needs import NO_NEEDS, TaskNeeds
from pilotfish.client.descriptions.task_descriptions import TaskDescription, TaskRegister, described_rows
from pilotfish.client.pools import PoolHandle
from pilotfish.client.session import PoolSession, all_tasks, forget_run
from pilotfish.client.submission import Submission
from pilotfish.errors import ConnectionFailed, PilotfishError
from pilotfish.model.messages import EndedItem
from pilotfish.model.task import RunOptions, TaskSpec
from pilotfish.portable.payload_format import PackedPayload
from pilotfish.portable.payload_reference import resolve

FutureType = TypeVar("FutureType", bound=TaskFuture[Any])

PYTHON_FOUND_S = 5.0
"""When a worker with the Python of the calls was found, the master is not asked again for this many seconds."""

_sessions: weakref.WeakSet[RunFutures] = weakref.WeakSet()


class RunFutures:
    """The futures of one run. ``private_cores``: number of cores of a private pool, which ends with the run; 0 for any other pool."""

    def __init__(self, pool: PoolHandle, options: RunOptions, uid: str = "", private_cores: int = 0, echo: bool = False) -> None:
        self.pool = pool
        self._private_cores = private_cores
        self._echo = echo
        self._owner = os.getpid()
        self._futures: dict[int, TaskFuture[Any]] = {}
        self._draining = False
        self._forget_when_done = False
        self._ending = False
        self._end_lock = threading.Lock()
        self._finished = threading.Event()
        self.leftovers: list[str] = []
        self.failure: PilotfishError | None = None
        self.client = PoolSession.connect(pool.directory, pool.revive)
        self.client.on_end = self._at_end
        try:
            self._submission = self._open(options, uid)
        except PilotfishError:
            self.client.close()
            raise
        self.run = self._submission.run
        self.uid = self._submission.uid
        self.sites = self._submission.options.sites
        """Sites that the run is allowed to use; empty means all."""
        self.long_outputs = OutputKeeper(self.client.directory, self.owned)
        self._worker_check = WorkerCheck(self, private_cores)
        self._check_python_at: dict[str, float] = {}
        """Maps a version of Python that a worker has to a time. Before this time, the master is not asked about this version."""
        self._register = TaskRegister(self.client.directory, self.run)
        self.outputs: OutputCopier | None = None
        self.records: dict[int, bytes] = {}
        """Maps the index of each task whose result can be reused to the record of the task. See ``applications/reuse``."""
        _sessions.add(self)

    def _open(self, options: RunOptions, uid: str) -> Submission:
        return self.client.begin(options, uid, self)

    @property
    def unfinished(self) -> int:
        return len(self._futures)

    # --- tasks --------------------------------------------------------------------------------------------------------------------

    def spec_number(self, spec: TaskSpec, code: bytes) -> int:
        """Returns the number of a spec in the run. Raises BadInput if the spec needs a version of Python that no worker and no site of the
        pool has."""
        # The Python of a site is known only after its first worker has joined. So the master is asked for each new spec until a worker has
        # the version. The question comes before the submission: a refused submission would end the run for this program. The client's
        # thread cannot ask, so it takes this risk.
        may_ask = spec.python and not self._private_cores and self.client.in_other_thread()
        if may_ask and time.monotonic() >= self._check_python_at.get(spec.python, 0.0):
            if self.client.ask("check_python", run=self.run, python=spec.python).get("found"):
                self._check_python_at[spec.python] = time.monotonic() + PYTHON_FOUND_S
        number = self.client.spec_number(self._submission, spec, code)
        self._worker_check.add(number, spec)
        return number

    def submit(self, future: FutureType, spec: int, payload: PackedPayload, needs: TaskNeeds = NO_NEEDS, command: str = "") -> FutureType:
        """Submits a task. ``command``: command line of an executable, for listings."""

        def enter(index: int) -> None:
            future.index = index
            self._futures[index] = future
            if needs.key:
                self.records[index] = needs.key
            if future.destinations is not None and self.outputs is not None:
                self.outputs.add(self.run, index, future.destinations)
            if command:
                self._register.note(index, TaskDescription(command))

        if self.failure is not None and self.client.failure is None:
            text = f"run {self.run} accepts no more tasks of this program, because earlier tasks were refused: {self.failure}"
            raise type(self.failure)(text, self.failure.hint)
        if future.destinations is not None and self.outputs is not None:
            self.outputs.open(self.run)  # before the task is added: if this fails, the task must not run
        self.client.submit(self._submission, spec, payload, enter, needs)
        if command:
            self._register.flush_if_due()
        self._worker_check.submitted(spec, future)
        return future

    @property
    def owned(self) -> bool:
        """Returns whether the run belongs to this program. In this case, the pool deletes each result that this program has received."""
        return self._submission.options.owned

    def using_results(self) -> AbstractContextManager[None]:
        """Makes the pool keep all results that arrive during a ``with`` block, so that tasks submitted in the block can use them."""
        return self.client.using_results(self._submission)

    def report_cancelled(self, future: TaskFuture[Any]) -> None:
        """Reports a cancelled future to the master and to the threads that wait for the future. A second call does nothing."""
        if self._futures.pop(future.index, None) is not None:
            future.set_running_or_notify_cancel()
            self.cancel_tasks([future.index])
            self._end_if_drained()

    def cancel_tasks(self, indices: Iterable[int]) -> None:
        if self.client.failure is None:
            self.client.request("cancel", tasks=[f"{self.run}.{index}" for index in indices])

    def cancel_pending(self) -> None:
        """Cancels the futures whose tasks do not run yet, as far as this program knows.

        In a private pool, the oldest unfinished futures (one per core) are skipped, because their tasks possibly run already.
        """
        cancelled = []
        for future in list(self._futures.values())[self._private_cores :]:
            if super(TaskFuture, future).cancel() and self._futures.pop(future.index, None) is not None:
                future.set_running_or_notify_cancel()
                cancelled.append(future.index)
        if cancelled:
            self.cancel_tasks(cancelled)
            self._end_if_drained()

    # --- questions ----------------------------------------------------------------------------------------------------------------

    @contextmanager
    def questions(self) -> Iterator[PoolSession]:
        """Provides a session for questions about the run: the session of the run or, if it has ended, a new session."""
        if not self.client.is_closed:
            yield self.client
            return
        if self._private_cores:
            raise ConnectionFailed("the private pool of this executor has ended", "ask before the end of its with block")
        # A stopped pool stays stopped: its master answers, but starts no tasks.
        client = PoolSession.connect(self.pool.directory, self.pool.start)
        try:
            yield client
        finally:
            client.close(wait=False)

    def ask(self, kind: str, **arguments: Any) -> Any:
        """Asks the master, also after the session of the run has ended."""
        was_closed = self.client.is_closed
        try:
            with self.questions() as client:
                return client.ask(kind, **arguments)
        except ConnectionFailed:
            if was_closed or not self.client.is_closed:
                raise
        return self.ask(kind, **arguments)  # the session ended at the same time

    def why(self, **target: Any) -> str:
        answer = self.ask("why", **target)
        sentence, texts = answer["sentence"], [reason["text"] for reason in answer.get("reasons", ())]
        return "\n".join([sentence, *(text for text in texts if text not in sentence), *fixes(answer, self.pool.name)])

    def tasks(self, state: str | None) -> Iterator[dict[str, Any]]:
        """Yields one dict per task of the run, with the description of the task. With ``state``, yields only tasks in this state."""
        self._register.flush()
        row = self.ask("run", run=self.run)

        def rows() -> Iterator[dict[str, Any]]:
            with self.questions() as client:
                yield from described_rows(client, row, all_tasks(client, self.run, state))

        return rows()

    def show_output(self, stdout: bytes, stderr: bytes) -> None:
        """Prints the output of a task, as if the task had run in this program."""
        if self._echo:
            for stream, data in ((sys.stdout, stdout), (sys.stderr, stderr)):
                if data and stream is not None:
                    try:
                        stream.write(data.decode(errors="replace"))
                        stream.flush()
                    except (OSError, ValueError):
                        pass  # the stream is closed or broken; the future still has the output

    # --- called by the client -----------------------------------------------------------------------------------------------------

    def ended(self, items: list[EndedItem], body: memoryview) -> None:
        start, futures = 0, self._futures
        for item in items:
            end = start + item.length
            future = futures.pop(item.index, None)
            if future is not None and future.destinations is not None and self.outputs is not None:
                payload = bytes(resolve(self.client.share, body[start:end]))
                self.outputs.put(partial(future.ended, item, payload, self._copy_outputs))
            elif future is not None:
                future.ended(item, resolve(self.client.share, body[start:end]))
            start = end
        self._register.flush_if_due()
        self._end_if_drained()

    def _copy_outputs(self, index: int, value: object, error: BaseException | None) -> BaseException | None:
        """Copies the output files of a task that succeeded or failed. Returns the error for its future."""
        left = completed_of(value, error)
        if left is None or self.outputs is None:
            return error
        problem = self.outputs.copy(index, left, error is not None)
        if error is not None and problem is not None:
            error.add_note(str(problem))
        return error or problem

    def began(self, indices: list[int]) -> None:
        for index in indices:
            future = self._futures.get(index)
            if future is not None:
                future.began()

    def finished(self, counts: dict[str, int]) -> None:
        self._finished.set()
        if self._draining:
            self._disconnect()

    def _disconnect(self) -> None:
        """Disconnects from a shared pool after the run has finished."""
        if self._first_to_end():
            if self._forget_when_done:
                self.client.request("forget", run=self.run)
            self.client.close(wait=False)

    def lost(self, error: PilotfishError) -> None:
        if self._futures or not self._draining:
            self.failure = self.failure or error
        while self._futures:
            try:
                _, future = self._futures.popitem()
            except KeyError:
                break
            if not future.done():
                future.set_exception(error)
        self._finished.set()

    # --- the end ------------------------------------------------------------------------------------------------------------------

    def finish(self, forget: bool = False) -> None:
        """Declares that no more tasks will come. The session ends after the last task. ``forget``: whether to delete the run at its end."""
        if self._owner != os.getpid() or self._draining:
            return
        self._forget_when_done = forget
        self._draining = True
        self._register.flush()
        if self._private_cores:
            self._end_if_drained()
        elif self._finished.is_set():
            self._disconnect()  # the run was cancelled before it was closed
        elif self.client.failure is None:
            try:
                self.client.close_run(self._submission)
            except ConnectionFailed:
                if not self._ending:
                    raise

    def detach(self) -> None:
        """Closes the run and disconnects from it. Does not wait for the end of the run. If the run has no tasks, deletes it: its program
        probably failed before the first submission."""
        if self._owner == os.getpid() and not self._draining and self.client.failure is None:
            self._register.flush()
            self.client.close_run(self._submission)
            if not self._submission.next_index:
                with suppress(PilotfishError):
                    forget_run(self.client, self.run)
            self._draining = True  # only now: with this flag, the end of the run closes the client, which was needed to delete the run
            self.client.close()
            self._finish_outputs()

    def _finish_outputs(self) -> None:
        if self.outputs is not None:
            self.outputs.finish()

    def abandon(self) -> None:
        """Cancels all futures of a private pool, also futures of running tasks. So the next ``finish`` ends the pool with its tasks at
        once."""
        while self._futures:
            try:
                _, future = self._futures.popitem()
            except KeyError:
                break
            if super(TaskFuture, future).cancel():
                future.set_running_or_notify_cancel()
            else:
                with suppress(InvalidStateError):  # the task ended at the same time
                    future.set_exception(CancelledError(f"task {future.task_id} was cancelled while it ran"))
        self._end_if_drained()

    def _end_if_drained(self) -> None:
        # In a shared pool, the session ends when the master reports the end of the run.
        if self._draining and self._private_cores and not self._futures and self._first_to_end():
            self.client.request("stop", now=True)
            self.client.close(wait=False)

    def _first_to_end(self) -> bool:
        """Returns True at the first call if the client has not failed, otherwise False. Several threads can see the end of the last task.
        Only the thread that gets True ends the session."""
        with self._end_lock:
            first = not self._ending and self.client.failure is None
            self._ending = True
            return first

    def wait(self) -> None:
        """Waits for the end of the session. Call ``finish`` first."""
        if self._owner == os.getpid() and self.client.in_other_thread():
            self.client.join()
            self._finish_outputs()

    def _at_end(self) -> None:
        if self._private_cores:
            self.leftovers = self.pool.wait_until_stopped()


interpreter_exits = threading.Event()
"""Set when the interpreter shuts down. From then on, no session can be started."""


def _finish_all() -> None:
    """Ends all sessions when the interpreter exits. A private pool ends after its last task; runs in shared pools continue."""
    interpreter_exits.set()
    for session in list(_sessions):
        if session._private_cores:
            session.finish()
            session.wait()
        else:
            session.detach()


# This function must run before the interpreter joins threads, as in concurrent.futures. There is no public hook for this.
threading._register_atexit(_finish_all)  # type: ignore[attr-defined]
