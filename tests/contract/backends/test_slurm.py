"""The Slurm backend, against what Slurm 22.05 said with and without accounting."""

from __future__ import annotations

import pytest

from pilotfish.backends.interface import ENDED, QUEUED, RUNNING, CommandOutput, CommandRefused, JobStatus, PilotBatch, UnclearAnswer
from pilotfish.backends.slurm import SlurmBackend
from pilotfish.model.site import PilotSize, Site
from pilotfish.testing.backend_suite import BackendContract, Samples
from tests.contract.backends.transcripts import answer

PLAIN, ACCOUNTS = "slurm-22.05.8", "slurm-22.05.8-accounting"
BACKEND, SITE = SlurmBackend(), Site(backend="slurm")


def columns(told: CommandOutput, *wanted: int, of_job: str = "") -> CommandOutput:
    """The same answer with the columns that the backend asks for, and with the lines of one name."""
    rows = [line.split("|") for line in told.stdout.splitlines()]
    kept = ["|".join(row[index] for index in wanted) for row in rows if of_job in ("", row[5])]
    return CommandOutput(told.status, "".join(f"{line}\n" for line in kept), told.stderr)


def queue(folder: str, case: str, of_job: str = "") -> CommandOutput:
    return columns(answer(folder, case), 0, 3, 4, of_job=of_job)


def accounts(case: str) -> CommandOutput:
    return columns(answer(ACCOUNTS, case), 1, 3, 4)


def seen(told: CommandOutput, *jobs: str) -> dict[str, JobStatus]:
    return BACKEND.query(SITE, jobs)[0].read(told)


def remembered(told: CommandOutput, *jobs: str) -> dict[str, JobStatus]:
    exchange = BACKEND.past(SITE, jobs)
    assert exchange is not None
    return exchange.read(told)


OVER = dict.fromkeys(("10", "2", "4_1", "4_2", "4_3", "7", "8", "17"), ENDED)
WAIT = dict.fromkeys(("13", "14", "15", "18", "19", "20", "21", "12"), QUEUED)
LIVE = dict.fromkeys(("1", "4_4", "9", "11", "16"), RUNNING)
REFUSALS = [
    "bad-memory",
    "bad-option",
    "bad-reservation",
    "bad-time",
    "impossible-memory",
    "unknown-constraint",
    "unknown-gres",
]


class TestSlurm(BackendContract):
    samples = Samples(
        backend=BACKEND,
        kind="slurm",
        submitted=answer(PLAIN, "submit-ok-array5"),
        jobs=("4_1", "4_2", "4_3", "4_4", "4_5"),
        listed=(queue(PLAIN, "status-mixed-array-expanded"), OVER | WAIT | LIVE | {"4_5": RUNNING}),
        nothing=tuple(
            answer(PLAIN, case)
            for case in ("status-unknown-id", "status-two-unknown-ids", "status-left-queue-one", "status-left-queue-two", "status-empty")
        ),
        down=(answer(PLAIN, "down-status"), answer(ACCOUNTS, "down-status")),
        refused=(
            *(answer(PLAIN, f"submit-refused-{case}") for case in [*REFUSALS, "unknown-partition"]),
            *(answer(ACCOUNTS, f"submit-refused-unknown-{case}") for case in ("account", "qos")),
        ),
        cancelled=tuple(
            answer(PLAIN, f"cancel-{case}")
            for case in ("array", "finished", "finished-verbose", "left-queue-verbose", "unknown", "mixed-known-unknown", "ok-pending")
        ),
        found=(
            "pf-arr",
            queue(PLAIN, "status-mixed-array-expanded", of_job="pf-arr"),
            {number: f"4_{number}" for number in range(1, 6)},
        ),
        unfound=(answer(PLAIN, "find-by-name-none"),),
        words={
            "queue": "\n#SBATCH --partition=long\n",
            "account": "\n#SBATCH --account=physics\n",
            "walltime": "\n#SBATCH --time=91\n",
            "cores": "\n#SBATCH --cpus-per-task=4\n",
            "memory": "\n#SBATCH --mem=6144M\n",
            "gpus": "\n#SBATCH --gres=gpu:2\n",
            "directives": "\n#SBATCH --nice=17\n",
        },
        down_at_submission=(answer(PLAIN, "down-submit"), answer(PLAIN, "down-munge-submit")),
        limits=(
            answer(ACCOUNTS, "submit-refused-over-submit-limit"),
            answer(ACCOUNTS, "submit-refused-over-submit-limit-array"),
            *(answer(PLAIN, f"submit-refused-{case}") for case in ("bad-array", "array-too-large")),
        ),
        past=(
            (
                accounts("history-sacct-array"),
                {
                    "4_1": JobStatus(ENDED, "COMPLETED"),
                    "4_2": JobStatus(ENDED, "FAILED (exit status 3)", well=False),
                    "4_3": JobStatus(ENDED, "FAILED (signal 9)", well=False),
                    "4_5": JobStatus(ENDED, "CANCELLED by 1001", well=False),
                },
            ),
        ),
    )


