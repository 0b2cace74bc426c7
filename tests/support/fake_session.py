"""Fakes a session with a master, without processes: it answers as the real one does, and its tasks end at once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from pilotfish.applications.task_needs import NO_NEEDS, TaskNeeds
from pilotfish.client.session import NoPool, PoolSession, RunUpdate, RunWatcher
from pilotfish.client.submission import PendingRequest, Reply, RunListener, Submission
from pilotfish.core.explain.lookup import find_run
from pilotfish.core.explain.task_reasons import explain_run, status_of
from pilotfish.core.machine import Machine
from pilotfish.core.state import CLIENT_DISCONNECTED, Run, State, Task, TaskShape
from pilotfish.errors import BadInput, PilotfishError
from pilotfish.model.ids import task_id
from pilotfish.model.messages import EndedItem, Message
from pilotfish.model.states import CANCELLED, DONE, FAILED, TASK_STATES
from pilotfish.model.task import Failure, RunOptions, TaskSpec
from pilotfish.portable.payload_format import PackedPayload, pack, unpack
from pilotfish.store.pool_directory import pool_home

MOST_ROWS = 10_000
"""Maximum rows per answer, as at a real master."""
END_STATES = {"done": DONE, "failed": FAILED, "cancelled": CANCELLED}


@dataclass
class FakeTask:
    payload: bytes
    spec: int
    state: str = "ready"
    result: bytes = b""
    failure: Failure | None = None
    needs: TaskNeeds = NO_NEEDS

    @property
    def told(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(bytes(unpack(self.payload)[0]))
        return said


@dataclass
class FakeRun(Submission):
    run: int
    options: RunOptions
    master: FakeMaster
    specs: list[TaskSpec] = field(default_factory=list)
    codes: list[bytes] = field(default_factory=list)
    tasks: list[FakeTask] = field(default_factory=list)
    closed: bool = False
    paused: bool = False
    late_s: float | None = None
    order: list[int] = field(default_factory=list)
    elapsed_s: float = 3600.0
    incomplete: bool = False
    contents: dict[str, None] = field(default_factory=dict)
    uid: str = ""
    closed_by: str = ""
    opened_at: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.uid = self.uid or f"uid-{self.run}"

    def finish(self) -> None:
        for index, task in enumerate(self.tasks):
            self.master.end(self, index, task)
            self.order.append(index)

    def counts(self) -> dict[str, int]:
        return {state: sum(task.state == state for task in self.tasks) for state in TASK_STATES}

    def record(self) -> Run:
        """The run as a real master keeps it, for rules that both share."""
        run = Run(self.run, self.uid, self.options, 0.0)
        run.specs = list(self.specs)
        for index, task in enumerate(self.tasks):
            record = Task(task_id(self.run, index), task.spec, TaskShape(run, task.spec, 0, 0.0), task.payload)
            record.state, record.failure = TASK_STATES.index(task.state), task.failure
            run.tasks.append(record)
            run.counts[record.state] += 1
            if task.state in END_STATES:
                run.ended.append(index)
        run.paused = self.paused
        run.closed = CLIENT_DISCONNECTED if self.incomplete else self.closed_by or ("closed" if self.closed else "")
        return run

    def row(self) -> dict[str, Any]:
        ended = self.closed and all(task.state in END_STATES for task in self.tasks)
        return {
            "run": self.run,
            "uid": self.uid,
            "name": self.options.name,
            "command": self.options.command,
            "cwd": self.options.cwd,
            "state": "done" if ended else "closed" if self.closed else "open",
            "status": status_of(self.record()),
            "incomplete": self.incomplete,
            "closed": self.closed_by,
            "paused": self.paused,
            "counts": self.counts(),
            "tasks": len(self.tasks),
            "ends": len(self.order),
            "contents": len(self.contents),
            "moving": self.master.moving,
            "opened_at": self.opened_at,
            "reopened_at": 0.0,
            "started_at": 1001.0,
            "ended_at": 1001.0 + self.elapsed_s if ended else 0.0,
            "elapsed_s": self.elapsed_s,
            "rate_per_s": 2.5,
            "eta_s": 90.0,
            "share": self.options.share,
            "deadline": self.options.deadline or None,
            "late_s": self.late_s if self.options.deadline else None,
        }


class FakeWatcher(RunWatcher):
    def __init__(self, updates: list[RunUpdate], interrupt: bool) -> None:
        self._pending = updates
        self._interrupt = interrupt

    def next(self, timeout_s: float) -> RunUpdate | None:
        if self._interrupt:
            raise KeyboardInterrupt
        return self._pending.pop(0) if self._pending else None


Outcome = tuple[int, bytes, dict[str, bytes]]


def echo(argv: list[str]) -> Outcome:
    """Exit status, output and files of a command: ``false`` fails, everything else prints its arguments."""
    if argv[0] == "false":
        return 1, b"", {}
    return 0, " ".join(argv[1:]).encode() + b"\n", {}


class FakeMaster(PoolSession):
    """``stuck``: tasks never start, and ``why`` answers ``reasons``. ``seen``: the status of any pilot at a site; ``ends``: how pilots
    ended that are gone."""

    def __init__(self, outcome: Callable[[list[str]], Outcome] = echo) -> None:
        self.directory = pool_home("default").directory
        self.contents = pool_home("default").contents
        self.outcome = outcome
        self.runs: dict[int, FakeRun] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.stuck = False
        self.interrupt = False
        self.reasons: list[dict[str, Any]] = []
        self.workers_asked: int | None = None
        self.exists = True
        self.warnings: list[dict[str, Any]] = []
        self.running_output = b""
        self.refusal: PilotfishError | None = None
        self.sites: list[dict[str, Any]] = []
        self.pilots: list[dict[str, Any]] = []
        self.now = 1000.0
        self.seen: dict[str, Any] | None = None
        self.ends: dict[str, dict[str, str]] = {}
        self.workers: list[dict[str, Any]] = []
        self.moving: dict[str, Any] | None = None
        self.data: dict[str, Any] = {}

    def connector(self, pool: str, start: bool, workers: int | None) -> FakeMaster:
        if not self.exists and not start:
            raise NoPool(f"pool {pool!r} has no runs yet", "Start: pilotfish run -- COMMAND")
        self.workers_asked = workers
        self.directory = pool_home(pool).directory
        return self

    def end(self, run: FakeRun, index: int, task: FakeTask) -> None:
        argv = task.told["argv"]
        status, stdout, files = self.outcome(argv)
        listed = [[name, 0o644] for name in files]
        described = {"exit": status, "signal": None, "files": listed, "stdout_dropped": 0, "stderr_dropped": 0}
        stderr = b"" if status == 0 else b"it went wrong\n"
        task.result = pack([json.dumps(described).encode(), stdout, stderr, *files.values()])
        task.state = "done" if status == 0 else "failed"
        task.failure = None if status == 0 else Failure("exit", "task", f"{argv[0]} ended with exit status {status}")

    def begin(self, options: RunOptions, uid: str = "", listener: RunListener | None = None) -> FakeRun:
        run = FakeRun(len(self.runs) + 1, options, self, uid=uid)
        self.runs[run.run] = run
        return run

    def spec_number(self, run: Submission, spec: TaskSpec, code: bytes) -> int:
        assert isinstance(run, FakeRun)
        run.specs.append(spec)
        run.codes.append(code)
        run.contents.update(dict.fromkeys(content.digest for content in spec.contents))
        return len(run.specs) - 1

    def submit(
        self, run: Submission, spec: int, packed: PackedPayload, register: Callable[[int], None] | None = None, needs: TaskNeeds = NO_NEEDS
    ) -> int:
        assert isinstance(run, FakeRun) and isinstance(packed, bytes)
        run.tasks.append(FakeTask(packed, spec, needs=needs))
        run.contents.update(dict.fromkeys(content.digest for content in needs.contents))
        return len(run.tasks) - 1

    def confirm(self, run: Submission) -> None:
        assert isinstance(run, FakeRun)
        if self.refusal is not None:
            run.tasks.clear()
            raise self.refusal
        run.closed = True
        if not self.stuck:
            run.finish()

    def watch_run(self, run: int, cursor: int) -> FakeWatcher:
        found = self.runs[run]
        items = tuple(
            EndedItem(index, END_STATES[found.tasks[index].state], found.tasks[index].failure, 20_000, 10_000, 1024, 0)
            for index in found.order[cursor:]
        )
        finished = found.row()["state"] == "done"
        return FakeWatcher([RunUpdate(ended=items), RunUpdate(finished=True)] if finished else [], self.interrupt)

    def close(self, wait: bool = True) -> None:
        pass

    def peek(self, task: str, stream: int, offset: int) -> tuple[int, bytes]:
        start = max(0, offset)
        return start, self.running_output[start:] if stream == 1 else b""

    def request_usage(self, row: dict[str, Any]) -> Callable[[float], None]:
        return lambda deadline: row.update(cpu_s=1.5, rss_bytes=3 << 20)

    def request(self, kind: str, **arguments: Any) -> PendingRequest:
        pending = PendingRequest(kind, arguments, Message())
        pending.set_result(self.ask_bytes(kind, **arguments) if kind == "outputs" else Reply(self.ask(kind, **arguments)))
        return pending

    def wait(self, request: PendingRequest) -> Reply:
        return request.result()

    def ask_bytes(self, kind: str, **arguments: Any) -> Reply:
        self.asked.append((kind, arguments))
        if kind == "outputs":
            wants_input = arguments.get("which") == "input"
            tasks = [self._task(name) for name in arguments["tasks"]]
            outputs = [task.payload if wants_input else task.result for task in tasks]
            return Reply({"lengths": [len(output) for output in outputs]}, b"".join(outputs))
        task = self._task(arguments["task"])
        code = self.runs[int(arguments["task"].partition(".")[0])].codes[task.spec]
        data = {"input": task.payload, "code": code}.get(arguments["which"], task.result)
        return Reply({"length": len(data)}, data)

    def ask(self, kind: str, **arguments: Any) -> Any:
        self.asked.append((kind, arguments))
        answer = getattr(self, f"_ask_{kind}", None)
        if answer is None:
            raise AssertionError(f"nobody asks a master for {kind!r}")
        return answer(**arguments)

    def _task(self, name: str) -> FakeTask:
        run, index = map(int, name.split("."))
        if run not in self.runs or index >= len(self.runs[run].tasks):
            raise BadInput(f"there is no task {name}", "pilotfish tasks lists them")
        return self.runs[run].tasks[index]

    def _task_row(self, run: FakeRun, index: int) -> dict[str, Any]:
        task = run.tasks[index]
        failure = task.failure
        return {
            "id": f"{run.run}.{index}",
            "run": run.run,
            "index": index,
            "name": run.specs[task.spec].name,
            "kind": run.specs[task.spec].kind,
            "state": task.state,
            "attempt": 1 if task.result else 0,
            "worker": "local-0" if task.result else None,
            "node": "here" if task.result else None,
            "site": "local" if task.result else None,
            "started_at": 100.0 if task.result else None,
            "ended_at": 100.02 if task.result else None,
            "failure": {"cause": failure.cause, "blame": failure.blame, "message": failure.message} if failure else None,
            "wall_s": 0.02 if task.result else 0.0,
            "cpu_s": 0.01 if task.result else 0.0,
            "rss_bytes": 1048576 if task.result else 0,
        }

    def _ask_status(self) -> dict[str, Any]:
        rows = [run.row() for run in self.runs.values()]
        answer = {"pool": "default", "pid": 4711, "uptime_s": 61.0, "workers": {"idle": 1}, "cores": 2, "local_cores": 2, "now": self.now}
        return {**answer, "runs": rows, "warnings": self.warnings, "rate_per_s": 0, "pilots": self.pilots, "moving": self.moving}

    def _ask_runs(self) -> list[dict[str, Any]]:
        return [run.row() for run in self.runs.values()]

    def _ask_run(self, run: int | str = "last") -> dict[str, Any]:
        return self._find_run(run).row()

    def _find_run(self, wanted: int | str) -> FakeRun:
        """Find a run by the rule of the real master."""
        state = State()
        state.runs.update((number, run.record()) for number, run in self.runs.items())
        return self.runs[find_run(state, wanted).id]

    def _find_subject(self, subject: str | None) -> dict[str, Any]:
        if subject is None:
            return {"run": self._find_run("last").run}
        name, dot, index = subject.rpartition(".")
        found = {
            "worker": {row["worker"] for row in self._ask_workers(all=True)},
            "pilot": {*(row["pilot"] for row in self.pilots), *self.ends},
            "site": {row["site"] for row in self.sites},
        }
        for kind, names in found.items():
            if subject in names:
                return {kind: subject}
        if dot and index.isdecimal():
            return {"task": f"{self._find_run(name).run}.{index}"}
        return {"run": self._find_run(subject).run}

    def _ask_tasks(self, run: int, limit: int = 100, offset: int = 0, state: str | None = None) -> list[dict[str, Any]]:
        found = self.runs[run]
        rows = [self._task_row(found, index) for index in range(len(found.tasks))]
        return [row for row in rows if state in (None, row["state"])][offset : offset + min(limit, MOST_ROWS)]

    def _ask_task(self, task: str) -> dict[str, Any]:
        self._task(task)
        run, index = map(int, task.split("."))
        return self._task_row(self.runs[run], index)

    def _ask_workers(self, all: bool = False) -> list[dict[str, Any]]:
        worker = {
            "worker": "local-1",
            "pilot": "local-1",
            "site": "local",
            "state": "idle",
            "connected": True,
            "capacity": {"cores": 2.0},
            "free": {"cores": 2.0},
            "properties": {"cores": 2.0, "memory": 1e9, "worker": "local-1", "site": "local", "scratch": "ssd"},
        }
        gone = {**worker, "worker": "local-0", "state": "lost", "connected": False, "reason": "was killed by signal 9"}
        return [{**worker, "tasks_done": 3, "tasks_failed": 1}, *([gone] if all else []), *self.workers]

    def _ask_data(self, offset: int, limit: int = MOST_ROWS, run: int | None = None) -> dict[str, Any]:
        return {**self.data, "run": run, "contents": self.data["contents"][offset : offset + limit]}

    def _ask_sites(self) -> list[dict[str, Any]]:
        return self.sites

    def _ask_workers_set(self, local: int) -> dict[str, float]:
        return {"local": float(local)}

    def _ask_sites_reread(self) -> dict[str, Any]:
        return {}

    def _ask_site_use(self, site: str, pilots: int) -> dict[str, Any]:
        return {"site": site, "pilots": pilots}

    def _ask_site_release(self, site: str) -> dict[str, Any]:
        return {"site": site}

    def _ask_pilots_add(self, site: str, pilots: int) -> dict[str, Any]:
        return {"pilots": [f"{site}-{number}" for number in range(1, pilots + 1)]}

    def _ask_pilots_withdraw(self, pilots: list[str], reason: str) -> dict[str, Any]:
        gone = [row["pilot"] for row in self.pilots if row["pilot"] in pilots]
        self.pilots[:] = [row for row in self.pilots if row["pilot"] not in pilots]
        return {"pilots": gone}

    def _ask_quarantine_clear(self, worker: str) -> dict[str, Any]:
        return {"cleared": worker}

    def _ask_drain(self, worker: str, reason: str) -> dict[str, Any]:
        self.pilots.clear()
        return {"draining": worker}

    def _ask_why(self, subject: str | None = None, **named: Any) -> dict[str, Any]:
        found = named or self._find_subject(subject)
        record = self.runs[found["run"]].record() if "run" in found else None
        if record is not None and record.finished:
            return explain_run(cast(Machine, None), record) | {"run": self.runs[found["run"]].row()}
        return self._why(found, status_of(record) if record is not None else "ready")

    def _why(self, subject: dict[str, Any], state: str) -> dict[str, Any]:
        name = " ".join(f"{key} {value}" for key, value in subject.items())
        reasons = self.reasons or [{"code": "busy", "text": "all workers are busy", "commands": ["pilotfish workers"]}]
        answer = {"subject": name, "state": state, "sentence": f"{name} is {state}: {reasons[0]['text']}", "reasons": reasons}
        if "task" in subject:
            row = self._ask_task(subject["task"])
            return {**answer, "task": row, "run": self.runs[row["run"]].row()}
        if "run" in subject:
            return {**answer, "run": self.runs[subject["run"]].row()}
        return {**answer, **self._about_pilot(subject["pilot"])} if "pilot" in subject else answer

    def _about_pilot(self, name: str) -> dict[str, Any]:
        there = [row for row in self.pilots if row["pilot"] == name]
        if not there and name not in self.ends:
            raise BadInput(f"there is no pilot {name}", "pilotfish status lists them")
        return (
            {"job": there[0].get("job", ""), "seen": self.seen, "end": None} if there else {"job": "", "seen": None, "end": self.ends[name]}
        )

    def _ask_cancel(self, run: int | None = None, tasks: list[str] | None = None) -> dict[str, int]:
        return {"cancelled": len(self.runs[run].tasks) if run is not None else len(tasks or ())}

    def _ask_pause(self, run: int) -> dict[str, Any]:
        self.runs[run].paused = True
        return self.runs[run].row()

    def _ask_set(self, run: int, **changes: Any) -> dict[str, Any]:
        self.runs[run].options = msgspec.structs.replace(self.runs[run].options, **changes)
        return self.runs[run].row()

    def _ask_resume(self, run: int) -> dict[str, Any]:
        self.runs[run].paused = False
        return self.runs[run].row()

    def _ask_forget(self, run: int) -> dict[str, int]:
        del self.runs[run]
        return {"forgotten": run}

    def _ask_rerunnable(self, run: int, tasks: list[str] | None = None, state: str | None = None) -> dict[str, Any]:
        found = self.runs[int(run)]
        wanted = [state] if state else ["failed", "cancelled"]
        indices = [int(name.partition(".")[2]) for name in tasks or ()]
        indices = indices or [index for index, task in enumerate(found.tasks) if task.state in wanted]
        if not indices:
            raise BadInput(f"run {run} has no {state or 'failed or cancelled'} task", f"See its tasks: pilotfish tasks {run}")
        chosen = [[index, found.tasks[index].spec] for index in indices]
        return {"run": found.run, "tasks": chosen, "specs": {str(spec): found.specs[spec] for _, spec in chosen}, "deleted": 0}

    def ask_with_payloads(self, kind: str, payloads: Sequence[bytes], **arguments: Any) -> Any:
        """Run tasks again at once, with the inputs and specs that the client sends."""
        self.asked.append((kind, arguments))
        run, changes, left = self.runs[arguments["run"]], arguments["changes"], list(payloads)
        numbers = {}
        for origin, spec, has_code in changes["specs"]:
            numbers[origin] = len(run.specs)
            run.specs.append(spec)
            run.codes.append(left.pop(0) if has_code else run.codes[origin])
        for (index, _), payload in zip(changes["inputs"], left, strict=True):
            run.tasks[index].payload = payload
        for index in (int(name.partition(".")[2]) for name in arguments["tasks"]):
            task = run.tasks[index]
            task.spec = numbers.get(task.spec, task.spec)
            self.end(run, index, task)
            run.order.append(index)
        return {"run": run.run, "tasks": len(arguments["tasks"]), "ends": len(run.order), "deleted": 0}
