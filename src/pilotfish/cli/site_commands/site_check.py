"""Checks a site step by step, from its configuration to a test pilot. Each problem is printed with its fix."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from collections.abc import Callable

from pilotfish import plugins
from pilotfish.backends.interface import Backend, Command, CommandOutput, CommandRefused, UnclearAnswer
from pilotfish.backends.pilot_script import PYTHONS
from pilotfish.cli.site_commands.site_dry_run import as_typed, destinations, runner_of, with_environment
from pilotfish.cli.site_commands.site_keys import table_of, without_values
from pilotfish.cli.site_commands.test_pilot import CHECK, check_pilot
from pilotfish.cli.terminal.check_results import BAD, DOUBTFUL, GOOD, MIN_DESCRIPTORS, MIN_PROCESSES, CheckResult, judge_space, show_check
from pilotfish.cli.terminal.interruptible_wait import InterruptibleWait
from pilotfish.cli.terminal.screen import Screen, clean, duration, plural, size
from pilotfish.client.pools import is_served
from pilotfish.client.sites_file import sites_path
from pilotfish.config import make_site
from pilotfish.errors import BadInput
from pilotfish.master.sites import site_files
from pilotfish.master.sites.command_runner import CommandRunner
from pilotfish.model.quantities import parse_seconds
from pilotfish.model.site import Site
from pilotfish.store.pool_directory import pool_home

Note = Callable[[CheckResult], None]

TIMEOUT_S = 30.0
OLDEST_AGENT = (3, 8)
SKEW_S = 5.0
MISSING = (126, 127)
UNKNOWN_BATCH = "pf-00000000-0"
"""Name of a pilot batch that never existed."""

PROBE = """\
cd "$1" || exit 1
df -Pk . | awk 'NR > 1 { print "space", $(NF - 2) }'
df -Pi . 2>/dev/null | awk 'NR > 1 { print "inodes", $(NF - 2) }'
echo "files $(ulimit -n)"
echo "processes $( (ulimit -u) 2>/dev/null || (ulimit -p) 2>/dev/null)"
if command -v quota >/dev/null 2>&1; then quota 2>/dev/null | sed 's/^/quota /'; fi
exit 0
"""
FIND_PYTHON = f"""
good='import sys; print("python", "%d.%d.%d" % sys.version_info[:3], sys.executable); sys.exit(sys.version_info < (3, 8))'
if [ -n "$PILOTFISH_PYTHON" ]; then
  "$PILOTFISH_PYTHON" -c "$good" 2>/dev/null >&3 && exit 0
  echo "not $PILOTFISH_PYTHON" >&3
fi
for python in {PYTHONS}; do
  "$python" -c "$good" 2>/dev/null >&3 && exit 0
