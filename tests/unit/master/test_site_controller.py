"""A controller submits once, asks once per period, believes only clear answers, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

import pytest

from pilotfish.backends.interface import ENDED, QUEUED, RUNNING, CommandRefused, JobStatus, UnclearAnswer
from pilotfish.master.sites import pilot_monitor, site_controller
from pilotfish.master.sites.command_runner import CommandRunner
from pilotfish.master.sites.ssh_connection import control_directory
from pilotfish.model import inputs as i
from pilotfish.model.site import BATCH_LIMIT, BOOTSTRAP, DIED, EXPIRED, LOGIN_NEEDED, REFUSED, VANISHED, PilotSize, Site
from tests.support.fake_site import PERIOD_S, SILENCE, Desk, RunnerSite, story, story_at

HUNDRED = [f"pond-{number}" for number in range(100)]


# --- submitting -----------------------------------------------------------------------------------------------------------------------


@story_at(arrays=1)
async def test_a_hundred_pilots_are_not_submitted_one_after_another(desk: Desk) -> None:
    desk.site.open.clear()
    desk.submit(*HUNDRED)
    await desk.until(lambda: len(desk.site.asked("submit")) == 100)
    assert not desk.jobs(), "all were sent before the first one was answered"
    desk.site.open.set()
    await desk.until(lambda: len(desk.jobs()) == 100)
    assert len(desk.site.asked("submit")) == 100


@pytest.mark.parametrize("at_once", [4, 10])
def test_no_more_commands_run_at_once_than_the_site_allows(tmp_path: Path, at_once: int) -> None:
    async def whole() -> None:
        desk = Desk(tmp_path, commands_at_once=at_once, submissions_per_minute=0)
        runner = CommandRunner("pond", desk.about, control_directory(tmp_path))
        log, gate = tmp_path / "log", tmp_path / "gate"
        log.touch()
        desk.site = RunnerSite(runner, f"echo +1 >> {log}; until [ -e {gate} ]; do sleep 0.02; done; echo -1 >> {log}")
        desk.restart()
        desk.submit(*HUNDRED)
        await desk.until(lambda: len(log.read_text().split()) >= at_once)
        gate.touch()
        await desk.until(lambda: len(desk.jobs()) == 100)
        steps = [int(step) for step in log.read_text().split()]
        assert len(steps) == 200 and max(itertools.accumulate(steps)) == at_once
        await desk.controller.end()
        await runner.close()

    asyncio.run(whole())


@story_at(arrays=100)
async def test_equal_pilots_are_gathered_into_arrays(desk: Desk) -> None:
    large = PilotSize(8.0)
    desk.submit(*HUNDRED, *(f"pond-1{number}" for number in range(50, 80)))
    desk.submit("pond-9998", "pond-9999", size=large)
    await desk.until(lambda: len(desk.jobs()) == 132)
    assert sorted(int(count) for _, count in desk.site.asked("submit")) == [2, 30, 100]
    for pilot, job in desk.jobs().items():
        taken = desk.site.jobs[job]
        assert (HUNDRED[taken.number - 1] == pilot) == (taken.tag == "pf-pond-0")


@story_at(arrays=50, period_s=0.05)
async def test_a_thousand_pilots_cost_one_query_per_period(desk: Desk) -> None:
    desk.submit(*(f"pond-{number}" for number in range(1000)))
    await desk.until(lambda: len(desk.jobs()) == 1000)
    assert len(desk.site.asked("submit")) == 20
    await desk.looked(1)
    began, before = time.monotonic(), len(desk.site.asked("query"))
    await desk.until(lambda: len(desk.site.asked("query")) >= before + 6)
    queries = desk.site.asked("query")[before:]
    assert all(sorted(query) == sorted(desk.site.jobs) for query in queries[:6])
    assert len(queries) <= (time.monotonic() - began) / desk.about.period_s + 1


def test_pilots_that_come_one_after_another_are_not_asked_for_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pilot_monitor, "EARLY_POLL_S", 0.001)

    @story_at(period_s=0.3)
    async def play(desk: Desk) -> None:
        began = time.monotonic()
        for number in range(40):
            desk.submit(f"pond-{number}")
            await desk.until(lambda number=number: len(desk.jobs()) == number + 1)  # type: ignore[misc]
        periods = (time.monotonic() - began) / desk.about.period_s
        assert len(desk.site.asked("query")) <= 2 * periods + 2

    play(tmp_path)


@story
async def test_an_order_is_written_down_before_it_is_sent(desk: Desk) -> None:
    desk.site.open.clear()
    desk.submit("pond-1")
    await desk.until(lambda: desk.site.asked("submit"))
    assert desk.order_files() == ["pf-pond-1"] and desk.site.staged == ["pf-pond-1"]


@story_at(arrays=10)
async def test_a_lost_reply_is_found_again_and_nothing_is_submitted_twice(desk: Desk) -> None:
    desk.site.lost_replies = 1
    desk.submit("pond-1", "pond-2")
    await desk.until(lambda: len(desk.jobs()) == 2)
    assert len(desk.site.asked("submit")) == 1 and set(desk.jobs().values()) == set(desk.site.jobs)
    assert desk.site.jobs[desk.jobs()["pond-2"]].number == 2


@story
async def test_what_nobody_knows_twice_is_submitted_once_more(desk: Desk) -> None:
    desk.site.faults["submit"] = [SILENCE]
    desk.submit("pond-1")
    await desk.until(desk.jobs)
    assert len(desk.site.asked("submit")) == 2 and len(desk.site.asked("find")) == 2 and len(desk.site.jobs) == 1


@story
async def test_a_silent_site_is_no_proof_that_an_order_was_not_taken(desk: Desk) -> None:
    desk.site.lost_replies = 1
    desk.site.faults["find"] = [SILENCE, SILENCE, SILENCE, SILENCE]
    desk.submit("pond-1")
    await desk.until(desk.jobs)
    assert len(desk.site.asked("submit")) == 1 and len(desk.site.asked("find")) == 5


def test_a_submission_that_may_still_be_at_work_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_controller, "ARRIVAL_S", 20 * PERIOD_S)
    late = UnclearAnswer("it did not answer in time")
    late.unfinished = True

    @story
    async def play(desk: Desk) -> None:
        desk.site.faults["submit"] = [late]
        desk.submit("pond-1")
        await desk.until(lambda: len(desk.site.asked("find")) > site_controller.MIN_LOOKUPS + 1)
        assert len(desk.site.asked("submit")) == 1
        await desk.until(desk.jobs)
        first, second = desk.site.times["submit"]
        assert second - first >= 20 * PERIOD_S

    play(tmp_path)


@story_at(arrays=10)
async def test_of_an_order_that_is_found_in_part_the_rest_counts_as_gone(desk: Desk) -> None:
    """It may have ended before anybody looked. To submit the order again would start the others twice."""
    desk.site.lost_replies = 1
    desk.site.faults["find"] = [SILENCE]
    desk.submit("pond-1", "pond-2")
    await desk.until(lambda: desk.site.asked("find"))
    desk.site.jobs[desk.site.job_of("pf-pond-1", 2)].listed = False
    await desk.until(desk.gone)
    assert desk.gone()["pond-2"].cause == VANISHED and not desk.gone()["pond-2"].witnessed
    assert list(desk.jobs()) == ["pond-1"] and len(desk.site.asked("submit")) == 1


@pytest.mark.parametrize("kind", ["submit", "find"])
def test_an_answer_that_nobody_can_read_is_as_good_as_none(tmp_path: Path, kind: str) -> None:
    @story
    async def play(desk: Desk) -> None:
        desk.site.garbled[kind] = 1
        desk.site.lost_replies = int(kind == "find")
        desk.submit("pond-1")
        await desk.until(desk.jobs)
        assert len(desk.site.asked("submit")) == 1

    play(tmp_path)


@pytest.mark.parametrize("kind", ["place", "stage"])
@pytest.mark.parametrize(
    "fault", [UnclearAnswer("the tunnel is not up"), CommandRefused("Disk quota exceeded", later=True), ValueError("strange")]
)
def test_files_that_cannot_be_put_there_now_are_put_there_later(tmp_path: Path, kind: str, fault: Exception) -> None:
    @story
    async def play(desk: Desk) -> None:
        desk.site.faults[kind] = [fault, fault]
        desk.submit("pond-1")
        await desk.until(desk.jobs)
        assert any(item.trouble for item in desk.heard(i.SiteReachability)) and not desk.gone()

    play(tmp_path)


@story
async def test_a_limit_is_tried_again_more_and_more_seldom_and_is_no_bad_start(desk: Desk) -> None:
    desk.site.faults["submit"] = [CommandRefused("QOSMaxSubmitJobPerUserLimit", later=True)] * 5
    desk.submit("pond-1")
    await desk.until(lambda: "QOSMaxSubmitJobPerUserLimit" in desk.trouble())
    await desk.until(desk.jobs)
    assert not desk.gone() and len(desk.site.asked("submit")) == 6
    moments = desk.site.times["submit"]
    pauses = [later - earlier for earlier, later in itertools.pairwise(moments)]
    assert all(pause >= PERIOD_S * times for pause, times in zip(pauses, (2, 4, 8, 10, 10), strict=True))
    assert desk.trouble() == ""


@story_at(arrays=100)
async def test_an_array_that_is_larger_than_a_limit_is_sent_in_parts(desk: Desk) -> None:
    desk.site.room = 3
    pilots = [f"pond-{number}" for number in range(1, 6)]
    desk.submit(*pilots)
    await desk.until(lambda: len(desk.jobs()) == 3)
    assert not desk.gone() and "AssocMaxSubmitJobLimit" in desk.trouble()
    desk.site.room = 5
    await desk.until(lambda: len(desk.jobs()) == 5 and not desk.trouble())
    assert sorted(desk.jobs()) == pilots and len(desk.site.jobs) == 5


@story_at(arrays=100)
async def test_what_is_cancelled_before_a_limit_lets_it_in_is_never_sent_and_leaves_no_files(desk: Desk) -> None:
    desk.site.room = 1
    desk.submit("pond-1", "pond-2", "pond-3")
    await desk.until(desk.trouble)
    desk.controller.cancel("pond-1")
    await desk.until(desk.jobs)
    desk.site.room = 3
    await desk.until(lambda: len(desk.jobs()) == 2)
    assert sorted(desk.jobs()) == ["pond-2", "pond-3"] and list(desk.gone()) == ["pond-1"]
    await desk.until(lambda: "pf-pond-1" in desk.site.cleared)
    assert desk.order_files() == ["pf-pond-2", "pf-pond-3"]


@story
async def test_that_a_person_must_log_in_is_told_by_a_code_until_the_site_answers(desk: Desk) -> None:
    problem = UnclearAnswer("Permission denied (publickey)")
    problem.code = LOGIN_NEEDED
    desk.site.faults["stage"] = [problem]
    desk.submit("pond-1")
    await desk.until(desk.jobs)
    told = [(item.trouble, item.code) for item in desk.heard(i.SiteReachability)]
    assert told == [("Permission denied (publickey)", LOGIN_NEEDED), ("", "")]


@story
async def test_a_limit_is_told_until_a_submission_is_taken_however_well_the_site_answers(desk: Desk) -> None:
    desk.submit("pond-1")
    await desk.until(desk.jobs)
    desk.site.faults["submit"] = [CommandRefused("QOSMaxSubmitJobPerUserLimit", later=True)] * 1000
    desk.submit("pond-2")
    await desk.until(lambda: "QOSMaxSubmitJobPerUserLimit" in desk.trouble())
    before = len(desk.told)
    desk.site.faults["query"] = [None, SILENCE]
    await desk.looked(5)
    said = {(item.trouble, item.code) for item in desk.told[before:] if isinstance(item, i.SiteReachability)}
    assert said <= {("QOSMaxSubmitJobPerUserLimit", BATCH_LIMIT)}
    desk.site.faults.clear()
    await desk.until(lambda: len(desk.jobs()) == 2 and not desk.trouble())


@story
async def test_a_site_without_pilots_is_in_no_trouble(desk: Desk) -> None:
    """Nothing is tried there that could fail, or show that it works again."""
    desk.site.faults["submit"] = [CommandRefused("no more", later=True)] * 1000
    desk.submit("pond-1")
    await desk.until(lambda: "no more" in desk.trouble())
    desk.controller.cancel("pond-1")
    await desk.until(desk.gone)
    assert not desk.trouble()


@story
async def test_a_limit_that_lasts_for_days_is_borne(desk: Desk) -> None:
    desk.controller.change_site(Site(backend="slurm", period_s=1e-6))
    desk.site.faults["submit"] = [CommandRefused("no more today", later=True)] * 600
    desk.submit("pond-1")
    await desk.until(desk.jobs)


@story
async def test_a_refusal_is_told_in_the_words_of_the_site(desk: Desk) -> None:
    desk.site.faults["submit"] = [CommandRefused("invalid partition specified: shrot")]
    desk.submit("pond-1")
    await desk.until(desk.gone)
    gone = desk.gone()["pond-1"]
    assert (gone.well, gone.cause) == (False, REFUSED) and "invalid partition specified: shrot" in gone.reason
    await desk.until(lambda: not desk.order_files())
    assert desk.site.cleared == ["pf-pond-1"]


# --- looking after them ---------------------------------------------------------------------------------------------------------------


@story_at(arrays=10)
async def test_why_a_pilot_waits_is_told_when_it_changes(desk: Desk) -> None:
    desk.submit("pond-1")
    await desk.until(lambda: desk.heard(i.PilotSeen))
    desk.site.show(phase=QUEUED, reason="Priority")
    await desk.looked(3)
    desk.site.show(phase=RUNNING)
    await desk.looked(3)
    said = [(item.runs, item.reason) for item in desk.heard(i.PilotSeen)]
    assert said == [(False, "no reason"), (False, "Priority"), (True, "")]


@story
async def test_a_site_that_does_not_answer_ends_nobody_and_is_asked_less_and_less_often(desk: Desk) -> None:
    desk.submit("pond-1")
    await desk.until(lambda: desk.heard(i.PilotSeen))
    desk.site.down = SILENCE
    await desk.until(lambda: desk.trouble() == str(SILENCE))
    begun = len(desk.site.times["query"]) - 1
    await desk.looked(8)
    moments = desk.site.times["query"][begun:]
    pauses = [later - earlier for earlier, later in itertools.pairwise(moments)]
    # One that was late makes the pause before it longer and that behind it shorter.
    assert sum(pauses[:7]) >= PERIOD_S * 0.9 * sum((1, 2, 4, 8, 10, 10, 10)) and max(pauses[:2]) < max(pauses[3:7])
    assert desk.trouble() == str(SILENCE) and not desk.gone()
    desk.site.down = None
    await desk.until(lambda: not desk.trouble())
    await desk.looked(2)
    assert not desk.gone()


@story
async def test_a_job_that_is_not_listed_three_times_and_that_nobody_remembers_has_vanished(desk: Desk) -> None:
    desk.submit("pond-1")
    await desk.until(lambda: desk.heard(i.PilotSeen))
    desk.site.jobs[desk.jobs()["pond-1"]].listed = False
    await desk.until(desk.gone)
    gone = desk.gone()["pond-1"]
    assert (gone.well, gone.witnessed, gone.cause) == (False, False, VANISHED)
    assert len(desk.site.asked("past")) == pilot_monitor.MAX_MISSES


@story
async def test_a_job_that_is_listed_again_has_not_vanished(desk: Desk) -> None:
    desk.submit("pond-1")
    await desk.until(lambda: desk.heard(i.PilotSeen))
    job = desk.site.jobs[desk.jobs()["pond-1"]]
    for _ in range(3):
        job.listed, before = False, len(desk.site.asked("past"))
        await desk.until(lambda before=before: len(desk.site.asked("past")) > before)  # type: ignore[misc]
        job.listed = True
        await desk.looked(2)
    assert not desk.gone()


@story
async def test_silence_in_between_does_not_count_as_not_listed(desk: Desk) -> None:
    desk.submit("pond-1")
    await desk.until(lambda: desk.heard(i.PilotSeen))
    desk.site.jobs[desk.jobs()["pond-1"]].listed = False
    desk.site.faults["query"] = [None, SILENCE, SILENCE, SILENCE, None, None]
    await desk.until(desk.gone)
    assert desk.gone()["pond-1"].cause == VANISHED and len(desk.site.asked("past")) == 3


@story
async def test_a_system_that_has_no_memory_forgets_as_well(desk: Desk) -> None:
    desk.site.past_jobs = None
    desk.submit("pond-1")
    await desk.until(lambda: desk.heard(i.PilotSeen))
    desk.site.jobs[desk.jobs()["pond-1"]].listed = False
    await desk.until(desk.gone)
    assert desk.gone()["pond-1"].cause == VANISHED


@story
async def test_a_pilot_whose_agents_beat_is_not_taken_out_because_its_site_forgot_it(desk: Desk) -> None:
    desk.submit("pond-1")
    await desk.until(lambda: desk.heard(i.PilotSeen))
    desk.joined.add("pond-1")
    desk.beating.add("pond-1")
    desk.site.jobs[desk.jobs()["pond-1"]].listed = False
    await desk.looked(2 * pilot_monitor.MAX_MISSES)
    assert not desk.gone() and not desk.site.asked("cancel")
    desk.beating.clear()
    await desk.until(desk.gone)
    assert desk.gone()["pond-1"].cause == VANISHED


@story
async def test_one_machine_that_does_not_answer_spoils_none_of_the_others(desk: Desk) -> None:
    desk.site.machines = 2
    desk.submit("pond-1", "pond-2")
    await desk.until(lambda: len(desk.heard(i.PilotSeen)) == 2)
    desk.site.faults["query"] = [None, SILENCE] * 1000
    desk.site.show(phase=RUNNING)
    desk.site.jobs[desk.jobs()["pond-2"]].listed = False
    await desk.until(lambda: i.PilotSeen("pond-1", True, "") in desk.told)
    assert desk.trouble() == str(SILENCE)
    desk.site.show(desk.jobs()["pond-1"], phase=ENDED, reason="it ended")
    await desk.until(desk.gone)
    assert list(desk.gone()) == ["pond-1"], "of the other one nobody could say anything"


@story
async def test_the_last_words_of_many_are_read_together(desk: Desk) -> None:
    """One after the other, the rest of the site would wait for them."""
    desk.submit(*HUNDRED)
    await desk.until(lambda: len(desk.jobs()) == 100)
    desk.site.quiet.clear()
    desk.site.show(phase=ENDED, reason="FAILED", well=False)
    await desk.until(lambda: desk.site.listening == 100)
    desk.site.quiet.set()
    await desk.until(lambda: len(desk.gone()) == 100)


@story
async def test_what_the_system_remembers_of_a_job_is_how_it_ended(desk: Desk) -> None:
    desk.submit("pond-1", "pond-2", "pond-3")
    await desk.until(lambda: len(desk.heard(i.PilotSeen)) == 3)
    desk.joined |= {"pond-1", "pond-2", "pond-3"}
    jobs = desk.jobs()
    desk.site.past_jobs = {
        jobs["pond-1"]: JobStatus(ENDED, "COMPLETED"),
        jobs["pond-2"]: JobStatus(ENDED, "NODE_FAIL", well=False),
        jobs["pond-3"]: JobStatus(ENDED, "TIMEOUT", well=False, expired=True),
    }
    for job in desk.site.jobs.values():
        job.listed = False
    await desk.until(lambda: len(desk.gone()) == 3)
    told = {pilot: (gone.well, gone.cause) for pilot, gone in desk.gone().items()}
    assert told == {"pond-1": (True, ""), "pond-2": (False, DIED), "pond-3": (True, EXPIRED)}
    assert "NODE_FAIL" in desk.gone()["pond-2"].reason


@story_at(arrays=10)
async def test_the_end_of_a_pilot_that_never_joined_carries_its_last_words(desk: Desk) -> None:
    desk.submit("pond-1", "pond-2")
    await desk.until(lambda: len(desk.jobs()) == 2)
    desk.site.words["pf-pond-1", 2] = "pilotfish: no python3 of 3.8 or later on n07"
    desk.site.show(phase=ENDED, reason="FAILED, exit status 43", well=False)
    await desk.until(lambda: len(desk.gone()) == 2)
    first, second = desk.gone()["pond-1"], desk.gone()["pond-2"]
    assert (second.well, second.cause) == (first.well, first.cause) == (False, BOOTSTRAP)
    assert "exit status 43" in second.reason and "no python3" in second.reason and "no python3" not in first.reason


@story
async def test_a_pilot_whose_time_was_over_before_it_joined_is_a_bad_start(desk: Desk) -> None:
    """Or a site from which nobody can reach the master would be paid for, for ever."""
    desk.submit("pond-1")
    await desk.until(desk.jobs)
    desk.site.words["pf-pond-1", 1] = "cannot reach the master"
    desk.site.show(phase=ENDED, reason="TIMEOUT", well=False, expired=True)
    await desk.until(desk.gone)
    gone = desk.gone()["pond-1"]
    assert (gone.well, gone.cause) == (False, EXPIRED) and "cannot reach the master" in gone.reason


@story
async def test_last_words_that_nobody_can_read_leave_nobody_alone(desk: Desk) -> None:
    desk.site.faults["words"] = [ValueError("strange")]
    desk.submit("pond-1", "pond-2")
    await desk.until(lambda: len(desk.jobs()) == 2)
    desk.site.show(phase=ENDED, reason="FAILED", well=False)
    await desk.until(lambda: len(desk.gone()) == 2)


@pytest.mark.parametrize("kind", ["query", "past", "cancel"])
def test_a_backend_that_stumbles_does_not_leave_its_pilots_alone(tmp_path: Path, kind: str) -> None:
    @story
    async def play(desk: Desk) -> None:
        desk.submit("pond-1")
        await desk.until(lambda: desk.heard(i.PilotSeen))
        desk.site.faults[kind] = [IndexError("list index out of range")] * 2
        desk.site.jobs[desk.jobs()["pond-1"]].listed = kind != "past"
        if kind == "cancel":
            desk.controller.cancel("pond-1")
        elif kind == "query":
            await desk.until(lambda: "could not be read" in desk.trouble())
            desk.site.show(phase=ENDED, reason="it ended")
        await desk.until(desk.gone)
        assert len(desk.site.asked(kind)) >= 3

    play(tmp_path)
