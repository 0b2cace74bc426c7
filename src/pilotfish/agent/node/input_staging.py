"""Tracks which inputs are in the cache, arriving or missing, and which outputs are being uploaded.

If an attempt needs a content, and this module has not recently seen the content in the cache, the module requests it from the host. The
host looks for the content in the cache. If the content is missing there or is damaged, the host fetches it.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

from ...portable.failures import Failure, add_problem
from .attempts import STARTED, Attempt
from .pending_results import Item

SEEN_S = 300.0
"""Seconds after which a content that was seen in the cache is checked again."""

Content = Sequence[Any]
"""[digest, size, path, mtime_ns, inode], as the master sends it"""


class InputStaging:
    """The inputs and outputs of all attempts of this agent."""

    def __init__(self) -> None:
        self.effects: List[Tuple[Any, ...]] = []
        self.needed: Dict[str, int] = {}
        """digest -> number of attempts that need the content. The cache must keep each content that is listed here."""
        self.uploads: Dict[int, Tuple[Attempt, Item]] = {}
        """number of an upload -> ended attempt, and its result. Files of the result are being stored in the cache or sent to the master."""
        self.left_out: Dict[int, int] = {}
        """number of an upload -> how many bytes of its attempt's output are stored nowhere. Uploads with a complete output are not
        listed"""
        self.holds: Dict[str, None] = {}
        """All contents in the cache."""
        self.reported = False
        """Whether all of ``holds`` was sent to the master on this connection."""
        self.held: Dict[str, None] = {}
        """Contents that must stay here because a run depends on them."""
        self._gained: Dict[str, None] = {}
        self._lost: Dict[str, None] = {}
        self._unclaimed: Dict[str, None] = {}
        """Contents that stay here although their attempt was dropped. The master decides whether a run depends on them."""
        self.cache_hits = self.cache_hit_bytes = 0
        """Number and bytes of needed contents that were seen in the cache recently."""
        self._seen_at: Dict[str, float] = {}
        self.is_unchanged: Callable[[str], bool] = lambda digest: True
        """Returns whether a content is still in the cache. The host sets a function that does not read the content."""
        self._waiting: Dict[str, Dict[Attempt, None]] = {}
        self._last_upload = 0

    @property
    def is_busy(self) -> bool:
        """Returns True if contents are being fetched or uploaded now."""
        return bool(self._waiting or self.uploads)

    def require(self, attempt: Attempt, now: float) -> None:
        """Registers the contents that an attempt needs, and requests missing contents from the host."""
        attempt.missing = 0
        for content in attempt.contents:
            digest = content[0]
            self.needed[digest] = self.needed.get(digest, 0) + 1
            if now - self._seen_at.get(digest, -SEEN_S) < SEEN_S and self.is_unchanged(digest):
                self.cache_hits += 1
                self.cache_hit_bytes += content[1]
                continue
            attempt.missing += 1
            waiting = self._waiting.get(digest)
            if waiting is None:
                waiting = self._waiting[digest] = {}
                self.effects.append(("fetch", content))
            waiting[attempt] = None

    def add_cache_hits(self, totals: List[int]) -> List[int]:
        """Adds the cache hits counted here to the first two totals, which are the number and bytes of cache hits. Returns all totals."""
        return [totals[0] + self.cache_hits, totals[1] + self.cache_hit_bytes, *totals[2:]] if totals else totals

    def release(self, attempt: Attempt) -> None:
        """Releases the contents of an attempt that ended or was dropped. Cancels fetches that no other attempt needs."""
        for content in attempt.contents:
            digest = content[0]
            self.unpin(digest)
            waiting = self._waiting.get(digest)
            if waiting is not None and waiting.pop(attempt, self) is None and not waiting:
                del self._waiting[digest]
                self.effects.append(("cancel_fetch", digest))
        attempt.contents = ()

    def arrived(self, digest: str, now: float) -> List[Attempt]:
        """Records that a content is in the cache. Returns the attempts that waited only for this content."""
        self._seen_at[digest] = now
        ready = []
        for attempt in self._waiting.pop(digest, ()):
            attempt.missing -= 1
            if not attempt.missing:
                ready.append(attempt)
        return ready

    def waiting_for(self, digest: str) -> List[Attempt]:
        """Returns the attempts that wait for this content."""
        return list(self._waiting.get(digest, ()))

    def changed(self, gained: Sequence[str], lost: Sequence[str]) -> None:
        """Records contents that entered or left the cache."""
        for digest in gained:
            if digest not in self.holds:
                self.holds[digest] = self._gained[digest] = None
            self._lost.pop(digest, None)
        for digest in lost:
            self._seen_at.pop(digest, None)
            self._gained.pop(digest, None)
            if self.holds.pop(digest, self) is None:
                self._lost[digest] = None

    def unpin(self, digest: str) -> None:
        self.needed[digest] -= 1
        if not self.needed[digest]:
            del self.needed[digest]

    def changes(self) -> List[List[str]]:
        """Returns [gained contents, lost contents] since the last call."""
        gained, lost = list(self._gained), list(self._lost)
        self._gained, self._lost = {}, {}
        return [gained, lost]

    def report(self) -> List[List[Any]]:
        """Returns messages that list cached contents: on a new connection to the master all contents, later only the changes."""
        reported, self.reported = self.reported, True
        gained, lost = self.changes()
        unclaimed, self._unclaimed = list(self._unclaimed), {}
        if not reported:
            # The Hello has already reported an empty cache. But if the last contents were lost after the Hello, a message is needed.
            return [["holds", list(self.holds), [], True, list(self.held)]] if self.holds or lost else []
        if unclaimed:
            return [["holds", gained, lost, False, unclaimed]]
        return [["holds", gained, lost, False]] if gained or lost else []

    def begin_upload(self, attempt: Attempt, item: Item) -> None:
        """Requests the upload of an attempt's output: files that are too large for its result, or the large result of a call. If the
        attempt was dropped, requests to delete the files."""
        if attempt.forgotten:
            self.effects.append(("discard", item[4]))
            return
        self._last_upload += 1
        self.uploads[self._last_upload] = (attempt, item)
        self.effects.append(("upload", self._last_upload, item[4]))

    def finish_upload(self, number: int, failure: Any, payload: Any, produced: List[Any]) -> Tuple[Attempt, Item]:
        """Returns the attempt of an ended upload, and its result with the produced contents."""
        attempt, item = self.uploads.pop(number)
        left_out = self.left_out.pop(number, 0)
        for digest, _, at_master, at_worker, *_ in produced:
            if not at_worker:
                continue
            self.holds[digest] = None
            if attempt.forgotten:
                self._gained[digest] = None
                if not at_master:
                    self.held[digest] = self._unclaimed[digest] = None
                continue
            self.needed[digest] = self.needed.get(digest, 0) + 1  # keep the content until the master has acknowledged the result
            if not at_master:
                self.held[digest] = None
        result = (add_problem(item[0], failure), item[1], item[2], item[3], payload, produced)
        return attempt, (*result, left_out) if left_out else result

    def drop(self, task: int) -> None:
        """Cancels the uploads of a task."""
        for number, (attempt, _) in self.uploads.items():
            if attempt.task == task:
                attempt.forgotten = True
                self.effects.append(("cancel_upload", number))

    def holding(self) -> List[List[int]]:
        return [[attempt.task, attempt.attempt, STARTED] for attempt, _ in self.uploads.values() if not attempt.forgotten]


def is_disk_full(failure: Failure) -> bool:
    """Returns True if a full or broken disk of this worker caused the failure."""
    return failure[0] == "disk" and failure[1] == "worker"
