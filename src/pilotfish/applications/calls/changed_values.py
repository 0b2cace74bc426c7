"""Warns if this program has given a new value to a name of one of the user's own modules. Calls do not see the new value, because slots
import the source of the module.

For example, the program sets ``cfg.N = 99``, but ``cfg.py`` has ``N = 10``, so calls get 10. A name is checked only if its value in a fresh
import is certain: the source of its module binds the name only once, to a literal such as a number or a text, and no own module assigns to
an attribute of this name, as in ``cfg.N = 5``.
"""

from __future__ import annotations

import ast
import dis
import re
import sys
import types
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from pilotfish.applications.calls.by_value import is_pickled_by_value
from pilotfish.applications.calls.own_modules import OwnModules, is_own_module
from pilotfish.applications.calls.user_warnings import warn_user

MAX_FUNCTIONS = 200
"""Maximum number of functions that are searched for one call."""
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_INDIRECT = re.compile(r"\b(globals|vars|exec|setattr)\s*\(|\bimport\s+\*")
"""Matches code that can bind a name of a module without an assignment to it, such as ``globals()["N"] = 5``."""
_MISSING = object()


class ChangedValues:
    """Warns at most once about each changed name."""

    def __init__(self, modules: OwnModules) -> None:
        self._modules = modules
        self._warned: set[tuple[str, str]] = set()

    def warn(self, function: object) -> None:
        """Warns about each changed name of an own module that a function reads. The user's functions that this function calls are searched,
        too."""
        for module, name, original in self._changed(function):
            if (module.__name__, name) not in self._warned:
                self._warned.add((module.__name__, name))
                place = f"{module.__name__}.{name}"
                text = (
                    f"{place} is {_show(vars(module)[name])} in this program, but it is {_show(original)} in calls: they import the "
                    f"source of the module. Pass the value as an argument, or set {place} in the function or in an initializer"
                )
                warn_user(text)

    def _changed(self, function: object) -> Iterator[tuple[types.ModuleType, str, object]]:
        read, stored = _names_of(function)
        for module, name in read:
            current = vars(module).get(name, _MISSING)
            if name in stored or not _is_plain(current):
                continue
            original = _literals(self._modules.text_of(module)).get(name, _MISSING)
            if original is _MISSING or (type(original), repr(original)) == (type(current), repr(current)):
                continue
            if not self._modules.any_matches(re.compile(rf"\.\s*{re.escape(name)}\s*(?:[-+*/|&^%@]|//|\*\*|<<|>>)?=(?!=)")):
                yield module, name, original


def _names_of(function: object) -> tuple[dict[tuple[types.ModuleType, str], None], set[str]]:
    """Searches a function and the user's functions that it uses. Returns the names of own modules that these functions read, each with its
    module. Also returns the names of the attributes that these functions set."""
    read: dict[tuple[types.ModuleType, str], None] = {}
    stored: set[str] = set()
    seen: set[int] = set()
    left = [function]
    while left and len(seen) < MAX_FUNCTIONS:
        value = left.pop()
        if not isinstance(value, types.FunctionType) or id(value) in seen:
            continue
        seen.add(id(value))
        module = sys.modules.get(value.__module__)
        own = module if module is not None and not is_pickled_by_value(value) and is_own_module(module) else None
        if own is None and not is_pickled_by_value(value):
            continue
        for code in _codes(value.__code__):
            for owner, name in _reads(code, value.__globals__, stored):
                place = owner or own
                if place is not None:
                    read[place, name] = None
                left.append(vars(place).get(name) if place is not None else value.__globals__.get(name))
    return read, stored


def _reads(code: types.CodeType, names: Mapping[str, Any], stored: set[str]) -> Iterator[tuple[types.ModuleType | None, str]]:
    """Yields (module, name) pairs for the names that a code object reads. For an attribute of an own module, the pair has this module. For
    a global name, the pair has None. Adds to ``stored`` the names of the attributes that the code sets."""
    owner: types.ModuleType | None = None
    for operation, name in _instructions(code):
        if operation == "STORE_ATTR":
            stored.add(name)
        if operation in ("LOAD_ATTR", "LOAD_METHOD") and owner is not None:
            yield owner, name
            value = vars(owner).get(name)
        elif operation in ("LOAD_GLOBAL", "LOAD_NAME"):
            value = names.get(name)
            if not isinstance(value, types.ModuleType):
                yield None, name
        else:
            value = None
        owner = value if isinstance(value, types.ModuleType) and is_own_module(value) else None


@lru_cache(maxsize=4096)
def _instructions(code: types.CodeType) -> tuple[tuple[str, Any], ...]:
    return tuple((instruction.opname, instruction.argval) for instruction in dis.get_instructions(code))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


@lru_cache(maxsize=256)
def _literals(text: str) -> Mapping[str, object]:
    """Returns the names that the source of a module binds only once, to a literal. Maps each name to the value of its literal."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    if _INDIRECT.search(text):
        return {}
    bound: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound[node.id] += 1
        elif isinstance(node, ast.Global):
            bound.update(2 * node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound[node.name] += 1
        elif isinstance(node, ast.alias):
            bound[node.asname or node.name.partition(".")[0]] += 1
    found: dict[str, object] = {}
    for statement in tree.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        target = statement.target if isinstance(statement, ast.AnnAssign) else target
        value = getattr(statement, "value", None)
        if isinstance(target, ast.Name) and bound[target.id] == 1 and value is not None:
            try:
                found[target.id] = ast.literal_eval(value)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                continue
    return found


def _is_plain(value: object) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_plain, value)))


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
