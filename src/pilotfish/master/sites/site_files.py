"""Puts files where the commands of a site run, looks at what pilots wrote there, and takes it all away again.

A file appears whole or not at all; only its owner can read it; what is put there twice is there once. ``at`` is a machine of the site, as
one would give it to ssh: without it, its login node, or this machine if it has none.
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

from pilotfish.backends.interface import Command, CommandOutput, CommandRefused, UnclearAnswer
from pilotfish.master.agent_bundle import bundle_content
from pilotfish.master.sites.command_runner import CommandRunner

PATIENCE_S = 120.0
_LATER = re.compile(
    r"quota|no space left|wrote only|read-only file system|stale file handle|input/output error|resource temporarily", re.IGNORECASE
)

# In one piece and in one line: csh as a login shell takes no more. $1: the folder, $2: a name for what is not complete yet.
# Names that begin with a dot are ours, so that "*" finds all others. A folder of somebody else's cannot be made ours by chmod.
_UNPACK = (
    'umask 077; mkdir -p "$1" && chmod 700 "$1" && cd "$1" && mkdir "$2" || exit 1; '
    'if tar -xpof - -C "$2" && mv -f "$2"/* .; then rm -rf "$2"; else s=$?; rm -rf "$2"; exit $s; fi'
)
_HAS = 'test -f "$1" && test "$(wc -c <"$1")" -eq "$2"'


async def absolute_folder(runner: CommandRunner, folder: str, at: str = "") -> str:
    """Where a folder really is, which is made if it is not there: ``~``, ``~name`` and variables are resolved over there."""
    word = _shell_word(folder)
    # Not the physical path: what an automounter makes of it need not exist on the nodes.
    answer = _good(await _run(runner, at, "sh", "-c", f'umask 077; f={word}; mkdir -p "$f" && cd "$f" && pwd'), folder)
    path = answer.stdout.strip()
    if not path.startswith("/"):
        raise UnclearAnswer(f"{folder} could not be found: {path}")
    return path


def _shell_word(folder: str) -> str:
    """For the shell over there, with nothing in it that does anything but name a folder."""
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
    """Put files, with their modes, into an absolute folder, by one command. None of them appears before all of them have come."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, (content, mode) in sorted(files.items()):
            if "/" in name or name.startswith(".") or not name:
                raise ValueError(f"{name!r} is no name for a file to be staged")
            entry = tarfile.TarInfo(name)
            # Of now: old files are the first that a file system for scratch forgets.
            entry.size, entry.mode, entry.mtime = len(content), mode, int(time.time())
            tar.addfile(entry, io.BytesIO(content))
    scratch = f".{secrets.token_hex(8)}"
    _good(await _run(runner, at, "sh", "-c", _UNPACK, "sh", _checked(folder), scratch, stdin=archive.getvalue()), folder)


async def stage_bundle(runner: CommandRunner, folder: str, at: str = "") -> str:
    """The agent's path over there. It is sent once for each content; somebody may have tidied it away since."""
    content = bundle_content()
    name = f"agent-{hashlib.sha256(content).hexdigest()[:16]}.pyz"
    folder = f"{_checked(folder)}/agents"
    path = f"{folder}/{name}"
    answer = await _run(runner, at, "sh", "-c", _HAS, "sh", path, str(len(content)))
    if answer.status is None:
        raise _unclear(answer)
    if answer.status != 0:
        await stage(runner, folder, {name: (content, 0o600)}, at)
    return path


async def read_tail(runner: CommandRunner, path: str, most_bytes: int = 2000, at: str = "") -> str:
    """The end of a file, such as the log of a pilot; empty if there is none."""
    answer = await _run(runner, at, "sh", "-c", 'test -f "$1" || exit 0; tail -c "$2" "$1"', "sh", path, str(most_bytes))
    return _good(answer, path).stdout


async def remove(runner: CommandRunner, folder: str, at: str = "") -> None:
    """A folder and all that is in it; one that is not there is no error."""
    _good(await _run(runner, at, "rm", "-rf", "--", _checked(folder)), folder)


async def _run(runner: CommandRunner, at: str, *argv: str, stdin: bytes = b"") -> CommandOutput:
    # Bytes go through text unharmed this way; the runner knows.
    return await runner.run(Command(argv, stdin.decode("utf-8", "surrogateescape"), at, PATIENCE_S, bare=True))


def _checked(folder: str) -> str:
    """What is made private or removed must be a folder of ours, not a whole home or disk because a word was empty."""
    parts = folder.split("/")
    if not folder.startswith("/") or ".." in parts or len([part for part in parts if part not in ("", ".")]) < 2:
        raise ValueError(f"{folder!r} is no folder for files of pilots")
    return folder.rstrip("/")


def _unclear(answer: CommandOutput) -> UnclearAnswer:
    problem = UnclearAnswer(answer.complaint())
    problem.code = answer.code
    return problem


def _good(answer: CommandOutput, what: str) -> CommandOutput:
    if answer.status is None:
        raise _unclear(answer)
    if answer.status != 0:
        raise CommandRefused(f"{what}: {answer.complaint()}", later=_LATER.search(answer.complaint()) is not None)
    return answer
