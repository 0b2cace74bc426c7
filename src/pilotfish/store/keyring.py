"""Derives every role key from one pool secret and makes the certificate that peers pin.

Role keys are not stored. The key of a pilot is derived when it is needed, and revoked by its name.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotfish.errors import BadInput

CERTIFICATE_YEARS = 20


@dataclass(frozen=True)
class Keyring:
    secret: bytes
    certificate: Path
    private_key: Path
    fingerprint: str

    def key(self, key_id: str) -> bytes:
        return hmac.digest(self.secret, b"pilotfish-key|" + key_id.encode(), "sha256")

    def credentials(self, key_id: str, endpoints: list[dict[str, Any]]) -> bytes:
        """Encodes all that a client or an agent needs to find the master and to authenticate. The result is secret."""
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
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.certificate, self.private_key)
        context.num_tickets = 0  # No session is resumed, because each connection needs a new proof.
        return context


def pool_digest(keyring: Keyring) -> str:
    """Returns a short, unique name of a pool for batch tags and paths at sites."""
    return hashlib.sha256(b"pilotfish-pool|" + keyring.secret).hexdigest()[:8]


def open_keyring(pool: Path) -> Keyring:
    """Opens the keys of a pool. Creates them if the pool is new."""
    secret, certificate, private_key = pool / "secret", pool / "master.crt", pool / "master.key"
    if not secret.exists():
        write_private(secret, secrets.token_hex(32).encode())
    if not certificate.exists():
        _make_certificate(certificate, private_key)
    for path in (secret, private_key):
        require_private(path)
    der = ssl.PEM_cert_to_DER_cert(certificate.read_text())
    return Keyring(bytes.fromhex(secret.read_text().strip()), certificate, private_key, hashlib.sha256(der).hexdigest())


def require_private(path: Path) -> None:
    """Refuses a file that other users could read or replace."""
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise BadInput(f"{path} belongs to another user (uid {status.st_uid})", f"chown {os.geteuid()} {path}")
    if status.st_mode & 0o077:
        raise BadInput(f"{path} can be read by others (mode {status.st_mode & 0o777:o})", f"chmod go= {path}")


def write_private(path: Path, content: bytes) -> None:
    """Replaces a file atomically. Other users can never read it, not even during the replacement."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(scratch, path)


def _make_certificate(certificate: Path, private_key: Path) -> None:
    # Imported here because only the first start of a pool needs it.
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
