"""Requirements and ranks, for any text and any properties."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pilotfish.portable.expressions.evaluation import BadExpression, parse
from pilotfish.portable.expressions.syntax import MAX_LENGTH, read

# --- against Python, where the two agree: defined numbers ---------------------------------------------------------------------------

NAMES = ("a", "b", "c.d", "e_2")
numbers = st.integers(0, 999).map(lambda number: (str(number), f"{number}.0")) | st.sampled_from(
    [("0.5", "0.5"), ("1e-3", "1e-3"), ("true", "True"), ("false", "False"), *((name, f"v['{name}']") for name in NAMES)]
)
Both = tuple[str, str]
"""The same in our language and in Python's."""


def joined(parts: list[Both], sign: str) -> Both:
    return f"({sign.join(ours for ours, _ in parts)})", f"({sign.join(theirs for _, theirs in parts)})"


def some(part: st.SearchStrategy[Both], signs: tuple[str, ...]) -> st.SearchStrategy[Both]:
    """Several parts with operators of one level between them, which may differ."""
    more = st.lists(st.tuples(st.sampled_from(signs), part), min_size=1, max_size=3)
    return st.tuples(part, more).map(
        lambda drawn: (
            f"({drawn[0][0]} {' '.join(f'{sign} {ours}' for sign, (ours, _) in drawn[1])})",
            f"({drawn[0][1]} {' '.join(f'{sign} {theirs}' for sign, (_, theirs) in drawn[1])})",
        )
    )


def longer(part: st.SearchStrategy[Both]) -> st.SearchStrategy[Both]:
    compared = some(part, ("<", "<=", ">", ">=", "==", "!=")) | some(part, ("<", "=="))
    return st.one_of(
        some(part, ("+", "-")),
        some(part, ("*", "/", "//", "%")),
        some(part, ("+", "*", "-", "/", "//")),
        compared,
        some(compared, ("and", "or")),
        st.lists(part, min_size=1, max_size=3)
        .map(lambda parts: joined(parts, ", "))
        .map(lambda p: (f"max{p[0]}", f"max{p[1][:-1]}, -1e99)")),
        st.lists(part, min_size=2, max_size=3).map(lambda parts: joined(parts, ", ")).map(lambda p: (f"min{p[0]}", f"min{p[1]}")),
        part.map(lambda p: (f"abs({p[0]})", f"abs({p[1]})")),
        part.map(lambda p: (f"-{p[0]}", f"-{p[1]}")),
        part.map(lambda p: (f"(not {p[0]})", f"(not {p[1]})")),
        st.tuples(compared, part, part).map(lambda p: (f"if({p[0][0]}, {p[1][0]}, {p[2][0]})", f"({p[1][1]} if {p[0][1]} else {p[2][1]})")),
        st.tuples(part, st.lists(st.integers(0, 9), min_size=1, max_size=4), st.sampled_from(["in", "not in"])).map(
            lambda p: tuple(f"({side} {p[2]} ({', '.join(map(str, p[1]))},))" for side in p[0])
        ),
    )


def coarse(number: float) -> float:
    """Not so small that a quotient overflows: where Python has infinity, a rank is 0."""
    return round(number, 3)


arithmetic = st.recursive(numbers, longer, max_leaves=12)
values = st.fixed_dictionaries({name: st.integers(-9, 9) | st.floats(-100, 100).map(coarse) | st.booleans() for name in NAMES})


@settings(max_examples=500, deadline=None)
@given(arithmetic, values)
def test_with_defined_numbers_an_expression_means_what_it_means_in_python(both: Both, properties: dict[str, float]) -> None:
    ours, theirs = both
    expression = parse_if_short(ours)
    floats = {name: float(value) for name, value in properties.items()}
    try:
        expected = eval(theirs, {"__builtins__": {}, "v": floats, "min": min, "max": max, "abs": abs})
    except ZeroDivisionError:
        assert isinstance(expression.rank(properties), float)
        return
    assert expression.rank(properties) == expected
    assert expression.holds(properties) == bool(expected)
    assert parse(str(expression)).rank(properties) == expected


def parse_if_short(text: str) -> Any:
    try:
        return parse(text)
    except BadExpression as bad:
        assert "nested more than" in str(bad) or "characters" in str(bad), str(bad)
        assume(False)


# --- there and back -------------------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"], exclude_characters="\"'"), max_size=8)
atoms = st.one_of(
    st.sampled_from([*NAMES, "unknown", "text", "odd", "8G", "512 mib", "1h30m", "90 s", "2.5e3", ".5", "true", "'say \"hi\"'", '"it\'s"']),
    texts.map(lambda text: f"'{text}'"),
    st.floats(min_value=0, allow_nan=False, allow_infinity=False).map(repr),
    st.integers(0, 10**30).map(str),
)
items = st.lists(st.sampled_from(["1", "-8G", "'x'", '"y z"', "true", "-2h"]), min_size=1, max_size=3)
signs = st.sampled_from(["+", "-", "*", "/", "//", "%", "<", "<=", ">", ">=", "==", "!=", "and", "or"])


