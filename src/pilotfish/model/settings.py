"""Settings of a pool, with defaults. ``config.py`` reads them from TOML."""

from __future__ import annotations

from msgspec import Struct

MATCHING_MODES = ("auto", "central", "distributed")


class PoolSettings(Struct, frozen=True, forbid_unknown_fields=True):
    local_cores: int = 0
    """Cores of this machine that a new pool uses; 0: all available cores."""
    beat_s: float = 5.0
    """Seconds between heartbeats of an agent."""
    lease_s: float = 20.0
    """Seconds of silence after which a worker counts as lost and its tasks run elsewhere."""
    orphan_s: float = 900.0
    """Seconds without contact to the master after which an agent ends."""
    linger_s: float = 30.0
    """Seconds without unfinished tasks and without a client after which the master ends."""
    author_s: float = 30.0
    """Seconds after which a run of a vanished client is closed (or cancelled, if the client owned it)."""
    idle_s: float = 0.0
    """Seconds without a task after which a worker is released; 0: never."""
    ahead_s: float = 0.05
    """Seconds of work that are prefetched for a worker, in short tasks; long tasks are never prefetched."""
    quarantine_s: float = 600.0
    """Seconds for which a worker that keeps failing gets no tasks."""
    quarantine_after: int = 5
    """Number of different tasks that must fail on a worker in a row, while other workers succeed, before it is put in quarantine."""
    host: str = "127.0.0.1"
    """Address on which the master listens for agents."""
    port: int = 0
    """Port for agents; 0: any free port."""
    subnets: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Networks from which agents may connect."""
    cache_size: int = 0
    """Maximum size of the cache of the workers of this machine, such as "50G"; 0: half of the free space of its disk."""
    poll_s: float = 0.0
    """0: agents keep their connections open. Otherwise, seconds between short connections."""
    matching: str = "auto"
    """Who assigns tasks: the master (central), or a site master at each site, to which tasks are delegated in bulk (distributed). auto:
    distributed at sites of 200 workers or more."""
    policy: str = "auto"
    """Scheduling policy: auto (chooses, and re-chooses during a run), near, workqueue, stealing, or a plan by min-min, max-min, sufferage
    or xsufferage."""
    factory: str = "demand"
    """Pilot factory: demand, simple, heuristic, hybrid or swift."""
    pilots: int = 0
    """Maximum pilots at all sites together; 0: as many as the tasks can use (10 for simple, heuristic and hybrid)."""
