"""Deadlines and shares as people write them: ``18:00``, ``2h``, ``2030-05-01 12:00``; ``alice``, ``alice:3``."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta
from typing import Any, TypedDict

from pilotfish.errors import BadInput
from pilotfish.model.quantities import parse_seconds, show_seconds

MAX_NAME = 200
MAX_WEIGHT = 1e6
DEADLINE_FIX = "write a time (18:00), a date with or without one (2030-05-01T12:00), or how long from now (2h)"
_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
_DATE = re.compile(r"[0-9]{4}-.*")

Deadline = str | int | float | timedelta | datetime


class RunKeywords(TypedDict, total=False):
    """What may be asked for about a run as a whole."""

    max_failures: int
    share: str
    deadline: Deadline | None
    speculate: bool | None


LATEST_S = 100 * 366 * 86400.0


def read_deadline(value: Deadline, field: str, now: float) -> float:
    """In seconds since 1970. A time of day is the next such time; a number is seconds from now; without a zone, times are local."""
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and (clock := _CLOCK.fullmatch(text)):
        today = datetime.fromtimestamp(now).replace(hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
        return (today if today.timestamp() > now else today + timedelta(days=1)).timestamp()
    if isinstance(text, datetime) or (isinstance(text, str) and _DATE.fullmatch(text)):
        return _future(text, field, now)
    try:
        seconds = parse_seconds(text, field)
    except BadInput as problem:
        raise BadInput(f"{field}: {value!r} is no time and no duration", DEADLINE_FIX) from problem
    if not 0 < seconds < LATEST_S:
        raise BadInput(f"{field}: {value!r} from now is {'over' if seconds <= 0 else 'too far away'}", DEADLINE_FIX)
    return now + seconds


def _future(value: str | datetime, field: str, now: float) -> float:
    try:
        moment = (datetime.fromisoformat(value) if isinstance(value, str) else value).timestamp()
    except (ValueError, OverflowError, OSError) as problem:
        raise BadInput(f"{field}: {value!r} is no date and time", DEADLINE_FIX) from problem
    if moment <= now:
        raise BadInput(f"{field}: {value} was {show_seconds(now - moment)} ago", DEADLINE_FIX)
    return moment


def read_share(text: str, field: str) -> tuple[str, float]:
    """NAME or NAME:WEIGHT; the weight is 0 if none is given."""
    name, colon, weight_text = text.rpartition(":") if ":" in text else (text, "", "")
    fix = f"write {field} NAME or {field} NAME:WEIGHT, such as {field} thesis:2"
    if not name or len(name) > MAX_NAME or not name.isprintable() or name != name.strip():
        raise BadInput(f"{field}: {name[:MAX_NAME]!r} cannot be the name of a share", fix)
    if not colon:
        return name, 0.0
    try:
        weight = float(weight_text)
    except ValueError:
        weight = math.nan
    if not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
        raise BadInput(f"{field}: {weight_text!r} is no weight", fix)
    return name, weight


def run_wishes(wishes: RunKeywords, now: float) -> dict[str, Any]:
    """The fields of RunOptions that follow."""
    unknown = [name for name in wishes if name not in RunKeywords.__annotations__]
    if unknown:
        raise BadInput(f"Run: {unknown[0]!r} is not understood", f"it takes {', '.join(RunKeywords.__annotations__)}")
    for name, kind, example in (("speculate", bool, "True"), ("share", str, '"thesis:2"'), ("max_failures", int, "1")):
        value = wishes.get(name)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise BadInput(f"{name}: {value!r} is not understood", f"write {name}={example}")
    found: dict[str, Any] = {"max_failures": wishes.get("max_failures", 0), "speculate": wishes.get("speculate")}
    if wishes.get("share"):
        found["share"], found["weight"] = read_share(wishes["share"], "share")
    deadline = wishes.get("deadline")
    if deadline is not None:
        found["deadline"] = read_deadline(deadline, "deadline", now)
    return found
