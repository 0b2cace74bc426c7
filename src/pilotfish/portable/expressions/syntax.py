"""Parses the text of an expression into a tree and prints it again.

A tree consists of tuples. Operators of equal precedence form one flat node, so that the tree of a long sum is not deep. The nodes are:

    ("value", value, spelling)     ("name", name)                ("call", function, arguments)
    ("not", node)                  ("negative", node)            ("in", node, values, negated)
    ("or" | "and" | "compare" | "sum" | "product", first, ((operator, node), ...))
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, NoReturn, Sequence, Tuple

MAX_LENGTH = 2000
MAX_DEPTH = 20

Node = Tuple[Any, ...]
Token = Tuple[str, Any, int]
"""Kind (``value``, ``name``, ``end``, or the operator itself), value, and position."""


class BadExpression(ValueError):
    """The text is not an expression. The message says what is wrong, where, and how to correct it."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


def read(text: str) -> Tuple[Node, Tuple[str, ...]]:
    """Returns the tree of a text, and the properties that it names, in the order of their first use."""
    if len(text) > MAX_LENGTH:
        raise BadExpression("an expression has at most %d characters, not %d" % (MAX_LENGTH, len(text)), MAX_LENGTH)
    parser = _Parser(text, _tokens(text))
    tree = parser.parse()
    return tree, tuple(parser.names)


def show(node: Node, min_level: int = 0) -> str:
    """Returns the text of a tree. The text is in parentheses if the operator of the tree binds less tightly than ``min_level``, a
    precedence level."""
    kind = node[0]
    level = _KINDS.index(kind) if kind in _KINDS else _COMPARE if kind == "in" else _ATOM
    if kind == "value":
        text = node[2]
    elif kind == "name":
        text = node[1]
    elif kind == "call":
        text = "%s(%s)" % (node[1], ", ".join(map(show, node[2])))
    elif kind in ("not", "negative"):
        text = ("not " if kind == "not" else "-") + show(node[1], level)
    elif kind == "in":
        text = "%s %s (%s)" % (show(node[1], level + 1), "not in" if node[3] else "in", ", ".join(map(show, node[2])))
    else:
        text = show(node[1], level + 1) + "".join(" %s %s" % (sign, show(part, level + 1)) for sign, part in node[2])
    return "(%s)" % text if level < min_level else text


def _fail(text: str, position: int, message: str) -> NoReturn:
    """Raises BadExpression. The message shows the line, or a part of it, and a caret below the position."""
    start = max(text.rfind("\n", 0, position) + 1, position - 60)
    shown = text[start : position + 40].partition("\n")[0]
    readable = "".join(character if character.isprintable() else "?" for character in shown)
    raise BadExpression("%s (character %d)\n  %s\n  %s^" % (message, position + 1, readable, " " * (position - start)), position)


def _nearest(word: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word.lower(), known, 1, 0.5)
    return "did you mean %s?" % near[0] if near else "there are " + ", ".join(known)


# --- tokens ---------------------------------------------------------------------------------------------------------------------------

_INFINITY = float("inf")
_EXACT = 2.0**53
_SIZES = {"B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _SIZES.update({_letter: 1024**_power, _letter + "IB": 1024**_power, _letter + "B": 1000**_power})
_DURATIONS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("w", "week", "weeks"), 604800.0),
}
_WORDS = ("and", "or", "not", "in", "true", "false")
_FUNCTIONS: Dict[str, int] = {"min": 0, "max": 0, "abs": 1, "defined": 1, "if": 3}
"""Number of arguments of each function. 0 means one or more."""
_ARGUMENTS = {0: "one argument or more", 1: "one argument", 3: "three arguments"}
_SIGNS = ("<=", ">=", "==", "!=", "//", "<", ">", "+", "-", "*", "/", "%", "(", ")", ",")
_CORRECTIONS = {
    **dict.fromkeys(("=", "==="), 'write "==" to compare'),
    **dict.fromkeys(("&", "&&"), 'write "and"'),
    **dict.fromkeys(("|", "||"), 'write "or"'),
    **dict.fromkeys(("!", "~"), 'write "not"'),
    **dict.fromkeys(("<>", "!==", "\u2260"), 'write "!="'),
    **dict.fromkeys(("=<", "\u2264"), 'write "<="'),
    **dict.fromkeys(("=>", "\u2265"), 'write ">="'),
    **dict.fromkeys(("**", "^"), 'there is no power, write "x * x"'),
    **dict.fromkeys("[]{}", "lists stand in ( )"),
    **dict.fromkeys("\u2018\u2019\u201c\u201d`", "texts stand in straight quotes"),
}
"""Corrections for operators of other languages and for typographic characters of pasted texts."""
_BLANKS = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?")
_UNIT = re.compile(r"[ \t]*([A-Za-z_]+)")
_TOKEN = re.compile(
    r"(?P<number>\.?[0-9])|(?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)"
    r"""|(?P<text>"[^"\x00-\x1f]*"|'[^'\x00-\x1f]*')"""
    r"|(?P<unclosed>[\"'])"
    r"|(?P<sign>" + "|".join(map(re.escape, sorted((*_SIGNS, *_CORRECTIONS), key=len, reverse=True))) + ")"
)


