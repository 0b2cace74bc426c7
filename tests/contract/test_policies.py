"""The policies of Pilotfish hold to the contract that plug-ins are tested with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import pytest

from pilotfish import plugins
from pilotfish.core.policy_interface import Policy, PolicyView, Proposal
from pilotfish.core.state import Task, TaskShape, Worker
from pilotfish.policies.dispatcher import Dispatcher
from pilotfish.policies.matcher_interface import Matching
from pilotfish.policies.matchers import FirstComeMatcher
from pilotfish.testing.policy_suite import PolicyContract


class EveryPolicy(PolicyContract):
    name: str

    def make_policy(self) -> Policy:
        policy: Policy = plugins.load("policies", self.name)()
        return policy


class TestWorkqueue(EveryPolicy):
    name = "workqueue"


class TestNear(EveryPolicy):
    name = "near"


class TestStealing(EveryPolicy):
    name = "stealing"


class TestMinMin(EveryPolicy):
    name = "min-min"


class TestMaxMin(EveryPolicy):
    name = "max-min"


class TestSufferage(EveryPolicy):
    name = "sufferage"


class TestXsufferage(EveryPolicy):
    name = "xsufferage"


class TestAuto(EveryPolicy):
    name = "auto"


def test_every_policy_is_tested() -> None:
    tested = {one.name for one in EveryPolicy.__subclasses__()}
    assert tested == {*plugins.BUILT_IN["policies"], *plugins.BUILT_IN["matchers"]}


class TestCarelessMatcher(PolicyContract):
    """The dispatcher makes up for a matcher that names tasks that do not fit: assignments get slow, never wrong."""

    def make_policy(self) -> Policy:
        return Dispatcher(CarelessMatcher())


class CarelessMatcher(FirstComeMatcher):
    """Names the first tasks of all shapes for the first worker, whether they fit or not."""

    def match(self, view: PolicyView, roomy: Sequence[Worker], shapes: Sequence[TaskShape], contested: bool) -> Matching:
        tasks = [task for shape in shapes for task in islice(shape.queue, 3)]
        return Matching({roomy[0].id: tasks} if roomy else {})


class Lazy:
    """A policy that never gives anybody anything."""

    def propose(self, outlook: PolicyView) -> Sequence[Proposal]:
        return []

    def next_look_at(self, outlook: PolicyView) -> float | None:
        return None

    def why(self, task: Task) -> str:
        return ""

    def describe(self) -> str:
        return ""


def test_the_suite_finds_a_policy_that_leaves_tasks_undone() -> None:
    suite = PolicyContract()
    suite.make_policy = Lazy  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="tasks were left"):
        suite.test_all_tasks_are_done_once()
