"""Makes the records of Python calls. The master finds an equal earlier call by its record; see ``task_keys``.

Equal values can have different pickles in two starts of a program: the order in a set, random ids of classes and line numbers differ. So
functions and arguments are hashed in a special form, which is the same in each program.
"""

from __future__ import annotations

import dis
import importlib.util
import json
import os
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from glob import escape, glob
from hashlib import blake2b
from typing import Any

from pilotfish.applications.calls.function_pickler import FunctionPickler
from pilotfish.applications.calls.future_arguments import FutureArguments, FutureResult
from pilotfish.applications.calls.own_modules import compiled_own_modules, is_own
from pilotfish.applications.calls.python_call import GENERIC, own_modules
from pilotfish.applications.reuse.session_variables import stable_environment
from pilotfish.applications.reuse.task_keys import CallParts, content_hash, hash_of, modules_term, sum_hashes
from pilotfish.model.contents import KEY_LENGTH

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function, its arguments and its keyword arguments."""
NO_INPUTS = hash_of()
"""Hash of the input files of a call without input files."""
_PER_VERSION = ("__firstlineno__", "__static_attributes__")
"""Attributes of a class that can differ although the class is the same. The first is a line number; the second has the order of a set."""


class _ContentHasher(FunctionPickler):
    """Pickles a value into a hash. ``packages``: top-level modules that the value refers to. ``futures``: the futures in the value."""

    marks_versions = False

    def __init__(self, futures: FutureArguments | None = None) -> None:
        self._futures = futures
        self._digest = blake2b(digest_size=KEY_LENGTH)
        self.packages: set[str] = set()
        super().__init__(self, protocol=5, buffer_callback=self._add_buffer)

    def write(self, data: Any) -> None:
        """Adds a part of the pickle to the hash. The pickler calls this method, because this object is its output file."""
        self._digest.update(data)

    def _add_buffer(self, buffer: pickle.PickleBuffer) -> None:
        raw = buffer.raw()
        self._digest.update(b"buffer%d:" % raw.nbytes)
        self._digest.update(raw)

    def hash(self, value: object) -> bytes:
        self.dump(value)
        self.clear_memo()  # the pickler refers to itself, so without this its memo would keep the values until the next garbage collection
        return self._digest.digest()

    def persistent_id(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is str:
            # Two equal texts can be one object or two objects. The pickles of these cases differ, so each text is pickled as new bytes.
            return obj.encode("utf-8", "surrogatepass")
        if kind is set or kind is frozenset:
            return (kind.__name__.encode(), sorted(self._inner(one) for one in obj))
        if self._futures is not None and isinstance(obj, FutureResult):
            number = self._futures.number(obj)
            return None if number is None else (b"future", number)
        return None

    def _inner(self, value: object) -> bytes:
        inner = _ContentHasher(self._futures)
        found = inner.hash(value)
        self.packages |= inner.packages
        return found

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            return list, (self._code(obj),)
        if isinstance(obj, types.ModuleType):
            self._note(obj.__name__)
        if self._futures is not None and isinstance(obj, FutureResult):
            return self._futures.reduce(obj)
        reduced = super().reducer_override(obj)
        if reduced is NotImplemented:
            self._note(type(obj).__module__)
            if callable(obj):
                self._note(_module_of(obj))
        elif isinstance(obj, type) and len(reduced) > 2 and isinstance(reduced[2], tuple):
            reduced = _without_random_id(reduced)
        return reduced

    def _code(self, code: types.CodeType) -> list[Any]:
        """Returns the contents of a code object, without its file name and line numbers."""
        for instruction in dis.get_instructions(code):
            if instruction.opname == "IMPORT_NAME":
                self._note(instruction.argval)
        counts = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags]
        names = [list(code.co_names), list(code.co_varnames), list(code.co_freevars), list(code.co_cellvars)]
        return [*counts, *names, code.co_code, getattr(code, "co_exceptiontable", b""), list(code.co_consts), code.co_qualname]

    def _note(self, name: object) -> None:
        if name and isinstance(name, str):  # a class can have a property with the name __module__
            self.packages.add(name.partition(".")[0])


def _module_of(function: Any) -> str:
    """Returns the name of the module of a function or class. Compiled functions may not know it: they are searched as pickle does."""
    module, name = getattr(function, "__module__", None), getattr(function, "__name__", None)
    if module is None and name and isinstance(getattr(function, "__self__", None), types.ModuleType | None):
        module = pickle.whichmodule(function, name)  # type: ignore[attr-defined]
    return module if isinstance(module, str) else ""


def _without_random_id(reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Removes the random id that cloudpickle gives to a class of the program. Also removes the attributes in ``_PER_VERSION``."""
    make, arguments, (attributes, slots), *rest = reduced
    identifier = arguments[-2]
    kept = {name: value for name, value in attributes.items() if name not in _PER_VERSION}
    return make, tuple("" if one is identifier else one for one in arguments), (kept, slots), *rest


