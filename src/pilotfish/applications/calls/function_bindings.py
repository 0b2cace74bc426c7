"""Detects whether a pickled function is outdated, because something that its pickle contains has changed.

A function of ``__main__`` or of a notebook is pickled with everything that it uses: its code and its default values, the values of global
names and closure variables, and the classes of ``__main__``. If one of these is replaced or changed in place, the pickle is outdated. For
example, the user edits the cell of a helper function and runs the cell again, or assigns to an attribute of a class.

Names, functions and classes are compared one by one. All other values, such as a dict of settings, are pickled again and compared as
pickles. If a value cannot be compared, the function counts as outdated.

Comparing a value with a large pickle takes long. When these comparisons have taken ``LARGE_CHECKS_S`` seconds, later calls skip most of
them. If a change is found after skipped comparisons, the user is warned. If the results of calls are reused, no comparison is skipped.
"""

from __future__ import annotations

import io
import pickle
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

import cloudpickle  # type: ignore[import-untyped]

from pilotfish.applications.calls.by_value import CachedFunction, is_pickled_by_value
from pilotfish.applications.calls.user_warnings import warn_user

_EMPTY = object()
"""Placeholder for the value of a name or closure variable without a value."""
MAX_COMPARED_BYTES = 64 * 1024
"""Maximum bytes in the pickle of a small value. A value with a larger pickle counts as large."""
LARGE_CHECKS_S = 0.2
"""Total seconds of comparisons of the large values of a function. After that, some calls skip the comparison."""
_CHECK_SHARE = 0.05
"""Maximum share of the time that comparisons take when some calls skip them."""
_FIXED = (
    *(bool, int, float, complex, str, bytes, range, type(None), type(...), type(NotImplemented), types.CodeType),
    *(types.BuiltinFunctionType, types.MemberDescriptorType, types.GetSetDescriptorType),
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
)
"""Types whose values cannot be changed in place."""
_MADE_BY_PYTHON = {
    *("__annotations__", "__dataclass_fields__", "__dataclass_params__", "__static_attributes__", "__slots__", "_abc_impl"),
    *("_member_map_", "_value2member_map_", "_member_names_", "__orig_bases__", "__parameters__"),
}
"""Attributes of classes that programs sometimes replace, but never change in place. So changes inside of their values are not searched."""


class _FunctionParts(NamedTuple):
    """The parts of a function that can be replaced. The reference is weak, so that a function that is not used any more can be deleted."""

    reference: weakref.ref[Any]
    code: types.CodeType
    defaults: tuple[Any, ...] | None
    keyword_defaults: dict[str, Any] | None
    has_attributes: bool


class _ClassParts(NamedTuple):
    """The bases and attributes of a class."""

    reference: weakref.ref[Any]
    bases: tuple[type, ...]
    attributes: dict[str, Any]