def order(count: int = 1, size: PilotSize | None = None, folder: str = "/home/me/o 1") -> PilotBatch:
    return PilotBatch("pf-a-1", count, size or PilotSize(), folder, "/home/me/agent.pyz")


def test_the_script_goes_in_on_standard_input_and_its_name_and_output_cannot_be_changed_by_it() -> None:
    command = BACKEND.submit(SITE, order(3)).command
    assert command.argv[:2] == ("sbatch", "--parsable")
    assert {"--job-name=pf-a-1", "--array=1-3", "--output=/home/me/o 1/%a.log", "--open-mode=append"} <= set(command.argv)
    assert command.stdin.startswith("#!/bin/sh\n#SBATCH ")
    assert "'/home/me/o 1'/$SLURM_ARRAY_TASK_ID.json" in command.stdin


def test_a_single_pilot_is_no_array() -> None:
    exchange = BACKEND.submit(SITE, order())
    assert not any(word.startswith("--array") for word in exchange.command.argv)
    assert "--output=/home/me/o 1/1.log" in exchange.command.argv and "/1.json" in exchange.command.stdin
    assert exchange.read(answer(PLAIN, "submit-ok-stdin")) == ["5"]


def test_the_id_is_read_beside_a_greeting_and_with_the_name_of_a_cluster() -> None:
    assert BACKEND.submit(SITE, order(2)).read(CommandOutput(0, "Welcome, 1 job is yours\n77;north\n")) == ["77_1", "77_2"]


def test_a_percent_sign_in_the_folder_is_not_taken_for_a_pattern() -> None:
    assert "--output=/x%%j/1.log" in BACKEND.submit(SITE, order(folder="/x%j")).command.argv


def test_what_is_not_asked_for_is_not_written_and_the_directives_of_the_site_come_last() -> None:
    site = Site(backend="slurm", directives=("--time=7", "--no-requeue"))
    lines = BACKEND.submit(site, order(size=PilotSize(cores=1.5, walltime_s=60.0))).command.stdin.splitlines()
    asked = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert asked == ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=2", "--time=1", "--time=7", "--no-requeue"]


def test_several_nodes_have_an_agent_each() -> None:
    script = BACKEND.submit(SITE, order(size=PilotSize(cores=8, nodes=3))).command.stdin
    assert "\nexec srun --nodes=3 --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --cpus-per-task=8 sh '/home/me/o 1'/start.sh " in script
    assert "srun" not in BACKEND.submit(SITE, order()).command.stdin


def test_arrays_are_asked_for_once_and_as_a_whole() -> None:
    command = BACKEND.query(SITE, ["4_1", "4_2", "9", "4_3"])[0].command
    assert "--jobs=4,9" in command.argv and "--states=all" in command.argv and "--array" in command.argv


def test_why_a_pilot_waits_and_how_it_ended_are_told_in_slurms_words() -> None:
    told = seen(queue(PLAIN, "status-mixed-array-expanded"), "18", "12", "13", "9", "7", "8", "10", "2")
    assert [told[job].reason for job in ("18", "12", "13", "9")] == ["PartitionTimeLimit", "JobHeldUser", "BeginTime", ""]
    assert told["7"] == JobStatus(ENDED, "FAILED (NonZeroExitCode)", well=False)
    assert told["8"].reason.startswith("FAILED (JobLaunchFailure")
    assert told["10"] == JobStatus(ENDED, "CANCELLED", well=False), "its reason is the one for which it waited"
    assert told["2"] == JobStatus(ENDED, "COMPLETED")


def test_a_pilot_whose_time_was_over_is_known_as_such() -> None:
    assert seen(queue(PLAIN, "status-timeout"), "1") == {"1": JobStatus(ENDED, "TIMEOUT (TimeLimit)", well=False, expired=True)}
    assert remembered(accounts("history-sacct-mixed"), "1") == {"1": JobStatus(ENDED, "TIMEOUT", well=False, expired=True)}


def test_a_pilot_that_lost_its_node_or_was_preempted_waits_again_if_the_site_requeues_it() -> None:
    told = seen(queue(ACCOUNTS, "node-down-status"), "4", "5")
    assert told == {"4": JobStatus(ENDED, "NODE_FAIL (NodeDown)", well=False), "5": JobStatus(QUEUED, "BeginTime")}
    assert seen(queue(ACCOUNTS, "status-preempted-requeued"), "6") == {"6": JobStatus(QUEUED, "BeginTime")}
    assert seen(queue(ACCOUNTS, "status-oom-requeued-cancelled"), "1", "3") == {
        "1": JobStatus(ENDED, "OUT_OF_MEMORY (OutOfMemory)", well=False),
        "3": JobStatus(QUEUED, "BeginTime"),
    }


