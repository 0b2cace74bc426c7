"""Serves the cache of this agent to its peers, including contents that are still arriving.

When two peers already fetch a content from here, others are redirected to those two. A file that all peers need at once is therefore
distributed through a tree, whatever the order of requests.
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
"""Maximum peers to which others may be redirected."""


class PeerContentSource:
    def __init__(self, cache: ContentCache) -> None:
        self._contacts: OrderedDict[str, Any] = OrderedDict()
        """Contacts of peers that may request contents, by id; the latest last."""
        self._cache = cache
        self._lock = threading.Lock()
        self._readers: Dict[str, List[str]] = {}

    def introduce(self, contact: Any) -> None:
        """Stores the contact, [id, address], of a peer that may request contents."""
        with self._lock:
            self._contacts.pop(contact[0], None)
            self._contacts[contact[0]] = contact
            if len(self._contacts) > MAX_CONTACTS:
                self._contacts.popitem(last=False)

    def forget(self, asker: str) -> None:
        """Stops redirecting to a peer that left or cannot be reached."""
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
