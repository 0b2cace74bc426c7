"""Makes the commands that ask klist, openssl and other tools how long a credential is valid.

Each answer begins with the time on the machine that was asked, because the clocks of two machines can differ. The functions that read
answers raise CommandRefused if the credential does not exist. They raise UnclearAnswer if the answer does not show how long the credential
is valid.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from pilotfish.backends.interface import Command, CommandExchange, CommandOutput, CommandRefused, UnclearAnswer
from pilotfish.model.site import Site

ABSENT = 3
"""Exit status of the scripts of this module if there is no credential, or its file cannot be read."""


@dataclass(frozen=True)
class Lifetime:
    """How long a credential is valid. ``left_s``: seconds until it expires, or infinity. ``whole_s``: total seconds; 0 if unknown."""

    left_s: float
    whole_s: float = 0.0


@dataclass(frozen=True)
class Credential:
    """One credential of a site. ``renew``: command that renews the credential. ``here``: True if the credential is used on this machine,
    False if it is used at the site."""

    name: str
    renew: str
    exchange: CommandExchange[Lifetime]
    here: bool = False


def credential(text: str, site: Site) -> Credential:
    """Parses an entry of ``credentials`` in ``sites.toml``. An entry is a kind such as ``token``, or ``KIND:FILE`` if the file is not the
    default file of this kind."""
    kind, _, path = text.partition(":")
    name, script, read = _KINDS[kind]
    # An ssh certificate is used by the ssh client, which runs on this machine.
    here, renew = kind == "ssh-certificate", _renew(kind, path, site.backend)
    command = Command(("sh", "-c", script, "sh", path))
    renew = f"ssh -t {site.via} {renew}" if site.via and not here else renew
    return Credential(f"{name} {path}".strip(), renew, CommandExchange(command, lambda answer: read(*_clock_and_output(answer))), here)


# Each script is one line, because a login shell such as csh accepts no command with several lines. $1: the file, or an empty text. Times
# are in UTC.
_HOME = 'f="$1"; case "$f" in "~/"*) f="$HOME/${f#??}";; esac; '
_THERE = f'test -r "$f" || {{ echo "$f cannot be read" >&2; exit {ABSENT}; }}; date +%s; '
_KERBEROS = _HOME + f'date +%s; TZ=UTC0; export TZ; klist ${{f:+-c "$f"}}; s=$?; test $s = 1 && exit {ABSENT}; exit $s'
_X509 = (
    _HOME + 'f="${f:-${X509_USER_PROXY:-/tmp/x509up_u$(id -u)}}"; ' + _THERE + "has() { command -v $1 >/dev/null 2>&1; }; "
    'if has openssl; then exec openssl x509 -in "$f" -noout -dates; fi; '
    'if has voms-proxy-info; then exec voms-proxy-info -file "$f" -timeleft; fi; '
    'if has grid-proxy-info; then exec grid-proxy-info -file "$f" -timeleft; fi; '
    'exec arcproxy -P "$f" -i validityLeft'
)
_SSH = _HOME + _THERE + 'TZ=UTC0; export TZ; exec ssh-keygen -L -f "$f"'
# The script prints only the middle part of the token. Without the signature, which is the last part, nobody can use it as a credential.
_TOKEN = (
    _HOME
    + 'f="${f:-${BEARER_TOKEN_FILE:-${XDG_RUNTIME_DIR:-/tmp}/bt_u$(id -u)}}"; '
    + _THERE
    + "tr -d '[:space:]' <\"$f\" | cut -s -d. -f2"
)


def _clock_and_output(answer: CommandOutput) -> tuple[float, str]:
    """Returns the time on the machine that was asked, and the output of the tool."""
    if answer.status == ABSENT:
        # Standard output is left out: it possibly contains the time, which is no part of an error message.
        raise CommandRefused(CommandOutput(ABSENT, "", answer.stderr).complaint())
    first, _, output = answer.stdout.partition("\n")
    if answer.status != 0 or not first.strip().isdigit():
        raise UnclearAnswer(CommandOutput(answer.status, output, answer.stderr).complaint())
    return float(first), output


def _until(now: float, start: str | None, end: str, form: str) -> Lifetime:
    ends_at = _seconds(end, form)
    return Lifetime(ends_at - now, ends_at - _seconds(start, form) if start else 0.0)


def _seconds(text: str, form: str) -> float:
    try:
        return datetime.strptime(" ".join(text.split()), form).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise UnclearAnswer(f"this is not a time: {text}") from None


# klist of MIT prints 11/15/26 13:44:26. klist of Heimdal prints Nov 15 13:44:26 2026.
_MIT = (re.compile(r"^(\d\d/\d\d/\d\d \S+) +(\d\d/\d\d/\d\d \S+) +krbtgt/(\S+)@\3$", re.MULTILINE), "%m/%d/%y %H:%M:%S")
_HEIMDAL = (re.compile(r"^([A-Z]\w\w .{16}) +([A-Z]\w\w .{16}) +krbtgt/(\S+)@\3$", re.MULTILINE), "%b %d %H:%M:%S %Y")
_HEIMDAL_EXPIRED = re.compile(r">>>Expired<<< +krbtgt/(\S+)@\1$", re.MULTILINE)


def _read_kerberos(now: float, output: str) -> Lifetime:
    """Returns the lifetime of the ticket-granting ticket, because all other tickets are made from this ticket."""
    found = [_until(now, row[1], row[2], form) for rows, form in (_MIT, _HEIMDAL) for row in rows.finditer(output)]
    found += [Lifetime(0.0) for _ in _HEIMDAL_EXPIRED.finditer(output)]
    if not found:
        raise CommandRefused("klist shows no ticket-granting ticket")
    return max(found, key=lambda lifetime: lifetime.left_s)


_DATES = re.compile(r"notBefore=(.+)\s+notAfter=(.+)")


def _read_x509(now: float, output: str) -> Lifetime:
    dates = _DATES.search(output)
    if dates is not None:
        return _until(now, dates[1], dates[2], "%b %d %H:%M:%S %Y GMT")
    last = output.split()[-1:]
    if not last or re.fullmatch(r"-?\d+", last[0]) is None:
        raise UnclearAnswer(f"its lifetime is not in the output: {output.strip()}")
    return Lifetime(float(last[0]))


_VALID = re.compile(r"^\s*Valid: (forever|after \S+|(?:from (?P<start>\S+) to|before) (?P<end>\S+))$", re.MULTILINE)


def _read_ssh_certificate(now: float, output: str) -> Lifetime:
    valid = _VALID.search(output)
    if valid is None:
        raise UnclearAnswer(f"ssh-keygen prints no validity: {' '.join(output.split())[:200]}")
    return _until(now, valid["start"], valid["end"], "%Y-%m-%dT%H:%M:%S") if valid["end"] else Lifetime(math.inf)


def _read_token(now: float, output: str) -> Lifetime:
    """Returns the lifetime of a token. The lifetime is infinite if the token names no end, or if it contains no dot and so is no JSON Web
    Token. Raises UnclearAnswer if the claims of the token cannot be read."""
    text = output.strip()
    try:
        claims = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) or "{}")
        end = float(claims.get("exp", math.inf))
        return Lifetime(end - now, end - float(claims.get("iat", end)) if math.isfinite(end) else 0.0)
    except (ValueError, TypeError, AttributeError):
        raise UnclearAnswer("its claims cannot be read: it is not a JSON Web Token") from None


def _renew(kind: str, path: str, backend: str) -> str:
    if kind == "kerberos":
        return f"kinit -c {path}" if path else "kinit"
    if kind == "x509":
        tool, flag = ("arcproxy", "-P") if backend == "arc" else ("voms-proxy-init", "-out")
        return f"{tool} {flag} {path}" if path else tool
    if kind == "token":
        return f"htgettoken{f' -o {path}' if path else ''}  (or your own tool for tokens)"
    return f"ssh-keygen -s CA -I NAME -V +12h {path.removesuffix('-cert.pub')}.pub  (or your own tool that signs keys: vault, step)"


_KINDS: dict[str, tuple[str, str, Callable[[float, str], Lifetime]]] = {
    "kerberos": ("Kerberos ticket", _KERBEROS, _read_kerberos),
    "x509": ("X.509 proxy", _X509, _read_x509),
    "ssh-certificate": ("ssh certificate", _SSH, _read_ssh_certificate),
    "token": ("token", _TOKEN, _read_token),
}
