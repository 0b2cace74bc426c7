"""The far end of a tunnel: passes bytes between agents, which come over the network, and the master, behind a Unix socket made by ssh.

It understands nothing of what it passes: agents and the master have TLS between them. It lives as long as its standard input does, on which
the other end of the tunnel says now and then that it is there, and says so too.
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

SAYS = "pilotfish-relay "
"""The line that begins so says where it listens."""
ENDED = "pilotfish-relay-ended"
"""Its last words: ssh itself might wait for those who never hang up."""
HIGH_WATER_BYTES = 256 * 1024
TAKE_OVER_S = 3.0
MOST_ADDRESSES = 4


class RelaySide(asyncio.Protocol):
    """One end of a passage. Whoever reads slowly makes the other end wait, so that little is ever kept here."""

    def __init__(self, relay: Relay, other: Optional[RelaySide]) -> None:
        self.relay = relay
        self.other = other
        self.transport: Any = None
        self.early: List[bytes] = []
        self.done = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        if self.other is None:
            self.relay.arrived(self)
        else:
            self.relay.joined(self)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)
        else:
            self.early.append(data)

    def eof_received(self) -> bool:
        self.done = True
        if self.other is None or self.other.done:
            return False
        if not self.other.transport.is_closing():
            self.other.transport.write_eof()
        return True  # the other direction may have more to say

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Optional[Exception]) -> None:
        self.relay.left(self)
        if self.other is not None:
            self.other.transport.close()


class Relay:
    def __init__(self, options: Any) -> None:
        self.to = options.to
        self.most = options.most
        self.silence_s = options.silence
        self.networks = [ipaddress.ip_network(text, strict=False) for text in options.admit]
        self.loop = asyncio.get_event_loop()
        self.ended = self.loop.create_future()
        self.arrivals: Dict[RelaySide, None] = {}
        self.heard_at = time.monotonic()

    def admits(self, address: str) -> bool:
        place = ipaddress.ip_address(address)
        return not self.networks or any(place.version == network.version and place in network for network in self.networks)

    def arrived(self, side: RelaySide) -> None:
        peer = side.transport.get_extra_info("peername")
        if len(self.arrivals) >= self.most or not peer or not self.admits(peer[0]):
            side.transport.abort()
            return
        _keep_alive(side.transport.get_extra_info("socket"))
        self.arrivals[side] = None
        # Not at once: older asyncio begins to read after this call, whatever was said in it.
        self.loop.call_soon(side.transport.pause_reading)
        self.loop.create_task(self.connect(side))

    async def connect(self, side: RelaySide) -> None:
        try:
            await self.loop.create_unix_connection(lambda: RelaySide(self, side), self.to)
        except OSError as error:
            print("the master's end is gone: %s" % error, file=sys.stderr, flush=True)
            side.transport.abort()

    def joined(self, behind: RelaySide) -> None:
        """The way to the master is open; its agent may be gone by now."""
        side = behind.other
        assert side is not None
        if side.transport.is_closing():
            behind.transport.abort()
        else:
            side.other = behind
            behind.transport.writelines(side.early)
            side.early = []
            side.transport.resume_reading()

    def left(self, side: RelaySide) -> None:
        self.arrivals.pop(side, None)

    def hear(self) -> None:
        """Standard input: what is said does not matter, that something is said does. It is answered likewise."""
        self.heard_at = time.monotonic()
        try:
            if os.read(0, 4096):
                os.write(1, b"\n")
                return
        except OSError:
            pass
        self.end()

    def watch(self) -> None:
        if time.monotonic() - self.heard_at > self.silence_s:
            self.end()
        else:
            self.loop.call_later(self.silence_s / 4, self.watch)

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def main(words: List[str]) -> None:
    options = _parse(words)
    _raise_limit()
    _end_predecessors(options.name)
    _remove(options.remove)
    try:
        asyncio.run(_serve(options))
    finally:
        _remove(options.to)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


async def _serve(options: Any) -> None:
    relay = Relay(options)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        relay.loop.add_signal_handler(number, relay.end)
    host, _, port = options.listen.rpartition(":")
    listener = _listen(host, int(port))
    server = await relay.loop.create_server(lambda: RelaySide(relay, None), sock=listener, backlog=256)
    relay.loop.add_reader(0, relay.hear)
    relay.watch()
    where = {"host": socket.gethostname(), "addresses": own_addresses(), "port": listener.getsockname()[1]}
    print(SAYS + json.dumps(where), flush=True)
    await relay.ended
    server.close()
    for side in list(relay.arrivals):
        side.transport.abort()
    try:
        print(ENDED, flush=True)
    except OSError:
        pass


def _parse(words: List[str]) -> Any:
    import argparse

    parser = argparse.ArgumentParser(prog="agent.pyz relay", description="Passes the connections of agents on to their master.")
    parser.add_argument("--listen", default="0.0.0.0:0", metavar="HOST:PORT", help="where agents come to; another port is taken if need be")
    parser.add_argument("--to", required=True, metavar="SOCKET", help="the Unix socket behind which the master is; removed at the end")
    parser.add_argument("--name", default="", metavar="NAME", help="of the tunnel: an older relay of this name is ended")
    parser.add_argument("--remove", default="", metavar="SOCKET", help="what an older relay may have left")
    parser.add_argument(
        "--admit", action="append", default=[], metavar="NETWORK", help="agents may come from there (default: from anywhere)"
    )
    parser.add_argument("--most", type=int, default=10000, metavar="N", help="so many connections at a time")
    parser.add_argument("--silence", type=float, default=60.0, metavar="SECONDS", help="end when nothing was heard for so long")
    return parser.parse_args(words)


def _listen(host: str, port: int) -> socket.socket:
    """The port that was asked for, so that agents find us where our predecessor was; if somebody else has it, any other."""
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
    """A node may vanish without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _raise_limit() -> None:
    """Each passage takes two descriptors."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass


def _end_predecessors(name: str) -> None:
    """One whose connection broke may not have noticed yet; it holds the port, and agents would wait in vain behind it."""
    end = time.monotonic() + TAKE_OVER_S
    told: List[str] = []
    while name:
        older = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid() and _is_relay(pid, name)]
        if not older or time.monotonic() > end:
            return
        late = end - time.monotonic() < TAKE_OVER_S / 2
        for pid in older:
            # Once: a second signal would meet one that is just tidying up.
            if late or pid not in told:
                told.append(pid)
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
            words = file.read().split(b"\0")
    except OSError:
        return False
    wanted = os.fsencode(name)
    return b"relay" in words and any(words[at : at + 2] == [b"--name", wanted] for at in range(len(words)))


def own_addresses() -> List[str]:
    """The addresses of this machine, without those that only it can reach: nodes may not know it by its name."""
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
    return found[:MOST_ADDRESSES]
