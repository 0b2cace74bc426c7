"""Reports to subscribed clients which tasks ended.

Each run has a list of the ends of its tasks, in the order in which the tasks ended. The *cursor* of a subscription is the position in this
list of the next end to report. A client that subscribes again names its cursor. Therefore no end is lost or repeated if a connection
breaks, or if the client or the master restarts. Only a master whose journal is damaged reports all ends again. If a task is rerun, the
position of its earlier end stays empty, and its next end is added to the list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pilotfish.core.state import SUPERSEDED, Run
from pilotfish.model import messages as m
from pilotfish.model.ids import INDEX_MASK, run_of
from pilotfish.model.states import TASK_STATES
from pilotfish.model.task import Payload, sent_bytes

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

BYTES_PER_MESSAGE = 8 * 1024 * 1024
"""Maximum bytes of task outputs in one message. A single larger output is sent alone."""


@dataclass(slots=True)
class Subscription:
    cursor: int
    payloads: bool


@dataclass(slots=True)
class Subscriptions:
    """Records for each client the runs that the client watches, the runs to which the client sends tasks, and whether the client reads too
    slowly. These data are lost when the master restarts."""

    links: dict[int, dict[int, Subscription]] = field(default_factory=dict)
    authors: dict[int, int] = field(default_factory=dict)
    disconnected_at: dict[int, float] = field(default_factory=dict)
    """For each run: the time at which its client disconnected."""
    paused: dict[int, None] = field(default_factory=dict)
    peeks: dict[int, tuple[int, int]] = field(default_factory=dict)
    next_peek: int = 0
    newly_running: list[int] = field(default_factory=list)


def peeked(machine: Machine, message: m.Peeked, payloads: list[Payload]) -> None:
    """Passes the output of a running task to the client that asked for it."""
    link, query = machine.subscriptions.peeks.pop(message.query, (None, 0))
    if link is not None:
        machine.send(link, m.Answer(query, {"known": message.known, "running": True, "offset": message.offset}), list(payloads))
    for payload in payloads:
        machine.release_payload(payload)


def peek_expired(machine: Machine, key: str) -> None:
    """Answers the client of request ``key`` without the output, if the worker did not send the output in time."""
    peeked(machine, m.Peeked(int(key), False, 0), [])


def notify(machine: Machine) -> None:
    """Reports to each client what happened in the runs that it watches. Clients that read too slowly get the ends of tasks later, and get
    no reports about started tasks."""
    subscriptions = machine.subscriptions
    began: dict[int, list[int]] = {}
    for task in subscriptions.newly_running:
        began.setdefault(run_of(task), []).append(task & INDEX_MASK)
    subscriptions.newly_running.clear()
    for link, watchers in subscriptions.links.items():
        if link in subscriptions.paused or not watchers:
            continue
        for number in list(watchers):
            run = machine.state.runs.get(number)
            if run is None:
                del watchers[number]
                continue
            if number in began:
                machine.send(link, m.Began(number, began[number]))
            _notify_client(machine, link, run, watchers)


def _notify_client(machine: Machine, link: int, run: Run, watchers: dict[int, Subscription]) -> None:
    watcher = watchers[run.id]
    if run.superseded:
        while watcher.cursor < len(run.ended) and run.ended[watcher.cursor] == SUPERSEDED:
            watcher.cursor += 1
    if watcher.cursor < len(run.ended):
        message, payloads = _batch(run, watcher, machine.ended_per_message)
        machine.send(link, message, payloads)
        watcher.cursor += len(message.items)
        if watcher.cursor < len(run.ended):
            machine.more_to_send = True
            return
    if run.finished:
        machine.send(link, m.RunFinished(run.id, dict(zip(TASK_STATES, run.counts, strict=True))))
        del watchers[run.id]


def _batch(run: Run, watcher: Subscription, most: int) -> tuple[m.Ended, list[Payload]]:
    items: list[m.EndedItem] = []
    payloads: list[Payload] = []
    size = 0
    tasks, walls, cpus, sizes = run.tasks, run.wall_us, run.cpu_us, run.rss_kib
    for index in run.ended[watcher.cursor : watcher.cursor + most]:
        if index == SUPERSEDED:
            break  # the items of one message have consecutive positions
        task = tasks[index]
        output = task.output
        length = sent_bytes(output)
        if watcher.payloads:
            size += length
            if size > BYTES_PER_MESSAGE and items:
                break
            payloads.append(output)
        items.append(m.EndedItem(index, task.state, task.failure, walls[index], cpus[index], sizes[index], length))
    return m.Ended(run.id, watcher.cursor, items), payloads
