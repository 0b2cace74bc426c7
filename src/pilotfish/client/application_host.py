"""Runs an ApplicationManager in a process beside the master: ``python -m pilotfish.client.application_host POOL UID FILE``.

To the master, this process is a client. The manager has its own thread, which gets ended tasks from a queue. After each batch of ended
tasks, the process sends one frame. The frame has the new tasks of the manager, and the progress: how many ended tasks the manager has
processed. The master records the whole frame or nothing. So after a crash of the process or of the master, the manager continues exactly
after the last recorded batch.
"""

from __future__ import annotations

import os
import queue
import shlex
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pilotfish.applications.application_manager import ApplicationManager, TaskDone, read_ending
from pilotfish.applications.run_file import SHAPE, load_application
from pilotfish.applications.task_list import TaskEntry, TaskList
from pilotfish.client.session import MANAGER_FAILED, PoolSession
from pilotfish.client.submission import Submission
from pilotfish.client.task_descriptions import TaskDescription, TaskRegister, command_in
from pilotfish.errors import BadInput, ConnectionFailed, PilotfishError
from pilotfish.model.messages import EndedItem
from pilotfish.model.task import RunOptions
from pilotfish.portable.payload_reference import resolve

POST_THREADS = 4
IDLE_S = 1.0
"""Seconds between two calls of ``has_more_work`` while all tasks have ended."""


_QueueItem = list[TaskDone] | PilotfishError
"""Ended tasks, or the error that ended the connection. An empty list means that another thread has added tasks."""


class ApplicationHost:
    """Runs one manager to its end. The thread that calls ``run`` is the manager's thread."""

    def __init__(self, client: PoolSession, submission: Submission, manager: ApplicationManager) -> None:
        self._client = client
        self._manager = manager
        self._queue: queue.SimpleQueue[_QueueItem] = queue.SimpleQueue()
        self._posted: list[Future[object]] = []
        self._pool: ThreadPoolExecutor | None = None
        self._thread: threading.Thread | None = None
        self._submission = submission
        self._register = TaskRegister(client.directory, submission.run)
        self._processed = submission.advanced
        self._ended = 0
        self._tasks = TaskList(submission.next_index, manager.worker, self._added, self._post)

    def run(self) -> None:
        self._thread = threading.current_thread()
        try:
            self._begin()
            while self._unfinished() or self._expects_more_tasks():
                self._process_next()
            self._manager.finalize()
            self._send(self._tasks.take(), -1)
        finally:
            if self._pool is not None:
                self._pool.shutdown()
        self._register.flush()
        self._client.close_run(self._submission)

    def _begin(self) -> None:
        first_time = self._submission.next_index == 0 and self._processed == 0
        wants_history = type(self._manager).resume is not ApplicationManager.resume
        cursor = 0 if wants_history else self._processed
        self._ended = cursor
        if first_time:
            self._manager.initialize(self._tasks)
            self._wait_for_posts()
            self._send(self._tasks.take(), 0)
        self._client.watch(self._submission, self, cursor)
        while self._ended < self._processed:
            if done := self._wait(None):
                self._rebuild(done)

    def _rebuild(self, done: list[TaskDone]) -> None:
        """Passes tasks that were processed before a restart to ``resume``, and the other tasks to ``tasks_done``."""
        known = min(len(done), self._processed - self._ended)
        self._ended += known
        self._manager.resume(done[:known])
        if done[known:]:
            self._process(done[known:])

    def _process_next(self) -> None:
        done = self._wait(IDLE_S if not self._unfinished() else None)
        if done:
            self._process(done)
        elif done is not None:
            self._send(self._tasks.take(), -1)

    def _process(self, done: list[TaskDone]) -> None:
        self._ended += len(done)
        self._manager.tasks_done(done, self._tasks)
        self._wait_for_posts()
        self._processed = self._ended
        self._send(self._tasks.take(), self._processed)

    def _wait(self, timeout_s: float | None) -> list[TaskDone] | None:
        """Waits for ended or added tasks. Returns None after ``timeout_s`` seconds. Raises the error that ended the connection."""
        try:
            item = self._queue.get(timeout=timeout_s)
        except queue.Empty:
            return None
        # Collects all ended tasks for one call of the manager. This makes fewer calls and larger frames.
        done: list[TaskDone] = []
        while not isinstance(item, PilotfishError):
            done += item
            if self._queue.empty():
                return done
            item = self._queue.get()
        raise item

    def _send(self, entries: list[TaskEntry], advance: int) -> None:
        if entries or advance >= 0:
            indices = self._client.submit_whole(self._submission, self._tasks, entries, advance)
            for index, entry in zip(indices, entries, strict=True):
                if self._tasks.specs[entry.spec][0].kind == "exec":
                    self._register.note(index, TaskDescription(command_in(entry.payload)))
            self._register.flush_if_due()

    def _unfinished(self) -> bool:
        return self._ended < len(self._tasks)

    def _expects_more_tasks(self) -> bool:
        more = self._manager.has_more_work()
        self._send(self._tasks.take(), -1)
        return more or self._unfinished()

    # --- called by the task list ----------------------------------------------------------------------------------------------------

    def _added(self) -> None:
        # Tasks that a callback of the manager adds are sent when it returns. If another thread adds tasks, it must wake the manager.
        if threading.current_thread() is not self._thread:
            self._queue.put([])

    def _post(self, function: Callable[..., object], *args: Any) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(POST_THREADS, "pilotfish-post")
        self._posted.append(self._pool.submit(function, *args))

    def _wait_for_posts(self) -> None:
        """Waits for the functions that the manager has posted. Only then does their batch count as processed. Raises their first error."""
        posted, self._posted = self._posted, []
        for future in posted:
            future.result()

    # --- called by the client, in its thread ------------------------------------------------------------------------------------------

    def ended(self, items: list[EndedItem], body: memoryview) -> None:
        start, done = 0, []
        for item in items:
            payload = resolve(self._client.share, body[start : start + item.length])
            done.append(read_ending(item, payload, self._client.contents))
            start += item.length
        self._queue.put(done)

    def began(self, indices: list[int]) -> None:
        pass

    def finished(self, counts: dict[str, int]) -> None:
        pass

    def lost(self, error: PilotfishError) -> None:
        self._queue.put(error)


