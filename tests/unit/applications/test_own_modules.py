"""The user's own modules are found, with what they import later, and nothing that is installed."""

from __future__ import annotations

import importlib
import importlib.resources
import importlib.util
import json
import os
import pkgutil
import sys
import time
import types
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pilotfish.agent.slots.own_modules_import import BundleImporter, BundleLoader
from pilotfish.applications.calls import function_pickler
from pilotfish.applications.calls.function_pickler import CodeImports
from pilotfish.applications.calls.own_modules import OwnModules
from pilotfish.applications.calls.python_call import CallEncoder, own_modules
from pilotfish.errors import BadInput
from tests.unit.applications.test_python_call import Register


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory from which modules can be imported. They are forgotten at the end."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = dict(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - set(before):
        del sys.modules[name]


def write(project: Path, **files: str) -> None:
    for name, text in files.items():
        path = project / (name.replace("__slash__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    importlib.invalidate_caches()


def modules(own: OwnModules | None = None) -> dict[str, Any]:
    data = (own or OwnModules()).bundle().data
    found = json.loads(zlib.decompress(data)) if data else {}
    return {name: row for name, row in found.items() if not name.startswith(("tests", "conftest"))}


def test_an_imported_module_and_what_it_may_import_later_are_found(project: Path) -> None:
    write(project, first_one="import json, second_one\ndef f():\n    from pack_one import inner\n", second_one="", unused_one="")
    write(project, pack_one__slash____init__="from . import other\n", pack_one__slash__inner="from .other import x\n")
    write(project, pack_one__slash__other="x = 1\n", pack_one__slash__unused="")
    importlib.import_module("first_one")
    found = sorted(name for name in modules() if "_one" in name)
    assert found == ["first_one", "pack_one", "pack_one.inner", "pack_one.other", "second_one"]
    assert "pack_one" not in sys.modules, "nothing was executed"


def test_installed_modules_and_the_standard_library_are_left_out() -> None:
    assert {"json", "pytest", "numpy", "pilotfish"} <= set(sys.modules) | {"numpy"}
    assert not {name.partition(".")[0] for name in modules()} & {"json", "pytest", "numpy", "pilotfish", "os", "_pytest"}


def test_a_module_in_site_packages_below_the_project_is_installed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(project / "venv" / "site-packages"))
    write(project / "venv" / "site-packages", there_installed="")
    importlib.import_module("there_installed")
    assert "there_installed" not in modules()


PROGRAM = """
import functools
def wrap(function):
    @functools.wraps(function)
    def inner(*args): return function(*args)
    return inner
@wrap
def decorated():
    import kind_decorated
class Tool:
    @staticmethod
    def static():
        import kind_static
    @classmethod
    def of_class(cls):
        import kind_class
    @property
    def value(self):
        import kind_property
def make():
    def nested():
        import kind_nested, missing_kind
    return nested
TABLE = {"key": [lambda: __import__("os"), make()]}
def relative():
    from .near_kind import x
def beside():
    from . import beside_kind
def spaces():
    from kind_space import leaf
"""
KINDS = {"kind_decorated", "kind_static", "kind_class", "kind_property", "kind_nested", "kind_space", "kind_space.leaf"}
RELATIVE = {"pack_kind", "pack_kind.near_kind", "pack_kind.beside_kind"}


@pytest.fixture
def kinds(project: Path) -> Path:
    write(
        project, **dict.fromkeys((name.replace(".", "__slash__") for name in KINDS - {"kind_space"} | RELATIVE - {"pack_kind"}), "x = 1\n")
    )
    write(project, pack_kind__slash____init__="", pack_kind__slash__program=PROGRAM)
    return project


def main_module(monkeypatch: pytest.MonkeyPatch, **attributes: object) -> types.ModuleType:
    main = types.ModuleType("__main__")
    vars(main).update(attributes)
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


def test_every_import_in_the_file_of_the_main_program_is_found(kinds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main_module(monkeypatch, __file__=str(kinds / "pack_kind" / "program.py"), __package__="pack_kind")
    assert {name for name in modules() if "kind" in name} == KINDS | RELATIVE


def test_the_imports_of_every_function_that_is_pickled_by_value_are_found(kinds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = main_module(monkeypatch, __package__="pack_kind")
    exec(PROGRAM, vars(main))
    used = [main.decorated, main.Tool, main.TABLE, main.relative, main.beside, main.spaces]
    imports = CodeImports()
    monkeypatch.setattr(function_pickler, "code_imports", imports)
    for value in used:
        function_pickler.dump_by_value(value)
    assert {name for name in modules(OwnModules(code_imports=imports.names)) if "kind" in name} == KINDS | RELATIVE


def test_a_function_in_the_arguments_brings_the_modules_that_it_imports(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, in_argument="x = 1\n")
    names = vars(main_module(monkeypatch))
    exec("def call(function): return function()\ndef work():\n    import in_argument\n", names)
    calls = CallEncoder(register := Register())
    number, _ = calls.encode(names["call"], (names["work"],), {})
    assert register.specs[number][0].launch["modules"] != register.specs[0][0].launch.get("modules")
    assert "in_argument" in modules(own_modules)


def test_a_module_of_an_editable_installation_with_a_finder_is_found(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        """A finder like that of setuptools for ``packages = [...]``."""

        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> object:
            place = project / "source" / name / "__init__.py"
            return importlib.util.spec_from_file_location(name, place) if place.exists() else None

    write(project, source__slash__edited__slash____init__="x = 1\n", source__slash__edited__slash__part="y = 1\n")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    script = project / "script_of_edited.py"
    script.write_text("def f():\n    from edited import part\n")
    main_module(monkeypatch, __file__=str(script))
    assert {"edited", "edited.part"} <= set(modules())
    assert OwnModules(["/nowhere"]).files_for_script(str(script)) == [
        str(project / "source" / "edited" / name) for name in ("__init__.py", "part.py")
    ]


def test_a_changed_file_gives_another_digest_after_a_reload_and_an_unchanged_one_the_same(project: Path) -> None:
    write(project, changing_one="x = 1\n")
    module = importlib.import_module("changing_one")
    own = OwnModules()
    first = own.bundle()
    assert own.bundle() is first
    assert OwnModules().bundle() == first
    write(project, changing_one="x = (")
    assert own.bundle() is first, "the program itself has the old version"
    write(project, changing_one="x = 22\n")
    importlib.reload(module)
    assert own.bundle().digest != first.digest
    assert modules(own)["changing_one"][2] == "x = 22\n"


def test_each_reload_between_two_calls_is_noticed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write(project, swept_one="N = 0\n")
    module = importlib.import_module("swept_one")
    names = vars(main_module(monkeypatch, swept_one=module))
    exec("def work(x): return swept_one.N + x", names)
    calls = CallEncoder(register := Register())
    for number in range(6):
        write(project, swept_one=f"N = {number}\n")
        importlib.reload(module)
        assert modules(own_modules)["swept_one"][2] == f"N = {number}\n"
        for _ in range(2):
            assert calls.encode(names["work"], (1,), {})[0] == number
    assert len({spec.launch["modules"] for spec, _ in register.specs}) == 6


def test_each_change_of_a_module_that_only_calls_import_is_noticed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = vars(main_module(monkeypatch))
    exec("def work(x):\n    import lazy_one\n    return lazy_one.N + x", names)
    calls = CallEncoder(Register())
    found = []
    for number in range(4):
        write(project, lazy_one=f"N = {number}\n")
        found.append(calls.encode(names["work"], (1,), {})[0])
        assert modules(own_modules)["lazy_one"][2] == f"N = {number}\n"
    assert len(set(found)) == 4


def test_a_file_with_a_time_in_the_future_is_not_taken_for_changed(project: Path) -> None:
    write(project, future_one="x = 1\n")
    future = time.time() + 3600
    os.utime(project / "future_one.py", (future, future))
    own = OwnModules(code_imports=["future_one"])
    assert "future_one" in modules(own) and not own.files_changed(time.monotonic())


def test_autoreload_of_a_notebook_makes_calls_follow_the_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, followed_one="x = 1\n")
    importlib.import_module("followed_one")
    own = OwnModules()
    own.bundle()
    monkeypatch.setitem(sys.modules, "IPython.extensions.autoreload", types.ModuleType("autoreload"))
    write(project, followed_one="x = 22\n")
    assert modules(own)["followed_one"][2] == "x = 22\n"


@pytest.mark.parametrize("text", ["x = 22\n", "x = ("])
def test_a_file_that_changed_before_the_first_call_is_told_with_the_fix(
    project: Path, text: str, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    write(project, early_one="x = 1\n", early_two="x = 1\n")
    module = importlib.import_module("early_one")
    importlib.import_module("early_two")
    write(project, early_one=text)
    own = OwnModules()
    for _ in range(2):
        own.bundle()
    (message,) = [str(one.message) for one in recwarn if "early_" in str(one.message)]
    assert message.startswith(f"{project / 'early_one.py'} was changed after this program imported early_one")
    assert "importlib.reload(early_one)" in message
    if text != "x = (":
        importlib.reload(module)
        OwnModules().bundle()
        assert len([one for one in recwarn if "early_" in str(one.message)]) == 1


def test_a_file_that_is_gone_or_no_python_is_left_out(project: Path) -> None:
    write(project, vanishing_one="", strange_one="")
    importlib.import_module("vanishing_one")
    (project / "vanishing_one.py").unlink()
    (project / "strange_one.py").write_bytes(b"# coding: nonsense\n")
    sys.modules["strange_one"] = types.ModuleType("strange_one")
    sys.modules["strange_one"].__file__ = str(project / "strange_one.py")
    assert not {"vanishing_one", "strange_one"} & set(modules())


# --- the other end --------------------------------------------------------------------------------------------------------------------


def importer_for(own: OwnModules) -> BundleImporter:
    return BundleImporter(own.bundle().data)


def test_a_slot_imports_the_modules_of_the_bundle_although_the_files_changed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, told_one="import told_pack.part\nWHERE = __file__\nx = 1\n", told_pack__slash____init__="y = 2\n")
    write(project, told_pack__slash__part="from . import y\nz = y + 1\n")
    importlib.import_module("told_one")
    importer = importer_for(OwnModules())
    for name in ("told_one", "told_pack", "told_pack.part"):
        del sys.modules[name]
    write(
        project,
        told_one="raise AssertionError('the file was read')\n",
        told_pack__slash__part="raise AssertionError('the file was read')\n",
    )
    monkeypatch.setattr(sys, "meta_path", [importer, *sys.meta_path])
    told = importlib.import_module("told_one")
    assert (told.x, told.WHERE, told.told_pack.part.z) == (1, str(project / "told_one.py"), 3)
    assert cast(BundleLoader, told.__loader__).get_source("told_one").endswith("x = 1\n")


def test_a_package_reads_the_files_beside_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, supplied__slash____init__="")
    (project / "supplied" / "table.csv").write_text("1,2\n")
    importlib.import_module("supplied")
    importer = importer_for(OwnModules())
    del sys.modules["supplied"]
    monkeypatch.setattr(sys, "meta_path", [importer, *sys.meta_path])
    assert importlib.resources.files("supplied").joinpath("table.csv").read_text() == "1,2\n"
    assert pkgutil.get_data("supplied", "table.csv") == b"1,2\n"


def test_a_namespace_package_is_one_at_the_slot_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, spread__slash__leaf="x = 5\n")
    importlib.import_module("spread.leaf")
    importer = importer_for(OwnModules())
    for name in ("spread", "spread.leaf"):
        del sys.modules[name]
    os.rename(project / "spread", project / "elsewhere")
    monkeypatch.setattr(sys, "meta_path", [importer, *sys.meta_path])
    assert importlib.import_module("spread.leaf").x == 5


def test_other_modules_are_left_to_the_other_importers() -> None:
    importer = BundleImporter(zlib.compress(json.dumps({"mine": ["module", "/nowhere/mine.py", ""]}).encode()))
    assert importer.find_spec("json") is None
    assert importer.find_spec("mine") is not None


def test_modules_are_read_again_with_what_they_import_now(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, renewed_one="import renewed_two\n", renewed_two="x = 1\n")
    importlib.import_module("renewed_one")
    data = OwnModules().bundle().data
    assert OwnModules([str(project)]).renew(data).changed == ()
    write(project, renewed_two="import renewed_three\nx = 22\n", renewed_three="x = 3\n")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(project)])
    bundle, changed = OwnModules([str(project)]).renew(data)
    found = json.loads(zlib.decompress(bundle.data))
    assert changed == (str(project / "renewed_two.py"),)
    assert found["renewed_two"][2].endswith("x = 22\n") and found["renewed_three"][2] == "x = 3\n"


