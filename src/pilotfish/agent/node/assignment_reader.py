"""Reads Assign messages, and finds attempts that cannot run on this worker."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

from ...portable.payload_format import add_files
from ..peers.contacts import MalformedMessage
from .attempts import Attempt, AttemptQueue, AttemptSpec

UNKNOWN = AttemptSpec(-1, "", 0.0, {}, {}, b"")
_NUMBER = (int, float)
_CONTENT = (str, int, str, int, int)
_SPEC = (int, str, _NUMBER, dict, dict, int, list, str, str, dict)
_TASK = (int, int, int, int, _NUMBER, int, list, list)
_FILE = (str, int, str, int)


def read_assignment(header: Sequence[Any], body: Any, attempts: AttemptQueue) -> List[Tuple[Attempt, str]]:
    """Returns the attempts of an Assign message that this agent does not know yet. Each attempt comes with the reason why it cannot run
    here, or "" if it can run.

    Adds the specs of the message to ``attempts``. A malformed message raises IndexError, KeyError, TypeError or ValueError.
    """
    view = memoryview(body)
    offset = 0
    for number, kind, time_s, needs, launch, length, contents, _, _, _ in header[1]:
        new = AttemptSpec(number, kind, time_s, needs, launch, bytes(view[offset : offset + length]))
        new.contents = contents
        attempts.keep_spec(new)
        offset += length
    attempts_read: List[Tuple[Attempt, str]] = []
    for task, number, spec_number, length, cores, memory, contents, files in header[2]:
        payload = view[offset : offset + length]
        offset += length
        if not attempts.is_new(task, number):
            continue
        spec = attempts.specs.get(spec_number)
        if spec is None:
            attempts_read.append((Attempt(task, number, UNKNOWN, payload, ()), "its spec is missing"))
            continue
        attempt = Attempt(task, number, spec, add_files(payload, files) if files else payload, attempts.needs_of(spec, cores, memory))
        if contents or spec.contents:
            attempt.contents = list({content[0]: content for content in (*spec.contents, *contents)}.values())
        attempts_read.append((attempt, attempts.why_too_big(attempt.needs)))
    if offset != len(view):
        raise ValueError("the body does not have the announced length")
    return attempts_read


def check_assignment(header: Sequence[Any], body: Any) -> None:
    """Raises MalformedMessage if an Assign of a peer is not well-formed. Messages of the master need no such check."""
    if len(header) != 3:
        raise MalformedMessage("an Assign of %d fields" % len(header))
    length = sum(row[5] for row in _rows(header[1], _SPEC)) + sum(row[3] for row in _rows(header[2], _TASK))
    for row in (*header[1], *header[2]):
        _rows(row[6], _CONTENT)
    for row in header[2]:
        _rows(row[7], _FILE)
    if length != len(body):
        raise MalformedMessage("the body does not have the announced length")


def _rows(rows: Any, types: Sequence[Any]) -> List[Any]:
    for row in rows if isinstance(rows, list) else [rows]:
        if not isinstance(row, list) or len(row) != len(types) or not all(map(isinstance, row, types)):
            raise MalformedMessage("not a row of an Assign: %.80r" % (row,))
    return list(rows)
