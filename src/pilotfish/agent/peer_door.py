"""How two agents of a site meet: TLS with the certificate that the master gave to all of them, and a proof by each that it has their key.

The side that was dialled speaks first. After the proof the dialler says what it came for, and goes on when it is told to proceed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
from typing import Any, List, Sequence, Tuple

from .frames import FrameError, frame_buffers
from .link import PROTOCOL, Link, LinkLost, keep_alive, mac, prove, secure
from .overlay.contacts import Contact

ROLE = "peer"
PATIENCE_S = 2.0
"""They are of the same site."""


def node_id(worker: str) -> int:
    """Where a worker is in the id space of its site."""
    return int.from_bytes(hashlib.sha256(worker.encode()).digest(), "big")


class Identity:
    """What makes us a peer of a site: given by the master over our own link, never written where it stays."""

    def __init__(self, worker: str, key: bytes, certificate: str, private_key: str, workdir: str) -> None:
        import ssl

        self.name = "%064x" % node_id(worker)
        self.key = key
        self.fingerprint = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        if hasattr(self.context, "num_tickets"):
            self.context.num_tickets = 0
        path = os.path.join(workdir, "peer.pem")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.write(descriptor, (certificate + private_key).encode())
            self.context.load_cert_chain(path)
        finally:
            os.close(descriptor)
            os.unlink(path)


def dial_peer(contact: Contact, identity: Identity, greeting: Sequence[Any]) -> Link:
    """A proved connection, which blocks. LinkLost, whatever is in the way."""
    try:
        host, port = contact.address
        connection = socket.create_connection((str(host), int(port)), PATIENCE_S)
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise LinkLost(str(error)) from None
    try:
        keep_alive(connection)
        connection = secure(connection, identity.fingerprint)
        link = Link(connection)
        prove(link, identity.key, ROLE, identity.name, identity.fingerprint)
        _say(link, greeting)
        if link.wait_for_frame()[0] != "proceed":
            raise LinkLost("the peer does not want us")
        return link
    except (OSError, FrameError, ValueError, IndexError) as error:
        connection.close()
        raise LinkLost(str(error)) from None
    except BaseException:
        connection.close()
        raise


def receive_peer(connection: socket.socket, identity: Identity) -> Tuple[Link, str, List[Any]]:
    """Whoever dialled us, if it is a peer: the link, its id, and what it came for. LinkLost if it is not."""
    try:
        connection.settimeout(PATIENCE_S)
        keep_alive(connection)
        connection = identity.context.wrap_socket(connection, server_side=True)
        link = Link(connection)
        node = _examine(link, identity)
        greeting = link.wait_for_frame()
        _say(link, ["proceed"])
        return link, node, greeting
    except (OSError, FrameError, ValueError, IndexError, TypeError) as error:
        connection.close()
        raise LinkLost(str(error)) from None
    except BaseException:
        connection.close()
        raise


def _examine(link: Link, identity: Identity) -> str:
    ours = os.urandom(32).hex()
    _say(link, ["pilotfish", PROTOCOL, ours])
    kind, protocol, role, node, theirs, proof = link.wait_for_frame()
    expected = mac(identity.key, "peer", ROLE, node, ours, theirs, identity.fingerprint)
    if (kind, protocol, role) != ("prove", PROTOCOL, ROLE) or not hmac.compare_digest(expected, proof):
        raise LinkLost("whoever called has not got our key")
    link.reader.proved = True
    _say(link, ["proved", mac(identity.key, "master", ROLE, node, theirs, ours, identity.fingerprint), 0])
    return str(node)


def _say(link: Link, header: Sequence[Any]) -> None:
    for buffer in frame_buffers(header, []):
        link.connection.sendall(buffer)
