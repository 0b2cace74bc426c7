"""The agent's machine and contents: what is fetched, what waits for it, what is stowed, and what the master is told."""

from __future__ import annotations

from typing import Any

from pilotfish.agent.node.agent_machine import AgentMachine
from tests.unit.agent.test_agent_machine import joined, of, ok, sent, starts

A, B = "a" * 64, "b" * 64


def content(digest: str, size: int = 10) -> list[Any]:
    return [digest, size, "/home/me/data", 1, 2]


def assign(*tasks: tuple[int, list[Any]], shared: list[Any] | None = None) -> list[Any]:
    spec = [1, "exec", 0.0, {"cores": 1.0}, {}, 0, shared or [], "", "", {}]
    return ["assign", [spec], [[task, 1, 1, 0, 0, 0, contents, []] for task, contents in tasks]]


def fetches(effects: list[Any]) -> list[str]:
    return [effect[1][0] for effect in of(effects, "fetch")]


def settle(machine: AgentMachine) -> None:
    machine.turn(0.0)


def test_an_attempt_starts_when_all_its_contents_are_here() -> None:
    machine = joined()
    machine.heard(assign((1, [content(A), content(B)])), b"", 0.0)
    effects = machine.turn(0.0)
    assert fetches(effects) == [A, B] and not starts(effects)
    machine.fetched(A, 1.0)
    assert not starts(machine.turn(1.0))
    machine.fetched(B, 2.0)
    assert starts(machine.turn(2.0)) == {0: [1]}


def test_others_do_not_wait_for_one_that_waits_for_its_contents() -> None:
    machine = joined()
    machine.heard(assign((1, [content(A)]), (2, [])), b"", 0.0)
    assert starts(machine.turn(0.0)) == {0: [2]}


def test_what_several_need_is_fetched_once() -> None:
    machine = joined()
    machine.heard(assign((1, [content(A)]), (2, []), shared=[content(A)]), b"", 0.0)
    assert fetches(machine.turn(0.0)) == [A]
    machine.fetched(A, 1.0)
    assert starts(machine.turn(1.0)) == {0: [1], 1: [2]}


def test_what_was_seen_lately_is_not_looked_for_again_but_later_it_is() -> None:
    machine = joined()
    machine.heard(assign((1, [content(A)])), b"", 0.0)
    machine.turn(0.0)
    machine.fetched(A, 0.0)
    machine.turn(0.0)
    machine.slot_finished(0, [ok()], 1.0)
    machine.turn(1.0)
    machine.heard(assign((2, [content(A)])), b"", 10.0)
    assert starts(machine.turn(10.0)) == {0: [2]}
    machine.slot_finished(0, [ok()], 11.0)
    machine.heard(assign((3, [content(A)])), b"", 1000.0)
    assert fetches(machine.turn(1000.0)) == [A]


def test_what_is_gone_from_the_cache_is_fetched_again() -> None:
    machine = joined()
    machine.heard(assign((1, [content(A)])), b"", 0.0)
    machine.turn(0.0)
    machine.fetched(A, 0.0)
    machine.turn(0.0)
    machine.slot_finished(0, [ok()], 1.0)
    machine.staging.changed([], [A])
    machine.heard(assign((2, [content(A)])), b"", 2.0)
    assert fetches(machine.turn(2.0)) == [A]


def test_contents_are_wanted_until_the_attempt_has_ended() -> None:
    machine = joined()
    machine.heard(assign((1, [content(A)]), (2, [content(A)])), b"", 0.0)
    machine.turn(0.0)
    machine.fetched(A, 0.0)
    machine.turn(0.0)
    assert machine.staging.wanted == {A: 2}
    machine.slot_finished(0, [ok()], 1.0)
    machine.slot_finished(1, [ok()], 1.0)
    assert machine.staging.wanted == {}


def test_contents_of_what_was_sent_ahead_and_killed_are_not_wanted_for_ever() -> None:
    machine = joined(cores=1.0)
    machine.heard(assign(*[(task, []) for task in range(5)], shared=[content(A)]), b"", 0.0)
    machine.turn(0.0)
    machine.fetched(A, 0.0)
    machine.turn(0.0)
    machine.slot_finished(0, [ok(wall_us=100)], 0.001)
    assert starts(machine.turn(0.001)) == {0: [1, 2, 3, 4]}
    machine.heard(["kill", [[3, 1]]], b"", 0.002)
    machine.slot_died(0, 1, ["crash", "task", "signal 11"], (5, 6, 7), 0.003)
    assert machine.staging.wanted == {A: 2}


def test_a_content_that_cannot_be_got_fails_all_that_need_it() -> None:
    machine = joined()
    machine.heard(assign((1, [content(A)]), (2, [content(A)]), (3, [content(B)])), b"", 0.0)
    machine.turn(0.0)
    machine.not_fetched(A, ["missing-input", "user", "it was changed"], 1.0)
    (results,) = sent(machine.turn(1.0), "results")
    assert [(row[0], row[2]) for row in results[2]] == [(task, ["missing-input", "user", "it was changed"]) for task in (1, 2)]
    assert machine.staging.wanted == {B: 1}


