"""Makes X.509 certificates with a given start and end of validity."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID


def make_certificate(starts_in_s: float, ends_in_s: float) -> str:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ada")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    builder = builder.not_valid_before(now + timedelta(seconds=starts_in_s)).not_valid_after(now + timedelta(seconds=ends_in_s))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()
