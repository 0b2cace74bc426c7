"""What other agents may have of our cache: all that is in it, and all that is coming.

Whoever asks for what two others are just getting from us is sent on to those: so a file that all want at once makes its own tree, whatever
the order in which they come.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Dict, List, Optional

from ...portable.transfer.content_cache import ContentCache
from ...portable.transfer.content_source import FileReader, PartialFileReader, ReadableContent, ServedContent
from ...portable.transfer.incoming_content import IncomingContent, NoRoom
from ...portable.transfer.transfer_protocol import AskElsewhere, ContentAbsent

FAN_OUT = 2
MAX_CONTACTS = 1000
"""Maximum number of peers that others may be sent to."""


class PeerContentSource:
    def __init__(self, cache: ContentCache) -> None:
        self._contacts: OrderedDict[str, Any] = OrderedDict()
        """How peers that ask can be reached, by their ids; the latest last."""
        self._cache = cache
        self._lock = threading.Lock()
        self._getting: Dict[str, List[str]] = {}

    def introduce(self, contact: Any) -> None:
        """Remember how a peer that may ask for contents can be reached: [id, address]."""
        with self._lock:
            self._contacts.pop(contact[0], None)
            self._contacts[contact[0]] = contact
            if len(self._contacts) > MAX_CONTACTS:
                self._contacts.popitem(last=False)

    def forget(self, asker: str) -> None:
        """Send nobody to this peer any more: it has left, or cannot be reached."""
        with self._lock:
            self._contacts.pop(asker, None)

    def reading(self, asker: str, digest: str, size: int, insist: bool) -> ServedContent:
        with self._lock:
            getting = self._getting.setdefault(digest, [])
            others = [self._contacts[other] for other in getting if other in self._contacts and other != asker]
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
