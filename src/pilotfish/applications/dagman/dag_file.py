"""Reads DAGMan files: nodes, their dependencies, scripts and options.

A file is read in two passes, as in DAGMan. The first pass reads the nodes, also those of splices and includes. The second pass applies the
lines that name nodes, such as PARENT and RETRY. So the order of lines does not matter. For a keyword that cannot change the results, there
is a notice, and the keyword is ignored. An unsupported keyword that would change the results is an error, and the error names an
alternative. Paths are relative to the current directory of the command.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pilotfish.applications.dagman.dag_text import DagLine, NodeScript, closing_of, read_inline, read_lines, read_number, take_two, words_of
from pilotfish.applications.dagman.rescue_file import LATEST, RescueFile, done_nodes, number_of
from pilotfish.applications.dagman.sub_dags import PRE_SUFFIX, dagman_job, first_nodes, last_nodes, link_all, nodes_within
from pilotfish.applications.dependency_order import DependencyCycle, topological_order
from pilotfish.errors import BadInput, did_you_mean

ALL_NODES = "ALL_NODES"
MAX_NODES = 1_000_000
MAX_FILES = 10_000
MAX_DEPTH = 100
SHOWN = 8
MAX_EDGES = 5_000_000
MAX_EXIT_STATUS = 255
KEYS = re.compile(r'\s*([^\s="\']+)\s*=\s*("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[^\s"\']+)(?=\s|$)', re.DOTALL)

IGNORED_KEYWORDS = {
    "CONFIG": "it is for DAGMan itself",
    "DOT": "no picture is drawn; see: pilotfish tasks",
    "NODE_STATUS_FILE": "see: pilotfish tasks --json",
    "JOBSTATE_LOG": "see: pilotfish tasks --json",
    "SAVE_POINT_FILE": "what failed is run again by: pilotfish rerun",
    "SET_JOB_ATTR": "there is no job for the whole DAG",
    "ENV": "scripts see the environment of the worker",
}
"""Keywords that Pilotfish ignores, each with a note for the user."""
UNSUPPORTED_KEYWORDS = {
    "SERVICE": "Leave it out, and start it beside the run.",
    "PROVISIONER": "Leave it out: pilotfish pilots add SITE N requests pilots.",
    "TOLERANCE": "Leave it out; a POST script that exits with 0 makes a node succeed.",
    "CONNECT": "Write PARENT and CHILD lines with the nodes of the splices: SPLICE+NODE.",
    "PIN_IN": "Write PARENT and CHILD lines with the nodes of the splices: SPLICE+NODE.",
    "PIN_OUT": "Write PARENT and CHILD lines with the nodes of the splices: SPLICE+NODE.",
    "WEAK": "A POST script that exits with 0 makes the parent succeed.",
    "REJECT": "Its author wants it not to be run; see why, and take the line out.",
}
"""Unsupported keywords that would change the results, each with an alternative."""


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
    """Macros of VARS lines. ``before``: set before the submit description is read, so it can change them. ``after``: set after it was
    read."""
    parents: dict[str, None] = field(default_factory=dict)
    after_any: dict[str, None] = field(default_factory=dict)
    """Nodes that must have ended, with any result, before this node starts."""
    category: str = ""
    is_final: bool = False
    is_subdag: bool = False
    """Whether the node stands for a sub-DAG. Such a node waits for the nodes of the sub-DAG, and runs only the POST script of the
    sub-DAG."""
    dag: str = ""
    """Prefix of the names of all nodes that are in the same DAG file as this node."""
    abort: tuple[int, int | None] | None = None
    """Two exit statuses of ABORT-DAG-ON. If the node ends with the first, the DAG is aborted. The exit status of the aborted DAG is the
    second; if the second is None, the first."""
    is_aborted: bool = False
    """Whether ABORT-DAG-ON has aborted the DAG of the node. Only FINAL nodes use it."""
    is_planned: bool = False
    """Whether the file of this sub-DAG is written during the run."""
    problem: str = ""
    """Why the planned file of this sub-DAG cannot be used."""
    tries: int = 1
    """The product of the numbers of tries of all sub-DAGs that contain the node. The node's own number of tries is multiplied by it."""

    @property
    def description_path(self) -> str:
        """The path of the submit description, if the description is a file."""
        assert isinstance(self.description, str)
        return os.path.normpath(os.path.join(self.directory, self.description))

    @property
    def waits(self) -> bool:
        """Returns whether other nodes run before this node. The other nodes possibly create its directories and programs."""
        return bool(self.parents or self.after_any)

    @property
    def name_in_dag(self) -> str:
        """The name of the node for its submit description and scripts. As in DAGMan, the names of splices are part of it, and the names of
        sub-DAGs are not."""
        return self.name.removeprefix(self.dag).removesuffix(PRE_SUFFIX)

    @property
    def parents_in_dag(self) -> list[str]:
        """The ``name_in_dag`` of each parent that is in the same DAG."""
        within = (name for name in self.parents if name.startswith(self.dag) and not name.endswith(PRE_SUFFIX))
        return [name.removeprefix(self.dag) for name in within]


