"""Passes messages through real JSON, so that each machine sees the same data as in a live pool."""

from __future__ import annotations

import json
from typing import Any

from pilotfish.model import messages as m

Frame = tuple[Any, bytes]
"""Header and body. The header is JSON text, or the message itself to save the cost of JSON."""


def write_from_agent(header: list[Any], parts: list[Any]) -> Frame:
    return json.dumps(header).encode(), b"".join(bytes(part) for part in parts)


def read_from_agent(frame: Frame) -> tuple[Any, list[bytes]]:
    header, body = frame
    message = m.decode_from_agent(header)
    if isinstance(message, m.Results):
        return message, _cut([item.length for item in message.items], body)
    return message, [body] if isinstance(message, m.Peeked) else []


def write_to_agent(message: m.Message, body: bytes) -> Frame:
    return m.encode(message), body


def read_to_agent(frame: Frame) -> tuple[list[Any], bytes]:
    header: list[Any] = json.loads(frame[0])
    return header, frame[1]


def write_from_client(message: m.Message, body: bytes, *, through_json: bool) -> Frame:
    return (m.encode(message) if through_json else message), body


def read_from_client(frame: Frame) -> tuple[Any, list[bytes]]:
    header, body = frame
    message = m.decode_from_client(header) if isinstance(header, bytes) else header
    if isinstance(message, m.Submit):
        return message, _cut([*message.code_lengths, *(length for _, length in message.tasks)], body)
    if isinstance(message, m.Ask):
        return message, _cut(message.lengths, body)
    return message, []


def write_to_client(message: m.Message, body: bytes, *, through_json: bool) -> Frame:
    return (m.encode(message) if through_json else message), body


def read_to_client(frame: Frame) -> tuple[Any, bytes]:
    header, body = frame
    return (m.decode_to_client(header) if isinstance(header, bytes) else header), body


def _cut(lengths: list[int], body: bytes) -> list[bytes]:
    assert sum(lengths) == len(body), f"a body of {len(body)} bytes, its header counts {sum(lengths)}"
    parts = []
    start = 0
    for length in lengths:
        parts.append(body[start : start + length])
        start += length
    return parts
