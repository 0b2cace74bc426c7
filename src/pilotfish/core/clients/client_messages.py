"""Handles messages from clients: opens runs, adds tasks to them, and answers questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from pilotfish.core.clients import pool_commands
from pilotfish.core.clients.subscriptions import Subscription, peek_expired
from pilotfish.core.explain import lookup, queries
from pilotfish.core.pilots import site_events
from pilotfish.core.state import CLIENT_DISCONNECTED, Run
from pilotfish.core.workers import agent_messages
from pilotfish.errors import BadInput, IllegalTransition, JournalFull
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.contents import DIGEST, Content, ExpectedFile
from pilotfish.model.ids import MAX_RUN
from pilotfish.model.quantities import show_bytes
from pilotfish.model.states import ASSIGNED, CANCELLED, FAILED, RUNNING
from pilotfish.model.task import MAX_COST, MEMORY, MIN_COST, Payload, StoredPayload, TaskSpec, sent_bytes
from pilotfish.portable.expressions.evaluation import BadExpression, parse

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

APPLICATION_RESTART_S = 1.0
"""Seconds from the death of an application's process to its restart. A start takes about as long."""
MAX_AMOUNT = 1e15
"""Maximum amount of any resource."""
MAX_COUNT = 1_000_000_000
REFUSALS = (BadInput, JournalFull)
"""Errors that refuse a request. They are raised before the request changes anything. Any other error is a bug that may have left an invalid
state. Such an error ends the master, and the next master starts from the journal.
"""
NO_QUERY = -1
"""Query number of a Problem that does not answer an Ask."""
MAX_REQUEST = 100
PEEK_S = 10.0
"""Seconds in which a worker must send the output of a running task."""


def handle(machine: Machine, item: i.ClientMessage) -> None:
    link, message, payloads = item.link, item.message, item.payloads
    machine.subscriptions.links.setdefault(link, {})
    query = message.query if isinstance(message, m.Ask) else NO_QUERY
    before = len(machine.facts), len(machine.effects)
    try:
        _HANDLERS[type(message)](machine, link, message, payloads)
    except REFUSALS as problem:
        if (len(machine.facts), len(machine.effects)) != before:
            raise IllegalTransition(f"{message} was refused after something had been done for it") from problem
        for payload in payloads:
            if isinstance(payload, StoredPayload):
                machine.effects.append(e.ReleasePayload(payload, refused=True))
        machine.send(link, m.Problem(query, problem.code, str(problem), problem.hint))


def _run(machine: Machine, number: int) -> Run:
    run = machine.state.runs.get(number)
    if run is None:
        raise BadInput(f"there is no run {number}", "pilotfish status lists the runs")
    return run


def _open(machine: Machine, link: int, message: m.Open, payloads: list[Payload]) -> None:
    state = machine.state
    number = state.run_uids.get(message.uid)
    if number is None:
        if state.next_run > MAX_RUN:
            raise BadInput("this pool has had too many runs", "start a new one: PILOTFISH_HOME=… pilotfish run …")
        pool_commands.check_options(message.options)
        number = state.next_run
        machine.record(f.RunOpened(number, message.uid, message.options))
        if message.options.application:
            machine.effects.append(e.StartApplication(number, message.uid, message.options.application))
            author_disconnected(machine, state.runs[number])
    run = state.runs[number]
    if message.feeds:
        machine.subscriptions.authors[number] = link
    machine.send(link, m.Opened(run.uid, number, len(run.tasks), len(run.specs), run.advanced))


