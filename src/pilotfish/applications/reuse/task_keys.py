"""Makes the records of tasks. The master uses a record to find an equal earlier task. See ``core/data/stored_results.py``.

A record has a key and a short hash of each part of the task: its code, arguments, inputs and environment. Options that say how a task runs,
such as cores, memory and retries, are not part of the record.

A key is a sum of hashes: of the code, of each task that the task needs, and of the rest. For a Python call, the user's own modules and the
input files have hashes of their own in this sum. So if an input file changed, a rerun can replace the hash of the files in the sum. It does
not need to know from what the other hashes were made. See ``client/reuse/rerun_keys.py``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple
from zlib import crc32

from pilotfish.applications.input_files import PackedFiles, Source, StoredFile, digests, is_settled, walk_files
from pilotfish.applications.reuse.file_changes import RECHECK_S, FileChanges, file_status
from pilotfish.applications.reuse.program_files import KnownModules, ProgramSearch, packages_in, program_words, shell_texts, words_in
from pilotfish.applications.reuse.session_variables import stable_environment
from pilotfish.applications.task_needs import NO_CHANGE, LastChange
from pilotfish.model.contents import KEY_LENGTH, PART_BYTES
from pilotfish.model.task import TaskSpec
from pilotfish.portable.payload_format import Buffer, unpack

SMALL_PROGRAM_BYTES = 1 << 20
"""Maximum bytes of a small program. The hash of a larger program is stored on disk, like the hash of an input file."""
MAX_SHARED = 1000
"""Maximum number of remembered programs. The number can grow: in a sweep over the text of ``sh -c``, each task counts as a new program."""
OutputTest = Callable[[Collection[str], str, float], bool]
"""Tests whether tasks of an earlier run made the last change of a file. The first argument has the words of the command that name the file,
or that name the script that names the file. The other arguments are the path of the file and the time of the change."""
Stamp = tuple[int, int, int, int] | None
"""Inode, size, time of modification and time of status change of a file. None if there is no file."""


def hash_of(*parts: Buffer) -> bytes:
    digest = blake2b(digest_size=KEY_LENGTH)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


_MODULUS = 1 << 8 * KEY_LENGTH


def sum_hashes(*hashes: bytes) -> bytes:
    """Adds hashes. The first N bytes of the sum depend only on the first N bytes of the hashes, so shortened hashes can be added, too."""
    return (sum(int.from_bytes(one, "little") for one in hashes) % _MODULUS).to_bytes(KEY_LENGTH, "little")


def replace_hash(total: bytes, old: bytes, new: bytes) -> bytes:
    """Returns a sum of hashes in which ``new`` replaces ``old``."""
    first, added, removed = (int.from_bytes(one, "little") for one in (total, new, old))
    return ((first + added - removed) % _MODULUS).to_bytes(KEY_LENGTH, "little")


class CallParts(NamedTuple):
    """Hashes of the parts of a call. ``parents``: see ``parents_hash``."""

    code: bytes
    arguments: bytes
    inputs: bytes
    environment: bytes
    parents: bytes = b""

    def record(self) -> bytes:
        short = b"".join(part[:PART_BYTES] for part in self[:4])
        rest = hash_of(b"call", self.arguments, self.environment)
        return sum_hashes(self.code, rest, inputs_term(self.inputs), self.parents) + short


def inputs_term(inputs: bytes) -> bytes:
    """Returns the part of a call's key that depends on its input files. ``inputs``: hash of the files."""
    return hash_of(b"inputs", inputs)


def modules_term(digest: str) -> bytes:
    """Returns the part of a call's code that depends on the user's own modules. ``digest``: see ``ModuleBundle``."""
    return hash_of(b"modules", digest.encode())


