"""Drives the agent machine with sockets and slots, in one thread.

Other threads dial the master, fetch contents and talk to peers, because this can take long.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import socket
import sys
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, NoReturn, Optional, Tuple

from ...portable.processes import END_SIGNALS, become_subreaper, keep_freed_memory, kill_descendants, signal_name, signal_on_parent_death
from ...portable.transfer.cache_directory import CacheError
from ...portable.transfer.content_cache import ContentCache
from ...portable.wire.frame_link import FrameLink, LinkLost, Rejected, dial
from ...portable.wire.frames import FrameError
from ...portable.wire.handshake import BadCredentials, read_credentials
from ..slots.slot_server import SlotServer
from .agent_machine import AgentMachine, WorkerOffer
from .fetcher import Fetcher
from .node_description import describe, gpu_names, readable, usable_cores, usable_memory
from .peer_network import PeerNetwork
from .pending_results import AMBIGUOUS_WITHOUT_BATCH, BATCH_JOB_VARIABLES
from .slot_pool import SlotPool
from .slot_process import SlotProcess

LAST_SEND_TIMEOUT_S = 2.0
WARM_SLOTS = 2
KEPT_MEMORY_BYTES = 32 * 1024 * 1024
CACHE_SHARE = 0.5
"""Default maximum size of the cache, as a fraction of (free disk space + space that the cache uses)."""
TOUCH_S = 30.0
"""Seconds after which the agent again marks all contents that it needs. If a content was not marked in the last minute, other agents of
this node can remove it."""
# Names of effects. Each effect is performed by the method of the same name, in the slot pool, the fetcher or the peer network.
_SLOT_EFFECTS = ("start", "recall", "terminate", "warn", "kill", "peek")
_FETCHER_EFFECTS = ("fetch", "cancel_fetch", "upload", "cancel_upload", "discard", "release")
_PEER_EFFECTS = ("introduce", "delegate", "drop_delegated", "report_free")


class AgentLoop:
    """Runs one agent until it ends: passes events to its AgentMachine and carries out the effects."""

    def __init__(self, offer: WorkerOffer, credentials_path: str, settings: Dict[str, Any], server: SlotServer) -> None:
        now = time.monotonic()
        self.machine = AgentMachine(offer, seed=int.from_bytes(os.urandom(8), "little"), now=now)
        self.selector = selectors.DefaultSelector()
        self.slots = SlotPool(self.machine, self.selector, settings, server)
        self.slots.answer_peek = self._answer_peek
        staging = self.machine.staging
        cache = _open_cache(settings, staging.needed, read_credentials(credentials_path).pool)
        cache.evicted = self._evicted
        staging.is_unchanged = cache.is_unchanged
        self.peers = PeerNetwork(offer, cache, settings["workdir"])
        self.peers.notify, self.peers.holds = self._notify, staging.holds
        self.fetcher = Fetcher(cache, credentials_path, settings, self.peers, self._notify)
        self.machine.transfers = self.fetcher.transfers
        self.machine.fetch_totals = self.fetcher.fetch_totals
        staging.changed(list(cache.contents()), [])
        staging.held.update(dict.fromkeys(cache.held()))
        self.exit: Optional[Tuple[str, int]] = None
        self._credentials_path = credentials_path
        self._supervisor_pipe = settings["supervisor_pipe"]
        on_own_machine = bool(settings.get("home"))
        if on_own_machine and not any(name in os.environ for name in BATCH_JOB_VARIABLES):
            self.machine.results.ambiguous = AMBIGUOUS_WITHOUT_BATCH
        self._has_peers = not (on_own_machine or settings.get("no_peers"))
        self._link: Optional[FrameLink] = None
        self._link_events = 0
        self._dials = 0
        self._touch_at = 0.0
        self._inbox: Deque[Tuple[Callable[..., None], Tuple[Any, ...]]] = deque()
        """Calls that the thread of this loop must make: (function, arguments). The thread adds the current time as the last argument."""
        self._signals: Deque[int] = deque()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def run(self) -> Tuple[str, int]:
        """Runs until the machine exits; returns the reason and the exit status."""
        become_subreaper()
        keep_freed_memory(KEPT_MEMORY_BYTES)
        for number in (*END_SIGNALS, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda number, frame: self._signals.append(number))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self.selector.register(self._wake_read, selectors.EVENT_READ, "wake")
        self.selector.register(self._supervisor_pipe, selectors.EVENT_READ, "supervisor_pipe")
        self._perform(self.machine.turn(time.monotonic()))
        self.slots.warm_up(min(WARM_SLOTS, int(self.machine.attempts.capacity.get("cores", 1))))
        try:
            while self.exit is None:
                self._turn()
        finally:
            self._shut_down()
        return self.exit

    def _turn(self) -> None:
        machine, slots = self.machine, self.slots
        wait_s = 0.0
        if self._link is None or not self._link.has_more:
            wait_s = max(0.0, min(machine.deadline, slots.deadline) - time.monotonic())
        ready = self.selector.select(min(wait_s, 3600.0))
        now = time.monotonic()
        readable = self._link is not None and self._link.has_more
        for key, events in ready:
            if isinstance(key.data, SlotProcess):
                slots.ready(key.data, events, now)
            elif key.data == "link":
                readable = readable or bool(events & selectors.EVENT_READ)
            elif key.data == "wake":
                self._woken(now)
            elif key.data == "supervisor_pipe":
                self.selector.unregister(key.fd)
                machine.stop("its supervisor is dead", now)
        if readable:
            self._receive(now)
        if now >= slots.deadline:
            slots.check_timers(now)
        if (machine.staging.needed or machine.staging.uploads) and now >= self._touch_at:
            self._touch_at = now + TOUCH_S
            self.fetcher.cache.touch(list(machine.staging.needed))
        self._perform(machine.turn(now))
        while slots.machine_changed:
            slots.machine_changed = False
            self._perform(machine.turn(now))
        self._flush_link(now)

    # --- connection -----------------------------------------------------------------------------------------------------------------

    def _receive(self, now: float) -> None:
        link = self._link
        if link is None:
            return
        try:
            for header, body in link.receive():
                self.machine.received(header, body, now)
                if self._link is not link:
                    return
            self.machine.link_active(now)
        except (LinkLost, FrameError):
            self._drop_link()
            self.machine.unlinked(now)

    def _flush_link(self, now: float) -> None:
        link = self._link
        if link is None:
            return
        try:
            events = selectors.EVENT_READ if link.flush() else selectors.EVENT_READ | selectors.EVENT_WRITE
        except LinkLost:
            self._drop_link()
            self.machine.unlinked(now)
            self._perform(self.machine.turn(now))
            return
        if events != self._link_events:
            self._link_events = events
            self.selector.modify(link, events, "link")

    def _drop_link(self) -> None:
        self._dials += 1
        self.peers.disconnected()
        if self._link is not None:
            self.selector.unregister(self._link)
            self._link.close()
            self._link = None

    def _dial(self) -> None:
        self._dials += 1
        try:
            threading.Thread(target=self._dial_in_thread, args=(self._dials,), daemon=True).start()
        except RuntimeError as error:
            self._post(self._dial_answered, self._dials, LinkLost("cannot dial because of a limit of this machine: %s" % error))

    def _dial_in_thread(self, number: int) -> None:
        answer: Any
        try:
            answer = dial(read_credentials(self._credentials_path))
        except (LinkLost, Rejected, BadCredentials, OSError) as error:
            answer = error
        self._post(self._dial_answered, number, answer)

    def _notify(self, what: str, *arguments: Any) -> None:
        """Lets the thread of this loop call the machine's method ``what``. Any thread may call ``_notify``."""
        self._post(getattr(self.machine, what), *arguments)

    def _evicted(self, digest: str) -> None:
        self.peers.withdraw(digest)
        self._post(lambda now: self.machine.staging.changed([], [digest]))

    def _post(self, act: Callable[..., None], *arguments: Any) -> None:
        """Lets the thread of this loop call ``act``. Any thread may call this method."""
        self._inbox.append((act, arguments))
        try:
            os.write(self._wake_write, b"w")
        except BlockingIOError:
            pass  # the loop is woken already

    def _woken(self, now: float) -> None:
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            pass
        while self._inbox:
            act, arguments = self._inbox.popleft()
            act(*arguments, now)
        children = False
        while self._signals:
            number = self._signals.popleft()
            if number == signal.SIGCHLD:
                children = True
            else:
                self.machine.stop("it was stopped by a signal (%s)" % signal_name(number), now)
        if children:
            self.slots.reap(now)

    def _dial_answered(self, number: int, answer: Any, now: float) -> None:
        if number != self._dials:
            if isinstance(answer, FrameLink):
                answer.close()
        elif isinstance(answer, FrameLink):
            self._link = answer
            self._link_events = selectors.EVENT_READ
            self.selector.register(answer, selectors.EVENT_READ, "link")
            self._listen_for_peers(answer)
            self.machine.linked(answer.epoch, now)
            # The reader already has bytes that arrived with the handshake. The selector does not report these bytes.
            answer.has_more = True
        elif isinstance(answer, Rejected):
            self.machine.refused(str(answer), now)
        else:
            print("pilotfish agent: %s" % answer, file=sys.stderr, flush=True)
            self.machine.unlinked(now)

    def _listen_for_peers(self, link: FrameLink) -> None:
        """Listens for peers at the local address of the connection to the master, because peers can probably reach this address."""
        if self._has_peers and link.connection.sock.family != socket.AF_UNIX:
            contact = self.peers.listen(link.connection.sock.getsockname()[0])
            if contact is not None:
                self.machine.offer.info["peer"] = contact

    # --- effects --------------------------------------------------------------------------------------------------------------------

    def _perform(self, effects: List[Tuple[Any, ...]]) -> None:
        now = time.monotonic()
        for effect in effects:
            kind = effect[0]
            if kind == "send":
                if self._link is not None:
                    self._link.send(effect[1], effect[2])
            elif kind in _SLOT_EFFECTS:
                getattr(self.slots, kind)(*effect[1:], now)
            elif kind in _FETCHER_EFFECTS:
                getattr(self.fetcher, kind)(*effect[1:])
            elif kind in _PEER_EFFECTS:
                getattr(self.peers, kind)(*effect[1:])
            elif kind == "dial":
                self._dial()
            elif kind == "disconnect":
                if not self.machine.offer.poll_s:
                    print("pilotfish agent: disconnected: %s" % effect[1], file=sys.stderr, flush=True)
                self._drop_link()
            elif kind == "exit":
                self.exit = (effect[1], effect[2])

    def _answer_peek(self, query: int, found: bool, offset: int, data: bytes) -> None:
        if self._link is not None:
            self._link.send(["peeked", query, found, offset], [data])

    def _shut_down(self) -> None:
        """Kills running attempts, sends pending frames to the master, then lets idle slots clean up."""
        self.slots.kill_busy()
        self.peers.leave()
        link = self._link
        if link is not None:
            try:
                link.connection.settimeout(LAST_SEND_TIMEOUT_S)
                link.flush()
                link.close()
            except (LinkLost, OSError):
                pass
        self.slots.end()
        kill_descendants()


