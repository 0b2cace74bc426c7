"""Starts slots by forking one warm process, the slot server. A fork needs much less CPU time than the start of a new Python.

The agent forks the slot server when the agent starts, before the agent has threads and before it imports its own modules. So a slot has
only the modules that slots need. The slot server never runs user code.

The slot server forks the monitor of each slot (see ``slot``) in two steps: it forks a short-lived process, which forks the monitor and
exits. The monitor is then an orphan. The agent adopts orphans and becomes the parent of the monitor. Therefore the agent can wait for the
monitor, and the kernel tells the monitor when the agent dies.
"""

from __future__ import annotations

import array
import errno
import gc
import json
import os
import signal
import socket
import sys
from typing import Any, Dict, NoReturn, Sequence, Tuple

from ...portable.processes import signal_on_parent_death, state_of
from .call_runner import load_cloudpickle
from .shared_page import memory_file
from .slot import KEPT_SIGNALS, run_monitor

ANSWER_TIMEOUT_S = 30.0
"""Maximum seconds until the server answers. It answers within milliseconds, unless the machine is overloaded."""
MAX_REQUEST_BYTES = 64 * 1024
DESCRIPTORS = 4
"""Number of descriptors of a request: stdout, stderr, channel and page of the slot."""
_INT_BYTES = array.array("i").itemsize


_EXECUTED = """
import sys
path, sys.path[:] = [place for place in sys.path if place], [sys.argv[1], *sys.path]
from pilotfish.agent.slots.slot_server import serve_slots
sys.path[:] = path
serve_slots(int(sys.argv[2]), int(sys.argv[3]))
"""


class SlotServer:
    """The agent's side of a slot server. ``pid``: the process of the server. ``errors``: descriptor of a file with its standard error."""

    def __init__(self, pid: int, connection: socket.socket, errors: int = -1) -> None:
        self.pid = pid
        self._connection = connection
        self._errors = errors

    def start_slot(self, settings: Dict[str, Any], descriptors: Sequence[int]) -> int:
        """Starts a slot and returns the process id of its monitor. ``descriptors``: the descriptors for stdout, stderr, channel and shared
        page of the slot.

        Raises OSError if the slot cannot be started.
        """
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        try:
            self._connection.sendmsg([json.dumps(settings).encode()], [rights])
            answer = self._connection.recv(MAX_REQUEST_BYTES)
        except OSError:
            # A late answer must not be taken for the answer to the next request. Therefore the connection is closed, which ends the server.
            self._connection.close()
            raise
        if not answer:
            raise OSError(errno.EPIPE, self._last_error_line() or "the process that starts slots has ended")
        pid, number, text = json.loads(answer)
        if not pid:
            raise OSError(number, text)
        return int(pid)

    def _last_error_line(self) -> str:
        lines = os.pread(self._errors, MAX_REQUEST_BYTES, 0).decode("utf-8", "replace").split("\n") if self._errors >= 0 else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        """Ends the server. Its slots continue."""
        self._connection.close()
        if self._errors >= 0:
            os.close(self._errors)
            self._errors = -1

    def has_ended(self) -> bool:
        """Returns True if the server has ended. Does not reap the server, so that no other process can get its process id."""
        return state_of(self.pid) in ("Z", "X", "")


def start_slot_server(bundle: str) -> SlotServer:
    """Forks the slot server of this process. ``bundle``: the directory with cloudpickle; "" if cloudpickle is installed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        try:
            ours.close()
            signal_on_parent_death(signal.SIGKILL, parent)
            _serve(theirs, bundle, parent)
        except Exception:  # noqa: BLE001  the agent sees only that the server has ended; its log must say why
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)
    theirs.close()
    ours.settimeout(ANSWER_TIMEOUT_S)
    return SlotServer(pid, ours)


def execute_slot_server(interpreter: str, packages: str, environment: Dict[str, str], argument: str) -> SlotServer:
    """Starts a slot server with another interpreter, and waits until it is ready. Raises OSError if that is impossible.

    ``packages``: the directory from which the interpreter imports Pilotfish. ``argument``: an argument that identifies the process.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    errors = memory_file("stderr")
    try:
        theirs.set_inheritable(True)
        arguments = [interpreter, "-c", _EXECUTED, packages, str(theirs.fileno()), str(os.getpid()), argument]
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, errors, 1),
            (os.POSIX_SPAWN_DUP2, errors, 2),
        ]
        pid = os.posix_spawn(interpreter, arguments, environment, file_actions=actions)
    except OSError:
        ours.close()
        os.close(errors)
        raise
    finally:
        theirs.close()
    ours.settimeout(ANSWER_TIMEOUT_S)
    server = SlotServer(pid, ours, errors)
    try:
        if not ours.recv(MAX_REQUEST_BYTES):
            raise OSError(errno.EPIPE, server._last_error_line() or "it ended at once")
    except OSError:
        server.close()
        raise
    return server


