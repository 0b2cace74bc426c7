"""pilotfish pilots, against a fake master."""

from __future__ import annotations

import json
from typing import Any

from tests.support.fake_session import FakeMaster
from tests.unit.cli.conftest import CommandLine


def pilot(name: str, state: str, **more: Any) -> dict[str, Any]:
    row = {"pilot": name, "site": "hpc", "state": state, "cores": 16.0, "job": "", "workers": [], "reason": "", "requested_at": 1000.0}
    return {**row, "joined_at": None, "queue_note": "", **more}


def test_pilots_are_listed_with_job_wait_and_note(pilotfish: CommandLine, master: FakeMaster) -> None:
    master.now = 1090.0
    master.pilots = [
        pilot("hpc-1", "active", job="4711", joined_at=1030.0, reason="3 tasks are waiting"),
        pilot("hpc-2", "submitted", job="4712", queue_note="Priority", reason="3 tasks are waiting"),
        pilot("hpc-3", "ending", reason="it is idle"),
    ]
    titles, first, second, third = pilotfish("pilots").out.splitlines()
    assert titles.replace("BATCH JOB", "BATCH-JOB").split() == ["PILOT", "SITE", "STATE", "CORES", "BATCH-JOB", "WAITED", "NOTE"]
    assert first.split() == ["hpc-1", "hpc", "active", "16", "4711", "30", "s", "3", "tasks", "are", "waiting"]
    assert second.split() == ["hpc-2", "hpc", "submitted", "16", "4712", "1", "min", "30", "s", "Priority"]
    assert third.split() == ["hpc-3", "hpc", "ending", "16", "-", "-", "it", "is", "idle"]
    rows = json.loads(pilotfish("pilots", "--json").out)
    assert [row["waited_s"] for row in rows] == [30.0, 90.0, None]
    assert rows[1]["job"] == "4712"


def test_a_pool_without_pilots_suggests_to_request_one(pilotfish: CommandLine, master: FakeMaster) -> None:
    assert pilotfish("pilots").out == "Pool default has no pilots. Request one: pilotfish pilots add SITE\n"
    assert pilotfish("pilots", "--json").out == "[]\n"


def test_what_an_old_master_does_not_send_is_a_dash(pilotfish: CommandLine, master: FakeMaster) -> None:
    known = ("pilot", "site", "state", "cores", "workers", "reason")
    master.pilots = [{key: value for key, value in pilot("hpc-1", "submitted").items() if key in known}]
    assert pilotfish("pilots").out.splitlines()[1].split() == ["hpc-1", "hpc", "submitted", "16", "-", "-"]