done
exit 1
"""
"""Shell script that looks for Python in the same way as ``start.sh``, and prints each Python that it tries."""


def check_site(name: str, *, no_pilot: bool, timeout: str, pool: str, as_json: bool) -> int:
    """Check the site and print each result. Return the exit status: 0 if no check failed and the user did not press Ctrl-C."""
    screen = Screen.of()
    timeout_s = parse_seconds(timeout, "--timeout")
    results: list[CheckResult] = []

    def note(result: CheckResult) -> None:
        results.append(result)
        if not as_json:
            show_check(screen, result)

    site = _check_description(name, note)
    waiting = InterruptibleWait(quiet=as_json)
    if site is not None:
        asyncio.run(_run_checks(name, site, pool, note))
        if not no_pilot and not _count_bad(results):
            with waiting:
                note(check_pilot(name, site, pool, timeout_s, waiting))
    bad = _count_bad(results)
    if as_json:
        screen.json({"site": name, "bad": bad, "findings": [result.as_data() for result in results]})
    else:
        screen.line(_summary(name, results))
    return waiting.status or (1 if bad else 0)


def _count_bad(results: list[CheckResult]) -> int:
    return sum(result.state == BAD for result in results)


def _summary(name: str, results: list[CheckResult]) -> str:
    doubtful = [result.check for result in results if result.state == DOUBTFUL]
    if _count_bad(results):
        return f"{plural(_count_bad(results), 'thing')} to fix."
    if CHECK in doubtful:
        return f"No check failed, but it is unknown whether pilots work at {clean(name)}."
    return f"No check failed, but these are doubtful: {', '.join(doubtful)}." if doubtful else "All checks passed."


def _check_description(name: str, note: Note) -> Site | None:
    path = sites_path()
    table = table_of(name, path)
    try:
        site = make_site(name, table, str(path))
    except BadInput as error:
        note(CheckResult("description", BAD, str(error), error.hint))
        return None
    real = path.resolve()  # sites.toml can be a symbolic link: the modes of its target matter
    if site.environment and real.stat().st_mode & 0o044 and real.parent.stat().st_mode & 0o011:
        note(CheckResult("description", DOUBTFUL, f"others may read {real} and the values of its variables", f"chmod 600 {real}"))
    elif site.paused:
        note(CheckResult("description", DOUBTFUL, "is valid, but the site is paused", f"pilotfish site resume {name}"))
    else:
        note(CheckResult("description", GOOD, f"{site.backend}, in {path}"))
    return site


async def _run_checks(name: str, site: Site, pool: str, note: Note) -> None:
    """Run all checks except the test pilot. If a machine cannot be reached, skip the remaining checks."""
    runner = runner_of(name, site, pool)
    try:
        reached = [await _check_reach(runner, place, note) for place in destinations(site)]
        if not all(reached):
            return
        if not destinations(site):
            note(CheckResult("reach", GOOD, "its commands are run on this machine"))
        await _check_programs(runner, note)
        await _check_answer(runner, note)
        for host in site.hosts or ("",):
            await _check_place(runner, host, note)
    finally:
        # A running master possibly uses the connections that were opened here, so they stay open. An idle connection closes by itself.
        if not is_served(pool_home(pool).directory):
            await runner.close()


async def _ask(runner: CommandRunner, at: str, *argv: str, stdin: str = "") -> CommandOutput:
    return await runner.run(Command(argv, stdin, at, TIMEOUT_S))


async def _check_reach(runner: CommandRunner, place: str, note: Note) -> bool:
    began = time.monotonic()
    at = place if place != runner.site.via else ""
    answer = await _ask(runner, at, "true")
    took_s = time.monotonic() - began
    if answer.status == 0:
        note(CheckResult("reach", GOOD, f"ssh to {place} answers in {duration(took_s)}"))
        return True
    needed = runner.login_needed
    fix = f"pilotfish site login {runner.name}" if needed else f"Try it by hand: ssh {shlex.quote(place)} true"
    note(CheckResult("reach", BAD, f"ssh to {place}: {needed or answer.complaint()}", fix))
    return False


async def _check_programs(runner: CommandRunner, note: Note) -> None:
    """Check which commands exist. Each command is run with a harmless argument, such as ``--version``."""
    site = runner.site
    kind = plugins.traits(site.backend)
    programs = (*kind.programs, *kind.helpers)
    at = site.hosts[0] if site.hosts else ""
    answers = await asyncio.gather(*(_ask(runner, at, program, kind.harmless_word) for program in programs))
    missing = [program for program, answer in zip(programs, answers, strict=True) if answer.status in MISSING]
    if any(program in kind.programs for program in missing):
        where = at or site.via or "this machine"
        fix = f"Find out where they are on {where}, and set it: pilotfish site set {runner.name} environment.PATH=/opt/bin:/usr/bin:/bin"
        if not destinations(site):
            fix = f"If they are on a login node, name it: pilotfish site set {runner.name} via=login.example.org"
        note(CheckResult("commands", BAD, f"not on {where}: {', '.join(missing)}", fix))
        return
    found = ", ".join(program for program in programs if program not in missing)
    note(CheckResult("commands", GOOD, found + "".join(f"; no {program}: {kind.helpers[program]}" for program in missing)))


async def _check_answer(runner: CommandRunner, note: Note) -> None:
    """Check that the batch system answers: search for a pilot batch that does not exist."""
    backend: Backend = plugins.load("backends", runner.site.backend)()
    for exchange in backend.find(runner.site, UNKNOWN_BATCH):
        began = time.monotonic()
        try:
            exchange.read(await runner.run(exchange.command))
        except (UnclearAnswer, CommandRefused) as problem:
            command = with_environment(without_values(runner.site), exchange.command)
            typed = as_typed(runner.site, command).partition("\n")[0]
            note(CheckResult("answers", BAD, f"its jobs cannot be listed: {problem}", f"Try it by hand: {typed}"))
            return
        took_s = time.monotonic() - began
    note(CheckResult("answers", GOOD, f"the queue is listed in {duration(took_s)}"))


async def _check_place(runner: CommandRunner, host: str, note: Note) -> None:
    """Check the machine on which the files of the pilots are stored: its disk space, limits, clock and Python."""
    suffix = f" of {host}" if host and len(runner.site.hosts) > 1 else ""
    try:
        exchange = site_files.absolute_folder(runner.site.folder, host)
        folder = exchange.read(await runner.run(exchange.command))
    except (UnclearAnswer, CommandRefused) as problem:
        fix = f"Choose another: pilotfish site set {runner.name} folder=/scratch/$USER/pilotfish"
        note(CheckResult(f"folder{suffix}", BAD, f"{runner.site.folder} cannot be made: {problem}", fix))
        return
    answer = await _ask(runner, host, "sh", "-c", PROBE, "sh", folder)
    values = dict(line.partition(" ")[::2] for line in answer.stdout.splitlines())
    note(_check_space(f"folder{suffix}", folder, values, runner.name))
    note(_check_limits(f"limits{suffix}", values))
    note(await _check_clock(runner, host, f"clock{suffix}"))
    note(await _check_python(runner, host, f"python{suffix}"))


def _check_space(check: str, folder: str, values: dict[str, str], name: str) -> CheckResult:
    free = int(values["space"]) * 1024 if values.get("space", "").isdigit() else None
    inodes = int(values["inodes"]) if values.get("inodes", "").isdigit() else None
    text = f"{folder}, {size(free) if free else 'an unknown amount' if free is None else '0 B'} free"
    text += f", {inodes:,} inodes free" if inodes else ""
    fix = f"Free some space there, or choose another place: pilotfish site set {name} folder=/scratch/$USER/pilotfish"
    if "*" in values.get("quota", ""):
        return CheckResult(check, DOUBTFUL, f"{text}; over quota: {values['quota'].strip()}", fix)
    state = judge_space(free, inodes)
    if state != GOOD:
        return CheckResult(check, state, text, fix)
    return CheckResult(check, GOOD, text + (f"; quota: {values['quota'].strip()}" if values.get("quota", "").strip() else ""))


def _check_limits(check: str, values: dict[str, str]) -> CheckResult:
    files, processes = values.get("files", ""), values.get("processes", "")
    text = f"open files {files or 'unknown'}, processes {processes or 'unknown'}"
    low = (files.isdigit() and int(files) < MIN_DESCRIPTORS // 4) or (processes.isdigit() and int(processes) < MIN_PROCESSES)
    if low:
        return CheckResult(check, DOUBTFUL, f"{text}: low for many tasks", "Ask its administrator, or use fewer cores per pilot.")
    return CheckResult(check, GOOD, text)


async def _check_clock(runner: CommandRunner, host: str, check: str) -> CheckResult:
    before = time.time()
    answer = await _ask(runner, host, "date", "+%s")
    after = time.time()
    output = answer.stdout.split()
    if not output or not output[-1].isdigit():
        return CheckResult(check, DOUBTFUL, f"it could not be read: {answer.complaint()}", "Try it by hand: date +%s")
    there = int(output[-1])
    # ``date`` prints whole seconds. It ran at an unknown time between ``before`` and ``after``.
    skew_s = there - after if there > after else min(0.0, there + 1 - before)
    if abs(skew_s) > SKEW_S:
        ahead = "ahead of" if skew_s > 0 else "behind"
        text = f"{duration(abs(skew_s))} {ahead} this machine's: times in logs will not agree"
        return CheckResult(check, DOUBTFUL, text, "Set the wrong one: timedatectl set-ntp true")
    return CheckResult(check, GOOD, "agrees with this machine's")


async def _check_python(runner: CommandRunner, host: str, check: str) -> CheckResult:
    """Run the site's ``setup`` lines, then look for Python in the same way as a pilot. The nodes possibly have a different Python. The test
    pilot reports that one."""
    site = runner.site
    chosen = [f"PILOTFISH_PYTHON={shlex.quote(site.python)}"] if site.python else []
    answer = await _ask(runner, host, "sh", "-s", stdin="\n".join(["exec 3>&1 >&2", *site.setup, *chosen, FIND_PYTHON]))
    tried = re.findall(r"^python ((\d+)\.(\d+)\.\d+ .*)$", answer.stdout, re.MULTILINE)
    found = next((version[0] for version in tried if (int(version[1]), int(version[2])) >= OLDEST_AGENT), "")
    refused = re.search(r"^not (.*)$", answer.stdout, re.MULTILINE)
    fix = (
        f"pilotfish site set {runner.name} python=/path/to/python3, or load it: pilotfish site set {runner.name} 'setup=module load python'"
    )
    state = BAD if site.backend == "ssh" else DOUBTFUL
    if not tried:
        nothing_found = f"neither {refused[1]}, which was named, nor another one" if refused else "none"
        return CheckResult(check, state, f"{nothing_found} was found where its commands run; its nodes may have one", fix)
    if not found:
        return CheckResult(check, state, f"{tried[0][0]} is too old for an agent", fix)
    if refused:
        change = f"pilotfish site set {runner.name} python="
        fix = f"Name another one: {change}/path/to/python3; or have one searched: {change}"
        elsewhere = "" if site.backend == "ssh" else " where its commands run; its nodes may have it"
        text = f"{refused[1]}, which was named, does not work{elsewhere}; otherwise {found} is used"
        return CheckResult(check, DOUBTFUL, text, fix)
    return CheckResult(check, GOOD, found)
