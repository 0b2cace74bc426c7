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
    """If the master gets no message from a worker for this many seconds, the worker counts as lost, and its tasks run on other workers."""
    orphan_s: float = 900.0
    """If an agent has no contact to the master for this many seconds, the agent ends."""
    linger_s: float = 30.0
    """If no client is connected and no run is unfinished for this many seconds, the master ends."""
    author_s: float = 30.0
    """If the client of a run disconnects and does not return within this many seconds, the run accepts no more tasks. Tasks that the client
    has already submitted still run. The run of an Executor is cancelled instead, because only the disconnected program can use the
    results."""
    idle_s: float = 0.0
    """If a worker has no task for this many seconds, the worker is released; 0: never."""
    ahead_s: float = 0.05
    """Amount of work that is prefetched for each slot of a worker, in seconds of task time. Only short tasks are prefetched."""
    quarantine_s: float = 600.0
    """Duration of a quarantine in seconds. A worker in quarantine gets no tasks."""
    quarantine_after: int = 5
    """If this number of different tasks fail on a worker, one after another, the worker is put in quarantine. This happens only if
    equal tasks of the same run succeed."""
    host: str = "127.0.0.1"
    """Address on which the master listens for agents."""
    port: int = 0
    """Port for agents; 0: any free port."""
    subnets: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Networks from which agents may connect."""
    cache_size: int = 0
    """Maximum size of the cache that the workers of this machine share, such as "50G"; 0: half of the disk space that other files leave
    free."""
    max_output: int = 0
    """Maximum size of the stored standard output of each task, and the same for standard error, such as "8G"; 0: 1 GiB. The option
    --max-output overrides this setting. If a task writes more, the middle is left out, and a line in the output says so."""
    poll_s: float = 0.0
    """0: agents of this machine stay connected to the master. Other values: agents connect only briefly, once in this many seconds."""
    matching: str = "auto"
    """Process that assigns tasks to workers. central: the master. distributed: each site has a site master. The master delegates
    tasks to the site masters, and they assign the tasks. auto: distributed at sites with 200 workers or more, central at other sites."""
    policy: str = "auto"
    """Scheduling policy: auto, near, workqueue, stealing, min-min, max-min, sufferage or xsufferage. auto works like one of the other
    policies, and can change its choice during a run. min-min, max-min, sufferage and xsufferage make a plan."""
    factory: str = "demand"
    """Pilot factory: demand, simple, heuristic, hybrid or swift."""
    pilots: int = 0
    """Maximum number of pilots at all sites together. 0: with the factories simple, heuristic and hybrid, the maximum is 10. The
    factories demand and swift then have no fixed maximum: the number of pilots depends on the tasks and on the limits of the sites."""
