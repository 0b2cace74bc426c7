"""Measures a master with a million queued tasks: memory, rate by tenth, and restart after a crash."""

from __future__ import annotations

import argparse
import select
import sys
import time
import uuid
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from benchmarks.contestants.processes import Process, read_process
from benchmarks.harness import Options, describe_machine, layout, write_json
from benchmarks.own_pool import LightAgents, OwnPool, own_pool

TASKS = 1_000_000
PER_FRAME = 1000
FRAMES_AHEAD = 16
TENTHS = 10
SILENCE_S = 120.0
SOURCE = b"def nothing(number):\n    return number\n"


class Conversation:
    """A client connection to the master in one thread."""

    def __init__(self, pool: OwnPool) -> None:
        from pilotfish.client.master_connection import dial

        self.link = dial(pool.directory)

    def send(self, message: Any, parts: list[bytes] | None = None) -> None:
        from pilotfish.model.messages import frame_message

        self.link.put(frame_message(message, parts or []))
        self.link.flush()

    def hear_until(self, satisfied: Callable[[Any], bool]) -> None:
        """Reads messages until one satisfies the condition; sends queued frames meanwhile."""
        while True:
            writable = [self.link] if self.link.waiting else []
            ready, room, _ = select.select([self.link], writable, [], SILENCE_S)
            if not ready and not room:
                raise RuntimeError(f"no message from the master for {SILENCE_S:.0f} s")
            if room:
                self.link.flush()
            if ready:
                answers = [satisfied(message) for message, _ in self.link.receive()]
                if any(answers):
                    return

    def close(self) -> None:
        self.link.close()


class Tenths:
    """Rate and CPU time of the master for each tenth of the tasks. On a busy machine the CPU time varies less."""

    def __init__(self, total: int, pid: int) -> None:
        self.total = total
        self.pid = pid
        self.begin()

    def begin(self) -> None:
        """Starts the measurement, without the start of the workers."""
        self.marks = [time.perf_counter()]
        self.cpu_s = [usage_of(self.pid).cpu_s]

    def reached(self, count: int) -> None:
        while len(self.marks) <= TENTHS and count >= self.total * len(self.marks) // TENTHS:
            self.marks.append(time.perf_counter())
            self.cpu_s.append(usage_of(self.pid).cpu_s)

    def figures(self, name: str) -> dict[str, Any]:
        share = self.total / TENTHS
        rates = [share / max(later - earlier, 1e-9) for earlier, later in pairwise(self.marks)]
        cpu_us = [(later - earlier) / share * 1e6 for earlier, later in pairwise(self.cpu_s)]
        return {
            f"{name}_per_s": self.total / (self.marks[-1] - self.marks[0]),
            f"{name}_per_s_by_tenth": rates,
            f"{name}_last_over_first": rates[-1] / rates[0],
            f"{name}_master_cpu_us_by_tenth": cpu_us,
        }


def usage_of(pid: int) -> Process:
    process = read_process(pid)
    if process is None:
        raise RuntimeError("the master has ended")
    return process


def submit_all(conversation: Conversation, total: int, pid: int) -> tuple[int, Tenths]:
    """Opens a run and submits the tasks, PER_FRAME in a frame, up to FRAMES_AHEAD frames before the master confirms them."""
    from pilotfish.model import messages as m
    from pilotfish.model.task import RunOptions, TaskSpec
    from pilotfish.portable.payload_format import pack_one

    run = 0

    def opened(message: Any) -> bool:
        nonlocal run
        run = message.run if isinstance(message, m.Opened) else 0
        return run > 0

    conversation.send(m.Open(uuid.uuid4().hex, RunOptions(name="million")))
    conversation.hear_until(opened)
    launch: dict[str, Any] = {"python": list(sys.version_info[:2]), "form": "source", "name": "nothing", "path": [], "cwd": None, "env": {}}
    specs, code = [TaskSpec(kind="python", name="nothing", launch=launch)], [SOURCE]
    progress, accepted, first = Tenths(total, pid), 0, 0

    def confirmed(message: Any) -> bool:
        nonlocal accepted
        if isinstance(message, m.Problem):
            raise RuntimeError(f"the master refused: {message.message}")
        if isinstance(message, m.Accepted):
            accepted = message.tasks
            progress.reached(accepted)
        return first - accepted < PER_FRAME * FRAMES_AHEAD

    while first < total:
        count = min(PER_FRAME, total - first)
        payloads = [pack_one(pickled_argument(number)) for number in range(first, first + count)]
        tasks = [(0, len(payload)) for payload in payloads]
        lengths = [len(part) for part in code]
        conversation.send(m.Submit(run, first, 0 if specs else 1, specs, lengths, tasks), [*code, *payloads])
        specs, code = [], []
        first += count
        if first - accepted >= PER_FRAME * FRAMES_AHEAD:
            conversation.hear_until(confirmed)
    if accepted < total:
        conversation.hear_until(lambda message: confirmed(message) and accepted >= total)
    conversation.send(m.Close(run))
    return run, progress