def description_lines(node: DagNode, files: dict[str, tuple[DagLine, ...]]) -> tuple[DagLine, ...]:
    """Returns the lines of the submit description of a node. ``files``: the files that were read before. If a file is read, it is added."""
    if not isinstance(node.description, str):
        return node.description
    path = node.description_path
    if path not in files:
        files[path] = tuple(read_lines(path, node.where))
    return files[path]


@dataclass(slots=True)
class Dag:
    """A DAG with its nodes in topological order. ``notices``: messages for the user.

    ``files``: maps the path of each file that was read to the lines of its submit description. For any other file, the lines are empty.
    """

    path: str
    nodes: list[DagNode]
    notices: list[str]
    files: dict[str, tuple[DagLine, ...]]
    limits: dict[str, int]
    """Maps each category to the maximum number of its nodes that run at the same time."""
    node_counts: dict[str, int]
    """For each DAG: maps the prefix of its node names to the number of its nodes."""
    rescue: int = 0
    """Number of the rescue file that was read. 0 means that no rescue file was read."""
    awaited: dict[str, str] = field(default_factory=dict)
    """Maps the name of each planned sub-DAG whose file was not read yet to the name of a node. The file is read when this node has
    succeeded."""

    @property
    def needs_manager(self) -> bool:
        """Returns whether the tasks depend on what happens during the run."""
        return bool(self.awaited) or any(node.abort is not None for node in self.nodes)

    def note(self, notice: str) -> None:
        """Adds a message for the user. Each message is shown once."""
        if notice not in self.notices:
            self.notices.append(notice)


def read_dag(path: str, rescue: RescueFile = LATEST, planned: Mapping[str, str | None] | None = None) -> Dag:
    """Reads a DAG file with its includes, splices and sub-DAGs. ``rescue`` selects a rescue file. The nodes that this file lists are marked
    as done.

    If ``planned`` is None, the files of all sub-DAGs are read at once. Otherwise, a sub-DAG can be *planned*: its file is written during
    the run. A sub-DAG is planned if it has a PRE script, if its file does not exist, or if it is in the file of a planned sub-DAG.
    ``planned`` maps the names of planned sub-DAGs to one of these values:

    - None, or no entry: the file was not written yet, so it is not read.
    - An empty text: the file was written, so it is read now.
    - Any other text: the file cannot be used. The text is the reason.
    """
    reader = _Reader(planned)
    top = DagScope("", "", reader.notices, reader.limits)
    reader.read(path, top)
    reader.finish(top)
    if not reader.nodes:
        raise BadInput(f"{path}: it has no nodes", "Write one: JOB NAME FILE.sub")
    link_all(reader.nodes, top)
    reader.find_awaited()
    number = _apply_rescue(path, reader, rescue)
    awaited = {name: start for name, start in reader.awaited.items() if not reader.nodes[name].done}
    counts = Counter(node.dag for node in reader.nodes.values() if not node.name.endswith(PRE_SUFFIX))
    return Dag(path, _in_order(reader.nodes), list(dict.fromkeys(reader.notices)), reader.files, reader.limits, counts, number, awaited)


