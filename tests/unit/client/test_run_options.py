"""Deadlines and shares as people write them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from pilotfish.client.descriptions.run_options import read_deadline, read_run_keywords, read_share
from pilotfish.errors import BadInput

NOON = datetime(2030, 5, 1, 12, 0)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("18:00", datetime(2030, 5, 1, 18, 0)),
        ("8:30", datetime(2030, 5, 2, 8, 30)),
        ("12:00", datetime(2030, 5, 2, 12, 0)),
        ("2h", datetime(2030, 5, 1, 14, 0)),
        ("1h30m", datetime(2030, 5, 1, 13, 30)),
        ("00:10:00", datetime(2030, 5, 1, 12, 10)),
        ("2030-05-03", datetime(2030, 5, 3)),
        ("2030-05-03T07:15", datetime(2030, 5, 3, 7, 15)),
        ("2030-05-03 07:15:30", datetime(2030, 5, 3, 7, 15, 30)),
        (datetime(2030, 6, 1), datetime(2030, 6, 1)),
        (timedelta(days=1), datetime(2030, 5, 2, 12, 0)),
        (90, datetime(2030, 5, 1, 12, 1, 30)),
    ],
)
def test_a_deadline_is_a_time_a_date_or_a_duration(text: str | datetime | timedelta | int, moment: datetime) -> None:
    assert read_deadline(text, "--deadline", NOON.timestamp()) == moment.timestamp()


def test_a_zone_counts() -> None:
    aware = datetime.fromisoformat("2030-05-03T07:15:00+02:00")
    assert read_deadline("2030-05-03T07:15+02:00", "deadline", NOON.timestamp()) == aware.timestamp()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("soon", "'soon' is no time and no duration"),
        ("25:00", "'25:00' is no time and no duration"),
        ("", "'' is no time and no duration"),
        ("2030-13-01", "'2030-13-01' is no date and time"),
        ("2030-05-01T11:00", "2030-05-01T11:00 was 1 h ago"),
        ("0s", "'0s' from now is over"),
        ("-2h", "'-2h' is no time and no duration"),
    ],
)
def test_garbage_and_the_past_are_refused_with_an_example(text: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_deadline(text, "--deadline", NOON.timestamp())
    assert str(refused.value) == f"--deadline: {said}"
    assert "18:00" in refused.value.hint


def test_a_share_has_a_name_and_may_have_a_weight() -> None:
    assert read_share("thesis", "--share") == ("thesis", 0.0)
    assert read_share("thesis:2.5", "--share") == ("thesis", 2.5)
    assert read_share("group:thesis:3", "--share") == ("group:thesis", 3.0)


@pytest.mark.parametrize("text", ["", ":2", "a:", "a:b", "a:0", "a:-1", "a:nan", "a:inf", " a", "a\nb", "x" * 300])
def test_other_shares_are_refused(text: str) -> None:
    with pytest.raises(BadInput):
        read_share(text, "--share")


@pytest.mark.parametrize("keywords", [{"speculate": "yes"}, {"share": 3}, {"max_failures": "2"}, {"max_failures": True}])
def test_keywords_of_a_wrong_type_are_refused_before_anything_is_sent(keywords: Any) -> None:
    with pytest.raises(BadInput, match=next(iter(keywords))):
        read_run_keywords(keywords, 0.0)


def test_keywords_of_a_run_are_read_once() -> None:
    read = read_run_keywords({"share": "thesis:2", "deadline": "2h", "max_failures": 3}, 1000.0)
    assert {"share": "thesis", "weight": 2.0, "deadline": 8200.0, "max_failures": 3}.items() <= read.items()
    with pytest.raises(BadInput, match="there is no option 'dead_line'") as raised:
        read_run_keywords({"dead_line": "2h"}, 1000.0)  # type: ignore[typeddict-unknown-key]
    assert raised.value.hint == "did you mean 'deadline'?"
