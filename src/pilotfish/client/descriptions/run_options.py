"""Reads the options of a run. ``RunRequest`` holds all options of ``pilotfish run``.

Examples of a deadline are ``18:00``, ``2h`` and ``2030-05-01 12:00``. Examples of a share are ``alice`` and ``alice:3``; 3 is the weight.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict

from pilotfish.applications.sweeps.sweep import split_lists
from pilotfish.applications.task_options import TaskOptions, check_known, read_task_options
from pilotfish.client.descriptions.site_selection import SiteSelection
from pilotfish.client.session import PoolSession
from pilotfish.errors import BadInput, Correction, did_you_mean
from pilotfish.model.quantities import parse_seconds, show_seconds
from pilotfish.model.site import LOCAL
from pilotfish.model.task import RunOptions
from pilotfish.portable.expressions.evaluation import BadExpression, parse
from pilotfish.portable.expressions.worker_properties import INFO, lacks_quotes, worker_properties

MAX_NAME = 200
_NUMBER = re.compile(r"[0-9]+([.][0-9]+)?")
MAX_WEIGHT = 1e6
DEADLINE_FIX = "write a time (18:00), a date with or without one (2030-05-01T12:00), or how long from now (2h)"
_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")
_DATE = re.compile(r"[0-9]{4}-.*")

Deadline = str | int | float | timedelta | datetime


class RunKeywords(TypedDict, total=False):
    """Keyword arguments of ``Run`` that apply to the whole run."""

    max_failures: int
    share: str
    deadline: Deadline | None
    speculate: bool | None
    resume: bool


MAX_DEADLINE_S = 100 * 366 * 86400.0


def read_deadline(value: Deadline, field: str, now: float) -> float:
    """Reads a deadline and returns it in seconds since 1970.

    - A time of day, such as ``18:00``, means today, or tomorrow if this time has passed today.
    - A date with or without a time, or a datetime, means this date and time. Without a time zone, it is local time.
    - A duration, such as ``2h`` or a number of seconds, is added to ``now``.
    """
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and (clock := _CLOCK.fullmatch(text)):
        today = datetime.fromtimestamp(now).replace(hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
        return (today if today.timestamp() > now else today + timedelta(days=1)).timestamp()
    if isinstance(text, datetime) or (isinstance(text, str) and _DATE.fullmatch(text)):
        return _read_date(text, field, now)
    try:
        seconds = parse_seconds(text, field)
    except BadInput as problem:
        raise BadInput(f"{field}: {value!r} is no time and no duration", Correction(DEADLINE_FIX, value, "2h")) from problem
    if not 0 < seconds < MAX_DEADLINE_S:
        raise BadInput(f"{field}: {value!r} from now is {'over' if seconds <= 0 else 'too far away'}", DEADLINE_FIX)
    return now + seconds


def _read_date(value: str | datetime, field: str, now: float) -> float:
    try:
        seconds = (datetime.fromisoformat(value) if isinstance(value, str) else value).timestamp()
    except (ValueError, OverflowError, OSError) as problem:
        raise BadInput(f"{field}: {value!r} is no date and time", DEADLINE_FIX) from problem
    if seconds <= now:
        raise BadInput(f"{field}: {value} was {show_seconds(now - seconds)} ago", Correction(DEADLINE_FIX, value, "2h"))
    return seconds


def read_share(text: str, field: str) -> tuple[str, float]:
    """Reads NAME or NAME:WEIGHT. Returns the name and the weight. The weight is 0 if the text contains no weight."""
    name, colon, weight_text = text.rpartition(":") if ":" in text else (text, "", "")
    fix = Correction(
        f"write {field} NAME or {field} NAME:WEIGHT, such as {field} thesis:2", text, f"{name.strip()[:MAX_NAME] or 'thesis'}:2"
    )
    if not name or len(name) > MAX_NAME or not name.isprintable() or name != name.strip():
        raise BadInput(f"{field}: {name[:MAX_NAME]!r} is not a valid name of a share", fix)
    if not colon:
        return name, 0.0
    try:
        weight = float(weight_text)
    except ValueError:
        weight = math.nan
    if not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
        raise BadInput(f"{field}: {weight_text!r} is no weight", fix)
    return name, weight


def check_run_name(name: str, option: str) -> None:
    """Raises BadInput if a run cannot have this name: the name is too long, contains characters that cannot be typed, or already means a
    run or a task, such as ``3``, ``3.17`` or ``last``. ``option``: the text before the name in the message, such as ``--name`` or
    ``name=``."""
    check_run_text(name, option)
    if _NUMBER.fullmatch(name) or name == "last":
        meaning = "the last run" if name == "last" else f"the {'task' if '.' in name else 'run'} {name}"
        fix = Correction(f"Put a letter before it: {option}run-{name}", name, f"run-{name}")
        raise BadInput(f"{option}{name}: that already means {meaning}", fix)


def check_run_text(name: str, option: str) -> None:
    """Raises BadInput if a name or uid is no text, is too long, or contains characters that cannot be typed."""
    if not isinstance(name, str):
        raise BadInput(f"{option}{name!r}: it is not text", f'write {option}"run-{name}"')
    if len(name) > MAX_NAME:
        raise BadInput(f"{option}{name[:20]}...: it has {len(name):,} characters, and {MAX_NAME} are the most", "Give it a shorter name.")
    for character in name:
        if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp"):
            visible = repr(character).strip("'")
            plain = "".join(other if other.isprintable() else "-" for other in name)
            raise BadInput(
                f"{option}{' '.join(name.split())}: {visible} cannot be part of a name", f"Leave it out: {option}{shlex.quote(plain)}"
            )


def read_run_keywords(keywords: RunKeywords, now: float, also: tuple[str, ...] = ()) -> dict[str, Any]:
    """Checks the keywords of ``Run`` and returns the fields of RunOptions that they set. ``also``: names of further options of ``Run``,
    which the caller reads. For a misspelt name, the hint suggests the nearest of all these names."""
    check_known(keywords, (*also, *RunKeywords.__annotations__), "Run")
    for name, kind, example in (("speculate", bool, "True"), ("share", str, '"thesis:2"'), ("max_failures", int, "1")):
        value = keywords.get(name)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise BadInput(f"{name}: {value!r} is not understood", f"write {name}={example}")
    found: dict[str, Any] = {"max_failures": keywords.get("max_failures", 0), "speculate": keywords.get("speculate")}
    if keywords.get("share"):
        found["share"], found["weight"] = read_share(keywords["share"], "share")
    deadline = keywords.get("deadline")
    if deadline is not None:
        found["deadline"] = read_deadline(deadline, "deadline", now)
    return found


ANY_SITE = SiteSelection()


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The options of ``pilotfish run`` as the user gave them."""

    # The source of the tasks.
    command: tuple[str, ...] = ()
    task_list: str | None = None
    dag: str | None = None
    parameters: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    each_line: str | None = None
    zipped: bool = False
    times: int | None = None
    after_dashes: bool = False
    """Whether the user typed ``--`` before the command. After ``--``, the command is a program, even if its name looks like the name of a
    run file."""
    typed: str = ""
    """The whole command line as the user typed it, quoted for a shell."""

    # The resources of each task.
    cores: str | None = None
    nodes: int | None = None
    memory: str | None = None
    gpus: float | None = None
    resources: tuple[str, ...] = ()
    time_limit: str | None = None
    warn_signal: str | None = None
    retries: int = 0

    # The pool, the workers and the order.
    pool: str = "default"
    local_cores: int | None = None
    sites: SiteSelection = ANY_SITE
    requirement: str | None = None
    rank: str | None = None
    priority: int = 0
    share: tuple[str, float] | None = None
    deadline: float | None = None
    max_failures: int = 0
    speculate: bool | None = None

    # The files and variables of each task.
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    into: str | None = None
    overwrite: bool = False
    sandbox: bool | None = None
    environment: tuple[str, ...] = ()
    stdin: str | None = None
    max_output: str | None = None

    # The output of the command.
    name: str = ""
    detach: bool = False
    dry_run: bool = False
    resume: bool = False
    explain_cache: bool = False
    report: bool = False
    quiet: bool = False
    as_json: bool = False

    @property
    def is_sweep(self) -> bool:
        return self.has_values or self.task_list is not None

    @property
    def has_values(self) -> bool:
        """Returns whether the options give values for a sweep. The command is then the template of the sweep."""
        return bool(self.parameters or self.tables or split_lists(self.command)[1]) or self.each_line is not None or self.times is not None

    @property
    def silent(self) -> bool:
        """Returns whether to hide the progress line."""
        return self.quiet or self.as_json

    def task_options(self) -> TaskOptions:
        """Checks the options that apply to each task and returns them. The checks are the same as in the Python API."""
        keywords: dict[str, Any] = {"retries": self.retries, "priority": self.priority}
        if self.command:
            keywords["name"] = os.path.basename(self.command[0])
        resources = {"cores": self.cores, "nodes": self.nodes, "memory": self.memory, "gpus": self.gpus, "time": self.time_limit}
        resources["max_output"] = self.max_output
        keywords |= {name: value for name, value in resources.items() if value is not None}
        if self.requirement is not None:
            keywords["requirement"] = read_expression("--require", self.requirement)
        if self.rank is not None:
            keywords["rank"] = read_expression("--rank", self.rank)
        if self.resources:
            keywords["resources"] = dict(map(_read_resource, self.resources))
        return read_task_options(keywords, "run")

    def run_options(self, command: str, application: str = "") -> RunOptions:
        """Returns the options of the run. Listings show ``command``. ``application`` is the path of the run file, if it has a manager."""
        share, weight = self.share or ("", 0.0)
        return RunOptions(
            name=self.name,
            command=command,
            cwd=os.getcwd(),
            max_failures=self.max_failures,
            application=application,
            sites=self.sites.names if self.local_cores is None else (LOCAL,),
            speculate=self.speculate,
            share=share,
            weight=weight,
            deadline=self.deadline or 0.0,
            resume=self.resume,
        )


