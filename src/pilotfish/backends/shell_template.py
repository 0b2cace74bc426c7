"""Shell scripts with blanks, for backends that need more at a site than one command, and the JSON documents that such scripts print."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

from pilotfish.backends.interface import UnclearAnswer

CANNOT, UNDONE = 70, 71
"""Exit statuses of our scripts: nothing was submitted; what was submitted had to be taken back, which was done."""


def fill(script: str, **words: str) -> str:
    """The script with its blanks, which read ``@NAME@``, filled in; what is filled in is not looked at again."""
    return re.sub(r"@([A-Z]+)@", lambda blank: words[blank[1]], script)


def home_path(folder: str) -> str:
    """A path at a site as the shell's word for it: ``~`` is the home of whoever runs it."""
    if folder != "~" and not folder.startswith("~/"):
        return shlex.quote(folder)
    return '"$HOME"' + (shlex.quote(folder[1:]) if folder[1:] else "")


def documents(text: str) -> Iterator[dict[str, Any]]:
    """All JSON objects in a text, one after the other; what stands between them is passed over."""
    decoder, at = json.JSONDecoder(), text.find("{")
    while at >= 0:
        try:
            document, end = decoder.raw_decode(text, at)
        except ValueError as error:
            raise UnclearAnswer(f"an answer that cannot be read: {text[at : at + 100]!r}") from error
        yield document
        at = text.find("{", end)
