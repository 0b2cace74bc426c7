"""Runs the event loop of the master: collects inputs, writes facts to disk, performs effects.

An input is an event that the machine handles, such as a message. A turn gives all collected inputs to the machine, writes the facts of the
machine to the journal and performs its effects.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pilotfish import plugins
from pilotfish.core.explain import queries
from pilotfish.core.machine import Machine, Turn
from pilotfish.core.pilots.factory_interface import Factory
from pilotfish.core.policy_interface import Policy
from pilotfish.errors import AlreadyRunning, JournalError, JournalFull, show_exception
from pilotfish.factories.provisioner import PoolProvisioner
from pilotfish.master.endpoints import Admission, EndpointLink, EndpointRules
from pilotfish.master.master_content_source import READ_EVERY_S, LoopCalls, MasterContentSource
from pilotfish.master.sites.site_router import SiteRouter
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.facts import TurnRecord, encode_record
from pilotfish.model.messages import split_body
from pilotfish.model.settings import PoolSettings
from pilotfish.portable.transfer.transfer_server import TransferServer
from pilotfish.portable.wire.handshake import AGENT, CLIENT, UNIX
from pilotfish.store.disk import DISK, UNSYNCED_DISK
from pilotfish.store.journal.journal_writer import Journal
from pilotfish.store.keyring import open_keyring, write_private
from pilotfish.store.payload_store import PayloadStore
from pilotfish.store.pool_directory import PoolDirectory, stop_mark_path, write_stop_mark
from pilotfish.store.pool_lock import PoolLock
from pilotfish.store.state_storage import Compaction, replay, stored_payloads

log = logging.getLogger("pilotfish.master")

UPKEEP_S = 5.0
"""Seconds between two rounds of ``_upkeep``."""
LOW_SPACE_BYTES = 16 * 1024 * 1024
RETRY_FULL_S = 1.0
WARN_EVERY_S = 60.0
CONFIRMATIONS = (m.Acked, m.Accepted)
CONFIRM_S = 0.01
"""A confirmation waits this many seconds, because it can then share a packet with other messages. No receiver is waiting for a
confirmation."""


class MasterServer:
    def __init__(self, pool: PoolDirectory, settings: PoolSettings) -> None:
        self.pool = pool
        self.settings = settings
        policy: Policy = plugins.load("policies", settings.policy)()
        factory: Factory = plugins.load("factories", settings.factory)(settings.pilots, random.Random(secrets.randbits(64)))
        self.lock = PoolLock.acquire(pool.directory)
        pool.crash.unlink(missing_ok=True)
        self.keyring = open_keyring(pool.directory)
        disk = UNSYNCED_DISK if pool.private else DISK
        self.journal, recovery = Journal.open(pool.journal, disk)
        self.payloads = PayloadStore(pool.payloads, pool.shared_payloads, disk)
        state = replay(recovery)
        for stored in stored_payloads(state):
            self.payloads.add_reference(stored)
        self._wall_offset = max(time.time(), state.at) - time.monotonic()
        self.machine = Machine(state, policy, PoolProvisioner(factory), settings, traits=plugins.traits_if_usable)
        self.machine.inspect_only = stop_mark_path(pool.directory).exists()
        self.machine.host_status = {"pool": pool.name, "pid": os.getpid()}
        self.admission = Admission(self.keyring, self._received, self._closed)
        self.admission.received_all = self._received_all
        self.admission.paused = lambda link, paused: self._enqueue(i.LinkPaused(link.number, paused))
        self.admission.warn = self._warn
        self.admission.revoked = state.revoked
        self.admission.pilot_of = lambda worker: state.workers[worker].pilot if worker in state.workers else None
        self.content_source = MasterContentSource(
            pool,
            self.machine,
            LoopCalls(self._call_in_loop),
            lambda item: self._call_in_loop(self._enqueue, item),
            lambda: self._call_in_loop(self._read_meter_soon),
        )
        self.admission.transfer_server = self.transfer_server = TransferServer(
            self.content_source, log=lambda text: self._call_in_loop(self._warn, text)
        )
        meter = self.content_source.meter
        self.transfer_server.on_sent, self.transfer_server.on_unconfirmed = meter.count_sent, meter.take_back
        self.sites = SiteRouter(pool, self.keyring, settings, self._enqueue, state.pilots.get)
        self.applications = ApplicationProcesses(pool)
        self.compaction = Compaction(self.journal, state)
        self.compaction.overdue = self.machine.history_damaged = bool(recovery.damage_report.damages or recovery.damage_report.gaps)
        self.links: dict[int, EndpointLink] = {}
        self.finished = asyncio.Event()
        self._inbox: list[i.Input] = []
        self._turn_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._unsent_confirmations: dict[int, EndpointLink] = {}
        self._confirm_timer: asyncio.TimerHandle | None = None
        self._warned_at: dict[str, float] = {}
        self._servers: list[asyncio.AbstractServer] = []
        self._space_full = False

    def now(self) -> float:
        """Returns the wall-clock time. It never jumps, because it advances with the monotonic clock."""
        return time.monotonic() + self._wall_offset

    # --- life -----------------------------------------------------------------------------------------------------------------------

    async def run(self, ready: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self.content_source.call_later = self._loop.call_later
        self.content_source.load_output = partial(self.payloads.load, whole=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop_by_signal)
        await self._listen()
        self._carry_out(self.machine.start(self.now()))
        if not self.pool.private and self.pool.sites.exists():
            self.sites.read(self.pool.sites)
        self.admission.epoch = self.machine.state.epoch
        # Garbage collection during work would cost a fifth of the time, and it would find little: almost all objects live long and are in
        # no cycle.
        gc.disable()
        self.content_source.sweep()
        ready()
        upkeep = asyncio.create_task(self._upkeep())
        upkeep.add_done_callback(self._upkeep_ended)
        await self.finished.wait()
        upkeep.cancel()
        await self._end()

    def _stop_by_signal(self) -> None:
        """Stops the master after SIGTERM or SIGINT and releases all workers. The next master continues unfinished runs."""
        self.machine.finish("the master received a signal to end")
        self._turn()

    async def _listen(self) -> None:
        """Listens at a Unix socket for clients and for agents on this machine. If the pool is not private, also listens at a TCP port for
        agents at sites."""
        if not self.pool.private:  # a private pool has no sites
            tcp = await self._listen_for_agents()
            self._servers.append(tcp)
            self.sites.set_address(*tcp.sockets[0].getsockname()[:2])
        path = self.pool.socket_path()
        path.unlink(missing_ok=True)
        endpoint = {"kind": UNIX, "path": str(path)}
        self.sites.local.endpoints = [endpoint]
        # The credentials are written before the socket listens, because a client reads them as soon as it finds a listening socket.
        write_private(self.pool.client_credentials, self.keyring.credentials(CLIENT, [endpoint]), durable=False)
        listener = socket.socket(socket.AF_UNIX)
        previous = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(previous)
        local = EndpointRules((CLIENT, AGENT))
        unix = await self._loop.create_unix_server(lambda: EndpointLink(self.admission, local), sock=listener, backlog=256)
        self._servers.append(unix)

    async def _listen_for_agents(self) -> asyncio.Server:
        """Listens at the port that the user has set. Without such a setting, listens at the port of the previous master, because agents at
        sites know this port. If the port is unknown or not free, listens at any free port."""
        rules = EndpointRules((AGENT,), tuple(self.settings.subnets), self.keyring.server_context())
        for port in (self.settings.port or self.pool.last_port(), self.settings.port):
            try:
                server = await self._loop.create_server(lambda: EndpointLink(self.admission, rules), self.settings.host, port, backlog=1024)
                break
            except OSError:
                if port == self.settings.port:
                    raise
        write_private(self.pool.port_file, str(server.sockets[0].getsockname()[1]).encode())
        return server

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for link in list(self.links.values()):
            link.hang_up()
        await self.sites.end()
        self.applications.end_all()
        self.content_source.close()
        self.transfer_server.close()
        self._turn()
        # After the stop, clients read this file to answer queries about the pool without a master.
        write_stop_mark(self.pool.directory, queries.QUERIES["runs"](self.machine, {}))
        self.compaction.end()
        self.pool.socket_path().unlink(missing_ok=True)
        self.journal.close()
        self.payloads.close()
        self.lock.release()

    async def _upkeep(self) -> None:
        """Repeats every UPKEEP_S seconds: renews the lock of the pool, checks the free disk space, and checks the files and the size of the
        journal."""
        while True:
            self._renew_lock()
            self._check_space()
            changed_files = self.journal.find_changed_files()
            if changed_files:
                self.pool.journal.mkdir(mode=0o700, exist_ok=True)
                log.error("files of the journal were changed by another program; a snapshot replaces them: %s", changed_files)
                self.compaction.overdue = True
            try:
                self.compaction.compact_if_due(self.now())
            except (JournalFull, JournalError) as problem:
                log.error("the journal could not be compacted: %s", problem)
            self.payloads.collect()
            if not self.machine.state.unfinished:
                gc.collect()
            await asyncio.sleep(UPKEEP_S)

    def _upkeep_ended(self, upkeep: asyncio.Task[None]) -> None:
        """Ends the process if the upkeep has failed. Without upkeep, nothing renews the lock of the pool, and the lock expires."""
        if not upkeep.cancelled():
            log.critical("the master's upkeep failed", exc_info=upkeep.exception())
            os._exit(4)

    def _renew_lock(self) -> None:
        """Renews the lock of the pool. If the lock is lost, ends the process at once, because possibly a new master writes to the pool."""
        try:
            self.lock.renew()
        except AlreadyRunning as problem:
            log.critical("%s", problem)
            os._exit(3)
        except (JournalError, JournalFull) as problem:
            # The lock lasts for several renewals, so one failure of the disk does no harm.
            log.error("%s", problem)

    def _check_space(self) -> None:
        full = shutil.disk_usage(self.pool.directory).free < LOW_SPACE_BYTES
        if not full:
            self.journal.restore_reserve()
        if full != self._space_full:
            self._space_full = full
            self._enqueue(i.JournalSpaceChanged(full))

    # --- inputs ---------------------------------------------------------------------------------------------------------------------

    def _enqueue(self, item: i.Input) -> None:
        self._inbox.append(item)
        self._schedule_turn()

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    def _received_all(self) -> None:
        """Is called after each read from a connection. To save time, takes the turn at once if the event loop has nothing else to do."""
        if self._inbox and not self._turn_scheduled:
            # asyncio has no public name for its list of ready callbacks. If a version of asyncio has no such list, the turn is always
            # scheduled.
            if getattr(self._loop, "_ready", True):
                self._schedule_turn()
            else:
                self._turn()

    def _received(self, link: EndpointLink, message: Any, body: memoryview) -> None:
        if isinstance(message, m.Hello):
            is_own = link.key_id == f"pilot:{message.pilot}"
            if not is_own and link.key_id != AGENT:
                link.drop(f"key {link.key_id} does not belong to pilot {message.pilot}")
                return
            link.is_local = is_own and self.sites.local.watches(message.pilot)
        elif link.role == CLIENT:
            link.is_local = self.pool.private
            if self.machine.inspect_only and not stop_mark_path(self.pool.directory).exists():
                self._inbox.append(i.ResumeRequested())
        self.links[link.number] = link
        # On an almost full disk, the machine will refuse a submission, so the payloads of the submission must not use the remaining space.
        payloads = self.payloads.keep_all(split_body(message, body), allow_disk=not (self._space_full and isinstance(message, m.Submit)))
        if link.role == AGENT:
            pilot = link.key_id.removeprefix("pilot:") if link.key_id != AGENT else ""
            self._inbox.append(i.AgentMessage(link.number, message, payloads, pilot))
        else:
            self._inbox.append(i.ClientMessage(link.number, message, payloads))

    def _closed(self, link: EndpointLink) -> None:
        if self.links.pop(link.number, None) is not None:
            self._enqueue(i.LinkClosed(link.number))

    def _warn(self, text: str) -> None:
        """Logs a warning, but the same warning at most once per minute. So an unauthenticated client cannot fill the log."""
        now = time.monotonic()
        if now - self._warned_at.get(text, -WARN_EVERY_S) >= WARN_EVERY_S:
            if len(self._warned_at) > 1000:
                self._warned_at.clear()
            self._warned_at[text] = now
            log.warning("%s", text)

    def _read_meter_soon(self) -> None:
        self._loop.call_later(READ_EVERY_S, self._read_meter)

    def _read_meter(self) -> None:
        measured, busy = self.content_source.meter.read()
        for item in measured:
            self._enqueue(item)
        if busy:
            self._read_meter_soon()

    def _call_in_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        """Calls a function in the event loop. This method is thread-safe."""
        self._loop.call_soon_threadsafe(function, *arguments)

    # --- turns ----------------------------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._turn_scheduled = False
        inbox, self._inbox = self._inbox, []
        try:
            self._carry_out(self.machine.handle(inbox, self.now()))
        except Exception as error:  # noqa: BLE001 - a master whose state is in doubt must exit; the journal has all facts
            self._die(error)

    def _die(self, error: Exception) -> None:
        try:
            log.critical("the master cannot continue", exc_info=error)
            self.pool.crash.write_text(show_exception(error), "utf-8", "replace")
        finally:
            os._exit(4)

    def _carry_out(self, turn: Turn) -> None:
        """Writes the facts of a turn, sends the messages of the turn and performs its other effects.

        Facts that are written but not synced to disk are lost only if this machine stops. Local processes (see ``EndpointLink.is_local``)
        stop then, too. So messages to local processes are sent before the sync. All other messages are encoded during the sync and sent
        after it.
        """
        if turn.facts:
            self._write(encode_record(TurnRecord(turn.at, turn.facts)))
        for link in self._prepare(turn.effects, is_local=True).values():
            link.flush()
        if turn.facts:
            self.journal.begin_sync()
        urgent = self._prepare(turn.effects, is_local=False)
        self._set_timer()
        if turn.facts:
            self.journal.sync()
        self._perform(turn.effects, urgent)

    def _write(self, record: bytes) -> None:
        """Writes a record to the journal. Waits while the disk is full. Any other failure ends the master."""
        while True:
            try:
                self.payloads.sync()
                self.journal.append([record])
                return
            except JournalFull as problem:
                log.error("%s", problem)
                self.journal.release_reserve()
                time.sleep(RETRY_FULL_S)
                self._renew_lock()

    def _set_timer(self) -> None:
        """Sets the timer of the next turn. Keeps an earlier timer, because a timer that fires too early does no harm."""
        deadline = self.machine.deadline
        if deadline is None or self._turn_scheduled:
            return
        when = deadline - self._wall_offset
        if self._timer is not None and when < self._timer.when():
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(when, self._timer_due)

    def _timer_due(self) -> None:
        self._timer = None
        if self.machine.deadline is not None and self.machine.deadline > self.now():
            self._set_timer()
        else:
            self._turn()

    def _prepare(self, effects: list[e.Effect], is_local: bool) -> dict[int, EndpointLink]:
        """Encodes a part of the messages in ``effects``. With ``is_local``: the messages to local processes (see
        ``EndpointLink.is_local``), except confirmations. Without ``is_local``: all other messages. Returns the connections that have urgent
        messages.

        All messages except confirmations are urgent. Confirmations are always sent after the sync.
        """
        urgent: dict[int, EndpointLink] = {}
        load = self.payloads.load
        for effect in effects:
            if type(effect) is e.Send:
                link = self.links.get(effect.link)
                confirms = type(effect.message) in CONFIRMATIONS
                if link is not None and (link.is_local and not confirms) is is_local:
                    link.send(effect.message, [load(payload, whole=effect.whole) for payload in effect.payloads])
                    (self._unsent_confirmations if confirms else urgent)[effect.link] = link
        for link in urgent.values():
            link.seal()
        return urgent

    def _perform(self, effects: list[e.Effect], urgent: dict[int, EndpointLink]) -> None:
        for number, link in urgent.items():
            link.flush()
            self._unsent_confirmations.pop(number, None)
        for effect in effects:
            if type(effect) is not e.Send:
                self._perform_effect(effect)
        if self._unsent_confirmations and self._confirm_timer is None:
            self._confirm_timer = self._loop.call_later(CONFIRM_S, self._confirm)

    def _confirm(self) -> None:
        self._confirm_timer = None
        for link in self._unsent_confirmations.values():
            link.flush()
        self._unsent_confirmations.clear()

    def _perform_effect(self, effect: e.Effect) -> None:
        if isinstance(effect, e.HangUp):
            link = self.links.get(effect.link)
            if link is not None:
                link.hang_up()
        elif isinstance(effect, e.SubmitPilot | e.AdoptPilot | e.CancelPilot | e.DescribeSite):
            self.sites.perform(effect)
        elif isinstance(effect, e.ReadSites):
            self.sites.read(self.pool.sites)
        elif isinstance(effect, e.ReleasePayload):
            self.payloads.release(effect.stored, refused=effect.refused)
        elif isinstance(effect, e.KeepPayload):
            self.payloads.add_reference(effect.stored)
        elif isinstance(effect, e.IntroducePeer):
            link = self.links.get(effect.link)
            if link is not None:
                link.send(m.Introduce(effect.site, *self.keyring.peers(effect.site), effect.contacts, effect.term, effect.master))
                link.flush()
        elif isinstance(effect, e.ReleaseContent):
            self.content_source.release(effect.digest)
        elif isinstance(effect, e.StartApplication):
            self.applications.start(effect.run, effect.uid, effect.path)
        elif isinstance(effect, e.Finish):
            log.info("ending: %s", effect.reason)
            self.finished.set()


class ApplicationProcesses:
    """Runs one process for each application manager, because user code never runs in the process of the master."""

    def __init__(self, pool: PoolDirectory) -> None:
        self._pool = pool
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, run: int, uid: str, path: str) -> None:
        """Starts the process of a run's application manager. Does nothing if this process is running."""
        process = self._processes.get(run)
        if process is not None and process.poll() is None:
            return
        command = [sys.executable, "-m", "pilotfish.client.application_host", str(self._pool.directory), uid, path]
        with (self._pool.directory / f"application-{run}.log").open("ab") as log:
            self._processes[run] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def end_all(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
                process.wait()
