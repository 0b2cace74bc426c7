"""Runs many agents in one process, without slots. They use the real protocol over TLS sockets and return every task as done at once.

They load a master with connections, or with tasks that cost nothing outside the master. Each line on standard input requests a report,
a JSON line; the end of standard input ends the process.
"""

from __future__ import annotations

import argparse
import asyncio
import asyncio.sslproto
import hashlib
import hmac
import json
import resource
import secrets
import ssl
import statistics
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pilotfish.model import messages as m
from pilotfish.portable.wire.frames import PROTOCOL

PREFIX = struct.Struct("!II")
ToAgent = (
    m.Banner
    | m.Proved
    | m.Refused
    | m.Welcome
    | m.Introduce
    | m.SetHeartbeats
    | m.Assign
    | m.Delegate
    | m.ReleaseContents
    | m.Acked
    | m.Kill
    | m.Recall
    | m.HeartbeatAck
    | m.Drain
    | m.Retire
    | m.Peek
)
decode_to_agent = msgspec.json.Decoder(ToAgent).decode
NOTHING = struct.pack("!I4Q", 4, 0, 4, 0, 0) + b"\x80\x05N."
"""Payload of a Python task that returned None."""
AT_THE_DOOR = 64
"""Maximum agents that connect at once. A master with too many unauthenticated connections drops the oldest."""
JOIN_TIMEOUT_S = 60.0
# asyncio gives every TLS connection a read buffer of this size; with the default, 2,000 of them take half a gigabyte.
asyncio.sslproto.SSLProtocol.max_size = 16 * 1024


