"""Collects the user's own modules, so that each call runs with the version of the code that existed at its submission.

A module is the user's own if it is neither in the standard library nor installed (in ``site-packages``). For example, it is beside the
program, below a directory of ``PYTHONPATH``, or in an editable installation. The source of the user's own modules is sent with the
function. The slot imports the modules from this source and not from files. So a later change of a file has no effect, and a node needs no
copies of the files.

The collection contains the user's own modules that this program has imported. It also contains own modules that import statements name,
even if a statement was not executed yet. The import statements are searched in the collected modules, in the file of the main program, and
in functions that were pickled by value. If a program computes the name of a module (``importlib.import_module(name)``), the module is found
only after the program has imported it.

An imported module keeps the text that its file had when the module was first collected, until the program reloads the module. So calls use
the same version as the program itself, also while the user edits the file.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import marshal
import os
import re
import struct
import sys
import sysconfig
import time
import types
import zlib
from collections.abc import Container, Iterable
from functools import cache, lru_cache
from typing import NamedTuple

import pilotfish
from pilotfish.applications.calls.import_statements import imports_in_source
from pilotfish.applications.calls.user_warnings import warn_user
from pilotfish.errors import BadInput

_OURS = os.path.realpath(os.path.dirname(pilotfish.__file__))
_COMPILED = (".so", ".pyd", ".pyc")
_STARTED = time.time()
_AUTORELOAD = "IPython.extensions.autoreload"
"""If this module is active, IPython updates imported modules when their files change, and not always by a reload."""
_TIME_STEP_NS = 20_000_000
"""Two changes of a file within this time can have the same modification time."""
_CHECK_SHARE = 0.05
"""Maximum share of the time that checks of files take."""
_MAX_PAUSE_S = 0.25
"""Maximum seconds between two checks of files."""
LastImport = tuple[int, str, object]
MODULE, PACKAGE, NAMESPACE = "module", "package", "namespace"


class _Source(NamedTuple):
    """The source of one module. ``place``: its file or, for a namespace package, its directories."""

    kind: str
    place: str | list[str]
    text: str = ""

    @property
    def directories(self) -> list[str] | None:
        """Returns the directories of the submodules, or None if the module is no package."""
        if isinstance(self.place, list):
            return self.place
        return [os.path.dirname(self.place)] if self.kind == PACKAGE else None


class _Imported(NamedTuple):
    """An imported module with the source that calls get. A reload replaces the spec of the module."""

    module: types.ModuleType
    spec: importlib.machinery.ModuleSpec | None
    source: _Source


class ModuleBundle(NamedTuple):
    """The user's own modules in the form in which slots get them. ``digest`` names the content; it is empty if there are no modules."""

    digest: str
    data: bytes


class RenewedModules(NamedTuple):
    """A bundle that was read again, and the files that changed."""

    bundle: ModuleBundle
    changed: tuple[str, ...]


def _make_bundle(found: dict[str, _Source]) -> ModuleBundle:
    data = json.dumps(found, sort_keys=True).encode("utf-8", "surrogatepass")
    return ModuleBundle(hashlib.sha256(data).hexdigest()[:32], zlib.compress(data, 1))


NO_MODULES = ModuleBundle("", b"")