def _tokens(text: str) -> List[Token]:
    found: List[Token] = []
    position = _after_blanks(text, 0)
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            _fail(text, position, "%r means nothing here" % text[position])
        kind, word, end = match.lastgroup, match[0], match.end()
        if kind == "number":
            value, end = _quantity(text, position)
            found.append(("value", (value, "".join(text[position:end].split())), position))
        elif kind == "text":
            # A text cannot contain both kinds of quotes, so one of them always fits.
            found.append(("value", (word[1:-1], word if '"' in word[1:-1] else '"%s"' % word[1:-1]), position))
        elif kind == "name":
            found.append(_word(text, word, position))
        elif kind == "unclosed":
            _fail(text, position, "this text has no end: close it with the same quote on the same line")
        elif word in _CORRECTIONS:
            _fail(text, position, "%s has no meaning here: %s" % (word, _CORRECTIONS[word]))
        else:
            found.append((word, word, position))
        position = _after_blanks(text, end)
    return [*found, ("end", "", len(text))]


def _after_blanks(text: str, position: int) -> int:
    match = _BLANKS.match(text, position)
    return match.end() if match else position


def _word(text: str, word: str, position: int) -> Token:
    lowered = word.lower()
    if word in ("true", "false"):
        return ("value", (word == "true", word), position)
    if word in _WORDS:
        return (word, word, position)
    if lowered in _WORDS:
        _fail(text, position, "%s is written in small letters: %s" % (word, lowered))
    if lowered in ("none", "null", "undefined", "nan"):
        _fail(text, position, '%s is no value: ask with "defined(NAME)"' % word)
    return ("name", word, position)


def _quantity(text: str, begin: int) -> Tuple[float, int]:
    """Parses a number with or without a unit: 8, 2.5, 1e-3, 8G, 500 MB, 90s, 1h30m. Returns the number and the position of its end."""
    total, end = 0.0, begin
    number = _NUMBER.match(text, begin)
    while number:
        amount = float(number[0])
        unit = _UNIT.match(text, number.end())
        word = unit[1] if unit else ""
        size = None if word in _DURATIONS else _SIZES.get(word.upper())
        seconds = None if size else _DURATIONS.get(word if word in _DURATIONS else word.lower())
        if unit and seconds:
            total, end = total + amount * seconds, unit.end()
            number = _NUMBER.match(text, end)
            continue
        if end > begin:
            _fail(text, end, "this goes on like a duration, but has no unit of time")
        if unit and size:
            total, end = amount * size, unit.end()
        elif unit and unit.start(1) == number.end():
            _fail(text, unit.start(1), "%s is no unit: sizes are like 8G or 500MB, durations like 90s, 10m or 2h" % word)
        else:
            total, end = amount, number.end()
        # Sizes are whole numbers of bytes, as everywhere in Pilotfish.
        total = round(total) if total < _EXACT and (size or total.is_integer()) else total
        break
    if total == _INFINITY:
        _fail(text, begin, "this number is too large")
    return total, end


# --- parser ---------------------------------------------------------------------------------------------------------------------------

_OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _NEGATIVE, _ATOM = range(8)
_KINDS = ("or", "and", "not", "compare", "sum", "product", "negative")
_LEVELS = {
    "or": _OR,
    "and": _AND,
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in"), _COMPARE),
    **dict.fromkeys(("+", "-"), _SUM),
    **dict.fromkeys(("*", "/", "//", "%"), _PRODUCT),
}


