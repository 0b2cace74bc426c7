"""Builds a small network on this machine: a switch and hosts, with links of any bandwidth that can be cut.

Switch and hosts are network namespaces; the machine's own network is not touched. They are named after the process that created them, and
the next process removes those of a dead one.

Bandwidth is set with ``tbf``. Delay comes only from its queue, because not every kernel has ``netem``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Literal

from tests.engines import processes

NAMES = Path("/run/netns")
PATTERN = re.compile(r"pf-(\d+x\d+)-lan\d+-\w+")
PROGRAMS = ("ip", "tc", "bridge", "ss", "nft", "nsenter", "unshare", "mount")
UPLINK = "eth0"
NET = "10.99.0"
"""The same for all networks, because they are isolated."""
MOST_BURST_BYTES = 64 * 1024
"""Not less than the kernel puts on a link at once."""
QUEUE_S = 0.05

Kind = Literal["down", "silent", "reset", "forgotten"]
"""How a link breaks. ``down``: the host sees it. ``silent``: packets are dropped without notice. ``reset``: all connections break at once,
and both ends are notified. ``forgotten``: a sender is told that there is no such connection, as after a router restart.
"""

_numbers = count(1)


def what_is_missing() -> str:
    """Return why such a network cannot be created here; empty if it can."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    missing = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if missing:
        return f"{', '.join(missing)} cannot be found: install iproute2, nftables and util-linux (as root, .ci/engines does it)"
    return "" if os.geteuid() == 0 else "only root can make network namespaces"


@dataclass(frozen=True)
class Host:
    """A host. ``port`` is its port at the switch."""

    namespace: str
    switch: str
    port: str
    address: str

    def enter(self, *command: str) -> list[str]:
        # "ip netns exec" would hide some mounts
        return ["nsenter", f"--net={NAMES / self.namespace}", "--", *command]

    def shape(self, megabits_per_s: float, queue_s: float = QUEUE_S) -> None:
        """Set the bandwidth of its link in both directions."""
        rate = ["root", "tbf", "rate", f"{megabits_per_s:g}mbit", "burst", str(MOST_BURST_BYTES), "latency", f"{queue_s * 1000:.0f}ms"]
        _run("tc", "-n", self.namespace, "qdisc", "replace", "dev", UPLINK, *rate)
        _run("tc", "-n", self.switch, "qdisc", "replace", "dev", self.port, *rate)

    def cut(self, kind: Kind) -> None:
        if kind == "down":
            _run("ip", "-n", self.namespace, "link", "set", UPLINK, "down")
        elif kind == "silent":
            self._filter_at_switch(f'oifname "{self.port}" drop', f'iifname "{self.port}" drop')
        elif kind == "reset":
            _run(*self.enter("ss", "--kill", "--tcp", "--no-header"))
        else:
            self._filter("tcp flags & rst == 0 reject with tcp reset")  # or the resets themselves would be dropped

    def heal(self) -> None:
        """Repair the link."""
        self._filter_at_switch()
        self._filter()
        _run("ip", "-n", self.namespace, "link", "set", UPLINK, "up")

    def _filter(self, *rules: str) -> None:
        table = "inet weather"
        both = [line for direction in ("input", "output") for line in _chain(table, direction, rules)]
        _run(*self.enter("nft", "-f", "-"), text="\n".join([f"add table {table}", f"flush table {table}", *both, ""]))

    def _filter_at_switch(self, *rules: str) -> None:
        table = f"bridge {self.port}"
        lines = [f"add table {table}", f"flush table {table}", *_chain(table, "forward", rules), ""]
        _run("nsenter", f"--net={NAMES / self.switch}", "--", "nft", "-f", "-", text="\n".join(lines))

    def bytes_out(self) -> int:
        """Bytes sent by the host, with all protocol overhead."""
        return self._counters()["tx"]

    def bytes_in(self) -> int:
        return self._counters()["rx"]

    def _counters(self) -> dict[str, int]:
        found = json.loads(_run("ip", "-n", self.namespace, "-json", "-statistics", "link", "show", "dev", UPLINK))
        return {direction: int(found[0]["stats64"][direction]["bytes"]) for direction in ("tx", "rx")}


@dataclass(frozen=True)
class Network:
    switch: str
    subnet: str
    hosts: dict[str, Host]

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def keep_apart(self, names: Sequence[str]) -> None:
        """Isolate these hosts from each other; packets are dropped."""
        for name in names:
            _run("bridge", "-n", self.switch, "link", "set", "dev", self.hosts[name].port, "isolated", "on")


@contextmanager
def network(*names: str) -> Iterator[Network]:
    """Create hosts that all reach each other."""
    clear_away_after_the_dead()
    prefix = f"pf-{processes.life_of(os.getpid())}-lan{next(_numbers)}"
    switch = f"{prefix}-switch"
    hosts = {name: Host(f"{prefix}-{name}", switch, f"port{number}", f"{NET}.{number}") for number, name in enumerate(names, 1)}
    try:
        _connect(switch, list(hosts.values()))
        yield Network(switch, f"{NET}.0/24", hosts)
    finally:
        for namespace in (*(host.namespace for host in hosts.values()), switch):
            _remove(namespace)


def _connect(switch: str, hosts: Sequence[Host]) -> None:
    _run("ip", "netns", "add", switch)
    lines = ["link add name hub0 type bridge", "link set dev hub0 up"]
    for host in hosts:
        _run("ip", "netns", "add", host.namespace)
        lines.append(f"link add name {host.port} type veth peer name {UPLINK} netns {host.namespace}")
        lines.append(f"link set dev {host.port} master hub0 up")
    _run("ip", "-n", switch, "-batch", "-", text="\n".join(lines) + "\n")
    for host in hosts:
        lines = ["link set dev lo up", f"address add {host.address}/24 dev {UPLINK}", f"link set dev {UPLINK} up"]
        _run("ip", "-n", host.namespace, "-batch", "-", text="\n".join(lines) + "\n")


def _chain(table: str, hook: str, rules: Sequence[str]) -> list[str]:
    chain = f"{table} {hook}"
    return [f"add chain {chain} {{ type filter hook {hook} priority 0; }}", *(f"add rule {chain} {rule}" for rule in rules)]


def clear_away_after_the_dead() -> None:
    for path in NAMES.iterdir() if NAMES.is_dir() else ():
        found = PATTERN.fullmatch(path.name)
        if found and processes.is_over(found[1]):
            _remove(path.name)


def _remove(namespace: str) -> None:
    """Remove a namespace and kill the processes in it, which would keep it alive without a name."""
    if (NAMES / namespace).exists():
        said = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True)
        processes.end(int(pid) for pid in said.stdout.split())
        gone = subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, text=True)
        if gone.returncode and (NAMES / namespace).exists():  # another process may remove the same one
            raise RuntimeError(gone.stderr.strip())


def _run(*command: str, text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
