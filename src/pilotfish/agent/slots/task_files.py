"""Files that other tasks left for an executable: the agent puts their entries before its payload, and the slot takes them off again."""

from __future__ import annotations

import json
from typing import Any, List, Sequence, Tuple

from ...portable.payload_format import begins_with, pack, unpack

MARK = b'{"handed"'
"""A payload that has some begins like this."""


def wrap(payload: Any, entries: Sequence[Any]) -> bytes:
    """``entries``: [name, mode, digest, size], as in the inputs of a task."""
    return pack([json.dumps({"handed": entries}).encode(), payload])


def unwrap(payload: memoryview) -> Tuple[List[Any], memoryview]:
    if not begins_with(payload, MARK):
        return [], payload
    try:
        head, rest = unpack(payload)
        return list(json.loads(bytes(head))["handed"]), rest
    except (ValueError, KeyError, TypeError):
        return [], payload  # which is no task then, and will be told so
