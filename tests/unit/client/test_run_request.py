"""The options of ``pilotfish run`` as one value."""

from __future__ import annotations

import os
from dataclasses import fields

import pytest

from pilotfish.cli.run_commands.run_command import run as run_command
from pilotfish.client.descriptions.run_options import RunRequest, property_warnings
from pilotfish.client.descriptions.site_selection import SiteSelection
from pilotfish.errors import BadInput
from tests.support.fake_session import FakeMaster


def test_every_option_of_the_command_is_a_field() -> None:
    options = {parameter.name for parameter in run_command.params if parameter.expose_value}
    assert {field.name for field in fields(RunRequest)} == options | {"after_dashes", "typed"}


def test_what_each_task_needs_is_read_from_the_request() -> None:
    request = RunRequest(
        command=("/opt/sim", "1"), cores="2", memory="2G", time_limit="90s", resources=("licence=1",), requirement="memory >= 8G", retries=3
    )
    wanted = request.task_options()
    assert (wanted.name, wanted.request.cores, wanted.time_s, wanted.retries) == ("sim", 2, 90.0, 3)
    assert wanted.request.custom == {"licence": 1.0}
    with pytest.raises(BadInput, match="--resource 'licence' is not NAME=AMOUNT"):
        RunRequest(command=("sim",), resources=("licence",)).task_options()


def test_the_master_is_told_sites_share_and_deadline() -> None:
    request = RunRequest(name="mine", sites=SiteSelection((("hpc", 4), ("local", -1))), share=("thesis", 2.0), deadline=7.0, max_failures=1)
    options = request.run_options("-- sim")
    assert (options.name, options.command, options.cwd) == ("mine", "-- sim", os.getcwd())
    assert (options.sites, options.share, options.weight, options.deadline) == (("hpc", "local"), "thesis", 2.0, 7.0)
    assert (options.max_failures, options.application) == (1, "")


def test_a_property_that_no_worker_has_is_warned_of() -> None:
    master = FakeMaster()
    wanted = RunRequest(command=("sim",), requirement="coers > 1 and memory > 1G", rank="held").task_options()
    (warning,) = property_warnings(master, wanted)
    assert "no connected worker has a property 'coers'. Did you mean 'cores'?" in warning
    assert not master.runs
