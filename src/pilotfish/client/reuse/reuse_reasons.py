"""Explains why the tasks of a run did not get the results of earlier tasks, for ``--explain-cache``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from typing import Any, NamedTuple

from pilotfish.applications.calls.own_modules import changed_modules
from pilotfish.applications.reuse.session_variables import stable_environment
from pilotfish.client.descriptions.task_descriptions import describe
from pilotfish.client.rerun_preparation import shown_files
from pilotfish.client.reuse.program_register import ProgramRegister
from pilotfish.client.session import PoolSession, all_tasks, find_run
from pilotfish.model.contents import KEY_LENGTH, PART_BYTES
from pilotfish.portable.payload_format import unpack

MAX_KNOWN = 1000
"""Maximum number of tasks whose specs are cached for comparisons."""
MAX_DESCRIBED = 100_000
"""Maximum number of tasks per run whose parameters are compared."""
MAX_RANGES = 5
"""Maximum number of ranges of tasks, such as ``3.0 … 3.8``, in one line."""
_CODE = slice(KEY_LENGTH, KEY_LENGTH + PART_BYTES)


class NewTask(NamedTuple):
    """A task of the new run. ``place``: its index. ``inputs``: names of its own inputs. ``needed``: indices of the tasks that it needs."""

    id: str
    place: int
    record: bytes
    inputs: tuple[str, ...]
    needed: tuple[int, ...]


class NotReused(NamedTuple):
    """A task that runs although ``--resume`` was given, with the reason. ``code``: the reason in one word. ``summary``: the reason without
    the details that differ from task to task. Tasks with the same summary share a line. ``example``: one of the details."""

    task: str
    code: str
    text: str
    summary: str
    example: str = ""


def summed_up(tasks: Iterable[NotReused]) -> Iterator[str]:
    """Yields a line for each reason. Several tasks with the same reason share a line."""
    groups: dict[tuple[str, str], list[NotReused]] = {}
    for task in tasks:
        groups.setdefault((task.code, task.summary), []).append(task)
    for (_, summary), found in groups.items():
        if len(found) == 1:
            yield f"{found[0].task} runs: {found[0].text}"
        else:
            example = f", such as {found[0].example}" if found[0].example else ""
            yield f"{len(found):,} tasks run: {summary}{example} ({_show_ranges([one.task for one in found])})"


def _show_ranges(tasks: list[str]) -> str:
    ranges: list[list[int]] = []
    run, _, _ = tasks[0].partition(".")
    for index in (int(task.partition(".")[2]) for task in tasks):
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    texts = [f"{run}.{first}" if first == last else f"{run}.{first} … {run}.{last}" for first, last in ranges[:MAX_RANGES]]
    return ", ".join([*texts, *(["…"] if len(ranges) > MAX_RANGES else [])])


class ReuseReasons:
    """Explains why tasks of one run were not reused. Call the methods in the order of the tasks."""

    def __init__(self, session: PoolSession, run: int) -> None:
        self._run = run
        self._differences = _Differences(session, run)
        self._parameters = _Parameters(session, run)
        self._not_reused: set[int] = set()
        self._seen: set[bytes] = set()

    def note_reused(self, task: NewTask) -> None:
        self._seen.add(task.record[KEY_LENGTH:])

    def note_not_reused(self, task: NewTask, code: str, text: str, summary: str = "", example: str = "") -> NotReused:
        self._not_reused.add(task.place)
        self._seen.add(task.record[KEY_LENGTH:])
        return NotReused(task.id, code, text, summary or text, example)

    def note_changed(self, task: NewTask, file: str, row: Mapping[str, Any], since: str) -> NotReused:
        """Explains a task that runs because a file changed after the earlier task had ended or started. ``row``: the answer of the
        master."""
        (shown,) = shown_files([file])
        text = f"{shown} changed after task {row['source'] or row['nearest']} had {since}"
        return self.note_not_reused(task, "file", text, f"{shown} changed after the earlier tasks had {since}")

    def compare(self, task: NewTask, row: Mapping[str, Any]) -> NotReused:
        """Explains a task that has a record, by comparison with earlier tasks. ``row``: the answer of the master."""
        return self.note_not_reused(task, *self._compare(task, row))

    def _compare(self, task: NewTask, row: Mapping[str, Any]) -> tuple[str, ...]:
        nearest, state, changed = row["source"] or row.get("nearest"), row.get("state", "done"), row.get("changed", [])
        if nearest is None:
            return "not-found", "no earlier task did this", ""
        if changed == ["arguments"]:
            return "arguments", *self._parameters.compare(task.id, nearest)
        if changed:
            names = self._differences.find(task, nearest, bytes.fromhex(row.get("code", "")))
            text = f"{' and '.join(dict.fromkeys(names.get(part) or _CHANGED[part] for part in changed))} changed"
            return changed[0], f"{text} since task {nearest}", text
        if state in ("done", "others"):
            return self._other_tasks(task, nearest, is_equal=state == "done")
        code, text = _STATES.get(state, ("unfinished", "does the same, and has not ended"))
        return code, f"task {nearest} {text}", f"the earlier task {text}"

    def _other_tasks(self, task: NewTask, nearest: str, is_equal: bool) -> tuple[str, str, str]:
        """Explains why a task did not get the result of the earlier task ``nearest``, although both tasks do the same. ``is_equal``:
        whether the keys of both tasks are equal."""
        runs = next((index for index in task.needed if index in self._not_reused), None)
        if runs is not None:
            text = f"did the same, but task {self._run}.{runs}, which it needs, runs again"
            return "waits", f"task {nearest} {text}", "a task that it needs runs again"
        if is_equal:
            return "cut", f"task {nearest} did the same, but a part of its output was left out", "a part of the earlier output was left out"
        option = self._differences.changed_option(task.id, nearest)
        if option:
            return "options", f"{option} since task {nearest}", option
        if task.record[KEY_LENGTH:] in self._seen:
            return "repetition", "the earlier runs have fewer tasks that are equal to it", ""
        return "waits", f"task {nearest} did the same, but needed other tasks", "the earlier task needed other tasks"


_STATES = {
    "failed": ("failed", "did the same, and failed"),
    "cancelled": ("cancelled", "did the same, and was cancelled"),
    "forgotten": ("forgotten", "did the same, but its result was forgotten with pilotfish cache forget"),
    "rerun": ("rerun", "did the same, but it was rerun, and the rerun could not compare it"),
    "lost": ("lost", "did the same, but its files are no longer there"),
}
_CHANGED = {"code": "the program", "arguments": "the arguments", "inputs": "an input", "environment": "the environment"}
_OPTIONS = {
    "cwd": "the current directory changed",
    "sandbox": "--sandbox changed",
    "outputs": "the output files changed",
    "keep": "the kept files changed",
    "warn_signal": "--signal changed",
}


class _Parameters:
    """Compares the parameters of tasks."""

    def __init__(self, session: PoolSession, run: int) -> None:
        self._session = session
        self._run = str(run)
        self._known: dict[str, tuple[tuple[str, ...], dict[str, tuple[str, ...]], dict[tuple[Any, ...], str]]] = {}
        """For each run: the names of its parameters; the values of each task by the id of the task; and the id of a task by its values,
        converted by ``_numbers``."""

    def compare(self, task: str, nearest: str) -> tuple[str, ...]:
        """Explains a task whose arguments no earlier task had. Returns the reason, its summary and possibly an example."""
        (names, new, _), (old_names, old, by_number) = self._of(self._run), self._of(nearest.partition(".")[0])
        values = new.get(task)
        plain = "no earlier task had these arguments"
        if values is None or names != old_names or nearest not in old:
            return f"{plain} (task {nearest} had others)", plain
        other = by_number.get(_numbers(values))
        shown = {
            index: " ".join(f"{name}={value}" for name, value in zip(names, row, strict=True))
            for index, row in ((task, values), (nearest, old[other or nearest]))
        }
        if other is None:
            return f"{plain} (task {nearest} had {shown[nearest]!r}, this one {shown[task]!r})", plain
        text = f"{plain} (task {other} had {shown[nearest]!r}, this one {shown[task]!r})"
        return text, f"{plain}, because the numbers are written in another way", f"{shown[task]!r} instead of {shown[nearest]!r}"

    def _of(self, run: str) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]], dict[tuple[Any, ...], str]]:
        if run not in self._known:
            rows = all_tasks(self._session, int(run), limit=MAX_DESCRIBED)
            described = describe(self._session, find_run(self._session, run), rows, ask=False)
            values = {task.row["id"]: task.values for task in described.found if task.values}
            self._known[run] = described.names, values, {_numbers(row): task for task, row in values.items()}
        return self._known[run]


def _numbers(values: Iterable[str]) -> tuple[Any, ...]:
    """Converts values to numbers where possible, so that 1.0 and 1.00 are equal."""
    return tuple(map(_number, values))


def _number(value: str) -> Decimal | str:
    try:
        return Decimal(value)
    except InvalidOperation:
        return value


class _Differences:
    """Names the files and variables that differ between two tasks."""

    def __init__(self, session: PoolSession, run: int) -> None:
        self._session = session
        self._run = str(run)
        self._programs: dict[str, Mapping[bytes, Mapping[bytes, Mapping[str, str]]]] = {}
        self._known: dict[str, _Spec] = {}

    def find(self, task: NewTask, earlier: str, earlier_code: bytes) -> dict[str, str]:
        """Returns the known differences between two tasks. The keys are ``code``, ``inputs`` and ``environment``; each value is a text with
        the names of files, inputs or variables that differ. A key without known differences is left out. ``earlier_code``: the short hash
        of the earlier program."""
        new, old = self._of(task.id), self._of(earlier)
        variables = _different(new.variables, old.variables)
        program = self._changed_program(task, earlier, earlier_code) or changed_modules(old.modules, new.modules)
        inputs = _different(new.files, old.files) or sorted(task.inputs)
        others = [name for name in inputs if not any(path.endswith(f"/{name}") for path in program)]
        texts = {}
        if program:
            texts["code"] = ", ".join(shown_files(program))
        if program and inputs and (not others or (len(others) < len(inputs) and new.files == old.files)):
            texts["inputs"] = texts["code"]  # a script that is an input is named once
        elif others:
            texts["inputs"] = f"the input {others[0]}" if len(others) == 1 else f"one of the inputs {', '.join(others[:5])}"
        if variables:
            texts["environment"] = f"the variable{'s' * (len(variables) > 1)} {', '.join(variables[:5])}"
        return texts

    def changed_option(self, task: str, earlier: str) -> str:
        """Returns a text about the first option that differs between two tasks. Returns an empty text if no option differs."""
        new, old = self._of(task).launch, self._of(earlier).launch
        return next((text for name, text in _OPTIONS.items() if new.get(name) != old.get(name)), "")

    def _changed_program(self, task: NewTask, earlier: str, earlier_code: bytes) -> list[str]:
        new = self._programs_of(self._run).get(task.record[_CODE], {})
        earlier = earlier.partition(".")[0]
        old = self._programs_of(earlier).get(earlier_code, {})
        if len(new) != 1 or len(old) != 1:
            return []
        (new_files,), (old_files,) = new.values(), old.values()
        return [
            name
            for file in _different(new_files, old_files)
            for name in self._inside(earlier, old_files.get(file), new_files.get(file)) or [file]
        ]

    def _inside(self, earlier: str, old: str | None, new: str | None) -> list[str]:
        """Returns the packages that differ between two directories of installed packages. ``old``, ``new``: hashes of these directories.
        For hashes of files, the list is empty."""
        rows = [
            self._programs_of(run).get(bytes.fromhex(digest or "")[:PART_BYTES], {}) for run, digest in ((earlier, old), (self._run, new))
        ]
        before, after = (row.get(bytes.fromhex(digest or "")) for row, digest in zip(rows, (old, new), strict=True))
        return _different(after, before) if before is not None and after is not None else []

    def _programs_of(self, run: str) -> Mapping[bytes, Mapping[bytes, Mapping[str, str]]]:
        if run not in self._programs:
            self._programs[run] = ProgramRegister(self._session.directory, run).read()
        return self._programs[run]

    def _of(self, task: str) -> _Spec:
        found = self._known.get(task)
        if found is None:
            answer, code = self._session.ask_bytes("spec", task=task)
            found = self._known[task] = _read_spec(answer["launch"], code)
            if len(self._known) > MAX_KNOWN:
                self._known.pop(next(iter(self._known)))
        return found


class _Spec(NamedTuple):
    """The shared parts of a task. ``files``: hashes of the inputs by name. ``modules``: the bundle of the user's own modules."""

    launch: Mapping[str, Any]
    files: dict[str, str]
    variables: dict[str, str]
    modules: bytes


def _read_spec(launch: Mapping[str, Any], code: bytes) -> _Spec:
    is_call = "form" in launch
    parts = unpack(code) if code and (launch.get("inputs") or launch.get("modules")) else []
    inline = iter(parts[2:] if is_call else parts)
    files = {}
    for name, *rest in launch.get("inputs") or ():
        files[name] = str(rest) if len(rest) > 1 or isinstance(rest[0], str) else sha256(next(inline, b"")).hexdigest()
    return _Spec(launch, files, stable_environment(launch.get("env") or {}), bytes(parts[1]) if launch.get("modules") else b"")


def _different(new: Mapping[str, str], old: Mapping[str, str]) -> list[str]:
    return [name for name in sorted({**new, **old}) if new.get(name) != old.get(name)]
