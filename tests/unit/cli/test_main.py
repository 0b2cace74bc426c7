"""The command itself: help, errors, codes."""

from __future__ import annotations

import importlib
import json
import pickle
import pkgutil
import subprocess
import sys
import traceback

import click
import pytest

import pilotfish as package
from pilotfish import plugins
from pilotfish.applications.calls.python_result import HINTS
from pilotfish.cli.main import pilotfish as group
from pilotfish.cli.terminal.error_messages import CAUSES, EXPLANATIONS
from pilotfish.errors import BadInput, ConnectionFailed, PilotfishError
from tests.unit.cli.conftest import CommandLine


def all_error_classes() -> list[type[PilotfishError]]:
    for module in pkgutil.walk_packages(package.__path__, "pilotfish."):
        if ".agent" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, waiting = [], [PilotfishError]
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += one.__subclasses__()
    return found


def test_every_error_class_has_a_code_with_an_explanation_and_a_next_command() -> None:
    for one in all_error_classes():
        assert one.code in EXPLANATIONS, f"{one.__name__} ({one.code}) is not explained in cli/terminal/error_messages.py"
    for code, explanation in EXPLANATIONS.items():
        assert explanation.meaning.endswith("."), code
        assert explanation.commands, code


def test_every_command_has_the_help_that_the_overview_promises() -> None:
    context = click.Context(group)
    for name, entry in ((name, entry) for section in plugins.SECTIONS.values() for name, entry in section.items()):
        command = group.get_command(context, name)
        assert command is not None
        assert (command.help or "").splitlines()[0] == entry.text, name
        assert command.name == name


def test_every_option_has_help() -> None:
    context = click.Context(group)
    for name in plugins.BUILT_IN["commands"]:
        command = group.get_command(context, name)
        assert command is not None
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.opts}"


def test_every_listing_has_json() -> None:
    context = click.Context(group)
    for name in ("run", "status", "tasks", "workers", "why", "results", "doctor", "gc", "bench", "stop", "attach", "rerun", "version"):
        command = group.get_command(context, name)
        assert command is not None
        assert any("--json" in parameter.opts for parameter in command.params), name


def test_help_does_not_import_the_commands() -> None:
    code = "import sys; from pilotfish.cli.main import invoke; invoke(['--help']); print(list(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = said.stdout.splitlines()[-1]
    for heavy in (
        "pilotfish.master",
        "pilotfish.cli.run_commands.run_command'",
        "pilotfish.applications",
        "pilotfish.client",
        "pilotfish.model.messages",
    ):
        assert heavy not in loaded
    assert "importlib.metadata" not in loaded, "entry points are read without it: its import takes longer than the help"
    assert "Run a command, sweep, task list, run file or DAGMan file." in said.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["rnu"],
            "error: there is no command 'rnu'\n  fix: Did you mean 'run'?\n  fix: pilotfish run\n",
        ),
        (
            ["frobnicate"],
            "error: there is no command 'frobnicate'\n  fix: See them all: pilotfish --help\n",
        ),
        (
            ["tasks", "--stat", "failed"],
            "error: pilotfish tasks has no option --stat\n  fix: Did you mean '--state'?\n  fix: pilotfish tasks --state failed\n",
        ),
        (
            ["tasks", "--state", "broken"],
            "error: invalid value for '--state': 'broken' is not one of 'waiting', 'ready', 'assigned', 'running', 'done', 'failed',"
            " 'cancelled'\n  fix: See its options: pilotfish tasks --help\n  fix: pilotfish tasks --state waiting\n",
        ),
        (
            ["explain", "P7"],
            "error: there is no error code 'P7'\n  fix: See them all: pilotfish explain\n",
        ),
    ],
)
def test_mistakes_get_a_sentence_a_fix_and_a_code(pilotfish: CommandLine, words: list[str], expected: str) -> None:
    said = pilotfish(*words)
    assert said.status == 2
    assert said.err == expected


def test_errors_are_json_where_json_was_asked_for(pilotfish: CommandLine) -> None:
    said = pilotfish("tasks", "nosuch", "--json")
    assert json.loads(said.err)["error"]["code"] == "P1100"
    assert said.out == ""


def test_explain_tells_what_a_code_means(pilotfish: CommandLine) -> None:
    assert pilotfish("explain", "p2101").out == (
        "P2101  Another master already serves this pool.\n       pilotfish status\n       pilotfish stop\n"
    )
    assert set(json.loads(pilotfish("explain", "--json").out)) == {*EXPLANATIONS, *CAUSES}


