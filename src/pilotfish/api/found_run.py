"""Reads the futures and results of an existing run. Any program can do this, not only the program that submitted the tasks.

A ``FoundRun`` has its own connection to the master. It submits no tasks, so it neither closes the run nor keeps the run open.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError
from typing import Any

from pilotfish.api.futures import ExecutableFuture, TaskFuture
from pilotfish.api.run_futures import FutureType, RunFutures
from pilotfish.applications.task_needs import NO_NEEDS, TaskNeeds
from pilotfish.client.pools import PoolHandle, ensure_pool
from pilotfish.client.session import NoPool, all_tasks
from pilotfish.client.submission import Submission
from pilotfish.errors import BadInput, PoolStopped
from pilotfish.model.messages import EndedItem
from pilotfish.model.task import RunOptions
from pilotfish.portable.payload_format import PackedPayload
from pilotfish.store.pool_directory import pool_home, stop_mark_path

ENDED = ("done", "failed", "cancelled")


class FoundRun(RunFutures):
    """Reads one run through a session of its own. ``wanted``: number, name or uid of the run. If several runs have this name, the newest
    run is read."""

    def __init__(self, pool: PoolHandle, wanted: int | str) -> None:
        self._wanted = wanted
        self._running: set[int] = set()
        """Indices of the tasks that had not ended when the futures were made."""
        super().__init__(pool, RunOptions())

    def _open(self, options: RunOptions, uid: str) -> Submission:
        row = self.client.ask("run", run=self._wanted)
        return self.client.open_run(row["uid"], RunOptions(name=row["name"], command=row["command"]), sends_tasks=False)

    def submit(self, future: FutureType, spec: int, payload: PackedPayload, needs: TaskNeeds = NO_NEEDS, command: str = "") -> FutureType:
        raise BadInput(
            f"run {self.run} was found, and can only be read", f"to add tasks while it is open: Run(uid={self.uid!r}); or open a new run"
        )

    def futures(self) -> list[TaskFuture[Any]]:
        """Returns the futures of all tasks that the run has now, in the order of the tasks. The futures get their results later.

        Call this method once per ``FoundRun``, because the master sends each result only once per connection. After the last result, the
        ``FoundRun`` disconnects. Raises BadInput if the run belongs to an Executor that does not keep its results.
        """
        if self.client.ask("run", run=self.run).get("owned"):
            self.detach()
            raise BadInput(
                f"run {self.run} belongs to an Executor, and the results of an Executor are not kept: it has them",
                "submit the calls with Run(...), which keeps the results, or with Executor(pool=..., cache=True)",
            )
        found: list[TaskFuture[Any]] = []
        for row in all_tasks(self.client, self.run):
            future: TaskFuture[Any] = ExecutableFuture(self) if row["kind"] == "exec" else TaskFuture(self)
            future.index = row["index"]
            if row["state"] not in ENDED:
                self._running.add(future.index)
            if row["state"] == "running":
                future.began()
            found.append(future)
        self._futures.update((future.index, future) for future in found)
        if found:
            self.client.watch(self._submission, self)
        else:
            self.detach()
        return found

    def check_running(self, future: TaskFuture[Any]) -> None:
        """Raises PoolStopped if the task has not ended and the pool was stopped, because no task runs in a stopped pool. If the task had
        ended before its future was made, raises nothing, because the result still arrives."""
        if future.index in self._running and not future.done() and stop_mark_path(self.client.directory).exists():
            raise PoolStopped("the pool was stopped; what is unfinished is kept", "resume it: pilotfish attach")

    def ended(self, items: list[EndedItem], body: memoryview) -> None:
        super().ended(items, body)
        if not self._futures:
            self.detach()

    def finish(self, forget: bool = False) -> None:
        self.detach()

    def detach(self) -> None:
        self._draining = True
        self.client.close(wait=False)


def find_run(wanted: int | str, pool: str | PoolHandle) -> FoundRun:
    """Finds a run of a pool. Does not resume a stopped pool. Raises NoPool if the pool does not exist."""
    if isinstance(wanted, bool) or not isinstance(wanted, int | str):
        raise BadInput(f"Run.find: {wanted!r} is not the number, name or uid of a run", 'write Run.find(3) or Run.find("sweep")')
    if isinstance(pool, str):
        if not pool_home(pool).directory.is_dir():
            raise NoPool(f"pool {pool!r} has no runs yet", "start a run: Run(...) or pilotfish run -- COMMAND")
        pool = ensure_pool(pool, read_only=True)
    return FoundRun(pool, wanted)


def results_of(reader: FoundRun, return_exceptions: bool) -> Iterator[Any]:
    """Returns an iterator over the results in the order of the tasks. The iterator waits for unfinished tasks. For a failed task, it raises
    the error; with ``return_exceptions``, it yields the error. To save memory, it keeps no references to results that it has yielded."""
    remaining = list(reversed(reader.futures()))

    def draw() -> Iterator[Any]:
        try:
            while remaining:
                future = remaining.pop()
                reader.check_running(future)
                error = _error_of(future)
                if error is not None and not return_exceptions:
                    raise error
                yield future.result() if error is None else error
                del future, error
        finally:
            reader.detach()

    return draw()


def _error_of(future: TaskFuture[Any]) -> BaseException | None:
    try:
        return future.exception()
    except CancelledError as cancelled:
        return CancelledError(f"task {future.task_id} was cancelled") if not cancelled.args else cancelled
