"""Tests the contents of the agent machine: fetches, attempts that wait, uploads, and reports to the master."""

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
    machine.received(assign((1, [content(A), content(B)])), b"", 0.0)
    effects = machine.turn(0.0)
    assert fetches(effects) == [A, B] and not starts(effects)
    machine.fetched(A, 1.0)
    assert not starts(machine.turn(1.0))
    machine.fetched(B, 2.0)
    assert starts(machine.turn(2.0)) == {0: [1]}


def test_an_attempt_that_waits_for_contents_does_not_block_others() -> None:
    machine = joined()
    machine.received(assign((1, [content(A)]), (2, [])), b"", 0.0)
    assert starts(machine.turn(0.0)) == {0: [2]}


def test_a_content_that_several_attempts_need_is_fetched_once() -> None:
    machine = joined()
    machine.received(assign((1, [content(A)]), (2, []), shared=[content(A)]), b"", 0.0)
    assert fetches(machine.turn(0.0)) == [A]
    machine.fetched(A, 1.0)
    assert starts(machine.turn(1.0)) == {0: [1], 1: [2]}


def test_a_content_seen_recently_is_not_fetched_again_but_later_it_is() -> None:
    machine = joined()
    machine.received(assign((1, [content(A)])), b"", 0.0)
    machine.turn(0.0)
    machine.fetched(A, 0.0)
    machine.turn(0.0)
    machine.slot_finished(0, [ok()], 1.0)
    machine.turn(1.0)
    machine.received(assign((2, [content(A)])), b"", 10.0)
    assert starts(machine.turn(10.0)) == {0: [2]}
    machine.slot_finished(0, [ok()], 11.0)
    machine.received(assign((3, [content(A)])), b"", 1000.0)
    assert fetches(machine.turn(1000.0)) == [A]


def test_an_evicted_content_is_fetched_again() -> None:
    machine = joined()
    machine.received(assign((1, [content(A)])), b"", 0.0)
    machine.turn(0.0)
    machine.fetched(A, 0.0)
    machine.turn(0.0)
    machine.slot_finished(0, [ok()], 1.0)
    machine.staging.changed([], [A])
    machine.received(assign((2, [content(A)])), b"", 2.0)
    assert fetches(machine.turn(2.0)) == [A]


def test_contents_are_wanted_until_the_attempt_has_ended() -> None:
    machine = joined()
    machine.received(assign((1, [content(A)]), (2, [content(A)])), b"", 0.0)
    machine.turn(0.0)
    machine.fetched(A, 0.0)
    machine.turn(0.0)
    assert machine.staging.needed == {A: 2}
    machine.slot_finished(0, [ok()], 1.0)
    machine.slot_finished(1, [ok()], 1.0)
    assert machine.staging.needed == {}


def test_contents_of_a_prefetched_attempt_that_was_killed_are_released() -> None:
    machine = joined(cores=1.0)
    machine.received(assign(*[(task, []) for task in range(5)], shared=[content(A)]), b"", 0.0)
    machine.turn(0.0)
    machine.fetched(A, 0.0)
    machine.turn(0.0)
    machine.slot_finished(0, [ok(wall_us=100)], 0.001)
    assert starts(machine.turn(0.001)) == {0: [1, 2, 3, 4]}
    machine.received(["kill", [[3, 1]]], b"", 0.002)
    machine.slot_died(0, 1, ["crash", "task", "signal 11"], (5, 6, 7), 0.003)
    assert machine.staging.needed == {A: 2}


def test_a_content_that_cannot_be_fetched_fails_all_attempts_that_need_it() -> None:
    machine = joined()
    machine.received(assign((1, [content(A)]), (2, [content(A)]), (3, [content(B)])), b"", 0.0)
    machine.turn(0.0)
    machine.not_fetched(A, ["missing-input", "user", "it was changed"], 1.0)
    (results,) = sent(machine.turn(1.0), "results")
    assert [(row[0], row[2]) for row in results[2]] == [(task, ["missing-input", "user", "it was changed"]) for task in (1, 2)]
    assert machine.staging.needed == {B: 1}


def test_a_content_that_no_attempt_needs_any_more_is_not_fetched() -> None:
    machine = joined()
    machine.received(assign((1, [content(A)]), (2, [content(A)])), b"", 0.0)
    machine.turn(0.0)
    machine.received(["kill", [[1, 1]]], b"", 1.0)
    assert not of(machine.turn(1.0), "cancel_fetch")
    machine.received(["recall", [[2, 1]]], b"", 1.0)
    effects = machine.turn(1.0)
    assert of(effects, "cancel_fetch") == [("cancel_fetch", A)] and sent(effects, "returned") == [["returned", [[2, 1]]]]
    machine.fetched(A, 2.0)
    assert not starts(machine.turn(2.0))


def test_an_attempt_that_waits_for_contents_is_reported_as_queued() -> None:
    machine = joined()
    machine.received(assign((1, [content(A)])), b"", 0.0)
    machine.turn(0.0)
    machine.unlinked(1.0)
    machine.turn(1.0)
    machine.linked(1, 2.0)
    (hello,) = sent(machine.turn(2.0), "hello")
    assert hello[8] == [[1, 1, 0]]


