"""Code blocks of the documentation: found, checked and run.

    python   a program. A first line ``# name.py`` only saves it under that name, for a command further down, which names it or installs it.
    console  ``$ `` commands with the output they give; ``> `` continues a command; ``...`` in the output stands for anything.
             A command must succeed, unless the output shown for it begins with ``error:``; then it must fail.
    sh       a script that must succeed.
    toml     settings: saved as config.toml in PILOTFISH_HOME for the commands further down. A first line ``# name.toml`` only saves it
             under that name.
    text     neither a program nor a command: a file format, a picture.

``pip install .`` installs into a directory of the page's own, without a network. There is no way to have a block skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pilotfish.model.settings import PoolSettings

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# ([\w.-]+\.(?:py|toml))\n")
LOOKS_RUNNABLE = re.compile(r"^(\$ |>>> |import |from \w+ import |pilotfish |make |pip |python)", re.MULTILINE)
LANGUAGES = ("python", "console", "sh", "toml", "text")
COMMAND_S = 120
OFFLINE_PIP = ROOT / "tests" / "support" / "offline_pip.py"
PYTHON = Path(sys.executable)
WORKS_WITH = ROOT / "docs" / "how-to" / "works-with.md"
"""Its blocks need other libraries: test_works_with.py runs them."""


@dataclass(frozen=True, slots=True)
class Block:
    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}, line {self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    text: str
    expected: str


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    assert text.count("\n```") % 2 == 0, f"{page}: a code block is not closed, or indented"
    return [Block(page, text.count("\n", 0, match.start()) + 1, match[1].strip(), match[2]) for match in FENCE.finditer(text)]


def check(block: Block) -> None:
    assert block.language in LANGUAGES, f"{block}: a block must be one of {', '.join(LANGUAGES)}, not {block.language!r}"
    if block.language == "text":
        assert not LOOKS_RUNNABLE.search(block.text), f"{block}: this looks as if it could be run; make it console, sh or python"
    if block.language == "toml":
        table = tomllib.loads(block.text)
        if NAMED.match(block.text):
            return
        assert set(table) == {"pool"}, f"{block}: settings have one table, [pool]"
        assert set(table["pool"]) <= set(PoolSettings.__struct_fields__), f"{block}: a setting that does not exist"
    if block.language == "console":
        assert block.text.startswith("$ "), f"{block}: a console block begins with '$ '"


def commands_of(block: Block) -> list[Command]:
    found: list[list[str]] = []
    outputs: list[list[str]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append([line[2:]])
            outputs.append([])
        elif line.startswith("> ") and not outputs[-1]:
            found[-1].append(line[2:])
        else:
            outputs[-1].append(line)
    return [Command("\n".join(lines), "\n".join(output)) for lines, output in zip(found, outputs, strict=True)]


def matches(expected: str, actual: str) -> bool:
    """Whether the output is as shown: ``...`` stands for anything, and spaces do not count."""
    pieces = [" ".join(piece.split()) for piece in expected.split("...")]
    pattern = ".*".join(re.escape(piece).replace(r"\ ", r"\s+") for piece in pieces)
    return re.fullmatch(rf"\s*{pattern}\s*", " ".join(actual.split()), re.DOTALL) is not None


class Scratch:
    """A directory and a PILOTFISH_HOME of its own, in which the blocks of one page are run from top to bottom."""

    def __init__(self, directory: Path, python: Path = PYTHON) -> None:
        self.python = python
        self.directory = directory / "work"
        self.home = directory / "home"
        self.installed = directory / "site-packages"
        self.directory.mkdir()
        self.home.mkdir(mode=0o700)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PILOTFISH", "PYTEST", "COV_"))}
        self.environment = kept | {
            "PILOTFISH_HOME": str(self.home),
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "NO_COLOR": "1",
            "PYTHONUNBUFFERED": "1",
            # Pages about experiments suppose a clone of the repository.
            "PYTHONPATH": os.pathsep.join(filter(None, (str(self.installed), os.environ.get("PYTHONPATH"), str(ROOT)))),
        }
        self._make_pip(directory / "bin")

    def _make_pip(self, folder: Path) -> None:
        """A command ``pip`` that installs what is described in the directory of the page, and needs no network."""
        folder.mkdir()
        script = folder / "pip"
        script.write_text(f'#!/bin/sh\nword=$1; shift\nexec {self.python} {OFFLINE_PIP} "$word" {self.installed} "$@"\n')
        script.chmod(0o755)
        self.environment["PATH"] = f"{folder}{os.pathsep}{self.environment['PATH']}"

    def run(self, block: Block) -> None:
        if block.language == "python":
            self._run_python(block)
        elif block.language == "console":
            for command in commands_of(block):
                self._run_command(block, command)
        elif block.language == "sh":
            status, output = self._shell(f"set -e\n{block.text}")
            assert status == 0, f"{block}: exit status {status}\n{output}"
        elif block.language == "toml":
            named = NAMED.match(block.text)
            (self.directory / named[1] if named else self.home / "config.toml").write_text(block.text)

    def _run_python(self, block: Block) -> None:
        named = NAMED.match(block.text)
        path = self.directory / (named[1] if named else "block.py")
        path.write_text(block.text)
        if named:
            compile(block.text, str(path), "exec")
            later = block.page.read_text().split(block.text, 1)[1]
            used = rf"^(\$|>) .*(\b{re.escape(named[1])}\b|\bpip install \.)"
            assert re.search(used, later, re.MULTILINE), f"{block}: {named[1]} is never used below"
            return
        status, output = self._shell(f"{self.python} {path}")
        assert status == 0, f"{block}: exit status {status}\n{output}"

    def _run_command(self, block: Block, command: Command) -> None:
        status, output = self._shell(command.text)
        told = f"{block}: $ {command.text}\nexit status {status}\n--- expected\n{command.expected}\n--- actual\n{output}"
        assert (status != 0) == command.expected.startswith("error:"), told
        assert matches(command.expected, output), told

    def _shell(self, text: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
        )
        return done.returncode, done.stdout

    def clean(self) -> None:
        """End every master that the page started; nothing may be left."""
        for pool in sorted((self.home / "pools").glob("*")):
            status, output = self._shell(f"pilotfish stop --now --pool {pool.name}")
            assert status == 0, output


@contextmanager
def temporary_scratch(python: Path = PYTHON) -> Iterator[Scratch]:
    # Not pytest's own directory: paths of sockets must stay short.
    directory = Path(tempfile.mkdtemp(prefix="pilotfish-docs-"))
    try:
        scratch = Scratch(directory, python)
        try:
            yield scratch
        finally:
            scratch.clean()
    finally:
        shutil.rmtree(directory)