def _submit(machine: Machine, link: int, message: m.Submit, payloads: list[Payload]) -> None:
    run = _run(machine, message.run)
    machine.subscriptions.authors[run.id] = link
    codes, inputs = payloads[: len(message.specs)], payloads[len(message.specs) :]
    known_specs, known = len(run.specs) - message.first_spec, len(run.tasks) - message.first
    if known_specs < 0 or known < 0:
        raise BadInput(f"tasks of run {run.id} arrived out of order: first {message.first}, {len(run.tasks)} known", "send them again")
    if known < len(message.tasks) or known_specs < len(message.specs):
        _refuse_growth(machine, run)
    deps = _read_tasks(run, message, known)
    expected = _read_expected_files(run, message, known, deps)
    _check_contents(machine, (content for spec in message.specs for content in spec.contents))
    _check_contents(machine, (content for wanted in message.contents.values() for content in wanted))
    specs = [_with_code(spec, code) for spec, code in zip(message.specs[known_specs:], codes[known_specs:], strict=True)]
    # From here on, nothing may be refused: a refusal would release payloads a second time.
    for payload in (*codes[:known_specs], *inputs[:known]):
        machine.release_payload(payload)
    if specs:
        machine.record(f.SpecsAdded(run.id, len(run.specs), specs))
        agent_messages.record_known_holders(machine, (content.digest for spec in specs for content in spec.contents))
    if message.tasks[known:]:
        contents = {message.first + offset: wanted for offset, wanted in message.contents.items() if offset >= known}
        numbers = [spec for spec, _ in message.tasks[known:]]
        needed = deps, contents, message.costs[known:], expected
        machine.record(f.TasksAdded(run.id, len(run.tasks), numbers, inputs[known:], *needed))
        agent_messages.record_known_holders(machine, (content.digest for wanted in contents.values() for content in wanted))
        hopeless = {other: None for needed in deps.values() for other in needed if run.tasks[other].state in (FAILED, CANCELLED)}
        if hopeless:
            machine.after_failure([run.tasks[index] for index in hopeless])
    if message.advance > run.advanced:
        machine.record(f.ApplicationAdvanced(run.id, message.advance))
    machine.send(link, m.Accepted(run.id, len(run.tasks)))


def _refuse_growth(machine: Machine, run: Run) -> None:
    if run.closed:
        raise BadInput(f"run {run.id} is closed ({run.closed}): it accepts no more tasks", "open another run")
    if machine.journal_full:
        raise JournalFull(
            "the disk of the journal is full: no new tasks can be taken", "free some space; known tasks continue automatically"
        )


def _with_code(spec: TaskSpec, code: Payload) -> TaskSpec:
    for name, amount in (*spec.request.amounts(), ("cores_max", spec.request.cores_max), ("time_s", spec.time_s)):
        if not 0 <= amount <= MAX_AMOUNT:
            shown = f"{show_bytes(amount)} of memory" if name == MEMORY else f"{amount:g} {name}"
            raise BadInput(f"a task asks for {shown}", f"ask for at most {show_bytes(MAX_AMOUNT) if name == MEMORY else f'{MAX_AMOUNT:g}'}")
    if not 1 <= spec.request.nodes <= MAX_COUNT or (spec.request.nodes > 1 and spec.request.cores_max):
        raise BadInput(f"a task asks for {spec.request.nodes} nodes", "ask for 1 or more, and for a fixed number of cores on each")
    for name, text in (("requirement", spec.requirement), ("rank", spec.rank)):
        try:
            text and parse(text)
        except BadExpression as problem:
            raise BadInput(f"{name}: {problem}", "see docs/reference/expressions.md") from problem
    for name, count in (("retries", spec.retries), ("losses", spec.losses), ("priority", spec.priority)):
        if not -MAX_COUNT <= count <= MAX_COUNT:
            raise BadInput(f"{name} is {count}", f"choose a number up to {MAX_COUNT}")
    return msgspec.structs.replace(spec, code=code)


def _check_contents(machine: Machine, contents: Iterable[Content]) -> None:
    for content in contents:
        known = machine.state.contents.get(content.digest)
        if not DIGEST.match(content.digest) or not 0 <= content.size <= MAX_AMOUNT or (known is not None and known.size != content.size):
            raise BadInput(f"a file of {content.size} bytes cannot be called {content.digest!r}", "name it by its SHA-256")
        if known is None and not content.path:
            raise BadInput(f"no worker has the content {content.digest}", "give the path of the file, or the file that a task has made")


