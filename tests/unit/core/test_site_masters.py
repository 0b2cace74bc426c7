"""Sites that match tasks by themselves, as the pool's master sees them: who speaks for a site, what it is lent, and what it is believed."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.agent.peers.site_matching import ANSWER_S, IDLE_ROUND_S
from pilotfish.core.state import Task
from pilotfish.model import effects as e
from pilotfish.model import inputs as i
from pilotfish.model import messages as m
from pilotfish.model.settings import PoolSettings
from pilotfish.model.states import ASSIGNED, DONE, READY
from pilotfish.model.task import TaskSpec
from tests.support.machine_stage import CLIENT, Stage
from tests.unit.core.test_site_events import POND, REEF, Told, add

LEASE_S = PoolSettings().lease_s


def door(number: int) -> dict[str, Any]:
    """What an agent says of itself that others can reach."""
    return {"peer": [f"{number:064x}", ["127.0.0.1", number]]}


class Site(Stage):
    """Workers with a door each, of one core; the first of them may be made to reign."""

    def __init__(self, *names: str, matching: str = "distributed") -> None:
        super().__init__(PoolSettings(matching=matching, linger_s=1e6))
        self.link = {name: self.enter(name, number) for number, name in enumerate(names, 1)}

    def enter(self, name: str, number: int, **offer: Any) -> int:
        return self.join(name, info=door(number), **offer)

    def introduced(self) -> list[e.IntroducePeer]:
        return [effect for effect in self.effects if isinstance(effect, e.IntroducePeer)]

    def say(self, name: str, message: m.FromAgent) -> list[e.Effect]:
        return self.tell(i.AgentMessage(self.link[name], message))

    def crown(self, name: str, *served: str, term: int = 1) -> None:
        self.say(name, m.SiteMasterClaim(term))
        self.say(name, m.DelegatedWorkers(list(served), []))

    def delegated(self, name: str) -> dict[int, int]:
        """What the last turn lent to it: task -> attempt."""
        return {sent.task: sent.attempt for lend in self.sent(m.Delegate, self.link[name]) for sent in lend.tasks}

    def result(self, name: str, task: Task, attempt: int) -> None:
        item = m.ResultItem(task.id, attempt, None, 1000, 1000, 1000, 1)
        self.tell(i.AgentMessage(self.link[name], m.Results(0, [item]), [b"r"]))


def two_sites() -> Stage:
    stage = Stage(PoolSettings(matching="distributed"), provisioner=Told())
    stage.tell(i.SitesRead({"pond": POND, "reef": REEF}))
    for name in ("pond", "reef"):
        stage.ask("site_use", site=name)
    return stage


def items(delegated: dict[int, int]) -> list[tuple[int, int]]:
    return list(delegated.items())


# --- who speaks for a site ------------------------------------------------------------------------------------------------------------


def test_the_first_to_come_is_appointed_and_the_others_are_told_of_it() -> None:
    stage = Site("a")
    (own,) = stage.introduced()
    assert (own.term, own.master) == (1, door(1)["peer"])
    stage.enter("b", 2)
    (other,) = stage.introduced()
    assert (other.term, other.master, other.contacts) == (1, door(1)["peer"], [door(1)["peer"]])


def test_where_the_master_matches_nobody_is_appointed() -> None:
    stage = Site("a", matching="central")
    (own,) = stage.introduced()
    assert (own.term, own.master) == (0, None)


def test_of_itself_a_site_matches_when_it_is_large() -> None:
    stage = Site("a", "b", matching="auto")
    stage.machine.large_site = 3
    assert [one.term for one in stage.introduced()] == [0]
    stage.enter("c", 3)
    assert [one.term for one in stage.introduced()] == [1]


def test_one_without_a_door_is_not_appointed() -> None:
    stage = Site()
    stage.join("mute")
    assert stage.introduced() == []
    stage.enter("a", 1)
    assert stage.introduced()[0].master == door(1)["peer"]


def test_when_the_appointed_one_is_gone_the_next_to_come_has_the_next_term() -> None:
    stage = Site("a")
    stage.lose("a")
    stage.enter("b", 2)
    assert [(one.term, one.master) for one in stage.introduced()] == [(2, door(2)["peer"])]


def test_each_site_has_a_master_of_its_own() -> None:
    stage = two_sites()
    masters = {}
    for number, (name, site) in enumerate([("p1", "pond"), ("r1", "reef"), ("p2", "pond"), ("r2", "reef")], 1):
        stage.join(name, pilot=add(stage, site), info=door(number))
        masters[name] = next(effect.master for effect in stage.effects if isinstance(effect, e.IntroducePeer))
    assert masters == {"p1": door(1)["peer"], "p2": door(1)["peer"], "r1": door(2)["peer"], "r2": door(2)["peer"]}


def test_an_older_term_is_not_believed_and_a_later_one_is() -> None:
    stage = Site("a", "b")
    stage.crown("a", "a", "b", term=3)
    stage.crown("b", "a", "b", term=2)
    stage.work(count=2)
    assert stage.delegated("a") and not stage.delegated("b")
    stage.crown("b", "a", "b", term=4)
    stage.work(count=2)
    assert stage.delegated("b") and not stage.delegated("a")


def test_what_a_deposed_master_has_goes_to_others() -> None:
    """Until the next one has vouched for somebody, all are served as anybody else."""
    stage = Site("a", "b")
    stage.crown("a", "a", "b")
    tasks = stage.work(count=3)
    assert len(stage.delegated("a")) == 3
    stage.crown("b", "a", "b", term=2)
    assert [task.attempt for task in tasks] == [2, 2, 2]
    assert not stage.machine.state.workers["a"].delegated
    assert stage.delegated("b") == {tasks[2].id: 2}


def test_a_master_that_is_not_one_any_more_is_not_lent_tasks_again_and_again() -> None:
    """Two of the same term: it is believed who said so last, until the network has settled whom it believes."""
    stage = Site("a", "b")
    stage.crown("a", "a", "b")
    stage.crown("b", "a", "b")
    stage.say("b", m.DelegatedTasks([]))
    stage.say("b", m.SiteMasterClaim(0))
    stage.crown("a", "a", "b")
    stage.work(count=2)
    assert stage.delegated("a") and not stage.delegated("b")


# --- for whom it speaks ---------------------------------------------------------------------------------------------------------------


def test_those_it_vouches_for_are_quiet_and_served_by_it_alone() -> None:
    stage = Site("a", "b", "c")
    stage.say("a", m.SiteMasterClaim(1))
    stage.say("a", m.DelegatedWorkers(["a", "b"], []))
    assert [stage.sent(m.SetHeartbeats, stage.link[name]) for name in "abc"] == [[m.SetHeartbeats(True)], [m.SetHeartbeats(True)], []]
    tasks = stage.work(count=12)
    assert list(stage.held) == [stage.link["c"]], "who is not vouched for is served as anybody else"
    assert sum(task.state == ASSIGNED for task in tasks) == len(stage.delegated("a")) + 1 > 2


def test_those_it_no_longer_vouches_for_speak_for_themselves() -> None:
    stage = Site("a", "b")
    stage.crown("a", "a", "b")
    stage.say("a", m.DelegatedWorkers([], ["b"]))
    assert stage.sent(m.SetHeartbeats, stage.link["b"]) == [m.SetHeartbeats(False)]
    stage.work(count=20)
    assert stage.held[stage.link["b"]]


def test_nobody_but_the_master_of_the_site_can_vouch() -> None:
    stage = Site("a", "b")
    stage.say("a", m.SiteMasterClaim(1))
    stage.say("b", m.DelegatedWorkers(["a", "b"], []))
    assert stage.sent(m.SetHeartbeats) == []
    stage.work(count=2)
    assert set(stage.held) == set(stage.link.values())


def test_it_cannot_vouch_for_workers_of_another_site_or_of_nobody() -> None:
    stage = two_sites()
    link = stage.join("p1", pilot=add(stage, "pond"), info=door(1))
    stage.join("r1", pilot=add(stage, "reef"), info=door(2))
    stage.tell(i.AgentMessage(link, m.SiteMasterClaim(1)))
    stage.tell(i.AgentMessage(link, m.DelegatedWorkers(["p1", "r1", "nobody"], [])))
    assert list(stage.machine.site_masters.by_site["pond"].served) == ["p1"]


def test_while_it_vouches_silence_is_forgiven_and_afterwards_it_is_not() -> None:
    stage = Site("a", "b")
    stage.crown("a", "a", "b")
    for _ in range(10):
        stage.wait(LEASE_S / 2)
        stage.say("a", m.DelegatedWorkers([], []))
    assert set(stage.machine.state.workers) == {"a", "b"}
    for _ in range(10):
        stage.wait(LEASE_S / 2)
        stage.say("a", m.Heartbeat([]))
    assert set(stage.machine.state.workers) == {"a"}


def test_a_short_lease_does_not_end_those_who_are_vouched_for_at_the_pace_of_a_site_at_rest() -> None:
    stage = Site("a", "b")
    stage.machine.settings = PoolSettings(matching="distributed", linger_s=1e6, lease_s=3.0)
    stage.crown("a", "a", "b")
    for _ in range(10):
        stage.wait(IDLE_ROUND_S + ANSWER_S)
        stage.say("a", m.DelegatedWorkers([], []))
    assert set(stage.machine.state.workers) == {"a", "b"}


def test_when_the_master_of_a_site_dies_its_loans_come_back_and_the_others_speak_for_themselves() -> None:
    stage = Site("a", "b")
    stage.crown("a", "a", "b")
    tasks = stage.work(count=4)
    stage.lose("a")
    assert stage.sent(m.SetHeartbeats, stage.link["b"]) == [m.SetHeartbeats(False)]
    assert len(stage.held[stage.link["b"]]) == 1, "served like anybody"
    assert [task.state for task in tasks].count(READY) == 3
    assert all(task.failure_counts is None for task in tasks), "nobody's failure"


def test_who_is_vouched_for_while_it_is_away_is_told_so_when_it_is_back() -> None:
    """Or it would tell nobody that it has room, and nobody would give it work: we leave that to its site's master."""
    stage = Site("a", "b")
    stage.restart()
    stage.link["a"] = stage.enter("a", 1)
    stage.crown("a", "a", "b")
    assert stage.sent(m.SetHeartbeats) == [m.SetHeartbeats(True)]
    stage.link["b"] = stage.enter("b", 2)
    assert stage.sent(m.SetHeartbeats, stage.link["b"]) == [m.SetHeartbeats(True)]
    stage.link["b"] = stage.enter("b", 2)
    assert stage.sent(m.SetHeartbeats, stage.link["b"]) == [m.SetHeartbeats(True)], "on every connection"


