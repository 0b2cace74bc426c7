"""NorduGrid ARC, as it was recorded from a computing element of version 6.17 with the commands that this backend makes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pilotfish.backends.arc import ArcBackend
from pilotfish.backends.interface import ENDED, QUEUED, RUNNING, CommandOutput, CommandRefused, UnclearAnswer
from pilotfish.model.site import Site
from pilotfish.testing.backend_suite import BackendContract, Samples, sent_text
from tests.contract.backends.transcripts import answer

ARC = "arc-6.17"
JOBS = tuple(job["id"] for job in json.loads(answer(ARC, "submit-ok-4").stdout)["job"])
"""The first exits with 0, the second with 7, the third is killed by signal 9, the fourth runs until it is cancelled."""


class TestArc(BackendContract):
    samples = Samples(
        backend=ArcBackend(),
        kind="arc",
        submitted=answer(ARC, "submit-ok-4"),
        jobs=JOBS,
        listed=(answer(ARC, "status-mixed"), dict(zip(JOBS, (ENDED, ENDED, ENDED, RUNNING), strict=True))),
        nothing=(answer(ARC, "status-unknown"),),
        down=(answer(ARC, "down-status"),),
        refused=(answer(ARC, "submit-refused-queue"), answer(ARC, "submit-wrong-address")),
        cancelled=(),
        found=("pf-tag-1", answer(ARC, "find-by-tag"), dict(enumerate(JOBS, 1))),
        unfound=(CommandOutput(0, "pilotfish: looked for pf-tag-1\n"),),
        words={
            "queue": '(queue="long")',
            "account": '(project="physics")',
            "walltime": '(walltime="5430 seconds")',
            "cores": "(count=4)",
            "memory": "(memory=1536)",
            "gpus": "",
            "directives": "--nice=17",
        },
        down_at_submission=tuple(
            answer(ARC, case) for case in ("down-submit", "submit-unknown-host", "submit-nobody-listens", "submit-refused-description")
        ),
        limits=(answer(ARC, "submit-no-proxy"), answer(ARC, "submit-unknown-authority"), answer(ARC, "submit-file-missing")),
        options={"endpoint": "https://ce.example.org/arex"},
    )


def site(**options: str) -> Site:
    return Site(backend="arc", options={"endpoint": "https://ce.example.org/arex/", **options})


def test_a_computing_element_tells_how_jobs_ended_in_its_own_words() -> None:
    seen = ArcBackend().query(site(), JOBS)[0].read(answer(ARC, "status-cancelled"))
    assert [seen[job].well for job in JOBS] == [True, False, False, False]
    assert seen[JOBS[1]].reason == "LRMS error: (7) Job finished with wrong exit code - 7 != 0"
    assert seen[JOBS[3]].reason.startswith("Job is canceled by external request; Job was canceled")


def test_the_states_are_enough_when_nothing_more_is_told() -> None:
    states = answer(ARC, "status-accepted").stdout.splitlines()[0]
    seen = ArcBackend().query(site(), JOBS)[0].read(CommandOutput(0, states + "\n"))
    assert {sighting.phase for sighting in seen.values()} == {QUEUED} and len(seen) == 4


def test_an_answer_about_one_job_alone_is_no_list() -> None:
    one = json.loads(answer(ARC, "submit-ok-1").stdout)["job"]["id"]
    order = TestArc.samples.order(count=1)
    assert ArcBackend().submit(site(), order).read(answer(ARC, "submit-ok-1")) == [one]
    assert list(ArcBackend().query(site(), [one])[0].read(answer(ARC, "status-one"))) == [one]


def test_an_unknown_job_does_not_hide_a_known_one() -> None:
    assert list(ArcBackend().query(site(), [*JOBS, "nosuch"])[0].read(answer(ARC, "status-known-and-unknown"))) == [JOBS[0]]


def test_an_element_that_is_down_neither_cancels_nor_finds() -> None:
    with pytest.raises(UnclearAnswer):
        ArcBackend().cancel(site(), JOBS)[0].read(answer(ARC, "down-cancel"))
    with pytest.raises(UnclearAnswer):
        ArcBackend().find(site(), "pf-tag-1")[0].read(answer(ARC, "down-find"))


def test_a_state_that_is_not_known_says_nothing() -> None:
    told = json.dumps({"job": {"id": "a", "state": "DREAMING"}})
    assert ArcBackend().query(site(), ["a"])[0].read(CommandOutput(0, told)) == {}


@pytest.mark.parametrize(
    ("case", "jobs"), [("running", JOBS[3:]), ("finished", JOBS[:1]), ("unknown", ("nosuch",)), ("mixed", (*JOBS[2:], "nosuch"))]
)
def test_what_ended_or_is_unknown_may_be_cancelled(case: str, jobs: tuple[str, ...]) -> None:
    ArcBackend().cancel(site(), jobs)[0].read(answer(ARC, f"cancel-{case}"))
    with pytest.raises(UnclearAnswer):
        ArcBackend().cancel(site(), [*jobs, "another"])[0].read(answer(ARC, f"cancel-{case}"))


def test_jobs_of_other_names_are_not_taken_for_those_of_a_tag() -> None:
    shown = answer(ARC, "find-by-tag-none")
    assert ArcBackend().find(site(), "pf-none")[0].read(shown) == {}
    cut = replace(shown, stdout=shown.stdout[:-20])
    with pytest.raises(UnclearAnswer):
        ArcBackend().find(site(), "pf-none")[0].read(cut)


def test_a_limit_of_the_element_is_a_refusal_for_now() -> None:
    told = json.dumps({"job": {"status-code": "500", "reason": "Too many jobs: limit reached"}})
    with pytest.raises(CommandRefused) as caught:
        ArcBackend().submit(site(), TestArc.samples.order()).read(CommandOutput(71, "", told))
    assert caught.value.later and str(caught.value) == "Too many jobs: limit reached"


def test_proxy_and_authorities_are_those_of_the_site() -> None:
    usual = sent_text(ArcBackend().find(site(), "t")[0])
    assert "X509_USER_PROXY" in usual and "--capath" in usual and "--cacert" not in usual
    own = sent_text(ArcBackend().find(site(proxy="/p q", cacert="/ca.pem"), "t")[0])
    assert "proxy='/p q'" in own and "--cacert /ca.pem" in own and "--capath" not in own
    assert "https://ce.example.org/arex/rest/1.0/jobs" in own


CURL = """\
#!/bin/sh
# Takes the place of curl: notes its arguments, says that jobs were made, and fails where it is told to.
echo "$*" >>"$NOTES"
case $* in
  *action=new*) cat >>"$NOTES"; echo '{"job":[{"id":"A"},{"id":"B"}]}' ;;
  *"B/session"*) exit $FAILS ;;
