"""Serves clients as a master does, with one thread and a dictionary. It computes tasks itself and can die on demand.

``Book`` is its disk: a new FakeMaster on the same book is the old one restarted.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pilotfish.model import messages as wire
from pilotfish.model.states import CANCELLED, DONE, FAILED
from pilotfish.model.task import Failure, TaskSpec
from pilotfish.portable.wire.frames import PROTOCOL
from pilotfish.portable.wire.handshake import DIALLER, LISTENER, Claim, make_proof

_PREFIX = struct.Struct("!II")
NOTHING = struct.pack("!I4Q", 4, 0, 4, 0, 0) + b"\x80\x05N."
"""Result payload of a Python task that returned None."""

LATE_S = 30.0

Worked = tuple[Failure | None, bytes]
Work = Callable[[TaskSpec, bytes, bytes], Worked | None]
"""Computes a task from its spec, the spec's code and its payload; None leaves it running."""


class RunRecord:
    def __init__(self, run: int, uid: str, options: Any) -> None:
        self.run = run
        self.uid = uid
        self.options = options
        self.specs: list[tuple[TaskSpec, bytes]] = []
        self.tasks: list[tuple[int, bytes]] = []
        self.deps: dict[int, list[int]] = {}
        self.ended: list[tuple[wire.EndedItem, bytes]] = []
        self.final: set[int] = set()
        self.advanced = 0
        self.closed = False


class Book:
    def __init__(self) -> None:
        self.runs: dict[str, RunRecord] = {}
        self.epoch = 0

    def by_number(self, run: int) -> RunRecord:
        return next(record for record in self.runs.values() if record.run == run)


class _Peer:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.nonce = secrets.token_hex(32)
        self.proven = False
        self.data = bytearray()
        self.cursors: dict[int, tuple[int, bool]] = {}


def write_credentials(directory: Path) -> tuple[Path, bytes]:
    directory.mkdir(parents=True, exist_ok=True)
    path, key = directory / "socket", secrets.token_bytes(32)
    file = directory / "client.json"
    if file.exists():
        known = json.loads(file.read_text())
        return path, bytes.fromhex(known["key"])
    credentials = {"key_id": "client", "key": key.hex(), "endpoints": [{"kind": "unix", "path": str(path)}]}
    with open(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), "w") as stream:
        json.dump(credentials, stream)
    return path, key


def do_nothing(spec: TaskSpec, code: bytes, payload: bytes) -> Worked | None:
    return None, NOTHING


