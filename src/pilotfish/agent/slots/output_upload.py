"""Files that a task leaves and that are too large for its result: the slot moves them to the outbox and names them in its report, as
[name, mode, size, path] or, if they are to stay with this worker, [name, mode, size, path, true]. In the result they are
[name, mode, digest, size].
"""

from __future__ import annotations

import json
import os
from typing import Any, Iterator, List, Sequence, Tuple

from ...portable.payload_format import pack, unpack
from .sandbox_names import SandboxError, name_parts

MARK = b'{"stow"'
"""A report that names such files begins like this."""
NAMES_BYTES = 4 * 1024 * 1024
"""So much may their names take in a header, at most; those beyond cannot be handed on."""


def _promisable(name: Any) -> str:
    """Nothing if the master could not read it, or no task could have it: then it cannot be handed on."""
    try:
        name_parts(name)
        name.encode()
    except (SandboxError, UnicodeEncodeError):
        return ""
    return str(name)


class OutputReport:
    """The report of an executable, for the time that its files are put away. Paths come from a slot: only their last part is believed."""

    def __init__(self, payload: Any, outbox: str) -> None:
        self._parts: List[Any] = list(unpack(payload))
        self._said = json.loads(bytes(self._parts[0]))
        self._outbox = outbox

    def files(self) -> Iterator[Tuple[str, int, str, bool]]:
        """Name, mode, path and whether it stays here, of those that are to be put away. A slot can be made to say anything."""
        room = NAMES_BYTES
        for entry in self._said["files"]:
            if len(entry) > 2:
                name, path = _promisable(entry[0]), os.path.join(self._outbox, os.path.basename(entry[3]))
                room -= 6 * len(name)
                yield name if room >= 0 else "", int(entry[1]) & 0o777, path, len(entry) > 4

    def stowed(self, contents: Sequence[Tuple[str, int]]) -> bytes:
        """The payload of the result; ``contents``: digest and size of those files, in order."""
        where = iter(contents)
        return self._packed([[*entry[:2], *next(where)] if len(entry) > 2 else entry for entry in self._said["files"]], self._parts[1:])

    def without_files(self) -> bytes:
        """The payload if they could not be put away."""
        return self._packed([], self._parts[1:3])

    def _packed(self, files: List[Any], parts: List[Any]) -> bytes:
        said = {**self._said, "files": files}
        del said["stow"]
        return pack([json.dumps(said).encode(), *parts])
