"""The nearest name to a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """``Did you mean 'alpha'?``, or nothing when no name is near."""
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(wrong.lower(), list(lowered), n=1, cutoff=0.6)
    return f"Did you mean {lowered[close[0]]!r}?" if close else ""
