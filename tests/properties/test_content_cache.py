"""Tests the content cache for any order of received bytes, and for processes that are killed at any moment."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish.portable.transfer.cache_directory import content_path
from pilotfish.portable.transfer.content_cache import ContentCache
from pilotfish.portable.transfer.file_copy import HOLE_BYTES

PATIENCE_S = 120.0

stretches = st.lists(st.tuples(st.sampled_from([b"\0", b"x", b"yz"]), st.integers(0, 3 * HOLE_BYTES)), max_size=6)


@settings(max_examples=60, deadline=None)
@given(stretches, st.lists(st.integers(1, 5 * HOLE_BYTES), max_size=12), st.randoms(use_true_random=False))
def test_any_pieces_and_interruptions_give_the_same_content(
    parts: list[tuple[bytes, int]], lengths: list[int], dice: random.Random
) -> None:
    content = b"".join(letters * count for letters, count in parts)
    digest = hashlib.sha256(content).hexdigest()
    with tempfile.TemporaryDirectory() as directory:
        cache = ContentCache(directory, 1 << 40)
        for length in [*lengths, len(content)]:
            with cache.incoming(digest, len(content)) as incoming:
                piece = content[incoming.offset : incoming.offset + length]
                if not piece.strip(b"\0") and dice.random() < 0.5:
                    incoming.skip(len(piece))
                else:
                    incoming.write(piece)
                if incoming.offset == len(content):
                    assert Path(incoming.finish()).read_bytes() == content
                    break
        assert cache.verified_path(digest, len(content)) and cache.contents() == {digest: len(content)}
        copied = os.path.join(directory, "own")
        Path(copied).write_bytes(content)
        assert ContentCache(directory, 1 << 40).adopt_copy(digest, len(content), copied)
        path = cache.verified_path(digest, len(content))
        assert path and Path(path).read_bytes() == content


BUSY_AGENT = """
import hashlib, os, random, sys
from pilotfish.portable.transfer.cache_directory import content_path
from pilotfish.portable.transfer.content_cache import ContentCache
from pilotfish.portable.transfer.file_locks import WriterBusy
from pilotfish.portable.transfer.incoming_content import NoSpace
directory, seed = sys.argv[1], int(sys.argv[2])
dice = random.Random(seed)
cache = ContentCache(directory, 40 << 20, clock=lambda: os.stat(directory).st_atime + dice.random() * 1e9)
while True:
    which = dice.randrange(12)
    content = (b"%d" % which) * ((1 + which % 5) << 20)
    digest = hashlib.sha256(content).hexdigest()
    path = cache.verified_path(digest, len(content))
    assert path is not None or not cache.damaged, "a content was damaged"
    try:
        if path is not None:
            with open(path, "rb") as file:
                assert file.read() == content
        elif dice.random() < 0.3:
            own = os.path.join(directory, "own-%d" % seed)
            with open(own, "wb") as file:
                file.write(content)
            assert cache.adopt(own) == (digest, len(content))
        else:
            with cache.incoming(digest, len(content)) as incoming:
                while incoming.offset < incoming.size and dice.random() < 0.9:
                    incoming.write(content[incoming.offset : incoming.offset + (1 << 19)])
                if incoming.offset == incoming.size:
                    incoming.finish()
    except (WriterBusy, NoSpace, FileNotFoundError):
        pass
    os.write(1, b".")
"""


def test_agents_that_share_it_and_are_killed_at_any_moment_leave_nothing_wrong(tmp_path: Path) -> None:
    directory = str(tmp_path / "cache")
    ContentCache(directory, 1)
    dice = random.Random(1)
    deadline = time.monotonic() + PATIENCE_S
    for round_number in range(8):
        agents = [
            subprocess.Popen([sys.executable, "-c", BUSY_AGENT, directory, str(4 * round_number + number)], stdout=subprocess.PIPE)
            for number in range(3)
        ]
        try:
            for agent in agents:
                assert agent.stdout is not None
                for _ in range(dice.randrange(1, 40)):
                    assert agent.stdout.read(1) == b"." and time.monotonic() < deadline
        finally:
            for agent in agents:
                agent.send_signal(signal.SIGKILL)
                agent.wait()
    cache = ContentCache(directory, 1 << 40)
    contents = cache.contents()
    assert contents
    for digest, size in contents.items():
        assert hashlib.sha256(Path(content_path(directory, digest)).read_bytes()).hexdigest() == digest
        assert cache.verified_path(digest, size)
    for left in os.listdir(directory + "/incoming"):
        if len(left) == 64:
            cache.incoming(left, 1 << 30).close()
