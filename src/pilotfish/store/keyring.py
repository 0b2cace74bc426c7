"""Derives every key of a pool from one secret, and makes certificates. Clients and agents accept only the certificate in their credentials.

A key has a name, such as ``pilot:NAME``. The pool stores only the secret. When a key is needed, it is derived from the secret and the name.
The credentials files of clients and agents contain derived keys. To revoke a key, its name is enough.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import shlex
import ssl
import stat
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pilotfish.errors import BadInput

CERTIFICATE_YEARS = 20


@dataclass(frozen=True)
class Keyring:
    """The keys of a pool. The certificate is made only when it is needed. Private pools never need it, because they do not listen at a
    network."""

    secret: bytes
    certificate: Path
    private_key: Path

    @cached_property
    def fingerprint(self) -> str:
        """Returns the SHA-256 of the certificate. Creates the certificate if the pool has none."""
        if not self.certificate.exists():
            _make_certificate(self.certificate, self.private_key)
        require_private(self.private_key)
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(self.certificate.read_text())).hexdigest()

    def key(self, key_id: str) -> bytes:
        return hmac.digest(self.secret, b"pilotfish-key|" + key_id.encode(), "sha256")

    def credentials(self, key_id: str, endpoints: list[dict[str, Any]]) -> bytes:
        """Returns the content of a credentials file: all that a client or an agent needs to find the master and to authenticate."""
        content = {"key_id": key_id, "key": self.key(key_id).hex(), "pilot": key_id.partition(":")[2], "endpoints": endpoints}
        return json.dumps(content).encode()

    def peers(self, site: str) -> tuple[str, str, str]:
        """Returns the secrets that the agents of a site share: a key, and a certificate with its private key."""
        directory = self.certificate.parent
        certificate, private_key = directory / "peers.crt", directory / "peers.key"
        if not certificate.exists():
            _make_certificate(certificate, private_key)
        require_private(private_key)
        return self.key(f"peers:{site}").hex(), certificate.read_text(), private_key.read_text()

    def server_context(self) -> ssl.SSLContext:
        assert self.fingerprint, "the certificate exists now"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.certificate, self.private_key)
        context.num_tickets = 0  # TLS sessions are not resumed, because each connection needs a new proof
        return context


def pool_digest(keyring: Keyring) -> str:
    """Returns a short, unique name of a pool for batch tags and paths at sites."""
    return hashlib.sha256(b"pilotfish-pool|" + keyring.secret).hexdigest()[:8]


def open_keyring(pool: Path) -> Keyring:
    """Opens the keys of a pool. Creates the secret if the pool is new."""
    secret = pool / "secret"
    if not secret.exists():
        write_private(secret, secrets.token_hex(32).encode())
    require_private(secret)
    return Keyring(bytes.fromhex(secret.read_text().strip()), pool / "master.crt", pool / "master.key")


def require_private(path: Path) -> None:
    """Refuses a file that other users could read or replace."""
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise BadInput(f"{path} belongs to another user (uid {status.st_uid})", privacy_fix(path, status))
    if status.st_mode & 0o077:
        raise BadInput(f"{path} can be read by others (mode {status.st_mode & 0o777:o})", privacy_fix(path, status))


def privacy_fix(path: Path, status: os.stat_result) -> str:
    """Returns a command that solves the problem that a path is not private. This is usually the command that makes the path private. For a
    directory that other programs or users need, it is a command that makes Pilotfish use a new directory.

    For example, the mode of ``/tmp`` must not change, because this would harm other programs and users.
    """
    is_shared = status.st_mode & 0o1002 or status.st_uid != os.geteuid() or path == Path.home() or os.path.ismount(path)
    if not (stat.S_ISDIR(status.st_mode) and is_shared):
        return f"chmod go= {shlex.quote(os.fspath(path))}"
    below = path if path.is_dir() and os.access(path, os.W_OK) else Path("~")
    return f"use a directory of your own: export PILOTFISH_HOME={below}/pilotfish-{os.geteuid()}"


def write_private(path: Path, content: bytes, durable: bool = True) -> None:
    """Writes a file that only this user can read. Replaces an existing file atomically.

    ``durable``: whether to sync the file. It can be False for a file that every master writes again at its start, because nobody needs its
    content after the computer has stopped.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, content)
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(scratch, path)


def _make_certificate(certificate: Path, private_key: Path) -> None:
    # Imported here, because only the first start of a pool needs these modules.
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "pilotfish master")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=365 * CERTIFICATE_YEARS))
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    write_private(private_key, key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))
    write_private(certificate, made.public_bytes(encoding))
