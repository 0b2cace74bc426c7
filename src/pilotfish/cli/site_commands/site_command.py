"""Implements the subcommands of site. Some subcommands change ``sites.toml``. Users can also edit this file themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from pilotfish import plugins
from pilotfish.cli.completions import complete_site, complete_site_key
from pilotfish.cli.shared_options import json_option, old_option, pool_option, timeout_option
from pilotfish.cli.site_commands import site_keys
from pilotfish.cli.site_commands.site_requests import notify_masters
from pilotfish.cli.site_commands.sites_command import show_invalid_sites
from pilotfish.cli.terminal.error_messages import SuggestingGroup
from pilotfish.cli.terminal.screen import Column, Screen, clean
from pilotfish.client.descriptions.site_selection import find_site
from pilotfish.client.sites_file import Table, editing, sites_path, write_site
from pilotfish.config import SITE_KEYS, make_site, read_sites, read_tables
from pilotfish.errors import BadInput
from pilotfish.model.quantities import show_seconds
from pilotfish.model.site import Site

LIST_COLUMNS = (
    Column("SITE", lambda row: row[0]),
    Column("BACKEND", lambda row: row[1].backend),
    Column("VIA", lambda row: row[1].via or ", ".join(row[1].hosts) or "-", elastic=True),
    Column("QUEUE", lambda row: row[1].queue or "-", elastic=True),
    Column("MAX PILOTS", lambda row: row[1].max_pilots, right=True),
    Column("CORES", lambda row: row[1].cores or "-", right=True),
    Column("WALLTIME", lambda row: show_seconds(row[1].walltime_s) if row[1].walltime_s else "-", right=True),
    Column("NOTE", lambda row: "paused" if row[1].paused else "", elastic=True),
)
"""Columns of ``site list``. Each row is a pair: the name and the description of a site."""


class SiteGroup(SuggestingGroup):
    """A group that lists its subcommands in the order of their definition."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=SiteGroup)
def site() -> None:
    """Add, change and test sites.

    \b
    pilotfish site add hpc --backend slurm --via login.example.org --queue batch --cores 16 --walltime 2h
    pilotfish site test hpc
    pilotfish run --site hpc --param seed=1..100 -- ./simulate {seed}
    """


