"""Reports how much each worker did of a divisible load, how long it took, and the speed-up by balancing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """Work of one worker in one iteration. With several chunks, the times are those of the slowest."""

    units: int
    """Units done."""
    compute_s: float
    """Seconds of computation."""
    transfer_s: float
    """Other seconds of its chunks, from sending to return."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration, or one round of a load that is done once."""

    seconds: float
    """Seconds from the first chunk sent to the last result received."""
    shares: dict[str, WorkerShare]
    """By worker: `units`, `compute_s` and `transfer_s`, the other seconds of its chunks."""
    left_out: tuple[str, ...]
    """Connected workers without a chunk, because a chunk for them would take longer."""
    equal_s: float
    """Expected seconds with equal chunks for all workers, from the measured speeds."""
    phi: float
    """Heterogeneity of the workers: the standard deviation of mu / mu_avg; mu is speed divided by bandwidth."""
    ratio: float
    """f_c: transferred bytes per unit."""
    planned_s: float | None = None
    """Planned seconds; None if the workers had not been measured yet."""
    balanced: bool = True
    """False for a baseline iteration with equal chunks."""
    notes: tuple[str, ...] = ()
    """Remarks, such as chunks that were late."""

    @property
    def sizes(self) -> dict[str, int]:
        """Units by worker."""
        return {worker: share.units for worker, share in self.shares.items()}

    @property
    def is_even(self) -> bool:
        """Whether all workers had chunks of equal size."""
        return not self.left_out and len(dict.fromkeys(share.units for share in self.shares.values())) == 1

    @property
    def theta(self) -> float:
        """T unbalanced / T balanced: speed-up compared with equal chunks."""
        return self.equal_s / self.seconds if self.seconds > 0 and self.equal_s > 0 else 1.0

    @property
    def expected_theta(self) -> float | None:
        """T unbalanced / T balanced according to the plan."""
        return self.equal_s / self.planned_s if self.planned_s and self.equal_s > 0 else None


@dataclass(slots=True)
class BalanceReport:
    """Result of a divisible load. ``print(report)`` shows a table."""

    value: Any = None
    """Combined results, or the last state."""
    iterations: list[Iteration] = field(default_factory=list)
    """One entry per iteration."""

    @property
    def seconds(self) -> float:
        """Seconds of all iterations."""
        return sum(iteration.seconds for iteration in self.iterations)

    @property
    def theta(self) -> float:
        """T unbalanced / T balanced: measured if there were iterations with equal chunks, otherwise estimated from measured speeds."""
        measured = self._measured()
        equal = [iteration.seconds for iteration in self.iterations if not iteration.balanced]
        if equal and measured:
            # The first iteration includes the start-up of the workers.
            return statistics.median(equal[1:] or equal) / statistics.median(iteration.seconds for iteration in measured)
        return statistics.median(iteration.theta for iteration in measured) if measured else 1.0

    @property
    def expected_theta(self) -> float | None:
        """T unbalanced / T balanced as planned; None if nothing was measured before the end."""
        known = [theta for iteration in self._measured() if (theta := iteration.expected_theta) is not None]
        return statistics.median(known) if known else None

    @property
    def phi(self) -> float:
        """Heterogeneity of the workers in the last iteration."""
        measured = self._measured()
        return measured[-1].phi if measured else 0.0

    @property
    def ratio(self) -> float:
        """f_c in the last iteration."""
        measured = self._measured()
        return measured[-1].ratio if measured else 0.0

    def _measured(self) -> list[Iteration]:
        """Returns the iterations that were balanced by measurements, or else all balanced ones."""
        balanced = [iteration for iteration in self.iterations if iteration.balanced and iteration.shares]
        return [iteration for iteration in balanced if iteration.planned_s is not None] or balanced

    def __str__(self) -> str:
        if not self.iterations or not any(iteration.shares for iteration in self.iterations):
            return "no work was done: the load had no units"
        head = ["iteration", "seconds", "planned", "theta", "Phi", "f_c", "workers", "units each"]
        rows = [head, *(_row(number, iteration) for number, iteration in enumerate(self.iterations, 1))]
        last = next(iteration for iteration in reversed(self.iterations) if iteration.shares)
        workers = [["worker", "units", "compute s", "transfer s"]]
        workers += [[name, f"{share.units:,}", f"{share.compute_s:.3g}", f"{share.transfer_s:.3g}"] for name, share in last.shares.items()]
        workers += [[name, "0", "", "left out"] for name in last.left_out]
        notes = [f"iteration {number}: {note}" for number, iteration in enumerate(self.iterations, 1) for note in iteration.notes]
        return "\n".join([*_aligned(rows), "", "last iteration by worker", *_aligned(workers), *notes, "", *self._summary()])

    def _summary(self) -> list[str]:
        gain = f"theta {self.theta:.2f}: with equal chunks it would take {self.theta:.2f} times as long"
        if all(iteration.is_even for iteration in self._measured()):
            gain = "all workers had equal chunks: balancing could not gain anything"
        return [
            gain,
            f"Phi {self.phi:.2f}: heterogeneity of the workers; 0 if they are all equal",
            f"f_c {self.ratio:.3g}: bytes transferred per unit",
            f"{self.seconds:.3g} s in all",
        ]


def _row(number: int, iteration: Iteration) -> list[str]:
    sizes = [share.units for share in iteration.shares.values()]
    used = f"{len(sizes)} of {len(sizes) + len(iteration.left_out)}"
    chunks = "" if not sizes else f"{min(sizes):,} to {max(sizes):,}" if iteration.balanced else "equal"
    planned = "" if iteration.planned_s is None else f"{iteration.planned_s:.3g}"
    theta = "" if iteration.planned_s is None or iteration.is_even else f"{iteration.theta:.2f}"
    return [str(number), f"{iteration.seconds:.3g}", planned, theta, f"{iteration.phi:.2f}", f"{iteration.ratio:.3g}", used, chunks]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