esac
"""


@pytest.mark.parametrize(("fails", "status"), [(0, 0), (56, 71)])
def test_the_script_sends_each_job_its_files_and_takes_all_back_if_it_cannot(tmp_path: Path, fails: int, status: int) -> None:
    (tmp_path / "curl").write_text(CURL)
    (tmp_path / "curl").chmod(0o755)
    (tmp_path / "proxy").touch()
    order = replace(TestArc.samples.order(count=2), folder=str(tmp_path))
    exchange = ArcBackend().submit(site(proxy=str(tmp_path / "proxy")), order)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NOTES": str(tmp_path / "notes"), "FAILS": str(fails)}
    ran = subprocess.run(exchange.command.argv, input=exchange.command.stdin, env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == status, ran.stderr
    notes = (tmp_path / "notes").read_text()
    assert f"{tmp_path}/1.json https://ce.example.org/arex/rest/1.0/jobs/A/session/1.json" in notes
    assert f"{tmp_path}/2.json https://ce.example.org/arex/rest/1.0/jobs/B/session/1.json" in notes
    assert notes.count("action=kill") == (0 if status == 0 else 2)
    assert "chmod 600 1.json\n" in (tmp_path / "pilot.sh").read_text()
    assert stat.S_IMODE((tmp_path / "pilot.sh").stat().st_mode) == 0o600
