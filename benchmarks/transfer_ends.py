"""Runs one end of a transfer in its own process: ``python -m benchmarks.transfer_ends ROLE ...``; see ``transfers.py``.

A server prints ``READY`` and the data that the other end needs; the other end prints ``RESULT`` and its seconds.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pilotfish.master.endpoints import Admission, EndpointLink, EndpointRules
from pilotfish.portable.transfer.content_cache import ContentCache
from pilotfish.portable.transfer.content_source import FileReader
from pilotfish.portable.transfer.incoming_content import IncomingContent
from pilotfish.portable.transfer.transfer_client import dial_transfer, fetch, push
from pilotfish.portable.transfer.transfer_server import TransferServer
from pilotfish.portable.wire.handshake import AGENT, read_credentials
from pilotfish.store.keyring import open_keyring

BLOCK = 1024 * 1024
MOST_BYTES = 1 << 40
KEY_ID = "pilot:benchmark"


class OneFile:
    """A content source with one content that accepts every upload."""

    def __init__(self, source: str, cache: ContentCache) -> None:
        self.source, self.cache = source, cache

    def reading(self, asker: str, digest: str, size: int, no_redirect: bool) -> FileReader:
        return FileReader(self.source, size)

    def incoming(self, asker: str, digest: str, size: int) -> IncomingContent | None:
        return self.cache.incoming(digest, size)


async def serve_as_master(directory: Path, source: str) -> None:
    """Serves with the real admission and transfer server of a master."""
    keyring = open_keyring(directory)
    doorman = Admission(keyring, lambda link, message, body: None, lambda link: None)
    doorman.warn = lambda text: print(text, file=sys.stderr)
    doorman.transfer_server = TransferServer(OneFile(source, ContentCache(str(directory / "master"), MOST_BYTES)))
    rules = EndpointRules((AGENT,), ("127.0.0.0/8",), keyring.server_context())
    server = await asyncio.get_running_loop().create_server(lambda: EndpointLink(doorman, rules), "127.0.0.1", 0)
    endpoint = {"kind": "tls", "host": "127.0.0.1", "port": server.sockets[0].getsockname()[1], "fingerprint": keyring.fingerprint}
    credentials = directory / "credentials.json"
    credentials.touch(0o600)
    credentials.write_text(json.dumps({"key_id": KEY_ID, "key": keyring.key(KEY_ID).hex(), "endpoints": [endpoint]}))
    print("READY", flush=True)
    await server.serve_forever()


def transfer(role: str, directory: Path, source: str, digest: str) -> None:
    channel = dial_transfer(read_credentials(directory / "credentials.json"))
    size = os.stat(source).st_size
    if role == "put":
        push(channel, digest, size, source)
    else:
        fetch(channel, digest, size, ContentCache(str(directory / "agent"), MOST_BYTES).incoming(digest, size))


def send_plainly(directory: Path, size: int, source: str = "") -> None:
    """Sends the same block repeatedly, or a file, over a plain Python TLS socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print("READY", listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    block = bytearray(os.urandom(BLOCK))
    file = open(source, "rb", buffering=0) if source else None  # noqa: SIM115 - until the process ends
    with open_keyring(directory).server_context().wrap_socket(connection, server_side=True) as secured:
        for _ in range(size // BLOCK):
            if file is not None:
                file.readinto(block)
            secured.sendall(block)
        sys.stdin.read()  # until the other end has disconnected and our CPU time was read


def receive_plainly(port: int, size: int, target: str = "", digest: str = "") -> None:
    """Receives bytes and discards them, or writes and hashes them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    block, count, found = memoryview(bytearray(BLOCK)), 0, hashlib.sha256()
    file = open(target, "wb", buffering=0) if target else None  # noqa: SIM115 - until the process ends
    with context.wrap_socket(socket.create_connection(("127.0.0.1", port))) as secured:
        while count < size:
            filled = 0
            while filled < BLOCK and (received := secured.recv_into(block[filled:])):
                filled += received
            if not filled:
                raise ConnectionError(f"{count} of {size} bytes came")
            count += filled
            if file is not None:
                file.write(block[:filled])
                found.update(block[:filled])
    if digest and found.hexdigest() != digest:
        raise ConnectionError("other bytes came")


def timed(work: Callable[[], None]) -> None:
    began = time.monotonic()
    work()
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    result = {"seconds": time.monotonic() - began, "peak_mib": int(peak.split()[1]) / 1024, "cpu_s": time.process_time()}
    print("RESULT", json.dumps(result))


def main(role: str, *words: str) -> None:
    if role == "master":
        asyncio.run(serve_as_master(Path(words[0]), words[1]))
    elif role in ("get", "put"):
        timed(lambda: transfer(role, Path(words[0]), words[1], words[2]))
    elif role == "plain-sender":
        send_plainly(Path(words[0]), int(words[1]), *words[2:])
    else:
        timed(lambda: receive_plainly(int(words[0]), int(words[1]), *words[2:]))


if __name__ == "__main__":
    main(*sys.argv[1:])
