"""Authenticates two agents of a site to each other.

The connection uses TLS with a certificate that all agents of the site got from the master. Over this connection, each side proves that it
has the key of the site; the dialled side sends the first message. After the proof, the dialler sends the purpose of the connection and
waits for "proceed". The purpose is "peer" for messages, or "bulk" for transfers of contents.
"""

from __future__ import annotations

import hashlib
import os
import socket
from typing import Any, Sequence, Tuple

from ...portable.wire.frame_link import FrameLink, LinkLost, Rejected, keep_alive, prove
from ...portable.wire.frames import PROTOCOL
from ...portable.wire.handshake import DIALLER, LISTENER, Claim, make_proof, verify_proof
from ...portable.wire.tls_stream import secure, shake_hands
from ..peers.contacts import Contact, MalformedMessage, read_id

ROLE = "peer"
DIAL_TIMEOUT_S = 2.0
"""Seconds after which a dial fails. The time is short, because peers are at the same site."""


def node_id(worker: str) -> int:
    """Returns the id of a worker in the network of the peers of its site."""
    return int.from_bytes(hashlib.sha256(worker.encode()).digest(), "big")


class PeerIdentity:
    """Key and certificate that prove to peers that an agent belongs to the site. The master sends both. They do not stay on disk."""

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
    """Connects to a peer and sends ``greeting``: [purpose, own contact]. Returns the blocking link. Raises LinkLost for every problem."""
    try:
        host, port = contact.address
        sock = socket.create_connection((str(host), int(port)), DIAL_TIMEOUT_S)
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise LinkLost(str(error)) from None
    try:
        keep_alive(sock)
        link = FrameLink(secure(sock, identity.fingerprint))
        link.contact, link.dialler = contact, identity.node
        prove(link, identity.key, ROLE, identity.name, identity.fingerprint)
        link.send_now(greeting)
        if link.wait_for_frame()[0] != "proceed":
            raise LinkLost("the peer refused the connection")
        return link
    except (OSError, ValueError, IndexError, TypeError, Rejected) as error:
        sock.close()
        raise LinkLost(str(error)) from None
    except BaseException:
        sock.close()
        raise


def receive_peer(sock: socket.socket, identity: PeerIdentity) -> Tuple[FrameLink, str]:
    """Authenticates a dialler. Returns a blocking link to the dialler, and the purpose of the link. Raises LinkLost if the dialler is no
    peer.

    This function has no time limit, because the time limit of a socket restarts with each byte. If the handshake takes too long, the caller
    must shut the socket down. The caller also closes the socket.
    """
    try:
        keep_alive(sock)
        link = FrameLink(shake_hands(sock, identity.context, server_side=True)[0])
        node = _verify(link, identity)
        purpose, wire = link.wait_for_frame()
        link.contact = Contact.read(wire)
        link.dialler = link.contact.node
        if link.contact.wire[0] != node:
            raise MalformedMessage("a peer used the id of another peer")
        link.send_now(["proceed"])
        return link, purpose
    except (OSError, ValueError, TypeError) as error:
        raise LinkLost(str(error)) from None


def _verify(link: FrameLink, identity: PeerIdentity) -> str:
    ours = os.urandom(32).hex()
    link.send_now(["pilotfish", PROTOCOL, ours])
    kind, protocol, role, node, theirs, proof = link.wait_for_frame()
    for text in (node, theirs):
        read_id(text)  # the proof covers these texts, so each id must have only one spelling
    claim = Claim(ROLE, node, identity.fingerprint)
    if (kind, protocol, role) != ("prove", PROTOCOL, ROLE) or not verify_proof(proof, identity.key, DIALLER, claim, (ours, theirs)):
        raise LinkLost("the dialler does not have the key of the site")
    link.reader.proved = True
    link.send_now(["proved", make_proof(identity.key, LISTENER, claim, (theirs, ours)), 0])
    return str(node)
