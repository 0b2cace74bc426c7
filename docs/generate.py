"""Writes the pages of the reference that are made from the code: ``python docs/generate.py``."""

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
from pilotfish.api.run import Run, Submitter
from pilotfish.applications.application_manager import ApplicationManager, ApplicationWorker, TaskDone
from pilotfish.applications.executable import Completed
from pilotfish.applications.executable_encoder import EXECUTABLE_KNOWN
from pilotfish.applications.task_list import TaskList
from pilotfish.applications.task_options import KNOWN
from pilotfish.cli.main import SECTIONS
from pilotfish.cli.main import pilotfish as command_group
from pilotfish.cli.terminal.error_messages import CAUSES, EXPLANATIONS
from pilotfish.config import QUANTITIES, SITE_KEYS
from pilotfish.model import settings, site, states
from pilotfish.model.settings import PoolSettings

HERE = Path(__file__).parent
NOTE = "<!-- Written by docs/generate.py; do not edit. -->\n\n"

STEP_X = 130
BOX_WIDTH = 96
BOX_HEIGHT = 32
MARGIN = 20


def command_page() -> str:
    """Every command and option, from the commands themselves."""
    lines = [NOTE + "# Commands\n", "What `pilotfish COMMAND --help` says. Every listing has `--json`.\n"]
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
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    paragraphs = [_paragraph(part) for part in text.split("\n\n")]
    path = context.command_path.removeprefix("pilotfish ")
    lines = [f"### {path}\n", f"`pilotfish {path} {usage}`\n", "\n\n".join(paragraphs) + "\n"]
    rows = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
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
    """Examples in a help text, one per line, become a list of commands."""
    lines = part.splitlines()
    if all("pilotfish " in line for line in lines):
        return "\n".join(f"- `{' '.join(line.split())}`" for line in lines)
    return " ".join(lines).replace("{", "`{").replace("}", "}`")