def test_who_is_not_vouched_for_is_not_quiet_when_it_is_back() -> None:
    stage = Site("a", "b")
    stage.crown("a", "a")
    stage.enter("b", 2)
    assert stage.sent(m.SetHeartbeats) == []


def test_a_master_that_introduces_itself_again_vouches_for_those_alone_that_it_names() -> None:
    """That another one is gone it may have said on a connection that was lost."""
    stage = Site("a", "b", "c")
    stage.crown("a", "a", "b", "c")
    stage.link["a"] = stage.enter("a", 1)
    stage.say("a", m.SiteMasterClaim(1))
    stage.say("a", m.DelegatedWorkers(["a", "b"], []))
    assert stage.sent(m.SetHeartbeats) == [m.SetHeartbeats(False)] == stage.sent(m.SetHeartbeats, stage.link["c"])
    stage.say("a", m.DelegatedWorkers(["c"], []))
    assert list(stage.machine.site_masters.by_site[""].served) == ["a", "b", "c"], "and then whom else it names"


@pytest.mark.parametrize("trouble", [m.Draining("its time is nearly over"), None])
def test_while_a_site_s_master_cannot_be_lent_tasks_its_workers_are_served_as_anybody_else(trouble: m.FromAgent | None) -> None:
    """Whatever other sites are lent."""
    stage = two_sites()
    link = {}
    for number, (name, site) in enumerate([("p1", "pond"), ("p2", "pond"), ("r1", "reef")], 1):
        link[name] = stage.join(name, pilot=add(stage, site), info=door(number))
    for name, served in (("p1", ["p1", "p2"]), ("r1", ["r1"])):
        stage.tell(i.AgentMessage(link[name], m.SiteMasterClaim(1)))
        stage.tell(i.AgentMessage(link[name], m.DelegatedWorkers(served, [])))
    stage.tell(i.AgentMessage(link["p1"], trouble) if trouble is not None else i.LinkClosed(link["p1"]))
    stage.work(count=20)
    assert list(stage.held) == [link["p2"]]
    assert stage.sent(m.Delegate, link["r1"])


