"""Rules for the source tree that no other tool checks."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("tree")  # one process parses all files, once

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "pilotfish"
MAX_FILE_LINES = 700
MAX_FUNCTION_LINES = 50
MAX_FOLDER_FILES = 20
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PURE = next(
    contract["source_modules"] for contract in PROJECT["tool"]["importlinter"]["contracts"] if contract["name"].startswith("Pure packages")
)
VAGUE_NAMES = ("utils", "util", "common", "base", "helper", "helpers", "misc")
METAPHORS = (
    "wallet errand errands doorman turnstile porter carrier courier shelf cargo body bodies parcels cell drawer stowing handed "
    "twin twins gang gangs salvage mood reign reigns vouched wish wishes promise promises earlier below recipe moment forked foreseen "
    "reenacted rehearsal drawing gathering molding obedient desk house"
)
"""Words that told a reader nothing about a module. Each has a plain word of the field instead."""
SHARED_MODULE_NAMES = ("__init__", "__main__")
SHARED_CLASS_NAMES = {
    "Run": "the public name in the API; in the core, the state of one run",
}
MAX_SHARED_CLASS_NAMES = 5


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.fixture(scope="module", autouse=True)
def forget_what_was_parsed() -> Iterator[None]:
    """The syntax trees of all files would slow down every later garbage collection."""
    yield
    parsed.cache_clear()


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_file_is_longer_than_a_person_reads_at_once() -> None:
    lengths = {name_of(path): count_lines(path) for path in sources("src", "tests", "examples", "benchmarks", "docs")}
    assert not {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES}


def count_lines(path: Path) -> int:
    return path.read_text().count("\n")


def test_no_function_is_longer_than_a_screen() -> None:
    long = []
    for path in sources("src"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long.append(f"{name_of(path)}:{node.lineno} {node.name} has {lines} lines")
    assert not long


def test_modules_say_what_they_are_about() -> None:
    vague = [name_of(path) for path in sources("src") if path.stem in VAGUE_NAMES]
    assert not vague
    unexplained = [name_of(path) for path in sources("src") if path.stat().st_size and ast.get_docstring(parsed(path)) is None]
    assert not unexplained


def test_no_module_has_a_metaphor_for_a_name() -> None:
    metaphors = set(METAPHORS.split())
    names = {name_of(path): set((path.parent.name if path.stem == "__init__" else path.stem).split("_")) for path in sources("src")}
    assert not {name: words & metaphors for name, words in names.items() if words & metaphors}


def test_a_module_name_is_used_once() -> None:
    places: dict[str, list[str]] = {}
    for path in sources("src"):
        if path.stem not in SHARED_MODULE_NAMES:
            places.setdefault(path.stem, []).append(name_of(path))
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_a_class_name_is_used_once() -> None:
    assert len(SHARED_CLASS_NAMES) <= MAX_SHARED_CLASS_NAMES
    places: dict[str, list[str]] = {}
    for path in sources("src"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and node.name not in SHARED_CLASS_NAMES:
                places.setdefault(node.name, []).append(f"{name_of(path)}:{node.lineno}")
    assert not {name: where for name, where in places.items() if len(where) > 1}


def test_a_folder_has_no_more_files_than_a_reader_overlooks() -> None:
    counts = Counter(name_of(path.parent) for path in sources("src"))
    assert not {folder: files for folder, files in counts.items() if files > MAX_FOLDER_FILES}


def files_of(module: str) -> list[Path]:
    place = ROOT / "src" / module.replace(".", "/")
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


def imports_random(path: Path) -> bool:
    names = [alias.name for node in ast.walk(parsed(path)) if isinstance(node, ast.Import) for alias in node.names]
    return "random" in names


@pytest.mark.parametrize("module", PURE)
def test_pure_code_uses_no_unseeded_random_numbers(module: str) -> None:
    assert files_of(module)
    for path in files_of(module):
        if not imports_random(path):  # there, the word is the name of a seeded generator
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
                assert node.attr == "Random", f"{name_of(path)}:{node.lineno} uses random.{node.attr}"


def test_tests_do_not_sleep() -> None:
    """They wait for what they expect: asking again in a loop is fine, hoping that a second is enough is not."""
    sleeping = []
    for path in sources("tests"):
        for node in parsed(path).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                sleeping += [f"{name_of(path)}:{line}" for line in sleeps_outside_loops(node)]
    assert not sleeping


def sleeps_outside_loops(node: ast.AST) -> list[int]:
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.While | ast.FunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.Call) and ast.unparse(child.func) in ("time.sleep", "sleep"):
            found.append(child.lineno)
        found += sleeps_outside_loops(child)
    return found


def test_every_dependency_has_its_reason_in_the_reference() -> None:
    project = PROJECT["project"]
    asked = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    names = {re.split(r"[<>=!~\[ ]", one)[0] for one in asked}
    told = set(re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs" / "reference" / "dependencies.md").read_text(), re.MULTILINE))
    assert told == names


def test_the_pure_contract_would_catch_a_clock(tmp_path: Path) -> None:
    """import-linter knows the standard library: a pure module with a clock in it breaks the contract."""
    for path in PACKAGE.rglob("*.py"):
        copy = tmp_path / "pilotfish" / path.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    with (tmp_path / "pilotfish" / "core" / "__init__.py").open("a") as module:
        module.write("import time\n")
    said = subprocess.run(
        ["lint-imports", "--config", str(ROOT / "pyproject.toml"), "--no-cache"],
        cwd=tmp_path,
        env={"PATH": _path_with_tools(), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert said.returncode == 1
    assert "pilotfish.core is not allowed to import time" in said.stdout


def _path_with_tools() -> str:
    import os
    import sys

    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
