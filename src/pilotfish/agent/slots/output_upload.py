"""Lists large output files in a report until they are stored.

The slot moves files that are too large for the result to the outbox and lists them in its report as [name, mode, size, path] or, if they
stay with this worker, [name, mode, size, path, true]. In the result they are [name, mode, digest, size].
"""

from __future__ import annotations

import json
import os
from typing import Any, Iterator, List, Sequence, Tuple

from ...portable.failures import AttemptError
from ...portable.payload_format import pack, unpack
from .sandbox import name_parts

MARK = b'{"stow"'
"""Prefix of a report that lists such files."""
MAX_NAMES_BYTES = 4 * 1024 * 1024
"""Maximum bytes of file names in a header; files beyond it cannot be passed to other tasks."""


def _usable_name(name: Any) -> str:
    """The name, or "" if the master could not read it or no task could have it: then it cannot be passed on."""
    try:
        name_parts(name)
        name.encode()
    except (AttemptError, UnicodeEncodeError):
        return ""
    return str(name)


class OutputReport:
    """The report of an executable while its files are stored. User code can forge it: only the last component of a path is used."""

    def __init__(self, payload: Any, outbox: str) -> None:
        self._parts: List[Any] = list(unpack(payload))
        self._summary = json.loads(bytes(self._parts[0]))
        self._outbox = outbox

    def files(self) -> Iterator[Tuple[str, int, str, bool]]:
        """Name, mode, path and whether it stays here, of the files to store. User code can forge a report."""
        left = MAX_NAMES_BYTES
        for entry in self._summary["files"]:
            if len(entry) > 2:
                name, path = _usable_name(entry[0]), os.path.join(self._outbox, os.path.basename(entry[3]))
                left -= 6 * len(name)
                yield name if left >= 0 else "", int(entry[1]) & 0o777, path, len(entry) > 4

    def with_contents(self, contents: Sequence[Tuple[str, int]]) -> bytes:
        """The payload of the result; ``contents``: digest and size of the stored files, in order."""
        stored = iter(contents)
        return self._packed([[*entry[:2], *next(stored)] if len(entry) > 2 else entry for entry in self._summary["files"]], self._parts[1:])

    def without_files(self) -> bytes:
        """The payload if the files could not be stored."""
        return self._packed([], self._parts[1:3])

    def _packed(self, files: List[Any], parts: List[Any]) -> bytes:
        summary = {**self._summary, "files": files}
        del summary["stow"]
        return pack([json.dumps(summary).encode(), *parts])
