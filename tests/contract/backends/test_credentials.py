"""How long credentials are good: read from what klist of MIT and of Heimdal said, and asked of openssl and ssh-keygen themselves."""

from __future__ import annotations

import base64
import json
import math
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from pilotfish.backends.credential_commands import Lifetime, credential
from pilotfish.backends.interface import CommandOutput, CommandRefused, UnclearAnswer
from pilotfish.model.site import CREDENTIAL_KINDS, Site
from tests.contract.backends.transcripts import answer
from tests.engines import requirements
from tests.support.certificates import make_certificate

SITE = Site(backend="slurm")
HOUR = 3600.0


def ask(text: str, **environment: str) -> Lifetime:
    """Run its command here, as a courier would."""
    exchange = credential(text, SITE).exchange
    variables = {**os.environ, "LC_ALL": "C", **environment}
    told = subprocess.run(exchange.command.argv, env=variables, capture_output=True, text=True, timeout=60)
    return exchange.read(CommandOutput(told.returncode, told.stdout, told.stderr))


def read(text: str, told: CommandOutput) -> Lifetime:
    return credential(text, SITE).exchange.read(told)


# --- for any kind ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CREDENTIAL_KINDS)
def test_silence_and_a_missing_tool_say_nothing_about_a_credential(kind: str) -> None:
    for told in (
        CommandOutput(None, "", "no route to host"),
        CommandOutput(127, "1794750482\n", "sh: 1: tool: not found"),
        CommandOutput(0, "Welcome!\n"),
    ):
        with pytest.raises(UnclearAnswer):
            read(f"{kind}:/somewhere", told)


@pytest.mark.parametrize("kind", ["x509", "ssh-certificate", "token"])
def test_a_file_that_is_not_there_is_named(kind: str, tmp_path: Path) -> None:
    with pytest.raises(CommandRefused, match="nowhere cannot be read"):
        ask(f"{kind}:{tmp_path}/nowhere")


def test_what_renews_it_is_done_where_it_is_needed() -> None:
    far = Site(backend="arc", via="login")
    assert credential("kerberos", SITE).renew == "kinit"
    assert credential("kerberos", far).renew == "ssh -t login kinit"
    assert credential("x509:/tmp/proxy", far).renew == "ssh -t login arcproxy -P /tmp/proxy"
    assert credential("x509", SITE).renew == "voms-proxy-init"
    certificate = credential("ssh-certificate:~/.ssh/id-cert.pub", far)
    assert certificate.here
    assert "~/.ssh/id.pub" in certificate.renew and not certificate.renew.startswith("ssh -t")


# --- Kerberos -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["mit-kerberos-1.20.1", "heimdal-7.8"])
def test_the_end_of_a_ticket_is_told_by_klist(engine: str) -> None:
    assert read("kerberos", answer(engine, "ticket")) == Lifetime(35784.0, 36000.0)
    assert read("kerberos", answer(engine, "service-ticket-too")) == Lifetime(1200.0, 1200.0)
    assert read("kerberos", answer(engine, "expired")).left_s <= 0
    with pytest.raises(CommandRefused, match="^klist: No"):
        read("kerberos", answer(engine, "absent"))


def test_a_cache_without_a_ticket_for_tickets_is_no_ticket() -> None:
    told = answer("mit-kerberos-1.20.1", "ticket")
    with pytest.raises(CommandRefused, match="no ticket-granting ticket"):
        read("kerberos", CommandOutput(0, told.stdout.replace("krbtgt/", "host/")))


def test_only_an_answer_without_tickets_says_that_there_is_none(tmp_path: Path) -> None:
    """Where klist is not installed, nobody knows."""
    for tool in ("sh", "date"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or "")
    with pytest.raises(UnclearAnswer, match="klist"):
        ask("kerberos", PATH=str(tmp_path))


# --- X.509 ----------------------------------------------------------------------------------------------------------------------------


