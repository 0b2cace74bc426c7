"""Submits one test pilot and waits for its worker. At the end, the pilot is always withdrawn."""

from __future__ import annotations

import asyncio
import os
import os.path
import re
import shlex
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pilotfish import plugins
from pilotfish.backends.interface import QUEUED, Backend, CommandRefused, JobStatus, UnclearAnswer
from pilotfish.cli.site_commands.site_dry_run import runner_of
from pilotfish.cli.terminal.check_results import BAD, DOUBTFUL, GOOD, CheckResult
from pilotfish.cli.terminal.interruptible_wait import InterruptibleWait
from pilotfish.cli.terminal.screen import duration, plural
from pilotfish.client.session import PoolSession, connect
from pilotfish.core.explain.remedies import HELD, LATE_S, for_bad_start, for_cause, for_wait, is_hopeless
from pilotfish.errors import BadInput, PilotfishError
from pilotfish.model.environment import without_secrets
from pilotfish.model.site import EXPIRED, FAILED, REFUSED, SUCCEEDED, Site

POLL_S = 0.2
MAX_POLL_S = 1.0
RELEASE_TIMEOUT_S = 10.0
PERMANENT_AFTER_S = 5.0
"""The test fails when a reason that makes waiting useless has lasted this many seconds."""
QUERY_INTERVAL_S = 3.0
QUERY_TIMEOUT_S = 10.0
ENDING = "ending"
CHECK = "test pilot"
REASON = "it was only a test"


def check_pilot(name: str, site: Site, pool: str, timeout_s: float, waiting: InterruptibleWait) -> CheckResult:
    """Request a pilot, wait for its worker, and withdraw the pilot. If the site already has its maximum number of pilots, request none."""
    try:
        master = connect(pool, start=True)
        master.ask("sites_reread")
        before = _row(master, name)
        there = before.get("waiting", 0) + before.get("active", 0)
        if there >= site.max_pilots:
            text = f"there is no room for one: {name} may have {plural(site.max_pilots, 'pilot')} at a time, and has {there}"
            return CheckResult(CHECK, DOUBTFUL, text, f"pilotfish site set {name} max_pilots={there + 1}")
        if waiting.is_over:
            return CheckResult(CHECK, DOUBTFUL, "was not requested: interrupted", f"Try again: pilotfish doctor {name}")
        (pilot,) = master.ask("pilots_add", site=name, pilots=1)["pilots"]
    except PilotfishError as error:
        return CheckResult(CHECK, BAD, f"could not be requested: {error}", error.hint or "pilotfish doctor")
    test = TestPilot(master, name, site, pool, pilot)
    try:
        try:
            return test.judge(timeout_s, waiting)
        finally:
            waiting.clear()
            test.withdraw()
    except PilotfishError as error:
        return CheckResult(CHECK, BAD, f"{pilot} could not be followed: {error}", error.hint or "pilotfish sites")


