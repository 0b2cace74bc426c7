"""Implements version, help, completion and explain."""

from __future__ import annotations

import platform
import re
from importlib import metadata

import click

from pilotfish.cli.completions import complete_code, complete_command
from pilotfish.cli.shared_options import json_option
from pilotfish.cli.terminal.error_messages import CAUSE_COMMANDS, CAUSES, EXPLANATIONS
from pilotfish.cli.terminal.screen import Screen
from pilotfish.errors import BadInput

SHELLS = ("bash", "zsh", "fish")
RUN_OR_TASK = re.compile(r"[0-9]+|.+[.][0-9]+")
"""Matches numbers of runs and ids of tasks. Users sometimes give these instead of an error code."""


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Show the version."""
    if as_json:
        Screen.of().json({"pilotfish": metadata.version("pilotfish"), "python": platform.python_version(), "system": platform.platform()})
    else:
        show_version()


def show_version() -> None:
    Screen.of().line(f"pilotfish {metadata.version('pilotfish')} (Python {platform.python_version()})")


@click.command("help")
@click.argument("command", required=False, shell_complete=complete_command)
@click.pass_context
def help_of(context: click.Context, command: str | None) -> None:
    """Show the help of a command.

    Without a command, list all commands.
    """
    whole = context.find_root()
    if command is None:
        click.echo(whole.get_help())
        return
    assert isinstance(whole.command, click.Group)
    _, found, _ = whole.command.resolve_command(whole, [command])
    assert found is not None
    click.echo(click.Context(found, info_name=command, parent=whole).get_help())


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the shell completion script.

    \b
    bash:  pilotfish completion bash > ~/.local/share/bash-completion/completions/pilotfish
    zsh:   pilotfish completion zsh > ~/.zfunc/_pilotfish
    fish:  pilotfish completion fish > ~/.config/fish/completions/pilotfish.fish
    """
    from click.shell_completion import get_completion_class

    from pilotfish.cli.main import COMPLETING, pilotfish

    kind = get_completion_class(shell)
    assert kind is not None
    Screen.of().line(kind(pilotfish, {}, "pilotfish", COMPLETING).source())


@click.command("explain")
@click.argument("code", required=False, shell_complete=complete_code)
@json_option
def explain_code(code: str | None, as_json: bool) -> None:
    """Explain an error code or failure cause.

    Causes are printed in brackets, such as [missing-output]. Without a code, list all codes and causes.
    """
    known = {name: (entry.meaning, entry.commands) for name, entry in sorted(EXPLANATIONS.items())}
    known |= {cause: (meaning, CAUSE_COMMANDS) for cause, meaning in CAUSES.items()}
    if code is not None:
        known = {name: entry for name, entry in known.items() if name.lower() == code.strip("[]").lower()}
    if not known:
        hint = "See them all: pilotfish explain"
        if code and RUN_OR_TASK.fullmatch(code):
            hint = f"See why a run or task is in its state: pilotfish why {code}; all codes: pilotfish explain"
        raise BadInput(f"there is no error code {code!r}", hint)
    screen = Screen.of()
    if as_json:
        screen.json({name: {"meaning": meaning, "commands": commands} for name, (meaning, commands) in known.items()})
        return
    for name, (meaning, commands) in known.items():
        screen.line(f"{screen.paint(name, 'bold')}  {meaning}")
        for command in () if code is None and name in CAUSES else commands:
            screen.line(f"       {command}")
