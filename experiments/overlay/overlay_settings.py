"""What the overlay's experiment compares, and in which surroundings: three architectures, three workflows, a site's network and storage."""

from __future__ import annotations

from dataclasses import dataclass

from pilotfish.agent.peers.contacts import OverlayTuning
from pilotfish.agent.peers.peer import SHIPPED

NO_TABLE, CENTRAL, DISTRIBUTED = "no table", "central", "distributed"
ARCHITECTURES = (NO_TABLE, CENTRAL, DISTRIBUTED)
"""Only the pool's master knows who holds what, and an agent reads its own cache or the site's storage; agents find files with their peers;
and they match as well."""

SERIAL, SPLITTING, MERGING = "serial", "splitting", "merging"
WORKFLOWS = {SERIAL: (1, 1), SPLITTING: (1, 2), MERGING: (2, 1)}
"""Files that a job of the second step reads, jobs that read a file."""

SITES = ("north", "south")
SIZES = ((100, 300), (500, 1500), (1500, 5000), (1500, 10000))
"""Pilots and tasks."""


@dataclass(slots=True, frozen=True)
class OverlaySettings:
    """Seconds, bytes, bytes per second."""

    lan_s: float = 0.0002
    wan_s: float = 0.020
    client_s: float = 0.0001
    """Between the client and the master, which are on one machine."""
    task_s: float = 198.0
    start_s: float = 0.02
    """From the agent's decision to the first instruction of the job."""
    join_s: float = 20.0
    """The pilots start within this."""
    settle_s: float = 40.0
    """Then the workflow begins."""
    file_bytes: int = 200_000_000
    disk_rate: float = 500e6
    peer_rate: float = 125e6
    """Of a worker's network card: 1 Gbit/s."""
    storage_rate: float = 500e6
    """Of a site's storage, for all that read at the same time."""
    storage_stream_rate: float = 50e6
    """For one of them."""
    master_factor: float = 3.0
    """The master takes so many times what its machine was measured to take: for sockets, encryption and the journal."""
    member_factor: float = 3.0
    """The same for the part of an agent that speaks with its peers."""
    sync_s: float = 0.002
    """To make facts durable, once per turn."""
    message_s: float = 0.0
    """If it is set, each message costs the master this, and nothing is measured: then a run can be repeated exactly."""


@dataclass(slots=True, frozen=True)
class OverlayRun:
    architecture: str
    workflow: str
    pilots: int
    tasks: int
    seed: int
    surroundings: OverlaySettings = OverlaySettings()
    tuning: OverlayTuning = SHIPPED
    through_json: bool = False
    """What peers tell each other goes through JSON, as it does live; it takes longer."""

    @property
    def has_table(self) -> bool:
        return self.architecture != NO_TABLE