class OwnModules:
    """Makes bundles of the user's own modules. A file is read again only if its size or its modification time changed."""

    def __init__(self, search: list[str] | None = None, code_imports: Iterable[str] = ()) -> None:
        self._texts: dict[str, tuple[tuple[int, int] | None, str]] = {}
        """Maps each file to its size, its modification time and its text."""
        self._imported: dict[str, _Imported] = {}
        self._files: tuple[str, ...] = ()
        """Files of modules that this program has not imported."""
        self._check_at = 0.0
        self._imports: dict[str, tuple[str, tuple[str, ...]]] = {}
        """Maps each module to its text and to the names that the text imports. While the text is the same, the names are kept."""
        self._last: tuple[dict[str, _Source], ModuleBundle] = {}, NO_MODULES
        self._installed: dict[str, types.ModuleType] = {}
        """Imported modules that are not the user's own. A program can have thousands of these modules. They are remembered, so that each
        call does not have to read their attributes."""
        self._search = search
        """Directories in which modules are searched. None means the directories of this program."""
        self._code_imports = code_imports
        """Names of modules that functions of this program possibly import when they run."""
        self._main: tuple[types.ModuleType | None, tuple[str, ...]] = None, ()
        """The module ``__main__``, and the names of the modules that its file possibly imports."""
        self._not_own: set[str] = set()
        """Names of modules that were found and are not the user's own."""
        self._compiled: dict[str, None] = {}
        """Files of compiled modules of the user that were found. They have no source."""

    def bundle(self) -> ModuleBundle:
        """Returns the current versions of the user's own modules in this program."""
        found = self._collect()
        if found != self._last[0]:
            self._last = found, _make_bundle(found)
        others = (source.place for name, source in found.items() if name not in self._imported)
        self._files = tuple(place for place in others if isinstance(place, str))
        return self._last[1] if found else NO_MODULES

    def files_changed(self, now: float) -> bool:
        """Tests whether a file in the last bundle has changed. Tests only files of modules that this program has not imported. If the test
        takes long, it is made only now and then; at other calls, the answer is False. ``now``: the time of ``time.monotonic``."""
        if not self._files or now < self._check_at:
            return False
        changed = not all(map(self._is_current, self._files))
        self._check_at = next_check(now)
        return changed

    def renew(self, data: bytes | memoryview) -> RenewedModules:
        """Reads the modules of a bundle again. A changed module possibly imports further own modules of the user. These are added."""
        before = {name: _Source(*row) for name, row in json.loads(zlib.decompress(data).decode("utf-8", "surrogatepass")).items()}
        found: dict[str, _Source] = {}
        for name, source in before.items():
            read = source if isinstance(source.place, list) else self._read(source.place, source.kind == PACKAGE)
            if read is None:
                raise BadInput(f"the module {name} cannot be read: {source.place}", "put it back, or start the program again")
            found[name] = read
        changed = [name for name in found if found[name] != before[name]]
        self._follow([wanted for name in changed for wanted in self._imports_of(name, found[name])], found, set())
        return RenewedModules(_make_bundle(found), tuple(str(found[name].place) for name in changed))

    def renewable(self, data: bytes | memoryview) -> bool:
        """Returns whether ``renew`` sees every change of the user's own modules. A bundle has only sources, so ``renew`` does not see
        changes of compiled modules. So this method returns False if a directory of own modules contains a compiled module. ``data``: the
        data of a bundle; empty if there are no modules."""
        rows = json.loads(zlib.decompress(data).decode("utf-8", "surrogatepass")).values() if data else ()
        places = {place for row in rows for place in (row[1] if isinstance(row[1], list) else [os.path.dirname(row[1])])}
        places.update(place for place in self._search or () if is_own(place))
        return not any(name.endswith(_COMPILED) for place in places if os.path.isdir(place) for name in os.listdir(place))

    def files_for_script(self, path: str) -> list[str]:
        """Returns the files of the user's own modules that a Python script possibly imports, directly or through other own modules.
        Compiled modules are included."""
        text = self._read_text(path)
        return [] if text is None else self.files_of(list(self._imports_of("__main__", _Source(MODULE, path, text))))

    def files_of(self, names: list[str]) -> list[str]:
        """Returns the files of the user's own modules with these names, and the files of own modules that these modules possibly import."""
        found: dict[str, _Source] = {}
        self._compiled.clear()
        self._not_own.clear()
        self._follow(names, found, ())
        return sorted({*self._compiled, *(source.place for source in found.values() if isinstance(source.place, str))})

    def imported_names(self) -> set[str]:
        """Returns the names of all modules that the sources in the last bundle possibly import."""
        return {found for name, source in self._last[0].items() for found in self._imports_of(name, source)}

    def text_of(self, module: types.ModuleType) -> str:
        """Returns the source of an own module that this program has imported; empty if the module has no source."""
        source = self._loaded(module.__name__, module)
        return source.text if source is not None else ""

    def any_matches(self, pattern: re.Pattern[str]) -> bool:
        """Tests whether the pattern occurs in a module of the last bundle."""
        return any(pattern.search(source.text) for source in self._last[0].values())

    def _imports_of(self, name: str, source: _Source) -> tuple[str, ...]:
        known = self._imports.get(name)
        if known is None or known[0] is not source.text:
            known = self._imports[name] = source.text, tuple(dict.fromkeys(_imports(name, source)))
        return known[1]

    def _collect(self) -> dict[str, _Source]:
        found: dict[str, _Source] = {}
        wanted: list[str] = []
        for name, module in list(sys.modules.items()):
            source = self._loaded(name, module)
            if source is not None:
                found[name] = source
                wanted += self._imports_of(name, source)
        wanted += self._imports_of_main()
        wanted += self._code_imports
        self._follow(wanted, found, sys.modules)
        return found

    def _imports_of_main(self) -> tuple[str, ...]:
        """Returns the names of the modules that the file of the main program possibly imports. The file is read once, because this program
        does not change when the file is edited later."""
        main = sys.modules.get("__main__")
        if main is not self._main[0]:
            file, names = getattr(main, "__file__", None), tuple[str, ...]()
            if isinstance(file, str) and is_own(file) and (source := self._read_text(file)) is not None:
                names = tuple(dict.fromkeys(imports_in_source(source, getattr(main, "__package__", None) or "")))
            self._main = main, names
        return self._main[1]

    def _follow(self, wanted: list[str], found: dict[str, _Source], known: Container[str]) -> None:
        """Adds the user's own modules among the wanted modules to ``found``. Also adds the own modules that these modules import. Skips
        modules in ``known``."""
        specs: dict[str, importlib.machinery.ModuleSpec | None] = {}
        while wanted:
            name = wanted.pop()
            if name not in found and name not in known and (source := self._find(name, found, specs)) is not None:
                found[name] = source
                wanted += self._imports_of(name, source)

    def _loaded(self, name: str, module: types.ModuleType | None) -> _Source | None:
        """Returns the source of an imported module if it is the user's own. Returns None for any other module."""
        if name in ("__main__", "__mp_main__") or not isinstance(module, types.ModuleType) or self._installed.get(name) is module:
            return None
        file, spec = getattr(module, "__file__", None), getattr(module, "__spec__", None)
        if file is None:
            paths = list(getattr(module, "__path__", ()) or ())
            own = bool(paths) and spec is not None and spec.origin is None and all(is_own(path) for path in paths)
            return _Source(NAMESPACE, paths) if own else None
        if not isinstance(file, str) or not is_own(file):
            self._installed[name] = module
            return None
        known = self._imported.get(name)
        if known is not None and known.module is module and known.spec is spec and _AUTORELOAD not in sys.modules:
            return known.source
        source = self._read(file, hasattr(module, "__path__"))
        if source is not None:
            self._imported[name] = _Imported(module, spec, source)
            if _AUTORELOAD not in sys.modules and _was_edited(module, file, source.text):
                warn_user(
                    f"{file} was changed after this program imported {name}. Calls use the file as it is now, and this program uses the "
                    f"old version. Call importlib.reload({name}), or start the program again"
                )
        return source

    def _find(self, name: str, found: dict[str, _Source], specs: dict[str, importlib.machinery.ModuleSpec | None]) -> _Source | None:
        """Finds a module of the user that was not imported yet. Does not import the package of the module, because an import executes code
        of the package.

        ``found``: the modules that were found before. ``specs`` stores the results of searches for module files, because many modules
        import from the same package, and a search reads directories.
        """
        parent, _, _ = name.rpartition(".")
        path = self._search
        if parent:
            package = found.get(parent) or (self._find(parent, found, specs) if parent not in sys.modules else None)
            if package is None or package.directories is None:
                return None
            found[parent] = package
            path = package.directories
        if name in self._not_own:
            return None
        if name not in specs:
            specs[name] = self._spec(name, path)
        spec = specs[name]
        if spec is None:
            return self._last[0].get(name)  # the file of the module is gone
        places = list(spec.submodule_search_locations or ())
        if spec.origin is None and places and all(is_own(place) for place in places):
            return _Source(NAMESPACE, places)
        if not spec.has_location or spec.origin is None or not is_own(spec.origin):
            self._not_own.add(name)
            return None
        return self._read(spec.origin, spec.submodule_search_locations is not None)

    def _spec(self, name: str, path: list[str] | None) -> importlib.machinery.ModuleSpec | None:
        """Asks the finders of Python for a module. Some editable installations add a finder of their own."""
        path_finder = importlib.machinery.PathFinder
        finders = list(sys.meta_path) if self._search is None else [path_finder, *(one for one in sys.meta_path if one is not path_finder)]
        for finder in finders:
            try:
                spec: importlib.machinery.ModuleSpec | None = finder.find_spec(name, path) if hasattr(finder, "find_spec") else None
            except KeyError:
                spec = _namespace_spec(name, path)
            except Exception:  # noqa: BLE001 (finders belong to installed packages and may raise anything)
                spec = None
            if spec is not None:
                return spec
        return None

    def _read(self, file: str, is_package: bool) -> _Source | None:
        """Reads the source file of a module. If the file cannot be read now, uses its last known text.

        Returns None if the file was never read. Also returns None for a compiled module: only nodes that have its file can import it.
        """
        if not file.endswith(".py"):
            self._compiled[file] = None
            return None
        text = self._read_text(file)
        return None if text is None else _Source(PACKAGE if is_package else MODULE, os.path.abspath(file), text)

    def _read_text(self, file: str) -> str | None:
        try:
            stamp = _stamp(file)
            if stamp is None or file not in self._texts or self._texts[file][0] != stamp:
                with open(file, "rb") as opened:
                    self._texts[file] = stamp, importlib.util.decode_source(opened.read())
        except (OSError, SyntaxError, UnicodeDecodeError):
            pass
        return self._texts[file][1] if file in self._texts else None

    def _is_current(self, file: str) -> bool:
        """Returns whether a file still has its known text. Returns True if the file cannot be read."""
        try:
            return self._texts[file][0] == _stamp(file) is not None
        except OSError:
            return True


