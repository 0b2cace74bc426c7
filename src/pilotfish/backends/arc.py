"""Submits pilots to a NorduGrid ARC computing element through curl.

Site options:

- ``endpoint``: such as ``https://ce.example.org:443/arex``.
- ``proxy``: file of the proxy certificate. The default is the file that ``X509_USER_PROXY`` names. If this variable is not set, it is
  ``/tmp/x509up_u`` followed by the user id.
- ``capath``: folder of CA certificates; or ``cacert``: file of CA certificates.

Files are uploaded with the job. Only the owner of a job can enter its folder on the computing element. At the end of the job, the computing
element removes all files except the log.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pilotfish.backends.interface import (
    ENDED,
    QUEUED,
    RUNNING,
    Command,
    CommandExchange,
    CommandOutput,
    JobStatus,
    PilotBatch,
    UnclearAnswer,
)
from pilotfish.backends.pilot_script import pilot_script
from pilotfish.backends.shell_template import CANNOT, UNDONE, documents, fill
from pilotfish.model.backend_traits import PATH, BackendTraits, matches
from pilotfish.model.site import Site

Result = TypeVar("Result")

PHASES = {
    QUEUED: "ACCEPTING ACCEPTED PREPARING PREPARED SUBMITTING QUEUING HELD",
    RUNNING: "RUNNING EXITINGLRMS OTHER EXECUTED KILLING FINISHING",
    ENDED: "FINISHED FAILED KILLED WIPED",
}
PHASE = {state: phase for phase, states in PHASES.items() for state in states.split()}
NOTHING_SENT = (5, 6, 7, 35, 51, 58, 60, 77)
"""Exit statuses of curl that mean that there was no connection to the computing element. So nothing was sent."""
LATER = re.compile(r"limit|too many|maximum|busy|exceed|temporar|not allowed to accept", re.IGNORECASE)
EXPIRED = re.compile(r"wall ?(clock )?time|time ?limit|job expired", re.IGNORECASE)

DEFAULT_PROXY = '"${X509_USER_PROXY:-/tmp/x509up_u$(id -u)}"'
DEFAULT_CAPATH = '"${X509_CERT_DIR:-/etc/grid-security/certificates}"'

ASK = """\
proxy=@PROXY@
[ -r "$proxy" ] || { echo "there is no proxy certificate at $proxy" >&2; exit 70; }
ask() {
  curl --silent --show-error --fail --fail-early --max-time 40 --cert "$proxy" @TRUST@ -H 'Accept: application/json' "$@"
}
tell() { ask -H 'Content-Type: application/json' --data-binary "$2" "$jobs?action=$1"; }
jobs=@JOBS@
"""

SUBMIT = """\
umask 077
folder=@FOLDER@
cat >"$folder/pilot.sh" <<'END-OF-PILOT' || exit 70
@PILOT@END-OF-PILOT
made=$(ask -H 'Content-Type: application/rsl' --data-binary @- "$jobs?action=new" <<'END-OF-JOBS'
@DESCRIPTIONS@
END-OF-JOBS
) || exit
number=0
take_back() {
  for id in $ids; do
    one="{\\"job\\":[{\\"id\\":\\"$id\\"}]}"
    tell kill "$one" >/dev/null && tell clean "$one" >/dev/null || exit 72
  done
  echo "$made"
  exit 71
}
ids=$(printf '%s\\n' "$made" | tr '{}' '\\n\\n' | sed -n 's/.*"id" *: *"\\([^"]*\\)".*/\\1/p')
[ "$(echo $ids | wc -w)" -eq @COUNT@ ] || take_back >&2
for id in $ids; do
  number=$((number + 1))
  there=$jobs/$id/session
  ask -T "$folder/start.sh" "$there/start.sh" -T "$folder/$number.json" "$there/1.json" -T "$folder/pilot.sh" "$there/pilot.sh" \\
    -T @BUNDLE@ "$there/agent.pyz" >/dev/null || take_back >&2