def host(pool_directory: Path, uid: str, path: Path) -> int:
    """Runs the manager of a run file to its end and returns the exit status of the process.

    The process ends when its connection to the master breaks, because the next master starts a new process. Two processes would both
    create tasks for the same results.
    """
    try:
        client = PoolSession.connect(pool_directory, reconnect_s=0.0)
    except ConnectionFailed as error:
        print(f"{path.name}: {error}", file=sys.stderr)
        return 1
    client.on_end = _exit_at_once
    status = _host(client, uid, path)
    client.on_end = None
    client.close()
    return status


def _exit_at_once() -> None:
    """Ends the process at once, even if the manager is working. Unsent tasks and progress are lost, and the next process repeats them."""
    print("the connection to the master is lost", file=sys.stderr, flush=True)
    os._exit(1)


def _host(client: PoolSession, uid: str, path: Path) -> int:
    run = client.open_run(uid, RunOptions())
    try:
        row = client.ask("run", run=run.run)
        if os.path.isdir(row["cwd"]):
            os.chdir(row["cwd"])
        loaded = load_application(path, shlex.split(row["command"])[1:])
        if loaded.manager is None:
            raise BadInput(f"run file {path.name}: it has no manager", SHAPE)
        ApplicationHost(client, run, loaded.manager).run()
    except ConnectionFailed as error:
        print(f"{path.name}: {error}", file=sys.stderr)
        return 1
    except Exception:  # noqa: BLE001 (user code may raise anything)
        traceback.print_exc()
        # Without this request, the run would wait forever for tasks of this manager.
        client.ask("cancel", run=run.run, reason=MANAGER_FAILED)
        return 1
    return 0


if __name__ == "__main__":
    pool, uid, file = sys.argv[1:]
    sys.exit(host(Path(pool), uid, Path(file)))
