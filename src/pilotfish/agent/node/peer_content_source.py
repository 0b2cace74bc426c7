"""What other agents may have of our cache: all that is in it, and all that is coming.

Whoever asks for what two others are just getting from us is sent on to those: so a file that all want at once makes its own tree, whatever
the order in which they come.
"""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Optional

from ...portable.transfer.content_cache import ContentCache
from ...portable.transfer.content_source import FileReader, PartialFileReader, ReadableContent, ServedContent
from ...portable.transfer.incoming_content import IncomingContent, NoRoom
from ...portable.transfer.transfer_protocol import AskElsewhere, ContentAbsent

FAN_OUT = 2


class PeerContentSource:
    def __init__(self, cache: ContentCache) -> None:
        self.contacts: Dict[str, Any] = {}
        """How those who ask can be reached, by their ids."""
        self._cache = cache
        self._lock = threading.Lock()
        self._getting: Dict[str, List[str]] = {}

    def reading(self, asker: str, digest: str, size: int, insist: bool) -> ServedContent:
        with self._lock:
            getting = self._getting.setdefault(digest, [])
            others = [self.contacts[other] for other in getting if other in self.contacts and other != asker]
            if len(getting) >= FAN_OUT and others:
                raise AskElsewhere(others)
            getting.append(asker)
        try:
            return ServedContent(self._open(digest, size), lambda: self._done(digest, asker))
        except BaseException:
            self._done(digest, asker)
            raise

    def _open(self, digest: str, size: int) -> ReadableContent:
        path = self._cache.take(digest, size)
        if path is not None:
            return FileReader(path, size, "worker")
        coming = self._cache.coming(digest)
        if coming is not None:
            return PartialFileReader(coming)
        raise ContentAbsent("it is not here", "worker")

    def _done(self, digest: str, asker: str) -> None:
        with self._lock:
            getting = self._getting[digest]
            getting.remove(asker)
            if not getting:
                del self._getting[digest]

    def incoming(self, asker: str, digest: str, size: int) -> Optional[IncomingContent]:
        raise NoRoom("peers fetch, and put nothing")
