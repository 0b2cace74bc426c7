"""Submits, lists and cancels pilots with sbatch, squeue, sacct and scancel.

A batch of several pilots is a job array with elements ``123_4``. If a pilot loses its node or is preempted, the settings of the site decide
whether it is requeued. A requeued pilot waits again under the same id, with a better place in the queue than a new pilot. ``--no-requeue``
in the directives forbids requeueing. Site option: ``accounting``. Write ``no`` if the site has no accounting; in this case, sacct is not
asked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from pilotfish.backends.interface import ENDED, QUEUED, RUNNING, Command, CommandExchange, CommandOutput, JobStatus, PilotBatch
from pilotfish.backends.pilot_script import pilot_script, requested
from pilotfish.model.backend_traits import BackendTraits, matches
from pilotfish.model.site import PilotSize, Site

MIB = 1 << 20

_QUEUED_STATES = frozenset(["PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"])
_RUNNING_STATES = frozenset(["RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"])
_ENDED_STATES = frozenset(
    ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "OUT_OF_MEMORY", "LAUNCH_FAILED"]
)
_EXPIRED = {"TIMEOUT", "DEADLINE"}
_STALE = {"COMPLETED", "CANCELLED", "PREEMPTED"}
"""For jobs that ended in these states, Slurm prints an outdated reason: why the job waited before it started."""
_REASONS = {"JobLaunchFailure": "JobLaunchFailure: it could not be started, or was killed by a signal"}
_NO_OUTPUT = 53
"""Number that sacct reports as the signal if Slurm could not open the output file."""

_UNCERTAIN = re.compile(
    r"unable to contact|timed out|zero bytes were|unexpected message|connection (refused|reset)|(send|receive) failure|communication",
    re.IGNORECASE,
)
"""Messages that do not show whether the controller of Slurm accepted the job. After such a message, the job is searched by its tag."""
_LATER = re.compile(
    r"Submit\w*Limit|MaxJobCount|temporarily un|try again|authentication|standby mode|I/O error|inactive or drain|job array specification",
    re.IGNORECASE,
)
_POLICY = "violates accounting/QOS policy"
_HARMLESS = re.compile(r"invalid job id specified|already completing or completed", re.IGNORECASE)
_ELEMENTS = re.compile(r"(\d+)(?:_(?:(\d+)|\[([\d,:-]+)(?:%\d+)?\]))?")


class SlurmBackend:
    traits = BackendTraits(
        {"accounting": matches("yes|no", "yes or no")},
        multiplies=r"(^|\s)(--array\b|-a[\s\d])",
        programs=("sbatch", "squeue", "scancel"),
        helpers={"sacct": "how a pilot ended is known only while squeue lists it"},
        harmless_word="--version",
        variables=("SLURM_",),
        passes_environment=True,
        several_queues=True,
        cancel="scancel",
        release="scontrol release",
    )
    arrays = 1000
    """Highest number of an array element with the default of MaxArraySize in Slurm."""

    def submit(self, site: Site, batch: PilotBatch) -> CommandExchange[list[str]]:
        # The name is an argument, because arguments override lines of the script and the environment. So a directive cannot rename the job.
        folder = batch.folder.replace("%", "%%")
        argv = ["sbatch", "--parsable", f"--job-name={batch.tag}", f"--chdir={batch.folder}", "--open-mode=append"]
        if batch.count > 1:
            argv += [f"--array=1-{batch.count}", f"--output={folder}/%a.log"]
        else:
            argv += [f"--output={folder}/1.log"]
        size = batch.size
        on_every_node = f"srun --nodes={size.nodes} --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0"
        if size.cores:
            # Since Slurm 22.05, srun does not inherit this option from the job.
            on_every_node += f" --cpus-per-task={math.ceil(size.cores)}"
        number = "$SLURM_ARRAY_TASK_ID" if batch.count > 1 else "1"
        script = pilot_script(site, batch, [f"#SBATCH {line}" for line in _requests(site, size)], number, on_every_node)
        return CommandExchange(Command(tuple(argv), script), lambda answer: _submitted(answer, batch.count))

    def query(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[dict[str, JobStatus]]]:
        argv = ("squeue", "--noheader", "--all", "--array", "--states=all", "--format=%i|%T|%r", f"--jobs={_jobs_of(jobs)}")
        asked = frozenset(jobs)
        return [CommandExchange(Command(argv), lambda answer: {job: status for job, status in _listed(answer) if job in asked})]

    def cancel(self, site: Site, jobs: Sequence[str]) -> list[CommandExchange[None]]:
        return [CommandExchange(Command(("scancel", *jobs)), _cancelled)]

    def find(self, site: Site, tag: str) -> list[CommandExchange[dict[int, str]]]:
        argv = ("squeue", "--noheader", "--all", "--array", "--states=all", "--format=%i|%T|%r", f"--name={tag}")
        return [CommandExchange(Command(argv), lambda answer: {int(job.partition("_")[2] or 1): job for job, _ in _listed(answer)})]

    def past(self, site: Site, jobs: Sequence[str]) -> CommandExchange[dict[str, JobStatus]] | None:
        """Asks sacct how the jobs ended. Returns None if the site option ``accounting`` is ``no``. If the option is missing and the site
        has no accounting, sacct prints "Slurm accounting storage is disabled". This output raises UnclearAnswer."""
        if site.options.get("accounting") == "no":
            return None
        argv = ("sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,State,ExitCode", f"--jobs={_jobs_of(jobs)}")
        asked = frozenset(jobs)
        return CommandExchange(Command(argv), lambda answer: {job: status for job, status in _accounted(answer) if job in asked})


def _requests(site: Site, size: PilotSize) -> list[str]:
    """Returns the directives of the script. The directives of the site come last, so they override the generated directives."""
    lines = requested(
        (size.cores, f"--cpus-per-task={math.ceil(size.cores)}"),
        (size.walltime_s, f"--time={math.ceil(size.walltime_s / 60)}"),
        (size.memory, f"--mem={math.ceil(size.memory / MIB)}M"),
        (size.gpus, f"--gres=gpu:{math.ceil(size.gpus)}"),
        (site.queue, f"--partition={site.queue}"),
        (site.account, f"--account={site.account}"),
    )
    return [f"--nodes={size.nodes}", "--ntasks-per-node=1", *lines, *site.directives]


def _submitted(answer: CommandOutput, count: int) -> list[str]:
    if answer.status == 0:
        # The id is "123" or "123;cluster". Some sites print a greeting before the id.
        ids = re.findall(r"^(\d+)(?:;\S+)?\s*$", answer.stdout, re.MULTILINE)
        if not ids:
            raise answer.unclear("sbatch gave no id")
        return [ids[-1]] if count == 1 else [f"{ids[-1]}_{number}" for number in range(1, count + 1)]
    message = answer.complaint()
    missing = answer.status in (126, 127)
    if answer.status is None or _UNCERTAIN.search(answer.stderr) or not (missing or "sbatch: " in answer.stderr):
        raise answer.unclear()
    # Some versions do not name the limit. Probably it is the maximum number of jobs, so a later submission can succeed.
    unnamed = _POLICY in answer.stderr and not re.search(r"\w+Limit\b", answer.stderr)
    raise answer.refused(message.replace("sbatch: error: ", ""), later=bool(_LATER.search(answer.stderr)) or unnamed)


def _listed(answer: CommandOutput) -> Iterator[tuple[str, JobStatus]]:
    if answer.status == 1 and "invalid job id specified" in answer.stderr.lower():
        return  # squeue prints this message if it is asked about a single job that is unknown
    for line in answer.require_success().splitlines():
        fields = line.strip().split("|", 2)
        if len(fields) == 3:
            status = _status(fields[1], fields[2])
            if status is not None:
                yield from ((job, status) for job in _elements(fields[0]))


def _status(state: str, reason: str) -> JobStatus | None:
    """Returns the status of a job; None if its state is unknown."""
    reason = "" if reason in ("None", "(null)", "N/A") else _REASONS.get(reason, reason)
    if state in _QUEUED_STATES:
        return JobStatus(QUEUED, reason or ("" if state == "PENDING" else state))
    if state in _RUNNING_STATES:
        return JobStatus(RUNNING, "" if state == "RUNNING" else state)
    if state in _ENDED_STATES:
        text = f"{state} ({reason})" if reason and state not in _STALE else state
        return JobStatus(ENDED, text, well=state == "COMPLETED", expired=state in _EXPIRED)
    return None


def _accounted(answer: CommandOutput) -> Iterator[tuple[str, JobStatus]]:
    for line in answer.require_success().splitlines():
        fields = line.strip().split("|")
        state = fields[1].split(" ")[0] if len(fields) == 3 else ""
        if state in _ENDED_STATES:
            how = _exit(fields[2])
            text = f"{fields[1]} ({how})" if how else fields[1]
            status = JobStatus(ENDED, text, well=state == "COMPLETED", expired=state in _EXPIRED)
            yield from ((job, status) for job in _elements(fields[0]))


def _exit(code: str) -> str:
    """Describes an exit code of sacct. ``7:0`` is exit status 7. ``0:9`` is signal 9."""
    status, _, signal = code.partition(":")
    if signal not in ("", "0"):
        return "its output could not be written" if signal == str(_NO_OUTPUT) else f"signal {signal}"
    return f"exit status {status}" if status not in ("", "0") else ""


def _cancelled(answer: CommandOutput) -> None:
    complaints = [line for line in answer.stderr.splitlines() if "error" in line and not _HARMLESS.search(line)]
    if answer.status is None or (answer.status != 0 and (complaints or not answer.stderr.strip())):
        raise answer.unclear()


def _jobs_of(jobs: Sequence[str]) -> str:
    """Returns the ids for a query. For array elements, returns the id of the array, so that the command line stays short."""
    return ",".join(dict.fromkeys(job.split("_")[0] for job in jobs))


def _elements(text: str) -> Iterator[str]:
    """Yields the job ids of one entry of squeue: ``7``, ``7_3``, or several elements of an array such as ``7_[1-3,5%2]``."""
    match = _ELEMENTS.fullmatch(text)
    if match is None:
        return
    job, element, several = match.groups()
    if several is None:
        yield f"{job}_{element}" if element else job
        return
    for part in several.split(","):
        first, _, last = part.partition("-")
        last, _, step = last.partition(":")
        if first.isdigit():
            # No batch has more elements. Without this limit, a damaged line with a huge number could take much time.
            highest = min(int(last or first), SlurmBackend.arrays)
            yield from (f"{job}_{number}" for number in range(int(first), highest + 1, max(1, int(step or 1))))
