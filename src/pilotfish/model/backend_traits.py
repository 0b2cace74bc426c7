"""Describes what a backend can do: its options, so that a slip is found when it is written and not in a queue, and its programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

Check = tuple[Callable[[str], object], str]
"""Whether a text will do, and what would."""


def matches(pattern: str, expected: str) -> Check:
    return re.compile(pattern).fullmatch, expected


ONE_WORD = matches(r"(?!-)[^\s\x00-\x1f\x7f]+", "one word")
PATH = matches(r"(?![\s-])[^\x00-\x1f\x7f]+", "a path")


class BackendTraits(NamedTuple):
    """What a person can tell a kind of backend, and what they can be told of it."""

    options: dict[str, Check] = {}
    """What it can be told beyond what every site has."""
    needs: tuple[str, ...] = ()
    """Options without which it cannot work."""
    ignores: tuple[str, ...] = ()
    """Keys that would have no effect."""
    multiplies: str = ""
    """Directives that would change how many jobs there are, which is not theirs to say."""
    programs: tuple[str, ...] = ()
    """What it is spoken to with."""
    helpers: dict[str, str] = {}
    """Programs that it can do without, and what is missing then."""
    harmless_word: str = ""
    """With this each of them does nothing."""
    variables: tuple[str, ...] = ()
    """How the names of the variables begin that they go by."""
    hands_on: bool = False
    """It may hand the environment of a submission on to its jobs. Others, and ssh, may need secrets in it to let us in."""
    several_queues: bool = False
    cancel: str = ""
    """What takes a job out of its queue, if a person can type it."""
    release: str = ""
    """What lets a job go that is held."""


ANY_OPTIONS: dict[str, Check] = {"ssh_config": PATH}
"""Options of every site."""


UNKNOWN_TRAITS = BackendTraits()
"""Of a backend that is not installed, nothing is known."""


def no_traits(backend: str) -> BackendTraits:
    return UNKNOWN_TRAITS
