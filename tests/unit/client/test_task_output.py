"""Outputs of many tasks are fetched with few requests."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pilotfish.client.outputs import task_output
from pilotfish.client.outputs.task_output import TaskOutput, fetch_outputs, last_line
from pilotfish.client.session import PoolSession
from pilotfish.client.submission import Reply
from pilotfish.portable.output_marks import CAP, mark
from pilotfish.portable.payload_format import pack


class PartialMaster:
    """Answers with the outputs of at most two tasks at a time, as a master does when outputs are large."""

    contents = None

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def wait(self, request: Reply) -> Reply:
        return request

    def request(self, kind: str, tasks: list[str]) -> Reply:
        assert kind == "outputs"
        self.asked.append(tasks)
        parts = [f"result of {task}".encode() for task in tasks[:2]]
        return Reply({"lengths": [len(part) for part in parts]}, b"".join(parts))


def row(index: int, state: str = "done") -> dict[str, Any]:
    return {"id": f"1.{index}", "index": index, "kind": "exec", "state": state}


def fetched(rows: list[dict[str, Any]], monkeypatch: Any) -> tuple[PartialMaster, list[tuple[int, bytes]]]:
    seen: list[tuple[int, bytes]] = []
    monkeypatch.setattr(task_output, "TaskOutput", lambda row, payload, kept: seen.append((row["index"], payload)))
    master = PartialMaster()
    list(fetch_outputs(cast(PoolSession, master), iter(rows)))
    return master, seen


def test_the_rest_is_asked_for_when_an_answer_has_only_a_part(monkeypatch: Any) -> None:
    master, seen = fetched([row(0), row(1, "running"), row(2, "failed"), row(3), row(4, "cancelled"), row(5)], monkeypatch)
    assert seen == [(0, b"result of 1.0"), (1, b""), (2, b"result of 1.2"), (3, b"result of 1.3"), (4, b""), (5, b"result of 1.5")]
    assert master.asked == [["1.0", "1.2", "1.3", "1.5"], ["1.3", "1.5"]]


def test_tasks_without_output_cost_no_request(monkeypatch: Any) -> None:
    master, seen = fetched([row(0, "ready"), row(1, "cancelled")], monkeypatch)
    assert (master.asked, len(seen)) == ([], 2)


def test_one_request_is_made_for_many_tasks_and_the_next_one_before_its_answer_is_used(monkeypatch: Any) -> None:
    monkeypatch.setattr(task_output, "TASKS_PER_REQUEST", 3)
    master, seen = fetched([row(index) for index in range(7)], monkeypatch)
    assert [index for index, _ in seen] == list(range(7))
    assert [names[0] for names in master.asked] == ["1.0", "1.3", "1.2", "1.6", "1.5"]


def test_a_value_of_a_module_that_is_not_here_is_shown_with_the_reason() -> None:
    value = b"cmodule_of_the_user\nPoint\n."
    output = TaskOutput({**row(0), "kind": "python"}, pack([b"", value, b"", b""]))
    shown = "<not readable here: No module named 'module_of_the_user'>"
    assert (output.result_line(), output.cell(), output.readable) == (shown, shown, False)
    assert output.saved_value() == ("value.pickle", value)


MARK = mark(29_000_000, 30_000_000, CAP)


@pytest.mark.parametrize(
    ("stdout", "result"),
    [
        (b"x" * 50 + MARK + b"y" * 50 + b"\n", f"{MARK.decode().strip()} {'y' * 50}"),
        (b"x" * 50 + MARK + b"yyy\nlast\n\n", "last"),
        (b"x" * 50 + MARK + b"\nlast\n", "last"),
        (b"x\n y \n", "y"),
        (b"\n", ""),
    ],
)
def test_a_last_line_without_its_beginning_is_marked(stdout: bytes, result: str) -> None:
    assert last_line(stdout) == result
