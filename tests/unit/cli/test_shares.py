"""Shares and deadlines on the command line, against a fake master."""

from __future__ import annotations

import json
import time
from datetime import datetime

import pytest

from pilotfish.cli.commands.status_commands import describe_deadline
from pilotfish.cli.completions import complete_share
from pilotfish.cli.run_commands.run_command import run as run_command
from tests.support.fake_session import FakeMaster
from tests.unit.cli.conftest import CommandLine

NOON = datetime(2030, 5, 1, 12, 0).timestamp()
EVENING = datetime(2030, 5, 1, 18, 0).timestamp()


def started(pilotfish: CommandLine, master: FakeMaster, *words: str) -> None:
    master.stuck = True
    assert pilotfish("run", "--detach", *words, "--param", "x=1..3", "--", "echo", "{x}").status == 0


def test_a_run_has_the_share_and_the_deadline_that_were_typed(pilotfish: CommandLine, master: FakeMaster) -> None:
    started(pilotfish, master, "--share", "thesis:2.5", "--deadline", "2h")
    options = master.runs[1].options
    assert (options.share, options.weight) == ("thesis", 2.5)
    assert options.deadline == pytest.approx(time.time() + 7200.0, abs=600.0)


def test_status_shows_shares_and_deadlines_if_there_are_any(pilotfish: CommandLine, master: FakeMaster) -> None:
    started(pilotfish, master)
    assert "DEADLINE" not in pilotfish("status").out and "SHARE" not in pilotfish("status").out
    started(pilotfish, master, "--share", "thesis", "--deadline", "2h")
    master.runs[2].late_s = 1200.0
    said = pilotfish("status").out
    assert "SHARE" in said and "thesis" in said
    assert "late by" not in said and "1 min 30 s" not in said, "by its own pace alone nobody knows, while there are others"
    assert "pilotfish predict RUN" in said
    master.runs[1].finish()
    said = pilotfish("status").out
    assert "late by about 20 min" in said and "1 min 30 s" in said and "predict" not in said
    assert json.loads(pilotfish("status", "--json").out)["runs"][1]["late_s"] == 1200.0


@pytest.mark.parametrize(
    ("late_s", "state", "told"),
    [
        (None, "open", "18:00"),
        (-60.0, "closed", "18:00, in time"),
        (1200.0, "closed", "18:00, late by about 20 min"),
        (-60.0, "done", "18:00, met"),
        (60.0, "done", "18:00, late by 1 min"),
    ],
)
def test_a_deadline_is_told_with_what_will_become_of_it(late_s: float | None, state: str, told: str) -> None:
    assert describe_deadline({"deadline": EVENING, "late_s": late_s, "state": state}, NOON) == told


def test_a_deadline_that_is_near_has_seconds() -> None:
    assert describe_deadline({"deadline": EVENING, "late_s": None, "state": "open"}, EVENING - 60.0) == "18:00:00"


def test_a_deadline_on_another_day_has_a_date() -> None:
    assert describe_deadline({"deadline": EVENING, "late_s": None, "state": "open"}, NOON - 86400.0) == "01 May 18:00"
    assert describe_deadline({"deadline": None, "late_s": None, "state": "open"}, NOON) == "-"
    cancelled = {"deadline": EVENING, "late_s": -60.0, "state": "done", "status": "cancelled"}
    assert describe_deadline(cancelled, NOON) == "18:00", "a cancelled run neither met its deadline nor missed it"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--deadline", "soon"), "--deadline: 'soon' is no time and no duration"),
        (("--deadline", "2001-01-01"), "--deadline: 2001-01-01 was "),
        (("--share", "a:much"), "--share: 'much' is no weight"),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...], said: str, pilotfish: CommandLine, master: FakeMaster) -> None:
    refused = pilotfish("run", *words, "--", "echo")
    assert refused.status == 2 and said in refused.err
    assert not master.runs


def test_a_run_can_be_changed(pilotfish: CommandLine, master: FakeMaster) -> None:
    started(pilotfish, master, "--deadline", "2h")
    assert pilotfish("set", "1", "--priority", "5").out == "Run 1 changed. See its state: pilotfish status\n"
    assert pilotfish("set", "--share", "thesis:3", "--deadline", "none").status == 0
    options = master.runs[1].options
    assert (options.priority, options.share, options.weight, options.deadline) == (5, "thesis", 3.0, 0.0)
    assert json.loads(pilotfish("set", "--share", "other", "--json").out)["share"] == "other"
    assert pilotfish("set", "--site", "local").status == 0
    assert ("set", {"run": 1, "sites": ["local"]}) in master.asked
    assert "there is no site 'moon'" in pilotfish("set", "--site", "moon").err


def test_set_wants_something_to_change_and_a_run_that_goes_on(pilotfish: CommandLine, master: FakeMaster) -> None:
    assert pilotfish("run", "--", "echo").status == 0
    said = pilotfish("set", "1").err
    assert "nothing was given to change" in said and "pilotfish set 1 --priority 5" in said
    refused = pilotfish("set", "1", "--priority", "5")
    assert refused.status == 2 and "run 1 has already ended (done)" in refused.err


def test_the_shell_offers_the_shares_that_there_are(pilotfish: CommandLine, master: FakeMaster) -> None:
    started(pilotfish, master, "--share", "thesis")
    with run_command.make_context("run", ["--", "echo"]) as context:
        parameter = next(one for one in run_command.params if one.name == "share")
        assert [item.value for item in complete_share(context, parameter, "th")] == ["thesis"]
        assert complete_share(context, parameter, "x") == []
