"""Tests agents that fetch contents from each other and reject unauthenticated connections."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from pilotfish.agent.node.peer_handshake import PeerIdentity, dial_peer
from pilotfish.agent.peers.contacts import Contact
from pilotfish.portable.transfer.content_cache import ContentCache
from pilotfish.portable.transfer.transfer_client import fetch
from pilotfish.portable.transfer.transfer_protocol import TransferChannel
from pilotfish.portable.wire.frame_link import LinkLost
from pilotfish.store.keyring import open_keyring
from tests.engines import processes
from tests.engines.processes import PATIENCE_S, wait_until
from tests.support.peer_pool import CAN_HIDE, PeerPool, peer_pool

MB = 1_000_000


@pytest.fixture
def peers(pilotfish_home: Path, tmp_path: Path) -> Iterator[PeerPool]:
    if not CAN_HIDE:
        pytest.skip("only root can hide a directory from a process")
    with peer_pool(pilotfish_home, tmp_path / "place") as made:
        yield made


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def use(peers: PeerPool, path: Path, *names: str) -> None:
    """Run a task that needs the file at each of these agents, all at once."""
    expected = digest_of(path)
    with peers.run() as run:
        futures = [run.executable(["sha256sum", "in"], inputs={"in": path}, tags={"name": name}) for name in names]
        assert [future.result(timeout=PATIENCE_S).text.split()[0] for future in futures] == [expected] * len(names)


def wait_for(pool: PeerPool, /, **wanted: int) -> None:
    wait_until(lambda: {name: count for name, count in pool.got().items() if count} == wanted, f"{wanted}, not {pool.got()}")


def identity_of(peers: PeerPool, key: str = "", worker: str = "stranger") -> PeerIdentity:
    """Return the identity that an agent of the site gets from the master, or one with another key."""
    real, certificate, private_key = open_keyring(peers.pool.directory).peers("")
    return PeerIdentity(worker, bytes.fromhex(key or real), certificate, private_key, str(peers.place))


def file_of(peers: PeerPool, name: str, digest: str) -> Path:
    return peers.cache_of(name) / digest[:2] / digest


# --- contents -------------------------------------------------------------------------------------------------------------------------


def test_the_second_of_two_gets_it_from_the_first(peers: PeerPool) -> None:
    peers.start("a", "b")
    path = peers.write_input("input", 3 * MB)
    use(peers, path, "a")
    use(peers, path, "b")
    wait_for(peers, master=1, peers=1)


def test_it_is_had_from_a_peer_even_if_the_person_has_it_no_more(peers: PeerPool) -> None:
    peers.start("a", "b")
    path = peers.write_input("input", 3 * MB)
    expected = digest_of(path)
    with peers.run() as run:
        tasks = [run.executable(["sha256sum", "in"], inputs={"in": path}, tags={"name": "a"})]
        assert tasks[0].result(timeout=PATIENCE_S).text.split()[0] == expected
        later = run.executable(["sha256sum", "in"], inputs={"in": path}, tags={"name": "b"}, after=tasks)
        path.unlink()
        assert later.result(timeout=PATIENCE_S).text.split()[0] == expected
    wait_for(peers, master=1, peers=1)


def test_of_five_at_once_few_ask_the_master(peers: PeerPool) -> None:
    names = ["a", "b", "c", "d", "e"]
    peers.start(*names)
    use(peers, peers.write_input("input", 20 * MB), *names)
    wait_until(lambda: sum(peers.got().values()) == 5, "all have told where they got it")
    got = peers.got()
    assert got["peers"] >= 3 and got["storage"] == 0, got


def test_what_a_task_made_and_kept_is_had_from_where_it_was_made(peers: PeerPool) -> None:
    peers.start("a", "b", "c")
    with peers.run() as run:
        maker = run.executable(["sh", "-c", "head -c 500000 /dev/urandom > out; sha256sum out"], keep=["out"], tags={"name": "a"})
        made = maker.result(timeout=PATIENCE_S)
        said = [
            run.executable(["sha256sum", "in"], inputs={"in": made.files["out"]}, tags={"name": name}).result(timeout=PATIENCE_S).text
            for name in ("b", "c")
        ]
    assert [text.split()[0] for text in said] == [made.text.split()[0]] * 2
    wait_for(peers, peers=2)


def test_files_go_from_task_to_task_wherever_these_run(peers: PeerPool) -> None:
    """Small and large files, kept at the worker, or also copied back and then available after the worker's end."""
    peers.start("a", "b", "c")
    gate = peers.place / "gate"
    with peers.run() as run:
        files = "head -c 500000 /dev/urandom > large; echo 1 > small; echo 2 > home"
        first = run.executable(["sh", "-c", files], keep=["large", "small", "home"], outputs=["home"], tags={"name": "a"})
        inputs = [first.file("large"), first.file("small")]
        script = f"until [ -e {gate} ]; do sleep 0.05; done; wc -c < large; cat small; echo 3 > more"
        second = run.executable(["sh", "-c", script], inputs=inputs, keep=["more"], tags={"name": "b"})
        third = run.executable(["cat", "home", "more"], inputs=[first.file("home"), second.file("more")], tags={"name": "c"})
        first.result(timeout=PATIENCE_S)
        wait_until(lambda: peers.ask("task", task=second.task_id)["state"] == "running", "the second one runs")
        peers.kill("a")
        gate.touch()
        assert second.result(timeout=PATIENCE_S).text == "500000\n1\n"
        assert third.result(timeout=PATIENCE_S).text == "2\n3\n"


