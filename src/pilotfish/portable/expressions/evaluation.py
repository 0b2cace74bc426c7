"""Compiles an expression and evaluates it with the properties of a worker and a task. Python's ``eval`` is never used.

    memory >= 8G and site in ("lyon", "cern")        a requirement: true or not
    cores + 10 * held / wanted                       a rank: larger is better

A property is undefined (None in the code) if it is unknown, or if it is not a number, a text or a truth value. An operation with an
undefined value is undefined. Exception: if the undefined value cannot change the result of the operation, the operation has this result. So
``undefined and false`` is false. A division by zero is undefined. A text counts as undefined if it is used as a number or compared with a
number. An evaluation never raises an exception. Its time is linear in the length of the expression: length, depth and the size of numbers
are limited.

A syntax tree is compiled to nested closures, which are 1.5 times as fast as walking the tree. If a part of an expression must be a number,
the closure of this part returns a number or None. So the calling closure needs no check.
"""

from __future__ import annotations

import operator
import re
from functools import lru_cache
from typing import Any, Callable, List, Mapping, Optional, Tuple

from .syntax import MAX_LENGTH, BadExpression, Node, read, show

__all__ = ["BadExpression", "Expression", "parse"]

Properties = Mapping[str, Any]
Evaluate = Callable[[Properties], Any]

MAX_PARSED = 512
"""Maximum number of parsed expressions that are kept."""
_INFINITY = float("inf")
_WHOLE = 2**63
"""Larger integers are treated as floats."""


class Expression:
    """A parsed expression. ``names``: the properties that it uses. ``str`` gives a text that parses to the same expression."""

    __slots__ = ("_evaluate", "_text", "names")

    def __init__(self, text: str, names: Tuple[str, ...], evaluate: Evaluate) -> None:
        self._text = text
        self._evaluate = evaluate
        self.names = names

    def holds(self, properties: Properties) -> bool:
        """Returns True if this requirement is true for the properties; False if it is false or undefined."""
        return bool(self._evaluate(properties))

    def rank(self, properties: Properties) -> float:
        """Returns the value of this rank; 0 if the value is undefined or not finite."""
        value = self._evaluate(properties)
        return float(value) if value is not None and -_INFINITY < value < _INFINITY else 0.0

    @property
    def clauses(self) -> Tuple[Expression, ...]:
        """The parts of an ``and``, which must all be true. An expression without ``and`` is its own only part."""
        tree, _ = read(self._text)
        parts = [tree[1], *(part for _, part in tree[2])] if tree[0] == "and" else [tree]
        return tuple(parse(show(part)) for part in parts)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "parse(%r)" % self._text


def parse(text: str) -> Expression:
    """Parses a text. Raises only BadExpression."""
    if not isinstance(text, str):
        raise BadExpression("an expression is a text, not %s" % type(text).__name__, 0)
    return _parse(text)


@lru_cache(MAX_PARSED)
def _parse(text: str) -> Expression:
    tree, names = read(text)
    shown = show(tree)
    if len(shown) > MAX_LENGTH:
        raise BadExpression("an expression has at most %d characters when it is well spaced, not %d" % (MAX_LENGTH, len(shown)), MAX_LENGTH)
    return Expression(shown, names, _compile(tree, _NUMBER))


# --- from trees to closures -----------------------------------------------------------------------------------------------------------

_EITHER, _NUMBER, _TEXT = range(3)
"""Kinds of values: a number or a text, only a number, only a text. Truth values are the numbers 1 and 0."""
_PLAIN = frozenset((int, float, bool))
_OPERATORS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
_DIGITS = re.compile("([0-9]+)")


def _sort_key(text: str) -> Tuple[List[Any], str]:
    """Returns the sort key of a text. Digits count as numbers, so that 3.9 comes before 3.11. Different texts have different keys."""
    parts: List[Any] = _DIGITS.split(text)
    for place in range(1, len(parts), 2):
        # Compare as a number of any length.
        digits = parts[place].lstrip("0")
        parts[place] = (len(digits), digits)
    return parts, text


def _of_texts(sign: str) -> Callable[[Any, Any], Any]:
    test = _OPERATORS[sign]
    return test if sign in ("==", "!=") else lambda left, right: test(_sort_key(left), _sort_key(right))


def _compile(node: Node, required: int) -> Evaluate:
    kind = node[0]
    if kind == "name":
        return _load(node[1], required)
    if kind == "call" and node[1] == "if":
        return _choice(*(_compile(part, kind) for part, kind in zip(node[2], (_NUMBER, required, required))))
    if required not in (_EITHER, _kind(node)):
        return lambda _: None
    return _COMPILERS[kind](node)


def _kind(node: Node) -> int:
    """Returns the kind of value that a part of an expression has: ``_NUMBER``, ``_TEXT``, or ``_EITHER`` if the kind is unknown."""
    if node[0] == "value":
        return _TEXT if isinstance(node[1], str) else _NUMBER
    return _EITHER if node[0] == "name" or node[:2] == ("call", "if") else _NUMBER


def _load(name: str, required: int) -> Evaluate:
    def either(properties: Properties) -> Any:
        value = properties.get(name)
        return value if isinstance(value, str) else _as_number(value)

    def number(properties: Properties) -> Any:
        value: Any = properties.get(name)
        # Fast path for the most common case.
        return value if type(value) in _PLAIN and -_WHOLE <= value <= _WHOLE else _as_number(value)

    def text(properties: Properties) -> Any:
        value = properties.get(name)
        return value if isinstance(value, str) else None

    return (either, number, text)[required]


