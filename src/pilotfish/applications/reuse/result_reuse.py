"""Adds records to the tasks of one run. With ``--resume``, ``resume=True`` or ``cache=True``, the master uses these records to find earlier
results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Any

from msgspec.structs import replace

from pilotfish.applications.calls.future_arguments import FutureArguments
from pilotfish.applications.calls.python_call import PICKLE, Register
from pilotfish.applications.input_files import PackedFiles
from pilotfish.applications.reuse.call_keys import Call, CallKeys, installed_packages
from pilotfish.applications.reuse.task_keys import ExecutableKeys, OutputTest, ProgramFiles, RepeatCounter, packed_hash, parents_hash
from pilotfish.applications.task_needs import TaskNeeds
from pilotfish.model.task import TaskSpec


class ResultReuse:
    """Makes the records of the tasks of one run. The record of a task lets the master find the result of an equal earlier task.

    - ``records``: maps the index of each submitted task to its record. The caller adds the entries.
    - ``resume``: whether every task can get an earlier result. If False, only calls with ``cache=True`` can.
    - ``around``: a value that counts as a part of each call's code, such as an initializer.
    - ``may_repeat``: whether two tasks of the run can be equal.

    With ``resume``, equal tasks of one run do not share a result. With ``cache=True``, the second of two equal calls can get the result of
    the first.
    """

    def __init__(self, records: Mapping[int, bytes], resume: bool = False, around: object = None, may_repeat: bool = True) -> None:
        self.resume = resume
        self._cache = False
        self._calls = CallKeys(around)
        self._launches: dict[int, Mapping[str, Any]] = {}
        """Maps the number of each spec of calls to its launch description."""
        self._executables = ExecutableKeys()
        self._repeats = RepeatCounter() if may_repeat else None
        self._records = records
        self._inputs = b""

    def for_calls(self, inputs: PackedFiles | None, cache: bool) -> ResultReuse:
        """Returns a copy for calls with these inputs and this value of ``cache``. The copy shares everything else with this object."""
        made = copy(self)
        made._cache = cache
        made._inputs = b"" if inputs is None else packed_hash(inputs)
        return made

    @property
    def is_wanted(self) -> bool:
        """Returns whether tasks can get earlier results."""
        return self.resume or self._cache

    def register(self, spec_number: Register) -> Register:
        """Returns a function that does the same as ``spec_number``, and also stores the data that the records of the spec's tasks need."""

        def noted(spec: TaskSpec, code: bytes) -> int:
            if spec.kind == "python" and self.is_wanted and spec.launch.get("form") == PICKLE:
                # For a rerun: it makes new records only if the installed packages are still the same.
                spec = replace(spec, launch={**spec.launch, "packages": installed_packages(spec.launch["path"])})
            number = spec_number(spec, code)
            if spec.kind == "python":
                self._launches[number] = spec.launch
            elif self.resume:
                self._executables.add_spec(number, spec, code)
            return number

        return noted

    def call(self, call: Call, needs: TaskNeeds, number: int, futures: FutureArguments | None = None) -> TaskNeeds:
        """Returns ``needs`` with the record of a call. If no record can be made, returns ``needs`` without a record. In this case, the call
        always runs.

        ``number``: the number of the call's spec. ``futures``: the futures in the arguments of the call.
        """
        parents = self._parents(needs)
        if parents is None:
            return needs
        record = self._calls.record(call, self._launches[number], parents, self._inputs, futures, number)
        record = record if self._cache else self._counted(record)
        return needs._replace(key=record, reuse=bool(record))

    def executable(self, needs: TaskNeeds, number: int, argv: Sequence[str], payload: bytes, own_inputs: bool) -> TaskNeeds:
        """Returns ``needs`` with the record of an executable. ``number``: the number of its spec."""
        record = self.executable_record(needs, number, argv, payload, own_inputs)
        return self.with_changes(needs._replace(key=record, reuse=bool(record)), number, argv)

    def executable_record(
        self, needs: TaskNeeds, number: int, argv: Sequence[str], payload: bytes, own_inputs: bool, files: bytes = b""
    ) -> bytes:
        """Returns the record of an executable, or an empty record. ``files``: hash of inputs that are not in the payload."""
        parents = self._parents(needs)
        return b"" if parents is None else self._counted(self._executables.record(number, argv, payload, own_inputs, parents, files))

    def with_changes(
        self, needs: TaskNeeds, number: int, argv: Sequence[str], declared: Collection[str] = (), is_output: OutputTest | None = None
    ) -> TaskNeeds:
        """Returns ``needs`` with the last change of the files that a command names, and the last change of its program files. See
        ``last_change`` and ``program_change`` of ``ExecutableKeys``."""
        last_change = self._executables.last_change(number, argv, declared, is_output)
        return needs._replace(last_change=last_change, program_change=self._executables.program_change(number, argv))

    def take_programs(self) -> dict[bytes, ProgramFiles]:
        """Returns the programs of the executables that got a record since the last call of ``take_programs``."""
        found, self._executables.programs = self._executables.programs, {}
        return found

    def _parents(self, needs: TaskNeeds) -> bytes | None:
        """Returns one hash of all tasks for which a task waits. The effects of a task without a record are unknown. If there is such a
        task, returns None. Also returns None for a task with ``after_any``, because its work may depend on the ends of these tasks."""
        records, files = self._records, needs.future_files
        if needs.after_any:
            return None
        if not (needs.after or files):
            return b""
        indices = dict.fromkeys((*needs.after, *(file.maker for file in files)))
        if any(index not in records for index in indices):
            return None
        return parents_hash((records[index] for index in indices), ((records[file.maker], file.name, file.target) for file in files))

    def _counted(self, record: bytes) -> bytes:
        return self._repeats.count(record) if record and self._repeats is not None else record
