"""Defines architectures, workflows and networks: what the overlay experiment compares."""

from __future__ import annotations

from dataclasses import dataclass

from pilotfish.agent.peers.contacts import OverlayTuning
from pilotfish.agent.peers.peer import DEFAULT_TUNING

NO_TABLE, CENTRAL, DISTRIBUTED = "no table", "central", "distributed"
ARCHITECTURES = (NO_TABLE, CENTRAL, DISTRIBUTED)
"""The three architectures. No table: only the master knows the holders of files; an agent reads its own cache or the site's storage.
Central: agents also find files at peers. Distributed: agents also match tasks."""

SERIAL, SPLITTING, MERGING = "serial", "splitting", "merging"
WORKFLOWS = {SERIAL: (1, 1), SPLITTING: (1, 2), MERGING: (2, 1)}
"""Files that a job of the second step reads, and jobs that read each file."""

SITES = ("north", "south")
SIZES = ((100, 300), (500, 1500), (1500, 5000), (1500, 10000))
"""Numbers of pilots and tasks."""


@dataclass(slots=True, frozen=True)
class OverlaySettings:
    """Parameters of sites and network, in seconds, bytes and bytes per second."""

    lan_s: float = 0.0002
    wan_s: float = 0.020
    client_s: float = 0.0001
    """Latency between client and master, which are on one machine."""
    task_s: float = 198.0
    start_s: float = 0.02
    """Seconds from the agent's decision to the first instruction of the job."""
    join_s: float = 20.0
    """Seconds within which all pilots start."""
    settle_s: float = 40.0
    """Seconds from the end of ``join_s`` to the start of the workflow."""
    file_bytes: int = 200_000_000
    disk_rate: float = 500e6
    peer_rate: float = 125e6
    """Rate of a worker's network card: 1 Gbit/s."""
    storage_rate: float = 500e6
    """Rate of a site's storage, shared by all readers."""
    storage_stream_rate: float = 50e6
    """Maximum rate of one reader."""
    master_factor: float = 3.0
    """Factor on the measured time of the master's machine, for sockets, encryption and the journal."""
    member_factor: float = 3.0
    """The same factor for the site member of an agent."""
    sync_s: float = 0.002
    """Seconds to make facts durable, once per turn."""
    message_s: float = 0.0
    """If set, each message costs the master these seconds and nothing is measured; runs are then exactly reproducible."""


@dataclass(slots=True, frozen=True)
class OverlayRun:
    architecture: str
    workflow: str
    pilots: int
    tasks: int
    seed: int
    surroundings: OverlaySettings = OverlaySettings()
    tuning: OverlayTuning = DEFAULT_TUNING
    through_json: bool = False
    """Passes messages between peers through JSON, as in a live pool. This is slower."""

    @property
    def has_table(self) -> bool:
        return self.architecture != NO_TABLE
