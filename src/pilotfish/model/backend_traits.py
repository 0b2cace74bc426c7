"""Defines what a backend declares about itself. With these declarations, wrong options are found when a user configures a site, before
pilots are submitted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

Check = tuple[Callable[[str], object], str]
"""A check of a value, and a description of valid values for the error message."""


def matches(pattern: str, expected: str) -> Check:
    return re.compile(pattern).fullmatch, expected


ONE_WORD = matches(r"(?!-)[^\s\x00-\x1f\x7f]+", "one word")
PATH = matches(r"(?![\s-])[^\x00-\x1f\x7f]+", "a path")


class BackendTraits(NamedTuple):
    """The options of a backend, and facts about its batch system."""

    options: dict[str, Check] = {}
    """Options of the backend, in addition to the options of every site."""
    needs: tuple[str, ...] = ()
    """Required options."""
    ignores: tuple[str, ...] = ()
    """Site keys that have no effect with this backend, such as "queue" or "memory". A site with one of these keys is refused."""
    multiplies: str = ""
    """Pattern of directives that would change the number of jobs. Such directives are refused."""
    programs: tuple[str, ...] = ()
    """Programs that the backend calls."""
    helpers: dict[str, str] = {}
    """Optional programs. Each has a text that says what is not possible without the program."""
    harmless_word: str = ""
    """Harmless argument for each program: the program prints a text and ends. Example: ``--version``."""
    variables: tuple[str, ...] = ()
    """Prefixes of the environment variables that the programs read."""
    passes_environment: bool = False
    """Whether the batch system can pass the environment of a submission to the jobs. If True, secrets are removed from the environment."""
    several_queues: bool = False
    cancel: str = ""
    """Command with which a user cancels a queued job; empty if there is none."""
    release: str = ""
    """Command with which a user releases a held job; empty if there is none."""


ANY_OPTIONS: dict[str, Check] = {"ssh_config": PATH}
"""Options of every site."""


UNKNOWN_TRAITS = BackendTraits()
"""Traits of a backend that is not installed."""


def no_traits(backend: str) -> BackendTraits:
    return UNKNOWN_TRAITS
