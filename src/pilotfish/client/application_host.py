"""Runs an ApplicationManager in a process beside the master: ``python -m pilotfish.client.application_host POOL UID FILE``.

The process is a client of the master. The manager has its own thread, which gets ended tasks from a queue. Each time the manager has
processed the ended tasks from the queue, the process sends one frame to the master. The frame contains the new tasks of the manager, and
the number of ended tasks that the manager has processed so far. The master records either the whole frame or nothing. So after a crash of
the process or of the master, the manager continues after the last recorded frame.
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
from pilotfish.applications.task_list import TaskList
from pilotfish.client.application_environment import forget_environment, use_environment, use_interpreter
from pilotfish.client.descriptions.task_descriptions import TaskDescription, TaskRegister, command_in
from pilotfish.client.reuse.program_register import ProgramRegister
from pilotfish.client.session import MANAGER_FAILED, PoolSession
from pilotfish.client.submission import Submission
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

    def __init__(self, client: PoolSession, submission: Submission, manager: ApplicationManager, resume: bool = False) -> None:
        self._client = client
        # A restarted manager does not resume: its new tasks can be equal to tasks that it created before the restart, and ``resume`` would
        # give the new tasks the results of these earlier tasks.
        self._resume = resume and submission.next_index == 0
        self._manager = manager
        self._queue: queue.SimpleQueue[_QueueItem] = queue.SimpleQueue()
        self._posted: list[Future[object]] = []
        self._pool: ThreadPoolExecutor | None = None
        self._thread: threading.Thread | None = None
        self._submission = submission
        self._register = TaskRegister(client.directory, submission.run)
        self._programs = ProgramRegister(client.directory, submission.run)
        self._processed = submission.advanced
        self._ended = 0
        self._is_cancelled = False
        self._tasks = TaskList(submission.next_index, manager.worker, self._added, self._post)

    def run(self) -> None:
        self._thread = threading.current_thread()
        try:
            self._begin()
            self._process_all()
            self._manager.finalize()
            if not self._is_cancelled:
                self._send_new()
        finally:
            if self._pool is not None:
                self._pool.shutdown()
        self._register.flush()
        self._client.close_run(self._submission)

    def _process_all(self) -> None:
        try:
            while self._unfinished() or self._expects_more_tasks():
                self._process_next()
        except BadInput:
            # A cancelled run accepts no more tasks. But the manager of the run can still write files in ``finalize``.
            self._is_cancelled = bool(self._client.ask("run", run=self._submission.run)["closed"])
            if not self._is_cancelled:
                raise

    def _begin(self) -> None:
        first_time = self._submission.next_index == 0 and self._processed == 0
        wants_history = type(self._manager).resume is not ApplicationManager.resume
        cursor = 0 if wants_history else self._processed
        self._ended = cursor
        if first_time:
            self._manager.initialize(self._tasks)
            self._wait_for_posts()
            self._send_new(0)
        elif not self._processed:
            self._manager.resume([])
        self._client.watch(self._submission, self, cursor)
        while self._ended < self._processed:
            if done := self._wait(None):
                self._rebuild(done)

    def _rebuild(self, done: list[TaskDone]) -> None:
        """Gives ended tasks to the manager after a restart. Tasks that the manager processed before the restart go to ``resume``, all other
        ended tasks to ``tasks_done``."""
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
            self._send_new()

    def _process(self, done: list[TaskDone]) -> None:
        self._ended += len(done)
        self._manager.tasks_done(done, self._tasks)
        self._wait_for_posts()
        self._processed = self._ended
        self._cancel()
        self._send_new(self._processed)

    def _cancel(self) -> None:
        """Cancels the tasks that the manager wants to cancel. This happens before the master records how many ended tasks are processed.
        After a crash between these two steps, the manager gets the same ended tasks again and cancels the same tasks again."""
        wanted, self._tasks.cancelled = self._tasks.cancelled, {}
        known = [f"{self._submission.run}.{index}" for index in wanted if index < self._submission.next_index]
        if known:
            self._client.ask("cancel", tasks=known)

    def _wait(self, timeout_s: float | None) -> list[TaskDone] | None:
        """Waits for an item in the queue. Returns the ended tasks, or None after ``timeout_s`` seconds. The list of ended tasks is empty if
        another thread has added tasks. If the client has failed, raises the error of the client."""
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

    def _send_new(self, advance: int = -1) -> None:
        """Sends the new tasks. ``advance``: number of ended tasks that the manager has processed; -1 if this number has not changed."""
        entries = self._tasks.take(self._resume)
        if entries or advance >= 0:
            must_flush = bool(self._tasks.descriptions)  # only this process has these descriptions, and it can be killed
            for index, entry in enumerate(entries, self._submission.next_index):
                if self._tasks.specs[entry.spec][0].kind == "exec":
                    command, label = self._tasks.descriptions.pop(index, ("", ""))
                    self._register.note(index, TaskDescription(command or command_in(entry.payload), label=label))
            if must_flush:
                self._register.flush()
            self._programs.add(self._tasks.take_programs())
            self._client.submit_whole(self._submission, self._tasks, entries, advance)
            self._register.flush_if_due()

    def _unfinished(self) -> bool:
        return self._ended < len(self._tasks)

    def _expects_more_tasks(self) -> bool:
        more = self._manager.has_more_work()
        self._send_new()
        return more or self._unfinished()

    # --- called by the task list ----------------------------------------------------------------------------------------------------

    def _added(self) -> None:
        # Tasks that a callback of the manager adds are sent when the callback returns. If another thread adds tasks, the thread of the
        # manager must be woken.
        if threading.current_thread() is not self._thread:
            self._queue.put([])

    def _post(self, function: Callable[..., object], *args: Any) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(POST_THREADS, "pilotfish-post")
        self._posted.append(self._pool.submit(function, *args))

    def _wait_for_posts(self) -> None:
        """Waits for the functions that the manager started with ``post``. If some of them raised exceptions, raises the first exception."""
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

    The process ends when its connection to the master breaks, because the next master starts a new process for the manager. If the old
    process continued, both processes would create tasks for the same results.
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
    """Ends the process at once, even if the manager is working. The next process repeats all work that the master has not recorded."""
    print("the connection to the master is lost", file=sys.stderr, flush=True)
    os._exit(1)


def _host(client: PoolSession, uid: str, path: Path) -> int:
    run = client.open_run(uid, RunOptions())
    try:
        row = client.ask("run", run=run.run)
        if os.path.isdir(row["cwd"]):
            os.chdir(row["cwd"])
        use_environment(client.directory, uid)
        loaded = load_application(path, shlex.split(row["command"])[1:])
        if loaded.manager is None:
            raise BadInput(f"run file {path.name}: it has no manager", SHAPE)
        ApplicationHost(client, run, loaded.manager, bool(row.get("resume"))).run()
    except ConnectionFailed as error:
        print(f"{path.name}: {error}", file=sys.stderr)
        return 1
    except Exception:  # noqa: BLE001 (user code may raise anything)
        traceback.print_exc()
        # Without this request, the run would wait forever for tasks of this manager.
        client.ask("cancel", run=run.run, reason=MANAGER_FAILED)
        forget_environment(client.directory, uid)
        return 1
    forget_environment(client.directory, uid)
    return 0


if __name__ == "__main__":
    pool, uid, file, *again = sys.argv[1:]
    if not again:
        use_interpreter(Path(pool), uid, "pilotfish.client.application_host", [*sys.argv[1:], "again"])
    sys.exit(host(Path(pool), uid, Path(file)))
