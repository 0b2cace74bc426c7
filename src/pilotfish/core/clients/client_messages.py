"""Handles messages from clients: opens runs, adds tasks to them, and answers questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from pilotfish.core.clients import pool_commands, rerun_request
from pilotfish.core.clients.submission_checks import check_contents, check_spec, refuse_if_full
from pilotfish.core.clients.subscriptions import Subscription, peek_expired
from pilotfish.core.data import stored_results
from pilotfish.core.explain import lookup, queries
from pilotfish.core.pilots import site_events
from pilotfish.core.state import CLIENT_DISCONNECTED, Run
from pilotfish.core.workers import agent_messages
from pilotfish.core.workers.python_versions import describe, has_worker_with_python, other_python_fix, places_with_other_python
from pilotfish.errors import BadInput, Correction, IllegalTransition, JournalFull
from pilotfish.model import effects as e
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.contents import KEY_BYTES, RESULT, ExpectedFile
from pilotfish.model.ids import MAX_RUN
from pilotfish.model.states import ASSIGNED, CANCELLED, FAILED, RUNNING
from pilotfish.model.task import MAX_COST, MIN_COST, Payload, StoredPayload, TaskSpec, sent_bytes

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

APPLICATION_RESTART_S = 1.0
"""Maximum seconds from the death of an application's process to its restart. The start of the new process takes about as long."""
REFUSALS = (BadInput, JournalFull)
"""Errors that refuse a request. These errors are raised before the request changes anything. Any other error is a bug, after which the
state is possibly invalid. Such an error ends the master, and the next master starts from the journal."""
NO_QUERY = -1
"""Query number in a Problem that answers an Open or Submit."""
MAX_REQUEST = 100
PEEK_BYTES = 1 << 18
"""Maximum bytes that a client gets when it asks for the last part of an output."""
PEEK_S = 10.0
"""If a worker does not send the output of a running task within this many seconds, the client gets an answer without the output."""


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
        hint = problem.hint
        wrong, right = (hint.wrong, hint.right) if isinstance(hint, Correction) else ("", "")
        machine.send(link, m.Problem(query, problem.code, str(problem), str(hint), wrong, right))


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
    deps, after_any = _read_tasks(run, message, known)
    expected = _read_expected_files(run, message, known, deps)
    check_contents(machine, (content for spec in message.specs for content in spec.contents))
    check_contents(machine, (content for wanted in message.contents.values() for content in wanted))
    new = zip(message.specs[known_specs:], codes[known_specs:], strict=True)
    specs = [check_spec(_complete(spec, code, machine.settings.max_output)) for spec, code in new]
    _check_pythons(machine, run, specs)
    # From here on, refuse nothing: a refusal would release payloads a second time.
    for payload in (*codes[:known_specs], *inputs[:known]):
        machine.release_payload(payload)
    if specs:
        machine.record(f.SpecsAdded(run.id, len(run.specs), specs))
        agent_messages.record_known_holders(machine, (content.digest for spec in specs for content in spec.contents))
    if message.tasks[known:]:
        contents = {message.first + offset: wanted for offset, wanted in message.contents.items() if offset >= known}
        numbers = [spec for spec, _ in message.tasks[known:]]
        needed = deps, contents, message.costs[known:], expected
        keys = message.keys[known * KEY_BYTES :]
        machine.record(f.TasksAdded(run.id, len(run.tasks), numbers, inputs[known:], *needed, after_any=after_any, keys=keys))
        agent_messages.record_known_holders(machine, (content.digest for wanted in contents.values() for content in wanted))
        hopeless = {other: None for needed in deps.values() for other in needed if run.tasks[other].state in (FAILED, CANCELLED)}
        for other in hopeless:
            machine.after_failure([run.tasks[other]])  # one by one: the failure of a skipped task names the task that it needs
        if message.reuse:
            wanted = sorted({message.first + offset for offset in message.reuse if offset >= known})
            after = {message.first + offset: times for offset, times in message.reuse_after.items()}
            stored_results.reuse(machine, [run.tasks[index] for index in wanted], after)
    if message.advance > run.advanced:
        machine.record(f.ApplicationAdvanced(run.id, message.advance))
    machine.send(link, m.Accepted(run.id, len(run.tasks)))


def _refuse_growth(machine: Machine, run: Run) -> None:
    if run.closed:
        raise BadInput(f"run {run.id} is closed ({run.closed}): it accepts no more tasks", "open another run")
    refuse_if_full(machine)


def _complete(spec: TaskSpec, code: Payload, max_output: int) -> TaskSpec:
    """Returns a spec with its code. If the user gave no maximum size of the output, the spec gets the maximum of the pool."""
    launch = spec.launch if "max_output" in spec.launch or not max_output else {**spec.launch, "max_output": max_output}
    return msgspec.structs.replace(spec, code=code, launch=launch)


