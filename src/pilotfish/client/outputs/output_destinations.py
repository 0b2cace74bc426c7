"""Records the destinations of the output files of a run, so that every client copies the files to the same places.

The record is the file ``outputs-N.jsonl`` in the pool directory. The client that submits the run writes the record before it submits the
first task with output files. So a client that attaches later knows all destinations, even if the first client was killed.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pilotfish.applications.destinations import destination_of, known_destination, output_directory
from pilotfish.applications.safe_paths import status_below
from pilotfish.applications.sweeps.placeholders import find_placeholders
from pilotfish.client.outputs.delivery_ledger import EarlierFiles
from pilotfish.errors import BadInput, PilotfishError
from pilotfish.store.pool_directory import pool_home

if TYPE_CHECKING:
    from pilotfish.client.descriptions.run_options import RunRequest

MAX_DIRECTORIES = 10_000


class OutputSource(Protocol):
    """Tasks with output files. See ``TaskSource``."""

    @property
    def count(self) -> int: ...

    @property
    def has_undirected_files(self) -> bool: ...

    def destinations(self) -> dict[int, dict[str, str]]: ...


_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class OutputDestinations:
    """The destinations of a run's output files."""

    base: str
    """Directory to which the destinations are relative."""
    into: str = ""
    """Directory for output files without a destination. The file NAME of task INDEX becomes INDEX/NAME in it. If ``into`` is empty, these
    files are not copied."""
    overwrite: bool = False
    """Whether to replace files that the run has not made."""
    new_directory: bool = False
    """Whether ``into`` is a new directory ``run-N`` below ``base``. ``record`` creates this directory."""
    resumes: str = ""
    """The pool directory if the run resumes earlier work, otherwise empty. A run that resumes is allowed to replace files that earlier runs
    of the pool copied."""
    by_task: dict[int, dict[str, str]] = field(default_factory=dict)
    """Destinations by the index of the task and the name of its output, such as ``{0: {"out.csv": "results/0.csv"}}``."""

    def find(self, index: int, name: str) -> tuple[str, str] | None:
        """Returns where to copy a file of a task: a directory, and the path below this directory. Returns None if the file is not
        copied."""
        destination = destination_of(name, self.by_task[index]) if index in self.by_task else None
        if destination is not None:
            return self.base, destination
        return (self.into, f"{index}/{name}") if self.into else None

    def check(self, pool: Path, tasks: int | None = None) -> None:
        """Raises BadInput if two output files have the same destination, or if a destination already exists and must not be replaced.

        ``pool``: the pool directory. ``tasks``: number of tasks of the run. If ``tasks`` is given, the directories ``into``/INDEX are
        checked too.
        """
        earlier = EarlierFiles(pool, bool(self.resumes))
        makers: dict[str, tuple[int, str]] = {}
        for index, name, path in self._known():
            other, other_name = makers.setdefault(path, (index, name))
            if other != index:
                fix = "give each task another destination, for example with the task number {#}"
                raise BadInput(f"outputs: task {other} and task {index} would both write {path}", fix)
            if other_name != name:
                raise BadInput(f"outputs: {other_name} and {name} would both become {path}", "give each file another destination")
            if not self.overwrite:
                refuse_existing(self.base, path, f"{name}={path}", earlier)
        if self.overwrite or not self.into or tasks is None:
            return
        # Only the names that tasks use: 007 is another directory than 7.
        taken = {int(entry) for entry in _entries(self.into) if entry.isdecimal() and str(int(entry)) == entry}
        used = (_used(f"{self.into}/{index}", earlier) for index in sorted(taken) if index < tasks)
        if first := next(filter(None, used), ""):
            raise _exists(first, "--into")

    def _known(self) -> Iterator[tuple[int, str, str]]:
        for index, destinations in self.by_task.items():
            for name, destination in destinations.items():
                path = known_destination(name, destination)
                if path is not None:
                    yield index, name, os.path.normpath(path)

    def record(self, pool: Path, run: int) -> None:
        """Writes the record of a run. Makes the directory of its output files, so that a problem is found before the first task starts."""
        if self.new_directory:
            self.into = _make_directory(self.base, run)
        elif self.into:
            _make(self.into)
        header = {"base": self.base, "into": self.into, "overwrite": self.overwrite, "new_directory": self.new_directory}
        header["resumes"] = self.resumes
        lines = [json.dumps(header), *(json.dumps([index, destinations]) for index, destinations in self.by_task.items())]
        self._append(pool, run, lines, sync=True)

    def add(self, pool: Path, run: int, index: int, destinations: dict[str, str]) -> None:
        """Adds the destinations of one task to the record."""
        self.by_task[index] = destinations
        self._append(pool, run, [json.dumps([index, destinations])])

    @staticmethod
    def _append(pool: Path, run: int, lines: list[str], sync: bool = False) -> None:
        try:
            with open(os.open(_record_path(pool, run), _FLAGS, 0o600), "ab") as file:
                file.write("".join(f"{line}\n" for line in lines).encode())
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            text = f"the destinations of output files cannot be written to {pool}: {error.strerror}"
            raise PilotfishError(text, "free some space (or quota) and submit it again") from error


