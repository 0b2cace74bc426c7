"""why: the causes, and the commands that would change them."""

from __future__ import annotations

from typing import Any

import click

from pilotfish.cli.options import json_option, pool_option
from pilotfish.cli.pool import Master, connect, find_run, task_name
from pilotfish.cli.render import Screen, clean


@click.command()
@click.argument("subject", required=False, metavar="[TASK|RUN|WORKER]")
@pool_option
@json_option
def why(subject: str | None, pool: str, as_json: bool) -> None:
    """Say why a task, run or worker is in the state it is in.

    A task is RUN.INDEX, such as 3.17. Without a subject: the last run.
    """
    screen = Screen.of()
    master = connect(pool)
    answer = master.ask("why", **_arguments(master, subject))
    if as_json:
        screen.json(answer)
    else:
        show_reasons(screen, answer)


def _arguments(master: Master, subject: str | None) -> dict[str, Any]:
    if subject is None:
        return {"run": find_run(master, None)["run"]}
    if "." in subject and subject.replace(".", "", 1).isdigit():
        return {"task": task_name(subject)}
    if any(subject == worker["worker"] for worker in master.ask("workers", all=True)):
        return {"worker": subject}
    return {"run": find_run(master, subject)["run"]}


def show_reasons(screen: Screen, answer: dict[str, Any]) -> None:
    """The sentence, then what stands behind it, then what to type."""
    screen.line(clean(answer["sentence"]))
    commands: list[str] = []
    for reason in answer.get("reasons", ()):
        if reason["text"] not in answer["sentence"]:
            screen.line(f"  also    {clean(reason['text'])}")
        commands += [command for command in reason.get("commands", ()) if command not in commands]
    for command in commands:
        screen.line(f"  do      {screen.paint(clean(command), 'bold')}")