@dataclass(slots=True)
class DagScope:
    """The nodes, splices and sub-DAGs of one DAG file.

    ``prefix``: beginning of the names of the nodes in this file. ``directory``: directory to which the paths in this file are relative.
    ``dag_prefix``: the ``prefix`` of the DAG to which this file belongs. The file of a splice belongs to the DAG that contains the splice.
    Any other file is a DAG of its own.
    """

    prefix: str
    directory: str
    notices: list[str]
    limits: dict[str, int]
    dag_prefix: str = ""
    open_files: tuple[str, ...] = ()
    nodes: dict[str, DagNode] = field(default_factory=dict)
    splices: dict[str, DagScope] = field(default_factory=dict)
    subdags: dict[str, DagScope] = field(default_factory=dict)
    planned: list[tuple[DagNode, str]] = field(default_factory=list)
    """Planned sub-DAGs, each with its file."""
    planners: set[str] = field(default_factory=set)
    """Names of nodes with a PRE script."""
    final: DagNode | None = None
    descriptions: dict[str, tuple[DagLine, ...]] = field(default_factory=dict)
    second_pass: list[tuple[Callable[[DagScope, DagLine, list[str]], None], DagLine, list[str]]] = field(default_factory=list)

    def find(self, name: str, line: DagLine) -> list[DagNode]:
        """Returns a list with the node of this name. For the name ALL_NODES, returns all nodes except the FINAL node. Raises BadInput if
        there is no node of this name. ``line``: the line with the name, for the error."""
        if name.upper() == ALL_NODES:
            return self.all_nodes()
        scope: DagScope | None = self
        *path, last = name.split("+")
        for part in path:
            scope = scope.splices.get(part) if scope is not None else None
        if scope is None or last not in scope.nodes:
            raise BadInput(f"{line.where}: there is no node {name!r}", self._similar(name) or f"Define it: JOB {name} FILE.sub")
        return [scope.nodes[last]]

    def _similar(self, name: str) -> str:
        """Returns a hint that suggests a node with a similar name. Returns an empty text if there is no such node."""
        return did_you_mean(name, [node.name.removeprefix(self.prefix) for node in self.all_nodes()])

    def all_nodes(self) -> list[DagNode]:
        """Returns the nodes of the file and of its splices. A sub-DAG is one node. The FINAL node is not included."""
        own = [node for node in self.nodes.values() if not node.is_final]
        return [*own, *(node for splice in self.splices.values() for node in splice.all_nodes())]

    def category(self, name: str) -> str:
        """Returns the full name of a category. A category in the file of a splice counts only nodes of this splice. But a category whose
        name begins with + counts nodes of the whole DAG."""
        return (self.dag_prefix if name.startswith("+") else self.prefix) + name


