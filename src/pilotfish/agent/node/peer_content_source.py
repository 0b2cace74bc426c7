"""Serves the cache of this agent to its peers, contents that are still arriving included.

When two peers already fetch a content from here, others are sent on to those two. So a file that all need at once is spread through a tree,
in whatever order they ask.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Dict, List, Optional

from ...portable.transfer.content_cache import ContentCache
from ...portable.transfer.content_source import FileReader, PartialFileReader, ReadableContent, ServedContent
from ...portable.transfer.incoming_content import IncomingContent, NoSpace
from ...portable.transfer.transfer_protocol import AskElsewhere, ContentAbsent

MAX_READERS = 2
MAX_CONTACTS = 1000
"""Maximum number of peers that others may be sent to."""


class PeerContentSource:
    def __init__(self, cache: ContentCache) -> None:
        self._contacts: OrderedDict[str, Any] = OrderedDict()
        """How peers that ask can be reached, by their ids; the latest last."""
        self._cache = cache
        self._lock = threading.Lock()
        self._readers: Dict[str, List[str]] = {}

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
            readers = self._readers.setdefault(digest, [])
            others = [self._contacts[other] for other in readers if other in self._contacts and other != asker]
            if len(readers) >= MAX_READERS and others:
                raise AskElsewhere(others)
            readers.append(asker)
        try:
            return ServedContent(self._open(digest, size), lambda: self._done(digest, asker))
        except BaseException:
            self._done(digest, asker)
            raise

    def _open(self, digest: str, size: int) -> ReadableContent:
        path = self._cache.take(digest, size)
        if path is not None:
            return FileReader(path, size, "worker")
        arriving = self._cache.arriving(digest)
        if arriving is not None:
            return PartialFileReader(arriving)
        raise ContentAbsent("it is not here", "worker")

    def _done(self, digest: str, asker: str) -> None:
        with self._lock:
            readers = self._readers[digest]
            readers.remove(asker)
            if not readers:
                del self._readers[digest]

    def incoming(self, asker: str, digest: str, size: int) -> Optional[IncomingContent]:
        raise NoSpace("peers may fetch, not upload")