def _read_resource(text: str) -> tuple[str, float]:
    name, equals, amount = text.partition("=")
    try:
        value = float(amount)
    except ValueError:
        value = -1.0
    if not (equals and name) or value < 0:
        raise BadInput(
            f"--resource {text!r} is not NAME=AMOUNT", Correction(f"Write --resource {name or 'licence'}=1", text, f"{name or 'licence'}=1")
        )
    return name, value


# --- --require and --rank -------------------------------------------------------------------------------------------------------------

EXAMPLES = {"--require": "memory >= 8G", "--rank": "cores"}
COMMON_PROPERTIES = tuple(worker_properties("", "", {}, {}, dict.fromkeys(INFO, "")))
"""Names of the properties that all workers have."""
RANK_ONLY = ("held", "wanted")
"""Properties that only a rank can use. ``wanted``: size in bytes of the large inputs that belong to the task alone. ``held``: how many of
these bytes the worker already has."""


def read_expression(option: str, text: str) -> str:
    try:
        return str(parse(text))
    except BadExpression as problem:
        raise BadInput(f"{option}: {problem}", f"Write {option} '{EXAMPLES[option]}'; more: docs/reference/expressions.md") from problem


def property_warnings(session: PoolSession, wanted: TaskOptions) -> Iterator[str]:
    """Yields a warning for each property in ``--require`` or ``--rank`` that no connected worker has. It is no error, because a worker that
    joins later can have the property."""
    if not (wanted.requirement or wanted.rank):
        return
    here = [worker.get("properties", {}) for worker in session.ask("workers", all=False)]
    for option, text, more in (("--require", wanted.requirement, ()), ("--rank", wanted.rank, RANK_ONLY)):
        known = dict.fromkeys((*COMMON_PROPERTIES, *more, *(name for properties in here for name in properties)))
        for name in parse(text).names if text else ():
            quoted = f'Write a text in quotes: "{name}"' if text and lacks_quotes(name, parse(text), here) else ""
            if name not in known and (warning := _warning(option, name, did_you_mean(name, known) or quoted, bool(here))):
                yield warning


def _warning(option: str, name: str, meant: str, any_here: bool) -> str:
    """Returns a warning about the unknown property ``name``, or an empty text. ``meant``: a suggestion, or an empty text. ``any_here``:
    whether a worker is connected. If no worker is connected and there is no suggestion, the text is empty, because a worker that joins
    later can have the property."""
    if name in RANK_ONLY:
        return f"warning: {option}: only --rank may ask for {name}, which is about a task and a worker; here it is not known"
    if not meant and not any_here:
        return ""
    return f"warning: {option}: no connected worker has a property {name!r}. {meant}".rstrip()
