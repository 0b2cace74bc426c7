"""Large payloads on the master's own machine travel as references to files; see store/shared_payloads.py for the other side."""

from __future__ import annotations

import mmap
import os
import random
import struct
from typing import Any, List, Sequence

MARK = b"\xff\xff\xff\xfePFS1"
REFERENCE = struct.Struct("!8sQQ")
SHARE_BYTES = 128 * 1024
PARTS_PER_CALL = 512


class PayloadDirectory:
    """The directory that client, master and slots of one machine have in common; empty where there is none."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._random = random.SystemRandom()

    def resolve(self, body: memoryview) -> memoryview:
        """The payload itself, whether it came whole or as a reference. Mapped privately: the task may write to it."""
        if len(body) != REFERENCE.size or body[:8] != MARK or not self.directory:
            return body
        _, number, length = REFERENCE.unpack(body)
        descriptor = os.open(os.path.join(self.directory, "%016x" % number), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return memoryview(mmap.mmap(descriptor, length, access=mmap.ACCESS_COPY))
        finally:
            os.close(descriptor)

    def write(self, parts: Sequence[Any]) -> bytes:
        """Put a payload in a file and return the reference to it. The master makes it durable."""
        number = self._random.getrandbits(63)
        path = os.path.join(self.directory, "%016x" % number)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            views: List[memoryview] = [memoryview(part).cast("B") for part in parts if len(part)]
            length = sum(map(len, views))
            while views:
                written = os.writev(descriptor, views[:PARTS_PER_CALL])
                while views and written >= len(views[0]):
                    written -= len(views.pop(0))
                if written:
                    views[0] = views[0][written:]
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)
        return REFERENCE.pack(MARK, number, length)