def test_accounts_of_a_former_life_do_not_say_that_a_requeued_pilot_ended() -> None:
    assert remembered(accounts("history-sacct-oom-requeued-cancelled"), "3", "6", "7") == {}


@pytest.mark.parametrize("state", ["REQUEUED", "REQUEUE_HOLD", "CONFIGURING", "SPECIAL_EXIT"])
def test_states_in_between_are_waiting(state: str) -> None:
    assert seen(CommandOutput(0, f"7|{state}|None\n"), "7") == {"7": JobStatus(QUEUED, state)}


@pytest.mark.parametrize("state", ["COMPLETING", "SUSPENDED", "STAGE_OUT"])
def test_a_pilot_that_still_holds_its_node_has_not_ended(state: str) -> None:
    assert seen(CommandOutput(0, f"7|{state}|None\n"), "7") == {"7": JobStatus(RUNNING, state)}


def test_a_state_that_nobody_has_heard_of_says_nothing() -> None:
    assert seen(CommandOutput(0, "7|DREAMING|None\n8|RUNNING|None\n"), "7", "8") == {"8": JobStatus(RUNNING)}


def test_elements_that_are_told_together_are_told_apart() -> None:
    waits, gone = JobStatus(QUEUED, "Priority"), JobStatus(ENDED, "CANCELLED by 7", well=False)
    assert seen(CommandOutput(0, "5_[1-2,4%2]|PENDING|Priority\n"), "5_1", "5_2", "5_3", "5_4") == {
        "5_1": waits,
        "5_2": waits,
        "5_4": waits,
    }
    assert remembered(CommandOutput(0, "5_[2-6:2]|CANCELLED by 7|0:0\n"), "5_2", "5_3", "5_6") == {"5_2": gone, "5_6": gone}


@pytest.mark.parametrize("told", [answer(PLAIN, "history-sacct-disabled"), answer(ACCOUNTS, "down-dbd-sacct")])
def test_without_accounts_nothing_is_known_of_the_past(told: CommandOutput) -> None:
    with pytest.raises(UnclearAnswer):
        remembered(told, "1")
    assert BACKEND.past(Site(backend="slurm", options={"accounting": "no"}), ["1"]) is None


def test_an_output_that_cannot_be_written_is_called_by_its_name() -> None:
    told = remembered(accounts("history-sacct-oom-requeued-cancelled"), "4", "1")
    assert told["4"].reason == "FAILED (its output could not be written)"
    assert told["1"].reason == "OUT_OF_MEMORY (signal 125)"


@pytest.mark.parametrize("case", ["cancel-other-user", "down-cancel", "cancel-malformed"])
def test_a_cancellation_that_failed_is_told(case: str) -> None:
    with pytest.raises(UnclearAnswer):
        BACKEND.cancel(SITE, ["9"])[0].read(answer(PLAIN, case))


@pytest.mark.parametrize(
    ("words", "later"),
    [
        ("QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy (...)", True),
        ("Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", True),
        ("QOSMaxWallDurationPerJobLimit\nsbatch: error: Batch job submission failed: Job violates accounting/QOS policy (...)", False),
        ("Batch job submission failed: Required partition not available (inactive or drain)", True),
        ("Batch job submission failed: Access/permission denied", False),
    ],
)
def test_limits_and_outages_pass_and_other_refusals_do_not(words: str, later: bool) -> None:
    with pytest.raises(CommandRefused) as caught:
        BACKEND.submit(SITE, order()).read(CommandOutput(1, "", f"sbatch: error: {words}\n"))
    assert caught.value.later is later and "sbatch" not in str(caught.value)


@pytest.mark.parametrize("words", ["Socket timed out on send/recv operation", "Zero Bytes were transmitted or received"])
def test_a_submission_that_the_controller_may_have_taken_is_unclear(words: str) -> None:
    with pytest.raises(UnclearAnswer):
        BACKEND.submit(SITE, order()).read(CommandOutput(1, "", f"sbatch: error: Batch job submission failed: {words}\n"))


def test_a_machine_without_slurm_is_a_refusal_and_a_lost_connection_is_not() -> None:
    with pytest.raises(CommandRefused):
        BACKEND.submit(SITE, order()).read(CommandOutput(127, "", "sh: 1: sbatch: not found\n"))
    with pytest.raises(UnclearAnswer):
        BACKEND.submit(SITE, order()).read(CommandOutput(255, "", "Connection to login closed by remote host.\n"))


def test_no_line_of_a_queue_can_keep_us_busy() -> None:
    (exchange,) = SlurmBackend().query(Site(backend="slurm"), ["7_1", "9"])
    answer = CommandOutput(0, "999999_[1-99999999999]|PENDING|x\n7_[1-3]|PENDING|Priority\n9|RUNNING|None\n")
    assert sorted(exchange.read(answer)) == ["7_1", "9"]
