"""Commands that a person is told to type name the pool that is meant, wherever a bare command would mean another.

All that is written by ``Screen.line``, and the commands in JSON, go through here; cells of tables, which hold the person's own words,
do not.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import Any

from pilotfish.plugins import SECTIONS

DEFAULT_POOL = "default"
POOL_VARIABLE = "PILOTFISH_POOL"
TOLD = ("commands", "cure", "hint")
"""What commands are called in JSON."""

_pool: str | None = None
_loaded: dict[str, None] = {}
"""Commands of plug-ins that were loaded and take ``--pool``."""


def commands_of_pool() -> list[str]:
    """Commands with an option ``--pool``."""
    found: list[str] = []
    for name, entry in ((name, entry) for section in SECTIONS.values() for name, entry in section.items()):
        found += [name] if entry.pool is True else [f"{name} {part}" for part in entry.pool or ()]
    return list(dict.fromkeys([*found, *_loaded]))


def note_command_of_pool(name: str) -> None:
    """Hints may name this command, and it takes ``--pool``."""
    _loaded[name] = None


def mean(pool: str | None) -> None:
    """From now on hints are about this pool; None: about no pool in particular, as at the start of every command."""
    global _pool
    _pool = pool
    if pool is None:
        _loaded.clear()


def aimed(text: str) -> str:
    """The text with ``--pool`` in the commands that it names, if they need it."""
    if _pool is None or _pool == DEFAULT_POOL == (os.environ.get(POOL_VARIABLE) or DEFAULT_POOL):
        return text
    option = f"--pool {shlex.quote(_pool)}"
    command = re.compile(rf"\bpilotfish ({'|'.join(map(re.escape, commands_of_pool()))})(?![\w-])(?!.* --pool\b)")
    return command.sub(lambda found: f"{found[0]} {option}", text)


def aimed_data(data: Any, told: bool = False) -> Any:
    """The same for what is printed as JSON."""
    if isinstance(data, dict):
        return {name: aimed_data(value, told or name in TOLD) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [aimed_data(item, told) for item in data]
    return aimed(data) if told and isinstance(data, str) else data
