"""An Assign, read: the attempts that are new to this agent, each with why it cannot be made here, if it cannot. Pure."""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

from .work import Attempt, Spec, Work

UNKNOWN = Spec(-1, "", 0.0, {}, {}, b"")


def read_assignment(header: Sequence[Any], body: Any, work: Work) -> List[Tuple[Attempt, str]]:
    """Its specs are kept in ``work``. Raises ValueError or the like if it cannot be read."""
    view = memoryview(body)
    offset = 0
    for number, kind, time_s, needs, launch, length, contents, _, _, _ in header[1]:
        new = Spec(number, kind, time_s, needs, launch, bytes(view[offset : offset + length]))
        new.contents = contents
        work.keep_spec(new)
        offset += length
    found: List[Tuple[Attempt, str]] = []
    for task, number, spec_number, length, cores, memory, contents in header[2]:
        payload = view[offset : offset + length]
        offset += length
        if not work.is_news(task, number):
            continue
        spec = work.specs.get(spec_number)
        if spec is None:
            found.append((Attempt(task, number, UNKNOWN, payload, ()), "its spec never came"))
            continue
        attempt = Attempt(task, number, spec, payload, work.needs_of(spec, cores, memory))
        if contents or spec.contents:
            attempt.contents = list({content[0]: content for content in (*spec.contents, *contents)}.values())
        found.append((attempt, work.too_big(attempt.needs)))
    if offset != len(view):
        raise ValueError("the body does not have the announced length")
    return found