class _Reader:
    def __init__(self, planned: Mapping[str, str | None] | None = None) -> None:
        self.planned = planned
        self.awaited: dict[str, str] = {}
        self.nodes: dict[str, DagNode] = {}
        self.notices: list[str] = []
        self.files: dict[str, tuple[DagLine, ...]] = {}
        self.limits: dict[str, int] = {}
        self._reads = 0

    def read(self, path: str, scope: DagScope, where: str = "") -> None:
        """Does the first pass: reads nodes, splices and submit descriptions. Keeps the other lines for the second pass."""
        self._reads += 1
        full = os.path.join(scope.directory, path)
        if os.path.abspath(full) in scope.open_files:
            raise BadInput(f"{where}: {full} contains itself", "Break the cycle.")
        if self._reads > MAX_FILES or len(scope.open_files) > MAX_DEPTH:
            raise BadInput(f"{where}: too many files are included", "See whether they include each other.")
        outer, scope.open_files = scope.open_files, (*scope.open_files, os.path.abspath(full))
        listed = list(read_lines(full, where))
        scope.planners.update(_nodes_with_pre_script(listed))
        self.files[full] = ()
        lines = iter(listed)
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
                near = did_you_mean(keyword[:40], [*_FIRST_PASS, *_SECOND_PASS])
                hint = near or "Check its spelling; keywords are JOB, PARENT, RETRY, ..."
                raise BadInput(f"{line.where}: unknown keyword {words[0][:40]!r}", hint)
        scope.open_files = outer

    def find_awaited(self) -> None:
        """Finds the planned sub-DAGs whose files must still be written."""
        for node in self.nodes.values():
            if node.is_planned and not node.done and self.planned is not None and self.planned.get(node.name) is None:
                self.awaited[node.name] = node.name + PRE_SUFFIX

    def finish(self, scope: DagScope) -> None:
        """Does the second pass: applies the lines about nodes. The lines in the file of a splice or sub-DAG come before the lines of the
        file that contains the splice or sub-DAG."""
        for inner in (*scope.splices.values(), *scope.subdags.values()):
            self.finish(inner)
        for action, line, words in scope.second_pass:
            action(scope, line, words)
        for node in scope.nodes.values():
            if isinstance(node.description, str):
                node.description = scope.descriptions.get(node.description, node.description)

    # --- first pass -------------------------------------------------------------------------------------------------------------------

    def job(self, scope: DagScope, line: DagLine, words: list[str], lines: Iterator[DagLine]) -> None:
        node = self._add_node(scope, line, words, lines)
        has_lines = not isinstance(node.description, str) or os.path.isfile(node.description_path)
        if has_lines and not node.done and (found := dagman_job(description_lines(node, self.files), node.directory)) is not None:
            self._read_subdag(scope, line, node, *found)

    def _add_node(self, scope: DagScope, line: DagLine, words: list[str], lines: Iterator[DagLine]) -> DagNode:
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
        node = DagNode(
            scope.prefix + name, line.where, description if inline is None else inline, scope.directory or ".", dag=scope.dag_prefix
        )
        _read_words(scope, line, node, rest, "JOB NAME FILE.sub [DIR directory] [NOOP] [DONE]")
        scope.nodes[name] = self.nodes[node.name] = node
        return node

    def final(self, scope: DagScope, line: DagLine, words: list[str], lines: Iterator[DagLine]) -> None:
        if scope.final is not None or scope.prefix != scope.dag_prefix:
            problem = "a splice cannot have a FINAL node" if scope.final is None else f"there is already a FINAL node ({scope.final.where})"
            raise BadInput(f"{line.where}: {problem}", "Write one FINAL node, in the DAG file itself.")
        scope.final = self._add_node(scope, line, words, lines)
        scope.final.is_final = True

    def subdag(self, scope: DagScope, line: DagLine, words: list[str], lines: Iterator[DagLine]) -> None:
        form = "SUBDAG EXTERNAL NAME FILE.dag [DIR directory] [NOOP] [DONE]"
        if not words or words[0].upper() != "EXTERNAL":
            raise BadInput(f"{line.where}: SUBDAG needs the word EXTERNAL", f"Write: {form}")
        name, file, rest = take_two(line, words[1:], form)
        node = self._add_node(scope, line, [name, file], lines)
        _read_words(scope, line, node, rest, form)
        self._read_subdag(scope, line, node, node.directory, file)

    def _read_subdag(self, scope: DagScope, line: DagLine, node: DagNode, directory: str, file: str) -> None:
        """Reads the file of a sub-DAG, or notes that the file is planned. Paths in the file are relative to ``directory``."""
        if node.noop or node.done:
            node.noop = True
            return
        name = node.name.removeprefix(scope.prefix)
        directory = "" if directory == "." else directory
        path = os.path.join(directory, file)
        node.noop = node.is_subdag = True
        if self.planned is not None and (name in scope.planners or not os.path.isfile(path) or self._is_planned(node)):
            node.is_planned = True
            node.problem = self.planned.get(node.name) or ""
            scope.planned.append((node, os.path.abspath(path)))
            if node.problem or self.planned.get(node.name) is None:
                return
        if not os.path.isfile(path):
            hint = "Let its PRE script or a parent node write it, or create it before the run."
            raise BadInput(f"{line.where}: the sub-DAG file {path[:200]!r} does not exist", hint)
        prefix = f"{scope.prefix}{name}+"
        inner = scope.subdags[name] = DagScope(prefix, directory, scope.notices, scope.limits, prefix, scope.open_files)
        self.read(file, inner, line.where)
        if not inner.nodes and not inner.splices:
            raise BadInput(f"{line.where}: {file} has no nodes", "Write one: JOB NAME FILE.sub")

    def _is_planned(self, node: DagNode) -> bool:
        """Returns whether a sub-DAG was planned when the DAG was read before, or is inside of a planned sub-DAG."""
        return node.name in (self.planned or ()) or any(node.name.startswith(f"{name}+") for name in self.planned or ())

    def description(self, scope: DagScope, line: DagLine, words: list[str], lines: Iterator[DagLine]) -> None:
        name, opening, _ = take_two(line, words, "SUBMIT-DESCRIPTION NAME {")
        if not closing_of(opening):
            raise BadInput(f"{line.where}: the description {name!r} does not begin", f"Write: SUBMIT-DESCRIPTION {name} {{")
        if name in scope.descriptions:
            raise BadInput(f"{line.where}: there is already a description {name!r}", "Give it another name.")
        scope.descriptions[name], _ = read_inline(line, opening, lines)

    def splice(self, scope: DagScope, line: DagLine, words: list[str], lines: Iterator[DagLine]) -> None:
        name, file, rest = take_two(line, words, "SPLICE NAME FILE.dag [DIR directory]")
        if "+" in name or name in scope.nodes or name in scope.splices:
            raise BadInput(f"{line.where}: there is already a node or splice {name!r}, or it holds a +", "Give it a name of its own.")
        directory = scope.directory
        if rest:
            if rest[0].upper() != "DIR" or len(rest) != 2:
                raise BadInput(f"{line.where}: {rest[0]!r} is unexpected", "Write: SPLICE NAME FILE.dag [DIR directory]")
            directory = os.path.join(directory, rest[1])
        inner = DagScope(f"{scope.prefix}{name}+", directory, scope.notices, scope.limits, scope.dag_prefix, scope.open_files)
        scope.splices[name] = inner
        self.read(file, inner, line.where)

    def include(self, scope: DagScope, line: DagLine, words: list[str], lines: Iterator[DagLine]) -> None:
        if len(words) != 1:
            raise BadInput(f"{line.where}: INCLUDE takes one file", "Write: INCLUDE FILE")
        self.read(words[0], scope, line.where)