def test_openssl_tells_the_end_of_a_proxy(tmp_path: Path) -> None:
    requirements.require("openssl")
    proxy = tmp_path / "a proxy.pem"
    proxy.write_text(make_certificate(-HOUR, HOUR))
    told = ask(f"x509:{proxy}")
    assert told.left_s == pytest.approx(HOUR, abs=60)
    assert told.whole_s == pytest.approx(2 * HOUR)
    assert ask("x509", X509_USER_PROXY=str(proxy)).whole_s == told.whole_s
    assert ask("x509:~/a proxy.pem", HOME=str(tmp_path)).whole_s == told.whole_s
    proxy.write_text(make_certificate(-2 * HOUR, -HOUR))
    assert ask(f"x509:{proxy}").left_s == pytest.approx(-HOUR, abs=60)
    proxy.write_text("nonsense")
    with pytest.raises(UnclearAnswer):
        ask(f"x509:{proxy}")


@pytest.mark.parametrize(("tool", "words"), [("voms-proxy-info", "-file F -timeleft"), ("grid-proxy-info", "-file F -timeleft")])
def test_without_openssl_the_tools_of_the_grid_are_asked(tool: str, words: str, tmp_path: Path) -> None:
    for name in ("sh", "date", "id"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    proxy = tmp_path / "proxy"
    proxy.touch()
    script = tmp_path / tool
    script.write_text(f'#!/bin/sh\ntest "$*" = "{words.replace("F", str(proxy))}" && echo 3599\n')
    script.chmod(0o755)
    assert ask(f"x509:{proxy}", PATH=str(tmp_path)) == Lifetime(3599.0)


# --- ssh certificates -----------------------------------------------------------------------------------------------------------------


def sign(folder: Path, *validity: str) -> Path:
    for key in ("ca", "id"):
        if not (folder / key).exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    subprocess.run(["ssh-keygen", "-q", "-s", folder / "ca", "-I", "ada", *validity, folder / "id.pub"], check=True)
    return folder / "id-cert.pub"


def test_ssh_keygen_tells_the_end_of_a_certificate(tmp_path: Path) -> None:
    for zone in ("UTC", "America/New_York"):
        told = ask(f"ssh-certificate:{sign(tmp_path, '-V', '-1h:+1h')}", TZ=zone)
        assert told.left_s == pytest.approx(HOUR, abs=60)
        assert told.whole_s == pytest.approx(2 * HOUR, abs=1)
    assert ask(f"ssh-certificate:{sign(tmp_path, '-V', '-2h:-1h')}").left_s == pytest.approx(-HOUR, abs=60)
    assert ask(f"ssh-certificate:{sign(tmp_path, '-V', 'always:+1h')}").left_s == pytest.approx(HOUR, abs=60)
    assert ask(f"ssh-certificate:{sign(tmp_path, '-V', '-1h:forever')}").left_s == math.inf
    assert ask(f"ssh-certificate:{sign(tmp_path)}").left_s == math.inf
    with pytest.raises(UnclearAnswer, match="not a certificate"):
        ask(f"ssh-certificate:{tmp_path}/id.pub")


# --- tokens ---------------------------------------------------------------------------------------------------------------------------


def make_token(**claims: object) -> str:
    parts = [json.dumps(part).encode() for part in ({"alg": "ES256"}, claims)]
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "SIGNATURE"])


def test_a_token_tells_its_end_and_its_signature_stays_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "token"
    now = time.time()
    for subject in ("", "a", "aä", "???"):
        file.write_text(make_token(sub=subject, iat=now - HOUR, exp=now + HOUR) + "\n")
        told = ask(f"token:{file}")
        assert told.left_s == pytest.approx(HOUR, abs=60)
        assert told.whole_s == pytest.approx(2 * HOUR)
    argv = credential(f"token:{file}", SITE).exchange.command.argv
    assert b"SIGNATURE" not in subprocess.run(argv, capture_output=True).stdout
    file.write_text(make_token(exp=now - HOUR))
    assert ask("token", BEARER_TOKEN_FILE=str(file)).left_s == pytest.approx(-HOUR, abs=60)


def test_a_token_that_does_not_tell_its_end_has_none(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for content in ("opaque", make_token(sub="ada")):
        file.write_text(content)
        assert ask(f"token:{file}").left_s == math.inf
    for content in ("a.b.c", "a.W10.c", make_token(exp="soon")):
        file.write_text(content)
        with pytest.raises(UnclearAnswer):
            ask(f"token:{file}")