# --- loans and claims -----------------------------------------------------------------------------------------------------------------


def test_a_spec_goes_with_the_first_loan_of_it_even_if_the_worker_had_tasks_of_it_before_and_the_other_way_round() -> None:
    """The two are kept apart in the agent: one is for its own slots, the other for whomever."""
    stage = Site("a")
    run = stage.open_run()
    known = stage.machine.state.runs[run]

    def submit(count: int) -> None:
        specs = [] if known.specs else [TaskSpec("python")]
        message = m.Submit(run, len(known.tasks), len(known.specs), specs, [0] * len(specs), [(0, 1)] * count)
        stage.tell(i.ClientMessage(CLIENT, message, [*[b""] * len(specs), *[b"x"] * count]))

    submit(1)
    assert [len(sent.specs) for sent in stage.sent(m.Assign)] == [1]
    stage.finish(stage.link["a"])
    stage.crown("a", "a")
    submit(3)
    assert [len(sent.specs) for sent in stage.sent(m.Delegate)] == [1]
    delegated = stage.delegated("a")
    stage.say("a", m.DelegatedWorkers([], ["a"]))
    stage.say("a", m.Returned(items(delegated)))
    assert [len(sent.specs) for sent in stage.sent(m.Assign)] == [0]


def test_what_is_claimed_is_the_workers_own_and_its_result_counts() -> None:
    stage = Site("a", "b")
    stage.crown("a", "a", "b")
    (task,) = stage.work()
    delegated = stage.delegated("a")
    stage.say("a", m.ClaimedTasks([("b", items(delegated))]))
    assert task.worker is stage.machine.state.workers["b"] and task in stage.machine.state.workers["b"].active
    stage.result("b", task, 1)
    assert task.state == DONE


