"""Implements version, help, completion and explain."""

from __future__ import annotations

import platform
import re
from importlib import metadata

import click

from pilotfish.cli.completions import complete_code, complete_command
from pilotfish.cli.shared_options import json_option
from pilotfish.cli.terminal.error_messages import CAUSES, EXPLANATIONS, WHAT_HELPS
from pilotfish.cli.terminal.screen import Screen
from pilotfish.errors import BadInput

SHELLS = ("bash", "zsh", "fish")
SUBJECT = re.compile(r"[0-9]+|.+[.][0-9]+")
"""Matches a run or a task, which is no error code."""


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Show the version."""
    found = metadata.version("pilotfish")
    if as_json:
        Screen.of().json({"pilotfish": found, "python": platform.python_version(), "system": platform.platform()})
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
    known = {one: (told.meaning, told.commands) for one, told in sorted(EXPLANATIONS.items())}
    known |= {cause: (meaning, WHAT_HELPS) for cause, meaning in CAUSES.items()}
    if code is not None:
        known = {one: told for one, told in known.items() if one.lower() == code.strip("[]").lower()}
    if not known:
        asked = f"Why a run or task is as it is: pilotfish why {code}; all codes: pilotfish explain"
        raise BadInput(f"there is no error code {code!r}", asked if code and SUBJECT.fullmatch(code) else "See them all: pilotfish explain")
    screen = Screen.of()
    if as_json:
        screen.json({one: {"meaning": meaning, "commands": commands} for one, (meaning, commands) in known.items()})
        return
    for one, (meaning, commands) in known.items():
        screen.line(f"{screen.paint(one, 'bold')}  {meaning}")
        for command in () if code is None and one in CAUSES else commands:
            screen.line(f"       {command}")
