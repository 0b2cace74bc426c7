"""Parses and prints sizes, durations and core counts.

Every error names the field, the value and an example of a valid value.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta

from pilotfish.errors import BadInput, Correction

_KIBI = 1024
_BINARY = {letter: _KIBI**power for power, letter in enumerate("KMGTP", start=1)}
_DECIMAL = {letter: 1000**power for power, letter in enumerate("KMGTP", start=1)}
# A unit of one letter is binary, as in every batch system. "GB" is decimal, as in the standards.
_BYTES = {
    "": 1,
    "B": 1,
    **_BINARY,
    **{f"{letter}IB": factor for letter, factor in _BINARY.items()},
    **{f"{letter}B": factor for letter, factor in _DECIMAL.items()},
}
_SECONDS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("", "s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("w", "week", "weeks"), 604800.0),
}
_AMOUNT = re.compile(r"([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*")
_CLOCK = re.compile(r"(?:([0-9]+)-)?([0-9]+):([0-5]?[0-9])(?::([0-5]?[0-9]))?")
_RANGE = re.compile(r"([0-9]*\.?[0-9]+)\s*(?:-|\.\.|to)\s*([0-9]*\.?[0-9]+)")

SIZE_FIX = 'write it like "2 GiB", "500 MB" or a number of bytes'
DURATION_FIX = 'write it like "10 min", "1h30m", "01:30:00" or a number of seconds'
CORES_FIX = 'write it like 2, 0.5 or "2-8" for a range'
_EXAMPLES = {SIZE_FIX: "2G", DURATION_FIX: "10m", CORES_FIX: "2"}


def _finite(value: float, field: str, shown: object, fix: str) -> float:
    if not math.isfinite(value) or value < 0:
        raise _bad_quantity(f"{field}: {shown!r} is not an amount", fix, shown)
    return float(value)


def _bad_quantity(message: str, fix: str, value: object) -> BadInput:
    return BadInput(message, Correction(fix, value, _EXAMPLES[fix]))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def parse_bytes(value: str | int | float, field: str) -> int:
    """Parses a size. Returns bytes."""
    if _is_number(value):
        return round(_finite(float(value), field, value, SIZE_FIX))
    match = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    factor = _BYTES.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise _bad_quantity(f"{field}: {value!r} is not a size", SIZE_FIX, value)
    return round(_finite(float(match[1]) * factor, field, value, SIZE_FIX))


def parse_seconds(value: str | int | float | timedelta, field: str) -> float:
    """Parses a duration. Returns seconds."""
    if isinstance(value, timedelta):
        return _finite(value.total_seconds(), field, value, DURATION_FIX)
    if _is_number(value):
        return _finite(float(value), field, value, DURATION_FIX)
    text = value.strip() if isinstance(value, str) else ""
    if clock := _CLOCK.fullmatch(text):
        days, first, second, third = (int(part or 0) for part in clock.groups())
        if clock[4] is None and clock[1] is None:
            # "1:30" can mean an hour and a half or ninety seconds.
            raise BadInput(f"{field}: {value!r} could be hours or minutes", f'write "{first}:{second:02d}:00" or "{first} min {second} s"')
        return float(days * 86400 + first * 3600 + second * 60 + third)
    total, position = 0.0, 0
    while position < len(text) and (match := _AMOUNT.match(text, position)):
        factor = _SECONDS.get(match[2] if match[2] in _SECONDS else match[2].lower())
        if factor is None or (match[2] == "" and match.end() < len(text)):
            break
        total += float(match[1]) * factor
        position = match.end()
    if not text or position < len(text):
        raise _bad_quantity(f"{field}: {value!r} is not a duration", DURATION_FIX, value)
    return _finite(total, field, value, DURATION_FIX)


def parse_cores(value: str | int | float | tuple[float, float], field: str) -> tuple[float, float]:
    """Parses a number or range of cores. Returns minimum and maximum. For a single number, the maximum is 0."""
    ranged = True
    if _is_number(value):
        least, most, ranged = float(value), 0.0, False  # type: ignore[arg-type]
    elif isinstance(value, tuple) and len(value) == 2 and all(_is_number(bound) for bound in value):
        least, most = float(value[0]), float(value[1])
    elif isinstance(value, str) and (match := _RANGE.fullmatch(value.strip())):
        least, most = float(match[1]), float(match[2])
    elif isinstance(value, str) and (match := _AMOUNT.fullmatch(value.strip())) and match[2] == "":
        least, most, ranged = float(match[1]), 0.0, False
    else:
        raise _bad_quantity(f"{field}: {value!r} is not a number of cores", CORES_FIX, value)
    _finite(least, field, value, CORES_FIX)
    if least == 0:
        raise _bad_quantity(f"{field}: a task needs more than 0 cores", CORES_FIX, value)
    if ranged and not (math.isfinite(most) and most >= least):
        raise _bad_quantity(f"{field}: the range {value!r} ends below its start", CORES_FIX, value)
    return least, (most if most > least else 0.0)


def show_bytes(amount: float) -> str:
    """Returns a size as text, such as ``1.5 GiB``."""
    for letter in ("", "K", "M", "G", "T"):
        if amount < _KIBI:
            return f"{_digits(amount) if letter else round(amount)} {letter and letter + 'i'}B"
        amount /= _KIBI
    return f"{_digits(amount)} PiB"


def _digits(amount: float) -> str:
    """Returns a number with three digits, never with an exponent."""
    return f"{amount:.3g}" if amount < 99.5 else f"{amount:.0f}"


def enough_seconds(seconds: float) -> str:
    """Rounds a duration up and returns it as users type it: ``90s``, ``20m``, ``4h``."""
    if seconds < 120:
        return f"{math.ceil(seconds)}s"
    minutes = math.ceil(seconds / 60)
    return f"{minutes}m" if minutes % 60 else f"{minutes // 60}h"


def enough_bytes(amount: float) -> str:
    """Rounds a size up and returns it as users type it: ``300M``, ``4G``."""
    mebibytes = math.ceil(amount / _KIBI**2)
    return f"{mebibytes}M" if mebibytes % _KIBI else f"{mebibytes // _KIBI}G"


def show_seconds(seconds: float) -> str:
    """Returns a duration as text, such as ``1 h 30 min``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    for size, name, below, below_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {name}" + (f" {rest} {below_name}" if rest else "")
    return f"{whole} s"
