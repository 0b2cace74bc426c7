"""Names the files and directories of a pool in PILOTFISH_HOME."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from pilotfish.config import home
from pilotfish.errors import BadInput, Correction
from pilotfish.store.keyring import require_private

PRIVATE = "private-"
MAX_SOCKET_PATH = 100
"""Maximum length of a Unix socket path in bytes. The kernel's limit is 107."""


def make_private_directory(path: Path) -> Path:
    """Creates a directory that only its owner can enter. Raises an error if the directory exists and other users can enter it."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    require_private(path)
    return path


class PoolDirectory:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.name = directory.name
        self.private = directory.name.startswith(PRIVATE)
        """Whether the pool belongs to one program and ends with it."""
        self.sites = directory.parent.parent / "sites.toml"
        """Path of ``sites.toml``. All pools of the user share this file."""
        self.journal = directory / "journal"
        self.payloads = directory / "payloads"
        self.shared_payloads = self.payloads / "shared"
        """Payload files that processes on this machine share."""
        self.contents = directory / "contents"
        """Large outputs that were copied to the master, named by their SHA-256."""
        self.cache = directory / "cache"
        """Cache of contents for agents on this machine."""
        self.log = directory / "master.log"
        self.crash = directory / "master.crash"
        """File with the exception that ended the last master, in one line. The next master removes this file."""
        self.work = directory / "work"
        self.client_credentials = directory / "client.json"
        self.port_file = directory / "port"

    def site_log(self, site: str) -> Path:
        """Returns the path of the log that lists the commands for a site."""
        return self.directory / f"site-{site}.log"

    def last_port(self) -> int:
        """Returns the port of the last master of this pool, or 0 if the port is unknown."""
        try:
            return int(self.port_file.read_text())
        except (OSError, ValueError):
            return 0

    def pilot(self, name: str) -> Path:
        return self.directory / "pilots" / name

    def socket_path(self) -> Path:
        """Returns the path of the master's socket. The socket is in the directory of the pool. If this path is too long, it is in a private
        temporary directory."""
        wanted = self.directory / "master.sock"
        if len(os.fsencode(wanted)) <= MAX_SOCKET_PATH:
            return wanted
        digest = hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:16]
        return make_private_directory(Path(tempfile.gettempdir()) / f"pilotfish-{os.geteuid()}") / f"{digest}.sock"

    def make(self) -> PoolDirectory:
        if self.directory.parent.name == "pools":
            make_private_directory(self.directory.parent.parent)
            make_private_directory(self.directory.parent)
        make_private_directory(self.directory)
        for path in (self.work, self.directory / "pilots"):
            path.mkdir(mode=0o700, exist_ok=True)
        return self


def pool_home(name: str) -> PoolDirectory:
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise BadInput(
            f"pool {name!r}: a pool's name has no slash and does not begin with a dot",
            Correction("use a name such as default", name, "default"),
        )
    return PoolDirectory(home() / "pools" / name)


# The stop mark is a file that shows that a user has stopped the pool. It lists the runs of the pool at the time of the stop.


def stop_mark_path(directory: Path) -> Path:
    """Returns the path of the stop mark. The file exists from the stop of the pool by a user until the pool is resumed.

    While the stop mark exists, clients that wait for a run must not restart the master. If a command that only shows the pool starts a
    master, this master runs no tasks.
    """
    return directory / "stopped"


class StopMark(Struct, frozen=True):
    """Content of the stop mark. ``at``: time of the stop. ``runs``: all runs at this time, or None if the master did not write them."""

    at: float
    runs: list[dict[str, Any]] | None = None


def write_stop_mark(directory: Path, runs: list[dict[str, Any]]) -> None:
    """Writes the runs of the pool into an existing stop mark. Never creates a stop mark, because possibly a user has just resumed the
    pool."""
    stop = read_stop_mark(directory)
    if stop is not None:
        with suppress(OSError), open(os.open(stop_mark_path(directory), os.O_WRONLY | os.O_TRUNC), "wb") as file:
            file.write(msgspec.json.encode(StopMark(stop.at, runs)))


def read_stop_mark(directory: Path) -> StopMark | None:
    """Reads the stop mark. Returns None if the pool is not stopped."""
    marker = stop_mark_path(directory)
    try:
        at, content = marker.stat().st_mtime, marker.read_bytes()
    except OSError:
        return None
    try:
        return msgspec.json.decode(content, type=StopMark)
    except msgspec.DecodeError:
        return StopMark(at)
