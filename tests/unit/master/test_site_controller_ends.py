"""What is cancelled goes, wherever it is just then; what a master left behind is taken up by the next; the end leaves nothing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from pilotfish.backends.interface import ENDED, CommandRefused, UnclearAnswer
from pilotfish.master.sites import site_controller
from pilotfish.master.sites.command_runner import CommandRunner
from pilotfish.master.sites.submitted_batches import BatchRegistry
from pilotfish.model.site import CANCELLED, VANISHED, PilotSize, Site
from tests.support.fake_site import SILENCE, Desk, Job, RunnerSite, hasty, story, story_at
from tests.support.scripted_master import alive

# --- cancelling -----------------------------------------------------------------------------------------------------------------------


def assert_cancelled(desk: Desk, pilot: str = "pond-1") -> None:
    gone = desk.gone()[pilot]
    assert (gone.well, gone.cause) == (True, CANCELLED)


@story
async def test_what_is_cancelled_before_it_was_submitted_never_is(desk: Desk) -> None:
    desk.submit("pond-1", "pond-2")
    desk.controller.cancel("pond-1")
    assert_cancelled(desk)
    await desk.until(desk.jobs)
    assert list(desk.jobs()) == ["pond-2"] and len(desk.site.jobs) == 1


@story_at(arrays=10)
async def test_what_is_cancelled_while_it_is_submitted_is_cancelled_there(desk: Desk) -> None:
    desk.site.open.clear()
    desk.submit("pond-1", "pond-2")
    await desk.until(lambda: desk.site.asked("submit"))
    desk.controller.cancel("pond-1")
    assert not desk.gone()
    desk.site.open.set()
    await desk.until(desk.gone)
    assert_cancelled(desk)
    assert desk.site.asked("cancel") == [(desk.jobs()["pond-1"],)]
    await desk.looked(3)
    assert list(desk.gone()) == ["pond-1"]


@story
async def test_what_is_cancelled_while_its_reply_is_lost_is_found_and_cancelled(desk: Desk) -> None:
    desk.site.lost_replies = 1
    desk.site.faults["find"] = [SILENCE] * 3
    desk.submit("pond-1")
    await desk.until(lambda: desk.site.asked("find"))
    desk.controller.cancel("pond-1")
    await desk.until(desk.gone)
    assert_cancelled(desk)
    assert len(desk.site.asked("submit")) == 1 and desk.site.asked("cancel") == [(desk.jobs()["pond-1"],)]


@story
async def test_what_is_cancelled_while_the_site_takes_no_more_goes_soon(desk: Desk) -> None:
    desk.controller.change_site(Site(backend="slurm", period_s=1000.0))
    desk.site.faults["submit"] = [CommandRefused("no more", later=True)]
    desk.submit("pond-1")
    await desk.until(lambda: "no more" in desk.trouble())
    desk.controller.cancel("pond-1")
    await desk.until(desk.gone)
    assert_cancelled(desk)


@story_at(arrays=10)
async def test_those_that_wait_are_cancelled_together(desk: Desk) -> None:
    desk.submit("pond-1", "pond-2", "pond-3")
    await desk.until(lambda: len(desk.jobs()) == 3)
    desk.controller.cancel("pond-1")
    desk.controller.cancel("pond-2")
    desk.controller.cancel("pond-1")
    await desk.until(lambda: len(desk.gone()) == 2)
    assert_cancelled(desk)
    assert desk.site.asked("cancel") == [(desk.jobs()["pond-1"], desk.jobs()["pond-2"])]
    assert desk.site.cleared == [] and desk.order_files() == ["pf-pond-1"]
    desk.controller.cancel("pond-3")
    await desk.until(lambda: desk.site.cleared == ["pf-pond-1"] and not desk.order_files())


@story
async def test_who_lingers_is_cancelled_again(desk: Desk) -> None:
    desk.site.hears_cancel = False
    desk.submit("pond-1")
    await desk.until(desk.jobs)
    desk.controller.cancel("pond-1")
    await desk.until(lambda: len(desk.site.asked("cancel")) == 3)
    assert not desk.gone()
    desk.site.hears_cancel = True
    await desk.until(desk.gone)
    assert_cancelled(desk)


@story
async def test_the_end_of_who_was_cancelled_is_told_in_the_words_of_the_site(desk: Desk) -> None:
    """It may have died before, and been cancelled because it was silent."""
    desk.submit("pond-1")
    await desk.until(desk.jobs)
    desk.joined.add("pond-1")
    desk.site.hears_cancel = False
    desk.controller.cancel("pond-1")
    desk.site.show(phase=ENDED, reason="NODE_FAIL", well=False)
    await desk.until(desk.gone)
    assert_cancelled(desk)
    assert "NODE_FAIL" in desk.gone()["pond-1"].reason


@story
async def test_a_cancel_that_had_no_answer_is_sent_again(desk: Desk) -> None:
    desk.submit("pond-1")
    await desk.until(desk.jobs)
    desk.site.faults["cancel"] = [SILENCE, SILENCE]
    desk.controller.cancel("pond-1")
    await desk.until(desk.gone)
    assert_cancelled(desk)
    assert len(desk.site.asked("cancel")) == 3


@story
async def test_not_listed_once_is_no_proof_that_a_cancel_was_heard(desk: Desk) -> None:
    desk.submit("pond-1")
    await desk.until(desk.jobs)
    job = desk.site.jobs[desk.jobs()["pond-1"]]
    desk.site.faults["cancel"] = [SILENCE]
    job.listed = False
    desk.controller.cancel("pond-1")
    await desk.until(lambda: desk.site.asked("past"))
    job.listed = True
    await desk.until(lambda: len(desk.site.asked("cancel")) == 2)
    await desk.until(desk.gone)
    assert_cancelled(desk)


@story
async def test_an_unknown_pilot_is_gone_at_once(desk: Desk) -> None:
    desk.controller.cancel("pond-77")
    assert desk.gone()["pond-77"].well


# --- restarts -------------------------------------------------------------------------------------------------------------------------


@story_at(arrays=10)
async def test_after_a_restart_pilots_with_jobs_are_looked_after_and_have_fresh_credentials(desk: Desk) -> None:
    desk.submit("pond-1", "pond-2")
    await desk.until(lambda: len(desk.jobs()) == 2)
    jobs = desk.jobs()
    desk.restart()
    for pilot in jobs:
        desk.controller.adopt(pilot, PilotSize(), jobs[pilot])
    await desk.until(lambda: desk.site.staged == ["pf-pond-1", "pf-pond-1"])
    desk.site.show(phase=ENDED, reason="FAILED", well=False)
    desk.site.words["pf-pond-1", 2] = "no space left"
    await desk.until(lambda: len(desk.gone()) == 2)
    assert "no space left" in desk.gone()["pond-2"].reason and len(desk.site.asked("submit")) == 1
    await desk.until(lambda: not desk.order_files())


@story
async def test_after_a_restart_an_order_without_a_job_is_found_by_its_name(desk: Desk) -> None:
    desk.site.lost_replies = 1
    desk.site.faults["find"] = [SILENCE] * 1000
    desk.submit("pond-1")
    await desk.until(lambda: desk.site.asked("find"))
    desk.restart()
    desk.site.faults.clear()
    desk.controller.adopt("pond-1", PilotSize(), "")
    await desk.until(desk.jobs)
    assert len(desk.site.asked("submit")) == 1


@story_at(arrays=10)
async def test_after_a_restart_an_order_that_was_not_sent_is_sent(desk: Desk) -> None:
    desk.site.faults["stage"] = [UnclearAnswer("the tunnel is not up")] * 1000
    desk.submit("pond-1", "pond-2")
    await desk.until(desk.order_files)
    desk.controller.cancel("pond-1")
    desk.controller.cancel("pond-2")
    desk.restart()
    desk.site.faults.clear()
    desk.told.clear()
    desk.controller.adopt("pond-1", PilotSize(), "")
    desk.controller.adopt("pond-2", PilotSize(), "")
    await desk.until(lambda: len(desk.jobs()) == 2)
    assert len(desk.site.asked("submit")) == 1 and not desk.site.asked("find")


@pytest.mark.parametrize("long_ago", [True, False])
def test_after_a_restart_it_is_known_how_late_an_order_may_still_arrive(tmp_path: Path, long_ago: bool) -> None:
    @story
    async def play(desk: Desk) -> None:
        desk.site.open.clear()
        desk.submit("pond-1")
        await desk.until(lambda: desk.site.asked("submit"))
        desk.restart()
        desk.site.open.set()
        (batch,) = desk.master.batches.all()
        assert batch.sent and time.time() - batch.sent_at < site_controller.ARRIVAL_S / 2
        batch.sent_at -= site_controller.ARRIVAL_S * long_ago
        desk.controller.adopt("pond-1", PilotSize(), "")
        await desk.until(lambda: desk.jobs() or len(desk.site.asked("find")) > 10 * site_controller.MIN_LOOKUPS)
        assert len(desk.site.asked("submit")) == 1 + long_ago
        # Let it end: it arrived after all.
        desk.site.jobs.setdefault("1", Job("pf-pond-1", 1))

    play(tmp_path)


@story
async def test_after_a_restart_what_was_never_begun_is_submitted(desk: Desk) -> None:
    desk.controller.adopt("pond-1", PilotSize(), "")
    await desk.until(desk.jobs)
    assert len(desk.site.asked("submit")) == 1 and not desk.site.asked("find")


@story
async def test_after_a_restart_a_job_without_an_order_is_looked_after_all_the_same(desk: Desk) -> None:
    desk.site.jobs = {}
    desk.controller.adopt("pond-1", PilotSize(), "17")
    await desk.until(desk.gone)
    assert desk.gone()["pond-1"].cause == VANISHED and desk.site.asked("query")[0] == ("17",)


@story_at(arrays=2)
async def test_orders_are_read_once_and_those_that_cannot_be_read_are_passed_over(desk: Desk) -> None:
    desk.submit("pond-1", "pond-2", "pond-3")
    await desk.until(lambda: len(desk.jobs()) == 3)
    (desk.directory / "orders" / "broken.json").write_text("{")
    book = BatchRegistry(desk.directory / "orders")
    for path in (desk.directory / "orders").iterdir():
        path.rename(desk.directory / path.name)
    found = book.find("pond", "pond-2")
    assert found is not None and found.pilots == ["pond-1", "pond-2"] and book.find("reef", "pond-2") is None
    book.remove(found)
    assert book.find("pond", "pond-1") is None and book.find("pond", "pond-3") is not None


@pytest.mark.parametrize("known", [True, False])
def test_after_a_restart_what_is_cancelled_at_once_is_cancelled_at_the_site(tmp_path: Path, known: bool) -> None:
    """Whether or not its job is known: nothing may be left in the queue because somebody wanted to tell it where the master is."""

    @story
    async def play(desk: Desk) -> None:
        desk.submit("pond-1")
        await desk.until(desk.jobs)
        job = desk.jobs()["pond-1"]
        desk.restart()
        desk.told.clear()
        desk.site.faults["cancel"] = [SILENCE] * 3
        desk.controller.adopt("pond-1", PilotSize(), job if known else "")
        desk.controller.cancel("pond-1")
        await desk.until(lambda: len(desk.site.asked("cancel")) == 4)
        await desk.until(desk.gone)
        assert_cancelled(desk)
        assert not desk.site.jobs[job].listed

    play(tmp_path)


@story
async def test_agents_are_told_anew_where_the_master_is_until_it_works(desk: Desk) -> None:
    desk.submit("pond-1")
    await desk.until(desk.jobs)
    for fault in (UnclearAnswer("the tunnel is not up"), CommandRefused("Permission denied"), OSError("strange")):
        desk.site.faults["stage"] = [fault]
        before = len(desk.site.staged)
        desk.controller.refresh()
        desk.controller.refresh()
        if isinstance(fault, CommandRefused):
            await desk.until(lambda: "Permission denied" in desk.trouble())
        else:
            await desk.until(lambda before=before: len(desk.site.staged) == before + 1)  # type: ignore[misc]


# --- ending ---------------------------------------------------------------------------------------------------------------------------


@story_at(arrays=2)
async def test_the_end_leaves_nothing(desk: Desk) -> None:
    desk.submit("pond-1", "pond-2", "pond-3")
    await desk.until(lambda: len(desk.jobs()) == 3)
    desk.submit("pond-4")
    await desk.controller.end()
    assert len(desk.gone()) == 4 and not any(job.listed for job in desk.site.jobs.values())
    assert desk.order_files() == [] and len(desk.site.cleared) == 2


def test_the_end_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(site_controller, "CANCELLED_S", 0.1)

    @story
    async def play(desk: Desk) -> None:
        desk.submit("pond-1")
        await desk.until(desk.jobs)
        desk.site.down = SILENCE
        await desk.controller.end()
        assert not desk.gone() and desk.order_files() == ["pf-pond-1"]

    play(tmp_path)
    assert "left there: 1" in caplog.text


@pytest.mark.parametrize("arrived", [True, False])
def test_the_end_does_not_wait_for_a_submission_that_hangs_and_the_next_courier_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrived: bool
) -> None:
    monkeypatch.setattr(site_controller, "SUBMITTED_S", 0.1)
    monkeypatch.setattr(site_controller, "ARRIVAL_S", 0.1)

    @story
    async def play(desk: Desk) -> None:
        desk.site.open.clear()
        desk.submit("pond-1")
        await desk.until(lambda: desk.site.asked("submit"))
        await asyncio.wait_for(desk.controller.end(), site_controller.CANCELLED_S / 2)
        assert not desk.gone() and desk.order_files() == ["pf-pond-1"]
        if arrived:
            desk.site.jobs["1"] = Job("pf-pond-1", 1)
        desk.restart()
        desk.controller.adopt("pond-1", PilotSize(), "")
        desk.controller.cancel("pond-1")
        await desk.until(desk.gone)
        assert_cancelled(desk)
        assert len(desk.site.asked("submit")) == 1 and not any(job.listed for job in desk.site.jobs.values())
        await desk.until(lambda: not desk.order_files())

    play(tmp_path)


def test_a_submission_that_hangs_does_not_keep_others_from_being_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one command may be run at a time, and that one never ends by itself."""
    monkeypatch.setattr(site_controller, "SUBMITTED_S", 0.1)

    async def whole() -> None:
        desk = Desk(tmp_path, commands_at_once=1)
        runner = CommandRunner("pond", desk.about, tmp_path)
        desk.site = RunnerSite(runner, "true")
        desk.restart()
        desk.submit("pond-1")
        await desk.until(desk.jobs)
        desk.site.script = f"echo $$ > {tmp_path}/pid; exec sleep 1000"
        desk.submit("pond-2")
        await desk.until((tmp_path / "pid").exists)
        await asyncio.wait_for(desk.controller.end(), site_controller.CANCELLED_S / 2)
        assert list(desk.gone()) == ["pond-1"] and desk.order_files() == ["pf-pond-2"]
        await desk.until(lambda: not alive(int((tmp_path / "pid").read_text())))
        await runner.close()

    with hasty():
        asyncio.run(whole())


