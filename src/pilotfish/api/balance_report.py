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
    """From the first chunk sent to the last one back."""
    shares: dict[str, WorkerShare]
    """By worker: `units`, `compute_s`, and `transfer_s`, which is all that its chunks took besides."""
    left_out: tuple[str, ...]
    """Workers that were there, and would have cost more time than they bring."""
    equal_s: float
    """How long it would take with equal chunks for all, by the speeds that were measured."""
    phi: float
    """How unlike the workers are: the standard deviation of mu / mu_avg; mu is a worker's speed over its bandwidth."""
    ratio: float
    """f_c: bytes moved for each unit."""
    planned_s: float | None = None
    """How long it should have taken; None if the workers had not been measured yet."""
    balanced: bool = True
    """False if all got the same on purpose, to have something to compare with."""
    notes: tuple[str, ...] = ()
    """What else a person should know, such as chunks that were late."""

    @property
    def sizes(self) -> dict[str, int]:
        """Units by worker."""
        return {worker: share.units for worker, share in self.shares.items()}

    @property
    def is_even(self) -> bool:
        """Whether all workers had as much to do, so that equal chunks would be the same."""
        return not self.left_out and len(dict.fromkeys(share.units for share in self.shares.values())) == 1

    @property
    def theta(self) -> float:
        """T unbalanced / T balanced: how many times longer it would have taken with equal chunks."""
        return self.equal_s / self.seconds if self.seconds > 0 and self.equal_s > 0 else 1.0

    @property
    def expected_theta(self) -> float | None:
        """The same, had all gone as planned."""
        return self.equal_s / self.planned_s if self.planned_s and self.equal_s > 0 else None


@dataclass(slots=True)
class BalanceReport:
    """``value`` is what came out. ``print(report)`` shows the rest."""

    value: Any = None
    """What the results were combined to, or the last state."""
    iterations: list[Iteration] = field(default_factory=list)
    """What happened in each."""

    @property
    def seconds(self) -> float:
        """What all iterations took."""
        return sum(iteration.seconds for iteration in self.iterations)

    @property
    def theta(self) -> float:
        """T unbalanced / T balanced: measured if there were iterations with equal chunks, else against what these would take by the
        speeds that were measured."""
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
        """How unlike the workers were in the end."""
        measured = self._measured()
        return measured[-1].phi if measured else 0.0

    @property
    def ratio(self) -> float:
        """f_c, as it was in the end."""
        measured = self._measured()
        return measured[-1].ratio if measured else 0.0

    def _measured(self) -> list[Iteration]:
        """Returns the iterations that were balanced by measurements, or else all balanced ones."""
        balanced = [iteration for iteration in self.iterations if iteration.balanced and iteration.shares]
        return [iteration for iteration in balanced if iteration.planned_s is not None] or balanced

    def __str__(self) -> str:
        if not self.iterations or not any(iteration.shares for iteration in self.iterations):
            return "nothing was done: there were no units of work"
        head = ["iteration", "seconds", "planned", "theta", "Phi", "f_c", "workers", "units each"]
        rows = [head, *(_row(number, iteration) for number, iteration in enumerate(self.iterations, 1))]
        last = next(iteration for iteration in reversed(self.iterations) if iteration.shares)
        workers = [["worker", "units", "compute s", "transfer s"]]
        workers += [[name, f"{share.units:,}", f"{share.compute_s:.3g}", f"{share.transfer_s:.3g}"] for name, share in last.shares.items()]
        workers += [[name, "0", "", "left out"] for name in last.left_out]
        notes = [f"iteration {number}: {note}" for number, iteration in enumerate(self.iterations, 1) for note in iteration.notes]
        return "\n".join([*_aligned(rows), "", "the last one by worker", *_aligned(workers), *notes, "", *self._summary()])

    def _summary(self) -> list[str]:
        gain = f"theta {self.theta:.2f}: with equal chunks it would take {self.theta:.2f} times as long"
        if all(iteration.is_even for iteration in self._measured()):
            gain = "all workers had equal chunks: there was nothing to gain"
        return [
            gain,
            f"Phi {self.phi:.2f}: how unlike the workers are; 0 if they are all alike",
            f"f_c {self.ratio:.3g}: bytes moved for each unit",
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
