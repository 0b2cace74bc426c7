"""HTCondor as it was recorded."""

from __future__ import annotations

import json

import pytest

from pilotfish.backends.htcondor import HtcondorBackend
from pilotfish.backends.interface import ENDED, QUEUED, RUNNING, CommandOutput, CommandRefused, JobStatus, PilotBatch, UnclearAnswer
from pilotfish.model.site import PilotSize, Site
from pilotfish.testing.backend_suite import BackendContract, Samples, only
from tests.contract.backends.transcripts import answer

FOLDER = "htcondor-23.9.6"
CONDOR = HtcondorBackend()
SITE = Site(backend="htcondor")
ORDER = PilotBatch("pf-arr", 5, PilotSize(walltime_s=60), "/home/ann/o 1", "/home/ann/agent.pyz")


def recorded(case: str) -> CommandOutput:
    return answer(FOLDER, case)


def listing(*jobs: dict[str, object]) -> CommandOutput:
    return CommandOutput(0, json.dumps([{"ClusterId": 1, "ProcId": number, **job} for number, job in enumerate(jobs)]))


class TestHtcondor(BackendContract):
    samples = Samples(
        backend=CONDOR,
        kind="htcondor",
        submitted=recorded("submit-ok-array5-terse"),
        jobs=tuple(f"3.{process}" for process in range(5)),
        listed=(
            recorded("status-json-mixed"),
            dict.fromkeys(["31.3", "31.4", "34.0"], RUNNING)
            | dict.fromkeys(["36.0", "37.0", "43.0", "48.0", "49.0", "50.0"], QUEUED)
            | dict.fromkeys(["40.0", "41.0", "42.0", "45.0", "46.0", "47.0"], ENDED),
        ),
        nothing=(recorded("status-unknown-id"), recorded("status-finished-not-in-queue")),
        down=(recorded("down-schedd-status"), recorded("down-all-status")),
        refused=tuple(
            recorded(f"submit-refused-{why}")
            for why in ("bad-expression", "bad-syntax", "bad-universe", "bad-value", "executable-missing", "root")
        ),
        cancelled=tuple(
            recorded(f"cancel-{case}")
            for case in ("procs", "procs-not-found", "ok-running", "finished", "unknown", "twice", "mixed-known-unknown")
        ),
        found=("pf-found", recorded("find-order-in-queue-and-history"), {1: "11.0", 2: "11.1", 3: "11.2"}),
        unfound=(recorded("find-by-name-none"), recorded("history-unknown-id")),
        words={
            "queue": "",
            "account": "accounting_group = physics",
            "walltime": "> 5430",
            "cores": "request_cpus = 4",
            "memory": "request_memory = 6144",
            "gpus": "request_gpus = 2",
            "directives": "\n--nice=17\n",
        },
        down_at_submission=(recorded("down-schedd-submit"), recorded("down-all-submit")),
        limits=(recorded("submit-refused-over-per-owner-limit"),),
        past=(
            (
                recorded("history-json-mixed"),
                {
                    "30.0": JobStatus(ENDED, "exit status 0"),
                    "32.0": JobStatus(ENDED, "exit status 7", well=False),
                    "33.0": JobStatus(ENDED, "killed by signal 9", well=False),
                    "35.0": JobStatus(ENDED, "via condor_rm (by user enga)", well=False),
                },
            ),
            (recorded("history-walltime"), {"13.0": JobStatus(ENDED, "it ran longer than its walltime", well=False, expired=True)}),
            (recorded("down-schedd-history"), {"1.0": JobStatus(ENDED, "exit status 0")}),
        ),
    )


def sighting(told: CommandOutput, job: str) -> JobStatus:
    return only(CONDOR.query(SITE, [job])).read(told)[job]


def line(name: str, site: Site = SITE, order: PilotBatch = ORDER) -> str:
    text = CONDOR.submit(site, order).command.stdin
    return next(line.partition(" = ")[2] for line in text.splitlines() if line.startswith(f"{name} = "))


def test_what_htcondor_itself_held_has_ended_and_tells_why() -> None:
    told = recorded("status-json-mixed")
    gone = sighting(told, "40.0")
    assert (gone.phase, gone.well) == (ENDED, False)
    assert gone.reason.startswith("held: Error from slot1_1@vm: Failed to execute")
    assert "JobStatus == 5" in line("periodic_remove")


