"""Tests requirements and ranks: their values, and the messages for mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.model import quantities
from pilotfish.portable.expressions.evaluation import BadExpression, parse

WORKER: dict[str, Any] = {
    "memory": 16 * 2**30,
    "site": "lyon",
    "cores": 8,
    "python": "3.11.7",
    "load": 2.5,
    "held": 3,
    "wanted": 4,
    "draining": False,
    "tags.gpu": "a100",
    "idle": 0,
    "label": "",
    "ends_in": float("inf"),
    "odd": float("nan"),
    "nothing": None,
    "list": [1, 2],
    "huge": 10**400,
}


@pytest.mark.parametrize(
    "text",
    [
        'memory >= 8G and site in ("lyon", "cern") and tags.gpu == "a100"',
        "not draining",
        "1 < cores <= 8 != 9",
        "memory == 16 GiB == 16384M",
        "site not in ('bologna', 'cern')",
        "cores in (4, 8, -1)",
        "cores // 3 == 2 and cores % 3 == 2 and -cores // 3 == -3",
        "2 + 3 * 4 == 14 and (2 + 3) * 4 == 20 and 10 - 3 - 2 == 5 and 12 / 3 / 2 == 2",
        "min(cores, load, 9) == 2.5 and max(cores, load) == 8 and abs(load - cores) == 5.5",
        "if(cores > 4, 'big', 'small') == 'big'",
        "if(draining, 1, 0) == 0",
        "defined(cores) and not defined(scratch)",
        "true and not false",
        "not site == 'cern'",
        "10 * (site == 'lyon') == 10",
        "cores",
        "ends_in >= 2h",
        "ends_in - 60 > 1h30m",
        "site < 'm'",
        "python >= '3.9' and python < '3.11.10' and '3.9' <= python < '4'",
        "'node-2' < 'node-10' < 'node-10b' and '007' != '7' and '007' < '7' < '8'",
        "\"it's\" != 'its'",
        "cores\n  > 4 and\n\tload < 3",
    ],
)
def test_a_requirement_that_is_met_holds(text: str) -> None:
    assert parse(text).holds(WORKER)


@pytest.mark.parametrize(
    "text", ["draining", "cores > 8", "site in ('cern')", "idle", "label", "site", "'text'", "0", "9 < cores < scratch"]
)
def test_a_requirement_that_is_not_met_does_not_hold(text: str) -> None:
    assert not parse(text).holds(WORKER)


UNDEFINED = [
    "scratch",
    "nothing",
    "list",
    "odd",
    "huge",
    "scratch + 1",
    "-scratch",
    "-site",
    "cores / 0",
    "cores // idle",
    "cores % 0.0",
    "ends_in - ends_in",
    "site + 1",
    "site * 3",
    "'%s' % 3",
    "'a' + 'b'",
    "site > 5",
    "5 == site",
    "site == cores",
    "scratch == scratch",
    "odd != odd",
    "scratch in (1, 2)",
    "site in (1, 2)",
    "site in ('cern', 2)",
    "cores not in ('cern', 2)",
    "not scratch",
    "not site",
    "site and true",
    "scratch or false",
    "min(cores, scratch)",
    "max('a', 'b')",
    "abs(site)",
    "if(scratch, 1, 2)",
    "if(true, scratch, 2)",
    "1 < scratch < 3",
    "'a' < 'b' < 3",
]


@pytest.mark.parametrize("text", UNDEFINED)
def test_undefined_is_neither_met_nor_not_met_and_ranks_0(text: str) -> None:
    assert not parse(text).holds(WORKER)
    assert not parse(f"not ({text})").holds(WORKER)
    assert parse(text).rank(WORKER) == 0.0
    assert parse(f"if({text}, 1, 2)").rank(WORKER) == 0.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("U and false", False),
        ("false and U", False),
        ("U and true", None),
        ("true and U", None),
        ("U and U", None),
        ("U or true", True),
        ("true or U", True),
        ("U or false", None),
        ("false or U", None),
        ("U or U", None),
        ("not U", None),
        ("U and true and false", False),
        ("U or false or true", True),
    ],
)
def test_an_undefined_part_decides_only_where_it_matters(text: str, value: bool | None) -> None:
    expression, opposite = parse(text.replace("U", "unknown")), parse(f"not ({text.replace('U', 'unknown')})")
    assert (expression.holds({}), opposite.holds({})) == (value is True, value is False)


@pytest.mark.parametrize(
    ("text", "rank"),
    [
        ("cores - load + 10 * held / wanted", 13.0),
        ("held", 3.0),
        ("-cores", -8.0),
        ("site == 'lyon'", 1.0),
        ("ends_in", 0.0),
        ("1e300 * 1e300", 0.0),
        ("site", 0.0),
        ("'7'", 0.0),
        ("1.5T", 1.5 * 2**40),
        (".5", 0.5),
        ("1e-3", 0.001),
        ("10m", 600.0),
        ("10M", 10 * 2**20),
        ("1h30m", 5400.0),
        ("1.5h1s", 5401.0),
        ("9007199254740993", 2.0**53),
    ],
)
def test_a_rank_is_a_finite_number(text: str, rank: float) -> None:
    found = parse(text).rank(WORKER)
    assert type(found) is float and found == rank


def test_the_units_are_those_of_the_rest_of_the_product() -> None:
    for unit in quantities._BYTES:
        if unit != "":
            assert parse(f"2.3{unit}").rank({}) == quantities.parse_bytes(f"2.3{unit}", "memory"), unit
            assert parse(f"2.3 {unit}").rank({}) == parse(f"2.3{unit}").rank({})
            if unit != "M":
                assert parse(f"2.3{unit.lower()}").rank({}) == parse(f"2.3{unit}").rank({})
    for unit in quantities._SECONDS:
        assert parse(f"2.3{unit}").rank({}) == quantities.parse_seconds(f"2.3{unit}", "time"), unit


def test_an_expression_lists_the_properties_it_uses() -> None:
    assert parse("b + a.b * b > max(c, 8G) and defined(d) or x in ('y')").names == ("b", "a.b", "c", "d", "x")


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("((a))+b", "a + b"),
        ("a-(b-c)", "a - (b - c)"),
        ("(a-b)-c", "(a - b) - c"),
        ("not (a and b)", "not (a and b)"),
        ("(not a) and ((b))", "not a and b"),
        ("a in('x',\"y\",)", 'a in ("x", "y")'),
        ("a not  in (8 GiB, -1)", "a not in (8GiB, -1)"),
        ("'say \"hi\"'", "'say \"hi\"'"),
        ("-(a+b)*c", "-(a + b) * c"),
        ("(a<b)<c", "(a < b) < c"),
        ("if(a,min(b ,c),- 1)", "if(a, min(b, c), -1)"),
        ("a==(b in (1))", "a == (b in (1))"),
    ],
)
def test_the_text_of_an_expression_is_well_spaced_and_has_no_needless_parentheses(written: str, shown: str) -> None:
    assert str(parse(written)) == shown


def test_the_same_text_is_parsed_once() -> None:
    assert parse("cores > 3 and load < 1") is parse("cores > 3 and load < 1")


@pytest.mark.parametrize(
    ("text", "position", "said"),
    [
        ("memory = 8G", 7, 'write "=="'),
        ("a && b", 2, 'write "and"'),
        ("a || b", 2, 'write "or"'),
        ("!a", 0, 'write "not"'),
        ("a <> b", 2, 'write "!="'),
        ("a => b", 2, 'write ">="'),
        ("a \u2265 b", 2, 'write ">="'),
        ("a ** 2", 2, "no power"),
        ("a[0]", 1, "lists stand in ( )"),
        ("\u201ca\u201d", 0, "straight quotes"),
        ("mx(1, 2)", 0, "no function mx: did you mean max?"),
        ("sqrt(4)", 0, "there are min, max, abs, defined, if"),
        ("a adn b", 2, "no operator adn: did you mean and?"),
        ("a b", 2, "there are and, or, in, not in"),
        ("a AND b", 2, "AND is written in small letters: and"),
        ("gpu == None", 7, "defined(NAME)"),
        ("memory > 8X", 10, "X is no unit"),
        ("time > 1h30", 9, "no unit of time"),
        ("(a or b", 7, 'a ")" is missing'),
        ("a)", 1, 'has no "("'),
        ("(a 5)", 3, 'an operator or a ")" is missing'),
        ("a 5", 2, "an operator is missing"),
        ("a +", 3, "a value is missing at the end"),
        ("* a", 0, "a value is missing before *"),
        ("min", 0, "min is a function: write min(...)"),
        ("abs(1, 2)", 0, "abs has one argument, not 2"),
        ("max()", 0, "max has one argument or more, not 0"),
        ("if(a, b)", 0, "if has three arguments, not 2"),
        ("defined(3)", 0, "defined asks for a property"),
        ("a in b", 5, 'follows "in"'),
        ("a in (b)", 6, "only numbers and quoted texts"),
        ("a in ()", 6, "only numbers and quoted texts"),
        ("a in (1, -'x')", 10, "only numbers and quoted texts"),
        ("(1, 2) == a", 2, 'a list stands in ( ) after "in"'),
        ("a in (1) == b", 9, "not chained"),
        ("a < b in (1)", 6, "not chained"),
        ("a == not b", 5, "in parentheses"),
        ("'abc", 0, "this text has no end"),
        ("'a\nb'", 0, "this text has no end"),
        ("1e999", 0, "too large"),
        ("a $ b", 2, "'$' means nothing here"),
        (" ", 0, "empty"),
        ("(" * 40 + "a" + ")" * 40, 21, "nested more than 20 deep"),
        ("not " * 40 + "a", 84, "nested more than 20 deep"),
        ("1" * 2001, 2000, "at most 2000 characters"),
        ("1+" * 900 + "1", 2000, "well spaced"),
    ],
)
def test_a_mistake_is_reported_with_its_position_and_a_suggestion(text: str, position: int, said: str) -> None:
    with pytest.raises(BadExpression) as caught:
        parse(text)
    assert said in str(caught.value)
    assert caught.value.position == position


def test_the_place_of_a_mistake_is_shown_under_its_line() -> None:
    with pytest.raises(BadExpression) as caught:
        parse("cores > 4\nand memory = 8G\nand load < 1")
    assert str(caught.value).splitlines()[1:] == ["  and memory = 8G", "             ^"]


def test_of_a_long_line_only_a_piece_is_shown() -> None:
    with pytest.raises(BadExpression) as caught:
        parse("cores + " * 100 + "= " + "+ cores" * 100)
    _, line, caret = str(caught.value).splitlines()
    assert len(line) < 110 and line[len(caret) - 1] == "="


@pytest.mark.parametrize("thing", [None, 5, ["a"], b"a"])
def test_only_a_text_is_an_expression(thing: Any) -> None:
    with pytest.raises(BadExpression, match="a text, not"):
        parse(thing)


def test_the_deepest_expression_is_still_evaluated() -> None:
    text = "a"
    for _ in range(10):
        text = f"false or true and 0 < 1 + 2 * -({text})"
    assert parse(text).names == ("a",)
    assert parse(text).rank({"a": -1}) in (0.0, 1.0)
