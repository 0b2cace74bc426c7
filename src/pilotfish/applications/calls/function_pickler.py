"""Pickles functions and classes by value, and notes the modules that their code imports.

A pickle by value contains the code of a function or class of ``__main__`` or of a notebook, because a slot cannot import it. All pickles of
calls that contain such code are made here.
"""

from __future__ import annotations

import functools
import io
import operator
import pickle
import sys
import types
import typing
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from pilotfish.applications.calls.by_value import CachedFunction, is_pickled_by_value
from pilotfish.applications.calls.function_bindings import FunctionBindings
from pilotfish.applications.calls.import_statements import imports_in_code
from pilotfish.errors import BadInput
from pilotfish.portable.class_unpickler import class_of_program, name_in_id


class CodeImports:
    """The names of the modules that pickled functions possibly import when they run.

    ``functions``: how often a function of the user was pickled by value. If the number grows while a value is pickled, the pickle contains
    such a function.
    """

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.functions = 0
        self._seen: weakref.WeakKeyDictionary[types.CodeType, set[str]] = weakref.WeakKeyDictionary()

    def note(self, function: types.FunctionType) -> None:
        self.functions += not (function.__module__ or "").startswith("pilotfish.")
        package = function.__globals__.get("__package__") or ""
        seen = self._seen.setdefault(function.__code__, set())
        if package not in seen:
            seen.add(package)
            self.names.update(dict.fromkeys(imports_in_code(function.__code__, package)))


code_imports = CodeImports()
"""The imports of all functions that this program has pickled by value."""


class ClassVersions:
    """Numbers the versions of each class that is pickled by value. A class has a new version if something that it uses has changed."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[type, tuple[FunctionBindings, int]] = weakref.WeakKeyDictionary()

    def number(self, value: type) -> int:
        known = self._known.get(value)
        if known is None or not known[0].are_current:
            number = 0 if known is None else known[1] + 1
            known = self._known[value] = FunctionBindings(value, compares_large=True), number
        return known[1]


class_versions = ClassVersions()


class FunctionPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles a value. Functions and classes that a slot cannot import are pickled by value.

    ``slot_globals``: name of a list in the module ``sys`` of the slot. When the slot loads functions from the pickle, the dicts with their
    global variables are added to this list. If the name is empty, there is no list.
    """

    slot_globals = ""
    marks_versions = True
    """Whether the pickle contains the version of each class, so that a slot knows whether it already has this version."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Future) and type(value).__reduce_ex__ is object.__reduce_ex__:
            raise BadInput(f"{value!r} is a future of another executor, and workers cannot wait for it", "pass its .result()")
        if type(value) is types.FunctionType:
            reduced = self._function_reduce(value)
            if reduced is not NotImplemented:
                code_imports.note(value)
            return reduced
        if isinstance(value, CachedFunction) and is_pickled_by_value(value):
            return self._reduce_cached(value)
        reduced = super().reducer_override(value)
        if isinstance(value, type) and reduced is not NotImplemented and reduced[0].__name__.startswith("_make_skeleton"):
            reduced = _with_slots(value, reduced) if "__slots__" in vars(value) else reduced
            if self.marks_versions:
                make, (*arguments, identifier, _), *rest = reduced
                return make, (*arguments, _with_name(value, identifier), {"version": class_versions.number(value)}), *rest
        return reduced

    def _function_getnewargs(self, function: types.FunctionType) -> Any:
        names = function.__globals__
        if self.slot_globals and id(names) not in self.globals_ref:
            kept = {name: names[name] for name in ("__package__", "__name__", "__path__", "__file__") if name in names}
            in_slot = _Call(dict.setdefault, _Call(vars, sys), self.slot_globals, [])
            self.globals_ref[id(names)] = _Call(operator.getitem, _Call(operator.iadd, in_slot, [kept]), -1)
        return super()._function_getnewargs(function)

    def _reduce_cached(self, value: Any) -> tuple[Any, ...]:
        """Returns what pickle needs to decorate the function again. The cache itself is not pickled.

        The code of the function can refer to the decorated function, for example in a recursion. So unpickling first makes the decorated
        function, and then sets the state of the function inside, such as its global variables.
        """
        parameters = value.cache_parameters()
        decorate = _Call(functools.lru_cache, parameters["maxsize"], parameters["typed"])
        inner, attributes = value.__wrapped__, {name: found for name, found in vars(value).items() if name != "__wrapped__"}
        if not isinstance(inner, types.FunctionType) or (reduced := self._function_reduce(inner)) is NotImplemented:
            return operator.call, (decorate, inner)
        code_imports.note(inner)
        make, arguments, state, _, _, set_state = reduced
        return operator.call, (decorate, _Call(make, *arguments)), (set_state, state, attributes), None, None, _set_cached_state


def _with_name(value: type, identifier: str) -> str:
    """Adds the module and name of a class to the id of the class. Results with objects of the class contain this id. If the program is
    started again and reads such a result, it finds its own class by the name. If the program has no class or a different class under this
    name, the id does not change."""
    name = f"{value.__module__}:{value.__qualname__}"
    if name_in_id(identifier) or class_of_program(name) is not value:
        return identifier
    identifier = f"{name}:{identifier}"
    cloudpickle.cloudpickle._lookup_class_or_track(identifier, value)
    return identifier


def _with_slots(value: type, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Adds ``__slots__`` to what pickle needs to create a class. ``__slots__`` has an effect only while Python creates the class, but
    cloudpickle would set it later."""
    made_by_typing = typing.NamedTuple in vars(value).get("__orig_bases__", ())  # NamedTuple sets the slots itself
    if reduced[0].__name__ != "_make_skeleton_class" or made_by_typing:
        return reduced
    make, (*head, options, identifier, extra), *rest = reduced
    return make, (*head, {**options, "__slots__": vars(value)["__slots__"]}, identifier, extra), *rest


class _Call:
    """An object that is pickled as a call of a function. Unpickling gives the result of this call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._reduced = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced


def _make_state_setter() -> Callable[..., None]:
    """Returns the function that completes a cached function in a slot. The returned function is pickled by value, because slots do not have
    this package."""

    def set_cached_state(cached: Any, state: tuple[Any, ...]) -> None:
        from functools import update_wrapper

        set_state, inner_state, attributes = state
        set_state(cached.__wrapped__, inner_state)
        inner = cached.__wrapped__
        update_wrapper(cached, inner)
        cached.__dict__.update(attributes)

    return set_cached_state


_set_cached_state = _make_state_setter()


def dump_by_value(value: object, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None, slot_globals: str = "") -> bytes:
    file = io.BytesIO()
    pickler = FunctionPickler(file, 5, buffer_callback=buffer_callback)
    pickler.slot_globals = slot_globals
    pickler.dump(value)
    return file.getvalue()
