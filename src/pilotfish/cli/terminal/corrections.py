"""Corrects mistakes in a command line, so that an error message can show a command that works."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import click

from pilotfish.errors import Correction, PilotfishError, did_you_mean
from pilotfish.model.states import TASK_STATES


def corrected_command(group: click.Group, arguments: Sequence[str], hint: str) -> str:
    """Returns the typed command without the mistake. Returns an empty text if the wrong word is missing or occurs several times, or if the
    parser refuses the corrected command, too."""
    words = _corrected_words(arguments, hint) if isinstance(hint, Correction) and hint.wrong else []
    return shlex.join(["pilotfish", *words]) if words and _is_accepted(group, words) else ""


def _corrected_words(arguments: Sequence[str], hint: Correction) -> list[str]:
    # Words after ``--`` belong to the program of the user, so they are not corrected.
    end = arguments.index("--") if hint.wrong.startswith("-") and "--" in arguments else len(arguments)
    typed, others = list(arguments[:end]), arguments[end:]
    if hint.words or hint.replaced > 1:
        place = typed.index(hint.wrong) if typed.count(hint.wrong) == 1 else -1
        return [*typed[:place], *hint.words, *typed[place + hint.replaced :], *others] if place >= 0 else []
    word = re.compile(rf"(?<![\w.]){re.escape(hint.wrong)}(?![\w.])")
    found = [index for index, argument in enumerate(typed) for _ in word.finditer(argument)]
    if len(found) != 1:
        return []
    changed = word.sub(lambda _: hint.right, typed[found[0]])
    return [*typed[: found[0]], *([changed] if changed else []), *typed[found[0] + 1 :], *others]


def _is_accepted(group: click.Group, words: Sequence[str]) -> bool:
    """Returns whether the parser accepts a command. The command is not executed."""
    command: click.Command | None = group
    context, name, rest = click.Context(group, info_name="pilotfish"), None, list(words)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            while isinstance(command, click.Group) and rest:
                name, command, rest = command.resolve_command(context, rest)
            if command is not None and not isinstance(command, click.Group):
                command.make_context(name, rest, context)
    except click.exceptions.Exit:
        return True  # an option such as --help
    except (click.ClickException, PilotfishError):
        return False
    return True


def _slurm_minutes(text: str) -> str:
    """Converts a time limit of Slurm to a duration. ``10`` means 10 minutes, ``10:30`` 10 minutes and 30 seconds, ``1-12`` 1 day and 12
    hours."""
    for pattern, shown in ((r"(\d+)", r"\1m"), (r"(\d+):(\d+)", r"\1m\2s"), (r"(\d+)-(\d+)", r"\1d\2h")):
        if re.fullmatch(pattern, text):
            return re.sub(pattern, shown, text)
    return text


def _slurm_megabytes(text: str) -> str:
    return f"{text}M" if text.isdecimal() else text


def _array(text: str) -> str | None:
    """Converts the indices of a job array to a parameter: ``1-3,8`` to ``i=1..3,8``, and ``1-10:2`` to ``i=1:10:2``."""
    if stepped := re.fullmatch(r"(\d+)-(\d+):(\d+)", text):
        return "i=" + ":".join(stepped.groups())
    return "i=" + re.sub(r"(\d+)-(\d+)", r"\1..\2", text) if re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text) else None


def _gpus(text: str) -> str | None:
    """Converts generic resources of Slurm to a number of GPUs: ``gpu:2`` and ``gpu:a100:2`` to 2, and ``gpu`` to 1."""
    found = re.fullmatch(r"gpu(?::[a-zA-Z]\w*)?(?::(\d+))?", text)
    return (found[1] or "1") if found else None


def _halt(text: str) -> str | None:
    """Converts a condition of GNU parallel to a number of failed tasks: ``now,fail=3`` to 3."""
    found = re.fullmatch(r"(?:now|soon),fail=(\d+)", text)
    return found[1] if found else None


def _as_typed(text: str) -> str:
    return text


Conversion = Callable[[str], str | None]
"""A function that converts a value of a different program. It returns None if Pilotfish has no such value."""
OPTIONS_ELSEWHERE: dict[str, tuple[str, Conversion]] = {
    **dict.fromkeys(("-j", "--jobs", "-P", "--max-procs", "--processes"), ("--local-cores", _as_typed)),
    **dict.fromkeys(("-c", "--cpus-per-task", "--cpus", "-n", "--ntasks", "--ntasks-per-node"), ("--cores", _as_typed)),
    **dict.fromkeys(("--mem", "--mem-per-cpu"), ("--memory", _slurm_megabytes)),
    **dict.fromkeys(("--timeout", "--walltime", "--time-limit"), ("--time", _as_typed)),
    "--retry": ("--retries", _as_typed),
    "--gres": ("--gpus", _gpus),
    "--halt": ("--max-failures", _halt),
    "--background": ("--detach", _as_typed),
    "--force": ("--overwrite", _as_typed),
    "--link": ("--zip", _as_typed),
    "--resume-failed": ("--resume", _as_typed),
    "-t": ("--time", _slurm_minutes),
    **dict.fromkeys(("-J", "--job-name"), ("--name", _as_typed)),
    **dict.fromkeys(("-a", "--arg-file"), ("--each-line", _as_typed)),
    "--array": ("--param", _array),
    "-N": ("--nodes", _as_typed),
    **dict.fromkeys(("--dryrun", "--just-print"), ("--dry-run", _as_typed)),
    **dict.fromkeys((f"--{state}" for state in TASK_STATES), ("--state", _as_typed)),
}
"""Options of GNU parallel, xargs, make and Slurm. Each option has the option of Pilotfish with the same purpose, and the conversion of its
value. Names of task states are values of ``--state``."""
FEATURES_ELSEWHERE = {
    "--colsep": "For one task per row of a table with column names, and {NAME} for a value: --params-from FILE.csv",
    "--joblog": "After the run: pilotfish results --joblog",
    "--results": "After the run: pilotfish results --save VALUE",
    **dict.fromkeys(("--tag", "--keep-order", "-k"), "The output of each task is kept. In the order of the tasks: pilotfish logs RUN"),
    "--chdir": "Change to this directory before you run pilotfish: cd VALUE",
    "--dependency": "Put the tasks into a task list, with id= and after=: pilotfish run --tasks FILE",
    "--wrap": "Write the command after --: pilotfish run -- sh -c VALUE",
    "--export": "Tasks get the environment of this command, so leave it out. To set a variable: --env NAME=VALUE",
}
"""Options of GNU parallel and Slurm whose purpose is served by something else than an option of ``pilotfish run``. In the hint, the value
of the option replaces VALUE at the end."""
STREAM_OPTIONS = frozenset({"-o", "-e", "--error"})
"""Options of batch systems that name the files for the printed output of a job."""
SITE_OPTIONS = frozenset({"-p", "--partition", "-q", "--qos", "--queue", "-A", "--account"})
"""Options of batch systems that are no options of Pilotfish, but keys of a site, such as ``queue``."""


def suggest_option(name: str, known: Sequence[click.Parameter], elsewhere: Collection[str], arguments: Sequence[str]) -> str:
    """Returns a hint for an unknown option. ``known``: the parameters of the command. ``elsewhere``: the options of ``pilotfish run``,
    which do not count as typing errors. Returns an empty text if no other program has the option and no known option is similar."""
    options = {option: parameter for parameter in known for option in parameter.opts if option.startswith("-")}
    ours, convert = OPTIONS_ELSEWHERE.get(name, ("", _as_typed))
    if ours in options:
        return _replaced_option(name, ours, convert, options[ours], arguments)
    if name in FEATURES_ELSEWHERE and "--param" in options:
        _, value, _ = _find_option(name, arguments)
        return re.sub(r"(?<= )VALUE$", lambda _: shlex.quote(value) if value else "VALUE", FEATURES_ELSEWHERE[name])
    if ours == "--state":
        return f"List these tasks: pilotfish tasks --state {name[2:]}"
    if name in SITE_OPTIONS:
        return "It is a key of the site, such as queue or account: pilotfish site --help"
    if name in STREAM_OPTIONS:
        return "What a task prints is stored: pilotfish logs"
    if name.lstrip("-") in {parameter.name for parameter in known if isinstance(parameter, click.Argument)}:
        return Correction("Leave out the name of the option.", name, "")
    if name in elsewhere:
        return f"{name} is an option of another command: pilotfish run --help"
    return did_you_mean(name, options)


def _replaced_option(name: str, ours: str, convert: Conversion, parameter: click.Parameter, arguments: Sequence[str]) -> str:
    hint = f"Did you mean {ours!r}?"
    if name[2:] in TASK_STATES:
        return Correction(hint, name, "", (ours, name[2:]))
    if getattr(parameter, "is_flag", False):
        return Correction(hint, name, ours)
    word, typed, words = _find_option(name, arguments)
    value = convert(typed) if word else None
    return hint if value is None else Correction(hint, word, "", (ours, value), words)


def _find_option(name: str, arguments: Sequence[str]) -> tuple[str, str, int]:
    """Returns the typed word of an option, the value of the option, and the number of words of both."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for word, after in zip(options, [*options[1:], ""], strict=True):
        if word == name:
            return word, after, 2
        # In ``-j2``, there is no space between the letter and the value.
        joined = word[len(name) :] if word.startswith(name) and (len(name) == 2 or word[len(name)] == "=") else ""
        if joined:
            return word, joined.removeprefix("="), 1
    return "", "", 0


def correct_value(parameter: click.Parameter, arguments: Sequence[str], hint: str) -> str:
    """Adds a valid value of the option to the hint. If no valid value is known, returns the hint unchanged."""
    given = _given_value(parameter, arguments)
    valid = None if given is None else _valid_value(parameter.type, given, parameter.default)
    return hint if given is None or valid is None else Correction(hint, given, valid)


def _given_value(parameter: click.Parameter, arguments: Sequence[str]) -> str | None:
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in parameter.opts:
            return value if equals else next(iter(arguments[index + 1 :]), None)
    return None


def _valid_value(kind: click.ParamType[Any], given: str, default: Any) -> str | None:
    if isinstance(kind, click.Choice):
        near = did_you_mean(given, kind.choices)
        return near.right if isinstance(near, Correction) else str(next(iter(kind.choices)))
    if isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        least = getattr(kind, "min", None)
        return str(default if isinstance(default, int | float) else max(1, least or 0))
    return None
