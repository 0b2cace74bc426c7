"""Checks the specs and contents that clients send."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pilotfish.errors import BadInput, JournalFull
from pilotfish.model.contents import DIGEST, Content
from pilotfish.model.quantities import show_bytes
from pilotfish.model.task import MEMORY, TaskSpec
from pilotfish.portable.expressions.evaluation import BadExpression, parse

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

MAX_AMOUNT = 1e15
"""Maximum amount of any resource."""
MAX_COUNT = 1_000_000_000


def refuse_if_full(machine: Machine) -> None:
    if machine.journal_full:
        raise JournalFull(
            "the disk of the journal is full: no new tasks can be taken", "free some space; known tasks continue automatically"
        )


def check_spec(spec: TaskSpec) -> TaskSpec:
    for name, amount in (*spec.request.amounts(), ("cores_max", spec.request.cores_max), ("time_s", spec.time_s)):
        if not 0 <= amount <= MAX_AMOUNT:
            shown = f"{show_bytes(amount)} of memory" if name == MEMORY else f"{amount:g} {name}"
            raise BadInput(f"a task asks for {shown}", f"ask for at most {show_bytes(MAX_AMOUNT) if name == MEMORY else f'{MAX_AMOUNT:g}'}")
    if not 1 <= spec.request.nodes <= MAX_COUNT or (spec.request.nodes > 1 and spec.request.cores_max):
        raise BadInput(f"a task asks for {spec.request.nodes} nodes", "ask for 1 or more, and for a fixed number of cores on each")
    if spec.concurrency_limit[0] and not 1 <= spec.concurrency_limit[1] <= MAX_COUNT:
        raise BadInput(f"the concurrency limit {spec.concurrency_limit[0]!r} is {spec.concurrency_limit[1]}", "allow 1 task or more")
    for name, text in (("requirement", spec.full_requirement), ("rank", spec.rank)):
        try:
            text and parse(text)
        except BadExpression as problem:
            raise BadInput(f"{name}: {problem}", "see docs/reference/expressions.md") from problem
    for name, count in (("retries", spec.retries), ("losses", spec.losses), ("priority", spec.priority)):
        if not -MAX_COUNT <= count <= MAX_COUNT:
            raise BadInput(f"{name} is {count}", f"choose a number up to {MAX_COUNT}")
    return spec


def check_contents(machine: Machine, contents: Iterable[Content]) -> None:
    for content in contents:
        known = machine.state.contents.get(content.digest)
        if not DIGEST.match(content.digest) or not 0 <= content.size <= MAX_AMOUNT or (known is not None and known.size != content.size):
            raise BadInput(f"a file of {content.size} bytes cannot be called {content.digest!r}", "name it by its SHA-256")
        if known is None and not content.path:
            raise BadInput(f"no worker has the content {content.digest}", "give the path of the file, or the file that a task has made")
