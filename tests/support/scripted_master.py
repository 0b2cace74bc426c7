"""A master controlled by the test, for tests of real agents: it implements the wire protocol with msgspec and records all messages."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import itertools
import json
import os
import pickle
import queue
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pilotfish.model import messages as wire
from pilotfish.portable.wire.frames import PROTOCOL
from tests.support.bundle_file import build_bundle

PATIENCE_S = 60.0
KEY = os.urandom(32)
KEY_ID = "pilot:test"


def make_certificate(directory: Path) -> tuple[Path, str]:
    """Write key and certificate to a file. Returns its path and the fingerprint."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fake master")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
    certificate = builder.sign(key, hashes.SHA256())
    path = directory / "master.pem"
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return path, hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()


class Peer:
    """One authenticated connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.file = connection.makefile("rb", buffering=1 << 18)
        self.lock = threading.Lock()

    def send(self, message: Any, *parts: Any) -> None:
        header = wire.encode(message)
        with self.lock:
            self.connection.sendall(b"".join([struct.pack("!II", len(header), sum(map(len, parts))), header, *parts]))

    def receive(self) -> tuple[bytes, bytes]:
        prefix = self.file.read(8)
        if len(prefix) < 8:
            raise ConnectionError("hung up")
        header_length, body_length = struct.unpack("!II", prefix)
        return self.file.read(header_length), self.file.read(body_length)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


class FakeMaster:
    """Listens on TLS or a Unix socket. ``heard``: (message, body) of all messages except the handshake."""

    def __init__(self, directory: Path, kind: str = "tls", beat_s: float = 1.0, orphan_s: float = 60.0) -> None:
        self.directory = directory
        self.kind = kind
        self.epoch = 1
        self.beat_s, self.orphan_s = beat_s, orphan_s
        self.refuse = ""
        self.acknowledge = True
        self.welcome = True
        self.peers: list[Peer] = []
        self.heard: queue.Queue[tuple[Any, bytes]] = queue.Queue()
        self.results: dict[tuple[int, int], tuple[wire.ResultItem, bytes]] = {}
        self.on_results: Callable[[wire.Results, bytes], None] | None = None
        self._context: ssl.SSLContext | None = None
        self.endpoint: dict[str, Any] = {}
        self._listener = self._listen()
        self.credentials = directory / "credentials.json"
        self.write_credentials()
        threading.Thread(target=self._accept, daemon=True).start()

    def _listen(self) -> socket.socket:
        if self.kind == "unix":
            listener = socket.socket(socket.AF_UNIX)
            path = str(self.directory / "master.sock")
            listener.bind(path)
            self.endpoint = {"kind": "unix", "path": path}
        else:
            listener = socket.create_server(("127.0.0.1", 0))
            pem, fingerprint = make_certificate(self.directory)
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.minimum_version = ssl.TLSVersion.TLSv1_3
            self._context.load_cert_chain(pem)
            self.endpoint = {"kind": "tls", "host": "127.0.0.1", "port": listener.getsockname()[1], "fingerprint": fingerprint}
        listener.listen(16)
        return listener

    def write_credentials(self, key: bytes = KEY, **changes: Any) -> None:
        endpoint = {**self.endpoint, **changes}
        self.credentials.touch(0o600)
        self.credentials.write_text(json.dumps({"key_id": KEY_ID, "key": key.hex(), "pilot": "test", "endpoints": [endpoint]}))

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ConnectionError, ValueError):
            if self._context is not None:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection = self._context.wrap_socket(connection, server_side=True)
            peer = Peer(connection)
            if self._prove(peer):
                self._listen_to(peer)
        connection.close()

    def _prove(self, peer: Peer) -> bool:
        nonce = os.urandom(32).hex()
        peer.send(wire.Banner(PROTOCOL, nonce))
        proof = wire.decode_from_agent(peer.receive()[0])
        assert isinstance(proof, wire.Prove)
        binding = "unix" if self.kind == "unix" else self.endpoint["fingerprint"]
        expected = self._mac("peer", proof.role, proof.key_id, nonce, proof.nonce, binding)
        reason = self.refuse or ("" if hmac.compare_digest(expected, proof.mac) else "wrong key")
        if reason:
            peer.send(wire.Refused(reason))
            return False
        peer.send(wire.Proved(self._mac("master", proof.role, proof.key_id, proof.nonce, nonce, binding), self.epoch))
        return True

    @staticmethod
    def _mac(*fields: str) -> str:
        return hmac.new(KEY, b"|".join([b"pilotfish-%d" % PROTOCOL, *(field.encode() for field in fields)]), hashlib.sha256).hexdigest()

    def _listen_to(self, peer: Peer) -> None:
        while True:
            header, body = peer.receive()
            message = wire.decode_from_agent(header)
            if isinstance(message, wire.Hello):
                self.peers.append(peer)
                if self.welcome:
                    peer.send(wire.Welcome(self.epoch, self.beat_s, self.orphan_s))
            elif isinstance(message, wire.Heartbeat):
                self._reply(peer, wire.HeartbeatAck())
            elif isinstance(message, wire.Results):
                self._take(message, body, peer)
            self.heard.put((message, body))

    def _take(self, message: wire.Results, body: bytes, peer: Peer) -> None:
        if self.on_results is not None:
            self.on_results(message, body)
        else:
            offset = 0
            for item in message.items:
                self.results[item.task, item.attempt] = (item, body[offset : offset + item.length])
                offset += item.length
        if self.acknowledge:
            self._reply(peer, wire.Acked(message.first, message.first + len(message.items) - 1))

    @staticmethod
    def _reply(peer: Peer, message: Any) -> None:
        """Replies to an agent that may have left already; its last messages must still be read."""
        with contextlib.suppress(OSError):
            peer.send(message)

    # --- methods for tests ----------------------------------------------------------------------------------------------------------

    @property
    def peer(self) -> Peer:
        return self.peers[-1]

    def wait_for(self, kind: type, patience_s: float = PATIENCE_S) -> Any:
        """The next message of this kind; others are skipped."""
        end = time.monotonic() + patience_s
        while True:
            message, _ = self.heard.get(timeout=max(0.0, end - time.monotonic()))
            if isinstance(message, kind):
                return message

    def wait_for_result(self, task: int, attempt: int = 1, patience_s: float = PATIENCE_S) -> tuple[wire.ResultItem, bytes]:
        end = time.monotonic() + patience_s
        while (task, attempt) not in self.results:
            try:
                self.heard.get(timeout=max(0.0, min(0.2, end - time.monotonic())))
            except queue.Empty:
                if time.monotonic() > end:
                    raise AssertionError(f"no result of task {task} attempt {attempt}") from None
        return self.results[task, attempt]

    def hang_up(self) -> None:
        for peer in self.peers:
            peer.close()

    def close(self) -> None:
        # Closing alone would not wake the accepting thread, and one more agent could connect.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()


# --- specs and payloads in the format of applications -------------------------------------------------------------------------------


def parcel(*parts: Any) -> bytes:
    return b"".join([struct.pack(f"!I{len(parts)}Q", len(parts), *map(len, parts)), *parts])


def unparcel(payload: bytes) -> list[bytes]:
    (count,) = struct.unpack_from("!I", payload)
    lengths = struct.unpack_from(f"!{count}Q", payload, 4)
    parts, offset = [], 4 + 8 * count
    for length in lengths:
        parts.append(payload[offset : offset + length])
        offset += length
    assert offset == len(payload)
    return parts


def _dump(function: Any) -> bytes:
    """Pickles a function. A function of the tests is pickled by value, because the agent cannot import the tests."""
    module = sys.modules[function.__module__]
    of_tests = function.__module__.startswith("tests.")
    if of_tests:
        cloudpickle.register_pickle_by_value(module)
    try:
        pickled: bytes = cloudpickle.dumps(function)
    finally:
        if of_tests:
            cloudpickle.unregister_pickle_by_value(module)
    return pickled


class Client:
    """Makes specs and tasks and sends them to the agent at once."""

    def __init__(self, master: FakeMaster) -> None:
        self.master = master
        self._numbers = itertools.count(1)
        self._tasks = itertools.count(1)

    def spec(self, kind: str, launch: dict[str, Any], code: bytes = b"", **fields: Any) -> int:
        number = next(self._numbers)
        needs = {"cores": 1.0, **fields.get("needs", {})}
        self.master.peer.send(wire.Assign([wire.SentSpec(number, kind, fields.get("time_s", 0.0), needs, launch, len(code))], []), code)
        return number

    def python(self, function: Any, kind: str = "python", **fields: Any) -> int:
        code = function.encode() if isinstance(function, str) else _dump(function)
        launch: dict[str, Any] = {"python": list(sys.version_info[:2]), "form": "pickle", "name": "f", "path": [], "cwd": None, "env": {}}
        return self.spec(kind, {**launch, **fields.pop("launch", {})}, code, **fields)

    def exec(self, **fields: Any) -> int:
        launch: dict[str, Any] = {"cwd": None, "sandbox": True, "env": {}, "inputs": [], "outputs": [], "shell": False}
        return self.spec("exec", {**launch, **fields.pop("launch", {})}, fields.pop("code", b""), **fields)

    def start(self, spec: int, *payloads: bytes, attempt: int = 1) -> list[int]:
        tasks = [next(self._tasks) for _ in payloads]
        items = [wire.SentTask(task, attempt, spec, len(payload), 0, 0) for task, payload in zip(tasks, payloads, strict=True)]
        self.master.peer.send(wire.Assign([], items), *payloads)
        return tasks

    def call(self, spec: int, *arguments: Any) -> int:
        return self.start(spec, call_payload(*arguments))[0]

    def command(self, spec: int, *argv: str, stdin: bytes = b"", **fields: Any) -> int:
        files = fields.pop("files", ())
        task = {"argv": argv, "env": {}, "inputs": [], "outputs": [], **fields}
        return self.start(spec, parcel(json.dumps(task).encode(), stdin, *files))[0]

    def value(self, task: int) -> Any:
        """Return value of a call; fails if the call failed."""
        item, payload = self.master.wait_for_result(task)
        assert item.failure is None, item.failure
        parts = unparcel(payload)
        return pickle.loads(parts[1], buffers=parts[4:])

    def failure(self, task: int) -> tuple[str, str, str]:
        item, _ = self.master.wait_for_result(task)
        assert item.failure is not None
        return item.failure.cause, item.failure.blame, item.failure.message

    def outcome(self, task: int) -> dict[str, Any]:
        """Result of an executable."""
        item, payload = self.master.wait_for_result(task)
        parts = unparcel(payload)
        facts: dict[str, Any] = json.loads(parts[0])
        files = {name: content for (name, _), content in zip(facts["files"], parts[3:], strict=True)}
        modes = dict(facts["files"])
        return {**facts, "failure": item.failure, "stdout": parts[1], "stderr": parts[2], "contents": files, "modes": modes, "usage": item}


def call_payload(*arguments: Any, **named: Any) -> bytes:
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps((arguments, named), 5, buffer_callback=buffers.append)
    return parcel(pickled, *(buffer.raw() for buffer in buffers))


# --- agents -------------------------------------------------------------------------------------------------------------------------


class Agent:
    """A real agent, started from the bundle."""

    def __init__(self, master: FakeMaster, *options: str, python: str = sys.executable) -> None:
        (master.directory / "bundle").mkdir(exist_ok=True)
        bundle = build_bundle(master.directory / "bundle")
        self.workdir = master.directory / "work"
        self.workdir.mkdir(exist_ok=True)
        words = [python, str(bundle), "--credentials", str(master.credentials), "--workdir", str(self.workdir), *options]
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def leftovers(self) -> list[str]:
        """Files left in its working directory, except the cache, which is kept for the next agent."""
        return [path.name for path in self.workdir.iterdir() if not path.name.startswith("pilotfish-cache-")]

    @property
    def pid(self) -> int:
        """Process id of the agent itself, the supervisor's child."""
        return children(self.process.pid)[0]

    def slots(self) -> list[int]:
        """Process ids of the slots. Children of the agent are keepers; each has a slot as its child."""
        return [slot for keeper in children(self.pid) for slot in children(keeper)]

    def wait(self, patience_s: float = PATIENCE_S) -> tuple[int, str]:
        _, text = self.process.communicate(timeout=patience_s)
        return self.process.returncode, text

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.communicate(timeout=PATIENCE_S)


def children(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        return [int(word) for thread in threads for word in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()]
    except OSError:
        return []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def eventually(condition: Callable[[], Any], what: str = "", patience_s: float = PATIENCE_S) -> Any:
    """Poll a condition that no file descriptor signals. A slow condition is evaluated less often."""
    end = time.monotonic() + patience_s
    pause = threading.Event()
    while True:
        began = time.monotonic()
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, what or "it did not happen in time"
        pause.wait(max(0.01, time.monotonic() - began))


@contextlib.contextmanager
def running_agent(master: FakeMaster, *options: str, python: str = sys.executable) -> Iterator[Agent]:
    agent = Agent(master, *options, python=python)
    try:
        yield agent
    finally:
        agent.end()
