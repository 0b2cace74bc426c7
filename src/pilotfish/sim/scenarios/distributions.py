"""Parses distributions of task times: a number, or a distribution such as ``lognormal(60, 0.5)``."""

from __future__ import annotations

import difflib
import math
import random
import re
from dataclasses import dataclass

from pilotfish.errors import BadInput
from pilotfish.model.quantities import parse_seconds

FORMS = {
    "uniform": "uniform(least, most)",
    "normal": "normal(mean, deviation)",
    "lognormal": "lognormal(mean, sigma)",
    "exponential": "exponential(mean)",
}
FIX = f'write a number of seconds, "1m30s", or one of {", ".join(FORMS.values())}'
MOST_SIGMA = 5.0
LEAST_PART = 0.01
"""Minimum of a normal distribution, relative to its mean, because durations are positive."""
_CALL = re.compile(r"\s*([A-Za-z-]+)\s*\(([^()]*)\)\s*")


@dataclass(slots=True, frozen=True)
class Distribution:
    """A distribution. ``form``: constant, or a key of FORMS."""

    form: str = "constant"
    first: float = 1.0
    second: float = 0.0

    def of(self, dice: random.Random) -> float:
        if self.form == "uniform":
            return dice.uniform(self.first, self.second)
        if self.form == "normal":
            return max(LEAST_PART * self.first, dice.gauss(self.first, self.second))
        if self.form == "lognormal":
            return dice.lognormvariate(math.log(self.first) - self.second**2 / 2, self.second)
        if self.form == "exponential":
            return dice.expovariate(1 / self.first)
        return self.first


def parse_draw(value: object, field: str) -> Distribution:
    """Parses a number or distribution. ``field``: its name in error messages."""
    call = _CALL.fullmatch(value) if isinstance(value, str) else None
    if call is None:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise BadInput(f"{field} = {value!r} is not a time", FIX)
        return Distribution(first=_above_0(value, field, value))
    form, parts = call[1].lower(), [part.strip() for part in call[2].split(",")]
    if form not in FORMS:
        near = difflib.get_close_matches(form, FORMS, 1)
        raise BadInput(f"{field} = {value!r}: there is no distribution {form}", f"did you mean {FORMS[near[0]]}?" if near else FIX)
    wanted = FORMS[form].count(",") + 1
    if len(parts) != wanted or not all(parts):
        raise BadInput(
            f"{field} = {value!r} has {len([part for part in parts if part])} numbers instead of {wanted}", f"write {FORMS[form]}"
        )
    first = _above_0(parts[0], field, value)
    if form == "exponential":
        return Distribution(form, first)
    second = _sigma(parts[1], field, value) if form == "lognormal" else parse_seconds(parts[1], field)
    if form == "uniform" and second < first:
        raise BadInput(f"{field} = {value!r} ends below its start", f"write {FORMS[form]}")
    return Distribution(form, first, second)


def _above_0(text: str | int | float, field: str, whole: object) -> float:
    seconds = parse_seconds(text, field)
    if seconds <= 0:
        raise BadInput(f"{field} = {whole!r}: a task takes more than 0 s", FIX)
    return seconds


def _sigma(text: str, field: str, whole: object) -> float:
    """Parses the standard deviation of logarithms, a number without a unit."""
    try:
        sigma = float(text)
    except ValueError:
        sigma = -1.0
    if not 0 <= sigma <= MOST_SIGMA:
        raise BadInput(
            f"{field} = {whole!r}: sigma is a number from 0 to {MOST_SIGMA:g}, not {text}", "0.5 is an ordinary spread, 1 a wide one"
        )
    return sigma
