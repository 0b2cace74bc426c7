"""Adds the files that other tasks left to a payload and takes them off. The agent adds them, the slot takes them off."""

from __future__ import annotations

import json
from typing import Any, List, Sequence, Tuple

from ...portable.payload_format import begins_with, pack, unpack

MARK = b'{"handed"'
"""Prefix of a payload with such files."""


def wrap(payload: Any, entries: Sequence[Any]) -> bytes:
    """Add ``entries``, [name, mode, digest, size] each, as in the inputs of a task."""
    return pack([json.dumps({"handed": entries}).encode(), payload])


def unwrap(payload: memoryview) -> Tuple[List[Any], memoryview]:
    if not begins_with(payload, MARK):
        return [], payload
    try:
        head, rest = unpack(payload)
        return list(json.loads(bytes(head))["handed"]), rest
    except (ValueError, KeyError, TypeError):
        return [], payload  # not a valid task then, which is reported later
