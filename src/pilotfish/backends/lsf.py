"""Submits, lists and cancels pilots with bsub, bjobs and bkill. This module follows the documentation of LSF. It was not tested with a real
LSF.

A batch of several pilots is a job array with elements ``123[4]``. The account is the project (``-P``). For a user group, write ``-G NAME``
in the directives. bjobs also lists jobs that ended in the last hour (CLEAN_PERIOD), so no other command is needed for ended jobs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from pilotfish.backends.interface import ENDED, QUEUED, RUNNING, Command, CommandExchange, CommandOutput, JobStatus, PilotBatch
from pilotfish.backends.pilot_script import pilot_script, requested
from pilotfish.model.backend_traits import BackendTraits
from pilotfish.model.site import PilotSize, Site

MIB = 1 << 20
FIELDS = "jobid jobindex stat exit_code job_name exit_reason pend_reason delimiter='|'"

_PHASES = {
    **dict.fromkeys(("PEND", "PSUSP", "WAIT", "PROV", "FWD_PEND"), QUEUED),
    **dict.fromkeys(("RUN", "USUSP", "SSUSP"), RUNNING),
    **dict.fromkeys(("DONE", "EXIT"), ENDED),
}
"""Maps the states of LSF to phases. UNKWN and ZOMBI are missing: in these states, LSF itself does not know whether the job runs."""
_EXPIRED = re.compile(r"TERM_(RUNLIMIT|DEADLINE|WINDOW)\b")
_ROW = re.compile(r"(\d+)\|(\d+)\|(\w+)\|([^|]*)\|([^|]*)\|([^|]*)\|(.*)")
_NO_JOBS = re.compile(r"is not found|no (matching |unfinished |finished )?job found", re.I)
_HARMLESS = re.compile(r"already finished|no matching job found|is not found|is being terminated", re.I)
_LATER = re.compile(r"threshold|limit|exceed|has been closed|queue .*closed|inactiv|retry|try again|temporar", re.I)
_UNCERTAIN = re.compile(r"library call|sending/receiving|communicat|connection|not respond|timed out|LSF is down", re.I)
"""Messages that do not show whether LSF accepted the job. After such a message, the job is searched by its tag."""
_REFUSED = "Job not submitted"

# Without this variable, a command waits forever if the daemon of LSF is down or the job limit of the user is reached.
_FAIL_FAST = ("env", "LSB_NTRIES=1")
# LSB_MCPU_HOSTS has a host name, its number of slots, the next host name and so on. The script uses only the host names.
_ON_EVERY_NODE = (
    'blaunch -z "$(set -- $LSB_MCPU_HOSTS; while [ $# -gt 0 ]; do echo "$1"; shift 2; done)"'
    ' /usr/bin/env PATH="$PATH" LD_LIBRARY_PATH="$LD_LIBRARY_PATH" PILOTFISH_PYTHON="$PILOTFISH_PYTHON"'
)


class LsfBackend:
    traits = BackendTraits(
        multiplies=r"(^|\s)-J\b.*\[",
        programs=("bsub", "bjobs", "bkill"),
        harmless_word="-V",
        variables=("LSF_",),
        passes_environment=True,
        several_queues=True,
        cancel="bkill",
    )
    arrays = 1000
    """The default of MAX_JOB_ARRAY_SIZE in LSF."""

    def submit(self, site: Site, batch: PilotBatch) -> CommandExchange[list[str]]:
        several = batch.count > 1
        # The name is an argument, because arguments override lines of the script. So a directive cannot rename the job.
        argv = [*_FAIL_FAST, "bsub", "-J", f"{batch.tag}[1-{batch.count}]" if several else batch.tag]
        argv += ["-o", f"{batch.folder.replace('%', '%%')}/{'%I' if several else '1'}.log"]
        lines = [f"#BSUB {line}" for line in (*_requests(site, batch.size), *site.directives)]
        script = pilot_script(site, batch, lines, "$LSB_JOBINDEX" if several else "1", _ON_EVERY_NODE)
        return CommandExchange(Command(tuple(argv), script), lambda answer: _submitted(answer, batch.count))

    def query(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[dict[str, JobStatus]]]:
        argv = (*_FAIL_FAST, "bjobs", "-a", "-noheader", "-o", FIELDS, *jobs)

        def read(answer: CommandOutput) -> dict[str, JobStatus]:
            statuses = {job: _status(*fields) for job, _, *fields in _rows(answer) if job in asked}
            return {job: status for job, status in statuses.items() if status is not None}

        asked = frozenset(jobs)
        return [CommandExchange(Command(argv), read)]

    def cancel(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[None]]:
        return [CommandExchange(Command((*_FAIL_FAST, "bkill", *jobs)), lambda answer: answer.require_cancelled(_HARMLESS))]

    def find(self, site: Site, tag: str) -> list[CommandExchange[dict[int, str]]]:
        # The star matches the elements of an array, named TAG[1] and so on.
        argv = (*_FAIL_FAST, "bjobs", "-a", "-noheader", "-o", FIELDS, "-J", f"{tag}*")

        def read(answer: CommandOutput) -> dict[int, str]:
            named = [job for job, name, *_ in _rows(answer) if re.sub(r"\[.*\]$", "", name) == tag]
            return {int(job.partition("[")[2].rstrip("]") or 1): job for job in named}

        return [CommandExchange(Command(argv), read)]

    def past(self, site: Site, jobs: Sequence[str]) -> CommandExchange[dict[str, JobStatus]] | None:
        return None


def _requests(site: Site, size: PilotSize) -> list[str]:
    cores = math.ceil(size.cores) or 1
    lines = requested(
        (size.memory, f'-R "rusage[mem={math.ceil(size.memory / MIB)}MB]"'),
        (size.gpus, f'-gpu "num={math.ceil(size.gpus)}"'),
        (size.walltime_s, f"-W {math.ceil(size.walltime_s / 60)}"),
        (site.queue, f"-q {site.queue}"),
        (site.account, f"-P {site.account}"),
    )
    return [f"-n {cores * size.nodes}", '-R "span[hosts=1]"' if size.nodes == 1 else f'-R "span[ptile={cores}]"', *lines]


def _submitted(answer: CommandOutput, count: int) -> list[str]:
    message = answer.complaint()
    ids = re.findall(r"^Job <(\d+)> is submitted", answer.stdout, re.M)
    if answer.status is not None and ids:
        return [f"{ids[-1]}[{number}]" for number in range(1, count + 1)] if count > 1 else [ids[-1]]
    if answer.status in (126, 127) or (answer.status and _REFUSED in message and not _UNCERTAIN.search(message)):
        raise answer.refused(later=bool(_LATER.search(message)))
    raise answer.unclear("" if answer.status else "bsub gave no id")


def _rows(answer: CommandOutput) -> Iterator[tuple[str, str, str, str, str]]:
    """Yields five texts for each job: id, name, state, why it ended, and why it waits. If at least one job is printed, ignores errors."""
    if answer.status is None:
        raise answer.unclear()
    rows = [row.groups() for row in map(_ROW.fullmatch, map(str.strip, answer.stdout.splitlines())) if row]
    lines = answer.lines()
    if not rows and not (answer.status == 0 and not lines) and not (lines and all(map(_NO_JOBS.search, lines))):
        raise answer.unclear()
    for job, index, state, status, name, ended, waits in rows:
        end = [text for text in (ended, f"exit status {status}" if status.strip("-0") else "") if text.strip("- ")]
        yield (job if index == "0" else f"{job}[{index}]"), name, state, ", ".join(end), waits.strip(" -;")


def _status(state: str, ended: str, waits: str) -> JobStatus | None:
    """Returns the status of a job; None if its state is not in ``_PHASES``."""
    phase = _PHASES.get(state)
    if phase == QUEUED:
        return JobStatus(QUEUED, waits or ("" if state == "PEND" else state))
    if phase == RUNNING:
        return JobStatus(RUNNING, "" if state == "RUN" else state)
    if phase == ENDED:
        return JobStatus(ENDED, f"{state} ({ended})" if ended else state, well=state == "DONE", expired=bool(_EXPIRED.search(ended)))
    return None
