"""Reports on a divisible load: how many units each worker executed, how long this took, and the speed-up by balancing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """The work of one worker in one iteration. If the worker executed several chunks, each time is the maximum over these chunks."""

    units: int
    """Number of units that the worker executed."""
    compute_s: float
    """Seconds of computation."""
    transfer_s: float
    """Seconds from sending a chunk to receiving its result, minus the seconds of computation."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """Chunk sizes and times of one iteration of ``iterate``. For ``divide``, which sends its load in rounds, a round counts as an
    iteration."""

    seconds: float
    """Seconds from sending the first chunk to receiving the last result."""
    shares: dict[str, WorkerShare]
    """The work of each worker: `units`, seconds of computation (`compute_s`) and the remaining seconds (`transfer_s`)."""
    left_out: tuple[str, ...]
    """Connected workers that got no chunk, because the iteration would take longer if they took part."""
    equal_s: float
    """Estimated seconds of this iteration with equal chunks for all workers, computed from the measured speeds."""
    phi: float
    """Heterogeneity of the workers: the standard deviation of mu / mu_avg. mu is the speed of a worker divided by its bandwidth. mu_avg is
    the mean of mu over all workers.
    """
    ratio: float
    """Transferred bytes per unit. The printed table calls this number f_c."""
    planned_s: float | None = None
    """Expected seconds of this iteration with these chunk sizes. None for a baseline iteration. Also None if a worker of the iteration had
    not been measured before."""
    balanced: bool = True
    """False for a baseline iteration, in which all chunks are equal on purpose. True for all other iterations."""
    notes: tuple[str, ...] = ()
    """Remarks, for example about late chunks."""

    @property
    def sizes(self) -> dict[str, int]:
        """Number of units that each worker executed."""
        return {worker: share.units for worker, share in self.shares.items()}

    @property
    def is_even(self) -> bool:
        """Whether all workers had chunks of equal size."""
        return not self.left_out and len(dict.fromkeys(share.units for share in self.shares.values())) == 1

    @property
    def theta(self) -> float:
        """Speed-up by balancing: the estimated seconds with equal chunks (``equal_s``), divided by the measured ``seconds``. The speed-up
        is 1.0 if ``equal_s`` or ``seconds`` is 0."""
        return self.equal_s / self.seconds if self.seconds > 0 and self.equal_s > 0 else 1.0

    @property
    def expected_theta(self) -> float | None:
        """Expected speed-up by balancing: ``equal_s`` divided by ``planned_s``. None if one of them is None or 0."""
        return self.equal_s / self.planned_s if self.planned_s and self.equal_s > 0 else None


@dataclass(slots=True)
class BalanceReport:
    """The result of a divisible load. ``print(report)`` shows a table."""

    value: Any = None
    """The combined results of ``divide``, or the last state of ``iterate``."""
    iterations: list[Iteration] = field(default_factory=list)
    """All iterations, in order."""

    @property
    def seconds(self) -> float:
        """The sum of the ``seconds`` of all iterations."""
        return sum(iteration.seconds for iteration in self.iterations)

    @property
    def theta(self) -> float:
        """Speed-up compared with equal chunks. 1.0 if no iteration had balanced chunks.

        With the option ``baseline``, the speed-up is measured: the median seconds of the iterations with equal chunks, divided by the
        median seconds of the iterations with balanced chunks. If several iterations had equal chunks, the first of them does not count,
        because it includes the start-up of the workers. Without ``baseline``, the speed-up is estimated: the median of ``theta`` of the
        iterations with balanced chunks.

        An iteration with balanced chunks counts only if all its workers had been measured before it began. If there is no such iteration,
        all iterations with balanced chunks count.
        """
        measured = self._measured()
        equal = [iteration.seconds for iteration in self.iterations if not iteration.balanced]
        if equal and measured:
            # Without the first iteration, which includes the start-up of the workers.
            return statistics.median(equal[1:] or equal) / statistics.median(iteration.seconds for iteration in measured)
        return statistics.median(iteration.theta for iteration in measured) if measured else 1.0

    @property
    def expected_theta(self) -> float | None:
        """Expected speed-up compared with equal chunks. None if each iteration had a worker that had not been measured before."""
        known = [theta for iteration in self._measured() if (theta := iteration.expected_theta) is not None]
        return statistics.median(known) if known else None

    @property
    def phi(self) -> float:
        """Heterogeneity of the workers in the last balanced iteration that counts for ``theta``. 0 if all workers are equal, or if no
        iteration had balanced chunks. The printed table calls this number Phi."""
        measured = self._measured()
        return measured[-1].phi if measured else 0.0

    @property
    def ratio(self) -> float:
        """Transferred bytes per unit in the last balanced iteration that counts for ``theta``. The printed table calls this number f_c."""
        measured = self._measured()
        return measured[-1].ratio if measured else 0.0

    def _measured(self) -> list[Iteration]:
        """Returns the iterations with balanced chunks that began after every worker had been measured. If there are no such iterations,
        returns all iterations with balanced chunks."""
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
