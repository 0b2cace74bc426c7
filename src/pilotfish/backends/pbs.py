"""Submits, lists and cancels pilots with qsub, qstat and qdel of OpenPBS or Torque.

A batch of several pilots is a job array with elements ``12[3].server``. Site option: ``flavour`` (``openpbs`` or ``torque``). The account
becomes ``-A``. For a project, write ``-P NAME`` in the directives. Directives with ``select=``, ``nodes=`` or ``walltime=`` replace the
generated request. The backend reads the text output of qstat, which both systems have. The JSON output of OpenPBS is not used, because it
contains only the first of several jobs.
"""

from __future__ import annotations

import hashlib
import math
import re
import shlex
from collections.abc import Mapping, Sequence

from pilotfish.backends.interface import ENDED, QUEUED, RUNNING, Command, CommandExchange, CommandOutput, JobStatus, PilotBatch
from pilotfish.backends.pilot_script import pilot_script
from pilotfish.model.backend_traits import BackendTraits, matches
from pilotfish.model.site import PilotSize, Site

FLAVOUR, OPENPBS, TORQUE = "flavour", "openpbs", "torque"
NAME_LENGTHS = {OPENPBS: 230, TORQUE: 15}
FINISHED, UNKNOWN = 35, 153
"""Exit statuses of qstat and qdel if one of the jobs is finished or unknown. The command still works for the other jobs."""

_PHASES = {**dict.fromkeys("QHWT", QUEUED), **dict.fromkeys("RSUEB", RUNNING), **dict.fromkeys("FXC", ENDED)}
_STATES = {"H": "held", "W": "waits for the time at which it may start", "S": "suspended", "U": "suspended", "E": "exiting"}
_EXPIRED = {OPENPBS: -29, TORQUE: -11}
"""``Exit_status`` of a job that reached its walltime. In OpenPBS, -11 means that the job was requeued."""
_GUESSED = "Subjob finished"
"""Comment of OpenPBS on an array element without its own record. All other attributes of this element describe the whole array."""

_UNCERTAIN = re.compile(r"timed out|timeout|protocol|end of file|connection reset|communication fail|server shutting down", re.I)
"""Messages that do not show whether the server accepted the job. After such a message, the job is searched by its tag."""
_LATER = re.compile(r"would exceed|cannot connect|connection refused|not enabled|not started|maximum number of jobs|try again|busy", re.I)
_HARMLESS = re.compile(r"has finished|unknown job|invalid state for job - (complete|exiting)", re.I)
_ID = re.compile(r"^(\d+)(\[\])?(\.\S+)?\s*$", re.M)
_ATTRIBUTE = re.compile(r"^    (\w+) = (.*)$", re.M)
_NUMBER = re.compile(r"\[(\d+)\]")

# Commands that pbsdsh starts do not inherit the environment of the script.
_ENVIRONMENT = '/usr/bin/env PATH="$PATH" LD_LIBRARY_PATH="$LD_LIBRARY_PATH" PILOTFISH_PYTHON="$PILOTFISH_PYTHON"'
_FIND = """\
jobs=$(qselect -x -N "$1" 2>/dev/null) || jobs=$(qselect -N "$1") || exit
[ -n "$jobs" ] || exit 0
qstat -x -t -f $jobs 2>/dev/null || exec qstat -t -f $jobs
"""
"""Shell script that prints the jobs with the name ``$1``. The option ``-x`` includes ended jobs, but is an error on servers without job
history. So the script tries each command first with ``-x`` and then without it."""


class PbsBackend:
    traits = BackendTraits(
        {"flavour": matches("(?i)openpbs|torque", "openpbs or torque")},
        multiplies=r"(^|\s)-[Jt][\s\d]",
        programs=("qsub", "qstat", "qdel"),
        helpers={"qselect": "Torque's way is tried instead"},
        harmless_word="--version",
        variables=("PBS_",),
        passes_environment=True,
        several_queues=True,
        cancel="qdel",
        release="qrls",
    )
    arrays = 500

    def submit(self, site: Site, batch: PilotBatch) -> CommandExchange[list[str]]:
        torque = _flavour(site) == TORQUE
        # Without -S, the script would run in the login shell of the user.
        argv = ["qsub", "-N", _name(site, batch.tag), "-S", "/bin/sh", "-j", "oe", "-o", f"{batch.folder}/", *_requests(site, batch.size)]
        if batch.count > 1:
            argv += ["-t" if torque else "-J", f"1-{batch.count}"]
        number = ("${PBS_ARRAYID:-1}" if torque else "${PBS_ARRAY_INDEX:-1}") if batch.count > 1 else "1"
        # PBS would deliver the output only at the end of the job, in a file with a name of its own. So the script redirects its output.
        output = f"exec >>{shlex.quote(batch.folder)}/{number}.log 2>&1"
        # Without -u, pbsdsh of Torque would start the command on every core.
        on_every_node = f"pbsdsh {'-u' if torque else '--'} {_ENVIRONMENT}"
        script = pilot_script(site, batch, [*(f"#PBS {line}" for line in site.directives), output], number, on_every_node)
        return CommandExchange(Command(tuple(argv), script), lambda answer: _submitted(answer, batch.count))

    def query(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[dict[str, JobStatus]]]:
        return [CommandExchange(Command(("qstat", "-f", *jobs)), lambda answer: _statuses(answer, site, jobs))]

    def cancel(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[None]]:
        return [CommandExchange(Command(("qdel", *jobs)), lambda answer: answer.require_cancelled(_HARMLESS))]

    def find(self, site: Site, tag: str) -> list[CommandExchange[dict[int, str]]]:
        name = _name(site, tag)
        # In Torque, the elements of an array have the names NAME-1, NAME-2 and so on. qselect does not find them, so all jobs are listed.
        argv = ("qstat", "-t", "-f") if _flavour(site) == TORQUE else ("sh", "-c", _FIND, "find", name)

        def read(answer: CommandOutput) -> dict[int, str]:
            named = [job for job, known in _jobs(answer).items() if re.fullmatch(re.escape(name) + r"(-\d+)?", known.get("Job_Name", ""))]
            numbers = {job: _NUMBER.search(job) for job in named if "[]" not in job}
            return {int(number[1]) if number else 1: job for job, number in numbers.items()}

        return [CommandExchange(Command(argv), read)]

    def past(self, site: Site, jobs: Sequence[str]) -> CommandExchange[dict[str, JobStatus]] | None:
        if _flavour(site) == TORQUE:
            return None
        return CommandExchange(Command(("qstat", "-x", "-f", *jobs)), lambda answer: _statuses(answer, site, jobs))


