"""Iterates over the values of parameters. Ranges and large files are not held in memory, so that a sweep may have millions of tasks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Protocol

from pilotfish.errors import BadInput

Row = tuple[str, ...]


class Axis(Protocol):
    """Rows of strings, one per name; each iteration starts from the beginning."""

    @property
    def names(self) -> Row: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Row]: ...


@dataclass(frozen=True, slots=True)
class ListedValues:
    """An axis with its values in a list."""

    names: Row
    rows: Sequence[Row]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)


@dataclass(frozen=True, slots=True)
class NumberRange:
    """``count`` numbers from ``first`` on, in units of the last decimal place: integers avoid values such as 0.30000000000000004."""

    names: Row
    first: int
    step: int
    count: int
    decimals: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Row]:
        numbers = range(self.first, self.first + self.step * self.count, self.step)
        if not self.decimals:
            return ((str(number),) for number in numbers)
        return ((_place_point(number, self.decimals),) for number in numbers)


def number_range(name: str, start: Decimal, stop: Decimal, step: Decimal) -> NumberRange:
    """Returns the numbers from start to stop, both included; the step is not 0 and has the right sign."""
    decimals = max(0, *(-int(number.as_tuple().exponent) for number in (start, stop, step)))
    first, last, stride = (_in_units(number, decimals) for number in (start, stop, step))
    return NumberRange((name,), first, stride, (last - first) // stride + 1, decimals)


def _in_units(number: Decimal, decimals: int) -> int:
    sign, digits, exponent = number.as_tuple()
    size = int("".join(map(str, digits)))
    return (-size if sign else size) * int(10 ** (int(exponent) + decimals))


def _place_point(number: int, decimals: int) -> str:
    digits = str(abs(number)).rjust(decimals + 1, "0")
    return f"{'-' if number < 0 else ''}{digits[:-decimals]}.{digits[-decimals:]}"


@dataclass(frozen=True, slots=True)
class ChainedAxis:
    """Several axes of the same name, one after another: ``seed=1..3,10..12``."""

    names: Row
    parts: tuple[Axis, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[Row]:
        return itertools.chain.from_iterable(self.parts)


@dataclass(frozen=True, slots=True)
class FileAxis:
    """An axis that reads its large file at each iteration."""

    names: Row
    path: Path
    count: int
    read: Callable[[Path], Iterator[Row]]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Row]:
        seen = 0
        for row in self.read(self.path):
            seen += 1
            if seen > self.count:
                break
            yield row
        if seen != self.count:
            raise BadInput(
                f"{self.path} changed while its rows were being read", "Let whatever writes it finish, then type the command again."
            )
