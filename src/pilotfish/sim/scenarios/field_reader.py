"""Reads and checks the fields of a scenario, from a file or from options. Errors name the field, its value and a fix."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pilotfish import errors
from pilotfish.errors import BadInput, Correction
from pilotfish.model.quantities import parse_bytes, parse_seconds

MAX_SHOWN = 80
BITS = re.compile(r"([0-9]*\.?[0-9]+)\s*([kMGT]?)bit", re.IGNORECASE)
BANDWIDTH_FIX = 'write it like "2 MB/s", "100 Mbit/s" or a number of bytes per second'
MAX_SECONDS = 10 * 365 * 86400.0
MAX_BYTES, MIN_BANDWIDTH = 100 * 10**12, 1000.0


def nearest(given: object, known: Iterable[str], otherwise: str = "") -> str:
    """Returns the fix for an unknown word: the most similar known word. If no known word is similar, returns ``otherwise``, or by default a
    list of all known words."""
    names = list(known)
    near = errors.nearest(str(given)[:MAX_SHOWN], names)
    return Correction(f"did you mean {near}?", given, near) if near else otherwise or f"known are: {', '.join(names)}"


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "..."


class FieldReader:
    """Reads typed fields of a table. ``where``: the text before field names in messages, such as ``grid.toml: work.`` or ``--``. ``joined``
    combines this table with a second table. If both tables have a field, the value of the second table counts."""

    def __init__(self, table: Mapping[str, Any], where: str, known: Sequence[str]) -> None:
        if not isinstance(table, Mapping):
            raise BadInput(f"{where.rstrip('.: ')} = {shown(table)} is not a table", "write its fields, one on each line: name = value")
        for key in table:
            if key not in known:
                raise BadInput(f"{where}{key}: there is no such field", nearest(key, known))
        self._values = {key: (f"{where}{key}", value) for key, value in table.items()}
        self._where = where

    def joined(self, later: FieldReader) -> FieldReader:
        both = FieldReader({}, self._where, ())
        both._values = {**self._values, **later._values}
        return both

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def label(self, key: str) -> str:
        return self._values[key][0] if key in self._values else f"{self._where}{key}"

    def get(self, key: str, default: Any = None) -> Any:
        return self._values[key][1] if key in self._values else default

    def refuse(self, key: str, why: str, fix: str) -> BadInput:
        return BadInput(f"{self.label(key)} = {shown(self.get(key))}{why}", fix)

    def number(self, key: str, default: float, least: float, most: float) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.refuse(key, " is not a number", f"write a number, such as {key} = {default:g}")
        if not least <= value <= most:
            raise self.refuse(key, "", f"choose a number from {least:g} to {most:g}")
        return float(value)

    def count(self, key: str, default: int | None, most: int) -> int:
        if default is None and key not in self:
            raise BadInput(f"{self.label(key)} is missing", f"say how many: {key} = 8")
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(key, " is not a whole number", f"write a whole number, such as {key} = {default or 8}")
        if not 1 <= value <= most:
            raise self.refuse(key, "", f"choose a number from 1 to {most:,}")
        return value

    def seconds(self, key: str, default: float = 0.0) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self.refuse(key, " is not a duration", 'write it like "10m"')
        found = parse_seconds(value, self.label(key))
        if found > MAX_SECONDS:
            raise self.refuse(key, " is too long", "choose at most 10 years")
        return found

    def size(self, key: str, default: str | int) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise self.refuse(key, " is not a size", 'write it like "20 MB"')
        found = parse_bytes(value, self.label(key))
        if found > MAX_BYTES:
            raise self.refuse(key, " is too large", "choose at most 100 TB")
        return found

    def bandwidth(self, key: str, default: float) -> float:
        """Returns bytes per second."""
        value = self.get(key, default)
        text = value.strip().removesuffix("/s").strip() if isinstance(value, str) else value
        bits = BITS.fullmatch(text) if isinstance(text, str) else None
        if bits:
            found = float(bits[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}[bits[2].lower()] / 8
        else:
            try:
                found = float(parse_bytes(text, self.label(key)))
            except BadInput:
                raise self.refuse(key, " is not a bandwidth", BANDWIDTH_FIX) from None
        if found < MIN_BANDWIDTH:
            raise self.refuse(key, " is less than 1 kB/s", BANDWIDTH_FIX)
        return found

    def choice(self, key: str, default: str, known: Sequence[str]) -> str:
        value = self.get(key, default)
        if value not in known:
            raise self.refuse(key, "", nearest(value, known))
        return str(value)
