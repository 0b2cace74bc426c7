"""Creates directories for engines and users. All users may enter; the next session removes those of a dead one."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from tests.engines import processes

NAME = "pf-engines-{life}-"
"""Jobs of other users write here; pytest's own temporary directories are closed to them."""
PATTERN = re.compile(NAME.format(life=r"(\d+x\d+)"))


def new_place(what: str) -> Path:
    place = Path(tempfile.mkdtemp(prefix=NAME.format(life=processes.life_of(os.getpid())) + what + "-"))
    place.chmod(0o755)
    return place


def clear_away(place: Path) -> None:
    """End the processes, then remove their files. Check the name first, because root may remove anything."""
    if not PATTERN.match(place.name):
        raise ValueError(f"{place} is not a place of an engine")
    processes.end_all(lambda: processes.belonging_to(place))
    shutil.rmtree(place, ignore_errors=True)


def clear_away_after_the_dead() -> None:
    """Clean up after sessions that were killed."""
    for place in Path(tempfile.gettempdir()).iterdir():
        found = PATTERN.match(place.name)
        if found and processes.is_over(found[1]):
            clear_away(place)
