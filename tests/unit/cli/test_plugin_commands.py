"""Commands, applications and sweep sources of plug-ins, as a person meets them on the command line."""

from __future__ import annotations

from pathlib import Path

from pilotfish.cli.terminal.pool_hints import set_hint_pool, with_pool
from tests.unit.cli.conftest import CommandLine
from tests.unit.conftest import Install

COMMAND = """
import click
@click.command()
@click.option("--pool")
def hello(pool):
    "Greet the pool."
    click.echo(f"hello {pool}")
hello.section = "Inspect"
@click.command()
def plain():
    "Do little."
"""


def test_the_command_of_a_plug_in_is_shown_in_its_section_and_runs(install: Install, pilotfish: CommandLine) -> None:
    install("own-commands", COMMAND, commands={"hello": "own_commands:hello", "plain": "own_commands:plain"})
    sections = dict(part.split(":\n", 1) for part in pilotfish("--help").out.split("\n\n") if ":\n" in part)
    assert "hello  " in sections["Inspect"] and "Greet the pool." in sections["Inspect"]
    assert sections["More"].split() == ["plain", "Do", "little."]
    assert pilotfish("hello", "--pool", "b").out == "hello b\n"
    assert pilotfish("helo").err.endswith("Did you mean 'hello'?\n  fix: pilotfish hello\n")


def test_hints_name_the_pool_for_commands_of_plug_ins_too(install: Install, pilotfish: CommandLine) -> None:
    install("own-hints", COMMAND, commands={"hello": "own_hints:hello", "plain": "own_hints:plain"})
    pilotfish("plain")
    pilotfish("hello")
    set_hint_pool("b")
    assert with_pool("pilotfish hello, pilotfish plain") == "pilotfish hello --pool b, pilotfish plain"
    set_hint_pool(None)


def test_a_broken_command_does_not_break_the_help_but_is_told_there(install: Install, pilotfish: CommandLine) -> None:
    install("broken-command", "import nothing_like_it\n", commands={"fix": "broken_command:fix"})
    install("no-command", "x = 7\n", commands={"seven": "no_command:x"})
    install("leaving", "import sys\nsys.exit(0)\n", commands={"leave": "leaving:leave"})
    said = pilotfish("--help")
    words = " ".join(said.out.split())
    assert said.status == 0
    assert "leave (broken: the command 'leave' cannot be loaded: SystemExit: 0" in words
    assert "fix (broken: the command 'fix' cannot be loaded: ModuleNotFoundError: No module named 'nothing_like_it'" in words
    assert "of the distribution broken-command" in words
    assert "seven (broken: the command 'seven' (seven = no_command:x of no-command) is no click command" in words
    assert "Run a command, sweep" in words
    failed = pilotfish("fix")
    assert failed.status == 2
    assert "error: the command 'fix' cannot be loaded" in failed.err and "pip uninstall broken-command" in failed.err


# --- applications and sweep sources -------------------------------------------------------------------------------------------------

READERS = """
from pathlib import Path
from pilotfish.applications.run_file import RunFile
from pilotfish.applications.sweeps.axes import ListedValues
from pilotfish.applications.task_list import TaskList
def read_rows(path):
    words = Path(path).read_text().split()
    return ListedValues(("name", "size"), [(word, str(len(word))) for word in words])
def read_flow(path, arguments):
    tasks = TaskList()
    for line in Path(path).read_text().splitlines():
        tasks.add(line.split())
    return RunFile(Path(path).resolve(), tasks, None)
def read_wrong(path, arguments=()):
    return 7
"""


def test_files_of_a_plug_ins_suffix_are_read_by_it(install: Install, pilotfish: CommandLine, tmp_path: Path) -> None:
    install(
        "readers", READERS, sweeps={"words": "readers:read_rows"}, applications={"flow": "readers:read_flow", "no": "readers:read_wrong"}
    )
    (tmp_path / "a.words").write_text("one three")
    said = pilotfish("run", "--dry-run", "--params-from", str(tmp_path / "a.words"), "--", "echo", "{name}", "{size}")
    assert "echo one 3" in said.out and "echo three 5" in said.out
    said = pilotfish("run", "--dry-run", "--param", f"size=@{tmp_path / 'a.words'}", "--", "echo", "{size}")
    assert "echo 5" in said.out
    (tmp_path / "x.flow").write_text("echo 1\necho 2\n")
    assert pilotfish("run", "--dry-run", str(tmp_path / "x.flow")).out == "Would run 2 tasks of x.flow.\n"
    (tmp_path / "x.no").write_text("")
    assert "gave no RunFile" in pilotfish("run", "--dry-run", str(tmp_path / "x.no")).err


def test_a_sweep_source_that_gives_something_else_is_broken(install: Install, pilotfish: CommandLine, tmp_path: Path) -> None:
    install("readers", READERS, sweeps={"bad": "readers:read_wrong"})
    path = tmp_path / "x.bad"
    path.write_text("")
    for words in (["--params-from", str(path)], ["--param", f"size=@{path}"]):
        said = pilotfish("run", "--dry-run", *words, "--", "echo", "{size}")
        assert said.status == 2
        assert "bad = readers:read_wrong of readers gave no Axis with names and rows" in said.err
        assert "pip uninstall readers" in said.err and "P1200" in said.err
