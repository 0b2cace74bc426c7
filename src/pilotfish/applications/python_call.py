"""Pickles functions once per run and arguments once per task.

A plain function is pickled with cloudpickle when it is first used. Later calls find it by its identity. Two functions with equal pickles
have one spec. Other callables, such as a bound method, a partial or an object with ``__call__``, have state. The state may change from call
to call, so such a callable is sent with the arguments of each task.
"""

from __future__ import annotations

import builtins
import hashlib
import inspect
import operator
import os
import pickle
import sys
import sysconfig
import textwrap
import types
import weakref
from collections.abc import Callable
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from pilotfish.applications.task_options import DEFAULT_OPTIONS, TaskOptions
from pilotfish.errors import BadInput
from pilotfish.model.task import TaskSpec
from pilotfish.portable.payload_format import PackedPayload, join_pieces, pack_one, pack_pieces

Register = Callable[[TaskSpec, bytes], int]
"""Returns the number of a spec in the run. Equal specs have the same number."""
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]

PYTHON = [sys.version_info.major, sys.version_info.minor]
PICKLE, SOURCE = "pickle", "source"
_FROM_MAIN = b"\x8c\x08__main__\x94"
"""The module name ``__main__`` as pickle protocol 5 writes it."""
_NOT_PICKLABLE = (pickle.PicklingError, TypeError, AttributeError)
LARGE_BYTES = 64 * 1024
"""Bytes objects with more bytes than this are sent beside the pickle, so that they are not copied into the pickle."""
_CLOSURES_PER_CODE = 16
"""Maximum number of closures of one code object that become specs. Further closures are sent with the arguments."""


def import_path() -> list[str]:
    """Returns the directories from which the caller imports modules. A slot with the same Python needs them for the same imports."""
    libraries = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    found: dict[str, None] = {}
    for entry in sys.path:
        place = os.path.realpath(entry or os.getcwd())
        is_library = place in libraries or (os.path.dirname(place) in libraries and not place.endswith("-packages"))
        if not is_library and os.path.exists(place):
            found[place] = None
    return list(found)


def _show(function: object) -> str:
    return getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or type(function).__name__


def current_directory() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def dump(value: object) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickles a value and its large buffers. Uses the standard library if that is enough, otherwise cloudpickle.

    A slot does not have the names that ``__main__`` defines in this process, so it cannot resolve a reference to them. cloudpickle sends
    such names by value. If the user registered a module with cloudpickle, cloudpickle also sends this module by value.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        data = pickle.dumps(value, 5, buffer_callback=buffers.append)
    except _NOT_PICKLABLE:
        data = _FROM_MAIN
    if _FROM_MAIN in data or cloudpickle.list_registry_pickle_by_value():
        buffers.clear()
        data = cloudpickle.dumps(value, 5, buffer_callback=buffers.append)
    return data, buffers


