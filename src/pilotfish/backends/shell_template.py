"""Fills templates of shell scripts, and reads the JSON that these scripts print."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

from pilotfish.backends.interface import UnclearAnswer

CANNOT, UNDONE = 70, 71
"""Exit statuses of the scripts. CANNOT: no job was submitted. UNDONE: a partial submission was undone."""


def fill(script: str, **words: str) -> str:
    """Replaces each ``@NAME@`` in a script by the argument of that name. Replaces nothing inside of inserted text."""
    return re.sub(r"@([A-Z]+)@", lambda blank: words[blank[1]], script)


def home_path(folder: str) -> str:
    """Quotes a path for the shell. The shell replaces ``~`` at the beginning by the home directory of the user."""
    if folder != "~" and not folder.startswith("~/"):
        return shlex.quote(folder)
    return '"$HOME"' + (shlex.quote(folder[1:]) if folder[1:] else "")


def documents(text: str) -> Iterator[dict[str, Any]]:
    """Yields all JSON objects in a text. Skips other text. Raises UnclearAnswer if an object is not valid JSON."""
    decoder, at = json.JSONDecoder(), text.find("{")
    while at >= 0:
        try:
            document, end = decoder.raw_decode(text, at)
        except ValueError as error:
            raise UnclearAnswer(f"an answer that cannot be read: {text[at : at + 100]!r}") from error
        yield document
        at = text.find("{", end)
