"""Adds ``--pool NAME`` to printed commands, so that a command that the user copies acts on the same pool.

``Screen.line`` and ``Screen.json`` call this module. Cells of tables are not changed, because they contain text of the user.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import Any

from pilotfish.plugins import SECTIONS

DEFAULT_POOL = "default"
POOL_VARIABLE = "PILOTFISH_POOL"
COMMAND_KEYS = ("commands", "cure", "hint")
"""JSON keys that hold commands."""

_pool: str | None = None
_loaded: dict[str, None] = {}
"""Plug-in commands that are loaded and that have an option ``--pool``."""


def commands_with_pool() -> list[str]:
    """Return the commands that have an option ``--pool``."""
    found: list[str] = []
    for name, entry in ((name, entry) for section in SECTIONS.values() for name, entry in section.items()):
        found += [name] if entry.pool is True else [f"{name} {part}" for part in entry.pool or ()]
    return list(dict.fromkeys([*found, *_loaded]))


def register_pool_command(name: str) -> None:
    """Register a plug-in command that has an option ``--pool``."""
    _loaded[name] = None


def set_hint_pool(pool: str | None) -> None:
    """Set the pool that ``with_pool`` adds. With None, nothing is added. Each command starts with None."""
    global _pool
    _pool = pool
    if pool is None:
        _loaded.clear()


def with_pool(text: str) -> str:
    """Add ``--pool`` to the Pilotfish commands in the text, if they need it. They do not need it if this command uses the default pool and
    PILOTFISH_POOL names no other pool."""
    if _pool is None or _pool == DEFAULT_POOL == (os.environ.get(POOL_VARIABLE) or DEFAULT_POOL):
        return text
    option = f"--pool {shlex.quote(_pool)}"
    command = re.compile(rf"\bpilotfish ({'|'.join(map(re.escape, commands_with_pool()))})(?![\w-])(?!.* --pool\b)")
    return command.sub(lambda found: f"{found[0]} {option}", text)


def with_pool_in_data(data: Any, is_command: bool = False) -> Any:
    """Add ``--pool`` to the commands in JSON data. Texts under the keys in ``COMMAND_KEYS`` are commands. With ``is_command``, ``data``
    itself is a command."""
    if isinstance(data, dict):
        return {name: with_pool_in_data(value, is_command or name in COMMAND_KEYS) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [with_pool_in_data(item, is_command) for item in data]
    return with_pool(data) if is_command and isinstance(data, str) else data