def _flavour(site: Site) -> str:
    return TORQUE if site.options.get(FLAVOUR, OPENPBS).lower() == TORQUE else OPENPBS


def _name(site: Site, tag: str) -> str:
    """Returns the job name for a tag. If the tag is too long, the name is the beginning of the tag and a hash of the tag."""
    max_length = NAME_LENGTHS[_flavour(site)]
    if len(tag) <= max_length:
        return tag
    digest = hashlib.sha256(tag.encode()).hexdigest()[:12]
    return f"{tag[: max_length - 13]}-{digest}"


def _requests(site: Site, size: PilotSize) -> list[str]:
    cores, gpus, memory = math.ceil(size.cores), math.ceil(size.gpus), math.ceil(size.memory / 1024)
    words: list[str] = []
    if any(re.search(r"\b(select|nodes)=", line) for line in site.directives):
        pass
    elif _flavour(site) == TORQUE:
        node = [str(size.nodes), *([f"ppn={cores}"] if cores else []), *([f"gpus={gpus}"] if gpus else [])]
        words += ["-l", "nodes=" + ":".join(node), *(["-l", f"mem={memory * size.nodes}kb"] if memory else [])]
    else:
        chunk = [f"{size.nodes}", *([f"ncpus={cores}"] if cores else []), *([f"mem={memory}kb"] if memory else [])]
        words += ["-l", "select=" + ":".join([*chunk, *([f"ngpus={gpus}"] if gpus else [])])]
        words += ["-l", "place=scatter"] if size.nodes > 1 else []
    if size.walltime_s and not any("walltime=" in line for line in site.directives):
        minutes, seconds = divmod(math.ceil(size.walltime_s), 60)
        words += ["-l", f"walltime={minutes // 60:02}:{minutes % 60:02}:{seconds:02}"]
    return [*words, *(["-q", site.queue] if site.queue else []), *(["-A", site.account] if site.account else [])]


def _submitted(answer: CommandOutput, count: int) -> list[str]:
    message = answer.complaint()
    if answer.status == 0:
        ids = _ID.findall(answer.stdout)
        if not ids or bool(ids[-1][1]) != (count > 1):
            raise answer.unclear("qsub gave no id")
        job, _, server = ids[-1]
        return [f"{job}[{number}]{server}" for number in range(1, count + 1)] if count > 1 else [job + server]
    if answer.status is None or _UNCERTAIN.search(message) or not ("qsub: " in answer.stderr or answer.status in (126, 127)):
        raise answer.unclear()
    raise answer.refused(message.partition(" usage: ")[0].replace("qsub: ", ""), later=bool(_LATER.search(message)))


def _jobs(answer: CommandOutput) -> dict[str, dict[str, str]]:
    """Returns the attributes of each printed job by id. If at least one job is printed, ignores errors. An empty answer is clear only if
    qstat succeeded or reports that jobs are finished or unknown; otherwise, raises UnclearAnswer."""
    if answer.status is None:
        raise answer.unclear()
    texts = answer.stdout.replace("\n\t", "").split("\nJob Id: ")
    texts[0] = texts[0].removeprefix("Job Id: ") if texts[0].startswith("Job Id: ") else ""
    jobs = {text.partition("\n")[0].strip(): dict(_ATTRIBUTE.findall(text)) for text in texts if text}
    if not jobs and (answer.status not in (0, FINISHED, UNKNOWN) or answer.stdout.strip()):
        raise answer.unclear()
    return jobs


def _statuses(answer: CommandOutput, site: Site, asked: Sequence[str]) -> dict[str, JobStatus]:
    jobs = _jobs(answer)
    statuses = {job: _status(jobs[job], _EXPIRED[_flavour(site)]) for job in asked if job in jobs}
    return {job: status for job, status in statuses.items() if status is not None}


def _status(job: Mapping[str, str], expired: int) -> JobStatus | None:
    """Returns the status of a job; None if its state is unknown. ``expired``: exit status of a job that reached its time limit."""
    state, comment = job.get("job_state", ""), job.get("comment", "")
    status = job.get("Exit_status", job.get("exit_status"))  # Torque writes the name in lower case
    phase = _PHASES.get(state)
    if phase == QUEUED and status is not None:
        return JobStatus(QUEUED, f"it was put back into the queue: {comment}")
    if phase == QUEUED or (phase == RUNNING and state in _STATES):
        return JobStatus(phase, comment or _STATES.get(state, ""))
    if phase == RUNNING:
        return JobStatus(RUNNING)
    if phase == ENDED and comment == _GUESSED:
        return JobStatus(ENDED, comment)
    if phase == ENDED:
        reason = ", ".join(filter(None, (comment, f"exit status {status}" if status else "never ran")))
        return JobStatus(ENDED, reason, well=status == "0", expired=status == str(expired))
    return None
