"""Proofs: made by one side, verified by the other, good for one connection only. Credentials files: read or refused."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pilotfish.portable.wire.frames import PROTOCOL
from pilotfish.portable.wire.handshake import DIALLER, LISTENER, BadCredentials, Claim, make_proof, read_credentials, verify_proof

KEY = bytes(range(32))
CLAIM = Claim("agent", "pilot:7", "unix")


def test_a_proof_has_the_form_that_running_pilots_expect() -> None:
    text = b"pilotfish-%d|peer|agent|pilot:7|n1|n2|unix" % PROTOCOL
    assert PROTOCOL == 2 and make_proof(KEY, DIALLER, CLAIM, ("n1", "n2")) == hmac.new(KEY, text, hashlib.sha256).hexdigest()
    assert make_proof(KEY, LISTENER, CLAIM, ("n1", "n2")) == hmac.new(KEY, text.replace(b"peer", b"master"), hashlib.sha256).hexdigest()


def test_a_proof_holds_for_its_key_side_claim_and_nonces_only() -> None:
    proof = make_proof(KEY, DIALLER, CLAIM, ("n1", "n2"))
    assert verify_proof(proof, KEY, DIALLER, CLAIM, ("n1", "n2"))
    assert not verify_proof(proof, b"another", DIALLER, CLAIM, ("n1", "n2"))
    assert not verify_proof(proof, KEY, LISTENER, CLAIM, ("n1", "n2"))
    assert not verify_proof(proof, KEY, DIALLER, CLAIM, ("n2", "n1"))
    for other in (CLAIM._replace(role="client"), CLAIM._replace(key_id="pilot:8"), CLAIM._replace(binding="ff")):
        assert not verify_proof(proof, KEY, DIALLER, other, ("n1", "n2"))


@pytest.mark.parametrize("given", ["", "é" * 64, "\ud800", None, 5, [], b"x"])
def test_what_is_no_proof_is_refused_and_raises_nothing(given: Any) -> None:
    assert not verify_proof(given, KEY, DIALLER, CLAIM, ("n1", "n2"))


def test_names_that_are_not_ascii_can_be_signed() -> None:
    claim = Claim("agent", "pilot:é\ud800", "unix")
    assert verify_proof(make_proof(KEY, DIALLER, claim, ("n1", "n2")), KEY, DIALLER, claim, ("n1", "n2"))


def credentials_file(directory: Path, content: str, mode: int = 0o600) -> Path:
    path = directory / "credentials.json"
    path.write_text(content)
    path.chmod(mode)
    return path


def test_a_credentials_file_names_the_key_and_the_masters(tmp_path: Path) -> None:
    endpoints: list[dict[str, Any]] = [{"kind": "unix", "path": "/s"}, {"kind": "tls", "host": "h", "port": 1, "fingerprint": "AB" * 32}]
    fields = {"key_id": "pilot:1", "key": "0f", "pilot": "1", "endpoints": endpoints}
    found = read_credentials(credentials_file(tmp_path, json.dumps(fields)))
    assert (found.key_id, found.key, found.pilot, found.endpoints) == ("pilot:1", b"\x0f", "1", endpoints)
    assert found.pool == "-" + "ab" * 8
    assert found._replace(endpoints=endpoints[:1]).pool == ""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no json", "is not one of ours"),
        ("[]", "is not one of ours"),
        ('{"key_id":"a","key":"zz","endpoints":[{}]}', "is not one of ours"),
        ('{"key_id":"a","key":"00","endpoints":[]}', "names no master"),
        ('{"key_id":"a","key":"","endpoints":[{}]}', "holds no key"),
    ],
)
def test_a_file_that_holds_no_credentials_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(BadCredentials, match=problem) as caught:
        read_credentials(credentials_file(tmp_path, text))
    assert not caught.value.fix


def test_a_file_that_is_missing_or_open_to_others_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(BadCredentials, match="cannot read"):
        read_credentials(tmp_path / "none")
    path = credentials_file(tmp_path, "{}", 0o640)
    with pytest.raises(BadCredentials, match="can be read by others") as caught:
        read_credentials(os.fspath(path))
    assert caught.value.fix == f"chmod 600 {path}" and caught.value.fix in str(caught.value)