@cache
def _version_of(package: str) -> str:
    """Returns the version of an installed package. Returns an empty text for the user's own modules, for the standard library and for a
    package that is not installed.

    A package can be part of a distribution with a different name. In this case, returns the name and version of each distribution that
    contains the package.
    """
    from importlib import metadata  # not at the top, because this import takes 9 ms, and programs without calls do not need it

    file = getattr(sys.modules.get(package), "__file__", None)
    if package in sys.stdlib_module_names or package == "__main__" or (isinstance(file, str) and is_own(file)):
        return ""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        pass
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        return ""
    return " ".join(sorted(f"{name} {metadata.version(name)}" for name in _distributions().get(package, ())))


@cache
def _distributions() -> Mapping[str, list[str]]:
    from importlib import metadata

    return metadata.packages_distributions()


class CallKeys:
    """Makes the records of the calls of one Run, Executor or TaskList. ``around``: a value that counts as a part of each call's code, such
    as an initializer."""

    def __init__(self, around: object = None) -> None:
        self._around = around
        self._modules: tuple[str, int] | None = None
        self._known: dict[tuple[int, int | None], tuple[weakref.ref[Any], tuple[bytes, frozenset[str]]]] = {}
        self._shared = b"", frozenset[str]()
        self._variables: tuple[Mapping[str, str] | None, bytes] = None, b""

    def record(
        self,
        call: Call,
        launch: Mapping[str, Any],
        parents: bytes = b"",
        inputs: bytes = b"",
        futures: FutureArguments | None = None,
        number: int | None = None,
    ) -> bytes:
        """Returns the record of a call. If the function or the arguments cannot be hashed, returns an empty record. A call with an empty
        record always runs.

        ``launch``: the launch description of the call's spec. ``parents``: see ``parents_hash``. ``inputs``: hash of the input files of the
        call. ``futures``: the futures in the arguments of the call. ``number``: number of the call's spec. None means that the function has
        possibly changed since its spec was made.
        """
        function, *arguments = call
        modules = str(launch.get("modules", ""))
        try:
            if (modules, len(sys.modules)) != self._modules:
                self._notice_modules(modules)
            code, packages = self._code_of(function, None if launch.get("name") == GENERIC else number)
            hasher = _ContentHasher(futures)
            hashed = hasher.hash(tuple(arguments))
        except Exception:  # noqa: BLE001 (the classes of arguments may raise anything)
            return b""
        own, imported = self._shared
        environment = _environment(packages | hasher.packages | imported, str(launch.get("cwd")), self._hash_variables(launch))
        code = sum_hashes(modules_term(modules), hash_of(own, code))
        return CallParts(code, hashed, inputs or NO_INPUTS, environment, parents).record()

    def _hash_variables(self, launch: Mapping[str, Any]) -> bytes:
        """Returns the hash of the environment variables of a call. Most calls have the same variables, so the last hash is remembered."""
        variables = launch.get("env") or {}
        if variables is not self._variables[0]:
            described = json.dumps(stable_environment(variables))
            self._variables = variables, hash_of(described.encode("utf-8", "surrogatepass"))
        return self._variables[1]

    def _notice_modules(self, modules: str) -> None:
        self._modules = modules, len(sys.modules)
        around = _ContentHasher()
        code = around.hash(self._around)
        imported = {name.partition(".")[0] for name in own_modules.imported_names()}
        compiled = [content_hash(path) for path in compiled_own_modules()]
        self._shared = hash_of(code, *compiled), frozenset(imported | around.packages)
        self._known.clear()

    def _code_of(self, function: Callable[..., Any], number: int | None) -> tuple[bytes, frozenset[str]]:
        """Returns the hash of a function, and the packages that it uses. ``number``: number of the call's spec. With a number, the hash of
        a plain function is computed only once, because a changed function has a new spec. With None, each call computes the hash."""
        identity = id(function), number
        known = self._known.get(identity)
        if known is not None and known[0]() is function:
            return known[1]
        hasher = _ContentHasher()
        found = hasher.hash(function), frozenset(hasher.packages)
        if isinstance(function, types.FunctionType) and number is not None:
            reference = weakref.ref(function, lambda _, known=self._known: known.pop(identity, None))  # type: ignore[misc]
            self._known[identity] = reference, found
        return found


def installed_packages(path: Iterable[str]) -> str:
    """Returns a hash of the names and versions of the packages that are installed in these directories."""
    found = (glob(f"{escape(place)}/*.{kind}-info") + glob(f"{escape(place)}/*.egg-link") for place in path for kind in ("dist", "egg"))
    return hash_of(*(os.fsencode(name) for name in sorted({name for names in found for name in names}))).hex()


def _environment(packages: Iterable[str], directory: str, variables: bytes) -> bytes:
    versions = sorted(f"{name} {version}" for name in packages if (version := _version_of(name)))
    return hash_of(f"{sys.version_info[:2]} {directory}".encode(), variables, *(text.encode() for text in versions))
