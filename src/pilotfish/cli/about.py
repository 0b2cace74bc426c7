"""version, completion, explain."""

from __future__ import annotations

import platform
from importlib import metadata

import click

from pilotfish.cli.complaints import EXPLANATIONS
from pilotfish.cli.completions import complete_code, complete_command
from pilotfish.cli.options import json_option
from pilotfish.cli.render import Screen
from pilotfish.errors import BadInput

SHELLS = ("bash", "zsh", "fish")


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Print the version."""
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
    """Print the help of a command.

    Without a command: the commands there are.
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
    """Print the shell's completion script.

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
    """Say what an error code means.

    Without a code: all of them.
    """
    wanted = sorted(EXPLANATIONS) if code is None else [code.upper()]
    if wanted[0] not in EXPLANATIONS:
        raise BadInput(f"there is no error code {code!r}", "See them all: pilotfish explain")
    screen = Screen.of()
    if as_json:
        screen.json({one: {"meaning": EXPLANATIONS[one].meaning, "commands": EXPLANATIONS[one].commands} for one in wanted})
        return
    for one in wanted:
        screen.line(f"{screen.paint(one, 'bold')}  {EXPLANATIONS[one].meaning}")
        for command in EXPLANATIONS[one].commands:
            screen.line(f"       {command}")
