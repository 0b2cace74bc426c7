"""Defines the settings of a pool, with defaults. ``config.py`` reads them from TOML."""

from __future__ import annotations

from msgspec import Struct

AUTO, CENTRAL, DISTRIBUTED = MATCHING_MODES = ("auto", "central", "distributed")


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
    """Seconds after which a run is closed if its client has disconnected. The run of an Executor is cancelled
    instead, because only its own program can use the results."""
    idle_s: float = 0.0
    """Seconds without a task after which a worker is released; 0: never."""
    ahead_s: float = 0.05
    """Seconds of work that are prefetched for a worker. Only short tasks are prefetched."""
    quarantine_s: float = 600.0
    """Seconds of a quarantine. A worker in quarantine gets no tasks, because tasks failed on it again and again."""
    quarantine_after: int = 5
    """If this number of different tasks fail on a worker one after another while tasks on other workers succeed, the worker is put in
    quarantine."""
    host: str = "127.0.0.1"
    """Address on which the master listens for agents."""
    port: int = 0
    """Port for agents; 0: any free port."""
    subnets: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Networks from which agents may connect."""
    cache_size: int = 0
    """Maximum size of the cache of the workers of this machine, such as "50G"; 0: half of the free space of its disk."""
    poll_s: float = 0.0
    """Seconds between short connections of an agent to the master; 0: agents stay connected."""
    matching: str = "auto"
    """Who assigns tasks to workers. central: the master. distributed: the master delegates tasks in bulk to a site master at each site,
    which assigns them. auto: distributed at sites with 200 workers or more, otherwise central."""
    policy: str = "auto"
    """Scheduling policy: auto, near, workqueue, stealing, min-min, max-min, sufferage or xsufferage. auto chooses one of the others and
    can choose again during a run. The last four make a plan."""
    factory: str = "demand"
    """Pilot factory: demand, simple, heuristic, hybrid or swift."""
    pilots: int = 0
    """Maximum number of pilots at all sites together. 0: as many as the tasks can use; 10 with the factories simple,
    heuristic and hybrid."""
