"""Explains sites and pilots, and shows sites as rows."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pilotfish.core.explain import remedies
from pilotfish.core.explain.lookup import NamedPilot, NamedSite
from pilotfish.core.explain.reasons import Reason, answer, count, make_reason, show_amount
from pilotfish.core.pilots.pilot_records import Pilot, SiteRecord
from pilotfish.core.pilots.unmet_demand import START_S, cores_of_pilot, is_long_enough, nodes_of_pilot, overhead_s
from pilotfish.core.state import TaskShape, Worker
from pilotfish.model.quantities import enough_seconds, show_bytes, show_seconds
from pilotfish.model.site import BATCH_LIMIT, EXPIRED, FAILED, JOINED, LOCAL, LOGIN_NEEDED, SUCCEEDED, WITHDRAWN, Site, SiteEvent
from pilotfish.model.states import ACTIVE, DRAINING, ENDED, PILOT_STATES
from pilotfish.model.task import CORES, GPUS, MEMORY, NO_DIRECTORY, UNIT

if TYPE_CHECKING:
    from pilotfish.core.machine import Machine

MAX_SHOWN_PILOTS = 3
HOW_ENDED = {SUCCEEDED: "ended normally", EXPIRED: "reached its walltime", WITHDRAWN: "was withdrawn while queued"}
STATES = {"no-site": "leaving", "site-paused": "paused", "held": "held", "site-trouble": "trouble", "batch-limit": "full"}
"""State of a site, by the code of the reason for this state. A site whose reason has any other code is ready."""


def site_reasons(machine: Machine, shape: TaskShape) -> list[Reason]:
    """Returns why no pilot runs tasks of this shape: one reason for each site where the tasks are allowed to run. The site of this machine
    is left out."""
    state = machine.state
    names = shape.run.options.sites or _used(machine)
    if not names and state.local_cores <= 0 and not state.workers:
        names = tuple(name for name, record in state.sites.items() if record.site is not None)
        if not names:
            text = "this machine has no workers for the pool, and no site is configured"
            return [make_reason("no-site", text, "pilotfish site add NAME --backend slurm")]
    return [_site_reason(machine, shape, name, state.sites.get(name)) for name in names if name != LOCAL]


def _used(machine: Machine) -> tuple[str, ...]:
    """Returns the sites that this pool uses, and other sites where it has pilots. Sites that the user removed are left out."""
    state = machine.state
    there = {pilot.site for pilot in state.pilots.values()} - {LOCAL}
    present = {name: record for name, record in state.sites.items() if record.site is not None and not record.leaving}
    return tuple(name for name, record in present.items() if record.wanted is not None or name in there)


def _site_reason(machine: Machine, shape: TaskShape, name: str, record: SiteRecord | None) -> Reason:
    if record is None or record.site is None:
        return make_reason("no-site", f"there is no site {name}", f"pilotfish site add {name} --backend slurm")
    if name in shape.no_directory_sites:
        text = f"site {name} does not have the directory {shape.run.specs[shape.made_from[0]].launch.get('cwd')} of these tasks"
        return make_reason(NO_DIRECTORY, text, "run them again with --sandbox, and --input for their files")
    if shape.python and record.pythons and shape.python not in record.pythons:
        text = f"the calls need Python {shape.python}, and workers of site {name} have Python {' and '.join(record.pythons)}"
        fix = f"pilotfish site set {name} python=python{shape.python}"
        return make_reason("python", text, fix, 'send self-contained functions as source: run.options(form="source")')
    lack = _no_submission_reason(machine, name, record) or _walltime_reason(shape, name, record.site, record.lost_s)
    lack = lack or _missing_resource_reason(machine, shape, name, record.site) or _machine_size_reason(machine, shape, name, record.site)
    if lack is not None:
        return lack
    cores = cores_of_pilot(shape, record.site, machine.state.traits(record.site.backend))
    found = _waiting_pilots_reason(machine, name, record) or _limit_reason(machine, name, record, cores)
    return found or make_reason("starting", f"pilots for site {name} are about to be submitted", "pilotfish sites")


def state_reason(machine: Machine, name: str, record: SiteRecord) -> Reason:
    """Explains the state of a site, without regard to any task."""
    if name == LOCAL and record.held:
        fixes = ("pilotfish doctor", "pilotfish workers --local-cores 2  (tries again)")
        return make_reason("held", f"local workers are held: {record.held}", *fixes)
    found = None
    if record.site is not None:
        found = (
            _no_submission_reason(machine, name, record)
            or _waiting_pilots_reason(machine, name, record)
            or _limit_reason(machine, name, record, record.site.cores or 1)
        )
    pilots = [pilot for pilot in machine.state.pilots.values() if pilot.site == name]
    active = sum(pilot.joined > 0 for pilot in pilots)
    return found or make_reason(
        "ready", f"site {name} is ready: {len(pilots) - active} of its pilots queued, {active} running", "pilotfish sites"
    )


def _no_submission_reason(machine: Machine, name: str, record: SiteRecord) -> Reason | None:
    """Returns the reason why no pilot is submitted to the site; None if pilots are submitted."""
    assert record.site is not None
    if record.leaving:
        text = f"site {name} was removed, and its last pilots are ending"
        return make_reason("no-site", text, f"pilotfish site add {name} --backend {record.site.backend}")
    if record.site.paused:
        text = f"site {name} is paused: it gets no new pilots until a user resumes it"
        return make_reason("site-paused", text, f"pilotfish site resume {name}")
    if record.held:
        commands = (*remedies.for_bad_start(name, record.site, record.held), f"pilotfish site resume {name}")
        return make_reason("held", f"site {name} is held: {record.held}", *commands)
    if record.wanted is None and not any(pilot.site == name for pilot in machine.state.pilots.values()):
        return make_reason("site-unused", f"this pool does not use site {name}", remedies.try_now(name))
    return None


def _missing_resource_reason(machine: Machine, shape: TaskShape, name: str, site: Site) -> Reason | None:
    """Explains why no pilot of the site can run tasks of this shape: according to the configuration of the site, its pilots have too few
    resources or nodes, or lack a tag. Returns None if the configuration meets all needs."""
    needs, traits = dict(shape.needs), machine.state.traits(site.backend)
    limits = ((CORES, site.cores), (MEMORY, site.memory), (GPUS, site.gpus))
    for resource, most in limits:
        amount = needs.get(resource, 0)
        if amount > most * UNIT and (most or resource == GPUS):
            wanted = math.ceil(amount / UNIT)
            has = show_bytes(most) if resource == MEMORY else f"{most:g}"
            text = f"a task asks for {show_amount(resource, amount)}, a pilot of site {name} has {has}"
            return make_reason("too-big", text, f"pilotfish site set {name} {resource}={wanted}")
    if shape.nodes > nodes_of_pilot(shape.nodes, site, traits):
        text = f"a task asks for {shape.nodes} nodes of one pilot; pilots of site {name} ({site.backend}) have {site.nodes}"
        return make_reason("too-few-nodes", text, "pilotfish site add NAME --backend slurm")
    for resource in sorted(needs.keys() - {CORES, MEMORY, GPUS}):
        text = f"a task asks for {needs[resource] / UNIT:g} {resource}, which pilots of site {name} do not have"
        return make_reason("too-big", text, "ask for less (--resource)")
    cores = cores_of_pilot(shape, site, traits)
    if site.max_cores and cores > site.max_cores:
        text = f"a pilot for such a task has {cores} cores, and site {name} may have {site.max_cores} in all"
        return make_reason("too-big", text, f"pilotfish site set {name} max_cores={cores}")
    if missing := [(key, value) for key, value in shape.tags if site.tags.get(key) != value]:
        tags = ", ".join(f"{key}={value}" for key, value in shape.tags)
        changes = " ".join(shlex.quote(f"tags.{key}={value}") for key, value in missing)
        return make_reason("tags", f"workers of site {name} do not have the tags {tags}", f"pilotfish site set {name} {changes}")
    return None


def too_few_nodes(machine: Machine, shape: TaskShape, fitting: list[Worker]) -> Reason | None:
    """Explains that no pilot has enough workers for a multi-node task; None if a pilot has enough. All workers of the task must belong to
    one pilot. Workers that a site master serves do not count."""
    if shape.nodes == 1:
        return None
    served = {name for term in machine.site_masters.by_site.values() for name in term.served}
    together = Counter(worker.pilot for worker in fitting if worker.pilot and worker.id not in served)
    most = max(together.values(), default=0)
    if most >= shape.nodes:
        return None
    text = f"it asks for {shape.nodes} nodes of one pilot, but no present pilot has {f'more than {most}' if most else 'a node'}"
    return make_reason("too-few-nodes", text, "ask for less (--nodes)", "pilotfish site add NAME --backend slurm")


def _machine_size_reason(machine: Machine, shape: TaskShape, name: str, site: Site) -> Reason | None:
    """Explains that all machines of a site are too small for a task. The function knows this only if pilots of the site take whole machines
    and agents on all machines have joined. Returns None if a machine is large enough, or if not all sizes are known."""
    workers = [worker for worker in machine.state.workers.values() if worker.site == name and worker.state < DRAINING]
    if not site.takes_whole_machines or len(workers) < min(site.max_pilots, len(site.hosts) or 1):
        return None
    for resource, amount in shape.needs:
        largest = max(worker.capacity.get(resource, 0) for worker in workers)
        if largest < amount and resource in (CORES, MEMORY):
            text = (
                f"a task asks for {show_amount(resource, amount)}, the largest machine of site {name} has {show_amount(resource, largest)}"
            )
            return make_reason("too-big", text, f"pilotfish site set {name} {resource}={math.ceil(amount / UNIT)}")
    return None


def _walltime_reason(shape: TaskShape, name: str, site: Site, lost_s: float) -> Reason | None:
    """Explains that the site's walltime is too short for tasks of this shape: their time limit is longer, or one of them was cut off
    earlier. Returns None if the walltime is long enough."""
    if is_long_enough(shape, site, lost_s):
        return None
    pilots = f"pilots of site {name} end after {show_seconds(site.walltime_s)}"
    if shape.least_s > shape.time_s:
        text = f"a task that was cut off by the end of its pilot needs more than {show_seconds(shape.least_s)}, and {pilots}"
        return make_reason("walltime", text, f"pilotfish site set {name} walltime={enough_seconds(2 * shape.least_s)}")
    enough = enough_seconds(shape.time_s + overhead_s(lost_s) + START_S)
    text = f"a task may take {show_seconds(shape.time_s)}, and {pilots}"
    if shape.time_s <= site.walltime_s:
        text += f", of which starting and ending take up to {show_seconds(overhead_s(lost_s))}"
    return make_reason("walltime", text, f"pilotfish site set {name} walltime={enough}", "ask for less with --time")


def never_long_enough(machine: Machine, shape: TaskShape) -> Reason | None:
    """Explains that tasks of this shape never start, because the walltime of every site is too short for them. Returns None if a present
    worker is suitable, or if a site cannot run the tasks for a different reason."""
    reasons = site_reasons(machine, shape)
    if any(worker.suits(shape, machine.now) for worker in machine.state.workers.values()):
        return None
    return reasons[0] if reasons and all(reason.code == "walltime" for reason in reasons) else None


def _waiting_pilots_reason(machine: Machine, name: str, record: SiteRecord) -> Reason | None:
    """Returns what the pilots of the site wait for; None if the site has no problem and no pilot waits."""
    assert record.site is not None
    missing = unusable_credentials(machine, name)
    if missing:
        text = f"pilots for site {name} wait: {'; '.join(row['text'] for row in missing)}"
        return make_reason("site-trouble", text, *(row["renew"] for row in missing))
    found = machine.site_problems.get(name)
    if found is not None and found.code == BATCH_LIMIT:
        text = f"site {name} takes no more pilots now and will be asked again automatically; it reported: {found.trouble}"
        return make_reason("batch-limit", text, *remedies.for_limit(name, machine.state.traits(record.site.backend), found.trouble))
    if found is not None:
        login = [f"pilotfish site login {name}"] if found.code == LOGIN_NEEDED else []
        return make_reason("site-trouble", f"site {name} does not answer: {found.trouble}", *login, f"pilotfish doctor {name}")
    coming = [pilot for pilot in machine.state.pilots_at(name) if not pilot.joined]
    if coming:
        shown = "; ".join(_pending(machine, pilot) for pilot in coming[:MAX_SHOWN_PILOTS])
        text = f"{count(len(coming), 'pilot')} {'waits' if len(coming) == 1 else 'wait'} at site {name}: {shown}"
        return make_reason("pending", text, *_fixes_for(machine, name, record.site, coming))
    return None


def _limit_reason(machine: Machine, name: str, record: SiteRecord, more: float) -> Reason | None:
    """Explains why one more pilot with ``more`` cores is not requested at the site now. The reason is a limit of the site or of the pool
    or, if no limit forbids the pilot, the failure of the last pilot. Returns None if there is no such limit or failure."""
    assert record.site is not None
    site, pilots = record.site, machine.state.pilots_at(name)
    if len(pilots) >= site.max_pilots:
        text = f"site {name} has {len(pilots)} pilots, its maximum"
        return make_reason("site-limit", text, f"pilotfish site set {name} max_pilots={2 * len(pilots)}")
    used = sum(pilot.cores for pilot in pilots)
    if site.max_cores and used + more > site.max_cores:
        text = f"pilots of site {name} have {used:g} cores, and {site.max_cores} is its maximum"
        return make_reason("site-limit", text, f"pilotfish site set {name} max_cores={math.ceil(used + more)}")
    there = sum(1 for pilot in machine.state.pilots.values() if pilot.site != LOCAL and pilot.state <= ACTIVE)
    if 0 < machine.settings.pilots <= there:
        text = f"the pool has {there} pilots at all sites together, its maximum: pilots = {machine.settings.pilots} in config.toml"
        return make_reason("site-limit", text, remedies.try_now(name))
    if not site.max_queued:
        return make_reason("site-limit", f"no pilot may wait at site {name}", f"pilotfish site set {name} max_queued=1")
    if record.wanted is not None and 0 <= record.wanted <= len(pilots):
        text = f"site {name} has {len(pilots)} pilots, as many as this pool is set to keep there"
        return make_reason("site-limit", text, remedies.try_now(name))
    if record.bad_starts:
        text = f"the last pilot at site {name} {record.last_bad}; another one is submitted soon"
        return make_reason("bootstrap", text, *remedies.for_bad_start(name, record.site, record.last_bad), f"pilotfish site resume {name}")
    last = record.history[-1] if record.history else None
    if last is not None and last.kind == FAILED:
        text = f"the last pilot at site {name} failed ({last.cause or 'unknown cause'}); another one is submitted after a while"
        return make_reason("back-off", text, f"pilotfish doctor {name}", f"pilotfish site resume {name}")
    return None


def _fixes_for(machine: Machine, name: str, site: Site, coming: list[Pilot]) -> list[str]:
    """Returns fixes for the first pilot in ``coming`` that has a problem. ``coming``: pilots that have not joined. A pilot has a problem if
    the site names a reason why it waits, or if it has run for some time and its agent has not joined. If no pilot has a problem, the fix is
    ``pilotfish sites``."""
    for pilot in coming:
        status = machine.pilot_status.get(pilot.id)
        if status is not None and status.runs and machine.now - status.since > remedies.LATE_S:
            return remedies.for_silence(name, site)
        if status is not None and status.reason and not status.runs:
            return remedies.for_wait(name, machine.state.traits(site.backend), pilot.job, status.reason)
    return ["pilotfish sites"]


def pilot_reason(machine: Machine, pilot: Pilot) -> Reason:
    """Returns what a pilot does or waits for."""
    record = machine.state.sites.get(pilot.site)
    if pilot.state > ACTIVE:
        return make_reason("ending", f"pilot {pilot.id} is ending", "pilotfish sites")
    if pilot.joined or record is None or record.site is None:
        return make_reason("active", f"pilot {pilot.id} is running: {len(pilot.workers)} of its agents are connected", "pilotfish workers")
    return make_reason("pending", f"pilot {_pending(machine, pilot)}", *_fixes_for(machine, pilot.site, record.site, [pilot]))


def ended_pilot_reason(machine: Machine, name: str, events: Sequence[SiteEvent]) -> Reason:
    """Returns how a pilot ended, from its events."""
    end, joined = end_of(events), any(event.kind == JOINED for event in events)
    if end is None:
        return make_reason("ended", f"pilot {name} ended; how is not known", "pilotfish sites")
    if end.kind in HOW_ENDED and (joined or end.kind != EXPIRED):
        return make_reason("ended", f"pilot {name} {HOW_ENDED[end.kind]}", "pilotfish sites")
    if joined:
        return make_reason(
            "ended", f"pilot {name} failed after its agent had joined: {end.reason or end.cause}", f"pilotfish why {end.site}"
        )
    site = machine.state.sites[end.site].site
    commands = remedies.for_bad_start(end.site, site, end.reason) if site is not None else ["pilotfish doctor"]
    return make_reason("ended", f"pilot {name} {end.reason or f'failed ({end.cause})'}", *commands)


def end_of(events: Sequence[SiteEvent]) -> SiteEvent | None:
    return next((event for event in reversed(events) if event.kind == FAILED or event.kind in HOW_ENDED), None)


def _pending(machine: Machine, pilot: Pilot) -> str:
    status = machine.pilot_status.get(pilot.id)
    if not pilot.job:
        return f"{pilot.id} is being submitted"
    if status is None:
        return f"{pilot.id} (job {pilot.job})"
    if status.runs:
        return f"{pilot.id} (job {pilot.job}) runs, and its agent has not joined yet"
    return f"{pilot.id} (job {pilot.job}): {status.reason or 'no reason given'}"


# --- credentials -----------------------------------------------------------------------------------------------------------


def describe_credential(name: str, left_s: float, problem: str) -> str:
    """Describes the state of one credential."""
    if left_s == math.inf:
        return f"it is unknown how long its {name} is valid: {problem}" if problem else f"its {name} has no end"
    if left_s == -math.inf:
        return f"its {name} is missing ({problem})"
    if left_s <= 0:
        return f"its {name} ended {show_seconds(math.ceil(-left_s))} ago" if left_s < -1 else f"its {name} has ended"
    return f"its {name} ends in {show_seconds(math.ceil(left_s))}"


def credential_rows(machine: Machine, site: str) -> list[dict[str, Any]]:
    """Returns the credentials of a site as rows. ``left_s`` is the number of seconds until the credential expires. The value is 0 if the
    credential is missing or expired, and None if the credential never expires or its time of expiry is unknown."""
    at, known = machine.credentials.get(site, (0.0, ()))
    rows = []
    for one in known:
        left_s = one.left_s - (machine.now - at)
        rows.append(
            {
                "name": one.name,
                "left_s": None if left_s == math.inf else max(0.0, left_s),
                "usable": left_s > 0,
                "warn": left_s < one.warn_s or bool(one.problem),
                "text": describe_credential(one.name, left_s, one.problem),
                "renew": one.renew,
            }
        )
    return rows


def unusable_credentials(machine: Machine, site: str) -> list[dict[str, Any]]:
    """Returns rows of the missing or expired credentials of this site. Pilots of the site wait for these credentials."""
    return [row for row in credential_rows(machine, site) if not row["usable"]]


# --- rows and answers ------------------------------------------------------------------------------------------------------


def sites(machine: Machine, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    standings = machine.provisioner.standings(machine.state, machine.now)
    return [
        {**site_row(machine, name, record), **standings.get(name, {})}
        for name, record in machine.state.sites.items()
        if record.site is not None or name == LOCAL
    ]


def site_row(machine: Machine, name: str, record: SiteRecord) -> dict[str, Any]:
    """Returns a site with its pilots, workers and recent history."""
    pilots = [pilot for pilot in machine.state.pilots.values() if pilot.site == name]
    waits = sorted(event.seconds for event in record.history if event.kind == JOINED)
    missing = unusable_credentials(machine, name)
    reason = state_reason(machine, name, record)
    return {
        "site": name,
        "backend": record.site.backend if record.site is not None else LOCAL,
        "via": record.site.via if record.site is not None else "",
        "state": STATES.get(reason.code, "ready"),
        "reason": reason.row(),
        "used": record.wanted is not None or name == LOCAL,
        "wanted": record.wanted,
        "held": record.held,
        "trouble": "; ".join(row["text"] for row in missing) or _trouble(machine, name),
        "credentials": credential_rows(machine, name),
        "waiting": sum(not pilot.joined for pilot in pilots),
        "active": sum(pilot.joined > 0 for pilot in pilots),
        "workers": sum(worker.site == name for worker in machine.state.workers.values()),
        "queue_wait_median_s": waits[len(waits) // 2] if waits else None,
        "queue_wait_90_s": waits[len(waits) * 9 // 10] if waits else None,
        "failures": _failures(record),
        "last_bad": record.last_bad,
    }


def _trouble(machine: Machine, name: str) -> str:
    """Returns why the site does not answer or accepts no pilots; empty if there is no problem."""
    found = machine.site_problems.get(name)
    if found is None:
        return ""
    return f"it accepts no more pilots now: {found.trouble}" if found.code == BATCH_LIMIT else found.trouble


def _failures(record: SiteRecord) -> dict[str, int]:
    """Returns how many recent pilots of the site failed, by cause."""
    return dict(Counter(event.cause or "failed" for event in record.history if event.kind == FAILED))


def explain_pilot(machine: Machine, named: NamedPilot) -> dict[str, Any]:
    """Explains a pilot. In the answer, ``seen`` is the last report of the site about a present pilot; None if there is no report or the
    pilot has ended. ``end`` says how an ended pilot ended; None if the pilot is present, or if its end is no longer in the history of the
    site."""
    if named.events:
        reasons, end = [ended_pilot_reason(machine, named.name, named.events)], end_of(named.events)
        state, job, status = ENDED, "", None
    else:
        pilot, status, end = machine.state.pilots[named.name], machine.pilot_status.get(named.name), None
        reasons = [pilot_reason(machine, pilot), make_reason("asked", f"it was requested because: {pilot.reason}")]
        state, job = pilot.state, pilot.job
    return {
        **answer(f"pilot {named.name}", PILOT_STATES[state], reasons, reasons[0].text),
        "job": job,
        "seen": None if status is None else {"runs": status.runs, "reason": status.reason},
        "end": None if end is None else {"kind": end.kind, "cause": end.cause or end.kind, "reason": end.reason},
    }


def explain_site(machine: Machine, site: NamedSite) -> dict[str, Any]:
    reason = state_reason(machine, site.name, site.record)
    fix = f"pilotfish doctor {site.name}".removesuffix(" local")
    failures = [
        make_reason("failures", f"{number} of its pilots failed recently: {cause}", fix) for cause, number in _failures(site.record).items()
    ]
    return answer(f"site {site.name}", STATES.get(reason.code, "ready"), [reason, *failures], reason.text)
