"""Issues random commands and brings the world to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from pilotfish.core.tasks.reruns import UNSUCCESSFUL
from pilotfish.model.ids import INDEX_MASK, show_task
from pilotfish.model.states import DONE, RUNNING
from tests.simulation.world.simulated_client import record_of_task

if TYPE_CHECKING:
    from tests.simulation.world.fault_world import FaultWorld

LOOK_S = 2.0
SETTLE_BEATS = 8
RERUN_AFTER_S = 2.0
"""Seconds from the cancellation of a run to its rerun."""


HABITS = (
    "status",
    "why",
    "tasks",
    "task",
    "tail",
    "payload",
    "cancel",
    "cancel",
    "cancel",
    "cancel_run",
    "pause",
    "drain",
    "rerun",
    "revoke",
    "clear",
    "stop",
)


class OperatorActions:
    def __init__(self, world: FaultWorld) -> None:
        self.world = world
        self._gap_s = world.scenario.commands_gap_s
        self._settled_at = 0.0

    def begin(self) -> None:
        if self.world.scenario.fixed_strategy:
            self.world.after(1.0, self._size_pool, 4)
        if self._gap_s:
            self.world.after(self._gap_s, self._command)

    def _size_pool(self, cores: int) -> None:
        """Grows and shrinks the pool; this also resumes held sites. At the end the pool must be large enough for every task."""
        self.world.operator.ask("workers_set", local=cores)
        if not self.world.over:
            self.world.after(10.0, self._size_pool, 8 if self.world.calm else self.world.dice.choice((4, 6, 8, 10)))

    # --- random commands ------------------------------------------------------------------------------------------------------------

    def _command(self) -> None:
        world = self.world
        if world.calm:
            return
        dice = world.dice
        kind = dice.choice(HABITS)
        getattr(self, f"_{kind}")()
        world.after(self._gap_s * dice.expovariate(1.0), self._command)

    def _some_task(self, state: int | None = None) -> str:
        shadow = self.world.journal.shadow
        tasks = [task for run in shadow.runs.values() for task in run.tasks if state is None or task.state == state]
        return show_task(self.world.dice.choice(tasks).id) if tasks else ""

    def _some_run(self) -> int:
        runs = list(self.world.journal.shadow.runs)
        return self.world.dice.choice(runs) if runs else 0

    def _some_worker(self) -> str:
        workers = list(self.world.journal.shadow.workers)
        return self.world.dice.choice(workers) if workers else ""

    def _status(self) -> None:
        self.world.operator.ask("status")
        self.world.operator.ask("workers", all=True)
        self.world.operator.ask("runs")

    def _why(self) -> None:
        self.world.operator.ask("why", task=self._some_task())
        self.world.operator.ask("why", run=self._some_run())
        self.world.operator.ask("why", worker=self._some_worker())

    def _tasks(self) -> None:
        self.world.operator.ask("tasks", run=self._some_run())

    def _task(self) -> None:
        self.world.operator.ask("task", task=self._some_task())

    def _tail(self) -> None:
        for task in dict.fromkeys(self._some_task(RUNNING) for _ in range(5)):
            self.world.operator.ask("tail", task=task)

    def _payload(self) -> None:
        self.world.operator.ask("payload", task=self._some_task(DONE))

    def _cancel(self) -> None:
        tasks = dict.fromkeys([self._some_task(), *(self._some_task(RUNNING) for _ in range(3))])
        self.world.operator.ask("cancel", tasks=[task for task in tasks if task])

    def _cancel_run(self) -> None:
        if self.world.dice.random() < 0.1:
            run = self._some_run()
            self.world.operator.ask("cancel", run=run)
            self.world.after(RERUN_AFTER_S, self._rerun_one, run)

    def _pause(self) -> None:
        run = self._some_run()
        self.world.operator.ask("pause", run=run)
        self.world.after(self.world.dice.uniform(1.0, 20.0), self._resume, run)

    def _resume(self, run: int) -> None:
        self.world.operator.ask("resume", run=run)

    def _drain(self) -> None:
        self.world.operator.ask("drain", worker=self._some_worker())

    def _clear(self) -> None:
        self.world.operator.ask("quarantine_clear", worker=self._some_worker())

    def _stop(self) -> None:
        """Stops the pool. The next client to connect starts it again, and the work continues."""
        if self.world.dice.random() < 0.3:
            self.world.stopping = True
            self.world.operator.ask("stop", now=False)

    def _rerun(self) -> None:
        self._rerun_one(self._some_run())

    def _rerun_one(self, run: int) -> None:
        changes, payloads = self._changes(run) if self.world.operator.answers % 2 else ({}, [])
        self.world.operator.ask("rerun", payloads, run=run, changes=changes)

    def _changes(self, number: int) -> tuple[dict[str, Any], list[bytes]]:
        """Returns a new spec and a new input for a task, with the old contents: the master must keep and release each payload once. Also
        returns a new record for the task, so that its result can be reused."""
        run, payloads = self.world.journal.shadow.runs.get(number), self.world.payloads
        task = next((task for task in run.tasks if task.state in UNSUCCESSFUL and task.payload), None) if run is not None else None
        if run is None or task is None:
            return {}, []
        spec = run.specs[task.spec]
        specs = [[task.spec, msgspec.structs.replace(spec, code=b""), True]]
        inputs = [[task.id & INDEX_MASK, [record.content for record in task.contents]]]
        keys = [[task.id & INDEX_MASK, record_of_task(f"{run.uid}.{task.id} again {self.world.operator.answers}")]]
        return {"specs": specs, "inputs": inputs, "keys": keys}, [payloads.get(spec.code), payloads.get(task.payload)]

    def _revoke(self) -> None:
        worker = self.world.journal.shadow.workers.get(self._some_worker())
        if worker is not None and worker.pilot and self.world.dice.random() < 0.3:
            self.world.operator.ask("revoke", key_id=f"pilot:{worker.pilot}")

    # --- the end --------------------------------------------------------------------------------------------------------------------

    def wind_up(self) -> None:
        """Resumes paused runs and waits until all runs are finished."""
        world = self.world
        for run in world.journal.shadow.runs.values():
            if run.paused:
                world.operator.ask("resume", run=run.id)
        world.oracle.waiting()
        if world.work_is_over() and self._nothing_left():
            world.after(SETTLE_BEATS * world.scenario.settings.beat_s, self._settle)
        else:
            world.after(LOOK_S, self.wind_up)

    def _nothing_left(self) -> bool:
        return all(run.finished for run in self.world.journal.shadow.runs.values())

    def _settle(self) -> None:
        """All acknowledgements have had time to arrive. All clients leave, and the master must end by itself."""
        world = self.world
        if world.master is None or world.master.blocked:
            world.after(LOOK_S, self._settle)
            return
        if not self._nothing_left():
            # A delayed command of the operator has created work again.
            self.wind_up()
            return
        world.oracle.settled(world.master)
        for run in world.journal.shadow.runs:
            if world.dice.random() < 0.5:
                world.operator.ask("forget", run=run)
        world.after(LOOK_S, self._leave)

    def _leave(self) -> None:
        world = self.world
        if world.master is None or world.master.blocked:
            world.after(LOOK_S, self._leave)
            return
        world.oracle.emptied()
        world.operator.hang_up()
        self._settled_at = world.now
        world.after(LOOK_S, self._await_finish)

    def _await_finish(self) -> None:
        world = self.world
        if world.master is None:
            world.over = True
            return
        world.oracle.finishing(self._settled_at)
        world.after(LOOK_S, self._await_finish)