@story
async def test_files_that_cannot_be_removed_now_are_removed_later(desk: Desk) -> None:
    desk.site.faults["clear"] = [
        UnclearAnswer("no route"),
        ValueError("strange"),
        UnclearAnswer("no route"),
        CommandRefused("Permission denied"),
    ]
    desk.submit("pond-1", "pond-2")
    await desk.until(lambda: len(desk.jobs()) == 2)
    desk.site.show(phase=ENDED)
    await desk.until(lambda: len(desk.gone()) == 2 and not desk.order_files())
    assert len(desk.site.cleared) == 1, "what is not ours to remove is given up"


@story
async def test_files_that_could_not_be_removed_are_left_to_the_next_master(desk: Desk) -> None:
    desk.submit("pond-1")
    await desk.until(desk.jobs)
    desk.site.down = SILENCE
    desk.site.faults["query"] = [None] * 1000
    desk.site.show(phase=ENDED)
    await desk.until(desk.gone)
    desk.restart()
    assert desk.order_files() == ["pf-pond-1"]
    (left,) = desk.master.batches.all()
    desk.controller.remove_batch(left)
    desk.site.down = None
    await desk.until(lambda: desk.site.cleared == ["pf-pond-1"] and not desk.order_files())


@story_at(arrays=2)
async def test_jobs_of_pilots_that_nobody_knows_any_more_are_taken_out_with_their_files(desk: Desk) -> None:
    desk.submit("pond-1", "pond-2")
    await desk.until(lambda: len(desk.jobs()) == 2)
    desk.restart()
    desk.site.faults["find"] = [SILENCE]
    (left,) = desk.master.batches.all()
    desk.controller.remove_batch(left)
    await desk.until(lambda: not desk.order_files())
    await desk.until(lambda: not any(job.listed for job in desk.site.jobs.values()))
    assert desk.site.cleared == ["pf-pond-1"] and not desk.trouble()
