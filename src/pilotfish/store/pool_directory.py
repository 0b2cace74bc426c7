"""Where things live on disk: PILOTFISH_HOME, the directories of pools, and what is in them."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from pilotfish.config import home
from pilotfish.errors import BadInput
from pilotfish.store.keyring import Keyring, require_private, write_private

PRIVATE = "private-"
MAX_SOCKET_PATH = 100
"""The kernel takes Unix socket paths of at most 107 bytes."""


def make_private_directory(path: Path) -> Path:
    """A directory that only we can enter; refuse one that others could."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    require_private(path)
    return path


@dataclass(frozen=True)
class PoolDirectory:
    """The directory of one pool."""

    directory: Path

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def private(self) -> bool:
        """Whether it belongs to one program and ends with it: nobody ever comes back to it."""
        return self.name.startswith(PRIVATE)

    @property
    def sites(self) -> Path:
        """What the person has written about sites: for all pools the same."""
        return self.directory.parent.parent / "sites.toml"

    @property
    def journal(self) -> Path:
        return self.directory / "journal"

    @property
    def payloads(self) -> Path:
        return self.directory / "payloads"

    @property
    def contents(self) -> Path:
        """Large outputs that were brought home, by their hash."""
        return self.directory / "contents"

    @property
    def cache(self) -> Path:
        """Contents that agents on this machine have needed."""
        return self.directory / "cache"

    @property
    def log(self) -> Path:
        return self.directory / "master.log"

    @property
    def work(self) -> Path:
        return self.directory / "work"

    @property
    def client_credentials(self) -> Path:
        return self.directory / "client.json"

    def diary(self, site: str) -> Path:
        """Every command that was run for a site, as a person would type it."""
        return self.directory / f"site-{site}.log"

    @property
    def port_file(self) -> Path:
        return self.directory / "port"

    def last_port(self) -> int:
        """Where the last master of this pool listened; 0 if that is not known."""
        try:
            return int(self.port_file.read_text())
        except (OSError, ValueError):
            return 0

    def pilot(self, name: str) -> Path:
        return self.directory / "pilots" / name

    def socket_path(self) -> Path:
        """In the pool's directory, or where that is too deep for the kernel, in a private directory below the temporary one."""
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

    @staticmethod
    def credentials(keyring: Keyring, key_id: str, endpoints: list[dict[str, Any]]) -> bytes:
        """What a client or an agent needs to find and convince the master; only its owner may read it."""
        content = {"key_id": key_id, "key": keyring.key(key_id).hex(), "pilot": key_id.partition(":")[2], "endpoints": endpoints}
        return json.dumps(content).encode()

    def write_credentials(self, path: Path, keyring: Keyring, key_id: str, endpoints: list[dict[str, Any]]) -> None:
        write_private(path, self.credentials(keyring, key_id, endpoints))


def pool_home(name: str) -> PoolDirectory:
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise BadInput(f"pool {name!r}: a pool's name has no slash and does not begin with a dot", "use a name such as default")
    return PoolDirectory(home() / "pools" / name)


# The mark of a pool that somebody stopped on purpose, and what its master leaves there for those who only look.


def stop_marker(directory: Path) -> Path:
    """A file that says that somebody stopped the pool on purpose.

    Clients that still watch must not bring its master back, and a master that is started for somebody who only looks starts nothing.
    """
    return directory / "stopped"


class StopMark(Struct, frozen=True):
    """What the marker says: when the pool was stopped (by the wall clock), and its runs as its master left them; None: it did not."""

    at: float
    runs: list[dict[str, Any]] | None = None


def note_stop(directory: Path, runs: list[dict[str, Any]]) -> None:
    """Write the runs into the marker. It is never made here, because whoever wants the work to go on may have removed it just now."""
    stop = read_stop(directory)
    if stop is not None:
        with suppress(OSError), open(os.open(stop_marker(directory), os.O_WRONLY | os.O_TRUNC), "wb") as file:
            file.write(msgspec.json.encode(StopMark(stop.at, runs)))


def read_stop(directory: Path) -> StopMark | None:
    """None if nobody stopped the pool, or its work was wanted again since."""
    marker = stop_marker(directory)
    try:
        at, content = marker.stat().st_mtime, marker.read_bytes()
    except OSError:
        return None
    try:
        return msgspec.json.decode(content, type=StopMark)
    except msgspec.DecodeError:
        return StopMark(at)
