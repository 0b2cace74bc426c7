"""Copies the output files of a run to their destinations.

Any client can copy the files of a run, even while a second client copies the same files. The ledger of a run, ``delivered-N.jsonl`` in the
pool directory, lists the files that were copied. A file at a destination belongs to the user if it is not in this ledger, or if it was
changed after the copy. Files of the user are replaced only with ``--overwrite``. There are two exceptions, for unchanged files that earlier
runs of the pool have copied: any run replaces such files of failed tasks, and a run with ``--resume`` replaces all such files. A file of a
task that started later is kept, also if the run itself has ``--overwrite`` or ``--resume``: only ``attach --overwrite``
replaces it. If two output files of one run have the same destination, the second file never replaces the first.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from pilotfish.applications.destinations import known_destination
from pilotfish.applications.input_files import MODE_MASK, StoredFile
from pilotfish.applications.safe_paths import check_name, status_below, write_below
from pilotfish.client.outputs.delivery_ledger import EarlierFiles, LedgerEntry, ledger_path, read_entries
from pilotfish.client.outputs.output_destinations import OutputDestinations, read_destinations
from pilotfish.client.outputs.task_output import TaskOutput, fetch_outputs
from pilotfish.client.session import PoolSession, all_tasks
from pilotfish.errors import BadInput, PilotfishError, TaskFailed

SHOWN_DIRECTORIES = 3
"""Maximum number of directories in the line that says where the output files are."""


@dataclass(slots=True)
class DeliveredFiles:
    """Counts the output files of a run that are at their destinations, and the output files that stayed on workers."""

    run: int
    files: int = 0
    stayed: int = 0
    directories: set[str] = field(default_factory=set)
    kept_back: list[str] = field(default_factory=list)
    """Destinations that were not written, because each of them has a file that must not be replaced."""
    newer: dict[str, str] = field(default_factory=dict)
    """Destinations that were not written, because a task of another run that started later made the file there; each with this run."""
    outdated: dict[str, None] = field(default_factory=dict)
    """Output directories of failed tasks that still contain files from elsewhere, such as files of an earlier run."""
    collision: str = ""
    """A message about the first destination that two output files of the run have in common."""
    renamed: str = ""
    """A message about the first stream whose file has another name, because an output file has the name of the stream."""
    problem: PilotfishError | None = None
    """The first error that prevented the copy of a file."""
    again: str = ""
    """Command that copies the files again. A message can add the option --overwrite to it."""

    def __post_init__(self) -> None:
        self.again = self.again or f"pilotfish attach {self.run}"

    def describe(self) -> str:
        """Returns a line such as ``2 files in run-1/``. Returns an empty text if there are no files."""
        parts = [f"{_count(self.files)} in {self._places()}"] if self.files else []
        parts += [f"{_count(self.stayed)} stayed on the workers: pilotfish data {self.run}"] if self.stayed else []
        if self.newer:
            first, many = next(iter(self.newer)), len(self.newer) > 1
            files = f"{first} and {len(self.newer) - 1:,} more were" if many else f"{first} was"
            makers = list(dict.fromkeys(self.newer.values()))
            made = f"{files} made later by run{'s' * (len(makers) > 1)} {', '.join(makers)} and {'are' if many else 'is'} kept"
            parts.append(f"{made}; to replace {'them' if many else 'it'}: {self.again} --overwrite")
        if self.outdated:
            first, *others = self.outdated
            more = f" and {len(others):,} more" if others else ""
            verb = "have" if others else "has"
            parts.append(f"{first}/{more} still {verb} files that run {self.run} did not make, because tasks failed")
        return "; ".join(parts)

    @property
    def directory(self) -> str:
        """The deepest directory that contains all copied files. The directory INDEX of a single task does not count, but the directory
        above it. The path is relative if the directory is below the current directory, and absolute otherwise."""
        common = os.path.commonpath(self.directories) if self.directories else ""
        relative = os.path.relpath(common) if common else "."
        return common if relative.startswith("../") or relative == ".." else relative

    def _places(self) -> str:
        """Returns the directory of the files as text. If the only common directory is the current directory, names the directories in it
        that have the files."""
        if self.directory != ".":
            return f"{self.directory}/"
        names = sorted({os.path.relpath(directory).partition("/")[0] for directory in self.directories})
        more = len(names) - SHOWN_DIRECTORIES
        return ", ".join(f"{name}/" for name in names[:SHOWN_DIRECTORIES]) + (f" and {more:,} more" if more > 0 else "")

    def as_data(self) -> dict[str, object]:
        return {"files": self.files, "files_at": self.directory if self.files else None, "not_overwritten": [*self.kept_back, *self.newer]}

    def error(self) -> PilotfishError | None:
        """Returns the error to show if not all files are at their destinations."""
        if self.problem is not None:
            fix = f"{self.problem.hint}; then: {self.again}"
            return PilotfishError(f"not all output files of run {self.run} were copied: {self.problem}", fix)
        if self.collision:
            fix = (
                f"Save the files of each task apart: pilotfish results {self.run} --save DIR; in the next run, use {{#}} in the destination"
            )
            return PilotfishError(self.collision, fix)
        if not self.kept_back:
            return None
        more = f" and {_count(len(self.kept_back) - 1)} more" if len(self.kept_back) > 1 else ""
        text = f"{self.kept_back[0]}{more} exists and was not made by run {self.run}, or was changed since, so it was not overwritten"
        fix = f"Move it away and type: {self.again}; or overwrite it: {self.again} --overwrite"
        return PilotfishError(text, fix)


def _count(files: int) -> str:
    return f"{files:,} file{'' if files == 1 else 's'}"


class OutputDelivery:
    """Copies output files of one run."""

    def __init__(self, pool: Path, run: int, destinations: OutputDestinations, overwrite: bool = False) -> None:
        self.found = DeliveredFiles(run)
        self._destinations = destinations
        self._replaces_newer = overwrite
        self._overwrite = overwrite or destinations.overwrite
        self._earlier = EarlierFiles(pool, bool(destinations.resumes))
        self._entries: dict[str, LedgerEntry] = {}
        self._read_bytes = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._ledger = open(os.open(ledger_path(pool, run), flags, 0o600), "a+b", buffering=0)  # noqa: SIM115 (kept open)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the ledger for the ``with`` block and reads its new entries. Waits while another client copies files of the run."""
        with suppress(OSError):  # on a file system without locks, two clients can copy the same file
            fcntl.flock(self._ledger, fcntl.LOCK_EX)
        try:
            self._read()
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(self._ledger, fcntl.LOCK_UN)

    def copy(self, index: int, files: dict[str, StoredFile], failed: bool = False) -> DeliveredFiles:
        """Copies the output files of one task, and counts only these files."""
        self.found = DeliveredFiles(self.found.run)
        with self.locked():
            self.copy_task(index, files, failed)
        return self.found

    def copy_task(self, index: int, files: dict[str, StoredFile], failed: bool = False, started_at: float = 0.0) -> None:
        """Copies the output files of a task. If a file cannot be copied, continues with the next file. Only the first error of the run is
        stored. ``failed``: whether the task failed. ``started_at``: start of its last attempt; files of attempts that started later are
        kept. 0 if it is not known."""
        for name, file in files.items():
            try:
                check_name(name, "files")
                place = self._destinations.find(index, name)
                if file.data is None and (file.path is None or not file.path.exists()):
                    self.found.stayed += 1
                elif place is not None:
                    digest = file.digest or hashlib.sha256(file.data or b"").hexdigest()
                    self._copy(LedgerEntry(index, digest, 0, 0, 0, name, failed, started_at), file, place)
            except (BadInput, TaskFailed) as problem:
                self.found.problem = self.found.problem or problem
            except OSError as error:
                what = f"{error.filename or name}: {(error.strerror or str(error)).lower()}"
                self.found.problem = self.found.problem or PilotfishError(what, "see what is there")

    def note_outdated(self, index: int) -> None:
        """Adds to ``outdated`` the output directories of a failed task that contain files from elsewhere, such as files of an earlier
        run."""
        places = self._destinations
        known = (known_destination(name, text) for name, text in places.by_task.get(index, {}).items())
        paths = [f"{places.base}/{os.path.normpath(path)}" for path in known if path is not None]
        if places.into:
            paths += [f"{directory}/{name}" for directory, _, names in os.walk(f"{places.into}/{index}") for name in names]
        self.found.outdated.update(
            (os.path.relpath(os.path.dirname(path)), None) for path in paths if path not in self._entries and os.path.isfile(path)
        )

    def _copy(self, made: LedgerEntry, file: StoredFile, place: tuple[str, str]) -> None:
        """Copies a file. ``made``: the new entry, without the status of the copied file."""
        directory, relative = place
        path = f"{directory}/{relative}"
        status = status_below(directory, relative) if os.path.isdir(directory) else None
        other = self._other_output(path, status, made) if status is not None else None
        later = self._later_run(path, status, made) if status is not None else ""
        if status is not None and (other is not None or later or not self._may_replace(path, status)):
            if not _has_content(path, status, file.size, made.digest):
                self._keep(os.path.relpath(path), made, other, later)
                return
        elif status is None or not self._is_current(path, status, made):

            def note(status: os.stat_result) -> None:
                self._note(path, made._replace(size=status.st_size, inode=status.st_ino, mtime_ns=status.st_mtime_ns))

            write_below(directory, relative, file.checked(), file.mode & MODE_MASK, new=status is None, note=note)
        elif self._entries[path].started_at < made.started_at:
            self._note(path, self._entries[path]._replace(started_at=made.started_at))
        self.found.files += 1
        self.found.directories.add(directory if relative.startswith(f"{made.task}/") else os.path.dirname(path))

    def _keep(self, shown: str, made: LedgerEntry, other: LedgerEntry | None, later: str) -> None:
        """Notes a file that stays as it is. ``other``, ``later``: the answers of ``_other_output`` and ``_later_run``."""
        if other is None and later:
            self.found.newer[shown] = later
            return
        self.found.kept_back.append(shown)
        if other is not None:
            makers = f"{other.name or 'a file'} of task {other.task} and {made.name} of task {made.task}"
            self.found.collision = self.found.collision or f"{shown} is the destination of {makers}; only the first was copied"

    def _own_copy(self, path: str, status: os.stat_result) -> LedgerEntry | None:
        """Returns the ledger entry of the file at ``path`` if the run has copied the file and nobody has changed it since."""
        entry = self._entries.get(path)
        return entry if entry is not None and entry.is_unchanged(status) else None

    def _other_output(self, path: str, status: os.stat_result, made: LedgerEntry) -> LedgerEntry | None:
        """Returns the ledger entry of the file at ``path`` if the file is an unchanged copy of a different output file of this run."""
        entry = self._own_copy(path, status)
        return entry if entry is not None and (entry.task != made.task or entry.name not in ("", made.name)) else None

    def _later_run(self, path: str, status: os.stat_result, made: LedgerEntry) -> str:
        """Returns a different run that has copied the file at ``path`` from a task that started later."""
        if self._replaces_newer or not made.started_at or self._own_copy(path, status) is not None:
            return ""
        return self._earlier.later_run(path, status, made.started_at)

    def _may_replace(self, path: str, status: os.stat_result) -> bool:
        """Returns whether the run is allowed to replace the file at ``path``, for example because the run itself has copied this file."""
        return self._own_copy(path, status) is not None or self._overwrite or not self._earlier.first_protected(path, status)

    def _is_current(self, path: str, status: os.stat_result, made: LedgerEntry) -> bool:
        entry = self._own_copy(path, status)
        return entry is not None and (entry.digest, entry.failed) == (made.digest, made.failed)

    def _read(self) -> None:
        """Reads the entries that this or another client has added since the last call."""
        self._ledger.seek(self._read_bytes)
        written = self._ledger.read()
        self._read_bytes += len(written)
        if written and not written.endswith(b"\n"):  # a client was killed while it was writing the last line
            self._read_bytes += self._ledger.write(b"\n") or 0
        self._entries.update(read_entries(written))

    def _note(self, path: str, entry: LedgerEntry) -> None:
        """Adds a copied file to the ledger. This happens before the file gets its name, so the ledger lists every copied file even if the
        client is killed."""
        self._entries[path] = entry
        self._ledger.write(json.dumps([path, *entry]).encode() + b"\n")