def _as_number(value: Any) -> Any:
    """Returns the value if it is a number, otherwise None. NaN does not count as a number. Infinity counts as a number, because a time can
    be unlimited. Long integers become floats, which limits the time of an evaluation."""
    if not isinstance(value, (int, float)):
        return None
    try:
        number = value if -_WHOLE <= value <= _WHOLE else float(value)
    except OverflowError:
        return None
    return number if number == number else None


def _constant(node: Node) -> Evaluate:
    value = node[1]
    return lambda _: value


def _choice(condition: Evaluate, if_true: Evaluate, if_false: Evaluate) -> Evaluate:
    def choose(properties: Properties) -> Any:
        truth = condition(properties)
        return None if truth is None else if_true(properties) if truth else if_false(properties)

    return choose


def _call(node: Node) -> Evaluate:
    function, arguments = node[1], node[2]
    if function == "defined":
        load = _load(arguments[0][1], _EITHER)
        return lambda properties: load(properties) is not None
    parts = tuple(_compile(argument, _NUMBER) for argument in arguments)
    if function == "abs":
        return _unary(abs, parts[0])
    choose = min if function == "min" else max

    def extreme(properties: Properties) -> Any:
        values = [part(properties) for part in parts]
        return None if None in values else choose(values)

    return extreme


def _unary(apply: Callable[[Any], Any], part: Evaluate) -> Evaluate:
    def unary(properties: Properties) -> Any:
        value = part(properties)
        return None if value is None else apply(value)

    return unary


def _negation(node: Node) -> Evaluate:
    return _unary(operator.not_ if node[0] == "not" else operator.neg, _compile(node[1], _NUMBER))


def _junction(node: Node) -> Evaluate:
    """Compiles ``and`` and ``or``. If one part is false, ``and`` is false, even if another part is undefined. If one part is true, ``or``
    is true, even if another part is undefined."""
    parts = tuple(_compile(part, _NUMBER) for part in (node[1], *(part for _, part in node[2])))

    def every(properties: Properties) -> Any:
        answer: Optional[bool] = True
        for part in parts:
            value = part(properties)
            if not value:
                if value is not None:
                    return False
                answer = None
        return answer

    def some(properties: Properties) -> Any:
        answer: Optional[bool] = False
        for part in parts:
            value = part(properties)
            if value:
                return True
            if value is None:
                answer = None
        return answer

    return every if node[0] == "and" else some


def _arithmetic(node: Node) -> Evaluate:
    first = _compile(node[1], _NUMBER)
    rest = tuple((_OPERATORS[sign], _compile(part, _NUMBER)) for sign, part in node[2])
    # A product of integers would get longer with every factor; a product of floats does not.
    unit = 1.0 if node[0] == "product" else 1

    def arithmetic(properties: Properties) -> Any:
        try:
            value = unit * first(properties)
            for apply, part in rest:
                value = apply(value, part(properties))
        except (TypeError, ArithmeticError):
            # An operand is None, or there is a division by zero or an overflow.
            return None
        return value if value == value else None

    return arithmetic


def _comparison(node: Node) -> Evaluate:
    if len(node[2]) > 1:
        return _chain(node)
    ((sign, last),) = node[2]
    kinds = (_kind(node[1]), _kind(last))
    if kinds == (_EITHER, _EITHER):
        return _chain(node)
    required = max(kinds)
    left, right = _compile(node[1], required), _compile(last, required)
    test = _of_texts(sign) if required == _TEXT else _OPERATORS[sign]

    def compare(properties: Properties) -> Any:
        left_value, right_value = left(properties), right(properties)
        return None if left_value is None or right_value is None else test(left_value, right_value)

    return compare


def _chain(node: Node) -> Evaluate:
    """Compiles ``a < b < c`` as ``a < b and b < c``, but evaluates b only once. Otherwise nested chains would need exponential time."""
    first = _compile(node[1], _EITHER)
    rest = tuple((_OPERATORS[sign], _of_texts(sign), _compile(part, _EITHER)) for sign, part in node[2])

    def compare(properties: Properties) -> Any:
        answer: Optional[bool] = True
        left = first(properties)
        for of_numbers, of_texts, part in rest:
            right = part(properties)
            are_texts = isinstance(left, str)
            if left is None or right is None or are_texts is not isinstance(right, str):
                answer = None
            elif not (of_texts if are_texts else of_numbers)(left, right):
                return False
            left = right
        return answer

    return compare


def _membership(node: Node) -> Evaluate:
    """Compiles ``x in (a, b)`` as ``x == a or x == b``. If the list has texts and numbers and x is not in it, the result is undefined."""
    values = frozenset(value[1] for value in node[2])
    kinds = {_kind(value) for value in node[2]}
    mixed = len(kinds) > 1
    part = _compile(node[1], _EITHER if mixed else kinds.pop())
    hit = not node[3]
    miss = None if mixed else not hit

    def member(properties: Properties) -> Any:
        value = part(properties)
        return None if value is None else hit if value in values else miss

    return member


_COMPILERS = {
    "value": _constant,
    "call": _call,
    "not": _negation,
    "negative": _negation,
    "in": _membership,
    "compare": _comparison,
    "sum": _arithmetic,
    "product": _arithmetic,
    "and": _junction,
    "or": _junction,
}
