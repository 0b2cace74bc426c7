"""Tests that unauthenticated peers, wrong keys, garbage and oversized messages are rejected and harm no other connection."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import ssl
import struct
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from pilotfish.client.master_client import MasterClient
from pilotfish.client.pools import PoolHandle
from pilotfish.portable.wire.frames import PROTOCOL
from pilotfish.portable.wire.handshake import AGENT, CLIENT, DIALLER, LISTENER, Claim, make_proof
from pilotfish.store.keyring import Keyring, open_keyring
from pilotfish.store.pool_directory import PoolDirectory

PATIENCE_S = 60.0


def receive(sock: socket.socket) -> tuple[list[Any], bytes]:
    prefix = _exactly(sock, 8)
    header, body = struct.unpack("!II", prefix)
    return json.loads(_exactly(sock, header)), _exactly(sock, body)


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def send(sock: socket.socket, header: list[Any], body: bytes = b"") -> None:
    text = json.dumps(header).encode()
    sock.sendall(struct.pack("!II", len(text), len(body)) + text + body)


def is_closed(sock: socket.socket) -> bool:
    """Whether the master has closed the connection."""
    try:
        while sock.recv(65536):
            pass
    except TimeoutError:
        return False
    except (ConnectionError, ssl.SSLError):
        pass
    return True


def master_pid(pool: PoolHandle) -> int:
    lock = max(pool.directory.glob("lock-*"))
    return int(json.loads(lock.read_text())["pid"])


def sockets_of(pid: int) -> dict[str, None]:
    found: dict[str, None] = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            found[os.readlink(f"/proc/{pid}/fd/{name}")] = None
    return found


def tcp_port(pool: PoolHandle) -> int:
    """Find the one port that the master listens on."""
    inodes = sockets_of(master_pid(pool))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            return int(fields[1].rpartition(":")[2], 16)
    raise AssertionError("the master does not listen on TCP")


def dial_unix(pool: PoolHandle) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(PATIENCE_S)
    sock.connect(str(PoolDirectory(pool.directory).socket_path()))
    return sock


def dial_tls(pool: PoolHandle) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    raw = socket.create_connection(("127.0.0.1", tcp_port(pool)), PATIENCE_S)
    return context.wrap_socket(raw)


def prove(sock: socket.socket, keyring: Keyring, role: str, key_id: str, key: bytes | None = None) -> list[Any]:
    """Authenticate and return the master's answer."""
    banner, _ = receive(sock)
    binding = hashlib.sha256(sock.getpeercert(True) or b"").hexdigest() if isinstance(sock, ssl.SSLSocket) else "unix"
    nonce = secrets.token_hex(32)
    mac = make_proof(key or keyring.key(key_id), DIALLER, Claim(role, key_id, binding), (banner[2], nonce))
    send(sock, ["prove", PROTOCOL, role, key_id, nonce, mac, "test"])
    return receive(sock)[0]


def still_serves(pool: PoolHandle) -> None:
    client = MasterClient.connect(pool.directory)
    assert client.ask("status")["epoch"] == 1
    client.close()


def test_only_a_loopback_socket_and_a_private_unix_socket_listen(pool: PoolHandle) -> None:
    inodes = sockets_of(master_pid(pool))
    listening = []
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                listening.append(fields[1].rpartition(":")[0])
    assert listening == ["0100007F"]
    path = PoolDirectory(pool.directory).socket_path()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0


def test_files_with_keys_are_readable_by_their_owner_only(pool: PoolHandle) -> None:
    for path in pool.directory.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0 or path.parent.name in ("journal", "payloads"), path


def test_no_key_is_in_arguments_or_environment_of_any_process(pool: PoolHandle) -> None:
    secret = (pool.directory / "secret").read_text().strip()
    keyring = open_keyring(pool.directory)
    words = [secret, keyring.key(CLIENT).hex(), keyring.key(AGENT).hex()]
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            for name in ("cmdline", "environ"):
                try:
                    content = Path(f"/proc/{entry}/{name}").read_bytes().decode(errors="replace")
                except OSError:
                    continue
                assert not any(word in content for word in words)


