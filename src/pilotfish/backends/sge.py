"""Submits, lists and cancels pilots with qsub, qstat, qacct and qdel of Grid Engine.

A batch of several pilots is a job array with tasks ``123.4``. Some names differ between sites, so there are these site options:

- ``pe``: parallel environment for several cores on one machine. Default: smp.
- ``memory_resource``: default: h_vmem. With "none", no memory is requested.
- ``gpu_resource``: default: gpu.
- ``account_flag``: -P for a project (the default), or -A for an account.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from xml.etree import ElementTree

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
    UnclearAnswer,
)
from pilotfish.backends.pilot_script import pilot_script, requested
from pilotfish.model.backend_traits import ONE_WORD, BackendTraits, matches
from pilotfish.model.site import PilotSize, Site

MIB = 1 << 20

_LIST = 'qstat -xml -g d -r -u "$(id -un)"'
_LIST_WITH_REASONS = _LIST + ' || exit; qstat -j "$1" 2>/dev/null; exit 0'
"""Shell script that prints the list of jobs, and after it the output of ``qstat -j``: why jobs wait or are in error. Errors of ``qstat -j``
about ended jobs are ignored."""
_ACCOUNTING = 'for job; do qacct -j "$job"; done'
_QACCT_TIMEOUT_S = 180.0
"""Seconds after which qacct is killed. It is slow, because it reads the whole accounting file once per job."""

_UNCERTAIN = re.compile(r"commlib error|unable to (send|contact|connect)|got (send|read|select) error|timeout", re.IGNORECASE)
"""Messages that do not show whether the qmaster accepted the job. After such a message, the job is searched by its tag."""
_LIMIT_REACHED = 25
_OWN_MESSAGE = re.compile(r"Unable to run job|Unable to read script|qsub: ")
_HARMLESS = re.compile(r"does not exist|already in deletion|has (registered|deleted)|unable to delete .*not found", re.IGNORECASE)
_NO_REASON = re.compile(r"^\(|no messages available|turned off|in error state", re.IGNORECASE)
_NOT_FOUND = re.compile(r"error: job (id|name) \S+ not found")
_RESCHEDULED = 25
_OUT_OF_TIME = 37
_AFTER_SIGNAL = 100


class SgeBackend:
    traits = BackendTraits(
        {**dict.fromkeys(("pe", "memory_resource", "gpu_resource"), ONE_WORD), "account_flag": matches("-[AP]", "-P or -A")},
        ignores=("nodes",),
        multiplies=r"(^|\s)-t[\s\d]",
        programs=("qsub", "qstat", "qdel"),
        helpers={"qacct": "how a pilot ended is not known"},
        harmless_word="-help",
        variables=("SGE_",),
        passes_environment=True,
        several_queues=True,
        cancel="qdel",
        release="qrls",
    )
    arrays = 1000

    def submit(self, site: Site, batch: PilotBatch) -> CommandExchange[list[str]]:
        if batch.size.nodes > 1:
            raise CommandRefused("a pilot on Grid Engine has one node; set nodes = 1 for this site")
        # With -notify, an agent gets SIGUSR2 before SIGKILL, and SIGUSR1 before SIGSTOP. The queue defines the time between the signals.
        argv = ["qsub", "-terse", "-notify", "-N", batch.tag, "-wd", batch.folder, "-S", "/bin/sh", "-j", "y", "-o"]
        argv += [f"{batch.folder}/$TASK_ID.log", "-t", f"1-{batch.count}"] if batch.count > 1 else [f"{batch.folder}/1.log"]
        number = "$SGE_TASK_ID" if batch.count > 1 else "1"
        script = pilot_script(site, batch, [f"#$ {line}" for line in _requests(site, batch.size)], number)
        return CommandExchange(Command(tuple(argv), script), lambda answer: _submitted(answer, batch.count))

    def query(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[dict[str, JobStatus]]]:
        argv = ("sh", "-c", _LIST_WITH_REASONS, "sh", ",".join(dict.fromkeys(job.split(".")[0] for job in jobs)))
        asked = frozenset(jobs)
        return [CommandExchange(Command(argv), lambda answer: {job: status for job, status, _ in _listed(answer) if job in asked})]

    def cancel(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[None]]:
        return [CommandExchange(Command(("qdel", *jobs)), _cancelled)]

    def find(self, site: Site, tag: str) -> list[CommandExchange[dict[int, str]]]:
        argv = ("sh", "-c", _LIST)
        return [CommandExchange(Command(argv), lambda answer: {_number(job): job for job, _, name in _listed(answer) if name == tag})]

    def past(self, site: Site, jobs: Sequence[str]) -> CommandExchange[dict[str, JobStatus]] | None:
        """Asks qacct how the jobs ended. qacct lists a job only some seconds after its end. qacct never lists a job that was cancelled
        while it waited."""
        command = Command(("sh", "-c", _ACCOUNTING, "sh", *dict.fromkeys(job.split(".")[0] for job in jobs)), timeout_s=_QACCT_TIMEOUT_S)
        asked = frozenset(jobs)
        return CommandExchange(command, lambda answer: {job: status for job, status in _accounted(answer) if job in asked})


def _requests(site: Site, size: PilotSize) -> list[str]:
    """Returns the directives of the script. The directives of the site come last, so they override the generated directives."""
    slots = max(1, math.ceil(size.cores))
    memory = site.options.get("memory_resource", "h_vmem")
    lines = requested(
        (slots > 1, f"-pe {site.options.get('pe', 'smp')} {slots}"),
        (size.walltime_s, f"-l h_rt={math.ceil(size.walltime_s)}"),
        # These resources are counted per slot.
        (size.memory and memory != "none", f"-l {memory}={math.ceil(size.memory / slots / MIB)}M"),
        (size.gpus, f"-l {site.options.get('gpu_resource', 'gpu')}={math.ceil(size.gpus)}"),
        (site.queue, f"-q {site.queue}"),
        (site.account, f"{site.options.get('account_flag', '-P')} {site.account}"),
    )
    return [*lines, *site.directives]


def _submitted(answer: CommandOutput, count: int) -> list[str]:
    if answer.status == 0:
        # The id is "5" or "5.1-3:1". Warnings can come before the id.
        ids = re.findall(r"^(\d+)(?:\.\d+-\d+:\d+)?\s*$", answer.stdout, re.MULTILINE)
        if not ids:
            raise answer.unclear("qsub gave no id")
        return [ids[-1]] if count == 1 else [f"{ids[-1]}.{number}" for number in range(1, count + 1)]
    message = answer.complaint()
    missing = answer.status in (126, 127)
    if answer.status is None or _UNCERTAIN.search(answer.stderr) or not (missing or _OWN_MESSAGE.search(answer.stderr)):
        raise answer.unclear()
    raise answer.refused(message.removeprefix("Unable to run job: ").removesuffix(" Exiting."), later=answer.status == _LIMIT_REACHED)


def _listed(answer: CommandOutput) -> Iterator[tuple[str, JobStatus, str]]:
    """Yields id, status and name of each job."""
    table, end, rest = answer.require_success().rpartition("</job_info>")
    try:
        root = ElementTree.fromstring((table + end).strip())
    except ElementTree.ParseError as error:
        raise UnclearAnswer(f"the output of qstat is not XML ({error})") from error
    reasons = dict(_reasons(rest))
    for job in root.iter("job_list"):
        number, letters, tasks = job.findtext("JB_job_number", ""), job.findtext("state", ""), job.findtext("tasks", "")
        for name in _tasks(number, tasks):
            status = _status(name, letters, job.get("state") == "running", reasons)
            yield name, status, job.findtext("full_job_name", job.findtext("JB_name", ""))


def _status(job: str, letters: str, running: bool, reasons: dict[str, str]) -> JobStatus:
    """Returns the status of a job. ``letters``: the state of the job in qstat. It consists of these letters: qw (waiting), h (held), t
    (starting), r (running), R (restarted), s, S, T (suspended), E (error)."""
    if running:
        return JobStatus(RUNNING, "" if letters in ("r", "Rr") else letters)
    number = job.partition(".")[0]
    reason = reasons.get(job) or reasons.get(number, "")
    if "E" in letters:
        # The job stays in the state E until a user clears this state or deletes the job.
        return JobStatus(QUEUED, f"{letters}: {reason or f'in error; for the reason: qstat -j {number}'}")
    return JobStatus(QUEUED, reason or ("held" if "h" in letters else ""))


def _reasons(text: str) -> Iterator[tuple[str, str]]:
    """Yields (id, reason) pairs. The reason says why the job waits, or which error it has. For an error in an array, the id is the id of
    the array task."""
    number, array = "", False
    wrong: set[str] = set()
    for line in text.splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name == "job_number":
            number, array = value, False
        elif name == "job-array tasks":
            array = True
        elif name == "scheduling info" and number not in wrong and not _NO_REASON.search(value):
            yield number, value
        elif name.startswith("error reason"):
            # The last word of ``name`` is the number of the array task. ``value`` begins with date, time and process id.
            wrong.add(number)
            yield f"{number}.{name.split()[-1]}" if array else number, re.sub(r"^[\d/]+ [\d:]+ \[\S+\]: ", "", value)


def _tasks(number: str, tasks: str) -> Iterator[str]:
    """Yields the ids of the array tasks in ``tasks``, such as ``4``, ``1-3:1`` or ``2,4``. If the job is no array, yields the job id."""
    if not tasks:
        yield number
        return
    for part in tasks.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part.strip())
        if match is not None:
            yield from (f"{number}.{task}" for task in range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1)))


def _accounted(answer: CommandOutput) -> Iterator[tuple[str, JobStatus]]:
    records = re.split(r"^=+$", answer.stdout, flags=re.MULTILINE)[1:]
    complaints = [line for line in answer.stderr.splitlines() if line.strip()]
    unknown = bool(complaints) and all(_NOT_FOUND.match(line) for line in complaints)
    if answer.status is None or (not records and answer.status != 0 and not unknown):
        raise answer.unclear()
    for record in records:
        fields = {words[0]: words[1].strip() for line in record.splitlines() if len(words := line.split(None, 1)) == 2}
        failed = int("0" + fields.get("failed", "").split(" ")[0])
        if "jobnumber" in fields and "exit_status" in fields and failed != _RESCHEDULED:
            job, task = fields["jobnumber"], fields.get("taskid", "undefined")
            yield job if task == "undefined" else f"{job}.{task}", _end(fields["failed"], failed, fields["exit_status"])


def _end(failure: str, failed: int, status: str) -> JobStatus:
    how = f"exit status {' '.join(status.split())}"
    if failed not in (0, _AFTER_SIGNAL):
        how = f"failed {' '.join(failure.split())}"
    return JobStatus(ENDED, how, well=failed == 0 and status == "0", expired=failed == _OUT_OF_TIME)


def _cancelled(answer: CommandOutput) -> None:
    """Raises UnclearAnswer if a cancellation failed. qdel prints its errors to standard output, so both streams are read."""
    lines = answer.lines()
    errors = [line for line in lines if not _HARMLESS.search(line)]
    if answer.status is None or (answer.status != 0 and (errors or not lines)):
        raise UnclearAnswer(errors[0] if errors and answer.status is not None else answer.complaint())


def _number(job: str) -> int:
    return int(job.partition(".")[2] or 1)
