"""Every message of the wire contract, written and read by both sides: msgspec at the master, the standard library in the agent."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from pilotfish.agent.node.agent_machine import AgentMachine, WorkerOffer
from pilotfish.model import messages as wire
from pilotfish.model.contents import Content, ExpectedFile, IntermediateFile, ProducedContent
from pilotfish.model.task import Failure, Request, RunOptions, TaskSpec
from pilotfish.portable.wire import frames as agent_frames

FAILURE = Failure("exit", "task", 'it said "no" ünïcode \u2028 and \\ a backslash')

MADE = ProducedContent("ab" * 32, 5, True, True, "a/b", 0o755)
CONTENT = Content("ab" * 32, 1 << 41, "/data/x", 10**18, 77)

EXAMPLES: list[Any] = [
    wire.Banner(1, "ab" * 32),
    wire.Prove(1, "agent", "pilot:p", "cd" * 32, "ef" * 32),
    wire.Proved("ab" * 32, 7),
    wire.Refused("wrong key"),
    wire.Hello("w", "p", {"cores": 2.0, "memory": 1e10}, {"site": "here"}, {"cpu": "fast", "gpus": []}, None, 0.0, [(1 << 40, 1, 2)]),
    wire.Hello("w", "p", {}, {}, {}, 3600.5, 30.0, []),
    wire.Bulk(),
    wire.Bulk("w"),
    wire.Heartbeat([(1 << 32 | 5, 1)]),
    wire.Heartbeat([]),
    wire.Heartbeat([], [("ab" * 32, 1, 1 << 40)], [1, 2, 3, 4, 5, 6, 7, 1 << 50]),
    wire.Introduce("here", "ab" * 32, "-----BEGIN", "-----BEGIN", [["ab" * 32, ["10.0.0.1", 7]]]),
    wire.SiteMasterClaim(3),
    wire.DelegatedWorkers(["w"], ["v"]),
    wire.ClaimedTasks([("w", [(1, 2)])]),
    wire.DelegatedTasks([(1, 2)]),
    wire.SetHeartbeats(True),
    wire.ReleaseContents(["ab" * 32]),
    wire.Delegate([], [wire.SentTask(1 << 33, 2, 1, 100, 1.5, 1 << 30)]),
    wire.CacheReport(["ab" * 32], ["cd" * 32], True),
    wire.Results(
        12,
        [
            wire.ResultItem(1 << 52, 3, FAILURE, 1, 2, 3, 0),
            wire.ResultItem(2, 1, None, 10**12, 0, 0, 9, [MADE]),
        ],
    ),
    wire.Returned([(4, 1)]),
    wire.Draining("nearly over"),
    wire.Leave("drained"),
    wire.AgentDied("w", "signal 9"),
    wire.Peeked(3, True, 1024),
    wire.Welcome(7, 5.0, 60.0),
    wire.Assign(
        [wire.SentSpec(1, "python", 1.5, {"cores": 1.0}, {"env": {"A": "b"}, "cwd": None, "python": [3, 11]}, 10, (CONTENT,))],
        [wire.SentTask(1 << 33, 2, 1, 100, 1.5, 1 << 30, (CONTENT, CONTENT), (IntermediateFile("a/b", 0o644, "ab" * 32, 5),))],
    ),
    wire.Acked(0, 11),
    wire.Kill([(1, 1), (2, 3)]),
    wire.Recall([(1, 1)]),
    wire.HeartbeatAck(),
    wire.Drain("enough"),
    wire.Retire("done"),
    wire.Peek(3, 1, 1, 2, 0),
    wire.Open("uid", RunOptions(name="n")),
    wire.Submit(1, 0, 0, [TaskSpec("exec", request=Request(cores=2.0))], [0], [(0, 5)], {1: [0]}, 4, {0: (CONTENT,)}),
    wire.Submit(1, 0, 0, [], [], [(0, 5)], {1: [0]}, expected_files={1: (ExpectedFile(0, "a/b", "c"),)}),
    wire.Submit(1, 0, 0, [TaskSpec("exec", concurrency_limit=("x", 2))], [0], [(0, 5)], after_any={1: [0]}),
    wire.Close(1),
    wire.Watch(1, 0, True),
    wire.Taken(1, 5),
    wire.Ask(1, "status", {"run": 1}),
    wire.Ask(1, "cancel", {"run": 1}, "a-1"),
    wire.Opened("uid", 1, 0, 0, 0),
    wire.Accepted(1, 5),
    wire.Ended(1, 0, [wire.EndedItem(0, 4, None, 1, 2, 3, 4), wire.EndedItem(1, 5, FAILURE, 1, 2, 3, 4)]),
    wire.Began(1, [1, 2]),
    wire.RunFinished(1, {"done": 5}),
    wire.Answer(1, {"rows": [1, None, "x"]}),
    wire.Problem(-1, "P1100", "no", "yes"),
]


def message_types() -> list[type]:
    found = [value for value in vars(wire).values() if isinstance(value, type) and issubclass(value, wire.Message)]
    return [kind for kind in found if kind is not wire.Message]


def read_by_agent(data: bytes) -> tuple[list[Any], bytes]:
    reader = agent_frames.FrameReader()
    reader.proved = True
    room = reader.room()
    room[: len(data)] = data
    reader.received(len(data))
    ((header, body),) = list(reader.frames())
    return header, bytes(body)


def test_there_is_an_example_of_every_message() -> None:
    assert {type(example) for example in EXAMPLES} == set(message_types())


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_what_the_master_writes_the_agent_reads_and_writes_back_the_same(message: Any) -> None:
    encoded = wire.encode(message)
    header, body = read_by_agent(agent_frames.PREFIX.pack(len(encoded), 4) + encoded + b"body")
    assert header == json.loads(encoded) and body == b"body"
    written = b"".join(agent_frames.frame_buffers(header, [b"bo", b"dy"]))
    header_length, body_length = agent_frames.PREFIX.unpack_from(written)
    assert body_length == 4 and written.endswith(b"body")
    again = written[agent_frames.PREFIX.size : agent_frames.PREFIX.size + header_length]
    assert msgspec.json.decode(again, type=type(message)) == message


def test_both_sides_agree_on_the_states_of_attempts() -> None:
    from pilotfish.agent.node import attempts

    assert (attempts.QUEUED, attempts.STARTED, attempts.FINISHED) == (wire.QUEUED, wire.STARTED, wire.FINISHED)


def test_the_agent_has_the_version_of_the_package() -> None:
    from importlib.metadata import version

    from pilotfish.agent import VERSION

    assert version("pilotfish") == VERSION


def test_everything_the_machine_sends_is_understood_by_the_master() -> None:
    """The machine's own headers, not examples: each must decode into its Struct."""
    offer = WorkerOffer("w", "p", {"cores": 1.0})
    offer.ends_at = 100.0
    machine = AgentMachine(offer, seed=1, now=0.0)
    headers: list[list[Any]] = []

    def turn(now: float) -> None:
        headers.extend(effect[1] for effect in machine.turn(now) if effect[0] == "send")

    def tell(message: Any) -> None:
        machine.received(json.loads(wire.encode(message)), b"", 0.0)

    turn(0.0)
    machine.linked(1, 0.0)
    turn(0.0)
    tell(wire.Welcome(1, 5.0, 60.0))
    spec = wire.SentSpec(1, "python", 0.0, {"cores": 1.0}, {}, 0)
    tell(wire.Assign([spec], [wire.SentTask(task, 1, 1, 0, 0, 0) for task in range(3)]))
    turn(0.0)
    turn(0.06)
    tell(wire.Recall([(2, 1)]))
    tell(wire.Peek(1, 7, 1, 1, 0))
    machine.slot_finished(0, [(["exit", "task", "status 1"], 5, 6, 7, b"payload")], 0.1)
    turn(0.1)
    turn(0.4)
    machine.stop("enough", 0.5)
    turn(0.5)
    kinds = {type(wire.decode_from_agent(json.dumps(header).encode())) for header in headers}
    assert kinds == {wire.Hello, wire.Heartbeat, wire.Returned, wire.Peeked, wire.Results, wire.Leave}
