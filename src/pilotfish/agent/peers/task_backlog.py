"""Keeps delegated tasks that no worker has yet, by spec, so that finding one for a worker is fast.

Some tasks are preferred by a worker, for example because it holds their inputs. Other workers take such tasks last. If one must, it takes
the latest: the worker that prefers it has probably just started something else, while the worker that prefers the oldest will have free
resources next.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain
from typing import Any, Dict, Iterator, List, Optional

PREFERENCE_S = 600.0
"""Seconds until a task no longer waits for the worker that prefers it."""

TasksBySpec = Dict[int, "OrderedDict[int, BacklogTask]"]
"""spec -> task number -> task"""


class BacklogTask:
    """A delegated task. ``row`` and ``payload`` as received; ``at``: when it was received."""

    __slots__ = ("row", "payload", "contents", "at")

    def __init__(self, row: List[Any], payload: bytes, at: float) -> None:
        self.row = row
        self.payload = payload
        self.contents = [[content[0], content[1]] for content in row[6]]
        self.at = at


class TaskBacklog:
    """``tasks``: all delegated tasks. ``unannounced``: those that workers have not ranked yet; only announced tasks are assigned."""

    def __init__(self) -> None:
        self.tasks: Dict[int, BacklogTask] = {}
        self.unannounced: Dict[int, BacklogTask] = {}
        self._plain: TasksBySpec = {}
        self._preferred: TasksBySpec = {}
        """Tasks that some worker ranks above others of their spec."""

    @property
    def specs(self) -> Dict[int, None]:
        """Specs of announced tasks."""
        return dict.fromkeys(chain(self._plain, self._preferred))

    def announced(self, spec: int) -> Iterator[int]:
        return chain(self._plain.get(spec, ()), self._preferred.get(spec, ()))

    def put(self, entry: BacklogTask) -> None:
        task = entry.row[0]
        if task in self.tasks:
            self.pop(task)  # an earlier attempt
        self.tasks[task] = self.unannounced[task] = entry

    def put_back(self, entry: BacklogTask) -> None:
        """Put a task that was assigned but not acknowledged first in the queue, unless it was delegated anew meanwhile."""
        task = entry.row[0]
        if task not in self.tasks:
            self.tasks[task] = entry
            _add(self._plain, entry)
            self._plain[entry.row[2]].move_to_end(task, last=False)

    def pop(self, task: int) -> BacklogTask:
        entry = self.tasks.pop(task)
        self.unannounced.pop(task, None)
        _remove(self._plain, entry)
        _remove(self._preferred, entry)
        return entry

    def announce(self, limit: int) -> List[BacklogTask]:
        """Take some unannounced tasks to announce them now."""
        announcing = [self.unannounced.pop(task) for task in list(self.unannounced)[:limit]]
        for entry in announcing:
            if entry.row[0] not in self._preferred.get(entry.row[2], ()):
                _add(self._plain, entry)
        return announcing

    def announce_all_again(self) -> None:
        """Announce all tasks again, for a new worker."""
        self.unannounced = dict(self.tasks)

    def prefer(self, task: int) -> None:
        entry = self.tasks[task]
        if _remove(self._plain, entry):
            _add(self._preferred, entry)

    def next_task(self, spec: int, now: float) -> Optional[BacklogTask]:
        """The next task of a spec, for a worker that prefers none."""
        plain, preferred = self._plain.get(spec), self._preferred.get(spec)
        if preferred:
            oldest = next(iter(preferred.values()))
            if oldest.at + PREFERENCE_S <= now:
                return oldest
        if plain:
            return next(iter(plain.values()))
        return next(reversed(preferred.values())) if preferred else None


def _add(table: TasksBySpec, entry: BacklogTask) -> None:
    table.setdefault(entry.row[2], OrderedDict())[entry.row[0]] = entry


def _remove(table: TasksBySpec, entry: BacklogTask) -> bool:
    tasks_of_spec = table.get(entry.row[2], OrderedDict())
    if tasks_of_spec.pop(entry.row[0], None) is None:
        return False
    if not tasks_of_spec:
        del table[entry.row[2]]
    return True
