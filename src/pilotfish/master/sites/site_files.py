"""Copies files to a site, reads logs there and removes them.

A file appears complete or not at all, only its owner can read it, and staging it twice is harmless. ``at`` is a host of the site, as for
ssh; without it, files go to the login node, or to this machine if the site has none.
"""

from __future__ import annotations

import hashlib
import io
import re
import secrets
import shlex
import tarfile
import time
from collections.abc import Mapping

from pilotfish.backends.interface import Command, CommandOutput, UnclearAnswer
from pilotfish.master.agent_bundle import bundle_content
from pilotfish.master.sites.command_runner import CommandRunner

TRANSFER_TIMEOUT_S = 120.0
"""Seconds until a transfer without an answer is killed."""
_LATER = re.compile(
    r"quota|no space left|wrote only|read-only file system|stale file handle|input/output error|resource temporarily", re.IGNORECASE
)

# One line, because csh as a login shell accepts no more. $1: the folder; $2: a temporary folder for files that are not complete.
# Its name begins with a dot, so that "*" does not match it. chmod fails in a folder of another user.
_UNPACK = (
    'umask 077; mkdir -p "$1" && chmod 700 "$1" && cd "$1" && mkdir "$2" || exit 1; '
    'if tar -xpof - -C "$2" && mv -f "$2"/* .; then rm -rf "$2"; else s=$?; rm -rf "$2"; exit $s; fi'
)
_FILE_EXISTS = 'test -f "$1" && test "$(wc -c <"$1")" -eq "$2"'


async def absolute_folder(runner: CommandRunner, folder: str, at: str = "") -> str:
    """The absolute path of a folder, which is created if needed. The site expands ``~``, ``~name`` and variables."""
    word = _shell_word(folder)
    # Not the physical path: an automounter's paths may not exist on the nodes.
    answer = _require_success(await _run(runner, at, "sh", "-c", f'umask 077; f={word}; mkdir -p "$f" && cd "$f" && pwd'), folder)
    path = answer.stdout.strip()
    if not path.startswith("/"):
        raise UnclearAnswer(f"{folder} could not be found: {path}")
    return path


def _shell_word(folder: str) -> str:
    """A folder as a word of the remote shell. Only ``~`` and variables are expanded."""
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


async def stage(runner: CommandRunner, folder: str, files: Mapping[str, tuple[bytes, int]], at: str = "") -> None:
    """Copy files, with their modes, into an absolute folder with one command. They appear together when all are complete."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, (content, mode) in sorted(files.items()):
            if "/" in name or name.startswith(".") or not name:
                raise ValueError(f"{name!r} is no name for a file to be staged")
            entry = tarfile.TarInfo(name)
            # Scratch file systems delete old files first.
            entry.size, entry.mode, entry.mtime = len(content), mode, int(time.time())
            tar.addfile(entry, io.BytesIO(content))
    scratch = f".{secrets.token_hex(8)}"
    _require_success(await _run(runner, at, "sh", "-c", _UNPACK, "sh", _checked(folder), scratch, stdin=archive.getvalue()), folder)


async def stage_bundle(runner: CommandRunner, folder: str, at: str = "") -> str:
    """Path of the agent at the site. It is sent only if it is missing; a user may have removed it."""
    content = bundle_content()
    name = f"agent-{hashlib.sha256(content).hexdigest()[:16]}.pyz"
    folder = f"{_checked(folder)}/agents"
    path = f"{folder}/{name}"
    answer = await _run(runner, at, "sh", "-c", _FILE_EXISTS, "sh", path, str(len(content)))
    if answer.status is None:
        raise answer.unclear()
    if answer.status != 0:
        await stage(runner, folder, {name: (content, 0o600)}, at)
    return path


async def read_tail(runner: CommandRunner, path: str, max_bytes: int = 2000, at: str = "") -> str:
    """The end of a file, such as the log of a pilot; empty if it does not exist."""
    answer = await _run(runner, at, "sh", "-c", 'test -f "$1" || exit 0; tail -c "$2" "$1"', "sh", path, str(max_bytes))
    return _require_success(answer, path).stdout


async def remove(runner: CommandRunner, folder: str, at: str = "") -> None:
    """Remove a folder and its files. A missing folder is no error."""
    _require_success(await _run(runner, at, "rm", "-rf", "--", _checked(folder)), folder)


async def _run(runner: CommandRunner, at: str, *argv: str, stdin: bytes = b"") -> CommandOutput:
    # surrogateescape carries any bytes through a string; the runner decodes them the same way.
    return await runner.run(Command(argv, stdin.decode("utf-8", "surrogateescape"), at, TRANSFER_TIMEOUT_S, bare=True))


def _checked(folder: str) -> str:
    """Refuse paths that cannot be a pilot folder: an empty word must never make a home directory private, or remove it."""
    parts = folder.split("/")
    if not folder.startswith("/") or ".." in parts or len([part for part in parts if part not in ("", ".")]) < 2:
        raise ValueError(f"{folder!r} is no folder for files of pilots")
    return folder.rstrip("/")


def _require_success(answer: CommandOutput, what: str) -> CommandOutput:
    if answer.status is None:
        raise answer.unclear()
    if answer.status != 0:
        raise answer.refused(f"{what}: {answer.complaint()}", later=_LATER.search(answer.complaint()) is not None)
    return answer
