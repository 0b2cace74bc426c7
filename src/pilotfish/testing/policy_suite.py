"""Checks a policy or matcher against the contract. The tests run a simulation with the same decision code as a real master.

class TestMine(PolicyContract):
    def make_policy(self) -> Policy:
        return MyPolicy()
"""

from __future__ import annotations

from pilotfish.core.policy_events import EVENT_KINDS, PolicyEvent
from pilotfish.core.policy_interface import Policy, PolicyView
from pilotfish.core.state import State
from pilotfish.model.states import DONE
from pilotfish.sim.light_world import LightWorld, WorldResult
from pilotfish.sim.workload import SimulatedSite, Workload

SITES = (SimulatedSite("large", 3, cores=4), SimulatedSite("slow", 2, cores=2, speed=0.5))
LATE = (SimulatedSite("early", 1, cores=2), SimulatedSite("late", 2, cores=2, wait_s=30.0))


def bag(count: int = 60) -> Workload:
    """Returns independent tasks of unequal duration."""
    return Workload([1.0 + number % 7 for number in range(count)])


class PolicyContract:
    """Tests of a policy. Override ``make_policy``.

    ``refuses_nothing``: True if the master must accept all proposals of the policy. This is tested only in simulations in which no worker
    and no task fails.
    """

    refuses_nothing = True

    def make_policy(self) -> Policy:
        raise NotImplementedError("return a new policy")

    def play(
        self, work: Workload, sites: tuple[SimulatedSite, ...] = SITES, policy: Policy | None = None
    ) -> tuple[LightWorld, WorldResult]:
        """Simulates the workload to its end. Raises RuntimeError if some tasks have not ended."""
        world = LightWorld(sites, work, policy or self.make_policy(), seed=1, record_intervals=True)
        return world, world.run()

    def test_all_tasks_are_done_once(self) -> None:
        world, result = self.play(bag())
        assert [task.state for run in world.machine.state.runs.values() for task in run.tasks] == [DONE] * 60
        assert sorted({interval.task for interval in result.intervals}) == list(range(60))

    def test_its_proposals_are_lawful(self) -> None:
        world, _ = self.play(bag())
        assert not self.refuses_nothing or world.machine.refused_proposals == 0

    def test_more_than_one_worker_gets_work(self) -> None:
        _, result = self.play(bag())
        assert len({(interval.site, interval.host) for interval in result.intervals}) > 1

    def test_tasks_wait_for_those_that_they_need(self) -> None:
        after: list[tuple[int, ...]] = [(number - 1,) if number % 5 else () for number in range(30)]
        _, result = self.play(Workload([1.0] * 30, after=after))
        started_at = {interval.task: interval.started_at for interval in result.intervals}
        ended = {interval.task: interval.ended_at for interval in result.intervals}
        assert all(started_at[number] >= ended[parents[0]] for number, parents in enumerate(after) if parents)

    def test_tasks_of_several_cores_find_a_worker_that_has_them(self) -> None:
        _, result = self.play(Workload([1.0] * 20, cores=[4, 1] * 10))
        assert {interval.site for interval in result.intervals if interval.task % 2 == 0} == {"large"}

    def test_tasks_with_inputs_are_done_as_well(self) -> None:
        files = {f"{number:064x}": 10_000_000 for number in range(4)}
        needs: list[tuple[str, ...]] = [(name,) for name in files for _ in range(5)]
        world, _ = self.play(Workload([1.0] * 20, files=files, needs=needs))
        assert not world.machine.state.unfinished

    def test_workers_that_join_later_get_work(self) -> None:
        _, result = self.play(Workload([5.0] * 60), LATE)
        assert "late" in {interval.site for interval in result.intervals}

    def test_the_same_world_gives_the_same_story(self) -> None:
        (_, one), (_, two) = self.play(bag()), self.play(bag())
        assert [(interval.task, interval.host, interval.started_at) for interval in one.intervals] == [
            (interval.task, interval.host, interval.started_at) for interval in two.intervals
        ]

    def test_without_workers_it_proposes_nothing(self) -> None:
        view = PolicyView(State(), 1000.0, 0.05, lambda worker: True)
        policy = self.make_policy()
        assert list(policy.propose(view)) == []
        look_at = policy.next_look_at(view)
        assert look_at is None or look_at > view.now

    def test_it_changes_nothing_in_the_state_that_it_sees(self) -> None:
        world = LightWorld(SITES, bag(12), self.make_policy(), seed=1)
        world.start()
        world.advance(left=6)
        state = world.machine.state
        before = [(task.id, task.state, task.attempt) for run in state.runs.values() for task in run.tasks]
        self.make_policy().propose(PolicyView(state, world.now, 0.05, lambda worker: True))
        assert before == [(task.id, task.state, task.attempt) for run in state.runs.values() for task in run.tasks]

    def test_people_are_told_in_texts(self) -> None:
        world = LightWorld(SITES, bag(12), self.make_policy(), seed=1)
        world.start()
        world.advance(left=6)
        policy = world.machine.policy
        assert all(isinstance(policy.why(task), str) for run in world.machine.state.runs.values() for task in run.tasks)
        assert isinstance(policy.describe(), str)

    def test_it_can_begin_in_the_middle(self) -> None:
        """Checks that a new policy can continue with a state that another policy created, as after a restart."""
        world = LightWorld(SITES, bag(), self.make_policy(), seed=1)
        world.start()
        world.advance(left=30)
        world.machine.policy = self.make_policy()
        assert world.machine.state.unfinished
        world.advance()
        assert not world.machine.state.unfinished

    def test_it_hears_events_of_workers_and_tasks_that_it_does_not_know(self) -> None:
        on_events = getattr(self.make_policy(), "on_events", None)
        if on_events is not None:
            on_events([PolicyEvent(kind, "nobody", 1 << 32, 1, "a reason", "a cause") for kind in EVENT_KINDS])
            on_events([])
