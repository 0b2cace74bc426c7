"""Reads the destinations of output files: ``frame.png=frames/1.png`` copies the output file ``frame.png`` to ``frames/1.png``.

A destination is relative to the directory of the run. This is the directory of ``--into`` or ``into=``. If there is none, it is the current
directory of the command. A destination that ends with a slash is a directory, in which the file keeps its name.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from pilotfish.applications.safe_paths import check_name
from pilotfish.errors import BadInput, Correction
from pilotfish.model.contents import MAGIC

_SEPARATOR = re.compile(r"(?<!=)=(?!=)")
_FILE_WITH_SUFFIX = re.compile(r".*\.[A-Za-z]\w*")
_SLURM_PLACEHOLDER = re.compile(r"%[0-9]*[AaJjNnstux](?![A-Za-z0-9])")


def split_output(text: str) -> tuple[str, str]:
    """Splits ``NAME=DESTINATION``. For a ``NAME`` alone, returns an empty destination. ``==`` means an equals sign inside of a name."""
    parts = _SEPARATOR.split(text, maxsplit=1)
    name, destination = parts if len(parts) == 2 else (text, None)
    if destination == "" or not name:
        raise BadInput(f"--output {text}: the {'destination' if name else 'name'} is empty", "write --output NAME=DESTINATION")
    return name.replace("==", "="), (destination or "").replace("==", "=")


def check_typed_outputs(names: Sequence[str], option: str, typed: str, command: Sequence[str]) -> None:
    """Raises BadInput for values of ``--output`` or ``--keep`` that are no names of files: several names with commas, and Slurm's names for
    the printed output of a job, such as ``slurm-%j.out``. ``typed``: the whole command line. A name that occurs in ``command`` is valid."""
    for text in names:
        name, destination = split_output(text)
        if any(name in word for word in command):
            continue
        several = name.split(",")
        if len(several) > 1 and all(map(_FILE_WITH_SUFFIX.fullmatch, several)):
            words = [word for each in several for word in (option, each)]
            fix = f"Repeat the option: {shlex.join(words)}; for one file with this name: {option} {shlex.quote(name.replace(',', '?'))}"
            correction = Correction(fix, text, "", words[1:]) if not destination else fix
            raise BadInput(f"{option} {text}: it takes one name, and there are {len(several)}", correction)
        if placeholder := _SLURM_PLACEHOLDER.search(name):
            fix = "Leave it out. What a task prints is stored: pilotfish logs"
            joined = f"{option}={text}" in typed
            correction = Correction(fix, f"{option}={text}", "") if joined else Correction(fix, option, "", (), 2)
            what = f"{placeholder[0]!r} is a placeholder of Slurm, and {option} names a file that the task writes itself"
            raise BadInput(f"{option} {text}: {what}", correction)


def check_destination(name: str, destination: object, field: str) -> str:
    """Checks the destination of an output with this name, and returns it. The destination must be relative and must not contain ``..``.
    ``~`` at the beginning is the home directory, so it is not relative."""
    shown = f"{field}: {name}={destination}"
    if not isinstance(destination, (str, os.PathLike)):
        raise BadInput(f"{field}: the destination {destination!r} of {name!r} is not text", 'write {"frame.png": "frames/1.png"}')
    text = os.path.expanduser(os.fspath(destination))
    if text.startswith("/") or ".." in text.split("/"):
        fix = "give a path below the directory of the run; --into DIR (into= in Python) names another directory"
        raise BadInput(f"{shown}: the destination leads out of the directory of the run", fix)
    is_directory = text.endswith("/") or text == "."
    if MAGIC.intersection(name) and not is_directory:
        raise BadInput(f"{shown}: the pattern may match several files", f"end the destination with a slash: {name}={text}/")
    folder = text.rstrip("/")
    if is_directory and folder in ("", "."):
        return "./"
    checked = "/".join(check_name(folder, field))
    return f"{checked}/" if is_directory else checked


def output_directory(path: str | os.PathLike[str]) -> str:
    """Returns the absolute path of a directory for output files. ``~`` at the beginning is the home directory."""
    return os.path.abspath(os.path.expanduser(path))


def check_destinations(outputs: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    """Returns the checked destinations in ``outputs`` by name. If ``outputs`` is a list of names, there are no destinations."""
    if not isinstance(outputs, Mapping):
        return {}
    checked = {name: "/".join(check_name(name.rstrip("/") or name, "outputs")) for name in outputs}
    return {checked[name]: check_destination(name, path, "outputs") for name, path in outputs.items()}


def destination_of(file: str, destinations: Mapping[str, str]) -> str | None:
    """Returns the destination of a file in the sandbox. ``destinations`` maps names and patterns of outputs to destinations. Returns None
    if no name and no pattern matches the file."""
    parts = file.split("/")
    for output, destination in destinations.items():
        if not _matches(parts, output.split("/")):
            continue
        return destination + file if destination.endswith("/") else destination + file[len(output) :]
    return None


def known_destination(output: str, destination: str) -> str | None:
    """Returns the destination of an output before the output exists. Returns None for a pattern, because its files are not known yet."""
    return None if MAGIC.intersection(output) else destination_of(output, {output: destination})


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Tests whether a file, or a directory above it, matches a pattern. ``parts``: the components of the path of the file; ``pattern``: the
    components of the pattern."""
    if not pattern:
        return True
    if not parts:
        return False
    if pattern[0] == "**" and pattern[1:]:
        return _matches(parts, pattern[1:]) or _matches(parts[1:], pattern)
    return fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
