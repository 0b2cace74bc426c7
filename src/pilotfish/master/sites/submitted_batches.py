"""Orders of pilots, each in a file of its own: written before the submission, so that it is found again whatever happens."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from pilotfish.backends.interface import PilotBatch
from pilotfish.model.site import PilotSize
from pilotfish.store.keyring import write_private
from pilotfish.store.pool_directory import make_private_directory


class SubmittedBatch(msgspec.Struct):
    """An order and the pilots it is for, in order."""

    site: str
    tag: str
    pilots: list[str]
    size: PilotSize
    folder: str
    bundle: str
    host: str = ""
    sent: bool = True
    """Whether the site may know it. As long as nobody began to submit it, it need not be looked for."""
    sent_at: float = 0.0
    """By the wall clock: whoever finds it after a restart knows how late it may still arrive."""

    def order(self) -> PilotBatch:
        return PilotBatch(self.tag, len(self.pilots), self.size, self.folder, self.bundle, self.host)


class BatchRegistry:
    """The orders of all sites of a pool. They are read once: after a restart, every pilot is looked up."""

    def __init__(self, directory: Path) -> None:
        self._directory = make_private_directory(directory)
        self._by_tag: dict[str, SubmittedBatch] = {}
        self._by_pilot: dict[tuple[str, str], SubmittedBatch] = {}
        for path in sorted(self._directory.glob("*.json")):
            with suppress(OSError, msgspec.DecodeError):
                self._note(msgspec.json.decode(path.read_bytes(), type=SubmittedBatch))

    def _note(self, placed: SubmittedBatch) -> None:
        self._by_tag[placed.tag] = placed
        self._by_pilot.update({(placed.site, pilot): placed for pilot in placed.pilots})

    def write(self, placed: SubmittedBatch) -> None:
        write_private(self._directory / f"{placed.tag}.json", msgspec.json.encode(placed))
        self._note(placed)

    def find(self, site: str, pilot: str) -> SubmittedBatch | None:
        return self._by_pilot.get((site, pilot))

    def all(self) -> list[SubmittedBatch]:
        return list(self._by_tag.values())

    def remove(self, placed: SubmittedBatch) -> None:
        (self._directory / f"{placed.tag}.json").unlink(missing_ok=True)
        self._by_tag.pop(placed.tag, None)
        for pilot in placed.pilots:
            self._by_pilot.pop((placed.site, pilot), None)