def serve_slots(descriptor: int, agent: int) -> NoReturn:
    """Runs a slot server in the interpreter that ``execute_slot_server`` started."""
    os.chdir("/")
    signal_on_parent_death(signal.SIGKILL, agent)
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    connection.send(b"ready")
    _serve(connection, "", agent)


def _serve(connection: socket.socket, bundle: str, agent: int) -> NoReturn:
    """Answers requests until the agent closes its end."""
    _close_others(connection.fileno())
    # Signals for the process group of the agent, such as Ctrl-C, are for the agent alone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    load_cloudpickle(bundle)
    # Modules of the bundle must not hide modules of the user.
    sys.path[:] = [path for path in sys.path if not bundle or path != bundle]
    gc.freeze()
    while True:
        request, descriptors = _receive(connection)
        if not request:
            os._exit(0)
        settings = {**json.loads(request), "agent": agent, "bundle": bundle}
        try:
            answer = [_start_monitor(settings, descriptors, connection), 0, ""]
        except OSError as error:
            answer = [0, error.errno or 0, error.strerror or str(error)]
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(json.dumps(answer).encode())


def _close_others(kept: int) -> None:
    """Closes all descriptors of the agent, except the standard streams and ``kept``."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != kept:
            try:
                os.close(int(name))
            except OSError:
                continue  # the descriptor of the listing itself


def _receive(connection: socket.socket) -> Tuple[bytes, Sequence[int]]:
    """Receives a request and its descriptors. The request is empty if the agent has closed its end."""
    request, ancillary, _, _ = connection.recvmsg(MAX_REQUEST_BYTES, socket.CMSG_SPACE(DESCRIPTORS * _INT_BYTES))
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % _INT_BYTES])
    return request, descriptors


def _start_monitor(settings: Dict[str, Any], descriptors: Sequence[int], connection: socket.socket) -> int:
    """Forks a short-lived process, which forks the monitor. Waits until the short-lived process has ended, and returns the process id of
    the monitor."""
    pid_read, pid_write = os.pipe()
    try:
        child = os.fork()
        if not child:
            _fork_monitor(settings, descriptors, (connection.fileno(), pid_read), pid_write)
        os.close(pid_write)
        pid_write = -1
        os.waitpid(child, 0)
        number = int.from_bytes(os.read(pid_read, 8), "little", signed=True)
    finally:
        os.close(pid_read)
        if pid_write >= 0:
            os.close(pid_write)
    if number <= 0:
        # Without a number, the process was killed before it could write one.
        raise OSError(-number or errno.ECHILD, os.strerror(-number or errno.ECHILD))
    return number


def _fork_monitor(settings: Dict[str, Any], descriptors: Sequence[int], unneeded: Sequence[int], pid_write: int) -> NoReturn:
    """Runs in the short-lived process: forks the monitor and exits. Writes the process id of the monitor to ``pid_write``; if the fork
    fails, writes minus the error number."""
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, KEPT_SIGNALS)
        try:
            monitor = os.fork()
        except OSError as error:
            os.write(pid_write, (-(error.errno or errno.EIO)).to_bytes(8, "little", signed=True))
            os._exit(1)
        if monitor:
            os.write(pid_write, monitor.to_bytes(8, "little"))
            os._exit(0)
        for descriptor in (*unneeded, pid_write):
            os.close(descriptor)
        _wait_for_agent(settings["agent"])
        _open_streams(descriptors[0], descriptors[1])
        os.setsid()
        os.chdir(settings["scratch"])
        run_monitor(settings, channel=descriptors[2], page=descriptors[3])
    except Exception as error:  # noqa: BLE001  the agent reads the reason from the standard error of the slot
        os.write(2, b"%s: %s\n" % (type(error).__name__.encode(), str(error).encode("utf-8", "replace")))
    finally:
        os._exit(1)


def _wait_for_agent(agent: int) -> None:
    """Runs in the monitor: waits until the agent is its parent, that is, until the process that forked the monitor has exited. Then asks
    the kernel to send SIGTERM to the monitor when the agent dies."""
    # SIGCHLD is blocked, so it stays pending until sigwait. A late SIGCHLD is harmless: the monitor looks for an ended child and finds
    # none.
    signal_on_parent_death(signal.SIGCHLD, os.getppid())
    if os.getppid() != agent:
        signal.sigwait([signal.SIGCHLD])
    signal_on_parent_death(signal.SIGTERM, agent)


def _open_streams(stdout: int, stderr: int) -> None:
    """Opens the standard streams of a new process, as the interpreter does at its start."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for source, number in ((nowhere, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, number)
        os.close(source)
    encoding = getattr(sys.__stdout__, "encoding", None) or "utf-8"
    errors = getattr(sys.__stdout__, "errors", None) or "strict"
    sys.stdin = sys.__stdin__ = open(0, encoding=encoding, errors=errors, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding=encoding, errors=errors, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, encoding, "backslashreplace", closefd=False)  # type: ignore[misc]  # noqa: SIM115
