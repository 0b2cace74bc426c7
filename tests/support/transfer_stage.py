"""Provides both ends of transfer connections for tests: a real endpoint of a master with a transfer server, and a proxy that cuts."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pilotfish.master.endpoints import Admission, EndpointLink, EndpointRules
from pilotfish.model import messages as m
from pilotfish.portable.transfer.content_cache import ContentCache
from pilotfish.portable.transfer.content_source import FileReader, PartialFileReader
from pilotfish.portable.transfer.incoming_content import IncomingContent
from pilotfish.portable.transfer.transfer_client import dial_transfer
from pilotfish.portable.transfer.transfer_protocol import ContentAbsent, TransferChannel
from pilotfish.portable.transfer.transfer_server import TransferServer
from pilotfish.portable.wire.handshake import AGENT, CLIENT, Credentials, read_credentials
from pilotfish.store.keyring import Keyring, open_keyring

KEY_ID = "pilot:test"
MOST_BYTES = 1 << 40
PATIENCE_S = 60.0


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Files:
    """A content source: files by digest, and a cache with contents that are complete or still arriving; uploads go there too."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cache = ContentCache(str(directory / "cache"), MOST_BYTES)
        self.paths: dict[str, Path] = {}
        self.insisted: list[bool] = []
        self.refusal: Exception | None = None

    def add(self, data: bytes) -> str:
        digest = digest_of(data)
        self.paths[digest] = self.directory / digest
        self.paths[digest].write_bytes(data)
        return digest

    def reading(self, asker: str, digest: str, size: int, no_redirect: bool) -> FileReader | PartialFileReader:
        self.insisted.append(no_redirect)
        if self.refusal is not None and not no_redirect:
            raise self.refusal
        arriving = self.cache.arriving(digest)
        if arriving is not None:
            return PartialFileReader(arriving)
        if digest not in self.paths:
            raise ContentAbsent("nobody has it", "site")
        return FileReader(str(self.paths[digest]), size)

    def incoming(self, asker: str, digest: str, size: int) -> IncomingContent | None:
        return None if self.cache.has(digest, size) else self.cache.incoming(digest, size)


class CountingServer(TransferServer):
    """Also adds up the bytes sent and received, by connection and by content, holes included."""

    def __init__(self, source: Any, max_streams: int, log: Callable[[str], None]) -> None:
        self.sent_to: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self._counting = threading.Lock()
        super().__init__(source, max_streams, log)

    def count(self, asker: str, digest: str, out: int, into: int) -> None:
        super().count(asker, digest, out, into)
        with self._counting:
            self.sent_to[asker] += out
            self.sent[digest] += out
            self.received[digest] += into


class TransferEndpoint:
    """An admission with its transfer server, on an event loop of their own. ``heard``: messages of links that are not for transfers."""

    def __init__(self, directory: Path, source: Any, max_streams: int = 8, tls: bool = True) -> None:
        self.directory = directory
        self.keyring: Keyring = open_keyring(directory)
        self.server = CountingServer(source, max_streams, self._log)
        self.problems: list[str] = []
        self.heard: list[m.Message] = []
        self.closed = 0
        self.address: dict[str, Any] = {}
        self._tls = tls
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)

    def _log(self, text: str) -> None:
        self.problems.append(text)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()
        self._loop.close()

    async def _listen(self) -> None:
        self.doorman = Admission(self.keyring, self._hear, self._closed)
        self.doorman.warn = self._log
        self.doorman.transfer_server = self.server
        if not self._tls:
            path = str(self.directory / "door.sock")
            local = EndpointRules((CLIENT, AGENT))
            self._server: asyncio.Server = await self._loop.create_unix_server(lambda: EndpointLink(self.doorman, local), path)
            self.address = {"kind": "unix", "path": path}
            return
        rules = EndpointRules((AGENT,), ("127.0.0.0/8",), self.keyring.server_context())
        self._server = await self._loop.create_server(lambda: EndpointLink(self.doorman, rules), "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.address = {"kind": "tls", "host": "127.0.0.1", "port": port, "fingerprint": self.keyring.fingerprint}

    def _hear(self, link: EndpointLink, message: m.Message, body: memoryview) -> None:
        self.heard.append(message)
        if isinstance(message, m.Heartbeat):
            link.send(m.HeartbeatAck())
            link.flush()

    def _closed(self, link: EndpointLink) -> None:
        self.closed += 1

    def credentials(self, **changes: Any) -> Credentials:
        path = self.directory / f"credentials-{random.getrandbits(64):x}.json"
        path.touch(0o600)
        endpoint = {**self.address, **changes}
        path.write_text(json.dumps({"key_id": KEY_ID, "key": self.keyring.key(KEY_ID).hex(), "endpoints": [endpoint]}))
        return read_credentials(path)

    def dial(self, **changes: Any) -> TransferChannel:
        return dial_transfer(self.credentials(**changes))

    def close(self) -> None:
        self.server.close()
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(PATIENCE_S)

    def _stop(self) -> None:
        self._server.close()
        self._loop.call_soon(self._loop.stop)


@contextlib.contextmanager
def open_endpoint(directory: Path, source: Any, max_streams: int = 8, tls: bool = True) -> Iterator[TransferEndpoint]:
    endpoint = TransferEndpoint(directory, source, max_streams, tls)
    try:
        yield endpoint
    finally:
        endpoint.close()


class Scissors:
    """A proxy that passes on a number of bytes of each connection, both ways together, and then closes it."""

    def __init__(self, port: int) -> None:
        self.allowance = 0
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        left = [self.allowance]
        with near, socket.create_connection(("127.0.0.1", self._target)) as far:
            back = threading.Thread(target=self._pass_on, args=(far, near, left), daemon=True)
            back.start()
            self._pass_on(near, far, left)
            back.join()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket, left: list[int]) -> None:
        with contextlib.suppress(OSError):
            while left[0] > 0 and (data := source.recv(min(65536, left[0]))):
                left[0] -= len(data)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def random_bytes(seed: int, length: int) -> bytes:
    return random.Random(seed).randbytes(length)


def sparse_file(path: Path, size: int, islands: dict[int, bytes]) -> bytes:
    """A file of holes except at these offsets; returns its content."""
    data = bytearray(size)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, size)
        for offset, island in islands.items():
            os.pwrite(descriptor, island, offset)
            data[offset : offset + len(island)] = island
    finally:
        os.close(descriptor)
    return bytes(data)
