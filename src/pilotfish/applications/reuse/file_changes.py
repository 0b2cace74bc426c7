"""Finds the times at which the files of a command got their contents."""

from __future__ import annotations

import os
import time
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import NamedTuple

from pilotfish.applications.task_needs import NO_CHANGE, LastChange

RECHECK_S = 0.02
"""Seconds for which a file is assumed to stay the same."""
CLOCK_S = 0.01
"""Seconds by which the clocks of the master and of a file system may differ."""
NOT_DATA = ("/proc/", "/sys/", "/dev/std", "/dev/fd/")


class PathChanges(NamedTuple):
    """The last changes of a link, and of the name of a directory, on the way to a file."""

    link: LastChange = NO_CHANGE
    directory: LastChange = NO_CHANGE


class FileChanges:
    """Reads when files changed. Remembers each status for a short time, because tasks have many files in common."""

    def __init__(self) -> None:
        self._statuses: dict[str, os.stat_result | None] = {}
        """Maps a path to its status, or to None if it has none."""
        self._paths: dict[str, PathChanges] = {}
        self._read_at = 0.0

    def status(self, path: str) -> os.stat_result | None:
        now = time.monotonic()
        if now - self._read_at > RECHECK_S:
            self._statuses.clear()
            self._paths.clear()
            self._read_at = now
        if path not in self._statuses:
            self._statuses[path] = file_status(path)
        return self._statuses[path]

    def of_program(self, path: str) -> LastChange:
        """Returns the last change of a program file, or of a link on the way to it. Returns NO_CHANGE if there is no such file.

        The status of a file with several hard links also changes when a link is added, for example when another conda environment is made.
        So the modification time of such a file counts. The content of a program is also a part of the key.
        """
        status = self._file_status(path)
        if status is None:
            return NO_CHANGE
        return max(_change(status.st_mtime if status.st_nlink > 1 else status.st_ctime, path), self._on_path(path).link)

    def of_data(self, path: str) -> LastChange:
        """Returns the last change of a data file, or of a link or directory on the way to it. Returns NO_CHANGE if there is no such file.

        Uses the time of the status change, because a file that was copied or moved to this place may have an old modification time.
        """
        status = self._file_status(path)
        return NO_CHANGE if status is None else max(_change(status.st_ctime, path), *self._on_path(path))

    def _file_status(self, path: str) -> os.stat_result | None:
        status = self.status(path)
        return None if status is None or not S_ISREG(status.st_mode) or path.startswith(NOT_DATA) else status

    def _on_path(self, path: str) -> PathChanges:
        """Returns the changes of links and directories that lead to a file, and of the path itself.

        A new entry sets both times of a directory. If the time of its status change differs from its modification time, the directory may
        have been renamed.
        """
        known = self._paths.get(path)
        if known is not None:
            return known
        self._paths[path] = found = PathChanges()  # links may form a circle
        parts = [os.path.dirname(path)]
        try:
            status = os.lstat(path)
            if S_ISLNK(status.st_mode):
                parts.append(os.path.join(parts[0], os.readlink(path)))
                found = PathChanges(link=_change(status.st_ctime, path))
            elif S_ISDIR(status.st_mode) and status.st_ctime_ns != status.st_mtime_ns:
                found = PathChanges(directory=_change(status.st_ctime, path))
        except (OSError, ValueError):
            return found
        for changes in (self._on_path(part) for part in parts if part not in ("", path)):
            found = PathChanges(*map(max, found, changes))
        self._paths[path] = found
        return found


def file_status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except (OSError, ValueError):
        return None


def _change(at: float, path: str) -> LastChange:
    return LastChange(max(0.0, at - CLOCK_S), path)