def test_what_a_site_s_master_claims_for_itself_is_its_own_too() -> None:
    """Or its room would be counted twice, and what it runs would be lent anew whenever it says what is left of its loans."""
    stage = Site("a", "b")
    stage.crown("a", "a", "b")
    (task,) = stage.work()
    stage.say("a", m.ClaimedTasks([("a", items(stage.delegated("a")))]))
    worker = stage.machine.state.workers["a"]
    assert task in worker.active and not worker.delegated
    stage.say("a", m.DelegatedTasks([]))
    assert task.attempt == 1


def test_what_a_site_s_master_runs_when_it_is_back_is_its_own_even_if_its_claim_was_lost() -> None:
    stage = Site("a", "b")
    stage.crown("a", "a", "b")
    (task,) = stage.work()
    stage.link["a"] = stage.enter("a", 1, holding=[(task.id, 1, m.STARTED)])
    assert task in stage.machine.state.workers["a"].active
    stage.result("a", task, 1)
    assert (task.state, task.attempt) == (DONE, 1)


def test_a_claim_of_what_is_not_lent_is_stopped_where_it_was_given_to() -> None:
    stage = Site("a", "b")
    stage.crown("a", "a", "b")
    (task,) = stage.work()
    stage.say("a", m.ClaimedTasks([("b", [(task.id, 7)])]))
    assert stage.sent(m.Kill, stage.link["b"]) == [m.Kill([(task.id, 7)])]
    assert task.worker is stage.machine.state.workers["a"]


def test_a_worker_whose_result_is_quicker_than_the_claim_is_believed_and_the_claim_harms_nobody() -> None:
    stage = Site("a", "b")
    stage.crown("a", "a", "b")
    (task,) = stage.work()
    stage.result("b", task, 1)
    assert task.state == DONE and stage.machine.state.workers["b"].done == 1
    stage.say("a", m.ClaimedTasks([("b", [(task.id, 1)])]))
    assert task.state == DONE


def test_a_claim_of_what_its_worker_has_spoken_of_already_stops_nothing() -> None:
    """The worker said that it began before the master of its site said that it has it: it must not be killed for that."""
    stage = Site("a", "b")
    stage.crown("a", "a", "b")
    (task,) = stage.work()
    stage.say("b", m.Heartbeat([(task.id, 1)]))
    stage.say("a", m.ClaimedTasks([("b", [(task.id, 1)])]))
    assert stage.sent(m.Kill) == []
    stage.result("b", task, 1)
    assert task.state == DONE


def test_an_attempt_that_two_workers_have_counts_once() -> None:
    stage = Site("a", "b", "c")
    stage.crown("a", "a", "b", "c")
    (task,) = stage.work()
    stage.say("a", m.ClaimedTasks([("b", [(task.id, 1)])]))
    stage.result("c", task, 1)
    assert task.state != DONE and stage.machine.stale_results == 1
    stage.result("b", task, 1)
    stage.result("c", task, 1)
    assert task.state == DONE and stage.machine.state.workers["c"].done == 0


def test_a_late_result_of_an_attempt_that_was_called_back_changes_nothing() -> None:
    stage = Site("a", "b")
    stage.crown("a", "a", "b")
    (task,) = stage.work()
    stage.say("a", m.DelegatedTasks([]))
    assert task.attempt == 2
    stage.result("b", task, 1)
    assert task in stage.machine.state.workers["a"].delegated and stage.machine.stale_results == 1
    stage.result("b", task, 2)
    assert task.state == DONE


