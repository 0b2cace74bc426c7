"""Tests the agent bundle: it is small, reproducible, and runs on every Python from 3.8 on."""

from __future__ import annotations

import ast
import io
import shutil
import subprocess
import sys
import tokenize
import zipfile
from pathlib import Path

import pytest

import pilotfish.agent
import pilotfish.portable
from pilotfish.master.agent_bundle import MAX_BYTES, blank_comments, bundle_content
from pilotfish.model import messages as wire
from tests.support.bundle_file import build_bundle
from tests.support.scripted_master import Agent, Client, FakeMaster, running_agent

TRAVELLING = [Path(package.__file__ or "").parent for package in (pilotfish.agent, pilotfish.portable)]


def found_pythons(old: bool) -> list[str]:
    """Find interpreters on PATH and in pyenv, other than this one."""
    names = ["2.7", "3.6", "3.7"] if old else ["3.8", "3.9", "3.10", "3.12", "3.13", "3.14"]
    places = [str(path) for path in (Path.home() / ".pyenv" / "versions").glob("*/bin")]
    found = []
    for name in names:
        candidates = [shutil.which(f"python{name}"), *(shutil.which(f"python{name}", path=place) for place in places)]
        for candidate in candidates:
            if candidate and subprocess.run([candidate, "-c", "import ssl"], capture_output=True).returncode == 0:
                found.append(candidate)
                break
    return found


def test_the_agent_asks_for_nothing_newer_than_python_3_8() -> None:
    words = [sys.executable, "-c", "import vermin; vermin.main()", "-t=3.8-", "--no-tips", "--violations", *map(str, TRAVELLING)]
    checked = subprocess.run(words, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_the_agent_imports_the_standard_library_and_itself_only() -> None:
    for path in (path for folder in TRAVELLING for path in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for name in names:
                assert name.partition(".")[0] in {*sys.stdlib_module_names, "cloudpickle"}, (path.name, name)


def test_the_bundle_is_small_and_always_the_same() -> None:
    content = bundle_content()
    assert content == bundle_content() and len(content) <= MAX_BYTES


def test_it_holds_the_agent_and_cloudpickle_and_nothing_compiled(tmp_path: Path) -> None:
    names = zipfile.ZipFile(build_bundle(tmp_path)).namelist()
    assert "__main__.py" in names and "pilotfish_agent/agent/node/agent_machine.py" in names and "cloudpickle/__init__.py" in names
    assert all(name.endswith(".py") for name in names)


def code_of(source: str) -> list[tuple[str, int, int]]:
    """Return every syntax node with its values, line and column, without docstrings and their replacements."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                setattr(node, name, [each for each in statements if not is_prose(each)])
    return [(describe(node), getattr(node, "lineno", 0), getattr(node, "col_offset", 0)) for node in ast.walk(tree)]


def describe(node: ast.AST) -> str:
    plain = {name: value for name, value in ast.iter_fields(node) if not isinstance(value, (ast.AST, list))}
    return f"{type(node).__name__} {plain}"


def is_text(statement: object) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)


def is_prose(statement: object) -> bool:
    return is_text(statement) or isinstance(statement, ast.Pass)


def test_without_comments_and_docstrings_the_code_is_the_same_on_the_same_lines(tmp_path: Path) -> None:
    archive = zipfile.ZipFile(build_bundle(tmp_path))
    for folder in TRAVELLING:
        for path in folder.rglob("*.py"):
            inside = archive.read(f"pilotfish_agent/{folder.name}/{path.relative_to(folder).as_posix()}").decode()
            assert code_of(inside) == code_of(path.read_text()), path
            assert inside.count("\n") == path.read_text().count("\n"), path
            assert not any(is_text(node) for node in ast.walk(ast.parse(inside))), path
            assert not any(token.type == tokenize.COMMENT for token in tokenize.generate_tokens(io.StringIO(inside).readline)), path


def test_a_traceback_from_the_bundle_has_the_line_numbers_of_the_source(tmp_path: Path) -> None:
    said = []
    for where, module in ((build_bundle(tmp_path), "pilotfish_agent.portable"), (TRAVELLING[1].parent.parent, "pilotfish.portable")):
        program = f"import sys; sys.path.insert(0, {str(where)!r}); from {module}.payload_format import unpack; unpack(b'')"
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        said.append([line.rpartition("line ")[2] for line in ran.stderr.splitlines() if "payload_format" in line and "line " in line])
    assert said[0] == said[1] != []


@pytest.mark.parametrize(
    ("source", "blanked"),
    [
        ("x = 1  # why\n", "x = 1\n"),
        ("# a\n# b\nx = '#'\n", "\n\nx = '#'\n"),
        ('"""One."""\nimport os\n', "\nimport os\n"),
        ('"""One.\n\nTwo.\n"""\nimport os\n', "\n\n\n\nimport os\n"),
        ('class A:  # note\n    """Doc."""\n', "class A:\n    pass\n"),
        ('def f():\n    """Doc\n    of "f"."""\n    return 1\n', "def f():\n    pass\n\n    return 1\n"),
        ('LIMIT = 5\n"""Maximum."""\n', "LIMIT = 5\n\n"),
        ('text = """kept # here"""  # gone\n', 'text = """kept # here"""\n'),
        ("f('\\'# no', \"# no\")\n", "f('\\'# no', \"# no\")\n"),
        ('"""Last."""', ""),
    ],
)
def test_only_comments_and_docstrings_are_left_out(source: str, blanked: str) -> None:
    assert blank_comments(source) == blanked


