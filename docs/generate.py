"""Generates reference pages from the code: ``python docs/generate.py``."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

import pilotfish as package
from pilotfish.api.balance_report import BalanceReport, Iteration
from pilotfish.api.divisible import BALANCING_OPTIONS, divide, iterate
from pilotfish.api.executor import Executor
from pilotfish.api.futures import ExecutableFuture, TaskFuture
from pilotfish.api.ordered_map import OrderedMap
from pilotfish.api.run import Run, Submitter
from pilotfish.applications.application_manager import ApplicationManager, ApplicationWorker, TaskDone
from pilotfish.applications.executables.executable import Completed
from pilotfish.applications.executables.executable_encoder import EXECUTABLE_KEYWORDS
from pilotfish.applications.task_list import TaskList
from pilotfish.applications.task_options import TASK_KEYWORDS
from pilotfish.cli.main import pilotfish as command_group
from pilotfish.cli.terminal.error_messages import CAUSES, EXIT_STATUSES, EXPLANATIONS
from pilotfish.config import QUANTITIES, SITE_KEYS
from pilotfish.core.explain import site_reasons
from pilotfish.core.pilots.site_events import SUBMITTED_WITH
from pilotfish.model import settings, site, states
from pilotfish.model.settings import PoolSettings
from pilotfish.plugins import SECTIONS

HERE = Path(__file__).parent
NOTE = "<!-- Written by docs/generate.py; do not edit. -->\n\n"

STEP_X = 130
BOX_WIDTH = 96
BOX_HEIGHT = 32
MARGIN = 20


def command_page() -> str:
    """Lists every command and option."""
    lines = [
        NOTE + "# Command line\n",
        "This page shows the output of `pilotfish COMMAND --help`. Every command that prints a table has `--json`.\n",
        "RUN is the number of a run, its name, or `last`. In `predict` and `whatif`, `last` means the newest unfinished run, in `replay`"
        " the newest finished run, and in all other commands the newest run. If several runs have the same name, the name means the newest"
        " of these runs, also in `cancel` and `forget`. To select an older run, use its number.\n\nTASK is `RUN.INDEX`, such as"
        " `3.17`, `night.17` or `last.17`. In `why`, `logs`, `tail` and `cancel`, TASK can also be `RUN.ID`. ID is the name of the task"
        " in a task list or DAG.\n",
    ]
    root = click.Context(command_group, info_name="pilotfish")
    for section, commands in SECTIONS.items():
        lines.append(f"## {section}\n")
        for name in commands:
            command = command_group.get_command(root, name)
            assert command is not None
            context = click.Context(command, info_name=name, parent=root)
            lines += _command(command, context)
            if isinstance(command, click.Group):
                for part in command.list_commands(context):
                    lines += _command(command.commands[part], click.Context(command.commands[part], info_name=part, parent=context))
    return "\n".join(lines)


def _command(command: click.Command, context: click.Context) -> list[str]:
    usage = " ".join(command.collect_usage_pieces(context))
    paragraphs = [_paragraph(part) for part in inspect.cleandoc(command.help or "").split("\n\n")]
    path = context.command_path.removeprefix("pilotfish ")
    lines = [f"### {path}\n", f"`pilotfish {path} {usage}`\n", "\n\n".join(paragraphs) + "\n"]
    rows = [parameter for parameter in command.params if isinstance(parameter, click.Option) and not parameter.hidden]
    if rows:
        lines += ["| option | |", "|---|---|"]
        for option in rows:
            record = option.get_help_record(context)
            assert record is not None
            names, told = record[0], re.sub(r"\s*\[x>=\d+\]|; x>=\d+", "", record[1])
            lines.append(f"| `{names.replace('|', chr(92) + '|')}` | {' '.join(told.split()).replace('|', chr(92) + '|')} |")
        lines.append("")
    return lines


def _paragraph(part: str) -> str:
    """Turns a part of a help text into Markdown. A part whose line breaks are kept (``\\b``) is a list of commands or a table."""
    marker, *lines = part.splitlines()
    if marker == "\b" and all("pilotfish " in line for line in lines):
        return "\n".join(f"- `{' '.join(line.split())}`" for line in lines)
    if marker == "\b":
        return "\n".join(["```text", *lines, "```"])
    return " ".join([marker, *lines]).replace("{", "`{").replace("}", "}`")


def settings_page() -> str:
    """Lists the settings."""
    lines = [
        NOTE + "# Settings\n",
        "Settings are in the file `config.toml` in `PILOTFISH_HOME`, in the table `[pool]`. All settings have defaults. If the name of a"
        " setting is misspelt, the error suggests a similar name. The master"
        " reads the file only when it starts. If you edit the file later, `pilotfish status` prints a warning. To use the new settings, run"
        " `pilotfish stop`: the next command that needs a master starts a new master.\n",
        "```toml\n[pool]\nlinger_s = 600\n```\n",
        "| setting | default | meaning |",
        "|---|---|---|",
    ]
    meanings = _field_texts(settings, "PoolSettings")
    for field in msgspec.structs.fields(PoolSettings):
        default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        lines.append(f"| `{field.name}` | `{msgspec.json.encode(default).decode()}` | {meanings[field.name]} |")
    lines += ["", "## Environment variables\n", "| variable | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in VARIABLES.items()]
    lines += ["", "Pilotfish sets these variables in the environment of tasks:\n", "| variable | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in TASK_VARIABLES.items()]
    return "\n".join(lines) + "\n"


SITE_TESTS = {
    "slurm": "A real Slurm with several nodes in `make test`, through ssh as an ordinary user. Recorded outputs of Slurm 22.05.",
    "sge": "A real Grid Engine 8.1.9 in `make test`, through ssh as an ordinary user. Recorded outputs.",
    "htcondor": "A real HTCondor 23.9 pool in `make test`, through ssh as an ordinary user. Recorded outputs.",
    "ssh": "A real OpenSSH server in `make test`, as an ordinary user.",
    "arc": "Recorded outputs in `make test`. A real ARC 6.17 computing element in `make campaign`.",
    "pbs": "Recorded outputs of OpenPBS 23.06, and outputs from the documentation of Torque. No test uses a real system.",
    "kubernetes": "Recorded outputs of Kubernetes 1.34. No test uses a real cluster.",
    "lsf": "Outputs from the documentation of LSF. No test uses a real system.",
}
"""Evidence for each backend."""
SITE_TESTS_NOTE = (
    "This table shows what the tests of each backend use. In a source checkout, `make test` runs the usual tests, and `make campaign` runs"
    " the long tests.\n"
)


def site_page() -> str:
    """Lists the keys of a site."""
    lines = [
        NOTE + "# Sites\n",
        "The file `sites.toml` in `PILOTFISH_HOME` describes the sites of all pools. It has one table per site. The name of the table is"
        " the name of the site. Only the key `backend` is required. `pilotfish site add` and `pilotfish site set` change single keys. You"
        " can also edit the file. A master reads the file when it starts, and when you run `pilotfish site add`, `pilotfish site set` or"
        " `pilotfish run --site`. If a key is misspelt, the error suggests a similar key. See also"
        " [Clusters and remote hosts](../how-to/use-a-cluster.md).\n",
        "Running pilots keep the values with which they were submitted. Queued pilots also keep these values, with one exception: if you"
        " change one of the keys "
        + ", ".join(f"`{name.removesuffix('_s')}`" for name in SUBMITTED_WITH)
        + ", queued pilots are cancelled, and new pilots are submitted with the new values.\n",
        "```text\n" + SITE_EXAMPLE + "```\n",
        'Write durations as `"90s"` or `"1h30m"`, sizes as `"8G"`.\n',
        "| key | default | meaning |",
        "|---|---|---|",
    ]
    meanings = {**SITE_TEXTS, **_field_texts(site, "Site")}
    for key, field in zip(SITE_KEYS, msgspec.structs.fields(site.Site), strict=True):
        lines.append(f"| `{key}` | {_site_default(key, field)} | {_prose(meanings[field.name])} |")
    lines += ["", "Backend-specific keys are below `options`:\n", "| backend | option | meaning |", "|---|---|---|"]
    lines += [f"| {backend} | `{name}` | {text} |" for backend, options in SITE_OPTIONS.items() for name, text in options.items()]
    lines += ["", "## Backend tests\n", SITE_TESTS_NOTE, "| backend | tested against |", "|---|---|"]
    lines += [f"| {backend} | {text} |" for backend, text in SITE_TESTS.items()]
    return "\n".join(lines) + "\n"


def _site_default(key: str, field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "(required)"
    default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if key in QUANTITIES and default:
        return f'`"{default:g}s"`'
    return f"`{msgspec.json.encode(default).decode()}`"


SITE_EXAMPLE = """\
# A quarter of a node, for two hours.
[hpc]
backend = "slurm"
via = "me@login.example.org"
queue = "batch"
cores = 16
memory = "32G"
walltime = "2h"
max_pilots = 20
setup = ["module load python"]