def _nodes_with_pre_script(lines: Iterable[DagLine]) -> Iterator[str]:
    for line in lines:
        words = line.text.split()
        if len(words) > 2 and words[0].upper() == "SCRIPT":
            yield from (after for word, after in itertools.pairwise(words) if word.upper() == "PRE")


def _read_words(scope: DagScope, line: DagLine, node: DagNode, rest: list[str], form: str) -> None:
    """Reads the words that follow the file name in the line of a node, such as DIR and DONE."""
    while rest:
        word = rest.pop(0).upper()
        if word == "DIR" and rest:
            node.directory = os.path.join(scope.directory, rest.pop(0))
        elif word in ("NOOP", "DONE"):
            node.noop, node.done = node.noop or word == "NOOP", node.done or word == "DONE"
        else:
            raise BadInput(f"{line.where}: {word!r} is unexpected", f"Write: {form}")


# --- second pass ------------------------------------------------------------------------------------------------------------------------


def _parent(scope: DagScope, line: DagLine, words: list[str]) -> None:
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
    if scope.final is not None and (scope.final.name in parents or scope.final in children):
        name = scope.final.name
        raise BadInput(f"{line.where}: the FINAL node {name!r} has a parent or a child", "Leave it out: it runs after all other nodes.")
    for node in children:
        node.parents.update(parents)


def _ends_of(scope: DagScope, name: str, line: DagLine, last: bool) -> list[DagNode]:
    """For a node, returns a list with this node. For a splice, returns its last nodes if ``last`` is True, otherwise its first nodes."""
    splice = scope.splices.get(name)
    if splice is None:
        if name.upper() == ALL_NODES:
            raise BadInput(f"{line.where}: {name} cannot stand here", "Name the nodes.")
        return scope.find(name, line)
    return last_nodes(splice) if last else first_nodes(splice)


def _retry(scope: DagScope, line: DagLine, words: list[str]) -> None:
    name, count, rest = take_two(line, words, "RETRY NODE COUNT [UNLESS-EXIT VALUE]")
    unless = None
    if rest:
        if rest[0].upper().replace("-", "_") != "UNLESS_EXIT" or len(rest) != 2:
            raise BadInput(f"{line.where}: {rest[0]!r} is unexpected", "Write: RETRY NODE COUNT [UNLESS-EXIT VALUE]")
        unless = read_number(rest[1], line, "UNLESS-EXIT")
    for node in scope.find(name, line):
        node.retries, node.unless_exit = read_number(count, line, "RETRY", 0), unless


def _script(scope: DagScope, line: DagLine, words: list[str]) -> None:
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


def _pre_skip(scope: DagScope, line: DagLine, words: list[str]) -> None:
    name, value, _ = take_two(line, words, "PRE_SKIP NODE EXIT-CODE")
    for node in scope.find(name, line):
        node.pre_skip = read_number(value, line, "PRE_SKIP", 1)


