"""Files that other tasks left for an executable: the agent puts their entries before its payload, and the slot takes them off again."""

from __future__ import annotations

import json
from typing import Any, List, Sequence, Tuple

from .parcels import pack, unpack

MARK = b'{"handed"'
"""A payload that has some begins like this."""


def wrap(payload: Any, entries: Sequence[Any]) -> bytes:
    """``entries``: [name, mode, digest, size], as in the inputs of a task."""
    return pack([json.dumps({"handed": entries}).encode(), payload])


def unwrap(payload: memoryview) -> Tuple[List[Any], memoryview]:
    start = 4 + 8 * int.from_bytes(payload[:4], "big")
    if payload[start : start + len(MARK)] != MARK:
        return [], payload
    head, rest = unpack(payload)
    return json.loads(bytes(head))["handed"], rest
