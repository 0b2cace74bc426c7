"""Names the current directory of this program, which another process has possibly removed."""

from __future__ import annotations

import os
from collections.abc import Callable

from pilotfish.errors import BadInput

_MAX_PATH_BYTES = 4096


def current_directory() -> str | None:
    """Returns the current directory, or None if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def directory_reader() -> Callable[[], bytes | str | None]:
    """Returns a function that reads the current directory without releasing the GIL, to be called before each task.

    ``os.getcwd`` releases the GIL. In a loop of submissions, the thread that receives results would take the GIL at each call. With these
    switches, a program submitted about a tenth fewer calls per second.
    """
    try:
        import ctypes  # only programs that submit calls need it

        getcwd = ctypes.PyDLL(None).getcwd
    except (ImportError, OSError, AttributeError):  # Python can be built without ctypes
        return current_directory
    getcwd.argtypes, getcwd.restype = (ctypes.c_char_p, ctypes.c_size_t), ctypes.c_void_p
    buffer = ctypes.create_string_buffer(_MAX_PATH_BYTES)
    return lambda: buffer.value if getcwd(buffer, _MAX_PATH_BYTES) else current_directory()


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