def pickled_argument(number: int) -> bytes:
    import pickle

    return pickle.dumps(((number,), {}), 5)


def complete_all(conversation: Conversation, run: int, total: int, pid: int) -> Tenths:
    """Waits until the last task has ended."""
    from pilotfish.model import messages as m
    from pilotfish.model.states import DONE

    ended, failed = 0, 0
    progress = Tenths(total, pid)

    def all_ended(message: Any) -> bool:
        nonlocal ended, failed
        if isinstance(message, m.Ended):
            if not ended:
                progress.begin()
            ended += len(message.items)
            failed += sum(item.state != DONE for item in message.items)
            progress.reached(ended)
        return ended >= total

    conversation.send(m.Watch(run, 0, False))
    conversation.hear_until(all_ended)
    if failed:
        raise RuntimeError(f"{failed} of {total} tasks failed")
    return progress


def measure(pool: OwnPool, total: int, workers: int, simulated: bool) -> dict[str, Any]:
    pool.start(workers=0)
    pid = pool.pid
    empty = usage_of(pid).rss_bytes
    conversation = Conversation(pool)
    run, submitted = submit_all(conversation, total, pid)
    queued, journal_queued = usage_of(pid).rss_bytes, pool.disk_bytes()
    light = LightAgents(pool.agent_credentials(), 1, float(workers)) if simulated else None
    try:
        if light is None:
            pool.ask("workers_set", local=workers)
        completed = complete_all(conversation, run, total, pid)
    finally:
        if light is not None:
            light.stop()
    finished, journal_finished = usage_of(pid).rss_bytes, pool.disk_bytes()
    conversation.close()
    pool.kill(pid)
    crash_s = pool.start(workers=0)
    counts = pool.ask("run", run=run)["counts"]
    if counts.get("done") != total:
        raise RuntimeError(f"after the restart the master has {counts}")
    return {
        "tasks": total,
        "agent": "simulated" if simulated else "real",
        "rss_bytes_per_queued_task": (queued - empty) / total,
        "rss_bytes_per_finished_task": (finished - empty) / total,
        "disk_bytes_per_queued_task": journal_queued / total,
        "disk_bytes_per_finished_task": journal_finished / total,
        **submitted.figures("submit"),
        **completed.figures("complete"),
        "restart_after_kill_s": crash_s,
        "rss_bytes_per_task_after_restart": (usage_of(pool.pid).rss_bytes - empty) / total,
    }


def goals(result: dict[str, Any]) -> list[tuple[str, bool]]:
    return [
        ("at most 1 kB of master memory per queued task", result["rss_bytes_per_queued_task"] <= 1000),
        ("submitting: the last tenth at least 0.8 times as fast as the first", result["submit_last_over_first"] >= 0.8),
        ("completing: the last tenth at least 0.8 times as fast as the first", result["complete_last_over_first"] >= 0.8),
    ]


def show(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(f"{item:,.0f}" if item >= 1000 else f"{item:.1f}" for item in value)
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def run_once(total: int, simulated: bool, options: Options) -> int:
    with own_pool() as pool:
        result = measure(pool, total, options.workers, simulated)
    print(layout([["a million queued tasks", ""], *([name, show(value)] for name, value in result.items())]))
    verdicts = goals(result)
    for text, met in verdicts:
        print(f"goal {'met' if met else 'MISSED'}: {text}")
    write_json(options.out, "million_tasks", {"machine": describe_machine(), "result": result, "goals": verdicts})
    return 1 if options.strict and not all(met for _, met in verdicts) else 0


def main(options: Options) -> int:
    return run_once(TASKS, False, options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    Options.add_to(parser)
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--simulated-agent", action="store_true", help="use an agent without slots, to measure the master alone")
    chosen = parser.parse_args()
    sys.exit(run_once(chosen.tasks, chosen.simulated_agent, Options.from_namespace(chosen)))
