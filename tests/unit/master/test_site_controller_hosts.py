"""A site of several machines without a batch system: pilots are spread over them, and each machine answers for itself alone."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from pilotfish.backends.interface import ENDED, RUNNING
from pilotfish.master.sites import site_controller
from pilotfish.model import inputs as i
from pilotfish.model.site import VANISHED, PilotSize
from tests.support.fake_site import SILENCE, Desk, story_at

HOSTS = ("crab", "eel", "sole")


def hosts_of(desk: Desk) -> dict[str, str]:
    return {pilot: desk.site.jobs[job].host for pilot, job in desk.jobs().items()}


async def submit_one(desk: Desk, pilot: str) -> str:
    """Returns the host that it is on."""
    desk.submit(pilot)
    await desk.until(lambda: pilot in desk.jobs())
    return hosts_of(desk)[pilot]


@story_at(hosts=HOSTS)
async def test_pilots_are_spread_evenly(desk: Desk) -> None:
    desk.submit(*(f"pond-{number}" for number in range(9)))
    await desk.until(lambda: len(desk.jobs()) == 9)
    assert Counter(hosts_of(desk).values()) == dict.fromkeys(HOSTS, 3)
    desk.site.show(*(job for job, there in desk.site.jobs.items() if there.host == "eel"), phase=ENDED, reason="it ended")
    await desk.until(lambda: len(desk.gone()) == 3)
    assert [await submit_one(desk, f"pond-{number}") for number in (10, 11, 12)] == ["eel"] * 3


@story_at(hosts=HOSTS)
async def test_after_a_restart_those_that_are_there_count(desk: Desk) -> None:
    assert [await submit_one(desk, pilot) for pilot in ("pond-1", "pond-2", "pond-3")] == list(HOSTS)
    jobs = desk.jobs()
    desk.site.show(jobs["pond-2"], phase=ENDED, reason="it ended")
    await desk.until(desk.gone)
    desk.restart()
    for pilot in ("pond-1", "pond-3"):
        desk.controller.adopt(pilot, PilotSize(), jobs[pilot])
    assert await submit_one(desk, "pond-4") == "eel"


def test_who_was_never_placed_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_controller, "AVOID_S", 0.0)

    @story_at(hosts=HOSTS)
    async def play(desk: Desk) -> None:
        desk.site.faults["place"] = [SILENCE] * 10
        desk.submit("pond-1")
        await desk.until(lambda: len(desk.site.places) == 5)
        desk.controller.cancel("pond-1")
        await desk.until(desk.gone)
        desk.site.faults.clear()
        assert [await submit_one(desk, pilot) for pilot in ("pond-2", "pond-3", "pond-4")] == list(HOSTS)

    play(tmp_path)


def test_a_machine_that_does_not_answer_gets_no_pilots_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @story_at(hosts=HOSTS)
    async def play(desk: Desk) -> None:
        desk.site.deaf.add("crab")
        desk.submit(*(f"pond-{number}" for number in range(6)))
        await desk.until(lambda: len(desk.jobs()) == 6)
        assert Counter(hosts_of(desk).values()) == {"eel": 3, "sole": 3}
        assert desk.site.places.count("crab") <= 2
        desk.site.deaf.clear()
        now = time.monotonic
        monkeypatch.setattr(time, "monotonic", lambda: now() + site_controller.AVOID_S)
        assert await submit_one(desk, "pond-7") == "crab"

    play(tmp_path)


@story_at(hosts=HOSTS)
async def test_a_silent_machine_keeps_nobody_from_seeing_what_became_of_pilots_on_others(desk: Desk) -> None:
    desk.submit("pond-1", "pond-2", "pond-3")
    await desk.until(lambda: len(desk.heard(i.PilotSeen)) == 3)
    lost, silent, well = (next(pilot for pilot, at in hosts_of(desk).items() if at == host) for host in HOSTS)
    desk.site.deaf.add(hosts_of(desk)[silent])
    desk.site.show(phase=RUNNING)
    desk.site.jobs[desk.jobs()[lost]].listed = False
    await desk.until(desk.gone)
    assert list(desk.gone()) == [lost] and desk.gone()[lost].cause == VANISHED
    await desk.until(lambda: i.PilotSeen(well, True, "") in desk.told)
    assert desk.trouble() == str(SILENCE)


@story_at(hosts=HOSTS)
async def test_a_silent_machine_does_not_slow_down_the_others(desk: Desk) -> None:
    desk.submit("pond-1", "pond-2", "pond-3")
    await desk.until(lambda: len(desk.heard(i.PilotSeen)) == 3)
    desk.site.deaf.add("crab")
    await desk.looked(30)
    moments = desk.site.times["query"][-30:]
    assert moments[-1] - moments[0] < 30 * desk.about.period_s


@story_at(hosts=HOSTS)
async def test_an_order_is_looked_for_on_its_own_machine_alone(desk: Desk) -> None:
    assert await submit_one(desk, "pond-1") == "crab"
    desk.site.deaf.add("crab")
    desk.site.lost_replies = 1
    assert await submit_one(desk, "pond-2") == "eel"
    assert len(desk.site.asked("submit")) == 2 and len(desk.site.asked("find")) == 1


@story_at(hosts=HOSTS)
async def test_a_silent_machine_keeps_no_pilot_on_another_from_being_cancelled(desk: Desk) -> None:
    desk.submit("pond-1", "pond-2", "pond-3")
    await desk.until(lambda: len(desk.jobs()) == 3)
    desk.site.deaf.add("crab")
    for pilot in desk.jobs():
        desk.controller.cancel(pilot)
    await desk.until(lambda: len(desk.gone()) == 2)
    await desk.until(lambda: len(desk.site.asked("cancel")) >= 6)
    there = Counter(desk.site.jobs[job].host for jobs in desk.site.asked("cancel") for job in jobs)
    assert there["crab"] >= 4 and there["eel"] == there["sole"] == 1
    assert [host for pilot, host in hosts_of(desk).items() if pilot not in desk.gone()] == ["crab"]
    desk.site.deaf.clear()
    await desk.until(lambda: len(desk.gone()) == 3)
