"""Sites in the machine: what is written down, what their pilots and workers do to each other, and what is counted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pilotfish.core.pilots.factory_interface import OUTRUN, RELIEVED, PilotProposal, WithdrawalProposal
from pilotfish.core.policy_interface import AssignmentProposal, HoldProposal, PolicyView, Provisioner
from pilotfish.core.state import State, Task
from pilotfish.factories.on_demand import DemandFactory
from pilotfish.factories.provisioner import PoolProvisioner
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.site import (
    BATCH_LIMIT,
    BOOTSTRAP,
    CANCELLED,
    DIED,
    EXPIRED,
    FAILED,
    JOINED,
    LOGIN_NEEDED,
    REFUSED,
    SUBMITTED,
    SUCCEEDED,
    VANISHED,
    WITHDRAWN,
    PilotSize,
    Site,
)
from pilotfish.model.states import ACTIVE, ASSIGNED, DRAINING, ENDING, READY
from pilotfish.model.task import TaskSpec
from pilotfish.store.state_storage import settle
from tests.support.machine_stage import Stage
from tests.support.state_check import check, fingerprint
from tests.unit.core.test_state_snapshot import round_trip

POND = Site(backend="slurm", cores=2, walltime_s=3600.0)
REEF = Site(backend="sge", cores=4)


class Told:
    """A strategy that proposes what a test tells it."""

    def __init__(self) -> None:
        self.proposals: list[PilotProposal | WithdrawalProposal | HoldProposal] = []

    def propose(self, state: State, now: float) -> list[PilotProposal | WithdrawalProposal | HoldProposal]:
        proposals, self.proposals = self.proposals, []
        return proposals

    def next_look_at(self, state: State, now: float) -> float | None:
        return None

    def standings(self, state: State, now: float) -> dict[str, dict[str, object]]:
        return {}


def stage_with(provisioner: Provisioner | None = None, **sites: Site) -> Stage:
    """Sites that the pool uses; without a strategy, pilots come only when a test asks for them."""
    stage = Stage(provisioner=provisioner or Told())
    stage.tell(i.SitesRead(sites))
    for name in sites:
        stage.ask("site_use", site=name)
    return stage


def propose(stage: Stage, proposal: PilotProposal | WithdrawalProposal | HoldProposal) -> list[e.Effect]:
    assert isinstance(stage.provisioner, Told)
    stage.provisioner.proposals.append(proposal)
    stage.machine.decide_again = True
    return stage.tell()


def withdraw(stage: Stage, pilot: str) -> None:
    assert cancelled(propose(stage, WithdrawalProposal(pilot, "not needed", "unneeded"))) == [pilot]


def add(stage: Stage, site: str = "pond", size: PilotSize | None = None, replica_of: str = "") -> str:
    """A pilot that was asked for, and that its site took."""
    propose(stage, PilotProposal(site, size or PilotSize(2.0), "a test wants it", replica_of))
    pilot = list(stage.machine.state.pilots)[-1]
    stage.tell(i.PilotAccepted(pilot, f"job of {pilot}", 0.5), after_s=1)
    return pilot


def events(stage: Stage, site: str = "pond") -> list[tuple[str, str]]:
    return [(event.kind, event.cause) for event in stage.machine.state.sites[site].history]


def cancelled(effects: list[e.Effect]) -> list[str]:
    return [effect.pilot for effect in effects if isinstance(effect, e.CancelPilot)]


def requested(stage: Stage, site: str = "pond") -> list[str]:
    return [pilot.id for pilot in stage.machine.state.pilots.values() if pilot.site == site]


# --- what is written down ---------------------------------------------------------------------------------------------------------------


def test_what_is_known_of_sites_survives_a_restart_and_a_snapshot() -> None:
    full = Site(backend="slurm", cores=2, tags={"fast": "yes"}, options={"a": "b"}, setup=("module load x",), environment={"C": "d"})
    stage = stage_with(pond=full, reef=REEF)
    stage.ask("site_use", site="reef", pilots=3)
    first = add(stage)
    add(stage, "reef", PilotSize(4.0, 2, 60.0, 1 << 30, 1.0), replica_of=first)
    stage.join("w", pilot=first, cores=2.0)
    stage.tell(i.PilotEndReported(add(stage), False, "no python", cause=BOOTSTRAP))
    stage.tell(i.SitesRead({"pond": full}))
    propose(stage, HoldProposal("pond", "its pilots fail"))
    again = round_trip(stage.machine.state)
    check(again)
    assert fingerprint(again) == fingerprint(stage.machine.state)
    assert again.sites["pond"].site == full and again.sites["pond"].held == "its pilots fail" and again.sites["pond"].wanted == -1
    assert again.sites["reef"].site == msgspec.structs.replace(REEF, paused=True), "until the last of its pilots is gone"
    assert again.sites["reef"].wanted == 3
    assert list(again.sites["pond"].history) == list(stage.machine.state.sites["pond"].history)
    assert again.pilots == stage.machine.state.pilots


def test_after_a_restart_sites_are_described_and_their_pilots_adopted() -> None:
    stage = stage_with(pond=POND)
    pilot = add(stage)
    withdrawn = add(stage)
    withdraw(stage, withdrawn)
    stage.restart()
    kinds = [type(effect) for effect in stage.effects if isinstance(effect, e.DescribeSite | e.AdoptPilot | e.CancelPilot)]
    assert kinds == [e.DescribeSite, e.AdoptPilot, e.AdoptPilot, e.CancelPilot]
    assert e.AdoptPilot(pilot, "pond", PilotSize(2.0), f"job of {pilot}") in stage.effects
    assert cancelled(stage.effects) == [withdrawn]


def test_sites_that_did_not_change_are_not_told_again() -> None:
    stage = stage_with(pond=POND)
    stage.tell(i.SitesRead({"pond": POND}))
    assert not stage.effects
    stage.tell(i.SitesRead({"pond": POND, "reef": REEF}))
    assert stage.effects == [e.DescribeSite("reef", REEF)]
    stage.tell(i.SitesRead({"reef": REEF}))
    assert stage.effects == [e.DescribeSite("pond", None)]


@pytest.mark.parametrize("pilots", ["3", 2.5, True, -2, 10_001, "many", [1]])
def test_a_number_of_pilots_that_is_none_is_refused_and_not_written_down(pilots: Any) -> None:
    stage = stage_with(pond=POND)
    before = fingerprint(stage.machine.state)
    for command in ("site_use", "pilots_add"):
        assert isinstance(stage.ask(command, site="pond", pilots=pilots), m.Problem)
    assert fingerprint(stage.machine.state) == before


def test_what_is_asked_of_an_unknown_site_is_refused_with_a_way_out() -> None:
    stage = Stage()
    for command in ("site_use", "site_release", "pilots_add"):
        problem = stage.ask(command, site="pond")
        assert isinstance(problem, m.Problem) and "pond" in problem.message and "site add pond" in problem.hint


def test_pilots_that_are_added_by_hand_have_the_size_that_their_site_describes() -> None:
    desk = Site(backend="ssh", hosts=("desk",))
    stage = stage_with(pond=Site(backend="slurm", cores=8, nodes=2, memory=1 << 30, gpus=1, walltime_s=60.0), desk=desk)
    stage.ask("pilots_add", site="pond", pilots=2)
    stage.ask("pilots_add", site="desk")
    sizes = [pilot.size for pilot in stage.machine.state.pilots.values()]
    assert sizes[:2] == [PilotSize(8.0, 2, 60.0, 1 << 30, 1.0)] * 2
    assert sizes[2].cores == 0.0, "all that the machine has"


# --- pilots and workers -----------------------------------------------------------------------------------------------------------------


def test_a_pilot_of_several_nodes_ends_with_the_last_of_its_workers() -> None:
    stage = stage_with(pond=POND)
    pilot = add(stage, size=PilotSize(2.0, 3))
    for node in ("a", "b", "c"):
        stage.join(node, pilot=pilot, cores=2.0)
    stage.lose("a")
    assert not cancelled(stage.effects)
    stage.tell(i.AgentMessage(2, m.Leave("its time is over")))
    assert not cancelled(stage.effects) and stage.machine.state.pilots[pilot].state == ACTIVE
    stage.lose("c")
    assert cancelled(stage.effects) == [pilot] and stage.machine.state.pilots[pilot].state == ENDING


def test_when_a_pilot_ends_all_its_workers_do() -> None:
    stage = stage_with(pond=POND)
    pilot = add(stage, size=PilotSize(2.0, 2))
    for node in ("a", "b"):
        stage.join(node, pilot=pilot, cores=2.0)
    tasks = stage.work(count=4)
    assert all(task.state == ASSIGNED for task in tasks)
    stage.tell(i.PilotEndReported(pilot, False, "NODE_FAIL", cause=DIED))
    assert not stage.machine.state.workers and all(task.state == READY for task in tasks)
    assert pilot not in stage.machine.state.pilots and events(stage)[-1] == (FAILED, DIED)


@pytest.mark.parametrize("first", ["original", "replica", "second replica"])
def test_of_pilots_that_stand_in_for_each_other_the_first_to_join_has_the_others_cancelled(first: str) -> None:
    stage = stage_with(pond=POND, reef=REEF)
    pilots = {"original": add(stage)}
    pilots["replica"] = add(stage, "reef", replica_of=pilots["original"])
    pilots["second replica"] = add(stage, "reef", replica_of=pilots["original"])
    other = add(stage, "reef")
    stage.join("w", pilot=pilots[first], cores=2.0)
    losers = [pilot for name, pilot in pilots.items() if name != first]
    assert cancelled(stage.effects) == losers and stage.machine.state.pilots[other].state != ENDING
    stage.tell(i.AgentMessage(99, m.Hello("late", losers[0], {"cores": 2.0}, {}, {}, None, 0.0, [])))
    assert stage.sent(m.Retire), "who comes too late goes home"
    for pilot in losers:
        stage.tell(i.PilotEndReported(pilot, True, "cancelled", cause=CANCELLED))
    causes = {event.pilot: event.cause for site in ("pond", "reef") for event in stage.machine.state.sites[site].history if event.cause}
    order = list(pilots.values())
    assert causes == {pilot: OUTRUN if order.index(pilot) < order.index(pilots[first]) else RELIEVED for pilot in losers}


def test_a_site_that_forgets_a_job_does_not_end_who_beats() -> None:
    stage = stage_with(pond=POND)
    pilot, absent = add(stage), add(stage)
    link = stage.join("w", pilot=pilot, cores=2.0)
    (task,) = stage.work()
    for name in (pilot, absent):
        stage.tell(i.PilotEndReported(name, False, "pond no longer knows its job", witnessed=False, cause=VANISHED))
    assert list(stage.machine.state.pilots) == [pilot] and task.state == ASSIGNED
    stage.finish(link, task)
    stage.lose("w")
    assert cancelled(stage.effects) == [pilot]
    stage.tell(i.PilotEndReported(pilot, False, "pond no longer knows its job", witnessed=False, cause=VANISHED))
    assert not stage.machine.state.pilots


def test_news_of_pilots_that_nobody_knows_change_nothing() -> None:
    stage = stage_with(pond=POND)
    before = fingerprint(stage.machine.state)
    stage.tell(i.PilotAccepted("pond-9", "1"), i.PilotSeen("pond-9", True, ""), i.PilotEndReported("pond-9", False, "?"))
    assert fingerprint(stage.machine.state) == before and not stage.machine.pilot_status


def test_a_removed_site_sends_its_pilots_home() -> None:
    stage = stage_with(pond=POND)
    waiting, working = add(stage), add(stage)
    link = stage.join("w", pilot=working, cores=2.0)
    stage.tell(i.SitesRead({}))
    assert cancelled(stage.effects) == [waiting] and stage.sent(m.Drain, link)
    assert stage.machine.state.sites["pond"].site is not None, "somebody has to know how to cancel them"
    for pilot in (waiting, working):
        stage.tell(i.PilotEndReported(pilot, True, "cancelled"))
    assert e.ReadSites() in stage.effects
    stage.tell(i.SitesRead({}))
    assert stage.machine.state.sites["pond"].site is None


# --- bad starts -------------------------------------------------------------------------------------------------------------------------


def fail_to_start(stage: Stage, times: int) -> None:
    for _ in range(times):
        stage.wait(4000, quietly=False)
        for pilot in requested(stage):
            stage.tell(i.PilotEndReported(pilot, False, "ended before its agent joined: no python", cause=BOOTSTRAP))


def test_a_site_whose_pilots_do_not_start_is_held_after_three_and_can_be_released() -> None:
    stage = stage_with(PoolProvisioner(DemandFactory()), pond=Site(backend="slurm", cores=2, max_pilots=1))
    (task,) = stage.work()
    fail_to_start(stage, 2)
    assert not stage.machine.state.sites["pond"].held
    fail_to_start(stage, 1)
    stage.wait(5000)
    assert "no python" in stage.machine.state.sites["pond"].held and requested(stage) == []
    assert stage.machine.state.next_pilot == 4, "not one more pilot than the three that failed"
    stage.ask("site_release", site="pond")
    stage.wait(4000)
    assert not stage.machine.state.sites["pond"].held and len(requested(stage)) == 1
    stage.join("w", pilot=requested(stage)[0], cores=2.0)
    assert task.state == ASSIGNED and stage.machine.state.sites["pond"].bad_starts == 0


def test_one_that_joins_in_between_starts_the_count_anew() -> None:
    stage = stage_with(PoolProvisioner(DemandFactory()), pond=Site(backend="slurm", cores=2, max_pilots=1))
    stage.work(TaskSpec("python", tags={}), count=1)
    fail_to_start(stage, 2)
    stage.wait(4000)
    stage.join("w", pilot=requested(stage)[0], cores=2.0)
    assert stage.machine.state.sites["pond"].bad_starts == 0


def test_a_pilot_that_was_withdrawn_is_no_bad_start() -> None:
    stage = stage_with(pond=POND)
    pilot = add(stage)
    withdraw(stage, pilot)
    stage.tell(i.PilotEndReported(pilot, False, "was refused: too late", cause=REFUSED))
    assert stage.machine.state.sites["pond"].bad_starts == 0 and events(stage)[-1] == (WITHDRAWN, "unneeded")


def test_a_pilot_whose_workers_were_lost_in_a_damaged_journal_can_be_withdrawn() -> None:
    stage = stage_with(pond=POND)
    pilot = add(stage)
    stage.join("w", pilot=pilot, cores=2.0)
    for state in (stage.machine.state, stage.shadow):
        settle(state, stage.now)
    withdraw(stage, pilot)


# --- runs that are bound to sites -------------------------------------------------------------------------------------------------------


def test_a_run_that_is_bound_to_sites_runs_only_there() -> None:
    stage = stage_with(pond=POND, reef=REEF)
    bound = stage.work(count=2, sites=("pond",))
    stage.join("stray", cores=4.0)
    stage.join("r", pilot=add(stage, "reef"), cores=4.0)
    assert all(task.state == READY for task in bound)
    free = stage.work(count=8)
    assert all(task.state == ASSIGNED for task in free)
    stage.join("p", pilot=add(stage), cores=2.0)
    assert {task.worker.id for task in bound if task.worker} == {"p"} and all(task.state == ASSIGNED for task in bound)


class Lawless:
    """A policy that gives everything to anybody."""

    def propose(self, view: PolicyView) -> list[AssignmentProposal]:
        return [AssignmentProposal(worker, list(shape.queue)[:1]) for worker in view.workers for shape in list(view.state.ready)[:1]]

    def next_look_at(self, view: PolicyView) -> float | None:
        return None

    def why(self, task: Task) -> str:
        return ""

    def describe(self) -> str:
        return ""


def test_the_machine_does_not_believe_a_policy_that_sends_a_run_elsewhere() -> None:
    stage = Stage(policy=Lawless(), provisioner=Told())
    stage.tell(i.SitesRead({"pond": POND}))
    (task,) = stage.work(sites=("pond",))
    stage.join("stray", cores=4.0)
    assert task.state == READY and stage.machine.refused_proposals
    stage.join("p", pilot=add(stage), cores=2.0)
    assert task.worker is not None and task.worker.id == "p"


def test_the_machine_does_not_believe_a_factory_that_ignores_what_a_site_allows() -> None:
    told = Told()
    stage = Stage(provisioner=told)
    sites = {"paused": Site(backend="slurm", paused=True), "small": Site(backend="slurm", max_pilots=1), "bad": POND}
    stage.tell(i.SitesRead(sites))
    told.proposals = [HoldProposal("bad", "its pilots keep failing")]
    stage.work()
    size = PilotSize(cores=1.0)
    told.proposals = [PilotProposal(name, size, "more") for name in (*sites, "small")]
    told.proposals += [PilotProposal("small", PilotSize(cores=-1.0), "less"), "nonsense"]  # type: ignore[list-item]
    stage.work()
    assert [pilot.site for pilot in stage.machine.state.pilots.values()] == ["small"]
    assert stage.machine.refused_proposals == 5


# --- what is counted --------------------------------------------------------------------------------------------------------------------


def test_all_that_happens_to_pilots_is_counted() -> None:
    stage = stage_with(pond=POND)
    at = stage.now
    well, expired, died, refused, unstarted, withdrawn = (add(stage) for _ in range(6))
    stage.now = at + 100
    for pilot in (well, expired, died):
        stage.join(f"worker of {pilot}", pilot=pilot, cores=2.0)
    waits = [event.seconds for event in stage.machine.state.sites["pond"].history if event.kind == JOINED]
    asked_at = [stage.machine.state.pilots[pilot].requested_at for pilot in (well, expired, died)]
    assert waits == pytest.approx([100 - (asked - at) for asked in asked_at], abs=0.1)
    stage.tell(i.PilotEndReported(well, True, "COMPLETED"))
    stage.tell(i.PilotEndReported(expired, True, "its time was over", cause=EXPIRED))
    stage.tell(i.PilotEndReported(died, False, "NODE_FAIL", cause=DIED))
    stage.tell(i.PilotEndReported(refused, False, "was refused: no such queue", cause=REFUSED))
    stage.tell(i.PilotEndReported(unstarted, False, "no python", cause=BOOTSTRAP), after_s=2.0)
    withdraw(stage, withdrawn)
    stage.tell(i.PilotEndReported(withdrawn, True, "cancelled", cause=CANCELLED))
    record = stage.machine.state.sites["pond"]
    assert events(stage) == [
        *[(SUBMITTED, "")] * 6,
        *[(JOINED, "")] * 3,
        (SUCCEEDED, ""),
        (EXPIRED, ""),
        (FAILED, DIED),
        (FAILED, REFUSED),
        (FAILED, BOOTSTRAP),
        (WITHDRAWN, "unneeded"),
    ]
    assert record.events == len(record.history) and {event.seconds for event in list(record.history)[:6]} == {0.5}
    assert record.bad_starts == 2


def test_a_second_word_that_a_pilot_was_accepted_counts_nothing() -> None:
    stage = stage_with(pond=POND)
    pilot = add(stage)
    stage.tell(i.PilotAccepted(pilot, f"job of {pilot}"), i.PilotAccepted(pilot, "another"))
    assert events(stage) == [(SUBMITTED, "")] and stage.machine.state.pilots[pilot].job == "another"


def test_the_rows_of_sites_tell_how_long_pilots_wait_and_why_they_fail() -> None:
    stage = stage_with(pond=POND)
    for wait in range(1, 11):
        pilot = add(stage)
        stage.now = stage.machine.state.pilots[pilot].requested_at + wait * 10 - 0.001
        stage.join(f"w{wait}", pilot=pilot, cores=2.0)
        if wait > 2:
            stage.tell(i.PilotEndReported(pilot, wait % 2 == 0, "it ended", cause="" if wait % 2 == 0 else DIED))
    stage.tell(i.PilotEndReported(add(stage), False, "no python", cause=BOOTSTRAP))
    add(stage)
    stage.tell(i.SiteReachability("pond", "slurmctld does not answer"))
    (row,) = stage.ask("sites")
    assert row["queue_wait_median_s"] == pytest.approx(60.0) and row["queue_wait_90_s"] == pytest.approx(100.0)
    assert row["failures"] == {DIED: 4, BOOTSTRAP: 1} and row["trouble"] == "slurmctld does not answer"
    assert (row["waiting"], row["active"], row["workers"]) == (1, 2, 2)
    assert (row["site"], row["backend"], row["state"], row["used"], row["wanted"]) == ("pond", "slurm", "trouble", True, -1)
    stage.tell(i.SiteReachability("pond", ""))
    assert stage.ask("sites")[0]["trouble"] == ""


def test_rows_of_pilots_have_the_time_of_the_first_worker_and_the_reason_of_the_queue() -> None:
    stage = stage_with(pond=POND)
    active, queued = add(stage), add(stage)
    stage.wait(10)
    stage.join("w1", pilot=active, cores=2.0)
    joined_at = stage.machine.state.workers["w1"].joined_at
    stage.wait(10)
    stage.join("w2", pilot=active, cores=2.0)
    stage.tell(i.PilotSeen(active, True, "Resources"), i.PilotSeen(queued, False, "Resources"))
    rows = {row["pilot"]: row for row in stage.ask("status")["pilots"]}
    assert rows[active]["joined_at"] == joined_at > rows[active]["requested_at"] and rows[active]["queue_note"] == ""
    assert rows[queued]["joined_at"] is None and rows[queued]["queue_note"] == "Resources"


def test_why_a_site_stands_as_it_does() -> None:
    stage = stage_with(pond=POND)

    def why(state: str, code: str, words: str, *commands: str) -> None:
        answer = stage.ask("why", site="pond")
        first = answer["reasons"][0]
        assert (answer["subject"], answer["state"], first["code"]) == ("site pond", state, code)
        assert words in answer["sentence"] == first["text"] and first["commands"] == list(commands)

    why("ready", "ready", "0 of its pilots queued, 0 running", "pilotfish sites")
    pilot = add(stage)
    stage.tell(i.PilotSeen(pilot, False, "Resources"))
    why("ready", "pending", "Resources", "pilotfish site set pond queue=QUEUE")
    stage.join("w", pilot=pilot, cores=2.0)
    why("ready", "ready", "0 of its pilots queued, 1 running", "pilotfish sites")
    stage.tell(i.SiteReachability("pond", "Permission denied (publickey)", LOGIN_NEEDED))
    why("trouble", "site-trouble", "does not answer", "pilotfish site login pond", "pilotfish doctor pond")
    stage.tell(i.SiteReachability("pond", "QOSMaxSubmitJobPerUserLimit", BATCH_LIMIT))
    assert stage.ask("sites")[0]["state"] == "full"
    assert stage.ask("sites")[0]["trouble"] == "it accepts no more pilots now: QOSMaxSubmitJobPerUserLimit"
    stage.tell(i.SiteReachability("pond", ""), i.PilotEndReported(add(stage), False, "was refused: no account", cause=REFUSED))
    assert stage.ask("why", site="pond")["reasons"][0]["code"] == "bootstrap"
    assert stage.ask("why", site="pond")["reasons"][1]["text"] == "1 of its pilots failed recently: refused"
    stage.tell(i.SitesRead({"pond": msgspec.structs.replace(POND, max_pilots=1)}))
    why("ready", "site-limit", "its maximum", "pilotfish site set pond max_pilots=2")
    stage.tell(i.SitesRead({"pond": msgspec.structs.replace(POND, paused=True)}))
    why("paused", "site-paused", "site pond is paused: it gets no new pilots", "pilotfish site resume pond")
    stage.tell(i.SitesRead({}))
    why("leaving", "no-site", "its last pilots are ending", "pilotfish site add pond --backend slurm")
    stage.restart()
    assert stage.ask("sites")[0]["state"] == "leaving"
    stage.tell(i.SitesRead({"pond": msgspec.structs.replace(POND, paused=True)}))
    assert stage.ask("sites")[0]["state"] == "paused"


def test_a_site_without_a_past_has_a_row_too() -> None:
    (row,) = stage_with(pond=Site(backend="lsf", paused=True)).ask("sites")
    assert (row["state"], row["queue_wait_median_s"], row["queue_wait_90_s"], row["failures"]) == ("paused", None, None, {})


def test_an_agent_that_joins_before_the_site_has_answered_was_submitted_all_the_same() -> None:
    stage = stage_with(pond=POND)
    (pilot,) = stage.ask("pilots_add", site="pond", pilots=1)["pilots"]
    stage.join("w", pilot=pilot, cores=2.0)
    stage.tell(i.PilotAccepted(pilot, "7", 1.5))
    stage.tell(i.PilotAccepted(pilot, "7", 1.5))
    assert events(stage) == [(JOINED, ""), (SUBMITTED, "")]


def test_a_pilot_whose_agent_was_lost_has_not_done_well() -> None:
    stage = stage_with(pond=POND)
    pilot = add(stage)
    stage.join("w", pilot=pilot, cores=2.0)
    stage.lose("w")
    stage.tell(i.PilotEndReported(pilot, True, "was cancelled"))
    assert events(stage)[-1] == (FAILED, DIED)


def test_a_site_that_the_pool_no_longer_uses_gets_its_cores_back() -> None:
    stage = stage_with(pond=POND)
    running, waiting = add(stage), add(stage)
    stage.join("w", pilot=running, cores=2.0)
    stage.ask("site_use", site="pond", pilots=None)
    assert stage.machine.state.pilots[waiting].state == ENDING and stage.machine.state.workers["w"].state == DRAINING


def test_more_than_a_site_may_have_is_refused_by_hand_as_well() -> None:
    stage = stage_with(pond=msgspec.structs.replace(POND, max_pilots=2))
    add(stage)
    problem = stage.ask("pilots_add", site="pond", pilots=2)
    assert isinstance(problem, m.Problem) and "max_pilots=3" in problem.hint
    assert len(stage.ask("pilots_add", site="pond", pilots=1)["pilots"]) == 1


def test_a_site_that_is_held_is_tried_again_when_its_person_changes_it() -> None:
    stage = stage_with(pond=POND)
    propose(stage, HoldProposal("pond", "its pilots fail"))
    stage.tell(i.SitesRead({"pond": POND}))
    assert stage.machine.state.sites["pond"].held
    stage.tell(i.SitesRead({"pond": msgspec.structs.replace(POND, python="/usr/bin/python3")}))
    assert not stage.machine.state.sites["pond"].held


def test_an_idle_pilot_that_cannot_be_reached_just_now_is_in_nobodys_way() -> None:
    stage = stage_with(PoolProvisioner(DemandFactory()), pond=POND)
    stage.ask("site_use", site="pond", pilots=1)
    (first,) = stage.work()
    stage.wait(2)
    (pilot,) = requested(stage)
    link = stage.join("w", pilot=pilot, cores=2.0, ends_in_s=3000.0)
    stage.finish(link, first)
    stage.tell(i.LinkClosed(link))
    tasks = stage.work(count=5)
    stage.wait(12)
    assert [task.state for task in tasks] == [READY] * 5 and stage.machine.state.workers["w"].state != DRAINING
