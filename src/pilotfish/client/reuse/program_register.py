"""Stores which files were the programs of a run's tasks, as ``programs-N.jsonl`` in the pool directory.

The master has only one short hash per program. The register has the hash of each file, so ``--explain-cache`` can name the file that
changed, and a rerun can make new keys (see ``rerun_keys.py``).
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
        """Returns {short hash: {full hash: {path: hash of the content}}} for each program of the run. The short and the full hash are
        hashes of the program's code."""
        found: dict[bytes, dict[bytes, dict[str, str]]] = {}
        with suppress(OSError), open(self._path, "rb") as file:
            for line in file:
                with suppress(ValueError, TypeError):  # the client was killed while it was writing the last line
                    name, files = json.loads(line)
                    code = bytes.fromhex(name)
                    found.setdefault(code[:PART_BYTES], {})[code] = dict(files)
        return found