def grown(part: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(part, signs, part).map(" ".join),
        st.tuples(part, signs, part, signs, part).map(" ".join),
        part.map("({})".format),
        part.map("(not {})".format),
        part.map("-{}".format),
        st.tuples(part, st.sampled_from(["in", "not in"]), items.map(", ".join)).map(lambda p: f"(({p[0]}) {p[1]} ({p[2]}))"),
        st.lists(part, min_size=1, max_size=3).map(lambda parts: f"min({', '.join(parts)})"),
        st.tuples(part, part, part).map(lambda p: f"if({p[0]}, {p[1]}, {p[2]})"),
        st.sampled_from(NAMES).map("defined({})".format),
    )


anything = st.none() | st.integers() | st.floats() | st.booleans() | st.text() | st.lists(st.integers()) | st.integers(10**300, 10**310)
any_properties = st.dictionaries(st.sampled_from([*NAMES, "text", "odd"]), anything)


@settings(max_examples=300, deadline=None)
@given(st.recursive(atoms, grown, max_leaves=12), any_properties)
def test_the_text_of_an_expression_parses_to_the_same_and_evaluation_never_raises(text: str, properties: dict[str, Any]) -> None:
    expression = parse_if_short(text)
    again = parse(str(expression))
    assert read(str(expression)) == read(text)
    assert str(again) == str(expression)
    assert again.names == expression.names
    assert again.holds(properties) is expression.holds(properties)
    rank = expression.rank(properties)
    assert type(rank) is float and rank == again.rank(properties) and abs(rank) < float("inf")


@settings(deadline=None)
@given(st.sampled_from(["a", "a + 1", "a < 3", "a == 'x'", "a in (1, 2)", "unknown", "abs(a)"]), any_properties)
def test_not_and_or_follow_the_laws_of_three_values(text: str, properties: dict[str, Any]) -> None:
    met, refuted = parse(text).holds(properties), parse(f"not ({text})").holds(properties)
    assert not (met and refuted)
    assert parse(f"({text}) or not ({text})").holds(properties) is (met or refuted)
    assert not parse(f"({text}) and not ({text})").holds(properties)
    assert parse(f"not (({text}) and b)").holds(properties) is parse(f"not ({text}) or not b").holds(properties)


# --- the order of texts ---------------------------------------------------------------------------------------------------------------

numbered = st.text("019.-ab", max_size=6) | st.text(max_size=6)


@settings(deadline=None)
@given(numbered, numbered, numbered)
@example("1" * 9999, "2" * 9999, "0" * 9999)
def test_texts_have_one_order_in_which_only_the_same_text_is_equal(one: str, two: str, three: str) -> None:
    def holds(text: str, a: str, b: str) -> bool:
        return parse(text).holds({"a": a, "b": b})

    for a, b in ((one, two), (two, three), (one, one)):
        assert [holds("a < b", a, b), holds("a == b", a, b), holds("a > b", a, b)].count(True) == 1
        assert holds("a == b", a, b) is (a == b)
        assert holds("a <= b", a, b) is (holds("a < b", a, b) or a == b)
        assert holds("a >= b", a, b) is holds("b <= a", a, b) is not holds("a < b", a, b)
    if holds("a <= b", one, two) and holds("a <= b", two, three):
        assert holds("a <= b", one, three)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.sampled_from(["", "3.", "node-"]))
def test_numbers_in_texts_are_in_the_order_of_numbers(one: int, two: int, before: str) -> None:
    assert parse("a < b").holds({"a": f"{before}{one}", "b": f"{before}{two}"}) is (one < two)
    assert parse(f'a < "{before}{two}.x"').holds({"a": f"{before}{one}"}) is (one <= two)


# --- any text at all ------------------------------------------------------------------------------------------------------------------

pieces = st.lists(
    st.sampled_from(
        [*"()+-*/%<>=!,.'\"[]{}&|~^ \n\0", "and", "or", "not", "in", "if", "min", "a", "1", "8G", "1e", "1h2", "\u0663", "\u00b2"]
    )
)


