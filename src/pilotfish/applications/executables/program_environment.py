"""Describes the environment and the Python interpreter of this program. The tasks of the program get both.

The environment of the agent on this machine is possibly different. The agent has the environment of the master, and possibly a different
program started the master earlier, in a different shell or virtual environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pilotfish
from pilotfish.applications.calls.own_modules import is_own
from pilotfish.applications.reuse.session_variables import stable_environment
from pilotfish.model.environment import without_secrets

NOT_INHERITED = ("PILOTFISH_", "BASH_FUNC_")
PROGRAM = uuid.uuid4().hex
"""Identifies this program, from its start to its end."""
PACKAGES = str(Path(pilotfish.__file__).parents[1])
"""The directory from which this program imports Pilotfish."""


def inherited_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables in ``environ`` that tasks get. The journal stores these variables, and it must contain no secrets and only
    UTF-8. So probable secrets and other bytes are left out, and also variables of Pilotfish and exported shell functions."""
    kept = without_secrets(environ).items()
    return {name: value for name, value in kept if not name.startswith(NOT_INHERITED) and _is_utf8(name) and _is_utf8(value)}


def _is_utf8(text: str) -> bool:
    """Tests whether a text from the operating system was UTF-8. Python decodes bytes that are not UTF-8 as lone surrogates."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def import_path() -> list[str]:
    """Returns the directories from which this program imports modules, without the standard library. Slots import from them too."""
    libraries = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    found: dict[str, None] = {}
    for entry in sys.path:
        place = os.path.realpath(entry or os.getcwd())
        is_library = place in libraries or (os.path.dirname(place) in libraries and not place.endswith("-packages"))
        if not is_library and os.path.exists(place):
            found[place] = None
    return list(found)


class ProgramEnvironment:
    """The current environment variables of this program. They are read again only after a change, so that ``version`` is fast: it is called
    for each task."""

    def __init__(self) -> None:
        # The dict inside of os.environ. To find changes, this dict is compared with its last copy.
        self._table: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
        self._seen: dict[Any, Any] | None = None
        self._version = 0
        self._variables: dict[str, str] = {}

    def version(self) -> int:
        """Returns a number that changes when the environment changes."""
        if self._table != self._seen:
            self._seen = dict(self._table)
            self._version += 1
            self._variables = inherited_environment(os.environ)
        return self._version

    def variables(self) -> dict[str, str]:
        """Returns the variables that the tasks of this program get."""
        self.version()
        return self._variables

    def of_calls(self, path: list[str]) -> dict[str, Any]:
        """Returns the entries of a launch description that describe this program to its Python calls. ``path``: the import path of the
        calls.

        ``surroundings`` is a hash of everything that must be the same for all calls in one slot: this program, its interpreter, its
        directories of installed packages, and its environment. If a program is started again, the hash is different. So its calls get
        slots in which earlier calls have left nothing behind.
        """
        variables = self.variables()
        installed = [place for place in path if not is_own(place)]
        described = json.dumps([PROGRAM, sys.executable, installed, stable_environment(variables)])
        return {
            "env": variables,
            "whole_env": True,
            "interpreter": [sys.executable, PACKAGES, pilotfish.__version__],
            "surroundings": hashlib.sha256(described.encode("utf-8", "surrogateescape")).hexdigest()[:32],
        }


program_environment = ProgramEnvironment()
"""The environment of this program, for all encoders."""