@pytest.mark.parametrize("dial", [dial_unix, dial_tls])
def test_the_right_key_is_let_in_and_a_wrong_one_is_not(pool: PoolHandle, dial: Any) -> None:
    keyring = open_keyring(pool.directory)
    key_id = "pilot:x"
    with dial(pool) as sock:
        assert prove(sock, keyring, AGENT, key_id)[0] == "proved"
    with dial(pool) as sock:
        assert prove(sock, keyring, AGENT, key_id, key=secrets.token_bytes(32))[0] == "refused"
        assert is_closed(sock)
    still_serves(pool)


def test_keys_are_bound_to_their_role(pool: PoolHandle) -> None:
    keyring = open_keyring(pool.directory)
    with dial_unix(pool) as sock:
        assert prove(sock, keyring, CLIENT, "pilot:x")[0] == "refused"
    with dial_unix(pool) as sock:
        assert prove(sock, keyring, AGENT, CLIENT)[0] == "refused"
    with dial_tls(pool) as sock:
        assert prove(sock, keyring, CLIENT, CLIENT)[0] == "refused", "clients come by the Unix socket only"


def test_a_revoked_key_opens_nothing(pool: PoolHandle) -> None:
    keyring = open_keyring(pool.directory)
    client = MasterClient.connect(pool.directory)
    client.ask("revoke", key_id="pilot:x")
    with dial_tls(pool) as sock:
        assert prove(sock, keyring, AGENT, "pilot:x")[0] == "refused"
    with dial_tls(pool) as sock:
        assert prove(sock, keyring, AGENT, "pilot:y")[0] == "proved"
    client.close()


def test_a_recorded_handshake_cannot_be_replayed(pool: PoolHandle) -> None:
    keyring = open_keyring(pool.directory)
    with dial_unix(pool) as sock:
        banner, _ = receive(sock)
        nonce = secrets.token_hex(32)
        recorded = [
            "prove",
            PROTOCOL,
            CLIENT,
            CLIENT,
            nonce,
            make_proof(keyring.key(CLIENT), DIALLER, Claim(CLIENT, CLIENT, "unix"), (banner[2], nonce)),
            "t",
        ]
        send(sock, recorded)
        assert receive(sock)[0][0] == "proved"
    for _ in range(200):
        with dial_unix(pool) as sock:
            receive(sock)
            send(sock, recorded)
            assert receive(sock)[0][0] == "refused"
    still_serves(pool)


def test_the_masters_own_words_sent_back_prove_nothing(pool: PoolHandle) -> None:
    keyring = open_keyring(pool.directory)
    with dial_unix(pool) as sock:
        banner, _ = receive(sock)
        nonce = secrets.token_hex(32)
        reflected = make_proof(keyring.key(CLIENT), LISTENER, Claim(CLIENT, CLIENT, "unix"), (banner[2], nonce))
        send(sock, ["prove", PROTOCOL, CLIENT, CLIENT, nonce, reflected, "t"])
        assert receive(sock)[0][0] == "refused"


def test_another_protocol_version_is_refused_with_both_versions(pool: PoolHandle) -> None:
    with dial_unix(pool) as sock:
        receive(sock)
        send(sock, ["prove", 99, CLIENT, CLIENT, "0", "0", "t"])
        verdict, _ = receive(sock)
        assert verdict[0] == "refused"
        assert "99" in verdict[1] and str(PROTOCOL) in verdict[1]


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\xff" * 4096,
    b"\0" * 4096,
    struct.pack("!II", 0xFFFFFFFF, 0xFFFFFFFF),
    struct.pack("!II", 5, 0) + b"hello",
    struct.pack("!II", 2, 0) + b"[]",
    struct.pack("!II", 9, 0) + b'["hello"]',
    struct.pack("!II", 70_000, 0),
    struct.pack("!II", 4, 0) + b"\xff\xfe\xfd\xfc",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("dial", [dial_unix, dial_tls])
def test_garbage_before_the_proof_is_answered_with_a_close(pool: PoolHandle, dial: Any, garbage: bytes) -> None:
    with dial(pool) as sock:
        receive(sock)
        sock.sendall(garbage)
        sock.shutdown(socket.SHUT_WR) if not isinstance(sock, ssl.SSLSocket) else None
        if garbage == b"\0" * 4096:
            send(sock, ["x"]) if isinstance(sock, ssl.SSLSocket) else None
        assert is_closed(sock)
    still_serves(pool)


