"""Turns DAG nodes into tasks with PRE and POST scripts.

A DAG node with one job becomes one task. PRE script, job and POST script form one shell script, so that one worker runs all of them. If a
DAG node has several jobs, each job and each script is a task. There is one exception: a DAG node with several jobs, a POST script and
retries is one task.

A DAG node fails if its PRE script fails. There is one exception: if the PRE script ends with the exit status of PRE_SKIP, the DAG node
succeeds at once. If there is a POST script, the DAG node also fails if the POST script fails. If there is no POST script, the DAG node also
fails if one of its jobs fails.

The tasks need the directory of their DAG node, so they run on this machine or on machines that share the directory.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pilotfish.applications.dagman.dag_file import Dag, DagNode, description_lines
from pilotfish.applications.dagman.dag_text import NodeScript
from pilotfish.applications.dagman.submit_file import (
    DAG_STATUS,
    FAILED_COUNT,
    RETRY,
    RUNTIME,
    RUNTIME_MACROS,
    SubmitDescription,
    read_job,
)
from pilotfish.applications.task_list import TaskList
from pilotfish.errors import BadInput

SCRIPT = "DAG_NODE"
"""Environment variable with the shell script of a DAG node."""
MACROS = {
    "$RETRY": '"$retry"',
    "$JOBID": '"$PILOTFISH_TASK"',
    "$CLUSTERID": '"${PILOTFISH_TASK%.*}"',
    "$DAGID": '"${PILOTFISH_TASK%.*}"',
}
OF_FINAL = {"$DAG_STATUS": '"$dag_status"', "$FAILED_COUNT": '"$failed_count"'}
DAG_SO_FAR = """failed_count=${PILOTFISH_FAILED_DEPENDENCIES:-0}
dag_status=0
[ "$failed_count" -gt 0 ] && dag_status=%s
"""
"""Shell lines for a FINAL node. The placeholder stands for FAILED or ABORTED."""
FAILED, ABORTED = "2", "3"
"""Values of $DAG_STATUS in DAGMan. FAILED: nodes failed. ABORTED: ABORT-DAG-ON aborted the DAG."""
ANY_FAILED = ("sh", "-c", 'exit "$((${PILOTFISH_FAILED_DEPENDENCIES:-0} > 0))"')
"""Command that exits with 1 if a task for which it waits has failed, otherwise with 0. It runs before the POST script of a node with
several jobs or of a sub-DAG. The POST script gets its exit status as $RETURN."""
AFTER_JOB = {
    "$RETURN": '"$status"',
    "$EXIT_CODES": '"$status"',
    "$EXIT_CODE_LIST": '"$status"',
    "$EXIT_CODE_COUNTS": '"$status:1"',
    "$PRE_SCRIPT_RETURN": '"$pre"',
    "$SUCCESS": '"$success"',
    "$JOB_ABORT_COUNT": "0",
}
JOBS_SUFFIX = " jobs"
"""End of the key of job tasks in a node with several jobs and a POST script. The POST script decides whether this node succeeds."""
UNKNOWN = ("$QUEUED_COUNT", "$DONE_COUNT", "$FUTILE_COUNT", *OF_FINAL)
FETCH = """scratch=$(mktemp -d "${TMPDIR:-/tmp}/node.XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT
"""
NOTE_INPUTS = """line='
'
before="$line$(ls "$scratch")$line"
"""
BRING = """bring() {
  if [ -d "$1" ]; then mkdir -p -- "$2" && cp -R -- "$1"/. "$2"; else mkdir -p -- "$(dirname -- "$2")" && cp -p -- "$1" "$2"; fi || exit 1
}
"""
"""Shell function that copies back a file or a directory. It creates the directories of the destination."""
BRING_NEW = """for file in "$scratch"/*; do
  name=${file##*/}
  case "$before" in *"$line$name$line"*) continue ;; esac
  case "$name" in %s*) to=$name ;; esac
  if [ -f "$file" ]; then bring "$file" "$to"; fi
