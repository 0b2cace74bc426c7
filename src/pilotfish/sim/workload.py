"""What a rehearsal runs: tasks with the seconds that they take, the files that they share, and places with hosts and a link each."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, frozen=True)
class SimulatedSite:
    """Some hosts with a disk in common, at the end of one link from the master."""

    name: str
    hosts: int
    cores: int = 1
    speed: float = 1.0
    """A task of so many seconds takes that by its speed."""
    spread: float = 0.0
    """Of the logarithms of its hosts' speeds."""
    bandwidth: float = 125e6
    """Bytes per second from the master, for all its hosts together."""
    latency_s: float = 0.0
    """Before the first byte of a file comes."""
    launch_s: float = 0.0
    """Between the master's word and the start of a task."""
    wait_s: float = 0.0
    """Until a pilot starts, on average."""
    wait_spread: float = 0.0
    """Of the logarithms of these waits."""
    walltime_s: float = 0.0
    files: tuple[str, ...] = ()
    """What is there already, by digest."""


@dataclass(slots=True)
class Workload:
    """The tasks of one run, in columns. ``files``: digest -> bytes; ``needs``: which of them each task reads; ``after``: which tasks it
    waits for. Empty columns mean none, or the same for all."""

    seconds: list[float]
    costs: list[float] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    cores: list[int] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)
    needs: list[tuple[str, ...]] = field(default_factory=list)
    after: list[tuple[int, ...]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.seconds)
