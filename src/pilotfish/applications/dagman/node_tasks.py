"""Turns DAG nodes into tasks with PRE and POST scripts.

A node becomes one task in the node's directory. PRE script, job and POST script form one shell script, so that one worker runs all of them
as one task. The DAG node fails if its PRE script fails, or if its POST script fails. Without a POST script, the DAG node fails if its job
fails. The tasks need the directory, so they run on this machine or on machines that share the directory.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pilotfish.applications.dagman.dag_file import Dag, DagNode, NodeScript, read_dag
from pilotfish.applications.dagman.dag_text import read_lines
from pilotfish.applications.dagman.submit_file import RETRY, SubmitDescription, read_job
from pilotfish.applications.run_file import RunFile
from pilotfish.applications.task_list import TaskList
from pilotfish.errors import BadInput

SCRIPT = "DAG_NODE"
"""Environment variable with the shell script of a DAG node."""
MACROS = {
    "$RETRY": '"$retry"',
    "$JOBID": '"$PILOTFISH_TASK"',
    "$CLUSTERID": '"${PILOTFISH_TASK%.*}"',
    "$DAGID": '"${PILOTFISH_TASK%.*}"',
    "$JOB_COUNT": "1",
}
AFTER_JOB = {
    "$RETURN": '"$status"',
    "$EXIT_CODES": '"$status"',
    "$EXIT_CODE_LIST": '"$status"',
    "$EXIT_CODE_COUNTS": '"$status:1"',
    "$PRE_SCRIPT_RETURN": '"$pre"',
    "$SUCCESS": '"$success"',
    "$JOB_ABORT_COUNT": "0",
}
UNKNOWN = ("$QUEUED_COUNT", "$DONE_COUNT", "$FAILED_COUNT", "$FUTILE_COUNT", "$DAG_STATUS")
FETCH = """scratch=$(mktemp -d "${TMPDIR:-/tmp}/node.XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT
"""
NOTE_INPUTS = """line='
'
before="$line$(ls "$scratch")$line"
"""
BRING_NEW = """for file in "$scratch"/*; do
  case "$before" in *"$line${file##*/}$line"*) ;; *) if [ -f "$file" ]; then cp -p "$file" . || exit 1; fi ;; esac
