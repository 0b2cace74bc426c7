"""Submits, lists and cancels pilots with condor_submit, condor_q and condor_rm.

A pilot batch is a "cluster" of HTCondor: jobs with a common number. In cluster 12, pilot n is the job ``12.(n-1)``. HTCondor transfers the
files with the job. Directives are lines of a submit description, such as ``requirements = ...``. The account is the accounting group. There
are no queues. A pilot has one node.

HTCondor holds a job if the program could not be started, if a file could not be transferred, or if the job used too much memory. A held job
stays in the queue until it is released or removed. A release does not help, because HTCondor would hold the job again. So the job counts as
ended, with the hold reason. The submit description makes HTCondor remove the job after ``STAY_S`` seconds. Two kinds of held jobs count as
waiting: jobs that a user holds, and jobs that HTCondor holds until their files have arrived.

Completed jobs stay in the queue for ``STAY_S`` seconds, so that condor_q reports how they ended. After that, condor_history reports it.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pilotfish.backends.interface import (
    ENDED,
    QUEUED,
    RUNNING,
    Command,
    CommandExchange,
    CommandOutput,
    CommandRefused,
    JobStatus,
    PilotBatch,
)
from pilotfish.backends.pilot_script import NOTE_START, agent_options, requested
from pilotfish.model.backend_traits import BackendTraits
from pilotfish.model.site import Site

MIB = 1 << 20
STAY_S = 900
"""Seconds that a completed or held job stays in the queue."""
TAG = "PilotfishTag"
ATTRIBUTES = (
    "ClusterId,ProcId,JobStatus,LastJobStatus,LastRejMatchReason,HoldReason,HoldReasonCode,LastHoldReason,RemoveReason,"
    "ExitCode,ExitBySignal,ExitSignal"
)

IDLE, EXECUTING, REMOVED, COMPLETED, HELD, TRANSFERRING_OUTPUT, SUSPENDED = range(1, 8)
_PASSING_HOLDS = (1, 15, 16)
"""Hold reasons of jobs that count as waiting. 1: a user holds the job. 15: the job was submitted on hold. 16: the files of the job have not
arrived yet."""
_TIME_HOLDS = (46, 47)
"""Hold reasons for a job that exceeded its ``allowed_job_duration`` or ``allowed_execute_duration``."""
_AGE = "time() - EnteredCurrentStatus"
_START_DATE = "JobCurrentStartDate"
"""A word in the condition that ends a pilot at its time limit. If HTCondor removes a job because of this condition, it prints the condition
as the reason. So the word shows that the time limit was the reason."""

_LATER = re.compile(r"would exceed|can't find address|failed to connect|connect to local queue manager|too many", re.I)
_UNCERTAIN = re.compile(r"commit|timed out|timeout|communication|connection reset", re.I)
"""Messages that do not show whether HTCondor accepted the job. After such a message, the job is searched by its tag."""
_HARMLESS = re.compile(r"couldn't find/remove all jobs|not found|marked for removal", re.I)


class HtcondorBackend:
    traits = BackendTraits(
        ignores=("nodes", "queue"),
        multiplies=r"(?i)^\s*queue\b(?!\s*=)",
        programs=("condor_submit", "condor_q", "condor_rm"),
        helpers={"condor_history": "how a pilot ended is not known"},
        harmless_word="-version",
        variables=("CONDOR_", "_CONDOR_"),
        cancel="condor_rm",
    )
    arrays = 500

    def submit(self, site: Site, batch: PilotBatch) -> CommandExchange[list[str]]:
        if batch.size.nodes > 1:
            raise CommandRefused("HTCondor gives a pilot one node, not several")
        description = "\n".join([*_description(site, batch), *site.directives, f"queue {batch.count}", ""])
        return CommandExchange(Command(("condor_submit", "-terse", "-"), description), lambda answer: _submitted(answer, batch.count))

    def query(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[dict[str, JobStatus]]]:
        return [CommandExchange(Command(("condor_q", "-json", "-attributes", ATTRIBUTES, *jobs)), lambda answer: _statuses(answer, jobs))]

    def cancel(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[None]]:
        return [CommandExchange(Command(("condor_rm", *jobs)), _cancelled)]

    def find(self, site: Site, tag: str) -> list[CommandExchange[dict[int, str]]]:
        def read(answer: CommandOutput) -> dict[int, str]:
            found: dict[int, str] = {}
            for job in _jobs(answer):  # first the jobs in the queue, and then the jobs of the history from newest to oldest
                found.setdefault(job["ProcId"] + 1, _id(job))
            return found

        options = ("-json", "-attributes", "ClusterId,ProcId", "-constraint", f"{TAG} == {_string(tag)}")
        script = f'condor_q "$@" && condor_history "$@" -limit {self.arrays}'
        return [CommandExchange(Command(("sh", "-c", script, "find", *options)), read)]

    def past(self, site: Site, jobs: Sequence[str]) -> CommandExchange[dict[str, JobStatus]] | None:
        argv = ("condor_history", "-json", "-attributes", ATTRIBUTES, "-limit", str(len(jobs)), *jobs)
        return CommandExchange(Command(argv), lambda answer: _statuses(answer, jobs))


def _description(site: Site, batch: PilotBatch) -> list[str]:
    """Returns the submit description. The number of a pilot is its process number plus 1."""
    size, folder = batch.size, _escape(batch.folder)
    held = f"(JobStatus == {HELD} && !member(HoldReasonCode, {{{', '.join(map(str, _PASSING_HOLDS))}}}) && {_AGE} > {STAY_S})"
    over = f"(JobStatus == {EXECUTING} && time() - {_START_DATE} > {math.ceil(size.walltime_s)})"
    return [
        "universe = vanilla",
        f"batch_name = {_escape(batch.tag)}",
        f"+{TAG} = {_string(batch.tag)}",
        "number = $INT(next)",
        "next = $(Process) + 1",
        *_program(site, batch),
        "should_transfer_files = YES",
        "when_to_transfer_output = ON_EXIT",
        'transfer_output_files = ""',
        f"output = {folder}/$(number).log",
        f"error = {folder}/$(number).log",
        f"log = {folder}/events.log",
        f"leave_in_queue = JobStatus == {COMPLETED} && {_AGE} < {STAY_S}",
        f"periodic_remove = {held}" + (f" || {over}" if size.walltime_s else ""),
        f"request_cpus = {math.ceil(size.cores) or 1}",
        *requested(
            (size.memory, f"request_memory = {math.ceil(size.memory / MIB)}"),
            (size.gpus, f"request_gpus = {math.ceil(size.gpus)}"),
            (site.account, f"accounting_group = {_escape(site.account)}"),
        ),
    ]


def _program(site: Site, batch: PilotBatch) -> list[str]:
    """Returns the lines about the program. The program is ``start.sh``. If the site has set-up lines, the program is a shell that runs them
    and then ``start.sh``."""
    folder = _escape(batch.folder)
    files = [f"{folder}/$(number).json", _escape(batch.bundle)]
    words = [_escape(batch.bundle.rpartition("/")[2]), *map(_escape, agent_options(site, batch))]
    if site.setup:
        start = " ".join(["exec sh start.sh $(number).json", *map(shlex.quote, words)])
        lines = ["executable = /bin/sh", "transfer_executable = False"]
        words = ["-c", _escape('eval "$(printf "%s\\n" "$@")"'), "pilot", *map(_escape, (NOTE_START, *site.setup)), start]
        files.append(f"{folder}/start.sh")
    else:
        lines = [f"executable = {folder}/start.sh"]
        words = ["$(number).json", *words]
    lines += [f"arguments = {_words(words)}", f"transfer_input_files = {', '.join(files)}"]
    return [*lines, f"environment = {_words([f'PILOTFISH_PYTHON={_escape(site.python)}'])}"] if site.python else lines


def _escape(text: str) -> str:
    """Escapes text, so that HTCondor expands no macros in it."""
    return text.replace("$", "$(DOLLAR)")


def _words(words: Sequence[str]) -> str:
    """Quotes words for ``arguments`` and ``environment``. Each word is in single quotes, and the whole text is in double quotes."""
    quoted = ["'" + word.replace("'", "''").replace('"', '""') + "'" for word in words]
    return f'"{" ".join(quoted)}"'


def _string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _id(job: Mapping[str, Any]) -> str:
    return f"{job['ClusterId']}.{job['ProcId']}"


def _submitted(answer: CommandOutput, count: int) -> list[str]:
    message = answer.complaint()
    if answer.status == 0:
        ranges = re.findall(r"^(\d+)\.0 - (\d+)\.(\d+)\s*$", answer.stdout, re.M)
        if len(ranges) != 1 or ranges[0][1:] != (ranges[0][0], str(count - 1)):
            raise answer.unclear(f"condor_submit printed no {count} ids")
        return [f"{ranges[0][0]}.{process}" for process in range(count)]
    if answer.status in (126, 127):
        raise answer.refused()
    if answer.status is None or _UNCERTAIN.search(message) or "ERROR: " not in answer.stderr:
        raise answer.unclear()
    raise answer.refused(message.replace("ERROR: ", ""), later=bool(_LATER.search(message)))


def _jobs(answer: CommandOutput) -> Iterator[Mapping[str, Any]]:
    """Yields the jobs of one or more printed lists. Empty output means that there are no jobs: some commands print no list in this case."""
    text = answer.stdout.strip()
    if answer.status is None or (answer.status != 0 and not text):
        raise answer.unclear()
    while text:
        try:
            jobs, end = json.JSONDecoder().raw_decode(text)
        except ValueError:
            raise answer.unclear("its output is no list of jobs") from None
        text = text[end:].strip()
        yield from (job for job in jobs if isinstance(job, dict) and "ClusterId" in job and "ProcId" in job)


def _statuses(answer: CommandOutput, asked: Sequence[str]) -> dict[str, JobStatus]:
    statuses = {_id(job): _status(job) for job in _jobs(answer)}
    return {job: status for job in asked if (status := statuses.get(job)) is not None}


def _status(job: Mapping[str, Any]) -> JobStatus | None:
    """Returns the status of a job; None if the ``JobStatus`` of HTCondor is unknown."""
    status = job.get("JobStatus")
    if status == IDLE:
        return JobStatus(QUEUED, (job.get("LastRejMatchReason") or "").strip())
    if status in (EXECUTING, TRANSFERRING_OUTPUT, SUSPENDED):
        return JobStatus(RUNNING, "suspended" if status == SUSPENDED else "")
    if status == HELD:
        reason = f"held: {job.get('HoldReason') or 'no reason given'}"
        code = job.get("HoldReasonCode")
        return JobStatus(QUEUED, reason) if code in _PASSING_HOLDS else JobStatus(ENDED, reason, well=False, expired=code in _TIME_HOLDS)
    if status == REMOVED:
        return _removed(job)
    if status == COMPLETED:
        # The exit attributes of other jobs are not used, because they possibly describe an earlier execution.
        if job.get("ExitBySignal"):
            return JobStatus(ENDED, f"killed by signal {job.get('ExitSignal')}", well=False)
        return JobStatus(ENDED, f"exit status {job.get('ExitCode')}", well=job.get("ExitCode") == 0)
    return None


def _removed(job: Mapping[str, Any]) -> JobStatus:
    """Returns the status of a removed job. The reason in the status says why the job was held, or that its walltime was over, or who
    removed the job."""
    reason = job.get("RemoveReason") or "removed"
    if "PeriodicRemove" in reason and job.get("LastJobStatus") == HELD:
        return JobStatus(ENDED, f"held: {job.get('HoldReason') or job.get('LastHoldReason')}", well=False)
    if _START_DATE in reason:
        return JobStatus(ENDED, "it ran longer than its walltime", well=False, expired=True)
    return JobStatus(ENDED, reason, well=False)


def _cancelled(answer: CommandOutput) -> None:
    """Raises UnclearAnswer if a cancellation failed. It is no failure if jobs are unknown or have ended."""
    lines = answer.lines()
    if answer.status != 0 and not (answer.status == 1 and lines and all(map(_HARMLESS.search, lines))):
        raise answer.unclear()
