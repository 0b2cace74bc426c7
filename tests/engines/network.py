"""Simulates a laptop behind NAT: it reaches ssh servers on this machine and nothing else, and accepts no connections.

Laptop and router are network namespaces named after the session; the next session removes those of a dead one.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pilotfish.client.pools import PoolHandle, is_served
from pilotfish.errors import PoolStopped
from pilotfish.store.pool_directory import stop_mark_path
from tests.engines import processes
from tests.engines.openssh import OpenSSH

NAMES = Path("/run/netns")
PATTERN = re.compile(r"pf-(\d+x\d+)-(\w+)")
REVIVE = (
    "import json, pathlib, sys; from pilotfish.client.pools import PoolHandle; "
    "PoolHandle(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])).revive()"
)


@dataclass(frozen=True)
class Laptop:
    """A laptop. ``server`` is the address of this machine as the laptop sees it."""

    name: str
    router: str
    wire: str
    server: str

    def enter(self, *command: str) -> list[str]:
        # "ip netns exec" would hide some mounts
        return ["nsenter", f"--net={NAMES / self.name}", "--", *command]

    def let_out_to(self, port: int) -> None:
        """Let the router forward connections to this port, and their replies."""
        _nft(self.router, f"add rule ip wan inbound iifname inside tcp dport {port} accept")

    def cut(self) -> None:
        """Drop packets in both directions without notice."""
        _nft(self.router, "add rule ip wan weather drop")

    def heal(self) -> None:
        _nft(self.router, "flush chain ip wan weather")

    def pool(self, directory: Path, settings: dict[str, object]) -> PoolHandle:
        """Create a pool whose master runs on the laptop. The client socket is a file, which every namespace can reach."""
        laptop = self

        class PoolThere(PoolHandle):
            def revive(self) -> None:
                if stop_mark_path(self.directory).exists():
                    raise PoolStopped("the pool was stopped", "")
                if not is_served(self.directory):
                    command = laptop.enter(sys.executable, "-c", REVIVE, str(self.directory), json.dumps(self.settings))
                    subprocess.run(command, check=True, timeout=processes.PATIENCE_S)

        return PoolThere(directory, dict(settings))


@dataclass
class OpenSSHFromOutside(OpenSSH):
    """An ssh server that the laptop can reach as well."""

    needs: ClassVar[str] = "openssh"

    address: str = "127.0.0.1"

    def _set_up(self) -> None:
        super()._set_up()
        for path in (self.place / "known_hosts", *(self.configuration(account) for account in self.accounts)):
            path.write_text(path.read_text().replace("127.0.0.1", self.address))

    def _settings(self) -> list[str]:
        return [*super()._settings(), f"ListenAddress {self.address}"]


@contextmanager
def laptop_behind_a_router() -> Iterator[Laptop]:
    clear_away_after_the_dead()
    life = processes.life_of(os.getpid())
    dice = random.Random()
    net, wire = f"10.{dice.randrange(100, 255)}.{dice.randrange(255)}", f"pf{dice.randrange(16**8):08x}"
    made = Laptop(f"pf-{life}-laptop", f"pf-{life}-router", wire, f"{net}.65")
    try:
        _connect(made, net)
        yield made
    finally:
        _remove(made.name)
        _remove(made.router)
        subprocess.run(["ip", "link", "delete", wire], capture_output=True)


def _connect(laptop: Laptop, net: str) -> None:
    """Connect laptop and router (lower part of ``net``, no route from this machine), and router and machine (upper part)."""
    for name in (laptop.name, laptop.router):
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
    _ip("-n", laptop.router, "link", "add", "inside", "type", "veth", "peer", "name", "uplink", "netns", laptop.name)
    _ip("link", "add", laptop.wire, "type", "veth", "peer", "name", "outside", "netns", laptop.router)
    for namespace, link, address in (
        (["-n", laptop.name], "uplink", f"{net}.2/26"),
        (["-n", laptop.router], "inside", f"{net}.1/26"),
        (["-n", laptop.router], "outside", f"{net}.66/26"),
        ([], laptop.wire, f"{laptop.server}/26"),
    ):
        _ip(*namespace, "address", "add", address, "dev", link)
        _ip(*namespace, "link", "set", link, "up")
    _ip("-n", laptop.name, "route", "add", "default", "via", f"{net}.1")
    subprocess.run(["nsenter", f"--net={NAMES / laptop.router}", "--", "sysctl", "--quiet", "--write", "net.ipv4.ip_forward=1"], check=True)
    _nft(
        laptop.router,
        "add table ip wan\n"
        "add chain ip wan weather { type filter hook forward priority -10; }\n"
        "add chain ip wan inbound { type filter hook forward priority 0; policy drop; }\n"
        "add rule ip wan inbound ct state established,related accept\n"
        "add chain ip wan hide { type nat hook postrouting priority 100; }\n"
        "add rule ip wan hide oifname outside masquerade\n",
    )


def clear_away_after_the_dead() -> None:
    """Remove namespaces of dead sessions. The link to this machine goes with the namespace at its other end."""
    for path in NAMES.iterdir() if NAMES.is_dir() else ():
        found = PATTERN.fullmatch(path.name)
        if found and processes.is_over(found[1]):
            _remove(path.name)


def _remove(name: str) -> None:
    """Remove a namespace and kill the processes in it, which would keep it alive without a name."""
    if (NAMES / name).exists():
        said = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
        processes.end(int(pid) for pid in said.stdout.split())
        subprocess.run(["ip", "netns", "delete", name], check=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _nft(namespace: str, rules: str) -> None:
    subprocess.run(["nsenter", f"--net={NAMES / namespace}", "--", "nft", "-f", "-"], input=rules + "\n", text=True, check=True)
