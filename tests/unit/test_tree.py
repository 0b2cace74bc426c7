"""The rules of the house that no other tool checks."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "pilotfish"
MAX_FILE_LINES = 700
MAX_FUNCTION_LINES = 50
PURE = ("core", "policies", "strategies", "backends", "model")
FORBIDDEN_NAMES = ("utils", "util", "common", "base", "helper", "helpers", "misc")


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


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
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long.append(f"{name_of(path)}:{node.lineno} {node.name} has {lines} lines")
    assert not long


def test_modules_say_what_they_are_about() -> None:
    vague = [name_of(path) for path in sources("src") if path.stem in FORBIDDEN_NAMES]
    assert not vague
    unexplained = [
        name_of(path) for path in sources("src") if path.stat().st_size and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert not unexplained


@pytest.mark.parametrize("package", PURE)
def test_pure_packages_roll_no_unseeded_dice(package: str) -> None:
    for path in (PACKAGE / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
                assert node.attr == "Random", f"{name_of(path)}:{node.lineno} uses random.{node.attr}"


def test_tests_do_not_sleep() -> None:
    """They wait for what they expect: asking again in a loop is fine, hoping that a second is enough is not."""
    sleeping = []
    for path in sources("tests"):
        for node in ast.parse(path.read_text()).body:
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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
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
