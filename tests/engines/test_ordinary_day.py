"""One ordinary day of a user whose tasks all run at a Slurm site. See ``tests/support/ordinary_day.py``."""

from __future__ import annotations

import json

import pytest

from tests.engines import places, processes
from tests.engines.slurm import Slurm
from tests.integration.terminal import Typist
from tests.support.ordinary_day import live_one_day


@pytest.mark.campaign
def test_an_ordinary_day_at_a_cluster(slurm: Slurm) -> None:
    place = places.new_place("day")
    person = Typist(place)
    person.environment.update(slurm.environment)
    try:
        said = person.type("site", "add", "pond", "--backend", "slurm", "--poll-interval", "1s", "--cores", "2")
        assert said.status == 0, said
        live_one_day(person, "pond")
        sites = {row["site"] for row in json.loads(person.type("tasks", "day", "--json").out)}
        assert sites == {"pond"}
    finally:
        person.type("stop", "--now")
        processes.wait_until(lambda: not slurm.leftovers(), "the queue is empty")
        places.clear_away(place)
