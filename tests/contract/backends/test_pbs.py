"""OpenPBS as it was recorded, and Torque after its documentation."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from pilotfish.backends.interface import ENDED, QUEUED, RUNNING, CommandOutput, CommandRefused, JobStatus, PilotBatch, UnclearAnswer
from pilotfish.backends.pbs import PbsBackend
from pilotfish.model.site import PilotSize, Site
from pilotfish.testing.backend_suite import BackendContract, Samples, only
from tests.contract.backends.transcripts import answer

FOLDER = "openpbs-23.06.06"
PBS = PbsBackend()
OPENPBS = Site(backend="pbs")
TORQUE = Site(backend="pbs", options={"flavour": "torque"})
PLACE = "Job run at Sun Nov 15 at 04:52 on (pbsvm:ncpus=1:mem=65536kb)"


def recorded(case: str) -> CommandOutput:
    return answer(FOLDER, case)


def as_text(case: str) -> CommandOutput:
    """What was recorded as JSON, as qstat prints it without ``-F json``."""
    told = recorded(case)
    blocks = []
    for job, attributes in json.loads(told.stdout)["Jobs"].items():
        plain = {name: value for name, value in attributes.items() if not isinstance(value, dict)}
        blocks.append("\n".join([f"Job Id: {job}", *(f"    {name} = {value}" for name, value in plain.items()), "", ""]))
    return CommandOutput(told.status, "".join(blocks), told.stderr)


class TestOpenPbs(BackendContract):
    samples = Samples(
        backend=PBS,
        kind="pbs",
        submitted=recorded("submit-ok-array5"),
        jobs=tuple(f"44[{number}].pbsvm" for number in range(1, 6)),
        listed=(
            recorded("status-full-text-mixed"),
            {f"{number}.pbsvm": ENDED for number in (64, 65, 66, 67, 69)}
            | {f"{number}.pbsvm": QUEUED for number in (70, 72, 73, 74, 76)}
            | {f"{number}.pbsvm": RUNNING for number in (68, 71)},
        ),
        nothing=(recorded("status-finished-without-x"), recorded("status-known-and-unknown-text")),
        down=(recorded("down-status"), recorded("down-status-no-id")),
        refused=tuple(
            recorded(f"submit-refused-{why}")
            for why in ("unknown-queue", "bad-walltime", "bad-select", "unknown-resource", "bad-option", "walltime-over-queue-max")
        ),
        cancelled=tuple(
            recorded(f"cancel-{case}") for case in ("ok-running", "finished", "unknown", "mixed-known-unknown", "twice-running")
        ),
        found=("pf-arr", as_text("status-array-subjobs-json"), {number: f"44[{number}].pbsvm" for number in range(1, 6)}),
        unfound=(recorded("find-by-name-none"),),
        words={
            "queue": "-q\nlong",
            "account": "-A\nphysics",
            "walltime": "walltime=01:30:30",
            "cores": "ncpus=4",
            "memory": "mem=6291456kb",
            "gpus": "ngpus=2",
            "directives": "#PBS --nice=17",
        },
        down_at_submission=(recorded("down-submit"),),
        limits=(recorded("submit-refused-too-many-queued"), recorded("submit-refused-queue-disabled")),
        past=(
            (
                as_text("status-json-no-ids-history"),
                {
                    "31.pbsvm": JobStatus(ENDED, f"{PLACE} and failed, exit status 7", well=False),
                    "34.pbsvm": JobStatus(ENDED, f"{PLACE} and exceeded resource walltime, exit status -29", well=False, expired=True),
                    "36.pbsvm": JobStatus(ENDED, f"{PLACE} and terminated by enga@pbsvm, exit status 271", well=False),
                    "40.pbsvm": JobStatus(ENDED, "never ran", well=False),
                    "46.pbsvm": JobStatus(ENDED, "Job run at Sun Nov 15 at 04:53 on (pbsvm:ncpus=1) and finished, exit status 0"),
                },
            ),
        ),
    )


RUNNING_IN_TORQUE = """\
Job Id: 12[1].head.example.org
    Job_Name = pf-arr-1
    Job_Owner = ann@head.example.org
    job_state = R
    queue = batch
    exec_host = n1/0+n1/1
    Variable_List = PBS_O_QUEUE=batch,PBS_O_HOME=/home/ann,PBS_O_LOGNAME=ann,
\tPBS_O_PATH=/usr/bin:/bin
    job_array_id = 1

"""
LISTED_IN_TORQUE = (
    RUNNING_IN_TORQUE
    + """\
Job Id: 12[2].head.example.org
    Job_Name = pf-arr-2
    job_state = C
    exit_status = -11
    job_array_id = 2

Job Id: 12[3].head.example.org
    Job_Name = pf-arr-3
    job_state = C
    exit_status = 0
    job_array_id = 3

Job Id: 13.head.example.org
    Job_Name = pf-arrow
    job_state = Q