[lab]
backend = "ssh"
hosts = ["node1", "node2"]
"""
SITE_TEXTS = {
    "gpus": "GPUs per node of a pilot; 0: none.",
    "submissions_per_minute": "Maximum number of submissions per minute; 0: no limit. After a pause, several"
    " submissions may start at once: as many as this rate allows in five seconds. With the default of 300 per minute, these are 25.",
    "commands_at_once": "Maximum number of commands of the site that run at the same time.",
}
SITE_OPTIONS = {
    "all with `via` or `hosts`": {"ssh_config": "Configuration file for ssh. Default: your own."},
    "slurm": {"accounting": "`no`: `sacct` is not called. Use this for clusters without accounting."},
    "sge": {
        "pe": "Parallel environment for several cores on one machine. Default: `smp`.",
        "memory_resource": "Name of the memory resource; `none` requests no memory. Default: `h_vmem`.",
        "gpu_resource": "Name of the GPU resource. Default: `gpu`.",
        "account_flag": "Flag for the key `account`: `-A` for an account, `-P` for a project. Default: `-P`.",
    },
    "pbs": {"flavour": "`openpbs` or `torque`. Default: `openpbs`."},
    "kubernetes": {
        "image": "Container image. Required; the image must have Python.",
        "namespace": "Namespace for Jobs and Secrets.",
        "context": "Context to use from the kubeconfig file. Default: its current context.",
        "kubeconfig": "Configuration file of kubectl. Default: the usual file of kubectl.",
        "pull_policy": "The `imagePullPolicy` of the container: when the image is pulled.",
        "service_account": "Service account of the Pods.",
        "node_selector": "`name=value,...`: labels of the nodes.",
        "run_as": "User id in the container.",
        "gpu": "Name of the GPU resource. Default: `nvidia.com/gpu`.",
        "pod": "JSON object with additional fields for the `spec` of the Pod.",
    },
    "arc": {
        "endpoint": "Address of the computing element, such as `https://ce.example.org:443/arex`. Required.",
        "proxy": "File of the proxy certificate. Default: `$X509_USER_PROXY`, or the usual place of proxies.",
        "capath": "Directory of CA certificates.",
        "cacert": "File of CA certificates, instead of `capath`.",
    },
}

VARIABLES = {
    "PILOTFISH_HOME": "Directory of pools, journals and settings. Default: `$XDG_STATE_HOME/pilotfish`, or `~/.local/state/pilotfish`.",
    "PILOTFISH_POOL": "Pool that commands use without `--pool`, and that `Run`, `Run.find` and `Executor(sites=...)` use without"
    " `pool=`. Default: `default`.",
    "NO_COLOR": "If this variable has a value that is not empty, the output has no colours.",
}
TASK_VARIABLES = {
    "PILOTFISH_TASK": "Id of the task, `RUN.INDEX`.",
    "PILOTFISH_ATTEMPT": "Number of the attempt, from 1.",
    "PILOTFISH_FAILED_DEPENDENCIES": "Number of failed and cancelled tasks in the list `after_any` of this task. Tasks that did"
    " not run, because another task failed or was cancelled, are not counted. This variable is set only for tasks with `after_any`.",
    "PILOTFISH_CORES": "Number of cores of the task. `OMP_NUM_THREADS` gets the same value, unless you set it.",
    "PILOTFISH_NODES": "Number of nodes of the task. It is set only with `--nodes`.",
    "PILOTFISH_HOSTFILE": "File with one line per node, for `mpirun --hostfile`. It is set only with `--nodes`.",
    "PILOTFISH_DEADLINE": "End of the time limit of the task, in seconds since 1970. It is set only if the task has a time limit.",
    "PILOTFISH_ENDS_AT": "End of the walltime of the worker, in seconds since 1970. It is set only if Pilotfish knows the"
    " walltime, for example in a batch job.",
    "PILOTFISH_WORKER": "Name of the worker.",
}


def _field_texts(module: object, name: str) -> dict[str, str]:
    """Reads the strings below the fields of a class."""
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    texts: dict[str, str] = {}
    for field, text in zip(found.body, found.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            texts[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return texts


def error_page() -> str:
    lines = [
        NOTE + "# Error codes\n",
        "`pilotfish explain CODE` shows the meaning and the fix of an error code.\n",
        "| code | meaning | fix |",
        "|---|---|---|",
    ]
    for code, explanation in sorted(EXPLANATIONS.items()):
        lines.append(f"| {code} | {explanation.meaning} | {', '.join(f'`{command}`' for command in explanation.commands)} |")
    lines += [
        "",
        "## Failure causes\n",
        "The cause is shown in brackets after the message of a failure. `pilotfish explain CAUSE` shows its meaning.\n",
        "| cause | meaning |",
        "|---|---|",
    ]
    lines += [f"| {cause} | {meaning} |" for cause, meaning in CAUSES.items()]
    lines += ["", "## Exit statuses\n", "These are the exit statuses of `pilotfish` commands.\n", "| status | meaning |", "|---|---|"]
    lines += [f"| {status} | {meaning} |" for status, meaning in EXIT_STATUSES.items()]
    return "\n".join(lines) + "\n"


TASK_MEANING = {
    "waiting": "the task waits for other tasks or for its concurrency limit",
    "ready": "the task can start when a worker has free resources",
    "assigned": "the task was sent to a worker, but the worker has not reported yet that the task runs",
    "running": "the worker has reported that the task runs",
    "done": "the task succeeded, and its result is stored",
    "failed": "the task failed and has no retries left; the cause of the failure is stored",
    "cancelled": "a user cancelled the task, or the whole run was cancelled",
}
WORKER_MEANING = {
    "joined": "the worker is in the pool; commands show it as `idle`, `busy` or `quarantined` (see below)",
    "draining": "the worker finishes its tasks and accepts no more tasks",
    "left": "the worker left the pool by itself or was released",
    "lost": "the worker died or became silent; its tasks run on other workers",
}
PILOT_MEANING = {
    "requested": "the master has recorded the pilot, but the site has not accepted it yet",
    "submitted": "the site has accepted the pilot",
    "active": "the agent of the pilot has joined the pool",
    "ending": "the pilot is being cancelled or released",
    "ended": "the pilot is no longer at the site",
}
RUN_MEANING = {
    "open": "the run has no unfinished tasks, but its client may add more tasks",
    "waiting": "all unfinished tasks wait: none is assigned or running; `pilotfish why` shows the reason",
    "running": "at least one task is assigned or running",
    "paused": "a user paused the run: running tasks continue, but no other tasks of the run start",
    "done": "all tasks succeeded",
    "failed": "all tasks have ended, and at least one failed",
    "cancelled": "all tasks have ended, none failed, and the run or at least one task was cancelled",
    "incomplete": "the program ended or lost its connection before it closed the run, so it may have wanted to submit more tasks; all"
    " submitted tasks have ended",
}
SITE_MEANING = {
    "ready": "pilots are submitted when tasks need them, up to the limits of the site",
    "paused": "a user paused the site: it gets no new pilots until `pilotfish site resume`",
    "held": "the site gets no new pilots, because its pilots failed one after another",
    "trouble": "the site does not answer, or a credential is missing",
    "full": "the batch system accepted no more pilots because of a limit; the master tries again automatically",
    "leaving": "a user removed the site, and its last pilots are ending",
}
LIFECYCLES = {
    "task": (states.TASK_STATES, TASK_MEANING, states.TASK_STEPS, "Tasks"),
    "worker": (states.WORKER_STATES, WORKER_MEANING, states.WORKER_STEPS, "Workers"),
    "pilot": (states.PILOT_STATES, PILOT_MEANING, states.PILOT_STEPS, "Pilots"),
}


def state_page() -> str:
    lines = [
        NOTE + "# States of tasks, runs, workers, pilots and sites\n",
        "The column *next* lists the states to which a state can change. The master refuses all other transitions.\n",
    ]
    assert set(SITE_MEANING) == {"ready", *site_reasons.STATES.values()}
    for key, (names, meanings, steps, title) in LIFECYCLES.items():
        lines += [f"## {title}\n", f"![The states of a {key}](states-{key}.svg)\n", "| state | meaning | next |", "|---|---|---|"]
        for number, name in enumerate(names):
            lines.append(f"| {name} | {meanings[name]} | {', '.join(names[after] for after in steps[number]) or 'none (final)'} |")
        lines += ["", *STATE_NOTES[key]]
    for title, meanings, note in (("Runs", RUN_MEANING, RUN_NOTE), ("Sites", SITE_MEANING, SITE_NOTE)):
        lines += [f"## {title}\n", note, "| state | meaning |", "|---|---|"]
        lines += [*(f"| {name} | {meaning} |" for name, meaning in meanings.items()), ""]
    return "\n".join(lines)


STATE_NOTES = {
    "task": [
        "Suppose a running task has a speculative copy that has not started yet. If the first attempt ends without a result, the state of"
        " the task changes to *assigned* again.\n\nIf a task fails or is cancelled, tasks that depend on it never run: their state is"
        " *failed*, and the cause of the failure is `dependency`. If a whole run is cancelled, all its unfinished tasks are *cancelled*."
        "\n\nOnly `pilotfish rerun` changes the state of a task that failed or was cancelled.\n"
    ],
    "worker": [
        "For a worker in the state *joined*, `pilotfish workers` and `pilotfish status` show more: `idle` (it runs no task), `busy` (it"
        " runs at least one task) or `quarantined` (it gets no tasks for some time, because five different tasks failed on it one after"
        " another).\n"
    ],
    "pilot": [],
}
RUN_NOTE = (
    "The state of a run follows from the states of its tasks, from whether its client may still add tasks, and from whether a user paused"
    " the run. In `pilotfish status`, the column RUNNING counts the tasks in the states"
    " *assigned* and *running*, and the column WAITING counts the tasks in the states *waiting* and *ready*. If all runs have ended, both"
    " columns are left out.\n"
)
SITE_NOTE = (
    "`pilotfish sites` shows the state of each site. The column QUEUED counts pilots whose agent has not joined yet."
    " The column RUNNING counts the other pilots.\n"
)


def state_picture(key: str) -> str:
    """Draws states in a row, forward transitions as arcs above, backward transitions as arcs below."""
    names, _, steps, _ = LIFECYCLES[key]
    edges = [(before, after) for before, targets in steps.items() for after in targets]
    above = max((after - before for before, after in edges if after > before), default=1) * 24 + 20
    below = max((before - after for before, after in edges if after < before), default=0) * 24 + 20
    width, middle = 2 * MARGIN + STEP_X * (len(names) - 1) + BOX_WIDTH, above + BOX_HEIGHT // 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {above + below + BOX_HEIGHT}"',
        ' font-family="sans-serif" font-size="14">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>',
    ]
    parts += [_arc(before, after, middle) for before, after in edges]
    for number, name in enumerate(names):
        x = MARGIN + number * STEP_X
        fill = "#dcebdc" if not steps[number] else "#dde7f3"
        parts.append(
            f'<rect x="{x}" y="{middle - BOX_HEIGHT // 2}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="{fill}" stroke="#555"/>'
        )
        parts.append(f'<text x="{x + BOX_WIDTH // 2}" y="{middle + 5}" text-anchor="middle" fill="#222">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _arc(before: int, after: int, middle: int) -> str:
    shift = BOX_WIDTH // 2 + (10 if after > before else -10)
    start, end = MARGIN + before * STEP_X + shift, MARGIN + after * STEP_X + BOX_WIDTH - shift
    up = -1 if after > before else 1
    edge, height = middle + up * BOX_HEIGHT // 2, abs(after - before) * 24 * up * 4 // 3
    path = f"M{start},{edge} C{start},{edge + height} {end},{edge + height} {end},{edge}"
    return f'<path d="{path}" fill="none" stroke="#555" marker-end="url(#tip)"/>'


def decision_page() -> str:
    lines = [
        NOTE + "# Decisions\n",
        "Each page describes the context, the decision and the consequences. If a decision changes, a new page describes the change.\n",
    ]
    for page in sorted((HERE / "explanation" / "decisions").glob("0*.md")):
        title = page.read_text().splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({page.name})")
    return "\n".join(lines) + "\n"


# --- the Python interface -------------------------------------------------------------------------------------------------------------

# Documented classes in this order, each with an introduction.
CLASSES: dict[type, str] = {
    Executor: "It is a `concurrent.futures.Executor`.",
    Run: "Without `pool`, a `Run` uses the same pool as a command without `--pool`.",
    Submitter: "`run.options(...)` returns it.",
    TaskFuture: "`submit` returns it. It is a `concurrent.futures.Future` with these additions:",
    ExecutableFuture: "`executable` returns it. It is a `TaskFuture` with these additions:",
    Completed: "`result()` of an `ExecutableFuture` returns it.",
    BalanceReport: "`divide` and `iterate` return it.",
    Iteration: "It is an element of `BalanceReport.iterations`.",
    ApplicationManager: "A manager in a run file creates tasks at run time; see the [tutorial](../tutorials/applications.md).",
    ApplicationWorker: "It executes the tasks that a manager adds with `tasks.work`.",
    TaskList: "It is the argument `tasks` of `run(tasks)` in a run file and of the methods of a manager.",
    TaskDone: "`tasks_done` and `resume` of a manager get a list of these objects.",
}
# Members without a docstring of their own.
MEMBERS = {
    "Executor.submit": "Submits a call as a task. If the call cannot be pickled, `result()` of the future raises the error.",
    "Run.id": "Number of the run on the command line.",
    "Run.uid": "Unique id of the run, for `Run(uid=...)` in another program.",
    "TaskFuture.cancel": "Cancels the task, unless the master has reported that the task runs. Returns whether the task was cancelled.",
    "TaskList.count": "",
    "TaskList.destinations": "",
    "TaskList.has_outputs": "",
    "TaskList.has_undirected_files": "",
    "TaskList.specs": "",
    "TaskList.take": "",
    "TaskFuture.add_done_callback": "",
    "TaskFuture.done": "",
    "TaskFuture.result": "",
    "TaskFuture.set_result": "",
    "TaskFuture.began": "",
    "TaskFuture.ended": "",
    "Completed.exit": "Exit status of the program; None if a signal ended the program.",
    "Completed.signal": "Number of the signal that ended the program, or None.",
    "Completed.stdout": "Standard output as bytes. If it is longer than 16 MiB: its beginning and its end, and between them a line that"
    " says how much is left out.",
    "Completed.stderr": "Standard error output as bytes, with the same limit.",
    "Completed.files": "Output files by name. Each file has `name`, `size`, `mode` and `content`, and it can be an input of another task."
    " A file that was kept on the worker has no `content`.",
    "Completed.stdout_dropped": "Number of bytes that were left out in the middle of standard output and are stored nowhere.",
    "Completed.stderr_dropped": "Number of bytes that were left out in the middle of standard error and are stored nowhere.",
    "Completed.stdout_file": "The whole standard output, if it is too long for `stdout`. Read it from `stdout_file.path`. Otherwise None.",
    "Completed.stderr_file": "The whole standard error, if it is too long for `stderr`. Otherwise None.",
    "TaskDone.index": "Index in the run, from 0.",
    "TaskDone.state": "`done`, `failed` or `cancelled`.",
    "TaskDone.value": "Return value of a call; for an executable, a `Completed`.",
    "TaskDone.error": "The exception if the task failed, otherwise None.",
    "TaskDone.usage": "Time and memory that the task used: `wall_us`, `cpu_us` and `rss_kib`.",
}
TASK_OPTIONS = {
    "name": "name of the task. `pilotfish forecasts` shows it as the [task class](../explanation/forecasts.md#task-classes),"
    " `pilotfish tasks --json` shows it as `name`. For a Python call, the column COMMAND shows it instead of the function. It is not an id:"
    " many tasks can have the same name",
    "cores": 'number of cores: `2`, `0.5`, or a range such as `"1-4"`; default 1',
    "nodes": "number of nodes of one pilot, each with the requested resources; default 1",
    "memory": 'memory limit, such as `"2 GiB"`; if a task exceeds it, the task is tried again with twice the limit, at most two times',
    "gpus": "number of GPUs",
    "resources": 'custom resources: `{"licence": 1}`',
    "time": 'time limit: `90`, `"1h30m"`, a `timedelta`',
    "retries": "retries after a failure; default 0",
    "losses": "retries after the loss of a worker; default 10",
    "priority": "tasks with a higher priority start first; default 0",
    "tags": 'tags that the worker must have: `{"disk": "fast"}`',
    "requirement": 'expression that must be true of the worker, such as `"memory >= 8G"`: see [expressions](expressions.md)',
    "rank": 'expression; workers with a larger value are preferred, such as `"cores"`',
    "concurrency_limit": 'limit name and number: with `("download", 2)`, at most 2 of the tasks of the run that have the limit'
    " name `download` run at the same time",
    "max_output": 'maximum size of the stored standard output, and of standard error, such as `"8G"`; if a task writes more, the middle is'
    " left out; default 1 GiB",
}
EXECUTABLE_OPTIONS = {
    "inputs": "files and directories to copy to the sandbox: a list of paths, or a dict from names to paths. Instead of a path, you can"
    " give a file of another task",
    "outputs": "files, directories or patterns to copy back",
    "keep": "files, directories or patterns that stay on the worker for later tasks",
    "stdin": "standard input: bytes or text",
    "env": "environment variables to set, in addition to the variables of your program",
    "cwd": "working directory",
    "sandbox": "`True`: run in a private directory; the default with `inputs`, `outputs` or `keep`",
    "shell": "`True`: the first element is a script for `sh`, the others are its arguments",
    "output_cap": "old name of `max_output`",
    "warn_signal": 'signal that the program gets shortly before the worker ends, such as `"USR1"`; default: no signal, because a signal'
    " ends a program that does not handle it",
}


def python_page() -> str:
    """Documents the exported classes from their docstrings."""
    errors = [cls for cls in map(package.__getattr__, sorted(package._MODULES)) if isinstance(cls, type) and issubclass(cls, Exception)]
    missing = set(package.__all__) - {"__version__"} - {cls.__name__ for cls in (*CLASSES, *errors, divide, iterate)}
    assert not missing, f"exported, but not documented: {missing}"
    lines = [
        NOTE + "# Python API\n",
        "`from pilotfish import ...` provides all names on this page except `Submitter`, `Iteration`, `TaskList` and `TaskDone`. You get"
        " objects of these four classes from the API. For an introduction, see [Using Pilotfish from Python](../tutorials/python.md).\n",
    ]
    for cls, first in CLASSES.items():
        lines += [f"## {cls.__name__}\n", *_constructor(cls), _paragraphs(cls.__doc__ or "") + "\n", first + "\n", *_members(cls), ""]
    lines += ["## divide and iterate\n", "See [Divisible loads](../how-to/divisible.md).\n"]
    for function in (divide, iterate):
        lines += [f"`{function.__name__}{_signature(function, 0)}`\n", _paragraphs(function.__doc__ or "") + "\n"]
    lines += [
        "`divide` and `iterate` accept all task options except `rank`, and these options:\n",
        *_options(BALANCING_OPTIONS, tuple(BALANCING_OPTIONS)),
        "",
    ]
    lines += [
        "## Task options\n",
        "`Executor(...)`, `run.options(...)`, `run.work`, `run.executable` and `tasks.add` take these keywords:\n",
    ]
    lines += [*_options(TASK_OPTIONS, TASK_KEYWORDS), "", "Executables also take these keywords:\n"]
    lines += [*_options(EXECUTABLE_OPTIONS, tuple(name for name in EXECUTABLE_KEYWORDS if name not in TASK_KEYWORDS)), ""]
    lines += ["## Errors\n", "All errors have the attributes `hint` (a suggestion) and `code` (an argument of `pilotfish explain`).\n"]
    lines += ["| error | code | meaning |", "|---|---|---|"]
    for cls in sorted(errors, key=lambda cls: (str(cls.code), len(cls.__mro__))):
        bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__ if base is not Exception)
        lines.append(f"| `{cls.__name__}`{f' (a {bases})' if bases else ''} | {cls.code} | {_prose(cls.__doc__ or '')} |")
    return "\n".join(lines) + "\n"


def _options(told: dict[str, str], known: tuple[str, ...]) -> list[str]:
    assert tuple(told) == known, f"options are {known}, documented are {tuple(told)}"
    return ["| option | meaning |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in told.items())]


def _constructor(cls: type) -> list[str]:
    own = cls.__dict__.get("__init__")
    if own is None or cls in (Submitter, TaskFuture, TaskList, BalanceReport, Iteration):
        return []
    return [f"`{cls.__name__}{_signature(own)}`\n"]


def _signature(function: Callable[..., object], first: int = 1) -> str:
    """Returns the parameters with their defaults, without types and without ``self``."""
    parameters = list(inspect.signature(function).parameters.values())[first:]
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(bare))


def _members(cls: type) -> list[str]:
    lines = []
    texts = _attribute_texts(cls)
    inherited = [base for base in (Submitter, OrderedMap) if issubclass(cls, base)]
    members = {name: member for owner in dict.fromkeys((cls, *inherited)) for name, member in vars(owner).items()}
    names = [*dict.fromkeys([*getattr(cls, "__struct_fields__", ()), *texts, *members])]
    for name in names:
        member, key = members.get(name), f"{cls.__name__}.{name}"
        member = member.__func__ if isinstance(member, classmethod) else member
        if name.startswith("_") or (key in MEMBERS and not MEMBERS[key]):
            continue
        text = MEMBERS.get(key) or texts.get(name) or _prose(getattr(member, "__doc__", "") or "" if _has_own_text(member) else "")
        assert text, f"{key} has no description"
        lines.append(f"- `{name}{_signature(member) if inspect.isfunction(member) else ''}`: {text}")
    return lines


def _has_own_text(member: object) -> bool:
    return inspect.isfunction(member) or isinstance(member, property)


def _attribute_texts(cls: type) -> dict[str, str]:
    """Reads the strings below attributes, in the class and in its methods."""
    tree = ast.parse(inspect.getsource(cls))
    body = tree.body[0].body  # type: ignore[attr-defined]
    texts: dict[str, str] = {}
    for statements in (body, *(node.body for node in body if isinstance(node, ast.FunctionDef))):
        for field, text in itertools.pairwise(statements):
            if isinstance(field, (ast.Assign, ast.AnnAssign)) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                target = field.target if isinstance(field, ast.AnnAssign) else field.targets[0]
                texts[ast.unparse(target).removeprefix("self.")] = _prose(str(text.value.value))
    return texts


def _paragraphs(text: str) -> str:
    """Joins the lines of each paragraph and of each list item."""
    return "\n\n".join("\n".join(map(_prose, re.split(r"\n(?=- )", part))) for part in inspect.cleandoc(text).split("\n\n"))


def _prose(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _picture(key: str) -> Callable[[], str]:
    return lambda: state_picture(key)


GENERATED: dict[str, Callable[[], str]] = {
    "reference/cli.md": command_page,
    "reference/settings.md": settings_page,
    "reference/sites.md": site_page,
    "reference/errors.md": error_page,
    "reference/python.md": python_page,
    "reference/states.md": state_page,
    "explanation/decisions/index.md": decision_page,
    **{f"reference/states-{key}.svg": _picture(key) for key in LIFECYCLES},
}


def main() -> None:
    for name, make in GENERATED.items():
        (HERE / name).write_text(make())


if __name__ == "__main__":
    main()