class FunctionBindings:
    """Records what a function used when it was pickled.

    ``compares_large``: whether large values are compared, too. This is necessary if the results of calls are reused.
    """

    __slots__ = (
        *("_cells", "_check_at", "_checks_s", "_classes", "_compares_large", "_functions", "_globals", "_in_doubt", "_kept", "_large"),
        *("_state", "_unchecked", "_values"),
    )

    def __init__(self, function: object, compares_large: bool = False) -> None:
        self._functions: list[_FunctionParts] = []
        self._classes: list[_ClassParts] = []
        self._globals: list[tuple[dict[str, Any], str, Any]] = []
        self._cells: list[tuple[types.CellType, Any]] = []
        self._values: list[object] = []
        """Values that can be changed in place. ``_state``: their pickle."""
        self._large: list[tuple[object, bytes]] = []
        """Large values, with the hashes of their pickles."""
        self._compares_large = compares_large
        self._checks_s = self._check_at = 0.0
        self._unchecked = 0
        """Number of calls since the last comparison of the large values."""
        self._in_doubt = False
        seen: dict[int, object] = {}
        left = [function]
        while left:
            value = left.pop()
            if id(value) not in seen:
                seen[id(value)] = value
                left += self._add(value)
        del seen[id(function)]
        self._kept = [value for value in seen.values() if isinstance(value, types.FunctionType | type | CachedFunction)]
        self._state = _state(self._values)[0] if self._values else b""

    def __bool__(self) -> bool:
        return bool(self._functions or self._classes or self._in_doubt)

    @property
    def are_current(self) -> bool:
        """Returns whether nothing has changed. If this cannot be known, returns False."""
        # Plain loops, because this runs at each call.
        for reference, code, defaults, keyword_defaults, has_attributes in self._functions:
            function = reference()
            if function is None or function.__code__ is not code or function.__defaults__ is not defaults:
                return False
            if function.__kwdefaults__ is not keyword_defaults or bool(function.__dict__) is not has_attributes:
                return False
        for names, name, value in self._globals:
            if names.get(name, _EMPTY) is not value:
                return False
        for cell, value in self._cells:
            if _content(cell) is not value:
                return False
        return not self._in_doubt and self._classes_are_current and self._values_are_current

    @property
    def _classes_are_current(self) -> bool:
        for reference, bases, attributes in self._classes:
            found = reference()
            if found is None or found.__bases__ is not bases:
                return False
            now = vars(found)
            if len(now) != len(attributes):
                return False
            for name, value in attributes.items():
                if now.get(name, _EMPTY) is not value:
                    return False
        return True

    @property
    def _values_are_current(self) -> bool:
        try:
            if self._values and _state(self._values)[0] != self._state:
                return False
            return not self._large or self._large_are_current()
        except Exception:  # noqa: BLE001 (the classes of values may raise anything)
            return False

    def _large_are_current(self) -> bool:
        started_at = time.monotonic()
        if started_at < self._check_at and not self._compares_large:
            self._unchecked += 1
            return True
        changed = next((value for value, known in self._large if _hash(value) != known), _EMPTY)
        now = time.monotonic()
        self._checks_s += now - started_at
        if self._checks_s > LARGE_CHECKS_S:
            self._check_at = now + (now - started_at) / _CHECK_SHARE
        if changed is not _EMPTY and self._unchecked:
            warn_user(
                f"a large value of type {type(changed).__name__}, which the function of this call uses, was changed in place. "
                f"Up to {self._unchecked:,} calls before this one got the old value. Pass such a value as an argument"
            )
        self._unchecked = 0
        return changed is _EMPTY

    def _add(self, value: object) -> Iterator[object]:
        """Adds a value. Yields the functions, classes and other values that it uses."""
        if type(value) in _FIXED:
            return
        if isinstance(value, CachedFunction):
            yield from (value.__wrapped__, vars(value)) if is_pickled_by_value(value) else ()
        elif isinstance(value, types.FunctionType):
            if is_pickled_by_value(value):
                yield from self._add_function(value)
        elif isinstance(value, type):
            if is_pickled_by_value(value):
                yield from self._add_class(value)
        elif isinstance(value, staticmethod | classmethod):
            yield value.__func__
        elif type(value) is property:
            yield from (value.fget, value.fset, value.fdel)
        elif not isinstance(value, types.ModuleType) or not _is_imported(value):
            yield from self._add_value(value)

    def _add_function(self, function: types.FunctionType) -> Iterator[object]:
        defaults, keyword_defaults, attributes = function.__defaults__, function.__kwdefaults__, function.__dict__
        self._functions.append(_FunctionParts(weakref.ref(function), function.__code__, defaults, keyword_defaults, bool(attributes)))
        yield from defaults or ()
        yield from (value for value in (keyword_defaults, attributes) if value)
        for name in cloudpickle.cloudpickle._extract_code_globals(function.__code__):
            current = function.__globals__.get(name, _EMPTY)
            self._globals.append((function.__globals__, name, current))
            if current is not _EMPTY:
                yield current
        for cell in function.__closure__ or ():
            current = _content(cell)
            self._cells.append((cell, current))
            if current is not _EMPTY:
                yield current

    def _add_class(self, value: type) -> Iterator[object]:
        attributes = dict(vars(value))
        self._classes.append(_ClassParts(weakref.ref(value), value.__bases__, attributes))
        yield type(value)
        yield from value.__bases__
        yield from (attribute for name, attribute in attributes.items() if name not in _MADE_BY_PYTHON)

    def _add_value(self, value: object) -> Iterator[object]:
        try:
            state, found = _state(value)
            if len(state) <= MAX_COMPARED_BYTES:
                self._values.append(value)
            else:
                self._large.append((value, _hash(value)))
        except Exception:  # noqa: BLE001 (the classes of values may raise anything)
            self._in_doubt = True
        else:
            yield from found


class _StatePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a value. Functions and classes of the program are collected in ``found``; the pickle has only the ``id`` of each."""

    found: list[object]

    def reducer_override(self, value: Any) -> Any:
        if value is int:
            return NotImplemented
        if isinstance(value, types.FunctionType | type | CachedFunction) and is_pickled_by_value(value):
            self.found.append(value)
            return int, (id(value),)
        return super().reducer_override(value)


def _state(value: object, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> tuple[bytes, list[object]]:
    """Returns the pickle of a value, and the functions and classes in the value."""
    file = io.BytesIO()
    pickler = _StatePickler(file, 5, buffer_callback=buffer_callback)
    pickler.found = []
    pickler.dump(value)
    return file.getvalue(), pickler.found


def _hash(value: object) -> bytes:
    buffers: list[pickle.PickleBuffer] = []
    digest = blake2b(_state(value, buffers.append)[0])
    for buffer in buffers:
        digest.update(buffer.raw())
    return digest.digest()


def _is_imported(module: types.ModuleType) -> bool:
    return sys.modules.get(module.__name__) is module and module.__name__ not in cloudpickle.list_registry_pickle_by_value()


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY
