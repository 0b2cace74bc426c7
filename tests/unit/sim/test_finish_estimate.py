"""Futures of a moment: they begin where the pool stands, differ by luck, and agree where nothing is left to luck."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pilotfish import plugins
from pilotfish.core.apply import apply
from pilotfish.core.machine import Turn
from pilotfish.core.state import State
from pilotfish.core.state_snapshot import dump
from pilotfish.model import facts as f
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.contents import IntermediateFile
from pilotfish.model.settings import PoolSettings
from pilotfish.model.site import LOCAL
from pilotfish.model.task import RunOptions, TaskSpec
from pilotfish.sim.light_world import CLIENT_LINK, LightWorld
from pilotfish.sim.projections.finish_estimate import estimate_finish
from pilotfish.sim.projections.pool_snapshot import AS_IT_IS, AttemptHistory, PoolSnapshot, Variation
from pilotfish.sim.projections.prediction_record import MIN_TESTED, Prediction, PredictionRecord
from pilotfish.sim.projections.projection import DurationSamples, Projection
from pilotfish.sim.workload import SimulatedSite, Workload


class RecordedWorld(LightWorld):
    """A rehearsal that can be asked how it stands."""

    heartbeat_s = 5.0

    def __init__(self, sites: list[SimulatedSite], work: Workload) -> None:
        super().__init__(sites, work, plugins.load("policies", "workqueue")())
        self.past = AttemptHistory()
        self.start()

    def _perform(self, turn: Turn) -> None:
        for fact in turn.facts:
            self.past.observe(self.machine.state, fact, self.now)
        super()._perform(turn)

    def snapshot(self) -> PoolSnapshot:
        return PoolSnapshot.of(self.machine.state, self.past, PoolSettings(policy="workqueue"), self.now)


def halfway(work: Workload, *sites: SimulatedSite) -> RecordedWorld:
    world = RecordedWorld(list(sites) or [SimulatedSite("here", 4)], work)
    world.advance(left=len(work) // 2)
    return world


def test_what_never_varies_is_foreseen_within_a_few_parts_in_a_hundred() -> None:
    world = halfway(Workload([10.0] * 80))
    estimate = estimate_finish(world.snapshot(), None, samples=20, cores=1)[0]
    at = world.now
    world.advance()
    assert estimate.median_s == pytest.approx(world.now - at, rel=0.1)
    low, high = estimate.interval()
    assert low <= estimate.median_s <= high


def test_where_nobody_is_left_pilots_are_asked_for_at_once() -> None:
    world = RecordedWorld([SimulatedSite(LOCAL, 2)], Workload([10.0] * 8))
    state = world.machine.state
    world.advance(left=4)
    apply(state, f.PoolSized(2.0), world.now)
    for worker in list(state.workers.values()):
        apply(state, f.TasksReturned(worker.id, [task.id for task in worker.tasks], "gone"), world.now)
        apply(state, f.WorkerEnded(worker.id, False, "gone"), world.now)
        apply(state, f.PilotEnding(worker.pilot, "gone", ""), world.now)
        apply(state, f.PilotEnded(worker.pilot, True, "gone", ""), world.now)
    assert estimate_finish(world.snapshot(), None, samples=5, cores=1)[0].median_s < 100


def test_shares_of_runs_that_are_over_are_left_out() -> None:
    world = halfway(Workload([10.0] * 8))
    for number, share in ((7, "over"), (8, "open")):
        apply(world.machine.state, f.RunOpened(number, f"uid {number}", RunOptions(share=share)), 0.0)
    apply(world.machine.state, f.RunClosed(7, "by its client"), 0.0)
    assert list(world.snapshot().restore().shares) == ["", "open"]


def test_a_finished_run_with_a_final_task_and_files_of_an_earlier_run_does_not_stop_predictions() -> None:
    world = halfway(Workload([10.0] * 8))
    state = world.machine.state
    file = IntermediateFile("mesh", 0o644, "digest", 1)
    apply(state, f.RunOpened(7, "over", RunOptions()), 0.0)
    apply(state, f.SpecsAdded(7, 0, [TaskSpec("call")]), 0.0)
    apply(state, f.TasksAdded(7, 0, [0, 0], [b"", b""], {}, earlier_files={0: (file,)}, after_any={1: [0]}), 0.0)
    apply(state, f.RunCancelled(7, "by its client"), 0.0)
    apply(state, f.RunClosed(7, "by its client"), 0.0)
    assert 7 not in world.snapshot().restore().runs
    assert estimate_finish(world.snapshot(), None, samples=2, cores=1)[0].median_s > 0


def test_a_fork_leaves_what_it_was_forked_from_alone() -> None:
    world = halfway(Workload([10.0, 20.0] * 20))
    before = [str(fact) for fact in dump(world.machine.state)]
    estimate_finish(world.snapshot(), None, samples=2, cores=1)
    assert [str(fact) for fact in dump(world.machine.state)] == before


def test_the_same_seed_is_the_same_future_in_one_process_and_in_two() -> None:
    snapshot = halfway(Workload([float(3 + task % 7) for task in range(300)])).snapshot()
    alone, together = (estimate_finish(snapshot, None, samples=30, cores=cores)[0] for cores in (1, 2))
    assert alone.ends_s == together.ends_s


def test_tasks_that_run_go_on_from_where_they_are() -> None:
    work = Workload([100.0] * 80)
    world = RecordedWorld([SimulatedSite("here", 40)], work)
    world.advance(until=160.0)
    assert world.machine.state.unfinished == 40
    estimate = estimate_finish(world.snapshot(), None, samples=10, cores=1)[0]
    assert estimate.quantile(0.0) > 30


def test_more_workers_are_sooner_and_fewer_are_later_with_the_same_dice() -> None:
    snapshot = halfway(Workload([10.0 + task % 5 for task in range(120)])).snapshot()
    variations = [
        AS_IT_IS,
        Variation("more", more=(("here", 4),)),
        Variation("quick", speeds={"here": 2.0}),
        Variation("less", more=(("here", -2),)),
    ]
    as_it_is, more, quick, less = estimate_finish(snapshot, None, variations, samples=16, cores=1)
    assert more.chance_to_beat(as_it_is) > 0.9
    assert quick.median_s == pytest.approx(as_it_is.median_s / 2, rel=0.1)
    assert less.chance_to_beat(as_it_is) == 0


def test_without_its_only_site_a_run_never_ends() -> None:
    snapshot = halfway(Workload([10.0] * 20)).snapshot()
    estimate = estimate_finish(snapshot, None, [Variation("none", without_sites=("here",))], samples=2, cores=1)[0]
    assert estimate.median_s == float("inf")
    assert estimate.stuck == 8


def test_what_the_time_goes_into_adds_up_to_it() -> None:
    digest = "0" * 64
    work = Workload([10.0] * 24, files={digest: 50_000_000}, needs=[(digest,)] * 24, after=[()] * 12 + [(task,) for task in range(12)])
    world = RecordedWorld([SimulatedSite("here", 4, bandwidth=1e7)], work)
    world.advance(left=20)
    estimate = estimate_finish(world.snapshot(), None, samples=1, cores=1)[0]
    parts = estimate.parts
    added = parts.waiting_s + parts.behind_s + parts.starting_s + parts.staging_s + parts.execution_s
    assert added == pytest.approx(estimate.median_s)
    assert 0 <= parts.tail_s <= estimate.median_s
    early = RecordedWorld([SimulatedSite("here", 4, bandwidth=1e7)], work)
    early.advance(until=0.5)
    assert estimate_finish(early.snapshot(), None, samples=1, cores=1)[0].parts.staging_s > 0.1


def test_tasks_without_files_are_never_said_to_wait_for_any() -> None:
    """Those that were sent ahead wait for their turn at the host."""
    parts = estimate_finish(halfway(Workload([10.0] * 80)).snapshot(), None, samples=1, cores=1)[0].parts
    assert parts.staging_s == 0 and parts.waiting_s < 1
    assert parts.execution_s > 80


def test_the_tail_is_that_of_cores() -> None:
    world = RecordedWorld([SimulatedSite("here", 1, cores=2)], Workload([10.0, 10.0, 10.0, 50.0]))
    world.advance(left=1)
    estimate = estimate_finish(world.snapshot(), None, samples=1, cores=1)[0]
    assert estimate.parts.tail_s == pytest.approx(estimate.median_s), "one of the two has nothing to do already"


def test_what_others_have_before_a_run_has_its_turn_is_time_behind_them() -> None:
    world = halfway(Workload([10.0] * 40), SimulatedSite("here", 2))
    world.deliver(i.ClientMessage(CLIENT_LINK, m.Open("late", RunOptions(name="late", priority=-1)), []))
    world.deliver(i.ClientMessage(CLIENT_LINK, m.Submit(2, 0, 0, [TaskSpec("exec", "task")], [0], [(0, 0)] * 2, {}), [b""] * 3))
    world.deliver(i.ClientMessage(CLIENT_LINK, m.Close(2), []))
    world.advance(until=world.now + 1)
    estimate = estimate_finish(world.snapshot(), 2, samples=1, cores=1)[0]
    assert estimate.parts.behind_s > 50
    assert estimate.parts.execution_s < 25


def test_it_is_said_of_which_tasks_nothing_is_known() -> None:
    world = RecordedWorld([SimulatedSite("here", 2)], Workload([5.0] * 6 + [7.0] * 4, kinds=["known"] * 6 + ["new"] * 4))
    world.advance(left=7)
    projection = Projection(world.snapshot(), AS_IT_IS, 1)
    assert projection.guessed == {"exec new": 4}


def test_what_runs_longer_than_all_that_ended_makes_the_rest_longer() -> None:
    rng = np.random.default_rng(1)
    short = DurationSamples([1.0] * 10, [], rng).draw(rng, 1000).mean()
    longer = DurationSamples([1.0] * 10, [5.0] * 10, rng).draw(rng, 1000).mean()
    assert longer > 2 * short
    assert all(DurationSamples([1.0, 2.0, 3.0], [], rng).draw_beyond(rng, 2.5) >= 2.5 for _ in range(100))


def predicted(took_s: float, number: int = 0) -> Prediction:
    return Prediction(float(number), f"run {number}", number, 10, 100.0, 80.0, 125.0, took_s=took_s)


def test_bands_that_never_held_become_wider_and_those_that_always_did_narrower(tmp_path: Path) -> None:
    record = PredictionRecord(tmp_path / "record")
    record.predictions = [predicted(200.0) for _ in range(MIN_TESTED - 1)]
    assert record.factor() == 1.0
    record.predictions.append(predicted(200.0))
    assert record.factor() > 2
    record.predictions = [predicted(101.0)] * MIN_TESTED
    assert record.factor() < 1


def test_the_record_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    record = PredictionRecord(tmp_path / "record")
    record.predictions = [predicted(0.0, 1), predicted(90.0, 2)]
    record.save()
    assert (tmp_path / "record").stat().st_mode & 0o777 == 0o600
    again = PredictionRecord(tmp_path / "record")
    assert again.predictions == record.predictions
    assert [one.run for one in again.tested] == [2]
    again.settle(State(), {})
    assert [one.run for one in again.predictions] == [2]  # of the other nobody will ever know


def test_a_site_cannot_lose_more_workers_than_it_has() -> None:
    world = halfway(Workload([10.0] * 40))
    fewer = estimate_finish(world.snapshot(), None, [Variation("-5 here", more=(("here", -5),))], samples=2, cores=1)[0]
    assert fewer.stuck, "all four went home"
