"""--require and --rank: read before anything is started, with a word about properties that no worker has."""

from __future__ import annotations

import sys

from pilotfish.agent.overlay.expressions import BadExpression, parse
from pilotfish.agent.overlay.properties import INFO, lacks_quotes, worker_properties
from pilotfish.api.nearest import did_you_mean
from pilotfish.applications.wishes import Wanted
from pilotfish.cli.pool import Master
from pilotfish.cli.render import Screen, clean
from pilotfish.errors import BadInput

EXAMPLES = {"--require": "memory >= 8G", "--rank": "cores"}
EVERYWHERE = tuple(worker_properties("", "", {}, {}, dict.fromkeys(INFO, "")))
OF_THE_PAIR = ("held", "wanted")
"""What only a rank may ask about: bytes of a task's inputs that are at the worker, and bytes of all of them."""


def read_expression(option: str, text: str) -> str:
    try:
        return str(parse(text))
    except BadExpression as problem:
        raise BadInput(f"{option}: {problem}", f"Write {option} '{EXAMPLES[option]}'; more: docs/reference/expressions.md") from problem


def warn_of_unknown(master: Master, wanted: Wanted) -> None:
    """A worker to come may have any property, so that a misspelt one is no error. Nobody would see it for hours, though."""
    if not (wanted.requirement or wanted.rank):
        return
    here = [worker.get("properties", {}) for worker in master.ask("workers", all=False)]
    for option, text, more in (("--require", wanted.requirement, ()), ("--rank", wanted.rank, OF_THE_PAIR)):
        known = dict.fromkeys((*EVERYWHERE, *more, *(name for properties in here for name in properties)))
        for name in parse(text).names if text else ():
            quoted = f'A text stands in quotes: "{name}"' if text and lacks_quotes(name, parse(text), here) else ""
            if name not in known and (warning := _warning(option, name, did_you_mean(name, known) or quoted, bool(here))):
                Screen.of(sys.stderr).line(clean(warning))


def _warning(option: str, name: str, meant: str, any_here: bool) -> str:
    """As long as nobody is here, a tag is as good as any: then only what looks like something else is worth a word."""
    if name in OF_THE_PAIR:
        return f"warning: {option}: only --rank may ask for {name}, which is about a task and a worker; here it is not known"
    if not meant and not any_here:
        return ""
    return f"warning: {option}: no worker that is here has a property {name!r}. {meant}".rstrip()
