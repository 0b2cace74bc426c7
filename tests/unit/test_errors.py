"""Suggestions for mistyped names."""

from __future__ import annotations

import pytest

from pilotfish.errors import nearest

COMMANDS = ("run", "status", "cancel", "cache", "attach", "whatif", "why", "help", "hello", "logs", "stop")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("rnu", "run"),
        ("sotp", "stop"),
        ("Satus", "status"),
        ("statsu", "status"),
        ("att", "attach"),
        ("helo", "hello"),
        ("wait", ""),
        ("scanner", ""),
        ("to", ""),
        ("x", ""),
        ("", ""),
        ("st", ""),
    ],
)
def test_only_a_name_with_at_most_two_typing_errors_or_with_the_same_beginning_is_suggested(typed: str, meant: str) -> None:
    assert nearest(typed, COMMANDS) == meant


def test_dashes_do_not_make_options_similar() -> None:
    assert nearest("--array", ["--param", "--pool"]) == ""
    assert nearest("--seconds", ["--json"]) == ""
    assert nearest("--stat", ["--state"]) == "--state"