@lru_cache(maxsize=256)
def modules_below(*search: str) -> OwnModules:
    """Returns the OwnModules of these directories. Equal calls return the same object, because it reads only changed files again."""
    return OwnModules(list(search))


def next_check(began_at: float) -> float:
    """Returns the time of the next check of files. ``began_at``: time of ``time.monotonic`` at which the check began that ends now."""
    now = time.monotonic()
    return now + min((now - began_at) / _CHECK_SHARE, _MAX_PAUSE_S)


def last_import() -> LastImport:
    """Returns the number of imported modules, and the name and spec of the last one. Python moves a module to the end of ``sys.modules``
    when it has imported or reloaded the module."""
    try:
        name = next(reversed(sys.modules))
    except RuntimeError:  # another thread is importing
        return 0, "", None
    return len(sys.modules), name, getattr(sys.modules.get(name), "__spec__", None)


def _stamp(file: str) -> tuple[int, int] | None:
    """Returns the size and modification time of a file. Returns None if the file was changed just now, because the next change possibly has
    the same modification time."""
    status = os.stat(file)
    return None if abs(time.time_ns() - status.st_mtime_ns) < _TIME_STEP_NS else (status.st_size, status.st_mtime_ns)


def _was_edited(module: types.ModuleType, file: str, text: str) -> bool:
    """Returns whether a file certainly changed after the import of its module. When Python imports a module, it stores the module's code in
    a file, with the size and modification time of the source. This code is compared with the source."""
    try:
        status = os.stat(file)
        if sys.dont_write_bytecode or status.st_mtime < _STARTED:
            return False
        with open(module.__cached__ or "", "rb") as cached:
            header = cached.read(16)
            if header[4:8] != bytes(4) or header[8:] == struct.pack("<LL", int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF):
                return False
            return bool(marshal.load(cached) != compile(text, file, "exec", dont_inherit=True))
    except (OSError, AttributeError, ValueError, EOFError, TypeError):
        return False
    except SyntaxError:
        return True