class _OutOfBand:
    """Wraps a large bytes object, so that it is not copied into the pickle. The slot unpickles it as bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return bytes, (pickle.PickleBuffer(self._data),)


def _out_of_band(value: Any) -> Any:
    return _OutOfBand(value) if type(value) is bytes and len(value) > LARGE_BYTES else value


def pack_pickled(value: object) -> PackedPayload:
    """Pickles a value into one part. If the value has large buffers, each buffer is a further part."""
    data, buffers = dump(value)
    if buffers:
        return pack_pieces([data, *(buffer.raw() for buffer in buffers)])
    return pack_one(data)


def _pack_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> PackedPayload:
    named = {name: _out_of_band(value) for name, value in kwargs.items()} if kwargs else kwargs
    return pack_pickled((tuple(map(_out_of_band, args)), named))


def source_of(function: Callable[..., Any]) -> bytes:
    """Returns the source of a function, for slots with another Python version. The function must not use names from outside of it."""
    name = _show(function)
    if not isinstance(function, types.FunctionType) or function.__name__ == "<lambda>":
        raise BadInput(f"{name}: only a function made with def can be sent as source", 'use form="pickle", or write it with def')
    if function.__code__.co_freevars:
        names = ", ".join(function.__code__.co_freevars)
        raise BadInput(f"{name}: it uses {names} of the function around it, which its source does not hold", "pass these as arguments")
    own = function.__globals__
    missing = [used for used in function.__code__.co_names if used in own and not hasattr(builtins, used) and used != function.__name__]
    if missing:
        raise BadInput(
            f"{name}: it uses {', '.join(missing)} of its module, which its source does not hold",
            "import or define these inside the function",
        )
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise BadInput(f"{name}: its source cannot be found ({error})", 'write it to a file, or use form="pickle"') from error
    first_line = source.splitlines()[0]
    if not first_line.startswith(("def ", "async def ")):
        raise BadInput(f"{name}: its source starts with {first_line!r}", "send the function without its decorator")
    return source.encode()


def _is_stateless(function: object) -> bool:
    """Tests whether a callable has no state of its own: a plain function, a class, or a built-in function of a module."""
    if isinstance(function, types.BuiltinFunctionType):
        return function.__self__ is None or isinstance(function.__self__, types.ModuleType)
    return isinstance(function, (types.FunctionType, type))


class CallEncoder:
    """Encodes the calls of one run with one set of options as spec numbers and payloads. Slots get ``wrap(function)``, not the function."""

    def __init__(
        self, register: Register, wanted: TaskOptions = DEFAULT_OPTIONS, form: str = PICKLE, wrap: Wrap = lambda function: function
    ) -> None:
        if form not in (PICKLE, SOURCE):
            raise BadInput(f"form: {form!r} is not known", f'write form="{PICKLE}" or form="{SOURCE}"')
        self._register = register
        self._wanted = wanted
        self._form = form
        self._wrap = wrap
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._per_code: dict[int, set[bytes]] = {}
        self._generic_specs: dict[str, int] = {}

    def encode(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, PackedPayload]:
        known = self._known.get(id(function))
        if known is not None and known[0]() is function:
            return known[1], _pack_call(args, kwargs)
        number = self._learn(function)
        if number is None:
            return self._generic_spec(function), _pack_call((function, *args), kwargs)
        return number, _pack_call(args, kwargs)

    def _learn(self, function: Callable[..., Any]) -> int | None:
        """Returns the spec number of a new function. Returns None if the function must be sent with its arguments."""
        if self._form == SOURCE:
            code = source_of(function)
        elif not _is_stateless(function):
            return None
        else:
            code = cloudpickle.dumps(self._wrap(function), 5)
            if not self._gets_spec(function, code):
                return None
        number = self._register(self._wanted.spec("python", _show(function), _launch(function.__name__, self._form)), code)
        identity = id(function)
        self._known[identity] = weakref.ref(function, lambda _, known=self._known: known.pop(identity, None)), number  # type: ignore[misc]
        return number

    def _gets_spec(self, function: object, code: bytes) -> bool:
        inner = getattr(function, "__code__", None)
        if inner is None:
            return True
        seen = self._per_code.setdefault(hash(inner), set())
        digest = hashlib.sha256(code).digest()
        if digest not in seen and len(seen) >= _CLOSURES_PER_CODE:
            return False
        seen.add(digest)
        return True

    def _generic_spec(self, function: object) -> int:
        """Returns the number of a spec whose tasks have the callable as their first argument. Each name has its own spec, for listings."""
        name = _show(function)
        number = self._generic_specs.get(name)
        if number is None:
            spec = self._wanted.spec("python", name, _launch("call", self._form))
            number = self._generic_specs[name] = self._register(spec, cloudpickle.dumps(self._wrap(operator.call), 5))
        return number


def _launch(name: str, form: str) -> dict[str, Any]:
    path = import_path()
    if form == SOURCE:
        # The slot may have another Python. It cannot use the packages that are installed for this Python.
        path = [place for place in path if not place.startswith((sys.prefix, sys.base_prefix)) and "site-packages" not in place]
    return {"python": PYTHON, "form": form, "name": name, "path": path, "cwd": current_directory(), "env": {}}


def worker_spec(worker: object, wanted: TaskOptions) -> tuple[TaskSpec, bytes]:
    """Returns the spec of tasks that an ApplicationWorker executes. ``worker``: its class, or another callable that creates it."""
    return wanted.spec("application", _show(worker), _launch(_show(worker), PICKLE)), cloudpickle.dumps(worker, 5)


def worker_payload(parameters: object) -> bytes:
    return join_pieces(pack_pickled(parameters))


def chunked(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Returns a function that calls ``function`` for a list of argument tuples.

    The returned function is sent by value, because slots do not have this package.
    """

    def run_chunk(rows: list[tuple[Any, ...]]) -> list[Any]:
        return [function(*row) for row in rows]

    run_chunk.__name__ = run_chunk.__qualname__ = f"{_show(function)} (chunk)"
    return run_chunk
