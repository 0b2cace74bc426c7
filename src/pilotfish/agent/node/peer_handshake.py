"""How two agents of a site meet: TLS with the certificate that the master gave to all of them, and a proof by each that it has their key.

The side that was dialled speaks first. After the proof the dialler says what it came for, and goes on when it is told to proceed.
"""

from __future__ import annotations

import hashlib
import os
import socket
from typing import Any, Sequence, Tuple

from ...portable.wire.frame_link import FrameLink, LinkLost, Rejected, keep_alive, prove
from ...portable.wire.frames import PROTOCOL, frame_buffers
from ...portable.wire.handshake import DIALLER, LISTENER, Claim, make_proof, verify_proof
from ...portable.wire.tls_stream import secure, shake_hands
from ..peers.contacts import Contact, MalformedMessage, read_id

ROLE = "peer"
PATIENCE_S = 2.0
"""They are of the same site."""


def node_id(worker: str) -> int:
    """Where a worker is in the id space of its site."""
    return int.from_bytes(hashlib.sha256(worker.encode()).digest(), "big")


class PeerIdentity:
    """What makes us a peer of a site: given by the master over our own link, never written where it stays."""

    def __init__(self, worker: str, key: bytes, certificate: str, private_key: str, workdir: str) -> None:
        import ssl

        self.node = node_id(worker)
        self.name = "%064x" % self.node
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


def dial_peer(contact: Contact, identity: PeerIdentity, greeting: Sequence[Any]) -> FrameLink:
    """A proved connection, which blocks. LinkLost, whatever is in the way."""
    try:
        host, port = contact.address
        sock = socket.create_connection((str(host), int(port)), PATIENCE_S)
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise LinkLost(str(error)) from None
    try:
        keep_alive(sock)
        link = FrameLink(secure(sock, identity.fingerprint))
        link.contact, link.dialler = contact, identity.node
        prove(link, identity.key, ROLE, identity.name, identity.fingerprint)
        _say(link, greeting)
        if link.wait_for_frame()[0] != "proceed":
            raise LinkLost("the peer does not want us")
        return link
    except (OSError, ValueError, IndexError, TypeError, Rejected) as error:
        sock.close()
        raise LinkLost(str(error)) from None
    except BaseException:
        sock.close()
        raise


def receive_peer(sock: socket.socket, identity: PeerIdentity) -> Tuple[FrameLink, str]:
    """Whoever dialled us, if it is a peer: the link, which blocks, and what it came for. LinkLost if it is not; it is not closed then.

    There is no time limit, because whoever can send a byte now and then would never meet it: shut the socket down when it took too long.
    """
    try:
        keep_alive(sock)
        link = FrameLink(shake_hands(sock, identity.context, server_side=True)[0])
        node = _examine(link, identity)
        purpose, wire = link.wait_for_frame()
        link.contact = Contact.read(wire)
        link.dialler = link.contact.node
        if link.contact.wire[0] != node:
            raise MalformedMessage("a peer with the id of another one")
        _say(link, ["proceed"])
        return link, purpose
    except (OSError, ValueError, TypeError) as error:
        raise LinkLost(str(error)) from None


def _examine(link: FrameLink, identity: PeerIdentity) -> str:
    ours = os.urandom(32).hex()
    _say(link, ["pilotfish", PROTOCOL, ours])
    kind, protocol, role, node, theirs, proof = link.wait_for_frame()
    for text in (node, theirs):
        read_id(text)  # Malformed if it is none: what is signed must mean one thing only
    claim = Claim(ROLE, node, identity.fingerprint)
    if (kind, protocol, role) != ("prove", PROTOCOL, ROLE) or not verify_proof(proof, identity.key, DIALLER, claim, (ours, theirs)):
        raise LinkLost("whoever called has not got our key")
    link.reader.proved = True
    _say(link, ["proved", make_proof(identity.key, LISTENER, claim, (theirs, ours)), 0])
    return str(node)


def _say(link: FrameLink, header: Sequence[Any]) -> None:
    for buffer in frame_buffers(header, []):
        link.connection.sendall(buffer)
