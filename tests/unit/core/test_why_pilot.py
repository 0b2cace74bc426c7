"""What the machine answers about one pilot: what it waits for, and how it ended."""

from __future__ import annotations

import pytest

from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.site import CANCELLED, DIED, EXPIRED, FAILED, REFUSED, WITHDRAWN
from tests.unit.core.test_site_events import POND, add, stage_with, withdraw


def test_why_a_pilot_is_where_it_is_and_what_it_was_asked_for() -> None:
    stage = stage_with(pond=POND)
    pilot = add(stage)
    stage.tell(i.PilotSeen(pilot, False, "Priority"))
    answer = stage.ask("why", pilot=pilot)
    assert answer["sentence"] == f"pilot {pilot} (job job of {pilot}): Priority"
    assert [reason["code"] for reason in answer["reasons"]] == ["pending", "asked"] and "a test wants it" in answer["reasons"][1]["text"]
    stage.join("w", pilot=pilot, cores=2.0)
    assert "is running: 1 of its agents" in stage.ask("why", pilot=pilot)["sentence"]


def test_what_a_site_says_of_a_pilot_can_be_read_without_its_sentence() -> None:
    stage = stage_with(pond=POND)
    pilot = add(stage)
    known = stage.ask("why", pilot=pilot)
    assert (known["job"], known["seen"], known["end"]) == (f"job of {pilot}", None, None)
    stage.tell(i.PilotSeen(pilot, False, "Priority"))
    assert stage.ask("why", pilot=pilot)["seen"] == {"runs": False, "reason": "Priority"}
    stage.tell(i.PilotSeen(pilot, True, ""))
    assert stage.ask("why", pilot=pilot)["seen"] == {"runs": True, "reason": ""}


def test_how_a_pilot_ended_is_told_of_itself_and_not_of_others() -> None:
    stage = stage_with(pond=POND)
    worked, refused, late, withdrawn, lost, never, odd = (add(stage) for _ in range(7))
    stage.work()
    for worker, pilot in (("w", worked), ("v", lost), ("u", late)):
        stage.join(worker, pilot=pilot, cores=2.0)
    withdraw(stage, withdrawn)
    stage.tell(
        i.PilotEndReported(worked, True, "ended"),
        i.PilotEndReported(refused, False, "was refused: invalid partition", cause=REFUSED),
        i.PilotEndReported(late, True, "its time was over (TIMEOUT)", cause=EXPIRED),
        i.PilotEndReported(withdrawn, True, "cancelled", cause=CANCELLED),
        i.PilotEndReported(lost, False, "NODE_FAIL", cause=DIED),
        i.PilotEndReported(never, False, "ended before its agent joined (TIMEOUT)", cause=EXPIRED),
        i.PilotEndReported(odd, True, "was not there"),
    )
    told = {pilot: stage.ask("why", pilot=pilot) for pilot in (worked, refused, late, withdrawn, lost, never, odd)}
    assert {answer["state"] for answer in told.values()} == {"ended"}
    assert [answer["sentence"].removeprefix(f"pilot {pilot} ") for pilot, answer in told.items()] == [
        "ended normally",
        "was refused: invalid partition",
        "reached its walltime",
        "was withdrawn while queued",
        "failed after its agent had joined: NODE_FAIL",
        "ended before its agent joined (TIMEOUT)",
        "ended; how is not known",
    ]
    assert told[refused]["end"] == {"kind": FAILED, "cause": REFUSED, "reason": "was refused: invalid partition"}
    assert told[refused]["reasons"][0]["commands"][0] == "pilotfish site set pond queue=QUEUE"
    assert [(told[pilot]["end"] or {}).get("kind") for pilot in (never, withdrawn, odd)] == [EXPIRED, WITHDRAWN, None]
    stage.restart()
    assert stage.ask("why", pilot=refused) == told[refused]


@pytest.mark.parametrize("name", ["pond-99", "", None])
def test_a_pilot_that_never_was_is_not_taken_for_the_last_run(name: str | None) -> None:
    stage = stage_with(pond=POND)
    stage.work()
    stage.ask("site_release", site="pond")
    problem = stage.ask("why", pilot=name)
    assert isinstance(problem, m.Problem) and problem.message.startswith("there is no pilot")
