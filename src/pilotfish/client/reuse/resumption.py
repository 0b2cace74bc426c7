"""Decides which tasks of a run are allowed to get the results of earlier tasks, and explains why the other tasks run."""

from __future__ import annotations

import glob
import os
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator
from itertools import islice
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from pilotfish.applications.reuse.file_changes import CLOCK_S
from pilotfish.applications.reuse.program_files import written_files
from pilotfish.applications.task_needs import NO_CHANGE, LastChange, TaskNeeds
from pilotfish.client.reuse.reuse_reasons import NewTask, NotReused, ReuseReasons
from pilotfish.client.reuse.shared_outputs import SharedOutputs
from pilotfish.client.reuse.unsuccessful_tasks import UnsuccessfulTasks
from pilotfish.client.session import PoolSession, all_tasks
from pilotfish.errors import BadInput
from pilotfish.model.contents import KEY_BYTES

if TYPE_CHECKING:
    from pilotfish.client.descriptions.task_source import MadeTask

START_S = 1.0
"""A file counts as made by a task if it is at most this many seconds older than the start of the task."""
CHUNK = 1000
"""Maximum number of tasks in one request."""


class Resumption:
    """Lets the tasks of one run get the results of earlier tasks. With ``explain=True``, keeps the data for the method ``explain``.
    ``overwrite``: whether a task is allowed to replace an output file that changed after the end of the earlier task."""

    def __init__(self, session: PoolSession, explain: bool = False, overwrite: bool = False) -> None:
        self._session = session
        self._explains = explain
        self._overwrites = overwrite
        self._keys = bytearray()
        self._inputs: dict[int, tuple[str, ...]] = {}
        self._needed: dict[int, tuple[int, ...]] = {}
        """Maps the position of a task to the positions of the tasks that it needs."""
        self._changed: dict[int, tuple[LastChange, LastChange]] = {}
        """For each position of a task: the last change of a file that the task names, and the last change of a program file."""
        self._missing: dict[int, str] = {}
        """For each position of a task: a file that the command of the task writes, and that does not exist."""
        self._outdated: dict[int, str] = {}
        """For each position of a task: the reason why its output files are not up to date."""
        self._shared_outputs: SharedOutputs | None = None
        self._unsuccessful = UnsuccessfulTasks(session)

    def decide(self, made: Iterator[MadeTask], sandbox: bool, has_outputs: bool) -> Iterator[MadeTask]:
        """Marks the tasks that are allowed to get earlier results. With a sandbox, these are all tasks. A task without a sandbox runs
        again, as with make, if the output files of the earlier task are not up to date. Raises BadInput if this task would replace an
        output file that somebody changed.

        ``has_outputs``: whether tasks have output files. Without a sandbox, the files of all tasks are then checked before the first task
        is yielded, so that no task runs after an error.
        """
        decided = self._decide(made, sandbox)
        yield from list(decided) if has_outputs and not sandbox else decided

    def _decide(self, made: Iterator[MadeTask], sandbox: bool) -> Iterator[MadeTask]:
        place = 0
        while chunk := list(islice(made, CHUNK)):
            with_files = [] if sandbox else [one for one in chunk if one.executable.outputs]
            earlier = self._earlier(one.entry.needs.key for one in with_files)
            problems = {id(one): self._outdated_output(one.executable.outputs, row) for one, row in zip(with_files, earlier, strict=True)}
            for position, one in enumerate(chunk if not sandbox else (), place):
                written = next((name for name in written_files(one.executable.argv) if _is_missing(name)), None)
                if written is not None:
                    self._missing[position] = written
            for one in chunk:
                problem = problems.get(id(one), "")
                if problem:
                    self._outdated[place] = problem
                self.note(one.entry.needs, one.inputs)
                place += 1
                yield one._replace(entry=one.entry._replace(needs=one.entry.needs._replace(reuse=not problem)))

    def shared_outputs(self, command: str, words: frozenset[str]) -> SharedOutputs:
        """Returns the outputs that the tasks of the new run have in common. Arguments: see ``SharedOutputs``."""
        self._shared_outputs = SharedOutputs(self._session, command, words)
        return self._shared_outputs

    def taken_as_outputs(self) -> list[str]:
        """Returns the files that count as outputs of several earlier tasks (see ``SharedOutputs``)."""
        return self._shared_outputs.found() if self._shared_outputs is not None else []

    def missing_files(self, run: int) -> list[str]:
        """Returns files that should exist but do not: a task of this run with a reused result wrote them when it ran earlier. Finds only
        files after a ``>`` in the text of a command."""
        tasks = all_tasks(self._session, run) if self._missing else ()
        found = (self._missing.get(task["index"]) for task in tasks if task["reused_from"] is not None)
        return list(dict.fromkeys(filter(None, found)))

    def note(self, needs: TaskNeeds, inputs: Iterable[str]) -> None:
        """Stores the record and the inputs of the next task. Call it instead of ``decide`` for tasks that are always allowed to get earlier
        results."""
        if not self._explains:
            return
        place = len(self._keys) // KEY_BYTES
        self._keys += needs.key or _NO_RECORD
        if needs.last_change.at or needs.program_change.at:
            self._changed[place] = needs.last_change, needs.program_change
        if named := tuple(inputs):
            self._inputs[place] = named
        if awaited := (*needs.after, *needs.after_any, *(file.maker for file in needs.future_files)):
            self._needed[place] = awaited

    def _earlier(self, keys: Iterable[bytes]) -> list[dict[str, Any]]:
        joined = b"".join(keys)
        return self._ask(joined, {}) if joined else []

    def _outdated_output(self, outputs: Iterable[str], earlier: dict[str, Any]) -> str:
        """Returns the reason why the output files of a task are not up to date. Returns an empty text if they are up to date, or if there
        is no earlier task.

        Raises BadInput if a file changed after the end of the earlier task: somebody else changed the file, and the task would replace it.
        With ``overwrite``, or if a failed or cancelled task has changed the file, the file is not up to date instead.
        """
        if earlier["source"] is None:
            return ""
        for name in outputs:
            found = glob.glob(name) if glob.has_magic(name) else [name] * os.path.lexists(name)
            if not found:
                return f"its output {name} is not here any more"
            for path in found:
                try:
                    changed_at = _written_at(path, earlier["started_at"])
                except OSError:
                    return f"its output {path} cannot be read"
                latest = earlier["ended_at"] + CLOCK_S
                if changed_at > latest and changed_at > latest + (ahead_s := _clock_ahead_s(path)):
                    changed_from = changed_at - CLOCK_S - ahead_s
                    if writer := self._unsuccessful.writer_of(path, changed_from, changed_at + START_S):
                        return f"its output {path} was changed by the {writer}"
                    if not self._overwrites:
                        raise BadInput(
                            f"{path} changed after task {earlier['source']} had made it, and would be replaced",
                            "Copy it to another name to keep this version, or allow the task to replace it: --overwrite",
                        )
                    return f"its output {path} was changed after the task had ended"
        return ""

    def _ask(self, keys: bytes | bytearray, more: dict[str, Any]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._session.ask("results", keys=b64encode(keys).decode(), **more)
        return rows

    def explain(self, run: int) -> Iterator[NotReused]:
        """Yields the tasks of the run that did not get an earlier result, each with the reason."""
        reasons = ReuseReasons(self._session, run)
        tasks = all_tasks(self._session, run)
        for first in range(0, len(self._keys), CHUNK * KEY_BYTES):
            keys = bytes(self._keys[first : first + CHUNK * KEY_BYTES])
            rows = list(islice(tasks, CHUNK))
            answers = [] if all(task["reused_from"] for task in rows) else self._ask(keys, {"explain": True, "run": run})
            for place, task in enumerate(rows[: len(keys) // KEY_BYTES]):
                index, record = task["index"], keys[place * KEY_BYTES : (place + 1) * KEY_BYTES]
                new = NewTask(task["id"], index, record, self._inputs.get(index, ()), self._needed.get(index, ()))
                file, program = self._changed.get(index, (NO_CHANGE, NO_CHANGE))
                if task["reused_from"] is not None:
                    reasons.note_reused(new)
                elif index in self._outdated:
                    yield reasons.note_not_reused(new, "output", self._outdated[index])
                elif record == _NO_RECORD:
                    yield reasons.note_not_reused(new, *_CANNOT_BE_COMPARED)
                elif answers[place].get("ended_at", file.at) < file.at:
                    yield reasons.note_changed(new, file.file, answers[place], "ended")
                elif answers[place].get("started_at", program.at) < program.at:
                    yield reasons.note_changed(new, program.file, answers[place], "started")
                else:
                    yield reasons.compare(new, answers[place])


def _written_at(path: str, started_at: float) -> float:
    """Returns the time at which an output file got its content. ``started_at``: start of the task that made the file.

    This is usually the modification time. A later status change does not count, because it can be a ``chmod`` or a hard link. But if the
    modification time is before the start of the task, somebody probably restored the file or moved it here. The time of the status change
    counts then.
    """
    status = os.stat(path)
    return status.st_ctime if status.st_mtime < started_at - START_S else status.st_mtime


def _clock_ahead_s(path: str) -> float:
    """Returns how many seconds the clock of the file system is ahead of the clock of this machine. A file system of an NFS server has its
    own clock."""
    try:
        with TemporaryFile(dir=os.path.dirname(path) or ".") as file:
            return max(0.0, os.fstat(file.fileno()).st_mtime - time.time())
    except OSError:
        return 0.0


def _is_missing(name: str) -> bool:
    """Returns whether a file does not exist. Returns False for a name such as ``$OUT`` that only the shell can expand."""
    return not set(name) & set("$`*?[\\'\"") and not os.path.lexists(name)


_NO_RECORD = bytes(KEY_BYTES)
_CANNOT_BE_COMPARED = "not-comparable", "Pilotfish cannot compare it, or a task that it needs, with earlier tasks"
