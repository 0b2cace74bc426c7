"""What a plan makes of the pool: who gets what now, who waits, and when it is drawn anew."""

from __future__ import annotations

import random

import pytest

from pilotfish import plugins
from pilotfish.core.data.replicas import needs
from pilotfish.core.policy_interface import AssignmentProposal
from pilotfish.core.state import FailureCounts, Worker
from pilotfish.model import inputs as i
from pilotfish.model.site import LOCAL
from pilotfish.model.states import DONE
from pilotfish.model.task import Request, TaskSpec
from pilotfish.policies.dispatcher import Dispatcher
from pilotfish.policies.planning import planned_matcher
from pilotfish.policies.planning.automatic_matcher import INTERVAL_S, AutomaticMatcher
from pilotfish.policies.planning.heuristics import HEURISTICS, Heuristic
from pilotfish.policies.planning.link_estimates import PROBE_S, LinkEstimates, is_at
from pilotfish.policies.planning.planned_matcher import IDLE_REPLAN_S, PlannedMatcher
from tests.support.machine_stage import Stage
from tests.support.policy_stage import Idle, digest

MB = 1_000_000
QUICK, SLOW = 100 * MB, MB // 10


class TwoSites(Idle):
    """Two workers here, near the files, and two far away, over a slow link."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("near-1", "near-2", "far-1", "far-2"):
            self.enter(name)
            self.worker(name).site = self.shadow.workers[name].site = name.split("-")[0]
        self.measure("near", QUICK)
        self.measure("far", SLOW)
        self.learn(10.0)

    def worker(self, name: str) -> Worker:
        return self.machine.state.workers[name]

    def measure(self, site: str, rate: float) -> None:
        for _ in range(3):
            self.tell(i.TransferMeasured(site, int(rate), 1.0))

    def learn(self, seconds: float) -> None:
        """Tasks have taken so long."""
        for name in self.machine.state.workers:
            for _ in range(3):
                self.machine.state.forecasts.task_ended("python ", name, self.worker(name).site, seconds)

    def given(self, policy: Dispatcher) -> dict[str, list[int]]:
        return {p.worker.id: [task.id & 0xFFFF for task in p.tasks] for p in policy.propose(self.view()) if hasattr(p, "tasks")}


@pytest.mark.parametrize("heuristic", HEURISTICS)
def test_a_large_file_does_not_go_over_a_slow_link(heuristic: Heuristic) -> None:
    stage = TwoSites()
    stage.need(*[{"large": 500 * MB}] * 4)
    given = stage.given(Dispatcher(PlannedMatcher(heuristic)))
    assert set(given) == {"near-1", "near-2"}, "the second gets it as it comes to the first; the far ones would wait for over an hour"


@pytest.mark.parametrize("heuristic", HEURISTICS)
def test_small_files_go_where_there_is_room(heuristic: Heuristic) -> None:
    stage = TwoSites()
    stage.need(*[{f"small-{number}": MB // 10} for number in range(8)])
    assert {"near-1", "far-1"} <= set(stage.given(Dispatcher(PlannedMatcher(heuristic))))


def test_without_files_everybody_gets_something() -> None:
    stage = TwoSites()
    stage.need(*[{}] * 8)
    given = stage.given(Dispatcher(PlannedMatcher("xsufferage")))
    assert set(given) == {"near-1", "near-2", "far-1", "far-2"}
    tasks = [task for group in given.values() for task in group]
    assert len(tasks) == len(set(tasks))


def test_a_task_whose_file_is_on_its_way_does_not_hold_a_core_that_others_can_use() -> None:
    stage = TwoSites()
    stage.need(*[{"large": 500 * MB}] * 4, *[{"small": MB}] * 40)
    policy = Dispatcher(PlannedMatcher("xsufferage"))
    large = [task for tasks in stage.given(policy).values() for task in tasks if task < 4]
    assert len(large) <= 1
    stage.holds("near-1", "large", "small")
    stage.now += 2 * IDLE_REPLAN_S
    assert {"near-1", "near-2"} <= set(stage.given(policy))


def test_who_may_not_run_it_is_not_planned_for() -> None:
    stage = TwoSites()
    stage.enter("odd", cores=4.0)
    stage.need(*[{}] * 3)
    for state in (stage.machine.state, stage.shadow):
        for shape in state.ready:
            shape.no_directory_sites["near"] = shape.no_directory_sites["far"] = None
    assert set(stage.given(Dispatcher(PlannedMatcher("min-min")))) == {"odd"}


def test_a_plan_is_drawn_again_when_work_comes_and_when_workers_come() -> None:
    stage = TwoSites()
    planner = PlannedMatcher("sufferage")
    policy = Dispatcher(planner)
    stage.need(*[{}] * 20)
    stage.given(policy)
    stage.given(policy)
    assert planner.plans == 1
    stage.need(*[{}] * 2)
    stage.given(policy)
    assert planner.plans == 1, "not at once: who plans with each task that comes does nothing else"
    stage.now += 0.1
    stage.given(policy)
    assert planner.plans == 2
    stage.enter("new")
    stage.now += 0.1
    stage.given(policy)
    assert planner.plans == 3


def test_of_very_many_tasks_each_file_has_its_representatives() -> None:
    stage = TwoSites()
    tasks = stage.need(*[{"first": MB}] * 100, *[{"last": MB}] * 100)
    chosen = list(planned_matcher._representatives(tasks[0].shape, 20))
    assert len(chosen) <= 20 and {record for task in chosen for record in task.contents} == set(stage.machine.state.contents.values())


def test_links_are_believed_to_be_as_quick_as_they_were() -> None:
    stage = TwoSites()
    view = stage.view()
    assert LinkEstimates().bandwidth(view, "near") == pytest.approx(QUICK, rel=0.05)
    assert LinkEstimates().bandwidth(view, "far") == pytest.approx(SLOW, rel=0.05)


def test_transfers_come_one_after_the_other_and_are_forgotten_when_they_are_there() -> None:
    stage = TwoSites()
    first, second = stage.need({"a": 10 * MB}, {"b": 10 * MB})
    links, view = LinkEstimates(), stage.view()
    links.note_started(view, first, "far")
    links.note_started(view, second, "far")
    record = stage.machine.state.contents[digest("b")]
    assert links.arrival(view, record, "far") == pytest.approx(view.now + 200, rel=0.05)
    assert links.must_wait(view, second, "far") and not links.must_wait(view, second, "near")
    stage.holds("far-1", "a", "b")
    links.remove_ended(stage.view())
    assert is_at(stage.view(), record, "far")
    assert links.link_free_at(stage.view(), "far") == stage.now


def test_it_says_what_it_has_in_mind() -> None:
    stage = TwoSites()
    tasks = stage.need(*[{"large": 500 * MB}] * 3, {"other": 500 * MB})
    planner = PlannedMatcher("xsufferage")
    stage.given(Dispatcher(planner))
    assert "has it for worker near-" in planner.why(tasks[2])
    assert PlannedMatcher("min-min").why(tasks[0]) == ""


@pytest.mark.parametrize("name", plugins.names("policies"))
def test_without_any_worker_nothing_is_proposed_and_nothing_breaks(name: str) -> None:
    stage = Idle()
    stage.need({"large": 500 * MB}, {})
    policy = plugins.load("policies", name)()
    assert list(policy.propose(stage.view())) == []
    assert policy.next_look_at(stage.view()) is None or policy.next_look_at(stage.view()) > stage.now


def test_a_task_that_failed_at_the_only_worker_goes_there_again() -> None:
    stage = Idle()
    stage.enter("a")
    (task,) = stage.need({})
    task.failure_counts = FailureCounts()
    task.failure_counts.avoid = "a"
    (proposal,) = Dispatcher(PlannedMatcher("min-min")).propose(stage.view())
    assert proposal.worker.id == "a"


def test_a_file_that_never_arrives_holds_nobody_up() -> None:
    """Whoever was to fetch it has lost its task."""
    stage = TwoSites()
    first, second = stage.need({"large": 500 * MB}, {"large": 500 * MB})
    links = LinkEstimates()
    links.note_started(stage.view(), first, "near")
    assert links.must_wait(stage.view(), second, "near"), "it has just been given away"
    stage.now += 1
    assert not links.must_wait(stage.view(), second, "near")
    links.remove_ended(stage.view())
    assert links.link_free_at(stage.view(), "near") == stage.now


def test_short_tasks_of_a_lower_priority_are_not_sent_ahead_of_what_is_planned() -> None:
    stage = TwoSites()
    stage.need(*[{}] * 20, spec=TaskSpec("python", "high", priority=5))
    stage.need(*[{}] * 20, spec=TaskSpec("python", "low"))
    for state in (stage.machine.state, stage.shadow):
        for shape in state.ready:
            shape.samples, shape.mean_us = 10, 1000.0
    for proposal in Dispatcher(PlannedMatcher("min-min")).propose(stage.view()):
        assert all(task.shape.priority == 5 for task in proposal.tasks), proposal


# --- auto -----------------------------------------------------------------------------------------------------------------------------


def choice(stage: Idle, chooser: AutomaticMatcher) -> bool:
    Dispatcher(chooser).propose(stage.view())
    return chooser.chosen is not chooser.nearest


def test_without_inputs_nothing_is_planned() -> None:
    stage, chooser = TwoSites(), AutomaticMatcher()
    stage.need(*[{}] * 4)
    assert not choice(stage, chooser) and chooser.planner.plans == 0


def test_files_that_travel_for_long_are_worth_a_plan_and_small_ones_are_not() -> None:
    stage, chooser = TwoSites(), AutomaticMatcher()
    stage.need(*[{"large": 500 * MB}] * 4)
    assert choice(stage, chooser)
    stage, chooser = TwoSites(), AutomaticMatcher()
    stage.need(*[{"tiny": 100_000}] * 400)
    assert not choice(stage, chooser), chooser.reason


def test_it_chooses_again_when_the_files_are_everywhere() -> None:
    stage, chooser = TwoSites(), AutomaticMatcher()
    stage.need(*[{"large": 500 * MB}] * 4)
    assert choice(stage, chooser)
    stage.holds("near-2", "large")
    stage.holds("far-1", "large")
    assert choice(stage, chooser), "not before it looks again"
    stage.now += INTERVAL_S + 1
    assert not choice(stage, chooser)


def test_on_bad_forecasts_nothing_is_built() -> None:
    stage, chooser = TwoSites(), AutomaticMatcher()
    dice = random.Random(1)
    for _ in range(200):
        stage.machine.state.forecasts.task_ended("python ", "near-1", "near", dice.choice((0.1, 1.0, 10.0, 100.0)))
    stage.need(*[{"large": 500 * MB}] * 4)
    for shape in stage.shapes():
        shape.samples = 200
    assert not choice(stage, chooser) and "wrong" in chooser.reason


@pytest.mark.parametrize("name", plugins.names("policies"))
def test_every_policy_gives_work_to_who_is_free(name: str) -> None:
    stage = Idle()
    stage.enter("a")
    stage.need({}, {})
    (proposal,) = plugins.load("policies", name)().propose(stage.view())
    assert proposal.worker.id == "a" and len(proposal.tasks) == 1


@pytest.mark.parametrize("heuristic", HEURISTICS)
def test_a_link_of_which_nothing_is_known_gets_one_small_file_first(heuristic: Heuristic) -> None:
    stage = Idle()
    for name in ("near-1", "near-2", "far-1", "far-2"):
        stage.enter(name)
        stage.machine.state.workers[name].site = stage.shadow.workers[name].site = name.split("-")[0]
    stage.need(*[{"large": 500 * MB}] * 4, *[{"small": MB}] * 2)
    policy = Dispatcher(PlannedMatcher(heuristic))

    def sizes() -> list[int]:
        given = [task for proposal in policy.propose(stage.view()) if isinstance(proposal, AssignmentProposal) for task in proposal.tasks]
        return [record.size for task in given for record in needs(task)]

    assert sizes() == [MB, MB]
    for name in ("near-1", "far-1"):
        stage.holds(name, "small")
    stage.now += PROBE_S
    assert 500 * MB in sizes(), "nobody waits for ever for what cannot be measured"


def test_what_a_trial_brought_is_learnt_although_nobody_measured_the_link() -> None:
    stage = Idle()
    for name in ("near-1", "near-2"):
        stage.enter(name)
        stage.machine.state.workers[name].site = stage.shadow.workers[name].site = "near"
    small, another = stage.need({"small": MB}, {"another": 2 * MB})
    policy = Dispatcher(PlannedMatcher("max-min"))
    (probe,) = policy.propose(stage.view())
    assert isinstance(probe, AssignmentProposal) and probe.tasks == [small]
    assert not policy.propose(stage.view())
    stage.holds(probe.worker.id, "small")
    stage.now += 0.1
    given = [task for proposal in policy.propose(stage.view()) if isinstance(proposal, AssignmentProposal) for task in proposal.tasks]
    assert another in given


def test_files_for_this_machine_need_no_trial() -> None:
    stage = Idle()
    for name in ("a", "b"):
        stage.enter(name)
        stage.machine.state.workers[name].site = stage.shadow.workers[name].site = LOCAL
    stage.need(*[{"one": MB}, {"two": MB}])
    assert len(Dispatcher(PlannedMatcher("xsufferage")).propose(stage.view())) == 2


def test_auto_plans_the_end_of_a_run_whose_tasks_are_uneven() -> None:
    stage, chooser = TwoSites(), AutomaticMatcher()
    run = stage.need(*[{}] * 12)[0].shape.run
    assert not choice(stage, chooser)
    run.costs.extend([1.0, 9.0] * 6)
    stage.now += INTERVAL_S
    assert choice(stage, chooser)
    stage.learn(0.001)
    stage.now += INTERVAL_S
    assert not choice(stage, chooser), "short tasks are not worth it"


def test_auto_serves_workers_as_they_come_while_there_is_work_for_all() -> None:
    stage, chooser = TwoSites(), AutomaticMatcher()
    stage.need(*[{}] * 100)[0].shape.run.costs.extend([1.0, 9.0] * 50)
    assert not choice(stage, chooser)


def test_a_task_has_a_place_where_it_suits_whatever_it_would_be_elsewhere() -> None:
    """With little memory for many cores, it would fill several of them; where it may run, there are only two."""
    stage = Idle()
    stage.link["a"] = stage.join("a", cores=8, capacity={"memory": 8_000})
    stage.link["b"] = stage.join("b", cores=2, capacity={"memory": 64_000}, tags={"where": "b"})
    stage.need({}, spec=TaskSpec("python", request=Request(1.0, memory=4_000), tags={"where": "b"}))
    (proposal,) = Dispatcher(PlannedMatcher("max-min")).propose(stage.view())
    assert proposal.worker.id == "b"


def test_where_more_tasks_wait_than_were_looked_at_who_has_nothing_to_do_does_not_wait_long() -> None:
    stage = TwoSites()
    policy = Dispatcher(PlannedMatcher("max-min", max_tasks=2))
    stage.need(*[{}] * 8)
    assert len(stage.given(policy)) == 2
    assert policy.next_look_at(stage.view()) == pytest.approx(stage.now + IDLE_REPLAN_S)


@pytest.mark.parametrize("heuristic", HEURISTICS)
@pytest.mark.parametrize("quick_s", [0.0, 0.0005, 0.3])
def test_tasks_that_become_ready_do_not_wait_for_the_next_plan_while_somebody_idles(heuristic: Heuristic, quick_s: float) -> None:
    """However soon after a plan the task ended that they waited for."""
    stage = Stage(policy=Dispatcher(PlannedMatcher(heuristic)))
    run = stage.open_run()
    stage.submit(run, TaskSpec("python"), 4, deps={1: [0], 2: [0], 3: [1, 2]})
    link = stage.join("w", cores=2.0)
    for level in ([0], [1, 2], [3]):
        stage.wait(0.05)
        assert [number & 0xFFFF for number in stage.held[link]] == level
        stage.now += quick_s
        stage.finish(link)
    assert stage.machine.state.runs[run].counts[DONE] == 4


@pytest.mark.parametrize("matcher", [PlannedMatcher("max-min"), AutomaticMatcher()])
def test_where_shares_compete_no_plan_keeps_tasks_back(matcher: PlannedMatcher | AutomaticMatcher) -> None:
    stage = TwoSites()
    stage.need(*[{"large": 500 * MB}] * 4)
    view = stage.view()
    matching = matcher.match(view, view.roomy, list(stage.machine.state.ready), contested=True)
    assert not matching.governed and matcher.next_look_at(view) is None
