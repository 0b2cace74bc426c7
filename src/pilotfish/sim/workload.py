"""Defines simulated sites and workloads: task times, shared files, hosts and links."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, frozen=True)
class SimulatedSite:
    """Hosts with a shared disk. One link connects them to the master."""

    name: str
    hosts: int
    cores: int = 1
    speed: float = 1.0
    """Relative speed. A task takes its ``seconds`` divided by this speed."""
    spread: float = 0.0
    """Standard deviation of the logarithms of the hosts' speeds."""
    bandwidth: float = 125e6
    """Bytes per second from the master, for all hosts together."""
    latency_s: float = 0.0
    """Seconds until the first byte of a file arrives."""
    launch_s: float = 0.0
    """Seconds between assignment and start of a task."""
    wait_s: float = 0.0
    """Mean seconds until a pilot starts."""
    wait_spread: float = 0.0
    """Standard deviation of the logarithms of the waits."""
    walltime_s: float = 0.0
    files: tuple[str, ...] = ()
    """Digests of the files that are at the site from the start."""


@dataclass(slots=True)
class Workload:
    """The tasks of one run, as columns with one value per task. ``needs``: the digests of the files that the task reads. ``after``: the
    tasks for which it waits. If a column is empty, all tasks have the default value, such as one core. ``files`` is no column: it maps the
    digest of each file to its size in bytes."""

    seconds: list[float]
    costs: list[float] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    cores: list[int] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    needs: list[tuple[str, ...]] = field(default_factory=list)
    after: list[tuple[int, ...]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.seconds)