done
"""
"""Shell lines that copy back each file that was not an input. The placeholder stands for the destinations of files."""
SHOWN_ERROR_LINES = 10


class NodeTask(NamedTuple):
    """A task of a DAG node. ``command``: the command that the user wrote, for listings. ``label``: the name of the task.

    ``key``: name of the DAG node, or of a part of it; several tasks can have the same key. ``after``: keys of the tasks that must succeed
    before this task. ``after_any``: keys of the tasks that must end before this task, with any result.
    """

    node: DagNode
    argv: list[str]
    options: dict[str, Any]
    command: str
    label: str
    key: str
    after: tuple[str, ...]
    after_any: tuple[str, ...]


def node_tasks(dag: Dag) -> Iterator[NodeTask]:
    """Yields the tasks of nodes that are not done, parents before children. Adds notices about submit descriptions to ``dag.notices``."""
    for number, node in enumerate(dag.nodes, 1):
        if not node.done and node.name not in dag.awaited:
            yield from _tasks(dag, node, number)


def task_list(dag: Dag, nodes: Iterable[NodeTask]) -> TaskList:
    """Returns these tasks as a TaskList, with their dependencies."""
    tasks = TaskList()
    listed = list(nodes)
    for task, (after, after_any) in zip(listed, dependencies(listed), strict=True):
        tasks.add(task.argv, after=after, after_any=after_any, **task.options)
    if not listed:
        raise BadInput(f"{dag.path}: every node is done", "Take out the DONE words; if a rescue file says so, delete it.")
    return tasks


def dependencies(tasks: Iterable[NodeTask]) -> Iterator[tuple[list[int], list[int]]]:
    """Yields two lists for each task. The first list has the indices of the tasks that must succeed before the task starts. The second list
    has the indices of the tasks that must have ended, with any result."""
    indices: dict[str, list[int]] = {}
    for index, task in enumerate(tasks):
        after, after_any = ([place for key in keys for place in indices.get(key, ())] for keys in (task.after, task.after_any))
        yield after, after_any
        indices.setdefault(task.key, []).append(index)


def done_node_names(dag: Dag, tasks: Sequence[NodeTask], done: Iterable[int]) -> list[str]:
    """Returns the names of the nodes that are done. ``done``: the indices in ``tasks`` of the tasks that succeeded. A node that has no task
    in ``tasks`` counts as done. A FINAL node never counts as done, because it runs each time."""
    succeeded = set(done)
    failed = {task.key for index, task in enumerate(tasks) if index not in succeeded}
    return [node.name for node in dag.nodes if not node.is_final and (node.done or node.name not in failed)]


def _tasks(dag: Dag, node: DagNode, number: int) -> Iterator[NodeTask]:
    """Yields the tasks of a DAG node. ``number``: number of the DAG node in the DAG.

    - A DAG node with one job is one task.
    - A DAG node with several jobs, a POST script and retries is one task, which runs the scripts and all jobs.
    - In any other DAG node with several jobs, each job and each script is a task.
    """
    directory = os.path.abspath(node.directory)
    if not (os.path.isdir(directory) or node.waits):
        raise BadInput(f"{node.where}: {node.directory!r} is not a directory", "Create it, or fix the DIR of the node.")
    last = _end_of_parts(directory) if node.is_subdag and node.post else SubmitDescription("true", directory=directory)
    if node.problem:
        last = SubmitDescription("sh", ("-c", 'echo "$1" >&2; exit 1', "sh", node.problem), directory=directory)
    first = last if node.noop else _read(dag, node, number, 0)
    parents, any_end = tuple(node.parents), tuple(node.after_any)
    if first.count == 1:
        yield _task(dag, node, first)._replace(after=parents, after_any=any_end)
        return
    if node.post and (node.retries or first.retries):
        dag.note(f"{node.where}: the {first.count} jobs of {node.name} run one after the other, because RETRY repeats all of them")
        more = [_read(dag, node, number, place) for place in range(1, first.count)]
        yield _task(dag, node, first, more)._replace(after=parents, after_any=any_end)
        return
    if node.pre_skip is not None:
        raise BadInput(f"{node.where}: PRE_SKIP of a node with {first.count} jobs is not supported", "Write one JOB line for each job.")
    pre, jobs = f"{node.name} PRE", f"{node.name}{JOBS_SUFFIX}"
    noop = SubmitDescription("true", directory=directory)
    if node.pre:
        task = _task(dag, replace(node, post=None), noop)
        yield task._replace(key=pre, label=f"{node.name}.PRE", after=parents, after_any=any_end)
        parents, any_end = (pre,), ()
    alone = replace(node, pre=None, post=None, parents=dict.fromkeys(parents))
    for place in range(first.count):
        task = _task(dag, alone, _read(dag, node, number, place))
        key = jobs if node.post else node.name
        yield task._replace(node=node, key=key, label=f"{node.name}.{place}", after=parents, after_any=any_end)
    if node.post:
        end = _end_of_parts(directory)
        yield _task(dag, replace(node, pre=None), replace(end, count=first.count))._replace(
            node=node, label=f"{node.name}.POST", after=parents, after_any=(*any_end, jobs)
        )


def _end_of_parts(directory: str) -> SubmitDescription:
    return SubmitDescription(ANY_FAILED[0], ANY_FAILED[1:], directory=directory)


class _Job(NamedTuple):
    """A job of a DAG node. ``here``: the directory of the job. ``words``: program and arguments of the job. ``exports``: environment
    variables that the shell script of the task sets for the job."""

    described: SubmitDescription
    here: str
    words: list[str]
    exports: dict[str, str]


def _task(dag: Dag, node: DagNode, first: SubmitDescription, more: Sequence[SubmitDescription] = ()) -> NodeTask:
    """Returns the task of a node with one job, or with several jobs that run one after the other."""
    known = {} if more else {name: value for name, value in first.env.items() if not RUNTIME.search(value)}
    jobs = [_job(node, one, {name: value for name, value in one.env.items() if name not in known}) for one in (first, *more)]
    job, here, words, exports = jobs[0]
    retries = ((job.retries if node.retries is None else node.retries) + 1) * node.tries - 1
    options = _options(dag, node, job) | {"cwd": os.path.abspath(node.directory), "name": os.path.basename(words[0])}
    options |= {"env": known} if known else {}
    stops = _stopping_exits(node, retries)
    if not stops and retries:
        options["retries"] = retries
    scripted = node.pre or node.post or stops or exports
    plain = not (scripted or job.scratch or job.stdin or job.stdout or job.stderr)
    shown = (word.replace(DAG_STATUS, ABORTED) if node.is_aborted else word for word in _shown(node, job, words))
    command = RUNTIME.sub(lambda found: f"${RUNTIME_MACROS[found[0]].upper()}", shlex.join(shown))
    if plain and not RUNTIME.search("".join(words)):
        return NodeTask(node, words, {**options, "cwd": here}, command, node.name, node.name, (), ())
    script = _Wrapper(node, jobs, retries, dag.node_counts[node.dag]).script()
    # The script is in an environment variable, so that the command is short in listings.
    argv = ["sh", "-c", f'eval "${SCRIPT}"', node.name]
    return NodeTask(node, argv, {**options, "env": {**known, SCRIPT: script}}, command, node.name, node.name, (), ())


def _job(node: DagNode, described: SubmitDescription, exports: dict[str, str]) -> _Job:
    here = os.path.abspath(described.directory)
    if not (os.path.isdir(here) or node.waits or node.pre):
        raise BadInput(f"{node.where}: initialdir {described.directory!r} is not a directory", "Create it, or fix the submit description.")
    program = described.program if node.noop else _program(described.program, here, node)
    return _Job(described, here, [program, *described.arguments], exports)


def _stopping_exits(node: DagNode, retries: int) -> tuple[int, ...]:
    """Returns the exit statuses after which a node is not tried again, although it has retries left. These are the exit status of
    UNLESS-EXIT and the exit status with which the node aborts the DAG."""
    found = (node.unless_exit, node.abort[0] if node.abort is not None and retries else None)
    return tuple(dict.fromkeys(value for value in found if value is not None))


def _shown(node: DagNode, job: SubmitDescription, words: list[str]) -> Sequence[str]:
    """Returns the command that listings show for a task. For a task that runs only a PRE or POST script, this is the script."""
    if job.arguments == ANY_FAILED[1:] and node.post is not None:
        return node.post.words
    return node.pre.words if words == ["true"] and node.pre is not None else words


def _options(dag: Dag, node: DagNode, job: SubmitDescription) -> dict[str, Any]:
    options: dict[str, Any] = {"cores": job.cores, "priority": node.priority}
    options |= {"memory": job.memory_bytes} if job.memory_bytes else {}
    options |= {"gpus": job.gpus} if job.gpus else {}
    limit = dag.limits.get(node.category, 0)
    if limit and node.is_subdag:
        limit = 0
        dag.note(f"{node.where}: MAXJOBS {node.category} has no effect on the sub-DAG {node.name}: write it for nodes of the sub-DAG")
    return options | ({"concurrency_limit": (node.category, limit)} if limit else {})


def _read(dag: Dag, node: DagNode, number: int, place: int) -> SubmitDescription:
    """Reads the submit description of a node for one of its jobs."""
    macros = {
        "Cluster": str(number),
        "ClusterId": str(number),
        "Process": str(place),
        "ProcId": str(place),
        "Step": str(place),
        "JOB": node.name_in_dag,
        "RETRY": RETRY,
        "DAG_PARENT_NAMES": ",".join(node.parents_in_dag),
    }
    macros |= {"DAG_STATUS": DAG_STATUS, "FAILED_COUNT": FAILED_COUNT} if node.is_final else {}
    job = read_job(description_lines(node, dag.files), {**macros, **node.before}, node.after, node.directory)
    for notice in job.notices:
        dag.note(notice)
    return job


def _program(program: str, here: str, node: DagNode) -> str:
    """Returns the path or the name of the program of a job. Looks for a file in the directory ``here`` first, as HTCondor does.

    If there is no such file, a name without a slash can be a command in PATH. If there is no such command, the file can still be created
    later, by an earlier DAG node or the PRE script. If nothing runs before the program, raises BadInput.
    """
    path = os.path.join(here, program)
    if os.path.isfile(path):
        if not os.access(path, os.X_OK):
            raise BadInput(f"{node.where}: the program {program!r} may not be executed", f"Allow it: chmod +x {path}")
        return path
    if RUNTIME.search(program) or os.path.isabs(program) or ("/" not in program and shutil.which(program)):
        return program
    if not (node.waits or node.pre):
        raise BadInput(f"{node.where}: the program {program!r} does not exist (looked in {here})", "Fix the executable of its description.")
    return path


def quote(text: str) -> str:
    """Quotes a word for the shell. The values of some macros, such as RETRY, are known only at run time: shell variables replace them."""
    parts = (f'"${RUNTIME_MACROS[part]}"' if part in RUNTIME_MACROS else shlex.quote(part) for part in RUNTIME.split(text) if part)
    return "".join(parts) or "''"


def _error_lines(job: SubmitDescription) -> str:
    """Returns shell lines for a job whose standard error goes to a file. If the job fails, the shell lines print the end of this file, so
    that ``logs`` and the failure show it. Each printed line begins with the name of the file."""
    if not job.stderr:
        return ""
    name, path = quote(job.stderr), quote(os.path.join(os.path.abspath(job.directory), job.stderr))
    return (
        f'if [ "$ended" -ne 0 ]; then\n  if [ -s {path} ]; then\n    tail -n {SHOWN_ERROR_LINES} {path} | '
        f'while IFS= read -r line || [ -n "$line" ]; do printf \'%s: %s\\n\' {name} "$line"; done >&2\n'
        f"  else printf '%s is empty\\n' {name} >&2; fi\nfi\n"
    )


class _Wrapper:
    """Writes the shell script of one node."""

    def __init__(self, node: DagNode, jobs: Sequence[_Job], retries: int, count: int) -> None:
        self._node = node
        self._jobs = jobs
        self._retries = retries
        self._constants = {
            "$JOB": node.name_in_dag,
            "$NODE": node.name_in_dag,
            "$MAX_RETRIES": str(retries),
            "$NODE_COUNT": str(count),
            "$JOB_COUNT": str(jobs[0].described.count),
        }
        self._macros = MACROS | OF_FINAL if node.is_final else MACROS

    def script(self) -> str:
        node = self._node
        stops = _stopping_exits(node, self._retries)
        if not stops:
            return f"unset {SCRIPT}\nretry=$((${{PILOTFISH_ATTEMPT:-1}} - 1))\n{self._once()}"
        is_last = " || ".join(f'[ "$code" -eq {value} ]' for value in stops)
        # The script repeats the node itself, because it knows the last exit status. A new attempt on another worker would not know it.
        return (
            f"unset {SCRIPT}\nretry=0\nonce() (\n{self._once()})\nwhile :; do\n  once; code=$?\n"
            f'  if [ "$code" -eq 0 ] || {is_last} || [ "$retry" -ge {self._retries} ]; then exit "$code"; fi\n'
            "  retry=$((retry + 1))\ndone\n"
        )

    def _once(self) -> str:
        node = self._node
        text = (DAG_SO_FAR % (ABORTED if node.is_aborted else FAILED) if node.is_final else "") + "pre=-1\n"
        if node.pre is not None:
            skip = f'  [ "$pre" -eq {node.pre_skip} ] && exit 0\n' if node.pre_skip is not None else ""
            text += f'{self._script(node.pre, self._macros)}\npre=$?\nif [ "$pre" -ne 0 ]; then\n{skip}  exit "$pre"\nfi\n'
        first, *more = map(self._run, self._jobs)
        text += f"(\n{first})\nstatus=$?\n"
        for run in more:
            text += f'if [ "$status" -eq 0 ]; then\n(\n{run})\nstatus=$?\nfi\n'
        if node.post is None:
            return text + 'exit "$status"\n'
        return (
            text + 'success=False; [ "$status" -eq 0 ] && success=True\n'
            'if [ "$status" -gt 128 ] && [ "$status" -le 192 ]; then status=$((128 - status)); fi\n'
            f"{self._script(node.post, self._macros | AFTER_JOB)}\n"
        )

    @staticmethod
    def _run(one: _Job) -> str:
        job, here, words, exports = one
        text = f"cd {quote(here)} || exit 1\n"
        text += "".join(f"export {name}={quote(value)}\n" for name, value in exports.items())
        stdin, stdout = job.stdin or "/dev/null", job.stdout
        streams = f" <{quote(os.path.join(here, stdin))}"
        streams += f" >{quote(os.path.join(here, stdout))}" if stdout else ""
        if job.stderr:
            streams += " 2>&1" if job.stderr == stdout else f" 2>{quote(os.path.join(here, job.stderr))}"
        command = " ".join(quote(word) for word in words) + streams
        if not job.scratch:
            return f'{text}{command}\nended=$?\n{_error_lines(job)}exit "$ended"\n' if job.stderr else f"{text}exec {command}\n"
        for name in job.inputs:
            # A slash after the name of a directory means the files in the directory.
            source = os.path.join(here, name) + ("." if name.endswith("/") else "")
            text += f'cp -R {quote(source)} "$scratch"/ || exit 1\n'
        text = FETCH + text + NOTE_INPUTS + f'(cd "$scratch" && exec {command})\nended=$?\n{_error_lines(job)}'
        if job.outputs is None:
            text += BRING + BRING_NEW % "".join(f"{quote(name)}) to={quote(target)} ;; " for name, target in job.remaps.items())
        elif job.outputs:
            text += BRING + '[ "$ended" -eq 0 ] || exit "$ended"\n'
            for name in job.outputs:
                base = os.path.basename(name.rstrip("/"))
                target = job.remaps.get(name) or job.remaps.get(base) or base
                text += f'bring "$scratch"/{quote(name)} {quote(target)}\n'
        return text + 'exit "$ended"\n'

    def _script(self, script: NodeScript, macros: dict[str, str]) -> str:
        program, *arguments = script.words
        path = os.path.join(self._node.directory, program)
        if "/" not in program and os.path.isfile(path):
            program = "./" + program
        words = [quote(program)]
        for word in arguments:
            if word in (*UNKNOWN, *AFTER_JOB) and word not in macros:
                raise BadInput(
                    f"{script.where}: {word} is not known to this script", "Leave it out; see how a run stands: pilotfish status"
                )
            words.append(macros.get(word) or quote(self._constants.get(word, word)))
        return " ".join(words)