@dataclass(slots=True)
class TestPilot:
    """Follows one test pilot. ``description`` is shown to the user. ``queue_status`` is the last known status in the queue."""

    master: PoolSession
    name: str
    site: Site
    pool: str
    pilot: str
    began: float = field(default_factory=time.monotonic)
    look_at: float = field(default_factory=lambda: time.monotonic() + QUERY_INTERVAL_S)
    queue_answer: JobStatus | None = None
    description: str = ""
    queue_status: dict[str, Any] | None = None
    commands: list[str] = field(default_factory=list)
    since: float = 0.0
    """Time of the last change of ``description``."""

    def judge(self, timeout_s: float, waiting: InterruptibleWait) -> CheckResult:
        while True:
            workers = [worker for worker in self.master.ask("workers", all=False) if worker["pilot"] == self.pilot]
            if workers:
                return self._joined(workers)
            row = self._pilot_row()
            if row is None:
                return self._not_listed()
            job, is_late = str(row["job"]), self._elapsed_s > timeout_s
            self._ask_about_pilot(at_once=is_late)
            if waiting.is_over or is_late or (is_hopeless(self._waits_for) and self._unchanged_s > PERMANENT_AFTER_S):
                return self._not_joined(job)
            waiting.show(f"test pilot: {self.description}, {duration(max(1, int(self._elapsed_s)))} of {duration(timeout_s)}")
            time.sleep(min(MAX_POLL_S, POLL_S + self._elapsed_s / 50))

    def withdraw(self) -> None:
        """Withdraw the pilot: cancel it if it is queued, or end it if it is running. Do nothing if the pilot has ended."""
        self.master.ask("pilots_withdraw", pilots=[self.pilot], reason=REASON)

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def _unchanged_s(self) -> float:
        return time.monotonic() - self.since

    @property
    def _runs(self) -> bool:
        return self.queue_status is not None and bool(self.queue_status["runs"])

    @property
    def _waits_for(self) -> str:
        return "" if self.queue_status is None or self._runs else str(self.queue_status["reason"])

    def _pilot_row(self) -> dict[str, Any] | None:
        return next((row for row in self.master.ask("status")["pilots"] if row["pilot"] == self.pilot), None)

    def _ask_about_pilot(self, *, at_once: bool = False) -> None:
        """Ask the master for the status of the pilot. If the master has no status yet, query the queue of the site. This query is repeated
        at intervals only; with ``at_once``, it is done now."""
        try:
            answer = self.master.ask("why", pilot=self.pilot)
        except BadInput:
            return
        reason, job, queue_status = answer["reasons"][0], str(answer["job"]), answer["seen"]
        description, commands = str(reason["text"]).removeprefix("pilot "), list(reason["commands"])
        if job and queue_status is None and reason["code"] == "pending":
            if at_once or time.monotonic() >= self.look_at:
                self.queue_answer = asyncio.run(_query_queue(self.name, self.site, self.pool, job)) or self.queue_answer
                self.look_at = time.monotonic() + QUERY_INTERVAL_S
            if self.queue_answer is not None and self.queue_answer.phase == QUEUED and self.queue_answer.reason:
                waits_for = self.queue_answer.reason
                description, queue_status = f"{description}: {waits_for}", {"runs": False, "reason": waits_for}
                commands = for_wait(self.name, plugins.traits(self.site.backend), job, waits_for)
        if description != self.description:
            self.description, self.since = description, time.monotonic()
        self.commands, self.queue_status = commands, queue_status

    # --- results -------------------------------------------------------------------------------------------------------------------------

    def _joined(self, workers: list[dict[str, Any]]) -> CheckResult:
        took_s = self._elapsed_s
        info = workers[0].get("info") or {}
        where = info.get("hostname") or workers[0]["worker"]
        self.withdraw()
        deadline = time.monotonic() + RELEASE_TIMEOUT_S
        while time.monotonic() < deadline and (self._pilot_row() or {"state": ENDING})["state"] != ENDING:
            time.sleep(POLL_S)  # the batch job leaves the queue a little later
        text = f"{self.pilot} started on {where}{self._other_python(info)}, reached the master after {duration(took_s)}, and was released"
        return CheckResult(CHECK, GOOD, text)

    def _other_python(self, info: dict[str, Any]) -> str:
        """Return a remark if the pilot did not use the configured Python. This is no error, because the configured path can be a script
        that starts a different Python."""
        configured, used = self.site.python, str(info.get("executable", ""))
        if not configured.startswith("/") or not used or os.path.normpath(configured) == os.path.normpath(used):
            return ""
        return f" (with Python {info.get('python', '')} {used}, not {configured})"

    def _not_listed(self) -> CheckResult:
        """Explain why the master no longer lists the pilot: the pilot failed, ended, or was removed from the queue."""
        elapsed = duration(self._elapsed_s)
        try:
            end = self.master.ask("why", pilot=self.pilot)["end"] or {}
        except BadInput:  # the master has already dropped the events of this pilot
            end = {}
        if end.get("kind") == SUCCEEDED:
            return CheckResult(CHECK, GOOD, f"{self.pilot} started, reached the master, and was released after {elapsed}")
        if end.get("kind") not in (FAILED, EXPIRED):
            text = f"{self.pilot} ended after {elapsed} without a worker; a user may have cancelled it"
            return CheckResult(CHECK, DOUBTFUL, text, f"Try again: pilotfish doctor {self.name}")
        cause, message = end["cause"], f"it {end['reason']}" if end["reason"] else f"{self.pilot} failed ({end['cause']})"
        fix = fix_for_other_variables(self.master, self.name, self.site, message) if cause == REFUSED else ""
        changes = self._useful_commands(for_bad_start(self.name, self.site, message), "")
        return CheckResult(CHECK, BAD, message, fix or "; ".join(changes) or for_cause(self.name, cause))

    def _not_joined(self, job: str) -> CheckResult:
        row = _row(self.master, self.name)
        elapsed = duration(self._elapsed_s)
        if row.get("trouble"):
            return self._site_in_trouble(row, job, elapsed)
        text = f"{self.description}; it had no worker after {elapsed}, and it was withdrawn"
        if is_hopeless(self._waits_for) or (self._runs and self._unchanged_s > LATE_S):
            ways = [] if HELD.search(self._waits_for) else self._useful_commands(self.commands, job)
            ways = ways or [f"See how it is submitted: pilotfish site show {self.name} --dry-run"]
            return CheckResult(CHECK, BAD, text, f"{'; '.join(ways)}; then try again: pilotfish doctor {self.name}")
        ways = [f"Wait longer: pilotfish doctor {self.name} --timeout 1h", *self._useful_commands(self.commands, job)]
        return CheckResult(CHECK, DOUBTFUL, text, "; or: ".join(ways))

    def _site_in_trouble(self, row: dict[str, Any], job: str, elapsed: str) -> CheckResult:
        """Return a result that explains why the master cannot use the site, or why the site is held."""
        reason = row.get("reason") or {}
        sent = f"{self.pilot} (job {job}) had no answer" if job else f"{self.pilot} could not be submitted"
        ways = "; ".join(self._useful_commands(reason.get("commands", ()), job)) or f"pilotfish site log {self.name}"
        fix = fix_for_other_variables(self.master, self.name, self.site, row["trouble"]) or ways
        state = DOUBTFUL if reason.get("code") == "batch-limit" else BAD
        return CheckResult(CHECK, state, f"{sent} for {elapsed}: {row['trouble']}; it was withdrawn", fix)

    def _useful_commands(self, commands: Any, job: str) -> list[str]:
        """Return the commands that are useful after this check. A command that repeats this check, or names the withdrawn batch job
        ``job``, is left out."""
        idle = ("pilotfish sites", f"pilotfish doctor {self.name}", f"pilotfish pilots add {self.name} 1")
        return [command for command in commands if command not in idle and not (job and shlex.quote(job) in command.split())]


