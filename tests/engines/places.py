"""Directories that engines and people live in: everybody may enter, and whose session is gone is cleared away by the next."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from tests.engines import processes

NAME = "pf-engines-{life}-"
"""pytest's own temporary directories are closed to other people, and other people's jobs have to write here."""
PATTERN = re.compile(NAME.format(life=r"(\d+x\d+)"))


def new_place(what: str) -> Path:
    place = Path(tempfile.mkdtemp(prefix=NAME.format(life=processes.life_of(os.getpid())) + what + "-"))
    place.chmod(0o755)
    return place


def clear_away(place: Path) -> None:
    """The processes first, then their files. Only what was made here: this is root, who may remove anything."""
    if not PATTERN.match(place.name):
        raise ValueError(f"{place} is not a place of an engine")
    processes.end_all(lambda: processes.belonging_to(place))
    shutil.rmtree(place, ignore_errors=True)


def clear_away_after_the_dead() -> None:
    """A session that was killed could not clean up."""
    for place in Path(tempfile.gettempdir()).iterdir():
        found = PATTERN.match(place.name)
        if found and processes.is_over(found[1]):
            clear_away(place)
