"""Iterates over the values of parameters. Ranges and large files are not kept in memory, so that a sweep can have millions of tasks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from pathlib import Path
from typing import Protocol, runtime_checkable

from pilotfish.errors import BadInput

Row = tuple[str, ...]
_EXACT = Context(prec=1000)
"""Decimal context with more digits than any parameter, so that no number is rounded."""


@runtime_checkable
class Axis(Protocol):
    """Rows of values. A row has one string for each name in ``names``. Each iteration starts with the first row."""

    @property
    def names(self) -> Row: ...

    @property
    def may_repeat(self) -> bool:
        """Returns whether two rows are possibly equal."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Row]: ...


@dataclass(frozen=True, slots=True)
class ListedValues:
    """An axis with its values in a list."""

    names: Row
    rows: Sequence[Row]

    @property
    def may_repeat(self) -> bool:
        return len(set(self.rows)) < len(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)


@dataclass(frozen=True, slots=True)
class LazyAxis:
    """An axis with ``count`` rows. Each iteration makes the rows again, so they are not kept in memory."""

    names: Row
    count: int
    rows: Callable[[], Iterator[Row]]
    may_repeat: bool = True

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Row]:
        return self.rows()


def number_range(name: str, start: Decimal, stop: Decimal, step: Decimal, width: int = 0) -> LazyAxis:
    """Returns the numbers ``start``, ``start + step``, … up to ``stop``. ``stop`` is included if a step reaches it exactly. If ``stop`` is
    less than ``start``, ``step`` must be negative. Integers get leading zeros up to ``width`` characters.

    The numbers are computed as whole multiples of the last decimal place. So there are no values such as 0.30000000000000004.
    """
    decimals = max(0, *(-int(number.as_tuple().exponent) for number in (start, stop, step)))
    first, last, stride = (int(_EXACT.scaleb(number, decimals)) for number in (start, stop, step))
    count = (last - first) // stride + 1
    numbers = range(first, first + stride * count, stride)
    if not decimals:
        return LazyAxis((name,), count, lambda: ((f"{number:0{width}d}",) for number in numbers), may_repeat=False)
    return LazyAxis((name,), count, lambda: ((f"{_EXACT.scaleb(number, -decimals):f}",) for number in numbers), may_repeat=False)


def chained(name: str, parts: Sequence[Axis]) -> LazyAxis:
    """Joins axes of the same name into one axis, one after another, as in ``seed=1..3,10..12``."""
    return LazyAxis((name,), sum(map(len, parts)), lambda: itertools.chain.from_iterable(parts))


def file_axis(names: Row, path: Path, read: Callable[[Path], Iterator[Row]]) -> LazyAxis:
    """Returns the axis of a large file. Each iteration reads the file again."""
    count = sum(1 for _ in read(path))

    def rows() -> Iterator[Row]:
        seen = 0
        for row in read(path):
            seen += 1
            if seen > count:
                break
            yield row
        if seen != count:
            raise BadInput(f"{path} changed while its rows were being read", "Let whatever writes it finish, then type the command again.")

    return LazyAxis(names, count, rows)
