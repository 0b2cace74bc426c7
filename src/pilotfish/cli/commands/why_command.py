"""Implements why. The master finds the reasons; this module prints them."""

from __future__ import annotations

import re
import time
from typing import Any

import click

from pilotfish.cli.completions import complete_subject
from pilotfish.cli.shared_options import json_option, pool_option
from pilotfish.cli.terminal.screen import Screen, clean
from pilotfish.client.descriptions.task_descriptions import named_task, task_with_label, with_commands
from pilotfish.client.outputs.task_output import fetch_output, last_line
from pilotfish.client.rerun_preparation import reads_files
from pilotfish.client.session import PoolSession, connect_read_only, why_manager_failed
from pilotfish.core.explain.rerun_advice import MISSING_FILE_HINT
from pilotfish.errors import BadInput, ConnectionFailed, Correction
from pilotfish.plugins import SECTIONS

MISSING_FILE = re.compile(rb"No such file|FileNotFoundError|cannot open|not found", re.IGNORECASE)
"""Matches the output of a program that did not find a file."""
REPEATABLE = frozenset({"exit", "signal", "spawn", "exception", "missing-output", "result", "unpickle"})
"""Causes of failures that lie in the task itself. A rerun helps only if something was changed."""


@click.command()
@click.argument("name", required=False, metavar="[TASK|RUN|WORKER|PILOT|SITE]", shell_complete=complete_subject)
@pool_option
@json_option
def why(name: str | None, pool: str, as_json: bool) -> None:
    """Explain why a task, run, worker, pilot or site is in its state.

    A task is RUN.INDEX, such as 3.17, or RUN.ID. RUN is the number or the name of a run. ID is the name of the task in a task list or DAG.
    The default is the last run.
    """
    screen = Screen.of()
    master = connect_read_only(pool)
    answer = _with_checked_rerun(master, _with_output(master, _ask(master, name)))
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
            if name and (labelled := task_with_label(master, name)):
                text = f"there is no run, worker, pilot or site {name!r}, but a task"
                raise BadInput(text, Correction(f"Did you mean {labelled!r}?", name, labelled)) from None
            raise
        answer = master.ask("why", task=task)
    kind, _, number = str(answer["subject"]).partition(" ")
    if kind == "run" and name not in (None, number) and "run" not in answer:
        # A master of the previous version ignores the subject: it explains the last run and sends no row for the subject.
        raise ConnectionFailed(f"the master of pool {master.directory.name} runs an older version", "restart it: pilotfish stop")
    return answer


def _with_output(master: PoolSession, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of the master, with the command of the task and the last output of the task or manager added."""
    kind, _, name = str(answer["subject"]).partition(" ")
    output, more, ended = "", {}, None
    if kind == "task":
        row = answer["task"]
        ((_, command),) = with_commands(master, answer["run"], [row])
        more = {"command": command, "sentence": str(answer["sentence"]).replace(f"task {name} ", f"task {name} ({command}) ", 1)}
        ended = fetch_output(master, row) if row["state"] == "failed" else None
    elif kind == "run" and answer["state"] == "failed":
        example = next((reason["data"]["task"] for reason in answer["reasons"] if reason.get("data")), None)
        ended = fetch_output(master, master.ask("task", task=example)) if example else None
    elif kind == "run" and answer["state"] == "cancelled":
        output = last_line(why_manager_failed(master, {"run": int(name)}))
    if ended is not None:
        output = ended.last_error_line()
        if not MISSING_FILE.search(ended.stderr or ended.stdout):
            answer = _without(answer, MISSING_FILE_HINT)
    return {**answer, **more, **({"wrote": output} if output else {})}


def _without(answer: dict[str, Any], command: str) -> dict[str, Any]:
    reasons = answer["reasons"]
    return {**answer, "reasons": [{**one, "commands": [each for each in one.get("commands", ()) if each != command]} for one in reasons]}


def _with_checked_rerun(master: PoolSession, answer: dict[str, Any]) -> dict[str, Any]:
    """Remove ``rerun`` from the answer if the failed task cannot run again. If it can, add ``runs_same``: whether a rerun would do the same
    as before."""
    if answer["state"] != "failed" or not any(map(_is_rerun, answer["reasons"][0].get("commands", ()))):
        return answer
    reason = answer["reasons"][0]
    task = answer["task"]["id"] if "task" in answer else (reason.get("data") or {}).get("task")
    try:
        runs_same = task is not None and reason["code"] in REPEATABLE and not reads_files(master, task)
    except BadInput:
        commands = [command for command in reason["commands"] if not _is_rerun(command)]
        return {**answer, "reasons": [{**reason, "commands": commands}, *answer["reasons"][1:]]}
    return {**answer, "runs_same": True} if runs_same else answer


def _is_rerun(command: str) -> bool:
    return command.startswith("pilotfish rerun ")


def _where_and_when(task: dict[str, Any]) -> str:
    """Describe the latest attempt of a task: worker, node and site, start and end. Return an empty text if it has not started."""
    if not task.get("started_at"):
        return ""
    places = [f"{kind} {task[kind]}" for kind in ("worker", "node", "site") if task.get(kind)]
    start, end = (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)) if at else "" for at in (task["started_at"], task["ended_at"]))
    if end.startswith(start[:10]):  # on the same day
        end = end[11:]
    return ", ".join([*places, f"from {start} to {end}" if end else f"since {start}", f"attempt {task['attempt']}"])


def show_reasons(screen: Screen, answer: dict[str, Any]) -> None:
    """Print the summary, the reasons, and commands. A command after ``see:`` shows more, a command after ``fix:`` solves the problem, and a
    command after ``again:`` only repeats what failed."""
    screen.line(clean(answer["sentence"]))
    if ran := _where_and_when(answer.get("task") or {}):
        screen.line(f"  ran     {clean(ran)}")
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
        label = "see:" if only_shows else "again:" if _is_rerun(command) and answer.get("runs_same") else "fix:"
        screen.line(f"  {label:7} {screen.paint(clean(command), 'bold')}")
