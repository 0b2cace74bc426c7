"""Sends requests to a master from any thread. The client survives a restart of the master.

The client's own thread receives all messages and sends most messages. Other threads append tasks and requests to queues and wake the
client's thread. So a burst of tasks becomes a few frames. If the client has not sent anything for a moment, the calling thread sends its
task itself. This saves a thread switch when tasks come one by one.

After a reconnect, the client repeats all messages that the master has not confirmed. The master skips tasks that it has already recorded.
So no task is lost, and no task is recorded twice.
"""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from pilotfish.applications.task_list import TaskEntry, TaskList
from pilotfish.applications.task_needs import NO_NEEDS, TaskNeeds
from pilotfish.client.master_connection import Interrupt, MasterConnection, Reconnection, dial
from pilotfish.client.submission import PendingRequest, PendingRequests, Reply, RunListener, Submission
from pilotfish.errors import BadInput, ConnectionFailed, Correction, JournalFull, PilotfishError
from pilotfish.model.messages import Accepted, Answer, Began, Close, Ended, Opened, Problem, RunFinished, Watch, frame_message
from pilotfish.model.quantities import show_bytes
from pilotfish.model.task import RunOptions, TaskSpec
from pilotfish.portable.payload_format import Buffer, PackedPayload, join_pieces
from pilotfish.portable.payload_reference import SHARE_BYTES, write_payload
from pilotfish.store.disk import FULL
from pilotfish.store.pool_directory import PoolDirectory

RECONNECT_S = 60.0
"""Seconds until the client stops trying to reach a lost master."""
FULL_DISK_S = 1.0
"""Seconds until the client sends tasks again, after the master reported that its disk is full."""
CLOSED_FIX = "after the end of its with block, or after close(), a run takes no more tasks: submit them before, or open another Run"
_DIRECT_AFTER_S = 0.0001
"""If the client has sent nothing for this many seconds, the calling thread sends its task itself: tasks that come this slowly form no
batch."""
_BACKLOG_BYTES = 256 * 1024 * 1024
"""Maximum number of unsent bytes of a run. While a run has more unsent bytes, ``submit`` waits."""

_clients: weakref.WeakSet[MasterClient] = weakref.WeakSet()


class _RepeatAll(ConnectionFailed):
    """The disk of the master was full. The connection still works, but the client must send everything unconfirmed again."""


