"""Runs commands and turns errors into messages and exit statuses.

The module of a command is imported only when the command is called, so that the help is shown without delay.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from pilotfish import plugins
from pilotfish.cli.terminal.corrections import correct_value, corrected_command, suggest_option
from pilotfish.cli.terminal.error_messages import CANNOT, SuggestingGroup, UsageError, exit_status, show_error
from pilotfish.cli.terminal.pool_hints import register_pool_command, set_hint_pool
from pilotfish.errors import BadInput, PilotfishError

MORE = "More"
"""Section of ``pilotfish --help`` for plug-in commands that do not name one of the other sections."""
NUMBERS = {"a valid integer range": "a whole number", "a valid integer": "a whole number", "a valid float range": "a number"}
"""Plain words for the names of types in messages of click."""
SHORT_HELP = 80
"""Maximum length of a plug-in command's help in ``pilotfish --help``."""
COMPLETING = "_PILOTFISH_COMPLETE"
"""Variable that the shell sets when it asks for completions."""


class LazyGroup(SuggestingGroup):
    """A group that imports the module of a command when the command is called. ``pilotfish --help`` imports all plug-in commands too, to
    read their help texts."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(plugins.names("commands"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in plugins.names("commands"):
            return None
        command = plugins.load("commands", cmd_name)
        if not isinstance(command, click.Command):
            plugin = plugins.find("commands", cmd_name)
            raise plugins.PluginBroken(
                f"the command {cmd_name!r} ({plugin}) is no click command", f"remove it: pip uninstall {plugin.distribution}"
            )
        if any("--pool" in parameter.opts for parameter in command.params):
            register_pool_command(cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections = {section: {name: entry.text for name, entry in commands.items()} for section, commands in plugins.SECTIONS.items()}
        for name in plugins.names("commands"):
            if not any(name in commands for commands in plugins.SECTIONS.values()):
                section, text = self._overview(ctx, name)
                sections.setdefault(section if section in sections else MORE, {})[name] = text
        for section, commands in sections.items():
            with formatter.section(section):
                formatter.write_dl(list(commands.items()), col_max=14)

    def _overview(self, ctx: click.Context, name: str) -> tuple[str, str]:
        """Return the section of ``pilotfish --help`` in which a plug-in command is listed, and the short help of the command. If the
        command cannot be loaded, the error replaces the short help."""
        try:
            command = self.get_command(ctx, name)
        except PilotfishError as problem:
            return MORE, f"(broken: {problem})"
        assert command is not None
        return str(getattr(command, "section", MORE)), command.get_short_help_str(limit=SHORT_HELP)


def _show_version(context: click.Context, parameter: click.Parameter, given: bool) -> None:
    if given:
        from pilotfish.cli.about_commands import show_version

        show_version()
        context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--version", "-V", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version.")
def pilotfish() -> None:
    """Run many tasks on all the machines you can reach.

    \b
    Start:  pilotfish run --param seed=1..100 -- ./simulate {seed}
    Follow: pilotfish status
    Demo:   pilotfish demo
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its status."""
    _open_closed_streams()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if COMPLETING in os.environ:
        pilotfish.main(arguments, prog_name="pilotfish", complete_var=COMPLETING)
    sys.exit(invoke(arguments))


def _open_closed_streams() -> None:
    """Open standard streams that the shell has closed (``>&-``), with /dev/null as their file. Otherwise, the next file that this program
    opens, such as a socket, would get the descriptor, and child processes would write into this file."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None and os.open(os.devnull, os.O_RDWR) == descriptor:
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", closefd=False))


def invoke(arguments: list[str]) -> int:
    set_hint_pool(None)
    as_json = "--json" in (arguments[: arguments.index("--")] if "--" in arguments else arguments)
    try:
        # The main function of click is not used: it prints errors in a different form and treats a closed pipe as a failure.
        with pilotfish.make_context("pilotfish", list(arguments), obj=list(arguments)) as context:
            outcome = pilotfish.invoke(context)
        sys.stdout.flush()
        return outcome if isinstance(outcome, int) else 0
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        problem = as_problem(error, arguments)
        show_error(problem, as_json, corrected_command(pilotfish, arguments, problem.hint))
        return exit_status(problem)
    except PilotfishError as error:
        show_error(error, as_json, corrected_command(pilotfish, arguments, error.hint))
        return exit_status(error)
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        # The reader of the output has ended, as in `pilotfish tasks | head`. This is no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        problem = as_system_problem(error)
        show_error(problem, as_json)
        return exit_status(problem) if isinstance(problem, BadInput) else CANNOT


def as_system_problem(error: OSError) -> PilotfishError:
    """Turn an error of the system into a PilotfishError. The error says so if the current directory was removed."""
    from pilotfish.applications.executables.working_directory import current_directory, removed_directory_error

    if isinstance(error, FileNotFoundError) and not os.path.isabs(error.filename or "") and current_directory() is None:
        return removed_directory_error()
    return PilotfishError(
        f"{error.filename or 'the system'}: {(error.strerror or str(error)).lower()}", "See what is wrong: pilotfish doctor"
    )


def _command_path(arguments: Sequence[str]) -> str:
    """Return the typed command with its subcommand, such as ``pilotfish site add``. Errors of click's parser do not contain it."""
    command: click.Command | None = pilotfish
    path = "pilotfish"
    for word in arguments:
        command = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        if command is None:
            break
        path += f" {word}"
    return path


def as_problem(error: click.ClickException, arguments: Sequence[str]) -> PilotfishError:
    """Turn an error of click into a PilotfishError with a hint."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else _command_path(arguments)
    message = error.format_message().rstrip(".")
    hint = f"See its options: {path} --help"
    if isinstance(error, click.BadParameter) and error.param is not None:
        hint = correct_value(error.param, arguments, hint)
    if isinstance(error, click.NoSuchOption):
        message = f"{path} has no option {error.option_name}"
        if context is not None:
            visible = [parameter for parameter in context.command.params if not getattr(parameter, "hidden", False)]
            of_run = [name for parameter in plugins.load("commands", "run").params for name in parameter.opts]
            hint = suggest_option(error.option_name, visible, of_run, arguments) or hint
    for theirs, ours in NUMBERS.items():
        message = message.replace(theirs, ours)
    if message[1:2].islower():
        message = message[0].lower() + message[1:]
    return UsageError(message, hint)
