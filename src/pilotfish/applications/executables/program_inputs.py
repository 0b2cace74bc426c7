"""Finds the files that a sandbox must have for a command: the program, its scripts, and the user's own Python modules of these scripts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from pilotfish.applications.calls.own_modules import modules_below
from pilotfish.applications.input_files import Source
from pilotfish.applications.reuse.program_files import is_python_script, program_words
from pilotfish.errors import BadInput


def program_inputs(argv: Sequence[str], environment: Mapping[str, str]) -> dict[str, Source]:
    """Returns the files of a command that have relative paths, as {name in the sandbox: path}.

    - The program, if its name has a slash.
    - The scripts, such as ``sim.py`` in ``python sim.py``.
    - The user's own modules that these scripts possibly import. ``environment`` can contain a PYTHONPATH for the search.

    Raises BadInput if the program or a script is not below the current directory.
    """
    program, *others = program_words(argv)
    found: dict[str, Source] = {}
    for word in [program, *others] if "/" in program else others:
        if os.path.isabs(word) or not os.path.isfile(word):
            continue
        name = os.path.normpath(word)
        if name.startswith("../"):
            raise BadInput(
                f"{word!r} is outside of the current directory, and the task runs in a private directory",
                f"Give its full path: {os.path.abspath(word)}",
            )
        found[name] = word
        if is_python_script(word):
            found.update(_module_files(os.getcwd(), name, environment.get("PYTHONPATH", "")))
    return found


def newly_imported(sources: Mapping[str, str | None], python_path: str) -> dict[str, str]:
    """Searches the current versions of the inputs that are Python files. Returns the user's own modules that these files import and that
    are not inputs yet. ``sources``: the path of each input by its name in the sandbox."""
    found: dict[str, Source] = {}
    for name, path in sources.items():
        if path is not None and path.endswith(f"/{name}") and os.path.isfile(path) and is_python_script(path):
            found.update(_module_files(path.removesuffix(f"/{name}"), name, python_path))
    return {name: str(path) for name, path in uncovered(found, dict.fromkeys(sources, b"")).items()}


def uncovered(found: Mapping[str, Source], inputs: Mapping[str, Source]) -> dict[str, Source]:
    """Returns the files in ``found`` that are neither in ``inputs`` nor below a directory in ``inputs``. Both have names in the sandbox."""
    return {name: source for name, source in found.items() if not any(one in inputs for one in _with_parents(name))}


def _with_parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _module_files(directory: str, script: str, python_path: str) -> dict[str, Source]:
    """Returns the modules of a script as {name in the sandbox: path}. In the sandbox, Python must find them in the same way as here.

    So a module beside the script stays beside the script. A module below a relative directory of PYTHONPATH keeps its relative path. Other
    modules are not copied: Python finds them by the absolute paths of their directories.
    """
    path = os.path.join(directory, script)
    beside = os.path.dirname(os.path.realpath(path))
    relative = [os.path.join(directory, one) for one in python_path.split(os.pathsep) if one and not os.path.isabs(one)]
    found: dict[str, Source] = {}
    for file in modules_below(beside, *relative).files_for_script(path):
        if file.startswith(beside + os.sep):
            name = os.path.join(os.path.dirname(script), os.path.relpath(file, beside))
        else:
            name = os.path.relpath(file, directory)
        if not name.startswith("../"):
            found[name] = file
    return found