def _read_tasks(run: Run, message: m.Submit, known: int) -> dict[int, list[int]]:
    """Refuses invalid tasks. Returns the dependencies of the new tasks."""
    specs = message.first_spec + len(message.specs)
    if any(not 0 <= offset < len(message.tasks) for offset in message.contents):
        raise BadInput(f"contents are given for tasks of run {run.id} that are not there", "send them with the task")
    if message.costs and len(message.costs) != len(message.tasks):
        raise BadInput(f"{len(message.costs)} costs are given for {len(message.tasks)} tasks of run {run.id}", "send one for each, or none")
    if not all(MIN_COST <= cost <= MAX_COST for cost in message.costs):
        wrong = next(cost for cost in message.costs if not MIN_COST <= cost <= MAX_COST)
        raise BadInput(f"cost: {wrong:g} is not between {MIN_COST:g} and {MAX_COST:g}", "give its duration relative to the other tasks")
    for spec, _ in message.tasks[known:]:
        if not 0 <= spec < max(specs, len(run.specs)):
            raise BadInput(f"run {run.id} has no spec {spec}", "send the spec before the task")
    deps: dict[int, list[int]] = {}
    for offset, needed in message.deps.items():
        index = message.first + offset
        if offset < known:
            continue
        if offset >= len(message.tasks):
            raise BadInput(f"dependencies are given for task {run.id}.{index}, which is not there", "send them with the task")
        if any(not 0 <= other < index for other in needed):
            raise BadInput(f"task {run.id}.{index} depends on {needed}, which is not before it", "a task may need earlier tasks only")
        deps[index] = sorted(set(needed))
    return deps


def _read_expected_files(run: Run, message: m.Submit, known: int, deps: dict[int, list[int]]) -> dict[int, tuple[ExpectedFile, ...]]:
    """Checks the files that earlier tasks will leave for the new tasks. Adds these earlier tasks to the dependencies."""
    found: dict[int, tuple[ExpectedFile, ...]] = {}
    for offset, files in message.expected_files.items():
        index = message.first + offset
        if not 0 <= offset < len(message.tasks) or any(not 0 <= file.maker < index for file in files):
            raise BadInput(f"task {run.id}.{index} expects files of tasks that are not before it", "a task may need earlier tasks only")
        if offset < known:
            continue
        number = message.tasks[offset][0]
        spec = run.specs[number] if number < len(run.specs) else message.specs[number - message.first_spec]
        if spec.kind != "exec" or not spec.launch.get("sandbox"):
            raise BadInput(f"task {run.id}.{index} expects files and has no directory for them", "only executables in sandboxes may")
        found[index] = files
        deps[index] = sorted({*deps.get(index, ()), *(file.maker for file in files)})
    return found


def _close(machine: Machine, link: int, message: m.Close, payloads: list[Payload]) -> None:
    run = _run(machine, message.run)
    if not run.closed:
        machine.record(f.RunClosed(run.id, "by its client"))


def _watch(machine: Machine, link: int, message: m.Watch, payloads: list[Payload]) -> None:
    run = _run(machine, message.run)
    # If the journal was damaged, the order of ended tasks may differ from the order in which clients counted them.
    cursor = 0 if machine.history_damaged else max(0, min(message.cursor, len(run.ended)))
    machine.subscriptions.links[link][run.id] = Subscription(cursor, message.payloads)


def _taken(machine: Machine, link: int, message: m.Taken, payloads: list[Payload]) -> None:
    run = _run(machine, message.run)
    count = min(message.count, len(run.ended))
    if not run.options.owned or count <= run.outputs_taken:
        return
    for index in run.ended[run.outputs_taken : count]:
        machine.release_payload(run.tasks[index].output)
    machine.record(f.OutputsTaken(run.id, count))


def _ask(machine: Machine, link: int, message: m.Ask, payloads: list[Payload]) -> None:
    if message.kind not in ANSWERS and message.kind != "tail":
        raise BadInput(f"unknown question {message.kind!r}", f"known are: {', '.join(sorted(ANSWERS))}")
    for name in message.arguments:
        if name not in ARGUMENTS.split():
            hint = "the master may run another version of Pilotfish than the client; restart it: pilotfish stop"
            raise BadInput(f"the master does not know the argument {name!r} of the request {message.kind!r}", hint)
    if message.kind == "tail":
        _tail(machine, link, message)
        return
    answer = _answer_once(machine, message)
    if isinstance(answer, bytes | StoredPayload):
        machine.effects.append(e.Send(link, m.Answer(message.query, {"length": sent_bytes(answer, whole=True)}), [answer], whole=True))
    else:
        machine.send(link, m.Answer(message.query, answer))


