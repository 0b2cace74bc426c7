"""Contents that attempts need or have made: what is here, what is on its way, who waits for it. Pure; ``machine.py`` is the only user.

A content is asked of the host (``fetch``) when an attempt needs it and it was not seen here lately: the host looks into the cache first,
so that one that was evicted or spoiled in the meantime is noticed and got again.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

from ...portable.failures import Failure
from .attempts import STARTED, Attempt
from .pending_results import Item

SEEN_S = 300.0
"""A content that was seen in the cache so long ago is looked for again."""

Content = Sequence[Any]
"""[digest, size, path, mtime_ns, inode], as the master sends it"""


class InputStaging:
    def __init__(self) -> None:
        self.effects: List[Tuple[Any, ...]] = []
        self.wanted: Dict[str, int] = {}
        """How many attempts need it now: the cache must keep it."""
        self.stowing: Dict[int, Tuple[Attempt, Item]] = {}
        """Attempts that have ended, whose files are on their way to the cache or to the master."""
        self.holds: Dict[str, None] = {}
        """All that is in the cache."""
        self.told = False
        """The master of this connection knows what is here."""
        self.held: Dict[str, None] = {}
        """What is kept here because a run counts on it."""
        self._gained: Dict[str, None] = {}
        self._lost: Dict[str, None] = {}
        self._unclaimed: Dict[str, None] = {}
        """What is kept here for an attempt that nobody wants any more. The master knows whether a run counts on it nevertheless."""
        self.seen = self.seen_bytes = 0
        """How many contents were needed that had been seen lately, and of how many bytes."""
        self._seen: Dict[str, float] = {}
        self.is_unchanged: Callable[[str], bool] = lambda digest: True
        """What was seen lately may have been removed or spoilt since: a quick look of the host's."""
        self._waiting: Dict[str, Dict[Attempt, None]] = {}
        self._stowed = 0

    @property
    def is_busy(self) -> bool:
        """Something is under way."""
        return bool(self._waiting or self.stowing)

    @property
    def is_needed(self) -> bool:
        """Something in the cache must not go."""
        return bool(self.wanted or self.stowing)

    def need(self, attempt: Attempt, now: float) -> bool:
        """The attempt needs its contents from now on; whether they are all here."""
        attempt.missing = 0
        for content in attempt.contents:
            digest = content[0]
            self.wanted[digest] = self.wanted.get(digest, 0) + 1
            if now - self._seen.get(digest, -SEEN_S) < SEEN_S and self.is_unchanged(digest):
                self.seen += 1
                self.seen_bytes += content[1]
                continue
            attempt.missing += 1
            waiting = self._waiting.get(digest)
            if waiting is None:
                waiting = self._waiting[digest] = {}
                self.effects.append(("fetch", content))
            waiting[attempt] = None
        return not attempt.missing

    def add_seen(self, got: List[int]) -> List[int]:
        """What the host has got from where, with what was here anyway."""
        return [got[0] + self.seen, got[1] + self.seen_bytes, *got[2:]] if got else got

    def release(self, attempt: Attempt) -> None:
        """The attempt has ended, or goes elsewhere. What nobody else waits for need not come any more."""
        for content in attempt.contents:
            digest = content[0]
            self.unpin(digest)
            waiting = self._waiting.get(digest)
            if waiting is not None and waiting.pop(attempt, self) is None and not waiting:
                del self._waiting[digest]
                self.effects.append(("unfetch", digest))
        attempt.contents = ()

    def arrived(self, digest: str, now: float) -> List[Attempt]:
        """Those that need nothing else any more."""
        self._seen[digest] = now
        ready = []
        for attempt in self._waiting.pop(digest, ()):
            attempt.missing -= 1
            if not attempt.missing:
                ready.append(attempt)
        return ready

    def missed(self, digest: str) -> List[Attempt]:
        """It cannot be got: those that cannot begin."""
        return list(self._waiting.get(digest, ()))

    def changed(self, gained: Sequence[str], lost: Sequence[str]) -> None:
        """Contents came to the cache, or went from it."""
        for digest in gained:
            if digest not in self.holds:
                self.holds[digest] = self._gained[digest] = None
            self._lost.pop(digest, None)
        for digest in lost:
            self._seen.pop(digest, None)
            self._gained.pop(digest, None)
            if self.holds.pop(digest, self) is None:
                self._lost[digest] = None

    def unpin(self, digest: str) -> None:
        self.wanted[digest] -= 1
        if not self.wanted[digest]:
            del self.wanted[digest]

    def changes(self) -> List[List[str]]:
        """What came and what went since this was last asked."""
        gained, lost = list(self._gained), list(self._lost)
        self._gained, self._lost = {}, {}
        return [gained, lost]

    def news(self) -> List[List[Any]]:
        """What the master is to be told: all that is here once per connection, then what changes. That there is nothing, the hello says."""
        told, self.told = self.told, True
        gained, lost = self.changes()
        unclaimed, self._unclaimed = list(self._unclaimed), {}
        if not told:
            return [["holds", list(self.holds), [], True, list(self.held)]] if self.holds else []
        if unclaimed:
            return [["holds", gained, lost, False, unclaimed]]
        return [["holds", gained, lost, False]] if gained or lost else []

    def stow(self, attempt: Attempt, item: Item) -> None:
        """The attempt has ended and left files that are too large to go with its result."""
        if attempt.forgotten:
            self.effects.append(("discard", item[4]))
            return
        self._stowed += 1
        self.stowing[self._stowed] = (attempt, item)
        self.effects.append(("stow", self._stowed, item[4]))

    def stowed(self, number: int, failure: Any, payload: Any, made: List[Any]) -> Tuple[Attempt, Item]:
        attempt, item = self.stowing.pop(number)
        for digest, _, home, here, *_ in made:
            if not here:
                continue
            self.holds[digest] = None
            if attempt.forgotten:
                self._gained[digest] = None
                if not home:
                    self.held[digest] = self._unclaimed[digest] = None
                continue
            self.wanted[digest] = self.wanted.get(digest, 0) + 1  # until the master knows of it, it must not go
            if not home:
                self.held[digest] = None
        return attempt, (failure or item[0], item[1], item[2], item[3], payload, made)

    def drop(self, task: int) -> None:
        for number, (attempt, _) in self.stowing.items():
            if attempt.task == task:
                attempt.forgotten = True
                self.effects.append(("unstow", number))

    def holding(self) -> List[List[int]]:
        return [[attempt.task, attempt.attempt, STARTED] for attempt, _ in self.stowing.values() if not attempt.forgotten]


def no_room(failure: Failure) -> bool:
    """Whether it is for this worker's disk that something failed."""
    return failure[0] == "disk" and failure[1] == "worker"
