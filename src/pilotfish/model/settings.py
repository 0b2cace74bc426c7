"""What a person may set about a pool, with defaults. ``config.py`` reads it from TOML."""

from __future__ import annotations

from msgspec import Struct

FACTORY_NAMES = ("demand", "simple", "heuristic", "hybrid", "swift")
POLICY_NAMES = ("auto", "near", "workqueue", "stealing", "min-min", "max-min", "sufferage", "xsufferage")


class PoolSettings(Struct, frozen=True, forbid_unknown_fields=True):
    workers: int = 0
    """How many cores of this machine a new pool uses; 0 means all that we may use."""
    beat_s: float = 5.0
    """How often an agent says that it lives."""
    lease_s: float = 20.0
    """A worker that has been silent for so long is lost and its tasks run elsewhere."""
    orphan_s: float = 900.0
    """An agent that has not heard of its master for so long ends itself."""
    linger_s: float = 30.0
    """The master ends when there has been neither work nor a client for so long."""
    author_s: float = 30.0
    """A run whose client vanished is closed (or cancelled, if the client owned it) after so long."""
    idle_s: float = 0.0
    """A worker without a task for so long is retired; 0 keeps it while the master runs."""
    ahead_s: float = 0.05
    """Short tasks are sent ahead to a worker for so much work; long ones never are."""
    quarantine_s: float = 600.0
    """How long a worker that keeps failing gets no tasks."""
    quarantine_after: int = 5
    """So many different tasks must fail there in a row, while other workers do well."""
    host: str = "127.0.0.1"
    """Where the master listens for agents."""
    port: int = 0
    """0 takes any free port."""
    subnets: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    """Agents may come from these networks."""
    cache_size: int = 0
    """How much the cache of the workers of this machine may take, such as "50G"; 0: half of what is free on its disk."""
    poll_s: float = 0.0
    """0 keeps the connections of agents open; otherwise they connect, exchange, hang up, and call again after so long."""
    matching: str = "auto"
    """Who gives tasks to workers: the master (central), or at each site one of its own agents, which is lent tasks in bulk (distributed);
    auto: at sites of 200 workers or more."""
    policy: str = "auto"
    """Who decides which task goes to which worker: auto (which chooses, and chooses again), near, workqueue, stealing, or a plan by
    min-min, max-min, sufferage or xsufferage."""
    factory: str = "demand"
    """Who decides which sites get pilots: demand, simple, heuristic, hybrid or swift."""
    pilots: int = 0
    """The most pilots at all sites together; 0: as many as the work can use (10 for simple, heuristic and hybrid)."""
