"""Reads the parts of HTCondor submit descriptions that a DAG node needs: program, arguments, files and resources.

A submit description has lines ``name = value``, macros ``$(macro)`` and ``$(macro:default)``, and at most one line ``queue`` or ``queue
NUMBER``. Options that only HTCondor itself can use are ignored. An unsupported option that would change the results is an error, and the
error names an alternative.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pilotfish.applications.dagman.dag_text import DagLine
from pilotfish.errors import BadInput
from pilotfish.model.environment import without_secrets

RETRY, DAG_STATUS, FAILED_COUNT = "\ue000", "\ue001", "\ue002"
RUNTIME_MACROS = {RETRY: "retry", DAG_STATUS: "dag_status", FAILED_COUNT: "failed_count"}
"""Some values are known only when the DAG node runs. Maps the placeholder of each of these values to its shell variable."""
RUNTIME = re.compile(f"([{RETRY}{DAG_STATUS}{FAILED_COUNT}])")
MAX_JOBS = 100_000
"""Maximum number of jobs of one DAG node."""
MAX_TEXT = 1 << 20
MAX_DEPTH, MAX_STEPS = 64, 10_000
MACRO = re.compile(r"\$\(([^():$]*)(?::([^()$]*))?\)|\$ENV\(([^():]*)(?::([^()]*))?\)|\$(\$?[A-Za-z]*)\(")
SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)B?", re.IGNORECASE)
KIBIBYTES = {"K": 1, "": 1 << 10, "M": 1 << 10, "G": 1 << 20, "T": 1 << 30}
YES = ("true", "yes", "t", "1")
TRANSFER_OPTIONS = ("transfer_input_files", "transfer_output_files", "transfer_output_remaps")

UNIVERSES = ("vanilla", "local", "scheduler", "5", "12", "7")
WITHOUT_EFFECT = ("requirements", "rank", "concurrency_limits", "max_materialize", "deferral_time", "hold", "noop_job", "success_exit_code")
"""Options that Pilotfish ignores with a notice."""


@dataclass(frozen=True, slots=True)
class SubmitDescription:
    """The submit description of one job. Paths are relative to ``directory``."""

    program: str
    arguments: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    stdin: str = ""
    stdout: str = ""
    stderr: str = ""
    directory: str = "."
    cores: int = 1
    memory_bytes: int = 0
    gpus: int = 0
    retries: int = 0
    scratch: bool = False
    """Whether the job runs in a private directory. Inputs are copied to that directory, and outputs are copied back."""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] | None = None
    """Files to copy back. None means all new files."""
    remaps: dict[str, str] = field(default_factory=dict)
    """Maps names of files to their destinations. A file without an entry is copied back under its last name: ``a/b.txt`` as ``b.txt``."""
    notices: tuple[str, ...] = ()
    count: int = 1
    """Number of jobs that the description queues."""


def read_job(lines: Iterable[DagLine], before: Mapping[str, str], after: Mapping[str, str], directory: str) -> SubmitDescription:
    """Reads a submit description. ``before``: macros that the description can change. ``after``: macros that override the description."""
    macros = SubmitMacros(before)
    notices: list[str] = []
    queued: DagLine | None = None
    where = ""
    for line in lines:
        where = line.where
        if queued is not None:
            raise BadInput(f"{where}: there is more after {queued.where}", "End the description with a single queue line.")
        queued = _read_line(line, macros, notices)
    for name, value in after.items():
        macros.set(name, value, where)
    job = _DescriptionReader(macros, where or "the submit description").job(directory, tuple(notices))
    return replace(job, count=_count(queued, macros)) if queued is not None else job


def _read_line(line: DagLine, macros: SubmitMacros, notices: list[str]) -> DagLine | None:
    """Reads one line and adds its macro to ``macros``. If it is the ``queue`` line, adds nothing and returns the line."""
    word = line.text.split(None, 1)[0].lower()
    name, equals, value = (part.strip() for part in line.text.partition("="))
    if word == "queue" and not (equals and name.lower() == "queue"):
        return line
    if not equals and word in ("if", "elif", "else", "endif", "include", "use", "error", "warning"):
        raise BadInput(f"{line.where}: {word} is not supported in submit descriptions", "Write out what it would give.")
    if word in ("include", "use") and not re.fullmatch(r"[\w.+]+", name):
        raise BadInput(f"{line.where}: {word} is not supported in submit descriptions", "Write out what it would give.")
    if not equals or not re.fullmatch(r"[\w.+-]+", name):
        raise BadInput(f"{line.where}: {line.text[:60]!r} is not NAME = VALUE", "Write it so, or put # before it.")
    if name.lower() in WITHOUT_EFFECT:
        notices.append(f"{line.where}: {name} has no effect here")
    macros.set(name, value, line.where)
    return None


def _count(queue: DagLine, macros: SubmitMacros) -> int:
    """Returns the number of jobs that the ``queue`` line asks for."""
    text = macros.expand(" ".join(queue.text.split()[1:]), queue.where).strip() or "1"
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= MAX_JOBS):
        raise BadInput(
            f"{queue.where}: {queue.text[:60]!r} is not queue with a number from 1 to {MAX_JOBS}",
            "Write queue or queue 5. For a list of values, write one JOB line for each job, with VARS for what differs.",
        )
    return int(text)


class SubmitMacros:
    """Macros with case-insensitive names. A value is expanded when it is used."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values: dict[str, str] = {}
        self._places: dict[str, str] = {}
        self._steps = 0
        for name, value in values.items():
            self.set(name, value, "VARS")

    def set(self, name: str, value: str, where: str) -> None:
        """Sets a macro. The new value can contain the macro itself: this means its previous value, as in ``x = $(x) more``."""
        key = name.lower()
        if f"$({key})" in value.lower():
            before = self._values.get(key, "")
            value = re.sub(re.escape(f"$({name})"), lambda _: before, value, flags=re.IGNORECASE)
            self._check_length(value, where)
        self._values[key] = value
        self._places[key] = where

    def place(self, name: str, otherwise: str) -> str:
        """Returns the file and the line number where a macro was set. If the macro was not set, returns ``otherwise``."""
        return self._places.get(name, otherwise)

    def get(self, name: str, where: str) -> str:
        self._steps = 0
        return self.expand(self._values.get(name, ""), where).strip()

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def expand(self, text: str, where: str, depth: int = 0) -> str:
        if "$" not in text:
            return text
        self._steps += 1
        if depth > MAX_DEPTH or self._steps > MAX_STEPS:
            raise BadInput(f"{where}: a macro uses itself in {text[:60]!r}", "Break the cycle.")

        def replace(found: re.Match[str]) -> str:
            name, default, variable, otherwise, function = found.groups()
            if function is not None:
                raise BadInput(
                    f"{where}: {found[0]}...) is not supported", "Write what it would give; $(name) and $ENV(name) are understood."
                )
            if variable is not None:
                return os.environ.get(variable.strip(), otherwise or "")
            key = name.strip().lower()
            if key == "dollar":
                return "$"
            return self.expand(self._values.get(key, default or ""), where, depth + 1)

        pieces, length, position = [], 0, 0
        for found in MACRO.finditer(text):
            pieces += [text[position : found.start()], replace(found)]
            position = found.end()
            length += len(pieces[-1]) + len(pieces[-2])
            if length > MAX_TEXT:
                self._check_length(" " * length, where)
        return "".join([*pieces, text[position:]])

    @staticmethod
    def _check_length(text: str, where: str) -> None:
        if len(text) > MAX_TEXT:
            raise BadInput(f"{where}: macros make a text of more than {MAX_TEXT:,} characters", "See whether one uses itself twice.")


