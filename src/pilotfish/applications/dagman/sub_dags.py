"""Links the nodes of sub-DAGs and the FINAL nodes with the other nodes.

The nodes of a sub-DAG become nodes of the run. The first nodes of a sub-DAG wait for the parents of the sub-DAG. One more node stands for
the sub-DAG. This node waits for all nodes of the sub-DAG, and succeeds only if the sub-DAG succeeds. The children of the sub-DAG wait for
this node.

As in DAGMan, the POST script of a sub-DAG decides whether the sub-DAG succeeds. If there is no POST script, the FINAL node of the sub-DAG
decides. If there is no FINAL node either, all nodes of the sub-DAG must succeed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pilotfish.applications.dagman.dag_text import DagLine, NodeScript
from pilotfish.applications.dagman.submit_file import read_job
from pilotfish.errors import BadInput

if TYPE_CHECKING:
    from pilotfish.applications.dagman.dag_file import DagNode, DagScope

PRE_SUFFIX = "++PRE"
"""End of the name of the node that runs the PRE script of a sub-DAG."""
DAGMAN_PROGRAMS = ("condor_dagman", "pegasus-dagman")


def dagman_job(lines: Sequence[DagLine], directory: str) -> tuple[str, str] | None:
    """Returns the directory and the DAGMan file of a job that runs the program condor_dagman. Planners such as Pegasus write such a job
    instead of SUBDAG EXTERNAL. Returns None for any other job. ``directory``: the directory of the DAG node."""
    if not any("dagman" in line.text for line in lines):
        return None
    try:
        job = read_job(lines, {}, {}, directory)
    except BadInput:  # the lines cannot be read without the VARS of the node
        return None
    words = [word.lower() for word in job.arguments]
    if os.path.basename(job.program) not in DAGMAN_PROGRAMS or words.count("-dag") != 1 or words[-1] == "-dag":
        return None
    file = job.arguments[words.index("-dag") + 1]
    inner, name = os.path.split(file) if "-usedagdir" in words else ("", file)
    return os.path.normpath(os.path.join(job.directory, inner)), name


def link_all(nodes: dict[str, DagNode], top: DagScope) -> None:
    """Links the sub-DAGs and the FINAL node of a DAG. Adds a node to ``nodes`` for each PRE script of a sub-DAG."""
    _link_planned(nodes, top)
    _link(nodes, top)
    _link_ends(nodes, top)


def nodes_within(nodes: dict[str, DagNode], subdag: DagNode) -> list[DagNode]:
    """Returns all nodes of a sub-DAG and of the sub-DAGs and splices in it."""
    return [node for name, node in nodes.items() if name.startswith(f"{subdag.name}+")]


def _link(nodes: dict[str, DagNode], scope: DagScope) -> None:
    """Links the sub-DAGs of a scope with the nodes of the scope. After that, does the same in each of these sub-DAGs. The order matters: a
    node that stands for an inner sub-DAG must have all its dependencies before the nodes of this inner sub-DAG get them, too."""
    for name, inner in scope.subdags.items():
        node = scope.nodes[name]
        _check(node, scope)
        _link_subdag(nodes, node, inner)
    for inner in (*scope.subdags.values(), *scope.splices.values()):
        _link(nodes, inner)


def _link_planned(nodes: dict[str, DagNode], scope: DagScope) -> None:
    """Gives a PRE script to each planned sub-DAG that has none. This PRE script tests whether the parents have written the file of the
    sub-DAG. The test is ``ls``, because its error names the file.

    If the file of the sub-DAG was not read yet, also adds a node that runs the PRE script. In this case, the node that stands for the
    sub-DAG waits only for the added node.
    """
    for node, file in scope.planned:
        if node.pre is None:
            node.pre = NodeScript(node.where, ("ls", "--", file))
        if node.name.removeprefix(scope.prefix) not in scope.subdags:
            _check(node, scope)
            node.parents = _start(nodes, node)
            node.post = None if node.problem else node.post
    for inner in (*scope.subdags.values(), *scope.splices.values()):
        _link_planned(nodes, inner)


def _start(nodes: dict[str, DagNode], node: DagNode) -> dict[str, None]:
    """Adds a node that runs the PRE script of a sub-DAG. ``node``: the node that stands for the sub-DAG. Returns the name of the added node
    in the form of ``parents``: the added node is the only parent of the nodes that wait for the PRE script."""
    # The user's nodes have no + in their own names, so no other node has this name.
    start = replace(node, name=f"{node.name}{PRE_SUFFIX}", post=None, is_subdag=False, problem="", category="", is_planned=False)
    start.parents, start.done = dict(node.parents), False
    nodes[start.name], node.pre = start, None
    return {start.name: None}


def _check(node: DagNode, scope: DagScope) -> None:
    if node.unless_exit is not None:
        raise BadInput(f"{node.where}: UNLESS-EXIT of the sub-DAG {node.name!r} is not supported", "Write it for the nodes of the sub-DAG.")
    if node.pre_skip is not None:
        raise BadInput(
            f"{node.where}: PRE_SKIP of the sub-DAG {node.name!r} is not supported", "Let a PRE script that exits with 0 skip it."
        )
    if any(not name.startswith("+") for name in (*node.before, *node.after)):  # +NAME is an attribute for HTCondor
        scope.notices.append(f"{node.where}: VARS have no effect on the nodes of the sub-DAG {node.name!r}")


def _link_subdag(nodes: dict[str, DagNode], node: DagNode, inner: DagScope) -> None:
    for other in nodes_within(nodes, node):
        other.priority += node.priority
        other.tries *= (node.retries or 0) + 1
    before = node.parents
    if node.pre is not None:
        before = _start(nodes, node)
    last = last_nodes(inner)
    for first in first_nodes(inner):
        first.parents.update(before)
    if inner.final is not None:
        inner.final.parents.update(before)
        last = [inner.final]
    node.parents = {other.name: None for other in last} if node.post is None else dict(before)


def _link_ends(nodes: dict[str, DagNode], scope: DagScope) -> None:
    """Makes FINAL nodes and POST scripts of sub-DAGs wait for the end of the nodes before them."""
    if scope.final is not None:
        scope.final.after_any = dict.fromkeys(_deciding(nodes, scope))
    for name, inner in scope.subdags.items():
        if scope.nodes[name].post is not None:
            scope.nodes[name].after_any = dict.fromkeys([inner.final.name] if inner.final is not None else _deciding(nodes, inner))
    for inner in (*scope.subdags.values(), *scope.splices.values()):
        _link_ends(nodes, inner)


def _deciding(nodes: dict[str, DagNode], scope: DagScope) -> Iterator[str]:
    """Yields the names of the nodes that decide whether a DAG succeeds. When these nodes have ended, all nodes of the DAG have ended.

    A POST script or a FINAL node decides whether its sub-DAG succeeds, even if other nodes of this sub-DAG failed. So the other nodes are
    left out.
    """
    for name, inner in scope.subdags.items():
        node = scope.nodes[name]
        if node.name + PRE_SUFFIX in nodes:
            yield node.name + PRE_SUFFIX
        if inner.final is not None and node.post is None:
            yield inner.final.name
        elif node.post is None:
            yield from _deciding(nodes, inner)
    for splice in scope.splices.values():
        yield from _deciding(nodes, splice)
    yield from (f"{node.name}{PRE_SUFFIX}" for node, _ in scope.planned if node.name.removeprefix(scope.prefix) not in scope.subdags)
    yield from (node.name for node in scope.nodes.values() if not node.is_final)


def first_nodes(scope: DagScope) -> list[DagNode]:
    """Returns the nodes of a splice or sub-DAG that have no parents in this splice or sub-DAG."""
    nodes = scope.all_nodes()
    names = {node.name for node in nodes}
    return [node for node in nodes if not any(parent in names for parent in node.parents)]


def last_nodes(scope: DagScope) -> list[DagNode]:
    """Returns the nodes of a splice or sub-DAG that have no children in this splice or sub-DAG."""
    nodes = scope.all_nodes()
    parents = {parent for node in nodes for parent in node.parents}
    return [node for node in nodes if node.name not in parents]