def _row(master: PoolSession, name: str) -> dict[str, Any]:
    return next((row for row in master.ask("sites") if row["site"] == name), {"site": name, "failures": {}})


async def _query_queue(name: str, site: Site, pool: str, job: str) -> JobStatus | None:
    """Query the queue for a batch job. The connection stays open, because the master uses it, too."""
    runner = runner_of(name, site, pool)
    backend: Backend = plugins.load("backends", site.backend)()
    for exchange in backend.query(site, [job]):
        command = replace(exchange.command, timeout_s=QUERY_TIMEOUT_S)
        with suppress(UnclearAnswer, CommandRefused):
            statuses = exchange.read(await runner.run(command))
            if job in statuses:
                return statuses[job]
    return None


# --- variables of the master: if it was started from another shell, commands that work here may fail there --------------------------------

SHOWN = 3
FOR_SSH = ("SSH_AUTH_SOCK", "KRB5CCNAME")
MISSING = re.compile(r"no such command|not found")
"""Matches error messages that a different PATH can cause."""


def fix_for_other_variables(master: PoolSession, name: str, site: Site, complaint: str) -> str:
    """Compare the environment variables of the master and of this shell. Return a fix if a difference between them possibly explains
    ``complaint``. Otherwise return ""."""
    theirs = _variables_of(master)
    if theirs is None:
        return ""
    ours = without_secrets(os.environ)
    names = [variable for variable in sorted(ours.keys() | theirs.keys()) if ours.get(variable) != theirs.get(variable)]
    # For a remote site, only variables that ssh itself reads can make a difference.
    beginnings = FOR_SSH if site.via or site.hosts else plugins.traits(site.backend).variables
    found = [variable for variable in names if variable.startswith(beginnings) and variable not in site.environment]
    if not found and "PATH" in names and not site.via and MISSING.search(complaint):
        found = ["PATH"]
    if not found:
        return ""
    changes = " ".join(f'"environment.{variable}=${variable}"' for variable in found[:SHOWN] if variable in ours)
    message = f"The master was started with another {', '.join(found[:SHOWN])} than this shell has."
    if not changes or site.via or site.hosts:
        return f"{message} Restart it: pilotfish stop"
    return f"{message} Set it for the site: pilotfish site set {name} {changes}; or restart the master: pilotfish stop"


def _variables_of(master: PoolSession) -> dict[str, str] | None:
    """Return the variables with which the master was started, or None if they cannot be read."""
    with suppress(OSError):
        content = Path(f"/proc/{int(master.ask('status')['pid'])}/environ").read_bytes()
        return dict(os.fsdecode(line).partition("=")[::2] for line in content.split(b"\0") if line)
    return None
