"""Saves the environment variables and the Python interpreter of the command that starts an application. The manager of the application then
runs with the saved environment and interpreter.

The process of the manager is a child of the master. Without the saved values, the manager would have the environment of the master, and
possibly somebody started the master from a different shell or virtual environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pilotfish.model.environment import without_secrets

OURS = "PILOTFISH_"


def save_environment(directory: Path, uid: str) -> None:
    """Saves the interpreter and the environment of this process for the run with this ``uid``. Leaves out variables whose names look like
    secrets."""
    descriptor = os.open(_path(directory, uid), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump({"interpreter": sys.executable, "variables": without_secrets(os.environ)}, file)


def use_environment(directory: Path, uid: str) -> None:
    """Replaces the environment of this process by the saved environment. Keeps the variables whose names begin with ``PILOTFISH_``."""
    _use_variables(_read(directory, uid).get("variables"))


def use_interpreter(directory: Path, uid: str, module: str, arguments: Sequence[str]) -> None:
    """Replaces this process by ``module``, run with the saved environment and interpreter. Does nothing if this process already uses the
    saved interpreter, or if the saved interpreter does not exist any more."""
    saved = _read(directory, uid)
    interpreter = str(saved.get("interpreter", ""))
    if interpreter in ("", sys.executable) or not os.access(interpreter, os.X_OK):
        return
    _use_variables(saved.get("variables"))
    os.execv(interpreter, [interpreter, "-m", module, *arguments])


def _read(directory: Path, uid: str) -> dict[str, Any]:
    """Returns the saved values; empty if nothing was saved for the run, or if the file is damaged."""
    try:
        saved = json.loads(_path(directory, uid).read_text(encoding="utf-8", errors="surrogateescape"))
    except (OSError, ValueError):
        return {}
    return saved if isinstance(saved, dict) else {}


def _use_variables(saved: Any) -> None:
    if not isinstance(saved, dict):
        return
    ours = {name: value for name, value in os.environ.items() if name.startswith(OURS)}
    os.environ.clear()
    os.environ.update({str(name): str(value) for name, value in saved.items() if not name.startswith(OURS)} | ours)


def forget_environment(directory: Path, uid: str) -> None:
    with suppress(OSError):
        _path(directory, uid).unlink()


def _path(directory: Path, uid: str) -> Path:
    # The client chooses the uid, and the uid can contain any characters.
    return directory / f"environment-{hashlib.sha256(uid.encode()).hexdigest()[:32]}.json"
