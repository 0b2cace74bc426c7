"""The Grid Engine backend, against what Grid Engine 8.1.9 said."""

from __future__ import annotations

import pytest

from pilotfish.backends.interface import ENDED, QUEUED, RUNNING, CommandOutput, CommandRefused, JobStatus, PilotBatch, UnclearAnswer
from pilotfish.backends.sge import SgeBackend
from pilotfish.model.site import PilotSize, Site
from pilotfish.testing.backend_suite import BackendContract, Samples
from tests.contract.backends.transcripts import answer

FOLDER = "gridengine-8.1.9"
BACKEND, SITE = SgeBackend(), Site(backend="sge")


def listed(case: str, *descriptions: str) -> CommandOutput:
    """The list, and after it the long descriptions."""
    texts = [answer(FOLDER, name).stdout for name in (case, *descriptions)]
    return CommandOutput(0, "".join(texts), "")


def seen(told: CommandOutput, *jobs: str) -> dict[str, JobStatus]:
    return BACKEND.query(SITE, jobs)[0].read(told)


def remembered(told: CommandOutput, *jobs: str) -> dict[str, JobStatus]:
    exchange = BACKEND.past(SITE, jobs)
    assert exchange is not None
    return exchange.read(told)


def history(*cases: str) -> CommandOutput:
    """One after the other, as the backend asks for them."""
    told = [answer(FOLDER, f"history-qacct-{case}") for case in cases]
    return CommandOutput(told[-1].status, "".join(one.stdout for one in told), "".join(one.stderr for one in told))


LIVE = dict.fromkeys(("3.4", "3.5", "8", "16"), RUNNING)
WAIT = dict.fromkeys(("19", "20", "15", "18", "12", "13", "14", "21"), QUEUED)
KILLED = JobStatus(ENDED, "exit status 137 (Killed)", well=False)


class TestSge(BackendContract):
    samples = Samples(
        backend=BACKEND,
        kind="sge",
        submitted=answer(FOLDER, "submit-ok-array5-terse"),
        jobs=("3.1", "3.2", "3.3", "3.4", "3.5"),
        listed=(listed("status-xml-array-grouped", "status-j-error-state", "status-j-pending-reason"), LIVE | WAIT),
        nothing=(answer(FOLDER, "status-user-none-xml"), listed("status-requeued-xml", "status-j-running")),
        down=(answer(FOLDER, "down-status"),),
        refused=tuple(
            answer(FOLDER, f"submit-refused-{case}")
            for case in (
                *("bad-name", "bad-option", "bad-value", "impossible-w-e", "root", "script-missing"),
                *("unknown-pe", "unknown-project", "unknown-queue", "unknown-resource"),
            )
        ),
        cancelled=tuple(
            answer(FOLDER, f"cancel-{case}")
            for case in ("array", "all-of-user", "finished", "unknown", "mixed-known-unknown", "one-task", "ok-running", "by-name-none")
        ),
        found=("pf-run", listed("status-xml-reasons"), {1: "8"}),
        unfound=(answer(FOLDER, "status-user-none-xml"), listed("status-xml-reasons")),
        words={
            "queue": "\n#$ -q long\n",
            "account": "\n#$ -P physics\n",
            "walltime": "\n#$ -l h_rt=5430\n",
            "cores": "\n#$ -pe smp 4\n",
            "memory": "\n#$ -l h_vmem=1536M\n",
            "gpus": "\n#$ -l gpu=2\n",
            "directives": "\n#$ --nice=17\n",
        },
        down_at_submission=(answer(FOLDER, "down-submit"),),
        limits=(answer(FOLDER, "submit-refused-over-user-limit"), answer(FOLDER, "submit-refused-array-over-limit")),
        past=(
            (
                history("array"),
                {
                    "3.1": JobStatus(ENDED, "exit status 0"),
                    "3.2": JobStatus(ENDED, "exit status 3", well=False),
                    "3.3": KILLED,
                    "3.5": KILLED,
                },
            ),
            (history("too-early", "failed", "unknown"), {"6": JobStatus(ENDED, "exit status 7", well=False)}),
        ),
    )


def order(count: int = 1, size: PilotSize | None = None) -> PilotBatch:
    return PilotBatch("pf-a-1", count, size or PilotSize(), "/home/me/o 1", "/home/me/agent.pyz")


def test_the_script_goes_in_on_standard_input_and_each_task_has_its_own_output() -> None:
    command = BACKEND.submit(SITE, order(3)).command
    words = " ".join(command.argv)
    assert words == "qsub -terse -notify -N pf-a-1 -wd /home/me/o 1 -S /bin/sh -j y -o /home/me/o 1/$TASK_ID.log -t 1-3"
    assert "'/home/me/o 1'/$SGE_TASK_ID.json" in command.stdin


def test_a_single_pilot_is_no_array() -> None:
    exchange = BACKEND.submit(SITE, order())
    assert exchange.command.argv[-2:] == ("-o", "/home/me/o 1/1.log") and "/1.json" in exchange.command.stdin
    assert exchange.read(answer(FOLDER, "submit-ok-stdin")) == ["5"]


def test_a_warning_before_the_id_does_no_harm() -> None:
    warned = CommandOutput(0, 'qsub: warning: "-N" option has already been set, overriding previous setting\n7.1-2:1\n')
    assert BACKEND.submit(SITE, order(2)).read(warned) == ["7.1", "7.2"]


