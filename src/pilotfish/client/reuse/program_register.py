"""Stores which files were the programs of a run's tasks, as ``programs-N.jsonl`` in the pool directory.

The master has only a short hash of each program. With the hashes of the files, ``--explain-cache`` names the file that changed, and a rerun
can make new keys. See ``rerun_keys.py``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pilotfish.applications.reuse.task_keys import ProgramFiles
from pilotfish.model.contents import PART_BYTES


class ProgramRegister:
    """The programs of one run. A write error is ignored, because a run works without a register."""

    def __init__(self, directory: Path, run: int | str) -> None:
        self._path = directory / f"programs-{run}.jsonl"

    def add(self, programs: Mapping[bytes, ProgramFiles]) -> None:
        """Adds programs by the hash of their code."""
        if not programs:
            return
        lines = [json.dumps([code.hex(), [[path, digest.hex()] for path, digest in files]]) for code, files in programs.items()]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError), open(os.open(self._path, flags, 0o600), "ab") as file:
            file.write("".join(f"{line}\n" for line in lines).encode())

    def read(self) -> dict[bytes, dict[bytes, dict[str, str]]]:
        """Maps the short hash of the code of a program to a dict. This dict maps the full hash of the code to the program's files, as
        {path: hash of the content}."""
        found: dict[bytes, dict[bytes, dict[str, str]]] = {}
        with suppress(OSError), open(self._path, "rb") as file:
            for line in file:
                with suppress(ValueError, TypeError):  # the client was killed while it wrote the last line
                    name, files = json.loads(line)
                    code = bytes.fromhex(name)
                    found.setdefault(code[:PART_BYTES], {})[code] = dict(files)
        return found