def _abort_dag_on(scope: DagScope, line: DagLine, words: list[str]) -> None:
    form = "ABORT-DAG-ON NODE EXIT-CODE [RETURN VALUE]"
    name, value, rest = take_two(line, words, form)
    returned = None
    if rest:
        if rest[0].upper() != "RETURN" or len(rest) != 2:
            raise BadInput(f"{line.where}: {rest[0]!r} is unexpected", f"Write: {form}")
        returned = _exit_status(rest[1], line, "RETURN")
        if not returned and scope.dag_prefix:
            raise BadInput(
                f"{line.where}: RETURN 0 in the file of a sub-DAG is not supported", "Leave out RETURN, or return another value."
            )
    for node in scope.find(name, line):
        node.abort = _exit_status(value, line, "ABORT-DAG-ON"), returned


def _exit_status(text: str, line: DagLine, what: str) -> int:
    value = read_number(text, line, what, 0)
    if value > MAX_EXIT_STATUS:
        raise BadInput(f"{line.where}: {what} {value} is no exit status", f"Write a number from 0 to {MAX_EXIT_STATUS}.")
    return value


def _priority(scope: DagScope, line: DagLine, words: list[str]) -> None:
    name, value, _ = take_two(line, words, "PRIORITY NODE NUMBER")
    for node in scope.find(name, line):
        node.priority = read_number(value, line, "PRIORITY")


def _category(scope: DagScope, line: DagLine, words: list[str]) -> None:
    name, category, _ = take_two(line, words, "CATEGORY NODE NAME")
    for node in scope.find(name, line):
        node.category = scope.category(category)


def _max_jobs(scope: DagScope, line: DagLine, words: list[str]) -> None:
    name, most, _ = take_two(line, words, "MAXJOBS CATEGORY NUMBER")
    scope.limits[scope.category(name)] = read_number(most, line, "MAXJOBS", 0)


def _done(scope: DagScope, line: DagLine, words: list[str]) -> None:
    for node in scope.find(words[0] if words else "", line):
        node.done = True


def _vars(scope: DagScope, line: DagLine, words: list[str]) -> None:
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


_FIRST_PASS: dict[str, Callable[[_Reader, DagScope, DagLine, list[str], Iterator[DagLine]], None]] = {
    "JOB": _Reader.job,
    "NODE": _Reader.job,
    "FINAL": _Reader.final,
    "SUBDAG": _Reader.subdag,
    "SUBMIT_DESCRIPTION": _Reader.description,
    "SPLICE": _Reader.splice,
    "INCLUDE": _Reader.include,
}
_SECOND_PASS: dict[str, Callable[[DagScope, DagLine, list[str]], None]] = {
    "PARENT": _parent,
    "RETRY": _retry,
    "SCRIPT": _script,
    "PRE_SKIP": _pre_skip,
    "PRIORITY": _priority,
    "ABORT_DAG_ON": _abort_dag_on,
    "CATEGORY": _category,
    "MAXJOBS": _max_jobs,
    "DONE": _done,
    "VARS": _vars,
}


# --- rescue file and order --------------------------------------------------------------------------------------------------------------


def _apply_rescue(path: str, reader: _Reader, which: RescueFile) -> int:
    """Marks as done the nodes that the rescue file lists. If a sub-DAG is done, also marks all nodes in it. Returns the number of the
    rescue file."""
    unread = tuple(f"{name}+" for name in reader.awaited)
    rescue, done = done_nodes(path, reader.nodes, which, unread)
    for name in done:
        if name in reader.nodes:
            reader.nodes[name].done = True
    for subdag in [node for node in reader.nodes.values() if node.is_subdag and node.done]:
        for node in nodes_within(reader.nodes, subdag):
            node.done = True
    if rescue:
        reader.notices.append(f"{len(done)} node{'' if len(done) == 1 else 's'} done before, says {rescue}")
    return number_of(rescue)


def _in_order(nodes: dict[str, DagNode]) -> list[DagNode]:
    """Sorts nodes topologically."""
    listed = list(nodes.values())
    places = {node.name: place for place, node in enumerate(listed)}
    try:
        return [
            listed[place]
            for place in topological_order([[places[parent] for parent in (*node.parents, *node.after_any)] for node in listed])
        ]
    except DependencyCycle as cycle:
        names = [listed[place].name for place in cycle.places]
        shown = " -> ".join([*names[:SHOWN], "..." if len(names) > SHOWN else names[0]])
        where = listed[cycle.places[0]].where
        raise BadInput(f"{where}: these nodes wait for each other: {shown}", "Break the cycle: see their PARENT lines.") from None
