"""Writes each batch to disk before its submission. So a restarted master finds the batch again, even if the submission got no answer."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from pilotfish.model.site import PilotSize
from pilotfish.store.keyring import write_private
from pilotfish.store.pool_directory import make_private_directory


class SubmittedBatch(msgspec.Struct):
    """A batch and the ids of its pilots in the order of their numbers. This class defines the fields of the files in ``orders/``."""

    site: str
    tag: str
    pilots: list[str]
    size: PilotSize
    folder: str
    bundle: str
    host: str = ""
    sent: bool = True
    """Whether the submission has started. If so, the site possibly has the batch."""
    sent_at: float = 0.0
    """Wall-clock time of the submission. From this time, a restarted master calculates how long the batch can still appear at the site."""


class BatchRegistry:
    """The batches of all sites of a pool, with one file per batch. The files are read once, at the start."""

    def __init__(self, directory: Path) -> None:
        self._directory = make_private_directory(directory)
        self._by_tag: dict[str, SubmittedBatch] = {}
        self._by_pilot: dict[tuple[str, str], SubmittedBatch] = {}
        for path in sorted(self._directory.glob("*.json")):
            with suppress(OSError, msgspec.DecodeError):
                self._add(msgspec.json.decode(path.read_bytes(), type=SubmittedBatch))

    def _add(self, batch: SubmittedBatch) -> None:
        self._by_tag[batch.tag] = batch
        self._by_pilot.update({(batch.site, pilot): batch for pilot in batch.pilots})

    def write(self, batch: SubmittedBatch) -> None:
        write_private(self._directory / f"{batch.tag}.json", msgspec.json.encode(batch))
        self._add(batch)

    def find(self, site: str, pilot: str) -> SubmittedBatch | None:
        return self._by_pilot.get((site, pilot))

    def all(self) -> list[SubmittedBatch]:
        return list(self._by_tag.values())

    def remove(self, batch: SubmittedBatch) -> None:
        (self._directory / f"{batch.tag}.json").unlink(missing_ok=True)
        self._by_tag.pop(batch.tag, None)
        for pilot in batch.pilots:
            self._by_pilot.pop((batch.site, pilot), None)
