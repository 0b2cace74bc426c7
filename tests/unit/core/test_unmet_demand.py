"""Demand is what waits, fits a site that may be used, and has no room anywhere, here or on its way."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.core.pilots.factory_interface import Demand, PilotProposal
from pilotfish.core.pilots.unmet_demand import view_for_factory
from pilotfish.core.policy_interface import HoldProposal
from pilotfish.factories.site_limits import ProposalRound
from pilotfish.model import inputs as i
from pilotfish.model.site import BOOTSTRAP, PilotSize, Site
from pilotfish.model.task import Request, TaskSpec
from tests.support.machine_stage import Stage
from tests.unit.core.test_site_events import add, propose, stage_with

GIB = 1 << 30
POND = Site(backend="slurm", cores=4, memory=8 * GIB, gpus=1, walltime_s=3600.0, tags={"disk": "fast"})
OPEN = Site(backend="slurm", walltime_s=3600.0)


def demand(stage: Stage) -> Demand:
    view = view_for_factory(stage.machine.state, stage.now)
    found = view.demand
    assert len(found.sizes) == len(found.places)
    assert not set(found.spare) & set(found.needed)
    return found


def spec(**fields: Any) -> TaskSpec:
    request = {key: fields.pop(key) for key in ("cores", "memory", "gpus", "custom") if key in fields}
    return TaskSpec("python", request=Request(**request), **fields)


# --- what fits --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fits", "wanted"),
    [
        (True, spec(cores=4.0, memory=8 * GIB, gpus=1.0, time_s=3500.0, tags={"disk": "fast"})),
        (True, spec(cores=0.5)),
        (False, spec(cores=5.0)),
        (False, spec(memory=8 * GIB + 1)),
        (False, spec(gpus=2.0)),
        (False, spec(time_s=3601.0)),
        (False, spec(time_s=3600.0)),
        (False, spec(tags={"disk": "slow"})),
        (False, spec(tags={"colour": "red"})),
        (False, spec(tags={"site": "pond"})),
        (False, spec(custom={"licence": 1.0})),
    ],
)
def test_a_task_is_a_demand_only_where_it_would_run(fits: bool, wanted: TaskSpec) -> None:
    """The agents of a site have what it describes, no more: whatever is asked for beyond it would bring pilots for ever."""
    stage = stage_with(pond=POND)
    stage.work(wanted, count=3)
    found = demand(stage)
    assert (found.tasks, len(found.sizes)) == ((3, 3) if fits else (0, 0))
    assert bool(found.cores) == fits
    # What counts as a demand is what a worker of the site would be given.
    pilot = add(stage, size=PilotSize(4.0, 1, 3600.0, 8 * GIB, 1.0))
    capacity = {"memory": 8.0 * GIB, "gpus": 1.0}
    stage.join("w", pilot=pilot, cores=4.0, tags=POND.tags, capacity=capacity, ends_in_s=3575.0)
    assert bool(stage.machine.state.workers["w"].held) == fits


def test_what_a_site_does_not_say_limits_nobody_but_gpus_must_be_named() -> None:
    stage = stage_with(pond=OPEN)
    stage.work(spec(cores=64.0, memory=512 * GIB))
    stage.work(spec(gpus=1.0))
    assert demand(stage).sizes == [PilotSize(64.0, 1, 0.0, 512 * GIB, 0.0)]


@pytest.mark.parametrize(("site", "cores", "fits"), [(OPEN, 8.0, True), (OPEN, 9.0, False), (Site(backend="slurm", cores=16), 1.0, False)])
def test_a_pilot_that_is_larger_than_all_that_a_site_may_have_is_no_demand(site: Site, cores: float, fits: bool) -> None:
    limited = Site(backend="slurm", cores=site.cores, max_cores=8)
    stage = stage_with(pond=limited)
    stage.work(spec(cores=cores))
    assert bool(demand(stage).tasks) == fits


def test_whole_machines_of_unknown_size_may_take_anything() -> None:
    stage = stage_with(desk=Site(backend="ssh", hosts=("desk",), max_cores=2))
    stage.work(spec(cores=16.0, memory=GIB))
    assert demand(stage).tasks == 1


def test_a_run_that_is_bound_to_sites_is_a_demand_for_these_alone() -> None:
    stage = stage_with(pond=POND, reef=OPEN)
    stage.work(count=2, sites=("reef",))
    stage.work(count=1, sites=("elsewhere",))
    stage.work(count=1, sites=("local",))
    found = demand(stage)
    assert found.tasks == 2 and found.places == [("reef",)] * 2


def test_a_paused_run_is_no_demand_nor_are_its_suspects() -> None:
    stage = stage_with(pond=POND)
    run = stage.open_run()
    stage.submit(run, spec(), 3)
    for name in ("a", "b"):
        stage.join(name)
        stage.lose(name)
    assert stage.machine.state.suspects and demand(stage).tasks == 3
    stage.ask("pause", run=run)
    assert demand(stage) == Demand()


@pytest.mark.parametrize("why", ["paused", "held", "unused", "removed"])
def test_a_site_that_may_not_be_used_makes_no_demand(why: str) -> None:
    stage = stage_with(pond=POND)
    stage.work(count=3)
    assert demand(stage).tasks == 3
    if why == "paused":
        stage.tell(i.SitesRead({"pond": Site(backend="slurm", paused=True)}))
    elif why == "held":
        propose(stage, HoldProposal("pond", "its pilots fail"))
    elif why == "unused":
        stage.ask("site_use", site="pond", pilots=None)
    else:
        stage.tell(i.SitesRead({}))
    assert demand(stage) == Demand() and view_for_factory(stage.machine.state, stage.now).sites == []


# --- what has room already --------------------------------------------------------------------------------------------------------------


def busy(stage: Stage, **worker: Any) -> None:
    """A worker that may not be given anything, because the disk is full: its room is counted all the same."""
    stage.tell(i.JournalSpaceChanged(True))
    stage.join("w", **worker)


def test_what_free_workers_have_room_for_needs_no_pilot() -> None:
    stage = stage_with(pond=OPEN)
    stage.work(spec(cores=2.0), count=10)
    busy(stage, cores=7.0)
    found = demand(stage)
    assert (len(found.sizes), found.cores, found.tasks) == (7, 14.0, 10)


@pytest.mark.parametrize(("needs", "left"), [({"memory": 4 * GIB}, 8), ({"gpus": 1.0}, 9), ({"cores": 0.5}, 0), ({"cores": 16.0}, 10)])
def test_a_worker_has_room_only_for_what_it_has_enough_of_everything_for(needs: dict[str, Any], left: int) -> None:
    stage = stage_with(pond=Site(backend="slurm", gpus=1))
    stage.work(spec(**needs), count=10)
    busy(stage, cores=8.0, capacity={"memory": 8.0 * GIB, "gpus": 1.0})
    assert len(demand(stage).sizes) == left


@pytest.mark.parametrize("why", ["draining", "tags", "time", "elsewhere"])
def test_workers_that_will_not_take_it_have_no_room(why: str) -> None:
    stage = stage_with(pond=Site(backend="slurm", tags={"disk": "fast"}))
    stage.work(spec(tags={"disk": "fast"}, time_s=100.0), count=3, sites=("pond",) if why == "elsewhere" else ())
    busy(stage, cores=8.0, tags={} if why == "tags" else {"disk": "fast"}, ends_in_s=50.0 if why == "time" else None)
    if why == "draining":
        stage.ask("drain", worker="w")
    assert len(demand(stage).sizes) == 3


def test_pilots_on_their_way_are_taken_off_and_the_rest_is_asked_for() -> None:
    stage = stage_with(pond=OPEN)
    first, second = add(stage, size=PilotSize(4.0)), add(stage, size=PilotSize(4.0))
    stage.work(spec(cores=2.0), count=5)
    found = demand(stage)
    assert len(found.sizes) == 1 and found.needed == {pilot: PilotSize(2.0) for pilot in (first, second)} and not found.spare


@pytest.mark.parametrize(
    ("size", "needs", "served"),
    [
        (PilotSize(8.0, 1, 0.0, 16 * GIB), {"memory": 8 * GIB}, 2),
        (PilotSize(8.0, 1, 0.0, 0, 2.0), {"gpus": 1.0}, 2),
        (PilotSize(8.0, 1, 0.0, 0), {"memory": 8 * GIB}, 0),
        (PilotSize(2.0, 4), {"cores": 4.0}, 0),
        (PilotSize(3.0, 4), {"cores": 2.0}, 4),
        (PilotSize(1.0), {"cores": 0.25}, 4),
        (PilotSize(8.0, 1, 100.0), {"time_s": 200.0}, 0),
    ],
)
def test_a_pilot_on_its_way_counts_for_what_will_fit_it(size: PilotSize, needs: dict[str, Any], served: int) -> None:
    stage = stage_with(pond=Site(backend="slurm", gpus=2))
    pilot = add(stage, size=size)
    stage.work(spec(**needs), count=10)
    found = demand(stage)
    assert len(found.sizes) == 10 - served
    assert found.spare == ([] if served else [pilot]) and bool(found.needed) == bool(served)


def test_what_was_asked_for_in_one_round_is_what_the_next_round_counts_on() -> None:
    """Or pilots that wait would be withdrawn as needless and asked for again."""
    stage = stage_with(pond=Site(backend="slurm", cores=8, gpus=1, max_queued=100, max_pilots=100))
    stage.work(spec(gpus=1.0), count=4)
    stage.work(spec(memory=4 * GIB), count=40)
    round_ = ProposalRound(view_for_factory(stage.machine.state, stage.now))
    while round_.request("pond", "there is work"):
        pass
    for wish in round_.proposals:
        assert isinstance(wish, PilotProposal)
        add(stage, size=wish.size)
    found = demand(stage)
    assert not found.sizes and not found.spare


def test_a_pilot_on_its_way_to_a_site_that_was_paused_still_comes() -> None:
    stage = stage_with(pond=OPEN, reef=OPEN)
    add(stage, size=PilotSize(2.0))
    stage.work(count=3)
    stage.tell(i.SitesRead({"pond": Site(backend="slurm", paused=True), "reef": OPEN}))
    assert len(demand(stage).sizes) == 1
    propose(stage, HoldProposal("pond", "its pilots fail"))
    assert len(demand(stage).sizes) == 3, "nobody counts on a site where pilots fail"


def test_replicas_count_once_also_when_the_original_is_gone() -> None:
    stage = stage_with(pond=OPEN, reef=OPEN)
    original = add(stage)
    replica = add(stage, "reef", replica_of=original)
    second = add(stage, "reef", replica_of=original)
    stage.work(count=3)
    assert len(demand(stage).sizes) == 1 and set(demand(stage).needed) == {original, replica, second}
    stage.tell(i.PilotEndReported(original, False, "no python", cause=BOOTSTRAP))
    assert len(demand(stage).sizes) == 1 and set(demand(stage).needed) == {replica, second}


def test_spare_pilots_are_named_with_their_replicas_but_not_those_that_somebody_asked_for() -> None:
    stage = stage_with(pond=OPEN, reef=OPEN)
    original = add(stage)
    replica = add(stage, "reef", replica_of=original)
    stage.ask("pilots_add", site="pond")
    assert demand(stage).spare == [original, replica]
    stage.work()
    found = demand(stage)
    assert not found.spare and set(found.needed) == {original, replica}


def test_active_pilots_are_never_spare() -> None:
    stage = stage_with(pond=OPEN)
    stage.join("w", pilot=add(stage), cores=2.0)
    assert demand(stage) == Demand()


# --- how much of it pays ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "cores"), [(0.1, 1), (1.0, 10), (30.0, 300), (60.0, 600), (3600.0, 600)])
def test_tasks_that_are_known_to_be_short_ask_for_fewer_cores(seconds: float, cores: int) -> None:
    stage = stage_with(pond=OPEN)
    run = stage.open_run()
    link = stage.join("w")
    (task,) = stage.submit(run, spec())
    stage.finish(link, task, wall_us=round(seconds * 1e6))
    stage.lose("w")
    stage.submit(run, spec(), 600)
    found = demand(stage)
    assert found.tasks == 600 and abs(len(found.sizes) - cores) <= 1


def test_a_million_tasks_are_not_a_million_sizes() -> None:
    stage = stage_with(pond=OPEN)
    stage.work(count=5000)
    found = demand(stage)
    assert len(found.sizes) == 2000 and found.cores == 5000.0 and found.tasks == 5000


def test_the_other_nodes_of_a_pilot_are_awaited_for_a_while_after_the_first() -> None:
    stage = stage_with(pond=OPEN)
    pilot = add(stage, size=PilotSize(2.0, 3))
    stage.work(spec(cores=2.0), count=4)
    assert len(demand(stage).sizes) == 1
    stage.join("first", pilot=pilot, cores=2.0)
    assert len(demand(stage).sizes) == 1, "the first has one, two are on their way"
    stage.join("second", pilot=pilot, cores=2.0)
    assert len(demand(stage).sizes) == 1
    stage.wait(100.0, quietly=False)
    assert len(demand(stage).sizes) == 2, "the third does not come"


def test_only_a_site_where_the_work_may_go_takes_the_place_of_a_pilot_that_waits_too_long() -> None:
    stage = stage_with(pond=OPEN, reef=OPEN, lake=Site(backend="slurm", tags={"disk": "fast"}))
    stage.submit(stage.open_run("bound", sites=("pond",)), spec())
    stage.work(spec(tags={"disk": "fast"}))
    bound, fast = add(stage, size=PilotSize(1.0)), add(stage, "lake", size=PilotSize(1.0))
    round_ = ProposalRound(view_for_factory(stage.machine.state, stage.now))
    pilots = stage.machine.state.pilots
    assert round_.sites_for_replica([pilots[bound]]) == [] == round_.sites_for_replica([pilots[fast]])
    stage.submit(stage.open_run("either", sites=("pond", "reef")), spec())
    other = add(stage, size=PilotSize(1.0))
    round_ = ProposalRound(view_for_factory(stage.machine.state, stage.now))
    assert [view.name for view in round_.sites_for_replica([pilots[other]])] == ["reef"]


def test_work_that_is_paused_or_can_never_go_there_keeps_no_pilots() -> None:
    stage = stage_with(pond=Site(backend="slurm", walltime_s=600.0))

    def has_work() -> bool:
        round_ = ProposalRound(view_for_factory(stage.machine.state, stage.now))
        return round_.has_work_for(round_.view.sites[0])

    assert not has_work()
    run = stage.open_run()
    stage.submit(run, spec(time_s=3000.0))
    assert not has_work()
    stage.submit(run, spec())
    assert has_work()
    stage.ask("pause", run=run)
    assert not has_work()