def test_workers_of_another_site_cannot_take_a_loan() -> None:
    stage = two_sites()
    pond = stage.join("p1", pilot=add(stage, "pond"), info=door(1))
    reef = stage.join("r1", pilot=add(stage, "reef"), info=door(2), tags={"dry": "yes"})
    stage.tell(i.AgentMessage(pond, m.SiteMasterClaim(1)))
    stage.tell(i.AgentMessage(pond, m.DelegatedWorkers(["p1"], [])))
    (task,) = stage.work(sites=("pond",))
    assert task in stage.machine.state.workers["p1"].delegated
    item = m.ResultItem(task.id, 1, None, 1000, 1000, 1000, 1)
    stage.tell(i.AgentMessage(reef, m.Results(0, [item]), [b"r"]))
    assert task.state == ASSIGNED and stage.machine.stale_results == 1


def test_a_claim_for_somebody_who_is_gone_leaves_no_task_behind() -> None:
    """It was told of its death sooner than of what it had been given."""
    stage = Site("a", "b")
    stage.crown("a", "a", "b")
    (task,) = stage.work()
    stage.lose("b")
    stage.say("a", m.ClaimedTasks([("b", [(task.id, 1)])]))
    stage.say("a", m.DelegatedWorkers([], []))
    assert task.attempt == 2 and task in stage.machine.state.workers["a"].delegated, "it is lent again"


def test_what_a_master_says_it_does_not_have_is_lent_again() -> None:
    stage = Site("a", "b")
    stage.crown("a", "a", "b")
    lost, kept = stage.work(count=2)
    stage.say("a", m.DelegatedTasks([(kept.id, 1)]))
    assert (lost.attempt, kept.attempt) == (2, 1)


def test_what_a_master_has_and_was_not_lent_is_dropped_there() -> None:
    stage = Site("a", "b")
    stage.crown("a", "a", "b")
    (task,) = stage.work()
    stage.say("a", m.DelegatedTasks([(task.id, 1), (task.id, 5)]))
    assert stage.sent(m.Kill, stage.link["a"]) == [m.Kill([(task.id, 5)])]


def test_work_that_a_site_did_without_the_master_counts_after_its_restart() -> None:
    """First comes who was lent it, with empty hands; then its claims, then the result."""
    stage = Site("a", "b")
    stage.crown("a", "a", "b")
    tasks = stage.work(count=2)
    stage.restart()
    tasks = [stage.machine.state.task(task.id) for task in tasks]
    stage.link["a"] = stage.enter("a", 1)
    stage.say("a", m.SiteMasterClaim(1))
    stage.say("a", m.ClaimedTasks([("b", [(tasks[0].id, 1)])]))
    stage.say("a", m.DelegatedTasks([(tasks[1].id, 1)]))
    stage.link["b"] = stage.enter("b", 2, holding=[(tasks[0].id, 1, m.FINISHED)])
    stage.result("b", tasks[0], 1)
    assert (tasks[0].state, tasks[0].attempt) == (DONE, 1)
    assert tasks[1].attempt == 1 and tasks[1] in stage.machine.state.workers["a"].delegated


def test_a_loan_that_never_arrived_comes_back_when_another_one_reigns_after_the_restart() -> None:
    """The one that it was lent to has been told by its peers that it does not reign any more, while we were away."""
    stage = Site("a", "b")
    stage.crown("a", "a", "b")
    (task,) = stage.work()
    stage.restart()
    task = stage.machine.state.task(task.id)
    stage.link["b"] = stage.enter("b", 1)
    stage.crown("b", "b", term=2)
    stage.link["a"] = stage.enter("a", 2)
    stage.say("a", m.DelegatedTasks([]))
    assert not stage.machine.state.workers["a"].delegated
    assert task.attempt == 2


def test_a_worker_that_calls_first_after_a_restart_keeps_what_it_was_given() -> None:
    stage = Site("a", "b")
    stage.crown("a", "a", "b")
    (task,) = stage.work()
    stage.restart()
    task = stage.machine.state.task(task.id)
    stage.link["b"] = stage.enter("b", 2, holding=[(task.id, 1, m.STARTED)])
    assert stage.sent(m.Kill) == []
    stage.link["a"] = stage.enter("a", 1)
    stage.say("a", m.SiteMasterClaim(1))
    stage.say("a", m.DelegatedTasks([]))
    stage.result("b", task, 1)
    assert (task.state, task.attempt) == (DONE, 1)
