"""Pickles functions once per run and arguments once per task.

A plain function is pickled with cloudpickle when it is first used. Later calls find the pickle by the identity of the function. Two
functions with equal pickles have one spec. Other callables, such as a bound method, a partial or an object with ``__call__``, have state.
The state can change from call to call, so such a callable is sent with the arguments of each task.
"""

from __future__ import annotations

import functools
import hashlib
import operator
import pickle
import sys
import time
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from msgspec.structs import replace

from pilotfish.applications.calls.by_value import CachedFunction
from pilotfish.applications.calls.changed_values import ChangedValues
from pilotfish.applications.calls.function_bindings import FunctionBindings
from pilotfish.applications.calls.function_pickler import code_imports, dump_by_value
from pilotfish.applications.calls.function_source import source_of
from pilotfish.applications.calls.future_arguments import FutureArguments, FutureFound
from pilotfish.applications.calls.own_modules import NO_MODULES, LastImport, OwnModules, last_import
from pilotfish.applications.executables.program_environment import import_path, program_environment
from pilotfish.applications.executables.working_directory import current_directory, directory_reader
from pilotfish.applications.input_files import PackedFiles
from pilotfish.applications.task_options import DEFAULT_OPTIONS, TaskOptions, read_task_options
from pilotfish.errors import BadInput
from pilotfish.model.task import TaskSpec
from pilotfish.portable.out_of_band import out_of_band
from pilotfish.portable.payload_format import PackedPayload, join_pieces, pack, pack_one, pack_pieces

Register = Callable[[TaskSpec, bytes], int]
"""A function that adds a spec to the run. It gets the spec and its code, and returns the number of the spec in the run. Equal specs have
the same number."""
DumpFunction = Callable[[Callable[..., Any]], bytes]
"""A function that pickles the function of a call. In an executor with an initializer, the pickled function calls the initializer first."""

PYTHON = [sys.version_info.major, sys.version_info.minor]
PICKLE, SOURCE = "pickle", "source"
GENERIC = "call"
"""Name of the function in specs of calls whose functions are sent with the arguments."""
_FROM_MAIN = b"\x8c\x08__main__\x94"
"""The module name ``__main__`` as pickle protocol 5 writes it."""
_NOT_PICKLABLE = (pickle.PicklingError, TypeError, AttributeError)
own_modules = OwnModules(code_imports=code_imports.names)
"""The user's own modules in this program. All encoders use this object, so that each file is read once."""
changed_values = ChangedValues(own_modules)
PAUSE_S = 0.02
"""Pause in seconds. If the next call comes only after such a pause, the user's own modules are collected again."""
_CLOSURES_PER_CODE = 16
"""Maximum number of closures of one code object that become specs. Further closures are sent with the arguments."""


def _show(function: object) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or type(function).__name__


def dump(value: object, futures: FutureArguments | None = None, slot_globals: str = "") -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickles a value. Returns the pickle and its large buffers. Uses the standard library if that is enough, otherwise cloudpickle.

    ``futures`` collects the futures in the value. If ``futures`` is None, a future in the value raises FutureFound. ``slot_globals``: see
    ``FunctionPickler``.

    Only cloudpickle can pickle functions and classes by value. Functions and classes of ``__main__`` are pickled by value, because a slot
    cannot import them. Functions and classes of a module are pickled by value if the user registered the module with cloudpickle.
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        if futures is None:
            data = pickle.dumps(value, 5, buffer_callback=buffers.append)
        else:
            data, buffers = futures.dump(value, by_value=False)
    except FutureFound:
        raise
    except _NOT_PICKLABLE:
        data = _FROM_MAIN
    if _FROM_MAIN in data or cloudpickle.list_registry_pickle_by_value():
        if futures is not None:
            return futures.dump(value, True, slot_globals)
        buffers.clear()
        data = dump_by_value(value, buffers.append, slot_globals)
    return data, buffers


def pack_pickled(value: object, futures: FutureArguments | None = None, slot_globals: str = "") -> PackedPayload:
    """Pickles a value into a payload. Its first part is the pickle. Each large buffer of the value is a further part."""
    data, buffers = dump(value, futures, slot_globals)
    if buffers:
        return pack_pieces([data, *(buffer.raw() for buffer in buffers)])
    return pack_one(data)


def _pack_call(args: tuple[Any, ...], kwargs: dict[str, Any], futures: FutureArguments | None, slot_globals: str) -> PackedPayload:
    named = {name: out_of_band(value) for name, value in kwargs.items()} if kwargs else kwargs
    return pack_pickled((tuple(map(out_of_band, args)), named), futures, slot_globals)


