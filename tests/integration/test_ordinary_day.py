"""One ordinary day of a user on this machine. See ``tests/support/ordinary_day.py``."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from tests.integration.terminal import Typist
from tests.support.ordinary_day import live_one_day


def test_an_ordinary_day() -> None:
    directory = Path(tempfile.mkdtemp(prefix="pilotfish-day-"))
    person = Typist(directory)
    person.type("workers", "--local-cores", "2")
    try:
        live_one_day(person)
    finally:
        said = person.type("stop", "--now", "--json")
        assert said.status == 0 and json.loads(said.out)["left"] == [], said
        shutil.rmtree(directory)
