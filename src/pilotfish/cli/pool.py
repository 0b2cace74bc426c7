"""What the commands need of a master, and how they come by one.

The commands know a master only through ``Master``: questions, runs to fill, runs to watch. ``connect`` makes the real one; tests put
their own in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pilotfish.api.nearest import did_you_mean
from pilotfish.applications.tasklist import NOTHING, Needs
from pilotfish.errors import BadInput, PilotfishError
from pilotfish.model.messages import EndedItem
from pilotfish.model.task import RunOptions, TaskSpec

PAGE = 10_000
"""So many rows a master gives in one answer."""


@dataclass(frozen=True, slots=True)
class News:
    """What was heard of a run since the last time: tasks that ended, tasks that were seen running, and whether that was all."""

    ended: tuple[EndedItem, ...] = ()
    began: tuple[int, ...] = ()
    finished: bool = False
    lost: PilotfishError | None = None


class Watcher(Protocol):
    def next(self, timeout_s: float) -> News | None:
        """News, or None when there was none for so long."""

    def close(self) -> None: ...


class NewRun(Protocol):
    """A run that is being filled."""

    @property
    def number(self) -> int: ...

    def spec(self, spec: TaskSpec, code: bytes) -> int:
        """The number of a spec in the run."""

    def add(self, spec: int, payload: bytes, needs: Needs = NOTHING) -> None:
        """One more task; waits when the master cannot keep up."""

    def close(self) -> None:
        """There are no more. Returns when all of them are on the master's disk."""


class Master(Protocol):
    @property
    def contents(self) -> Path | None:
        """Where large outputs lie that were brought home."""

    def ask(self, kind: str, **arguments: Any) -> Any:
        """The answer to a question, or the outcome of a command; PilotfishError if it cannot be met."""

    def ask_bytes(self, kind: str, **arguments: Any) -> tuple[Any, bytes]:
        """The same for kinds that have bytes in their answer."""

    def peek(self, task: str, stream: int, offset: int) -> bytes:
        """What a running task wrote to a stream beyond ``offset``; nothing if its worker does not answer just now."""

    def begin(self, options: RunOptions) -> NewRun: ...

    def watch(self, run: int, cursor: int) -> Watcher:
        """Hear of the run's tasks from the ``cursor``-th that ended on."""

    def close(self) -> None: ...


class NoPool(PilotfishError):
    """Nothing was ever run in this pool."""

    code = "P3101"


Connector = Callable[[str, bool, int | None], Master]


def connect(pool: str, start: bool = False, workers: int | None = None) -> Master:
    """The master of a pool, started again if it ended; with ``start`` the pool is made if there is none."""
    return _connector(pool, start, workers)


def look(pool: str) -> Master:
    """The same for whoever only asks: what somebody stopped is not set going by that."""
    if _connector is not _connect_live:
        return _connector(pool, False, None)
    from pilotfish.cli.live_master import connect_to_look

    return connect_to_look(pool)


def connect_if_served(pool: str) -> Master | None:
    """The master of a pool if there is one just now; none is started."""
    if _connector is not _connect_live:
        return _connector(pool, False, None)
    from pilotfish.cli.live_master import connect_if_served as connect_live_if_served

    return connect_live_if_served(pool)


def _connect_live(pool: str, start: bool, workers: int | None) -> Master:
    from pilotfish.cli.live_master import connect_live

    return connect_live(pool, start, workers)


_connector: Connector = _connect_live


def use_connector(connector: Connector | None) -> None:
    """Put another way to get a master in place; None brings the real one back."""
    global _connector
    _connector = connector or _connect_live


def refuse_nothing(wanted: str | None) -> None:
    if wanted is not None and not wanted.strip():
        raise BadInput(
            f"{wanted!r} is no run: it is empty (an unset variable?)",
            "Write its number or its name, or last for the newest; see: pilotfish status",
        )


def find_run(master: Master, wanted: str | None) -> dict[str, Any]:
    """The run that a person means: a number, a name (the newest of that name), or nothing for the newest of all."""
    refuse_nothing(wanted)
    rows: list[dict[str, Any]] = master.ask("runs")
    if not rows:
        raise BadInput("there are no runs yet", "Start one: pilotfish run -- COMMAND")
    newest_first = sorted(rows, key=lambda row: -int(row["run"]))
    if wanted is None or wanted == "last":
        return newest_first[0]
    for row in newest_first:
        if wanted in (str(row["run"]), row["name"]):
            return row
    number, dot, index = wanted.partition(".")
    if dot and number.isdigit() and index.isdigit():
        raise BadInput(
            f"{wanted!r} is a task, and a run is needed here", f"Its run is {number}; for the task alone: pilotfish logs {wanted}"
        )
    names = [str(row["name"]) for row in rows if row["name"]]
    raise BadInput(f"there is no run {wanted!r}", did_you_mean(wanted, names) or "See the runs there are: pilotfish status")


def all_tasks(master: Master, run: int, state: str | None = None, offset: int = 0, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """The tasks of a run, a page at a time; without a limit all of them."""
    filtered = {"state": state} if state else {}
    left = limit
    while left is None or left > 0:
        page = PAGE if left is None else min(PAGE, left)
        rows = master.ask("tasks", run=run, limit=page, offset=offset, **filtered)
        yield from rows
        if len(rows) < page:
            return
        offset += page
        left = None if left is None else left - page


def task_name(text: str) -> str:
    """A task as a person writes it, ``3.17``, checked."""
    run, dot, index = text.partition(".")
    if not (dot and run.isascii() and run.isdigit() and index.isascii() and index.isdigit()):
        raise BadInput(f"{text!r} does not name a task", "A task is RUN.INDEX, such as 3.17; list them: pilotfish tasks")
    return f"{int(run)}.{int(index)}"