def settings_page() -> str:
    """The settings, from the structure that holds them."""
    lines = [
        NOTE + "# Settings\n",
        "One file, `config.toml` in `PILOTFISH_HOME`, with one table, `[pool]`. All settings have defaults; a misspelt one is an error"
        " that names the nearest.\n",
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
    lines += ["", "Tasks find these in their environment:\n", "| variable | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in TASK_VARIABLES.items()]
    return "\n".join(lines) + "\n"


SITE_TESTS = {
    "slurm": "A real Slurm of several nodes in `make test`, through ssh as an ordinary user; recorded answers of 22.05.",
    "sge": "A real Grid Engine 8.1.9 in `make test`, likewise; recorded answers.",
    "htcondor": "A real HTCondor 23.9 pool in `make test`, likewise; recorded answers.",
    "ssh": "A real OpenSSH server and an ordinary user in `make test`.",
    "arc": "Recorded answers in `make test`; a real ARC 6.17 computing element in `make test-all`.",
    "pbs": "Recorded answers of OpenPBS 23.06 only; Torque from its documentation. Neither runs where the tests run.",
    "kubernetes": "Recorded answers of Kubernetes 1.34 only: no cluster runs where the tests run.",
    "lsf": "Answers written from its documentation only: it cannot be had where the tests run.",
}
"""What is claimed of a backend is what was seen."""


def site_page() -> str:
    """The keys of a site, from the structure that holds them."""
    lines = [
        NOTE + "# Sites\n",
        "One file, `sites.toml` in `PILOTFISH_HOME`, for all pools, with one table per site; its name is that of the site. Only `backend`"
        " is needed. `pilotfish site add` and `pilotfish site set` write it, and leave alone what they do not change. You may as well edit"
        " it: a master reads it when it starts, and whenever one of these commands or `pilotfish run --site` asks it to. A misspelt key is"
        " an error that names the nearest. How to use it: [Use a cluster](../how-to/use-a-cluster.md).\n",
        "```text\n" + SITE_EXAMPLE + "```\n",
        'Durations are written like `"90s"` or `"1h30m"`, sizes like `"8G"`.\n',
        "| key | default | meaning |",
        "|---|---|---|",
    ]
    meanings = {**SITE_TEXTS, **_field_texts(site, "Site")}
    for key, field in zip(SITE_KEYS, msgspec.structs.fields(site.Site), strict=True):
        lines.append(f"| `{key}` | {_site_default(key, field)} | {_prose(meanings[field.name])} |")
    lines += ["", "Under `options` is what only one kind of backend knows:\n", "| backend | option | meaning |", "|---|---|---|"]
    lines += [f"| {backend} | `{name}` | {text} |" for backend, options in SITE_OPTIONS.items() for name, text in options.items()]
    lines += ["", "## How each backend is tested\n", "| backend | against |", "|---|---|"]
    lines += [f"| {backend} | {text} |" for backend, text in SITE_TESTS.items()]
    return "\n".join(lines) + "\n"


def _site_default(key: str, field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "(needed)"
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
    "gpus": "GPUs of one pilot on each node.",
    "submissions_per_minute": "So many submissions a minute at most, after a first few; 0 sets no limit.",
    "commands_at_once": "So many of its commands run at the same time.",
}
SITE_OPTIONS = {
    "all with `via` or `hosts`": {"ssh_config": "A configuration file for ssh instead of your own."},
    "slurm": {"accounting": "`no`: sacct need not be asked, because no accounts are kept."},
    "sge": {
        "pe": "The parallel environment for several cores on one machine. Default: `smp`.",
        "memory_resource": "What memory is called there; `none` asks for no memory. Default: `h_vmem`.",
        "gpu_resource": "What GPUs are called there. Default: `gpu`.",
        "account_flag": "`-A` if `account` is an account and not a project. Default: `-P`.",
    },
    "pbs": {"flavour": "`openpbs` or `torque`. Default: `openpbs`."},
    "kubernetes": {
        "image": "The image of the container. Needed; it must have a Python.",
        "namespace": "Where Jobs and Secrets are made.",
        "context": "The context of the configuration.",
        "kubeconfig": "The configuration file.",
        "pull_policy": "When the image is pulled.",
        "service_account": "The service account of the Pods.",
        "node_selector": "`name=value,...`: labels of the nodes.",
        "run_as": "The number of the user in the container.",
        "gpu": "What GPUs are called there. Default: `nvidia.com/gpu`.",
        "pod": "A JSON object with more fields for the Pod's `spec`.",
    },
    "arc": {
        "endpoint": "The address of the element, such as `https://ce.example.org:443/arex`. Needed.",
        "proxy": "The file of the proxy certificate. Default: `$X509_USER_PROXY`, or where proxies are put.",
        "capath": "The folder of the authorities' certificates.",
        "cacert": "A file of them instead.",
    },
}

VARIABLES = {
    "PILOTFISH_HOME": "Where pools, journals and settings live. Default: `$XDG_STATE_HOME/pilotfish`, or `~/.local/state/pilotfish`.",
    "PILOTFISH_POOL": "The pool that commands use when `--pool` is not given. Default: `default`.",
    "NO_COLOR": "Any value switches colours off.",
}
TASK_VARIABLES = {
    "PILOTFISH_TASK": "The task's name, `RUN.INDEX`.",
    "PILOTFISH_ATTEMPT": "Which try this is, from 1.",
    "PILOTFISH_CORES": "How many cores it was given. `OMP_NUM_THREADS` is the same unless it was set.",
    "PILOTFISH_NODES": "How many nodes it has; only with `--nodes`.",
    "PILOTFISH_HOSTFILE": "A file with one line for each of them, as `mpirun --hostfile` reads it; only with `--nodes`.",
    "PILOTFISH_DEADLINE": "When its time is up, in seconds since 1970; only with a time limit.",
    "PILOTFISH_ENDS_AT": "When its worker ends, in seconds since 1970; only where that is known, as in a batch job.",
    "PILOTFISH_WORKER": "The worker it runs on.",
}


def _field_texts(module: object, name: str) -> dict[str, str]:
    """The strings below the fields of a class."""
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    texts: dict[str, str] = {}
    for field, text in zip(found.body, found.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            texts[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return texts


def error_page() -> str:
    lines = [NOTE + "# Error codes\n", "What `pilotfish explain CODE` says.\n", "| code | meaning | what helps |", "|---|---|---|"]
    for code, explanation in sorted(EXPLANATIONS.items()):
        lines.append(f"| {code} | {explanation.meaning} | {', '.join(f'`{command}`' for command in explanation.commands)} |")
    lines += ["", "## Causes of failures\n", "They stand in brackets behind what happened to a task.\n", "| cause | meaning |", "|---|---|"]
    lines += [f"| {cause} | {meaning} |" for cause, meaning in CAUSES.items()]
    return "\n".join(lines) + "\n"


LIFECYCLES = {
    "task": (states.TASK_STATES, states.TASK_MEANING, states.TASK_STEPS, "Tasks"),
    "worker": (states.WORKER_STATES, states.WORKER_MEANING, states.WORKER_STEPS, "Workers"),
    "pilot": (states.PILOT_STATES, states.PILOT_MEANING, states.PILOT_STEPS, "Pilots"),
}


def state_page() -> str:
    lines = [NOTE + "# States\n", "Every change of state is a step in one of these tables; anything else is refused.\n"]
    for key, (names, meanings, steps, title) in LIFECYCLES.items():
        lines += [f"## {title}\n", f"![The states of a {key}](states-{key}.svg)\n", "| state | meaning | next |", "|---|---|---|"]
        for number, name in enumerate(names):
            lines.append(f"| {name} | {meanings[name]} | {', '.join(names[after] for after in steps[number]) or 'none: it is final'} |")
        lines.append("")
    return "\n".join(lines)


def state_picture(key: str) -> str:
    """States in a row, steps forward as arcs above, steps back as arcs below."""
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
        "What was decided, why, and what it costs. One page each; a decision that is changed gets a new page.\n",
    ]
    for page in sorted((HERE / "explanation" / "decisions").glob("0*.md")):
        title = page.read_text().splitlines()[0].removeprefix("# ")
        lines.append(f"- [{title}]({page.name})")
    return "\n".join(lines) + "\n"


# --- the Python interface -------------------------------------------------------------------------------------------------------------

# Whose members are told, in this order, with what a person should know first.
CLASSES: dict[type, str] = {
    Executor: "Everything that a `concurrent.futures.Executor` has; `with` ends it.",
    Run: "Belongs to the pool that the command line shows, and outlives the program. `with` closes it.",
    Submitter: "What `run.options(...)` gives.",
    TaskFuture: "What `submit` gives. Everything that a `concurrent.futures.Future` has, and:",
    ExecutableFuture: "What `executable` gives. All of the above, and:",
    Completed: "The result of an executable.",
    BalanceReport: "What `divide` and `iterate` return; it prints as a table.",
    Iteration: "One of a report's `iterations`.",
    ApplicationManager: "For run files that decide while they run; see the [tutorial](../tutorials/applications.md).",
    ApplicationWorker: "Does what a manager asks for with `tasks.work`.",
    TaskList: "The `tasks` of a run file and of a manager.",
    TaskDone: "What a manager is told of a task that ended.",
}
# For members whose meaning the code does not say below them.
MEMBERS = {
    "Executor.submit": "A call as a task. What cannot be pickled is raised by the future's `result()`.",
    "Run.id": "Its number, as the command line knows it.",
    "Run.uid": "By this `Run(uid=...)` finds it again.",
    "TaskFuture.stdout": "What the task printed, once it has ended.",
    "TaskFuture.stderr": "What it wrote to the standard error output.",
    "TaskFuture.cancel": "Works until the task has been seen running; whether it did.",
    "TaskList.specs": "",
    "TaskList.take": "",
    "TaskFuture.add_done_callback": "",
    "TaskFuture.began": "",
    "TaskFuture.ended": "",
    "Completed.exit": "The exit status; None if a signal ended it.",
    "Completed.signal": "The number of the signal that ended it, or None.",
    "Completed.stdout": "What it wrote, as bytes; `text` is the same as text.",
    "Completed.stderr": "What it wrote to the standard error output.",
    "Completed.files": "Its output files by name; each has `name`, `size`, `mode` and `content`, and can be an input of another task. One"
    " that was kept has no `content` here.",
    "Completed.stdout_dropped": "How many bytes in the middle were left out, because there were more than `output_cap`.",
    "Completed.stderr_dropped": "The same for the standard error output.",
    "TaskDone.index": "Its place in the run, from 0.",
    "TaskDone.state": "`done`, `failed` or `cancelled`.",
    "TaskDone.value": "What it returned; of an executable, a `Completed`.",
    "TaskDone.error": "The exception if it failed, else None.",
    "TaskDone.usage": "`wall_us`, `cpu_us` and `rss_kib`: time and memory it took.",
}
TASK_OPTIONS = {
    "name": "what it is called in listings",
    "cores": 'how many cores: `2`, `0.5`, or a range such as `"1-4"`; default 1',
    "nodes": "on how many nodes of one pilot at the same time, each with all that it asks for; default 1",
    "memory": 'how much memory at most, such as `"2 GiB"`',
    "gpus": "how many GPUs",
    "resources": 'what else a worker must offer: `{"licence": 1}`',
    "time": 'for how long at most: `90`, `"1h30m"`, a `timedelta`',
    "retries": "how often it is tried again when it fails; default 0",
    "losses": "how often it is tried again when its worker dies; default 10",
    "priority": "higher goes first; default 0",
    "tags": 'which workers it may go to: `{"disk": "fast"}`',
    "requirement": 'only on workers for which this holds, such as `"memory >= 8G"`: see [expressions](expressions.md)',
    "rank": 'rather on workers for which this is larger, such as `"cores"`',
}
EXECUTABLE_OPTIONS = {
    "inputs": "files and directories to bring along: a list, or a table of names and paths; instead of a path, also a file that"
    " another task left",
    "outputs": "files, directories or patterns to bring back",
    "keep": "the same for what stays with the worker, for tasks that need it",
    "stdin": "what it reads: bytes or text",
    "env": "environment variables to set",
    "cwd": "the directory to run in",
    "sandbox": "`True`: in a fresh directory; the default with `inputs`, `outputs` or `keep`",
    "shell": "`True`: the first word is a script for `sh`, the others are its arguments",
    "output_cap": 'how much of what it writes is kept, head and tail, such as `"1 MiB"`; default 16 MiB',
    "warn_signal": 'sent to it shortly before its worker ends, such as `"USR1"`; default: none, for it ends who does not expect it',
}


def python_page() -> str:
    """The classes that a program imports, from their docstrings."""
    errors = [cls for cls in map(package.__getattr__, package._HOMES) if isinstance(cls, type) and issubclass(cls, Exception)]
    missing = set(package.__all__) - {"__version__"} - {cls.__name__ for cls in (*CLASSES, *errors, divide, iterate)}
    assert not missing, f"exported, but not told of: {missing}"
    lines = [
        NOTE + "# Python\n",
        "`from pilotfish import ...` has all of these but for `Submitter`, `Iteration`, `TaskList` and `TaskDone`, which you are given. How"
        " to use them: [Pilotfish from Python](../tutorials/python.md).\n",
    ]
    for cls, first in CLASSES.items():
        lines += [f"## {cls.__name__}\n", *_constructor(cls), _prose(cls.__doc__ or "") + "\n", first + "\n", *_members(cls), ""]
    lines += ["## divide and iterate\n", "Work that can be cut anywhere: see [how to](../how-to/divisible.md).\n"]
    for function in (divide, iterate):
        lines += [f"`{function.__name__}{_signature(function, 0)}`\n", _prose(function.__doc__ or "") + "\n"]
    lines += ["Besides the options of a task, but for `rank`:\n", *_options(BALANCING_OPTIONS, tuple(BALANCING_OPTIONS)), ""]
    lines += ["## Options of a task\n", "Keywords of `Executor(...)`, `run.options(...)`, `run.work`, `run.executable` and `tasks.add`:\n"]
    lines += [*_options(TASK_OPTIONS, KNOWN), "", "Executables also take:\n"]
    lines += [*_options(EXECUTABLE_OPTIONS, tuple(name for name in EXECUTABLE_KNOWN if name not in KNOWN)), ""]
    lines += ["## Errors\n", "All have `hint`, which says what to do now, and `code`, which `pilotfish explain` explains.\n"]
    lines += ["| error | code | meaning |", "|---|---|---|"]
    for cls in sorted(errors, key=lambda cls: (str(cls.code), len(cls.__mro__))):
        bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__ if base is not Exception)
        lines.append(f"| `{cls.__name__}`{f' (a {bases})' if bases else ''} | {cls.code} | {_prose(cls.__doc__ or '')} |")
    return "\n".join(lines) + "\n"


def _options(told: dict[str, str], known: tuple[str, ...]) -> list[str]:
    assert tuple(told) == known, f"options are {known}, told are {tuple(told)}"
    return ["| option | meaning |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in told.items())]


def _constructor(cls: type) -> list[str]:
    own = cls.__dict__.get("__init__")
    if own is None or cls in (Submitter, TaskFuture, TaskList, BalanceReport, Iteration):
        return []
    return [f"`{cls.__name__}{_signature(own)}`\n"]


def _signature(function: Callable[..., object], first: int = 1) -> str:
    """The parameters with their defaults; types would drown them. That of a method begins behind ``self``."""
    parameters = list(inspect.signature(function).parameters.values())[first:]
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(bare))


def _members(cls: type) -> list[str]:
    lines = []
    texts = _attribute_texts(cls)
    names = [*dict.fromkeys([*getattr(cls, "__struct_fields__", ()), *texts, *vars(cls)])]
    for name in names:
        member, key = vars(cls).get(name), f"{cls.__name__}.{name}"
        if name.startswith("_") or (key in MEMBERS and not MEMBERS[key]):
            continue
        text = MEMBERS.get(key) or texts.get(name) or _prose(getattr(member, "__doc__", "") or "" if _has_own_text(member) else "")
        assert text, f"{key} says nothing of itself"
        lines.append(f"- `{name}{_signature(member) if inspect.isfunction(member) else ''}`: {text}")
    return lines


def _has_own_text(member: object) -> bool:
    return inspect.isfunction(member) or isinstance(member, property)


def _attribute_texts(cls: type) -> dict[str, str]:
    """The strings below attributes, in the class and in its constructor."""
    tree = ast.parse(inspect.getsource(cls))
    body = tree.body[0].body  # type: ignore[attr-defined]
    texts: dict[str, str] = {}
    for statements in (body, *(node.body for node in body if isinstance(node, ast.FunctionDef) and node.name == "__init__")):
        for field, text in itertools.pairwise(statements):
            if isinstance(field, (ast.Assign, ast.AnnAssign)) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                target = field.target if isinstance(field, ast.AnnAssign) else field.targets[0]
                texts[ast.unparse(target).removeprefix("self.")] = _prose(str(text.value.value))
    return texts


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
