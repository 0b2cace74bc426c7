"""Orders of pilots, each in a file of its own: written before the submission, so that it is found again whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from pilotfish.backends.exchange import Order
from pilotfish.live.home import make_private_directory
from pilotfish.live.keys import write_private
from pilotfish.model.site import PilotSize


class Placed(msgspec.Struct):
    """An order and the pilots it is for, in order; those that are gone are left out of ``present``."""

    site: str
    tag: str
    pilots: list[str]
    size: PilotSize
    folder: str
    bundle: str
    host: str = ""
    sent: bool = True
    """Whether the site may know it. As long as nobody began to submit it, it need not be looked for."""

    def order(self) -> Order:
        return Order(self.tag, len(self.pilots), self.size, self.folder, self.bundle, self.host)


class OrderBook:
    """The orders of all sites of a pool."""

    def __init__(self, directory: Path) -> None:
        self._directory = make_private_directory(directory)

    def write(self, placed: Placed) -> None:
        write_private(self._directory / f"{placed.tag}.json", msgspec.json.encode(placed))

    def of_site(self, site: str) -> Iterator[Placed]:
        for path in sorted(self._directory.glob("*.json")):
            try:
                placed = msgspec.json.decode(path.read_bytes(), type=Placed)
            except (OSError, msgspec.DecodeError):
                continue
            if placed.site == site:
                yield placed

    def remove(self, tag: str) -> None:
        (self._directory / f"{tag}.json").unlink(missing_ok=True)
