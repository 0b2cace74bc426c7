"""Commands that a person is told to type name the pool that is meant, wherever a bare command would mean another.

All that is written by ``Screen.line``, and the commands in JSON, go through here; cells of tables, which hold the person's own words,
do not.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import Any

DEFAULT_POOL = "default"
POOL_VARIABLE = "PILOTFISH_POOL"
OF_A_POOL = (
    *(
        "attach",
        "cancel",
        "data",
        "doctor",
        "forecasts",
        "forget",
        "logs",
        "pause",
        "predict",
        "replay",
        "rerun",
        "results",
        "resume",
        "run",
        "set",
        "sites",
    ),
    *("site exec", "site log", "site login", "site show", "site test", "status", "stop", "tail", "tasks", "whatif", "why", "workers"),
)
"""Commands with an option ``--pool``."""
TOLD = ("commands", "cure", "hint")
"""What commands are called in JSON."""

_COMMAND = re.compile(rf"\bpilotfish ({'|'.join(OF_A_POOL)})(?![\w-])(?!.* --pool\b)")
_pool: str | None = None


def mean(pool: str | None) -> None:
    """From now on hints are about this pool; None: about no pool in particular."""
    global _pool
    _pool = pool


def aimed(text: str) -> str:
    """The text with ``--pool`` in the commands that it names, if they need it."""
    if _pool is None or _pool == DEFAULT_POOL == (os.environ.get(POOL_VARIABLE) or DEFAULT_POOL):
        return text
    option = f"--pool {shlex.quote(_pool)}"
    return _COMMAND.sub(lambda found: f"{found[0]} {option}", text)


def aimed_data(data: Any, told: bool = False) -> Any:
    """The same for what is printed as JSON."""
    if isinstance(data, dict):
        return {name: aimed_data(value, told or name in TOLD) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [aimed_data(item, told) for item in data]
    return aimed(data) if told and isinstance(data, str) else data
