"""Keeps the link, lease and known specs of each connected worker. Not part of the state: after a restart no worker is connected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pilotfish.core.data.worker_reports import TransferReport


@dataclass(slots=True)
class WorkerConnection:
    """The link to a worker, the end of its lease and the specs that it was sent.

    ``newest_link``: the link of its last Hello, open or closed.
    """

    lease_at: float
    link: int | None = None
    newest_link: int = 0
    shares: bool = False
    """Whether it reads shared payloads directly from disk."""
    peer: Any = None
    """Its address for other agents of its site, or None: [id, [host, port]]."""
    transfers: TransferReport = field(default_factory=TransferReport)
    """Contents in transfer to or from it."""
    sent_specs: dict[int, None] = field(default_factory=dict)
    delegated_specs: dict[int, None] = field(default_factory=dict)
    """Specs that it was sent with delegated tasks."""