def plan_outputs(request: RunRequest, source: OutputSource | None, has_files: bool) -> OutputDestinations | None:
    """Checks the destinations of all output files of ``pilotfish run``. Returns None if the run has no output files to copy.

    ``source``: the tasks of a command, sweep, task list or run file; None for an application whose manager creates the tasks later.
    ``has_files``: whether tasks can leave output files.
    """
    by_task = source.destinations() if source is not None else {}
    if request.into and any(find_placeholders(request.into)):
        fix = f"name the destination of each file: --output 'FILE={os.path.join(request.into, 'FILE')}'"
        raise BadInput(f"--into {request.into}: it is one directory for all tasks, and placeholders are not replaced", fix)
    if not has_files:
        if request.into is not None and source is not None:
            raise BadInput(f"--into {request.into}: the tasks have no output files", "name them: --output FILE")
        if request.into is None:
            return None
    undirected = source is None or source.has_undirected_files or bool(request.keep)
    base = output_directory(request.into or ".")
    into = base if request.into is not None else ""
    found = OutputDestinations(base, into, request.overwrite, new_directory=undirected and not into, by_task=by_task)
    pool = pool_home(request.pool).directory
    found.resumes = str(pool) if request.resume else ""
    found.check(pool, source.count if source is not None and undirected else None)
    return found


def read_destinations(pool: Path, run: int) -> OutputDestinations | None:
    """Reads the record of a run. Returns None if the run has no output files to copy."""
    found: OutputDestinations | None = None
    with suppress(OSError), open(_record_path(pool, run), "rb") as file:
        for line in file:
            try:
                row = json.loads(line)
            except ValueError:
                continue  # the client was killed while it was writing the last line
            if isinstance(row, dict):
                found = found or OutputDestinations(**row)
            elif found is not None:
                found.by_task[row[0]] = row[1]
    return found


def _record_path(pool: Path, run: int) -> Path:
    return pool / f"outputs-{run}.jsonl"


def refuse_existing(base: str, path: str, shown: str, earlier: EarlierFiles) -> None:
    """Raises BadInput if a destination is an existing file, or a directory that is not empty. ``path``: the destination, relative to
    ``base``. ``shown``: the option of the user, for the message. ``earlier``: decides which files of earlier runs are not refused."""
    if os.path.isdir(base) and status_below(base, path) is not None and (used := _used(f"{base}/{path}", earlier)):
        raise _exists(os.path.relpath(used, base), shown)


def _used(path: str, earlier: EarlierFiles) -> str:
    """Returns the path of the file or directory that would be overwritten: ``path`` itself, or a file in the directory ``path``. Returns an
    empty text if nothing would be overwritten."""
    status = os.lstat(path)
    if stat.S_ISDIR(status.st_mode) and not _entries(path):
        return ""
    return earlier.first_protected(path, status)


def _exists(path: str, shown: str) -> BadInput:
    fix = "name another destination, move it away, or allow it: --overwrite (overwrite=True in Python)"
    return BadInput(f"outputs: {shown}: {path} exists and would be overwritten", fix)


def _entries(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _make(directory: str) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), directory)
    except OSError as error:
        raise _unwritable(directory, error) from error


def _make_directory(base: str, run: int) -> str:
    """Makes the directory ``run-N``. If this directory exists, for example because a different pool made it, makes ``run-N-2``,
    ``run-N-3``, …"""
    for number in range(1, MAX_DIRECTORIES):
        directory = f"{base}/run-{run}" if number == 1 else f"{base}/run-{run}-{number}"
        try:
            os.mkdir(directory)
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(directory, error) from error
        return directory
    raise BadInput(f"outputs: there are too many directories like {base}/run-{run}", "name another directory: --into DIR")


def _unwritable(directory: str, error: OSError) -> BadInput:
    text = f"outputs: the directory {directory} for output files cannot be used: {(error.strerror or str(error)).lower()}"
    return BadInput(text, "name a directory that you can write to: --into DIR")