class SpecParts(NamedTuple):
    """The parts of an executable that are equal in all tasks of its spec. ``inputs``, ``environment`` and ``others`` are hashes.

    ``path``: directories of programs (PATH). ``python_path``: directories of Python modules, in addition to the directory of the script.
    """

    inputs: bytes
    environment: bytes
    others: bytes
    directory: str
    path: str | None
    python_path: tuple[str, ...]
    sandbox: bool

    def search(self, words: Sequence[str], modules: KnownModules | None = None) -> ProgramSearch:
        """Finds the files of a program. ``words``: see ``program_words``."""
        return ProgramSearch(words, self.directory, self.path, self.python_path, modules)


def _as_bytes(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def parts_of_spec(spec: TaskSpec, code: bytes) -> SpecParts:
    """Returns the shared parts of executables. ``code``: the small inputs of the spec, in the form in which they are sent."""
    launch = spec.launch
    how = {name: launch.get(name) for name in ("sandbox", "outputs", "keep", "shell", "warn_signal")}
    # Without a sandbox, relative names mean files in this directory.
    directory = "" if launch.get("sandbox") else str(launch.get("cwd"))
    environment = stable_environment(launch.get("env") or {})
    return SpecParts(
        hash_of(_as_bytes(launch.get("inputs") or []), code),
        hash_of(_as_bytes(environment)),
        hash_of(_as_bytes([how, directory])),
        str(launch.get("cwd") or ""),
        environment.get("PATH"),
        tuple(filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))),
        bool(launch.get("sandbox")),
    )


class SharedHash(NamedTuple):
    """The data that tasks with equal specs and programs share.

    ``files``: files of the program, and other programs that its scripts start. ``stamps``: their sizes and times when the program was
    hashed. ``named``: see ``ProgramSearch``. ``change``: last change of a program file. It is NO_CHANGE for
    tasks with a sandbox, because the program files are packed at the submission. ``digest``: a hash object. For each task, a copy of this
    object gets the other parts of the task."""

    files: tuple[str, ...]
    stamps: tuple[Stamp, ...]
    named: tuple[str, ...]
    checked_at: float
    digest: Any
    code: bytes
    code_number: int
    environment: bytes
    change: LastChange


ProgramFiles = tuple[tuple[str, bytes], ...]
"""The files of a program, each with the hash of its content. A directory of installed packages has the hash of the names and versions of
these packages."""