def test_what_nobody_needs_any_more_is_not_fetched_any_more() -> None:
    machine = joined()
    machine.heard(assign((1, [content(A)]), (2, [content(A)])), b"", 0.0)
    machine.turn(0.0)
    machine.heard(["kill", [[1, 1]]], b"", 1.0)
    assert not of(machine.turn(1.0), "unfetch")
    machine.heard(["recall", [[2, 1]]], b"", 1.0)
    effects = machine.turn(1.0)
    assert of(effects, "unfetch") == [("unfetch", A)] and sent(effects, "returned") == [["returned", [[2, 1]]]]
    machine.fetched(A, 2.0)
    assert not starts(machine.turn(2.0))


def test_what_waits_for_contents_is_told_as_queued() -> None:
    machine = joined()
    machine.heard(assign((1, [content(A)])), b"", 0.0)
    machine.turn(0.0)
    machine.unlinked(1.0)
    machine.turn(1.0)
    machine.linked(1, 2.0)
    (hello,) = sent(machine.turn(2.0), "hello")
    assert hello[8] == [[1, 1, 0]]


def test_the_master_is_told_all_that_is_here_and_then_what_changes() -> None:
    machine = joined()
    machine.heard(assign((1, [content(A)])), b"", 0.0)
    machine.turn(0.0)
    machine.fetched(A, 1.0)
    assert sent(machine.turn(1.0), "holds") == [["holds", [A], [], False]]
    machine.staging.changed([B], [A])
    assert sent(machine.turn(2.0), "holds") == [["holds", [B], [A], False]]
    assert not sent(machine.turn(3.0), "holds")
    machine.heard(["welcome", 1, 5.0, 60.0], b"", 4.0)
    assert sent(machine.turn(4.0), "holds") == [["holds", [B], [], True, []]]


def test_a_full_disk_sends_the_task_elsewhere_and_takes_no_more() -> None:
    machine = joined()
    machine.heard(assign((1, [content(A)]), (2, [content(B)])), b"", 0.0)
    machine.turn(0.0)
    machine.not_fetched(A, ["disk", "worker", "no room"], 1.0)
    effects = machine.turn(1.0)
    (results,) = sent(effects, "results")
    assert results[2][0][2][:2] == ["disk", "worker"]
    assert sent(effects, "draining") == [["draining", "no room"]] and sent(effects, "returned") == [["returned", [[2, 1]]]]


def test_large_outputs_are_stowed_before_the_result_is_told() -> None:
    machine = joined()
    machine.heard(assign((1, [])), b"", 0.0)
    machine.turn(0.0)
    machine.slot_finished(0, [(*ok()[:4], b"report", [])], 1.0)
    effects = machine.turn(1.0)
    assert of(effects, "stow") == [("stow", 1, b"report")] and not sent(effects, "results")
    machine.unlinked(2.0)
    machine.turn(2.0)
    machine.linked(1, 3.0)
    (hello,) = sent(machine.turn(3.0), "hello")
    assert hello[8] == [[1, 1, 1]]
    machine.heard(["welcome", 1, 5.0, 60.0], b"", 3.0)
    machine.stowed(1, None, b"stowed report", [[A, 10, True, True, "a", 420]], 4.0)
    effects = machine.turn(4.0)
    (results,) = sent(effects, "results")
    assert results[2][0][0] == 1 and results[2][0][6:] == [len(b"stowed report"), [[A, 10, True, True, "a", 420]]]
    assert A in machine.staging.holds


def test_files_of_an_attempt_that_nobody_wants_are_thrown_away() -> None:
    machine = joined()
    machine.heard(assign((1, [])), b"", 0.0)
    machine.turn(0.0)
    machine.heard(["kill", [[1, 1]]], b"", 0.5)
    machine.turn(0.5)
    machine.slot_finished(0, [(*ok()[:4], b"report", [])], 1.0)
    assert of(machine.turn(1.0), "discard") == [("discard", b"report")]


def test_an_agent_that_drains_stays_until_all_is_stowed() -> None:
    machine = joined()
    machine.heard(assign((1, [])), b"", 0.0)
    machine.turn(0.0)
    machine.slot_finished(0, [(*ok()[:4], b"report", [])], 1.0)
    machine.heard(["drain", "enough"], b"", 1.0)
    assert not of(machine.turn(1.0), "exit")
    machine.stowed(1, None, b"", [], 2.0)
    machine.turn(2.0)
    machine.heard(["acked", 0, 0], b"", 3.0)
    assert of(machine.turn(3.0), "exit")


def test_the_master_is_asked_about_what_was_kept_for_an_attempt_that_it_has_stopped() -> None:
    machine = joined()
    machine.heard(assign((1, [])), b"", 0.0)
    machine.turn(0.0)
    machine.slot_finished(0, [(None, 1, 1, 1, b"report", [])], 1.0)
    machine.turn(1.0)
    machine.heard(["kill", [[1, 1]]], b"", 2.0)
    machine.turn(2.0)
    machine.stowed(1, None, b"stowed report", [[A, 10, False, True, "a", 420], [B, 10, True, True, "b", 420]], 3.0)
    effects = machine.turn(3.0)
    assert sent(effects, "holds") == [["holds", [A, B], [], False, [A]]]
    assert not sent(effects, "results")
