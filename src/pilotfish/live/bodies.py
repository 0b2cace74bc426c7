"""Cuts the body of a frame into the payloads that its header counts. A peer whose sums do not add up is not believed."""

from __future__ import annotations

from pilotfish.errors import ConnectionFailed
from pilotfish.model import messages as m


def split_body(message: object, body: memoryview) -> list[memoryview]:
    if isinstance(message, m.Results):
        lengths = [item.length for item in message.items]
    elif isinstance(message, m.Submit):
        if len(message.code_lengths) != len(message.specs):
            raise ConnectionFailed("a submission counts its specs and their code differently")
        lengths = [*message.code_lengths, *(length for _, length in message.tasks)]
    elif isinstance(message, m.Peeked):
        return [body]
    else:
        lengths = []
    if sum(lengths) != len(body) or min(lengths, default=0) < 0:
        raise ConnectionFailed(f"a body of {len(body)} bytes does not match its header, which counts {sum(lengths)}")
    parts = []
    start = 0
    for length in lengths:
        parts.append(body[start : start + length])
        start += length
    return parts
