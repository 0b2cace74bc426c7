"""Defines the settings of a pool, with defaults. ``config.py`` reads them from TOML."""

from __future__ import annotations

from msgspec import Struct

AUTO, CENTRAL, DISTRIBUTED = MATCHING_MODES = ("auto", "central", "distributed")


class PoolSettings(Struct, frozen=True, forbid_unknown_fields=True):
    local_cores: int = 0
    """Number of cores of this machine that a new pool uses; 0: all available cores."""
    beat_s: float = 5.0
    """Seconds between heartbeats of an agent."""
    lease_s: float = 20.0
    """If the master gets no message from a worker for this many seconds, the worker counts as lost. Its tasks then run on other workers."""
    orphan_s: float = 900.0
    """If an agent has no contact with the master for this many seconds, the agent ends."""
    linger_s: float = 30.0
    """The master ends after this many seconds without a connected client and without an unfinished run."""
    author_s: float = 30.0
    """If the client of a run disconnects and does not connect again within this many seconds, the run accepts no more tasks. Tasks that the
    client has already submitted still run. But the run of an Executor without cache=True is cancelled, because only the disconnected
    program can use its results."""
    idle_s: float = 0.0
    """If a worker has no task for this many seconds, the worker leaves the pool; 0: never."""
    ahead_s: float = 0.05
    """For each slot, a worker prefetches short tasks. Together, the prefetched tasks of a slot take about this many seconds."""
    quarantine_s: float = 600.0
    """Duration of a quarantine in seconds. A worker in quarantine gets no tasks."""
    quarantine_after: int = 5
    """If this number of different tasks fail on a worker, one after another, the worker is put in quarantine. Each of these failures must
    show that the worker can be at fault: the failure blames the worker or the site, or an equal task has succeeded. Equal tasks are tasks
    of the same run with the same resources, limits, priority, tags and expressions."""
    host: str = "127.0.0.1"
    """Address on which the master listens for agents."""
    port: int = 0
    """Port on which the master listens for agents; 0: any free port."""
    subnets: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Networks from which agents may connect."""
    cache_size: int = 0
    """Maximum size of the cache that the workers of this machine share, such as "50G"; 0: half of the disk space that other files do not
    use."""
    max_output: int = 0
    """Maximum size of the standard output that is stored for each task, such as "8G"; 0: 1 GiB. Standard error has the same maximum. The
    option --max-output overrides this setting. If a task writes more, the middle is left out, and a line in the output says so."""
    poll_s: float = 0.0
    """Seconds between two short connections of an agent of this machine to the master; 0: the agents stay connected."""
    matching: str = "auto"
    """Process that assigns tasks to workers. central: the master. distributed: each site has a site master; the master delegates tasks to
    it, and it assigns them to the workers of the site. auto: distributed at sites with 200 workers or more, central at other sites."""
    policy: str = "auto"
    """Scheduling policy: auto, near, workqueue, stealing, min-min, max-min, sufferage or xsufferage. auto works like one of the other
    policies, and can change to a different policy during a run. min-min, max-min, sufferage and xsufferage make a plan."""
    factory: str = "demand"
    """Pilot factory: demand, simple, heuristic, hybrid or swift."""
    pilots: int = 0
    """Maximum number of pilots at all sites together. 0 with the factories simple, heuristic and hybrid: the maximum is 10. 0 with the
    factories demand and swift: no fixed maximum; the number of pilots depends on the tasks and on the limits of the sites."""