def _open_cache(settings: Dict[str, Any], needed: Dict[str, int], pool: str) -> ContentCache:
    """Opens the cache of this node. If that fails, opens a private cache in the working directory of this agent."""
    for directory in (settings["cache"], os.path.join(settings["workdir"], "cache")):
        settings["cache"] = directory
        try:
            limit = settings.get("cache_bytes") or 0
            cache = ContentCache(directory, limit or (1 << 62), needed.__contains__)
            cache.serve(pool)
            cache.strict = bool(limit)
            if not limit:
                cache.max_bytes = int(CACHE_SHARE * (shutil.disk_usage(directory).free + cache.used_bytes))
            return cache
        except (CacheError, OSError) as error:
            print("pilotfish agent: the cache in %s cannot be used: %s" % (directory, error), file=sys.stderr, flush=True)
            failure = error
    raise failure


def main(options: Dict[str, Any], server: SlotServer) -> NoReturn:
    """Runs the agent, in the process that the supervisor started."""
    signal_on_parent_death(signal.SIGTERM, options["supervisor"])
    gpus = gpu_names() if options["gpus"] is None else []
    capacity = {
        "cores": float(options["cores"] or usable_cores()),
        "memory": float(options["memory"] or usable_memory()),
        "gpus": float(len(gpus) if options["gpus"] is None else options["gpus"]),
    }
    capacity.update(dict(options["resource"]))
    offer = WorkerOffer(readable(options["worker"]), options["pilot"], {name: amount for name, amount in capacity.items() if amount > 0})
    offer.tags = {readable(name): readable(value) for name, value in options["tag"]}
    offer.info = describe(options["workdir"], gpus)
    offer.info["shares"] = bool(options["share"])
    offer.poll_s = options["poll"]
    options["ends_at"] = ""
    if options["ends_in"] is not None:
        offer.ends_at = options["started"] + options["ends_in"]
        options["ends_at"] = "%.3f" % (time.time() + offer.ends_at - time.monotonic())
    options["storage"] = [os.path.expanduser(directory) for directory in options["storage"]]
    options["outbox"] = os.path.join(options["workdir"], "outbox")
    os.mkdir(options["outbox"], 0o700)
    try:
        reason, code = AgentLoop(offer, options["credentials"], options, server).run()
    finally:
        shutil.rmtree(options["workdir"], ignore_errors=True)
    if code or not reason.startswith("retired"):
        print("pilotfish agent: " + reason, file=sys.stderr, flush=True)
    sys.exit(code)
