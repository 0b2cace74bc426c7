"""Passes bytes between agents and the ssh tunnel at a login node.

Agents connect to the relay over the network. For each agent, the relay connects to a Unix socket of ssh, which leads to the master. The
relay cannot read the messages, because agents and master use TLS. The master's end of the tunnel writes to the standard input of the relay
every few seconds, and the relay answers. If standard input ends or is silent for too long, the relay ends.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import resource
import signal
import socket
import sys
import time
from typing import Any, Dict, List, Optional

from ..portable.transfer.cache_directory import remove

LISTENING_PREFIX = "pilotfish-relay "
"""Prefix of the line that reports the address at which the relay listens."""
ENDED_LINE = "pilotfish-relay-ended"
"""The last line of output. After this line, the reader does not wait for the end of ssh, because ssh possibly waits for connections that
never close."""
HIGH_WATER_BYTES = 256 * 1024
TAKEOVER_TIMEOUT_S = 3.0
MAX_ADDRESSES = 4


class RelaySide(asyncio.Protocol):
    """One side of a relayed connection: the connection to an agent, or the connection to the master on behalf of this agent.

    While one side cannot send, the relay does not read from the other side. This limits the bytes that the relay must buffer.
    """

    def __init__(self, relay: Relay, other: Optional[RelaySide]) -> None:
        self.relay = relay
        self.other = other
        self.transport: Any = None
        self.buffered: List[bytes] = []
        self.done = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        if self.other is None:
            self.relay.accepted(self)
        else:
            self.relay.connected(self)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)
        else:
            self.buffered.append(data)

    def eof_received(self) -> bool:
        self.done = True
        if self.other is None or self.other.done:
            return False
        if not self.other.transport.is_closing():
            self.other.transport.write_eof()
        return True  # the other direction is possibly still in use

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Optional[Exception]) -> None:
        self.relay.agents.pop(self, None)
        if self.other is not None:
            self.other.transport.close()


class Relay:
    """All connections that one relay process passes on."""

    def __init__(self, options: Any) -> None:
        self.to = options.to
        self.max_connections = options.most
        self.silence_s = options.silence
        self.networks = [ipaddress.ip_network(text, strict=False) for text in options.admit]
        self.loop = asyncio.get_event_loop()
        self.ended = self.loop.create_future()
        self.agents: Dict[RelaySide, None] = {}
        self.last_input_at = time.monotonic()

    def admits(self, address: str) -> bool:
        ip = ipaddress.ip_address(address)
        return not self.networks or any(ip.version == network.version and ip in network for network in self.networks)

    def accepted(self, agent_side: RelaySide) -> None:
        peer = agent_side.transport.get_extra_info("peername")
        if len(self.agents) >= self.max_connections or not peer or not self.admits(peer[0]):
            agent_side.transport.abort()
            return
        _keep_alive(agent_side.transport.get_extra_info("socket"))
        self.agents[agent_side] = None
        # Pauses reading a moment later, because older versions of asyncio begin to read only after this method returns.
        self.loop.call_soon(agent_side.transport.pause_reading)
        self.loop.create_task(self.connect(agent_side))

    async def connect(self, agent_side: RelaySide) -> None:
        try:
            await self.loop.create_unix_connection(lambda: RelaySide(self, agent_side), self.to)
        except OSError as error:
            print("the master cannot be reached through the tunnel: %s" % error, file=sys.stderr, flush=True)
            agent_side.transport.abort()

    def connected(self, master_side: RelaySide) -> None:
        """Joins a new connection to the master with the agent's connection. If the agent has disconnected, closes the new connection."""
        agent_side = master_side.other
        assert agent_side is not None
        if agent_side.transport.is_closing():
            master_side.transport.abort()
        else:
            agent_side.other = master_side
            master_side.transport.writelines(agent_side.buffered)
            agent_side.buffered = []
            agent_side.transport.resume_reading()

    def on_input(self) -> None:
        """Answers the input from the tunnel, so that both ends know that the tunnel works. Ends the relay at the end of the input."""
        self.last_input_at = time.monotonic()
        try:
            if os.read(0, 4096):
                os.write(1, b"\n")
                return
        except OSError:
            pass
        self.end()

    def check_silence(self) -> None:
        if time.monotonic() - self.last_input_at > self.silence_s:
            self.end()
        else:
            self.loop.call_later(self.silence_s / 4, self.check_silence)

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def main(arguments: List[str]) -> None:
    options = _parse(arguments)
    _raise_limit()
    _end_predecessors(options.name)
    remove(options.remove)
    try:
        asyncio.run(_serve(options))
    finally:
        remove(options.to)


