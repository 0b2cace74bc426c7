"""Makes the commands that copy files to a site, read logs at the site and remove files. ``SiteAccess.ask`` runs these commands.

A copied file appears at the site complete or not at all. Only its owner can read it. Copying a file twice is harmless. ``at`` is the host
on which the command runs, written as for ssh. If ``at`` is empty, the command runs on the login node, or on this machine if the site has no
login node.
"""

from __future__ import annotations

import io
import re
import secrets
import shlex
import tarfile
import time
from collections.abc import Mapping

from pilotfish.backends.interface import Command, CommandExchange, CommandOutput, UnclearAnswer

TRANSFER_TIMEOUT_S = 120.0
"""Seconds until a transfer without an answer is stopped."""
_LATER = re.compile(
    r"quota|no space left|wrote only|read-only file system|stale file handle|input/output error|resource temporarily", re.IGNORECASE
)

# The script is one line, because csh as a login shell accepts only one line. $1: the folder. $2: a temporary folder for incomplete files.
# The name $2 begins with a dot, so that "*" does not match it. chmod fails if the folder does not belong to this user.
_UNPACK = (
    'umask 077; mkdir -p "$1" && chmod 700 "$1" && cd "$1" && mkdir "$2" || exit 1; '
    'if tar -xpof - -C "$2" && mv -f "$2"/* .; then rm -rf "$2"; else s=$?; rm -rf "$2"; exit $s; fi'
)
_FILE_EXISTS = 'test -f "$1" && test "$(wc -c <"$1")" -eq "$2"'


def absolute_folder(folder: str, at: str = "") -> CommandExchange[str]:
    """Makes the command that prints the absolute path of a folder. It creates a missing folder. The shell at the site expands ``~``,
    ``~name`` and variables."""

    def read(answer: CommandOutput) -> str:
        path = _require_success(answer, folder).strip()
        if not path.startswith("/"):
            raise UnclearAnswer(f"{folder} could not be found: {path}")
        return path

    # pwd without -P prints no physical path, because the physical paths of an automounter often do not exist on the nodes.
    return CommandExchange(_command(at, "sh", "-c", f'umask 077; f={_shell_word(folder)}; mkdir -p "$f" && cd "$f" && pwd'), read)


def _shell_word(folder: str) -> str:
    """Quotes a folder for the remote shell, so that the shell expands only ``~`` and variables in it."""
    home, slash, rest = folder.partition("/")
    if home.startswith("~") and re.fullmatch(r"~[\w.-]*", home):
        front, rest = ('"${HOME:?}"' if home == "~" else home), slash + rest
    elif folder.startswith(("/", "$")):
        front, rest = "", folder
    else:
        front, rest = '"${HOME:?}"/', folder
    pieces = re.split(r"\$(\w+|\{\w+\})", rest)
    variables = [f'"${{{piece.strip("{}")}:?}}"' for piece in pieces[1::2]]
    texts = [shlex.quote(piece) if piece else "" for piece in pieces[::2]]
    return front + texts[0] + "".join(variable + text for variable, text in zip(variables, texts[1:], strict=True))


def stage(folder: str, files: Mapping[str, tuple[bytes, int]], at: str = "") -> CommandExchange[str]:
    """Makes the command that copies files and their modes into an absolute folder. No file appears before all files are complete."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, (content, mode) in sorted(files.items()):
            if "/" in name or name.startswith(".") or not name:
                raise ValueError(f"{name!r} is no name for a file to be staged")
            entry = tarfile.TarInfo(name)
            # Scratch file systems delete old files, so the files get the present time.
            entry.size, entry.mode, entry.mtime = len(content), mode, int(time.time())
            tar.addfile(entry, io.BytesIO(content))
    scratch = f".{secrets.token_hex(8)}"
    command = _command(at, "sh", "-c", _UNPACK, "sh", _checked(folder), scratch, stdin=archive.getvalue())
    return CommandExchange(command, lambda answer: _require_success(answer, folder))


def file_exists(path: str, size: int, at: str = "") -> CommandExchange[bool]:
    """Makes the command that tests whether a file of this size exists."""

    def read(answer: CommandOutput) -> bool:
        if answer.status is None:
            raise answer.unclear()
        return answer.status == 0

    return CommandExchange(_command(at, "sh", "-c", _FILE_EXISTS, "sh", path, str(size)), read)


def read_tail(path: str, max_bytes: int = 2000, at: str = "") -> CommandExchange[str]:
    """Makes the command that prints the end of a file, such as the log of a pilot. It prints nothing if the file does not exist."""
    command = _command(at, "sh", "-c", 'test -f "$1" || exit 0; tail -c "$2" "$1"', "sh", path, str(max_bytes))
    return CommandExchange(command, lambda answer: _require_success(answer, path))


def remove(folder: str, at: str = "") -> CommandExchange[str]:
    """Makes the command that removes a folder and its files. A missing folder is no error."""
    return CommandExchange(_command(at, "rm", "-rf", "--", _checked(folder)), lambda answer: _require_success(answer, folder))


def _command(at: str, *argv: str, stdin: bytes = b"") -> Command:
    # surrogateescape keeps bytes that are not UTF-8. The runner turns the string back into the same bytes.
    return Command(argv, stdin.decode("utf-8", "surrogateescape"), at, TRANSFER_TIMEOUT_S, bare=True)


def _checked(folder: str) -> str:
    """Refuses paths that cannot be a folder of pilots. With a wrong path, a command could change the mode of a home directory or remove
    it."""
    parts = folder.split("/")
    if not folder.startswith("/") or ".." in parts or len([part for part in parts if part not in ("", ".")]) < 2:
        raise ValueError(f"{folder!r} is no folder for files of pilots")
    return folder.rstrip("/")


def _require_success(answer: CommandOutput, what: str) -> str:
    if answer.status is None:
        raise answer.unclear()
    if answer.status != 0:
        raise answer.refused(f"{what}: {answer.complaint()}", later=_LATER.search(answer.complaint()) is not None)
    return answer.stdout