done
"""
"""Shell lines that copy back each file that was not an input."""


class NodeTask(NamedTuple):
    """The task of a DAG node. ``command``: the command that the user wrote, for listings."""

    node: DagNode
    argv: list[str]
    options: dict[str, Any]
    command: str


def node_tasks(dag: Dag) -> Iterator[NodeTask]:
    """Yields the tasks of nodes that are not done, parents before children. Adds notices about submit descriptions to ``dag.notices``."""
    for number, node in enumerate(dag.nodes, 1):
        if not node.done:
            yield _task(dag, node, number)


def task_list(dag: Dag, nodes: Iterable[NodeTask]) -> TaskList:
    """Returns these tasks as a TaskList, with their dependencies."""
    tasks = TaskList()
    indices: dict[str, int] = {}
    for task in nodes:
        after = [indices[parent] for parent in task.node.parents if parent in indices]
        indices[task.node.name] = tasks.add(task.argv, after=after, **task.options)
    if not indices:
        raise BadInput(f"{dag.path}: every node is done", "Take out the DONE words; if a rescue file says so, delete it.")
    return tasks


def load_dag(path: str | os.PathLike[str], arguments: Sequence[str] = ()) -> RunFile:
    """Loads a DAGMan file like a run file with tasks."""
    if arguments:
        raise BadInput(f"a DAGMan file takes no arguments, and there are some: {shlex.join(arguments)}", "Leave them out.")
    dag = read_dag(os.fspath(path))
    return RunFile(Path(path).resolve(), task_list(dag, node_tasks(dag)), None)


def _task(dag: Dag, node: DagNode, number: int) -> NodeTask:
    directory = os.path.abspath(node.directory)
    if not os.path.isdir(directory):
        raise BadInput(f"{node.where}: {node.directory!r} is not a directory", "Create it, or fix the DIR of the node.")
    job = SubmitDescription("true", directory=directory) if node.noop else _read(dag, node, number)
    here = os.path.abspath(job.directory)
    if not os.path.isdir(here):
        raise BadInput(f"{node.where}: initialdir {job.directory!r} is not a directory", "Create it, or fix the submit description.")
    program = "true" if node.noop else _program(job.program, here, node)
    retries = job.retries if node.retries is None else node.retries
    options: dict[str, Any] = {"cwd": directory, "cores": job.cores, "priority": node.priority, "name": os.path.basename(program)}
    options |= {"memory": job.memory_bytes} if job.memory_bytes else {}
    options |= {"gpus": job.gpus} if job.gpus else {}
    known = {name: value for name, value in job.env.items() if RETRY not in value}
    options |= {"env": known} if known else {}
    if node.unless_exit is None and retries:
        options["retries"] = retries
    words = [program, *job.arguments]
    scripted = node.pre or node.post or node.unless_exit is not None or len(known) < len(job.env)
    plain = not (scripted or job.scratch or job.stdin or job.stdout or job.stderr)
    command = shlex.join(words).replace(RETRY, "$RETRY")
    if plain and RETRY not in "".join(words):
        return NodeTask(node, words, {**options, "cwd": here}, command)
    script = _Wrapper(node, job, here, retries, len(dag.nodes)).script(words)
    # The script is in an environment variable, so that the command is short in listings.
    return NodeTask(node, ["sh", "-c", f'eval "${SCRIPT}"', node.name], {**options, "env": {**known, SCRIPT: script}}, command)


def _read(dag: Dag, node: DagNode, number: int) -> SubmitDescription:
    lines: Any = node.description
    if isinstance(lines, str):
        path = os.path.normpath(os.path.join(node.directory, lines))
        if path not in dag.files:
            dag.files[path] = tuple(read_lines(path, node.where))
        lines = dag.files[path]
    macros = {
        "Cluster": str(number),
        "ClusterId": str(number),
        "Process": "0",
        "ProcId": "0",
        "JOB": node.name,
        "RETRY": RETRY,
        "DAG_PARENT_NAMES": ",".join(node.parents),
    }
    job = read_job(lines, {**macros, **node.before}, node.after, node.directory)
    for notice in job.notices:
        if notice not in dag.notices:
            dag.notices.append(notice)
    return job


def _program(program: str, here: str, node: DagNode) -> str:
    """Returns the path of a program: a file of the directory, as in HTCondor. If it does not exist, a name without a slash is a command.

    If the node has parents or a PRE script, these may create the file later. A missing file is then no error.
    """
    path = os.path.join(here, program)
    if os.path.isfile(path):
        if not os.access(path, os.X_OK):
            raise BadInput(f"{node.where}: the program {program!r} may not be executed", f"Allow it: chmod +x {path}")
        return path
    if RETRY in program or os.path.isabs(program) or ("/" not in program and shutil.which(program)):
        return program
    if not (node.parents or node.pre):
        raise BadInput(
            f"{node.where}: the program {program!r} does not exist (looked in {here})", "Mend the executable of its description."
        )
    return path


def quote(text: str) -> str:
    """Quotes a word for the shell. The shell inserts the number of the retry when the script runs."""
    return '"$retry"'.join(shlex.quote(part) if part else "" for part in text.split(RETRY)) or "''"


class _Wrapper:
    """Writes the shell script of one node."""

    def __init__(self, node: DagNode, job: SubmitDescription, here: str, retries: int, count: int) -> None:
        self._node = node
        self._job = job
        self._here = here
        self._retries = retries
        self._constants = {"$JOB": node.name, "$NODE": node.name, "$MAX_RETRIES": str(retries), "$NODE_COUNT": str(count)}

    def script(self, words: list[str]) -> str:
        node = self._node
        if node.unless_exit is None:
            return f"unset {SCRIPT}\nretry=$((${{PILOTFISH_ATTEMPT:-1}} - 1))\n{self._once(words)}"
        # The loop is in the script, because a new attempt on another worker would not know the last exit status.
        return (
            f"unset {SCRIPT}\nretry=0\nonce() (\n{self._once(words)})\nwhile :; do\n  once; code=$?\n"
            f'  if [ "$code" -eq 0 ] || [ "$code" -eq {node.unless_exit} ] || [ "$retry" -ge {self._retries} ]; then exit "$code"; fi\n'
            "  retry=$((retry + 1))\ndone\n"
        )

    def _once(self, words: list[str]) -> str:
        node = self._node
        text = "pre=-1\n"
        if node.pre is not None:
            skip = f'  [ "$pre" -eq {node.pre_skip} ] && exit 0\n' if node.pre_skip is not None else ""
            text += f'{self._script(node.pre, MACROS)}\npre=$?\nif [ "$pre" -ne 0 ]; then\n{skip}  exit "$pre"\nfi\n'
        text += f"(\n{self._run(words)})\nstatus=$?\n"
        if node.post is None:
            return text + 'exit "$status"\n'
        return (
            text + 'success=False; [ "$status" -eq 0 ] && success=True\n'
            'if [ "$status" -gt 128 ] && [ "$status" -le 192 ]; then status=$((128 - status)); fi\n'
            f"{self._script(node.post, MACROS | AFTER_JOB)}\n"
        )

    def _run(self, words: list[str]) -> str:
        job = self._job
        text = f"cd {quote(self._here)} || exit 1\n"
        text += "".join(f"export {name}={quote(value)}\n" for name, value in job.env.items() if RETRY in value)
        stdin, stdout = job.stdin or "/dev/null", job.stdout
        streams = f" <{quote(os.path.join(self._here, stdin))}"
        streams += f" >{quote(os.path.join(self._here, stdout))}" if stdout else ""
        if job.stderr:
            streams += " 2>&1" if job.stderr == stdout else f" 2>{quote(os.path.join(self._here, job.stderr))}"
        command = " ".join(quote(word) for word in words) + streams
        if not job.scratch:
            return f"{text}exec {command}\n"
        for name in job.inputs:
            # A slash after the name of a directory means the files in the directory.
            source = os.path.join(self._here, name) + ("." if name.endswith("/") else "")
            text += f'cp -R {quote(source)} "$scratch"/ || exit 1\n'
        text = FETCH + text + NOTE_INPUTS + f'(cd "$scratch" && exec {command})\nended=$?\n'
        if job.outputs is None:
            text += BRING_NEW
        elif job.outputs:
            text += '[ "$ended" -eq 0 ] || exit "$ended"\n'
            for name in job.outputs:
                text += f'cp -R -- "$scratch"/{quote(name)} . || exit 1\n'
        return text + 'exit "$ended"\n'

    def _script(self, script: NodeScript, macros: dict[str, str]) -> str:
        program, *arguments = script.words
        path = os.path.join(self._node.directory, program)
        if "/" not in program and os.path.isfile(path):
            program = "./" + program
        words = [quote(program)]
        for word in arguments:
            if word in UNKNOWN or (word in AFTER_JOB and word not in macros):
                raise BadInput(
                    f"{script.where}: {word} is not known to this script", "Leave it out; see how a run stands: pilotfish status"
                )
            words.append(macros.get(word) or quote(self._constants.get(word, word)))
        return " ".join(words)