def _namespace_spec(name: str, path: list[str] | None) -> importlib.machinery.ModuleSpec | None:
    """Returns the spec of a namespace package that is inside of a package. If the outer package was not imported yet, Python itself cannot
    make this spec."""
    places = [os.path.join(place, name.rpartition(".")[2]) for place in path or ()]
    spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [place for place in places if os.path.isdir(place)]
    return spec if spec.submodule_search_locations else None


def changed_modules(before: bytes, after: bytes) -> list[str]:
    """Returns the files that differ between the data of two bundles. Empty data means no modules."""
    old, new = (json.loads(zlib.decompress(data).decode("utf-8", "surrogatepass")) if data else {} for data in (before, after))
    names = [name for name in sorted({**old, **new}) if old.get(name) != new.get(name)]
    places = ((new.get(name) or old[name])[1] for name in names)
    return [place for place in places if isinstance(place, str)]


@cache
def _library_directories() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(os.path.realpath(path) + os.sep for path in paths if path)


@cache
def is_own(path: str) -> bool:
    """Tests whether a module file is the user's own: neither part of the standard library nor installed."""
    place = os.path.realpath(path)
    parts = place.split(os.sep)
    is_installed = "site-packages" in parts or "dist-packages" in parts or place.startswith(_library_directories())
    return not is_installed and not place.startswith(_OURS + os.sep) and place != _OURS


def compiled_own_modules() -> list[str]:
    """Returns the files of the user's own modules that are not Python source. These files are not sent."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return sorted({file for file in files if isinstance(file, str) and not file.endswith(".py") and is_own(file)})


def is_own_module(module: types.ModuleType) -> bool:
    """Returns whether a module is the user's own: other nodes possibly do not have it. ``__main__`` is the user's own. Any other module
    without a file and without a directory is built in, and not the user's own."""
    file = getattr(module, "__file__", None)
    places = [file] if file is not None else list(getattr(module, "__path__", ()) or ())
    return module.__name__ in ("__main__", "__mp_main__") or any(is_own(place) for place in places)


def _imports(name: str, source: _Source) -> Iterable[str]:
    return imports_in_source(source.text, name if source.kind == PACKAGE else name.rpartition(".")[0])
