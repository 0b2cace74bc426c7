"""What real batch systems said: one JSON file for each command, with the keys engine, version, case, argv, rc, stdout, stderr and note.

``rc`` is None when nobody answered; what was fed on standard input, and which id was which kind of job, stands in ``note``.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from pilotfish.backends.interface import CommandOutput

FOLDER = Path(__file__).with_suffix("")


@cache
def transcript(folder: str, case: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((FOLDER / folder / f"{case}.json").read_text(encoding="utf-8"))
    return told


def answer(folder: str, case: str) -> CommandOutput:
    told = transcript(folder, case)
    return CommandOutput(told["rc"], told["stdout"], told["stderr"])


def argv(folder: str, case: str) -> list[str]:
    return list(transcript(folder, case)["argv"])
