"""Tests head and tail of output, and the description of the node."""

from __future__ import annotations

import os
import random
import tempfile

import pytest

from pilotfish.agent.node import node_description
from pilotfish.agent.slots.output_capture import HeadAndTail, read_head_and_tail


@pytest.mark.parametrize("seed", range(30))
def test_head_and_tail_keep_the_ends_and_count_what_is_dropped(seed: int) -> None:
    dice = random.Random(seed)
    cap = dice.choice([2, 10, 100])
    kept = HeadAndTail(cap)
    whole = b""
    for _ in range(dice.randrange(30)):
        piece = dice.randbytes(dice.randrange(25))
        kept.add(piece)
        whole += piece
    text, dropped = kept.result()
    assert len(text) + dropped == len(whole)
    if dropped:
        half = cap // 2
        assert text == whole[:half] + whole[len(whole) - half :]
    else:
        assert text == whole
    with tempfile.TemporaryFile() as file:
        file.write(whole)
        file.flush()
        text, dropped = read_head_and_tail(file.fileno(), len(whole), cap)
    assert len(text) + dropped == len(whole) and whole.startswith(text[: cap // 2])


def test_peeking_continues_at_the_offset_and_skips_dropped_bytes() -> None:
    kept = HeadAndTail(8)
    kept.add(b"abcdefgh")
    assert kept.since(0, 100) == (0, b"abcd")
    assert kept.since(4, 100) == (4, b"efgh")
    assert kept.since(8, 100) == (8, b"")
    kept.add(b"ijklmnopqrst")
    offset, data = kept.since(4, 100)
    assert offset > 4 and b"abcdefghijklmnopqrst"[offset:] == data


def test_the_machine_is_described_in_plain_values() -> None:
    facts = node_description.describe(os.getcwd())
    assert facts["cores"] >= 1 and facts["memory"] > 1 << 20 and facts["benchmark"] > 0
    assert facts["hostname"] and facts["python"].startswith("3.")