def test_the_names_that_sites_give_their_resources_are_options() -> None:
    options = {"pe": "threads", "memory_resource": "mem_free", "gpu_resource": "cuda", "account_flag": "-A"}
    size = PilotSize(cores=2, memory=3 << 30, gpus=1)
    script = BACKEND.submit(Site(backend="sge", account="me", options=options), order(size=size)).command.stdin
    assert [line for line in script.splitlines() if line.startswith("#$")] == [
        *("#$ -pe threads 2", "#$ -l mem_free=1536M", "#$ -l cuda=1", "#$ -A me")
    ]
    none = Site(backend="sge", options={"memory_resource": "none"})
    assert "#$" not in BACKEND.submit(none, order(size=PilotSize(memory=1 << 30))).command.stdin


def test_more_than_one_node_is_refused() -> None:
    with pytest.raises(CommandRefused) as caught:
        BACKEND.submit(SITE, order(size=PilotSize(nodes=2)))
    assert "nodes = 1" in str(caught.value)


def test_why_a_pilot_waits_is_taken_from_the_long_description() -> None:
    told = seen(listed("status-xml-array-grouped", "status-j-error-state", "status-j-pending-reason"), "19", "18", "15", "12", "14", "16")
    assert told["19"].reason == 'cannot run in PE "smp" because it only offers 0 slots'
    assert told["18"].reason == 'Eqw: error: can\'t open output file "/nonexistent/x": No such file or directory'
    assert told["15"].reason == "Eqw: in error; for the reason: qstat -j 15"
    assert [told[job].reason for job in ("12", "14", "16")] == ["held", "", ""]


def test_the_error_of_each_task_of_an_array_is_its_own() -> None:
    tasks = "".join(
        f'<job_list state="pending"><JB_job_number>7</JB_job_number><state>Eqw</state><tasks>{task}</tasks></job_list>' for task in (1, 2)
    )
    described = (
        "job_number:                 7\n"
        "job-array tasks:            1-2:1\n"
        "error reason          1:      11/15/2026 05:01:39 [1001:461140]: error: can't chdir to /x: No such file or directory\n"
        "scheduling info:            Job is in error state\n"
    )
    told = seen(CommandOutput(0, f"<?xml version='1.0'?>\n<job_info><job_info>{tasks}</job_info></job_info>\n{described}"), "7.1", "7.2")
    assert told["7.1"].reason == "Eqw: error: can't chdir to /x: No such file or directory"
    assert told["7.2"].reason == "Eqw: in error; for the reason: qstat -j 7"


def test_a_pilot_that_is_to_run_again_waits_again() -> None:
    assert seen(listed("status-requeued-xml"), "32", "33", "34") == {
        "32": JobStatus(QUEUED),
        "33": JobStatus(RUNNING),
        "34": JobStatus(QUEUED, "held"),
    }


def test_a_list_in_which_tasks_stand_together_is_read_too() -> None:
    told = (
        "<job_info><job_list state='pending'><JB_job_number>7</JB_job_number><state>qw</state><tasks>2,4-8:2</tasks></job_list></job_info>"
    )
    assert list(seen(CommandOutput(0, told), "7.2", "7.3", "7.4", "7.6", "7.8")) == ["7.2", "7.4", "7.6", "7.8"]


def test_the_end_of_a_life_after_which_it_was_run_again_is_no_end() -> None:
    assert remembered(history("exit99-requeued"), "16") == {}


@pytest.mark.parametrize(
    ("case", "job", "end"),
    [
        ("walltime", "10", JobStatus(ENDED, "failed 37 : qmaster enforced h_rt, h_cpu, or h_vmem limit", well=False, expired=True)),
        ("bad-output-path", "18", JobStatus(ENDED, "failed 26 : opening input/output file", well=False)),
        ("signal", "7", KILLED),
        ("cancelled", "9", KILLED),
        ("ok", "1", JobStatus(ENDED, "exit status 0")),
    ],
)
def test_how_a_pilot_ended_is_read_from_the_accounts(case: str, job: str, end: JobStatus) -> None:
    assert remembered(history(case), job) == {job: end}


@pytest.mark.parametrize("case", ["too-early", "unknown", "cancelled-while-pending"])
def test_what_the_accounts_do_not_know_is_left_out(case: str) -> None:
    assert remembered(history(case), "35") == {}


def test_accounts_that_cannot_be_read_are_unclear() -> None:
    with pytest.raises(UnclearAnswer):
        remembered(CommandOutput(1, "no jobs running since startup\n", "/x/default/common/accounting: No such file or directory\n"), "1")


def test_the_accounts_are_read_while_the_qmaster_is_down() -> None:
    assert remembered(answer(FOLDER, "down-history"), "6") == {"6": JobStatus(ENDED, "exit status 7", well=False)}


@pytest.mark.parametrize("case", ["cancel-other-user", "down-cancel", "cancel-force-node-down"])
def test_a_cancellation_that_failed_is_told(case: str) -> None:
    with pytest.raises(UnclearAnswer) as caught:
        BACKEND.cancel(SITE, ["8"])[0].read(answer(FOLDER, case))
    assert str(caught.value)


def test_a_machine_without_grid_engine_is_a_refusal() -> None:
    with pytest.raises(CommandRefused):
        BACKEND.submit(SITE, order()).read(CommandOutput(127, "", "sh: 1: qsub: not found\n"))
