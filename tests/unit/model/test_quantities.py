from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.errors import BadInput
from pilotfish.model.quantities import enough_seconds, parse_bytes, parse_cores, parse_seconds, show_bytes, show_seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2 GiB", 2 << 30),
        ("2G", 2 << 30),
        ("2gib", 2 << 30),
        ("500 MB", 500_000_000),
        ("1.5 KiB", 1536),
        ("7", 7),
        (7, 7),
        ("10 B", 10),
        (1e3, 1000),
    ],
)
def test_a_size_is_read_as_a_person_means_it(text: str | int, size: int) -> None:
    assert parse_bytes(text, "memory") == size


@pytest.mark.parametrize("text", ["", "much", "2 GiBs", "-1", -1, float("nan"), "1,5 GB", True, None, "2 2"])
def test_a_size_that_cannot_be_read_names_field_value_and_fix(text: object) -> None:
    with pytest.raises(BadInput) as caught:
        parse_bytes(text, "memory")  # type: ignore[arg-type]
    assert str(caught.value).startswith("memory: ")
    assert repr(text) in str(caught.value)
    assert "2 GiB" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10 min", 600),
        ("1h30m", 5400),
        ("1 h 30 min", 5400),
        ("01:30:00", 5400),
        ("1-00:00:00", 86400),
        (600, 600),
        ("90", 90),
        ("250ms", 0.25),
        ("2 days", 172800),
        (timedelta(minutes=2), 120),
        ("1.5 h", 5400),
    ],
)
def test_a_duration_is_read_as_a_person_means_it(text: str | int | timedelta, seconds: float) -> None:
    assert parse_seconds(text, "time") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "10 mn", "-5 s", "5 s x", "1:30", "10 20", None, False])
def test_a_duration_that_cannot_be_read_names_field_value_and_fix(text: object) -> None:
    with pytest.raises(BadInput) as caught:
        parse_seconds(text, "time")  # type: ignore[arg-type]
    assert str(caught.value).startswith("time: ")
    assert repr(text) in str(caught.value)
    assert caught.value.hint


def test_cores_may_be_a_number_or_a_range() -> None:
    assert parse_cores(2, "cores") == (2, 0)
    assert parse_cores(0.5, "cores") == (0.5, 0)
    assert parse_cores("2-8", "cores") == (2, 8)
    assert parse_cores((2, 8), "cores") == (2, 8)
    assert parse_cores("4..4", "cores") == (4, 0)


@pytest.mark.parametrize("value", ["1-0", (2, 0), 0, -1, "8-2", "many", (1, 2, 3), None, True])
def test_cores_that_make_no_sense_are_refused(value: object) -> None:
    with pytest.raises(BadInput, match="cores"):
        parse_cores(value, "cores")  # type: ignore[arg-type]


@given(st.integers(min_value=1, max_value=1 << 52))
def test_a_shown_size_reads_back_nearly_the_same(size: int) -> None:
    assert parse_bytes(show_bytes(size), "size") == pytest.approx(size, rel=0.006)


@given(st.floats(min_value=0.001, max_value=1e7))
def test_a_shown_duration_reads_back_nearly_the_same(seconds: float) -> None:
    assert parse_seconds(show_seconds(seconds), "time") == pytest.approx(seconds, rel=0.05, abs=0.001)


@given(st.floats(min_value=0.001, max_value=1e7))
def test_enough_is_never_less_and_hardly_more(seconds: float) -> None:
    enough = parse_seconds(enough_seconds(seconds), "time")
    assert seconds <= enough <= max(seconds + 1, 1.5 * seconds)
