"""The command ``pilotfish``. Commands live in modules of their own and are imported when they are used, so that help is instant."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from pilotfish.cli.terminal.error_messages import CANNOT, UsageError, complain, exit_status
from pilotfish.cli.terminal.pool_hints import mean
from pilotfish.errors import PilotfishError, did_you_mean

# section -> command -> (module:attribute, what it does); the text is the first line of the command's own help, a test compares them
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Work": {
        "run": ("commands.run_command:run", "Run a command, a sweep, a task list, a run file or a DAGMan file."),
        "attach": ("commands.attach_command:attach", "Watch a run again after you left it."),
        "results": ("commands.results_command:results", "Show what the tasks gave, and save their files."),
        "rerun": ("commands.control_commands:rerun", "Run the failed tasks of a run again."),
    },
    "Look": {
        "status": ("commands.status_commands:status", "Show runs, workers and warnings on one screen."),
        "tasks": ("commands.status_commands:tasks", "List the tasks of a run."),
        "workers": ("commands.status_commands:workers", "List the workers and what they do."),
        "sites": ("site_commands.sites_command:sites", "Show the sites, their pilots, and how they have done."),
        "data": ("commands.data_command:data", "Show which files are where, what is under way, and where it came from."),
        "why": ("commands.why_command:why", "Say why a task, run, worker, pilot or site is in the state it is in."),
        "logs": ("commands.log_commands:logs", "Print what a task wrote."),
        "tail": ("commands.log_commands:tail", "Print the end of what a task wrote, also while it runs."),
    },
    "Steer": {
        "cancel": ("commands.control_commands:cancel", "Cancel a run, or some of its tasks."),
        "pause": ("commands.control_commands:pause", "Start no more tasks of a run; those that run go on."),
        "resume": ("commands.control_commands:resume", "Go on with a paused run."),
        "set": ("commands.control_commands:set_options", "Change the priority, share or deadline of a run."),
        "forget": ("commands.control_commands:forget", "Forget runs that have ended, with all results that the pool keeps."),
        "stop": ("commands.stop_command:stop", "Stop the master and its workers, and prove that nothing is left."),
        "site": ("site_commands.site_command:site", "Describe the places where pilots can run, and look after them."),
    },
    "Foresee": {
        "forecasts": (
            "predictions.forecasts_command:forecasts",
            "Show what is expected of tasks, links and queues, and how wrong that was of late.",
        ),
        "predict": ("predictions.predict_command:predict", "Say when a run will be over, and what the time goes into."),
        "whatif": ("predictions.whatif_command:whatif", "Say how much sooner a run would be over with other workers, sites or policies."),
        "replay": ("predictions.replay_command:replay", "Play a run that is over once more, under another policy."),
        "simulate": ("predictions.simulate_command:simulate", "Compare policies in simulation: work at sites, in a table and in pictures."),
    },
    "Care": {
        "doctor": ("commands.doctor_command:doctor", "Check that everything here works, and say how to cure what does not."),
        "gc": ("commands.gc_command:gc", "Find and remove what dead masters left behind."),
        "bench": ("commands.bench_command:bench", "Measure this machine for ten seconds."),
        "demo": ("commands.demo_command:demo", "A tour of half a minute that breaks things on purpose."),
        "explain": ("about_commands:explain_code", "Say what an error code, or the cause of a failure, means."),
        "completion": ("about_commands:completion", "Print the shell's completion script."),
        "help": ("about_commands:help_of", "Print the help of a command."),
        "version": ("about_commands:version", "Print the version."),
    },
}
NUMBERS = {"a valid integer range": "a whole number", "a valid integer": "a whole number", "a valid float range": "a number"}
"""What click calls them, and what people do."""
COMPLETING = "_PILOTFISH_COMPLETE"
"""Set by the shell when it asks for completions."""
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class LazyGroup(click.Group):
    """Knows its commands by name; imports them when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command: click.Command = getattr(importlib.import_module(f"pilotfish.cli.{module}"), attribute)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            raise UsageError(f"there is no command {name!r}", did_you_mean(name, COMMANDS) or "See them all: pilotfish --help")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()], col_max=14)


def _show_version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from pilotfish.cli.about_commands import show_version

        show_version()
        context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--version", "-V", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Print the version.")
def pilotfish() -> None:
    """One pool of workers out of the places you have.

    \b
    Start:  pilotfish run --param seed=1..100 -- ./simulate {seed}
    Watch:  pilotfish status
    Tour:   pilotfish demo
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: runs a command, and turns errors into sentences and an exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if COMPLETING in os.environ:
        pilotfish.main(words, prog_name="pilotfish", complete_var=COMPLETING)
    sys.exit(invoke(words))


def invoke(words: list[str]) -> int:
    mean(None)
    as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
    try:
        # Not by way of click's own main, which would print errors its own way and take a closed pipe for a failure.
        with pilotfish.make_context("pilotfish", list(words), obj=list(words)) as context:
            outcome = pilotfish.invoke(context)
        sys.stdout.flush()
        return outcome if isinstance(outcome, int) else 0
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        problem = as_problem(error)
        complain(problem, as_json)
        return exit_status(problem)
    except PilotfishError as error:
        complain(error, as_json)
        return exit_status(error)
    except (KeyboardInterrupt, click.Abort):
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`pilotfish tasks | head`): nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        problem = PilotfishError(
            f"{error.filename or 'the system'}: {(error.strerror or str(error)).lower()}", "See what is wrong: pilotfish doctor"
        )
        complain(problem, as_json)
        return CANNOT


def as_problem(error: click.ClickException) -> PilotfishError:
    """click's complaint as one of ours, with the command that helps."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "pilotfish"
    message = error.format_message().rstrip(".")
    hint = ""
    if isinstance(error, click.NoSuchOption):
        message = f"{path} has no option {error.option_name}"
        if context is not None:
            hint = did_you_mean(error.option_name, [option for parameter in context.command.params for option in parameter.opts])
    for theirs, ours in NUMBERS.items():
        message = message.replace(theirs, ours)
    if message[1:2].islower():
        message = message[0].lower() + message[1:]
    return UsageError(message, hint or f"See what it takes: {path} --help")
