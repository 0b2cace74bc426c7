"""Checks whether a pool can meet the demands of tasks, so that a program does not wait for ever without a message."""

from __future__ import annotations

import math
import shlex
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from pilotfish.client.pools import DEFAULT_POOL, selected_pool
from pilotfish.client.waiting_reasons import HOPELESS, MAY_CHANGE, STARTING, is_hopeless, reason_codes
from pilotfish.errors import PilotfishError
from pilotfish.model.task import TaskSpec
from pilotfish.plugins import SECTIONS

if TYPE_CHECKING:
    from pilotfish.api.futures import TaskFuture
    from pilotfish.api.run_futures import RunFutures

ASK_AFTER_S = 0.3
ASK_AGAIN_S = 5.0
START_CHECK_S = 0.02
"""Seconds between two questions while the worker of a private pool starts."""
MAX_START_S = 30.0
"""Maximum seconds that a submission waits for the worker of a private pool."""
OPTIONS = {"requirement": "requirement", "tags": "tags", "too-few-nodes": "nodes", "python": "form"}
"""Maps the code of a reason for waiting to the task option that causes it."""


class NoSuitableWorker(PilotfishError):
    """The private pool of an Executor has no worker that can run the call, and can never get one."""

    code = "P4104"


class WorkerCheck:
    """Checks the first task of each spec with demands, such as memory or tags, that some workers possibly do not meet.

    A private pool has one worker and never gets a second one. If this worker does not meet a demand, the submission raises an error. Any
    other pool can get more workers, so the tasks wait. If waiting is useless, the program prints the explanation of the master once.
    """

    def __init__(self, session: RunFutures, private_cores: int) -> None:
        self._session = session
        self._private_cores = private_cores
        self._specs: dict[int, TaskSpec] = {}
        self._seen: set[int] = set()

    def add(self, number: int, spec: TaskSpec) -> None:
        """Adds a spec. If the spec has demands, its first task will be checked. Ignores specs that were added before."""
        if number in self._seen:
            return
        self._seen.add(number)
        request = spec.request
        demands = request.cores > (self._private_cores or 1) or request.memory or request.gpus or request.custom or request.nodes > 1
        may_lack_python = bool(spec.python and self._session.sites)  # the Python of a site is unknown before its first worker joins
        if demands or spec.tags or spec.requirement or may_lack_python or (spec.time_s and not self._private_cores):
            self._specs[number] = spec

    def submitted(self, number: int, future: TaskFuture[Any]) -> None:
        """Checks a submitted task if it is the first task of its spec. Raises NoSuitableWorker if a private pool cannot run it."""
        spec = self._specs.get(number)
        if spec is None:
            return
        if not self._private_cores:
            if self._specs.pop(number, None) is not None:
                self._ask_later(future, ASK_AFTER_S)
        elif self._session.client.in_other_thread():
            self._refuse_if_unmet(spec, future)
            self._specs.pop(number, None)

    def _refuse_if_unmet(self, spec: TaskSpec, future: TaskFuture[Any]) -> None:
        deadline = time.monotonic() + MAX_START_S
        while not future.done() and not future.running() and time.monotonic() < deadline:
            try:
                reasons = self._session.client.ask("why", task=future.task_id)["reasons"]
            except PilotfishError:
                return  # the futures get this error if the master cannot be reached
            unmet = [reason for reason in reasons if reason["code"] in HOPELESS or reason["code"] == "held"]
            if unmet:
                future.cancel()
                text = f"the private pool of this executor can never run the call: {unmet[0]['text']}"
                raise NoSuitableWorker(text, self._fix(spec, unmet[0]))
            if not any(reason["code"] == STARTING for reason in reasons):
                return
            time.sleep(START_CHECK_S)

    def _fix(self, spec: TaskSpec, reason: dict[str, Any]) -> str:
        if reason["code"] == "held":
            return str(reason["commands"][0])
        if spec.request.cores > self._private_cores:
            return f"ask for less: cores={self._private_cores}, or give the pool more cores: max_workers={math.ceil(spec.request.cores)}"
        asked = {"memory": spec.request.memory, "gpus": spec.request.gpus, "resources": spec.request.custom}
        option = OPTIONS.get(reason["code"], " or ".join(name for name, amount in asked.items() if amount))
        return f"change the option {option}, or use a pool with such workers: pool= or sites="

    # --- pools of the user --------------------------------------------------------------------------------------------------------

    def _ask_later(self, future: TaskFuture[Any], after_s: float) -> None:
        timer = threading.Timer(after_s, self._warn_if_unmet, (future,))
        timer.daemon = True
        timer.start()

    def _warn_if_unmet(self, future: TaskFuture[Any]) -> None:
        """If waiting is useless, prints why the task waits. If the reasons can change, repeats this check later."""
        client = self._session.client
        if future.done() or future.running():
            return
        try:
            answer = client.ask("why", task=future.task_id)
            hopeless = is_hopeless(client, answer)
        except PilotfishError:
            return  # the futures get this error
        codes = reason_codes(answer)
        if hopeless:
            print_reasons(answer, self._session.pool.name)
        elif codes & MAY_CHANGE or answer["state"] == "waiting":
            self._ask_later(future, ASK_AFTER_S if STARTING in codes else ASK_AGAIN_S)


def print_reasons(answer: dict[str, Any], pool: str) -> None:
    """Prints an answer to ``why`` to standard error: the sentence, and the commands that fix the problem."""
    if sys.stderr is not None:
        print("\n".join([f"pilotfish: {answer['sentence']}", *fixes(answer, pool)]), file=sys.stderr, flush=True)


def fixes(answer: dict[str, Any], pool: str) -> list[str]:
    """Returns a line for each command in an answer to ``why``."""
    commands = dict.fromkeys(command for reason in answer.get("reasons", ()) for command in reason.get("commands", ()))
    return [f"  fix: {_with_pool(command, pool)}" for command in commands]


def _with_pool(command: str, pool: str) -> str:
    """Adds ``--pool`` to a command. Returns the command unchanged if it selects this pool also without ``--pool``, or if it has no option
    ``--pool``."""
    words = command.split(" ", 2)
    if pool == DEFAULT_POOL == selected_pool() or words[0] != "pilotfish":
        return command
    takes_pool = any(entries[words[1]].pool is True for entries in SECTIONS.values() if words[1] in entries)
    return " ".join([*words[:2], f"--pool {shlex.quote(pool)}", *words[2:]]) if takes_pool else command