def _check_pythons(machine: Machine, run: Run, specs: Iterable[TaskSpec]) -> None:
    """Refuses calls that would wait for ever, because every place where the run is allowed to run has a different version of Python."""
    for python in {spec.python: None for spec in specs if spec.python}:
        _check_python(machine, {"run": run.id, "python": python})


def _check_python(machine: Machine, arguments: dict[str, Any]) -> dict[str, Any]:
    """Refuses the version of Python in ``arguments`` if every place where the run is allowed to run has a different version. Clients ask
    before they send the first call, so that the master need not refuse a message that contains tasks. ``found`` in the answer: whether a
    worker has the version. If ``found`` is False, the answer can change when the next worker joins."""
    run, python = lookup.find_run(machine.state, arguments.get("run")), str(arguments.get("python"))
    if places := places_with_other_python(machine.state, python, run.options.sites):
        raise BadInput(f"the calls need Python {python}, and {describe(places)}", other_python_fix(python))
    return {"found": has_worker_with_python(machine.state, python, run.options.sites)}


def _read_tasks(run: Run, message: m.Submit, known: int) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Checks the tasks of a message and returns the dependencies of the new tasks. The first ``known`` tasks of the message were received
    before and are skipped. The result is two dicts. Their keys are the indices of the new tasks. The first dict has the tasks that must
    succeed before the new task. The second dict has the tasks that must end before the new task."""
    specs = message.first_spec + len(message.specs)
    if any(not 0 <= offset < len(message.tasks) for offset in message.contents):
        raise BadInput(f"contents are given for tasks of run {run.id} that are not there", "send them with the task")
    if len(message.keys) not in (0, KEY_BYTES * len(message.tasks)) or any(not 0 <= one < len(message.tasks) for one in message.reuse):
        raise BadInput(f"the keys of tasks of run {run.id} do not fit to the tasks", "send one for each, or none")
    if message.costs and len(message.costs) != len(message.tasks):
        raise BadInput(f"{len(message.costs)} costs are given for {len(message.tasks)} tasks of run {run.id}", "send one for each, or none")
    if not all(MIN_COST <= cost <= MAX_COST for cost in message.costs):
        wrong = next(cost for cost in message.costs if not MIN_COST <= cost <= MAX_COST)
        raise BadInput(f"cost: {wrong:g} is not between {MIN_COST:g} and {MAX_COST:g}", "give its duration relative to the other tasks")
    for spec, _ in message.tasks[known:]:
        if not 0 <= spec < max(specs, len(run.specs)):
            raise BadInput(f"run {run.id} has no spec {spec}", "send the spec before the task")
    return _read_dependencies(run, message, known, message.deps), _read_dependencies(run, message, known, message.after_any)


def _read_dependencies(run: Run, message: m.Submit, known: int, given: dict[int, list[int]]) -> dict[int, list[int]]:
    deps: dict[int, list[int]] = {}
    for offset, needed in given.items():
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
    """Returns, by the index of each new task, the files that earlier tasks will leave for it. Adds these earlier tasks to ``deps``."""
    found: dict[int, tuple[ExpectedFile, ...]] = {}
    for offset, files in message.expected_files.items():
        index = message.first + offset
        if not 0 <= offset < len(message.tasks) or any(not 0 <= file.maker < index for file in files):
            raise BadInput(f"task {run.id}.{index} expects files of tasks that are not before it", "a task may need earlier tasks only")
        if offset < known:
            continue
        spec = _spec_of(run, message, index)
        results = [file.name == RESULT for file in files]
        if any(results):
            if not all(results) or spec.kind == "exec" or any(_spec_of(run, message, file.maker).kind == "exec" for file in files):
                raise BadInput(f"task {run.id}.{index} needs results that it cannot get", "only calls can get results, and only of calls")
        elif spec.kind != "exec" or not spec.launch.get("sandbox"):
            raise BadInput(f"task {run.id}.{index} expects files and has no directory for them", "only executables in sandboxes may")
        found[index] = files
        deps[index] = sorted({*deps.get(index, ()), *(file.maker for file in files)})
    return found


def _spec_of(run: Run, message: m.Submit, index: int) -> TaskSpec:
    """Returns the spec of a task that the master knows, or that the message contains."""
    number = run.tasks[index].spec if index < len(run.tasks) else message.tasks[index - message.first][0]
    return run.specs[number] if number < len(run.specs) else message.specs[number - message.first_spec]


def _close(machine: Machine, link: int, message: m.Close, payloads: list[Payload]) -> None:
    run = _run(machine, message.run)
    if not run.closed:
        machine.record(f.RunClosed(run.id, "by its client"))


def _watch(machine: Machine, link: int, message: m.Watch, payloads: list[Payload]) -> None:
    run = _run(machine, message.run)
    # After damage to the journal, the order of ended tasks can differ from the order in which clients counted these tasks.
    cursor = 0 if machine.history_damaged else max(0, min(message.cursor, len(run.ended)))
    machine.subscriptions.links[link][run.id] = Subscription(cursor, message.payloads)


def _taken(machine: Machine, link: int, message: m.Taken, payloads: list[Payload]) -> None:
    run = _run(machine, message.run)
    count = min(message.count, len(run.ended))
    if not run.options.owned or count <= run.outputs_taken:
        return
    machine.record(f.OutputsTaken(run.id, count))


def _ask(machine: Machine, link: int, message: m.Ask, payloads: list[Payload]) -> None:
    if message.kind not in ANSWERS and message.kind not in ("tail", RERUN):
        raise BadInput(f"unknown question {message.kind!r}", f"known are: {', '.join(sorted((*ANSWERS, RERUN)))}")
    for name in message.arguments:
        if name not in ARGUMENTS.split():
            hint = "the master may run another version of Pilotfish than the client; restart it: pilotfish stop"
            raise BadInput(f"the master does not know the argument {name!r} of the request {message.kind!r}", hint)
    if message.kind == "tail":
        _tail(machine, link, message)
        return
    answer = _answer_once(machine, message, payloads)
    if isinstance(answer, queries.Outputs):
        machine.effects.append(e.Send(link, m.Answer(message.query, answer.data), answer.outputs, whole=True))
    elif isinstance(answer, bytes | StoredPayload):
        machine.effects.append(e.Send(link, m.Answer(message.query, {"length": sent_bytes(answer, whole=True)}), [answer], whole=True))
    else:
        machine.send(link, m.Answer(message.query, answer))


RERUN = "rerun"
"""The only request with payloads."""
ANSWERS: dict[str, Callable[[Machine, dict[str, Any]], Any]] = {
    **queries.QUERIES,
    **pool_commands.COMMANDS,
    **site_events.COMMANDS,
    "rerunnable": rerun_request.rerunnable,
    "check_python": _check_python,
}
ARGUMENTS = (
    "all changes deadline explain key_id keys limit local now offset pilot pilots priority python reason run runs share site sites state "
    "stream subject task tasks weight which worker"
)
"""Names of the arguments of all requests."""


def _answer_once(machine: Machine, message: m.Ask, payloads: list[Payload]) -> Any:
    """Carries out a request and returns the answer. A client that did not receive the answer sends the request again. If the request has
    recorded facts, the client then gets the first answer. Otherwise, the request is carried out again, because it changed nothing."""
    if len(message.request) > MAX_REQUEST:
        raise BadInput(f"the name of the request has {len(message.request)} characters", f"use at most {MAX_REQUEST}")
    if message.request in machine.state.answers:
        for payload in payloads:
            machine.release_payload(payload)
        return machine.state.answers[message.request]
    before = len(machine.facts)
    if message.kind == RERUN:
        answer: Any = rerun_request.rerun(machine, message.arguments, payloads)
    elif payloads:
        raise BadInput(f"{message.kind} takes no payloads", f"only {RERUN} has payloads")
    else:
        answer = ANSWERS[message.kind](machine, message.arguments)
    if message.request and len(machine.facts) > before:
        machine.record(f.RequestAnswered(message.request, answer))
    return answer


def _tail(machine: Machine, link: int, message: m.Ask) -> None:
    """Requests the output so far of a running task from the worker of this task. ``peeked`` passes the reply of the worker to the
    client."""
    task = lookup.find_task(machine.state, message.arguments.get("task"))
    stream, offset = queries.read_number(message.arguments, "stream", 1), queries.read_number(message.arguments, "offset", 0)
    offset = -PEEK_BYTES if message.arguments.get("which") == "end" else offset
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
    """Returns how many seconds the disconnected client of a run has to reconnect. An application has at most ``APPLICATION_RESTART_S``
    seconds, because the master can restart it."""
    return min(APPLICATION_RESTART_S, machine.settings.author_s) if run.options.application else machine.settings.author_s


def author_expired(machine: Machine, key: str) -> None:
    """Handles a client of run ``key`` that did not reconnect in time. If the client is an application, restarts the application. Otherwise,
    cancels the run if the client owns it, and closes the run if not."""
    run = machine.state.runs.get(int(key))
    if run is None or run.finished or run.id in machine.subscriptions.authors:
        return
    if machine.now < machine.subscriptions.disconnected_at.get(run.id, machine.now) + _author_timeout_s(machine, run):
        return  # the client has reconnected since, and its last disconnection set a later timer
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
