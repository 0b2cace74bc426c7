"""Checks before submission that the program of a command exists and can be executed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from pilotfish.errors import BadInput, Correction, did_you_mean

TEXT_BYTES = 256
"""Number of bytes of a file that ``_is_plain_text`` reads."""
INTERPRETERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((".R", ".r"), ("Rscript",)),
    **dict.fromkeys((".gp", ".gnuplot", ".plt"), ("gnuplot",)),
    ".py": ("python",),
    ".sh": ("sh",),
    ".m": ("octave",),
    ".bash": ("bash",),
    ".zsh": ("zsh",),
    ".jl": ("julia",),
    ".pl": ("perl",),
    ".rb": ("ruby",),
    ".lua": ("lua",),
    ".js": ("node",),
    ".tcl": ("tclsh",),
    ".awk": ("awk", "-f"),
    ".sed": ("sed", "-f"),
}
"""Maps the suffix of a script to the command of its usual interpreter."""
SHELL_OPERATOR = re.compile(r"[|&;<>*?$`~(]")


def check_program(program: str, environ: Mapping[str, str]) -> None:
    """Checks that a program exists. Without this check, every task of the run would fail because of one misspelt name."""
    if "/" in program:
        _check_path(Path(program), program)
    elif shutil.which(program, path=environ.get("PATH")) is None:
        if os.path.isfile(program):
            words = [*interpreter(f"./{program}"), f"./{program}"]
            hint = Correction(f"Write {shlex.join(words)}", program, "", words)
            raise BadInput(f"the program {program!r} is a file here, not a command", hint)
        check_not_quoted(program, environ)
        raise BadInput(
            f"there is no program {program!r}",
            _nearest_program(program, environ) or "Check its name, and that PATH has its directory: echo $PATH",
        )


def _check_path(path: Path, program: str) -> None:
    if path.is_dir():
        raise BadInput(f"the program {program!r} is a directory", f"See what is in it: ls {program}")
    if not path.is_file():
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise BadInput(
            f"the program {program!r} does not exist", did_you_mean(path.name, siblings) or f"Look where it is: ls {path.parent}"
        )
    reader = interpreter(program)
    instead = f"name what reads it: {shlex.join([*reader, program])}"
    if not os.access(path, os.X_OK):
        if reader and _is_plain_text(path):
            raise BadInput(f"the program {program!r} may not be executed", _with_interpreter(f"N{instead[1:]}", reader, program))
        other = f", or {instead}" if reader else ""
        raise BadInput(f"the program {program!r} may not be executed", f"Allow it: chmod +x {shlex.quote(program)}{other}")
    if _is_plain_text(path):
        reader = reader or ["sh"]
        line = "#!/bin/sh (or what it is written for)" if reader == ["sh"] else f"#!{shutil.which(reader[0]) or f'/usr/bin/{reader[0]}'}"
        first = f"Put {' '.join([line, *reader[1:]])} there"
        raise BadInput(
            f"the program {program!r} has no interpreter line: it is a text whose first line does not begin with #!",
            _with_interpreter(f"{first}, or name what reads it: {shlex.join([*reader, program])}", reader, program),
        )


def _with_interpreter(hint: str, reader: Sequence[str], program: str) -> Correction:
    return Correction(hint, program, "", [*reader, program])


def _is_plain_text(path: Path) -> bool:
    """Tests whether the file is text that does not begin with ``#!``. Only a shell can run such a file."""
    try:
        with path.open("rb") as file:
            start = file.read(TEXT_BYTES)
    except OSError:
        return False
    return bool(start) and not start.startswith(b"#!") and all(32 <= byte < 127 or byte in b"\t\r\n" for byte in start)


def interpreter(program: str) -> list[str]:
    """Returns the command of the usual interpreter of a script as words, such as ``python``. Returns no words if the file can be executed
    directly, or if no interpreter is known for its suffix."""
    if os.access(program, os.X_OK) and not _is_plain_text(Path(program)):
        return []
    words = [*INTERPRETERS.get(Path(program).suffix, ())]
    return ["python3"] if words == ["python"] and shutil.which("python") is None else words


def check_not_quoted(program: str, environ: Mapping[str, str]) -> None:
    """Raises BadInput if ``program`` is a whole command in quotes, such as ``'sort data.txt'``. GNU parallel accepts such a command.
    ``program`` can contain placeholders."""
    try:
        words = shlex.split(program)
    except ValueError:
        return
    if len(words) < 2 or os.path.lexists(program) or "{" in words[0] or shutil.which(words[0], path=environ.get("PATH")) is None:
        return
    if SHELL_OPERATOR.search(program):
        shell = ("sh", "-c", program)
        hint = Correction(f"It needs a shell: {shlex.join(shell)}", program, "", shell)
    else:
        hint = Correction("Remove the quotes around the command.", program, "", words)
    raise BadInput(f"{program!r} is a whole command in quotes, not the name of a program", hint)


def _nearest_program(program: str, environ: Mapping[str, str]) -> str:
    names: set[str] = set()
    for directory in environ.get("PATH", "").split(os.pathsep):
        if os.path.isdir(directory):
            names.update(entry for entry in os.listdir(directory) if entry[:1] == program[:1])
    return did_you_mean(program, sorted(names))
