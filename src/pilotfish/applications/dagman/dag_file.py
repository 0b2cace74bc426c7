"""Reads DAGMan files: nodes, their dependencies, scripts and options.

There are two passes, as in DAGMan. The first pass reads the nodes of a file, with its splices and includes. The second pass reads the
lines about nodes. So the order of lines does not matter. A keyword without effect on the outcome gives a notice. An unsupported keyword
that would change the outcome gives an error with an alternative. Paths are relative to the current directory of the command.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pilotfish.applications.dagman.dag_text import DagLine, closing_of, read_inline, read_lines, read_number, take_two, words_of
from pilotfish.applications.dagman.rescue_file import LATEST, RescueFile, done_nodes, number_of
from pilotfish.applications.dependency_order import DependencyCycle, topological_order
from pilotfish.errors import BadInput

ALL_NODES = "ALL_NODES"
MAX_NODES = 1_000_000
MAX_FILES = 10_000
MAX_DEPTH = 100
SHOWN = 8
MAX_EDGES = 5_000_000
KEYS = re.compile(r'\s*([^\s="\']+)\s*=\s*("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[^\s"\']+)(?=\s|$)', re.DOTALL)

IGNORED_KEYWORDS = {
    "CONFIG": "it is for DAGMan itself",
    "DOT": "no picture is drawn; see: pilotfish tasks",
    "NODE_STATUS_FILE": "see: pilotfish tasks --json",
    "JOBSTATE_LOG": "see: pilotfish tasks --json",
    "SAVE_POINT_FILE": "what failed is run again by: pilotfish rerun",
    "SET_JOB_ATTR": "there is no job for the whole DAG",
    "ENV": "scripts see the environment of the worker",
    "CATEGORY": "no limit is kept for it",
}
"""Keywords that Pilotfish ignores, each with a note for the user."""
UNSUPPORTED_KEYWORDS = {
    "SUBDAG": "Use SPLICE, or run that DAG by a command of its own.",
    "FINAL": "Leave it out, and run it afterwards: pilotfish run FILE; ./final",
    "SERVICE": "Leave it out, and start it beside the run.",
    "PROVISIONER": "Leave it out: pilotfish pilots add SITE N requests pilots.",
    "MAXJOBS": "Leave it out; to limit all nodes, use --local-cores N.",
    "ABORT_DAG_ON": "Leave it out; pilotfish cancel ends a run, and --max-failures N ends it after N failures.",
    "TOLERANCE": "Leave it out; a POST script that exits with 0 makes a node succeed.",
    "CONNECT": "Write PARENT and CHILD lines with the nodes of the splices: SPLICE+NODE.",
    "PIN_IN": "Write PARENT and CHILD lines with the nodes of the splices: SPLICE+NODE.",
    "PIN_OUT": "Write PARENT and CHILD lines with the nodes of the splices: SPLICE+NODE.",
    "WEAK": "A POST script that exits with 0 makes the parent succeed.",
    "REJECT": "Its author wants it not to be run; see why, and take the line out.",
}
"""Unsupported keywords that would change the outcome, each with an alternative."""


@dataclass(frozen=True, slots=True)
class NodeScript:
    """A PRE or POST script. ``words``: the program and its arguments. An argument may be a macro such as $RETURN."""

    where: str
    words: tuple[str, ...]


@dataclass(slots=True)
class DagNode:
    name: str
    where: str
    description: tuple[DagLine, ...] | str
    """The submit description: its lines, or the name of its file."""
    directory: str = "."
    noop: bool = False
    done: bool = False
    retries: int | None = None
    unless_exit: int | None = None
    pre: NodeScript | None = None
    post: NodeScript | None = None
    pre_skip: int | None = None
    priority: int = 0
    before: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)
    """Macros of VARS lines. ``before``: set before the submit description is read. ``after``: set after it is read."""
    parents: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class Dag:
    """A DAG with its nodes in topological order. ``notices``: messages for the user.

    ``files``: all files that were read. Submit descriptions are here with their lines, other files without lines.
    """

    path: str
    nodes: list[DagNode]
    notices: list[str]
    files: dict[str, tuple[DagLine, ...]]
    rescue: int = 0
    """Number of the rescue file that was read. 0 means that no rescue file was read."""


def read_dag(path: str, rescue: RescueFile = LATEST) -> Dag:
    """Reads a DAG file with its includes and splices. Marks each node in the rescue file as done. ``rescue`` selects this file."""
    reader = _Reader()
    top = _Scope("", "", reader.notices)
    reader.read(path, top)
    reader.finish(top)
    if not reader.nodes:
        raise BadInput(f"{path}: it has no nodes", "Write one: JOB NAME FILE.sub")
    number = _apply_rescue(path, reader, rescue)
    return Dag(path, _in_order(reader.nodes), list(dict.fromkeys(reader.notices)), reader.files, number)


@dataclass(slots=True)
class _Scope:
    """The nodes and splices of one file or splice. ``prefix`` comes before the names of its nodes, ``directory`` before paths."""

    prefix: str
    directory: str
    notices: list[str]
    open_files: tuple[str, ...] = ()
    nodes: dict[str, DagNode] = field(default_factory=dict)
    splices: dict[str, _Scope] = field(default_factory=dict)
    descriptions: dict[str, tuple[DagLine, ...]] = field(default_factory=dict)
    second_pass: list[tuple[Callable[[_Scope, DagLine, list[str]], None], DagLine, list[str]]] = field(default_factory=list)

    def find(self, name: str, line: DagLine) -> list[DagNode]:
        """Returns the node of this name in a list. If the name is ALL_NODES, returns all nodes."""
        if name.upper() == ALL_NODES:
            return self.all_nodes()
        scope: _Scope | None = self
        *path, last = name.split("+")
        for part in path:
            scope = scope.splices.get(part) if scope is not None else None
        if scope is None or last not in scope.nodes:
            raise BadInput(f"{line.where}: there is no node {name!r}", f"Define it: JOB {name} FILE.sub")
        return [scope.nodes[last]]

    def all_nodes(self) -> list[DagNode]:
        return [*self.nodes.values(), *(node for splice in self.splices.values() for node in splice.all_nodes())]


class _Reader:
    def __init__(self) -> None:
        self.nodes: dict[str, DagNode] = {}
        self.notices: list[str] = []
        self.files: dict[str, tuple[DagLine, ...]] = {}
        self._reads = 0

    def read(self, path: str, scope: _Scope, where: str = "") -> None:
        """Does the first pass: reads nodes, splices and submit descriptions. Keeps the other lines for the second pass."""
        self._reads += 1
        full = os.path.join(scope.directory, path)
        if os.path.abspath(full) in scope.open_files:
            raise BadInput(f"{where}: {full} contains itself", "Break the cycle.")
        if self._reads > MAX_FILES or len(scope.open_files) > MAX_DEPTH:
            raise BadInput(f"{where}: too many files are included", "See whether they include each other.")
        outer, scope.open_files = scope.open_files, (*scope.open_files, os.path.abspath(full))
        lines = read_lines(full, where)
        self.files[full] = ()
        for line in lines:
            words = words_of(line)
            keyword = words[0].upper().replace("-", "_")
            if keyword in UNSUPPORTED_KEYWORDS:
                raise BadInput(f"{line.where}: {words[0]} is not supported", UNSUPPORTED_KEYWORDS[keyword])
            if keyword in IGNORED_KEYWORDS:
                self.notices.append(f"{line.where}: {words[0]} has no effect: {IGNORED_KEYWORDS[keyword]}")
            elif keyword in _FIRST_PASS:
                _FIRST_PASS[keyword](self, scope, line, words[1:], lines)
            elif keyword in _SECOND_PASS:
                scope.second_pass.append((_SECOND_PASS[keyword], line, words[1:]))
            else:
                raise BadInput(
                    f"{line.where}: unknown keyword {words[0][:40]!r}", "Check its spelling; keywords are JOB, PARENT, RETRY, ..."
                )
        scope.open_files = outer

    def finish(self, scope: _Scope) -> None:
        """Does the second pass: applies the lines about nodes. Inner splices come before outer splices."""
        for splice in scope.splices.values():
            self.finish(splice)
        for action, line, words in scope.second_pass:
            action(scope, line, words)
        for node in scope.nodes.values():
            if isinstance(node.description, str):
                node.description = scope.descriptions.get(node.description, node.description)

    # --- first pass -------------------------------------------------------------------------------------------------------------------

    def job(self, scope: _Scope, line: DagLine, words: list[str], lines: Iterator[DagLine]) -> None:
        name, description, rest = take_two(line, words, "JOB NAME FILE.sub [DIR directory] [NOOP] [DONE]")
        if "+" in name or name.upper() in ("PARENT", "CHILD", ALL_NODES):
            raise BadInput(f"{line.where}: {name!r} cannot be the name of a node", "Take another one, without +.")
        if name in scope.nodes or name in scope.splices:
            earlier = scope.nodes[name].where if name in scope.nodes else "a splice"
            raise BadInput(f"{line.where}: there is already a node {name!r} ({earlier})", "Give each node a name of its own.")
        if len(self.nodes) >= MAX_NODES:
            raise BadInput(f"{line.where}: more than {MAX_NODES:,} nodes", "Cut the DAG into several.")
        inline: tuple[DagLine, ...] | None = None
        if closing_of(description):
            inline, rest = read_inline(line, description, lines)
        node = DagNode(scope.prefix + name, line.where, description if inline is None else inline, scope.directory or ".")
        while rest:
            word = rest.pop(0).upper()
            if word == "DIR" and rest:
                node.directory = os.path.join(scope.directory, rest.pop(0))
            elif word in ("NOOP", "DONE"):
                node.noop, node.done = node.noop or word == "NOOP", node.done or word == "DONE"
            else:
                raise BadInput(f"{line.where}: {word!r} is unexpected", "Write: JOB NAME FILE.sub [DIR directory] [NOOP] [DONE]")
        scope.nodes[name] = self.nodes[node.name] = node

    def description(self, scope: _Scope, line: DagLine, words: list[str], lines: Iterator[DagLine]) -> None:
        name, opening, _ = take_two(line, words, "SUBMIT-DESCRIPTION NAME {")
        if not closing_of(opening):
            raise BadInput(f"{line.where}: the description {name!r} does not begin", f"Write: SUBMIT-DESCRIPTION {name} {{")
        if name in scope.descriptions:
            raise BadInput(f"{line.where}: there is already a description {name!r}", "Give it another name.")
        scope.descriptions[name], _ = read_inline(line, opening, lines)

    def splice(self, scope: _Scope, line: DagLine, words: list[str], lines: Iterator[DagLine]) -> None:
        name, file, rest = take_two(line, words, "SPLICE NAME FILE.dag [DIR directory]")
        if "+" in name or name in scope.nodes or name in scope.splices:
            raise BadInput(f"{line.where}: there is already a node or splice {name!r}, or it holds a +", "Give it a name of its own.")
        directory = scope.directory
        if rest:
            if rest[0].upper() != "DIR" or len(rest) != 2:
                raise BadInput(f"{line.where}: {rest[0]!r} is unexpected", "Write: SPLICE NAME FILE.dag [DIR directory]")
            directory = os.path.join(directory, rest[1])
        inner = scope.splices[name] = _Scope(f"{scope.prefix}{name}+", directory, scope.notices, scope.open_files)
        self.read(file, inner, line.where)

    def include(self, scope: _Scope, line: DagLine, words: list[str], lines: Iterator[DagLine]) -> None:
        if len(words) != 1:
            raise BadInput(f"{line.where}: INCLUDE takes one file", "Write: INCLUDE FILE")
        self.read(words[0], scope, line.where)


# --- second pass ------------------------------------------------------------------------------------------------------------------------


def _parent(scope: _Scope, line: DagLine, words: list[str]) -> None:
    upper = [word.upper() for word in words]
    if upper.count("CHILD") != 1 or upper[0] == "CHILD" or upper[-1] == "CHILD":
        raise BadInput(f"{line.where}: PARENT needs names, then CHILD, then names", "Write: PARENT A B CHILD C D")
    middle = upper.index("CHILD")
    parents = {node.name: None for word in words[:middle] for node in _ends_of(scope, word, line, last=True)}
    children = [node for word in words[middle + 1 :] for node in _ends_of(scope, word, line, last=False)]
    if len(parents) * len(children) > MAX_EDGES:
        raise BadInput(
            f"{line.where}: {len(parents):,} parents of {len(children):,} children are too many", "Put a NOOP node between them."
        )
    for node in children:
        node.parents.update(parents)


def _ends_of(scope: _Scope, name: str, line: DagLine, last: bool) -> list[DagNode]:
    """For a node, returns a list with this node. For a splice, returns its last nodes if ``last`` is True, otherwise its first nodes."""
    splice = scope.splices.get(name)
    if splice is None:
        if name.upper() == ALL_NODES:
            raise BadInput(f"{line.where}: {name} cannot stand here", "Name the nodes.")
        return scope.find(name, line)
    nodes = splice.all_nodes()
    names = {node.name for node in nodes}
    if last:
        inner = {parent for node in nodes for parent in node.parents}
        return [node for node in nodes if node.name not in inner]
    return [node for node in nodes if not any(parent in names for parent in node.parents)]


def _retry(scope: _Scope, line: DagLine, words: list[str]) -> None:
    name, count, rest = take_two(line, words, "RETRY NODE COUNT [UNLESS-EXIT VALUE]")
    unless = None
    if rest:
        if rest[0].upper().replace("-", "_") != "UNLESS_EXIT" or len(rest) != 2:
            raise BadInput(f"{line.where}: {rest[0]!r} is unexpected", "Write: RETRY NODE COUNT [UNLESS-EXIT VALUE]")
        unless = read_number(rest[1], line, "UNLESS-EXIT")
    for node in scope.find(name, line):
        node.retries, node.unless_exit = read_number(count, line, "RETRY", 0), unless


def _script(scope: _Scope, line: DagLine, words: list[str]) -> None:
    form = "SCRIPT PRE|POST NODE PROGRAM [arguments]"
    rest = list(words)
    while rest and rest[0].upper() in ("DEFER", "DEBUG"):
        if rest[0].upper() == "DEFER":
            scope.notices.append(f"{line.where}: DEFER has no effect: let the script itself wait and try again")
        del rest[:3]
    kind, name, program = take_two(line, rest, form)
    if not program or kind.upper() not in ("PRE", "POST"):
        raise BadInput(f"{line.where}: SCRIPT {kind[:20]} is not understood", f"Write: {form}")
    for node in scope.find(name, line):
        setattr(node, kind.lower(), NodeScript(line.where, tuple(program)))


def _pre_skip(scope: _Scope, line: DagLine, words: list[str]) -> None:
    name, value, _ = take_two(line, words, "PRE_SKIP NODE EXIT-CODE")
    for node in scope.find(name, line):
        node.pre_skip = read_number(value, line, "PRE_SKIP", 1)


def _priority(scope: _Scope, line: DagLine, words: list[str]) -> None:
    name, value, _ = take_two(line, words, "PRIORITY NODE NUMBER")
    for node in scope.find(name, line):
        node.priority = read_number(value, line, "PRIORITY")


def _done(scope: _Scope, line: DagLine, words: list[str]) -> None:
    for node in scope.find(words[0] if words else "", line):
        node.done = True


def _vars(scope: _Scope, line: DagLine, words: list[str]) -> None:
    form = 'VARS NODE name="value" ...'
    name, *_ = take_two(line, words, form)
    text = line.text.split(None, 2)[2]
    first = text.split(None, 1)[0].upper()
    if first in ("PREPEND", "APPEND"):
        text = text[len(first) :]
    found, position = {}, 0
    while text[position:].strip():
        pair = KEYS.match(text, position)
        if pair is None:
            raise BadInput(f'{line.where}: VARS: {text[position:].strip()[:40]!r} is not name="value"', f"Write: {form}")
        key, value = pair[1], pair[2]
        if key.lower().startswith("queue"):
            raise BadInput(f"{line.where}: VARS: a name cannot begin with queue", "Take another name.")
        found[key] = re.sub(r"\\(.)", r"\1", value[1:-1], flags=re.DOTALL) if value[0] in "\"'" else value
        position = pair.end()
    if not found:
        raise BadInput(f"{line.where}: VARS without a name and value", f"Write: {form}")
    for node in scope.find(name, line):
        (node.after if first == "APPEND" else node.before).update(found)


_FIRST_PASS: dict[str, Callable[[_Reader, _Scope, DagLine, list[str], Iterator[DagLine]], None]] = {
    "JOB": _Reader.job,
    "NODE": _Reader.job,
    "SUBMIT_DESCRIPTION": _Reader.description,
    "SPLICE": _Reader.splice,
    "INCLUDE": _Reader.include,
}
_SECOND_PASS: dict[str, Callable[[_Scope, DagLine, list[str]], None]] = {
    "PARENT": _parent,
    "RETRY": _retry,
    "SCRIPT": _script,
    "PRE_SKIP": _pre_skip,
    "PRIORITY": _priority,
    "DONE": _done,
    "VARS": _vars,
}


# --- rescue file and order --------------------------------------------------------------------------------------------------------------


def _apply_rescue(path: str, reader: _Reader, which: RescueFile) -> int:
    """Marks the nodes of the rescue file as done. Returns the number of the rescue file."""
    rescue, done = done_nodes(path, reader.nodes, which)
    for name in done:
        reader.nodes[name].done = True
    if rescue:
        reader.notices.append(f"{len(done)} node{'' if len(done) == 1 else 's'} done before, says {rescue}")
    return number_of(rescue)


def _in_order(nodes: dict[str, DagNode]) -> list[DagNode]:
    """Sorts nodes topologically."""
    listed = list(nodes.values())
    places = {node.name: place for place, node in enumerate(listed)}
    try:
        return [listed[place] for place in topological_order([[places[parent] for parent in node.parents] for node in listed])]
    except DependencyCycle as cycle:
        names = [listed[place].name for place in cycle.places]
        shown = " -> ".join([*names[:SHOWN], "..." if len(names) > SHOWN else names[0]])
        where = listed[cycle.places[0]].where
        raise BadInput(f"{where}: these nodes wait for each other: {shown}", "Break the cycle: see their PARENT lines.") from None
