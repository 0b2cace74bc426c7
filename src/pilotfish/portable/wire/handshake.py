"""Lets both sides of a connection prove that they have the same key.

The listener sends a nonce. The dialler answers with its own nonce and a proof. Then the listener sends its own proof. A proof is valid for
one role, one key, both nonces and one channel, so that it cannot be used for another connection.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import stat
from typing import Any, Dict, List, NamedTuple, Tuple, Union

from .frames import PROTOCOL

AGENT = "agent"
CLIENT = "client"
UNIX = "unix"
"""Channel binding of a proof on a Unix socket. Over TLS, the channel binding is the fingerprint of the certificate."""
DIALLER, LISTENER = "peer", "master"
"""The names of the two sides of a connection in a proof."""


class Claim(NamedTuple):
    """The subject of a proof: the role of the dialler, its key and the channel."""

    role: str
    key_id: str
    binding: str


def make_proof(key: bytes, side: str, claim: Claim, nonces: Tuple[str, str]) -> str:
    """Makes the proof that ``side`` has the key. ``nonces``: first the nonce of the other side, then the nonce of ``side``."""
    words = ("pilotfish-%d" % PROTOCOL, side, claim.role, claim.key_id, *nonces, claim.binding)
    return hmac.new(key, b"|".join(word.encode("ascii", "replace") for word in words), hashlib.sha256).hexdigest()


def verify_proof(given: Any, key: bytes, side: str, claim: Claim, nonces: Tuple[str, str]) -> bool:
    """Returns True if ``given`` is the proof that ``side`` makes with the key. ``given`` can have any type."""
    expected = make_proof(key, side, claim, nonces).encode()
    return isinstance(given, str) and hmac.compare_digest(expected, given.encode("ascii", "replace"))


class BadCredentials(Exception):
    """The credentials file cannot be used. ``fix``: the command that solves the problem, if there is one."""

    def __init__(self, problem: str, fix: str = "") -> None:
        super().__init__("%s; correct that with: %s" % (problem, fix) if fix else problem)
        self.problem = problem
        self.fix = fix


class Credentials(NamedTuple):
    """The key of an agent or client, and the endpoints of its master."""

    key_id: str
    key: bytes
    pilot: str
    endpoints: List[Dict[str, Any]]

    @property
    def pool(self) -> str:
        """Returns a name that is different for each pool of a user, and stays the same when the address of the master changes. Empty
        without TLS."""
        prints = [str(endpoint["fingerprint"]).lower() for endpoint in self.endpoints if "fingerprint" in endpoint]
        return "-" + prints[0][:16] if prints else ""


def read_credentials(path: Union[str, "os.PathLike[str]"]) -> Credentials:
    """Reads a credentials file. Call it before every connection, because the address of a master can change."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(1 << 20)
    except OSError as error:
        raise BadCredentials("cannot read the credentials file %s: %s" % (path, error.strerror)) from None
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise BadCredentials("the credentials file %s can be read by others" % path, "chmod 600 %s" % path)
    try:
        fields = json.loads(text.decode("utf-8"))
        endpoints = [dict(endpoint) for endpoint in fields["endpoints"]]
        credentials = Credentials(str(fields["key_id"]), bytes.fromhex(fields["key"]), str(fields.get("pilot", "")), endpoints)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCredentials("the credentials file %s is not one of ours: %r" % (path, error)) from None
    if not endpoints or not credentials.key:
        raise BadCredentials("the credentials file %s names no master, or holds no key" % path)
    return credentials