def _is_stateless(function: object) -> bool:
    """Tests whether a callable is a plain function, a class, or a built-in function of a module. Other callables can have state."""
    if isinstance(function, types.BuiltinFunctionType):
        return function.__self__ is None or isinstance(function.__self__, types.ModuleType)
    return isinstance(function, (types.FunctionType, type, CachedFunction))


def dump_function(function: Callable[..., Any]) -> bytes:
    return dump_by_value(function)


_dump_alone = dump_function


class SurroundingsWatch:
    """Detects changes of the user's own modules, of the current directory and of the environment variables.

    The modules are collected again in three cases. A module was imported or reloaded since the last call. A file has changed whose module
    was not imported yet. Or there was a pause of ``PAUSE_S`` since the last call.
    """

    def __init__(self) -> None:
        self._read_directory = directory_reader()
        self._directory = self._read_directory()
        self._environment = program_environment.version()
        self._digest = ""
        self._imported: LastImport = (0, "", None)
        self._called_at = 0.0

    def have_changed(self) -> bool:
        before, self._called_at = self._called_at, time.monotonic()
        before_directory, self._directory = self._directory, self._read_directory()
        before_environment, self._environment = self._environment, program_environment.version()
        has_moved = self._directory != before_directory or self._environment != before_environment
        before_imported, self._imported = self._imported, last_import()
        is_same = self._imported[2] is before_imported[2] and self._imported[:2] == before_imported[:2]
        if is_same and self._called_at - before < PAUSE_S and not own_modules.files_changed(self._called_at):
            return has_moved
        before_digest, self._digest = self._digest, own_modules.bundle().digest
        self._called_at = time.monotonic()  # again, because collecting hundreds of modules takes longer than PAUSE_S
        return has_moved or self._digest != before_digest


class CallEncoder:
    """Encodes calls that have the same task options. Each call becomes a spec number and a payload.

    ``reuses_results``: whether a call can get the result of an equal call. If it can, the large values that a function uses are
    compared with their earlier versions before each call, so that a call with a changed value does not get an old result.
    """

    inherits = True
    """Whether the calls get the environment of this program. False for a private pool, because its workers have the environment already."""

    def __init__(
        self,
        register: Register,
        wanted: TaskOptions = DEFAULT_OPTIONS,
        form: str = PICKLE,
        dump_function: DumpFunction = dump_function,
        inputs: PackedFiles | None = None,
        reuses_results: bool = False,
    ) -> None:
        if form not in (PICKLE, SOURCE):
            raise BadInput(f"form: {form!r} is not known", f'write form="{PICKLE}" or form="{SOURCE}"')
        self._register = register
        self._wanted = wanted
        self._form = form
        self._dump_function = dump_function
        self._inputs = inputs
        self._reuses_results = reuses_results
        self.slot_globals = ""
        """Name of the list that collects the global variables of functions in the arguments; see ``FunctionPickler``. Only an executor with
        an initializer sets this name."""
        self._known: dict[int, tuple[Callable[[], Any], int, FunctionBindings | None]] = {}
        self._per_code: dict[int, set[bytes]] = {}
        self._generic_specs: dict[tuple[str, bool], int] = {}
        self._surroundings = SurroundingsWatch()

    def encode(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], futures: FutureArguments | None = None
    ) -> tuple[int, PackedPayload]:
        """Returns the spec number and the payload of a call. ``futures`` collects the futures in the arguments.

        If ``futures`` is None, a future in the arguments raises FutureFound. Then call this method again with ``futures``. This is faster
        for calls without futures.
        """
        noted = len(code_imports.names)
        encoded = self._encode(function, args, kwargs, futures)
        if len(code_imports.names) != noted:  # the arguments contain functions that import more of the user's own modules
            self._known.clear()
            self._generic_specs.clear()
            encoded = self._encode(function, args, kwargs, futures)
        return encoded

    def _encode(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], futures: FutureArguments | None
    ) -> tuple[int, PackedPayload]:
        if self._surroundings.have_changed():
            self._known.clear()
            self._generic_specs.clear()
        known = self._known.get(id(function))
        if known is not None and known[0]() is function and (known[2] is None or known[2].are_current):
            return known[1], _pack_call(args, kwargs, futures, self.slot_globals)
        number = self._learn(function)
        if number is None:
            counted = code_imports.functions
            payload = _pack_call((function, *args), kwargs, futures, self.slot_globals)
            return self._generic_spec(function, code_imports.functions != counted), payload
        return number, _pack_call(args, kwargs, futures, self.slot_globals)

    def _learn(self, function: Callable[..., Any]) -> int | None:
        """Adds a spec for a new function and returns the number of the spec. Returns None if the function must be sent with the arguments
        of each call."""
        if self._form != SOURCE and not _is_stateless(function):
            return None
        bindings = FunctionBindings(function, self._reuses_results)
        name = function.__name__ if hasattr(function, "__name__") else ""
        counted = code_imports.functions
        if self._form == SOURCE:
            name, code = source_of(function)
        else:
            code = self._dump_function(function)
            if not self._gets_spec(function, code):
                return None
            if self._dump_function is _dump_alone:
                changed_values.warn(function)  # not with an initializer, because it can set the values in the slot
        number = self._add_spec(_show(function), name, code, self._form == SOURCE or code_imports.functions != counted)
        identity = id(function)
        reference: Callable[[], Any]
        try:
            reference = weakref.ref(function, lambda _, known=self._known: known.pop(identity, None))  # type: ignore[misc]
        except TypeError:  # no weak references to some callables of compiled packages, such as numpy.sqrt

            def reference() -> Any:
                return function

        self._known[identity] = reference, number, bindings or None
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

    def _generic_spec(self, function: object, by_value: bool) -> int:
        """Returns the number of the spec for a callable that is sent as the first argument of each task. ``by_value``: see ``_add_spec``.

        Callables with different names have different specs, because listings show the name of the spec.
        """
        name = _show(function)
        number = self._generic_specs.get((name, by_value))
        if number is None:
            code = self._dump_function(operator.call)
            number = self._generic_specs[name, by_value] = self._add_spec(name, GENERIC, code, by_value)
        return number

    def _add_spec(self, name: str, function: str, code: bytes, by_value: bool) -> int:
        """Adds a spec. ``by_value``: whether the calls contain the code of the function, so that a rerun uses this code again."""
        launch, code = _packed(_launch(function, self._form, self.inherits) | {"by_value": by_value}, code, self._inputs)
        spec = self._wanted.spec("python", name, launch)
        return self._register(replace(spec, contents=self._inputs.contents) if self._inputs else spec, code)


