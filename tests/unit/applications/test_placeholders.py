"""Braces in commands: which are placeholders, and which are left alone."""

from __future__ import annotations

import pytest

from pilotfish.applications.sweeps.placeholders import check_all_used, make_template
from pilotfish.errors import BadInput


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{alpha}", "0.1"),
        ("--a={alpha} --s={seed}", "--a=0.1 --s=7"),
        ("out-{#}.dat", "out-41.dat"),
        ("plain", "plain"),
        ("{{alpha}}", "{alpha}"),
        ("{{}}", "{}"),
        ("{{{alpha}}}", "{0.1}"),
        ('{"lr":{alpha}}', '{"lr":0.1}'),
        ('{"a":{"b":1}}', '{"a":{"b":1}}'),
        ("{print $1}", "{print $1}"),
        ("${HOME}", "${HOME}"),
        ("{a,b}", "{a,b}"),
        ("{", "{"),
        ("}}", "}}"),
        ("", ""),
    ],
)
def test_only_braces_round_a_name_are_filled(text: str, expected: str) -> None:
    assert make_template(text, ("alpha", "seed"), "the command").fill(("0.1", "7"), 41) == expected


def test_empty_braces_are_the_line_or_the_only_value() -> None:
    assert make_template("<{}>", ("", "a"), "the command").fill(("line", "1"), 0) == "<line>"
    assert make_template("<{}>", ("a",), "the command").fill(("1",), 0) == "<1>"


@pytest.mark.parametrize(
    ("text", "names", "said", "hint"),
    [
        ("{alpah}", ("alpha",), "no parameter 'alpah'", "Did you mean 'alpha'?"),
        ("{zzz}", ("alpha",), "{zzz}", "Add --param zzz=values"),
        ("{print}", (), "{print}", "{{print}}"),
        ("{}", (), "nothing to put there", "--each-line"),
        ("{}", ("a", "b"), "several parameters", "{a}, {b}"),
    ],
)
def test_a_placeholder_for_nothing_is_refused_with_the_fix(text: str, names: tuple[str, ...], said: str, hint: str) -> None:
    with pytest.raises(BadInput) as refused:
        make_template(text, names, "the command")
    assert said in str(refused.value)
    assert hint in refused.value.hint


def test_parameters_that_nothing_uses_are_refused() -> None:
    used = [make_template("{alpha}", ("alpha", "seed", "x", "y", ""), "the command")]
    with pytest.raises(BadInput, match="parameter seed is not used"):
        check_all_used(used, [("alpha",), ("seed",)], "the command")
    with pytest.raises(BadInput, match="does not use the lines"):
        check_all_used(used, [("",)], "the command")
    check_all_used(used, [("alpha", "x", "y")], "the command")