class _DescriptionReader:
    """Makes a SubmitDescription from macros."""

    def __init__(self, macros: SubmitMacros, where: str) -> None:
        self._macros = macros
        self._where = where

    def job(self, directory: str, notices: tuple[str, ...]) -> SubmitDescription:
        universe = self._text("universe").lower() or "vanilla"
        if universe not in UNIVERSES:
            raise BadInput(
                f"{self._place('universe')}: universe = {universe} is not supported",
                "Use vanilla or local; for a container, name its runtime as the executable.",
            )
        program = self._text("executable")
        if not program:
            raise BadInput(f"{self._where}: there is no executable", "Write: executable = PROGRAM")
        inputs, outputs = self._list("transfer_input_files"), self._list("transfer_output_files")
        for name in (*inputs, *outputs):
            if "://" in name:
                raise BadInput(
                    f"{self._where}: {name!r} is a URL, and only files travel", "Fetch it in a PRE script or in a node of its own."
                )
        transfer = self._text("should_transfer_files").lower()
        transfers_files = transfer == "yes" or any(name in self._macros for name in TRANSFER_OPTIONS)
        return SubmitDescription(
            program=program,
            arguments=self._arguments(),
            env=self._inherited() | self._environment(),
            stdin=self._text("input"),
            stdout=self._text("output"),
            stderr=self._text("error"),
            directory=os.path.join(directory, self._text("initialdir") or self._text("initial_dir") or "."),
            cores=max(1, self._number("request_cpus", 1)),
            memory_bytes=self._memory(),
            gpus=self._number("request_gpus", 0),
            retries=self._number("max_retries", 0),
            scratch=transfers_files and transfer != "no",
            inputs=inputs,
            outputs=outputs if "transfer_output_files" in self._macros else None,
            remaps=self._remaps(outputs),
            notices=notices,
        )

    def _text(self, name: str) -> str:
        return self._macros.get(name, f"{self._place(name)}: {name}") if name in self._macros else ""

    def _place(self, name: str) -> str:
        return self._macros.place(name, self._where)

    def _list(self, name: str) -> tuple[str, ...]:
        return tuple(word for word in (part.strip() for part in self._text(name).strip('"').split(",")) if word)

    def _remaps(self, outputs: tuple[str, ...]) -> dict[str, str]:
        """Reads ``NAME = DESTINATION; NAME = DESTINATION``. A backslash makes ``;`` and ``=`` part of a name."""
        name = "transfer_output_remaps"
        remaps = {}
        for pair in re.findall(r"(?:[^;\\]|\\.|\\$)+", self._text(name).removeprefix('"').removesuffix('"'), re.DOTALL):
            if not pair.strip():
                continue
            found = re.fullmatch(r"((?:[^=\\]|\\.)+)=(.+)", pair, re.DOTALL)
            source, target = (re.sub(r"\\([;=\\])", r"\1", part.strip()) for part in found.groups()) if found else ("", "")
            if not source or not target or "://" in target:
                raise BadInput(
                    f"{self._place(name)}: {name}: {pair.strip()[:60]!r} is not FILE = FILE", f'Write: {name} = "a = out/a; b = c"'
                )
            if "/" in source and outputs and source not in outputs:
                raise BadInput(
                    f"{self._place(name)}: {name}: {source[:60]!r} is not in transfer_output_files", "Add it to transfer_output_files."
                )
            remaps[source] = target
        return remaps

    def _number(self, name: str, default: int) -> int:
        text = self._text(name) or str(default)
        if not (text.isascii() and text.isdigit() and len(text) <= 6):
            raise BadInput(f"{self._place(name)}: {name} = {text[:60]} is not a whole number", f"Write: {name} = {default}")
        return int(text)

    def _memory(self) -> int:
        """Returns the requested memory in bytes. A number without a unit is in MiB."""
        text = self._text("request_memory")
        found = SIZE.fullmatch(text)
        if text and (found is None or len(text) > 20):
            raise BadInput(f"{self._place('request_memory')}: request_memory = {text[:60]} is not a size", "Write: request_memory = 2G")
        return round(float(found[1]) * KIBIBYTES[found[2].upper()] * 1024) if found else 0

    def _arguments(self) -> tuple[str, ...]:
        text = self._text("arguments")
        if text.startswith('"'):
            return tuple(self._words(text, "arguments"))
        return tuple(text.replace('\\"', '"').split())

    def _environment(self) -> dict[str, str]:
        text = self._text("environment") or self._text("env")
        pairs = self._words(text, "environment") if text.startswith('"') else [part.strip() for part in text.split(";") if part.strip()]
        found = {}
        for pair in pairs:
            name, equals, value = pair.partition("=")
            if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name.strip(), re.ASCII):
                raise BadInput(
                    f"{self._place('environment')}: environment: {pair[:60]!r} is not NAME=VALUE",
                    'Write: environment = "NAME=VALUE OTHER=VALUE"',
                )
            found[name.strip()] = value
        return found

    def _inherited(self) -> dict[str, str]:
        inherited = self._text("getenv")
        if not inherited or inherited.lower() in ("false", "no", "f", "0"):
            return {}
        environment = {name: value for name, value in without_secrets(os.environ).items() if not name.startswith("PILOTFISH_")}
        if inherited.lower() in YES:
            return environment
        names = [word for word in re.split(r"[,\s]+", inherited) if word]
        return {name: value for name, value in environment.items() if name in names}

    def _words(self, text: str, name: str) -> list[str]:
        """Splits a value in HTCondor's quoted form into words. ``name``: the option that has the value, for messages.

        Double quotes are around the whole value. Blanks separate words. A text in single quotes can contain blanks. Two double quotes mean
        one double quote. Inside of single quotes, two single quotes mean one single quote.
        """
        if len(text) < 2 or not text.endswith('"') or text[1:-1].replace('""', "").count('"'):
            raise BadInput(
                f"{self._place(name)}: {name} = {text[:60]}: a double quote is not closed", f'Write: {name} = "one \'two words\' ""x"""'
            )
        words: list[str] = []
        word, quoted, begun = "", False, False
        inner = text[1:-1].replace('""', '"')
        position = 0
        while position < len(inner):
            character = inner[position]
            if character == "'" and quoted and inner[position + 1 : position + 2] == "'":
                word, position = word + "'", position + 1
            elif character == "'":
                quoted, begun = not quoted, True
            elif character.isspace() and not quoted:
                words += [word] if word or begun else []
                word, begun = "", False
            else:
                word += character
            position += 1
        if quoted:
            raise BadInput(
                f"{self._place(name)}: {name} = {text[:60]}: a single quote is not closed", "Write '' for a single quote itself."
            )
        return [*words, word] if word or begun else words
