"""why: the causes, and the commands that would change them."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from typing import Any

import click

from pilotfish.cli.commands.status_commands import deadline_told
from pilotfish.cli.completions import complete_subject
from pilotfish.cli.shared_options import json_option, pool_option
from pilotfish.cli.site_commands.site_requests import site_rows
from pilotfish.cli.terminal.screen import Screen, clean, plural
from pilotfish.client.run_handle import state_of_run, why_manager_failed
from pilotfish.client.session import PoolSession, all_tasks, find_run, look, task_name
from pilotfish.client.task_descriptions import command_of, named_task
from pilotfish.client.task_output import fetch_output, last_line
from pilotfish.errors import BadInput, PilotfishError

DEPENDENCY = "dependency"
"""The cause of those that only failed because another did."""


@click.command()
@click.argument("subject", required=False, metavar="[TASK|RUN|WORKER|PILOT|SITE]", shell_complete=complete_subject)
@pool_option
@json_option
def why(subject: str | None, pool: str, as_json: bool) -> None:
    """Say why a task, run, worker, pilot or site is in the state it is in.

    A task is RUN.INDEX, such as 3.17 or NAME.17, or RUN.ID with the name that a task list or DAG gives it. Without a subject: the last run.
    """
    screen = Screen.of()
    master = look(pool)
    arguments = _arguments(master, subject)
    answer = master.ask("why", **arguments)
    if "task" in arguments:
        answer = _with_command(master, arguments["task"], answer)
    elif "run" in arguments:
        answer = _of_run(master, arguments["run"], answer)
    if as_json:
        screen.json(answer)
    else:
        show_reasons(screen, answer)


def _arguments(master: PoolSession, subject: str | None) -> dict[str, Any]:
    if subject is None:
        return {"run": find_run(master, None)["run"]}
    if "." in subject and subject.replace(".", "", 1).isdigit():
        return {"task": task_name(subject)}
    if any(subject == worker["worker"] for worker in master.ask("workers", all=True)):
        return {"worker": subject}
    if any(subject == pilot["pilot"] for pilot in master.ask("status")["pilots"]):
        return {"pilot": subject}
    try:
        return {"run": find_run(master, subject)["run"]}
    except BadInput:
        if subject.strip() and any(subject == row["site"] for row in site_rows(master)):
            return {"site": subject}
        with suppress(PilotfishError):  # a pilot that is gone is remembered for a while
            master.ask("why", pilot=subject)
            return {"pilot": subject}
        if (task := named_task(master, subject)) is not None:
            return {"task": task}
        name, _, index = subject.rpartition(".")
        if name.strip() and index.isdecimal():
            find_run(master, name)
        raise


def _with_command(master: PoolSession, task: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Says which parameters a task has."""
    row = master.ask("task", task=task)
    command = command_of(master, master.ask("run", run=row["run"]), row)
    sentence = str(answer["sentence"]).replace(f"task {task} ", f"task {task} ({command}) ", 1)
    wrote = fetch_output(master, row).last_words() if row["state"] == "failed" else ""
    return {**answer, "sentence": sentence, "command": command, **({"wrote": wrote} if wrote else {})}


def _of_run(master: PoolSession, number: int, answer: dict[str, Any]) -> dict[str, Any]:
    """The state in the one word that ``status`` has for it; of a run that ended badly, how many tasks failed and mostly why."""
    run = master.ask("run", run=number)
    state = state_of_run(run)
    if state == "failed":
        reason = _mostly(master, run)
    elif state == "cancelled":
        done = run["counts"].get("done", 0)
        text = f"{run['counts'].get('cancelled', 0):,} of {plural(run['tasks'], 'task')} cancelled, {done:,} done"
        wrote = last_line(why_manager_failed(master, run))
        text += f"; its application manager wrote last: {wrote}" if wrote else ""
        commands = [f"pilotfish logs {number}"] if wrote else []
        commands += [f"pilotfish tasks {number} --state cancelled"] if run["counts"].get("cancelled") else []
        commands += [f"pilotfish results {number}"] if done else []
        reason = {"code": "cancelled", "text": text, "commands": commands}
    else:
        return {**answer, "state": state, "reasons": [*answer.get("reasons", ()), *_about_deadline(run)]}
    return {**answer, "state": state, "sentence": f"run {number} is {state}: {reason['text']}", "reasons": [reason]}


def _about_deadline(run: dict[str, Any]) -> list[dict[str, Any]]:
    if not run.get("deadline") or run["state"] == "done":
        return []
    now = time.time()
    text = f"its deadline {'is' if run['deadline'] > now else 'was'} {deadline_told({**run, 'late_s': None}, now)}"
    return [{"code": "deadline", "text": text, "commands": [f"pilotfish predict {run['run']}"]}]


def _mostly(master: PoolSession, run: dict[str, Any]) -> dict[str, Any]:
    """How many failed, and what most of those that did so by themselves have in common."""
    number = run["run"]
    causes: Counter[str] = Counter()
    examples: dict[str, dict[str, Any]] = {}
    for row in all_tasks(master, number, "failed"):
        cause = (row.get("failure") or {}).get("cause", "unknown")
        causes[cause] += 1
        examples.setdefault(cause, row)
    dependents = causes.pop(DEPENDENCY, 0) if len(causes) > 1 else 0  # what failed by itself says more
    ((cause, count),) = causes.most_common(1)
    example = examples[cause]
    failed = causes.total() + dependents
    share = "" if count == failed else f", {count:,} of them"
    note = fetch_output(master, example).failure_line()
    text = f"{failed:,} of {plural(run['tasks'], 'task')} failed{share} [{cause}], such as {example['id']}: {note}"
    text += f"; and {dependents:,} that needed {'it' if causes.total() == 1 else 'those that failed'}" if dependents else ""
    text += _given_up(master, run)
    commands = [f"pilotfish tasks {number} --state failed", f"pilotfish logs {example['id']}", f"pilotfish rerun {number} --failed"]
    return {"code": cause, "text": text, "commands": commands}


def _given_up(master: PoolSession, run: dict[str, Any]) -> str:
    """How many never got their turn, and why."""
    count = run["counts"].get("cancelled", 0)
    if not count:
        return ""
    (first,) = all_tasks(master, run["run"], "cancelled", limit=1)
    return f"; {count:,} cancelled: {(first.get('failure') or {}).get('message', 'asked for')}"


def show_reasons(screen: Screen, answer: dict[str, Any]) -> None:
    """The sentence, then what stands behind it, then what to type."""
    screen.line(clean(answer["sentence"]))
    if answer.get("wrote"):
        screen.line(f"  wrote   {clean(answer['wrote'])}")
    commands: list[str] = []
    for reason in answer.get("reasons", ()):
        if reason["text"] not in answer["sentence"]:
            screen.line(f"  also    {clean(reason['text'])}")
        commands += [command for command in reason.get("commands", ()) if command not in commands]
    for command in commands:
        screen.line(f"  do      {screen.paint(clean(command), 'bold')}")