class ExecutableKeys:
    """Makes the records of executables. ``pilotfish run`` makes a record of every task, so values that many tasks have in common are hashed
    only once. ``programs``: maps the hash of the code of each program to the files of the program."""

    def __init__(self) -> None:
        self.programs: dict[bytes, ProgramFiles] = {}
        self._specs: dict[int, SpecParts] = {}
        self._hashes: dict[str, tuple[Stamp, bytes]] = {}
        """Maps a file to its stamp and the hash of its content."""
        self._changes = FileChanges()
        self._modules = KnownModules()
        self._shared: dict[tuple[int, tuple[str, ...]], SharedHash] = {}

    def add_spec(self, number: int, spec: TaskSpec, code: bytes) -> None:
        if number not in self._specs:
            self._specs[number] = parts_of_spec(spec, code)

    def record(
        self, number: int, argv: Sequence[str], payload: Buffer, own_files: bool = False, parents: bytes = b"", files: bytes = b""
    ) -> bytes:
        """Returns the record of a task.

        ``own_files``: whether the payload of the task has input files. ``parents``: see ``parents_hash``. ``files``: hash of inputs that
        are not in the payload.
        """
        shared = self._hash_shared(number, program_words(argv))
        digest = shared.digest.copy()
        inputs, arguments = self._specs[number].inputs, payload
        if own_files:
            inputs, arguments = _without_places(inputs, payload)
            digest.update(inputs)
        digest.update(arguments)
        if files:
            digest.update(files)
            inputs = hash_of(inputs, files)
        total = int.from_bytes(digest.digest(), "little") + shared.code_number + int.from_bytes(parents, "little")
        key = (total % _MODULUS).to_bytes(KEY_LENGTH, "little")
        short = crc32(arguments).to_bytes(PART_BYTES, "big")
        return b"".join((key, shared.code[:PART_BYTES], short, inputs[:PART_BYTES], shared.environment))

    def last_change(
        self, number: int, argv: Sequence[str], declared: Collection[str] = (), is_output: OutputTest | None = None
    ) -> LastChange:
        """Returns the newest change among the files that a command, its shell scripts or its makefiles name.

        Such a file can be an input or an output. An output does not change after the end of its task. So an earlier result is used only
        if no such file changed after the earlier task had ended.

        These files are left out: ``declared`` inputs and outputs, which are compared in other ways; programs, which are compared by their
        content; files for which ``is_output`` returns True; and for a task with a sandbox, all relative names, because they do not mean
        files in the current directory.
        """
        spec, words = self._specs[number], program_words(argv)
        shared = self._hash_shared(number, words)
        named: list[tuple[tuple[str, ...], str]]
        if spec.sandbox:
            texts = list(shell_texts(argv))
            named = [((word,), part) for word in argv for part in words_in(word, word in texts) if part[:1] == "/"]
        else:
            named = [((word,), part) for word in argv if word not in words for part in words_in(word)]
            named += [(words, name) for name in shared.named]
        left_out = {os.path.normpath(os.path.join(spec.directory, name)) for name in declared}
        newest = NO_CHANGE
        for sources, name in named:
            path = os.path.join(spec.directory, name)
            change = self._changes.of_data(path)
            if change.at > newest.at and path not in shared.files and os.path.normpath(path) not in left_out:
                if is_output is None or not is_output(sources, path, change.at):
                    newest = change
        return newest

    def _file_stamps(self, paths: Iterable[str]) -> tuple[Stamp, ...]:
        return tuple(_stamp(self._changes.status(path)) for path in paths)

    def program_change(self, number: int, argv: Sequence[str]) -> LastChange:
        """Returns the newest change among the files of a program. See ``SharedHash``."""
        return self._hash_shared(number, program_words(argv)).change

    def code(self, number: int, argv: Sequence[str]) -> bytes:
        """Returns the hash of the program of a command. Call ``record`` for this spec and program first: its last record has the same
        hash."""
        return self._shared[number, program_words(argv)].code

    def _hash_shared(self, number: int, words: tuple[str, ...]) -> SharedHash:
        known, now = self._shared.get((number, words)), time.monotonic()
        if known is None or now - known.checked_at > RECHECK_S:
            if known is None or self._file_stamps(known.files) != known.stamps:
                if len(self._shared) >= MAX_SHARED:
                    self._shared.clear()
                known = self._make_shared(self._specs[number], words)
            known = self._shared[number, words] = known._replace(checked_at=now)
        return known

    def _make_shared(self, spec: SpecParts, words: tuple[str, ...]) -> SharedHash:
        search = spec.search(words, self._modules)
        hashed = (*search.found, *search.libraries)
        files = (*hashed, *search.commands)
        stamps = self._file_stamps(files)
        hashes = list(map(self._hash_file, search.found, stamps)) + list(map(self._hash_packages, search.libraries))
        code = hash_of(*hashes)
        self.programs[code] = tuple(zip(hashed, hashes, strict=True))
        digest = blake2b(spec.inputs + spec.environment + spec.others, digest_size=KEY_LENGTH)
        return SharedHash(
            files,
            stamps,
            tuple(search.named),
            0.0,
            digest,
            code,
            int.from_bytes(code, "little"),
            spec.environment[:PART_BYTES],
            NO_CHANGE if spec.sandbox else max(map(self._changes.of_program, (*search.found, *search.commands)), default=NO_CHANGE),
        )

    def _hash_file(self, file: str, stamp: Stamp) -> bytes:
        known = self._hashes.get(file)
        if known is None or known[0] != stamp:
            known = self._hashes[file] = stamp, content_hash(file)
        return known[1]

    def _hash_packages(self, library: str) -> bytes:
        """Returns the hash of the names and versions of installed packages. Adds the packages to ``programs`` under this hash, so that a
        message can name a changed package."""
        packages = packages_in(library)
        digest = hash_of(*(f"{name} {version}".encode() for name, version in packages))
        self.programs[digest] = tuple((f"the package {name}", hash_of(version.encode())) for name, version in packages)
        return digest