def test_garbage_instead_of_tls_harms_nobody(pool: PoolHandle) -> None:
    for garbage in GARBAGE:
        with socket.create_connection(("127.0.0.1", tcp_port(pool)), PATIENCE_S) as sock:
            sock.sendall(garbage)
            sock.shutdown(socket.SHUT_WR)
            assert is_closed(sock)
    still_serves(pool)


def test_garbage_from_a_proven_peer_drops_that_peer_alone(pool: PoolHandle) -> None:
    keyring = open_keyring(pool.directory)
    witness = MasterClient.connect(pool.directory)
    bad: list[tuple[list[Any], bytes]] = [
        (["results", 0, [[1, 1, None, 0, 0, 0, 99]]], b"short"),
        (["results", 0, [[1, 1, None, 0, 0, 0, -1]]], b""),
        (["nonsense"], b""),
        (["beat", "not a list"], b""),
        (["hello", 1, 2, 3], b""),
    ]
    for header, body in bad:
        with dial_tls(pool) as sock:
            assert prove(sock, keyring, AGENT, "pilot:x")[0] == "proved"
            send(sock, header, body)
            assert is_closed(sock)
    assert witness.ask("status")["epoch"] == 1
    witness.close()


def test_a_client_that_says_what_cannot_be_used_is_told_so(pool: PoolHandle) -> None:
    """If the master closed the connection instead, the client would reconnect and repeat the request forever."""
    with dial_unix(pool) as sock:
        prove(sock, open_keyring(pool.directory), CLIENT, CLIENT)
        said: list[tuple[list[Any], int]] = [(["ask", 7, 5, {}], 7), (["open", 3], -1), (["sing"], -1), ([], -1)]
        for wrong, query in said:
            send(sock, wrong)
            answer, _ = receive(sock)
            assert answer[:3] == ["problem", query, "P1100"], answer
    still_serves(pool)


def test_a_pilots_key_cannot_speak_for_another_pilot(pool: PoolHandle) -> None:
    keyring = open_keyring(pool.directory)
    with dial_tls(pool) as sock:
        assert prove(sock, keyring, AGENT, "pilot:x")[0] == "proved"
        send(sock, hello_of("x"))
        assert receive(sock)[0][0] == "welcome", "for its own pilot it is taken"
    with dial_tls(pool) as sock:
        assert prove(sock, keyring, AGENT, "pilot:x")[0] == "proved"
        send(sock, hello_of("other"))
        with pytest.raises((EOFError, ConnectionError, ssl.SSLError)):
            receive(sock)
    still_serves(pool)


def hello_of(pilot: str) -> list[Any]:
    return ["hello", f"{pilot}.1", pilot, {"cores": 1.0}, {}, {}, None, 0.0, []]


def test_a_crowd_of_silent_strangers_does_not_keep_a_worker_out(pool: PoolHandle) -> None:
    keyring = open_keyring(pool.directory)
    with ExitStack() as crowd:
        port = tcp_port(pool)
        for _ in range(400):
            crowd.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
        with dial_tls(pool) as sock:
            assert prove(sock, keyring, AGENT, "pilot:x")[0] == "proved"
    still_serves(pool)


def test_the_master_never_loads_pickle(pool: PoolHandle) -> None:
    """Import its modules in a new process in which pickle's loaders raise an error: not even an import uses them."""
    code = (
        "import sys\n"
        "import pilotfish.master, pilotfish.master.master_server\n"
        "bad = [name for name in ('cloudpickle', 'dill', 'marshal_loads') if name in sys.modules]\n"
        "assert not bad, bad\n"
        "import ast, pathlib\n"
        "for name, module in list(sys.modules.items()):\n"
        "    if name.startswith('pilotfish.') and getattr(module, '__file__', None):\n"
        "        tree = ast.parse(pathlib.Path(module.__file__).read_text())\n"
        "        for node in ast.walk(tree):\n"
        "            names = [a.name for a in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []\n"
        "            assert 'pickle' not in names and getattr(node, 'module', '') != 'pickle', name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