def _launch(name: str, form: str, inherits: bool = True) -> dict[str, Any]:
    path = import_path()
    surroundings = program_environment.of_calls(path) if inherits else {"env": {}}
    if form == SOURCE:
        # If the slot has a different version of Python, it cannot use the packages that are installed for this Python.
        path = [place for place in path if not place.startswith((sys.prefix, sys.base_prefix)) and "site-packages" not in place]
    return {"python": PYTHON, "form": form, "name": name, "path": path, "cwd": current_directory(), **surroundings}


def _packed(launch: dict[str, Any], code: bytes, inputs: PackedFiles | None = None) -> tuple[dict[str, Any], bytes]:
    """Adds the user's own modules and the small input files to the code of a spec. Slots import the current versions of these modules."""
    bundle = own_modules.bundle() if launch["form"] == PICKLE else NO_MODULES
    launch |= {"modules": bundle.digest} if bundle.digest else {}
    # A call with inputs finds the same files on every node. So it has a sandbox, even if the node has the directory of this program.
    launch |= {"inputs": inputs.entries, "sources": inputs.sources, "sandbox": True} if inputs else {}
    return launch, pack([code, bundle.data, *(inputs.parts if inputs else ())]) if bundle.digest or inputs else code


def worker_spec(worker: object, wanted: TaskOptions) -> tuple[TaskSpec, bytes]:
    """Returns the spec of the tasks that an ApplicationWorker executes, and the code of the spec. ``worker``: the class of the worker
    objects, or another callable that creates a worker object."""
    counted = code_imports.functions
    code = dump_by_value(worker)
    launch, code = _packed(_launch(_show(worker), PICKLE) | {"by_value": code_imports.functions != counted}, code)
    return wanted.spec("application", _show(worker), launch), code


class WorkerEncoder:
    """Finds the specs of ApplicationWorkers. Makes a new spec if the class of the worker, or a module of the user, has changed."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._specs: dict[tuple[object, str], tuple[int, FunctionBindings]] = {}
        self._surroundings = SurroundingsWatch()

    def number(self, worker: object, options: Mapping[str, Any]) -> int:
        """Returns the number of the spec for a worker. ``options``: the task options of the user."""
        if self._surroundings.have_changed():
            self._specs.clear()
        key = worker, repr(options)
        known = self._specs.get(key)
        if known is None or not known[1].are_current:
            number = self._register(*worker_spec(worker, read_task_options(options, "work", ("after",))))
            known = self._specs[key] = number, FunctionBindings(worker)
        return known[0]


def worker_payload(parameters: object, futures: FutureArguments | None = None) -> bytes:
    return join_pieces(pack_pickled(parameters, futures))


def chunked(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Returns a function that gets a list of argument tuples, calls ``function`` once per tuple, and returns the list of results.

    The returned function is pickled by value, because slots do not have this package.
    """

    def run_chunk(rows: list[tuple[Any, ...]]) -> list[Any]:
        return [function(*row) for row in rows]

    run_chunk.__name__ = run_chunk.__qualname__ = f"{_show(function)} (chunk)"
    return run_chunk