def _without_places(shared_inputs: bytes, payload: Buffer) -> tuple[bytes, bytes]:
    """Returns the hash of the inputs of a task, and the other parts of its payload. Neither depends on the paths from which the input files
    were read."""
    described, stdin, *parts = unpack(payload)
    fields = json.loads(bytes(described))
    inputs = hash_of(shared_inputs, _as_bytes(fields.pop("inputs", [])), *parts)
    for place in ("sources", "stdin_path"):
        fields.pop(place, None)
    return inputs, _as_bytes(fields) + bytes(stdin)


def _stamp(status: os.stat_result | None) -> Stamp:
    return None if status is None else (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def content_hash(path: str) -> bytes:
    """Returns the hash of the content of a file. Returns an empty hash if the file cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        if os.fstat(descriptor).st_size > SMALL_PROGRAM_BYTES:
            return bytes.fromhex(digests().digest(os.path.realpath(path), descriptor))
        with open(descriptor, "rb", closefd=False) as file:
            return hash_of(file.read())
    except OSError:  # for example, the path is a directory
        return b""
    finally:
        os.close(descriptor)


class RepeatCounter:
    """Gives equal tasks of one run different keys, so that each of these tasks has its own result."""

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}

    def count(self, record: bytes) -> bytes:
        key = record[:KEY_LENGTH]
        count = self._counts[key] = self._counts.get(key, -1) + 1
        return record if not count else sum_hashes(key, hash_of(b"repeat", b"%d" % count)) + record[KEY_LENGTH:]


def parents_hash(awaited: Iterable[bytes], files: Iterable[tuple[bytes, str, str]] = ()) -> bytes:
    """Returns a hash of the tasks and files for which a task waits. Returns an empty hash if there are none. ``awaited``: the records of
    these tasks. ``files``: for each of these files, the record of the task that makes the file, the name of the file in that task, and its
    name in the waiting task."""
    terms = [after_term(record) for record in awaited]
    terms += [file_term(record, name, target) for record, name, target in files]
    return sum_hashes(*terms) if terms else b""


def after_term(record: bytes) -> bytes:
    return hash_of(b"after", record[:KEY_LENGTH])


def file_term(record: bytes, name: str, target: str) -> bytes:
    return hash_of(b"file", record[:KEY_LENGTH], _as_bytes([name, target]))


def files_hash(inputs: Mapping[str, Source]) -> bytes:
    """Returns the hash of the names, modes and contents of files."""
    return packed_hash(PackedFiles(inputs)) if inputs else b""


class FilesVersion(NamedTuple):
    """A value that changes if one of the input files changes.

    A file that changed in the last RACY_S seconds can change again without a change of its stamp. If there is such a file, ``contents`` is
    the hash of all contents. Otherwise, ``contents`` is empty.
    """

    stamps: tuple[object, ...]
    contents: bytes


def files_version(inputs: Mapping[str, Source]) -> FilesVersion:
    stamps = [stamp for name, source in inputs.items() for stamp in _source_stamps(name, source)]
    are_settled = all(stamp is not None and is_settled(*stamp[2:]) for stamp in stamps)
    return FilesVersion((*inputs, *stamps), b"" if are_settled else files_hash(inputs))


def _source_stamps(name: str, source: Source) -> list[Stamp]:
    """Returns the stamps of an input: of the file, or of all files in the directory."""
    if isinstance(source, (bytes, StoredFile)):
        return []
    try:
        paths = [path for _, path in walk_files(name, os.fspath(source))] if os.path.isdir(source) else [os.fspath(source)]
        return [_stamp(file_status(path)) for path in paths]
    except OSError:
        return [None]


def packed_hash(packed: PackedFiles) -> bytes:
    return hash_of(_as_bytes(packed.entries), *packed.parts)