class FakeMaster:
    """Serves until ``kill``. ``heard`` lists all messages in the order of arrival."""

    def __init__(self, directory: Path, book: Book | None = None, work: Work = do_nothing) -> None:
        self.directory = directory
        self.book = book or Book()
        self.book.epoch += 1
        self.work = work
        self.heard: list[Any] = []
        self.keep_messages = True
        self.answers: dict[str, Callable[[dict[str, Any]], Any]] = {"check_python": lambda arguments: {}}
        self.swallow: Callable[[Any], bool] = lambda message: False
        """If true for a message, the message is dropped and the connection cut."""
        self.mute = False
        """Messages are recorded but not answered: the confirmation is lost."""
        self.began_first = False
        self.full = False
        """The disk is full: tasks are refused."""
        self.close_door_late = False
        """When killed, close the connections first, and the listening socket once a client waits at it."""
        self._path, self._key = write_credentials(directory)
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self._path))
        self._listener.listen(16)
        self._stop_read, self._stop_write = os.pipe()
        self._peers: dict[int, _Peer] = {}
        self._held: list[tuple[RunRecord, int]] = []
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self.serve, daemon=True)

    def start(self) -> FakeMaster:
        self._thread.start()
        return self

    def kill(self) -> None:
        os.write(self._stop_write, b"x")
        self._thread.join()

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout_s), "the fake master never heard it"

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self._listener.fileno(), select.POLLIN)
        poll.register(self._stop_read, select.POLLIN)
        while True:
            for ready, _ in poll.poll():
                if ready == self._stop_read:
                    self._hang_up()
                    return
                if ready == self._listener.fileno():
                    peer = _Peer(self._listener.accept()[0])
                    self._peers[peer.sock.fileno()] = peer
                    poll.register(peer.sock.fileno(), select.POLLIN)
                    self._send(peer, wire.Banner(PROTOCOL, peer.nonce))
                elif not self._read(self._peers[ready]):
                    poll.unregister(ready)
                    self._peers[ready].sock.close()
                    del self._peers[ready]  # a test that sees no peers may rely on closed sockets
            with self._changed:
                self._changed.notify_all()

    def _hang_up(self) -> None:
        for peer in self._peers.values():
            peer.sock.close()
        if self.close_door_late:
            select.select([self._listener], [], [], LATE_S)
        # The socket file stays, as after a real kill. It may belong to the successor by now, because a disconnected client starts one.
        self._listener.close()
        os.close(self._stop_read)
        os.close(self._stop_write)

    def _send(self, peer: _Peer, message: wire.Message, parts: list[bytes] | None = None) -> None:
        if self.mute and peer.proven:
            return
        try:
            peer.sock.sendall(b"".join(wire.frame_message(message, parts or [])))
        except OSError:
            pass  # the next read finds the socket closed

    def _read(self, peer: _Peer) -> bool:
        try:
            data = peer.sock.recv(1 << 20)
        except ConnectionError:
            return False
        if not data:
            return False
        peer.data += data
        while len(peer.data) >= 8:
            header, body = _PREFIX.unpack_from(peer.data)
            if len(peer.data) < 8 + header + body:
                break
            content = bytes(peer.data[8 + header : 8 + header + body])
            message = wire.decode_from_client(bytes(peer.data[8 : 8 + header]))
            del peer.data[: 8 + header + body]
            if self.keep_messages:
                self.heard.append(message)
            if self.swallow(message):
                return False
            self._handle(peer, message, content)
        return True

    def _handle(self, peer: _Peer, message: Any, body: bytes) -> None:
        if isinstance(message, wire.Prove):
            self._prove(peer, message)
        elif isinstance(message, wire.Open):
            record = self.book.runs.get(message.uid)
            if record is None:
                record = self.book.runs[message.uid] = RunRecord(len(self.book.runs) + 1, message.uid, message.options)
            self._send(peer, wire.Opened(record.uid, record.run, len(record.tasks), len(record.specs), record.advanced))
        elif isinstance(message, wire.Submit):
            self._submit(peer, message, body)
        elif isinstance(message, wire.Watch):
            peer.cursors[message.run] = message.cursor, message.payloads
            self.tell_ended(self.book.by_number(message.run))
        elif isinstance(message, wire.Close):
            record = self.book.by_number(message.run)
            record.closed = True
            self._finish(record)
        elif isinstance(message, wire.Ask):
            self._answer(peer, message)

    def _prove(self, peer: _Peer, message: wire.Prove) -> None:
        right = make_proof(self._key, DIALLER, Claim("client", message.key_id, "unix"), (peer.nonce, message.nonce))
        if right != message.mac:
            self._send(peer, wire.Refused("wrong key"))
            return
        mine = make_proof(self._key, LISTENER, Claim("client", message.key_id, "unix"), (message.nonce, peer.nonce))
        self._send(peer, wire.Proved(mine, self.book.epoch))
        peer.proven = True

    def _submit(self, peer: _Peer, message: wire.Submit, body: bytes) -> None:
        record, at = self.book.by_number(message.run), 0
        if self.full and message.first + len(message.tasks) > len(record.tasks):
            self._send(peer, wire.Problem(-1, "P2102", "the disk is full", "free some space"))
            return
        if message.first > len(record.tasks):
            self._send(peer, wire.Problem(-1, "P1100", "out of order", "send them again"))
            return
        for number, (spec, length) in enumerate(zip(message.specs, message.code_lengths, strict=True), message.first_spec):
            if number == len(record.specs):
                record.specs.append((spec, body[at : at + length]))
            at += length
        new = []
        for index, (spec_number, length) in enumerate(message.tasks, message.first):
            if index == len(record.tasks):
                record.tasks.append((spec_number, body[at : at + length]))
                record.deps[index] = message.deps.get(index - message.first, [])
                new.append(index)
            at += length
        record.advanced = max(record.advanced, message.advance)
        self._send(peer, wire.Accepted(record.run, len(record.tasks)))
        for index in new:
            self._do(record, index)
        self.tell_ended(record)

    def _do(self, record: RunRecord, index: int) -> None:
        spec_number, payload = record.tasks[index]
        spec, code = record.specs[spec_number]
        done = self.work(spec, code, payload)
        if done is not None:
            self.end(record, index, *done)
        elif self.began_first:
            for peer in self._peers.values():
                self._send(peer, wire.Began(record.run, [index]))

    def end(self, record: RunRecord, index: int, failure: Failure | None, payload: bytes, state: int | None = None) -> None:
        if index not in record.final:
            record.final.add(index)
            state = state if state is not None else (DONE if failure is None else FAILED)
            record.ended.append((wire.EndedItem(index, state, failure, 1500, 700, 2048, len(payload)), payload))

    def tell_ended(self, record: RunRecord) -> None:
        for peer in list(self._peers.values()):
            if record.run not in peer.cursors:
                continue
            cursor, payloads = peer.cursors[record.run]
            news = record.ended[cursor:]
            if news:
                peer.cursors[record.run] = len(record.ended), payloads
                parts = [payload for _, payload in news] if payloads else []
                self._send(peer, wire.Ended(record.run, cursor, [item for item, _ in news]), parts)
        self._finish(record)

    def _finish(self, record: RunRecord) -> None:
        if record.closed and len(record.final) == len(record.tasks):
            for peer in self._peers.values():
                self._send(peer, wire.RunFinished(record.run, {"done": len(record.final)}))

    def _answer(self, peer: _Peer, message: wire.Ask) -> None:
        if message.kind == "cancel":
            record = self._cancel(message.arguments)
            self._send(peer, wire.Answer(message.query, {}))
            self.tell_ended(record)
        elif message.kind in self.answers:
            self._send(peer, wire.Answer(message.query, self.answers[message.kind](message.arguments)))
        else:
            self._send(peer, wire.Problem(message.query, "P1100", f"nobody knows {message.kind!r}", "ask something else"))

    def _cancel(self, arguments: dict[str, Any]) -> RunRecord:
        if "run" in arguments:
            record = self.book.by_number(arguments["run"])
            indices = list(range(len(record.tasks)))
        else:
            names = [name.split(".") for name in arguments["tasks"]]
            record = self.book.by_number(int(names[0][0]))
            indices = [int(index) for _, index in names]
        for index in indices:
            self.end(record, index, None, b"", CANCELLED)
        return record
