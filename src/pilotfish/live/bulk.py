"""The master's end of bulk connections: a proved link leaves the event loop, and threads go on with it.

The TLS session of a link lives between two memory buffers anyway, so that it goes along as it is, with all that was read already.
"""

from __future__ import annotations

from pilotfish.agent.porter import Porter
from pilotfish.agent.tls_stream import Session
from pilotfish.agent.tls_stream import Stream as HandedOver

__all__ = ["HandedOver", "Porter", "Session"]