def test_explain_of_a_task_points_to_why(pilotfish: CommandLine) -> None:
    for subject in ("2.3", "sweep.3", "2"):
        assert f"pilotfish why {subject};" in pilotfish("explain", subject).err
    assert "why" not in pilotfish("explain", "nonsense").err


def test_explain_knows_the_causes_of_failures_too(pilotfish: CommandLine) -> None:
    assert set(HINTS) <= set(CAUSES)
    for written in ("missing-output", "[missing-output]"):
        first, *commands = pilotfish("explain", written).out.splitlines()
        assert first == f"missing-output  {CAUSES['missing-output']}"
        assert commands == ["       pilotfish why TASK", "       pilotfish logs TASK"]


@pytest.mark.parametrize(("shell", "part"), [("bash", "complete -o nosort"), ("zsh", "#compdef pilotfish"), ("fish", "--no-files")])
def test_completion_scripts_are_printed(pilotfish: CommandLine, shell: str, part: str) -> None:
    assert part in pilotfish("completion", shell).out


def test_the_version_is_printed(pilotfish: CommandLine) -> None:
    assert pilotfish("version").out.startswith(f"pilotfish {package.__version__} (Python 3.")
    assert json.loads(pilotfish("version", "--json").out)["pilotfish"] == package.__version__

    for option in ("--version", "-V"):
        assert pilotfish(option).out == pilotfish("version").out


def test_help_is_a_command_too(pilotfish: CommandLine) -> None:
    assert pilotfish("help").out == pilotfish("--help").out
    assert pilotfish("help", "tasks").out == pilotfish("tasks", "--help").out
    said = pilotfish("help", "taks")
    assert (said.status, said.err) == (2, "error: there is no command 'taks'\n  fix: Did you mean 'tasks'?\n  fix: pilotfish help tasks\n")


def test_only_an_explanation_that_says_more_is_pointed_to(pilotfish: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pool: str, start: bool, workers: int | None) -> None:
        raise ConnectionFailed("nobody answers", "Look: pilotfish doctor")

    monkeypatch.setattr("pilotfish.client.session._connector", refuse)
    said = pilotfish("tasks")
    assert said.err == "error: nobody answers\n  fix: Look: pilotfish doctor\n  more: pilotfish explain P3100\n"


def test_a_hint_is_shown_below_the_message_in_a_traceback_and_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(BadInput("it is wrong", "Mend it")))
    assert traceback.format_exception_only(error) == ["pilotfish.errors.BadInput: it is wrong\n", "Mend it\n"]
    assert not hasattr(PilotfishError("no hint"), "__notes__")


def test_without_a_command_the_help_is_shown(pilotfish: CommandLine) -> None:
    said = pilotfish()
    assert "Usage: pilotfish" in said.out + said.err


def test_a_reader_that_went_away_is_no_error() -> None:
    code = "from pilotfish.cli.main import main; main(['explain'])"
    shell = f'{sys.executable} -c "{code}" | true; echo ${{PIPESTATUS[0]}}'
    said = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert said.stdout == "0\n"
    assert said.stderr == ""


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("top", "Did you mean 'status --watch'?\n  fix: pilotfish status --watch"),
        ("ps", "Did you mean 'status'?\n  fix: pilotfish status"),
        ("kill", "Did you mean 'cancel'?"),
        ("to", "See them all: pilotfish --help"),
        ("sotp", "Did you mean 'stop'?\n  fix: pilotfish stop"),
    ],
)
def test_a_command_of_another_program_is_not_taken_for_one_that_stops_or_deletes(pilotfish: CommandLine, name: str, fix: str) -> None:
    said = pilotfish(name)
    assert (said.status, said.err) == (2, f"error: there is no command {name!r}\n  fix: {fix}\n")


def test_a_correction_that_the_parser_refuses_is_not_shown(pilotfish: CommandLine) -> None:
    assert pilotfish("lgos").err == "error: there is no command 'lgos'\n  fix: Did you mean 'logs'?\n  fix: pilotfish logs\n"
    assert pilotfish("lgos", "1", "--nosuch").err == "error: there is no command 'lgos'\n  fix: Did you mean 'logs'?\n"
    assert pilotfish("scancel", "1", "2").err.endswith("\n  fix: pilotfish cancel 1 2\n")
