"""LSF after its documentation: it was never asked."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from pilotfish.backends.interface import ENDED, QUEUED, RUNNING, CommandOutput, JobStatus, PilotBatch, UnclearAnswer
from pilotfish.backends.lsf import LsfBackend
from pilotfish.model.site import PilotSize, Site
from pilotfish.testing.backend_suite import BackendContract, Samples, only
from tests.contract.backends.transcripts import answer

LSF = LsfBackend()
SITE = Site(backend="lsf")


def documented(case: str) -> CommandOutput:
    return answer("lsf-documented", case)


class TestLsf(BackendContract):
    samples = Samples(
        backend=LSF,
        kind="lsf",
        submitted=documented("submit-ok-array3"),
        jobs=("123[1]", "123[2]", "123[3]"),
        listed=(
            documented("status-mixed"),
            {"123[1]": RUNNING, "123[2]": QUEUED, "123[3]": ENDED, "120": ENDED, "121": ENDED, "122": ENDED, "124": QUEUED, "125": RUNNING},
        ),
        nothing=(documented("status-unknown"), documented("status-known-and-unknown")),
        down=(documented("down-status"),),
        refused=(documented("submit-refused-unknown-queue"), documented("submit-refused-resource")),
        cancelled=(documented("cancel-ok"), documented("cancel-finished"), documented("cancel-mixed")),
        found=("pf-arr", documented("find-by-name"), {1: "123[1]", 2: "123[2]", 3: "123[3]"}),
        unfound=(documented("find-by-name-none"), documented("find-none-at-all")),
        words={
            "queue": "-q long",
            "account": "-P physics",
            "walltime": "-W 91",
            "cores": "-n 4",
            "memory": "rusage[mem=6144MB]",
            "gpus": "num=2",
            "directives": "#BSUB --nice=17",
        },
        down_at_submission=(documented("down-submit"),),
        limits=(documented("submit-refused-pending-threshold"), documented("submit-refused-queue-closed")),
    )


def test_a_job_tells_why_it_waits_and_how_it_ended() -> None:
    seen = only(LSF.query(SITE, ["123[2]", "120", "121", "122", "124"])).read(documented("status-mixed"))
    assert seen["123[2]"].reason == "Job slot limit reached: 8 hosts; Not enough slots or resources: 2 hosts"
    assert seen["120"] == JobStatus(ENDED, "EXIT (TERM_UNKNOWN: unknown reason, exit status 7)", well=False)
    assert seen["121"].expired and not seen["122"].expired
    assert "killed by owner" in seen["122"].reason
    assert seen["124"].phase == QUEUED


def test_a_job_of_which_lsf_itself_lost_sight_is_left_out() -> None:
    assert only(LSF.query(SITE, ["126", "127"])).read(documented("status-mixed")) == {}


def test_known_jobs_are_told_though_one_is_unknown() -> None:
    assert only(LSF.query(SITE, ["120", "99999"])).read(documented("status-known-and-unknown")) == {"120": JobStatus(RUNNING)}


def test_an_order_of_one_pilot_is_no_array() -> None:
    exchange = LSF.submit(SITE, PilotBatch("pf-run", 1, PilotSize(), "/shared/o", "/shared/agent.pyz"))
    assert "/shared/o/1.log" in exchange.command.argv
    assert exchange.read(documented("submit-ok-single")) == ["120"]


@pytest.mark.parametrize("case", ["down-cancel", "cancel-other-user"])
def test_a_cancellation_that_was_not_carried_out_is_tried_again(case: str) -> None:
    with pytest.raises(UnclearAnswer):
        only(LSF.cancel(SITE, ["120"])).read(documented(case))


def test_a_pilot_of_several_nodes_takes_as_many_cores_of_each_and_starts_on_each_once() -> None:
    script = LSF.submit(SITE, PilotBatch("t", 2, PilotSize(cores=8, nodes=4), "/shared/o 1", "/shared/agent.pyz")).command.stdin
    assert "#BSUB -n 32\n" in script and "span[ptile=8]" in script
    shell = shutil.which("sh")
    assert shell is not None
    told = subprocess.run(
        [shell, "-s"],
        input='blaunch() { echo "$2"; }\nLSB_MCPU_HOSTS="n1 8 n2 8"\n' + script.replace("exec blaunch", "blaunch"),
        text=True,
        capture_output=True,
        check=False,
    )
    assert told.stdout.split() == ["n1", "n2"]


def test_no_command_waits_for_a_daemon_that_is_down() -> None:
    order = PilotBatch("t", 1, PilotSize(), "/o", "/a")
    for exchange in (LSF.submit(SITE, order), only(LSF.query(SITE, ["1"])), only(LSF.cancel(SITE, ["1"])), only(LSF.find(SITE, "t"))):
        assert "LSB_NTRIES=1" in exchange.command.argv