@settings(max_examples=500, deadline=None)
@given(st.text() | pieces.map("".join) | pieces.map(" ".join) | st.text("()-not ", max_size=300))
@example("(" * MAX_LENGTH)
@example("not " * (MAX_LENGTH // 4))
@example("-" * MAX_LENGTH)
@example("9" * MAX_LENGTH)
@example("." * MAX_LENGTH)
@example("a." * (MAX_LENGTH // 2))
@example("1h" * (MAX_LENGTH // 2))
@example("1h\u0663")
@example("min(" * 30)
@example("'" * (MAX_LENGTH - 1))
def test_any_text_is_an_expression_or_refused_with_a_place_within_it(text: str) -> None:
    try:
        expression = parse(text)
    except BadExpression as bad:
        assert 0 <= bad.position <= len(text)
        assert str(bad)
    else:
        assert isinstance(expression.holds({}), bool)
        assert isinstance(expression.rank({}), float)


class Trap:
    """A value that must not be touched."""

    def _touched(self, *_: object) -> NoReturn:
        pytest.fail("an expression did something with a thing that is no value")

    __add__ = __radd__ = __mul__ = __rmul__ = __mod__ = __rmod__ = __lt__ = __gt__ = __call__ = __getitem__ = _touched
    __bool__ = __float__ = __iter__ = __len__ = __neg__ = __contains__ = __getattr__ = _touched


class Watched(Mapping[str, Any]):
    """Properties that count how often they are asked, and answer to everything."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.asked = 0

    def __getitem__(self, name: str) -> Any:
        self.asked += 1
        return self.value

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


HOSTILE = (
    "__import__('os').system('id')",
    "().__class__.__bases__[0].__subclasses__()",
    "a.__class__.__mro__",
    "__builtins__",
    "lambda: 1",
    "[x for x in (1, 2)]",
    "{a: b}",
    "a[0]",
    "a(1)",
    "a.b(1)",
    "'%s' % a",
    "'{0.__class__}'.format(a)",
    "'a' * 999999999",
    "9 ** 9 ** 9",
    "9" * 1500,
    "1e308 * 1e308 - 1e308 * 1e308",
    "0x7f",
    "1_000",
    "1 if a else 2",
    "a := 1",
    "a; b",
    "a\0b",
    "'\0'",
    "\u0661 + \u0662",
    "\uff11",
    "\uff41 == 1",
    "f'{a}'",
    "b'a'",
    "\\x41",
    "# comment",
    "a\\\nb",
    "yield a",
    "open('/etc/passwd').read()",
    "eval('1')",
    "min(a, key=abs)",
    "min(*a)",
    "defined(defined)",
    "a @ b",
    "...",
    "1j",
    "\u202ea",
    "a * a * a * a * a * a * a * a * a",
)
ONLY_ODD = (
    "a.__class__.__mro__",
    "__builtins__",
    "'%s' % a",
    "'a' * 999999999",
    "9" * 300,
    "a * a * a * a",
    "import",
    "os.system",
    "'{0}'",
    "1e308 * 1e308",
)
"""What the language knows, though it means less than it looks."""
GLUE = (" and ", " or ", " + ", " * ", " < ", " == ", ", ", "(", ")", " in (", "", " ", "\n", ".", "-", "not ")


def hostile_texts(count: int) -> list[str]:
    dice = random.Random(4)
    made = list(HOSTILE)
    while len(made) < count // 2:
        made.append(dice.choice(GLUE[:6]).join(dice.choice(ONLY_ODD) for _ in range(dice.randrange(1, 7))))
    while len(made) < count:
        text = "".join(dice.choice(HOSTILE) + dice.choice(GLUE) for _ in range(dice.randrange(1, 4)))
        if dice.random() < 0.5:
            cut = dice.randrange(len(text))
            text = text[:cut] + dice.choice(GLUE) + text[cut + dice.randrange(3) :]
        made.append(dice.choice(["", "(", "min(", "if(a, ", "not "]) + text)
    return made


def test_hostile_texts_are_refused_or_harmless() -> None:
    refused = 0
    for text in hostile_texts(2000):
        try:
            expression = parse(text)
        except BadExpression:
            refused += 1
            continue
        for value in (Trap(), 10**5000, -1e308, float("nan"), "%s" * 9, True, [1], None):
            properties = Watched(value)
            assert isinstance(expression.holds(properties), bool)
            assert abs(expression.rank(properties)) < float("inf")
            assert properties.asked <= 2 * len(re.findall(r"[A-Za-z_]+", text))  # once by each of the two
    assert 900 < refused < 1500


@pytest.mark.parametrize(
    "link", ["(1 < {} < 9) + a", "if({} < 9, a, b)", "max({}, a) + min(a, b)", "({} in (1, 2)) == (a == b) == a", "a == {}"]
)
def test_every_property_is_looked_up_at_most_once_for_each_time_it_is_written(link: str) -> None:
    text = "a"
    for _ in range(9):
        text = link.format(f"({text})")
    properties = Watched(1)
    parse(text).rank(properties)
    assert properties.asked <= len(re.findall(r"\b[ab]\b", text))