def test_the_master_gets_all_contents_first_and_then_changes() -> None:
    machine = joined()
    machine.received(assign((1, [content(A)])), b"", 0.0)
    machine.turn(0.0)
    machine.fetched(A, 1.0)
    assert sent(machine.turn(1.0), "holds") == [["holds", [A], [], False]]
    machine.staging.changed([B], [A])
    assert sent(machine.turn(2.0), "holds") == [["holds", [B], [A], False]]
    assert not sent(machine.turn(3.0), "holds")
    machine.received(["welcome", 1, 5.0, 60.0], b"", 4.0)
    assert sent(machine.turn(4.0), "holds") == [["holds", [B], [], True, []]]


def test_the_master_hears_that_the_last_contents_went_between_hello_and_welcome() -> None:
    machine = joined()
    machine.staging.changed([A], [])
    machine.turn(0.0)
    machine.staging.changed([], [A])
    machine.received(["welcome", 1, 5.0, 60.0], b"", 1.0)
    assert sent(machine.turn(1.0), "holds") == [["holds", [], [], True, []]]


def test_a_full_disk_fails_the_attempt_and_drains_the_agent() -> None:
    machine = joined()
    machine.received(assign((1, [content(A)]), (2, [content(B)])), b"", 0.0)
    machine.turn(0.0)
    machine.not_fetched(A, ["disk", "worker", "no room"], 1.0)
    effects = machine.turn(1.0)
    (results,) = sent(effects, "results")
    assert results[2][0][2][:2] == ["disk", "worker"]
    assert sent(effects, "draining") == [["draining", "no room"]] and sent(effects, "returned") == [["returned", [[2, 1]]]]


def test_large_outputs_are_uploaded_before_the_result_is_sent() -> None:
    machine = joined()
    machine.received(assign((1, [])), b"", 0.0)
    machine.turn(0.0)
    machine.slot_finished(0, [(*ok()[:4], b"report", [])], 1.0)
    effects = machine.turn(1.0)
    assert of(effects, "upload") == [("upload", 1, b"report")] and not sent(effects, "results")
    machine.unlinked(2.0)
    machine.turn(2.0)
    machine.linked(1, 3.0)
    (hello,) = sent(machine.turn(3.0), "hello")
    assert hello[8] == [[1, 1, 1]]
    machine.received(["welcome", 1, 5.0, 60.0], b"", 3.0)
    machine.uploaded(1, None, b"uploaded report", [[A, 10, True, True, "a", 420]], 4.0)
    effects = machine.turn(4.0)
    (results,) = sent(effects, "results")
    assert results[2][0][0] == 1 and results[2][0][6:] == [len(b"uploaded report"), [[A, 10, True, True, "a", 420]]]
    assert A in machine.staging.holds


def test_files_of_a_killed_attempt_are_discarded() -> None:
    machine = joined()
    machine.received(assign((1, [])), b"", 0.0)
    machine.turn(0.0)
    machine.received(["kill", [[1, 1]]], b"", 0.5)
    machine.turn(0.5)
    machine.slot_finished(0, [(*ok()[:4], b"report", [])], 1.0)
    assert of(machine.turn(1.0), "discard") == [("discard", b"report")]


def test_a_failed_attempt_keeps_its_failure_if_its_outputs_cannot_be_uploaded() -> None:
    machine = joined()
    machine.received(assign((1, [])), b"", 0.0)
    machine.turn(0.0)
    machine.slot_finished(0, [(["exit", "task", "exit status 2"], *ok()[1:4], b"report", [])], 1.0)
    machine.turn(1.0)
    machine.uploaded(1, ["disk", "worker", "the cache is full"], b"", [], 2.0)
    (results,) = sent(machine.turn(3.0), "results")
    assert results[2][0][2] == ["exit", "task", "exit status 2; its output files were not all kept: the cache is full"]


def test_a_draining_agent_stays_until_all_uploads_have_ended() -> None:
    machine = joined()
    machine.received(assign((1, [])), b"", 0.0)
    machine.turn(0.0)
    machine.slot_finished(0, [(*ok()[:4], b"report", [])], 1.0)
    machine.received(["drain", "enough"], b"", 1.0)
    assert not of(machine.turn(1.0), "exit")
    machine.uploaded(1, None, b"", [], 2.0)
    machine.turn(2.0)
    machine.received(["acked", 0, 0], b"", 3.0)
    assert of(machine.turn(3.0), "exit")


def test_the_master_is_asked_about_contents_kept_for_an_attempt_that_it_has_stopped() -> None:
    machine = joined()
    machine.received(assign((1, [])), b"", 0.0)
    machine.turn(0.0)
    machine.slot_finished(0, [(None, 1, 1, 1, b"report", [])], 1.0)
    machine.turn(1.0)
    machine.received(["kill", [[1, 1]]], b"", 2.0)
    machine.turn(2.0)
    machine.uploaded(1, None, b"uploaded report", [[A, 10, False, True, "a", 420], [B, 10, True, True, "b", 420]], 3.0)
    effects = machine.turn(3.0)
    assert sent(effects, "holds") == [["holds", [A, B], [], False, [A]]]
    assert not sent(effects, "results")
