"""A thread's own bulk connection to the master."""

from __future__ import annotations

from typing import Optional

from .bulk import Channel, Cut
from .bulk_asking import dial_bulk, has_ended
from .link import BadCredentials, Credentials, LinkLost, TurnedAway


class MasterLine:
    """Dialled when it is needed, and again after a cut."""

    def __init__(self, credentials_path: str, worker: str) -> None:
        self._credentials_path = credentials_path
        self._worker = worker
        self._channel: Optional[Channel] = None

    def channel(self) -> Channel:
        if self._channel is not None and self._channel.fileno() >= 0:
            if not has_ended(self._channel):
                return self._channel
            self._channel.close()
        try:
            self._channel = dial_bulk(Credentials(self._credentials_path), self._worker)
        except (LinkLost, TurnedAway, BadCredentials, OSError) as error:
            raise Cut(str(error)) from None
        return self._channel
