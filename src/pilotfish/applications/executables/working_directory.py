"""Names the current directory of this program. Another process may have removed it."""

from __future__ import annotations

import os

from pilotfish.errors import BadInput


def current_directory() -> str | None:
    """Returns the current directory, or None if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def require_current_directory() -> str:
    """Returns the current directory. Raises BadInput if it was removed."""
    directory = current_directory()
    if directory is None:
        raise removed_directory_error()
    return directory


def removed_directory_error() -> BadInput:
    try:
        name = os.readlink("/proc/self/cwd").removesuffix(" (deleted)")
    except OSError:
        name = os.environ.get("PWD", "")
    return BadInput(f"the current directory {name} was removed".replace("  ", " "), "change to another directory, such as: cd ~")
