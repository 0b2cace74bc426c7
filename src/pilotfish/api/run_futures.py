"""Connects the futures of one run to the client.

A ``RunFutures`` exists as long as the program refers to one of its futures, even if the Executor or Run no longer exists.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from pilotfish.api.futures import TaskFuture
from pilotfish.applications.task_list import NO_NEEDS, TaskNeeds
from pilotfish.client.pools import PoolHandle
from pilotfish.client.session import PoolSession, all_tasks
from pilotfish.client.task_descriptions import TaskDescription, TaskRegister, described_rows
from pilotfish.errors import ConnectionFailed, PilotfishError
from pilotfish.model.messages import EndedItem
from pilotfish.model.task import RunOptions
from pilotfish.portable.payload_format import PackedPayload
from pilotfish.portable.payload_reference import resolve

FutureType = TypeVar("FutureType", bound=TaskFuture[Any])


_sessions: weakref.WeakSet[RunFutures] = weakref.WeakSet()


class RunFutures:
    """The futures of one run. If ``private_cores`` is not 0, the pool belongs to the run and ends with it."""

    def __init__(self, pool: PoolHandle, options: RunOptions, uid: str = "", private_cores: int = 0, echo: bool = False) -> None:
        self._pool = pool
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
            self._submission = self.client.begin(options, uid, self)
        except PilotfishError:
            self.client.close()
            raise
        self.run = self._submission.run
        self.uid = self._submission.uid
        self.sites = self._submission.options.sites
        """Sites that the run may use; empty means all."""
        self.spec_number = partial(self.client.spec_number, self._submission)
        self._register = TaskRegister(self.client.directory, self.run)
        _sessions.add(self)

    @property
    def unfinished(self) -> int:
        return len(self._futures)

    # --- tasks --------------------------------------------------------------------------------------------------------------------

    def submit(self, future: FutureType, spec: int, payload: PackedPayload, needs: TaskNeeds = NO_NEEDS, command: str = "") -> FutureType:
        """Submits a task. ``command``: command line of an executable, for listings."""

        def enter(index: int) -> None:
            future.index = index
            self._futures[index] = future
            if command:
                self._register.note(index, TaskDescription(command))

        self.client.submit(self._submission, spec, payload, enter, needs)
        if command:
            self._register.flush_if_due()
        return future

    def report_cancelled(self, future: TaskFuture[Any]) -> None:
        """Reports a cancelled future to the threads that wait for it and to the master. A second call does nothing."""
        if self._futures.pop(future.index, None) is not None:
            future.set_running_or_notify_cancel()
            self.cancel_tasks([future.index])
            self._end_if_drained()

    def cancel_tasks(self, indices: Iterable[int]) -> None:
        if self.client.failure is None:
            self.client.request("cancel", tasks=[f"{self.run}.{index}" for index in indices])

    def cancel_pending(self) -> None:
        """Cancels all futures that are not known to run. The oldest futures are skipped: workers may have started their tasks already."""
        cancelled = []
        for future in list(self._futures.values())[self._private_cores :]:
            if super(TaskFuture, future).cancel() and self._futures.pop(future.index, None) is not None:
                future.set_running_or_notify_cancel()
                cancelled.append(future.index)
        if cancelled:
            self.cancel_tasks(cancelled)
            self._end_if_drained()

    def why(self, **target: Any) -> str:
        answer = self.client.ask("why", **target)
        sentence, texts = answer["sentence"], [reason["text"] for reason in answer.get("reasons", ())]
        return "\n".join([sentence, *(text for text in texts if text not in sentence)])

    def tasks(self, state: str | None) -> Iterator[dict[str, Any]]:
        """Returns the rows of the run's tasks, with their descriptions."""
        self._register.flush()
        return described_rows(self.client, self.client.ask("run", run=self.run), all_tasks(self.client, self.run, state))

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
            if future is not None:
                future.ended(item, resolve(self.client.share, body[start:end]))
            start = end
        self._register.flush_if_due()
        self._end_if_drained()

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
        """Declares that no more tasks will come. The session ends after the end of the last task."""
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
        """Disconnects from the run without waiting for its end. No more tasks can be submitted."""
        if self._owner == os.getpid() and not self._draining and self.client.failure is None:
            self._draining = True
            self._register.flush()
            self.client.close_run(self._submission)
            self.client.close()

    def _end_if_drained(self) -> None:
        # In a shared pool, the session ends when the master reports the end of the run.
        if self._draining and self._private_cores and not self._futures and self._first_to_end():
            self.client.request("stop", now=True)
            self.client.close(wait=False)

    def _first_to_end(self) -> bool:
        """Whether this thread must end the session. The client's thread and the caller's thread may both find that all tasks ended."""
        with self._end_lock:
            first = not self._ending and self.client.failure is None
            self._ending = True
            return first

    def wait(self) -> None:
        """Waits for the end of the session. Call ``finish`` before."""
        if self._owner == os.getpid() and self.client.in_other_thread():
            self.client.join()

    def _at_end(self) -> None:
        if self._private_cores:
            self.leftovers = self._pool.wait_until_stopped()


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


# Must run before the interpreter joins threads, as in concurrent.futures. There is no public hook for this.
threading._register_atexit(_finish_all)  # type: ignore[attr-defined]
