"""Sweeps, for any numbers and any texts."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from pilotfish.applications.sweeps.placeholders import make_template
from pilotfish.applications.sweeps.sweep import make_sweep, parse_parameter
from pilotfish.errors import BadInput, Correction

decimals = st.decimals(min_value=-1000, max_value=1000, allow_nan=False, places=3)
steps = st.decimals(min_value=Decimal("0.001"), max_value=100, places=3)
plain_texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"], exclude_characters='",'), min_size=1)
lists = st.lists(st.sampled_from(["a", "b", "1", "2.5", "x y"]), min_size=1, max_size=5)


@given(decimals, steps, st.integers(0, 200))
def test_a_range_is_exact_inclusive_and_evenly_spaced(start: Decimal, step: Decimal, count: int) -> None:
    stop = start + step * count
    numbers = [Decimal(value) for (value,) in parse_parameter(f"x={start}:{stop}:{step}")]
    assert numbers[0] == start
    assert numbers[-1] == stop
    assert len(numbers) == count + 1
    assert all(after - before == step for before, after in pairwise(numbers))


@given(decimals, decimals, steps)
def test_a_range_never_passes_its_end_and_stops_less_than_a_step_before_it(one: Decimal, other: Decimal, step: Decimal) -> None:
    start, stop = min(one, other), max(one, other)
    if stop - start > step * 2000 or 0 < stop - start < step:
        return
    last = Decimal([value for (value,) in parse_parameter(f"x={start}:{stop}:{step}")][-1])
    assert stop - step < last <= stop
    down = Decimal([value for (value,) in parse_parameter(f"x={stop}:{start}:-{step}")][-1])
    assert start <= down < start + step


@given(decimals, decimals, decimals)
def test_a_refused_range_is_answered_with_a_range_of_several_values(start: Decimal, stop: Decimal, step: Decimal) -> None:
    try:
        count = len(parse_parameter(f"x={start}:{stop}:{step}"))
    except BadInput as refused:
        assert isinstance(refused.hint, Correction)
        count = len(parse_parameter(f"x={refused.hint.right}"))
    assert count > 1 or start == stop


@given(st.integers(-(10**9), 10**9), st.integers(0, 300))
def test_whole_numbers_count_as_range_does(first: int, more: int) -> None:
    assert [int(value) for (value,) in parse_parameter(f"x={first}..{first + more}")] == list(range(first, first + more + 1))


@given(plain_texts)
def test_any_quoted_text_is_a_value(text: str) -> None:
    assert list(parse_parameter(f'x="{text}"')) == [(text,)]


@given(st.lists(lists, min_size=1, max_size=4))
def test_a_sweep_is_the_product_of_its_lists_and_knows_its_length(axes: list[list[str]]) -> None:
    sweep = make_sweep([f"p{number}={','.join(values)}" for number, values in enumerate(axes)])
    assert list(sweep) == list(product(*axes))
    assert len(sweep) == len(list(sweep))


@given(st.text(), st.text())
def test_a_text_without_placeholders_is_never_changed(text: str, value: str) -> None:
    without = text.replace("{", "").replace("}", "")
    assert make_template(without, ("a",), "the command").fill((value,), 0) == without


@given(st.text(), st.text(), st.text())
def test_values_are_put_in_verbatim_even_when_they_contain_braces(before: str, value: str, after: str) -> None:
    before, after = before.replace("{", "").replace("$", ""), after.replace("}", "")
    assert make_template(before + "{a}" + after, ("a",), "the command").fill((value,), 0) == before + value + after