def test_a_held_job_that_was_removed_for_it_still_tells_why_it_was_held() -> None:
    past = CONDOR.past(SITE, ["12.0"])
    assert past is not None
    seen = past.read(recorded("history-held-then-removed"))["12.0"]
    assert seen.reason.startswith("held: Transfer input files failure")
    assert not seen.expired


def test_a_job_that_a_person_holds_waits() -> None:
    assert sighting(recorded("status-held-by-user"), "12.0") == JobStatus(QUEUED, "held: by pf (by user enga)")


def test_an_evicted_job_waits_though_it_tells_how_its_former_run_exited() -> None:
    assert sighting(recorded("status-json-mixed"), "43.0").phase == QUEUED


def test_a_job_that_finds_no_machine_says_so() -> None:
    assert sighting(recorded("status-idle-no-match"), "14.0") == JobStatus(QUEUED, "no match found")


def test_statuses_that_are_rare_are_known_and_those_that_are_not_known_are_left_out() -> None:
    told = listing({"JobStatus": 6}, {"JobStatus": 7}, {"JobStatus": 3, "RemoveReason": None}, {"JobStatus": 99}, {})
    seen = only(CONDOR.query(SITE, [f"1.{number}" for number in range(5)])).read(told)
    assert [(job, sighting.phase) for job, sighting in seen.items()] == [("1.0", RUNNING), ("1.1", RUNNING), ("1.2", ENDED)]


def test_the_files_of_each_pilot_travel_with_it_and_no_other_come_back() -> None:
    assert line("executable") == "/home/ann/o 1/start.sh"
    assert line("transfer_input_files") == "/home/ann/o 1/$(number).json, /home/ann/agent.pyz"
    assert line("arguments").startswith("\"'$(number).json' 'agent.pyz' ")
    assert line("transfer_output_files") == '""'


def test_the_lines_of_the_site_are_run_before_the_agent() -> None:
    site = Site(backend="htcondor", setup=("module load python", 'export WHERE="$HOME"'))
    assert line("executable", site) == "/bin/sh"
    assert line("transfer_input_files", site).endswith("/home/ann/o 1/start.sh")
    assert line("arguments", site).endswith(
        """'module load python' 'export WHERE=""$(DOLLAR)HOME""' 'exec sh start.sh $(number).json agent.pyz --cores 1 --ends-in 40'\""""
    )


def test_quotes_and_dollars_reach_the_agent_as_they_are() -> None:
    site = Site(backend="htcondor", tags={"kind": 'it\'s "x" $HOME'})
    assert line("arguments", site).endswith("""'--tag' 'kind=it''s ""x"" $(DOLLAR)HOME'\"""")


def test_an_order_that_was_submitted_twice_is_found_where_it_still_lives() -> None:
    told = CommandOutput(0, '[\n{"ClusterId": 23, "ProcId": 0}\n]\n[\n{"ClusterId": 9, "ProcId": 0}\n]\n')
    assert only(CONDOR.find(SITE, "pf-d")).read(told) == {1: "23.0"}


def test_a_pilot_of_several_nodes_is_refused() -> None:
    with pytest.raises(CommandRefused, match="one node"):
        CONDOR.submit(SITE, PilotBatch("t", 1, PilotSize(nodes=2), "/o", "/a"))


def test_fewer_jobs_than_were_ordered_are_no_clear_answer() -> None:
    with pytest.raises(UnclearAnswer):
        CONDOR.submit(SITE, ORDER).read(recorded("submit-ok-single-terse"))


def test_a_submission_that_may_have_been_taken_is_looked_for() -> None:
    with pytest.raises(UnclearAnswer):
        CONDOR.submit(SITE, ORDER).read(CommandOutput(1, "", "ERROR: Failed to commit job submission into the queue.\n"))


def test_a_warning_does_not_hide_the_id() -> None:
    one_pilot = PilotBatch("t", 1, PilotSize(), "/o", "/a")
    assert CONDOR.submit(SITE, one_pilot).read(recorded("submit-typo-key-warned")) == ["26.0"]


@pytest.mark.parametrize("case", ["down-schedd-cancel", "down-all-cancel"])
def test_a_cancellation_that_was_not_carried_out_is_tried_again(case: str) -> None:
    with pytest.raises(UnclearAnswer):
        only(CONDOR.cancel(SITE, ["7.0"])).read(recorded(case))