ANSWERS: dict[str, Callable[[Machine, dict[str, Any]], Any]] = {**queries.QUERIES, **pool_commands.COMMANDS, **site_events.COMMANDS}
ARGUMENTS = (
    "all deadline key_id limit local now offset pilot pilots priority reason run share site state stream subject task tasks uid weight "
    "which worker"
)
"""Names of the arguments of all requests."""


def _answer_once(machine: Machine, message: m.Ask) -> Any:
    """Carries out a request once and returns its answer. A client that lost the answer asks again and gets the first answer. A request that
    recorded no facts changed nothing, so it may run again.
    """
    if len(message.request) > MAX_REQUEST:
        raise BadInput(f"the name of the request has {len(message.request)} characters", f"use at most {MAX_REQUEST}")
    if message.request in machine.state.answers:
        return machine.state.answers[message.request]
    before = len(machine.facts)
    answer = ANSWERS[message.kind](machine, message.arguments)
    if message.request and len(machine.facts) > before:
        machine.record(f.RequestAnswered(message.request, answer))
    return answer


def _tail(machine: Machine, link: int, message: m.Ask) -> None:
    """Asks the worker that runs a task for the output so far. ``peeked`` passes the reply of the worker to the client."""
    task = lookup.find_task(machine.state, message.arguments.get("task"))
    stream, offset = queries.read_number(message.arguments, "stream", 1), queries.read_number(message.arguments, "offset", 0)
    to_worker = machine.link_of(task.worker.id) if task.worker is not None else None
    if to_worker is None:
        machine.send(link, m.Answer(message.query, {"known": False, "running": task.state in (ASSIGNED, RUNNING), "offset": 0}))
        return
    subscriptions = machine.subscriptions
    subscriptions.next_peek += 1
    subscriptions.peeks[subscriptions.next_peek] = (link, message.query)
    machine.send(to_worker, m.Peek(subscriptions.next_peek, task.id, task.attempt, stream, offset))
    machine.set_timer(machine.now + PEEK_S, peek_expired, str(subscriptions.next_peek))


def link_closed(machine: Machine, link: int) -> None:
    subscriptions = machine.subscriptions
    subscriptions.paused.pop(link, None)
    if subscriptions.links.pop(link, None) is None:
        return
    for query in [query for query, (asker, _) in subscriptions.peeks.items() if asker == link]:
        del subscriptions.peeks[query]
    for number in [number for number, author in subscriptions.authors.items() if author == link]:
        run = machine.state.runs.get(number)
        del subscriptions.authors[number]
        if run is not None and not run.finished:
            author_disconnected(machine, run)


def author_disconnected(machine: Machine, run: Run) -> None:
    machine.subscriptions.disconnected_at[run.id] = machine.now
    machine.set_timer(machine.now + _author_timeout_s(machine, run), author_expired, str(run.id))


def _author_timeout_s(machine: Machine, run: Run) -> float:
    """Returns the seconds to wait for the client of a run. For an application the wait is short: the master restarts its process."""
    return min(APPLICATION_RESTART_S, machine.settings.author_s) if run.options.application else machine.settings.author_s


def author_expired(machine: Machine, key: str) -> None:
    """Closes a run whose client stays disconnected. If the client owned the run, the run is cancelled instead."""
    run = machine.state.runs.get(int(key))
    if run is None or run.finished or run.id in machine.subscriptions.authors:
        return
    if machine.now < machine.subscriptions.disconnected_at.get(run.id, machine.now) + _author_timeout_s(machine, run):
        return  # the client reconnected; a later timer was set at its last disconnection
    if run.options.application and not run.closed:
        machine.effects.append(e.StartApplication(run.id, run.uid, run.options.application))
        author_disconnected(machine, run)
    elif run.options.owned:
        pool_commands.cancel_run(machine, run, "the client that owned it disconnected")
    elif not run.closed:
        machine.record(f.RunClosed(run.id, CLIENT_DISCONNECTED))


_HANDLERS: dict[type, Callable[[Machine, int, Any, list[Payload]], None]] = {
    m.Open: _open,
    m.Submit: _submit,
    m.Close: _close,
    m.Watch: _watch,
    m.Taken: _taken,
    m.Ask: _ask,
}