def raise_file_limit() -> int:
    """Raises the limit of open files to the maximum; children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class Account:
    """Totals of all agents of this process."""

    def __init__(self) -> None:
        self.welcomed_s: list[float] = []
        self.pulses_ms: list[float] = []
        self.done = 0
        self.acknowledged = 0
        self.lost = 0
        self.complaints: list[str] = []


class LightAgent(asyncio.Protocol):
    """An agent that authenticates, sends heartbeats and returns each task as done at once."""

    def __init__(self, number: int, credentials: dict[str, Any], cores: float, account: Account) -> None:
        self.worker = f"light-{number}-{secrets.token_hex(4)}"
        self.credentials = credentials
        self.cores = cores
        self.account = account
        self.began = time.perf_counter()
        self.welcomed = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport | None = None
        self.received = bytearray()
        self.nonce = secrets.token_hex(32)
        self.master_nonce = ""
        self.next_result = 0
        self.beat_at = 0.0
        self.leaving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        certificate = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        self.binding = hashlib.sha256(certificate).hexdigest()
        wanted = self.credentials["endpoint"]["fingerprint"]
        if not hmac.compare_digest(self.binding, wanted):
            self.give_up("the certificate of the master is not the pinned one")

    def give_up(self, reason: str) -> None:
        self.account.complaints.append(reason)
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if not self.leaving:
            self.account.lost += 1
        if not self.welcomed.done():
            self.welcomed.set_exception(ConnectionError(str(exc) or "the master closed the connection"))

    def send(self, message: m.Message, parts: Sequence[bytes] = ()) -> None:
        if self.transport is not None:
            header = m.encode(message)
            self.transport.write(b"".join((PREFIX.pack(len(header), sum(map(len, parts))), header, *parts)))

    def data_received(self, data: bytes) -> None:
        self.received += data
        start = 0
        while len(self.received) - start >= PREFIX.size:
            header_length, body_length = PREFIX.unpack_from(self.received, start)
            end = start + PREFIX.size + header_length + body_length
            if end > len(self.received):
                break
            header = bytes(self.received[start + PREFIX.size : start + PREFIX.size + header_length])
            self.hear(decode_to_agent(header))
            start = end
        del self.received[:start]

    def mac(self, who: str, nonces: tuple[str, str]) -> str:
        words = (f"pilotfish-{PROTOCOL}", who, "agent", self.credentials["key_id"], *nonces, self.binding)
        return hmac.new(bytes.fromhex(self.credentials["key"]), "|".join(words).encode(), "sha256").hexdigest()

    def hear(self, message: m.Message) -> None:
        if isinstance(message, m.Banner):
            self.master_nonce = message.nonce
            mac = self.mac("peer", (self.master_nonce, self.nonce))
            self.send(m.Prove(PROTOCOL, "agent", self.credentials["key_id"], self.nonce, mac))
        elif isinstance(message, m.Proved):
            if not hmac.compare_digest(message.mac, self.mac("master", (self.nonce, self.master_nonce))):
                self.give_up("the master did not prove that it has the key")
                return
            capacity = {"cores": self.cores, "memory": 2.0**30}
            pilot = self.credentials["pilot"]
            self.send(m.Hello(self.worker, pilot, capacity, {}, {"host": "light"}, None, 0.0, []))
        elif isinstance(message, m.Welcome):
            self.account.welcomed_s.append(time.perf_counter() - self.began)
            self.welcomed.set_result(message.beat_s)
        elif isinstance(message, m.Assign):
            self.answer(message.tasks)
        elif isinstance(message, m.Acked):
            self.account.acknowledged += message.last - message.first + 1
        elif isinstance(message, m.HeartbeatAck):
            self.account.pulses_ms.append((time.perf_counter() - self.beat_at) * 1000)
        elif isinstance(message, m.Refused | m.Retire):
            self.give_up(message.reason)

    def answer(self, tasks: Sequence[m.SentTask]) -> None:
        items = [m.ResultItem(task.task, task.attempt, None, 1, 1, 0, len(NOTHING)) for task in tasks]
        self.send(m.Results(self.next_result, items), [NOTHING] * len(items))
        self.next_result += len(items)
        self.account.done += len(items)

    def beat(self) -> None:
        self.beat_at = time.perf_counter()
        self.send(m.Heartbeat([]))

    def leave(self) -> None:
        self.leaving = True
        if self.transport is not None:
            self.send(m.Leave("the benchmark has ended"))
            self.transport.close()


async def keep_beating(agent: LightAgent, beat_s: float, share: float) -> None:
    """Sends heartbeats. They are spread over the interval, like those of independent agents."""
    await asyncio.sleep(beat_s * share)
    while agent.transport is not None:
        agent.beat()
        await asyncio.sleep(beat_s)


async def join_all(credentials: dict[str, Any], count: int, cores: float, account: Account) -> list[tuple[LightAgent, float]]:
    """Connects all agents, a limited number at a time; returns those that joined, with their heartbeat interval."""
    loop = asyncio.get_running_loop()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # pinned by its fingerprint instead
    endpoint = credentials["endpoint"]
    door = asyncio.Semaphore(AT_THE_DOOR)

    async def join(number: int) -> tuple[LightAgent, float] | None:
        async with door:
            try:
                _, agent = await loop.create_connection(
                    lambda: LightAgent(number, credentials, cores, account), endpoint["host"], endpoint["port"], ssl=context
                )
                return agent, await asyncio.wait_for(agent.welcomed, JOIN_TIMEOUT_S)
            except (OSError, TimeoutError) as problem:
                account.complaints.append(f"{type(problem).__name__}: {problem}")
                return None

    joined = await asyncio.gather(*(join(number) for number in range(count)))
    return [one for one in joined if one is not None]


def say(content: dict[str, Any]) -> None:
    print(json.dumps(content), flush=True)


def parts_of(values: Sequence[float]) -> dict[str, float]:
    if len(values) < 2:
        return {}
    cuts = statistics.quantiles(values, n=100)
    return {"p50": cuts[49], "p99": cuts[98]}


async def live(options: argparse.Namespace) -> None:
    credentials = json.loads(options.credentials.read_text())
    account = Account()
    began = time.perf_counter()
    joined = await join_all(credentials, options.count, options.cores, account)
    say(
        {
            "joined": len(joined),
            "seconds": time.perf_counter() - began,
            "join_s": parts_of(account.welcomed_s),
            "problems": account.complaints[:3],
        }
    )
    beating = [asyncio.ensure_future(keep_beating(agent, beat_s, place / len(joined))) for place, (agent, beat_s) in enumerate(joined)]
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.readline():
        pulses, account.pulses_ms = account.pulses_ms, []
        say(
            {
                "connected": sum(agent.transport is not None for agent, _ in joined),
                "beats": len(pulses),
                "pulse_ms": parts_of(pulses),
                "done": account.done,
                "acknowledged": account.acknowledged,
                "lost": account.lost,
                "problems": account.complaints[:3],
            }
        )
    for agent, _ in joined:
        agent.leave()
    for task in beating:
        task.cancel()
    await asyncio.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--credentials", type=Path, required=True, help='JSON: {"key_id", "key", "pilot", "endpoint": {host, port, fingerprint}}'
    )
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--cores", type=float, default=1.0)
    raise_file_limit()
    asyncio.run(live(parser.parse_args()))


if __name__ == "__main__":
    main()