def _has_content(path: str, status: os.stat_result, size: int, digest: str) -> bool:
    if status.st_size != size:
        return False
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except OSError:
        return False


def deliver_outputs(master: PoolSession, run: int, overwrite: bool = False) -> DeliveredFiles | None:
    """Copies the output files of a run. Returns None if the run has no output files to copy."""
    destinations = read_destinations(master.directory, run)
    if destinations is None:
        return None
    delivery = OutputDelivery(master.directory, run, destinations, overwrite)
    with delivery.locked():
        for output in fetch_outputs(master, all_tasks(master, run)):  # failed tasks too: their files can show the cause
            index, failed = output.row["index"], output.row["state"] == "failed"
            if output.completed is not None:
                delivery.copy_task(index, output.completed.files, failed, output.row["started_at"] or 0.0)
            if failed:
                delivery.note_outdated(index)
    if destinations.new_directory:
        with suppress(OSError):
            os.rmdir(destinations.into)  # succeeds only if no task left a file
    return delivery.found


def save_outputs(master: PoolSession, run: int, directory: str, overwrite: bool = False) -> DeliveredFiles:
    """Writes the output files, standard output, standard error and Python values of the tasks of a run to ``directory``/INDEX/."""
    try:
        os.makedirs(directory, exist_ok=True)
        place = os.path.realpath(directory)
        delivery = OutputDelivery(master.directory, run, OutputDestinations(place, place), overwrite)
    except OSError as error:
        what = f"{error.filename or directory}: {(error.strerror or str(error)).lower()}"
        fix = f"Elsewhere: pilotfish results {run} --save DIR"
        raise PilotfishError(f"the files of run {run} cannot be written: {what}", fix) from error
    delivery.found.again = f"pilotfish results {run} --save {shlex.quote(directory)}"
    with delivery.locked():
        for output in fetch_outputs(master, all_tasks(master, run)):
            if output.row["state"] in ("done", "failed"):
                delivery.copy_task(output.row["index"], output.files_to_save(), output.row["state"] == "failed")
                delivery.found.renamed = delivery.found.renamed or _renamed_stream(output)
    return delivery.found


def _renamed_stream(output: TaskOutput) -> str:
    index = output.row["index"]
    for name, file in output.stream_names().items():
        if name != file:
            what = {"stdout": "standard output", "stderr": "standard error"}[name]
            return f"{index}/{name} is an output file, so the {what} of the task is in {index}/{file}"
    return ""