def test_a_peer_that_serves_damaged_bytes_is_not_believed(peers: PeerPool) -> None:
    """The damaged file has the right size and time, and its agent has just checked it."""
    peers.start("a", "b")
    path = peers.write_input("input", 3 * MB)
    use(peers, path, "a")
    held = file_of(peers, "a", digest_of(path))
    status = held.stat()
    held.chmod(0o600)
    with held.open("r+b") as file:
        file.seek(MB)
        file.write(b"damaged")
    os.utime(held, ns=(status.st_atime_ns, status.st_mtime_ns))
    held.chmod(status.st_mode & 0o777)
    use(peers, path, "b")
    wait_for(peers, master=2)
    assert digest_of(file_of(peers, "b", digest_of(path))) == digest_of(path)


def test_a_peer_that_is_dead_costs_a_moment_and_no_task(peers: PeerPool) -> None:
    """The master and the peers still list it."""
    peers.start("a", "b", "c")
    path = peers.write_input("input", 3 * MB)
    use(peers, path, "a")
    peers.kill("a")
    use(peers, path, "b")
    use(peers, path, "c")
    wait_until(lambda: peers.got()["master"] == 1, f"b has it from the master: {peers.got()}")


def test_a_peer_that_is_stopped_in_the_middle_costs_a_moment_and_no_task(peers: PeerPool) -> None:
    peers.start("a", "b")
    path = peers.write_input("input", 3 * MB)
    use(peers, path, "a")
    stopped = peers.process_of("a")
    os.kill(stopped, signal.SIGSTOP)
    try:
        use(peers, path, "b")
    finally:
        os.kill(stopped, signal.SIGCONT)


def test_an_agent_that_got_something_of_a_master_that_died_gets_the_next_thing_of_the_next_one(peers: PeerPool) -> None:
    peers.start("a")
    use(peers, peers.write_input("one", MB), "a")
    peers.kill_master()
    use(peers, peers.write_input("two", MB), "a")
    wait_for(peers, master=2)


def test_whatever_a_cancelled_task_was_waiting_for_the_next_one_gets_what_it_needs(peers: PeerPool) -> None:
    """An interrupted transfer must not leave a dead connection for the next ones."""
    peers.start("a", cores=4)
    large = [peers.write_input(f"large{number}", 60 * MB) for number in range(6)]
    with peers.run() as doomed:
        for path in large:
            doomed.executable(["sha256sum", "in"], inputs={"in": path}, tags={"name": "a"})
        wait_until(lambda: bool(list((peers.cache_of("a") / "incoming").glob("*"))), "something is under way")
        doomed.cancel()
    for number in range(6):
        use(peers, peers.write_input(f"next{number}", MB), "a")


# --- unauthenticated connections ------------------------------------------------------------------------------------------------------


def test_a_peer_is_served_only_with_the_right_key(peers: PeerPool, tmp_path: Path) -> None:
    peers.start("a")
    path = peers.write_input("input", MB)
    use(peers, path, "a")
    contact = Contact.read(peers.contact_of("a"))
    digest = digest_of(path)
    cache = ContentCache(str(tmp_path / "mine"), 1 << 40)
    with pytest.raises(LinkLost):
        dial_peer(contact, identity_of(peers, key="00" * 32), ["bulk", ["f" * 64, ["127.0.0.1", 1]]])
    friend = identity_of(peers)
    channel = TransferChannel(dial_peer(contact, friend, ["bulk", [friend.name, ["127.0.0.1", 1]]]).connection)
    with cache.incoming(digest, MB) as incoming:
        fetch(channel, digest, MB, incoming, False)
    channel.close()
    assert cache.verified_path(digest, MB) is not None


def test_a_peer_cannot_pass_for_another_one(peers: PeerPool) -> None:
    peers.start("a")
    contact = Contact.read(peers.contact_of("a"))
    with pytest.raises(LinkLost):
        dial_peer(contact, identity_of(peers), ["bulk", ["f" * 64, ["127.0.0.1", 1]]])


GREETINGS = [
    b"GET / HTTP/1.1\r\n\r\n",
    os.urandom(100_000),
    struct.pack("!II", 0xFFFFFFFF, 0xFFFFFFFF),
    b"",
]


@pytest.mark.parametrize("secured", [False, True])
@pytest.mark.parametrize("greeting", GREETINGS, ids=["http", "noise", "length", "silence"])
def test_an_unauthenticated_peer_gets_no_information_and_is_disconnected(peers: PeerPool, greeting: bytes, secured: bool) -> None:
    peers.start("a")
    with socket.create_connection(peers.address_of("a"), PATIENCE_S) as plain, ExitStack() as stack:
        connection: socket.socket = plain
        if secured:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = stack.enter_context(context.wrap_socket(plain))
        with suppress(OSError):
            connection.sendall(greeting)
        heard = b""
        with suppress(OSError):
            while more := connection.recv(65536):
                heard += more
        assert len(heard) < 300, "no more than the first word, which every master says to all"
    path = peers.write_input("input", MB)
    use(peers, path, "a")


def test_a_hundred_silent_unauthenticated_connections_cost_little_and_block_no_peer_for_long(peers: PeerPool) -> None:
    peers.start("a", "b")
    path = peers.write_input("input", MB)
    use(peers, path, "a")
    agent = peers.process_of("a")
    before_kib = resident_kib(agent)
    with ExitStack() as stack:
        for _ in range(100):
            with suppress(OSError):
                stack.enter_context(socket.create_connection(peers.address_of("a"), PATIENCE_S))
        wait_until(lambda: threads_of(agent) < 50, "there are not as many threads as strangers")
        use(peers, path, "b")
        wait_until(lambda: threads_of(agent) < 20, "the strangers are shown out")
    assert resident_kib(agent) - before_kib < 50_000
    assert processes.is_alive(agent)


def resident_kib(pid: int) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


def threads_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))
