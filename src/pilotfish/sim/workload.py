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
    """Relative speed. A task takes its seconds divided by this value."""
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
    """Files already at the site, by digest."""


@dataclass(slots=True)
class Workload:
    """The tasks of one run, in columns. ``files``: size of each file in bytes, by digest. ``needs``: for each task, the digests of the
    files that the task reads. ``after``: for each task, the tasks for which it waits. If a column is empty, all tasks have its default,
    such as one core."""

    seconds: list[float]
    costs: list[float] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    cores: list[int] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    needs: list[tuple[str, ...]] = field(default_factory=list)
    after: list[tuple[int, ...]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.seconds)
