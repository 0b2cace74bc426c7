"""Finds environment variables that a task probably needs, but does not get, because their names look like secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from pilotfish.applications.reuse.program_files import program_words
from pilotfish.applications.sweeps.task_list_file import TaskFile
from pilotfish.client.descriptions.run_options import RunRequest
from pilotfish.model.environment import without_secrets

MAX_SCRIPT_BYTES = 1 << 20
MAX_COMMANDS = 1000
"""Maximum number of commands of a task list that are searched for names of variables."""


def withheld_variables(request: RunRequest, listed: TaskFile | None, environ: Mapping[str, str]) -> list[str]:
    """Returns the variables of ``environ`` that the tasks do not get, although the command or its script contains their names.

    ``listed``: the task list of the request, if it has one.
    """
    given = {text.partition("=")[0] for text in request.environment}
    names = sorted(set(environ) - set(without_secrets(environ)) - given)
    if not names:
        return []
    commands = [request.command] if listed is None else [task.argv for task in islice(listed, MAX_COMMANDS)]
    words = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
    found = {name for text in _texts(commands) for name in words.findall(text)}
    return [name for name in names if name in found]


def _texts(commands: Iterable[Sequence[str]]) -> Iterable[str]:
    scripts: dict[str, None] = {}
    for command in commands:
        yield " ".join(command)
        scripts.update(dict.fromkeys(program_words(command) if command else ()))
    for path in scripts:
        if os.path.isfile(path) and os.path.getsize(path) <= MAX_SCRIPT_BYTES:
            try:
                with open(path, "rb") as file:
                    yield file.read().decode(errors="replace")
            except OSError:
                continue