def _either(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


name_argument = click.argument("name", metavar="NAME", shell_complete=complete_site)


@site.command()
@click.argument("name", metavar="NAME")
@click.option("--backend", required=True, metavar="KIND", help=f"Backend: {_either(plugins.names('backends'))}.")
@click.option("--via", metavar="LOGIN", help="Login node for ssh.  [default: this machine]")
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="Host for the ssh backend. Repeatable.")
@click.option("--queue", metavar="QUEUE", help="Queue or partition.")
@click.option("--account", metavar="ACCOUNT", help="Account or project to charge.")
@click.option("--cores", metavar="N", help="Cores per node of a pilot.  [default: as many as the tasks need]")
@click.option("--nodes", metavar="N", help="Nodes per pilot.  [default: 1]")
@click.option("--memory", metavar="SIZE", help="Memory per node of a pilot, such as 8G.")
@click.option("--gpus", metavar="N", help="GPUs per node of a pilot.")
@click.option("--walltime", metavar="DURATION", help="Walltime of a pilot, such as 2h.  [default: 1h]")
@click.option("--max-pilots", metavar="N", help="Maximum number of queued and running pilots together.  [default: 10]")
@click.option("--max-queued", metavar="N", help="Maximum number of queued pilots.  [default: 5]")
@click.option("--max-cores", metavar="N", help="Maximum number of cores of all pilots together.  [default: no limit]")
@click.option("--directive", "directives", multiple=True, metavar="TEXT", help="Extra batch directive: the text after #SBATCH. Repeatable.")
@click.option(
    "--setup", multiple=True, metavar="LINE", help="Shell line to run before the agent starts, such as 'module load python'. Repeatable."
)
@click.option("--python", metavar="PATH", help="Python on the nodes, 3.8 or later.  [default: first one found]")
@click.option("--folder", metavar="PATH", help="Directory for pilot files at the site.  [default: ~/.pilotfish]")
@click.option("--scratch", metavar="PATH", help="Directory for tasks on the nodes.  [default: the temporary directory of the node]")
@click.option("--tag", "tags", multiple=True, metavar="NAME=VALUE", help="Tag of the workers of the site. Repeatable.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="Backend-specific option. Repeatable.")
@click.option("--env", "environment", multiple=True, metavar="NAME=VALUE", help="Environment variable for the site's commands. Repeatable.")
@click.option("--reach", metavar="HOW", help="How agents connect to the master: direct, tunnel or auto.  [default: auto]")
@click.option("--address", metavar="HOST", help="Address at which the nodes reach this machine, for --reach direct.")
@click.option("--idle", metavar="DURATION", help="Release a pilot that had no tasks for this time; 0: never.  [default: 5m]")
@click.option("--poll-interval", "period", metavar="DURATION", help="Interval between queue polls; in sites.toml: period.  [default: 30s]")
@old_option("--period", "--poll-interval")
def add(name: str, **given: Any) -> None:
    """Add a site."""
    table = _table(name, given)
    checked = make_site(name, table, "site add")
    path = sites_path()
    with editing(path):
        if name in read_tables(path):
            raise BadInput(f"there is a site {name!r} already", f"Change it: pilotfish site set {name} KEY=VALUE; or choose another name")
        write_site(path, name, table)
    _notify_and_print(f"Site {clean(name)} is added: {_in_words(checked)}. Try it: pilotfish site test {clean(name)}")


def _table(name: str, given: dict[str, Any]) -> Table:
    """Convert the options of ``site add`` to the table that is written to ``sites.toml``."""
    table: Table = {}
    for key, value in given.items():
        if key in ("tags", "options", "environment"):
            found: Any = site_keys.pairs({"tags": "--tag", "options": "--option", "environment": "--env"}[key], value)
        elif isinstance(value, tuple):
            found = list(value)
        else:
            found = site_keys.read_value(name, key, value) if value is not None else None
        if found not in (None, [], {}):
            table[key] = found
    return {key: table[key] for key in SITE_KEYS if key in table}


def _in_words(described: Site) -> str:
    where = f" through {described.via}" if described.via else f" on {', '.join(described.hosts)}" if described.hosts else ""
    return clean(f"{described.backend}{where}")


@site.command("set")
@name_argument
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE...", shell_complete=complete_site_key)
def set_keys(name: str, changes: tuple[str, ...]) -> None:
    """Change keys of a site.

    \b
    pilotfish site set hpc walltime=4h max_pilots=20
    pilotfish site set hpc environment.SLURM_CONF=/etc/slurm/slurm.conf
    pilotfish site set hpc queue=

    An empty value restores the default. KEY is a key of sites.toml. Running pilots keep the old values.
    """
    shown = ", ".join(_edit(name, lambda table: site_keys.apply_changes(name, table, changes)))
    _notify_and_print(f"Site {clean(name)}: {clean(shown)}." if shown else f"Site {clean(name)} is unchanged.")


def _edit(name: str, change: Any) -> list[str]:
    """Change the table of a site in ``sites.toml``. Write nothing if the new table is not valid. Return a description of each change."""
    path = sites_path()
    with editing(path):
        before = site_keys.table_of(name, path)
        after = change(before) if isinstance(before, dict) else before
        described = make_site(name, after, str(path))
        if after != before:
            write_site(path, name, after)
    values = site_keys.shown(described)
    if described.environment:
        values["environment"] = f"{', '.join(described.environment)} (values are hidden)"
    return [f"{key} is now {values[key]}" for key in values if after.get(key) != before.get(key)]


@site.command()
@name_argument
def remove(name: str) -> None:
    """Remove a site; its running pilots finish their tasks."""
    path = sites_path()
    with editing(path):
        site_keys.table_of(name, path)
        write_site(path, name, None)
    _notify_and_print(f"Site {clean(name)} is removed.")


@site.command()
@name_argument
def pause(name: str) -> None:
    """Submit no more pilots to a site; running pilots continue."""
    _edit(name, lambda table: {**table, "paused": True})
    _notify_and_print(f"Site {clean(name)} is paused. Resume it: pilotfish site resume {clean(name)}")


@site.command()
@name_argument
def resume(name: str) -> None:
    """Submit pilots to a paused or held site again."""
    _edit(name, lambda table: {**table, "paused": False} if "paused" in table else table)
    masters = notify_masters(released=name)
    tried = " and is tried again" if masters else ""
    Screen.of().line(f"Site {clean(name)} may be used{tried}. See: pilotfish sites")


def _notify_and_print(sentence: str) -> None:
    notify_masters()
    Screen.of().line(sentence)


# --- inspection -----------------------------------------------------------------------------------------------------------------------


@site.command("list")
@json_option
def list_sites(as_json: bool) -> None:
    """List configured sites.

    To see the pilots and failures of sites, use: pilotfish sites
    """
    screen = Screen.of()
    found = read_sites(sites_path())
    if as_json:
        screen.json([site_keys.as_data(name, site) for name, site in found.items()])
    elif not found and not found.bad:
        screen.line("No sites are configured. Add one: pilotfish site add NAME --backend slurm")
    elif found:
        screen.table(LIST_COLUMNS, found.items())
    show_invalid_sites(found)


@site.command()
@name_argument
@click.option("--dry-run", is_flag=True, help="Show the exact commands for one pilot, including the values of variables.")
@pool_option
@json_option
def show(name: str, dry_run: bool, pool: str, as_json: bool) -> None:
    """Show the configuration of a site; values of variables are hidden."""
    screen = Screen.of()
    described = find_site(name)
    if dry_run:
        from pilotfish.cli.site_commands.site_dry_run import show_plan

        show_plan(screen, name, described, pool, as_json)
    elif as_json:
        screen.json(site_keys.as_data(name, described))
    else:
        screen.fields([("site", name), *site_keys.shown(described).items()])


@site.command()
@name_argument
@pool_option
def login(name: str, pool: str) -> None:
    """Log in to a site once; the master reuses the connection for twelve hours.

    Use this for sites that ask for a password or a code.
    """
    from pilotfish.cli.site_commands.site_dry_run import log_in

    log_in(Screen.of(), name, find_site(name), pool)


@site.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@name_argument
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
@pool_option
def exec_(name: str, command: tuple[str, ...], pool: str) -> int:
    """Run a command on a site's login node, in the same way as the master.

    \b
    pilotfish site exec hpc -- squeue --me
    """
    from pilotfish.cli.site_commands.site_dry_run import execute

    argv = command[1:] if command[0] == "--" else command
    if not argv:
        raise BadInput("site exec: there is no command", f"Write: pilotfish site exec {name} -- squeue --me")
    return execute(name, find_site(name), argv, pool)


@site.command()
@name_argument
@click.option("--no-pilot", is_flag=True, help="Skip the test pilot.")
@timeout_option
@pool_option
@json_option
def test(name: str, **options: Any) -> int:
    """Check a site step by step; submit one test pilot."""
    from pilotfish.cli.site_commands.site_check import check_site

    return check_site(name, **options)


@site.command("log")
@name_argument
@click.option("--lines", "-n", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Number of lines.")
@pool_option
def log_(name: str, lines: int, pool: str) -> None:
    """Show the commands that were run for a site.

    Each command is shown with its time, duration, exit status and error output.
    """
    from pilotfish.store.pool_directory import pool_home

    find_site(name)
    path = pool_home(pool).site_log(name)
    if not path.exists():
        Screen.of().line(f"No command has been run for {name} yet. Try: pilotfish site test {name}")
        return
    for line in path.read_text(errors="replace").splitlines()[-lines:]:
        Screen.of().line(clean(line))