done
echo "$made"
"""

QUERY = """\
asked='@IDS@'
tell status "$asked" || exit
echo
tell info "$asked" 2>/dev/null || :
"""

CANCEL = """\
answer=$(tell kill '@IDS@')
status=$?
# The element keeps the files of a killed job, and one of them has the key of the pilot.
set -- @FILES@
for file; do shift; set -- "$@" "$jobs$file"; done
ask --no-fail-early --request DELETE "$@" >/dev/null 2>&1
printf '%s\\n' "$answer"
exit $status
"""

FIND = """\
all=$(ask "$jobs") || exit
[ -z "$all" ] || tell info "$all" || exit
"""


class ArcBackend:
    """Submits each pilot as a job of its own. The name of a job consists of the tag of its batch and the number of its pilot. The job ids
    are the ids of the computing element."""

    traits = BackendTraits(
        {
            "endpoint": matches(r"https?://[^\s/\x00-\x1f\x7f][^\s\x00-\x1f\x7f]*", "an address such as https://ce.example.org:443/arex"),
            **dict.fromkeys(("proxy", "capath", "cacert"), PATH),
        },
        needs=("endpoint",),
        ignores=("nodes",),
        programs=("curl",),
        harmless_word="--version",
        variables=("X509_", "ARC_"),
    )
    arrays = 50

    def submit(self, site: Site, batch: PilotBatch) -> CommandExchange[list[str]]:
        batch_there = replace(batch, folder=".", bundle="agent.pyz")
        script = fill(
            SUBMIT,
            FOLDER=shlex.quote(batch.folder),
            BUNDLE=shlex.quote(batch.bundle),
            COUNT=str(batch.count),
            PILOT=pilot_script(site, batch_there, ("exec 2>&1", "chmod 600 1.json")),
            DESCRIPTIONS="+" + "".join(f"({describe(site, batch, number)})" for number in range(1, batch.count + 1)),
        )

        def read(answer: CommandOutput) -> list[str]:
            if answer.status == UNDONE:
                refusals = [str(job.get("reason")) for job in _jobs(answer.stderr) if job.get("status-code") != "201"]
                reason = refusals[0] if refusals else f"its files could not be sent: {answer.stderr.partition('{')[0].strip()}"
                raise answer.refused(reason, later=not refusals or bool(LATER.search(reason)))
            if answer.status in (CANNOT, *NOTHING_SENT):
                raise answer.refused(later=True)
            if answer.status == 22 and re.search(r"error: 4\d\d", answer.stderr):
                raise answer.refused()
            created = [str(job["id"]) for job in _jobs(answer.require_success()) if job.get("id")]
            if len(created) != batch.count:
                raise answer.unclear(f"{len(created)} of {batch.count} jobs were created")
            return created

        return _exchange(site, script, read, timeout_s=60.0 + 20.0 * batch.count)

    def query(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[dict[str, JobStatus]]]:
        def read(answer: CommandOutput) -> dict[str, JobStatus]:
            states: dict[str, str] = {}
            details: dict[str, Mapping[str, Any]] = {}
            for job in _jobs(answer.require_success()):
                if "state" in job:
                    states[job["id"]] = job["state"]
                elif job.get("info_document"):
                    details[job["id"]] = job["info_document"].get("ComputingActivity") or {}
            return {job: _status(states[job], details.get(job, {})) for job in jobs if states.get(job) in PHASE}

        return [_exchange(site, fill(QUERY, IDS=_list(jobs)), read)]

    def cancel(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[None]]:
        def read(answer: CommandOutput) -> None:
            answers = {job.get("id"): job for job in _jobs(answer.require_success())}
            for job in jobs:
                if answers.get(job, {}).get("status-code") not in ("202", "404"):
                    raise UnclearAnswer(str(answers.get(job, {}).get("reason", answer.complaint())))

        files = " ".join(shlex.quote(f"/{job}/session/1.json") for job in jobs)
        return [_exchange(site, fill(CANCEL, IDS=_list(jobs), FILES=files), read)]

    def find(self, site: Site, tag: str) -> list[CommandExchange[dict[int, str]]]:
        end_mark = f"pilotfish: looked for {tag}"

        def read(answer: CommandOutput) -> dict[int, str]:
            listed, end, _ = answer.require_success().partition(end_mark)
            if not end:
                raise answer.unclear()
            found: dict[int, str] = {}
            for job in _jobs(listed):
                activity = (job.get("info_document") or {}).get("ComputingActivity") or {}
                name, _, number = str(activity.get("Name", "")).rpartition("-")
                if name == tag and number.isdecimal():
                    found[int(number)] = str(job["id"])
            return found

        return [_exchange(site, f"{FIND}echo {shlex.quote(end_mark)}\n", read)]

    def past(self, site: Site, jobs: Sequence[str]) -> None:
        """Returns None, because ``query`` also lists ended jobs as long as the computing element keeps them."""


def describe(site: Site, batch: PilotBatch, number: int) -> str:
    """Describes a job in xRSL. Memory is per core, in megabytes."""
    size = batch.size
    cores = max(1, round(size.cores))
    files = " ".join(f'("{name}" "")' for name in ("start.sh", "1.json", "pilot.sh", "agent.pyz"))
    attributes = [
        '(executable="/bin/sh")(arguments="pilot.sh")(stdout="1.log")(outputfiles=("1.log" ""))',
        f"(jobname={_quoted(f'{batch.tag}-{number}')})(inputfiles={files})(count={cores})(countpernode={cores})",
        f'(walltime="{round(size.walltime_s)} seconds")' if size.walltime_s else "",
        f"(memory={-(-size.memory // cores >> 20)})" if size.memory else "",
        f"(queue={_quoted(site.queue)})" if site.queue else "",
        f"(project={_quoted(site.account)})" if site.account else "",
        *site.directives,
    ]
    return "&" + "".join(attributes)


def _exchange(site: Site, script: str, read: Callable[[CommandOutput], Result], timeout_s: float = 120.0) -> CommandExchange[Result]:
    options = site.options
    trust = f"--cacert {shlex.quote(options['cacert'])}" if "cacert" in options else ""
    if "capath" in options or not trust:
        trust += " --capath " + (shlex.quote(options["capath"]) if "capath" in options else DEFAULT_CAPATH)
    functions = fill(
        ASK,
        PROXY=shlex.quote(options["proxy"]) if "proxy" in options else DEFAULT_PROXY,
        TRUST=trust.strip(),
        JOBS=shlex.quote(options.get("endpoint", "").rstrip("/") + "/rest/1.0/jobs"),
    )
    return CommandExchange(Command(("sh", "-s"), stdin=functions + script, timeout_s=timeout_s), read)


def _status(state: str, activity: Mapping[str, Any]) -> JobStatus:
    error, messages = (_join(activity.get(name)) for name in ("Error", "OtherMessages"))
    phase = PHASE[state]
    if phase == ENDED:
        code = _join(activity.get("ExitCode"))
        reason = error or (f"exit status {code}" if code else "" if state == "FINISHED" else state.lower())
        return JobStatus(ENDED, reason, well=state == "FINISHED" and code in ("", "0"), expired=bool(EXPIRED.search(error)))
    return JobStatus(phase, f"{state.lower()}: {messages}" if messages and phase == QUEUED else state.lower() if phase == QUEUED else "")


def _join(value: object) -> str:
    return "; ".join(dict.fromkeys(map(str, value))) if isinstance(value, list) else str(value or "")


def _list(jobs: Sequence[str]) -> str:
    """Returns a request about jobs as JSON. If a job id contains characters that no id can contain, removes them."""
    return json.dumps({"job": [{"id": re.sub(r"[^\w.-]", "", job)} for job in jobs]})


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _jobs(text: str) -> Iterator[dict[str, Any]]:
    """Yields the job entries of all JSON answers in a text. In an answer, the field ``job`` is a list of entries or one entry. If there are
    no jobs, the field is missing."""
    for document in documents(text):
        entries = document.get("job")
        yield from (entry for entry in (entries if isinstance(entries, list) else [entries]) if isinstance(entry, dict))