class MasterClient:
    """Client of one master. Create it with ``connect``. Its methods are thread-safe. A callback must not call a method that waits."""

    def __init__(
        self, pool_directory: Path, connection: MasterConnection, revive: Callable[[], None] | None, reconnect_s: float = RECONNECT_S
    ) -> None:
        self.directory = pool_directory
        self.share = PoolDirectory(pool_directory).shared_payloads
        self.contents = PoolDirectory(pool_directory).contents
        """Directory of large contents. All processes on this machine read and write these files directly."""
        self.on_end: Callable[[], None] | None = None
        """The client's thread calls this function before the thread ends."""
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._space = threading.Condition(self._lock)
        self._connection: MasterConnection | None = connection
        self._sleeping = False
        self._last_sent = 0.0
        self._repeat_at: float | None = None
        self.failure: PilotfishError | None = None
        self._closing = False
        self._runs: dict[int, Submission] = {}
        self._requests = PendingRequests()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._reconnection = Reconnection(pool_directory, revive, reconnect_s, Interrupt(self._wake_read, self._may_end))
        self._poll = select.poll()
        self._poll.register(self._wake_read, select.POLLIN)
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._main, name="pilotfish-client", daemon=True)
        _clients.add(self)
        self._thread.start()

    @classmethod
    def connect(
        cls, pool_directory: str | os.PathLike[str], revive: Callable[[], None] | None = None, reconnect_s: float = RECONNECT_S
    ) -> Self:
        """Connects to the master of a pool. If no master listens, calls ``revive``, which starts a master.

        ``reconnect_s``: after a connection is lost, the client tries for this many seconds to reach a master. If it is 0, the client ends
        when its first connection is lost.
        """
        directory = Path(pool_directory)
        try:
            connection = dial(directory)
        except ConnectionFailed:
            if revive is None:
                raise
            revive()
            connection = dial(directory)
        return cls(directory, connection, revive, reconnect_s)

    # --- calls of any thread ------------------------------------------------------------------------------------------------------

    def open_run(self, uid: str, options: RunOptions, *, sends_tasks: bool = True) -> Submission:
        """Opens a new run, or finds the run if one with this uid exists. ``sends_tasks``: whether this client will send tasks of the
        run."""
        submission = Submission(uid, options, sends_tasks)
        with self._lock:
            self._check()
            request = self._requests.open(submission)
            self._wake()
        self.wait(request)
        return submission

    def spec_number(self, run: Submission, spec: TaskSpec, code: bytes) -> int:
        with self._lock:
            self._check()
            return run.spec_number(spec, code)

    def _write_shared(self, parts: list[Buffer]) -> bytes:
        """Writes a large payload to a shared file and returns its reference."""
        try:
            return write_payload(self.share, parts)
        except OSError as error:
            if error.errno not in FULL:
                raise
            text = f"no room for a payload of {show_bytes(sum(map(len, parts)))} in {self.share}: {error.strerror}"
            raise JournalFull(text, "Free some space (or quota) and submit it again.") from error

    def submit(
        self, run: Submission, spec: int, packed: PackedPayload, register: Callable[[int], None] | None = None, needs: TaskNeeds = NO_NEEDS
    ) -> int:
        """Adds one task to a run and returns the index of the task. Calls ``register`` with this index before any message about the task
        can arrive."""
        parts: list[Buffer] = [packed] if isinstance(packed, bytes) else packed
        if sum(map(len, parts)) > SHARE_BYTES and self.share.is_dir():
            payload = self._write_shared(parts)
        else:
            payload = join_pieces(packed)
        with self._lock:
            if self.failure is not None or self._closing:
                self._check()
            if run.unsent_bytes > _BACKLOG_BYTES and self.in_other_thread():
                self._space.wait_for(lambda: run.unsent_bytes <= _BACKLOG_BYTES or self.failure is not None)
                self._check()
            index = run.add(spec, payload, needs)
            if register is not None:
                register(index)
            if not self._sleeping:
                return index
            direct = time.monotonic() - self._last_sent > _DIRECT_AFTER_S
            if not direct:
                self._wake()
        if direct:
            self._send_now()
        return index

    @contextmanager
    def using_results(self, run: Submission) -> Iterator[None]:
        """Prevents the master from dropping results of the run during the ``with`` block. Tasks that the block submits can then use the
        result of each future that was unfinished at the beginning of the block."""
        with self._lock:
            run.results_in_use += 1
        try:
            yield
        finally:
            with self._lock:
                run.results_in_use -= 1

    def submit_whole(self, run: Submission, tasks: TaskList, entries: Sequence[TaskEntry], advance: int) -> range:
        """Sends new tasks (``entries``) and the application's progress (``advance``) in one frame. The master records the whole frame or
        nothing."""
        with self._lock:
            self._check()
            indices = run.add_whole(tasks.specs, entries, advance)
            self._wake()
        return indices

    def watch(self, run: Submission, listener: RunListener, cursor: int = 0, payloads: bool = True) -> None:
        """Reports the updates of a run to ``listener``. Leaves out the first ``cursor`` ended tasks of the run. ``payloads``: whether the
        master sends the results of the tasks."""
        with self._lock:
            self._check()
            run.listener, run.payloads_wanted = listener, payloads
            run.cursor = run.first_cursor = cursor
            run.watching = False
            self._wake()

    def close_run(self, run: Submission) -> None:
        """Declares that the run will get no more tasks."""
        with self._lock:
            self._check()
            run.close_wanted = True
            # A Close has no answer. The master handles messages in order, so the answer to a later request shows that the Close is
            # recorded.
            self._requests.ask("run", {"run": run.run})
            self._wake()

    def ask(self, kind: str, **arguments: Any) -> Any:
        """Sends a request and returns the data of the answer. Raises PilotfishError if the master refuses the request."""
        return self.ask_bytes(kind, **arguments).data

    def ask_bytes(self, kind: str, **arguments: Any) -> Reply:
        """Sends a request and returns the data and the bytes of the answer."""
        return self.wait(self.request(kind, **arguments))

    def ask_with_payloads(self, kind: str, payloads: Sequence[bytes], **arguments: Any) -> Any:
        """Sends a request with payloads and returns the data of the answer."""
        return self.wait(self._request(kind, arguments, payloads)).data

    def request(self, kind: str, **arguments: Any) -> PendingRequest:
        """Sends a request without waiting for the answer."""
        return self._request(kind, arguments, ())

    def _request(self, kind: str, arguments: dict[str, Any], payloads: Sequence[bytes]) -> PendingRequest:
        with self._lock:
            self._check()
            request = self._requests.ask(kind, arguments, payloads)
            self._wake()
        return request

    def close(self, wait: bool = True) -> None:
        """Sends everything that is still unsent, then disconnects. With ``wait``, returns only when the client's thread has ended."""
        if self._owner != os.getpid():
            return
        with self._lock:
            self._closing = True
            self._wake(always=True)
        if wait and self.in_other_thread():
            self.join()

    @property
    def is_closed(self) -> bool:
        """Whether this program has closed the client. A closed client takes no more requests."""
        return self._closing

    def in_other_thread(self) -> bool:
        """Returns whether the caller is not the client's own thread. The client's own thread must not wait for the client."""
        return threading.current_thread() is not self._thread

    def join(self) -> None:
        """Waits for the end of the client's thread."""
        # If Ctrl-C interrupts ``Thread.join``, Python 3.11 believes that the thread has ended. So the thread also sets an event when it
        # ends, and this method waits for the event.
        self._has_ended.wait()
        self._thread.join()

    # --- helpers of callers -------------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.failure is not None:
            raise type(self.failure)(str(self.failure), self.failure.hint)
        if self._closing:
            raise ConnectionFailed("this client has been closed", CLOSED_FIX)

    def _wake(self, always: bool = False) -> None:
        """Wakes the client's thread if the thread is waiting for messages. ``always``: wake the thread in any state, for example while it
        reconnects."""
        if self._sleeping or (always and self._wake_write >= 0):
            self._sleeping = False
            os.write(self._wake_write, b"w")

    def wait(self, request: PendingRequest) -> Reply:
        """Waits for the answer to a request."""
        if not self.in_other_thread():
            raise PilotfishError("a callback of the client cannot wait for the client", "hand it to another thread")
        return request.result()

    def _send_now(self) -> None:
        """Sends unsent frames in the caller's thread. If some frames cannot be sent at once, wakes the client's thread."""
        if self._sending.acquire(blocking=False):
            try:
                connection = self._connection
                if connection is not None and not connection.waiting:
                    self._queue_frames(connection)
                    connection.flush()
                    if not connection.waiting:
                        return
            except OSError:
                pass  # the client's thread will get the same error, reconnect and repeat all unconfirmed frames
            finally:
                self._sending.release()
        with self._lock:
            self._wake()

    # --- the client's thread ------------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while self._connection is not None:
                try:
                    self._serve(self._connection)
                except (OSError, ConnectionFailed) as problem:
                    self._disconnect()
                    if not isinstance(problem, _RepeatAll):
                        with self._lock:
                            self._requests.connection_broke(self.directory)
                    if self._may_end():
                        break
                    self._reconnect()
                else:
                    break
        except BaseException as error:  # every error must reach the waiting callers
            self._fail(error if isinstance(error, PilotfishError) else PilotfishError(f"the client's thread died: {error!r}"))
            if not isinstance(error, PilotfishError):
                raise
        finally:
            try:
                self._end()
            finally:
                self._has_ended.set()

    def _end(self) -> None:
        self._fail(ConnectionFailed("this client has been closed", CLOSED_FIX))
        self._disconnect()
        with self._lock:
            self._sleeping = False
        if self.on_end is not None:
            self.on_end()
        with self._lock:
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_write = -1

    def _serve(self, connection: MasterConnection) -> None:
        """Sends and receives until the client is closed. Raises an exception if the connection breaks."""
        poll, descriptor, wake = self._poll, connection.fileno(), self._wake_read
        poll.register(descriptor, select.POLLIN)
        interest = select.POLLIN
        while True:
            with self._sending:
                connection.flush()
                if not connection.waiting and self._has_unsent():
                    self._queue_frames(connection)
                    connection.flush()
                wanted = select.POLLIN | select.POLLOUT if connection.waiting else select.POLLIN
            if wanted != interest:
                poll.modify(descriptor, wanted)
                interest = wanted
            with self._lock:
                if interest == select.POLLIN:
                    if self._has_unsent():
                        continue
                    if self._closing and not self._has_unconfirmed():
                        return
                self._sleeping = True
            events = poll.poll(None if self._repeat_at is None else FULL_DISK_S * 1000)
            self._sleeping = False
            if self._repeat_at is not None and time.monotonic() >= self._repeat_at:
                self._repeat_at = None
                raise _RepeatAll("the disk of the master was full: everything is sent again")
            for ready, _ in events:
                if ready == wake:
                    os.read(wake, 64)
                else:
                    for message, body in connection.receive():
                        if type(message) is not Opened:  # Opened is no progress, because it comes first after every reconnect
                            self._reconnection.note_answer()
                        self._handle(message, body)
                        del message, body  # free large buffers before the next wait

    def _has_unsent(self) -> bool:
        if self._requests.has_unsent:
            return True
        for run in self._runs.values():
            if run.has_unsent or run.confirmation_due:
                return True
            if (run.listener is not None and not run.watching) or (run.close_wanted and not run.close_sent):
                return True
        return False

    def _queue_frames(self, connection: MasterConnection) -> None:
        """Queues all unsent frames on the connection. The caller holds the sending lock."""
        with self._lock:
            for encoded in self._requests.take_frames(opens=True):
                connection.put(encoded)
            for run in self._runs.values():
                if run.listener is not None and not run.watching:
                    connection.put(frame_message(Watch(run.run, run.cursor, run.payloads_wanted)))
                    run.watching = True
                for encoded in run.take_frames():
                    connection.put(encoded)
                if run.confirmation_due:
                    connection.put(frame_message(run.confirm_processed()))
                if run.close_wanted and not run.close_sent:
                    connection.put(frame_message(Close(run.run)))
                    run.close_sent = True
            for encoded in self._requests.take_frames(opens=False):
                connection.put(encoded)
            self._last_sent = time.monotonic()
            self._space.notify_all()

    def _handle(self, message: Any, body: memoryview) -> None:
        if isinstance(message, Opened):
            self._opened(message)
        elif isinstance(message, (Answer, Problem)):
            self._answered(message, body)
        elif isinstance(message, (Ended, Accepted, Began, RunFinished)) and (run := self._runs.get(message.run)) is not None:
            if isinstance(message, Accepted):
                with self._lock:
                    run.accepted(message.tasks)
            elif run.listener is None:
                return
            elif isinstance(message, Ended):
                items, body = run.new_endings(message.cursor, message.items, body)
                run.listener.ended(items, body)
                run.processed(items)
            elif isinstance(message, Began):
                run.listener.began(message.indices)
            else:
                run.listener.finished(message.counts)

    def _opened(self, message: Opened) -> None:
        with self._lock:
            opened = self._requests.answered(message.uid)
            if opened is not None and opened.submission is not None:
                self._runs[message.run] = opened.submission
            run = self._runs.get(message.run)
            if run is not None and run.uid == message.uid:
                run.take_numbers(message)
            lost_runs = [known for known in self._runs.values() if known.uid == message.uid and known.run != message.run]
        if opened is not None:
            opened.set_result(Reply(None))
        for lost in lost_runs:
            lost.lost(PilotfishError("the master came back without this run", "see what became of it: pilotfish doctor"))

    def _answered(self, message: Answer | Problem, body: memoryview) -> None:
        if isinstance(message, Problem):
            kind = BadInput if message.code == BadInput.code else PilotfishError
            problem = kind(message.message, Correction(message.hint, message.wrong, message.right) if message.wrong else message.hint)
            problem.code = message.code
            if message.query < 0:
                self._handle_refusal(problem)
                return
        with self._lock:
            request = self._requests.answered(message.query)
        if request is None:
            return
        if isinstance(message, Answer):
            if request.kind == "forget":
                with self._lock:
                    self._runs.pop(request.arguments.get("run", -1), None)
            request.set_result(Reply(message.data, bytes(body)))
        else:
            request.set_exception(problem)

    def _handle_refusal(self, problem: PilotfishError) -> None:
        """Handles a refused Open or Submit. If an Open is pending, the refusal is about the oldest pending Open. Otherwise it is about a
        Submit.

        After a refused Submit, all runs with unconfirmed tasks fail, except if the disk of the master is full. In this case, the client
        waits and sends everything unconfirmed again. During the wait, the client ignores further refusals, because they have the same
        reason.
        """
        if problem.code == JournalFull.code:
            self._repeat_at = time.monotonic() + FULL_DISK_S
        if self._repeat_at is not None:
            return
        with self._lock:
            refused = self._requests.oldest_open()
            runs = list(self._runs.values())
        if refused is not None:
            refused.set_exception(problem)
            return
        for run in runs:
            if run.has_unaccepted:
                run.give_up()
                run.lost(problem)

    # --- loss of the master -------------------------------------------------------------------------------------------------------

    def _disconnect(self) -> None:
        with self._sending:
            connection, self._connection = self._connection, None
            if connection is not None:
                try:
                    self._poll.unregister(connection.fileno())
                except KeyError:
                    pass
                connection.close()

    def _reconnect(self) -> None:
        """Opens a new connection and queues all unconfirmed messages on it. Raises ConnectionFailed if no master can be reached."""
        connection = self._reconnection.connect()
        with self._sending, self._lock:
            forgotten = self._requests.runs_to_forget()  # opening a forgotten run would create the run again
            for run in [run for run in self._runs.values() if run.run not in forgotten]:
                connection.put(frame_message(run.open_message()))
                for encoded in run.frames_to_repeat():
                    connection.put(encoded)
            self._connection = connection

    def _may_end(self) -> bool:
        """Marks all pending requests to be sent again. Returns True if the client can end: it was closed, and nothing is unconfirmed."""
        with self._lock:
            self._requests.repeat()
            return self._closing and not self._has_unconfirmed()

    def _has_unconfirmed(self) -> bool:
        """Returns whether a task is unconfirmed or a request is unanswered."""
        return bool(self._requests) or any(run.has_unaccepted for run in self._runs.values())

    def _fail(self, error: PilotfishError) -> None:
        """Reports the error that ended the client to all waiting callers and listeners."""
        with self._lock:
            self.failure = self.failure or error
            requests = self._requests.give_up()
            runs = list(self._runs.values())
            self._runs.clear()
            self._space.notify_all()
        for request in requests:
            request.set_exception(error)
        for run in runs:
            run.lost(error)

    def _disable_after_fork(self) -> None:
        """Disables the client in a forked child process. A fork does not copy the client's thread, and the connection belongs to the
        parent."""
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._space = threading.Condition(self._lock)
        self._sleeping = False
        self.failure = ConnectionFailed("this client belongs to the process that forked this one", "make a new one in the child")
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client._disable_after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