@pytest.mark.parametrize("python", [sys.executable, *found_pythons(old=False)])
def test_it_works_on_every_python_found_here(tmp_path: Path, python: str) -> None:
    master = FakeMaster(tmp_path, "tls")
    with running_agent(master, "--cores", "2", python=python) as agent:
        hello = master.wait_for(wire.Hello)
        client = Client(master)
        source = "import sys\ndef f(count):\n    print('output')\n    return list(range(count)), sys.version_info[:2]\n"
        task = client.call(client.python(source, launch={"form": "source"}), 3)
        value, version = client.value(task)
        assert value == [0, 1, 2] and hello.info["python"].startswith(".".join(map(str, version)))
        assert client.outcome(client.command(client.exec(outputs=["a"]), "/bin/sh", "-c", "echo hi; cat", stdin=b"x"))["stdout"] == b"hi\nx"
        pickled = client.call(client.python(lambda: "same version"))
        if version == sys.version_info[:2]:
            assert client.value(pickled) == "same version"
        else:
            assert client.failure(pickled)[:2] == ("version", "user")
        late = client.command(client.exec(time_s=0.2), "/bin/sleep", "1000")
        assert client.failure(late)[0] == "time"
        crash = client.python("import os\ndef f():\n    os.kill(os.getpid(), 11)\n", launch={"form": "source"})
        assert client.failure(client.call(crash))[0] == "crash"
    assert agent.process.returncode == 0
    master.close()


@pytest.mark.parametrize("python", found_pythons(old=True))
def test_an_old_python_is_told_so_in_one_line(tmp_path: Path, python: str) -> None:
    master = FakeMaster(tmp_path, "unix")
    code, text = Agent(master, python=python).wait()
    assert code == 2 and "Python 3.8 or later is needed" in text and len(text.strip().splitlines()) == 1
    master.close()


def test_a_wrong_option_is_explained(tmp_path: Path) -> None:
    words = [sys.executable, str(build_bundle(tmp_path)), "--credentials", "x", "--resource", "gold"]
    checked = subprocess.run(words, capture_output=True, text=True)
    assert checked.returncode == 2 and "--resource" in checked.stderr and "'gold'" in checked.stderr
