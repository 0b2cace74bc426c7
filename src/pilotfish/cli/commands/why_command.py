"""Implements why. The master finds the reasons; this module prints them."""

from __future__ import annotations

from typing import Any

import click

from pilotfish.cli.completions import complete_subject
from pilotfish.cli.shared_options import json_option, pool_option
from pilotfish.cli.terminal.screen import Screen, clean
from pilotfish.client.session import PoolSession, connect_read_only, why_manager_failed
from pilotfish.client.task_descriptions import named_task, with_commands
from pilotfish.client.task_output import fetch_output, last_line
from pilotfish.errors import BadInput, ConnectionFailed
from pilotfish.plugins import SECTIONS


@click.command()
@click.argument("name", required=False, metavar="[TASK|RUN|WORKER|PILOT|SITE]", shell_complete=complete_subject)
@pool_option
@json_option
def why(name: str | None, pool: str, as_json: bool) -> None:
    """Explain why a task, run, worker, pilot or site is in its state.

    A task is RUN.INDEX, such as 3.17 or NAME.17, or RUN.ID. ID is the name of the task in a task list or DAG. The default is the last run.
    """
    screen = Screen.of()
    master = connect_read_only(pool)
    answer = _with_output(master, _ask(master, name))
    if as_json:
        screen.json(answer)
    else:
        show_reasons(screen, answer)


def _ask(master: PoolSession, name: str | None) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = master.ask("why", **({} if name is None else {"subject": name}))
    except BadInput:
        # The master does not know the names of tasks in a task list or DAG.
        task = named_task(master, name) if name is not None and "." in name else None
        if task is None:
            raise
        answer = master.ask("why", task=task)
    kind, _, number = str(answer["subject"]).partition(" ")
    if kind == "run" and name not in (None, number) and "status" not in master.ask("run", run=int(number)):
        # A master of the previous version ignores the subject and explains the last run.
        raise ConnectionFailed(f"the master of pool {master.directory.name} runs an older version", "restart it: pilotfish stop")
    return answer


def _with_output(master: PoolSession, answer: dict[str, Any]) -> dict[str, Any]:
    """Add the command of a task, and the last output of a task or application manager. The master does not read these."""
    kind, _, name = str(answer["subject"]).partition(" ")
    output, more = "", {}
    if kind == "task":
        row = answer["task"]
        ((_, command),) = with_commands(master, answer["run"], [row])
        more = {"command": command, "sentence": str(answer["sentence"]).replace(f"task {name} ", f"task {name} ({command}) ", 1)}
        output = fetch_output(master, row).last_error_line() if row["state"] == "failed" else ""
    elif kind == "run" and answer["state"] == "failed":
        example = next((reason["data"]["task"] for reason in answer["reasons"] if reason.get("data")), None)
        output = fetch_output(master, master.ask("task", task=example)).last_error_line() if example else ""
    elif kind == "run" and answer["state"] == "cancelled":
        output = last_line(why_manager_failed(master, {"run": int(name)}))
    return {**answer, **more, **({"wrote": output} if output else {})}


def show_reasons(screen: Screen, answer: dict[str, Any]) -> None:
    """Print the summary, the reasons, and the commands that show more (``see:``) or solve the problem (``fix:``)."""
    screen.line(clean(answer["sentence"]))
    if answer.get("wrote"):
        screen.line(f"  output: {clean(answer['wrote'])}")
    commands: list[str] = []
    for reason in answer.get("reasons", ()):
        if reason["text"] not in answer["sentence"]:
            screen.line(f"  also    {clean(reason['text'])}")
        commands += [command for command in reason.get("commands", ()) if command not in commands]
    for command in commands:
        words = command.split()
        only_shows = {*words[1:2]} <= {*SECTIONS["Inspect"], "results"} and not {"add", "--local-cores"} & {*words}
        screen.line(f"  {'see' if only_shows else 'fix'}:    {screen.paint(clean(command), 'bold')}")
