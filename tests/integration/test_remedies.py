"""Tests that the commands suggested by ``why`` solve the problem, with real masters and pilots at sites of this machine."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.remedy_follower import Obedient
from tests.support.scripted_master import eventually

BROKEN_PYTHON = '#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "error while loading shared libraries: libpython3.9.so" >&2\nexit 127\n'


@pytest.fixture
def person() -> Iterator[Obedient]:
    directory = Path(tempfile.mkdtemp(prefix="pilotfish-remedies-"))
    somebody = Obedient(directory)
    yield somebody
    somebody.leave()
    shutil.rmtree(directory)


def add(person: Obedient, name: str, *about: str) -> None:
    """Add a site whose pilots are processes of this machine."""
    person.do("site", "add", name, "--backend", "ssh", "--poll-interval", "1s", *about)


def test_a_paused_site(person: Obedient) -> None:
    add(person, "desk", "--cores", "1")
    person.do("site", "pause", "desk")
    run = person.begin("--site", "desk", "--", "true")
    reason = person.hear_why(run, "site-paused")
    assert person.do("why").splitlines()[1:] == ["  fix:    pilotfish site resume desk"]
    person.obey(reason)
    person.finish(run)


@pytest.mark.parametrize(
    ("place", "limit", "command"),
    [
        ("desk", ["--max-pilots", "1"], "pilotfish site set desk max_pilots=2"),
        ("desk:1", [], "pilotfish pilots add desk 1"),
    ],
)
def test_a_limit_that_the_person_has_set(person: Obedient, place: str, limit: list[str], command: str) -> None:
    """The only worker there is busy for long and too small for the next task."""
    add(person, "desk", "--cores", "1", *limit)
    gate = person.directory / "gate"
    first = person.begin("--site", place, "--", "sh", "-c", f"while ! test -e {gate}; do sleep 0.05; done")
    eventually(lambda: person.ask("tasks", str(first), "--state", "running"), "the first one runs")
    person.do("site", "set", "desk", "cores=2")
    second = person.begin("--site", place, "--cores", "2", "--", "true")
    reason = person.hear_why(second, "site-limit")
    assert reason["commands"] == [command]
    person.obey(reason)
    person.finish(second)
    gate.touch()
    person.finish(first)


def test_a_task_that_is_too_big_for_every_site(person: Obedient) -> None:
    """One site has a configured size; the other uses machines as they are."""
    add(person, "desk", "--cores", "1")
    add(person, "shed")
    run = person.begin("--site", "desk", "--site", "shed", "--cores", "64", "--", "true")
    shed = person.hear_why(run, "too-big", "the largest machine of site shed has")
    desk = person.hear_why(run, "too-big", "a task asks for 64 cores, a pilot of site desk has 1")
    rows = {row["site"]: row for row in person.ask("sites")}
    assert rows["shed"]["active"] + rows["shed"]["waiting"] == 1, "a machine is taken once, however much is missing"
    person.obey(desk)
    person.finish(run)
    again = person.begin("--site", "shed", "--cores", "64", "--", "true")
    assert person.hear_why(again, "too-big") == shed
    person.obey(shed)
    person.finish(again)


def test_a_walltime_that_is_too_short(person: Obedient) -> None:
    add(person, "desk", "--cores", "1", "--walltime", "10m")
    run = person.begin("--site", "desk", "--time", "10m", "--", "true")
    person.obey(person.hear_why(run, "walltime", "10 min"))
    person.finish(run)


@pytest.mark.parametrize(("place", "wrong"), [("desk:1", "setup"), ("desk", "python")])
def test_agents_that_do_not_start(person: Obedient, place: str, wrong: str) -> None:
    """With a fixed number of pilots the site is soon held; otherwise it is only tried at growing intervals."""
    python = person.directory / "python3"
    python.write_text(BROKEN_PYTHON)
    python.chmod(0o755)
    add(person, "desk", "--cores", "1", *(["--setup", "echo no such module; exit 7"] if wrong == "setup" else ["--python", str(python)]))
    run = person.begin("--site", place, "--", "true")
    words = "no such module" if wrong == "setup" else "error while loading shared libraries"
    reason = person.hear_why(run, "held" if place == "desk:1" else "bootstrap", words)
    change = "setup=" if wrong == "setup" else "python=/path/to/python3"
    assert reason["commands"] == [f"pilotfish site set desk {change}", "pilotfish doctor desk", "pilotfish site resume desk"]
    person.obey(reason, {"/path/to/python3": sys.executable})
    person.finish(run)