def test_a_module_whose_file_is_gone_cannot_be_read_again(project: Path) -> None:
    write(project, renewed_four="x = 1\n")
    importlib.import_module("renewed_four")
    data = OwnModules().bundle().data
    (project / "renewed_four.py").unlink()
    with pytest.raises(BadInput, match="the module renewed_four cannot be read"):
        OwnModules([str(project)]).renew(data)


@pytest.mark.parametrize(
    "text",
    [
        "from pack_two import (  # first )\n    inner_two,\n)\n",
        "import os; import inner_two\n",
        "import os, \\\n    inner_two\n",
        "try: import inner_two\nexcept ImportError: pass\n",
    ],
)
def test_imports_are_found_in_every_form(project: Path, text: str) -> None:
    write(project, inner_two="", pack_two__slash____init__="", pack_two__slash__inner_two="")
    write(project, start_two="def g():\n    " + text.replace("\n", "\n    ") + "pass\n")
    importlib.import_module("start_two")
    assert [name for name in modules() if name.endswith("inner_two")]


def test_a_look_searches_each_name_once_although_many_modules_import_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importers = {f"importer_{number}": "def f():\n    from not_there.inner import a, b, c\n" for number in range(3)}
    write(project, **importers)
    for name in importers:
        importlib.import_module(name)
    searched: list[str] = []
    search = importlib.machinery.PathFinder.find_spec

    def note(name: str, path: Any = None, target: Any = None) -> Any:
        searched.append(name)
        return search(name, path, target)

    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", note)
    modules()
    assert searched.count("not_there") == 1


def test_an_own_module_that_replaces_an_installed_one_is_found(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(project / "site-packages"))
    write(project / "site-packages", replaced_one="x = 1\n")
    importlib.import_module("replaced_one")
    own = OwnModules()
    assert "replaced_one" not in modules(own)
    write(project, replaced_one="x = 2\n")
    monkeypatch.syspath_prepend(str(project))
    del sys.modules["replaced_one"]
    importlib.import_module("replaced_one")
    assert modules(own)["replaced_one"][-1] == "x = 2\n"