async def _serve(options: Any) -> None:
    relay = Relay(options)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        relay.loop.add_signal_handler(number, relay.end)
    host, _, port = options.listen.rpartition(":")
    listener = _listen(host, int(port))
    server = await relay.loop.create_server(lambda: RelaySide(relay, None), sock=listener, backlog=256)
    relay.loop.add_reader(0, relay.on_input)
    relay.check_silence()
    where = {"host": socket.gethostname(), "addresses": own_addresses(), "port": listener.getsockname()[1]}
    print(LISTENING_PREFIX + json.dumps(where), flush=True)
    await relay.ended
    server.close()
    for agent_side in list(relay.agents):
        agent_side.transport.abort()
    try:
        print(ENDED_LINE, flush=True)
    except OSError:
        pass


def _parse(arguments: List[str]) -> Any:
    import argparse

    parser = argparse.ArgumentParser(prog="agent.pyz relay", description="Pass connections of agents on to their master.")
    parser.add_argument(
        "--listen", default="0.0.0.0:0", metavar="HOST:PORT", help="address for agents; another port is used if it is taken"
    )
    parser.add_argument("--to", required=True, metavar="SOCKET", help="Unix socket of the master; removed at the end")
    parser.add_argument("--name", default="", metavar="NAME", help="name of the tunnel; an older relay of this name is ended")
    parser.add_argument("--remove", default="", metavar="SOCKET", help="socket of an older relay to remove")
    parser.add_argument("--admit", action="append", default=[], metavar="NETWORK", help="network to accept agents from (default: any)")
    parser.add_argument("--most", type=int, default=10000, metavar="N", help="maximum connections")
    parser.add_argument("--silence", type=float, default=60.0, metavar="SECONDS", help="end after this silence on standard input")
    return parser.parse_args(arguments)


def _listen(host: str, port: int) -> socket.socket:
    """Returns a bound socket. Uses ``port``, so that agents find a new relay at the port of the old relay. If ``port`` is in use, uses
    another port."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
    except OSError:
        if not port:
            raise
        listener.bind((host.strip("[]"), 0))
    return listener


def _keep_alive(connection: socket.socket) -> None:
    """Enables keep-alive, to detect nodes that disappear without closing their connections."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _raise_limit() -> None:
    """Raises the limit of open files, because the relay needs two connections for each agent."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass


def _end_predecessors(name: str) -> None:
    """Ends older relays with this name. An older relay can keep the port although its ssh connection is broken. Agents would then connect
    to a relay that cannot reach the master."""
    end = time.monotonic() + TAKEOVER_TIMEOUT_S
    signalled: List[str] = []
    while name:
        older = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid() and _is_relay(pid, name)]
        if not older or time.monotonic() > end:
            return
        late = end - time.monotonic() < TAKEOVER_TIMEOUT_S / 2
        for pid in older:
            # A second signal would disturb the clean-up of the relay.
            if late or pid not in signalled:
                signalled.append(pid)
                try:
                    os.kill(int(pid), signal.SIGKILL if late else signal.SIGTERM)
                except OSError:
                    pass
        time.sleep(0.02)


def _is_relay(pid: str, name: str) -> bool:
    try:
        if os.stat("/proc/" + pid).st_uid != os.getuid():
            return False
        with open("/proc/%s/cmdline" % pid, "rb") as file:
            arguments = file.read().split(b"\0")
    except OSError:
        return False
    name_bytes = os.fsencode(name)
    return b"relay" in arguments and any(arguments[at : at + 2] == [b"--name", name_bytes] for at in range(len(arguments)))


def own_addresses() -> List[str]:
    """Returns at most MAX_ADDRESSES IPv4 addresses of this machine, without loopback. Agents use these addresses if they cannot look up the
    machine's name."""
    found: List[str] = []
    try:
        with open("/proc/net/fib_trie") as file:
            address = ""
            for line in file:
                words = line.split()
                if words[:1] == ["|--"]:
                    address = words[1]
                elif words == ["/32", "host", "LOCAL"] and not address.startswith("127.") and address not in found:
                    found.append(address)
    except OSError:
        pass
    return found[:MAX_ADDRESSES]