"""
)


class TestTorque(BackendContract):
    samples = Samples(
        backend=PBS,
        kind="pbs",
        submitted=CommandOutput(0, "12[].head.example.org\n"),
        jobs=tuple(f"12[{number}].head.example.org" for number in (1, 2, 3)),
        listed=(
            CommandOutput(0, LISTED_IN_TORQUE),
            {
                "12[1].head.example.org": RUNNING,
                "12[2].head.example.org": ENDED,
                "12[3].head.example.org": ENDED,
                "13.head.example.org": QUEUED,
            },
        ),
        nothing=(CommandOutput(153, "", "qstat: Unknown Job Id Error 12[1].head.example.org\n"),),
        down=(
            CommandOutput(111, "", "Connection refused\nqstat: cannot connect to server head.example.org (errno=111) Connection refused\n"),
        ),
        refused=(CommandOutput(170, "", "qsub: submit error (Unknown queue MSG=cannot locate queue)\n"),),
        cancelled=(
            CommandOutput(0),
            CommandOutput(153, "", "qdel: nonexistent job id: Unknown Job Id Error 12[1].head.example.org\n"),
            CommandOutput(170, "", "qdel: Request invalid for state of job MSG=invalid state for job - COMPLETE 12[3].head.example.org\n"),
        ),
        found=("pf-arr", CommandOutput(0, LISTED_IN_TORQUE), {number: f"12[{number}].head.example.org" for number in (1, 2, 3)}),
        unfound=(CommandOutput(0), CommandOutput(0, RUNNING_IN_TORQUE)),
        words={
            "queue": "-q\nlong",
            "account": "-A\nphysics",
            "walltime": "walltime=01:30:30",
            "cores": "nodes=1:ppn=4",
            "memory": "mem=6291456kb",
            "gpus": ":gpus=2",
            "directives": "#PBS --nice=17",
        },
        down_at_submission=(CommandOutput(111, "", "qsub: cannot connect to server head.example.org (errno=111) Connection refused\n"),),
        limits=(CommandOutput(38, "", "qsub: submit error (Maximum number of jobs already in queue for user MSG=total number of jobs)\n"),),
        options={"flavour": "torque"},
    )

    def test_a_lost_submission_is_found_by_its_tag(self) -> None:
        """All jobs are listed, and looked through here: qselect does not know the names of the elements."""
        tag, told, ids = self.samples.found
        exchange = only(PBS.find(TORQUE, tag))
        assert exchange.command.argv == ("qstat", "-t", "-f")
        assert exchange.read(told) == dict(ids)


def sighting(told: CommandOutput, job: str, site: Site = OPENPBS) -> JobStatus:
    return only(PBS.query(site, [job])).read(told)[job]


def test_a_waiting_job_tells_why_it_waits() -> None:
    told = recorded("status-full-text-mixed")
    assert sighting(told, "74.pbsvm").reason == "Can Never Run: Insufficient amount of resource: ncpus (R: 999 A: 8 T: 8)"
    assert sighting(told, "76.pbsvm").reason == "Not Running: Not enough free nodes available"
    assert sighting(told, "72.pbsvm").reason == "held"


def test_a_job_that_went_back_into_the_queue_has_not_ended_though_it_has_an_exit_status() -> None:
    seen = sighting(recorded("status-full-text-mixed"), "70.pbsvm")
    assert seen.phase == QUEUED
    assert seen.reason.startswith("it was put back into the queue")


def test_lines_that_qstat_folds_are_unfolded() -> None:
    told = recorded("status-full-text-mixed-wrapped")
    assert "\n\t" in told.stdout
    seen = only(PBS.query(OPENPBS, ["35.pbsvm", "45.pbsvm", "31.pbsvm"])).read(told)
    assert [seen[job].phase for job in ("35.pbsvm", "45.pbsvm", "31.pbsvm")] == [RUNNING, QUEUED, ENDED]


def test_each_element_of_an_array_ended_in_its_own_way() -> None:
    ids = [f"60[{number}].pbsvm" for number in range(1, 6)]
    seen = only(PBS.query(OPENPBS, ids)).read(as_text("status-array-mixed-results-json"))
    assert [(sighting.phase, sighting.well) for sighting in seen.values()] == [
        (ENDED, True),
        (ENDED, False),
        (ENDED, False),
        (RUNNING, True),
        (RUNNING, True),
    ]


def test_an_element_of_which_only_the_array_is_remembered_is_not_blamed_for_the_others() -> None:
    """Number 1 ended well; when its own record was gone, the exit status that was told for it was that of the array."""
    past = PBS.past(OPENPBS, ["60[1].pbsvm", "60[4].pbsvm"])
    assert past is not None
    seen = past.read(as_text("status-json-array-and-single"))
    assert seen["60[1].pbsvm"] == JobStatus(ENDED, "Subjob finished")
    assert not seen["60[4].pbsvm"].well


def test_an_order_of_one_pilot_is_no_array() -> None:
    exchange = PBS.submit(OPENPBS, PilotBatch("pf-ok", 1, PilotSize(), "/shared/o", "/shared/agent.pyz"))
    assert "-J" not in exchange.command.argv
    assert exchange.read(recorded("submit-ok-single")) == ["30.pbsvm"]
    assert only(PBS.find(OPENPBS, "pf-ok")).read(as_text("history-finished-ok-json")) == {1: "30.pbsvm"}


def test_an_array_without_elements_is_not_an_answer_to_an_order_of_several() -> None:
    with pytest.raises(UnclearAnswer):
        PBS.submit(OPENPBS, PilotBatch("pf-arr", 3, PilotSize(), "/o", "/a")).read(recorded("submit-ok-single"))


def test_a_connection_that_broke_leaves_open_whether_the_job_was_taken() -> None:
    with pytest.raises(UnclearAnswer):
        PBS.submit(OPENPBS, PilotBatch("t", 1, PilotSize(), "/o", "/a")).read(CommandOutput(183, "", "qsub: End of File\n"))


def test_a_refusal_does_not_repeat_how_qsub_is_used() -> None:
    with pytest.raises(CommandRefused, match="^illegal -N value$"):
        PBS.submit(OPENPBS, PilotBatch("t", 1, PilotSize(), "/o", "/a")).read(recorded("submit-refused-bad-name"))


@pytest.mark.parametrize("case", ["down-cancel", "cancel-other-user", "node-daemon-down-cancel"])
def test_a_cancellation_that_was_not_carried_out_is_tried_again(case: str) -> None:
    with pytest.raises(UnclearAnswer):
        only(PBS.cancel(OPENPBS, ["35.pbsvm"])).read(recorded(case))


def test_an_order_of_several_nodes_spreads_over_them_and_starts_on_each() -> None:
    size = PilotSize(cores=8, nodes=4, memory=1 << 30)
    for site, words, starter in (
        (OPENPBS, ["select=4:ncpus=8:mem=1048576kb", "place=scatter"], "exec pbsdsh -- /usr/bin/env "),
        (TORQUE, ["nodes=4:ppn=8", "mem=4194304kb"], "exec pbsdsh -u /usr/bin/env "),
    ):
        exchange = PBS.submit(site, PilotBatch("t", 2, size, "/shared/o", "/shared/agent.pyz"))
        assert set(words) <= set(exchange.command.argv)
        assert starter in exchange.command.stdin


def test_what_the_directives_ask_for_is_not_asked_for_twice() -> None:
    site = Site(backend="pbs", directives=("-l select=2:ncpus=8:model=sky", "-l walltime=00:10:00"))
    argv = PBS.submit(site, PilotBatch("t", 1, PilotSize(cores=4, walltime_s=60), "/o", "/a")).command.argv
    assert not [word for word in argv if "select" in word or "walltime" in word]


def test_names_that_torque_would_refuse_are_cut_and_stay_unique() -> None:
    tags = [f"pilotfish-run-2026-11-15-order-{number}" for number in range(50)]
    names = {PBS.submit(TORQUE, PilotBatch(tag, 1, PilotSize(), "/o", "/a")).command.argv[2] for tag in tags}
    assert len(names) == 50
    assert max(map(len, names)) == 15
    name = PBS.submit(TORQUE, PilotBatch(tags[7], 1, PilotSize(), "/o", "/a")).command.argv[2]
    listed = CommandOutput(0, f"Job Id: 5.head\n    Job_Name = {name}\n    job_state = Q\n\n")
    assert only(PBS.find(TORQUE, tags[7])).read(listed) == {1: "5.head"}
    assert only(PBS.find(TORQUE, tags[8])).read(listed) == {}


def test_torque_says_that_the_time_was_over_in_its_own_number() -> None:
    assert sighting(CommandOutput(0, LISTED_IN_TORQUE), "12[2].head.example.org", TORQUE).expired
    assert not sighting(CommandOutput(0, LISTED_IN_TORQUE), "12[3].head.example.org", TORQUE).expired


def test_an_order_is_found_also_where_no_history_is_kept(tmp_path: Path) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    (tmp_path / "qselect").write_text('#!/bin/sh\n[ "$1" != -x ] || exit 200\n[ "$2" = pf-none ] || echo "44[].pbsvm"\n')
    (tmp_path / "qstat").write_text('#!/bin/sh\n[ "$1" != -x ] || exit 200\necho "$@"\n')
    for command in tmp_path.iterdir():
        command.chmod(0o755)

    def run(tag: str, path: str = str(tmp_path)) -> subprocess.CompletedProcess[str]:
        argv = [shell, *only(PBS.find(OPENPBS, tag)).command.argv[1:]]
        return subprocess.run(argv, env={"PATH": path}, capture_output=True, text=True, check=False)

    assert run("pf-arr").stdout == "-t -f 44[].pbsvm\n"
    assert (run("pf-none").returncode, run("pf-none").stdout) == (0, "")
    assert run("pf-arr", "/nowhere").returncode == 127


def test_the_script_of_an_array_is_shell() -> None:
    shell = shutil.which("sh")
    assert shell is not None
    script = PBS.submit(OPENPBS, PilotBatch("t", 2, PilotSize(nodes=2), "/shared/o 1", "/shared/agent.pyz")).command.stdin
    assert subprocess.run([shell, "-n"], input=script, text=True, check=False).returncode == 0
    assert "/${PBS_ARRAY_INDEX:-1}.json" in script
