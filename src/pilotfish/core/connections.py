"""Keeps the link, lease and known specs of each connected worker. Not part of the state: after a restart no worker is connected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pilotfish.core.data.worker_reports import TransferReport


@dataclass(slots=True)
class WorkerConnection:
    """How a worker can be reached: over which link, until when its silence is forgiven, and which specs it has been sent.

    ``newest_link`` is the last one that it said hello over, open or not."""

    lease_at: float
    link: int | None = None
    newest_link: int = 0
    shares: bool = False
    """It reads shared payloads from the disk itself."""
    peer: Any = None
    """How others of its site can reach it, if they can: [id, [host, port]]."""
    movement: TransferReport = field(default_factory=TransferReport)
    """Contents that are under way to it or from it."""
    sent_specs: dict[int, None] = field(default_factory=dict)
    lent_specs: dict[int, None] = field(default_factory=dict)
    """The same for what it is lent for others."""
