"""Makes new records for tasks that run again, so that ``--resume`` and ``resume=True`` find the results of these tasks later.

The key of a task is a sum of hashes (``applications/reuse/task_keys.py``). A rerun reads programs, input files and the user's own modules
again, so it knows the old and the new hashes of these files. It also knows the old and the new keys of the rerun tasks that the task needs.
The rerun replaces the old hashes in the sum by the new hashes. All other parts of the sum stay: the arguments, the environment, and the
number of the task among equal tasks.

A task gets no record if one of the old hashes is not known, or if something changed that a rerun cannot read again. So the files in a
record are always the files that were sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pilotfish.applications.calls.own_modules import OwnModules
from pilotfish.applications.reuse.call_keys import NO_INPUTS, installed_packages
from pilotfish.applications.reuse.task_keys import (
    ExecutableKeys,
    ProgramFiles,
    after_term,
    file_term,
    hash_of,
    inputs_term,
    modules_term,
    replace_hash,
)
from pilotfish.model.contents import KEY_LENGTH, PART_BYTES
from pilotfish.model.task import TaskSpec
from pilotfish.portable.payload_format import Buffer, unpack

_CODE_END = KEY_LENGTH + PART_BYTES
_INPUTS = slice(KEY_LENGTH + 2 * PART_BYTES, KEY_LENGTH + 3 * PART_BYTES)
Programs = Mapping[bytes, Mapping[bytes, Any]]
"""Programs of the run: see ``ProgramRegister.read``."""


class SpecFiles(NamedTuple):
    """A spec and its code. The code contains the small files, or the function, that all tasks of the spec share."""

    spec: TaskSpec
    code: bytes


class RerunKeys:
    """Makes the records of the tasks of one rerun.

    The arguments map the index of a task to data about the task. ``before``: its old record. ``needed``: the indices of other rerun tasks
    that it needs. ``files``: the files that it gets from these other tasks, each as (index of the other task, name of the file there, name
    here). ``programs``: see ``ProgramRegister.read``.
    """

    def __init__(
        self,
        before: Mapping[int, bytes],
        needed: Mapping[int, Iterable[int]],
        files: Mapping[int, Iterable[tuple[int, str, str]]],
        programs: Programs,
    ) -> None:
        self._before, self._needed, self._files, self._programs = before, needed, files, programs
        self._old, self._new = ExecutableKeys(), ExecutableKeys()
        self._made: dict[int, bytes] = {}
        """New records, but still with the old keys of the other tasks that the task needs."""

    @property
    def programs(self) -> dict[bytes, ProgramFiles]:
        """The current programs, by the hash of their code."""
        return self._new.programs

    def add_spec(self, number: int, old: SpecFiles, new: SpecFiles) -> None:
        self._old.add_spec(number, *old)
        self._new.add_spec(number, *new)

    def add_executable(self, index: int, number: int, old: Buffer, new: Buffer) -> None:
        """Makes the record of an executable. ``old``, ``new``: its payload before and now."""
        before = self._before.get(index)
        if before is None:
            return
        described = json.loads(bytes(unpack(old)[0]))
        own_files = bool(described["inputs"] or "stdin_path" in described)
        known = self._old.record(number, described["argv"], old, own_files)
        codes = list(self._programs.get(before[KEY_LENGTH:_CODE_END], ()))
        if known[_CODE_END:] != before[_CODE_END:] or len(codes) != 1:
            return
        old_part = replace_hash(known[:KEY_LENGTH], self._old.code(number, described["argv"]), codes[0])
        record = self._new.record(number, described["argv"], new, own_files)
        self._made[index] = replace_hash(before[:KEY_LENGTH], old_part, record[:KEY_LENGTH]) + record[KEY_LENGTH:]

    def add_calls(self, indices: Iterable[int], old: SpecFiles, new: SpecFiles) -> None:
        """Makes the records of Python calls that have the same spec."""
        path, packages = old.spec.launch.get("path") or [], old.spec.launch.get("packages")
        data = unpack(old.code)[1] if old.spec.launch.get("modules") else b""
        if packages is None or installed_packages(path) != packages or not OwnModules(path).renewable(data):
            return  # the slots possibly use different packages or compiled modules than before
        modules = [modules_term(str(one.spec.launch.get("modules", ""))) for one in (old, new)]
        inputs = [_hash_inputs(one) for one in (old, new)]
        for index in indices:
            before = self._before.get(index)
            if before is None or before[_INPUTS] != inputs[0][:PART_BYTES]:
                continue
            key = replace_hash(before[:KEY_LENGTH], modules[0], modules[1])
            key = replace_hash(key, *map(inputs_term, inputs))
            code = replace_hash(before[KEY_LENGTH:_CODE_END].ljust(KEY_LENGTH, b"\0"), *modules)[:PART_BYTES]
            self._made[index] = key + code + before[_CODE_END : _INPUTS.start] + inputs[1][:PART_BYTES] + before[_INPUTS.stop :]

    def records(self) -> list[tuple[int, bytes]]:
        """Returns the index and the new record of each task that gets a record. A task gets no record if it needs a rerun task without a
        record."""
        found: dict[int, bytes] = {}
        for index in sorted(self._made):  # a task needs only earlier tasks
            record, needed = self._made[index], dict.fromkeys(self._needed.get(index, ()))
            if any(other not in found for other in needed):
                continue
            key = record[:KEY_LENGTH]
            for other in needed:
                key = replace_hash(key, after_term(self._before[other]), after_term(found[other]))
            for other, name, target in self._files.get(index, ()):
                key = replace_hash(key, file_term(self._before[other], name, target), file_term(found[other], name, target))
            found[index] = key + record[KEY_LENGTH:]
        return list(found.items())


def _hash_inputs(files: SpecFiles) -> bytes:
    """Returns the hash of the input files of calls. See ``packed_hash``."""
    entries = files.spec.launch.get("inputs")
    if not entries:
        return NO_INPUTS
    _, _, *parts = unpack(files.code)
    return hash_of(json.dumps(entries, sort_keys=True).encode(), *parts)