class _Parser:
    """Parses by precedence climbing: an operator takes the operands on its right that bind more tightly."""

    def __init__(self, text: str, tokens: List[Token]) -> None:
        self.names: Dict[str, None] = {}
        self._text = text
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def parse(self) -> Node:
        if self._kind() == "end":
            _fail(self._text, 0, "this expression is empty")
        tree = self._expression(_OR)
        kind, word, position = self._tokens[self._at]
        if kind == "name":
            _fail(self._text, position, "there is no operator %s: %s" % (word, _nearest(word, ("and", "or", "in", "not in"))))
        if kind == ")":
            _fail(self._text, position, 'this ")" has no "("')
        self._expect("end")
        return tree

    def _kind(self) -> str:
        return self._tokens[self._at][0]

    def _next(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, sign: str) -> None:
        kind, _, position = self._next()
        if kind == sign:
            return
        if kind == ",":
            _fail(self._text, position, 'a list stands in ( ) after "in"')
        missing = "an operator" if sign == "end" else 'a "%s"' % sign if kind == "end" else 'an operator or a "%s"' % sign
        _fail(self._text, position, missing + " is missing here")

    def _deeper(self, level: int) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            _fail(self._text, self._tokens[self._at][2], "this is nested more than %d deep" % MAX_DEPTH)
        node = self._expression(level)
        self._depth -= 1
        return node

    def _level(self) -> int:
        """Returns the precedence level of the next operator; -1 if there is none."""
        kind = self._kind()
        return _COMPARE if kind == "not" and self._tokens[self._at + 1][0] == "in" else _LEVELS.get(kind, -1)

    def _expression(self, min_level: int) -> Node:
        node = self._operand(min_level)
        level = self._level()
        while level >= min_level:
            if self._kind() in ("in", "not"):
                node = self._membership(node)
            else:
                rest = []
                while self._level() == level and self._kind() not in ("in", "not"):
                    rest.append((self._next()[0], self._expression(level + 1)))
                node = (_KINDS[level], node, tuple(rest))
            if self._level() == level:
                _fail(self._text, self._tokens[self._at][2], '"in" is not chained with other comparisons: put one in parentheses')
            level = self._level()
        return node

    def _operand(self, min_level: int) -> Node:
        kind, word, position = self._next()
        if kind == "value":
            return ("value", *word)
        if kind == "name":
            return self._call(word, position) if self._kind() == "(" else self._name(word, position)
        if kind == "-":
            return ("negative", self._deeper(_NEGATIVE))
        if kind == "not" and min_level <= _NOT:
            return ("not", self._deeper(_NOT))
        if kind == "(":
            node = self._deeper(_OR)
            self._expect(")")
            return node
        if kind == "not":
            _fail(self._text, position, 'put "not ..." in parentheses here')
        _fail(self._text, position, "a value is missing " + ("at the end" if kind == "end" else "before %s" % word))

    def _name(self, word: str, position: int) -> Node:
        if word in _FUNCTIONS:
            _fail(self._text, position, "%s is a function: write %s(...)" % (word, word))
        self.names[word] = None
        return ("name", word)

    def _call(self, word: str, position: int) -> Node:
        if word not in _FUNCTIONS:
            _fail(self._text, position, "there is no function %s: %s" % (word, _nearest(word, tuple(_FUNCTIONS))))
        arguments: List[Node] = []
        while self._next() and self._kind() != ")":
            arguments.append(self._deeper(_OR))
            if self._kind() != ",":
                break
        self._expect(")")
        expected = _FUNCTIONS[word]
        if not arguments or (expected and len(arguments) != expected):
            _fail(self._text, position, "%s has %s, not %d" % (word, _ARGUMENTS[expected], len(arguments)))
        if word == "defined" and arguments[0][0] != "name":
            _fail(self._text, position, "defined asks for a property: defined(gpu)")
        return ("call", word, tuple(arguments))

    def _membership(self, node: Node) -> Node:
        negated = self._next()[0] == "not" and bool(self._next())
        kind, _, position = self._next()
        if kind != "(":
            _fail(self._text, position, 'a list of values follows "in": ("lyon", "cern")')
        values: List[Node] = []
        while True:
            minus = self._kind() == "-" and bool(self._next())
            kind, word, position = self._next()
            if kind != "value" or (minus and isinstance(word[0], (str, bool))):
                _fail(self._text, position, 'a list after "in" has only numbers and quoted texts')
            values.append(("value", -word[0], "-" + word[1]) if minus else ("value", *word))
            if self._kind() != "," or (self._next() and self._kind() == ")"):
                break
        self._expect(")")
        return ("in", node, tuple(values), negated)
